"""Times the first page of every listing, and every page of the dashboard, each on an otherwise idle
sender.

Usage: list_times.py HOST:PORT [TIMES] [--all-tenants [--idle SECONDS] [--pids PID,...]]
Prints {"listings": [{"query", "rows", "median_ms", "worst_ms"}, ...], "pages": [{"page", "bytes", ...}]}. A page of rare
matches may be short and have a cursor: see docs/adr/0026. The admin key is in REDRIVE_ADMIN_KEY.
The ids in the queries are those of the newest delivery; a query whose id does not exist is skipped.

With --all-tenants, the listings and pages over all tenants are timed instead; fill_tenants.py fills a store for that. Then
"first_ms" is the time of the first request of each kind after the start, and "idle_ms" that of one after SECONDS without any
request (default 65). "cpu_ms" is the processor time per request of the processes with these ids and of
their children, from the kernel's hundredths of a second.
"""

import argparse
import datetime
import glob
import http.client
import json
import os
import statistics
import string
import sys
import time

from dashboard import PAGES, log_in

QUERIES = [
    "/v1/events",
    "/v1/events?event_type={event_type}",
    "/v1/events?event_type=bench.rare",
    "/v1/events?event_type=no.such.type",
    "/v1/events?from={from}",
    "/v1/events?subject=subject-7",
    "/v1/events?idempotency_key=key-107",
    "/v1/events?id={event_id}",
    "/v1/events/{event_id}/deliveries",
    "/v1/events/{event_id}/attempts",
    "/v1/deliveries",
    "/v1/deliveries?status=delivered",
    "/v1/deliveries?status=dead",
    "/v1/deliveries?status=pending",
    "/v1/deliveries?status=failed",
    "/v1/deliveries?failure_category=server_error",
    "/v1/deliveries?failure_category=server_error,timeout,dns",
    "/v1/deliveries?status_code=500",
    "/v1/deliveries?status_code=5xx",
    "/v1/deliveries?status_code=404",
    "/v1/deliveries?recoverable=true",
    "/v1/deliveries?subject=subject-7",
    "/v1/deliveries?idempotency_key=key-107",
    "/v1/deliveries?event_id={event_id}",
    "/v1/deliveries?event_type={event_type}",
    "/v1/deliveries?event_type=bench.rare",
    "/v1/deliveries?event_type=no.such.type",
    "/v1/deliveries?from={from}",
    "/v1/deliveries?webhook_id={webhook_id}",
    "/v1/deliveries?webhook_id={webhooks}",
    "/v1/deliveries?webhook_id={webhook_id}&status=dead",
    "/v1/deliveries?webhook_id={webhooks}&failure_category=server_error",
    "/v1/deliveries?webhook_id={webhook_id}&event_type=no.such.type",
    "/v1/webhooks/{webhook_id}/deliveries",
    "/v1/deliveries/{id}/attempts",
    "/v1/dlq",
    "/v1/dlq?webhook_id={webhook_id}",
    "/v1/dlq?webhook_id={webhooks}&failure_category=server_error",
    "/v1/dlq?event_type=bench.rare",
    "/v1/dlq?subject=subject-7",
    "/v1/dlq?recoverable=false",
]


# The overview is first, since its first request and the one after an idle time cost most.
ALL_TENANTS_QUERIES = [
    "/v1/overview?tenant_id=*",
    "/v1/overview?tenant_id=*&range=24h",
    "/v1/tenants",
    "/v1/tenants?sort=success_rate",
    "/v1/tenants?sort=dead_letters",
    "/v1/tenants?sort=backlog&order=asc",
    "/v1/tenants?search=customer%2077",
    "/v1/deliveries?tenant_id=*",
    "/v1/deliveries?tenant_id=*&status=dead",
    "/v1/deliveries?tenant_id=*&status=failed",
    "/v1/deliveries?tenant_id=*&status=pending",
    "/v1/deliveries?tenant_id=*&status_code=500",
    "/v1/deliveries?tenant_id=*&failure_category=server_error",
    "/v1/deliveries?tenant_id=*&event_type=no.such.type",
    "/v1/deliveries?tenant_id=*&webhook_id={webhook_id}",
    "/v1/deliveries?tenant_id=*&event_id={event_id}",
    "/v1/deliveries?tenant_id=*&limit=500",
    "/v1/dlq?tenant_id=*",
    "/v1/dlq?tenant_id=*&event_type=no.such.type",
    "/v1/dlq/stats?tenant_id=*",
    "/v1/events?tenant_id=*",
    "/v1/events?tenant_id=*&event_type=no.such.type",
    "/v1/webhooks?tenant_id=*",
    "/v1/notifications?tenant_id=*",
    "/v1/deliveries/{id}",
    "/v1/deliveries/{id}/attempts",
    "/v1/attempts/{attempt_id}",
    "/v1/attempts?tenant_id={tenant_id}",
    "/v1/attempts?tenant_id=*",
    "/v1/attempts?tenant_id=*&status=failed",
    "/v1/events/{event_id}",
    "/v1/webhooks/{webhook_id}",
    "/metrics/tenants",
]
ALL_TENANTS_PAGES = [
    "/dashboard/all",
    "/dashboard/all/deliveries",
    "/dashboard/all/deliveries?status=failed",
    "/dashboard/all/dead",
    "/dashboard/all/webhooks",
    "/dashboard/all/webhooks?status=failing",
    "/dashboard/all/notifications",
    "/dashboard/admin/tenants",
    "/dashboard/admin/tenants?sort=status",
    "/dashboard/admin/tenants?search=customer+77",
]


