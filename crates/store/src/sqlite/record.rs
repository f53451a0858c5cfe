//! Records the outcomes of leased deliveries. The lease is the right to record: an outcome whose lease cannot be
//! deleted is not recorded.

use redrive_core::delivery::outcome::Outcome;
use std::{borrow::Cow, sync::Arc};

use redrive_core::{
    DeliveryId, DeliveryStatus, WebhookId,
    delivery::lane::Lane,
    notification::{NotificationKind, Occurrence},
    webhook::WebhookState,
};
use rusqlite::{OptionalExtension, Transaction};

use super::{
    Sqlite, attempts,
    convert::{Col, get},
    lanes::{self, LanePosition, ReleaseCounts},
    runtime_state,
    transaction::WriteTransaction,
    webhooks,
};
use crate::{Attempt, Completion, DisableWebhook, OutcomeRecord, Record, RecordResult};

impl Record for Sqlite {
    fn record(&self, outcome: Arc<OutcomeRecord>, done: Completion<RecordResult>) {
        self.writer.record(outcome, done);
    }
}

/// Records an outcome, and adds its occurrences to the list of those to report.
pub(super) fn record_outcome<'a>(
    transaction: &WriteTransaction<'_>,
    outcome: &'a OutcomeRecord,
    reported: &mut Vec<Cow<'a, Occurrence>>,
) -> rusqlite::Result<RecordResult> {
    let Some(lease) = delete_lease(transaction, outcome)? else { return without_lease(transaction, outcome) };
    if let Some(reason) = &lease.cancel
        && !outcome.record_despite_cancel
    {
        restore_lease(transaction, outcome, &lease)?;
        return Ok(RecordResult::CancelRequested(reason.clone()));
    }
    if outcome.requires_inactive_webhook && !webhook_is_inactive(transaction, outcome)? {
        restore_lease(transaction, outcome, &lease)?;
        return Ok(RecordResult::WebhookNotInactive);
    }
    if let Some(attempt) = &outcome.attempt
        && let Err(error) = insert_attempt(transaction, outcome, attempt)
    {
        if !is_recorded(transaction, outcome, attempt)? {
            return Err(error);
        }
        // A late repetition: the delivery has been leased again since. The new lease is for the next attempt.
        restore_lease(transaction, outcome, &lease)?;
        return Ok(RecordResult::AlreadyRecorded);
    }
    if let Some(attempt) = &outcome.attempt {
        attempts::index(transaction, outcome, attempt)?;
    }
    update_delivery(transaction, outcome)?;
    match &outcome.outcome {
        Outcome::Delivered | Outcome::Cancelled(_) => {
            lanes::wake_next_in_order(transaction, lease.webhook_id, &lease.lane)?;
        }
        Outcome::Retry { at: due } => {
            let lane = lease.lane.for_retry();
            let position = LanePosition {
                delivery_id: outcome.delivery_id,
                webhook_id: lease.webhook_id,
                lane,
                seq: lease.seq,
            };
            let created_at = transaction
                .prepare_cached("SELECT created_at FROM deliveries WHERE id = ?")?
                .query_row([Col(outcome.delivery_id)], |row| get(row, 0))?;
            lanes::insert_waiting(transaction, &position, *due, created_at, ReleaseCounts::default())?;
        }
        Outcome::Dead(_) => {
            insert_dead_letter(transaction, outcome.delivery_id)?;
            lanes::wake_next_in_order(transaction, lease.webhook_id, &lease.lane)?;
        }
    }
    runtime_state::apply_effects(transaction, outcome, reported)?;
    let config_version = match &outcome.disable {
        Some(disable) => disable_webhook(transaction, outcome, disable)?,
        None => None,
    };
    let of = |kind| {
        outcome.occurrences.iter().filter(move |occurrence| occurrence.kind == kind).map(Cow::Borrowed)
    };
    if matches!(outcome.outcome, Outcome::Dead(_)) {
        reported.extend(of(NotificationKind::DeliveryDead));
    }
    if config_version.is_some() {
        reported.extend(of(NotificationKind::WebhookDisabled));
    }
    Ok(RecordResult::Recorded { config_version })
}

/// Returns whether the stored webhook confirms that pending deliveries to it may be cancelled.
fn webhook_is_inactive(transaction: &Transaction<'_>, outcome: &OutcomeRecord) -> rusqlite::Result<bool> {
    let stored = webhooks::by_id(transaction, outcome.webhook_id)?;
    Ok(stored.is_none_or(|webhook| webhook.is_inactive(outcome.at)))
}

/// Inserts the dead letter of a delivery.
pub(super) fn insert_dead_letter(
    transaction: &Transaction<'_>,
    delivery_id: DeliveryId,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT INTO dead SELECT d.id, d.tenant_id, d.webhook_id, e.event_type, d.failure_category, d.dead_reason,
                    d.ended_at
             FROM deliveries d JOIN events e ON e.tenant_id = d.tenant_id AND e.id = d.event_id WHERE d.id = ?",
        )?
        .execute([Col(delivery_id)])?;
    Ok(())
}

/// Determines the result of an outcome without a lease: it was recorded before, or the lease belongs to another
/// epoch.
fn without_lease(transaction: &Transaction<'_>, outcome: &OutcomeRecord) -> rusqlite::Result<RecordResult> {
    let again = match &outcome.attempt {
        Some(attempt) => is_recorded(transaction, outcome, attempt)?,
        None => {
            let status = transaction
                .prepare_cached("SELECT status FROM deliveries WHERE id = ?")?
                .query_row([Col(outcome.delivery_id)], |row| get::<DeliveryStatus>(row, 0))
                .optional()?;
            status == Some(outcome.outcome.status())
        }
    };
    Ok(if again { RecordResult::AlreadyRecorded } else { RecordResult::NotLeased })
}

