"""Fills a store with many tenants and finished deliveries, for the times of listings over all tenants.

Usage: fill_tenants.py create HOST:PORT TENANTS
       fill_tenants.py fill DATABASE N
`create` creates the tenants through the API, each with one webhook, and opens the circuits of one webhook in fifty. The
admin key is in REDRIVE_ADMIN_KEY. `fill` then writes N deliveries of the last day, evenly over all webhooks, into DATABASE:
the path of an SQLite database, or the URL of a PostgreSQL database, which psql must be able to open. No server may have it
open. One delivery in a hundred is dead, one webhook in twenty has a backlog, and every tenant has traffic in the last hour.
`bench/run --tenants` runs both.

It bypasses the API, so it must follow the schema (crates/store/src/*/migrations) and the numeric codes of states.
"""

import concurrent.futures
import datetime
import http.client
import json
import os
import sqlite3
import subprocess
import sys
import time

THREADS = 8
BATCH = 100_000
DAY_MS = 86_400_000
MINUTE_MS = 60_000
# Rollups of each tenant in the last hour.
MINUTES = 20
EVENT = b'{"seq": 1, "pad": "' + b"x" * 80 + b'"}'

# Columns of each table that is filled. Others have defaults.
COLUMNS = {
    "events": "id tenant_id seq event_type timestamp priority data",
    "deliveries": "id tenant_id event_id webhook_id round status format priority attempt_count last_status_code "
    "failure_category dead_reason created_at ended_at",
    "attempts": "delivery_id number id status failure_category http_status_code total_us scheduled_at executed_at "
    "circuit worker",
    "attempt_index": "id tenant_id webhook_id delivery_id status category code",
    "dead": "delivery_id tenant_id webhook_id event_type category reason died_at",
    "undelivered": "delivery_id tenant_id webhook_id status category code",
    "waiting": "delivery_id webhook_id lane sort_key seq due created_at",
    "lanes": "webhook_id lane wake_at pool",
    "tenant_rollups": "tenant_id resolution start attempts successes categories latencies delivered dead cancelled "
    "expires_at",
    "rollups": "webhook_id minute tenant_id attempts successes failed categories latencies",
    "notifications": "id tenant_id webhook_id kind count first_at last_at details webhook_status email_status",
}