class Api:
    """A keep-alive connection, so that requests are timed without the handshake."""

    def __init__(self, address):
        self.connection = http.client.HTTPConnection(address, timeout=120)
        self.headers = {"Authorization": f"Bearer {os.environ.get('REDRIVE_ADMIN_KEY', '')}"}

    def fetch(self, path, headers):
        """Returns the body of the response and the time in milliseconds."""
        began = time.monotonic()
        self.connection.request("GET", path, headers=headers)
        response = self.connection.getresponse()
        body = response.read()
        took = (time.monotonic() - began) * 1000
        if response.status != 200:
            sys.exit(f"GET {path} returned {response.status}: {body[:300].decode(errors='replace')}")
        return body, took

    def get(self, path):
        """Returns the `data` of the response and the time in milliseconds."""
        body, took = self.fetch(path, self.headers)
        try:
            page = json.loads(body)
            return page.get("data", [page]), took
        except ValueError:
            # The relay of a self-check responds to every request with its counters.
            return [], took


def time_one(api, path, times):
    """Times a query. The first request counts too, since it is what a single user experiences."""
    responses = [api.get(path)]
    responses += [api.get(path) for _ in range(times - 1)]
    return {"rows": len(responses[0][0]), **times_of([response[1] for response in responses])}


def times_of(took):
    return {"median_ms": round(statistics.median(took), 3), "worst_ms": round(max(took), 3)}


def time_pages(api, paths, facts, times):
    """Returns the time and size of each page of the dashboard."""
    cookie, pages = {"Cookie": log_in(sys.argv[1])}, []
    for page in paths:
        try:
            path = page.format_map(facts)
        except KeyError:
            continue
        fetched = [api.fetch(path, cookie) for _ in range(times)]
        pages.append({"page": page, "bytes": len(fetched[0][0]), **times_of([took for _, took in fetched])})
    return pages


def cpu_ms(pids):
    """Returns the processor time of these processes and of their children, including those that ended."""
    ticks = 0
    for stat in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(stat, encoding="utf-8") as lines:
                pid, rest = lines.read().split(" (", 1)
        except OSError:
            continue  # It has just ended.
        fields = rest.rsplit(") ", 1)[1].split()
        if pid in pids:
            ticks += sum(map(int, fields[11:15]))
        elif fields[1] in pids:
            ticks += sum(map(int, fields[11:13]))
    return ticks * 1000 / os.sysconf("SC_CLK_TCK")


def time_all_tenants(api, facts, times, idle, pids):
    """Times the listings and pages over all tenants: the first request of each, some more, and one after an idle time."""
    api.cookie = {"Cookie": log_in(sys.argv[1])}
    kinds = [("listings", "query", query) for query in ALL_TENANTS_QUERIES]
    kinds += [("pages", "page", page) for page in ALL_TENANTS_PAGES]
    requests = []
    for kind, name, path in kinds:
        if all(fact in facts for _, fact, _, _ in string.Formatter().parse(path) if fact):
            requests.append((kind, {name: path}, path.format_map(facts)))
    for _, result, path in requests:
        result["bytes"], result["first_ms"] = time_request(api, path)
    for _, result, path in requests:
        before = cpu_ms(pids)
        result |= times_of([time_request(api, path)[1] for _ in range(times)])
        result["cpu_ms"] = (cpu_ms(pids) - before) / times
    if idle:
        time.sleep(idle)
        for _, result, path in requests:
            result["idle_ms"] = time_request(api, path)[1]
    found = {"listings": [], "pages": []}
    for kind, result, _ in requests:
        found[kind].append(result)
    return found


def time_request(api, path):
    """Returns the size of the response and the time in milliseconds."""
    body, took = api.fetch(path, api.cookie if path.startswith("/dashboard") else api.headers)
    return len(body), round(took, 3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("times", type=int, nargs="?", default=20)
    parser.add_argument("--all-tenants", action="store_true")
    parser.add_argument("--idle", type=float, default=65)
    parser.add_argument("--pids", default="")
    arguments = parser.parse_args()
    api, across = Api(arguments.address), arguments.all_tenants
    # The newest deliveries of a store with many tenants are still pending.
    earlier = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    of_all = f"&tenant_id=*&status=delivered&to={earlier:%Y-%m-%dT%H:%M:%SZ}"
    newest, _ = api.get("/v1/deliveries?limit=1" + (of_all if across else ""))
    # From its own event's time on: one event, or the few of its millisecond.
    facts = newest[0] | {"from": newest[0]["created_at"]} if newest else {}
    if across:
        if newest:
            attempts, _ = api.get(f"/v1/deliveries/{newest[0]['id']}/attempts")
            facts["attempt_id"] = attempts[0]["id"]
        pids = set(filter(None, arguments.pids.split(",")))
        print(json.dumps(time_all_tenants(api, facts, arguments.times, arguments.idle, pids)))
        return
    if newest:
        webhooks, _ = api.get("/v1/webhooks?limit=5")
        facts["webhooks"] = ",".join(webhook["id"] for webhook in webhooks)
    listings = []
    for query in QUERIES:
        try:
            path = query.format_map(facts)
        except KeyError:
            continue
        listings.append({"query": query, **time_one(api, path, arguments.times)})
    pages = time_pages(api, PAGES, facts, arguments.times) if newest else []
    print(json.dumps({"listings": listings, "pages": pages}))


main()
