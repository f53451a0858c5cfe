//! Node.js packages for browser tests.
//!
//! They are installed once per target directory and shared by all test processes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::install_once::{install_once, run, target_dir};

/// Returns a folder for `NODE_PATH` with these packages (in the syntax of `npm install`).
///
/// Blocks while they are installed. Panics with npm's output if that fails.
pub fn node_with(packages: &[&str]) -> PathBuf {
    modules(&target_dir(), packages)
}

fn modules(target: &Path, packages: &[&str]) -> PathBuf {
    install_once(target, "node", packages, |folder| install(folder, packages)).join("node_modules")
}

fn install(folder: &Path, packages: &[&str]) {
    // Without a `package.json` here, npm would use the nearest one in a parent folder.
    fs::create_dir_all(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    fs::write(folder.join("package.json"), "{}")
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    // Install scripts of the packages are not run.
    let quiet = ["--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"];
    run(
        Command::new("npm")
            .args(["install", "--prefix"])
            .arg(folder)
            .args(quiet)
            .args(packages)
            .current_dir(folder),
        INSTALL_HINT,
    );
}

const INSTALL_HINT: &str = "on Debian, `apt-get install nodejs npm` brings npm; it must reach a registry, or have one set up: \
                    see `npm config list`";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "apt-get install nodejs npm")]
    fn failed_install_panics_with_a_hint() {
        let dir = tempfile::TempDir::new().unwrap();
        modules(dir.path(), &["./no/such/package"]);
    }
}
