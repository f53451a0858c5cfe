//! Lanes: when each queue of a webhook is to be claimed from next. Whatever blocks a webhook as a whole is applied
//! here and nowhere else (as the wake time of its lanes), so the deliveries of a blocked webhook cost nothing.

use std::collections::BTreeSet;

use redrive_core::{DeliveryId, Time, WebhookId, delivery::lane::Lane, tenancy::DEFAULT_POOL};
use rusqlite::{OptionalExtension, Transaction};

use super::convert::{Col, get};
use crate::{Epoch, LaneKey};

/// First delivery of a lane. In an ordered lane nothing behind it may start before it has ended.
pub(super) const SELECT_FIRST_DUE: &str =
    "SELECT due FROM waiting WHERE webhook_id = ?1 AND lane = ?2 ORDER BY sort_key, seq LIMIT 1";
pub(super) const SELECT_BLOCKED_UNTIL: &str =
    "SELECT paused, max(paused_until, circuit_until) FROM webhook_runtime WHERE webhook_id = ?";
pub(super) const UPDATE_WAKE_EARLIER: &str =
    "UPDATE lanes SET wake_at = min(wake_at, ?3) WHERE webhook_id = ?1 AND lane = ?2";
pub(super) const SET_WAKE: &str = "UPDATE lanes SET wake_at = ?3 WHERE webhook_id = ?1 AND lane = ?2";

/// How often the lease of a delivery has ended without an outcome because its node died, its task panicked, or its
/// outcome could not be stored; `crash_count` is how often of these it was known to be sent.
#[derive(Clone, Copy, Default)]
pub(super) struct ReleaseCounts {
    pub(super) abnormal_releases: u32,
    pub(super) crash_count: u32,
}

/// Position of a delivery, which stays the same in `waiting` and `leased`.
#[derive(Clone, Debug)]
pub(super) struct LanePosition {
    pub(super) delivery_id: DeliveryId,
    pub(super) webhook_id: WebhookId,
    pub(super) lane: Lane,
    pub(super) seq: i64,
}

/// Inserts a lease of a delivery.
pub(super) fn lease(
    transaction: &Transaction<'_>,
    position: &LanePosition,
    epoch: Epoch,
    release_counts: ReleaseCounts,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT INTO leased (delivery_id, epoch, webhook_id, lane, seq, abnormal_releases, crash_count)
             VALUES (?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute((
            Col(position.delivery_id),
            epoch.0,
            Col(position.webhook_id),
            position.lane.code(),
            position.seq,
            release_counts.abnormal_releases,
            release_counts.crash_count,
        ))?;
    Ok(())
}

/// Inserts a delivery into `waiting`, and updates the wake time of its lane.
pub(super) fn insert_waiting(
    transaction: &Transaction<'_>,
    position: &LanePosition,
    due: Time,
    created_at: Time,
    release_counts: ReleaseCounts,
) -> rusqlite::Result<()> {
    let sort_key = if position.lane.is_ordered() { 0 } else { due.millis() };
    let code = position.lane.code();
    transaction
        .prepare_cached(
            "INSERT INTO waiting (delivery_id, webhook_id, lane, sort_key, seq, due, created_at, abnormal_releases, crash_count)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute((
            Col(position.delivery_id),
            Col(position.webhook_id),
            &code,
            sort_key,
            position.seq,
            Col(due),
            Col(created_at),
            release_counts.abnormal_releases,
            release_counts.crash_count,
        ))?;
    match position.lane {
        Lane::Unordered { .. } => move_wake_earlier(transaction, position.webhook_id, &code, due),
        // In an ordered lane only the first delivery counts, and this may be a later one.
        Lane::Ordered(_) => recompute_wake(transaction, position.webhook_id, &code),
    }
}

/// Returns the due time of the first delivery of a lane.
pub(super) fn first_due(
    transaction: &Transaction<'_>,
    webhook_id: WebhookId,
    code: &str,
) -> rusqlite::Result<Option<Time>> {
    transaction
        .prepare_cached(SELECT_FIRST_DUE)?
        .query_row((Col(webhook_id), code), |row| get(row, 0))
        .optional()
}

/// Makes the wake time of a lane no later than `at` or, if the webhook is blocked for longer, the end of its
/// block.
pub(super) fn move_wake_earlier(
    transaction: &Transaction<'_>,
    webhook_id: WebhookId,
    code: &str,
    at: Time,
) -> rusqlite::Result<()> {
    let at = at.max(blocked_until(transaction, webhook_id)?);
    let known = transaction.prepare_cached(UPDATE_WAKE_EARLIER)?.execute((Col(webhook_id), code, Col(at)))?;
    if known == 0 { insert_lane(transaction, webhook_id, code, at) } else { Ok(()) }
}

