#!/usr/bin/env python3
"""Measures the latency of other tenants while one tenant sends the worst input of each kind.

    bench/worst.py --bin target/release/redrive --seconds 10

Another tenant publishes at a steady pace on one connection, and `/healthz` is requested on another one: first alone, then
beside each kind of input on `--connections` connections. Prints a table of the median and the 99th percentile in
milliseconds, and the ratio of the latter to that of the run alone. The goal is a ratio of at most 2.
"""

import argparse
import http.client
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time

PORT = 18097
KEY = "rdk_bench_0123456789abcdef0123456789abcdef"


def start(binary, home):
    environment = dict(os.environ, REDRIVE_LOG_LEVEL="warn")
    for name in [name for name in environment if name.startswith("REDRIVE_") and name != "REDRIVE_LOG_LEVEL"]:
        del environment[name]
    environment["REDRIVE_ADMIN_KEY"] = KEY
    command = [os.path.abspath(binary), "dev", "--listen", f"127.0.0.1:{PORT}"]
    log = open(os.path.join(home, "log"), "wb")
    process = subprocess.Popen(command, cwd=home, env=environment, stdout=log, stderr=log)
    while True:
        try:
            if request(connect(), "GET", "/readyz", None, None)[0] == 200:
                return process, KEY
        except OSError:
            pass
        if process.poll() is not None:
            raise SystemExit(open(os.path.join(home, "log")).read())
        time.sleep(0.05)


def connect():
    return http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)


def request(connection, method, path, key, body):
    headers = {"content-type": "application/json"}
    if key:
        headers["authorization"] = "Bearer " + key
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    return response.status, response.read()


def admin(key, path, body):
    status, response = request(connect(), "POST", path, key, json.dumps(body))
    if status != 201:
        raise SystemExit(f"{path}: {status} {response.decode()}")
    return json.loads(response)


def tenant(key, name):
    admin(key, "/v1/tenants", {"id": name})
    scopes = {"scopes": ["publish", "manage", "read"]}
    return admin(key, f"/v1/tenants/{name}/api-keys", scopes)["key"]


def listed(item, size):
    return "[" + ",".join([item] * (size // (len(item) + 1))) + "]"


def kinds(key):
    """Returns the worst input of each kind: the path and the body to send."""
    trees = ["[" + ",".join("[[]]" if n >> bit & 1 else "[]" for bit in range(16)) + "]" for n in range(4000)]
    schemas = {
        "plain": ({"type": "array"}, "[1]"),
        "multiples": ({"items": {"multipleOf": 1e-300}}, listed("1e300", 240_000)),
        "unique": ({"uniqueItems": True}, "[" + ",".join(trees) + "]"),
        "rules": ({"items": {"allOf": [{"maximum": 10 + n} for n in range(900)]}}, listed("1", 60_000)),
        "pattern": ({"pattern": "[ab]*a[ab]{300}c"}, '"' + "abbab" * 30_000 + '"'),
    }
    inputs = []
    for name, (schema, payload) in schemas.items():
        admin(key, "/v1/event-types", {"name": name, "schema": schema})
        body = '{"event_type":"%s","data":%s}' % (name, payload)
        if name != "plain":
            inputs.append((name, "/v1/events", body))
    event = '{"event_type":"multiples","data":%s}' % listed("1e300", 12_000)
    inputs.append(("batch of 1,000 checks", "/v1/events/batch", '{"events":[' + ",".join([event] * 1000) + "]}"))
    deep = '{"event_type":"deep","data":%s}' % ("[" * 120_000 + "]" * 120_000)
    inputs.append(("deep JSON", "/v1/events", deep))
    path = "/a" * 20
    for n in range(40):
        filter = {"all": [{"path": path, "ne": value} for value in range(100)]}
        # No payload passes, so that nothing is sent.
        filter["all"].append({"path": "/nowhere", "exists": True})
        admin(key, "/v1/webhooks", {"url": f"http://127.0.0.1:8080/{n}", "events": ["filtered"], "filter": filter})
    nested = '{"a":' * 20 + '"' + "x" * 200_000 + '"' + "}" * 20
    inputs.append(("filters", "/v1/events", '{"event_type":"filtered","data":%s}' % nested))
    inputs.append(("listings", "/v1/webhooks?limit=500", None))
    return inputs


def measure(seconds, pause, call):
    connection, times, end = connect(), [], time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        call(connection)
        times.append((time.monotonic() - began) * 1000)
        time.sleep(pause)
    return sorted(times)


def beside(options, globex):
    results = {}

    def run(name, pause, call):
        results[name] = measure(options.seconds, pause, call)

    publish = json.dumps({"event_type": "order.created", "data": {"n": 1}})

    def publishes(connection):
        status, response = request(connection, "POST", "/v1/events", globex, publish)
        assert status == 202, response

    def check_health(connection):
        status, _ = request(connection, "GET", "/healthz", None, None)
        assert status == 200

    threads = [threading.Thread(target=run, args=("publish", 0.005, publishes)),
               threading.Thread(target=run, args=("healthz", 0.005, check_health))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def attack(options, acme, path, body, stop, statuses):
    """Sends the same input repeatedly on one connection, in a separate process so that it does not slow the
    measurement down."""
    code = ("import http.client,sys\n"
            "path,key,port=sys.argv[1:4]\n"
            "body=sys.stdin.buffer.read() or None\n"
            "connection=http.client.HTTPConnection('127.0.0.1',int(port),timeout=120)\n"
            "while True:\n"
            "    connection.request('POST' if body else 'GET',path,body,{'content-type':'application/json',"
            "'authorization':'Bearer '+key})\n"
            "    response=connection.getresponse(); response.read()\n"
            "    print(response.status,flush=True)\n")
    process = subprocess.Popen(["python3", "-c", code, path, acme, str(PORT)], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    process.stdin.write((body or "").encode())
    process.stdin.close()
    stop.wait()
    process.kill()
    for line in process.stdout.read().decode().split():
        statuses[line] = statuses.get(line, 0) + 1


def percentile(times, share):
    return times[min(len(times) - 1, int(len(times) * share))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--connections", type=int, default=4)
    options = parser.parse_args()
    home = tempfile.mkdtemp(prefix="redrive-worst-")
    process, key = start(options.bin, home)
    try:
        acme, globex = tenant(key, "acme"), tenant(key, "globex")
        inputs = kinds(acme)
        beside(argparse.Namespace(seconds=1), globex)
        alone = None
        print("| one tenant sends | responses | publish p50 | p99 | of alone | /healthz p50 | p99 | of alone |")
        print("|---|---|---|---|---|---|---|---|")
        for name, path, body in [("nothing", None, None), *inputs]:
            stop, statuses, attackers = threading.Event(), {}, []
            if path:
                arguments = (options, acme, path, body, stop, statuses)
                attackers = [threading.Thread(target=attack, args=arguments) for _ in range(options.connections)]
            for attacker in attackers:
                attacker.start()
            time.sleep(0.5)
            results = beside(options, globex)
            stop.set()
            for attacker in attackers:
                attacker.join()
            percentiles = {what: (percentile(times, 0.5), percentile(times, 0.99)) for what, times in results.items()}
            alone = alone or percentiles
            responses = ", ".join(f"{count} × {status}" for status, count in sorted(statuses.items())) or "–"
            cells = []
            for what in ("publish", "healthz"):
                median, tail = percentiles[what]
                cells += [f"{median:.1f}", f"{tail:.1f}", f"{tail / alone[what][1]:.1f}×"]
            print(f"| {name} | {responses} | " + " | ".join(cells) + " |", flush=True)
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
