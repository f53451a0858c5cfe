#!/usr/bin/env python3
"""Retries many dead letters in bulk at a set rate, kills the server in between, and prints the results.

    bench/bulk.py --bin target/release/redrive --letters 100000 --rate 1000 --kills 2
    bench/bulk.py --bin target/release/redrive --letters 1000000 --rate 0        # unlimited

Prints one JSON object. `rate` is that of arrivals while the server was running, from a second after its start
to its end; `second_rounds` and `delivered` must equal `letters`, and `missing` and `left_dead` be 0. Without kills,
`arrived_twice` must be 0 as well; requests in flight at a kill are sent again.
"""

import argparse
import asyncio
import http.client
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time


class Receiver(asyncio.Protocol):
    """Responds to every request with `status`, and records the time of each event."""

    status, arrived = 400, []

    def connection_made(self, transport):
        self.transport, self.buffer = transport, b""

    def data_received(self, data):
        self.buffer += data
        while True:
            head, found, rest = self.buffer.partition(b"\r\n\r\n")
            if not found:
                return
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
            length = int(fields.get(b"content-length", 0))
            if len(rest) < length:
                return
            self.buffer = rest[length:]
            if Receiver.status == 200:
                Receiver.arrived.append((time.monotonic(), fields[b"webhook-id"]))
            self.transport.write(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % Receiver.status)


class Server:
    """A server that can be killed and started again."""

    def __init__(self, options, home):
        self.options, self.home, self.peak = options, home, 0
        self.start()

    def start(self):
        environment = dict(os.environ, REDRIVE_LOG_LEVEL="warn")
        command = [self.options.bin, "dev", "--listen", "127.0.0.1:18090"]
        if self.options.database_url:
            command += ["--database-url", self.options.database_url]
        log = open(os.path.join(self.home, "log"), "ab")
        self.process = subprocess.Popen(command, cwd=self.home, env=environment, stdout=log, stderr=log)
        while True:
            try:
                if self.call("GET", "/readyz", key=False)[0] == 200:
                    return
            except OSError:
                pass
            if self.process.poll() is not None:
                raise SystemExit(open(os.path.join(self.home, "log")).read())
            time.sleep(0.02)

    def call(self, method, path, body=None, key=True):
        headers = {"content-type": "application/json"}
        if key:
            path_of_key = subprocess.run(["find", self.home, "-name", "admin.key"], capture_output=True, text=True)
            headers["authorization"] = "Bearer " + open(path_of_key.stdout.split()[0]).read().strip()
        connection = http.client.HTTPConnection("127.0.0.1", 18090, timeout=60)
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, json.loads(data or b"null") if key else data

    def memory(self, field="VmRSS"):
        for line in open(f"/proc/{self.process.pid}/status"):
            if line.startswith(field):
                return int(line.split()[1]) // 1024

    def kill(self, how=signal.SIGKILL):
        self.peak = max(self.peak, self.memory("VmHWM"))
        self.process.send_signal(how)
        self.process.wait()


def seed(server, letters):
    """Publishes `letters` events, and waits until all are dead."""
    webhook = {"url": "http://127.0.0.1:18091/", "events": ["*"], "max_in_flight": 64}
    webhook["circuit_breaker_config"] = {"enabled": False}
    status, created = server.call("POST", "/v1/webhooks", webhook)
    assert status == 201, created
    for start in range(0, letters, 1000):
        events = [{"event_type": "order.paid", "data": n} for n in range(start, min(start + 1000, letters))]
        status, response = server.call("POST", "/v1/events/batch", {"events": events})
        assert status == 202, response
    while dead(server) < letters:
        time.sleep(1)


def dead(server):
    metrics = server.call("GET", "/metrics", key=False)[1].decode()
    return next(int(line.split()[1]) for line in metrics.splitlines() if line.startswith("webhook_dlq_size "))


def retry(server, options):
    body = {"rate_limit": {"requests_per_second": options.rate}} if options.rate else {}
    operation = server.call("POST", "/v1/dlq/retry-batch", body)[1]["id"]
    path, spans, up = f"/v1/dlq/batch-operations/{operation}", [], time.monotonic()
    marks = [options.letters * (n + 1) // (options.kills + 1) for n in range(options.kills)]
    while True:
        now = server.call("GET", path)[1]
        if marks and now["progress"]["queued"] >= marks[0]:
            marks.pop(0)
            spans.append((up + 1, time.monotonic()))
            server.kill()
            server.start()
            up = time.monotonic()
        if now["status"] in ("delivering", "completed"):
            spans.append((up + 1, time.monotonic() if options.rate == 0 else Receiver.arrived[-1][0]))
            break
        time.sleep(0.1)
    while now["status"] != "completed":
        time.sleep(0.5)
        now = server.call("GET", path)[1]
    return now, spans


def summarize(operation, spans, server, options):
    times = [at for at, _ in Receiver.arrived]
    inside = sum(any(begin <= at < end for begin, end in spans) for at in times)
    counts = {}
    for _, event in Receiver.arrived:
        counts[event] = counts.get(event, 0) + 1
    return {
        "letters": options.letters,
        "requested_rate": options.rate,
        "rate": round(inside / sum(max(end - begin, 0.001) for begin, end in spans), 1),
        "kills": options.kills,
        "second_rounds": operation["progress"]["queued"],
        "skipped": operation["progress"]["skipped"],
        "delivered": operation["progress"]["delivered"],
        "missing": options.letters - len(counts),
        "arrived_twice": sum(count > 1 for count in counts.values()),
        "left_dead": dead(server),
        "rss_before_mb": options.before,
        "rss_peak_mb": max(server.peak, server.memory("VmHWM")),
    }


async def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--letters", type=int, default=100_000)
    parser.add_argument("--rate", type=int, default=1_000, help="0: unlimited")
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--database-url")
    parser.add_argument("--home", help="a folder with the dead letters of an earlier run, which was interrupted")
    options = parser.parse_args()
    options.bin = os.path.abspath(options.bin)
    home = options.home or tempfile.mkdtemp(prefix="redrive-bulk-", dir=os.environ.get("RB_DIR"))
    loop = asyncio.get_running_loop()
    await loop.create_server(Receiver, "127.0.0.1", 18091)
    server = await asyncio.to_thread(Server, options, home)
    try:
        if not options.home:
            await asyncio.to_thread(seed, server, options.letters)
        await asyncio.to_thread(server.kill, signal.SIGTERM)
        await asyncio.to_thread(server.start)
        server.peak, options.before = 0, server.memory()
        Receiver.status = 200
        operation, spans = await asyncio.to_thread(retry, server, options)
        print(json.dumps(summarize(operation, spans, server, options), indent=2))
    finally:
        server.kill(signal.SIGTERM)
        shutil.rmtree(home)


asyncio.run(main())
