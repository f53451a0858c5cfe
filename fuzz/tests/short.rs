//! A short run of every target, with a fixed seed.

use redrive_fuzz::TARGETS;

/// The number of inputs of a target with weight 1. All targets together take seconds in a debug build.
const INPUTS: u64 = 100;

#[test]
fn all_targets_pass_for_corpus_and_mutations() {
    for target in TARGETS {
        assert!(target.seeds().len() >= 3, "corpus/{} has too few seeds", target.name);
        let inputs = INPUTS * target.weight;
        if let Err(crash) = target.run_mutations(inputs, 7) {
            panic!("{}: {:?}\n{:?}", crash.target, String::from_utf8_lossy(&crash.input), crash.input);
        }
    }
}

#[test]
fn corpus_folders_match_the_targets() {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut folders: Vec<String> = std::fs::read_dir(corpus)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    folders.sort();
    names.sort();
    assert_eq!(folders, names);
}
