"""Receivers whose behaviour changes during the walk. A request is an arrival only if it got a 2xx."""

import collections
import http.server
import json
import random
import socket
import struct
import threading
import time

# Behaviours of a receiver, and their weights when one is chosen at random.
BEHAVIOURS = {"respond": 6, "fail": 2, "hang": 1, "reset": 1, "gone": 1, "too_many": 1, "flaky": 3}
HANG_SECONDS = 3


class Receivers:
    def __init__(self, seed):
        self.random = random.Random(f"{seed}-receivers")
        self.behaviours = collections.defaultdict(lambda: "respond")
        self.arrivals = collections.Counter()
        self.lock = threading.Lock()
        self.is_calm = False
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.server.request_queue_size = 256
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def url(self, name):
        return f"http://127.0.0.1:{self.server.server_address[1]}/{name}"

    def set_behaviour(self, name, behaviour):
        self.behaviours[name] = behaviour

    def calm(self):
        """Makes every receiver respond with success from now on."""
        self.is_calm = True

    def behaviour(self, name):
        behaviour = "respond" if self.is_calm else self.behaviours[name]
        if behaviour == "flaky":
            with self.lock:
                behaviour = self.random.choice(["respond", "fail", "reset"])
        return behaviour

    def arrived(self, name, body):
        try:
            key = json.loads(body).get("key")
        except (ValueError, AttributeError):
            return
        with self.lock:
            self.arrivals[(name, key)] += 1

    def duplicates(self):
        return sum(count - 1 for count in self.arrivals.values())

    def stop(self):
        self.server.shutdown()

    def _handler(receivers):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                name = self.path.strip("/")
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                behaviour = receivers.behaviour(name)
                if behaviour == "hang":
                    time.sleep(HANG_SECONDS)
                    behaviour = "reset"
                if behaviour == "reset":
                    # Closing with a linger time of 0 sends a reset.
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.close_connection = True
                    self.connection.close()
                    return
                status = {"respond": 204, "fail": 500, "gone": 410, "too_many": 429}[behaviour]
                if status == 204:
                    receivers.arrived(name, body)
                self.send_response(status)
                if status == 429:
                    self.send_header("Retry-After", "1")
                if status != 204:
                    self.send_header("Content-Length", "0")
                self.end_headers()

            def handle_one_request(self):
                try:
                    super().handle_one_request()
                except (OSError, ValueError):
                    self.close_connection = True

            def log_message(self, *_):
                pass

        return Handler
