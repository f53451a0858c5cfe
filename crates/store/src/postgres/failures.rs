//! Series of failures of webhooks: what an outcome adds to them, and when they are reported.

use redrive_core::{
    TenantId, Time, WebhookId,
    notification::{NotificationKind, Occurrence},
    webhook::{
        Webhook, WebhookState,
        failures::{FailingRule, FailureSeries, after_failure},
    },
};
use tokio_postgres::Row;

use super::{
    changes,
    convert::{Col, get_opt, plain},
    runtime_state::{ensure_runtime, lock_to_change},
    session::{Failure, Session},
    webhooks::{from_json, to_json},
};
use crate::{Change, FailingChange, OutcomeRecord};

const SELECT_FAILURES: &str = "SELECT failures, failing_since, paused,
         (SELECT last_success_at FROM webhook_successes s WHERE s.webhook_id = r.webhook_id LIMIT 1)
     FROM webhook_runtime r WHERE r.webhook_id = $1";
const SET_FAILURES: &str =
    "UPDATE webhook_runtime SET failing_since = $2, failures = $3 WHERE webhook_id = $1";
const CLEAR_FAILURES: &str = "UPDATE webhook_runtime SET failing_since = NULL, failures = NULL
     WHERE webhook_id = $1 AND failing_since IS NOT NULL";

/// Statements whose cost must be proportional to the rows they return or change; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 3] = [
    ("stored failures", SELECT_FAILURES),
    ("set failures", SET_FAILURES),
    ("clear failures", CLEAR_FAILURES),
];

/// Stored failures of a webhook, with what decides about them.
struct StoredFailures {
    series: Option<FailureSeries>,
    is_paused: bool,
    last_success_at: Option<Time>,
}

/// Reads a series of failures from its document and its start. Rows of the first schema have only the start.
pub(super) fn read_series(
    row: &Row,
    document: usize,
    since: usize,
) -> Result<Option<FailureSeries>, Failure> {
    match plain::<Option<&str>>(row, document)? {
        Some(json) => Ok(Some(serde_json::from_str(json)?)),
        None => Ok(get_opt(row, since)?.map(FailureSeries::starting_at)),
    }
}

async fn read(tx: &Session, webhook_id: WebhookId) -> Result<Option<StoredFailures>, Failure> {
    let Some(row) = tx.query_opt(SELECT_FAILURES, &[&Col(webhook_id)]).await? else { return Ok(None) };
    Ok(Some(StoredFailures {
        series: read_series(&row, 0, 1)?,
        is_paused: plain(&row, 2)?,
        last_success_at: get_opt(&row, 3)?,
    }))
}

async fn write(tx: &Session, webhook_id: WebhookId, series: &FailureSeries) -> Result<(), Failure> {
    tx.execute(SET_FAILURES, &[&Col(webhook_id), &Col(series.since), &to_json(series)?]).await?;
    Ok(())
}

/// Applies what an outcome shows about the failures of its webhook, whose `webhook_runtime` row must be locked. Returns
/// the occurrence if they are reported, or the recovery from reported ones.
pub(super) async fn apply(
    tx: &Session,
    outcome: &OutcomeRecord,
    change: FailingChange,
) -> Result<Option<Occurrence>, Failure> {
    let (tenant_id, webhook_id, now) = (&outcome.tenant_id, outcome.webhook_id, outcome.at);
    let occurrence =
        |kind| move |details| Occurrence::about_webhook(tenant_id, webhook_id, kind, now, details);
    match change {
        FailingChange::Failed { since, category, rule } => {
            ensure_runtime(tx, tenant_id, webhook_id).await?;
            let Some(stored) = read(tx, webhook_id).await? else { return Ok(None) };
            if stored.is_paused {
                // The request was sent before the webhook was paused, which has ended the series.
                return Ok(None);
            }
            let failure = (since, category);
            let (series, details) = after_failure(stored.series, stored.last_success_at, failure, &rule, now);
            write(tx, webhook_id, &series).await?;
            Ok(details.map(occurrence(NotificationKind::WebhookFailing)))
        }
        FailingChange::Recovered => {
            let series = read(tx, webhook_id).await?.and_then(|stored| stored.series);
            clear(tx, webhook_id).await?;
            let details = series.and_then(|series| series.recovery());
            Ok(details.map(occurrence(NotificationKind::WebhookRecovered)))
        }
    }
}

/// Reports a series that is failing by its age. Returns `None` if it is not, or was reported before.
pub(super) async fn report(
    tx: &Session,
    tenant_id: &TenantId,
    webhook_id: WebhookId,
    rule: &FailingRule,
    now: Time,
) -> Result<Option<Occurrence>, Failure> {
    lock_to_change(tx, webhook_id).await?;
    let stored = read(tx, webhook_id).await?.filter(|stored| !stored.is_paused);
    let Some(mut series) = stored.and_then(|stored| stored.series) else { return Ok(None) };
    let Some(details) = series.report(rule, now) else { return Ok(None) };
    write(tx, webhook_id, &series).await?;
    changes::append(tx, &Change::Runtime(webhook_id)).await?;
    let kind = NotificationKind::WebhookFailing;
    Ok(Some(Occurrence::about_webhook(tenant_id, webhook_id, kind, now, details)))
}

async fn clear(tx: &Session, webhook_id: WebhookId) -> Result<bool, Failure> {
    Ok(tx.execute(CLEAR_FAILURES, &[&Col(webhook_id)]).await? == 1)
}

/// Ends the series of failures of a webhook whose stored state is about to be replaced by another one.
pub(super) async fn end_by_state_change(tx: &Session, webhook: &Webhook) -> Result<(), Failure> {
    let was = tx.query_opt("SELECT state FROM webhooks WHERE id = $1", &[&Col(webhook.id)]).await?;
    let was: Option<WebhookState> = was.map(|row| from_json(&row, 0)).transpose()?;
    if was.is_some_and(|was| webhook.state.ends_failures_of(&was)) && clear(tx, webhook.id).await? {
        changes::append(tx, &Change::Runtime(webhook.id)).await?;
    }
    Ok(())
}
