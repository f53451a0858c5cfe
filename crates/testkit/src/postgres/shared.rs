//! The server that all test processes share: the first to need it starts it, and it goes by itself when
//! nobody has used it for a few seconds.
//!
//! Locks on three files of its folder tell who does what, and the system lets go of the locks of a process
//! that is gone, however it went: `starting` is held by one who looks for the server or starts it, `users`
//! is shared by all who use it, and `alive` is held by the server and its keeper.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::Path,
    process::Stdio,
    sync::OnceLock,
    time::{Duration, Instant},
};

use super::{
    programs::{Programs, Told, free_port, said},
    session,
};
use crate::PATIENCE;

/// Nothing here has to survive a power cut, and everything should be quick.
const SETTINGS: [&str; 5] = [
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "shared_buffers=64MB",
    "max_connections=400",
];

/// Runs the server until nobody has used it for 5 s. The folder is moved away before it is removed, so that
/// who comes meanwhile makes a new one.
const KEEPER: &str = r#"
folder=$1 gone=$1.$$ idle=0
shift
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
kill -s INT $server
wait $server
rm -rf "$gone"
"#;

struct Shared {
    port: u16,
    /// Locked for as long as this process lives.
    _users: File,
}

/// The port of the shared server, which stays for as long as this process lives. Blocks while it starts.
pub(super) fn port() -> u16 {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    let user = rustix::process::geteuid().as_raw();
    let temp = std::path::absolute(std::env::temp_dir()).expect("a temporary directory has a path");
    SHARED.get_or_init(|| find_or_start(&temp.join(format!("redrive-test-postgres-{user}")))).port
}

fn find_or_start(folder: &Path) -> Shared {
    let _starting = lock_starting(folder);
    let path = folder.join("users");
    let users = File::create(&path).told(&path);
    users.lock_shared().told(&path);

    let (began, mut starts) = (Instant::now(), 0);
    loop {
        let late = began.elapsed() > 3 * PATIENCE || starts > 5;
        assert!(!late, "no server in {}; it said:\n{}", folder.display(), said(folder));
        if let Some(alive) = lock_alive(folder) {
            start(folder, alive);
            starts += 1;
        }
        let port = fs::read_to_string(folder.join("port")).ok().and_then(|port| port.parse().ok());
        if let Some(port) = port
            && session::block_on(session::is_ready(port, folder))
        {
            return Shared { port, _users: users };
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
fn start(folder: &Path, alive: File) {
    let programs = Programs::find();
    for path in [folder.join("data"), folder.join("log"), folder.join("port")] {
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed.told(&path),
        }
    }
    let path = folder.join("alive");
    programs.make_cluster(folder, Stdio::from(alive.try_clone().told(&path)));
    let port = free_port();
    fs::write(folder.join("port"), port.to_string()).told(folder);
    // The keeper is nobody's child, so that it outlives this process.
    let mut keeper = programs.keeper(&["--fork"], KEEPER, folder, port, &SETTINGS);
    let started = keeper.stdin(alive).status().expect("no `setsid` command here");
    assert!(started.success(), "setsid failed with {started}");
}
