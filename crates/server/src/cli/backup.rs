//! `redrive backup`: copies the SQLite database while a server has it open, or prints the commands for PostgreSQL.

use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
};

use clap::Args;
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use redrive_store::sqlite;
use url::Url;

use super::{
    CliError, DatabaseArgs,
    creation::{require_existing, shown_path},
    print_text,
};
use crate::config::{Backend, Profile};

const BAR: &str = "Copying [{bar:30}] {percent} %, {eta} left";

#[derive(Args)]
pub(super) struct BackupArgs {
    /// The file to create; an existing one is not overwritten.
    file: PathBuf,
    #[command(flatten)]
    database: DatabaseArgs,
}

pub(super) fn run(args: &BackupArgs) -> Result<(), CliError> {
    let config = args.database.load(Profile::Serve)?;
    match require_existing(config.database.backend()?)? {
        Backend::Sqlite(path) => copy(&path, &args.file),
        Backend::Postgres(options) => {
            print_text(&commands(&options.url, &args.file))?;
            // A script must not take this for a backup.
            Err(CliError::message(
                "nothing was copied: the store is a PostgreSQL server, whose own tools make backups; run the commands above",
            ))
        }
    }
}

/// Returns the commands that back up a PostgreSQL database and restore it into a new one. The URL has no password.
fn commands(url: &str, file: &Path) -> String {
    let file = shell_word(&file.display().to_string());
    let (server, source) = (shell_word(url), Url::parse(url).ok());
    let name = source.as_ref().map(|url| url.path().trim_matches('/')).filter(|name| !name.is_empty());
    let restored = format!("{}_restored", name.unwrap_or("redrive"));
    let target = source.map_or_else(String::new, |mut url| {
        url.set_path(&restored);
        url.into()
    });
    let (target, restored) = (shell_word(&target), shell_word(&restored));
    format!(
        "# Back up, while the servers run. The password is read from PGPASSWORD or ~/.pgpass.\n\
         pg_dump --format=custom --file={file} {server}\n\
         # Restore into a new database, then set database.url to it.\n\
         createdb --maintenance-db={server} {restored}\n\
         pg_restore --exit-on-error --no-owner --dbname={target} {file}\n\
         # For recovery to any moment, use base backups with WAL archiving instead (pg_basebackup, pgBackRest, barman).\n\
         # Keep a copy of the master key in another place: without it, secrets in the backup cannot be read.\n"
    )
}

/// Quotes a word for a POSIX shell, if needed.
fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:@%+,".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Copies an SQLite database.
fn copy(path: &Path, target: &Path) -> Result<(), CliError> {
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(0) } else { ProgressBar::hidden() };
    if let Ok(style) = ProgressStyle::with_template(BAR) {
        bar.set_style(style.progress_chars("=> "));
    }
    let copied = sqlite::back_up(path, target, |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let report = copied.map_err(|error| CliError::message(error.to_string()))?;
    let target = shown_path(target);
    print_text(&format!(
        "Copied {} to {target}: {}, {} events, {} deliveries. The copy was checked and is complete.\n\
         Keep a copy of the master key in another place: without it, secrets in the backup cannot be read.\n\
         To restore, stop the server, put the copy in the place of the database without its -wal and -shm files, and start \
         the server again.\n",
        path.display(),
        HumanBytes(report.bytes),
        report.events,
        report.deliveries,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_quote_names_for_the_shell() {
        let text =
            commands("postgres://me@db:5433/it's?sslmode=require", Path::new("/var/my backups/a.dump"));
        for line in [
            r"pg_dump --format=custom --file='/var/my backups/a.dump' 'postgres://me@db:5433/it'\''s?sslmode=require'",
            r"createdb --maintenance-db='postgres://me@db:5433/it'\''s?sslmode=require' 'it'\''s_restored'",
            r"pg_restore --exit-on-error --no-owner --dbname='postgres://me@db:5433/it'\''s_restored?sslmode=require' '/var/my backups/a.dump'",
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "{line}\n{text}");
        }
        assert!(
            commands("postgres://db", Path::new("a"))
                .contains("createdb --maintenance-db=postgres://db redrive_restored\n")
        );
    }
}
