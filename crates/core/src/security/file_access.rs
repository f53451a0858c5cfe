//! Checks whether a secret file is readable by others than the process that uses it, and suggests the fix.

/// The users and groups that a process acts as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessIds {
    /// Its effective user.
    pub user: u32,
    /// Its groups.
    pub groups: Vec<u32>,
}

/// Owner and permissions of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileAccess {
    /// The permission bits, as for `chmod`.
    pub mode: u32,
    /// The user who owns it.
    pub user: u32,
    /// The group that owns it.
    pub group: u32,
}

const GROUP: u32 = 0o070;
const OTHERS: u32 = 0o007;

impl FileAccess {
    /// Returns the command that removes access for others, with `path` quoted for a shell, or `None` if others have
    /// no access.
    ///
    /// Its group may have access only if another user owns the file: that is how a mounted secret, owned by root, is
    /// made readable for a process that does not run as root.
    pub fn fix(&self, process: &ProcessIds, path: &str) -> Option<String> {
        let is_own = self.user == process.user;
        let forbidden = if is_own { GROUP | OTHERS } else { OTHERS };
        if self.mode & forbidden == 0 {
            return None;
        }
        let path = quote(path);
        Some(match (is_own, process.groups.contains(&self.group)) {
            (true, _) => format!("chmod {:o} {path}", self.mode & 0o700 | 0o400),
            (false, true) => format!("chmod {:o} {path}", self.mode & 0o750 | 0o440),
            // Without access for others the process could no longer read it.
            (false, false) => format!("chown {} {path} && chmod 400 {path}", process.user),
        })
    }
}

/// Quotes a path as one word of a shell command line.
fn quote(path: &str) -> String {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "/._-+=:@%".contains(char);
    match !path.is_empty() && path.chars().all(is_plain) {
        true => path.to_owned(),
        false => format!("'{}'", path.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fix(mode: u32, user: u32, group: u32) -> Option<String> {
        let process = ProcessIds { user: 1000, groups: vec![1000, 2000] };
        FileAccess { mode, user, group }.fix(&process, "/run/master.key")
    }

    #[test]
    fn own_file_must_not_be_readable_by_group_or_others() {
        for closed in [0o600, 0o400, 0o700] {
            assert_eq!(fix(closed, 1000, 1000), None);
        }
        for open in [0o644, 0o640, 0o604, 0o660, 0o666, 0o602, 0o677] {
            assert_eq!(fix(open, 1000, 1000).as_deref(), Some("chmod 600 /run/master.key"), "{open:o}");
        }
        assert_eq!(fix(0o444, 1000, 1000).as_deref(), Some("chmod 400 /run/master.key"));
    }

    #[test]
    fn file_of_another_user_may_be_read_by_its_group() {
        for closed in [0o640, 0o440, 0o660, 0o600] {
            assert_eq!(fix(closed, 0, 2000), None, "{closed:o}");
        }
        assert_eq!(fix(0o644, 0, 2000).as_deref(), Some("chmod 640 /run/master.key"));
        assert_eq!(fix(0o444, 0, 2000).as_deref(), Some("chmod 440 /run/master.key"));
        assert_eq!(
            fix(0o444, 0, 0).as_deref(),
            Some("chown 1000 /run/master.key && chmod 400 /run/master.key")
        );
    }

    #[test]
    fn path_is_quoted_for_a_shell() {
        assert_eq!(quote("/a/b-1.key"), "/a/b-1.key");
        assert_eq!(quote("/a b/it's"), r"'/a b/it'\''s'");
        assert_eq!(quote("$(x)"), "'$(x)'");
    }
}
