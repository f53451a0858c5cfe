-- Ids are 16-byte UUIDv7, times are Unix milliseconds, payloads and whatever endpoints say are bytes.
-- A delivery that is not over is in exactly one of `leased` (a node has it) and `waiting` (nobody has it).

CREATE TABLE tenants (
    id             TEXT PRIMARY KEY,
    name           TEXT,
    next_seq       INTEGER NOT NULL DEFAULT 1,
    -- Bumped by every change to the tenant's webhooks, event types and rules; a publish that fanned out by another version is refused.
    config_version INTEGER NOT NULL DEFAULT 1,
    -- The version at which its event types last changed; 0 if it never had any.
    types_version  INTEGER NOT NULL DEFAULT 0,
    -- Who sends for it, and how fast: a JSON document.
    rules          TEXT NOT NULL DEFAULT '{}',
    created_at     INTEGER NOT NULL,
    -- Since when it is gone. The row stays, so that nobody ever gets its name and with it its history.
    deleted_at     INTEGER
) STRICT, WITHOUT ROWID;

-- The catalogue: what a tenant says about its event types. Schemas and examples are JSON as they were written.
CREATE TABLE event_types (
    tenant      TEXT NOT NULL,
    name        TEXT NOT NULL,
    revision    INTEGER NOT NULL,
    archived    INTEGER NOT NULL DEFAULT 0,
    description TEXT,
    example     TEXT,
    schema      TEXT,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX event_types_by_revision ON event_types (tenant, revision);

-- Addresses that are not told of one kind of notice any more, by their own doing.
CREATE TABLE unsubscribed (
    tenant  TEXT NOT NULL,
    address TEXT NOT NULL,
    kind    TEXT NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (tenant, address, kind)
) STRICT, WITHOUT ROWID;

-- Addresses that a tenant named for notifications. One is sent notifications only once it is confirmed. `send_at` is set
-- while a requested confirmation e-mail waits to be sent.
CREATE TABLE mail_addresses (
    tenant       TEXT NOT NULL,
    address      TEXT NOT NULL,
    requested_at INTEGER,
    requests     INTEGER NOT NULL DEFAULT 0,
    confirmed_at INTEGER,
    confirmed_by INTEGER,
    send_at      INTEGER,
    PRIMARY KEY (tenant, address)
) STRICT, WITHOUT ROWID;
CREATE INDEX mail_addresses_to_send ON mail_addresses (send_at) WHERE send_at IS NOT NULL;
CREATE INDEX mail_addresses_unconfirmed ON mail_addresses (requested_at) WHERE confirmed_at IS NULL;

-- How many e-mails were sent lately, by tenant and by mailbox; see `core::notice::mail_limit`.
CREATE TABLE mail_usage (
    scope      INTEGER NOT NULL,
    key        TEXT NOT NULL,
    purpose    INTEGER NOT NULL,
    usage      TEXT NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (scope, key, purpose)
) STRICT, WITHOUT ROWID;
CREATE INDEX mail_usage_by_change ON mail_usage (updated_at);

CREATE TABLE api_keys (
    id           BLOB PRIMARY KEY,
    tenant       TEXT,
    name         TEXT NOT NULL,
    hash         BLOB NOT NULL UNIQUE,
    scopes       INTEGER NOT NULL,
    -- A session is a key that is short-lived, and not listed among the keys.
    session      INTEGER NOT NULL DEFAULT 0,
    -- Where it may be used from: a JSON list of networks.
    networks     TEXT NOT NULL DEFAULT '[]',
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER,
    revoked_at   INTEGER,
    last_used_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX api_keys_by_tenant ON api_keys (tenant, id) WHERE session = 0;
CREATE INDEX api_keys_sessions ON api_keys (expires_at) WHERE session = 1;

-- Sessions of browsers. `id` is the SHA-256 of what the cookie carries, `key_hash` that of the key used to log in: an
-- API key, or the admin key of the configuration.
CREATE TABLE browser_sessions (
    id         BLOB PRIMARY KEY,
    key_hash   BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX browser_sessions_by_key ON browser_sessions (key_hash, created_at);
CREATE INDEX browser_sessions_by_expiry ON browser_sessions (expires_at);

-- Who changed what. An entry is written before the change, and completed once, after it.
CREATE TABLE audit (
    id      BLOB PRIMARY KEY,
    tenant  TEXT,
    actor   TEXT NOT NULL,
    key     BLOB,
    address TEXT,
    action  TEXT NOT NULL,
    object  TEXT,
    result  TEXT,
    before  TEXT,
    after   TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX audit_by_tenant ON audit (tenant, id);
CREATE TRIGGER audit_is_kept BEFORE UPDATE ON audit WHEN OLD.result IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'an entry of the audit log is never changed'); END;

-- AUTOINCREMENT: an epoch is never used twice, not even after its row is gone.
CREATE TABLE nodes (
    epoch     INTEGER PRIMARY KEY AUTOINCREMENT,
    -- Drawn by the node when it joins.
    incarnation INTEGER NOT NULL,
    name      TEXT NOT NULL,
    role      INTEGER NOT NULL,
    -- The pools that it sends for: a JSON list.
    pools     TEXT NOT NULL,
    beats     INTEGER NOT NULL DEFAULT 0,
    joined_at INTEGER NOT NULL
) STRICT;

-- What a node remembers about its clock: the last confirmed time, and how often an operator has confirmed it.
CREATE TABLE clock (
    single        INTEGER PRIMARY KEY CHECK (single = 1),
    confirmed_at  INTEGER,
    confirmations INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE webhooks (
    id         BLOB PRIMARY KEY,
    tenant     TEXT NOT NULL,
    revision   INTEGER NOT NULL,
    state      TEXT NOT NULL,
    spec       TEXT NOT NULL,
    -- Secrets and whatever else is confidential, sealed.
    sealed     BLOB NOT NULL,
    deleted    INTEGER NOT NULL DEFAULT 0,
    sweeping   INTEGER NOT NULL DEFAULT 0,
    -- Whether portal sessions see nothing of it; a copy of what the specification says.
    managed_by_operator INTEGER NOT NULL DEFAULT 0,
    -- When it is to be disabled, or its endpoint to be asked for an echo.
    expires_at INTEGER,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX webhooks_by_revision ON webhooks (tenant, revision);
CREATE INDEX webhooks_listed ON webhooks (tenant, id) WHERE deleted = 0;
CREATE INDEX webhooks_sweeping ON webhooks (id) WHERE sweeping = 1;
CREATE INDEX webhooks_expiring ON webhooks (expires_at) WHERE expires_at IS NOT NULL;

-- What holds a webhook back, and what its circuit has been through. Most webhooks have no row.
CREATE TABLE runtime (
    webhook       BLOB PRIMARY KEY,
    tenant        TEXT NOT NULL,
    paused        INTEGER NOT NULL DEFAULT 0,
    -- Until when the endpoint asked not to be called.
    hold_until    INTEGER NOT NULL DEFAULT 0,
    -- The circuit as a JSON document with its number, the time it blocks until and that of its last move: for guarding and for
    -- claims. No document: it is closed.
    circuit       TEXT,
    generation    INTEGER NOT NULL DEFAULT 0,
    circuit_until INTEGER NOT NULL DEFAULT 0,
    circuit_since INTEGER NOT NULL DEFAULT 0,
    -- When the first of an unbroken row of failures was.
    failing_since INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX runtime_circuits ON runtime (tenant, webhook) WHERE circuit IS NOT NULL;

-- When a circuit was open, and what had opened it. The one that still is has no end.
CREATE TABLE circuit_periods (
    webhook   BLOB NOT NULL,
    tenant    TEXT NOT NULL,
    opened_at INTEGER NOT NULL,
    ended_at  INTEGER,
    forced    INTEGER NOT NULL,
    counts    TEXT NOT NULL,
    PRIMARY KEY (webhook, opened_at)
) STRICT, WITHOUT ROWID;
CREATE INDEX circuit_periods_open ON circuit_periods (webhook) WHERE ended_at IS NULL;
CREATE INDEX circuit_periods_by_tenant ON circuit_periods (tenant, opened_at);

-- What was sent in each minute and how it went; categories and latencies are packed by `core::health`.
CREATE TABLE rollups (
    webhook         BLOB NOT NULL,
    minute          INTEGER NOT NULL,
    tenant          TEXT NOT NULL,
    attempts        INTEGER NOT NULL,
    successes       INTEGER NOT NULL,
    -- Whether any of them failed.
    failed          INTEGER NOT NULL,
    categories      BLOB NOT NULL,
    latencies       BLOB NOT NULL,
    last_success_at INTEGER,
    PRIMARY KEY (webhook, minute)
) STRICT, WITHOUT ROWID;
CREATE INDEX rollups_by_minute ON rollups (minute);
-- With all that is counted, so that counting reads nothing else.
CREATE INDEX rollups_failed ON rollups (tenant, minute, webhook, attempts, successes) WHERE failed = 1;

-- The same for all of a tenant, by the minute (1) and by the hour (2), with how many deliveries ended, and how.
CREATE TABLE tenant_rollups (
    tenant          TEXT NOT NULL,
    grain           INTEGER NOT NULL,
    start           INTEGER NOT NULL,
    attempts        INTEGER NOT NULL,
    successes       INTEGER NOT NULL,
    categories      BLOB NOT NULL,
    latencies       BLOB NOT NULL,
    last_success_at INTEGER,
    delivered       INTEGER NOT NULL,
    dead            INTEGER NOT NULL,
    cancelled       INTEGER NOT NULL,
    kept_until      INTEGER NOT NULL,
    PRIMARY KEY (tenant, grain, start)
) STRICT, WITHOUT ROWID;
CREATE INDEX tenant_rollups_kept ON tenant_rollups (kept_until);

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
    priority        INTEGER NOT NULL,
    metadata        BLOB,
    -- The trace it belongs to: ids, flags, state. Most have none.
    trace           BLOB,
    -- How many deliveries of Redrive it came through.
    hops            INTEGER NOT NULL DEFAULT 0,
    data            BLOB NOT NULL,
    -- Since when there is no payload any more: `data` is empty then.
    erased_at       INTEGER
) STRICT;
CREATE UNIQUE INDEX events_by_tenant ON events (tenant, id);
CREATE INDEX events_by_key ON events (tenant, idempotency_key, id) WHERE idempotency_key IS NOT NULL;
CREATE INDEX events_by_subject ON events (tenant, subject, id) WHERE subject IS NOT NULL;

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
    priority         INTEGER NOT NULL,
    attempt_count    INTEGER NOT NULL DEFAULT 0,
    last_status_code INTEGER,
    failure_category INTEGER,
    last_error       TEXT,
    dead_reason      INTEGER,
    cancel_reason    TEXT,
    created_at       INTEGER NOT NULL,
    ended_at         INTEGER,
    replay_of        BLOB,
    redriven_as      BLOB,
    -- When it was taken off the list of dead letters.
    purged_at        INTEGER
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX deliveries_by_event ON deliveries (event, webhook, round);
CREATE INDEX deliveries_by_webhook ON deliveries (webhook, id);
-- Deliveries that did not simply arrive. What is delivered at the first attempt is in none of these.
CREATE INDEX deliveries_by_category ON deliveries (tenant, failure_category, id)
    WHERE failure_category IS NOT NULL;
CREATE INDEX deliveries_by_code ON deliveries (tenant, last_status_code, id) WHERE last_status_code >= 300;
CREATE INDEX deliveries_given_up ON deliveries (tenant, status, id) WHERE status >= 3;
CREATE INDEX deliveries_undelivered ON deliveries (webhook, id)
    WHERE (status >= 3 OR failure_category IS NOT NULL);

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
    circuit              INTEGER NOT NULL,
    worker               TEXT NOT NULL,
    PRIMARY KEY (delivery, number)
) STRICT, WITHOUT ROWID;

-- What is old and was taken out of the tables above, on its way into the archive: compressed lines, by the day of their
-- events. Frames of one object go together, once it is there.
CREATE TABLE archive (
    number     INTEGER PRIMARY KEY AUTOINCREMENT,
    day        TEXT NOT NULL,
    object     TEXT,
    events     INTEGER NOT NULL,
    deliveries INTEGER NOT NULL,
    attempts   INTEGER NOT NULL,
    frame      BLOB NOT NULL
) STRICT;
CREATE INDEX archive_by_object ON archive (object) WHERE object IS NOT NULL;

-- A lane is one queue of a webhook: a class of deliveries that wait for nothing but their time (two letters), or
-- one order ('=' and its key), in which each waits for the one before it. 'A' lies between the two.
CREATE TABLE leased (
    delivery BLOB PRIMARY KEY,
    epoch    INTEGER NOT NULL,
    webhook  BLOB NOT NULL,
    lane     TEXT NOT NULL,
    seq      INTEGER NOT NULL,
    rescues  INTEGER NOT NULL DEFAULT 0,
    deaths   INTEGER NOT NULL DEFAULT 0,
    sending  INTEGER NOT NULL DEFAULT 0,
    cancel   TEXT
) STRICT, WITHOUT ROWID;
-- Nobody may start the next of an order while somebody has one before it.
CREATE INDEX leased_in_order ON leased (webhook, lane, seq) WHERE lane < 'A';

CREATE TABLE waiting (
    delivery   BLOB PRIMARY KEY,
    webhook    BLOB NOT NULL,
    lane       TEXT NOT NULL,
    -- What comes first in the lane: the due time, or always 0 in an order, where the sequence alone decides.
    place      INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    due        INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    rescues    INTEGER NOT NULL DEFAULT 0,
    deaths     INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE INDEX waiting_by_lane ON waiting (webhook, lane, place, seq);
CREATE INDEX waiting_by_age ON waiting (webhook, created_at);

-- One row for each lane with something in `waiting`: when to look there next (not before whatever blocks the
-- webhook is over), who has taken it on, and which nodes may.
CREATE TABLE lanes (
    webhook BLOB NOT NULL,
    lane    TEXT NOT NULL,
    wake_at INTEGER NOT NULL,
    held_by INTEGER,
    pool    TEXT NOT NULL,
    PRIMARY KEY (webhook, lane)
) STRICT, WITHOUT ROWID;
CREATE INDEX lanes_by_wake ON lanes (pool, wake_at) WHERE held_by IS NULL;
CREATE INDEX lanes_held ON lanes (held_by) WHERE held_by IS NOT NULL;

-- Webhooks that one node alone sends to, and which.
CREATE TABLE homes (
    webhook BLOB PRIMARY KEY,
    epoch   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX homes_by_epoch ON homes (epoch);

-- Bulk operations. What one was asked to do is a JSON document; it is open until all of what it queued has ended.
CREATE TABLE operations (
    id              BLOB PRIMARY KEY,
    tenant          TEXT NOT NULL,
    asked           TEXT NOT NULL,
    state           TEXT NOT NULL,
    open            INTEGER NOT NULL DEFAULT 1,
    created_by      TEXT NOT NULL,
    created_at      INTEGER NOT NULL,
    start_at        INTEGER NOT NULL,
    began_at        INTEGER,
    finished_at     INTEGER,
    updated_at      INTEGER NOT NULL,
    held_by         INTEGER,
    cursor_event    BLOB,
    cursor_delivery BLOB,
    total           INTEGER,
    done            INTEGER NOT NULL DEFAULT 0,
    skipped         INTEGER NOT NULL DEFAULT 0,
    delivered       INTEGER NOT NULL DEFAULT 0,
    failed          INTEGER NOT NULL DEFAULT 0,
    cancelled       INTEGER NOT NULL DEFAULT 0,
    errors          TEXT NOT NULL DEFAULT '{}',
    pace_from       INTEGER,
    pace_done       INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE INDEX operations_by_tenant ON operations (tenant, id);
CREATE INDEX operations_open ON operations (start_at) WHERE open = 1;

-- What an operation has queued and what has not ended yet, as far as is known.
CREATE TABLE operation_items (
    operation BLOB NOT NULL,
    delivery  BLOB NOT NULL,
    PRIMARY KEY (operation, delivery)
) STRICT, WITHOUT ROWID;

-- What owners are to be told, folded: one row for each kind of thing about each webhook, or about the tenant as a whole
-- (all zero). What is not told yet has a due time.
CREATE TABLE standing (
    tenant      TEXT NOT NULL,
    webhook     BLOB NOT NULL,
    kind        INTEGER NOT NULL,
    due         INTEGER,
    count       INTEGER NOT NULL,
    first_at    INTEGER NOT NULL,
    last_at     INTEGER NOT NULL,
    -- What is known of the last: a JSON document.
    facts       TEXT NOT NULL,
    -- Until when nothing more is told.
    quiet_until INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, webhook, kind)
) STRICT, WITHOUT ROWID;
CREATE INDEX standing_due ON standing (due) WHERE due IS NOT NULL;
CREATE INDEX standing_quiet ON standing (quiet_until) WHERE due IS NULL;

-- What owners were told, or are being told: notices with how far they are on each way. One that is over on every way has
-- no next time.
CREATE TABLE notices (
    id       BLOB PRIMARY KEY,
    tenant   TEXT NOT NULL,
    webhook  BLOB,
    kind     INTEGER NOT NULL,
    count    INTEGER NOT NULL,
    first_at INTEGER NOT NULL,
    last_at  INTEGER NOT NULL,
    facts    TEXT NOT NULL,
    event    INTEGER NOT NULL DEFAULT 0,
    mail     INTEGER NOT NULL DEFAULT 0,
    tries    INTEGER NOT NULL DEFAULT 0,
    next_at  INTEGER,
    error    TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX notices_by_tenant ON notices (tenant, id);
CREATE INDEX notices_due ON notices (next_at, id) WHERE next_at IS NOT NULL;

-- What every node should know of, in order. Old ones are forgotten.
CREATE TABLE changes (
    number   INTEGER PRIMARY KEY AUTOINCREMENT,
    kind     INTEGER NOT NULL,
    tenant   TEXT,
    webhook  BLOB,
    delivery BLOB
) STRICT;

-- Deliveries that were given up on and not redriven, with what they are looked for by.
CREATE TABLE dead (
    delivery   BLOB PRIMARY KEY,
    tenant     TEXT NOT NULL,
    webhook    BLOB NOT NULL,
    event_type TEXT NOT NULL,
    category   INTEGER,
    reason     INTEGER NOT NULL,
    died_at    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
-- With all that is counted, so that counting reads nothing else.
CREATE INDEX dead_by_tenant ON dead (tenant, delivery, webhook, event_type, category, reason, died_at);
CREATE INDEX dead_by_webhook ON dead (webhook, delivery);
CREATE INDEX dead_by_type ON dead (tenant, event_type, delivery);
CREATE INDEX dead_by_category ON dead (tenant, category, delivery) WHERE category IS NOT NULL;

INSERT INTO tenants (id, name, created_at) VALUES ('default', 'Default', 0);
