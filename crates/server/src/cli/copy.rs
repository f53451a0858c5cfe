//! `redrive store copy`: copies an SQLite installation to PostgreSQL.

use std::{
    cell::{Cell, RefCell},
    io::IsTerminal,
    path::PathBuf,
    time::Duration,
};

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use redrive_engine::clock;
use redrive_store::{
    copy::{self, Progress, Report, Start},
    sqlite,
};

use super::{CliError, DatabaseArgs, block_on};
use crate::{
    config::{Backend, Database, Profile},
    telemetry,
};

/// Interval of progress lines if standard error is not a terminal.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
const NO_TARGET: &str = "--to: must be postgres://USER@HOST:PORT/DATABASE, an empty database";
const BAR: &str = "{prefix:16} [{bar:30}] {human_pos} of {human_len}, {per_sec}, {eta} left";
const DONE_BAR: &str = "{prefix:16} {human_len} rows";

#[derive(Subcommand)]
pub(super) enum StoreCommand {
    /// Copy everything from an SQLite file to a PostgreSQL database, resuming an interrupted copy.
    Copy(CopyArgs),
}

#[derive(Args)]
pub(super) struct CopyArgs {
    /// Source, sqlite:PATH, which is not changed and must not be in use by a server.
    #[arg(long, value_name = "URL")]
    from: String,
    /// Target, postgres://USER@HOST:PORT/DATABASE, an empty database whose password is best passed in
    /// REDRIVE_DATABASE_PASSWORD.
    #[arg(long, value_name = "URL")]
    to: String,
    /// TOML file with settings for the PostgreSQL server; see docs/configuration.md.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(super) fn run(command: &StoreCommand) -> Result<(), CliError> {
    let StoreCommand::Copy(args) = command;
    if !args.to.starts_with("postgres") {
        return Err(CliError::message(NO_TARGET));
    }
    let target = DatabaseArgs { config: args.config.clone(), database_url: Some(args.to.clone()) };
    let config = target.load(Profile::Serve)?;
    let _ = telemetry::start(&config.log);
    let source = Database { url: args.from.as_str().into(), ..Database::default() }.backend();
    let Ok(Backend::Sqlite(path)) = source else {
        return Err(CliError::message("--from: must be sqlite:PATH, the file to copy"));
    };
    let Backend::Postgres(options) = config.database.backend()? else {
        return Err(CliError::message(NO_TARGET));
    };
    let display = ProgressDisplay::new();
    let copied = block_on(async {
        let copied =
            copy::copy(&sqlite::Options::at(&path), &options, |progress| display.show(progress)).await;
        copied.map_err(|error| CliError::message(error.to_string()))
    });
    display.clear();
    print_report(&copied?, &path.display().to_string(), &config.database.url.to_string());
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the result of a command goes to standard output")]
fn print_report(report: &Report, source: &str, target: &str) {
    println!("{:16} {:>14} {:>14}", "table", "in the source", "in the copy");
    for table in &report.tables {
        println!("{:16} {:>14} {:>14}", table.table, table.source, table.target);
    }
    println!();
    if report.rescued + report.cancelled > 0 {
        println!(
            "Deliveries in flight when the server stopped: {} are waiting again, {} were cancelled.",
            report.rescued, report.cancelled
        );
    }
    if report.altered > 0 {
        println!(
            "{} strings had characters that PostgreSQL cannot store; they were replaced by U+FFFD:",
            report.altered
        );
        report.altered_values.iter().for_each(|value| println!("  {value}"));
    }
    println!(
        "Copy complete and verified; {source} is unchanged. Start the server with your current settings:\n\n  \
         redrive serve --database-url '{target}'\n"
    );
}

/// Progress display on standard error: bars on a terminal, lines otherwise.
struct ProgressDisplay {
    watched: bool,
    bar: RefCell<Option<(&'static str, ProgressBar)>>,
    last_line: Cell<Duration>,
}

impl ProgressDisplay {
    fn new() -> Self {
        Self {
            watched: std::io::stderr().is_terminal(),
            bar: RefCell::default(),
            last_line: Cell::new(clock::monotonic_now()),
        }
    }

    fn show(&self, progress: Progress) {
        match progress {
            Progress::Counting => self.print_step("Counting rows"),
            Progress::Begun(Start::New) => {}
            Progress::Begun(Start::Resumed) => self.print_step("Resuming the interrupted copy"),
            Progress::Begun(Start::Restarted) => {
                self.print_step("The source has changed since the interrupted copy: starting again");
            }
            Progress::Rows { total: 0, .. } => {}
            Progress::Rows { table, done, total: of } if self.watched => self.draw(table, done, of),
            Progress::Rows { table, done, total: of } => {
                let now = clock::monotonic_now();
                if done == of || now.saturating_sub(self.last_line.get()) >= LOG_INTERVAL {
                    self.last_line.set(now);
                    eprintln!("{table}: {done} of {of} rows");
                }
            }
            Progress::Checking => self.print_step("Verifying the copy"),
        }
    }

    fn print_step(&self, text: &str) {
        self.clear();
        eprintln!("{text} …");
    }

    fn draw(&self, table: &'static str, done: u64, of: u64) {
        let mut bar = self.bar.borrow_mut();
        let (_, bar) = match &*bar {
            Some((drawn, bar)) if *drawn == table => (drawn, bar),
            _ => {
                let new = ProgressBar::new(of).with_style(style(BAR)).with_prefix(table);
                // Rows copied by an earlier run must not count towards the speed of this one.
                new.reset_eta();
                let (drawn, new) = bar.insert((table, new));
                (&*drawn, &*new)
            }
        };
        match done == of {
            true if !bar.is_finished() => {
                bar.set_style(style(DONE_BAR));
                bar.finish();
            }
            true => {}
            false => bar.set_position(done),
        }
    }

    /// Removes an unfinished progress bar.
    fn clear(&self) {
        if let Some((_, bar)) = self.bar.borrow_mut().take()
            && !bar.is_finished()
        {
            bar.abandon();
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    let bar = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.progress_chars("=> ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_can_be_drawn() {
        for template in [BAR, DONE_BAR] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
