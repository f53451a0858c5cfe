-- Ids are 16-byte UUIDv7, times are Unix milliseconds, payloads and response data are bytes.
-- A delivery that has not ended is in exactly one of `leased` (a node owns it) and `waiting` (no node owns it).

CREATE TABLE tenants (
    id                  TEXT PRIMARY KEY,
    name                TEXT,
    next_seq            INTEGER NOT NULL DEFAULT 1,
    -- Incremented by every change to the tenant's webhooks, event types and rules; a publish whose fan-out was
    -- computed from another version is refused.
    config_version      INTEGER NOT NULL DEFAULT 1,
    -- Configuration version of the last change to its event types; 0 if it never had any.
    event_types_version INTEGER NOT NULL DEFAULT 0,
    -- Pool and limits of the tenant: a JSON document.
    rules               TEXT NOT NULL DEFAULT '{}',
    created_at          INTEGER NOT NULL,
    -- Deletion time. The row stays, so that no later tenant gets the same id and with it the old history.
    deleted_at          INTEGER
) STRICT, WITHOUT ROWID;

-- Event type catalogue of each tenant. Schemas and examples are JSON texts as the tenant wrote them.
CREATE TABLE event_types (
    tenant_id   TEXT NOT NULL,
    name        TEXT NOT NULL,
    revision    INTEGER NOT NULL,
    archived    INTEGER NOT NULL DEFAULT 0,
    description TEXT,
    example     TEXT,
    schema      TEXT,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX event_types_by_revision ON event_types (tenant_id, revision);

-- Email addresses that unsubscribed from one kind of notification.
CREATE TABLE unsubscriptions (
    tenant_id       TEXT NOT NULL,
    address         TEXT NOT NULL,
    kind            TEXT NOT NULL,
    unsubscribed_at INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, address, kind)
) STRICT, WITHOUT ROWID;

-- Email addresses that a tenant named for notifications. An address receives notifications only once it is
-- confirmed. `send_at` is set while a requested confirmation email waits to be sent.
CREATE TABLE email_addresses (
    tenant_id    TEXT NOT NULL,
    address      TEXT NOT NULL,
    requested_at INTEGER,
    requests     INTEGER NOT NULL DEFAULT 0,
    confirmed_at INTEGER,
    confirmed_by INTEGER,
    send_at      INTEGER,
    PRIMARY KEY (tenant_id, address)
) STRICT, WITHOUT ROWID;
CREATE INDEX email_addresses_to_send ON email_addresses (send_at) WHERE send_at IS NOT NULL;
CREATE INDEX email_addresses_unconfirmed ON email_addresses (requested_at) WHERE confirmed_at IS NULL;

-- Number of emails sent recently, by tenant and by mailbox; see `core::notification::mail_limit`.
CREATE TABLE email_usage (
    scope      INTEGER NOT NULL,
    key        TEXT NOT NULL,
    purpose    INTEGER NOT NULL,
    usage      TEXT NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (scope, key, purpose)
) STRICT, WITHOUT ROWID;
CREATE INDEX email_usage_by_change ON email_usage (updated_at);

