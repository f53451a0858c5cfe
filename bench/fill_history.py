"""Fills an SQLite database with finished deliveries, as fill_history.sql does for PostgreSQL, row for row.

Usage: fill_history.py DATABASE N DAYS
It bypasses the API, so it must follow the schema (crates/store/src/sqlite/migrations) and the numeric codes
of states. The database must have webhooks, and no server may have it open.
"""

import hashlib
import sqlite3
import sys
import time

BATCH = 20_000
# Columns of the tables of which only some columns are filled.
COLUMNS = {
    "events": "id, tenant_id, seq, event_type, timestamp, idempotency_key, source, subject, priority, metadata, data",
    "deliveries": "id, tenant_id, event_id, webhook_id, round, status, format, priority, attempt_count, "
    "last_status_code, failure_category, last_error, dead_reason, cancel_reason, created_at, ended_at, "
    "replay_of, redriven_as",
}


def id_at(ms, salt, n):
    digest = hashlib.md5(f"{salt}{n}".encode()).hexdigest()
    return bytes.fromhex(f"{ms:012x}7{digest[:3]}8{digest[3:18]}")


def fill(store, count, days):
    webhooks = [row[0] for row in store.execute("SELECT id FROM webhooks WHERE deleted = 0 ORDER BY id")]
    (first,) = store.execute("SELECT next_seq FROM tenants WHERE id = 'default'").fetchone()
    newest, apart = int(time.time() * 1000) - 60_000, days * 86_400_000 // count
    for begin in range(0, count, BATCH):
        rows = {"events": [], "deliveries": [], "attempts": [], "attempt_index": [], "dead": []}
        for n in range(begin, min(begin + BATCH, count)):
            ms = newest - (count - 1 - n) * apart
            event, delivery = id_at(ms, "event", n), id_at(ms, "delivery", n)
            webhook, died, rare = webhooks[n % len(webhooks)], n % 1000 == 7, n % 100 == 7
            kind = "bench.rare" if n % 10_000 == 7 else "bench.history"
            data = ('{"seq":"%022d","pad":"' % n).ljust(510, "x") + '"}'
            key, subject = (f"key-{n}", f"subject-{n % 1000}") if rare else (None, None)
            rows["events"].append(
                (event, "default", first + n, kind, ms, key, None, subject, 2, None, data.encode())
            )
            ended = (3, 500, 2, "the endpoint returned 500", 2) if died else (2, 200, None, None, None)
            status, code, category, error, reason = ended
            rows["deliveries"].append(
                (delivery, "default", event, webhook, 1, status, 1, 2, 1, code, category, error, reason, None, ms,
                 ms + 2, None, None)
            )
            # As `AttemptId::for_delivery` does, so that a prompt success is found by its id.
            attempt = (ms + 2).to_bytes(6, "big") + delivery[6:14] + bytes([0, 2])
            rows["attempts"].append(
                (delivery, 1, attempt, 3 if died else 1, category, code, error, None,
                 b"content-length: 0\n", None, None, None, None, 300, 300, ms, ms + 1, None, 0, "history#1")
            )
            if died:
                # Prompt successes are not in the index of attempts.
                rows["attempt_index"].append((attempt, "default", webhook, delivery, status, category, code))
                rows["dead"].append((delivery, "default", webhook, kind, category, reason, ms + 2))
        with store:
            for table, values in rows.items():
                if values:
                    places = ", ".join("?" * len(values[0]))
                    columns = f" ({COLUMNS[table]})" if table in COLUMNS else ""
                    store.executemany(f"INSERT INTO {table}{columns} VALUES ({places})", values)
    with store:
        store.execute("UPDATE tenants SET next_seq = next_seq + ? WHERE id = 'default'", (count,))


def main():
    path, count, days = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    store = sqlite3.connect(path)
    store.execute("PRAGMA synchronous = OFF")
    fill(store, count, days)
    store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()


main()
