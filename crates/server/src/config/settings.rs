//! The list of all settings, derived from the configuration structs: a setting is a field, its description is the
//! field's documentation, and its type tells whether it is a duration or a secret. The dashboard, `config show`, the
//! error messages and the table in `docs/configuration.md` use this list.

use std::{path::PathBuf, sync::LazyLock};

use ipnet::IpNet;
use redrive_core::{
    Role,
    delivery::retry::RetryOn,
    notification::preferences::Language,
    security::egress_rules::{HostPattern, PortRange},
    time::HumanDuration,
    webhook::verification::RequireVerification,
};

use super::{
    AmqpUrl, DatabaseUrl, HostPort, RedisUrl, SecretSetting, Skew, SmtpTls, Source, TenantMetricsAccess,
    secrets::KeyCommand,
};
use crate::telemetry::LogFormat;

/// Kind of a setting, which determines how its value is read and shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A value that is shown as it is.
    Plain,
    /// A duration, in seconds.
    Duration,
    /// A secret, which is never shown.
    Secret,
    /// A URL that may contain a password. It hides the password itself.
    SecretUrl,
    /// A command line, which is never shown: it may contain a password.
    Command,
}

/// Shape of a field of a configuration struct.
#[derive(Clone, Copy)]
pub(super) enum Shape {
    /// A setting.
    Setting(Kind),
    /// A section with fields of its own.
    Section(&'static [Field]),
    /// State that is no setting.
    State,
}

/// Field of a configuration struct.
pub(super) struct Field {
    pub(super) name: &'static str,
    /// Documentation of the field.
    pub(super) doc: &'static str,
    pub(super) shape: Shape,
}

/// Type of a field of a configuration struct.
pub(super) trait Configured {
    /// Shape of such a field.
    const SHAPE: Shape;
}

impl<T: Configured> Configured for Option<T> {
    const SHAPE: Shape = T::SHAPE;
}

impl<T: Configured> Configured for Vec<T> {
    const SHAPE: Shape = T::SHAPE;
}

/// Sets the kind of settings of these types.
macro_rules! kinds {
    ($($kind:ident: $($name:ty),+;)+) => {
        $($(impl Configured for $name {
            const SHAPE: Shape = Shape::Setting(Kind::$kind);
        })+)+
    };
}
kinds! {
    Plain: bool, u16, u32, u64, u8, usize, f64, String, PathBuf, HostPort, IpNet, HostPattern, PortRange, Role, RetryOn,
        Language, RequireVerification, TenantMetricsAccess, LogFormat, SmtpTls, Source;
    Duration: HumanDuration, Skew;
    Secret: SecretSetting;
    SecretUrl: AmqpUrl, DatabaseUrl, RedisUrl;
    Command: KeyCommand;
}

/// The first secret of the configuration file and its path.
impl Configured for (String, PathBuf) {
    const SHAPE: Shape = Shape::State;
}

/// Returns the shape of the field that a function selects.
pub(super) const fn shape_of<S, T: Configured>(_: fn(&S) -> &T) -> Shape {
    T::SHAPE
}

/// Defines a section of the configuration: a struct whose fields are settings, or sections. A paragraph of a field's
/// documentation that begins with `Default:` is its default in words, for settings without a fixed one.
macro_rules! section {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident {
            $($(#[doc = $doc:literal])+ $(#[serde($($serde:tt)+)])? pub $field:ident: $type:ty,)+
        }
    ) => {
        $(#[$attribute])*
        pub struct $name {
            $($(#[doc = $doc])+ $(#[serde($($serde)+)])? pub $field: $type,)+
        }

        impl crate::config::settings::Configured for $name {
            const SHAPE: crate::config::settings::Shape = crate::config::settings::Shape::Section(&[
                $(crate::config::settings::Field {
                    name: stringify!($field),
                    doc: concat!($($doc, "\n"),+),
                    shape: <$type as crate::config::settings::Configured>::SHAPE,
                },)+
            ]);
        }
    };
}

/// Documents the settings of a section whose struct belongs to another crate. A field that is missing here, or there, is a
/// compile error.
macro_rules! foreign_section {
    ($name:ident { $($(#[doc = $doc:literal])+ $field:ident,)+ }) => {
        impl crate::config::settings::Configured for $name {
            const SHAPE: crate::config::settings::Shape = crate::config::settings::Shape::Section(&[
                $(crate::config::settings::Field {
                    name: stringify!($field),
                    doc: concat!($($doc, "\n"),+),
                    shape: crate::config::settings::shape_of(|$name { $field, .. }: &$name| $field),
                },)+
            ]);
        }

        const _: fn(&$name) = |$name { $($field: _,)+ }| {};
    };
}
pub(super) use {foreign_section, section};

/// One setting.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Key in the configuration file.
    pub key: String,
    /// Name of its environment variable.
    pub env: String,
    /// Purpose, range and reason for the default, in Markdown.
    pub description: String,
    /// Default in words, in Markdown. `None` if the default configuration has a value, or none at all.
    pub default: Option<String>,
    /// Description and default in words, without markup.
    pub reason: String,
    pub(super) kind: Kind,
}

/// Returns a description without markup and without references to other parts of the documentation.
fn plain(description: &str, default: Option<&str>) -> String {
    let sentences = description.split_inclusive(". ").filter(|sentence| !sentence.starts_with("See ["));
    let text = without_markup(&sentences.collect::<String>());
    match default {
        Some(default) => format!("{} Default: {}.", text.trim_end(), without_markup(default)),
        None => text.trim_end().to_owned(),
    }
}

/// Replaces links by their text, and removes the backticks of code.
fn without_markup(markdown: &str) -> String {
    let mut text = String::with_capacity(markdown.len());
    let mut rest = markdown;
    while let Some((before, label, after)) = next_link(rest) {
        text.push_str(before);
        text.push_str(label);
        rest = after;
    }
    text.push_str(rest);
    text.replace('`', "")
}

/// Returns what is before the next link, its label, and what is after it.
fn next_link(markdown: &str) -> Option<(&str, &str, &str)> {
    let (label, target) = markdown.split_once("](")?;
    let (before, label) = label.rsplit_once('[')?;
    let (_, after) = target.split_once(')')?;
    Some((before, label, after))
}

/// All settings, in the order of the configuration file.
pub static SETTINGS: LazyLock<Vec<Setting>> = LazyLock::new(|| {
    let mut settings = Vec::new();
    if let Shape::Section(fields) = super::Config::SHAPE {
        add_settings("", fields, &mut settings);
    }
    settings
});

fn add_settings(section: &str, fields: &[Field], settings: &mut Vec<Setting>) {
    for Field { name, doc, shape } in fields {
        let key = format!("{section}{name}");
        match shape {
            Shape::Section(fields) => add_settings(&format!("{key}."), fields, settings),
            Shape::Setting(kind) => settings.push(Setting::new(key, doc, *kind)),
            Shape::State => {}
        }
    }
}

impl Setting {
    fn new(key: String, doc: &str, kind: Kind) -> Self {
        let (mut description, mut default) = (String::new(), None);
        for paragraph in doc.split("\n\n") {
            let lines: Vec<_> = paragraph.lines().map(str::trim).collect();
            let text = lines.join(" ").trim().to_owned();
            match text.strip_prefix("Default: ") {
                Some(words) => default = Some(words.to_owned()),
                None => description = text,
            }
        }
        let reason = plain(&description, default.as_deref());
        Self { env: env_name(&key), key, description, default, reason, kind }
    }
}

/// Formats seconds as a setting of a duration is written: in the largest unit that needs no fraction; a single day in
/// hours.
pub(super) fn whole_units(seconds: f64) -> String {
    let millis = (seconds * 1_000.0).round() as u64;
    let units = [(86_400_000, 2, "d"), (3_600_000, 1, "h"), (60_000, 1, "m"), (1_000, 1, "s"), (1, 1, "ms")];
    let fits = |(size, min, _): &(u64, u64, &str)| millis.is_multiple_of(*size) && millis / size >= *min;
    let (size, _, unit) = units.into_iter().find(fits).unwrap_or((1, 1, "ms"));
    format!("{}{unit}", millis / size)
}

/// Returns the setting with this key.
pub(super) fn setting(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.key == key)
}

/// Returns whether a setting must not be quoted in messages, because it is or contains a secret.
pub(super) fn is_secret(key: &str) -> bool {
    setting(key).is_some_and(|setting| matches!(setting.kind, Kind::Secret | Kind::SecretUrl))
}

/// Returns the name of the environment variable of a setting.
pub fn env_name(key: &str) -> String {
    match key {
        // The admin key is the most commonly set variable, so its name is short.
        "auth.admin_key" => "REDRIVE_ADMIN_KEY".into(),
        _ => format!("REDRIVE_{}", key.replace('.', "_").to_uppercase()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::{Config, Profile, load::parse};

    fn keys_of(prefix: &str, value: &serde_json::Value, keys: &mut BTreeSet<String>) {
        match value {
            serde_json::Value::Object(members) => {
                for (name, member) in members {
                    let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                    keys_of(&key, member, keys);
                }
            }
            _ => {
                keys.insert(prefix.to_owned());
            }
        }
    }

    #[test]
    fn every_serialized_value_is_a_setting() {
        let config = serde_json::to_value(Config::defaults(Profile::Dev)).unwrap();
        let mut keys = BTreeSet::new();
        keys_of("", &config, &mut keys);
        let unlisted: Vec<_> = keys.iter().filter(|key| setting(key).is_none() && *key != "retry").collect();
        assert!(unlisted.is_empty(), "not in SETTINGS: {unlisted:?}");
    }

    #[test]
    fn every_listed_setting_exists() {
        for setting in SETTINGS.iter() {
            // A list has the wrong type for most settings; the error must not be "unknown".
            let file = format!("{} = []", setting.key);
            let error = parse(Profile::Dev, &file, []).err().map(|error| error.to_string());
            assert!(!error.unwrap_or_default().contains("unknown"), "{}", setting.key);
        }
    }

    #[test]
    fn every_setting_has_a_description_of_whole_sentences() {
        assert!(SETTINGS.len() > 140, "{}", SETTINGS.len());
        for Setting { key, description, reason, .. } in SETTINGS.iter() {
            assert!(description.ends_with('.') && !description.contains("  "), "{key}: {description}");
            assert!(
                reason.ends_with('.') && !reason.contains('`') && !reason.contains("]("),
                "{key}: {reason}"
            );
        }
    }

    #[test]
    fn kind_follows_from_the_type() {
        let kind = |key: &str| setting(key).unwrap().kind;
        assert_eq!(kind("server.max_connections"), Kind::Plain);
        assert_eq!(kind("retry.schedule"), Kind::Duration);
        assert_eq!(kind("limits.caps.min_retry_delay"), Kind::Duration);
        assert_eq!(kind("smtp.password"), Kind::Secret);
        assert_eq!(kind("database.url"), Kind::SecretUrl);
        assert!(is_secret("redis.url") && !is_secret("redis.timeout") && !is_secret("no.such"));
    }

    #[test]
    fn plain_text_has_no_markup_and_no_references() {
        let markdown = "The [log](operations/logging.md): `text` or `json`. See [below](#logs). Fast";
        assert_eq!(plain(markdown, None), "The log: text or json. Fast");
        assert_eq!(plain("Port.", Some("by `smtp.tls`")), "Port. Default: by smtp.tls.");
        assert_eq!(plain("A list, such as `[\"a\"]`.", None), "A list, such as [\"a\"].");
    }
}
