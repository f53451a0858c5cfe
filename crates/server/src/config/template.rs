//! Writes a configuration file with every setting as a comment, for `redrive config init`. It is made from the same list
//! as the documentation, so it is never out of date.

use serde_json::Value;

use super::{
    Config, ConfigError, Profile, SETTINGS, Setting,
    effective::at,
    load::{env_value, parse_value},
    settings::{Kind, setting, whole_units},
};

/// Longest line of a comment, in characters.
const MAX_COMMENT_CHARS: usize = 100;

const HEAD: &str = "\
# Settings of Redrive.
#
# A line such as `#max_connections = 10000` shows a setting with its default: remove the # to change it.
# A line such as `# tls_cert = (no default)` shows a setting that is not set unless you set it.
# The environment variable beside a setting overrides this file, and a flag overrides both.
# Check the file with: redrive config check --config FILE
#
# `redrive serve` needs a master key and an admin key. Create both, and name their files in
# secrets.master_key_file and auth.admin_key_file:
#   (umask 077; redrive secrets new-key > master.key; openssl rand -hex 32 > admin.key)
";

/// Returns the text of a configuration file with every setting and its default. The settings in `values` are set, the
/// others are comments.
pub fn write_template(values: &[(String, String)]) -> Result<String, ConfigError> {
    for (key, value) in values {
        if setting(key).is_none() {
            return Err(ConfigError::Unknown { setting: key.clone() });
        }
        parse_value(key, value)?;
    }
    let defaults = serde_json::to_value(Config::defaults(Profile::Serve)).unwrap_or_default();
    let mut text = HEAD.to_owned();
    // Settings without a section come first: behind a section they would belong to it.
    let mut sections = vec![""];
    for entry in SETTINGS.iter() {
        let (section, _) = split_key(entry);
        if !sections.contains(&section) {
            sections.push(section);
        }
    }
    for section in sections {
        if !section.is_empty() {
            text += &format!("\n[{section}]\n");
        }
        for entry in SETTINGS.iter().filter(|entry| split_key(entry).0 == section) {
            push_setting(&mut text, entry, &defaults, values);
        }
    }
    Ok(text)
}

/// Returns the section of a setting, and its name there.
fn split_key(entry: &Setting) -> (&str, &str) {
    entry.key.rsplit_once('.').unwrap_or(("", &entry.key))
}

fn push_setting(text: &mut String, entry: &Setting, defaults: &Value, values: &[(String, String)]) {
    let (_, name) = split_key(entry);
    text.push('\n');
    for line in wrap(&format!("{} ({})", entry.reason, entry.env)) {
        *text += &format!("# {line}\n");
    }
    match values.iter().rev().find(|(key, _)| *key == entry.key) {
        Some((_, value)) => *text += &format!("{name} = {}\n", as_toml(entry, value)),
        None => {
            *text += &match default_of(entry, defaults) {
                Some(default) => format!("#{name} = {default}\n"),
                None => format!("# {name} = (no default)\n"),
            };
        }
    }
}

/// Returns a value as TOML: as it is if it is a value of this setting in TOML, else as a string.
fn as_toml(entry: &Setting, value: &str) -> String {
    match env_value(&entry.key, value) {
        toml::Value::String(text) => toml::Value::String(text).to_string(),
        _ => value.to_owned(),
    }
}

/// Returns the default as it would be written in the file. Returns `None` for a setting without a fixed default.
fn default_of(entry: &Setting, defaults: &Value) -> Option<String> {
    match at(defaults, &entry.key) {
        // The name of this machine is no default for the file of another one.
        _ if entry.key == "node" => None,
        // The defaults of these policies are those of all webhooks; the settings hold only what differs from them.
        Value::Null if ["retry", "circuit_breaker"].contains(&split_key(entry).0) => {
            described_default(entry.default.as_deref()?)
        }
        Value::Null => None,
        Value::Number(number) if entry.kind == Kind::Duration => match number.as_f64() {
            Some(seconds) if seconds > 0.0 => Some(format!("\"{}\"", whole_units(seconds))),
            _ => Some("0".into()),
        },
        value => Some(value.to_string()),
    }
}

