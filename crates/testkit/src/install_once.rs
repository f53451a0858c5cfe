//! What is made once per target directory and shared by all tests, in whatever process: environments of other
//! languages, with packages of theirs.

use std::{
    ffi::OsStr,
    fs::{self, File},
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
};

/// A folder that holds these packages, made by `make` unless somebody has made it already.
///
/// Blocks while it is made, by whomever.
pub(crate) fn made_once(target: &Path, kind: &str, packages: &[&str], make: impl FnOnce(&Path)) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    packages.hash(&mut hasher);
    let home = target.join(format!("test-{kind}-{:016x}", hasher.finish()));
    let ready = home.join("ready");

    // Other test processes may want the same at the same moment: one makes it, the rest wait.
    let path = home.with_extension("lock");
    let lock = File::create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    lock.lock().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if !ready.exists() {
        make(&home);
        fs::write(&ready, packages.join("\n")).expect("what was made can be written to");
    }
    home
}

/// Runs a command, and panics with what it said and how to mend it if it fails.
pub(crate) fn run(command: &mut Command, mend: &str) {
    let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
    let line = words.join(OsStr::new(" ")).display().to_string();
    let output = command.output().unwrap_or_else(|error| panic!("`{line}` did not start: {error}; {mend}"));
    assert!(
        output.status.success(),
        "`{line}` failed with {}:\n{}{}\n{mend}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
}

/// The directory above the profile's: a test runs as `<target>/debug/deps/<test>`.
pub(crate) fn target_dir() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    test.ancestors().nth(3).expect("a test runs inside the target directory").to_path_buf()
}
