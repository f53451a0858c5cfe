//! `redrive migrate`: migrates the database schema and reports the result.

use super::{CliError, DatabaseArgs, block_on, creation};
use crate::{
    config::{Backend, Profile},
    store, telemetry,
};

#[expect(clippy::print_stdout, reason = "the result of a command goes to standard output")]
pub(super) fn run(args: &DatabaseArgs) -> Result<(), CliError> {
    let config = args.load(Profile::Serve)?;
    let _ = telemetry::start(&config.log);
    let backend = config.database.backend()?;
    creation::announce_creation(&backend);
    let migrated = block_on(async { Ok(store::migrate(&backend).await?) })?;
    match (migrated, &backend) {
        (Some(done), _) if done.from == done.to => println!("The schema is already at version {}.", done.to),
        (Some(done), _) => println!("The schema was migrated from version {} to {}.", done.from, done.to),
        (None, Backend::Sqlite(path)) => println!("The schema of {} is up to date.", path.display()),
        (None, backend) => println!("The schema on {backend} is up to date."),
    }
    Ok(())
}
