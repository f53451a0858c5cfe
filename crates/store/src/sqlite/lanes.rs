//! Lanes: when to look into each queue of a webhook. Whatever blocks the webhook as a whole is looked up here
//! and nowhere else, so that a blocked webhook's deliveries cost nothing until it may move.

use std::collections::BTreeSet;

use redrive_core::{DeliveryId, Time, WebhookId, delivery::lane::Lane, tenancy::DEFAULT_POOL};
use rusqlite::{OptionalExtension, Transaction};

use super::convert::{Col, get};
use crate::{Epoch, LaneKey};

/// The first of a lane. In an order, nothing behind it may start before it is over.
pub(super) const HEAD: &str =
    "SELECT due FROM waiting WHERE webhook = ?1 AND lane = ?2 ORDER BY place, seq LIMIT 1";
pub(super) const BLOCKED_UNTIL: &str =
    "SELECT paused, max(hold_until, circuit_until) FROM runtime WHERE webhook = ?";
pub(super) const WAKE: &str = "UPDATE lanes SET wake_at = min(wake_at, ?3) WHERE webhook = ?1 AND lane = ?2";
pub(super) const LOOK_AT: &str = "UPDATE lanes SET wake_at = ?3 WHERE webhook = ?1 AND lane = ?2";

/// What a delivery has been through on nodes that died.
#[derive(Clone, Copy, Default)]
pub(super) struct Rescued {
    pub(super) rescues: u32,
    pub(super) deaths: u32,
}

/// A delivery as it goes from lane to lease and back.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) delivery: DeliveryId,
    pub(super) webhook: WebhookId,
    pub(super) lane: Lane,
    pub(super) seq: i64,
}

/// Leases a delivery to a node.
pub(super) fn lease(
    transaction: &Transaction<'_>,
    place: &Place,
    epoch: Epoch,
    rescued: Rescued,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT INTO leased (delivery, epoch, webhook, lane, seq, rescues, deaths) VALUES (?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute((
            Col(place.delivery),
            epoch.0,
            Col(place.webhook),
            place.lane.code(),
            place.seq,
            rescued.rescues,
            rescued.deaths,
        ))?;
    Ok(())
}

/// Makes a delivery wait, and its lane look at it in time.
pub(super) fn wait(
    transaction: &Transaction<'_>,
    place: &Place,
    due: Time,
    created_at: Time,
    rescued: Rescued,
) -> rusqlite::Result<()> {
    let order = if place.lane.is_ordered() { 0 } else { due.millis() };
    let code = place.lane.code();
    transaction
        .prepare_cached(
            "INSERT INTO waiting (delivery, webhook, lane, place, seq, due, created_at, rescues, deaths)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute((
            Col(place.delivery),
            Col(place.webhook),
            &code,
            order,
            place.seq,
            Col(due),
            Col(created_at),
            rescued.rescues,
            rescued.deaths,
        ))?;
    match place.lane {
        Lane::Free { .. } => wake(transaction, place.webhook, &code, due),
        // In an order only the first one counts, and this may not be it.
        Lane::Ordered(_) => look_again(transaction, place.webhook, &code),
    }
}

pub(super) fn head(
    transaction: &Transaction<'_>,
    webhook: WebhookId,
    code: &str,
) -> rusqlite::Result<Option<Time>> {
    transaction.prepare_cached(HEAD)?.query_row((Col(webhook), code), |row| get(row, 0)).optional()
}

/// Makes a lane look for work no later than `at`, or than whatever blocks its webhook.
pub(super) fn wake(
    transaction: &Transaction<'_>,
    webhook: WebhookId,
    code: &str,
    at: Time,
) -> rusqlite::Result<()> {
    let at = at.max(blocked_until(transaction, webhook)?);
    let known = transaction.prepare_cached(WAKE)?.execute((Col(webhook), code, Col(at)))?;
    if known == 0 { open(transaction, webhook, code, at) } else { Ok(()) }
}

