//! The table of all settings in `docs/configuration.md`, which is generated from the configuration structs.

use serde_json::Value;

use super::{
    Config, Profile, SETTINGS,
    effective::at,
    settings::{Kind, Setting},
};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
const HEAD: &str = "| setting | environment variable | default | purpose and reason |\n|---|---|---|---|\n";

fn table() -> String {
    let defaults = serde_json::to_value(Config::defaults(Profile::Serve)).unwrap();
    let rows = SETTINGS.iter().map(|setting| {
        let Setting { key, env, description, default, kind, .. } = setting;
        let default = default.clone().unwrap_or_else(|| written(*kind, at(&defaults, key)));
        format!("| `{key}` | `{env}` | {default} | {description} |\n")
    });
    format!("{HEAD}{}", rows.collect::<String>())
}

/// Formats a default as it would be written in the configuration file.
fn written(kind: Kind, value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        Value::Number(number) if kind == Kind::Duration => match number.as_f64().unwrap() {
            0.0 => "0".into(),
            seconds => format!("`{}`", duration(seconds)),
        },
        Value::Number(number) => match number.as_f64().filter(|number| number.fract() == 0.0) {
            Some(whole) => format!("{whole}"),
            None => number.to_string(),
        },
        Value::String(text) => format!("`{text}`"),
        value => format!("`{value}`"),
    }
}

/// Formats seconds in the largest unit that needs no fraction; a single day in hours.
fn duration(seconds: f64) -> String {
    let millis = (seconds * 1_000.0).round() as u64;
    let units = [(86_400_000, 2, "d"), (3_600_000, 1, "h"), (60_000, 1, "m"), (1_000, 1, "s"), (1, 1, "ms")];
    let fits = |(size, least, _): &(u64, u64, &str)| millis.is_multiple_of(*size) && millis / size >= *least;
    let (size, _, unit) = units.into_iter().find(fits).unwrap();
    format!("{}{unit}", millis / size)
}

/// Fails if the table differs; with `UPDATE_DOCS=1` in the environment, writes it instead.
#[test]
fn documentation_lists_exactly_all_settings() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(HEAD).unwrap();
    let (_, after) = rest.split_once("\n\n").unwrap();
    let generated = format!("{before}{}\n{after}", table());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(PAGE, generated).unwrap();
        return;
    }
    for (line, expected) in page.lines().zip(generated.lines()) {
        assert_eq!(line, expected, "run this test with UPDATE_DOCS=1 to update docs/configuration.md");
    }
    assert_eq!(page, generated);
}
