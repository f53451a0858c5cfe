//! The schema's versions. Migrations are numbered files, applied once and kept by checksum.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension};

use super::unusable;
use crate::error::OpenError;

mod embedded {
    refinery::embed_migrations!("src/sqlite/migrations");
}

/// Brings the schema up to date, or refuses one that is newer than this binary.
pub(super) fn prepare(connection: &mut Connection, path: &Path) -> Result<(), OpenError> {
    let runner = embedded::migrations::runner();
    let known = runner.get_migrations().iter().map(|migration| migration.version()).max();
    let known = i64::from(known.unwrap_or_default());
    let found = version(connection).map_err(|error| unusable(path, &error))?;
    if found > known {
        return Err(OpenError::NewerSchema { path: path.display().to_string(), found, known });
    }
    runner.run(connection).map_err(|error| unusable(path, &error))?;
    Ok(())
}

fn version(connection: &Connection) -> rusqlite::Result<i64> {
    let table = "SELECT 1 FROM sqlite_master WHERE name = 'refinery_schema_history'";
    if connection.query_row(table, (), |_| Ok(())).optional()?.is_none() {
        return Ok(0);
    }
    connection.query_row("SELECT ifnull(max(version), 0) FROM refinery_schema_history", (), |row| row.get(0))
}
