"""Prints the table of a benchmark run from its raw JSON lines. Usage: table.py RESULTS.jsonl"""

import json
import statistics
import sys
from collections import defaultdict

TITLES = {
    "loopback": "loopback HTTP alone",
    "relay-full": "relay",
    "redrive-full": "redrive, 64 in flight",
    "redrive-default": "redrive, default webhook",
    "redrive-fanout": "redrive, fan-out 10",
    "redrive-batch": "redrive, batches of 100",
    "relay-paced": "relay",
    "redrive-paced": "redrive, 64 in flight",
    "gated-full": "limits never reached",
    "baseline-full": "baseline",
}
FULL = ["loopback", "relay-full", "redrive-full", "redrive-default", "redrive-fanout", "redrive-batch"]
PACED = ["relay-paced", "redrive-paced"]
COSTS = ["txn/dlv", "µs CPU/dlv"]
# Costs of a sender on a database server: its statements, and the processor time of the server.
SERVER_COSTS = ["stmt/dlv", "µs PG/dlv"]
# Costs of a shared Redis: batches sent to it, and its processor time.
REDIS_COSTS = ["trips/dlv", "µs Redis/dlv"]
SENDERS = ["gated", "redrive", "baseline"]
TICKS_PER_S = 100


def load(path):
    """The lines of a run, by case and then by round."""
    cases = defaultdict(dict)
    with open(path, encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            cases[line["case"]][line.get("round", 1)] = line
    return cases


def median(runs, value):
    return statistics.median(value(run) for run in runs.values())


def against(runs, relay, value):
    """The median over the rounds of each round's own ratio: rounds differ more than senders do."""
    ratios = [value(run) / value(relay[at]) for at, run in runs.items() if at in relay and value(relay[at])]
    return f"{statistics.median(ratios):.2f}" if ratios else "-"


def rows(title, head, body):
    """Prints one block: the first column left-aligned, the others right-aligned."""
    table = [head, *body]
    widths = [max(len(row[at]) for row in table) for at in range(len(head))]
    print(f"\n{title}")
    for row in table:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        print("  " + "  ".join(cells))


def throughput(cases):
    relay = cases.get("relay-full", {})
    head = ["", "acks/s", "arrivals/s", "of relay", "p50 ms", "p95 ms", "p99 ms", "ack p99", *costs(cases)]
    body = []
    for case in filter(cases.get, FULL):
        runs = cases[case]
        speed = lambda run: run["arrivals_per_s"]
        body.append([
            TITLES[case],
            f"{median(runs, lambda run: run['acks_per_s']):,.0f}",
            f"{median(runs, speed):,.0f}",
            "-" if case == "loopback" else against(runs, relay, speed),
            *(f"{median(runs, lambda run, p=p: run['arrival_ms'][p]):.2f}" for p in ("p50", "p95", "p99")),
            f"{median(runs, lambda run: run['ack_ms']['p99']):.2f}",
            *cost(cases, runs),
        ])
    rows("Full load, closed loop; latency is publish to arrival", head, body)


def costs(cases):
    """What the costs of a delivery are called."""
    names = COSTS + SERVER_COSTS if "server" in cases else COSTS
    return names + REDIS_COSTS if uses_redis(cases) else names


def uses_redis(cases):
    return any("round_trips" in run for runs in cases.values() for run in runs.values())


def cost(cases, runs):
    """Transactions, processor time and so on of the sender per delivery."""
    if any("cpu_ticks" not in run for run in runs.values()):
        return ["-" for _ in costs(cases)]
    count = lambda key: per_delivery(runs, lambda run: run[key], 3)
    time_us = lambda key: per_delivery(runs, lambda run: run[key] / TICKS_PER_S * 1e6, 0)
    cells = [count("commits"), time_us("cpu_ticks")]
    if "server" in cases:
        cells += [count("statements"), time_us("pg_ticks")]
    if uses_redis(cases):
        shares = all("round_trips" in run for run in runs.values())
        cells += [count("round_trips"), time_us("redis_ticks")] if shares else ["-", "-"]
    return cells


def per_delivery(runs, value, digits):
    try:
        return f"{median(runs, lambda run: value(run) / run['arrivals']):.{digits}f}"
    except ZeroDivisionError:
        return "-"
    except TypeError:
        return "n/a"  # The sender does not count it.


def latency(cases):
    relay = cases.get("relay-paced", {})
    head = ["", "arrivals/s", "p50 ms", "of relay", "p95 ms", "of relay", "p99 ms", "of relay", *costs(cases)]
    body = []
    for case in filter(cases.get, PACED):
        runs = cases[case]
        row = [TITLES[case], f"{median(runs, lambda run: run['arrivals_per_s']):,.0f}"]
        for p in ("p50", "p95", "p99"):
            value = lambda run, p=p: run["arrival_ms"][p]
            row += [f"{median(runs, value):.2f}", against(runs, relay, value)]
        body.append(row + cost(cases, runs))
    rows("1,000 events/s; latency counts from the scheduled time", head, body)


def guarantees(cases):
    """Prints sums over all rounds, because an average would hide a single lost event."""
    head = ["", "acked", "missing", "duplicates", "errors", "stray"]
    body = []
    for case in [case for case in cases if "acked" in cases[case].get(1, {})]:
        runs = cases[case].values()
        total = lambda key: f"{sum(run[key] for run in runs):,}"
        body.append([case, *map(total, ("acked", "missing", "duplicates", "errors", "stray"))])
    if body:
        rows("Guarantees, all rounds together", head, body)


def beside_payload(run):
    """Bytes stored per delivery that are not the payload, which is stored once per event."""
    return (run["database_bytes"] - run["payload"] * run["acked"]) / max(run["arrivals"], 1)


def memory(cases):
    mb = lambda kb: f"{kb / 1024:.1f}"
    body = []
    for case in filter(cases.get, [case for case in FULL + PACED if case != "loopback"]):
        runs = cases[case]
        per_event = median(runs, beside_payload)
        peak = max(run["hwm_kb"] for run in runs.values())
        body.append([case, mb(median(runs, lambda run: run["rss_kb"])), mb(peak), f"{per_event:,.0f}"])
    rows("After the load", ["", "RSS MB", "peak MB", "bytes stored/dlv beside payload"], body)
    rest = cases.get("at-rest", {}).get(1)
    if rest:
        each = (rest["rss_restarted_kb"] - rest["rss_empty_kb"]) * 1024 / 1000
        rows("At rest", ["", "RSS MB"], [
            ["no webhooks", mb(rest["rss_empty_kb"])],
            ["1,000 webhooks, just registered", mb(rest["rss_registered_kb"])],
            [f"1,000 webhooks, restarted ({each:,.0f} bytes each)", mb(rest["rss_restarted_kb"])],
        ])


def start(cases):
    body = []
    for case, title in (("start-fresh", "new database"), ("start-loaded", "database of a full-load run")):
        if case in cases:
            times = cases[case][1]["start_ms"]
            body.append([title, f"{statistics.median(times):.1f}", f"{max(times):.1f}"])
    if body:
        rows("From exec to ready", ["", "median ms", "worst ms"], body)


def beside(cases, base, *others):
    """The rows of cases, given with their titles, of which all are held against the first."""
    speed = lambda run: run["arrivals_per_s"]
    body = []
    for case, title in (base, *others):
        runs = cases[case]
        body.append([
            title,
            f"{median(runs, lambda run: run['acks_per_s']):,.0f}",
            f"{median(runs, speed):,.0f}",
            against(runs, cases[base[0]], speed),
            *(f"{median(runs, lambda run, p=p: run['arrival_ms'][p]):.2f}" for p in ("p50", "p95", "p99")),
            *cost(cases, runs),
        ])
    return body


def split(cases):
    if "split-full" in cases:
        head = ["", "acks/s", "arrivals/s", "of one node", "p50 ms", "p95 ms", "p99 ms", *costs(cases)]
        for what, title in (("full", "full load"), ("paced", "1,000 events/s")):
            apart = [(f"redrive-{what}", "one node"), (f"split-{what}", "API and worker")]
            if f"tickets-{what}" in cases:
                apart.append((f"tickets-{what}", "API and worker, RabbitMQ"))
            rows(f"API and worker apart: {title}", head, beside(cases, *apart))


def history(cases):
    if "history-full" in cases:
        head = ["", "acks/s", "arrivals/s", "of empty", "p50 ms", "p95 ms", "p99 ms", *costs(cases)]
        filled = cases.get("filled", {}).get(1, {"deliveries": 0, "database_bytes": 0})
        past = f"{filled['deliveries']:,} deliveries, {filled['database_bytes'] / 1e9:.1f} GB"
        if "redrive-full" in cases:
            body = beside(cases, ("redrive-full", "empty tables"), ("history-full", past))
            rows("History in the tables: full load", head, body)
        if "prune-full" in cases:
            head[3] = "of unpruned"
            body = beside(cases, ("history-full", f"{past}, not pruned"), ("prune-full", "while it is pruned"))
            rows("Pruning: full load", head, body)
    if "listings" in cases:
        body = [
            [page["query"], str(page["rows"]), f"{page['median_ms']:.2f}", f"{page['worst_ms']:.2f}"]
            for page in cases["listings"][1]["listings"]
        ]
        rows("History in the tables: first pages", ["", "rows", "median ms", "worst ms"], body)
        body = [
            [page["page"], f"{page['bytes'] / 1000:.1f}", f"{page['median_ms']:.2f}", f"{page['worst_ms']:.2f}"]
            for page in cases["listings"][1].get("pages", [])
        ]
        if body:
            rows("History in the tables: pages of the dashboard", ["", "kB", "median ms", "worst ms"], body)


def all_tenants(cases):
    for store in ("sqlite", "postgres"):
        for run in cases.get(f"tenants-{store}", {}).values():
            size = f"{run['tenants']:,} tenants, {run['deliveries']:,} deliveries, {run['database_bytes'] / 1e9:.1f} GB"
            head = ["", "first ms", "median ms", "worst ms", "idle ms", "CPU ms", "kB"]
            body = []
            for page in run["listings"] + run["pages"]:
                times = [page[key] for key in ("first_ms", "median_ms", "worst_ms")]
                idle = f"{page['idle_ms']:.1f}" if "idle_ms" in page else ""
                cells = [*(f"{took:.1f}" for took in times), idle, f"{page['cpu_ms']:.1f}", f"{page['bytes'] / 1000:.1f}"]
                body.append([page.get("query") or page["page"], *cells])
            rows(f"All tenants, {store}: {size}; load average {run['load_average']}", head, body)


def dashboard(cases):
    if "dashboard-full" in cases:
        head = ["", "acks/s", "arrivals/s", "of no viewers", "p50 ms", "p95 ms", "p99 ms", *costs(cases)]
        body = beside(cases, ("redrive-full", "no pages open"), ("dashboard-full", "pages are open"))
        rows("Open dashboard pages: full load", head, body)


def observability(cases):
    if "observability-full" in cases:
        head = ["", "acks/s", "arrivals/s", "of off", "p50 ms", "p95 ms", "p99 ms", *costs(cases)]
        body = beside(cases, ("redrive-full", "off"), ("observability-full", "on"))
        rows("Metrics, spans and a JSON log: full load", head, body)


def shared(cases):
    if "shared-full" in cases:
        head = ["", "acks/s", "arrivals/s", "of PostgreSQL alone", "p50 ms", "p95 ms", "p99 ms", *costs(cases)]
        body = beside(
            cases, ("redrive-full", "PostgreSQL"), ("shared-full", "with Redis"),
            ("shared-limited", "with Redis, and a rate limit that never holds back"),
        )
        rows("Shared through Redis: full load", head, body)
        rows("Shared through Redis: 1,000 events/s", head,
             beside(cases, ("redrive-paced", "PostgreSQL"), ("shared-paced", "with Redis")))


def who_did(cases, what):
    """The cases of one scenario, each with who was measured."""
    return [(who, cases[f"{who}-{what}"]) for who in SENDERS if f"{who}-{what}" in cases]


def gates_full(cases):
    base = "baseline-full" if "baseline-full" in cases else "redrive-full"
    head = ["", "acks/s", "arrivals/s", f"of {base.split('-')[0]}", "p50 ms", "p99 ms", *costs(cases)]
    body = []
    for who, runs in who_did(cases, "full"):
        speed = lambda run: run["arrivals_per_s"]
        body.append([
            TITLES[f"{who}-full"],
            f"{median(runs, lambda run: run['acks_per_s']):,.0f}",
            f"{median(runs, speed):,.0f}",
            against(runs, cases[base], speed),
            *(f"{median(runs, lambda run, p=p: run['arrival_ms'][p]):.2f}" for p in ("p50", "p99")),
            *cost(cases, runs),
        ])
    if body:
        rows("Gates that never close: full load, 64 in flight", head, body)


def before_and_after(runs, before, after, p):
    """Two latencies of the same runs, and the median of each round's own ratio."""
    ratios = [after(run)[p] / before(run)[p] for run in runs.values() if before(run)[p]]
    ratio = f"{statistics.median(ratios):.2f}" if ratios else "-"
    return [f"{median(runs, lambda run: at(run)[p]):.2f}" for at in (before, after)] + [ratio]


def neighbours(cases):
    head = ["", "p50 alone", "beside", "ratio", "p99 alone", "beside", "ratio", "missing"]
    body = []
    for what, title in (("neighbour", "default webhooks hang"), ("greedy", "64 in flight each hang")):
        for who, runs in who_did(cases, what):
            sides = [lambda run, side=side: run[side]["arrival_ms"] for side in ("alone", "beside")]
            missing = sum(run["missing"] for run in runs.values())
            body.append([
                f"{who}, {title}",
                *before_and_after(runs, *sides, "p50"),
                *before_and_after(runs, *sides, "p99"),
                f"{missing:,}",
            ])
    if body:
        rows("Noisy neighbour: publish to arrival of the quiet tenant, ms", head, body)


def storms(cases):
    fresh, drained = [], []
    for who, runs in who_did(cases, "storm"):
        for where, title in (("same", "same webhook"), ("other", "another webhook")):
            sides = [lambda run, side=side: run[side][where] for side in ("calm", "storm")]
            p50, p99 = (before_and_after(runs, *sides, p) for p in ("p50", "p99"))
            fresh.append([f"{who}, {title}", *p50, *p99])
        full, rate = (lambda run: run["full_per_s"]), (lambda run: run["drained_per_s"])
        ratio = statistics.median(rate(run) / full(run) for run in runs.values() if full(run))
        drained.append([who, f"{median(runs, lambda run: run['deliveries']):,.0f}"])
        drained[-1] += [f"{median(runs, lambda run: run['drain_s']):.2f}", f"{median(runs, rate):,.0f}"]
        drained[-1] += [f"{median(runs, full):,.0f}", f"{ratio:.2f}"]
    if fresh:
        head = ["", "p50 calm", "storm", "ratio", "p99 calm", "storm", "ratio"]
        rows("Retry storm: publish to arrival of fresh events, ms", head, fresh)
        rows("Retry storm: the drain", ["", "due", "s", "drained/s", "full load/s", "ratio"], drained)


def idle(cases):
    body = []
    for who, runs in who_did(cases, "idle"):
        run = runs[1]
        sizes = [run[f"rss_{when}_kb"] for when in ("empty", "registered", "restarted")]
        each = [f"{(size - sizes[0]) * 1024 / run['webhooks']:,.0f}" for size in sizes[1:]]
        body.append([f"{who}, {run['webhooks']:,} webhooks", *(f"{size / 1024:.1f}" for size in sizes), *each])
    if body:
        head = ["", "none MB", "registered MB", "restarted MB", "bytes each", "restarted"]
        rows("Idle webhooks: RSS", head, body)


def doubts(cases):
    """Prints the reasons why results of a run are doubtful."""
    reasons = {
        "missing": "deliveries did not arrive in time",
        "errors": "events were not acknowledged",
        "refused_late": "deliveries of the storm failed only after it was due",
        "retried_early": "deliveries of the storm were retried before it was due",
    }
    for case, runs in cases.items():
        for at, run in sorted(runs.items()):
            for key, reason in reasons.items():
                if run.get(key):
                    print(f"\n{case}, round {at}: {run[key]:,} {reason}")
            if run.get("noisy", {}).get("errors"):
                print(f"\n{case}, round {at}: {run['noisy']['errors']:,} events of the noisy tenant were rejected")


def main():
    cases = load(sys.argv[1])
    if "crash" in cases:
        run = cases["crash"][1]
        print(f"{run['kills']} kills: {run['acked']:,} acked, {run['missing']} missing, "
              f"{run['duplicates']} duplicates, {run['errors']} not acknowledged")
        return
    if "server" in cases:
        print(f"PostgreSQL {cases['server'][1]['version']}")
    if any(case.startswith("tenants-") for case in cases):
        blocks = [all_tenants]
    elif "split-full" in cases or "history-full" in cases:
        blocks = [split, history, guarantees]
    elif "shared-full" in cases:
        blocks = [shared, guarantees]
    elif "dashboard-full" in cases:
        blocks = [dashboard, guarantees]
    elif "observability-full" in cases:
        blocks = [observability, guarantees]
    elif any(case.startswith("relay-") for case in cases):
        blocks = [throughput, latency, guarantees, memory, start]
    else:
        blocks = [gates_full, neighbours, storms, idle, guarantees]
    for block in blocks if blocks == [all_tenants] else [*blocks, doubts]:
        block(cases)


main()
