//! The long run: `fuzz/run --inputs N [--seed S] [--target NAME]`.

// This program prints its results.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use redrive_fuzz::{TARGETS, Target};

/// Every target gets at least this many inputs.
const MIN_INPUTS: u64 = 100_000;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (mut inputs, mut seed, mut only) = (1_000_000, 1, None);
    while let Some(name) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        match (name.as_str(), value.parse::<u64>()) {
            ("--inputs", Ok(count)) => inputs = count,
            ("--seed", Ok(number)) => seed = number,
            ("--target", _) => only = Some(value),
            _ => {
                eprintln!("usage: fuzz/run --inputs N [--seed S] [--target NAME]");
                return ExitCode::FAILURE;
            }
        }
    }
    let chosen: Vec<&Target> =
        TARGETS.iter().filter(|target| only.as_deref().is_none_or(|name| name == target.name)).collect();
    let weights: u64 = chosen.iter().map(|target| target.weight).sum();
    let mut total = 0;
    for target in chosen {
        let share = (inputs / weights.max(1) * target.weight).max(MIN_INPUTS);
        match target.run_mutations(share, seed) {
            Ok(count) => {
                println!("{:24} {count:>12} inputs", target.name);
                total += count;
            }
            Err(crash) => {
                let path = target.corpus().join(format!("crash-{seed}"));
                eprintln!("{} fails for {:?}", crash.target, String::from_utf8_lossy(&crash.input));
                match std::fs::write(&path, &crash.input) {
                    Ok(()) => eprintln!("the input is in {}", path.display()),
                    Err(error) => eprintln!("the input cannot be written: {error}; it is {:?}", crash.input),
                }
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{:24} {total:>12} inputs", "all");
    ExitCode::SUCCESS
}
