-- Fills a database with finished deliveries, spread over the last :days days and over the existing webhooks: one
-- event, one delivery and one attempt each. One delivery in a thousand is dead.
--
-- Run by `bench/run --history` on a database whose schema and webhooks Redrive has created:
--     psql -v n=2000000 -v days=60 -f bench/fill_history.sql
--
-- It bypasses the API, so it must follow the schema: the columns and indexes of events, deliveries, attempts,
-- attempt_index, dead and undelivered, the numeric codes of states, and how monthly partitions are created
-- (crates/store/src/postgres). Left out on purpose: rollups, which are kept for a few hours only, and idempotency
-- keys, which the load does not use either.
\set ON_ERROR_STOP on
SET synchronous_commit = off;
SET work_mem = '64MB';

-- Builds an id for a time in milliseconds; `salt` separates ids of different kinds, `n` ids of the same kind.
CREATE FUNCTION pg_temp.id_at(ms bigint, salt text, n bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex(ms), 12, '0') || '7' || substr(hash, 1, 3) || '8' || substr(hash, 4, 15))::uuid
    FROM md5(salt || n) AS hash
$$;

-- Builds the id of an attempt 2 ms after a delivery as `AttemptId::for_delivery` does, so that a prompt success is found by it.
CREATE FUNCTION pg_temp.attempt_at(ms bigint, n bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex(ms + 2), 12, '0') || substr(replace(delivery::text, '-', ''), 13, 16) || '0002')::uuid
    FROM pg_temp.id_at(ms, 'delivery', n) AS delivery
$$;

-- Returns the smallest id of a time: the lower bound of a monthly partition.
CREATE FUNCTION pg_temp.first_id_of(at timestamptz) RETURNS uuid LANGUAGE sql AS $$
    SELECT rpad(lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0'), 32, '0')::uuid
$$;

-- Creates the monthly partitions of the past. Redrive creates the current and future ones itself.
CREATE FUNCTION pg_temp.make_months(since timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    month timestamptz;
    name text;
    part text;
BEGIN
    FOR month IN SELECT generate_series(date_trunc('month', since), now(), interval '1 month') LOOP
        FOREACH name IN ARRAY ARRAY['events', 'deliveries', 'attempts'] LOOP
            part := name || to_char(month, '_YYYY_MM');
            CONTINUE WHEN to_regclass(part) IS NOT NULL;
            EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', part, name);
            IF name = 'deliveries' THEN
                EXECUTE format('ALTER TABLE %I SET (fillfactor = 50)', part);
                EXECUTE format('CREATE UNIQUE INDEX ON %I (event_id, webhook_id, round)', part);
            END IF;
            EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', name, part,
                pg_temp.first_id_of(month), pg_temp.first_id_of(month + interval '1 month'));
        END LOOP;
    END LOOP;
END $$;

SET timezone = 'UTC';
SELECT pg_temp.make_months(now() - :days * interval '1 day');

-- The rows to insert, oldest first; the newest is one minute old.
CREATE TEMP TABLE past AS
SELECT n, ms, pg_temp.id_at(ms, 'event', n) AS event, pg_temp.id_at(ms, 'delivery', n) AS delivery,
       pg_temp.attempt_at(ms, n) AS attempt, webhook_list.ids[1 + n % cardinality(webhook_list.ids)] AS webhook,
       n % 1000 = 7 AS died
FROM (SELECT array_agg(id ORDER BY id) AS ids FROM webhooks WHERE NOT deleted) AS webhook_list,
     generate_series(0, :n - 1) AS n,
     LATERAL (SELECT (extract(epoch FROM now()) * 1000)::bigint - 60000
                     - (:n - 1 - n) * (:days * 86400000::bigint / :n) AS ms) AS time;
ANALYZE past;

-- The same size as the load's events: 512 bytes of data.
-- One event in a hundred has a subject and an idempotency key, and one in ten thousand has a rare event type.
INSERT INTO events (id, tenant_id, seq, event_type, timestamp, idempotency_key, subject, priority, data)
SELECT event, 'default', next_seq + n, CASE WHEN n % 10000 = 7 THEN 'bench.rare' ELSE 'bench.history' END, ms,
       CASE WHEN n % 100 = 7 THEN 'key-' || n END, CASE WHEN n % 100 = 7 THEN 'subject-' || n % 1000 END, 2,
       convert_to(rpad('{"seq":"' || lpad(n::text, 22, '0') || '","pad":"', 510, 'x') || '"}', 'UTF8')
FROM past, tenants WHERE tenants.id = 'default' ORDER BY n;
UPDATE tenants SET next_seq = next_seq + :n WHERE id = 'default';

-- Status 2 is delivered, 3 is dead; dead reason 2 is exhausted, failure category 2 is server error.
INSERT INTO deliveries (id, tenant_id, event_id, webhook_id, round, status, format, priority, attempt_count,
    last_status_code, failure_category, last_error, dead_reason, created_at, ended_at)
SELECT delivery, 'default', event, webhook, 1, CASE WHEN died THEN 3 ELSE 2 END, 1, 2, 1,
       CASE WHEN died THEN 500 ELSE 200 END, CASE WHEN died THEN 2 END,
       CASE WHEN died THEN 'the endpoint returned 500'::bytea END, CASE WHEN died THEN 2 END, ms, ms + 2
FROM past ORDER BY n;
INSERT INTO dead (delivery_id, tenant_id, webhook_id, event_type, category, reason, died_at)
SELECT delivery, 'default', webhook, CASE WHEN n % 10000 = 7 THEN 'bench.rare' ELSE 'bench.history' END, 2, 2, ms + 2
FROM past WHERE died ORDER BY n;
INSERT INTO undelivered (delivery_id, tenant_id, webhook_id, status, category, code)
SELECT delivery, 'default', webhook, 3, 2, 500 FROM past WHERE died ORDER BY n;

-- Status 1 is success, 3 exhausted.
INSERT INTO attempts (delivery_id, number, id, status, failure_category, http_status_code, error_message,
    response_headers, ttfb_us, total_us, scheduled_at, executed_at, circuit, worker)
SELECT delivery, 1, attempt, CASE WHEN died THEN 3 ELSE 1 END, CASE WHEN died THEN 2 END,
       CASE WHEN died THEN 500 ELSE 200 END, CASE WHEN died THEN 'the endpoint returned 500'::bytea END,
       convert_to(E'content-length: 0\n', 'UTF8'), 300, 300, ms, ms + 1, 0, 'history#1'
FROM past ORDER BY n;

-- Prompt successes are not in the index of attempts.
INSERT INTO attempt_index (id, tenant_id, webhook_id, delivery_id, status, category, code)
SELECT attempt, 'default', webhook, delivery, 3, 2, 500 FROM past WHERE died ORDER BY n;

-- Brings the database into the state of a long-running one: every row frozen, no vacuum work left for the runs.
DROP TABLE past;
VACUUM (FREEZE, ANALYZE);
CHECKPOINT;
SELECT count(*) || ' deliveries' FROM deliveries;
