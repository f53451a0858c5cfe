"""Takes in what Redrive tells others while it works, as a collector, a mail server and a Prometheus would.

Usage: telemetry_sink.py OTLP_PORT HOST:PORT
Answers every POST to OTLP_PORT with 200, and scrapes HOST:PORT/metrics every second.
Says how much came when it is told to stop (TERM).
"""

import http.server
import json
import os
import signal
import sys
import threading
import time
import urllib.request

told = {"batches": 0, "span_bytes": 0, "scrapes": 0, "slowest_scrape_ms": 0.0}


class Collector(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        size = int(self.headers.get("Content-Length", 0))
        self.rfile.read(size)
        told["batches"] += 1
        told["span_bytes"] += size
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def scrape(address):
    request = urllib.request.Request(f"http://{address}/metrics")
    while True:
        begun = time.monotonic()
        with urllib.request.urlopen(request, timeout=10) as answer:
            answer.read()
        took = (time.monotonic() - begun) * 1000
        told["scrapes"] += 1
        told["slowest_scrape_ms"] = round(max(told["slowest_scrape_ms"], took), 1)
        time.sleep(1)


def end(*_):
    print(json.dumps(told), flush=True)
    os._exit(0)


def main():
    port, address = int(sys.argv[1]), sys.argv[2]
    signal.signal(signal.SIGTERM, end)
    collector = http.server.ThreadingHTTPServer(("127.0.0.1", port), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    threading.Thread(target=scrape, args=(address,), daemon=True).start()
    print("open", flush=True)
    signal.pause()


main()
