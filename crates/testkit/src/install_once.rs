//! Installs packages of other languages once per target directory, shared by all test processes.

use std::{
    ffi::OsStr,
    fs::{self, File},
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
};

/// Returns a folder with these packages; runs `install` to create it if it does not exist yet.
///
/// Blocks while this or another process creates it.
pub(crate) fn install_once(
    target: &Path,
    kind: &str,
    packages: &[&str],
    install: impl FnOnce(&Path),
) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    packages.hash(&mut hasher);
    let folder = target.join(format!("test-{kind}-{:016x}", hasher.finish()));
    let ready = folder.join("ready");

    // Other test processes may need the same folder at the same time: one creates it, the rest wait.
    let path = folder.with_extension("lock");
    let lock = File::create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    lock.lock().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if !ready.exists() {
        install(&folder);
        fs::write(&ready, packages.join("\n")).expect("the folder is writable");
    }
    folder
}

/// Runs a command; if it fails, panics with its output and a hint how to fix it.
pub(crate) fn run(command: &mut Command, hint: &str) {
    let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
    let line = words.join(OsStr::new(" ")).display().to_string();
    let output = command.output().unwrap_or_else(|error| panic!("`{line}` did not start: {error}; {hint}"));
    assert!(
        output.status.success(),
        "`{line}` failed with {}:\n{}{}\n{hint}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
}

/// Returns the directory above the profile's: a test runs as `<target>/debug/deps/<test>`.
pub(crate) fn target_dir() -> PathBuf {
    let test = std::env::current_exe().expect("a test has an executable path");
    test.ancestors().nth(3).expect("a test runs inside the target directory").to_path_buf()
}
