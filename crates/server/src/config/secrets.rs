//! The master key that secrets are sealed with, and where it comes from.

use std::path::PathBuf;

use redrive_core::{security::vault::MasterKey, time::Span};
use serde::{Deserialize, Serialize};

use super::{ConfigError, Hidden, secret::read_file};

/// The master key that secrets are sealed with.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Secrets {
    /// The key itself.
    pub master_key: Option<Hidden>,
    /// A file that holds it.
    pub master_key_file: Option<PathBuf>,
    /// A command that prints it.
    pub master_key_command: Option<String>,
    /// Files with other keys that may have sealed something.
    pub other_master_key_files: Vec<PathBuf>,
    /// How old a webhook's secret may be before its owner is told to change it; nothing for any age.
    pub rotate_after: Span,
}

impl Default for Secrets {
    fn default() -> Self {
        Self {
            master_key: None,
            master_key_file: None,
            master_key_command: None,
            other_master_key_files: Vec::new(),
            rotate_after: Span::secs(90 * 24 * 3600),
        }
    }
}

impl Secrets {
    /// The key that new secrets are sealed with; none if none is configured.
    pub fn current(&self) -> Result<Option<MasterKey>, ConfigError> {
        let given = [
            ("secrets.master_key", self.master_key.is_some()),
            ("secrets.master_key_file", self.master_key_file.is_some()),
            ("secrets.master_key_command", self.master_key_command.is_some()),
        ];
        let given: Vec<_> = given.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect();
        if let [first, second, ..] = given[..] {
            return Err(invalid(second, format!("is given as well as {first}; keep one of them")));
        }
        if let Some(key) = &self.master_key {
            return parse("secrets.master_key", key.reveal()).map(Some);
        }
        if let Some(path) = &self.master_key_file {
            return parse("secrets.master_key_file", &read_file("secrets.master_key_file", path)?).map(Some);
        }
        match &self.master_key_command {
            Some(command) => parse("secrets.master_key_command", &printed_by(command)?).map(Some),
            None => Ok(None),
        }
    }

    /// Other keys that may have sealed something.
    pub fn others(&self) -> Result<Vec<MasterKey>, ConfigError> {
        let setting = "secrets.other_master_key_files";
        self.other_master_key_files.iter().map(|path| parse(setting, &read_file(setting, path)?)).collect()
    }
}

fn invalid(setting: &str, reason: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { setting: setting.into(), reason: reason.into() }
}

fn parse(setting: &str, text: &str) -> Result<MasterKey, ConfigError> {
    MasterKey::parse(text).map_err(|error| invalid(setting, error.message))
}

/// What a command of the operator prints. What it says about failures goes to the terminal or the log.
fn printed_by(command: &str) -> Result<String, ConfigError> {
    let failed = |reason: String| invalid("secrets.master_key_command", reason);
    let output = std::process::Command::new("sh")
        .args(["-c", command])
        .stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|error| failed(format!("cannot be run: {error}")))?;
    if !output.status.success() {
        return Err(failed(format!("failed with {}; run it by hand to see why", output.status)));
    }
    String::from_utf8(output.stdout).map_err(|_| failed("printed something that is no text".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_key_comes_from_one_place() {
        let folder = tempfile::tempdir().unwrap();
        let key = MasterKey::from_bytes([7; 32]);
        let path = folder.path().join("key");
        std::fs::write(&path, format!("{}\n", *key.reveal())).unwrap();
        let file = Secrets { master_key_file: Some(path.clone()), ..Secrets::default() };
        let command = format!("cat {}", path.display());
        let command = Secrets { master_key_command: Some(command), ..Secrets::default() };
        let text = Secrets { master_key: Some(Hidden::new(key.reveal().as_str())), ..Secrets::default() };
        for secrets in [&file, &command, &text] {
            assert_eq!(secrets.current().unwrap().unwrap().id(), key.id());
        }
        assert!(Secrets::default().current().unwrap().is_none());
        let two = Secrets { master_key: text.master_key, ..file };
        assert!(two.current().unwrap_err().to_string().contains("keep one of them"));
        let other = Secrets { other_master_key_files: vec![path], ..Secrets::default() };
        assert_eq!(other.others().unwrap()[0].id(), key.id());
    }

    #[test]
    fn a_bad_key_is_refused_and_not_repeated() {
        let text = Secrets { master_key: Some(Hidden::new("planted")), ..Secrets::default() };
        let said = text.current().unwrap_err().to_string();
        assert!(said.starts_with("secrets.master_key: must be 32 random bytes") && !said.contains("planted"));
        let fails = Secrets { master_key_command: Some("exit 3".into()), ..Secrets::default() };
        assert!(fails.current().unwrap_err().to_string().contains("run it by hand"));
    }
}
