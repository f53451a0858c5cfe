//! Housekeeping and health.

use redrive_core::Time;

use super::{Sqlite, convert::Col};
use crate::{Answer, Upkeep, Vitals};

impl Upkeep for Sqlite {
    fn forget_keys(&self, now: Time, limit: usize) -> Answer<'_, usize> {
        self.write(move |transaction| {
            transaction.execute(
                "DELETE FROM idempotency WHERE (tenant, key_hash) IN
                 (SELECT tenant, key_hash FROM idempotency WHERE expires_at <= ? LIMIT ?)",
                (Col(now), limit as i64),
            )
        })
    }

    fn ping(&self) -> Answer<'_, ()> {
        // A write, since a full disk still reads. It changes nothing and commits nothing.
        self.write(|transaction| {
            transaction.execute("UPDATE tenants SET next_seq = next_seq WHERE id = 'default'", ()).map(drop)
        })
    }

    fn vitals(&self) -> Answer<'_, Vitals> {
        let commits = self.writer.commits();
        self.read(move |connection| {
            let count = |table: &str| -> rusqlite::Result<u64> {
                let mut rows = connection.prepare_cached(&format!("SELECT count(*) FROM {table}"))?;
                rows.query_row((), |row| row.get::<_, i64>(0)).map(i64::unsigned_abs)
            };
            Ok(Vitals { commits, waiting: count("waiting")?, dead: count("dead")? })
        })
    }
}
