//! What throwaway servers have in common: a keeper that ends them with their test, one server for all test
//! processes, free ports, the user who runs them, certificates.

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
    process_guard::{Keeper, Server},
    shared::{Sharing, share},
};

/// Who runs a server where it is not us.
#[derive(Clone, Copy)]
pub(crate) struct User(Option<(u32, u32)>);

impl User {
    /// Ourselves.
    pub(crate) const US: Self = Self(None);

    /// The first of these users that is here when we are root, for servers that root should not run.
    pub(crate) fn other_than_root(names: &[&str], remedy: &str) -> Self {
        Self(rustix::process::geteuid().is_root().then(|| {
            let users = fs::read_to_string("/etc/passwd").expect("a system has users");
            names.iter().find_map(|name| user_in(&users, name)).unwrap_or_else(|| panic!("{remedy}"))
        }))
    }

    /// What makes `setpriv` run a program as this user.
    pub(crate) fn words(self) -> Vec<String> {
        let Some((user, group)) = self.0 else { return Vec::new() };
        vec![format!("--reuid={user}"), format!("--regid={group}"), "--clear-groups".to_owned()]
    }

    /// Gives a file to this user, for nobody else to read.
    pub(crate) fn give(self, path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).told(path);
        if let Some((user, group)) = self.0 {
            std::os::unix::fs::chown(path, Some(user), Some(group)).told(path);
        }
    }

    /// Makes a folder for this user in one that is ours, and lets the user through to it.
    pub(crate) fn make_folder(self, folder: &Path, name: &str) -> PathBuf {
        fs::set_permissions(folder, Permissions::from_mode(0o711)).told(folder);
        let path = folder.join(name);
        fs::create_dir(&path).told(&path);
        self.give(&path, 0o700);
        path
    }
}

/// The ids of a user and its group in the text of `/etc/passwd`.
fn user_in(users: &str, name: &str) -> Option<(u32, u32)> {
    let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut ids = line.split(':').skip(2).map(|id| id.parse().ok());
    Some((ids.next()??, ids.next()??))
}

/// A port that is free now, below those that systems hand out: nobody gets it by chance while its server
/// is stopped.
pub(crate) fn free_port() -> u16 {
    let mut ports = (0..1000).map(|n| 20_000 + (RandomState::new().hash_one(n) % 12_000) as u16);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("no free port on 127.0.0.1")
}

/// What the server and its keeper have said.
pub(crate) fn said(folder: &Path) -> String {
    fs::read_to_string(folder.join("log")).unwrap_or_default()
}

/// An error in a panic's message with the file it is about.
pub(crate) trait Told<T> {
    fn told(self, path: &Path) -> T;
}

impl<T> Told<T> for io::Result<T> {
    fn told(self, path: &Path) -> T {
        self.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }
}

/// Does slow work where it holds up no other futures; panics as it does.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))
}

/// Runs a future to its end on this thread, which must not be one that runs futures already.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("no runtime").block_on(future)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let users =
            "postgres2:x:7:8::/:\nroot:x:0:0:root:/root:/bin/bash\npostgres:x:101:104:,,,:/:/bin/sh\n";
        assert_eq!(user_in(users, "postgres"), Some((101, 104)));
        assert_eq!(user_in(users, "nobody"), None);
    }
}