/// Returns a default that is described as a value in backticks or as a number, as TOML.
fn described_default(words: &str) -> Option<String> {
    if words.parse::<f64>().is_ok() {
        return Some(words.to_owned());
    }
    let value = words.strip_prefix('`')?.strip_suffix('`').filter(|value| !value.contains('`'))?;
    match format!("value = {value}").parse::<toml::Table>() {
        Ok(_) => Some(value.to_owned()),
        Err(_) => Some(toml::Value::String(value.to_owned()).to_string()),
    }
}

/// Breaks text into lines at spaces.
fn wrap(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let full = lines.last().is_some_and(|line| {
            !line.is_empty() && line.chars().count() + 1 + word.chars().count() > MAX_COMMENT_CHARS
        });
        if full {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::parse;

    /// Returns the template with the comment sign removed from every setting.
    fn uncommented(template: &str) -> String {
        let line = |line: &str| match line.strip_prefix('#') {
            Some(setting) if setting.starts_with(|c: char| c.is_ascii_lowercase()) => format!("{setting}\n"),
            _ => format!("{line}\n"),
        };
        template.lines().map(line).collect()
    }

    #[test]
    fn template_without_comment_signs_is_the_default_configuration() {
        let template = write_template(&[]).unwrap();
        let untouched = parse(Profile::Serve, &template, []).unwrap();
        let written = parse(Profile::Serve, &uncommented(&template), []).unwrap();
        let default = Config::defaults(Profile::Serve);
        // These sections hold what differs from the default policies, so the policies are compared.
        let shown = |config: &Config| {
            let mut shown = serde_json::to_value(config).unwrap();
            for policy in ["retry", "circuit_breaker"] {
                shown.as_object_mut().unwrap().remove(policy);
            }
            (shown, config.retry_policy().unwrap(), config.breaker_policy().unwrap())
        };
        assert_eq!(shown(&untouched), shown(&default));
        assert_eq!(shown(&written), shown(&default));
        written.validate(Profile::Serve).unwrap();
        assert!(written.retry.schedule.is_some() && written.circuit_breaker.enabled.is_some());
    }

    #[test]
    fn template_has_every_setting_once_with_its_variable_and_default() {
        let template = write_template(&[]).unwrap();
        let uncommented: toml::Table = uncommented(&template).parse().unwrap();
        let defaults = serde_json::to_value(Config::defaults(Profile::Serve)).unwrap();
        for entry in SETTINGS.iter() {
            let (_, name) = split_key(entry);
            let is_set = entry
                .key
                .split('.')
                .try_fold(&toml::Value::Table(uncommented.clone()), |at, part| at.get(part))
                .is_some();
            let has_default = entry.key != "node" && !at(&defaults, &entry.key).is_null();
            assert!(is_set || !has_default, "{} is missing", entry.key);
            assert!(is_set || template.contains(&format!("\n# {name} = (no default)\n")), "{}", entry.key);
            assert_eq!(template.matches(&format!("({})", entry.env)).count(), 1, "{}", entry.key);
        }
        assert!(template.lines().all(|line| line.chars().count() <= MAX_COMMENT_CHARS + 40));
    }

    #[test]
    fn given_values_are_set_and_checked() {
        let given = |key: &str, value: &str| write_template(&[(key.to_owned(), value.to_owned())]);
        let template = given("secrets.master_key_file", "/etc/redrive/master.key").unwrap();
        let config = parse(Profile::Serve, &template, []).unwrap();
        assert_eq!(config.secrets.master_key_file.unwrap().to_str(), Some("/etc/redrive/master.key"));
        let template = given("egress.ports", "[443]").unwrap();
        assert_eq!(parse(Profile::Serve, &template, []).unwrap().egress.ports.len(), 1);
        let template = given("node", "42").unwrap();
        assert_eq!(parse(Profile::Serve, &template, []).unwrap().node, "42", "a name, not a number");
        let unknown = given("secrets.masterkey", "x").unwrap_err().to_string();
        assert!(unknown.contains("did you mean"), "{unknown}");
        let invalid = given("delivery.max_in_flight", "many").unwrap_err().to_string();
        assert!(invalid.starts_with("delivery.max_in_flight: "), "{invalid}");
    }
}
