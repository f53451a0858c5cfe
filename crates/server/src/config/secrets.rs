//! Settings of the master key that secrets are encrypted with.

use std::path::PathBuf;

use redrive_core::{security::vault::MasterKey, time::HumanDuration};
use serde::{Deserialize, Serialize};

use super::{ConfigError, SecretSetting, secret::read_file, settings::section};

/// Command line that prints a key. It may contain a password, so the list of settings does not show it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyCommand(String);

section! {
    /// Settings of the master key that secrets are encrypted with.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Secrets {
        /// Key that encrypts secrets: 32 random bytes in base64. Create one with `redrive secrets new-key`.
        pub master_key: Option<SecretSetting>,
        /// File with the master key, for secret mounts.
        pub master_key_file: Option<PathBuf>,
        /// Command that prints the master key, for key managers; run by `sh -c` at the start.
        pub master_key_command: Option<KeyCommand>,
        /// Files with other master keys that may have encrypted secrets: the previous one, or the next one.
        pub additional_master_key_files: Vec<PathBuf>,
        /// Age of a webhook's secret at which its owner is [reminded](notifications.md) to rotate it; `0` for never.
        pub rotation_reminder_after: HumanDuration,
    }
}

impl Default for Secrets {
    fn default() -> Self {
        Self {
            master_key: None,
            master_key_file: None,
            master_key_command: None,
            additional_master_key_files: Vec::new(),
            rotation_reminder_after: HumanDuration::secs(90 * 24 * 3600),
        }
    }
}

impl Secrets {
    /// Returns the key that new secrets are encrypted with, or `None` if none is configured.
    pub fn current(&self) -> Result<Option<MasterKey>, ConfigError> {
        let given = [
            ("secrets.master_key", self.master_key.is_some()),
            ("secrets.master_key_file", self.master_key_file.is_some()),
            ("secrets.master_key_command", self.master_key_command.is_some()),
        ];
        let given: Vec<_> = given.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect();
        if let [first, second, ..] = given[..] {
            return Err(invalid(second, format!("is set together with {first}; keep one of them")));
        }
        if let Some(key) = &self.master_key {
            return parse("secrets.master_key", key.reveal()).map(Some);
        }
        if let Some(path) = &self.master_key_file {
            return parse("secrets.master_key_file", &read_file("secrets.master_key_file", path)?).map(Some);
        }
        match &self.master_key_command {
            Some(command) => parse("secrets.master_key_command", &printed_by(&command.0)?).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the additional keys that stored secrets may be encrypted with.
    pub fn others(&self) -> Result<Vec<MasterKey>, ConfigError> {
        let setting = "secrets.additional_master_key_files";
        self.additional_master_key_files
            .iter()
            .map(|path| parse(setting, &read_file(setting, path)?))
            .collect()
    }
}

fn invalid(setting: &str, reason: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { setting: setting.into(), reason: reason.into() }
}

fn parse(setting: &str, text: &str) -> Result<MasterKey, ConfigError> {
    MasterKey::parse(text).map_err(|error| invalid(setting, error.message))
}

/// Runs a command of the operator and returns its output. Its stderr is inherited.
fn printed_by(command: &str) -> Result<String, ConfigError> {
    let failed = |reason: String| invalid("secrets.master_key_command", reason);
    let output = std::process::Command::new("sh")
        .args(["-c", command])
        .stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|error| failed(format!("cannot be run: {error}")))?;
    if !output.status.success() {
        return Err(failed(format!("failed with {}; run it manually to see the error", output.status)));
    }
    String::from_utf8(output.stdout).map_err(|_| failed("printed output that is not UTF-8".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn master_key_has_exactly_one_source() {
        let folder = tempfile::tempdir().unwrap();
        let key = MasterKey::from_bytes([7; 32]);
        let path = folder.path().join("key");
        std::fs::write(&path, format!("{}\n", *key.reveal())).unwrap();
        let file = Secrets { master_key_file: Some(path.clone()), ..Secrets::default() };
        let command = format!("cat {}", path.display());
        let command = Secrets { master_key_command: Some(KeyCommand(command)), ..Secrets::default() };
        let text =
            Secrets { master_key: Some(SecretSetting::new(key.reveal().as_str())), ..Secrets::default() };
        for secrets in [&file, &command, &text] {
            assert_eq!(secrets.current().unwrap().unwrap().id(), key.id());
        }
        assert!(Secrets::default().current().unwrap().is_none());
        let two = Secrets { master_key: text.master_key, ..file };
        assert!(two.current().unwrap_err().to_string().contains("keep one of them"));
        let other = Secrets { additional_master_key_files: vec![path], ..Secrets::default() };
        assert_eq!(other.others().unwrap()[0].id(), key.id());
    }

    #[test]
    fn invalid_master_key_is_rejected_without_quoting_it() {
        let text = Secrets { master_key: Some(SecretSetting::new("planted")), ..Secrets::default() };
        let message = text.current().unwrap_err().to_string();
        assert!(
            message.starts_with("secrets.master_key: must be 32 random bytes")
                && !message.contains("planted")
        );
        let fails = Secrets { master_key_command: Some(KeyCommand("exit 3".into())), ..Secrets::default() };
        assert!(fails.current().unwrap_err().to_string().contains("run it manually"));
    }
}
