//! This node among others: its name, what it is there for, and when it counts as dead.

use redrive_core::{Role, time::Span};

use super::{Backend, Config, ConfigError};

/// The longest name of a node; host names are no longer.
const LONGEST: usize = 64;

/// This machine's name, as far as it can be used for a node.
pub(super) fn host_name() -> String {
    let name = usable(&rustix::system::uname().nodename().to_string_lossy());
    if name.is_empty() { "redrive".into() } else { name }
}

fn usable(name: &str) -> String {
    name.trim().chars().map(|c| if is_plain(c) { c } else { '-' }).take(LONGEST).collect()
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._-".contains(c)
}

impl Config {
    /// Checks what this node is among others.
    pub(super) fn validate_node(&self) -> Result<(), ConfigError> {
        let refuse =
            |setting: &str, reason: String| Err(ConfigError::Invalid { setting: setting.into(), reason });
        if !(1..=LONGEST).contains(&self.node.len()) || !self.node.chars().all(is_plain) {
            let reason = format!("must be 1 to {LONGEST} characters: letters, digits, '.', '_' and '-'");
            return refuse("node", reason);
        }
        if !(Span::secs(1)..=Span::secs(300)).contains(&self.cluster.lease) {
            return refuse("cluster.lease", "must be from 1s to 5m".into());
        }
        if self.role != Role::All && matches!(self.database.backend()?, Backend::Sqlite(_)) {
            let reason = format!(
                "is {}, but a SQLite database belongs to one process, which has to do everything; leave the role \
                 out, or share a PostgreSQL database with --database-url postgres://USER@HOST/DATABASE",
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

    fn said(change: impl FnOnce(&mut Config)) -> String {
        let mut config = Config::defaults(Profile::Serve);
        change(&mut config);
        config.validate(Profile::Serve).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_node_has_a_usable_name() {
        assert_eq!(said(|_| ()), "", "the host's name will do");
        assert_eq!(usable(" web-1.example\n"), "web-1.example");
        assert_eq!(usable("mein Rechner"), "mein-Rechner");
        assert_eq!(said(|config| config.node = "web-1".into()), "");
        for name in ["", "two words", "a#1", &"n".repeat(65)] {
            assert!(said(|config| config.node = name.into()).starts_with("node: must be 1 to 64"), "{name}");
        }
    }

    #[test]
    fn a_file_is_for_a_node_that_does_everything() {
        for role in [Role::Api, Role::Worker] {
            let refused = said(|config| config.role = role);
            assert!(refused.starts_with(&format!("role: is {role}, but")), "{refused}");
            let shared = said(|config| {
                config.role = role;
                config.database.url = "postgres://db/redrive".into();
            });
            assert_eq!(shared, "");
        }
    }

    #[test]
    fn a_lease_is_neither_too_short_nor_too_long() {
        for (lease, fits) in [(999, false), (1_000, true), (300_000, true), (300_001, false)] {
            let refused = said(|config| config.cluster.lease = Span::millis(lease));
            assert_eq!(refused.is_empty(), fits, "{refused}");
        }
    }
}
