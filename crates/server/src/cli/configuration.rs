//! `redrive config`: creates, shows and checks the configuration.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{CliError, RunArgs, block_on, check::check, creation::shown_path, print_text};
use crate::{
    config::{Config, ConfigError, Profile, write_template},
    files::{folder_of, write_private},
    shell::shell_word,
};

#[derive(Subcommand)]
pub(super) enum ConfigCommand {
    /// Write a configuration file with every setting and its default, as comments.
    Init(InitArgs),
    /// Print the effective settings, with secrets redacted.
    Show(ProfileArgs),
    /// Check the settings and the files that they name; fails on whatever the server would refuse.
    Check(ProfileArgs),
}

#[derive(Args)]
pub(super) struct InitArgs {
    /// The file to create, or - for standard output.
    #[arg(default_value = "redrive.toml", value_name = "FILE")]
    file: PathBuf,
    /// A setting to set in the file, as KEY=VALUE; repeat it for several.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = parse_assignment)]
    values: Vec<(String, String)>,
}

fn parse_assignment(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("must be KEY=VALUE, such as server.listen=0.0.0.0:8080")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

#[derive(Args)]
pub(super) struct ProfileArgs {
    /// Use the defaults of `redrive dev` instead of those of `redrive serve`.
    #[arg(long)]
    dev: bool,
    #[command(flatten)]
    run: RunArgs,
}

impl ProfileArgs {
    fn profile(&self) -> Profile {
        if self.dev { Profile::Dev } else { Profile::Serve }
    }

    fn load(&self) -> Result<Config, ConfigError> {
        self.run.load(self.profile())
    }
}

pub(super) fn run(command: ConfigCommand) -> Result<(), CliError> {
    match command {
        ConfigCommand::Init(args) => init(&args),
        ConfigCommand::Show(args) => {
            let text =
                toml::to_string(&args.load()?).map_err(|error| CliError::message(error.to_string()))?;
            print_text(&text)
        }
        ConfigCommand::Check(args) => {
            let config = args.load()?;
            // Some of the clients that are created for the check need a runtime.
            let notes = block_on(async { check(&config, args.profile()) })?;
            let notes: String = notes.iter().map(|note| format!("Note: {note}\n")).collect();
            print_text(&format!("{notes}The configuration is valid.\n"))
        }
    }
}

fn init(args: &InitArgs) -> Result<(), CliError> {
    let text = write_template(&args.values)?;
    if args.file.as_os_str() == "-" {
        return print_text(&text);
    }
    let path = args.file.display();
    write_private(&args.file, &text).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            CliError::message(format!("{path} exists; name another file, or delete it first"))
        }
        std::io::ErrorKind::NotFound => {
            let folder = shown_path(folder_of(&args.file));
            let command = shell_word(&folder);
            CliError::message(format!(
                "{path}: the folder {folder} does not exist; create it with: mkdir -p {command}"
            ))
        }
        _ => CliError::message(format!("{path} cannot be written: {error}")),
    })?;
    print_text(&format!("Wrote {path}. Edit it, then check it with: redrive config check --config {path}\n"))
}