fn is_recorded(
    transaction: &Transaction<'_>,
    outcome: &OutcomeRecord,
    attempt: &Attempt,
) -> rusqlite::Result<bool> {
    transaction
        .prepare_cached("SELECT 1 FROM attempts WHERE delivery_id = ? AND number = ? AND id = ?")?
        .exists((Col(outcome.delivery_id), attempt.number, Col(attempt.id)))
}

/// Columns of a lease, without its key.
struct Lease {
    webhook_id: WebhookId,
    lane: Lane,
    seq: i64,
    abnormal_releases: u32,
    crash_count: u32,
    sending: u32,
    cancel: Option<String>,
}

fn delete_lease(transaction: &Transaction<'_>, outcome: &OutcomeRecord) -> rusqlite::Result<Option<Lease>> {
    transaction
        .prepare_cached(
            "DELETE FROM leased WHERE delivery_id = ? AND epoch = ?
             RETURNING webhook_id, lane, seq, abnormal_releases, crash_count, sending, cancel",
        )?
        .query_row((Col(outcome.delivery_id), outcome.epoch.0), |row| {
            Ok(Lease {
                webhook_id: get(row, 0)?,
                lane: get(row, 1)?,
                seq: row.get(2)?,
                abnormal_releases: row.get(3)?,
                crash_count: row.get(4)?,
                sending: row.get(5)?,
                cancel: row.get(6)?,
            })
        })
        .optional()
}

/// Inserts a lease again, unchanged.
fn restore_lease(
    transaction: &Transaction<'_>,
    outcome: &OutcomeRecord,
    lease: &Lease,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT INTO leased (delivery_id, epoch, webhook_id, lane, seq, abnormal_releases, crash_count, sending, cancel)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute((
            Col(outcome.delivery_id),
            outcome.epoch.0,
            Col(lease.webhook_id),
            lease.lane.code(),
            lease.seq,
            lease.abnormal_releases,
            lease.crash_count,
            lease.sending,
            &lease.cancel,
        ))?;
    Ok(())
}

fn insert_attempt(
    transaction: &Transaction<'_>,
    outcome: &OutcomeRecord,
    attempt: &Attempt,
) -> rusqlite::Result<()> {
    let timings = &attempt.timings;
    transaction
        .prepare_cached(
            "INSERT INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute(rusqlite::params![
            Col(outcome.delivery_id),
            attempt.number,
            Col(attempt.id),
            Col(attempt.status),
            attempt.failure_category.map(Col),
            attempt.http_status_code,
            attempt.error_message,
            attempt.custom_headers.as_deref(),
            attempt.response_headers.as_deref(),
            attempt.response_body_sample.as_deref(),
            timings.dns,
            timings.connect,
            timings.tls,
            timings.ttfb,
            timings.total,
            Col(attempt.scheduled_at),
            Col(attempt.executed_at),
            attempt.next_retry_at.map(Col),
            Col(attempt.circuit),
            &*attempt.worker,
        ])?;
    Ok(())
}

fn update_delivery(transaction: &Transaction<'_>, outcome: &OutcomeRecord) -> rusqlite::Result<()> {
    let status = outcome.outcome.status();
    let ended_at = status.is_final().then_some(Col(outcome.at));
    let dead_reason = match &outcome.outcome {
        Outcome::Dead(reason) => Some(Col(*reason)),
        _ => None,
    };
    let cancel_reason = match &outcome.outcome {
        Outcome::Cancelled(reason) => Some(reason),
        _ => None,
    };
    let Some(attempt) = &outcome.attempt else {
        transaction
            .prepare_cached(
                "UPDATE deliveries SET status = ?2, ended_at = ?3, dead_reason = ?4, cancel_reason = ?5 WHERE id = ?1",
            )?
            .execute((Col(outcome.delivery_id), Col(status), ended_at, dead_reason, cancel_reason))?;
        return Ok(());
    };
    transaction
        .prepare_cached(
            "UPDATE deliveries SET status = ?2, ended_at = ?3, dead_reason = ?4, cancel_reason = ?5,
                    attempt_count = ?6, last_status_code = ?7, failure_category = ?8, last_error = ?9
             WHERE id = ?1",
        )?
        .execute((
            Col(outcome.delivery_id),
            Col(status),
            ended_at,
            dead_reason,
            cancel_reason,
            attempt.number,
            attempt.http_status_code,
            attempt.failure_category.map(Col),
            &attempt.error_message,
        ))?;
    Ok(())
}

fn disable_webhook(
    transaction: &WriteTransaction<'_>,
    outcome: &OutcomeRecord,
    disable: &DisableWebhook,
) -> rusqlite::Result<Option<i64>> {
    let Some(mut found) = webhooks::find(transaction, &outcome.tenant_id, outcome.webhook_id)? else {
        return Ok(None);
    };
    let webhook = &mut found.webhook.webhook;
    if !webhook.state.may_be_disabled_by_outcome() || webhook.spec.url != disable.url {
        return Ok(None);
    }
    webhook.state = WebhookState::Disabled(disable.reason.clone());
    webhook.updated_at = outcome.at;
    webhooks::store(transaction, &found.webhook)
}
