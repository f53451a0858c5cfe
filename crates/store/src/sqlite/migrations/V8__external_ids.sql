-- Metadata of a tenant: a JSON document.
ALTER TABLE tenants ADD COLUMN metadata TEXT NOT NULL DEFAULT '{}';

-- Id that the application gave to the webhook; a copy of the value in `spec`. A deleted webhook frees its uid.
ALTER TABLE webhooks ADD COLUMN uid TEXT;
CREATE UNIQUE INDEX webhooks_by_uid ON webhooks (tenant_id, uid) WHERE uid IS NOT NULL AND deleted = 0;

-- Whether a key of no tenant is limited to its scopes; otherwise it is an admin key.
ALTER TABLE api_keys ADD COLUMN installation INTEGER NOT NULL DEFAULT 0;

-- Idempotency keys of requests that created an object: `object` is its id. `tenant_id` is empty for objects of no tenant.
CREATE TABLE creation_keys (
    tenant_id  TEXT NOT NULL,
    key_hash   BLOB NOT NULL,
    body_hash  BLOB NOT NULL,
    object     TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, key_hash)
) STRICT, WITHOUT ROWID;
CREATE INDEX creation_keys_by_expiry ON creation_keys (expires_at);
