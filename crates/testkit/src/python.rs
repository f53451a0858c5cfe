//! Python environments for what only Python has: the official verifiers and API fuzzers.
//!
//! An environment is made once per target directory and shared by all tests, in whatever process.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::install_once::{made_once, run, target_dir};

/// The Python of an environment that holds these packages (as `pip install` takes them).
///
/// Blocks while the environment is made. Panics with pip's output when that fails.
pub fn python_with(packages: &[&str]) -> PathBuf {
    environment(&target_dir(), packages)
}

fn environment(target: &Path, packages: &[&str]) -> PathBuf {
    let home = made_once(target, "venv", packages, |home| {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(home), NO_VENV);
        if !packages.is_empty() {
            let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
            run(Command::new(home.join("bin/python")).args(pip).args(packages), NO_PACKAGES);
        }
    });
    home.join("bin/python")
}

const NO_VENV: &str = "if Python cannot make environments here, run: apt-get install python3-venv";
const NO_PACKAGES: &str = "pip must reach a package index, or have one set up: see `pip config list`";

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
