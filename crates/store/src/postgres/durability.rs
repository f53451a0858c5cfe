//! Ensures that commits of all sessions survive a server crash, whatever the role, the database or the URL set.

use deadpool_postgres::{Hook, HookError};
use futures_util::StreamExt;
use redrive_core::maintenance::durability::Durability;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::{
    Options,
    connect::ServerConfig,
    session::{Failure, Session, describe_error},
    unreachable,
};
use crate::error::OpenError;

/// Sets `synchronous_commit` to `on` if commits do not wait for the disk, and keeps a stronger setting. It is one
/// statement without parameters, so that a new connection costs one more round trip.
const MAKE_SYNCHRONOUS: &str = "SELECT CASE WHEN current_setting('synchronous_commit') IN ('on', 'remote_apply') \
     THEN current_setting('synchronous_commit') ELSE set_config('synchronous_commit', 'on', false) END, \
     current_setting('fsync'), current_setting('full_page_writes')";
const SELECT_SETTINGS: &str = "SELECT current_setting('synchronous_commit'), current_setting('fsync'), current_setting('full_page_writes')";

/// Checks every new connection of a pool and rejects one whose commits are not safe. This also detects a server
/// that was restarted with other settings, and a failover to another server.
pub(super) fn check_new_connections(options: &Options) -> Hook {
    let (allow_unsafe, timeout) = (options.allow_unsafe_durability, options.connect_timeout);
    Hook::async_fn(move |client, _| {
        Box::pin(async move {
            // The pool's own timeouts do not cover hooks.
            let checked = tokio::time::timeout(timeout, make_synchronous(client)).await;
            let durability = checked
                .map_err(|_| HookError::message("PostgreSQL does not respond"))?
                .map_err(HookError::Backend)?;
            match durability.risk() {
                Some(risk) if !allow_unsafe => Err(HookError::message(risk)),
                _ => Ok(()),
            }
        })
    })
}

/// Refuses a server that can lose acknowledged events, unless the configuration allows it.
pub(super) async fn refuse_unsafe(way: &ServerConfig, options: &Options) -> Result<(), OpenError> {
    let failed = |error: tokio_postgres::Error| unreachable(way, &describe_error(&error));
    let (client, connection) = way.connect().await.map_err(failed)?;
    let driven = tokio::spawn(connection.for_each(|_| async {}));
    let durability = tokio::time::timeout(options.statement_timeout, make_synchronous(&client))
        .await
        .map_err(|_| unreachable(way, &"PostgreSQL does not respond"))?
        .map_err(failed)?;
    drop(client);
    drop(driven.await);
    match durability.risk() {
        None => Ok(()),
        Some(reason) if options.allow_unsafe_durability => {
            tracing::warn!(%reason, "the database is not durable; allowed by database.allow_unsafe_durability");
            Ok(())
        }
        Some(reason) => Err(OpenError::Unsafe { database: way.displayed_address.clone(), reason }),
    }
}

/// Reads the durability settings of a pooled session.
pub(super) async fn read(session: &Session) -> Result<Durability, Failure> {
    let row = session.query_one(SELECT_SETTINGS, &[]).await?;
    let text = |index| row.try_get::<_, &str>(index).map_err(Failure::from);
    Ok(Durability::from_settings(text(0)?, text(1)?, text(2)?))
}

async fn make_synchronous(client: &Client) -> Result<Durability, tokio_postgres::Error> {
    let messages = client.simple_query(MAKE_SYNCHRONOUS).await?;
    let row = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let text = |index| row.and_then(|row| row.get(index)).unwrap_or_default();
    Ok(Durability::from_settings(text(0), text(1), text(2)))
}
