//! Checks whether commits of a database server survive a crash of that server.

use serde::Serialize;

/// The PostgreSQL settings that decide this, as they are in a session of Redrive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Durability {
    /// What a commit waits for.
    pub synchronous_commit: String,
    /// Whether the server flushes what it writes.
    pub fsync: bool,
    /// Whether a partially written page can be restored.
    pub full_page_writes: bool,
}

impl Durability {
    /// Builds it from the texts that `SHOW` returns.
    pub fn from_settings(synchronous_commit: &str, fsync: &str, full_page_writes: &str) -> Self {
        Self {
            synchronous_commit: synchronous_commit.to_owned(),
            fsync: fsync == "on",
            full_page_writes: full_page_writes == "on",
        }
    }

    /// Returns why an acknowledged event could be lost and how to fix it, or `None` if it could not.
    ///
    /// `local` and `remote_write` count as unsafe: with synchronous standbys an event could be acknowledged before
    /// the standby that takes over has it on disk. Without standbys they mean the same as `on`, so requiring `on`
    /// costs nothing.
    pub fn risk(&self) -> Option<String> {
        let is_synchronous = matches!(&*self.synchronous_commit, "on" | "remote_apply");
        let (setting, value) = match (is_synchronous, self.fsync, self.full_page_writes) {
            (true, true, true) => return None,
            (_, false, _) => ("fsync", "off"),
            (_, _, false) => ("full_page_writes", "off"),
            (false, ..) => ("synchronous_commit", &*self.synchronous_commit),
        };
        Some(format!(
            "{setting} is {value}, so a crash of the database server can lose acknowledged events; run ALTER SYSTEM \
             SET {setting} = on, then SELECT pg_reload_conf()"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_flushed_commits_are_safe() {
        for (synchronous_commit, fsync, full_page_writes, setting) in [
            ("on", "on", "on", None),
            ("remote_apply", "on", "on", None),
            ("off", "on", "on", Some("synchronous_commit is off")),
            ("local", "on", "on", Some("synchronous_commit is local")),
            ("remote_write", "on", "on", Some("synchronous_commit is remote_write")),
            ("", "on", "on", Some("synchronous_commit is ")),
            ("on", "off", "on", Some("fsync is off")),
            ("on", "on", "off", Some("full_page_writes is off")),
            ("off", "off", "off", Some("fsync is off")),
        ] {
            let risk = Durability::from_settings(synchronous_commit, fsync, full_page_writes).risk();
            match setting {
                None => assert_eq!(risk, None),
                Some(setting) => {
                    let risk = risk.unwrap_or_default();
                    assert!(risk.starts_with(setting) && risk.contains("pg_reload_conf()"), "{risk}");
                }
            }
        }
    }
}