def create(address, tenants):
    """Creates tenants and webhooks in parallel."""

    def work(begin):
        connection = http.client.HTTPConnection(address, timeout=120)
        headers = {"Authorization": f"Bearer {os.environ['REDRIVE_ADMIN_KEY']}", "Content-Type": "application/json"}

        def call(method, path, body, expected):
            connection.request(method, path, json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read()
            if response.status != expected:
                raise RuntimeError(f"{method} {path} returned {response.status}: {text[:300]!r}")
            return json.loads(text)

        for n in range(begin, tenants, THREADS):
            tenant = f"tenant-{n:05}"
            call("POST", "/v1/tenants", {"id": tenant, "name": f"Customer {n} Ltd."}, 201)
            webhook_input = {"tenant_id": tenant, "url": f"https://hooks-{n}.example.com/in", "events": ["*"]}
            webhook = call("POST", "/v1/webhooks", webhook_input, 201)["id"]
            if n % 50 == 7:
                call("PATCH", f"/v1/webhooks/{webhook}/circuit-breaker", {"tenant_id": tenant, "action": "force_open"}, 200)

    with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
        # An exception of a thread is raised here.
        list(threads.map(work, range(THREADS)))


def id_at(ms, kind, n):
    """Returns an id for a time in milliseconds; `kind` separates ids of different kinds."""
    return bytes.fromhex(f"{ms:012x}7{kind:03x}8{n:015x}")


def deliveries(webhooks, begin, end, count, newest):
    """Returns the rows of deliveries from `begin` on, by table. Partitions of earlier months do not exist."""
    today = datetime.datetime.fromtimestamp(newest / 1000, datetime.UTC)
    span = min(DAY_MS, newest - int(today.replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp() * 1000))
    rows = {table: [] for table in ("events", "deliveries", "attempts", "attempt_index", "dead", "undelivered")}
    for n in range(begin, end):
        ms = newest - (count - 1 - n) * span // count
        event, delivery = id_at(ms, 1, n), id_at(ms, 2, n)
        webhook, tenant = webhooks[n % len(webhooks)]
        died = n % 100 == 7
        status, code, category, reason = (3, 500, 2, 2) if died else (2, 200, None, None)
        rows["events"].append((event, tenant, 1 + n // len(webhooks), "bench.history", ms, 2, EVENT))
        rows["deliveries"].append(
            (delivery, tenant, event, webhook, 1, status, 1, 2, 1, code, category, reason, ms, ms + 2)
        )
        # As `AttemptId::for_delivery` does, so that a prompt success is found by its id.
        attempt = (ms + 2).to_bytes(6, "big") + delivery[6:14] + bytes([0, 2])
        rows["attempts"].append(
            (delivery, 1, attempt, 3 if died else 1, category, code, 300, ms, ms + 1, 0, "history#1")
        )
        if died:
            # Prompt successes are not in the index of attempts.
            rows["attempt_index"].append((attempt, tenant, webhook, delivery, 3, category, code))
            rows["dead"].append((delivery, tenant, webhook, "bench.history", category, reason, ms + 2))
            rows["undelivered"].append((delivery, tenant, webhook, status, category, code))
    return rows


def current(webhooks, now):
    """Returns the rows about the present: backlogs, rollups and notifications."""
    tables = "events", "deliveries", "waiting", "lanes", "tenant_rollups", "rollups", "notifications"
    rows = {table: [] for table in tables}
    minute, sums = now // MINUTE_MS * MINUTE_MS, {}
    for n, (webhook, tenant) in enumerate(webhooks):
        attempts, failed = 10 + n % 90, (n % 40) // 4 if n % 4 == 0 else 0
        successes = max(attempts - failed, 0)
        for back in range(MINUTES):
            start = minute - (3 * back + 1) * MINUTE_MS
            counts = (attempts, successes, b"", b"")
            rows["tenant_rollups"].append((tenant, 1, start, *counts, successes, failed, 0, start + 25 * 3600 * 1000))
            sums[start] = [before + more for before, more in zip(sums.get(start, (0, 0, 0)), (attempts, successes, failed))]
            rows["rollups"].append((webhook, start, tenant, attempts, successes, failed > 0, b"", b""))
        if n % 20 == 3:
            due = now + DAY_MS
            rows["lanes"].append((webhook, "nr", due, "default"))
            for k in range(20):
                event, delivery = id_at(now, 4, 20 * n + k), id_at(now, 5, 20 * n + k)
                rows["events"].append((event, tenant, 1_000_000 + k, "bench.waiting", now, 2, EVENT))
                rows["deliveries"].append((delivery, tenant, event, webhook, 1, 0, 1, 2, 1, 500, 2, None, now, None))
                rows["waiting"].append((delivery, webhook, "nr", due, k, due, now))
        if n % 2 == 0:
            notification = id_at(now - n, 6, n)
            rows["notifications"].append((notification, tenant, webhook, 4, 3, now - n, now - n, "{}", 1, 2))
    for start, (attempts, successes, failed) in sums.items():
        expires = start + 25 * 3600 * 1000
        rows["tenant_rollups"].append(("*", 1, start, attempts, successes, b"", b"", successes, failed, 0, expires))
    return rows


class Sqlite:
    def __init__(self, path):
        self.store = sqlite3.connect(path)
        self.store.execute("PRAGMA synchronous = OFF")
        # Rows of all tenants alternate, so the indexes by tenant are written everywhere.
        self.store.execute("PRAGMA cache_size = -2000000")
        self.store.execute("PRAGMA wal_autocheckpoint = 100000")

    def webhooks(self):
        found = self.store.execute("SELECT id, tenant_id FROM webhooks WHERE deleted = 0 ORDER BY id").fetchall()
        return [(bytes(webhook), tenant) for webhook, tenant in found]

    def insert(self, table, rows):
        # The table of undelivered deliveries is PostgreSQL's.
        if table == "undelivered" or not rows:
            return
        columns = COLUMNS[table].split()
        places = ", ".join("?" * len(columns))
        self.store.executemany(f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({places})", rows)

    def commit(self):
        self.store.commit()

    def finish(self):
        self.store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.store.close()


class Postgres:
    def __init__(self, url):
        self.url = url

    def psql(self, *arguments, data=None):
        command = ["psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "-v", "ON_ERROR_STOP=1", self.url]
        return subprocess.run([*command, *arguments], input=data, check=True, stdout=subprocess.PIPE).stdout

    def webhooks(self):
        found = self.psql("-c", "SELECT id, tenant_id FROM webhooks WHERE NOT deleted ORDER BY id").decode().split()
        pairs = (line.split("|") for line in found)
        return [(bytes.fromhex(webhook.replace("-", "")), tenant) for webhook, tenant in pairs]

    def insert(self, table, rows):
        if not rows:
            return
        columns = COLUMNS[table].split()
        is_bytes = {"data", "categories", "latencies"}

        def text(column, value):
            if value is None:
                return "\\N"
            if isinstance(value, bool):
                return "t" if value else "f"
            if isinstance(value, bytes):
                return "\\\\x" + value.hex() if column in is_bytes else value.hex()
            return str(value)

        lines = ("\t".join(text(column, value) for column, value in zip(columns, row)) for row in rows)
        data = ("\n".join(lines) + "\n").encode()
        self.psql("-c", f"COPY {table} ({', '.join(columns)}) FROM STDIN", data=data)

    def commit(self):
        pass

    def finish(self):
        self.psql("-c", "VACUUM (FREEZE, ANALYZE)")
        self.psql("-c", "CHECKPOINT")


def fill(database, count):
    store = Postgres(database) if "://" in database else Sqlite(database)
    webhooks, now = store.webhooks(), int(time.time() * 1000)
    for begin in range(0, count, BATCH):
        end = min(begin + BATCH, count)
        for table, rows in deliveries(webhooks, begin, end, count, now - MINUTE_MS).items():
            store.insert(table, rows)
        store.commit()
    for table, rows in current(webhooks, now).items():
        store.insert(table, rows)
    store.commit()
    store.finish()


def main():
    match sys.argv[1:]:
        case ["create", address, tenants]:
            create(address, int(tenants))
        case ["fill", database, count]:
            fill(database, int(count))
        case _:
            sys.exit(__doc__)


main()
