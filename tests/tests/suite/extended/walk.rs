//! A short random walk over the whole API with kills and freezes, on both stores. `tests/walk/run` runs longer
//! ones.

use std::{path::Path, process::Command};

use redrive_testkit::binary;

/// Runs the script and returns its output, with the violated properties and the location of data and logs.
fn walk(store: &str, seed: u32) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("walk/run");
    let ran = Command::new(script)
        .args(["--store", store, "--seed", &seed.to_string(), "--minutes", "1"])
        .arg("--binary")
        .arg(binary())
        .output()
        .expect("Python 3 runs the script");
    let output = format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "the walk with seed {seed} on {store} failed:\n{output}");
    output
}

#[test]
fn random_walk_on_postgres_loses_nothing_and_does_not_deadlock() {
    println!("{}", walk("postgres", 18));
}

#[test]
fn random_walk_on_sqlite_loses_nothing() {
    println!("{}", walk("sqlite", 18));
}
