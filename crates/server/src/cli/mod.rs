//! Command line interface.

mod archive;
mod backup;
mod check;
mod clock;
mod configuration;
mod copy;
mod creation;
mod demo;
mod doctor;
mod generate;
mod keys;
mod mail;
mod migrate;
mod pinned_tls;
mod reload;
mod remote;
mod run;
mod secrets;
mod status;
mod systemd;

use std::{ffi::OsString, io::Write, path::PathBuf, process::ExitCode};

use clap::{Args, CommandFactory, Parser, Subcommand};
use redrive_core::Role;

use crate::config::{self, Config, ConfigError, ExposedFile, Overrides, Profile};

/// Webhook delivery that never loses an event.
#[derive(Parser)]
#[command(name = "redrive", version, about, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run locally with development defaults: data in ./redrive-data, http and loopback targets allowed.
    Dev(RunArgs),
    /// Run with simulated receivers and traffic.
    Demo(demo::DemoArgs),
    /// Run the server with production defaults: https to public addresses only.
    Serve(RunArgs),
    /// Create, list and revoke API keys.
    Keys {
        #[command(subcommand)]
        command: keys::KeysCommand,
    },
    /// Create a master key, or re-encrypt all secrets with a new one.
    Secrets {
        #[command(subcommand)]
        command: secrets::SecretsCommand,
    },
    /// Migrate the database schema to the current version.
    Migrate(DatabaseArgs),
    /// List and read archived events.
    Archive {
        #[command(subcommand)]
        command: archive::ArchiveCommand,
    },
    /// Copy the database to another backend.
    Store {
        #[command(subcommand)]
        command: copy::StoreCommand,
    },
    /// Show the health of a running installation. Exit code: 0 ok, 1 warning, 2 critical, 3 unknown.
    Status(status::StatusArgs),
    /// Show the time that a running installation uses, or confirm it after a clock jump.
    Clock {
        #[command(subcommand)]
        command: clock::ClockCommand,
    },
    /// Send a test email with the server's settings, and explain a failure.
    TestEmail(mail::TestEmailArgs),
    /// Create, show or validate the configuration.
    Config {
        #[command(subcommand)]
        command: configuration::ConfigCommand,
    },
    /// Check this machine and the configured servers before the first start. Exit code: 0 ok, 1 warning, 2 critical,
    /// 3 unknown.
    Doctor(doctor::DoctorArgs),
    /// Copy the SQLite database to a file while the server runs; prints the commands to use for PostgreSQL.
    Backup(backup::BackupArgs),
    /// Print a completion script for a shell.
    Completions(generate::CompletionsArgs),
    /// Write the man pages to a folder.
    Man(generate::ManArgs),
}

#[derive(Args, Clone)]
struct DatabaseArgs {
    /// TOML file with settings; see docs/configuration.md.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Database: sqlite:PATH or postgres://USER@HOST:PORT/DATABASE.
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
}

/// Prints a warning on standard error for each secret file that other users can access, for commands without a
/// log.
fn warn_of_exposed_files(config: Config) -> Config {
    for ExposedFile { setting, path, fix } in config.exposed_files() {
        eprintln!(
            "warning: {setting}: {} contains a secret and is accessible to other users; run: {fix}",
            path.display()
        );
    }
    config
}

impl DatabaseArgs {
    fn load(&self, profile: Profile) -> Result<Config, ConfigError> {
        self.load_with(profile, Overrides::default()).map(warn_of_exposed_files)
    }

    fn load_with(&self, profile: Profile, flags: Overrides) -> Result<Config, ConfigError> {
        let flags = Overrides { database_url: self.database_url.clone(), ..flags };
        config::load(profile, self.config.as_deref(), &flags)
    }
}

#[derive(Args, Clone)]
struct ServerArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Host and port to listen on (port 0 picks a free one), or those of the running server to contact.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
}

impl ServerArgs {
    fn load(&self, profile: Profile) -> Result<Config, ConfigError> {
        self.load_with(profile, Overrides::default()).map(warn_of_exposed_files)
    }

    fn load_with(&self, profile: Profile, flags: Overrides) -> Result<Config, ConfigError> {
        self.database.load_with(profile, Overrides { listen: self.listen.clone(), ..flags })
    }
}

