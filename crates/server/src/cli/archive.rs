//! `redrive archive`: lists and reads archived events.

use std::io::Write;

use clap::{Args, Subcommand};
use redrive_core::{DeliveryId, EventId, Time};
use redrive_store::archive;
use serde::Deserialize;

use super::{CliError, DatabaseArgs, block_on};
use crate::{
    archive::{Archive, Manifest},
    config::Profile,
};

#[derive(Subcommand)]
pub(super) enum ArchiveCommand {
    /// List the objects in the archive.
    List(DatabaseArgs),
    /// Print archived events, deliveries and attempts as JSON lines, and verify checksums.
    Cat(CatArgs),
}

#[derive(Args)]
pub(super) struct CatArgs {
    #[command(flatten)]
    settings: DatabaseArgs,
    /// Print only data of this tenant.
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    /// Print only data of events published at or after this time, such as 2026-08-01T00:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = time)]
    from: Option<Time>,
    /// Print only data of events published before this time.
    #[arg(long, value_name = "TIME", value_parser = time)]
    to: Option<Time>,
    /// Print only this object, as named by `redrive archive list`.
    name: Option<String>,
}

fn time(text: &str) -> Result<Time, String> {
    let expected = "must be an RFC 3339 time, such as 2026-08-01T00:00:00Z, or a date, such as 2026-08-01";
    Time::parse_or_date(text).ok_or_else(|| expected.into())
}

pub(super) fn run(command: &ArchiveCommand) -> Result<(), CliError> {
    match command {
        ArchiveCommand::List(settings) => block_on(list(settings)),
        ArchiveCommand::Cat(args) => block_on(cat(args)),
    }
}

fn open(settings: &DatabaseArgs) -> Result<Archive, CliError> {
    let config = settings.load(Profile::Serve)?;
    let archive =
        Archive::open_to_read(&config.archive).map_err(|error| CliError::message(error.to_string()))?;
    archive
        .ok_or_else(|| CliError::message("no archive is configured; set archive.url (REDRIVE_ARCHIVE_URL)"))
}

/// Prints lines. Returns `false` if the reader has closed standard output.
fn print(lines: impl Iterator<Item = String>) -> Result<bool, CliError> {
    let mut out = std::io::stdout().lock();
    for line in lines {
        match writeln!(out, "{line}") {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(false),
            Err(error) => return Err(CliError::message(error.to_string())),
        }
    }
    Ok(true)
}

async fn list(settings: &DatabaseArgs) -> Result<(), CliError> {
    let all = open(settings)?.list().await.map_err(|error| CliError::message(error.to_string()))?;
    let line = |manifest: Manifest| {
        let Manifest { name, bytes, events, deliveries, attempts, .. } = manifest;
        format!("{name}  {events} events, {deliveries} deliveries, {attempts} attempts, {bytes} bytes")
    };
    print(all.into_iter().map(line)).map(drop)
}

/// Fields of a line that the filters use.
#[derive(Deserialize)]
struct Line {
    kind: String,
    tenant_id: String,
    id: String,
    delivery_id: Option<String>,
}

impl Line {
    /// Returns the publish time of the event, which is also encoded in the ids of its deliveries.
    fn time(&self) -> Option<Time> {
        match self.kind.as_str() {
            "event" => self.id.parse::<EventId>().ok().map(|id| id.time()),
            "delivery" => self.id.parse::<DeliveryId>().ok().map(|id| id.time()),
            _ => self.delivery_id.as_ref()?.parse::<DeliveryId>().ok().map(|id| id.time()),
        }
    }
}

impl CatArgs {
    /// Returns whether an object may contain matching lines: its name starts with the day of its events.
    fn matches_object(&self, manifest: &Manifest) -> bool {
        let day = |time: Time| time.to_string().chars().take(10).collect::<String>();
        self.name.as_ref().is_none_or(|name| *name == manifest.name)
            && self.from.is_none_or(|from| manifest.day() >= day(from).as_str())
            && self.to.is_none_or(|to| manifest.day() <= day(to).as_str())
    }

    fn matches(&self, line: &str) -> Result<bool, CliError> {
        if self.tenant.is_none() && self.from.is_none() && self.to.is_none() {
            return Ok(true);
        }
        let line: Line = serde_json::from_str(line)
            .map_err(|error| CliError::message(format!("a record is damaged: {error}")))?;
        let at = line.time();
        Ok(self.tenant.as_ref().is_none_or(|tenant| *tenant == line.tenant_id)
            && self.from.is_none_or(|from| at.is_some_and(|at| at >= from))
            && self.to.is_none_or(|to| at.is_some_and(|at| at < to)))
    }
}

async fn cat(args: &CatArgs) -> Result<(), CliError> {
    let message = |error: crate::archive::ArchiveError| CliError::message(error.to_string());
    let store = open(&args.settings)?;
    let mut all = store.list().await.map_err(message)?;
    all.retain(|manifest| args.matches_object(manifest));
    if let (Some(name), true) = (&args.name, all.is_empty()) {
        return Err(CliError::message(format!("{name} is not in the archive; see: redrive archive list")));
    }
    for manifest in all {
        let bytes = store.read(&manifest).await.map_err(message)?;
        let damaged = |error: std::io::Error| CliError::message(format!("{}: {error}", manifest.name));
        for line in archive::lines(&bytes[..]).map_err(damaged)? {
            let line = line.map_err(damaged)?;
            if args.matches(&line)? && !print(std::iter::once(line))? {
                return Ok(());
            }
        }
    }
    Ok(())
}