/// Sets a lane's next look anew, whoever holds it, after something in it has come, changed or gone.
pub(super) fn look_again(
    transaction: &Transaction<'_>,
    webhook: WebhookId,
    code: &str,
) -> rusqlite::Result<()> {
    let Some(due) = head(transaction, webhook, code)? else { return close(transaction, webhook, code) };
    let at = due.max(blocked_until(transaction, webhook)?);
    let known = transaction.prepare_cached(LOOK_AT)?.execute((Col(webhook), code, Col(at)))?;
    if known == 0 { open(transaction, webhook, code, at) } else { Ok(()) }
}

/// Looks again at each of these lanes of a webhook, once.
pub(super) fn look_again_at<'a>(
    transaction: &Transaction<'_>,
    webhook: WebhookId,
    codes: impl Iterator<Item = &'a String>,
) -> rusqlite::Result<()> {
    codes.collect::<BTreeSet<_>>().into_iter().try_for_each(|code| look_again(transaction, webhook, code))
}

/// Lets the next of an order go, now that a leased one is over.
pub(super) fn let_next_go(
    transaction: &Transaction<'_>,
    webhook: WebhookId,
    lane: &Lane,
) -> rusqlite::Result<()> {
    if lane.is_ordered() { look_again(transaction, webhook, &lane.code()) } else { Ok(()) }
}

/// A lane that has something in it from now on.
fn open(transaction: &Transaction<'_>, webhook: WebhookId, code: &str, at: Time) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT INTO lanes (webhook, lane, wake_at, pool) VALUES (?1, ?2, ?3, coalesce(
                 (SELECT json_extract(t.rules, '$.pool') FROM webhooks w JOIN tenants t ON t.id = w.tenant
                  WHERE w.id = ?1), ?4))",
        )?
        .execute((Col(webhook), code, Col(at), DEFAULT_POOL))?;
    Ok(())
}

/// A lane that has nothing left in it.
fn close(transaction: &Transaction<'_>, webhook: WebhookId, code: &str) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("DELETE FROM lanes WHERE webhook = ? AND lane = ?")?
        .execute((Col(webhook), code))?;
    Ok(())
}

/// Until when nothing may be claimed for a webhook; the beginning of time where nothing blocks it.
pub(super) fn blocked_until(transaction: &Transaction<'_>, webhook: WebhookId) -> rusqlite::Result<Time> {
    let until = transaction
        .prepare_cached(BLOCKED_UNTIL)?
        .query_row([Col(webhook)], |row| Ok(if row.get(0)? { Time::FOREVER } else { get(row, 1)? }))
        .optional()?;
    Ok(until.unwrap_or_default())
}

/// Sets a lane's next look by what is left in it, and who holds it; a lane with nothing left goes.
pub(super) fn settle(
    transaction: &Transaction<'_>,
    webhook: WebhookId,
    code: &str,
    holder: Option<Epoch>,
    not_before: Time,
) -> rusqlite::Result<()> {
    let Some(due) = head(transaction, webhook, code)? else { return close(transaction, webhook, code) };
    transaction
        .prepare_cached("UPDATE lanes SET wake_at = ?3, held_by = ?4 WHERE webhook = ?1 AND lane = ?2")?
        .execute((Col(webhook), code, Col(due.max(not_before)), holder.map(|epoch| epoch.0)))?;
    Ok(())
}

/// Sets every lane of a webhook anew, after what blocks it has changed. Nobody holds them from then on.
pub(super) fn settle_all(transaction: &Transaction<'_>, webhook: WebhookId) -> rusqlite::Result<()> {
    let not_before = blocked_until(transaction, webhook)?;
    for code in codes(transaction, webhook)? {
        settle(transaction, webhook, &code, None, not_before)?;
    }
    Ok(())
}

fn codes(transaction: &Transaction<'_>, webhook: WebhookId) -> rusqlite::Result<Vec<String>> {
    transaction
        .prepare_cached("SELECT lane FROM lanes WHERE webhook = ?")?
        .query_map([Col(webhook)], |row| row.get(0))?
        .collect()
}

/// Reads a lane's key from two columns.
pub(super) fn read_key(row: &rusqlite::Row<'_>, webhook: usize, lane: usize) -> rusqlite::Result<LaneKey> {
    Ok(LaneKey { webhook: get(row, webhook)?, lane: get(row, lane)? })
}
