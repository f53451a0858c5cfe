//! A server that all test processes share: the first to need it starts it, and it goes by itself when nobody
//! has used it for a few seconds.
//!
//! Locks on three files of its folder tell who does what, and the system lets go of the locks of a process
//! that is gone, however it went: `starting` is held by one who looks for the server or starts it, `users`
//! is shared by all who use it, and `alive` is held by the server and its keeper.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use super::{Server, Told, said};
use crate::PATIENCE;

/// Runs the server until nobody has used it for 5 s. The folder is moved away before it is removed, so that
/// who comes meanwhile makes a new one.
const KEEPER: &str = r#"
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

/// What is particular about a server that is shared.
pub(crate) trait Sharing {
    /// What it is called in the name of its folder.
    const NAME: &'static str;

    /// Makes what a server needs in a folder that has nothing of it, and says how to run it. Programs that this
    /// runs meanwhile are to keep `alive` open.
    fn prepare(folder: &Path, alive: Stdio) -> Server;

    /// Whether the server of this folder is ready.
    fn is_ready(folder: &Path) -> bool;
}

/// The folder of a shared server that is ready, with a file that keeps it so for as long as it is open. Blocks
/// while the server starts.
pub(crate) fn share<S: Sharing>() -> (PathBuf, File) {
    let user = rustix::process::geteuid().as_raw();
    let temp = std::path::absolute(std::env::temp_dir()).expect("a temporary directory has a path");
    let folder = temp.join(format!("redrive-test-{}-{user}", S::NAME));
    let users = find_or_start::<S>(&folder);
    (folder, users)
}

fn find_or_start<S: Sharing>(folder: &Path) -> File {
    let _starting = lock_starting(folder);
    let path = folder.join("users");
    let users = File::create(&path).told(&path);
    users.lock_shared().told(&path);

    let (began, mut starts) = (Instant::now(), 0);
    loop {
        let late = began.elapsed() > 3 * PATIENCE || starts > 5;
        assert!(!late, "no server in {}; it said:\n{}", folder.display(), said(folder));
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

/// Takes the lock that lets one process at a time look for the server, in a folder that is there to stay.
fn lock_starting(folder: &Path) -> File {
    let path = folder.join("starting");
    loop {
        match fs::DirBuilder::new().mode(0o711).create(folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.told(folder),
        }
        let file = match File::create(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file.told(&path),
        };
        file.lock().told(&path);
        // While we waited, the keeper may have taken the folder away with the file in it.
        let ours = file.metadata().told(&path).ino();
        if fs::metadata(&path).is_ok_and(|there| there.ino() == ours) {
            return file;
        }
    }
}

/// The lock of the server, where there is no server.
fn lock_alive(folder: &Path) -> Option<File> {
    let path = folder.join("alive");
    let file = File::create(&path).told(&path);
    match file.try_lock() {
        Ok(()) => Some(file),
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Error(error)) => panic!("{}: {error}", path.display()),
    }
}

/// Starts a server in place of whatever an earlier one left behind, and hands the lock over to it.
fn start<S: Sharing>(folder: &Path, alive: File) {
    let path = folder.join("alive");
    for entry in fs::read_dir(folder).told(folder) {
        let path = entry.told(folder).path();
        if ["starting", "users", "alive"].iter().any(|lock| path.ends_with(lock)) {
            continue;
        }
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed.told(&path),
        }
    }
    let server = S::prepare(folder, Stdio::from(alive.try_clone().told(&path)));
    // The keeper is nobody's child, so that it outlives this process.
    let mut keeper = server.shell(&["--fork"], KEEPER);
    let started = keeper.stdin(alive).status().expect("no `setsid` command here");
    assert!(started.success(), "setsid failed with {started}");
}
