//! A server that all test processes share: the first one that needs it starts it, and it stops after a few seconds
//! without use.
//!
//! Processes coordinate by locks on three files of its folder, which the operating system releases when a process
//! ends for any reason: `starting` is held while a process looks for the server or starts it, `users` is held in
//! shared mode by every user of the server, and `alive` is held by the server and its guard process.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use super::{ErrorContext, Server, server_log};
use crate::WAIT_TIMEOUT;

/// Runs the server until it was unused for 5 s. The folder is renamed before it is removed, so that a process that
/// needs the server in between creates a new folder.
const GUARD_SCRIPT: &str = r#"
folder=$1 gone=$1.$$ crash=$2 idle=0
shift 2
exec 7<&0 # alive
"$@" </dev/null &
server=$!
while kill -0 $server && [ -d "$folder" ]; do
    sleep 1
    if flock -n "$folder/users" true; then idle=$((idle + 1)); else idle=0; fi
    [ $idle -lt 5 ] && continue
    flock -w 5 "$folder/starting" flock -n "$folder/users" mv "$folder" "$gone" && break
    idle=0
done
kill -s $crash $server
wait $server
rm -rf "$gone"
"#;

/// The specifics of one kind of shared server.
pub(crate) trait SharedService {
    /// The part of the folder's name that identifies the kind.
    const NAME: &'static str;

    /// Prepares a server in an empty folder, and returns the command that runs it. Programs that this function runs
    /// must inherit `alive` so that the lock stays held.
    fn prepare(folder: &Path, alive: Stdio) -> Server;

    /// Returns whether the server of this folder is ready.
    fn is_ready(folder: &Path) -> bool;
}

/// Returns the folder of a running shared server, and a file that keeps the server running while it is open.
/// Blocks while the server starts.
pub(crate) fn acquire_shared<S: SharedService>() -> (PathBuf, File) {
    let user = rustix::process::geteuid().as_raw();
    let temp = std::path::absolute(std::env::temp_dir()).expect("a temporary directory has a path");
    let folder = temp.join(format!("redrive-test-{}-{user}", S::NAME));
    let users = find_or_start::<S>(&folder);
    (folder, users)
}

fn find_or_start<S: SharedService>(folder: &Path) -> File {
    let _starting = lock_starting(folder);
    let path = folder.join("users");
    let users = File::create(&path).with_context(&path);
    users.lock_shared().with_context(&path);

    let (started, mut starts) = (Instant::now(), 0);
    loop {
        let late = started.elapsed() > 3 * WAIT_TIMEOUT || starts > 5;
        assert!(!late, "no server in {}; its log:\n{}", folder.display(), server_log(folder));
        if let Some(alive) = lock_alive(folder) {
            start::<S>(folder, alive);
            starts += 1;
        }
        if S::is_ready(folder) {
            return users;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Takes the `starting` lock, by which one process at a time looks for the server, in a folder that is not being
/// removed.
fn lock_starting(folder: &Path) -> File {
    let path = folder.join("starting");
    loop {
        match fs::DirBuilder::new().mode(0o711).create(folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => created.with_context(folder),
        }
        let file = match File::create(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file.with_context(&path),
        };
        file.lock().with_context(&path);
        // While this process waited, the guard may have renamed the folder, with this file in it.
        let ours = file.metadata().with_context(&path).ino();
        if fs::metadata(&path).is_ok_and(|there| there.ino() == ours) {
            return file;
        }
    }
}

/// Takes the `alive` lock. Returns `None` if a server holds it.
fn lock_alive(folder: &Path) -> Option<File> {
    let path = folder.join("alive");
    let file = File::create(&path).with_context(&path);
    match file.try_lock() {
        Ok(()) => Some(file),
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Error(error)) => panic!("{}: {error}", path.display()),
    }
}

/// Removes what an earlier server left behind, starts a server, and passes the lock to it.
fn start<S: SharedService>(folder: &Path, alive: File) {
    let path = folder.join("alive");
    for entry in fs::read_dir(folder).with_context(folder) {
        let path = entry.with_context(folder).path();
        if ["starting", "users", "alive"].iter().any(|lock| path.ends_with(lock)) {
            continue;
        }
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed.with_context(&path),
        }
    }
    let server = S::prepare(folder, Stdio::from(alive.try_clone().with_context(&path)));
    // The guard is not a child of this process, so that it outlives it.
    let mut keeper = server.shell(&["--fork"], GUARD_SCRIPT);
    let started = keeper.stdin(alive).status().expect("no `setsid` command here");
    assert!(started.success(), "setsid failed with {started}");
}
