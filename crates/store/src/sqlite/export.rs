//! Reads a whole embedded store for a copy. No other process may have the store open.

use std::{collections::BTreeSet, fs::File, path::Path};

use rusqlite::{
    Connection, OpenFlags, Row, params_from_iter,
    types::{Value, ValueRef},
};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use super::schema;
use crate::{
    copy::{
        Chunk, CopyCursor, CopyError, Identity, Limits, MAX_REPORTED_VALUES, SourceCounts,
        binary_rows::BinaryRows,
        tables::{Kind, TABLE_COPIES, TableCopy},
    },
    error::OpenError,
};

/// Number of chunks that are read ahead.
const READ_AHEAD_CHUNKS: usize = 2;
const DAY: i64 = 24 * 3600 * 1000;

/// Queries whose results change whenever the store is used: every start of a server takes a node number, every
/// event a sequence number of its tenant, and every key is a row. The schema version also changes when the file is
/// rebuilt, which renumbers rows.
const STATE: [&str; 5] = [
    "PRAGMA schema_version",
    "SELECT version, checksum FROM refinery_schema_history ORDER BY version",
    "SELECT name, seq FROM sqlite_sequence ORDER BY name",
    "SELECT * FROM tenants ORDER BY id",
    "SELECT * FROM api_keys ORDER BY id",
];

/// Source of a copy, locked against other processes.
pub(crate) struct Source {
    /// Identity of the store.
    pub(crate) identity: Identity,
    /// Connection with one transaction for the whole copy. `None` while another thread reads from it.
    connection: Option<Connection>,
    _lock: File,
}

impl Source {
    /// Opens an existing store without changing it.
    pub(crate) fn open(path: &Path) -> Result<Self, CopyError> {
        let refused = |reason: &str| {
            Err(CopyError::NoSource { path: path.display().to_string(), reason: reason.to_owned() })
        };
        if !path.is_file() {
            return refused("the file does not exist");
        }
        let lock = super::lock(path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let check = || -> rusqlite::Result<_> {
            let connection = Connection::open_with_flags(path, flags)?;
            connection.execute_batch("PRAGMA cache_size = -8192; PRAGMA busy_timeout = 5000; BEGIN")?;
            let version = if schema::is_ours(&connection)? { schema::version(&connection)? } else { 0 };
            Ok((connection, version))
        };
        let (connection, found) = match check() {
            Ok(looked) => looked,
            Err(error) => return refused(&error.to_string()),
        };
        let known = schema::known();
        if found == 0 {
            return refused("it is not a Redrive database");
        }
        if found > known {
            return Err(OpenError::NewerSchema { path: path.display().to_string(), found, known }.into());
        }
        if found < known {
            return refused(&format!(
                "its schema has version {found} and this redrive needs {known}; start this redrive on it once, \
                 stop it, and copy then"
            ));
        }
        match identity(&connection, path) {
            Ok(identity) => Ok(Self { identity, connection: Some(connection), _lock: lock }),
            Err(error) => refused(&error.to_string()),
        }
    }

    /// Counts the rows of the store.
    pub(crate) async fn counts(&mut self) -> Result<SourceCounts, CopyError> {
        let connection = self.take()?;
        let counted = tokio::task::spawn_blocking(move || (counts(&connection), connection)).await;
        let (counts, connection) = counted.map_err(|error| self.unreadable(&error))?;
        self.connection = Some(connection);
        counts.map_err(|error| self.unreadable(&error))
    }

    /// Reads everything after a position on a separate thread, which ends when the receiver is dropped.
    pub(crate) fn read(
        &mut self,
        from: CopyCursor,
        now: i64,
        limits: Limits,
    ) -> Result<mpsc::Receiver<Result<Chunk, CopyError>>, CopyError> {
        let path = self.identity.path.clone();
        let reader = Reader { connection: self.take()?, path, now, limits };
        let (sender, chunks) = mpsc::channel(READ_AHEAD_CHUNKS);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = reader.read(from, &sender) {
                drop(sender.blocking_send(Err(error)));
            }
        });
        Ok(chunks)
    }

    fn take(&mut self) -> Result<Connection, CopyError> {
        self.connection.take().ok_or_else(|| self.unreadable(&"it is already being read"))
    }

    fn unreadable(&self, reason: &impl ToString) -> CopyError {
        CopyError::Unreadable { path: self.identity.path.clone(), reason: reason.to_string() }
    }
}

fn identity(connection: &Connection, path: &Path) -> rusqlite::Result<Identity> {
    let created_at = "SELECT applied_on FROM refinery_schema_history ORDER BY version LIMIT 1";
    let created_at = connection.query_row(created_at, (), |row| row.get(0))?;
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    Ok(Identity { created_at, state: state(connection)?, path: path.display().to_string() })
}

