-- Sessions of users of the identity provider: `key_hash` is the SHA-256 of issuer and subject. `login_hash` is the
-- SHA-256 of the login's state, so that a login starts at most one session.
ALTER TABLE browser_sessions ADD COLUMN issuer TEXT;
ALTER TABLE browser_sessions ADD COLUMN subject TEXT;
ALTER TABLE browser_sessions ADD COLUMN user_name TEXT;
ALTER TABLE browser_sessions ADD COLUMN role INTEGER;
ALTER TABLE browser_sessions ADD COLUMN login_hash BLOB;
CREATE UNIQUE INDEX browser_sessions_by_login ON browser_sessions (login_hash) WHERE login_hash IS NOT NULL;

-- Subject of a user at the identity provider; `actor` is the name.
ALTER TABLE audit ADD COLUMN subject TEXT;
