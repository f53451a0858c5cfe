//! Schema versions. Migrations are numbered files, applied once and verified by checksum.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension};

use super::unusable;
use crate::error::OpenError;

mod embedded {
    refinery::embed_migrations!("src/sqlite/migrations");
}

/// Application id of the file ("Rdrv"), so that a database of another application is never changed.
const APPLICATION_ID: i64 = 0x5264_7276;

/// Reason for refusing a database of another program.
pub(super) const FOREIGN: &str = "it is a database of another program";

/// Upgrades the schema, or refuses one that is newer than this binary.
pub(super) fn prepare(connection: &mut Connection, path: &Path) -> Result<(), OpenError> {
    let runner = embedded::migrations::runner();
    let known = known();
    if is_foreign(connection).map_err(|error| unusable(path, &error))? {
        return Err(unusable(path, &FOREIGN));
    }
    let found = version(connection).map_err(|error| unusable(path, &error))?;
    if found > known {
        return Err(OpenError::NewerSchema { path: path.display().to_string(), found, known });
    }
    runner.run(connection).map_err(|error| unusable(path, &error))?;
    Ok(())
}

/// Returns the newest schema version that this binary knows.
pub(super) fn known() -> i64 {
    let runner = embedded::migrations::runner();
    let known = runner.get_migrations().iter().map(|migration| migration.version()).max();
    i64::from(known.unwrap_or_default())
}

/// Returns whether a file is a Redrive database.
pub(super) fn is_ours(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("PRAGMA application_id", (), |row| Ok(row.get::<_, i64>(0)? == APPLICATION_ID))
}

fn is_foreign(connection: &Connection) -> rusqlite::Result<bool> {
    let id: i64 = connection.query_row("PRAGMA application_id", (), |row| row.get(0))?;
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_master", (), |row| row.get(0))?;
    if id == 0 && tables == 0 {
        connection.execute_batch(&format!("PRAGMA application_id = {APPLICATION_ID}"))?;
        return Ok(false);
    }
    Ok(id != APPLICATION_ID)
}

/// Returns the schema version of a file; 0 if it has none.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<i64> {
    let table = "SELECT 1 FROM sqlite_master WHERE name = 'refinery_schema_history'";
    if connection.query_row(table, (), |_| Ok(())).optional()?.is_none() {
        return Ok(0);
    }
    connection.query_row("SELECT ifnull(max(version), 0) FROM refinery_schema_history", (), |row| row.get(0))
}
