-- Deliveries that match a bulk operation and were delivered before it started, as counted then.
ALTER TABLE operations ADD COLUMN already_delivered INTEGER;

-- Pending deliveries with a failed attempt, by webhook: with its dead letters, all that can be recovered.
CREATE INDEX deliveries_retrying ON deliveries (webhook_id, id) WHERE status = 0 AND failure_category IS NOT NULL;

-- The event that an event is an edited copy of.
ALTER TABLE events ADD COLUMN edited_from BLOB;
CREATE INDEX events_by_original ON events (tenant_id, edited_from, id) WHERE edited_from IS NOT NULL;
