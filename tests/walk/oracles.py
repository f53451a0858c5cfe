"""Invariants that must hold once faults have stopped, checked from outside."""

import collections
import time

from steps import TENANTS

FINAL = {"delivered", "dead", "cancelled"}
MAX_ATTEMPT_CHECKS = 1500


def check(cluster, receivers, state, settle_seconds):
    """Unblocks all deliveries, waits until none is pending, and returns the failures."""
    failures = list(state.failures)
    receivers.calm()
    cluster.recover()
    node = cluster.nodes[0]
    release_everything(node, failures)
    stuck = wait_until_settled(node, settle_seconds)
    failures += [f"still {one['status']} after {settle_seconds} s: {one}" for one in stuck[:20]]
    if len(stuck) > 20:
        failures.append(f"{len(stuck)} deliveries did not end")
    deliveries = export_deliveries(node)
    check_events(receivers, state, deliveries, failures)
    check_attempts(node, deliveries, failures)
    if not stuck and cluster.postgres:
        check_tables(cluster.postgres, failures)
    check_logs(cluster, failures)
    state.counts["deliveries"] = sum(len(rounds) for rounds in deliveries.values())
    return failures


def release_everything(node, failures):
    """Reverts every setting of the walkers that blocks or delays deliveries."""
    for tenant in TENANTS:
        expect(node, failures, "PATCH", f"/v1/tenants/{tenant}", {"pool": "default", "rate_limit": None})
        for webhook in listing(node, f"/v1/webhooks?tenant_id={tenant}"):
            path = f"/v1/webhooks/{webhook['id']}"
            query = f"?tenant_id={tenant}"
            body = {"rate_limit": None, "max_in_flight": 20}
            expect(node, failures, "PATCH", path + query, body)
            if webhook["state"] == "paused":
                expect(node, failures, "POST", f"{path}/resume{query}")
            expect(node, failures, "PATCH", f"{path}/circuit-breaker{query}", {"action": "reset"})
        for operation in listing(node, f"/v1/dlq/batch-operations?tenant_id={tenant}"):
            if operation["status"] == "paused":
                node.call("POST", f"/v1/dlq/batch-operations/{operation['id']}/resume?tenant_id={tenant}")


def wait_until_settled(node, settle_seconds):
    """Returns the deliveries that are still pending after the timeout."""
    end = time.monotonic() + settle_seconds
    while True:
        left = [one for tenant in TENANTS for one in pending(node, tenant)]
        running = [one for tenant in TENANTS for one in listing(node, f"/v1/dlq/batch-operations?tenant_id={tenant}")
                   if one["status"] in ("scheduled", "running", "delivering")]
        if not left and not running or time.monotonic() > end:
            return left
        for tenant in {one["tenant_id"] for one in left if one["waiting_on"] in ("schedule", "rate_limit")}:
            # A 429 holds a webhook for a minute. Retries that wait for their time are made due now.
            body = {"filter": {"statuses": ["pending"]}}
            node.call("POST", f"/v1/deliveries/retry-batch?tenant_id={tenant}", body)
        time.sleep(3)


def pending(node, tenant):
    return [one for one in listing(node, f"/v1/deliveries?status=pending&limit=500&tenant_id={tenant}")
            if one["status"] not in FINAL]


def listing(node, path):
    """Returns the entries of all pages of a listing."""
    found, cursor = [], None
    while True:
        part = path + (f"{'&' if '?' in path else '?'}cursor={cursor}" if cursor else "")
        status, response = node.call("GET", part)
        if status != 200:
            time.sleep(1)
            status, response = node.call("GET", part)
        if status != 200:
            raise RuntimeError(f"GET {part}: {status} {response}")
        found += response["data"]
        cursor = response["next_cursor"]
        if not cursor:
            return found


def expect(node, failures, method, path, body=None):
    for _ in range(10):
        status, response = node.call(method, path, body)
        if status is not None and status < 300:
            return
        if status not in (None, 409, 429, 503):
            break
        time.sleep(0.5)
    if status != 409:
        failures.append(f"{method} {path} after the faults: {status} {response}")