/// Recomputes the wake time of a lane, whichever node has claimed it, after a delivery in it was added, changed or
/// removed.
pub(super) fn recompute_wake(
    transaction: &Transaction<'_>,
    webhook_id: WebhookId,
    code: &str,
) -> rusqlite::Result<()> {
    let Some(due) = first_due(transaction, webhook_id, code)? else {
        return delete_lane(transaction, webhook_id, code);
    };
    let at = due.max(blocked_until(transaction, webhook_id)?);
    let known = transaction.prepare_cached(SET_WAKE)?.execute((Col(webhook_id), code, Col(at)))?;
    if known == 0 { insert_lane(transaction, webhook_id, code, at) } else { Ok(()) }
}

/// Recomputes the wake time of each of these lanes of a webhook, once.
pub(super) fn recompute_wake_for<'a>(
    transaction: &Transaction<'_>,
    webhook_id: WebhookId,
    codes: impl Iterator<Item = &'a String>,
) -> rusqlite::Result<()> {
    codes
        .collect::<BTreeSet<_>>()
        .into_iter()
        .try_for_each(|code| recompute_wake(transaction, webhook_id, code))
}

/// Wakes the next delivery of an ordered lane after a leased one has ended.
pub(super) fn wake_next_in_order(
    transaction: &Transaction<'_>,
    webhook_id: WebhookId,
    lane: &Lane,
) -> rusqlite::Result<()> {
    if lane.is_ordered() { recompute_wake(transaction, webhook_id, &lane.code()) } else { Ok(()) }
}

/// Inserts a lane.
fn insert_lane(
    transaction: &Transaction<'_>,
    webhook_id: WebhookId,
    code: &str,
    at: Time,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT INTO lanes (webhook_id, lane, wake_at, pool) VALUES (?1, ?2, ?3, coalesce(
                 (SELECT json_extract(t.rules, '$.pool') FROM webhooks w JOIN tenants t ON t.id = w.tenant_id
                  WHERE w.id = ?1), ?4))",
        )?
        .execute((Col(webhook_id), code, Col(at), DEFAULT_POOL))?;
    Ok(())
}

/// Deletes an empty lane.
fn delete_lane(transaction: &Transaction<'_>, webhook_id: WebhookId, code: &str) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("DELETE FROM lanes WHERE webhook_id = ? AND lane = ?")?
        .execute((Col(webhook_id), code))?;
    Ok(())
}

/// Returns the time until which nothing may be claimed for a webhook, or time zero if nothing blocks it.
pub(super) fn blocked_until(transaction: &Transaction<'_>, webhook_id: WebhookId) -> rusqlite::Result<Time> {
    let until = transaction
        .prepare_cached(SELECT_BLOCKED_UNTIL)?
        .query_row([Col(webhook_id)], |row| Ok(if row.get(0)? { Time::FAR_FUTURE } else { get(row, 1)? }))
        .optional()?;
    Ok(until.unwrap_or_default())
}

/// Sets the wake time of a lane from what is waiting in it, and the epoch that has claimed it. Deletes an empty lane.
pub(super) fn recompute_lane(
    transaction: &Transaction<'_>,
    webhook_id: WebhookId,
    code: &str,
    claimed_by: Option<Epoch>,
    not_before: Time,
) -> rusqlite::Result<()> {
    let Some(due) = first_due(transaction, webhook_id, code)? else {
        return delete_lane(transaction, webhook_id, code);
    };
    transaction
        .prepare_cached("UPDATE lanes SET wake_at = ?3, claimed_by = ?4 WHERE webhook_id = ?1 AND lane = ?2")?
        .execute((Col(webhook_id), code, Col(due.max(not_before)), claimed_by.map(|epoch| epoch.0)))?;
    Ok(())
}

/// Recomputes every lane of a webhook after its `webhook_runtime` row has changed, and ends their claims.
pub(super) fn recompute_lanes(transaction: &Transaction<'_>, webhook_id: WebhookId) -> rusqlite::Result<()> {
    let not_before = blocked_until(transaction, webhook_id)?;
    for code in codes(transaction, webhook_id)? {
        recompute_lane(transaction, webhook_id, &code, None, not_before)?;
    }
    Ok(())
}

fn codes(transaction: &Transaction<'_>, webhook_id: WebhookId) -> rusqlite::Result<Vec<String>> {
    transaction
        .prepare_cached("SELECT lane FROM lanes WHERE webhook_id = ?")?
        .query_map([Col(webhook_id)], |row| row.get(0))?
        .collect()
}

/// Reads a lane's key from two columns.
pub(super) fn read_key(row: &rusqlite::Row<'_>, webhook: usize, lane: usize) -> rusqlite::Result<LaneKey> {
    Ok(LaneKey { webhook_id: get(row, webhook)?, lane: get(row, lane)? })
}
