//! Sessions whose commits survive a crash of the server, whatever the role, the database or the URL say.

use deadpool_postgres::{Hook, HookError};
use futures_util::StreamExt;
use redrive_core::maintenance::durability::Durability;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::{
    Options,
    connect::Way,
    session::{Failure, Session, said},
    unreachable,
};
use crate::error::OpenError;

/// Asks for `on` where commits do not wait for the disk, and keeps what is stronger. One statement without
/// parameters, so that a new connection costs one more round trip.
const MAKE_SYNCHRONOUS: &str = "SELECT CASE WHEN current_setting('synchronous_commit') IN ('on', 'remote_apply') \
     THEN current_setting('synchronous_commit') ELSE set_config('synchronous_commit', 'on', false) END, \
     current_setting('fsync'), current_setting('full_page_writes')";
const SELECT_SETTINGS: &str = "SELECT current_setting('synchronous_commit'), current_setting('fsync'), current_setting('full_page_writes')";

/// Runs for every new connection of a pool. One whose commits are not safe is not used, so a server that was
/// restarted with other settings, or took over from another, is noticed.
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
pub(super) async fn refuse_unsafe(way: &Way, options: &Options) -> Result<(), OpenError> {
    let failed = |error: tokio_postgres::Error| unreachable(way, &said(&error));
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
        Some(reason) => Err(OpenError::Unsafe { place: way.place.clone(), reason }),
    }
}

/// The settings of a session of a pool.
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
