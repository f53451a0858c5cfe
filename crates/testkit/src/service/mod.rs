//! Common parts of throwaway servers: a guard process that ends them with their test, one server shared by all
//! test processes, free ports, the user that runs them, and certificates.

mod certificates;
mod process_guard;
mod shared;

use std::{
    fs::{self, Permissions},
    future::Future,
    hash::{BuildHasher, RandomState},
    io,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

pub(crate) use self::{
    certificates::make_certificates,
    process_guard::{ProcessGuard, Server},
    shared::{SharedService, acquire_shared},
};

/// The user id and group id that a server runs as, if they differ from those of the tests.
#[derive(Clone, Copy)]
pub(crate) struct User(Option<(u32, u32)>);

impl User {
    /// The user who runs the tests.
    pub(crate) const CURRENT_USER: Self = Self(None);

    /// Returns the first of these users that exists if the tests run as root, for servers that should not run as root.
    pub(crate) fn other_than_root(names: &[&str], remedy: &str) -> Self {
        Self(rustix::process::geteuid().is_root().then(|| {
            let users = fs::read_to_string("/etc/passwd").expect("a system has users");
            names.iter().find_map(|name| user_in(&users, name)).unwrap_or_else(|| panic!("{remedy}"))
        }))
    }

    /// Returns the arguments that make `setpriv` run a program as this user.
    pub(crate) fn words(self) -> Vec<String> {
        let Some((user, group)) = self.0 else { return Vec::new() };
        vec![format!("--reuid={user}"), format!("--regid={group}"), "--clear-groups".to_owned()]
    }

    /// Sets a file's mode and makes this user its owner.
    pub(crate) fn give(self, path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).with_context(path);
        if let Some((user, group)) = self.0 {
            std::os::unix::fs::chown(path, Some(user), Some(group)).with_context(path);
        }
    }

    /// Creates a folder for this user, and makes its parent folder passable for the user.
    pub(crate) fn make_folder(self, folder: &Path, name: &str) -> PathBuf {
        fs::set_permissions(folder, Permissions::from_mode(0o711)).with_context(folder);
        let path = folder.join(name);
        fs::create_dir(&path).with_context(&path);
        self.give(&path, 0o700);
        path
    }
}

/// Finds the ids of a user and its group in the text of `/etc/passwd`.
fn user_in(users: &str, name: &str) -> Option<(u32, u32)> {
    let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut ids = line.split(':').skip(2).map(|id| id.parse().ok());
    Some((ids.next()??, ids.next()??))
}

/// Returns a free port below the ephemeral range, so that no other process is assigned it while its server is
/// stopped.
pub(crate) fn free_port() -> u16 {
    let mut ports = (0..1000).map(|n| 20_000 + (RandomState::new().hash_one(n) % 12_000) as u16);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("no free port on 127.0.0.1")
}

/// Returns the output of the server and its guard process.
pub(crate) fn server_log(folder: &Path) -> String {
    fs::read_to_string(folder.join("log")).unwrap_or_default()
}

/// Adds the path of a file to an error in a panic message.
pub(crate) trait ErrorContext<T> {
    fn with_context(self, path: &Path) -> T;
}

impl<T> ErrorContext<T> for io::Result<T> {
    fn with_context(self, path: &Path) -> T {
        self.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }
}

/// Runs blocking work on a thread where it delays no other futures; propagates its panic.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))
}

/// Runs a future to completion on this thread, which must not be part of an async runtime.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("no runtime").block_on(future)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_is_found_by_its_full_name() {
        let users =
            "postgres2:x:7:8::/:\nroot:x:0:0:root:/root:/bin/bash\npostgres:x:101:104:,,,:/:/bin/sh\n";
        assert_eq!(user_in(users, "postgres"), Some((101, 104)));
        assert_eq!(user_in(users, "nobody"), None);
    }
}
