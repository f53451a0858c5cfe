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
}
FULL = ["loopback", "relay-full", "redrive-full", "redrive-default", "redrive-fanout", "redrive-batch"]
PACED = ["relay-paced", "redrive-paced"]
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
    """Prints one block: the first column to the left, figures to the right."""
    table = [head, *body]
    widths = [max(len(row[at]) for row in table) for at in range(len(head))]
    print(f"\n{title}")
    for row in table:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        print("  " + "  ".join(cells))


def throughput(cases):
    relay = cases.get("relay-full", {})
    head = ["", "acks/s", "arrivals/s", "of relay", "p50 ms", "p95 ms", "p99 ms", "ack p99", "txn/dlv", "µs CPU/dlv"]
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
            *cost(runs),
        ])
    rows("Full load, closed loop; latency is publish to arrival", head, body)


def cost(runs):
    """Transactions and processor time of the sender per delivery."""
    if any("commits" not in run or not run["arrivals"] for run in runs.values()):
        return ["-", "-"]
    cpu_us = median(runs, lambda run: run["cpu_ticks"] / TICKS_PER_S * 1e6 / run["arrivals"])
    return [f"{median(runs, lambda run: run['commits'] / run['arrivals']):.3f}", f"{cpu_us:.0f}"]


def latency(cases):
    relay = cases.get("relay-paced", {})
    head = ["", "arrivals/s", "p50 ms", "of relay", "p95 ms", "of relay", "p99 ms", "of relay", "txn/dlv", "µs CPU/dlv"]
    body = []
    for case in filter(cases.get, PACED):
        runs = cases[case]
        row = [TITLES[case], f"{median(runs, lambda run: run['arrivals_per_s']):,.0f}"]
        for p in ("p50", "p95", "p99"):
            value = lambda run, p=p: run["arrival_ms"][p]
            row += [f"{median(runs, value):.2f}", against(runs, relay, value)]
        body.append(row + cost(runs))
    rows("1,000 events/s; latency counts from the scheduled time", head, body)


def promises(cases):
    """Sums over all rounds: one lost event is too many to be averaged away."""
    head = ["", "acked", "missing", "duplicates", "errors", "stray"]
    body = []
    for case in filter(cases.get, [*FULL, *PACED, "crash"]):
        runs = cases[case].values()
        total = lambda key: f"{sum(run[key] for run in runs):,}"
        body.append([case, *map(total, ("acked", "missing", "duplicates", "errors", "stray"))])
    rows("Promises kept, all rounds together", head, body)


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


def main():
    cases = load(sys.argv[1])
    if "crash" in cases:
        run = cases["crash"][1]
        print(f"{run['kills']} kills: {run['acked']:,} acked, {run['missing']} missing, "
              f"{run['duplicates']} duplicates, {run['errors']} not acknowledged")
        return
    for block in (throughput, latency, promises, memory, start):
        block(cases)


main()
