//! The documentation: the programs and commands of its pages run, in their languages, against the real
//! server.
//!
//! A block of a page that is run has an info string such as `python quickstart:publish.py`: the language, the
//! group of the test, and the name of the file or step.

mod commands;
mod ingestion;
mod process;
mod quickstarts;
mod receivers;
mod saas;
mod signatures;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

pub(crate) use self::{
    process::{Program, Shell, free_port, require, wait_listening},
    quickstarts::{install_python, newcomer, parse},
};

/// Languages whose blocks must be run.
const LANGUAGES: &[&str] = &[
    "bash",
    "csharp",
    "go",
    "java",
    "javascript",
    "js",
    "php",
    "python",
    "ruby",
    "rust",
    "sh",
    "sql",
    "ts",
    "typescript",
];

/// Blocks that no test runs: the page, the language, the number of such blocks, and the reason.
const NOT_RUN: &[(&str, &str, usize, &str)] = &[
    ("docs/api.md", "bash", 1, "variables of the examples; the same as in model-your-saas.md"),
    ("docs/configuration.md", "bash", 1, "suites of the master key run these commands with other paths"),
    ("docs/operations/backup.md", "bash", 1, "a job of cron with paths of a server"),
    ("docs/operations/postgres.md", "bash", 2, "hosts of an example"),
    ("docs/operations/postgres.md", "sql", 1, "a role of an example"),
    ("docs/receiving/csharp.md", "csharp", 1, "labelled as untested on its page"),
];

/// Pages with blocks that are run.
const RUN: &[&str] = &[
    "README.md",
    "docs/ingestion.md",
    "docs/model-your-saas.md",
    "docs/quickstart/curl.md",
    "docs/quickstart/python.md",
    "docs/quickstart/typescript.md",
    "docs/receiving.md",
    "docs/receiving/go.md",
    "docs/receiving/java.md",
    "docs/receiving/node.md",
    "docs/receiving/php.md",
    "docs/receiving/python.md",
    "docs/receiving/ruby.md",
    "docs/receiving/rust.md",
];

/// A fenced block of a page.
pub(crate) struct Block {
    language: String,
    /// The group of the test and the name, if a test runs the block.
    tag: Option<(String, String)>,
    /// The content, each line with its end.
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the text of a page; `page` is its path in the repository.
pub(crate) fn text_of(page: &str) -> String {
    let path = root().join(page);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn all_blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, Block)> = None;
    for line in text_of(page).lines() {
        let fence = line.len() - line.trim_start_matches('`').len();
        match &mut open {
            Some((opened, _)) if fence >= *opened && line.len() == fence => {
                blocks.extend(open.take().map(|(_, block)| block));
            }
            Some((_, block)) => block.text += &format!("{line}\n"),
            None if fence >= 3 => {
                let mut words = line[fence..].split_whitespace();
                let language = words.next().unwrap_or_default().to_owned();
                let tag = words.next().and_then(|tag| tag.split_once(':'));
                let tag = tag.map(|(group, name)| (group.to_owned(), name.to_owned()));
                open = Some((fence, Block { language, tag, text: String::new() }));
            }
            None => {}
        }
    }
    assert!(open.is_none(), "{page}: a block has no end");
    blocks
}

/// Returns the blocks of a page that a test runs, with their names, in order. Panics unless these are the
/// `names`, so that a block that is added is not forgotten.
pub(crate) fn blocks(page: &str, group: &str, names: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for block in all_blocks(page) {
        if let Some((its_group, name)) = block.tag {
            assert_eq!(its_group, group, "{page}: the group of {name}");
            found.push((name, block.text));
        }
    }
    assert_eq!(found.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), names, "{page}");
    found
}

/// Returns the text of the only block of this name.
pub(crate) fn block<'a>(blocks: &'a [(String, String)], name: &str) -> &'a str {
    let found = blocks.iter().find(|(its_name, _)| its_name == name);
    &found.unwrap_or_else(|| panic!("no block {name}")).1
}

fn pages(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(root().join(folder)).unwrap() {
        let path = folder.join(entry.unwrap().file_name());
        if root().join(&path).is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path.to_str().unwrap().to_owned());
        }
    }
}

#[test]
fn every_program_in_the_documentation_is_run() {
    let mut all = vec!["README.md".to_owned()];
    pages(Path::new("docs"), &mut all);
    let (mut run, mut not_run) = (BTreeSet::new(), Vec::new());
    for page in &all {
        for block in all_blocks(page) {
            match block.tag {
                Some(_) => {
                    run.insert(page.as_str());
                }
                None if LANGUAGES.contains(&&*block.language) => not_run.push((page.clone(), block.language)),
                None => {}
            }
        }
    }
    assert_eq!(
        run,
        RUN.iter().copied().collect(),
        "each page with tagged blocks needs a test that runs them"
    );
    let expected = NOT_RUN.iter().flat_map(|(page, language, count, _)| {
        std::iter::repeat_n(((*page).to_owned(), (*language).to_owned()), *count)
    });
    let mut expected: Vec<_> = expected.collect();
    expected.sort();
    not_run.sort();
    assert_eq!(not_run, expected, "run each program by a test, or add it to NOT_RUN with the reason");
}

#[test]
fn links_and_lists_of_pages_are_valid() {
    let output =
        std::process::Command::new("python3").arg("scripts/check-docs.py").current_dir(root()).output();
    let output = output
        .unwrap_or_else(|error| panic!("python3 did not start: {error}; on Debian: apt-get install python3"));
    let printed =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{printed}");
}