fn counts(connection: &Connection) -> rusqlite::Result<SourceCounts> {
    let count = |sql: &str| connection.query_row(sql, (), |row| Ok(row.get::<_, i64>(0)?.unsigned_abs()));
    let rows = TABLE_COPIES.iter().map(|step| count(&format!("SELECT count(*) FROM {}", step.name)));
    Ok(SourceCounts {
        rows: rows.collect::<rusqlite::Result<_>>()?,
        pending: count("SELECT count(*) FROM deliveries WHERE status = 0")?,
        cancelled: count("SELECT count(*) FROM leased WHERE cancel IS NOT NULL")?,
        lanes: count(
            "SELECT count(*) FROM (SELECT webhook_id, lane FROM waiting
                                   UNION SELECT webhook_id, lane FROM leased WHERE cancel IS NULL)",
        )?,
    })
}

fn state(connection: &Connection) -> rusqlite::Result<String> {
    // Another version may copy differently.
    let mut hash = Sha256::new_with_prefix(env!("CARGO_PKG_VERSION"));
    for sql in STATE {
        let mut statement = connection.prepare(sql)?;
        let columns = statement.column_count();
        let mut rows = statement.query(())?;
        while let Some(row) = rows.next()? {
            for column in 0..columns {
                let value = format!("{:?}", row.get_ref(column)?);
                hash.update((value.len() as u64).to_be_bytes());
                hash.update(value);
            }
        }
    }
    Ok(hex(&hash.finalize()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Encodes a key value as it is saved in the target.
fn write_key(value: &Value) -> String {
    match value {
        Value::Blob(bytes) => hex(bytes),
        Value::Integer(n) => n.to_string(),
        Value::Text(text) => text.clone(),
        Value::Null | Value::Real(_) => String::new(),
    }
}

/// Decodes a key value that was saved in the target.
fn read_key(kind: Kind, text: &str) -> Option<Value> {
    match kind {
        Kind::Text => Some(Value::Text(text.to_owned())),
        Kind::Id | Kind::Bytes => {
            let bytes =
                (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok());
            bytes.collect::<Option<_>>().map(Value::Blob)
        }
        _ => text.parse().ok().map(Value::Integer),
    }
}

struct Reader {
    connection: Connection,
    path: String,
    now: i64,
    limits: Limits,
}

impl Reader {
    fn read(
        &self,
        from: CopyCursor,
        sender: &mpsc::Sender<Result<Chunk, CopyError>>,
    ) -> Result<(), CopyError> {
        let mut after = from.last;
        for step in from.step..TABLE_COPIES.len() {
            if !self.read_step(step, after.take(), sender)? {
                break;
            }
        }
        Ok(())
    }

    /// Reads one table. Returns `false` if the receiver was dropped.
    fn read_step(
        &self,
        at: usize,
        after: Option<Vec<String>>,
        sender: &mpsc::Sender<Result<Chunk, CopyError>>,
    ) -> Result<bool, CopyError> {
        let step = &TABLE_COPIES[at];
        let unreadable = |error: rusqlite::Error| self.unreadable(&error);
        let select = step.select(after.is_some(), self.now);
        let key = after.unwrap_or_default();
        let key: Option<Vec<_>> = step.key.iter().zip(&key).map(|(c, text)| read_key(c.kind, text)).collect();
        let key =
            key.ok_or_else(|| self.unreadable(&"the copy progress of the target contains an invalid key"))?;
        let mut statement = self.connection.prepare(&select).map_err(unreadable)?;
        let mut rows = statement.query(params_from_iter(key)).map_err(unreadable)?;
        let (mut filling, mut reported) = (Filling::new(step), false);
        while let Some(row) = rows.next().map_err(unreadable)? {
            filling.add(row)?;
            if filling.is_full(self.limits) {
                let full = std::mem::replace(&mut filling, Filling::new(step));
                reported = true;
                if sender.blocking_send(Ok(full.finish(at))).is_err() {
                    return Ok(false);
                }
            }
        }
        // An empty table also sends a chunk, so that the target learns that it is done.
        Ok(reported && filling.rows == 0 || sender.blocking_send(Ok(filling.finish(at))).is_ok())
    }

    fn unreadable(&self, reason: &impl ToString) -> CopyError {
        CopyError::Unreadable { path: self.path.clone(), reason: reason.to_string() }
    }
}

/// Chunk that is being filled.
struct Filling {
    step: &'static TableCopy,
    packed: BinaryRows,
    rows: usize,
    key: Vec<Value>,
    days: BTreeSet<i64>,
    altered: u64,
    altered_values: Vec<String>,
}

impl Filling {
    fn new(step: &'static TableCopy) -> Self {
        let (key, days, altered_values) = (Vec::new(), BTreeSet::new(), Vec::new());
        Self { step, packed: BinaryRows::new(), rows: 0, key, days, altered: 0, altered_values }
    }

    fn is_full(&self, limits: Limits) -> bool {
        self.rows >= limits.rows || self.packed.bytes() >= limits.bytes
    }

    fn add(&mut self, row: &Row<'_>) -> Result<(), CopyError> {
        self.packed.begin_row(self.step.columns.len());
        for (at, column) in self.step.columns.iter().enumerate() {
            let bad = |reason: String| CopyError::BadRow {
                row: name(self.step, row),
                reason: format!("{}: {reason}", column.name),
            };
            let value = row.get_ref(at).map_err(|error| bad(error.to_string()))?;
            if self.packed.add(column.kind, value).map_err(bad)? {
                self.altered += 1;
                if self.altered_values.len() < MAX_REPORTED_VALUES {
                    self.altered_values.push(format!("{}: {}", name(self.step, row), column.name));
                }
            }
        }
        if self.step.monthly
            && let Ok(ValueRef::Blob([a, b, c, d, e, f, ..])) = row.get_ref(0)
        {
            let millis = i64::from_be_bytes([0, 0, *a, *b, *c, *d, *e, *f]);
            self.days.insert(millis - millis % DAY);
        }
        self.key.clear();
        let first = self.step.columns.len();
        self.key.extend((first..first + self.step.key.len()).map(|at| row.get(at).unwrap_or(Value::Null)));
        self.rows += 1;
        Ok(())
    }

    fn finish(self, step: usize) -> Chunk {
        Chunk {
            step,
            data: self.packed.finish(),
            rows: self.rows as u64,
            last: (self.rows > 0).then(|| self.key.iter().map(write_key).collect()),
            days: self.days,
            altered: self.altered,
            altered_values: self.altered_values,
        }
    }
}

/// Returns the name of a row for messages: its table, its first column and the rest of its key.
fn name(step: &TableCopy, row: &Row<'_>) -> String {
    let rest = step.columns.len() + 1..step.columns.len() + step.key.len();
    let values = std::iter::once(0).chain(rest).map(|at| write_key(&row.get(at).unwrap_or(Value::Null)));
    format!("{} {}", step.name, values.collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::{Options, Sqlite};

    fn source() -> (tempfile::TempDir, Source) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("redrive.db");
        drop(Sqlite::open(&Options::at(&path)).unwrap());
        let source = Source::open(&path).unwrap();
        (folder, source)
    }

    #[test]
    fn tables_are_read_in_key_order_without_sorting() {
        let (_folder, source) = source();
        for step in &TABLE_COPIES {
            for after in [false, true] {
                let explain = format!("EXPLAIN QUERY PLAN {}", step.select(after, 0));
                let mut statement = source.connection.as_ref().unwrap().prepare(&explain).unwrap();
                let mut plan = Vec::new();
                let key = step.key.iter().filter(|_| after).map(|_| Value::Null);
                let mut rows = statement.query(params_from_iter(key)).unwrap();
                while let Some(row) = rows.next().unwrap() {
                    plan.push(row.get::<_, String>(3).unwrap());
                }
                let begins = if after { "SEARCH t " } else { "SCAN t" };
                assert!(plan[0].starts_with(begins), "{} {plan:?}", step.name);
                assert!(!plan.iter().any(|line| line.contains("TEMP B-TREE")), "{} {plan:?}", step.name);
            }
        }
    }

    #[test]
    fn keys_round_trip() {
        for (kind, value) in [
            (Kind::Id, Value::Blob(vec![0, 1, 0xfe, 0xff])),
            (Kind::Big, Value::Integer(-7)),
            (Kind::Text, Value::Text("acme".into())),
        ] {
            assert_eq!(read_key(kind, &write_key(&value)), Some(value));
        }
        assert_eq!(read_key(Kind::Id, "0g"), None);
        assert_eq!(read_key(Kind::Id, "€"), None);
    }

    #[test]
    fn rebuilt_file_has_another_state() {
        let (folder, source) = source();
        let path = folder.path().join("redrive.db");
        let before = source.identity.clone();
        drop(source);
        let again = Source::open(&path).unwrap().identity;
        assert_eq!((&again.created_at, &again.state), (&before.created_at, &before.state));
        Connection::open(&path).unwrap().execute_batch("VACUUM").unwrap();
        let rebuilt = Source::open(&path).unwrap().identity;
        assert_eq!(rebuilt.created_at, before.created_at);
        assert_ne!(rebuilt.state, before.state);
    }
}
