"""Keeps pages of the dashboard open, as many browser tabs would, and reads their updates until it is stopped.

Usage: dashboard_viewers.py HOST:PORT COUNT
Half of them show the same few pages, which are rendered once for all viewers; the others each show a different page.
Prints the number of updates when it is stopped (SIGTERM).
"""

import json
import selectors
import signal
import socket
import sys
import urllib.parse

from dashboard import log_in

SHARED_PAGES = ["/dashboard/t/default", "/dashboard/t/default/webhooks", "/dashboard/t/default/deliveries"]


def open_stream(address, cookie, page):
    host, port = address.rsplit(":", 1)
    opened = socket.create_connection((host, int(port)))
    path = f"/dashboard/live?page={urllib.parse.quote(page, safe='')}"
    opened.sendall(f"GET {path} HTTP/1.1\r\nHost: {address}\r\nCookie: {cookie}\r\n\r\n".encode())
    return opened


def page_of(tab):
    if tab % 2:
        return f"/dashboard/t/default/deliveries?event_type=bench.number{tab}"
    return SHARED_PAGES[tab // 2 % len(SHARED_PAGES)]


def main():
    address, count = sys.argv[1], int(sys.argv[2])
    cookie, tabs, received = log_in(address), selectors.DefaultSelector(), {"pages": count, "updates": 0, "bytes": 0}
    for tab in range(count):
        tabs.register(open_stream(address, cookie, page_of(tab)), selectors.EVENT_READ)

    def end(*_):
        print(json.dumps(received), flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    print("open", flush=True)
    while tabs.get_map():
        for key, _ in tabs.select():
            data = key.fileobj.recv(1 << 16)
            if not data:
                tabs.unregister(key.fileobj)
            received["updates"] += data.count(b"event: part")
            received["bytes"] += len(data)
    sys.exit("the server has closed every page")


main()
