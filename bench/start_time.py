"""Measures the milliseconds from exec until a sender responds to GET /readyz with 200.

Usage: start_time.py HOST:PORT TIMES [-- RENEWAL…] -- COMMAND…
Prints {"start_ms": [...]}. RENEWAL is a command that is run before each start.
"""

import json
import socket
import subprocess
import sys
import time

READY_TIMEOUT_S = 30


def is_ready(address):
    """Sends one request on a new connection; returns False if the connection is refused."""
    try:
        with socket.create_connection(address, timeout=1) as connection:
            connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
            return connection.recv(64).split(b" ")[1:2] == [b"200"]
    except OSError:
        return False


def time_one(address, command):
    began = time.monotonic()
    sender = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not is_ready(address):
            if sender.poll() is not None or time.monotonic() - began > READY_TIMEOUT_S:
                sys.exit(f"not ready after {time.monotonic() - began:.1f} s: {' '.join(command)}")
            # Short enough to resolve a millisecond, and long enough to leave the core to the sender.
            time.sleep(0.0003)
        return round((time.monotonic() - began) * 1000, 1)
    finally:
        sender.terminate()
        try:
            sender.wait(timeout=15)
        except subprocess.TimeoutExpired:
            sender.kill()
            sender.wait()


def groups(words):
    """Splits words at each `--`."""
    found = [[]]
    for word in words:
        if word == "--":
            found.append([])
        else:
            found[-1].append(word)
    return found


def main():
    (address, count), *renewals, command = groups(sys.argv[1:])
    host, port = address.rsplit(":", 1)
    times = []
    for _ in range(int(count)):
        for renewal in renewals:
            subprocess.run(renewal, check=True)
        times.append(time_one((host, int(port)), command))
    print(json.dumps({"start_ms": times}))


main()
