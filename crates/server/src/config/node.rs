//! Node settings: the node's name, its role and the lease after which it is declared dead.

use redrive_core::{Role, time::HumanDuration};

use super::{Backend, Config, ConfigError};

/// Maximum length of a node's name; host names are not longer.
const MAX_NODE_NAME_BYTES: usize = 64;

/// Returns this machine's host name, with characters replaced that a node name must not have.
pub(super) fn host_name() -> String {
    let name = usable(&rustix::system::uname().nodename().to_string_lossy());
    if name.is_empty() { "redrive".into() } else { name }
}

fn usable(name: &str) -> String {
    name.trim().chars().map(|c| if is_plain(c) { c } else { '-' }).take(MAX_NODE_NAME_BYTES).collect()
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._-".contains(c)
}

impl Config {
    /// Checks the node's name, lease and role.
    pub(super) fn validate_node(&self) -> Result<(), ConfigError> {
        let refuse =
            |setting: &str, reason: String| Err(ConfigError::Invalid { setting: setting.into(), reason });
        if !(1..=MAX_NODE_NAME_BYTES).contains(&self.node.len()) || !self.node.chars().all(is_plain) {
            let reason =
                format!("must be 1 to {MAX_NODE_NAME_BYTES} characters: letters, digits, '.', '_' and '-'");
            return refuse("node", reason);
        }
        if !(HumanDuration::secs(1)..=HumanDuration::secs(300)).contains(&self.cluster.lease) {
            return refuse("cluster.lease", "must be from 1s to 5m".into());
        }
        if self.role != Role::All && matches!(self.database.backend()?, Backend::Sqlite(_)) {
            let reason = format!(
                "is {}, but a SQLite database supports one process only; omit the role, \
                 or share a PostgreSQL database with --database-url postgres://USER@HOST/DATABASE",
                self.role
            );
            return refuse("role", reason);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Profile;

    fn error_text(change: impl FnOnce(&mut Config)) -> String {
        let mut config = Config::defaults(Profile::Serve);
        change(&mut config);
        config.validate(Profile::Serve).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn invalid_node_name_is_rejected() {
        assert_eq!(error_text(|_| ()), "", "the host's name will do");
        assert_eq!(usable(" web-1.example\n"), "web-1.example");
        assert_eq!(usable("mein Rechner"), "mein-Rechner");
        assert_eq!(error_text(|config| config.node = "web-1".into()), "");
        for name in ["", "two words", "a#1", &"n".repeat(65)] {
            assert!(
                error_text(|config| config.node = name.into()).starts_with("node: must be 1 to 64"),
                "{name}"
            );
        }
    }

    #[test]
    fn partial_role_with_sqlite_is_rejected() {
        for role in [Role::Api, Role::Worker] {
            let refused = error_text(|config| config.role = role);
            assert!(refused.starts_with(&format!("role: is {role}, but")), "{refused}");
            let shared = error_text(|config| {
                config.role = role;
                config.database.url = "postgres://db/redrive".into();
            });
            assert_eq!(shared, "");
        }
    }

    #[test]
    fn lease_out_of_range_is_rejected() {
        for (lease, fits) in [(999, false), (1_000, true), (300_000, true), (300_001, false)] {
            let refused = error_text(|config| config.cluster.lease = HumanDuration::millis(lease));
            assert_eq!(refused.is_empty(), fits, "{refused}");
        }
    }
}
