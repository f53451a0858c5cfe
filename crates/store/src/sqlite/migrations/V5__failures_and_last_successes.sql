-- The current series of failures of a webhook as a JSON document (`core::webhook::failures`); null if its last attempt
-- succeeded. `failing_since` is the start of the series.
ALTER TABLE webhook_runtime ADD COLUMN failures TEXT;

-- Last success of each webhook, kept as long as the webhook exists: the minute in which it was counted, and the first
-- success that was stored for that minute.
CREATE TABLE webhook_successes (
    webhook_id      BLOB PRIMARY KEY,
    minute          INTEGER NOT NULL,
    last_success_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO webhook_successes (webhook_id, minute, last_success_at)
    SELECT webhook_id, max(minute), max(last_success_at) FROM rollups
    WHERE last_success_at IS NOT NULL GROUP BY webhook_id;

CREATE INDEX notifications_by_webhook ON notifications (webhook_id, id) WHERE webhook_id IS NOT NULL;
