//! Schema versions. Migrations are numbered files, applied once and verified by checksum; of several nodes that
//! start concurrently one applies them and the others wait.

use futures_util::StreamExt;

use super::{
    connect::ServerConfig,
    session::{Failure, Sessions, describe_error},
    unreachable,
};
use crate::error::OpenError;

mod embedded {
    refinery::embed_migrations!("src/postgres/migrations");
}

/// Result of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// Version before; 0 for an empty database.
    pub from: i64,
    /// Version after.
    pub to: i64,
}

/// Advisory lock that is held while the schema is being changed.
const LOCK: &str = "SELECT pg_advisory_lock(hashtext('redrive migrations'), hashtext(current_schema()))";

/// Upgrades the schema if `migrate` allows it, and refuses a schema that is newer than this binary.
pub(super) async fn prepare(way: &ServerConfig, migrate: bool) -> Result<Migrated, OpenError> {
    let failed = |error: tokio_postgres::Error| unreachable(way, &describe_error(&error));
    let (mut client, connection) = way.connect().await.map_err(failed)?;
    let driven = tokio::spawn(connection.for_each(|_| async {}));
    let runner = embedded::migrations::runner();
    let known = runner.get_migrations().iter().map(|migration| migration.version()).max();
    let known = i64::from(known.unwrap_or_default());
    // Check without the lock first: usually there is nothing to do.
    let mut found = version(&client).await.map_err(failed)?;
    if found == 0
        && let Some(reason) = missing_privilege(&client).await.map_err(failed)?
    {
        return Err(unreachable(way, &reason));
    }
    if found < known && migrate {
        client.batch_execute(LOCK).await.map_err(failed)?;
        if found == 0 {
            refuse_foreign(&client, way).await?;
        }
        runner
            .run_async(&mut client)
            .await
            .map_err(|error| unreachable(way, &describe_migration_error(&error)))?;
    }
    let before = found;
    found = version(&client).await.map_err(failed)?;
    // Closing the connection releases the lock.
    drop(client);
    drop(driven.await);
    if found > known {
        return Err(OpenError::NewerSchema { path: way.displayed_address.clone(), found, known });
    }
    if found < known {
        return Err(OpenError::OlderSchema { database: way.displayed_address.clone(), found, known });
    }
    Ok(Migrated { from: before, to: found })
}

/// Returns why this role cannot create the tables. Returns `None` if it can.
async fn missing_privilege(client: &tokio_postgres::Client) -> Result<Option<String>, tokio_postgres::Error> {
    const SELECT_PRIVILEGE: &str = "SELECT current_user::text, coalesce(current_schema(), '')::text,
        coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)";
    let row = client.query_one(SELECT_PRIVILEGE, &[]).await?;
    let (role, schema, may_create): (String, String, bool) = (row.get(0), row.get(1), row.get(2));
    Ok((!may_create).then(|| match schema.as_str() {
        "" => format!("the search path of the role {role} names no schema that exists"),
        schema => format!(
            "the role {role} may not create tables in the schema {schema}: as an administrator run GRANT CREATE ON SCHEMA \
             {schema} TO {role}, or make the role the owner of the database"
        ),
    }))
}

/// Describes an error with its cause, which the message of a failed migration omits.
fn describe_migration_error(error: &refinery::Error) -> String {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<tokio_postgres::Error>() {
            return describe_error(error);
        }
        cause = error.source();
    }
    error.to_string()
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

/// Refuses a schema that contains tables of another application.
async fn refuse_foreign(client: &tokio_postgres::Client, way: &ServerConfig) -> Result<(), OpenError> {
    let failed = |error: tokio_postgres::Error| unreachable(way, &describe_error(&error));
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

/// Returns the name of the current schema.
pub(super) async fn name(sessions: &Sessions) -> Result<String, Failure> {
    let session = sessions.get().await?;
    let row = session.query_one("SELECT current_schema()::text", &[]).await?;
    row.try_get(0).map_err(Failure::from)
}
