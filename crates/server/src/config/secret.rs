//! Secret settings: reads them from files and redacts them in all output.

use std::{fmt, path::Path};

use serde::{Deserialize, Serialize};

use super::{Config, ConfigError};

/// The value of a secret setting, redacted in `Debug` and when serialized.
#[derive(Clone, Deserialize)]
pub struct SecretSetting(String);

impl SecretSetting {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the secret itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl Serialize for SecretSetting {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("[redacted]")
    }
}

/// Reads the secret files of those secrets that are not set directly.
pub(super) fn read_files(config: &mut Config) -> Result<(), ConfigError> {
    let auth = &mut config.auth;
    if let (None, Some(path)) = (&auth.admin_key, &auth.admin_key_file) {
        let key = read_file("auth.admin_key_file", path)?;
        auth.admin_key = Some(SecretSetting::new(key.trim()));
    }
    let oidc = &mut config.oidc;
    if let (None, Some(path)) = (&oidc.client_secret, &oidc.client_secret_file) {
        let secret = read_file("oidc.client_secret_file", path)?;
        oidc.client_secret = Some(SecretSetting::new(secret.trim()));
    }
    let archive = &mut config.archive;
    if let (None, Some(path)) = (&archive.secret_access_key, &archive.secret_access_key_file) {
        let secret = read_file("archive.secret_access_key_file", path)?;
        archive.secret_access_key = Some(SecretSetting::new(secret.trim()));
    }
    let database = &mut config.database;
    if let (None, Some(path)) = (&database.password, &database.password_file) {
        database.password = Some(read_password("database.password_file", path)?);
    }
    let redis = &mut config.redis;
    if let (None, Some(path)) = (&redis.password, &redis.password_file) {
        redis.password = Some(read_password("redis.password_file", path)?);
    }
    let amqp = &mut config.amqp;
    if let (None, Some(path)) = (&amqp.password, &amqp.password_file) {
        amqp.password = Some(read_password("amqp.password_file", path)?);
    }
    let tracing = &mut config.tracing;
    if let (None, Some(path)) = (&tracing.otlp_headers, &tracing.otlp_headers_file) {
        let headers = read_file("tracing.otlp_headers_file", path)?;
        tracing.otlp_headers = Some(SecretSetting::new(headers.trim()));
    }
    let smtp = &mut config.smtp;
    if let (None, Some(path)) = (&smtp.password, &smtp.password_file) {
        smtp.password = Some(read_password("smtp.password_file", path)?);
    }
    for source in &mut config.sources {
        if let (None, Some(path)) = (&source.password, &source.password_file) {
            source.password = Some(read_password("sources.password_file", path)?);
        }
    }
    Ok(())
}

/// Reads a password, removing line ends but no spaces, since a password may end in a space.
fn read_password(setting: &'static str, path: &Path) -> Result<SecretSetting, ConfigError> {
    Ok(SecretSetting::new(read_file(setting, path)?.trim_end_matches(['\n', '\r'])))
}

pub(super) fn read_file(setting: &'static str, path: &Path) -> Result<String, ConfigError> {
    let failed = |reason: String| ConfigError::SecretFile { setting, path: path.to_owned(), reason };
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim().is_empty() => Err(failed("the file is empty".into())),
        Ok(text) => Ok(text),
        Err(error) => Err(failed(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Profile, load::parse};

    #[test]
    fn missing_or_empty_secret_file_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        let loaded = |path: &Path| {
            let file = format!("[database]\npassword_file = {path:?}\nurl = \"postgres://me@db/x\"");
            let mut config = parse(Profile::Serve, &file, []).unwrap();
            read_files(&mut config).map(|()| config.database.password.unwrap())
        };
        let missing = loaded(&path).unwrap_err().to_string();
        assert!(missing.starts_with("database.password_file: ") && missing.contains("check the path"));
        std::fs::write(&path, "\n").unwrap();
        assert!(loaded(&path).unwrap_err().to_string().contains("the file is empty"));
        std::fs::write(&path, "hunter 2 \r\n").unwrap();
        assert_eq!(loaded(&path).unwrap().reveal(), "hunter 2 ");
    }

    #[test]
    fn secrets_are_redacted_in_output_and_errors() {
        let vars = [
            ("REDRIVE_ADMIN_KEY", "s3cret-s3cret"),
            ("REDRIVE_DATABASE_PASSWORD", "s3cret"),
            ("REDRIVE_DATABASE_URL", "postgres://me:s3cret@db/x"),
        ];
        let config =
            parse(Profile::Serve, "", vars.map(|(name, value)| (name.to_owned(), value.to_owned()))).unwrap();
        let shown = format!("{config:?} {}", toml::to_string(&config).unwrap());
        assert!(!shown.contains("s3cret") && shown.contains("postgres://me:[redacted]@db/x"), "{shown}");
        for file in [
            "[database]\nurl = postgres://me:777@db/x",
            "[database]\nurl = \"postgres://me:777@db/x",
            "[database]\nurl = [\"postgres://me:777@db/x\"]",
            "[database]\npassword = 777",
            "[auth]\nadmin_key = 777",
        ] {
            let message = parse(Profile::Serve, file, []).unwrap_err().to_string();
            assert!(!message.contains("777"), "{message}");
            assert!(
                message.contains("line 2: ") || message.ends_with(": must be a string in quotes"),
                "{message}"
            );
        }
    }
}
