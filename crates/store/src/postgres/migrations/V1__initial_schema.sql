-- Ids are UUIDv7, times are Unix milliseconds. Payloads and response data are bytes, since `text` cannot hold NUL.
-- A delivery that has not ended is in exactly one of `leased` (a node owns it) and `waiting` (no node owns it).
--
-- Rows are locked in one order: operations, nodes, leased, tenants, webhooks, events, webhook_runtime, lanes (by
-- webhook and lane), webhook_assignments, waiting, deliveries, the rows that belong to a delivery,
-- notification_groups. See docs/adr/0044-one-lock-order.md. A row of `waiting` is deleted only by a transaction
-- that has locked its lane, or by a ticket.

CREATE TABLE tenants (
    id                  text COLLATE "C" PRIMARY KEY,
    name                text,
    next_seq            bigint NOT NULL DEFAULT 1,
    -- Incremented by every change to the tenant's webhooks, event types and rules; a publish whose fan-out was
    -- computed from another version is refused.
    config_version      bigint NOT NULL DEFAULT 1,
    -- Configuration version of the last change to its event types; 0 if it never had any.
    event_types_version bigint NOT NULL DEFAULT 0,
    -- Pool and limits of the tenant: a JSON document. The pool is also a column, for lanes.
    rules               text NOT NULL DEFAULT '{}',
    pool                text NOT NULL DEFAULT 'default',
    created_at          bigint NOT NULL,
    -- Deletion time. The row stays, so that no later tenant gets the same id and with it the old history.
    deleted_at          bigint
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

-- Event type catalogue of each tenant. Schemas and examples are JSON texts as the tenant wrote them.
CREATE TABLE event_types (
    tenant_id   text COLLATE "C" NOT NULL,
    name        text COLLATE "C" NOT NULL,
    revision    bigint NOT NULL,
    archived    boolean NOT NULL DEFAULT false,
    description text,
    example     text,
    schema      text,
    created_at  bigint NOT NULL,
    updated_at  bigint NOT NULL,
    PRIMARY KEY (tenant_id, name)
);
CREATE INDEX event_types_by_revision ON event_types (tenant_id, revision);

-- Email addresses that unsubscribed from one kind of notification.
CREATE TABLE unsubscriptions (
    tenant_id       text COLLATE "C" NOT NULL,
    address         text COLLATE "C" NOT NULL,
    kind            text COLLATE "C" NOT NULL,
    unsubscribed_at bigint NOT NULL,
    PRIMARY KEY (tenant_id, address, kind)
);

-- Email addresses that a tenant named for notifications. An address receives notifications only once it is
-- confirmed. `send_at` is set while a requested confirmation email waits to be sent.
CREATE TABLE email_addresses (
    tenant_id    text COLLATE "C" NOT NULL,
    address      text COLLATE "C" NOT NULL,
    requested_at bigint,
    requests     integer NOT NULL DEFAULT 0,
    confirmed_at bigint,
    confirmed_by smallint,
    send_at      bigint,
    PRIMARY KEY (tenant_id, address)
);
CREATE INDEX email_addresses_to_send ON email_addresses (send_at) WHERE send_at IS NOT NULL;
CREATE INDEX email_addresses_unconfirmed ON email_addresses (requested_at) WHERE confirmed_at IS NULL;

-- Number of emails sent recently, by tenant and by mailbox; see `core::notification::mail_limit`.
CREATE TABLE email_usage (
    scope      smallint NOT NULL,
    key        text COLLATE "C" NOT NULL,
    purpose    smallint NOT NULL,
    usage      text NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (scope, key, purpose)
);
CREATE INDEX email_usage_by_change ON email_usage (updated_at);

CREATE TABLE api_keys (
    id           uuid PRIMARY KEY,
    tenant_id    text COLLATE "C",
    name         text NOT NULL,
    hash         bytea NOT NULL UNIQUE,
    scopes       integer NOT NULL,
    -- A portal session: a short-lived key that is not listed among the API keys.
    session      boolean NOT NULL DEFAULT false,
    -- Networks from which the key may be used: a JSON list.
    networks     text NOT NULL DEFAULT '[]',
    created_at   bigint NOT NULL,
    expires_at   bigint,
    revoked_at   bigint,
    last_used_at bigint
);
CREATE INDEX api_keys_by_tenant ON api_keys (tenant_id, id) WHERE NOT session;
CREATE INDEX api_keys_sessions ON api_keys (expires_at) WHERE session;

-- Browser sessions. `id` is the SHA-256 of the cookie's value, `key_hash` that of the key used to log in: an API
-- key, or the admin key of the configuration.
CREATE TABLE browser_sessions (
    id         bytea PRIMARY KEY,
    key_hash   bytea NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint NOT NULL
);
CREATE INDEX browser_sessions_by_key ON browser_sessions (key_hash, created_at);
CREATE INDEX browser_sessions_by_expiry ON browser_sessions (expires_at);

-- Audit log. An entry is written before the change, and completed once, after it.
CREATE TABLE audit (
    id        uuid PRIMARY KEY,
    tenant_id text COLLATE "C",
    actor     text NOT NULL,
    key_id    uuid,
    address   text,
    action    text COLLATE "C" NOT NULL,
    object    text,
    result    text,
    before    text,
    after     text
);
CREATE INDEX audit_by_tenant ON audit (tenant_id, id);
CREATE FUNCTION audit_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'audit log entries are immutable';
END $$;
CREATE TRIGGER audit_is_immutable BEFORE UPDATE ON audit FOR EACH ROW WHEN (OLD.result IS NOT NULL)
    EXECUTE FUNCTION audit_is_immutable();

-- An epoch is a number that is never reused, even after its row is deleted. A promoted replica may repeat numbers
-- of the sequence, which is replicated late: the low bits of an epoch come from the incarnation and keep epochs
-- distinct.
CREATE SEQUENCE node_numbers;
CREATE TABLE nodes (
    epoch       bigint PRIMARY KEY,
    -- Random value that the node chooses when it joins. A row of its epoch with another value belongs to another node.
    incarnation bigint NOT NULL,
    name        text NOT NULL,
    role        smallint NOT NULL,
    pools       text[] NOT NULL,
    heartbeats  bigint NOT NULL DEFAULT 0,
    -- Statements of the node with a lower fence are refused: they were sent before it last abandoned its connections.
    fence       bigint NOT NULL DEFAULT 0,
    joined_at   bigint NOT NULL
) WITH (fillfactor = 50);

-- Clock state of the cluster: the last confirmed time, and how often an operator has confirmed the clock.
CREATE TABLE clock (
    single        boolean PRIMARY KEY DEFAULT true CHECK (single),
    confirmed_at  bigint,
    confirmations bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

CREATE TABLE webhooks (
    id                  uuid PRIMARY KEY,
    tenant_id           text COLLATE "C" NOT NULL,
    revision            bigint NOT NULL,
    state               text NOT NULL,
    spec                text NOT NULL,
    -- Secrets and other confidential fields, encrypted.
    sealed              bytea NOT NULL,
    deleted             boolean NOT NULL DEFAULT false,
    cancel_pending      boolean NOT NULL DEFAULT false,
    -- Whether the webhook is hidden from portal sessions; a copy of the value in `spec`.
    managed_by_operator boolean NOT NULL DEFAULT false,
    -- When the webhook is to be disabled, or its next verification challenge sent.
    expires_at          bigint,
    created_at          bigint NOT NULL,
    updated_at          bigint NOT NULL
);
CREATE INDEX webhooks_by_revision ON webhooks (tenant_id, revision);
CREATE INDEX webhooks_listed ON webhooks (tenant_id, id) WHERE NOT deleted;
CREATE INDEX webhooks_cancel_pending ON webhooks (id) WHERE cancel_pending;
CREATE INDEX webhooks_expiring ON webhooks (expires_at) WHERE expires_at IS NOT NULL;

-- Runtime state of webhooks: whether its deliveries are parked for its state (`paused`), the end of a pause after a 429
-- (`paused_until`), circuit, failures. Most webhooks have no row.
CREATE TABLE webhook_runtime (
    webhook_id    uuid PRIMARY KEY,
    tenant_id     text COLLATE "C" NOT NULL,
    paused        boolean NOT NULL DEFAULT false,
    -- Time until which the endpoint asked not to be called.
    paused_until    bigint NOT NULL DEFAULT 0,
    -- The circuit as a JSON document (null if it is closed), with its generation for fencing, the time until which it
    -- blocks for claims, and the time of its last transition.
    circuit       text,
    generation    bigint NOT NULL DEFAULT 0,
    circuit_until bigint NOT NULL DEFAULT 0,
    circuit_since bigint NOT NULL DEFAULT 0,
    -- Time of the first failure since the last success.
    failing_since bigint
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX webhook_runtime_circuits ON webhook_runtime (tenant_id, webhook_id) WHERE circuit IS NOT NULL;

-- Periods in which a circuit was open, and the counts that opened it. A period that has not ended has no
-- `ended_at`.
CREATE TABLE circuit_periods (
    webhook_id uuid NOT NULL,
    tenant_id  text COLLATE "C" NOT NULL,
    opened_at  bigint NOT NULL,
    ended_at   bigint,
    forced     boolean NOT NULL,
    counts     text NOT NULL,
    PRIMARY KEY (webhook_id, opened_at)
);
CREATE INDEX circuit_periods_open ON circuit_periods (webhook_id) WHERE ended_at IS NULL;
CREATE INDEX circuit_periods_by_tenant ON circuit_periods (tenant_id, opened_at);

-- Attempts of each webhook per minute and their results; `core::rollup` encodes categories and latencies.
CREATE TABLE rollups (
    webhook_id      uuid NOT NULL,
    minute          bigint NOT NULL,
    tenant_id       text COLLATE "C" NOT NULL,
    attempts        bigint NOT NULL,
    successes       bigint NOT NULL,
    -- Whether any attempt failed. It changes at most once; an index on the counts would make every update of a minute
    -- write all indexes.
    failed          boolean NOT NULL,
    categories      bytea NOT NULL,
    latencies       bytea NOT NULL,
    last_success_at bigint,
    PRIMARY KEY (webhook_id, minute)
) WITH (fillfactor = 70);
-- On an expression, so that the planner uses it for nothing but pruning old minutes.
CREATE INDEX rollups_by_minute ON rollups ((minute / 60000));
CREATE INDEX rollups_failed ON rollups (tenant_id, minute) WHERE failed;

-- Attempts of each tenant per minute (1) and per hour (2), with the numbers of deliveries that ended.
CREATE TABLE tenant_rollups (
    tenant_id       text COLLATE "C" NOT NULL,
    resolution      smallint NOT NULL,
    start           bigint NOT NULL,
    attempts        bigint NOT NULL,
    successes       bigint NOT NULL,
    categories      bytea NOT NULL,
    latencies       bytea NOT NULL,
    last_success_at bigint,
    delivered       bigint NOT NULL,
    dead            bigint NOT NULL,
    cancelled       bigint NOT NULL,
    expires_at      bigint NOT NULL,
    PRIMARY KEY (tenant_id, resolution, start)
) WITH (fillfactor = 50);
CREATE INDEX tenant_rollups_by_expiry ON tenant_rollups (expires_at);

-- Events, deliveries and attempts are partitioned by month. Ids begin with their time, and a delivery's id has its
-- event's time, so everything that belongs to an event is in one partition. Partitions are created ahead of time,
-- see partitions.rs. Every lookup of an event names the tenant.
CREATE TABLE events (
    id              uuid NOT NULL,
    tenant_id       text COLLATE "C" NOT NULL,
    seq             bigint NOT NULL,
    event_type      text COLLATE "C" NOT NULL,
    timestamp       bigint NOT NULL,
    idempotency_key text COLLATE "C",
    source          text,
    subject         text COLLATE "C",
    priority        smallint NOT NULL,
    metadata        bytea,
    -- Trace context of the event: ids, flags, state. Most events have none.
    trace           bytea,
    -- Number of Redrive deliveries that the event has passed through.
    hops            smallint NOT NULL DEFAULT 0,
    data            bytea NOT NULL,
    -- Time when the payload was erased: `data` is empty from then on.
    erased_at       bigint
) PARTITION BY RANGE (id);
CREATE UNIQUE INDEX events_by_tenant ON events (tenant_id, id);
CREATE INDEX events_by_key ON events (tenant_id, idempotency_key, id) WHERE idempotency_key IS NOT NULL;
CREATE INDEX events_by_subject ON events (tenant_id, subject, id) WHERE subject IS NOT NULL;

CREATE TABLE idempotency_keys (
    tenant_id  text COLLATE "C" NOT NULL,
    key_hash   bytea NOT NULL,
    event_id   uuid NOT NULL,
    body_hash  bytea NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (tenant_id, key_hash)
);
CREATE INDEX idempotency_keys_by_expiry ON idempotency_keys (expires_at);

-- Each partition has its own unique index on (event_id, webhook_id, round): an event's deliveries are all in one
-- partition.
CREATE TABLE deliveries (
    id               uuid NOT NULL PRIMARY KEY,
    tenant_id        text COLLATE "C" NOT NULL,
    event_id         uuid NOT NULL,
    webhook_id       uuid NOT NULL,
    round            integer NOT NULL,
    status           smallint NOT NULL,
    format           smallint NOT NULL,
    priority         smallint NOT NULL,
    attempt_count    integer NOT NULL DEFAULT 0,
    last_status_code smallint,
    failure_category smallint,
    last_error       bytea,
    dead_reason      smallint,
    cancel_reason    bytea,
    created_at       bigint NOT NULL,
    ended_at         bigint,
    replay_of        uuid,
    redriven_as      uuid,
    -- Time when it was removed from the dead letters.
    purged_at        bigint
) PARTITION BY RANGE (id);
CREATE INDEX deliveries_by_webhook ON deliveries (webhook_id, id);

CREATE TABLE attempts (
    delivery_id          uuid NOT NULL,
    number               integer NOT NULL,
    id                   uuid NOT NULL,
    status               smallint NOT NULL,
    failure_category     smallint,
    http_status_code     smallint,
    error_message        bytea,
    custom_headers       bytea,
    response_headers     bytea,
    response_body_sample bytea,
    dns_us               bigint,
    connect_us           bigint,
    tls_us               bigint,
    ttfb_us              bigint,
    total_us             bigint NOT NULL,
    scheduled_at         bigint NOT NULL,
    executed_at          bigint NOT NULL,
    next_retry_at        bigint,
    circuit              smallint NOT NULL,
    worker               text NOT NULL,
    PRIMARY KEY (delivery_id, number)
) PARTITION BY RANGE (delivery_id);

-- Archive outbox: pruned rows that wait to be stored in the archive, as compressed lines by the day of their
-- events. The frames of one object are deleted together, once the object is stored.
CREATE TABLE archive_outbox (
    number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    day        text COLLATE "C" NOT NULL,
    object     text COLLATE "C",
    events     bigint NOT NULL,
    deliveries bigint NOT NULL,
    attempts   bigint NOT NULL,
    frame      bytea NOT NULL
);
CREATE INDEX archive_outbox_by_object ON archive_outbox (object) WHERE object IS NOT NULL;

-- A lane is one queue of a webhook: one per class, in which deliveries wait only for their due time (two letters),
-- or one per ordering key ('=' and the key), in which each waits for the one before it. 'A' sorts between the two.
--
-- Rows are inserted and deleted with every delivery: vacuum runs early and without cost delay.
CREATE TABLE leased (
    epoch       bigint NOT NULL,
    delivery_id uuid NOT NULL,
    webhook_id  uuid NOT NULL,
    lane        text COLLATE "C" NOT NULL,
    seq         bigint NOT NULL,
    abnormal_releases integer NOT NULL DEFAULT 0,
    crash_count       integer NOT NULL DEFAULT 0,
    sending     integer NOT NULL DEFAULT 0,
    cancel      bytea,
    PRIMARY KEY (epoch, delivery_id)
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_insert_threshold = -1);
-- No node may start the next delivery of an ordered lane while an earlier one is leased.
CREATE INDEX leased_in_order ON leased (webhook_id, lane, seq) WHERE lane < 'A';

CREATE TABLE waiting (
    delivery_id uuid PRIMARY KEY,
    webhook_id  uuid NOT NULL,
    lane        text COLLATE "C" NOT NULL,
    -- Sort key within the lane: the due time, or always 0 in an ordered lane, where only the sequence counts.
    sort_key    bigint NOT NULL,
    seq         bigint NOT NULL,
    due         bigint NOT NULL,
    created_at  bigint NOT NULL,
    abnormal_releases integer NOT NULL DEFAULT 0,
    crash_count       integer NOT NULL DEFAULT 0
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_insert_threshold = -1);
CREATE INDEX waiting_by_lane ON waiting (webhook_id, lane, sort_key, seq);
CREATE INDEX waiting_by_age ON waiting (webhook_id, created_at);

-- One row for each lane with deliveries in `waiting`: its wake time (not before the webhook's block ends), the
-- node that has claimed it, and the pool whose nodes may claim from it.
CREATE TABLE lanes (
    webhook_id uuid NOT NULL,
    lane       text COLLATE "C" NOT NULL,
    wake_at    bigint NOT NULL,
    claimed_by    bigint,
    pool       text NOT NULL,
    PRIMARY KEY (webhook_id, lane)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX lanes_by_wake ON lanes (pool, wake_at) WHERE claimed_by IS NULL;
CREATE INDEX lanes_claimed ON lanes (claimed_by) WHERE claimed_by IS NOT NULL;

-- Webhooks with an assigned node, which alone sends to them.
CREATE TABLE webhook_assignments (
    webhook_id uuid PRIMARY KEY,
    epoch      bigint NOT NULL
);
CREATE INDEX webhook_assignments_by_epoch ON webhook_assignments (epoch);

-- Dead letters: dead deliveries that were not redriven or purged, with the columns they are filtered by.
CREATE TABLE dead (
    delivery_id uuid PRIMARY KEY,
    tenant_id   text COLLATE "C" NOT NULL,
    webhook_id  uuid NOT NULL,
    event_type  text COLLATE "C" NOT NULL,
    category    smallint,
    reason      smallint NOT NULL,
    died_at     bigint NOT NULL
);
-- Includes all counted columns, so that counting is an index-only scan.
CREATE INDEX dead_by_tenant ON dead (tenant_id, delivery_id)
    INCLUDE (webhook_id, event_type, category, reason, died_at);
CREATE INDEX dead_by_webhook ON dead (webhook_id, delivery_id);
CREATE INDEX dead_by_type ON dead (tenant_id, event_type, delivery_id);
CREATE INDEX dead_by_category ON dead (tenant_id, category, delivery_id) WHERE category IS NOT NULL;

-- Deliveries that failed so far, are dead, or were cancelled, as in `deliveries`. A separate table, since an index
-- on columns that an attempt changes would make every attempt write all indexes. See undelivered.rs.
CREATE TABLE undelivered (
    delivery_id uuid PRIMARY KEY,
    tenant_id   text COLLATE "C" NOT NULL,
    webhook_id  uuid NOT NULL,
    status      smallint NOT NULL,
    category    smallint,
    code        smallint
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX undelivered_by_status ON undelivered (tenant_id, status, delivery_id);
CREATE INDEX undelivered_by_category ON undelivered (tenant_id, category, delivery_id) WHERE category IS NOT NULL;
CREATE INDEX undelivered_by_code ON undelivered (tenant_id, code, delivery_id) WHERE code IS NOT NULL;
CREATE INDEX undelivered_failed ON undelivered (tenant_id, delivery_id) WHERE category IS NOT NULL;
CREATE INDEX undelivered_by_webhook ON undelivered (webhook_id, delivery_id);

-- Bulk operations. The request is a JSON document; an operation is open until everything it queued has ended.
CREATE TABLE operations (
    id                 uuid PRIMARY KEY,
    tenant_id          text COLLATE "C" NOT NULL,
    request            text NOT NULL,
    state              text NOT NULL,
    open               boolean NOT NULL DEFAULT true,
    created_by         text NOT NULL,
    created_at         bigint NOT NULL,
    start_at           bigint NOT NULL,
    started_at         bigint,
    finished_at        bigint,
    updated_at         bigint NOT NULL,
    claimed_by            bigint,
    cursor_event_id    uuid,
    cursor_delivery_id uuid,
    total              bigint,
    done               bigint NOT NULL DEFAULT 0,
    skipped            bigint NOT NULL DEFAULT 0,
    delivered          bigint NOT NULL DEFAULT 0,
    failed             bigint NOT NULL DEFAULT 0,
    cancelled          bigint NOT NULL DEFAULT 0,
    errors             text NOT NULL DEFAULT '{}',
    rate_since         bigint,
    rate_base          bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
CREATE INDEX operations_by_tenant ON operations (tenant_id, id);
CREATE INDEX operations_open ON operations (start_at) WHERE open;

-- Deliveries that an operation has queued and that are not known to have ended.
CREATE TABLE operation_items (
    operation_id uuid NOT NULL,
    delivery_id  uuid NOT NULL,
    PRIMARY KEY (operation_id, delivery_id)
);

-- Pending notifications, grouped: one row for each kind of occurrence about each webhook, or about the tenant as a
-- whole (all-zero webhook). A group that has not been sent has a due time.
CREATE TABLE notification_groups (
    tenant_id        text COLLATE "C" NOT NULL,
    webhook_id       uuid NOT NULL,
    kind             smallint NOT NULL,
    due              bigint,
    count            bigint NOT NULL,
    first_at         bigint NOT NULL,
    last_at          bigint NOT NULL,
    -- Details of the last occurrence: a JSON document.
    details          text NOT NULL,
    -- Time until which no further notification is sent.
    suppressed_until bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_id, webhook_id, kind)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX notification_groups_due ON notification_groups (due) WHERE due IS NOT NULL;
CREATE INDEX notification_groups_suppressed ON notification_groups (suppressed_until) WHERE due IS NULL;

-- Notifications to owners, with their status on each channel. A notification that is done on every channel has no
-- next attempt time.
CREATE TABLE notifications (
    id              uuid PRIMARY KEY,
    tenant_id       text COLLATE "C" NOT NULL,
    webhook_id      uuid,
    kind            smallint NOT NULL,
    count           bigint NOT NULL,
    first_at        bigint NOT NULL,
    last_at         bigint NOT NULL,
    details         text NOT NULL,
    webhook_status  smallint NOT NULL DEFAULT 0,
    email_status    smallint NOT NULL DEFAULT 0,
    attempts        integer NOT NULL DEFAULT 0,
    next_attempt_at bigint,
    error           text
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX notifications_by_tenant ON notifications (tenant_id, id);
CREATE INDEX notifications_due ON notifications (next_attempt_at, id) WHERE next_attempt_at IS NOT NULL;

-- Change feed: changes that every node reads, with the transaction that made them. Nodes read the changes that
-- their last snapshot did not contain, so that none is missed whenever its transaction commits.
CREATE TABLE change_log (
    xact        xid8 NOT NULL DEFAULT pg_current_xact_id(),
    kind        smallint NOT NULL,
    tenant_id   text COLLATE "C",
    webhook_id  uuid,
    delivery_id uuid
);
CREATE INDEX change_log_by_xact ON change_log (xact);

-- Progress of an unfinished copy of an embedded store: its source, the source's state, and the position. The row
-- exists only while the copy is unfinished, and no server starts then. See copy/mod.rs.
CREATE TABLE copy_progress (
    source_created_at text NOT NULL,
    state             text NOT NULL,
    path              text NOT NULL,
    -- Due time of deliveries that were leased in the source.
    started_at        bigint NOT NULL,
    step              text NOT NULL,
    last              text[],
    rows              bigint NOT NULL,
    altered           bigint NOT NULL DEFAULT 0,
    altered_values    text[] NOT NULL DEFAULT '{}'
);

INSERT INTO tenants (id, name, created_at) VALUES ('default', 'Default', 0);
