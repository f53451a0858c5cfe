//! Packages of other languages that suites need, installed once per target folder from pinned versions.

use std::path::PathBuf;

use redrive_testkit::{node_with, python_with};
use serde_json::Value;

/// Returns the `node_modules` with the dependencies of a `package.json`, which has exact versions.
///
/// Blocks while npm installs them. Panics with npm's output if that fails.
pub fn node_modules(manifest: &str) -> PathBuf {
    let package: Value = serde_json::from_str(manifest).expect("package.json is JSON");
    let wanted = package["dependencies"].as_object().expect("package.json has dependencies");
    let wanted: Vec<_> =
        wanted.iter().map(|(name, version)| format!("{name}@{}", crate::text(version))).collect();
    node_with(&wanted.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Returns the Python of an environment with the packages of a `requirements.txt`, which has exact versions.
///
/// Blocks while pip installs them. Panics with pip's output if that fails.
pub fn python(requirements: &str) -> PathBuf {
    python_with(&requirements.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>())
}
