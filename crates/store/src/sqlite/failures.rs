//! Series of failures of webhooks: what an outcome adds to them, and when they are reported.

use redrive_core::{
    TenantId, Time, WebhookId,
    notification::{NotificationKind, Occurrence},
    webhook::{
        Webhook, WebhookState,
        failures::{FailingRule, FailureSeries, after_failure},
    },
};
use rusqlite::{OptionalExtension, Row, Transaction};

use super::{
    changes,
    convert::{Col, get_opt},
    runtime_state::ensure_runtime,
    transaction::WriteTransaction,
    webhooks::{from_json, to_json},
};
use crate::{Change, FailingChange, OutcomeRecord};

const SELECT_FAILURES: &str = "SELECT failures, failing_since, paused,
         (SELECT last_success_at FROM webhook_successes s WHERE s.webhook_id = r.webhook_id)
     FROM webhook_runtime r WHERE r.webhook_id = ?";
const SET_FAILURES: &str =
    "UPDATE webhook_runtime SET failing_since = ?2, failures = ?3 WHERE webhook_id = ?1";
const CLEAR_FAILURES: &str = "UPDATE webhook_runtime SET failing_since = NULL, failures = NULL
     WHERE webhook_id = ? AND failing_since IS NOT NULL";

/// Statements whose cost must be proportional to the rows they return or change; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const BOUNDED_STATEMENTS: [&str; 3] = [SELECT_FAILURES, SET_FAILURES, CLEAR_FAILURES];

/// Stored failures of a webhook, with what decides about them.
struct StoredFailures {
    series: Option<FailureSeries>,
    is_paused: bool,
    last_success_at: Option<Time>,
}

/// Reads a series of failures from its document and its start. Rows of the first schema have only the start.
pub(super) fn read_series(
    row: &Row<'_>,
    document: usize,
    since: usize,
) -> rusqlite::Result<Option<FailureSeries>> {
    match row.get::<_, Option<String>>(document)? {
        Some(_) => from_json(row, document).map(Some),
        None => Ok(get_opt(row, since)?.map(FailureSeries::starting_at)),
    }
}

fn read(transaction: &Transaction<'_>, webhook_id: WebhookId) -> rusqlite::Result<Option<StoredFailures>> {
    let read = |row: &Row<'_>| {
        Ok(StoredFailures {
            series: read_series(row, 0, 1)?,
            is_paused: row.get(2)?,
            last_success_at: get_opt(row, 3)?,
        })
    };
    transaction.prepare_cached(SELECT_FAILURES)?.query_row([Col(webhook_id)], read).optional()
}

fn write(
    transaction: &Transaction<'_>,
    webhook_id: WebhookId,
    series: &FailureSeries,
) -> rusqlite::Result<()> {
    transaction.prepare_cached(SET_FAILURES)?.execute((
        Col(webhook_id),
        Col(series.since),
        to_json(series)?,
    ))?;
    Ok(())
}

/// Applies what an outcome shows about the failures of its webhook. Returns the occurrence if they are reported, or the
/// recovery from reported ones.
pub(super) fn apply(
    transaction: &Transaction<'_>,
    outcome: &OutcomeRecord,
    change: FailingChange,
) -> rusqlite::Result<Option<Occurrence>> {
    let (tenant_id, webhook_id, now) = (&outcome.tenant_id, outcome.webhook_id, outcome.at);
    let occurrence =
        |kind| move |details| Occurrence::about_webhook(tenant_id, webhook_id, kind, now, details);
    match change {
        FailingChange::Failed { since, category, rule } => {
            ensure_runtime(transaction, tenant_id, webhook_id)?;
            let Some(stored) = read(transaction, webhook_id)? else { return Ok(None) };
            if stored.is_paused {
                // The request was sent before the webhook was paused, which has ended the series.
                return Ok(None);
            }
            let failure = (since, category);
            let (series, details) = after_failure(stored.series, stored.last_success_at, failure, &rule, now);
            write(transaction, webhook_id, &series)?;
            Ok(details.map(occurrence(NotificationKind::WebhookFailing)))
        }
        FailingChange::Recovered => {
            let series = read(transaction, webhook_id)?.and_then(|stored| stored.series);
            clear(transaction, webhook_id)?;
            let details = series.and_then(|series| series.recovery());
            Ok(details.map(occurrence(NotificationKind::WebhookRecovered)))
        }
    }
}

/// Reports a series that is failing by its age. Returns `None` if it is not, or was reported before.
pub(super) fn report(
    transaction: &WriteTransaction<'_>,
    tenant_id: &TenantId,
    webhook_id: WebhookId,
    rule: &FailingRule,
    now: Time,
) -> rusqlite::Result<Option<Occurrence>> {
    let stored = read(transaction, webhook_id)?.filter(|stored| !stored.is_paused);
    let Some(mut series) = stored.and_then(|stored| stored.series) else { return Ok(None) };
    let Some(details) = series.report(rule, now) else { return Ok(None) };
    write(transaction, webhook_id, &series)?;
    changes::append(transaction, &Change::Runtime(webhook_id))?;
    let kind = NotificationKind::WebhookFailing;
    Ok(Some(Occurrence::about_webhook(tenant_id, webhook_id, kind, now, details)))
}

fn clear(transaction: &Transaction<'_>, webhook_id: WebhookId) -> rusqlite::Result<bool> {
    Ok(transaction.prepare_cached(CLEAR_FAILURES)?.execute([Col(webhook_id)])? == 1)
}

/// Ends the series of failures of a webhook whose stored state is about to be replaced by another one.
pub(super) fn end_by_state_change(
    transaction: &WriteTransaction<'_>,
    webhook: &Webhook,
) -> rusqlite::Result<()> {
    let was: Option<WebhookState> = transaction
        .prepare_cached("SELECT state FROM webhooks WHERE id = ?")?
        .query_row([Col(webhook.id)], |row| from_json(row, 0))
        .optional()?;
    if was.is_some_and(|was| webhook.state.ends_failures_of(&was)) && clear(transaction, webhook.id)? {
        changes::append(transaction, &Change::Runtime(webhook.id))?;
    }
    Ok(())
}
