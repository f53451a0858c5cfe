//! Whether a commit of a database server survives a crash of that server.

use serde::Serialize;

/// The settings of a PostgreSQL server that decide it, as a session of ours has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Durability {
    /// What a commit waits for.
    pub synchronous_commit: String,
    /// Whether the server flushes what it writes.
    pub fsync: bool,
    /// Whether a page that was written half can be restored.
    pub full_page_writes: bool,
}

impl Durability {
    /// From the texts that `SHOW` returns.
    pub fn from_settings(synchronous_commit: &str, fsync: &str, full_page_writes: &str) -> Self {
        Self {
            synchronous_commit: synchronous_commit.to_owned(),
            fsync: fsync == "on",
            full_page_writes: full_page_writes == "on",
        }
    }

    /// Why an acknowledged event could be lost, with what to do about it. Returns `None` if it could not.
    ///
    /// `local` and `remote_write` count as unsafe: with synchronous standbys an event could be acknowledged before
    /// the standby that takes over has it on disk. Without standbys they mean the same as `on`, so nothing is lost by
    /// asking for `on`.
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
