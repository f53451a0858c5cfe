//! Settings of the RabbitMQ server that carries tickets for deliveries ready to be claimed. The password is never
//! shown.

use std::{fmt, path::PathBuf};

use redrive_engine::{
    TicketSettings,
    amqp::{Broker, BrokerUrl},
};
use serde::{Deserialize, Serialize};

use super::{Backend, ConfigError, SecretSetting, settings::section};

section! {
    /// Settings of the RabbitMQ server.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Amqp {
        /// RabbitMQ server that announces ready deliveries to nodes that send: `amqp://USER@HOST:PORT/VHOST`, or
        /// `amqps://…` with TLS; also `--amqp URL`. See [RabbitMQ](#rabbitmq).
        pub url: Option<AmqpUrl>,
        /// Password of the RabbitMQ server; overrides one in the URL.
        pub password: Option<SecretSetting>,
        /// File with the password, for secret mounts; not read if `amqp.password` is set.
        pub password_file: Option<PathBuf>,
        /// Prefix of the names of all exchanges and queues, so that several installations can share a virtual host; the
        /// same on all nodes. 1 to 64 letters, digits, `.`, `_` and `-`.
        pub namespace: String,
        /// Maximum of unacknowledged tickets of one queue per node; each names up to 100 deliveries. 1 to 1000.
        pub prefetch: u16,
    }
}

impl Default for Amqp {
    fn default() -> Self {
        Self { url: None, password: None, password_file: None, namespace: "redrive".into(), prefetch: 20 }
    }
}

/// A RabbitMQ URL, never shown with its password.
#[derive(Clone, Deserialize)]
pub struct AmqpUrl(String);

impl From<&str> for AmqpUrl {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl AmqpUrl {
    /// Parses the URL. Errors do not quote any part of it.
    pub fn address(&self) -> Result<BrokerUrl, String> {
        BrokerUrl::read(&self.0)
    }
}

impl fmt::Display for AmqpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address() {
            Ok(address) => write!(f, "{address}"),
            // A URL that does not parse may contain a password anywhere.
            Err(_) => f.write_str("[redacted]"),
        }
    }
}

impl fmt::Debug for AmqpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Serialize for AmqpUrl {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn refused(setting: &str, reason: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { setting: format!("amqp.{setting}"), reason: reason.into() }
}

impl Amqp {
    /// Returns the ticket settings, or `None` if RabbitMQ is not configured.
    pub fn tickets(&self, node: &str) -> Result<Option<TicketSettings>, ConfigError> {
        let Some(url) = &self.url else { return Ok(None) };
        let password = self.password.as_ref().map(|password| password.reveal().to_owned());
        let address = url.address().map_err(|reason| refused("url", reason))?.with_password(password);
        let broker = Broker::new(address, node);
        Ok(Some(TicketSettings { broker, namespace: self.namespace.clone(), prefetch: self.prefetch }))
    }

    /// Checks constraints that the types do not express.
    pub(super) fn validate(&self, backend: &Backend) -> Result<(), ConfigError> {
        self.tickets("")?;
        if self.url.is_some() {
            backend.require_shared_store("amqp.url")?;
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if !(1..=64).contains(&self.namespace.len()) || !self.namespace.chars().all(plain) {
            return Err(refused(
                "namespace",
                "must be 1 to 64 letters, digits, dots, underscores and hyphens",
            ));
        }
        if !(1..=1_000).contains(&self.prefetch) {
            return Err(refused("prefetch", "must be from 1 to 1000"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Database, DatabaseUrl};

    fn at(url: &str) -> Amqp {
        Amqp { url: Some(url.into()), ..Amqp::default() }
    }

    fn backend(url: &str) -> Backend {
        Database { url: DatabaseUrl::from(url), ..Database::default() }.backend().unwrap()
    }

    fn error_text(amqp: &Amqp) -> String {
        amqp.validate(&backend("postgres://db/x")).unwrap_err().to_string()
    }

    #[test]
    fn amqp_is_disabled_without_url() {
        assert!(Amqp::default().tickets("a").unwrap().is_none());
        assert!(Amqp::default().validate(&backend("sqlite:x.db")).is_ok());
        let amqp = Amqp { password: Some(SecretSetting::new("hunter2")), ..at("amqps://me:old@mq/hooks") };
        let tickets = amqp.tickets("a").unwrap().unwrap();
        assert_eq!(tickets.broker.address().to_string(), "amqps://me:[redacted]@mq:5671/hooks");
        assert_eq!((&*tickets.namespace, tickets.prefetch), ("redrive", 20));
        assert!(amqp.validate(&backend("postgres://db/x")).is_ok());
    }

    #[test]
    fn amqp_with_sqlite_is_rejected() {
        let message = at("amqp://mq").validate(&backend("sqlite:x.db")).unwrap_err().to_string();
        assert!(
            message.starts_with("amqp.url: ") && message.contains("set database.url to postgres://"),
            "{message}"
        );
    }

    #[test]
    fn invalid_url_error_names_fix_and_hides_password() {
        for url in ["redis://me:hunter2@mq", "amqp://me:1/hunter2@mq", "hunter2"] {
            let amqp = at(url);
            let message = error_text(&amqp);
            assert!(message.starts_with("amqp.url: "), "{message}");
            let shown = format!("{message} {amqp:?} {}", serde_json::to_string(&amqp).unwrap());
            assert!(!shown.contains("hunter2"), "{shown}");
        }
        let shown = serde_json::to_string(&at("amqp://me:hunter2@mq:1/x")).unwrap();
        assert!(shown.contains("amqp://me:[redacted]@mq:1/x") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn namespace_and_prefetch_out_of_range_are_rejected() {
        let with = |change: fn(&mut Amqp)| {
            let mut amqp = at("amqp://mq");
            change(&mut amqp);
            error_text(&amqp)
        };
        assert!(with(|amqp| amqp.namespace = "a b".into()).starts_with("amqp.namespace: must be 1 to 64"));
        assert!(with(|amqp| amqp.namespace = String::new()).starts_with("amqp.namespace: "));
        assert!(with(|amqp| amqp.prefetch = 0).starts_with("amqp.prefetch: must be from 1 to 1000"));
    }
}
