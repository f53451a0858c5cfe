//! The table of all settings in `docs/configuration.md`, which is generated from the configuration structs.

use serde_json::Value;

use super::{
    Config, Profile, SETTINGS,
    effective::at,
    settings::{Kind, Setting, whole_units},
};
use crate::documentation::check_generated;

const HEAD: &str = "| setting | environment variable | default | purpose and reason |\n|---|---|---|---|\n";

fn table() -> String {
    let defaults = serde_json::to_value(Config::defaults(Profile::Serve)).unwrap();
    let rows = SETTINGS.iter().map(|setting| {
        let Setting { key, env, description, default, kind, .. } = setting;
        let default = default.clone().unwrap_or_else(|| format_default(*kind, at(&defaults, key)));
        format!("| `{key}` | `{env}` | {default} | {description} |\n")
    });
    format!("{HEAD}{}", rows.collect::<String>())
}

/// Formats a default as it would be written in the configuration file.
fn format_default(kind: Kind, value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        Value::Number(number) if kind == Kind::Duration => match number.as_f64().unwrap() {
            0.0 => "0".into(),
            seconds => format!("`{}`", whole_units(seconds)),
        },
        Value::Number(number) => match number.as_f64().filter(|number| number.fract() == 0.0) {
            Some(whole) => format!("{whole}"),
            None => number.to_string(),
        },
        Value::String(text) => format!("`{text}`"),
        value => format!("`{value}`"),
    }
}

#[test]
fn documentation_lists_exactly_all_settings() {
    check_generated("docs/configuration.md", &table());
}
