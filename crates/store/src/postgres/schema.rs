//! The schema's versions. Migrations are numbered files, applied once and kept by checksum; of several nodes
//! that start at once one applies them and the others wait.

use futures_util::StreamExt;

use super::{
    connect::Way,
    session::{Failure, Sessions, said},
    unreachable,
};
use crate::error::OpenError;

mod embedded {
    refinery::embed_migrations!("src/postgres/migrations");
}

/// What bringing the schema up to date came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// The version it had; 0 for an empty database.
    pub from: i64,
    /// The version it has.
    pub to: i64,
}

/// Held while the schema is being changed. Any number would do; other programs use others.
const LOCK: &str = "SELECT pg_advisory_lock(hashtext('redrive migrations'), hashtext(current_schema()))";

/// Brings the schema up to date, if it may be changed, or refuses one that is newer than this binary.
pub(super) async fn prepare(way: &Way, migrate: bool) -> Result<Migrated, OpenError> {
    let failed = |error: tokio_postgres::Error| unreachable(way, &said(&error));
    let (mut client, connection) = way.connect().await.map_err(failed)?;
    let driven = tokio::spawn(connection.for_each(|_| async {}));
    let runner = embedded::migrations::runner();
    let known = runner.get_migrations().iter().map(|migration| migration.version()).max();
    let known = i64::from(known.unwrap_or_default());
    // First without the lock: usually there is nothing to do.
    let mut found = version(&client).await.map_err(failed)?;
    if found < known && migrate {
        client.batch_execute(LOCK).await.map_err(failed)?;
        if found == 0 {
            refuse_foreign(&client, way).await?;
        }
        runner.run_async(&mut client).await.map_err(|error| unreachable(way, &error))?;
    }
    let before = found;
    found = version(&client).await.map_err(failed)?;
    // Closing the connection gives the lock back.
    drop(client);
    drop(driven.await);
    if found > known {
        return Err(OpenError::NewerSchema { path: way.place.clone(), found, known });
    }
    if found < known {
        return Err(OpenError::OlderSchema { place: way.place.clone(), found, known });
    }
    Ok(Migrated { from: before, to: found })
}

async fn version(client: &tokio_postgres::Client) -> Result<i64, tokio_postgres::Error> {
    let table = client.query_one("SELECT to_regclass('refinery_schema_history') IS NOT NULL", &[]).await?;
    if !table.try_get::<_, bool>(0)? {
        return Ok(0);
    }
    let row = client
        .query_one("SELECT coalesce(max(version), 0)::bigint FROM refinery_schema_history", &[])
        .await?;
    row.try_get(0)
}

/// Nobody else's tables are ever mixed with ours.
async fn refuse_foreign(client: &tokio_postgres::Client, way: &Way) -> Result<(), OpenError> {
    let failed = |error: tokio_postgres::Error| unreachable(way, &said(&error));
    if version(client).await.map_err(failed)? > 0 {
        return Ok(());
    }
    let tables = "SELECT c.relname FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace \
                  AND c.relkind IN ('r', 'p') AND c.relname <> 'refinery_schema_history' LIMIT 1";
    match client.query_opt(tables, &[]).await.map_err(failed)? {
        None => Ok(()),
        Some(row) => {
            let table: String = row.try_get(0).map_err(failed)?;
            let reason = format!(
                "it has tables of another program (such as {table}); give Redrive a database or a schema of its own"
            );
            Err(unreachable(way, &reason))
        }
    }
}

/// The name of the schema that everything is in.
pub(super) async fn name(sessions: &Sessions) -> Result<String, Failure> {
    let session = sessions.get().await?;
    let row = session.query_one("SELECT current_schema()::text", &[]).await?;
    row.try_get(0).map_err(Failure::from)
}
