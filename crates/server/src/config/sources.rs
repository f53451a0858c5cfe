//! Sources: RabbitMQ queues whose messages are published as events.

use std::{collections::HashSet, path::PathBuf};

use redrive_core::{FieldError, TenantId, event::event_type};
use redrive_engine::amqp::BrokerUrl;
use serde::{Deserialize, Serialize};

use super::{AmqpUrl, ConfigError, SecretSetting};

/// Maximum number of sources.
const MAX_SOURCES: usize = 100;
/// Maximum length of a queue name, in bytes.
const MAX_QUEUE: usize = 255;
/// Valid range of unacknowledged messages per source.
const PREFETCH: std::ops::RangeInclusive<u16> = 1..=5_000;

/// A queue whose messages are published as events.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Kind of server that has the queue.
    #[serde(rename = "type")]
    pub kind: SourceKind,
    /// Name of the source in logs and metrics.
    pub name: String,
    /// URL of the server: `amqp[s]://USER:PASSWORD@HOST:PORT/VHOST`.
    pub url: AmqpUrl,
    /// Password, as an alternative to one in the URL.
    #[serde(default)]
    pub password: Option<SecretSetting>,
    /// File that holds the password.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// Name of the queue.
    pub queue: String,
    /// Queue for messages that cannot be published; defaults to the queue's name with `.rejected`.
    #[serde(default)]
    pub reject_queue: Option<String>,
    /// Tenant that the events belong to.
    #[serde(default = "default_tenant")]
    pub tenant: String,
    /// Event type of messages that name none. If it is set, the message body is the payload.
    #[serde(default)]
    pub event_type: Option<String>,
    /// Maximum number of unacknowledged messages.
    #[serde(default = "default_prefetch")]
    pub prefetch: u16,
    /// Whether missing queues are declared.
    #[serde(default)]
    pub declare: bool,
}

/// Kind of server that a source reads from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceKind {
    /// RabbitMQ.
    #[serde(alias = "rabbitmq")]
    Amqp,
}

fn default_tenant() -> String {
    TenantId::default().to_string()
}

fn default_prefetch() -> u16 {
    100
}

impl Source {
    /// Returns the address of the server, with the configured password.
    pub fn address(&self) -> Result<BrokerUrl, FieldError> {
        let address = self.url.address().map_err(|reason| FieldError::new("url", reason))?;
        Ok(address.with_password(self.password.as_ref().map(|password| password.reveal().to_owned())))
    }

    /// Returns the tenant that the events belong to.
    pub fn tenant(&self) -> Result<TenantId, FieldError> {
        TenantId::parse(&self.tenant).map_err(|invalid| FieldError::new("tenant", invalid.message))
    }

    /// Returns the queue for messages that cannot be published.
    pub fn reject_queue(&self) -> String {
        self.reject_queue.clone().unwrap_or_else(|| format!("{}.rejected", self.queue))
    }

    fn validate(&self) -> Result<(), FieldError> {
        let named = |c: u8| c.is_ascii_alphanumeric() || c == b'_' || c == b'-';
        if self.name.is_empty() || self.name.len() > 64 || !self.name.bytes().all(named) {
            return Err(FieldError::new("name", "must be 1 to 64 characters of a-z, A-Z, 0-9, _ and -"));
        }
        self.address()?;
        self.tenant()?;
        let reject_queue = self.reject_queue();
        for (field, queue) in [("queue", &self.queue), ("reject_queue", &reject_queue)] {
            if queue.is_empty() || queue.len() > MAX_QUEUE || queue.chars().any(char::is_control) {
                let message = format!("must be a queue's name of 1 to {MAX_QUEUE} bytes");
                return Err(FieldError::new(field, message));
            }
        }
        if reject_queue == self.queue {
            return Err(FieldError::new("reject_queue", "must be another queue than the one that is read"));
        }
        if let Some(name) = &self.event_type {
            event_type::validate(name).map_err(|invalid| FieldError::new("event_type", invalid.message))?;
            if event_type::is_reserved(name) {
                let message = "must not begin with redrive.: this prefix is reserved for Redrive";
                return Err(FieldError::new("event_type", message));
            }
        }
        if !PREFETCH.contains(&self.prefetch) {
            return Err(FieldError::new("prefetch", "must be from 1 to 5000"));
        }
        Ok(())
    }
}

/// Checks every source, and that names and queues are unique.
pub(super) fn validate(sources: &[Source]) -> Result<(), ConfigError> {
    let refuse = |setting: String, reason: String| Err(ConfigError::Invalid { setting, reason });
    if sources.len() > MAX_SOURCES {
        return refuse("sources".into(), format!("must be at most {MAX_SOURCES}"));
    }
    let (mut names, mut queues) = (HashSet::new(), HashSet::new());
    for (n, source) in sources.iter().enumerate() {
        if let Err(FieldError { field, message }) = source.validate() {
            return refuse(format!("sources[{n}].{field}"), message);
        }
        if !names.insert(&source.name) {
            return refuse(
                format!("sources[{n}].name"),
                format!("{:?} is the name of another source; choose another one", source.name),
            );
        }
        if !queues.insert((source.url.to_string(), &source.queue)) {
            let reason = format!("{:?} is already read by another source; use another queue", source.queue);
            return refuse(format!("sources[{n}].queue"), reason);
        }
    }
    Ok(())
}

