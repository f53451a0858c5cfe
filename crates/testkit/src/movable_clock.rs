//! A wall clock, based on libfaketime, that a test moves while a server runs. Monotonic clocks are not affected.

use std::{ffi::OsString, fs, os::unix::fs::PermissionsExt, path::Path};

use tempfile::TempDir;

/// Paths where Debian's package `libfaketime` installs the library for multi-threaded programs.
const LIBRARIES: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
];

/// The wall clock of the processes that are started with this environment.
pub struct MovableClock {
    folder: TempDir,
    library: &'static str,
}

impl MovableClock {
    /// Creates a clock that shows the correct time; panics with an installation hint if libfaketime is missing.
    pub fn new() -> Self {
        let library = LIBRARIES.into_iter().find(|path| Path::new(path).exists());
        let library =
            library.expect("the test needs libfaketime; install it with: sudo apt-get install faketime");
        let folder = TempDir::with_prefix("redrive-test-clock-").expect("no temporary directory");
        // A server may run as another user.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("cannot share a folder");
        let clock = Self { folder, library };
        clock.set_offset_seconds(0);
        clock
    }

    /// Sets the offset from the correct time, in seconds.
    pub fn set_offset_seconds(&self, seconds: i64) {
        let (new, file) = (self.folder.path().join("new"), self.folder.path().join("offset"));
        fs::write(&new, format!("{seconds:+}\n")).expect("cannot write the offset");
        // Replaced atomically, because every read of the clock reads this file.
        fs::rename(new, file).expect("cannot replace the offset");
    }

    /// Returns the environment for a process that uses this clock.
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        vec![
            ("LD_PRELOAD", self.library.into()),
            ("FAKETIME_TIMESTAMP_FILE", self.folder.path().join("offset").into()),
            ("FAKETIME_NO_CACHE", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
            ("FAKETIME_DONT_RESET", "1".into()),
        ]
    }
}

impl Default for MovableClock {
    fn default() -> Self {
        Self::new()
    }
}
