-- Every attempt other than prompt successes: a first attempt that succeeded within a minute of its event is found
-- through its delivery instead, so that a healthy endpoint writes nothing here.
CREATE TABLE attempt_index (
    id          BLOB PRIMARY KEY,
    tenant_id   TEXT NOT NULL,
    webhook_id  BLOB NOT NULL,
    delivery_id BLOB NOT NULL,
    status      INTEGER NOT NULL,
    category    INTEGER,
    code        INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX attempt_index_by_tenant ON attempt_index (tenant_id, id);
CREATE INDEX attempt_index_by_webhook ON attempt_index (webhook_id, id);
CREATE INDEX attempt_index_by_category ON attempt_index (tenant_id, category, id) WHERE category IS NOT NULL;
CREATE INDEX attempt_index_by_delivery ON attempt_index (delivery_id);

INSERT INTO attempt_index (id, tenant_id, webhook_id, delivery_id, status, category, code)
SELECT a.id, d.tenant_id, d.webhook_id, a.delivery_id, a.status, a.failure_category, a.http_status_code
FROM attempts a JOIN deliveries d ON d.id = a.delivery_id
WHERE NOT (a.status = 1 AND a.number = 1 AND d.round = 1
    AND a.executed_at >= d.created_at AND a.executed_at < d.created_at + 60000)
ON CONFLICT DO NOTHING;