#[derive(Args, Clone)]
struct RunArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Role of this node: everything, only the API, or only sending.
    #[arg(long, value_parser = Role::ALL.map(Role::name))]
    role: Option<String>,
    /// RabbitMQ server that distributes ready work to nodes: amqp://USER@HOST:PORT/VHOST, or amqps://… with TLS.
    #[arg(long, value_name = "URL")]
    amqp: Option<String>,
    /// Worker pool that this node serves, "default" by default; repeat it for several pools.
    #[arg(long = "pool", value_name = "NAME")]
    pools: Vec<String>,
    /// Redis server through which nodes share limits and circuits: redis://USER@HOST:PORT, or rediss://… with TLS.
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
}

impl RunArgs {
    fn load(&self, profile: Profile) -> Result<Config, ConfigError> {
        let flags = Overrides {
            role: self.role.clone(),
            pools: self.pools.clone(),
            redis_url: self.redis.clone(),
            amqp_url: self.amqp.clone(),
            ..Overrides::default()
        };
        self.server.load_with(profile, flags)
    }
}

/// Error of a command, with a message for the user.
#[derive(Debug, thiserror::Error)]
enum CliError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Open(#[from] redrive_store::OpenError),
    #[error(transparent)]
    Store(#[from] redrive_store::StoreError),
    #[error(transparent)]
    App(#[from] crate::app::AppError),
    #[error(transparent)]
    Vault(#[from] crate::vault::VaultError),
    /// The running server cannot go on.
    #[error("{0}")]
    Failed(String),
    #[error("{0}")]
    Message(String),
}

/// Exit code of a server that cannot go on and should be restarted: `EX_SOFTWARE` of sysexits.
const EXIT_FAILED: u8 = 70;

impl CliError {
    fn message(text: impl Into<String>) -> Self {
        Self::Message(text.into())
    }
}

/// Runs a future to completion on a single-threaded runtime.
fn block_on<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| CliError::message(format!("starting the runtime failed: {error}")))?;
    let result = runtime.block_on(work);
    // A thread that still resolves a name does not delay the end.
    runtime.shutdown_background();
    result
}

/// Runs the command line.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // A check with invalid arguments has checked nothing: exit with the code for unknown.
        Err(error) if error.use_stderr() && is_check(std::env::args_os().nth(1)) => {
            let _ = error.print();
            return status::UNKNOWN.into();
        }
        Err(error) => error.exit(),
    };
    let result = match cli.command {
        Command::Dev(args) => start(args, Profile::Dev),
        Command::Demo(args) => demo::run(&args),
        Command::Serve(args) => start(args, Profile::Serve),
        Command::Keys { command } => keys::run(command),
        Command::Secrets { command } => secrets::run(command),
        Command::Migrate(args) => migrate::run(&args),
        Command::Archive { command } => archive::run(&command),
        Command::Store { command } => copy::run(&command),
        Command::Status(args) => return status::run(&args),
        Command::Clock { command } => clock::run(&command),
        Command::TestEmail(args) => mail::run(&args),
        Command::Config { command } => configuration::run(command),
        Command::Doctor(args) => return doctor::run(&args),
        Command::Backup(args) => backup::run(&args),
        Command::Completions(args) => generate::print_completions(&args),
        Command::Man(args) => generate::write_man_pages(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            match error {
                CliError::Failed(_) => ExitCode::from(EXIT_FAILED),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

/// Returns whether this is a command whose exit code is the result of a check.
fn is_check(command: Option<OsString>) -> bool {
    command.is_some_and(|name| name == "status" || name == "doctor")
}

fn start(args: RunArgs, profile: Profile) -> Result<(), CliError> {
    let config = args.load(profile)?;
    let reread: reload::ConfigReader = Box::new(move || args.load(profile));
    run::run(run::Start { config, profile, reread: Some(reread), demo: None })
}

/// Prints text on standard output. A reader that closes the pipe early, such as `head`, is no error.
fn print_text(text: &str) -> Result<(), CliError> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(CliError::message(format!("standard output cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}

/// Returns the definition of the command line.
fn command() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocking_task_does_not_delay_the_end() {
        let (release, wait) = std::sync::mpsc::channel::<()>();
        block_on(async move {
            drop(tokio::task::spawn_blocking(move || wait.recv()));
            Ok(())
        })
        .unwrap();
        drop(release);
    }
}