CREATE TABLE api_keys (
    id           BLOB PRIMARY KEY,
    tenant_id    TEXT,
    name         TEXT NOT NULL,
    hash         BLOB NOT NULL UNIQUE,
    scopes       INTEGER NOT NULL,
    -- A portal session: a short-lived key that is not listed among the API keys.
    session      INTEGER NOT NULL DEFAULT 0,
    -- Networks from which the key may be used: a JSON list.
    networks     TEXT NOT NULL DEFAULT '[]',
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER,
    revoked_at   INTEGER,
    last_used_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX api_keys_by_tenant ON api_keys (tenant_id, id) WHERE session = 0;
CREATE INDEX api_keys_sessions ON api_keys (expires_at) WHERE session = 1;

-- Browser sessions. `id` is the SHA-256 of the cookie's value, `key_hash` that of the key used to log in: an API
-- key, or the admin key of the configuration.
CREATE TABLE browser_sessions (
    id         BLOB PRIMARY KEY,
    key_hash   BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX browser_sessions_by_key ON browser_sessions (key_hash, created_at);
CREATE INDEX browser_sessions_by_expiry ON browser_sessions (expires_at);

-- Audit log. An entry is written before the change, and completed once, after it.
CREATE TABLE audit (
    id        BLOB PRIMARY KEY,
    tenant_id TEXT,
    actor     TEXT NOT NULL,
    key_id    BLOB,
    address   TEXT,
    action    TEXT NOT NULL,
    object    TEXT,
    result    TEXT,
    before    TEXT,
    after     TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX audit_by_tenant ON audit (tenant_id, id);
CREATE TRIGGER audit_is_immutable BEFORE UPDATE ON audit WHEN OLD.result IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'audit log entries are immutable'); END;

-- AUTOINCREMENT: an epoch is never reused, even after its row is deleted.
CREATE TABLE nodes (
    epoch       INTEGER PRIMARY KEY AUTOINCREMENT,
    -- Random value that the node chooses when it joins.
    incarnation INTEGER NOT NULL,
    name        TEXT NOT NULL,
    role        INTEGER NOT NULL,
    -- Pools that the node serves: a JSON list.
    pools       TEXT NOT NULL,
    heartbeats  INTEGER NOT NULL DEFAULT 0,
    joined_at   INTEGER NOT NULL
) STRICT;

-- Clock state of the node: the last confirmed time, and how often an operator has confirmed the clock.
CREATE TABLE clock (
    single        INTEGER PRIMARY KEY CHECK (single = 1),
    confirmed_at  INTEGER,
    confirmations INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE webhooks (
    id                  BLOB PRIMARY KEY,
    tenant_id           TEXT NOT NULL,
    revision            INTEGER NOT NULL,
    state               TEXT NOT NULL,
    spec                TEXT NOT NULL,
    -- Secrets and other confidential fields, encrypted.
    sealed              BLOB NOT NULL,
    deleted             INTEGER NOT NULL DEFAULT 0,
    cancel_pending      INTEGER NOT NULL DEFAULT 0,
    -- Whether the webhook is hidden from portal sessions; a copy of the value in `spec`.
    managed_by_operator INTEGER NOT NULL DEFAULT 0,
    -- When the webhook is to be disabled, or its next verification challenge sent.
    expires_at          INTEGER,
    created_at          INTEGER NOT NULL,
    updated_at          INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX webhooks_by_revision ON webhooks (tenant_id, revision);
CREATE INDEX webhooks_listed ON webhooks (tenant_id, id) WHERE deleted = 0;
CREATE INDEX webhooks_cancel_pending ON webhooks (id) WHERE cancel_pending = 1;
CREATE INDEX webhooks_expiring ON webhooks (expires_at) WHERE expires_at IS NOT NULL;

-- Runtime state of webhooks: whether its deliveries are parked for its state (`paused`), the end of a pause after a 429
-- (`paused_until`), circuit, failures. Most webhooks have no row.
CREATE TABLE webhook_runtime (
    webhook_id    BLOB PRIMARY KEY,
    tenant_id     TEXT NOT NULL,
    paused        INTEGER NOT NULL DEFAULT 0,
    -- Time until which the endpoint asked not to be called.
    paused_until    INTEGER NOT NULL DEFAULT 0,
    -- The circuit as a JSON document (null if it is closed), with its generation for fencing, the time until which it
    -- blocks for claims, and the time of its last transition.
    circuit       TEXT,
    generation    INTEGER NOT NULL DEFAULT 0,
    circuit_until INTEGER NOT NULL DEFAULT 0,
    circuit_since INTEGER NOT NULL DEFAULT 0,
    -- Time of the first failure since the last success.
    failing_since INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX webhook_runtime_circuits ON webhook_runtime (tenant_id, webhook_id) WHERE circuit IS NOT NULL;

-- Periods in which a circuit was open, and the counts that opened it. A period that has not ended has no
-- `ended_at`.
CREATE TABLE circuit_periods (
    webhook_id BLOB NOT NULL,
    tenant_id  TEXT NOT NULL,
    opened_at  INTEGER NOT NULL,
    ended_at   INTEGER,
    forced     INTEGER NOT NULL,
    counts     TEXT NOT NULL,
    PRIMARY KEY (webhook_id, opened_at)
) STRICT, WITHOUT ROWID;
CREATE INDEX circuit_periods_open ON circuit_periods (webhook_id) WHERE ended_at IS NULL;
CREATE INDEX circuit_periods_by_tenant ON circuit_periods (tenant_id, opened_at);

-- Attempts of each webhook per minute and their results; `core::rollup` encodes categories and latencies.
CREATE TABLE rollups (
    webhook_id      BLOB NOT NULL,
    minute          INTEGER NOT NULL,
    tenant_id       TEXT NOT NULL,
    attempts        INTEGER NOT NULL,
    successes       INTEGER NOT NULL,
    -- Whether any attempt failed.
    failed          INTEGER NOT NULL,
    categories      BLOB NOT NULL,
    latencies       BLOB NOT NULL,
    last_success_at INTEGER,
    PRIMARY KEY (webhook_id, minute)
) STRICT, WITHOUT ROWID;
CREATE INDEX rollups_by_minute ON rollups (minute);
-- Includes all counted columns, so that counting is an index-only scan.
CREATE INDEX rollups_failed ON rollups (tenant_id, minute, webhook_id, attempts, successes) WHERE failed = 1;

-- Attempts of each tenant per minute (1) and per hour (2), with the numbers of deliveries that ended.
CREATE TABLE tenant_rollups (
    tenant_id       TEXT NOT NULL,
    resolution      INTEGER NOT NULL,
    start           INTEGER NOT NULL,
    attempts        INTEGER NOT NULL,
    successes       INTEGER NOT NULL,
    categories      BLOB NOT NULL,
    latencies       BLOB NOT NULL,
    last_success_at INTEGER,
    delivered       INTEGER NOT NULL,
    dead            INTEGER NOT NULL,
    cancelled       INTEGER NOT NULL,
    expires_at      INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, resolution, start)
) STRICT, WITHOUT ROWID;
CREATE INDEX tenant_rollups_by_expiry ON tenant_rollups (expires_at);

-- A table with row ids, unlike the others: rows are large and only appended, which is cheap there, while a tree
-- ordered by id would be rebalanced every few inserts. Every lookup names the tenant.
CREATE TABLE events (
    id              BLOB NOT NULL,
    tenant_id       TEXT NOT NULL,
    seq             INTEGER NOT NULL,
    event_type      TEXT NOT NULL,
    timestamp       INTEGER NOT NULL,
    idempotency_key TEXT,
    source          TEXT,
    subject         TEXT,
    priority        INTEGER NOT NULL,
    metadata        BLOB,
    -- Trace context of the event: ids, flags, state. Most events have none.
    trace           BLOB,
    -- Number of Redrive deliveries that the event has passed through.
    hops            INTEGER NOT NULL DEFAULT 0,
    data            BLOB NOT NULL,
    -- Time when the payload was erased: `data` is empty from then on.
    erased_at       INTEGER
) STRICT;
CREATE UNIQUE INDEX events_by_tenant ON events (tenant_id, id);
CREATE INDEX events_by_key ON events (tenant_id, idempotency_key, id) WHERE idempotency_key IS NOT NULL;
CREATE INDEX events_by_subject ON events (tenant_id, subject, id) WHERE subject IS NOT NULL;

CREATE TABLE idempotency_keys (
    tenant_id  TEXT NOT NULL,
    key_hash   BLOB NOT NULL,
    event_id   BLOB NOT NULL,
    body_hash  BLOB NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, key_hash)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_keys_by_expiry ON idempotency_keys (expires_at);

CREATE TABLE deliveries (
    id               BLOB PRIMARY KEY,
    tenant_id        TEXT NOT NULL,
    event_id         BLOB NOT NULL,
    webhook_id       BLOB NOT NULL,
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
    -- Time when it was removed from the dead letters.
    purged_at        INTEGER
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX deliveries_by_event ON deliveries (event_id, webhook_id, round);
CREATE INDEX deliveries_by_webhook ON deliveries (webhook_id, id);
-- Deliveries that failed so far, are dead or were cancelled. A success at the first attempt is in none of these
-- indexes.
CREATE INDEX deliveries_by_category ON deliveries (tenant_id, failure_category, id)
    WHERE failure_category IS NOT NULL;
CREATE INDEX deliveries_by_code ON deliveries (tenant_id, last_status_code, id) WHERE last_status_code >= 300;
CREATE INDEX deliveries_by_status ON deliveries (tenant_id, status, id) WHERE status >= 3;
CREATE INDEX deliveries_undelivered ON deliveries (webhook_id, id)
    WHERE (status >= 3 OR failure_category IS NOT NULL);

CREATE TABLE attempts (
    delivery_id          BLOB NOT NULL,
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
    PRIMARY KEY (delivery_id, number)
) STRICT, WITHOUT ROWID;

-- Archive outbox: pruned rows that wait to be stored in the archive, as compressed lines by the day of their
-- events. The frames of one object are deleted together, once the object is stored.
CREATE TABLE archive_outbox (
    number     INTEGER PRIMARY KEY AUTOINCREMENT,
    day        TEXT NOT NULL,
    object     TEXT,
    events     INTEGER NOT NULL,
    deliveries INTEGER NOT NULL,
    attempts   INTEGER NOT NULL,
    frame      BLOB NOT NULL
) STRICT;
CREATE INDEX archive_outbox_by_object ON archive_outbox (object) WHERE object IS NOT NULL;

-- A lane is one queue of a webhook: one per class, in which deliveries wait only for their due time (two letters),
-- or one per ordering key ('=' and the key), in which each waits for the one before it. 'A' sorts between the two.
CREATE TABLE leased (
    delivery_id BLOB PRIMARY KEY,
    epoch       INTEGER NOT NULL,
    webhook_id  BLOB NOT NULL,
    lane        TEXT NOT NULL,
    seq         INTEGER NOT NULL,
    abnormal_releases INTEGER NOT NULL DEFAULT 0,
    crash_count       INTEGER NOT NULL DEFAULT 0,
    sending     INTEGER NOT NULL DEFAULT 0,
    cancel      TEXT
) STRICT, WITHOUT ROWID;
-- No node may start the next delivery of an ordered lane while an earlier one is leased.
CREATE INDEX leased_in_order ON leased (webhook_id, lane, seq) WHERE lane < 'A';

CREATE TABLE waiting (
    delivery_id BLOB PRIMARY KEY,
    webhook_id  BLOB NOT NULL,
    lane        TEXT NOT NULL,
    -- Sort key within the lane: the due time, or always 0 in an ordered lane, where only the sequence counts.
    sort_key    INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    due         INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    abnormal_releases INTEGER NOT NULL DEFAULT 0,
    crash_count       INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE INDEX waiting_by_lane ON waiting (webhook_id, lane, sort_key, seq);
CREATE INDEX waiting_by_age ON waiting (webhook_id, created_at);

-- One row for each lane with deliveries in `waiting`: its wake time (not before the webhook's block ends), the
-- node that has claimed it, and the pool whose nodes may claim from it.
CREATE TABLE lanes (
    webhook_id BLOB NOT NULL,
    lane       TEXT NOT NULL,
    wake_at    INTEGER NOT NULL,
    claimed_by    INTEGER,
    pool       TEXT NOT NULL,
    PRIMARY KEY (webhook_id, lane)
) STRICT, WITHOUT ROWID;
CREATE INDEX lanes_by_wake ON lanes (pool, wake_at) WHERE claimed_by IS NULL;
CREATE INDEX lanes_claimed ON lanes (claimed_by) WHERE claimed_by IS NOT NULL;

-- Webhooks with an assigned node, which alone sends to them.
CREATE TABLE webhook_assignments (
    webhook_id BLOB PRIMARY KEY,
    epoch      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX webhook_assignments_by_epoch ON webhook_assignments (epoch);

-- Bulk operations. The request is a JSON document; an operation is open until everything it queued has ended.
CREATE TABLE operations (
    id                 BLOB PRIMARY KEY,
    tenant_id          TEXT NOT NULL,
    request            TEXT NOT NULL,
    state              TEXT NOT NULL,
    open               INTEGER NOT NULL DEFAULT 1,
    created_by         TEXT NOT NULL,
    created_at         INTEGER NOT NULL,
    start_at           INTEGER NOT NULL,
    started_at         INTEGER,
    finished_at        INTEGER,
    updated_at         INTEGER NOT NULL,
    claimed_by            INTEGER,
    cursor_event_id    BLOB,
    cursor_delivery_id BLOB,
    total              INTEGER,
    done               INTEGER NOT NULL DEFAULT 0,
    skipped            INTEGER NOT NULL DEFAULT 0,
    delivered          INTEGER NOT NULL DEFAULT 0,
    failed             INTEGER NOT NULL DEFAULT 0,
    cancelled          INTEGER NOT NULL DEFAULT 0,
    errors             TEXT NOT NULL DEFAULT '{}',
    rate_since         INTEGER,
    rate_base          INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE INDEX operations_by_tenant ON operations (tenant_id, id);
CREATE INDEX operations_open ON operations (start_at) WHERE open = 1;

-- Deliveries that an operation has queued and that are not known to have ended.
CREATE TABLE operation_items (
    operation_id BLOB NOT NULL,
    delivery_id  BLOB NOT NULL,
    PRIMARY KEY (operation_id, delivery_id)
) STRICT, WITHOUT ROWID;

-- Pending notifications, grouped: one row for each kind of occurrence about each webhook, or about the tenant as a
-- whole (all-zero webhook). A group that has not been sent has a due time.
CREATE TABLE notification_groups (
    tenant_id        TEXT NOT NULL,
    webhook_id       BLOB NOT NULL,
    kind             INTEGER NOT NULL,
    due              INTEGER,
    count            INTEGER NOT NULL,
    first_at         INTEGER NOT NULL,
    last_at          INTEGER NOT NULL,
    -- Details of the last occurrence: a JSON document.
    details          TEXT NOT NULL,
    -- Time until which no further notification is sent.
    suppressed_until INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_id, webhook_id, kind)
) STRICT, WITHOUT ROWID;
CREATE INDEX notification_groups_due ON notification_groups (due) WHERE due IS NOT NULL;
CREATE INDEX notification_groups_suppressed ON notification_groups (suppressed_until) WHERE due IS NULL;

-- Notifications to owners, with their status on each channel. A notification that is done on every channel has no
-- next attempt time.
CREATE TABLE notifications (
    id              BLOB PRIMARY KEY,
    tenant_id       TEXT NOT NULL,
    webhook_id      BLOB,
    kind            INTEGER NOT NULL,
    count           INTEGER NOT NULL,
    first_at        INTEGER NOT NULL,
    last_at         INTEGER NOT NULL,
    details         TEXT NOT NULL,
    webhook_status  INTEGER NOT NULL DEFAULT 0,
    email_status    INTEGER NOT NULL DEFAULT 0,
    attempts        INTEGER NOT NULL DEFAULT 0,
    next_attempt_at INTEGER,
    error           TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX notifications_by_tenant ON notifications (tenant_id, id);
CREATE INDEX notifications_due ON notifications (next_attempt_at, id) WHERE next_attempt_at IS NOT NULL;

-- Change feed: changes that every node reads, in order. Old rows are pruned.
CREATE TABLE change_log (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    kind        INTEGER NOT NULL,
    tenant_id   TEXT,
    webhook_id  BLOB,
    delivery_id BLOB
) STRICT;

-- Dead letters: dead deliveries that were not redriven or purged, with the columns they are filtered by.
CREATE TABLE dead (
    delivery_id BLOB PRIMARY KEY,
    tenant_id   TEXT NOT NULL,
    webhook_id  BLOB NOT NULL,
    event_type  TEXT NOT NULL,
    category    INTEGER,
    reason      INTEGER NOT NULL,
    died_at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
-- Includes all counted columns, so that counting is an index-only scan.
CREATE INDEX dead_by_tenant ON dead (tenant_id, delivery_id, webhook_id, event_type, category, reason, died_at);
CREATE INDEX dead_by_webhook ON dead (webhook_id, delivery_id);
CREATE INDEX dead_by_type ON dead (tenant_id, event_type, delivery_id);
CREATE INDEX dead_by_category ON dead (tenant_id, category, delivery_id) WHERE category IS NOT NULL;

INSERT INTO tenants (id, name, created_at) VALUES ('default', 'Default', 0);
