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
use crate::{
    config::{Backend, Profile, percent_decoded},
    shell::shell_word,
};

/// Name of the database to restore into if the URL names none.
const DEFAULT_RESTORED: &str = "redrive_restored";
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
    let (server, restored, target) = databases(url);
    let [file, server, restored, target] =
        [&file.display().to_string(), &server, &restored, &target].map(|word| shell_word(word));
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

/// Returns the URL of the database as libpq reads it, the name of the database to restore into, and its URL.
fn databases(url: &str) -> (String, String, String) {
    let Ok(mut source) = Url::parse(url) else {
        return (url.to_owned(), DEFAULT_RESTORED.to_owned(), String::new());
    };
    let parameters: Vec<_> = source.query_pairs().into_owned().collect();
    set_parameters(&mut source, &parameters);
    // The parameter `dbname` takes precedence over the path, so the target must not have it.
    let (names, others): (Vec<_>, Vec<_>) = parameters.into_iter().partition(|(name, _)| name == "dbname");
    let in_path = percent_decoded(source.path().trim_start_matches('/'));
    let name = names.into_iter().next_back().map_or(in_path, |(_, name)| name);
    let restored = match name.as_str() {
        "" => DEFAULT_RESTORED.to_owned(),
        name => format!("{name}_restored"),
    };
    let mut target = source.clone();
    // `set_path` encodes neither of the two.
    target.set_path(&restored.replace('%', "%25").replace('/', "%2F"));
    set_parameters(&mut target, &others);
    (source.into(), restored, target.into())
}

/// Sets the query of a URL. A space is written as `%20`, because libpq does not read `+` as a space.
fn set_parameters(url: &mut Url, parameters: &[(String, String)]) {
    url.set_query(None);
    if !parameters.is_empty() {
        url.query_pairs_mut().extend_pairs(parameters);
    }
    let query = url.query().map(|query| query.replace('+', "%20"));
    url.set_query(query.as_deref());
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

    #[test]
    fn restored_database_is_never_the_one_that_is_backed_up() {
        for (url, restored, target) in [
            ("postgres://db/live", "live_restored", "postgres://db/live_restored"),
            // The parameter overrides the path; the last of several is used.
            ("postgres://db/a?dbname=live", "live_restored", "postgres://db/live_restored"),
            ("postgres://db?dbname=a&dbname=live", "live_restored", "postgres://db/live_restored"),
            (
                "postgres://db/a?sslmode=require&dbname=live&application_name=my+app",
                "live_restored",
                "postgres://db/live_restored?sslmode=require&application_name=my%20app",
            ),
            ("postgres://db/a?%64bname=live", "live_restored", "postgres://db/live_restored"),
            // createdb takes the name as it is, not percent-encoded.
            ("postgres://db/my%20shop", "my shop_restored", "postgres://db/my%20shop_restored"),
            ("postgres://db/50%25%2Fx", "50%/x_restored", "postgres://db/50%25%2Fx_restored"),
            ("postgres://db?dbname=my+shop", "my shop_restored", "postgres://db/my%20shop_restored"),
        ] {
            let (_, found, found_target) = databases(url);
            assert_eq!((found.as_str(), found_target.as_str()), (restored, target), "{url}");
            let text = commands(url, Path::new("a.dump"));
            let restore = text.lines().find(|line| line.starts_with("pg_restore ")).unwrap();
            assert!(!restore.contains("dbname=live"), "{restore}");
        }
    }
}
