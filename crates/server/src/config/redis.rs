//! Settings of the Redis server through which nodes share limits and circuits. The password is never shown.

use std::{fmt, path::PathBuf};

use redrive_core::time::HumanDuration;
use redrive_engine::RedisSettings;
use serde::{Deserialize, Serialize};
use url::Url;

use super::{Backend, ConfigError, SecretSetting, secret::read_file, settings::section};

section! {
    /// Settings of the shared Redis server.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Redis {
        /// Redis (6 or later) or Valkey server through which nodes share limits and circuits: `redis://USER@HOST:PORT`,
        /// or `rediss://…` with TLS; also `--redis URL`. See [Redis](operations/redis.md).
        pub url: Option<RedisUrl>,
        /// Password of the Redis server; overrides one in the URL.
        pub password: Option<SecretSetting>,
        /// File with the password, for secret mounts; not read if `redis.password` is set.
        pub password_file: Option<PathBuf>,
        /// PEM file with the certificate of the authority to trust for `rediss://`, instead of the system's.
        pub ca_file: Option<PathBuf>,
        /// Prefix of all keys, so that several installations can share one server; the same on all nodes. 1 to 64
        /// letters, digits, `.`, `:`, `_` and `-`.
        pub namespace: String,
        /// Timeout of a reply, after which a node uses its local fallback. 10ms to 10s.
        pub timeout: HumanDuration,
    }
}

impl Default for Redis {
    fn default() -> Self {
        Self {
            url: None,
            password: None,
            password_file: None,
            ca_file: None,
            namespace: "redrive".into(),
            timeout: HumanDuration::millis(500),
        }
    }
}

/// A Redis URL, never shown with its password.
#[derive(Clone, Deserialize)]
pub struct RedisUrl(String);

impl From<&str> for RedisUrl {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl RedisUrl {
    /// Parses the URL. Errors do not quote any part of it.
    fn read(&self) -> Result<Url, String> {
        let form = "write redis://USER@HOST:PORT, or rediss://… with TLS, and set the password in \
                    redis.password_file";
        let url = Url::parse(&self.0).map_err(|error| format!("cannot be read ({error}); {form}"))?;
        if !["redis", "rediss"].contains(&url.scheme()) || url.host_str().is_none_or(str::is_empty) {
            return Err(format!("does not name a Redis server; {form}"));
        }
        // An unescaped / or # in the password would make the rest of it parse as another part of the URL.
        if url.path().contains('@') || url.fragment().is_some() || url.query().is_some() {
            return Err(format!("has unexpected text after the host; {form}"));
        }
        let number = url.path().trim_matches('/');
        if !number.is_empty() && number.parse::<u16>().is_err() {
            return Err("must end in the number of a database, such as /0, or in the port".into());
        }
        Ok(url)
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A URL that does not parse may contain a password anywhere.
        let Ok(mut url) = self.read() else { return f.write_str("[redacted]") };
        if url.password().is_some() && url.set_password(Some("REDACTED")).is_ok() {
            return f.write_str(&url.as_str().replacen(":REDACTED@", ":[redacted]@", 1));
        }
        f.write_str(url.as_str())
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Serialize for RedisUrl {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn refused(setting: &str, reason: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { setting: format!("redis.{setting}"), reason: reason.into() }
}

impl Redis {
    /// Returns the engine's Redis settings, or `None` if Redis is not configured.
    pub fn settings(&self) -> Result<Option<RedisSettings>, ConfigError> {
        let Some(url) = &self.url else { return Ok(None) };
        let mut url = url.read().map_err(|reason| refused("url", reason))?;
        if let Some(password) = &self.password {
            // This cannot fail: the URL has a host.
            let _ = url.set_password(Some(password.reveal()));
        }
        let ca = self.ca_file.as_deref().map(|path| read_file("redis.ca_file", path)).transpose()?;
        Ok(Some(RedisSettings {
            url: url.into(),
            namespace: self.namespace.clone(),
            timeout: self.timeout.as_duration(),
            ca: ca.map(String::into_bytes),
        }))
    }

    /// Checks constraints that the types do not express.
    pub(super) fn validate(&self, backend: &Backend) -> Result<(), ConfigError> {
        self.settings()?;
        if self.url.is_some() {
            backend.require_shared_store("redis.url")?;
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-:".contains(c);
        if !(1..=64).contains(&self.namespace.len()) || !self.namespace.chars().all(plain) {
            return Err(refused(
                "namespace",
                "must be 1 to 64 letters, digits, dots, colons, underscores and hyphens",
            ));
        }
        if !(10..=10_000).contains(&self.timeout.as_duration().as_millis()) {
            return Err(refused("timeout", "must be from 10ms to 10s"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Database, DatabaseUrl};

    fn at(url: &str) -> Redis {
        Redis { url: Some(url.into()), ..Redis::default() }
    }

    fn backend(url: &str) -> Backend {
        Database { url: DatabaseUrl::from(url), ..Database::default() }.backend().unwrap()
    }

    fn error_text(redis: &Redis) -> String {
        redis.validate(&backend("postgres://db/x")).unwrap_err().to_string()
    }

    #[test]
    fn redis_is_disabled_without_url() {
        assert!(Redis::default().settings().unwrap().is_none());
        assert!(Redis::default().validate(&backend("sqlite:x.db")).is_ok());
        let redis =
            Redis { password: Some(SecretSetting::new("p@ss/word")), ..at("rediss://me:old@cache:6380/2") };
        assert_eq!(redis.settings().unwrap().unwrap().url, "rediss://me:p%40ss%2Fword@cache:6380/2");
        assert!(redis.validate(&backend("postgres://db/x")).is_ok());
        assert_eq!(redis.url.unwrap().to_string(), "rediss://me:[redacted]@cache:6380/2");
    }

    #[test]
    fn redis_with_sqlite_is_rejected() {
        let message = at("redis://cache").validate(&backend("sqlite:x.db")).unwrap_err().to_string();
        assert!(
            message.starts_with("redis.url: ") && message.contains("set database.url to postgres://"),
            "{message}"
        );
    }

    #[test]
    fn invalid_settings_error_names_fix_and_hides_password() {
        for url in ["http://me:hunter2@cache", "redis://me:1/hunter2@cache", "redis:hunter2", "hunter2"] {
            let redis = at(url);
            let message = error_text(&redis);
            assert!(message.starts_with("redis.url: ") && message.contains("redis://"), "{message}");
            assert!(!message.contains("hunter2") && !format!("{redis:?}").contains("hunter2"), "{message}");
        }
        assert!(error_text(&at("redis://cache/first")).contains("the number of a database"));
        assert!(
            error_text(&Redis { namespace: "a b".into(), ..at("redis://cache") })
                .starts_with("redis.namespace: ")
        );
        assert!(
            error_text(&Redis { timeout: HumanDuration::secs(60), ..at("redis://cache") })
                .contains("10ms to 10s")
        );
        assert!(
            error_text(&Redis { ca_file: Some("/nowhere".into()), ..at("redis://cache") })
                .contains("/nowhere")
        );
    }
}
