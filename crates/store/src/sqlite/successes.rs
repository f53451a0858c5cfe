//! Last success of each webhook, kept as long as the webhook exists.

use redrive_core::{Time, WebhookId};
use rusqlite::{Connection, OptionalExtension, Transaction};

use super::convert::{Col, get};
use crate::MinuteRollup;

/// A success of a deleted webhook, counted by a node that did not know of the deletion, must not leave a row.
const SET_LAST_SUCCESS: &str = "INSERT INTO webhook_successes (webhook_id, minute, last_success_at)
     SELECT ?1, ?2, ?3 WHERE NOT EXISTS (SELECT 1 FROM webhooks WHERE id = ?1 AND deleted = 1)
     ON CONFLICT DO UPDATE SET minute = excluded.minute, last_success_at = excluded.last_success_at
     WHERE excluded.last_success_at > webhook_successes.last_success_at";
/// The minute has the exact time until it is pruned.
const SELECT_LAST_SUCCESS: &str =
    "SELECT max(s.last_success_at, coalesce((SELECT r.last_success_at FROM rollups r
             WHERE r.webhook_id = s.webhook_id AND r.minute = s.minute), 0))
     FROM webhook_successes s WHERE s.webhook_id = ?";

/// Statements whose cost must be proportional to the rows they return or change; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const BOUNDED_STATEMENTS: [&str; 2] = [SET_LAST_SUCCESS, SELECT_LAST_SUCCESS];

/// Stores the last success of a minute in which no success was stored before: one write per webhook and minute.
pub(super) fn set(transaction: &Transaction<'_>, minute: &MinuteRollup) -> rusqlite::Result<()> {
    if let Some(at) = minute.rollup.last_success_at {
        transaction.prepare_cached(SET_LAST_SUCCESS)?.execute((
            Col(minute.webhook_id),
            Col(minute.minute),
            Col(at),
        ))?;
    }
    Ok(())
}

/// Returns the last success of each of these webhooks that has one.
pub(super) fn list(
    connection: &Connection,
    webhooks: Vec<WebhookId>,
) -> rusqlite::Result<Vec<(WebhookId, Time)>> {
    let mut of_one = connection.prepare_cached(SELECT_LAST_SUCCESS)?;
    let mut found = Vec::new();
    for webhook_id in webhooks {
        let last = of_one.query_row([Col(webhook_id)], |row| get(row, 0)).optional()?;
        found.extend(last.map(|last| (webhook_id, last)));
    }
    Ok(found)
}

/// Deletes the last success of a deleted webhook.
pub(super) fn delete(transaction: &Transaction<'_>, webhook_id: WebhookId) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "DELETE FROM webhook_successes WHERE webhook_id = ?1 AND (SELECT deleted FROM webhooks WHERE id = ?1)",
        )?
        .execute([Col(webhook_id)])?;
    Ok(())
}
