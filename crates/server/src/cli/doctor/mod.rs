//! `redrive doctor`: checks the configuration, this machine and the configured servers, and says what to do about each
//! problem. It changes nothing.

mod machine;
mod servers;

use std::{fmt::Display, io::Write, process::ExitCode};

use clap::Args;

use redrive_store::sqlite::Inspection;

use super::{CliError, RunArgs, block_on, check, status::UNKNOWN};
use crate::config::{Backend, Profile};

#[derive(Args)]
pub(super) struct DoctorArgs {
    /// Use the defaults of `redrive dev` instead of those of `redrive serve`.
    #[arg(long)]
    dev: bool,
    #[command(flatten)]
    run: RunArgs,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Ok,
    Warning,
    Critical,
}

/// Difference between two clocks that is worth a warning, in seconds.
const MAX_CLOCK_DIFFERENCE_SECONDS: i64 = 60;

/// Result of one check.
#[derive(Debug)]
struct Finding {
    level: Level,
    /// What was checked, in a word.
    subject: &'static str,
    /// The result, and what to do if it is not ok.
    text: String,
}

impl Finding {
    fn ok(subject: &'static str, text: impl Display) -> Self {
        Self { level: Level::Ok, subject, text: text.to_string() }
    }

    fn warning(subject: &'static str, text: impl Display) -> Self {
        Self { level: Level::Warning, subject, text: text.to_string() }
    }

    fn critical(subject: &'static str, text: impl Display) -> Self {
        Self { level: Level::Critical, subject, text: text.to_string() }
    }
}

pub(super) fn run(args: &DoctorArgs) -> ExitCode {
    let findings = match block_on(examine(args)) {
        Ok(findings) => findings,
        Err(error) => {
            eprintln!("error: {error}");
            return UNKNOWN.into();
        }
    };
    print(&findings);
    match findings.iter().map(|finding| finding.level).max() {
        None | Some(Level::Ok) => ExitCode::SUCCESS,
        Some(Level::Warning) => 1.into(),
        Some(Level::Critical) => 2.into(),
    }
}

async fn examine(args: &DoctorArgs) -> Result<Vec<Finding>, CliError> {
    let profile = if args.dev { Profile::Dev } else { Profile::Serve };
    let config = match args.run.load(profile) {
        Ok(config) => config,
        // Nothing else can be checked without settings.
        Err(error) => return Ok(vec![Finding::critical("configuration", error)]),
    };
    let file = match config.database.backend()? {
        Backend::Sqlite(path) => Some(check::inspect(&path)),
        Backend::Postgres(_) => None,
    };
    let new = Inspection::default();
    let found = file.as_ref().and_then(|inspected| inspected.as_ref().ok());
    let found = found.map(|found| found.as_ref().unwrap_or(&new));
    let mut findings = match check::check_settings(&config, profile, found) {
        Ok(()) => vec![Finding::ok("configuration", "valid")],
        Err(error) => vec![Finding::critical("configuration", error)],
    };
    findings.extend(machine::check(&config, profile).await?);
    findings.extend(servers::check(&config, profile, file).await?);
    Ok(findings)
}

/// Prints the findings. Write errors are ignored, so that a reader that closes the pipe early still gets the exit code.
fn print(findings: &[Finding]) {
    let mut text = String::new();
    for Finding { level, subject, text: message } in findings {
        let level = match level {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Critical => "critical",
        };
        text += &format!("{level:<9} {subject:<14} {message}\n");
    }
    let _ = std::io::stdout().write_all(text.as_bytes());
}
