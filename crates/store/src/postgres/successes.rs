//! Last success of each webhook, kept as long as the webhook exists.

use std::collections::BTreeMap;

use redrive_core::{Time, WebhookId};

use super::{
    convert::{Col, get},
    session::{Failure, Session, Tx},
};

/// Rows are inserted or locked one after the other in the given order, which is that of their keys. A success of a
/// deleted webhook, counted by a node that did not know of the deletion, must not leave a row.
const SET_LAST_SUCCESSES: &str = "INSERT INTO webhook_successes (webhook_id, minute, last_success_at)
     SELECT i.webhook_id, i.minute, i.at FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS i(webhook_id, minute, at)
     WHERE NOT coalesce((SELECT h.deleted FROM webhooks h WHERE h.id = i.webhook_id LIMIT 1), false)
     ON CONFLICT (webhook_id) DO UPDATE SET minute = excluded.minute, last_success_at = excluded.last_success_at
     WHERE excluded.last_success_at > webhook_successes.last_success_at";
/// The minute has the exact time until it is pruned.
const SELECT_LAST_SUCCESSES: &str =
    "SELECT s.webhook_id, greatest(s.last_success_at, (SELECT r.last_success_at FROM rollups r
             WHERE r.webhook_id = s.webhook_id AND r.minute = s.minute LIMIT 1))
     FROM unnest($1::uuid[]) AS k(webhook_id)
     CROSS JOIN LATERAL (SELECT * FROM webhook_successes s WHERE s.webhook_id = k.webhook_id LIMIT 1) s";

/// Statements whose cost must be proportional to the rows they return or change; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 2] =
    [("set last successes", SET_LAST_SUCCESSES), ("last successes", SELECT_LAST_SUCCESSES)];

/// Stores the last successes of minutes in which no success was stored before, with their minutes: one write per webhook
/// and minute.
pub(super) async fn set(tx: &Session, successes: &BTreeMap<WebhookId, (Time, Time)>) -> Result<(), Failure> {
    if successes.is_empty() {
        return Ok(());
    }
    let webhooks: Vec<_> = successes.keys().map(|webhook_id| Col(*webhook_id)).collect();
    let minutes: Vec<_> = successes.values().map(|(minute, _)| Col(*minute)).collect();
    let times: Vec<_> = successes.values().map(|(_, at)| Col(*at)).collect();
    tx.execute(SET_LAST_SUCCESSES, &[&webhooks, &minutes, &times]).await?;
    Ok(())
}

/// Returns the last success of each of these webhooks that has one.
pub(super) async fn list(
    session: Tx,
    webhooks: &[Col<WebhookId>],
) -> Result<Vec<(WebhookId, Time)>, Failure> {
    let rows = session.query(SELECT_LAST_SUCCESSES, &[&webhooks]).await?;
    rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect()
}

/// Deletes the last success of a deleted webhook.
pub(super) async fn delete(tx: &Session, webhook_id: WebhookId) -> Result<(), Failure> {
    let delete = "DELETE FROM webhook_successes WHERE webhook_id = $1 AND (SELECT deleted FROM webhooks WHERE id = $1)";
    tx.execute(delete, &[&Col(webhook_id)]).await?;
    Ok(())
}
