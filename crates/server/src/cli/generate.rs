//! `redrive completions` and `redrive man`: files for shells and manuals, made from the definition of the command line.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

use super::{CliError, command, print_text};

/// Shown by `redrive completions --help`.
pub(super) const INSTALL: &str = "\
Install the script, then start a new shell:
  bash        redrive completions bash > /etc/bash_completion.d/redrive
  zsh         redrive completions zsh > ~/.zfunc/_redrive       (with fpath+=~/.zfunc before compinit in ~/.zshrc)
  fish        redrive completions fish > ~/.config/fish/completions/redrive.fish
  elvish      redrive completions elvish >> ~/.config/elvish/rc.elv
  powershell  redrive completions powershell >> $PROFILE";

#[derive(Args)]
#[command(after_help = INSTALL)]
pub(super) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

#[derive(Args)]
pub(super) struct ManArgs {
    /// Folder for the pages, which is created if needed: redrive.1 and a page for each command.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(super) fn print_completions(args: &CompletionsArgs) -> Result<(), CliError> {
    print_text(&completions(args.shell))
}

fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "redrive", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

pub(super) fn write_man_pages(args: &ManArgs) -> Result<(), CliError> {
    let folder = args.folder.display();
    let write = || {
        std::fs::create_dir_all(&args.folder)?;
        clap_mangen::generate_to(command(), &args.folder)
    };
    write()
        .map_err(|error: std::io::Error| CliError::message(format!("{folder} cannot be written: {error}")))?;
    print_text(&format!("Wrote the man pages to {folder}. Read one with: man {folder}/redrive.1\n"))
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command, ValueEnum};

    use super::*;
    use crate::documentation::check_generated;

    #[test]
    fn command_line_is_consistent() {
        command().debug_assert();
    }

    /// Returns all commands with their full names.
    fn all_commands() -> Vec<(String, Command)> {
        fn add(prefix: &str, command: &Command, all: &mut Vec<(String, Command)>) {
            let name = format!("{prefix}{}", command.get_name());
            for inner in command.get_subcommands() {
                add(&format!("{name} "), inner, all);
            }
            all.push((name, command.clone()));
        }
        let mut all = Vec::new();
        add("", &command(), &mut all);
        all.sort_by(|one, other| one.0.cmp(&other.0));
        all
    }

    #[test]
    fn every_command_has_a_man_page_and_is_completed_in_every_shell() {
        let folder = tempfile::tempdir().unwrap();
        write_man_pages(&ManArgs { folder: folder.path().join("man1") }).unwrap();
        for (name, command) in all_commands() {
            let page = folder.path().join(format!("man1/{}.1", name.replace(' ', "-")));
            let page = std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(page.contains(".TH"), "{name}");
            for shell in Shell::value_variants() {
                let script = completions(*shell);
                assert!(script.contains(command.get_name()), "{name} in {shell}");
                for option in command.get_arguments().filter_map(Arg::get_long) {
                    assert!(script.contains(option), "--{option} of {name} in {shell}");
                }
            }
        }
    }

    /// Returns text for a cell of a table.
    fn cell(text: &str) -> String {
        text.replace('|', "\\|").replace('\n', " ").replace('<', "&lt;")
    }

    /// Returns an argument as it is written on the command line.
    fn format_argument(argument: &Arg) -> String {
        let takes_value = argument.get_num_args().is_some_and(|count| count.takes_values());
        let names: Vec<_> =
            argument.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect();
        let value = if takes_value { names.join(" ") } else { String::new() };
        match (argument.get_long(), value.as_str()) {
            (None, value) => value.to_owned(),
            (Some(long), "") => format!("--{long}"),
            (Some(long), value) => format!("--{long} {value}"),
        }
    }

    fn row(argument: &Arg) -> String {
        let mut text = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let values: Vec<_> =
            argument.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
        let takes_value = argument.get_num_args().is_some_and(|count| count.takes_values());
        let defaults: Vec<_> =
            argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let sentence = |text: &mut String, more: String| {
            if !text.ends_with('.') {
                text.push('.');
            }
            *text += &format!(" {more}");
        };
        if takes_value && !values.is_empty() {
            sentence(&mut text, format!("One of {}.", values.join(", ")));
        }
        if takes_value && !defaults.concat().is_empty() {
            sentence(&mut text, format!("Default: `{}`.", defaults.join(" ")));
        }
        if !text.ends_with('.') {
            text.push('.');
        }
        format!("| `{}` | {} |\n", format_argument(argument), cell(&text))
    }

    /// Returns the contents of `docs/reference/cli.md`.
    fn reference() -> String {
        let mut text = String::new();
        for (name, mut command) in all_commands() {
            // A command that only groups others needs no section, except the program itself.
            if command.has_subcommands() && name != "redrive" {
                continue;
            }
            let usage = command.clone().bin_name(name.clone()).render_usage().to_string();
            let usage = usage.trim_start_matches("Usage:").trim();
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            text += &format!("## `{name}`\n\n{}.\n\n```text\n{usage}\n```\n\n", about.trim_end_matches('.'));
            command.build();
            let arguments = command.get_arguments().filter(|argument| {
                !argument.is_hide_set() && !["help", "version"].contains(&argument.get_id().as_str())
            });
            let rows: String = arguments.map(row).collect();
            if !rows.is_empty() {
                text += &format!("| argument | meaning |\n|---|---|\n{rows}\n");
            }
            if let Some(after) = command.get_after_help() {
                text += &format!("```text\n{after}\n```\n\n");
            }
        }
        text.trim_end().to_owned() + "\n"
    }

    #[test]
    fn documentation_lists_every_command_and_option() {
        check_generated("docs/reference/cli.md", &reference());
    }

    #[test]
    fn every_command_and_option_has_a_help_text() {
        for (name, command) in all_commands() {
            assert!(command.get_about().is_some(), "{name}");
            for argument in command.get_arguments() {
                let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.chars().count() > 8, "{} of {name}: {help}", argument.get_id());
            }
        }
    }
}
