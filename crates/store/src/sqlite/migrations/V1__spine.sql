-- Ids are 16-byte UUIDv7, times are Unix milliseconds, payloads and whatever endpoints say are bytes.
-- A delivery that is not over is in exactly one of `leased` (a node has it) and `waiting` (nobody has it).

CREATE TABLE tenants (
    id             TEXT PRIMARY KEY,
    name           TEXT,
    next_seq       INTEGER NOT NULL DEFAULT 1,
    -- Bumped by every change to the tenant's webhooks; a publish that fanned out by another version is refused.
    config_version INTEGER NOT NULL DEFAULT 1,
    created_at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE api_keys (
    id         BLOB PRIMARY KEY,
    tenant     TEXT,
    name       TEXT NOT NULL,
    hash       BLOB NOT NULL UNIQUE,
    scopes     INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    revoked_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX api_keys_by_tenant ON api_keys (tenant, id);

-- AUTOINCREMENT: an epoch is never used twice, not even after its row is gone.
CREATE TABLE nodes (
    epoch     INTEGER PRIMARY KEY AUTOINCREMENT,
    name      TEXT NOT NULL,
    joined_at INTEGER NOT NULL
) STRICT;

CREATE TABLE webhooks (
    id         BLOB PRIMARY KEY,
    tenant     TEXT NOT NULL,
    revision   INTEGER NOT NULL,
    state      TEXT NOT NULL,
    spec       TEXT NOT NULL,
    secrets    TEXT NOT NULL,
    deleted    INTEGER NOT NULL DEFAULT 0,
    sweeping   INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX webhooks_by_revision ON webhooks (tenant, revision);
CREATE INDEX webhooks_listed ON webhooks (tenant, id) WHERE deleted = 0;
CREATE INDEX webhooks_sweeping ON webhooks (id) WHERE sweeping = 1;

-- A table with row ids, unlike the others: rows are large and only ever appended, which is cheap there, while
-- a tree ordered by id would be rebalanced every few inserts. Every look-up names the tenant.
CREATE TABLE events (
    id              BLOB NOT NULL,
    tenant          TEXT NOT NULL,
    seq             INTEGER NOT NULL,
    event_type      TEXT NOT NULL,
    timestamp       INTEGER NOT NULL,
    idempotency_key TEXT,
    source          TEXT,
    subject         TEXT,
    metadata        BLOB,
    data            BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX events_by_tenant ON events (tenant, id);

CREATE TABLE idempotency (
    tenant     TEXT NOT NULL,
    key_hash   BLOB NOT NULL,
    event      BLOB NOT NULL,
    body_hash  BLOB NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, key_hash)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_by_expiry ON idempotency (expires_at);

CREATE TABLE deliveries (
    id               BLOB PRIMARY KEY,
    tenant           TEXT NOT NULL,
    event            BLOB NOT NULL,
    webhook          BLOB NOT NULL,
    round            INTEGER NOT NULL,
    status           INTEGER NOT NULL,
    format           INTEGER NOT NULL,
    attempt_count    INTEGER NOT NULL DEFAULT 0,
    last_status_code INTEGER,
    failure_category INTEGER,
    last_error       TEXT,
    dead_reason      INTEGER,
    cancel_reason    TEXT,
    created_at       INTEGER NOT NULL,
    ended_at         INTEGER,
    replay_of        BLOB,
    redriven_as      BLOB
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX deliveries_by_event ON deliveries (event, webhook, round);
CREATE INDEX deliveries_by_webhook ON deliveries (webhook, id);

CREATE TABLE attempts (
    delivery             BLOB NOT NULL,
    number               INTEGER NOT NULL,
    id                   BLOB NOT NULL,
    status               INTEGER NOT NULL,
    failure_category     INTEGER,
    http_status_code     INTEGER,
    error_message        TEXT,
    custom_headers       BLOB,
    response_headers     BLOB,
    response_body_sample BLOB,
    dns_us               INTEGER,
    connect_us           INTEGER,
    tls_us               INTEGER,
    ttfb_us              INTEGER,
    total_us             INTEGER NOT NULL,
    scheduled_at         INTEGER NOT NULL,
    executed_at          INTEGER NOT NULL,
    next_retry_at        INTEGER,
    worker               TEXT NOT NULL,
    PRIMARY KEY (delivery, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE leased (
    delivery BLOB PRIMARY KEY,
    epoch    INTEGER NOT NULL,
    webhook  BLOB NOT NULL,
    rescues  INTEGER NOT NULL DEFAULT 0,
    deaths   INTEGER NOT NULL DEFAULT 0,
    sending  INTEGER NOT NULL DEFAULT 0,
    cancel   TEXT
) STRICT, WITHOUT ROWID;

CREATE TABLE waiting (
    delivery BLOB PRIMARY KEY,
    webhook  BLOB NOT NULL,
    due      INTEGER NOT NULL,
    rescues  INTEGER NOT NULL DEFAULT 0,
    deaths   INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE INDEX waiting_by_lane ON waiting (webhook, due);

-- One row for each webhook with something in `waiting`: when to look there next, and who has taken it on.
CREATE TABLE lanes (
    webhook BLOB PRIMARY KEY,
    wake_at INTEGER NOT NULL,
    held_by INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX lanes_by_wake ON lanes (wake_at) WHERE held_by IS NULL;
CREATE INDEX lanes_held ON lanes (held_by) WHERE held_by IS NOT NULL;

CREATE TABLE dead (
    delivery BLOB PRIMARY KEY,
    tenant   TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX dead_by_tenant ON dead (tenant, delivery);

INSERT INTO tenants (id, name, created_at) VALUES ('default', 'Default', 0);
