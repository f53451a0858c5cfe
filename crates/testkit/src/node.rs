//! Packages for Node.js, for what only a browser shows.
//!
//! They are installed once per target directory and shared by all tests, in whatever process.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::install_once::{made_once, run, target_dir};

/// A folder that holds these packages (as `npm install` takes them), for `NODE_PATH`.
///
/// Blocks while they are installed. Panics with npm's output when that fails.
pub fn node_with(packages: &[&str]) -> PathBuf {
    modules(&target_dir(), packages)
}

fn modules(target: &Path, packages: &[&str]) -> PathBuf {
    made_once(target, "node", packages, |home| install(home, packages)).join("node_modules")
}

fn install(home: &Path, packages: &[&str]) {
    // Without this, npm would take the next `package.json` further up for its own.
    fs::create_dir_all(home).unwrap_or_else(|error| panic!("{}: {error}", home.display()));
    fs::write(home.join("package.json"), "{}").unwrap_or_else(|error| panic!("{}: {error}", home.display()));
    // Nothing of what is installed runs while it is installed.
    let quiet = ["--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"];
    run(
        Command::new("npm")
            .args(["install", "--prefix"])
            .arg(home)
            .args(quiet)
            .args(packages)
            .current_dir(home),
        MEND,
    );
}

const MEND: &str = "on Debian, `apt-get install nodejs npm` brings npm; it must reach a registry, or have one set up: \
                    see `npm config list`";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "apt-get install nodejs npm")]
    fn packages_that_cannot_be_had_are_told_with_a_remedy() {
        let dir = tempfile::TempDir::new().unwrap();
        modules(dir.path(), &["./no/such/package"]);
    }
}