def export_deliveries(node):
    """Returns all deliveries by event."""
    deliveries = collections.defaultdict(list)
    for tenant in TENANTS:
        for one in node.lines(f"/v1/deliveries/export?tenant_id={tenant}"):
            deliveries[one["event_id"]].append(one)
    return deliveries


def check_events(receivers, state, deliveries, failures):
    """Checks that every acknowledged event has its deliveries, all have ended, and delivered ones were received."""
    names = {webhook_id: name for webhook_id, name in state.control.values()}
    for key, (tenant, event_id, promised, is_duplicate) in state.acked.items():
        rounds = deliveries.get(event_id, [])
        webhooks = {one["webhook_id"] for one in rounds}
        if promised is not None and not is_duplicate and len(webhooks) < promised:
            failures.append(f"{event_id} ({key}) has deliveries to {len(webhooks)} webhooks instead of {promised}")
        control_id, name = state.control[tenant]
        own = [one for one in rounds if one["webhook_id"] == control_id]
        if not own:
            failures.append(f"{event_id} ({key}) was not delivered to the control webhook of {tenant}")
        has_arrived = receivers.arrivals[(name, key)] > 0
        statuses = {one["status"] for one in own}
        if not has_arrived and not statuses & {"dead", "cancelled"}:
            failures.append(f"{event_id} ({key}) was not received by {name} and is {statuses}")
        is_erased = event_id in state.erased or (tenant, state.subjects.get(event_id)) in state.erased_subjects
        for one in own:
            if one["status"] == "cancelled" and one["id"] not in state.cancelled and not is_erased:
                failures.append(f"{one['id']} of {event_id} ({key}) was cancelled without a request by a walker")
        for one in rounds:
            if one["status"] == "delivered" and one["webhook_id"] in names and not has_arrived:
                failures.append(f"{one['id']} of {event_id} ({key}) is delivered but was not received by {name}")


def check_attempts(node, deliveries, failures):
    """Checks that attempts are numbered from 1 without gaps, and that their number is `attempt_count`."""
    tried = [one for rounds in deliveries.values() for one in rounds if one["attempt_count"] > 1]
    step = max(1, len(tried) // MAX_ATTEMPT_CHECKS)
    for one in tried[::step]:
        status, response = node.call("GET", f"/v1/deliveries/{one['id']}/attempts?tenant_id={one['tenant_id']}")
        if status != 200:
            failures.append(f"the attempts of {one['id']} cannot be read: {status} {response}")
            continue
        attempts = [attempt for attempt in response["data"] if attempt["status"] != "circuit_blocked"]
        numbers = [attempt["number"] for attempt in attempts]
        if numbers != list(range(1, one["attempt_count"] + 1)):
            failures.append(f"{one['id']} has {one['attempt_count']} attempts with the numbers {numbers}")


def check_tables(postgres, failures):
    """Checks that the queue tables are empty, since no delivery is pending."""
    for table in ["leased", "waiting", "lanes"]:
        count = postgres.query(f"SELECT count(*) FROM {table}")
        if count != "0":
            failures.append(f"{count} rows are left in {table}")


def check_logs(cluster, failures):
    logs = cluster.logs()
    for line in logs.splitlines():
        if "panicked at" in line:
            failures.append(f"a node panicked: {line}")
    if cluster.postgres:
        deadlocks = cluster.postgres.count_deadlocks()
        if deadlocks:
            failures.append(f"PostgreSQL found {deadlocks} deadlocks, see {cluster.postgres.log}")


def statistics(cluster, receivers, state, options):
    counts = state.counts
    return {
        "seed": options.seed,
        "minutes": options.minutes,
        "store": options.store,
        "nodes": len(cluster.nodes),
        "events_acknowledged": len(state.acked),
        "deliveries": counts["deliveries"],
        "arrivals": sum(receivers.arrivals.values()),
        "arrivals_more_than_once": receivers.duplicates(),
        "kills": counts["fault kill"],
        "freezes": counts["fault freeze"],
        "restarts": counts["fault restart"],
        "cut_connections": counts["fault cut"],
        "deadlocks": cluster.postgres.count_deadlocks() if cluster.postgres else 0,
        "steps": {key[5:]: value for key, value in sorted(counts.items()) if key.startswith("step ")},
        "statuses": {key[7:]: value for key, value in sorted(counts.items()) if key.startswith("status ")},
    }
