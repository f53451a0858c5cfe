-- Listings over all tenants, newest first. The indexes are appended to, or change only with webhooks.

-- On an expression, so that the planner uses it for nothing else: a query for one tenant would read the events of all.
-- Its order is that of the ids.
CREATE INDEX events_by_id ON events (uuid_send(id));
CREATE INDEX webhooks_listed_by_id ON webhooks (id) WHERE NOT deleted;

-- From now on `tenant_rollups` also has rows with the sums of all tenants, under the id '*', which no tenant can have.
