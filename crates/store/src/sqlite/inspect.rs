//! Reads from a database file, which a server may have open, whether a server could start on it. Changes nothing.

use std::path::Path;

use redrive_core::security::vault::MasterKeyId;
use rusqlite::{Connection, OpenFlags};

use super::{BUSY_TIMEOUT, schema, unusable, webhooks};
use crate::error::OpenError;

/// What a database contains that matters to a start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// Version of the schema; 0 for an empty file.
    pub schema_version: i64,
    /// Whether it contains an admin key that is not revoked.
    pub has_admin_key: bool,
    /// The master keys that its secrets are encrypted with.
    pub encryption_keys: Vec<MasterKeyId>,
}

/// Inspects the database at `path`. Returns `None` if there is no file, and refuses one that a server would refuse.
pub fn inspect(path: &Path) -> Result<Option<Inspection>, OpenError> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable(path, &error)),
        // SQLite cannot read an empty file without write access.
        Ok(file) if file.is_file() && file.len() == 0 => return Ok(Some(Inspection::default())),
        Ok(_) => {}
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| unusable(path, &error))?;
    let found = read(&connection).map_err(|error| unusable(path, &error))?;
    match found {
        None => Err(unusable(path, &schema::FOREIGN)),
        Some(found) if found.schema_version > schema::known() => Err(OpenError::NewerSchema {
            path: path.display().to_string(),
            found: found.schema_version,
            known: schema::known(),
        }),
        found => Ok(found),
    }
}

/// Returns `None` for a database of another program.
fn read(connection: &Connection) -> rusqlite::Result<Option<Inspection>> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    if !schema::is_ours(connection)? {
        let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get(0))?;
        return Ok((tables == 0).then(Inspection::default));
    }
    let schema_version = schema::version(connection)?;
    if schema_version == 0 || schema_version > schema::known() {
        return Ok(Some(Inspection { schema_version, ..Inspection::default() }));
    }
    let admin_key = "SELECT EXISTS (SELECT 1 FROM api_keys WHERE tenant_id IS NULL AND revoked_at IS NULL)";
    Ok(Some(Inspection {
        schema_version,
        has_admin_key: connection.query_row(admin_key, (), |row| row.get(0))?,
        encryption_keys: webhooks::encryption_keys(connection)?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::{Options, Sqlite};

    #[test]
    fn database_is_inspected_while_a_store_has_it_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("redrive.db");
        assert_eq!(inspect(&path).unwrap(), None);
        assert!(!path.exists(), "nothing is created");
        let open = Sqlite::open(&Options::at(&path)).unwrap();
        let found = inspect(&path).unwrap().unwrap();
        assert_eq!(found.schema_version, schema::known());
        assert!(!found.has_admin_key && found.encryption_keys.is_empty());
        drop(open);
        let connection = Connection::open(&path).unwrap();
        connection
            .execute(
                "INSERT INTO api_keys (id, tenant_id, name, hash, scopes, created_at) VALUES (x'00', NULL, '', x'00', 0, 0)",
                (),
            )
            .unwrap();
        assert!(inspect(&path).unwrap().unwrap().has_admin_key);
        connection.execute("UPDATE api_keys SET revoked_at = 1", ()).unwrap();
        assert!(!inspect(&path).unwrap().unwrap().has_admin_key);
    }

    #[test]
    fn empty_file_is_accepted_and_others_are_refused_as_by_a_start() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("empty.db"), "").unwrap();
        assert_eq!(inspect(&at("empty.db")).unwrap(), Some(Inspection::default()));
        std::fs::write(at("text.db"), "this is no database at all, and longer than a header of SQLite")
            .unwrap();
        Connection::open(at("foreign.db")).unwrap().execute_batch("CREATE TABLE a (b)").unwrap();
        std::fs::create_dir(at("folder.db")).unwrap();
        for name in ["text.db", "foreign.db", "folder.db"] {
            let inspected = inspect(&at(name)).unwrap_err().to_string();
            let opened = Sqlite::open(&Options::at(at(name))).err().unwrap().to_string();
            assert!(inspected.contains(name) && opened.contains(name), "{inspected}\n{opened}");
        }
    }
}
