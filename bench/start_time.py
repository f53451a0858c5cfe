"""Measures the milliseconds from exec until a sender answers GET /readyz with 200.

Usage: start_time.py HOST:PORT TIMES [--fresh DIR] -- COMMAND…
Prints {"start_ms": [...]}. With --fresh, DIR is emptied before each start.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time

PATIENCE_S = 30


def is_ready(address):
    """One question on a connection of its own; refused while nobody listens yet."""
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
            if sender.poll() is not None or time.monotonic() - began > PATIENCE_S:
                sys.exit(f"not ready after {time.monotonic() - began:.1f} s: {' '.join(command)}")
            # Short enough to resolve a millisecond, and it leaves the sender its core.
            time.sleep(0.0003)
        return round((time.monotonic() - began) * 1000, 1)
    finally:
        sender.terminate()
        try:
            sender.wait(timeout=15)
        except subprocess.TimeoutExpired:
            sender.kill()
            sender.wait()


def main():
    options, command = sys.argv[1 : sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1 :]
    host, port = options[0].rsplit(":", 1)
    fresh = options[3] if "--fresh" in options else None
    times = []
    for _ in range(int(options[1])):
        if fresh:
            shutil.rmtree(fresh, ignore_errors=True)
            os.makedirs(fresh)
        times.append(time_one((host, int(port)), command))
    print(json.dumps({"start_ms": times}))


main()
