"""Receives telemetry of Redrive during a benchmark: a trace collector, and a scraper of its metrics.

Usage: telemetry_sink.py OTLP_PORT HOST:PORT
Responds to every POST to OTLP_PORT with 200, and scrapes HOST:PORT/metrics every second.
Prints the amounts received when it is stopped (SIGTERM).
"""

import http.server
import json
import os
import signal
import sys
import threading
import time
import urllib.request

received = {"batches": 0, "span_bytes": 0, "scrapes": 0, "slowest_scrape_ms": 0.0}


class Collector(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        size = int(self.headers.get("Content-Length", 0))
        self.rfile.read(size)
        received["batches"] += 1
        received["span_bytes"] += size
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def scrape(address):
    request = urllib.request.Request(f"http://{address}/metrics")
    while True:
        begun = time.monotonic()
        with urllib.request.urlopen(request, timeout=10) as response:
            response.read()
        took = (time.monotonic() - begun) * 1000
        received["scrapes"] += 1
        received["slowest_scrape_ms"] = round(max(received["slowest_scrape_ms"], took), 1)
        time.sleep(1)


def end(*_):
    print(json.dumps(received), flush=True)
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
