//! Python environments for what only Python has: the official verifiers and API fuzzers.
//!
//! An environment is made once per target directory and shared by all tests, in whatever process.

use std::{
    ffi::OsStr,
    fs::{self, File},
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
};

/// The Python of an environment that holds these packages (as `pip install` takes them).
///
/// Blocks while the environment is made. Panics with pip's output when that fails.
pub fn python_with(packages: &[&str]) -> PathBuf {
    environment(&target_dir(), packages)
}

fn environment(target: &Path, packages: &[&str]) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    packages.hash(&mut hasher);
    let home = target.join(format!("test-venv-{:016x}", hasher.finish()));
    let python = home.join("bin/python");
    let ready = home.join("ready");

    // Other test processes may want the same environment at the same moment: one makes it, the rest wait.
    let path = home.with_extension("lock");
    let lock = File::create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    lock.lock().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if !ready.exists() {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&home), NO_VENV);
        if !packages.is_empty() {
            let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
            run(Command::new(&python).args(pip).args(packages), NO_PACKAGES);
        }
        fs::write(&ready, packages.join("\n")).expect("a fresh environment can be written to");
    }
    python
}

const NO_VENV: &str = "if Python cannot make environments here, run: apt-get install python3-venv";
const NO_PACKAGES: &str = "pip must reach a package index, or have one set up: see `pip config list`";

/// Runs a command, and panics with what it said and how to mend it if it fails.
fn run(command: &mut Command, mend: &str) {
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
fn target_dir() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    test.ancestors().nth(3).expect("a test runs inside the target directory").to_path_buf()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_is_made_once() {
        let dir = tempfile::TempDir::new().unwrap();
        let makers: Vec<_> = (0..2)
            .map(|_| dir.path().to_path_buf())
            .map(|target| std::thread::spawn(move || environment(&target, &[])))
            .collect();
        let pythons: Vec<_> = makers.into_iter().map(|maker| maker.join().unwrap()).collect();
        assert_eq!(pythons[0], pythons[1]);
        let prefix =
            Command::new(&pythons[0]).args(["-c", "import sys; print(sys.prefix)"]).output().unwrap();
        let home = pythons[0].ancestors().nth(2).unwrap();
        assert_eq!(String::from_utf8_lossy(&prefix.stdout).trim(), home.display().to_string());
    }

    #[test]
    #[should_panic(expected = "apt-get install python3-venv")]
    fn a_failure_is_told_with_its_remedy() {
        run(Command::new("python3").args(["-c", "raise SystemExit(1)"]), NO_VENV);
    }
}
