"""Keeps pages of the dashboard open, as many tabs do, and reads what they are sent until it is ended.

Usage: dashboard_viewers.py HOST:PORT COUNT
Half of them show the same few pages, which are rendered once for all who look; the others each show something else.
Says how many updates came when it is told to stop (TERM).
"""

import json
import selectors
import signal
import socket
import sys
import urllib.parse

from dashboard import log_in

WATCHED = ["/dashboard/t/default", "/dashboard/t/default/webhooks", "/dashboard/t/default/deliveries"]


def listen(address, cookie, page):
    host, port = address.rsplit(":", 1)
    opened = socket.create_connection((host, int(port)))
    path = f"/dashboard/live?page={urllib.parse.quote(page, safe='')}"
    opened.sendall(f"GET {path} HTTP/1.1\r\nHost: {address}\r\nCookie: {cookie}\r\n\r\n".encode())
    return opened


def page_of(tab):
    if tab % 2:
        return f"/dashboard/t/default/deliveries?event_type=bench.number{tab}"
    return WATCHED[tab // 2 % len(WATCHED)]


def main():
    address, count = sys.argv[1], int(sys.argv[2])
    cookie, tabs, told = log_in(address), selectors.DefaultSelector(), {"pages": count, "updates": 0, "bytes": 0}
    for tab in range(count):
        tabs.register(listen(address, cookie, page_of(tab)), selectors.EVENT_READ)

    def end(*_):
        print(json.dumps(told), flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    print("open", flush=True)
    while tabs.get_map():
        for key, _ in tabs.select():
            data = key.fileobj.recv(1 << 16)
            if not data:
                tabs.unregister(key.fileobj)
            told["updates"] += data.count(b"event: part")
            told["bytes"] += len(data)
    sys.exit("the server has closed every page")


main()
