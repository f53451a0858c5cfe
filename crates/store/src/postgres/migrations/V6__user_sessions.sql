-- Sessions of users of the identity provider: `key_hash` is the SHA-256 of issuer and subject. `login_hash` is the
-- SHA-256 of the login's state, so that a login starts at most one session.
ALTER TABLE browser_sessions
    ADD COLUMN issuer     text,
    ADD COLUMN subject    text,
    ADD COLUMN user_name  text,
    ADD COLUMN role       smallint,
    ADD COLUMN login_hash bytea;
CREATE UNIQUE INDEX browser_sessions_by_login ON browser_sessions (login_hash) WHERE login_hash IS NOT NULL;

-- Subject of a user at the identity provider; `actor` is the name.
ALTER TABLE audit ADD COLUMN subject text;
