-- Metadata of a tenant: a JSON document.
ALTER TABLE tenants ADD COLUMN metadata text NOT NULL DEFAULT '{}';

-- Id that the application gave to the webhook; a copy of the value in `spec`. A deleted webhook frees its uid.
ALTER TABLE webhooks ADD COLUMN uid text COLLATE "C";
CREATE UNIQUE INDEX webhooks_by_uid ON webhooks (tenant_id, uid) WHERE uid IS NOT NULL AND NOT deleted;

-- Whether a key of no tenant is limited to its scopes; otherwise it is an admin key.
ALTER TABLE api_keys ADD COLUMN installation boolean NOT NULL DEFAULT false;

-- Idempotency keys of requests that created an object: `object` is its id. `tenant_id` is empty for objects of no tenant.
CREATE TABLE creation_keys (
    tenant_id  text COLLATE "C" NOT NULL,
    key_hash   bytea NOT NULL,
    body_hash  bytea NOT NULL,
    object     text COLLATE "C" NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (tenant_id, key_hash)
);
CREATE INDEX creation_keys_by_expiry ON creation_keys (expires_at);
