//! Runs targets over their corpus and over mutations of it.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
};

use crate::{
    Target,
    mutate::{Generator, mutate},
};

/// An input for which a target panicked.
#[derive(Debug)]
pub struct Crash {
    /// The name of the target.
    pub target: &'static str,
    /// The input.
    pub input: Vec<u8>,
}

impl Target {
    /// Returns the folder of its seeds.
    pub fn corpus(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(self.name)
    }

    /// Returns its seeds, ordered by file name.
    pub fn seeds(&self) -> Vec<Vec<u8>> {
        let entries = fs::read_dir(self.corpus()).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        paths.iter().filter_map(|path| fs::read(path).ok()).collect()
    }

    /// Runs it over its seeds and over `inputs` mutations of them. Returns the number of inputs.
    pub fn run_mutations(&self, inputs: u64, seed: u64) -> Result<u64, Crash> {
        let seeds = self.seeds();
        let mut generator = Generator::new(seed);
        let mut count = 0;
        for input in &seeds {
            self.run_one(input)?;
            count += 1;
        }
        while count < inputs {
            self.run_one(&mutate(&mut generator, &seeds, self.tokens))?;
            count += 1;
        }
        Ok(count)
    }

    fn run_one(&self, input: &[u8]) -> Result<(), Crash> {
        catch_unwind(AssertUnwindSafe(|| (self.run)(input)))
            .map_err(|_| Crash { target: self.name, input: input.to_vec() })
    }
}
