//! Commands of `redrive` that the pages name: each exists, with the options that the page gives it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
};

use redrive_testkit::binary;

use super::{all_blocks, pages, text_of};

/// Characters that end a command in a shell or in prose.
const ENDS: &[char] = &['|', '>', '<', ';', '&', '#', ')', '\n', '"', '\''];

/// Returns the words after each `redrive ` of a piece of code.
fn commands(code: &str) -> Vec<Vec<String>> {
    let code = code.replace("\\\n", " ");
    let mut found = Vec::new();
    for (at, _) in code.match_indices("redrive ") {
        // Before it are at most variables and `sudo`; otherwise this is an argument of another program.
        let before =
            code[..at].rsplit(ENDS).next().unwrap_or_default().rsplit('(').next().unwrap_or_default();
        let mut before_words = before.split_whitespace();
        let is_command = before.is_empty() || before.ends_with(char::is_whitespace);
        if !is_command
            || !before_words.all(|word| word.contains('=') || ["sudo", "-u", "redrive"].contains(&word))
        {
            continue;
        }
        let rest = &code[at + "redrive ".len()..];
        let words: Vec<_> =
            rest.split(ENDS).next().unwrap_or_default().split_whitespace().map(str::to_owned).collect();
        // The user of `sudo -u redrive` is not the program.
        found.extend((!words.is_empty() && words[0] != "redrive").then_some(words));
    }
    found
}

/// Returns the commands of a page: those in its blocks of commands, without their output, and those in its
/// text.
fn commands_of(page: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for block in all_blocks(page) {
        let mut code = String::new();
        let mut continues = false;
        for line in block.text.lines() {
            let command = match &*block.language {
                "bash" | "sh" => Some(line),
                "console" => line.strip_prefix("$ ").or(continues.then_some(line)),
                _ => None,
            };
            continues = command.is_some_and(|command| command.ends_with('\\'));
            code += command.unwrap_or_default();
            code.push('\n');
        }
        found.extend(commands(&code));
    }
    for line in text_of(page).lines().filter(|line| !line.starts_with("```")) {
        // Every second part of a line is between backticks.
        for code in line.split('`').skip(1).step_by(2).filter(|code| code.starts_with("redrive ")) {
            found.extend(commands(code));
        }
    }
    found
}

/// Returns the help of a command, or `None` if there is no such command.
fn help(words: &[String]) -> Option<String> {
    let output = Command::new(binary()).args(words).arg("--help").output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

#[test]
fn commands_and_options_exist() {
    let mut all = vec!["README.md".to_owned()];
    pages(Path::new("docs"), &mut all);
    // Decisions describe the program of their time.
    all.retain(|page| !page.starts_with("docs/adr/"));
    let mut helps: BTreeMap<Vec<String>, Option<String>> = BTreeMap::new();
    let (mut count, mut wrong) = (0, BTreeSet::new());
    for page in &all {
        for words in commands_of(page) {
            let is_name = |word: &&String| {
                word.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !word.starts_with('-')
            };
            let mut names: Vec<String> = words.iter().take_while(is_name).cloned().collect();
            let mut get =
                |names: &[String]| helps.entry(names.to_vec()).or_insert_with(|| help(names)).clone();
            let mut found = get(&names);
            // The last name may be a value, such as the shell of `redrive completions bash`.
            if names.len() > 1 && found.is_none() {
                names.pop();
                found = get(&names);
            }
            count += 1;
            let Some(help) = found else {
                wrong.insert(format!("{page}: there is no command `redrive {}`", words.join(" ")));
                continue;
            };
            for word in words.iter().filter(|word| word.starts_with("--")) {
                let option = word.split('=').next().unwrap();
                let exists =
                    help.split(|c: char| c.is_whitespace() || c == ',').any(|listed| listed == option);
                if !exists {
                    wrong.insert(format!("{page}: `redrive {}` has no option {option}", names.join(" ")));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(count > 100, "only {count} commands were found");
}