/// Returns the error message for a source without quoting its values, which may contain a password.
pub(super) fn without_secrets(setting: &str, message: String) -> Option<String> {
    let location = setting.strip_prefix("sources")?;
    let field = location.rsplit_once("].").map(|(_, field)| field);
    let says_names_alone =
        ["missing field", "unknown field", "unknown variant"].iter().any(|start| message.starts_with(start));
    Some(match field {
        _ if says_names_alone => message,
        Some("url" | "password") => "must be a string in quotes".into(),
        Some(_) => message,
        None => "must be tables that begin with [[sources]], or a list of inline tables such as \
                 [{type = \"amqp\", name = …, url = …, queue = …}]"
            .into(),
    })
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, ConfigError, Profile, load::parse};

    const WHOLE: &str = "[[sources]]\ntype = \"amqp\"\nname = \"shop\"\nurl = \"amqp://me:hush@mq/shop\"\nqueue = \"events\"\n";

    fn read(text: &str) -> Result<Config, ConfigError> {
        let config = parse(Profile::Serve, text, [])?;
        config.validate(Profile::Serve).map(|()| config)
    }

    #[test]
    fn minimal_and_full_sources_are_parsed() {
        let config = read(WHOLE).unwrap();
        let source = &config.sources[0];
        assert_eq!(
            (source.reject_queue().as_str(), source.tenant().unwrap().as_str()),
            ("events.rejected", "default")
        );
        assert_eq!((source.prefetch, source.declare, source.event_type.is_none()), (100, false, true));
        let more = format!(
            "{WHOLE}tenant = \"acme\"\nprefetch = 7\ndeclare = true\nreject_queue = \"bad\"\nevent_type = \"a.b\""
        );
        let source = read(&more).unwrap().sources.remove(0);
        assert_eq!((source.reject_queue().as_str(), source.tenant().unwrap().as_str()), ("bad", "acme"));
        assert_eq!((source.prefetch, source.declare, source.event_type.as_deref()), (7, true, Some("a.b")));
        let inline = r#"[{type = "amqp", name = "a", url = "amqp://mq", queue = "q"}]"#;
        let by_env = parse(Profile::Serve, "", [("REDRIVE_SOURCES".to_owned(), inline.to_owned())]).unwrap();
        assert_eq!(by_env.sources[0].queue, "q");
    }

    #[test]
    fn invalid_source_error_names_the_setting() {
        for (more, names, expected) in [
            ("prefetch = 0", "sources[0].prefetch: ", "from 1 to 5000"),
            ("prefetch = 70000", "sources[0].prefetch: ", "70000"),
            ("tenant = \"A B\"", "sources[0].tenant: ", "a-z"),
            ("event_type = \"a b\"", "sources[0].event_type: ", ""),
            ("event_type = \"redrive.x\"", "sources[0].event_type: ", "reserved for Redrive"),
            ("reject_queue = \"events\"", "sources[0].reject_queue: ", "another queue"),
            ("reject_queue = \"\"", "sources[0].reject_queue: ", "1 to 255"),
            ("reject = \"x\"", "sources[0]", "unknown field `reject`, expected one of"),
            (&WHOLE.replace("shop\"\nq", "other\"\nq"), "sources[1].name: ", "the name of another source"),
            (&WHOLE.replace("\"shop\"\nurl", "\"more\"\nurl"), "sources[1].queue: ", "use another queue"),
        ] {
            let message = read(&format!("{WHOLE}{more}")).unwrap_err().to_string();
            assert!(message.starts_with(names) && message.contains(expected), "{more}: {message}");
        }
        for (from, to, names) in [
            ("queue = \"events\"\n", "", "sources[0]: missing field `queue`"),
            ("amqp\"", "kafka\"", "sources[0].type: unknown variant `kafka`, expected `amqp`"),
            ("name = \"shop\"", "name = \"a b\"", "sources[0].name: "),
            ("amqp://", "http://", "sources[0].url: must be amqp://"),
        ] {
            let message = read(&WHOLE.replace(from, to)).unwrap_err().to_string();
            assert!(message.starts_with(names), "{message}");
        }
    }

    #[test]
    fn password_is_redacted_in_output_and_errors() {
        let config = read(&format!("{WHOLE}password = \"hush\"")).unwrap();
        let shown = format!(
            "{config:?} {:?} {}",
            config.effective_settings(Profile::Serve),
            toml::to_string(&config).unwrap()
        );
        assert!(!shown.contains("hush"), "{shown}");
        assert!(shown.contains("shop: events at amqp://me:[redacted]@mq:5672/shop"), "{shown}");
        for text in [
            "sources = \"amqp://me:hush@mq\"",
            "sources = [\"amqp://me:hush@mq\"]",
            "sources = {url = \"amqp://me:hush@mq\"}",
            &WHOLE.replace("\"amqp://me:hush@mq/shop\"", "[\"hush\"]"),
            &WHOLE.replace("amqp://me:hush@mq/shop", "amqp://me:hush/@mq/shop"),
            &format!("{WHOLE}password = {{is = \"hush\"}}"),
        ] {
            let message = read(text).unwrap_err().to_string();
            assert!(message.starts_with("sources") && !message.contains("hush"), "{message}");
        }
    }

    #[test]
    fn password_is_read_from_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        let load = || {
            let mut config = read(&format!("{WHOLE}password_file = {path:?}"))?;
            crate::config::secret::read_files(&mut config)?;
            config.sources[0]
                .address()
                .map_err(|invalid| ConfigError::Invalid { setting: "url".into(), reason: invalid.message })
        };
        let missing = load().unwrap_err().to_string();
        assert!(
            missing.starts_with("sources.password_file: ") && missing.contains("check the path"),
            "{missing}"
        );
        std::fs::write(&path, "other \n").unwrap();
        let expected = super::BrokerUrl::read("amqp://me:other%20@mq/shop").unwrap();
        assert!(load().unwrap() == expected);
    }
}
