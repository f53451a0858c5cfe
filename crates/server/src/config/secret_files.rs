//! Secret files: lists them and checks that other users cannot read them.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use redrive_core::security::file_access::{FileAccess, ProcessIds};
use rustix::process::{Gid, getegid, geteuid, getgroups};
use toml::{Table, Value};

use super::{Config, ConfigError, Profile, settings::is_secret};
use crate::shell::shell_word;

/// A secret file that other users can read or change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExposedFile {
    /// The setting that names the file, or whose value it holds.
    pub setting: String,
    /// Path of the file.
    pub path: PathBuf,
    /// Command that restricts the file's permissions.
    pub fix: String,
}

impl From<ExposedFile> for ConfigError {
    fn from(exposed: ExposedFile) -> Self {
        let ExposedFile { setting, path, fix } = exposed;
        Self::Exposed { setting, path, fix }
    }
}

impl Config {
    /// Rejects secret files that other users can read or change; the development profile only logs them.
    pub(crate) fn check_secret_files(&self, profile: Profile) -> Result<(), ConfigError> {
        match (profile, self.exposed_files().into_iter().next()) {
            (Profile::Serve, Some(exposed)) => Err(exposed.into()),
            _ => {
                self.warn_of_exposed_files();
                Ok(())
            }
        }
    }

    /// Logs the secret files that other users can read or change.
    pub(crate) fn warn_of_exposed_files(&self) {
        for ExposedFile { setting, path, fix } in self.exposed_files() {
            warn(&setting, &path, &fix);
        }
    }

    /// Returns the secret files that other users can read or change.
    pub fn exposed_files(&self) -> Vec<ExposedFile> {
        let named = self.secret_files().into_iter().map(|(setting, path)| (setting.to_owned(), path));
        let written = self.file_with_secret.as_ref().map(|(setting, path)| (setting.clone(), path.as_path()));
        let exposed = |(setting, path): (String, &Path)| {
            Some(ExposedFile { setting, path: path.to_owned(), fix: fix_for(path)? })
        };
        named.chain(written).filter_map(exposed).collect()
    }

    /// Returns the configured secret files, each with the setting that names it.
    fn secret_files(&self) -> Vec<(&'static str, &Path)> {
        let Self { auth, oidc, archive, database, redis, amqp, tracing, smtp, secrets, server, .. } = self;
        let named = [
            ("auth.admin_key_file", &auth.admin_key_file),
            ("oidc.client_secret_file", &oidc.client_secret_file),
            ("archive.secret_access_key_file", &archive.secret_access_key_file),
            ("database.password_file", &database.password_file),
            ("redis.password_file", &redis.password_file),
            ("amqp.password_file", &amqp.password_file),
            ("tracing.otlp_headers_file", &tracing.otlp_headers_file),
            ("smtp.password_file", &smtp.password_file),
            ("secrets.master_key_file", &secrets.master_key_file),
            ("server.tls_key", &server.tls_key),
        ];
        let named = named.into_iter().filter_map(|(setting, path)| Some((setting, path.as_deref()?)));
        let others = &secrets.additional_master_key_files;
        let others = others.iter().map(|path| ("secrets.additional_master_key_files", path.as_path()));
        let sources = self.sources.iter().filter_map(|source| source.password_file.as_deref());
        let sources = sources.map(|path| ("sources.password_file", path));
        named.chain(others).chain(sources).collect()
    }
}

fn warn(setting: &str, path: &Path, fix: &str) {
    let path = path.display();
    ::tracing::warn!(setting, %path, fix, "secret file is accessible to other users");
}

/// Logs a file created by this server if other users can read or change it.
pub(crate) fn warn_if_exposed(path: &Path) {
    if let Some(fix) = fix_for(path) {
        warn("", path, &fix);
    }
}

/// Returns the first setting in a configuration file whose value is a secret.
pub(super) fn secret_in(table: &Table) -> Option<String> {
    let mut tables = vec![(String::new(), table)];
    while let Some((prefix, table)) = tables.pop() {
        for (name, value) in table {
            let setting = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            match value {
                Value::Table(inner) => tables.push((setting, inner)),
                Value::Array(items) if setting == "sources" => {
                    tables.extend(items.iter().filter_map(|item| Some((setting.clone(), item.as_table()?))));
                }
                Value::String(text) if holds_secret(&setting, text) => return Some(setting),
                _ => {}
            }
        }
    }
    None
}

fn holds_secret(setting: &str, text: &str) -> bool {
    match setting.ends_with(".url") {
        // A URL is a secret only if it contains a password.
        true => url::Url::parse(text).is_ok_and(|url| url.password().is_some()),
        false => is_secret(setting) || setting == "sources.password",
    }
}

/// Returns the command that restricts a file's permissions. Returns `None` if other users have no access, or if
/// the path is not a regular file (a pipe can be read only once).
pub(crate) fn fix_for(path: &Path) -> Option<String> {
    // Follows symlinks: mounted secrets are links into a folder that is replaced as a whole.
    let file = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let user = geteuid().as_raw();
    let groups = std::iter::once(getegid()).chain(getgroups().unwrap_or_default()).map(Gid::as_raw).collect();
    let access = FileAccess { mode: file.mode() & 0o777, user: file.uid(), group: file.gid() };
    access.fix(&ProcessIds { user, groups }, &shell_word(&path.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;
    use crate::config::{Profile, load::parse};

    #[test]
    fn exposed_secret_file_is_reported_with_fix() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let link = folder.path().join("link");
        fs::write(&path, "a secret").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let exposed = |mode, setting: &str| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let config = parse(Profile::Serve, &format!("{setting} = {link:?}"), []).unwrap();
            config.exposed_files().first().map(|file| (file.setting.clone(), file.fix.clone()))
        };
        for setting in
            ["auth.admin_key_file", "secrets.master_key_file", "smtp.password_file", "server.tls_key"]
        {
            assert_eq!(exposed(0o600, setting), None);
            let fix = format!("chmod 600 {}", link.display());
            assert_eq!(exposed(0o644, setting), Some((setting.to_owned(), fix)));
        }
    }

    #[test]
    fn secret_in_configuration_file_is_detected() {
        let secret = |text: &str| secret_in(&text.parse().unwrap());
        assert_eq!(secret("[auth]\nadmin_key = \"x\"").as_deref(), Some("auth.admin_key"));
        let url = "[database]\nurl = \"postgres://me:pw@db/x\"";
        assert_eq!(secret(url).as_deref(), Some("database.url"));
        assert_eq!(secret("[[sources]]\npassword = \"x\"").as_deref(), Some("sources.password"));
        for open in ["[database]\nurl = \"postgres://me@db/x\"", "[auth]\nadmin_key_file = \"/x\"", ""] {
            assert_eq!(secret(open), None, "{open}");
        }
    }
}
