//! Effective settings for display: name, meaning and value of each, with secrets redacted.

use std::time::Duration;

use serde_json::Value;

use super::{Config, Profile, SETTINGS, Setting, settings::Kind};

/// An effective setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveSetting {
    /// Key in the configuration file.
    pub key: &'static str,
    /// Purpose of the setting.
    pub reason: &'static str,
    /// Formatted value. `None` if the setting is not set.
    pub value: Option<String>,
    /// Whether the value differs from the default.
    pub is_explicit: bool,
}

impl Config {
    /// Returns every setting with its value, in the order of the configuration file.
    pub fn effective_settings(&self, profile: Profile) -> Vec<EffectiveSetting> {
        let tree = |config: &Self| serde_json::to_value(config).unwrap_or_default();
        let (chosen, usual) = (tree(self), tree(&Self::defaults(profile)));
        let shown = |setting: &'static Setting| {
            let value = at(&chosen, &setting.key);
            EffectiveSetting {
                key: &setting.key,
                reason: &setting.reason,
                value: format_value(setting, value),
                is_explicit: value != at(&usual, &setting.key),
            }
        };
        SETTINGS.iter().map(shown).collect()
    }
}

/// Returns the value of a setting in a serialized configuration.
pub(super) fn at<'a>(tree: &'a Value, key: &str) -> &'a Value {
    key.split('.').fold(tree, |position, name| &position[name])
}

fn format_value(setting: &Setting, value: &Value) -> Option<String> {
    Some(match value {
        Value::Null => return None,
        _ if matches!(setting.kind, Kind::Secret | Kind::Command) => "set, not shown".to_owned(),
        Value::Array(parts) if parts.is_empty() => "none".to_owned(),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| format_value(setting, part)).collect::<Vec<_>>().join(", ")
        }
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64() {
            Some(seconds) if setting.kind == Kind::Duration => span(seconds),
            Some(bytes) if setting.key.ends_with("_bytes") => size(bytes),
            _ => number.to_string(),
        },
        Value::Object(source) if setting.key == "sources" => {
            let [name, queue, url] =
                ["name", "queue", "url"].map(|field| source[field].as_str().unwrap_or_default());
            format!("{name}: {queue} at {url}")
        }
        Value::Object(_) => value.to_string(),
    })
}

/// Formats seconds in the largest unit that needs no fraction.
fn span(seconds: f64) -> String {
    let millis = Duration::try_from_secs_f64(seconds.abs()).unwrap_or_default().as_millis();
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms")];
    let fits = units.into_iter().find(|(size, _)| millis >= *size && millis.is_multiple_of(*size));
    let sign = if seconds < 0.0 { "-" } else { "" };
    fits.map_or_else(|| "0".to_owned(), |(size, unit)| format!("{sign}{} {unit}", millis / size))
}

fn size(bytes: f64) -> String {
    match bytes as u64 {
        bytes if bytes > 0 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes if bytes > 0 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::parse;

    fn effective(file: &str, key: &str) -> (Option<String>, bool) {
        let config = parse(Profile::Serve, file, []).unwrap();
        let found = config.effective_settings(Profile::Serve).into_iter().find(|one| one.key == key).unwrap();
        (found.value, found.is_explicit)
    }

    #[test]
    fn values_are_formatted_and_marked_explicit_or_default() {
        let message = |text: &str| Some(text.to_owned());
        assert_eq!(effective("", "retention.events"), (message("90 d"), false));
        assert_eq!(effective("[retention]\nevents = \"36h\"", "retention.events"), (message("36 h"), true));
        assert_eq!(effective("[retention]\nevents = 0", "retention.events"), (message("0"), true));
        assert_eq!(effective("", "events.max_payload_bytes"), (message("256 KiB"), false));
        assert_eq!(effective("", "egress.allow_http"), (message("no"), false));
        assert_eq!(effective("pools = [\"gold\", \"default\"]", "pools"), (message("gold, default"), true));
        assert_eq!(
            effective("[retry]\nschedule = [0, \"5m\"]", "retry.schedule"),
            (message("0, 5 min"), true)
        );
        assert_eq!(effective("", "retry.schedule"), (None, false));
        assert_eq!(effective("", "egress.allow_hosts"), (message("none"), false));
    }

    #[test]
    fn secrets_are_redacted() {
        let vars = [
            ("REDRIVE_ADMIN_KEY", "hush-hush-hush-hush-hush-hush-hush-hush"),
            ("REDRIVE_DATABASE_PASSWORD", "hush"),
            ("REDRIVE_DATABASE_URL", "postgres://me:hush@db/x"),
            ("REDRIVE_REDIS_URL", "redis://me:hush@cache"),
            ("REDRIVE_REDIS_PASSWORD", "hush"),
            ("REDRIVE_SECRETS_MASTER_KEY", "hush"),
            ("REDRIVE_SECRETS_MASTER_KEY_COMMAND", "fetch --token hush"),
            ("REDRIVE_ARCHIVE_SECRET_ACCESS_KEY", "hush"),
            ("REDRIVE_AMQP_URL", "amqp://me:hush@mq/x"),
            ("REDRIVE_AMQP_PASSWORD", "hush"),
            ("REDRIVE_TRACING_OTLP_HEADERS", "authorization=hush"),
            ("REDRIVE_SMTP_PASSWORD", "hush"),
        ];
        let vars = vars.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let config = parse(Profile::Serve, "", vars).unwrap();
        let shown = config.effective_settings(Profile::Serve);
        assert!(!format!("{shown:?}").contains("hush"), "{shown:?}");
        let url = shown.iter().find(|one| one.key == "database.url").unwrap();
        assert_eq!(url.value.as_deref(), Some("postgres://me:[redacted]@db/x"));
        assert_eq!(shown.iter().filter(|one| one.value.as_deref() == Some("set, not shown")).count(), 9);
    }

    #[test]
    fn duration_settings_are_recognized() {
        for Setting { key, kind, .. } in SETTINGS.iter() {
            let takes_durations = parse(Profile::Dev, &format!("{key} = \"25h\""), []).is_ok_and(|config| {
                let tree = serde_json::to_value(config).unwrap();
                at(&tree, key).as_f64() == Some(90_000.0)
            });
            assert!(!takes_durations || *kind == Kind::Duration, "{key}");
        }
        assert_eq!([0.0, 0.25, 90.0, 120.0].map(span), ["0", "250 ms", "90 s", "2 min"]);
    }
}
