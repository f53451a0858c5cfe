//! Python environments for tools that exist only in Python: the official verifiers and API fuzzers.
//!
//! An environment is created once per target directory and shared by all test processes.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::install_once::{install_once, run, target_dir};

/// Returns the Python of an environment with these packages (in the syntax of `pip install`).
///
/// Blocks while the environment is created. Panics with pip's output if that fails.
pub fn python_with(packages: &[&str]) -> PathBuf {
    environment(&target_dir(), packages)
}

fn environment(target: &Path, packages: &[&str]) -> PathBuf {
    let folder = install_once(target, "venv", packages, |folder| {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder), NO_VENV);
        if !packages.is_empty() {
            let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
            run(Command::new(folder.join("bin/python")).args(pip).args(packages), NO_PACKAGES);
        }
    });
    folder.join("bin/python")
}

const NO_VENV: &str = "if Python cannot make environments here, run: apt-get install python3-venv";
const NO_PACKAGES: &str = "pip must reach a package index, or have one set up: see `pip config list`";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_is_created_once() {
        let dir = tempfile::TempDir::new().unwrap();
        let makers: Vec<_> = (0..2)
            .map(|_| dir.path().to_path_buf())
            .map(|target| std::thread::spawn(move || environment(&target, &[])))
            .collect();
        let pythons: Vec<_> = makers.into_iter().map(|maker| maker.join().unwrap()).collect();
        assert_eq!(pythons[0], pythons[1]);
        let prefix =
            Command::new(&pythons[0]).args(["-c", "import sys; print(sys.prefix)"]).output().unwrap();
        let folder = pythons[0].ancestors().nth(2).unwrap();
        assert_eq!(String::from_utf8_lossy(&prefix.stdout).trim(), folder.display().to_string());
    }

    #[test]
    #[should_panic(expected = "apt-get install python3-venv")]
    fn failed_install_panics_with_a_hint() {
        run(Command::new("python3").args(["-c", "raise SystemExit(1)"]), NO_VENV);
    }
}
