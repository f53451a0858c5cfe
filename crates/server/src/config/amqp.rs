//! A RabbitMQ server that tells nodes which send of work that is ready. Whatever is shown of it is shown without the
//! password.

use std::{fmt, path::PathBuf};

use redrive_engine::{
    Tickets,
    amqp::{Address, Broker},
};
use serde::{Deserialize, Serialize};

use super::{Backend, ConfigError, Hidden};

/// The broker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amqp {
    /// Where it is: `amqp://USER@HOST:PORT/VHOST`, or `amqps://…` with TLS. None: there is none.
    pub url: Option<AmqpUrl>,
    /// Its password.
    pub password: Option<Hidden>,
    /// A file that holds the password.
    pub password_file: Option<PathBuf>,
    /// What the names of all that is declared there begin with.
    pub namespace: String,
    /// Tickets of one queue that a node has in hand at the most.
    pub prefetch: u16,
}

impl Default for Amqp {
    fn default() -> Self {
        Self { url: None, password: None, password_file: None, namespace: "redrive".into(), prefetch: 20 }
    }
}

/// A broker's URL: never shown with its password.
#[derive(Clone, Deserialize)]
pub struct AmqpUrl(String);

impl From<&str> for AmqpUrl {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl AmqpUrl {
    /// The URL taken apart. Errors repeat nothing of it.
    pub fn address(&self) -> Result<Address, String> {
        Address::read(&self.0)
    }
}

impl fmt::Display for AmqpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address() {
            Ok(address) => write!(f, "{address}"),
            // What cannot be read may have a password anywhere.
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
    /// How tickets are carried; none without a broker.
    pub fn tickets(&self, node: &str) -> Result<Option<Tickets>, ConfigError> {
        let Some(url) = &self.url else { return Ok(None) };
        let password = self.password.as_ref().map(|password| password.reveal().to_owned());
        let address = url.address().map_err(|reason| refused("url", reason))?.with_password(password);
        let broker = Broker::new(address, node);
        Ok(Some(Tickets { broker, namespace: self.namespace.clone(), prefetch: self.prefetch }))
    }

    /// Checks what a type alone cannot.
    pub(super) fn validate(&self, backend: &Backend) -> Result<(), ConfigError> {
        self.tickets("")?;
        if self.url.is_some() {
            backend.must_be_shared("amqp.url")?;
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

    fn said(amqp: &Amqp) -> String {
        amqp.validate(&backend("postgres://db/x")).unwrap_err().to_string()
    }

    #[test]
    fn it_is_off_unless_a_url_is_given() {
        assert!(Amqp::default().tickets("a").unwrap().is_none());
        assert!(Amqp::default().validate(&backend("sqlite:x.db")).is_ok());
        let amqp = Amqp { password: Some(Hidden::new("hunter2")), ..at("amqps://me:old@mq/hooks") };
        let tickets = amqp.tickets("a").unwrap().unwrap();
        assert_eq!(tickets.broker.address().to_string(), "amqps://me:[redacted]@mq:5671/hooks");
        assert_eq!((&*tickets.namespace, tickets.prefetch), ("redrive", 20));
        assert!(amqp.validate(&backend("postgres://db/x")).is_ok());
    }

    #[test]
    fn with_one_process_there_is_nobody_to_tell() {
        let said = at("amqp://mq").validate(&backend("sqlite:x.db")).unwrap_err().to_string();
        assert!(said.starts_with("amqp.url: ") && said.contains("set database.url to postgres://"), "{said}");
    }

    #[test]
    fn what_cannot_be_says_what_to_write_and_tells_no_password() {
        for url in ["redis://me:hunter2@mq", "amqp://me:1/hunter2@mq", "hunter2"] {
            let amqp = at(url);
            let said = said(&amqp);
            assert!(said.starts_with("amqp.url: "), "{said}");
            let shown = format!("{said} {amqp:?} {}", serde_json::to_string(&amqp).unwrap());
            assert!(!shown.contains("hunter2"), "{shown}");
        }
        let shown = serde_json::to_string(&at("amqp://me:hunter2@mq:1/x")).unwrap();
        assert!(shown.contains("amqp://me:[redacted]@mq:1/x") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn names_and_numbers_have_bounds() {
        let with = |change: fn(&mut Amqp)| {
            let mut amqp = at("amqp://mq");
            change(&mut amqp);
            said(&amqp)
        };
        assert!(with(|amqp| amqp.namespace = "a b".into()).starts_with("amqp.namespace: must be 1 to 64"));
        assert!(with(|amqp| amqp.namespace = String::new()).starts_with("amqp.namespace: "));
        assert!(with(|amqp| amqp.prefetch = 0).starts_with("amqp.prefetch: must be from 1 to 1000"));
    }
}
