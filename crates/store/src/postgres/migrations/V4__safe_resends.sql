-- Deliveries that match a bulk operation and were delivered before it started, as counted then.
ALTER TABLE operations ADD COLUMN already_delivered bigint;

-- Pending deliveries with a failed attempt, by webhook: with its dead letters, all that can be recovered.
CREATE INDEX undelivered_retrying ON undelivered (webhook_id, delivery_id) WHERE status = 0;

-- The event that an event is an edited copy of.
ALTER TABLE events ADD COLUMN edited_from uuid;
CREATE INDEX events_by_original ON events (tenant_id, edited_from, id) WHERE edited_from IS NOT NULL;
