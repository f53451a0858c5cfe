-- Listings over all tenants, newest first. The indexes are appended to, or change only with webhooks and failures.

CREATE INDEX events_by_id ON events (id);
CREATE INDEX webhooks_listed_by_id ON webhooks (id) WHERE deleted = 0;
CREATE INDEX deliveries_undelivered_by_id ON deliveries (id) WHERE (status >= 3 OR failure_category IS NOT NULL);

-- From now on `tenant_rollups` also has rows with the sums of all tenants, under the id '*', which no tenant can have.
