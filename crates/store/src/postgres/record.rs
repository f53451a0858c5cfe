//! Records the outcomes of leased deliveries. The lease is the right to record: an outcome whose lease cannot be
//! deleted is not recorded.
//!
//! Plain successful deliveries, which are most outcomes, take one statement for a whole batch. The other outcomes
//! share one transaction.

use redrive_core::delivery::outcome::{AttemptStatus, Outcome};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use redrive_core::{
    AttemptId, DeliveryId, DeliveryStatus, Time,
    notification::{NotificationKind, Occurrence},
    webhook::WebhookState,
};
use tokio_postgres::types::ToSql;

use super::{
    Postgres, Shared,
    attempts::IndexColumns,
    convert::{Col, get, plain, text_opt},
    lanes::{self, Keys, LaneLocks, LanePosition, ReleaseCounts, WaitingDelivery},
    leases::{Orphan, created, lock_leases, read_orphan},
    notifications,
    runtime_state::{self, RuntimeLock},
    session::{Failure, Session, Tx},
    tenancy, undelivered, webhooks,
};
use crate::{Attempt, Completion, DisableWebhook, OutcomeRecord, Record, RecordResult, WebhookEffects};

macro_rules! attempt_columns {
    () => {
        "number, attempt, attempt_status, category, status_code, error, custom_headers, response_headers, sample,
         dns_us, connect_us, tls_us, ttfb_us, total_us, scheduled_at, executed_at, next_retry_at, circuit, worker"
    };
}
macro_rules! attempt_arrays {
    () => {
        "$3::integer[], $4::uuid[], $5::smallint[], $6::smallint[], $7::smallint[], $8::bytea[], $9::bytea[],
             $10::bytea[], $11::bytea[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[],
             $17::bigint[], $18::bigint[], $19::bigint[], $20::smallint[], $21::text[]"
    };
}

/// Records deliveries that succeeded, are not in an ordered lane and were not cancelled: lease, attempt and
/// delivery in one statement. Returns the deliveries that were recorded. A lease that another transaction changes
/// concurrently is not found by its `ctid`, and is recorded by the general transaction.
macro_rules! record_delivered {
    ($($more:expr),*) => {
        concat!(
            "WITH i AS MATERIALIZED (
         SELECT i.*, l.tid FROM unnest($1::bigint[], $2::uuid[], ",
            attempt_arrays!(),
            ", $22::bigint[], $23::boolean[]) AS i(epoch, delivery_id, ",
            attempt_columns!(),
            ", at, knows_cancel) CROSS JOIN LATERAL (
             SELECT ctid AS tid FROM leased l WHERE l.epoch = i.epoch AND l.delivery_id = i.delivery_id
                 AND l.lane >= 'A' AND (l.cancel IS NULL OR i.knows_cancel) LIMIT 1 FOR UPDATE) l),
     gone AS (DELETE FROM leased WHERE ctid = ANY(ARRAY(SELECT tid FROM i)) RETURNING delivery_id),
     a AS (INSERT INTO attempts SELECT delivery_id, ",
            attempt_columns!(),
            " FROM i WHERE delivery_id = ANY(ARRAY(SELECT delivery_id FROM gone)))",
            $($more,)*
            "
     UPDATE deliveries d SET status = $24, dead_reason = NULL,
            ended_at = ($22::bigint[])[array_position($2::uuid[], d.id)],
            attempt_count = ($3::integer[])[array_position($2::uuid[], d.id)],
            last_status_code = ($7::smallint[])[array_position($2::uuid[], d.id)],
            failure_category = NULL, last_error = NULL
     WHERE d.id = ANY(ARRAY(SELECT delivery_id FROM gone)) RETURNING d.id"
        )
    };
}
/// For first attempts that succeeded promptly, which are neither indexed nor known as undelivered.
const RECORD_DELIVERED_PROMPTLY: &str = record_delivered!();
/// For all others: also deletes deliveries with earlier failed attempts from the undelivered ones, and indexes attempts.
const RECORD_DELIVERED: &str = record_delivered!(
    ",
     arrived_late AS (
         DELETE FROM undelivered WHERE delivery_id = ANY($25::uuid[]) AND delivery_id = ANY(ARRAY(SELECT delivery_id
         FROM gone))),
     indexed AS (
         INSERT INTO attempt_index (id, tenant_id, webhook_id, delivery_id, status, category, code)
         SELECT x.* FROM unnest($26::uuid[], $27::text[], $28::uuid[], $29::uuid[], $30::smallint[], $31::smallint[],
             $32::smallint[]) AS x(id, tenant_id, webhook_id, delivery_id, status, category, code)
         WHERE x.delivery_id = ANY(ARRAY(SELECT delivery_id FROM gone)) ON CONFLICT DO NOTHING)"
);
/// Deletes the leases of outcomes that may be recorded. A cancelled one is left, unless the outcome saw the
/// cancellation.
const DELETE_LEASES: &str = "WITH k AS MATERIALIZED (
         SELECT l.tid FROM unnest($1::bigint[], $2::uuid[], $3::boolean[]) AS i(epoch, delivery_id, knows)
         CROSS JOIN LATERAL (
             SELECT ctid AS tid FROM leased l WHERE l.epoch = i.epoch AND l.delivery_id = i.delivery_id
                 AND (l.cancel IS NULL OR i.knows) LIMIT 1) l)
     DELETE FROM leased WHERE ctid = ANY(ARRAY(SELECT tid FROM k))
     RETURNING delivery_id, webhook_id, lane, seq, abnormal_releases, crash_count, sending, cancel";
const SELECT_CANCELLED: &str =
    "SELECT l.delivery_id, l.cancel FROM unnest($1::bigint[], $2::uuid[]) AS i(epoch, delivery_id)
     CROSS JOIN LATERAL (
         SELECT * FROM leased l WHERE l.epoch = i.epoch AND l.delivery_id = i.delivery_id AND l.cancel IS NOT NULL
         LIMIT 1) l";
const INSERT_ATTEMPTS: &str = concat!(
    "INSERT INTO attempts SELECT i.* FROM unnest($2::uuid[], ",
    attempt_arrays!(),
    ") AS i WHERE $1::bigint[] IS NOT NULL ON CONFLICT DO NOTHING RETURNING delivery_id"
);
const SELECT_RECORDED: &str =
    "SELECT a.delivery_id, a.number, a.id FROM unnest($1::uuid[], $2::integer[]) AS i(delivery_id, number)
     CROSS JOIN LATERAL (
         SELECT * FROM attempts a WHERE a.delivery_id = i.delivery_id AND a.number = i.number LIMIT 1) a";
const SELECT_STATUS: &str = "SELECT id, status FROM deliveries WHERE id = ANY($1::uuid[])";
const RESTORE_LEASE: &str =
    "INSERT INTO leased (epoch, delivery_id, webhook_id, lane, seq, abnormal_releases, crash_count, sending, cancel)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
/// A delivery that ended without an attempt keeps the columns of its last attempt.
const UPDATE_DELIVERIES: &str =
    "UPDATE deliveries d SET status = ($2::smallint[])[array_position($1::uuid[], d.id)],
            ended_at = ($3::bigint[])[array_position($1::uuid[], d.id)],
            dead_reason = ($4::smallint[])[array_position($1::uuid[], d.id)],
            cancel_reason = ($5::bytea[])[array_position($1::uuid[], d.id)],
            attempt_count = coalesce(($6::integer[])[array_position($1::uuid[], d.id)], d.attempt_count),
            last_status_code = CASE WHEN ($6::integer[])[array_position($1::uuid[], d.id)] IS NULL
                THEN d.last_status_code ELSE ($7::smallint[])[array_position($1::uuid[], d.id)] END,
            failure_category = CASE WHEN ($6::integer[])[array_position($1::uuid[], d.id)] IS NULL
                THEN d.failure_category ELSE ($8::smallint[])[array_position($1::uuid[], d.id)] END,
            last_error = CASE WHEN ($6::integer[])[array_position($1::uuid[], d.id)] IS NULL
                THEN d.last_error ELSE ($9::bytea[])[array_position($1::uuid[], d.id)] END
     WHERE d.id = ANY($1::uuid[])";
const INSERT_DEAD: &str =
    "INSERT INTO dead (delivery_id, tenant_id, webhook_id, event_type, category, reason, died_at)
     SELECT d.id, d.tenant_id, d.webhook_id, e.event_type, d.failure_category, d.dead_reason, d.ended_at
     FROM unnest($1::uuid[]) AS i(delivery_id)
     CROSS JOIN LATERAL (SELECT * FROM deliveries d WHERE d.id = i.delivery_id LIMIT 1) d
     CROSS JOIN LATERAL (SELECT * FROM events e WHERE e.tenant_id = d.tenant_id AND e.id = d.event_id LIMIT 1) e";

/// Statements whose cost must be proportional to the rows they write; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 7] = [
    ("delivered", RECORD_DELIVERED),
    ("delete leases", DELETE_LEASES),
    ("cancelled leases", SELECT_CANCELLED),
    ("recorded attempts", SELECT_RECORDED),
    ("status", SELECT_STATUS),
    ("update deliveries", UPDATE_DELIVERIES),
    ("bury", INSERT_DEAD),
];

impl Record for Postgres {
    fn record(&self, outcome: Arc<OutcomeRecord>, done: Completion<RecordResult>) {
        self.writer.record(outcome, done);
    }
}

/// Records a batch of outcomes.
pub(super) async fn commit(
    shared: &Shared,
    outcomes: &[Arc<OutcomeRecord>],
) -> Result<Vec<RecordResult>, Failure> {
    // Leases are locked in key order.
    let mut plain: Vec<_> = outcomes.iter().filter(|outcome| is_plain(outcome)).collect();
    plain.sort_by_key(|outcome| (outcome.epoch, outcome.delivery_id));
    let over = match plain.is_empty() {
        true => HashSet::new(),
        false => delivered(shared, &plain).await?,
    };
    let is_over = |outcome: &OutcomeRecord| is_plain(outcome) && over.contains(&outcome.delivery_id);
    let rest: Vec<_> = outcomes.iter().filter(|outcome| !is_over(outcome)).collect();
    let mut recorded = Vec::new();
    if !rest.is_empty() {
        recorded = shared.recording.write(|tx| record(tx, &rest)).await?;
        after(shared, &rest, &recorded);
    }
    let mut recorded = recorded.into_iter();
    let mut result = |outcome: &Arc<OutcomeRecord>| match is_over(outcome) {
        true => Some(RecordResult::Recorded { config_version: None }),
        false => recorded.next(),
    };
    Ok(outcomes.iter().map_while(&mut result).collect())
}

/// Returns whether an outcome is a successful delivery without effects on its webhook.
fn is_plain(outcome: &OutcomeRecord) -> bool {
    outcome.outcome == Outcome::Delivered
        && outcome.attempt.is_some()
        && outcome.disable.is_none()
        && outcome.effects == WebhookEffects::default()
}

/// Sends other nodes a hint if a recorded outcome changed a webhook or its runtime state.
fn after(shared: &Shared, outcomes: &[&Arc<OutcomeRecord>], recorded: &[RecordResult]) {
    let news = |(outcome, recorded): (&&Arc<OutcomeRecord>, &RecordResult)| {
        matches!(recorded, RecordResult::Recorded { .. })
            && (outcome.disable.is_some() || outcome.effects != WebhookEffects::default())
    };
    if outcomes.iter().zip(recorded).any(news) {
        shared.hints.change();
    }
}

/// Values of attempts, as one array per column.
struct Columns<'a> {
    epochs: Vec<i64>,
    deliveries: Vec<Col<DeliveryId>>,
    numbers: Vec<i32>,
    ids: Vec<Col<AttemptId>>,
    statuses: Vec<Col<AttemptStatus>>,
    categories: Vec<Option<Col<redrive_core::FailureCategory>>>,
    codes: Vec<Option<i16>>,
    errors: Vec<Option<&'a [u8]>>,
    custom_headers: Vec<Option<&'a [u8]>>,
    response_headers: Vec<Option<&'a [u8]>>,
    samples: Vec<Option<&'a [u8]>>,
    phases: [Vec<Option<i64>>; 4],
    totals: Vec<i64>,
    scheduled: Vec<Col<Time>>,
    executed: Vec<Col<Time>>,
    next: Vec<Option<Col<Time>>>,
    circuits: Vec<Col<redrive_core::protection::breaker::CircuitState>>,
    workers: Vec<&'a str>,
}

impl<'a> Columns<'a> {
    fn from_outcomes(outcomes: &[(&'a OutcomeRecord, &'a Attempt)]) -> Self {
        fn column<'a, T>(
            outcomes: &[(&'a OutcomeRecord, &'a Attempt)],
            of: impl Fn(&'a Attempt) -> T,
        ) -> Vec<T> {
            outcomes.iter().map(|(_, attempt)| of(attempt)).collect()
        }
        let phase = |of: fn(&Attempt) -> Option<u32>| column(outcomes, |one| of(one).map(i64::from));
        Self {
            epochs: outcomes.iter().map(|(outcome, _)| outcome.epoch.0).collect(),
            deliveries: outcomes.iter().map(|(outcome, _)| Col(outcome.delivery_id)).collect(),
            numbers: column(outcomes, |one| one.number as i32),
            ids: column(outcomes, |one| Col(one.id)),
            statuses: column(outcomes, |one| Col(one.status)),
            categories: column(outcomes, |one| one.failure_category.map(Col)),
            codes: column(outcomes, |one| one.http_status_code.map(|code| code as i16)),
            errors: column(outcomes, |one| one.error_message.as_deref().map(str::as_bytes)),
            custom_headers: column(outcomes, |one| one.custom_headers.as_deref()),
            response_headers: column(outcomes, |one| one.response_headers.as_deref()),
            samples: column(outcomes, |one| one.response_body_sample.as_deref()),
            phases: [
                phase(|one| one.timings.dns),
                phase(|one| one.timings.connect),
                phase(|one| one.timings.tls),
                phase(|one| one.timings.ttfb),
            ],
            totals: column(outcomes, |one| i64::from(one.timings.total)),
            scheduled: column(outcomes, |one| Col(one.scheduled_at)),
            executed: column(outcomes, |one| Col(one.executed_at)),
            next: column(outcomes, |one| one.next_retry_at.map(Col)),
            circuits: column(outcomes, |one| Col(one.circuit)),
            workers: column(outcomes, |one| &*one.worker),
        }
    }

    /// Returns the values $1 to $21.
    fn values(&self) -> Vec<&(dyn ToSql + Sync)> {
        vec![
            &self.epochs,
            &self.deliveries,
            &self.numbers,
            &self.ids,
            &self.statuses,
            &self.categories,
            &self.codes,
            &self.errors,
            &self.custom_headers,
            &self.response_headers,
            &self.samples,
            &self.phases[0],
            &self.phases[1],
            &self.phases[2],
            &self.phases[3],
            &self.totals,
            &self.scheduled,
            &self.executed,
            &self.next,
            &self.circuits,
            &self.workers,
        ]
    }
}

/// Records plain successful deliveries by one statement. Returns those that were recorded.
async fn delivered(
    shared: &Shared,
    outcomes: &[&Arc<OutcomeRecord>],
) -> Result<HashSet<DeliveryId>, Failure> {
    let with_attempts: Vec<_> =
        outcomes.iter().filter_map(|outcome| Some((&***outcome, outcome.attempt.as_ref()?))).collect();
    let columns = Columns::from_outcomes(&with_attempts);
    let at: Vec<_> = outcomes.iter().map(|outcome| Col(outcome.at)).collect();
    let knows: Vec<_> = outcomes.iter().map(|outcome| outcome.record_despite_cancel).collect();
    let mut values = columns.values();
    let delivered = Col(DeliveryStatus::Delivered);
    // Deliveries with earlier failed attempts.
    let late: Vec<_> = with_attempts
        .iter()
        .filter(|(_, attempt)| attempt.number > 1)
        .map(|(outcome, _)| Col(outcome.delivery_id))
        .collect();
    values.extend([&at as &(dyn ToSql + Sync), &knows, &delivered]);
    let indexed = IndexColumns::new(with_attempts.iter().copied());
    let mut statement = RECORD_DELIVERED_PROMPTLY;
    if !late.is_empty() || !indexed.is_empty() {
        statement = RECORD_DELIVERED;
        values.push(&late);
        values.extend(indexed.values());
    }
    let session = shared.recording.get().await?;
    session.set_dirty(true);
    match session.query(statement, &values).await {
        Ok(rows) => {
            session.committed();
            rows.iter().map(|row| get(row, 0)).collect()
        }
        // Some attempts were recorded before: the general transaction handles them one by one.
        Err(failure) if failure.is_duplicate() => {
            session.set_dirty(false);
            Ok(HashSet::new())
        }
        Err(failure) => {
            session.set_dirty(failure.is_commit_uncertain());
            Err(failure)
        }
    }
}

/// Results of the outcomes of a transaction; `None` while unknown.
type Results = [Option<RecordResult>];

/// Records outcomes of any kind in one transaction.
async fn record(tx: Tx, outcomes: &[&Arc<OutcomeRecord>]) -> Result<Vec<RecordResult>, Failure> {
    let mut results: Vec<_> = outcomes.iter().map(|_| None).collect();
    let mut leases = take(&tx, outcomes).await?;
    let (mut leased, mut missing) = (Vec::new(), Vec::new());
    for (at, outcome) in outcomes.iter().enumerate() {
        match leases.remove(&outcome.delivery_id) {
            Some(lease) => leased.push(Leased { at, outcome, lease }),
            None => missing.push((at, *outcome)),
        }
    }
    explain_missing(&tx, &missing, &mut results).await?;
    let leased = refuse_unconfirmed(&tx, leased, &mut results).await?;
    let fresh = insert_attempts(&tx, &leased).await?;
    let mut applied = Vec::new();
    for one in leased {
        match &one.outcome.attempt {
            Some(attempt) if !fresh.contains(&one.outcome.delivery_id) => {
                if !is_recorded(&tx, one.outcome, attempt).await? {
                    return Err(Failure::InvalidData(format!("attempt {} already exists", attempt.number)));
                }
                // A late repetition: the delivery has been leased again since. The new lease is for the next attempt.
                restore_lease(&tx, one.outcome, &one.lease).await?;
                results[one.at] = Some(RecordResult::AlreadyRecorded);
            }
            _ => applied.push(one),
        }
    }
    apply(&tx, &applied, &mut results).await?;
    Ok(results.into_iter().map(|result| result.unwrap_or(RecordResult::NotLeased)).collect())
}

/// Outcome whose lease was deleted.
struct Leased<'a> {
    at: usize,
    outcome: &'a OutcomeRecord,
    lease: Orphan,
}

async fn take(
    tx: &Session,
    outcomes: &[&Arc<OutcomeRecord>],
) -> Result<HashMap<DeliveryId, Orphan>, Failure> {
    // Leases are locked in key order.
    let mut outcomes = outcomes.to_vec();
    outcomes.sort_by_key(|outcome| (outcome.epoch, outcome.delivery_id));
    let epochs: Vec<_> = outcomes.iter().map(|outcome| outcome.epoch.0).collect();
    let ids: Vec<_> = outcomes.iter().map(|outcome| Col(outcome.delivery_id)).collect();
    let knows: Vec<_> = outcomes.iter().map(|outcome| outcome.record_despite_cancel).collect();
    lock_leases(tx, &epochs, &ids).await?;
    let rows = tx.query(DELETE_LEASES, &[&epochs, &ids, &knows]).await?;
    rows.iter().map(|row| read_orphan(row).map(|orphan| (orphan.position.delivery_id, orphan))).collect()
}

/// Determines the results of outcomes without a lease: the delivery was cancelled, the outcome was recorded
/// before, or the lease belongs to another epoch.
async fn explain_missing(
    tx: &Session,
    missing: &[(usize, &Arc<OutcomeRecord>)],
    results: &mut Results,
) -> Result<(), Failure> {
    if missing.is_empty() {
        return Ok(());
    }
    let epochs: Vec<_> = missing.iter().map(|(_, outcome)| outcome.epoch.0).collect();
    let ids: Vec<_> = missing.iter().map(|(_, outcome)| Col(outcome.delivery_id)).collect();
    let mut called_off = HashMap::new();
    for row in tx.query(SELECT_CANCELLED, &[&epochs, &ids]).await? {
        called_off.insert(get::<DeliveryId>(&row, 0)?, text_opt(&row, 1)?.unwrap_or_default());
    }
    let with_attempts = missing.iter().filter_map(|(_, outcome)| Some((outcome, outcome.attempt.as_ref()?)));
    let (keys, numbers): (Vec<_>, Vec<_>) =
        with_attempts.map(|(outcome, attempt)| (Col(outcome.delivery_id), attempt.number as i32)).unzip();
    let mut attempts = HashSet::new();
    for row in tx.query(SELECT_RECORDED, &[&keys, &numbers]).await? {
        attempts.insert((get::<DeliveryId>(&row, 0)?, plain::<i32>(&row, 1)?, get::<AttemptId>(&row, 2)?));
    }
    let mut statuses = HashMap::new();
    for row in tx.query(SELECT_STATUS, &[&ids]).await? {
        statuses.insert(get::<DeliveryId>(&row, 0)?, get::<DeliveryStatus>(&row, 1)?);
    }
    for (at, outcome) in missing {
        let again = match &outcome.attempt {
            Some(attempt) => attempts.contains(&(outcome.delivery_id, attempt.number as i32, attempt.id)),
            None => statuses.get(&outcome.delivery_id) == Some(&outcome.outcome.status()),
        };
        let result = match called_off.get(&outcome.delivery_id) {
            Some(reason) if !again => RecordResult::CancelRequested(reason.clone()),
            _ if again => RecordResult::AlreadyRecorded,
            _ => RecordResult::NotLeased,
        };
        results[*at] = Some(result);
    }
    Ok(())
}

/// Restores the leases of outcomes that cancel a delivery because its webhook has ended, where the stored webhook has
/// not. Returns the other outcomes.
async fn refuse_unconfirmed<'a>(
    tx: &Session,
    leased: Vec<Leased<'a>>,
    results: &mut Results,
) -> Result<Vec<Leased<'a>>, Failure> {
    let must_confirm = |one: &&Leased<'_>| one.outcome.requires_inactive_webhook;
    let webhook_ids: BTreeSet<_> =
        leased.iter().filter(must_confirm).map(|one| one.outcome.webhook_id).collect();
    if webhook_ids.is_empty() {
        return Ok(leased);
    }
    let stored = webhooks::by_ids(tx, webhook_ids).await?;
    let mut confirmed = Vec::with_capacity(leased.len());
    for one in leased {
        let is_inactive =
            stored.get(&one.outcome.webhook_id).is_none_or(|found| found.is_inactive(one.outcome.at));
        if one.outcome.requires_inactive_webhook && !is_inactive {
            restore_lease(tx, one.outcome, &one.lease).await?;
            results[one.at] = Some(RecordResult::WebhookNotInactive);
        } else {
            confirmed.push(one);
        }
    }
    Ok(confirmed)
}

/// Inserts attempts. Returns the deliveries whose attempt did not exist before.
async fn insert_attempts(tx: &Session, leased: &[Leased<'_>]) -> Result<HashSet<DeliveryId>, Failure> {
    let attempts: Vec<_> =
        leased.iter().filter_map(|one| Some((one.outcome, one.outcome.attempt.as_ref()?))).collect();
    if attempts.is_empty() {
        return Ok(HashSet::new());
    }
    let columns = Columns::from_outcomes(&attempts);
    let rows = tx.query(INSERT_ATTEMPTS, &columns.values()).await?;
    rows.iter().map(|row| get(row, 0)).collect()
}

async fn is_recorded(tx: &Session, outcome: &OutcomeRecord, attempt: &Attempt) -> Result<bool, Failure> {
    let known = "SELECT 1 FROM attempts WHERE delivery_id = $1 AND number = $2 AND id = $3";
    tx.exists(known, &[&Col(outcome.delivery_id), &(attempt.number as i32), &Col(attempt.id)]).await
}

/// Inserts a lease again, unchanged.
async fn restore_lease(tx: &Session, outcome: &OutcomeRecord, lease: &Orphan) -> Result<(), Failure> {
    let Orphan { position, release_counts, sending, cancel } = lease;
    tx.execute(
        RESTORE_LEASE,
        &[
            &outcome.epoch.0,
            &Col(position.delivery_id),
            &Col(position.webhook_id),
            &&*position.lane.code(),
            &position.seq,
            &release_counts.abnormal_releases,
            &release_counts.crash_count,
            sending,
            &cancel.as_deref().map(str::as_bytes),
        ],
    )
    .await?;
    Ok(())
}

/// Applies outcomes to deliveries whose leases were deleted.
async fn apply(tx: &Session, applied: &[Leased<'_>], results: &mut Results) -> Result<(), Failure> {
    if applied.is_empty() {
        return Ok(());
    }
    let outcomes: Vec<_> = applied.iter().map(|one| one.outcome).collect();
    let orders = lock(tx, applied).await?;
    update(tx, &outcomes).await?;
    let attempts = outcomes.iter().filter_map(|outcome| Some((*outcome, outcome.attempt.as_ref()?)));
    IndexColumns::new(attempts).insert(tx).await?;
    let (arrived, others): (Vec<&OutcomeRecord>, Vec<&OutcomeRecord>) =
        outcomes.iter().partition(|outcome| outcome.outcome == Outcome::Delivered);
    let ids = |outcomes: Vec<&OutcomeRecord>| -> Vec<_> {
        outcomes.into_iter().map(|outcome| Col(outcome.delivery_id)).collect()
    };
    undelivered::clear(tx, &ids(arrived)).await?;
    undelivered::record(tx, &ids(others)).await?;
    let died = outcomes.iter().filter(|outcome| matches!(outcome.outcome, Outcome::Dead(_)));
    insert_dead_letter(tx, &died.map(|outcome| Col(outcome.delivery_id)).collect::<Vec<_>>()).await?;
    let retries: Vec<_> = applied.iter().filter_map(retry).collect();
    wait_for_retry(tx, retries).await?;
    lanes::set_by_first(tx, &orders).await?;
    let mut reported: Vec<Cow<'_, Occurrence>> = Vec::new();
    for Leased { at, outcome, .. } in applied {
        runtime_state::apply_effects(tx, outcome, &mut reported).await?;
        let config_version = match &outcome.disable {
            Some(disable) => disable_webhook(tx, outcome, disable).await?,
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
        results[*at] = Some(RecordResult::Recorded { config_version });
    }
    notifications::record_occurrences(tx, &reported.iter().map(AsRef::as_ref).collect::<Vec<_>>()).await
}

/// Locks everything that outcomes change besides their deliveries, in the order of
/// `docs/adr/0044-one-lock-order.md`. Returns the ordered lanes that a delivery has left.
async fn lock(tx: &Session, applied: &[Leased<'_>]) -> Result<Keys, Failure> {
    let disabling = || applied.iter().map(|one| one.outcome).filter(|one| one.disable.is_some());
    // A webhook that is to be disabled must not change after it is read.
    let owners: BTreeSet<_> = disabling().map(|one| &one.tenant_id).collect();
    for tenant_id in owners {
        tenancy::lock(tx, tenant_id).await?;
    }
    webhooks::lock(tx, disabling().map(|one| one.webhook_id)).await?;
    let (mut runtimes, mut locks, mut left) = (BTreeMap::new(), LaneLocks::default(), Keys::new());
    for one in applied {
        let Leased { outcome, lease, .. } = one;
        let lock = RuntimeLock::for_outcome(outcome);
        let known = runtimes.entry(outcome.webhook_id).or_insert((&outcome.tenant_id, lock));
        known.1 = known.1.max(lock);
        match retry(one) {
            Some((position, due)) => locks.put_into(position.webhook_id, &position.lane, due),
            None if lease.position.lane.is_ordered() => {
                let code = lease.position.lane.code().into_owned();
                locks.take_from(lease.position.webhook_id, code.clone());
                left.insert((lease.position.webhook_id, code));
            }
            None => {}
        }
    }
    // Effects on a webhook may block it: all of its lanes are recomputed then.
    let changing =
        runtimes.iter().filter(|(_, (_, lock))| *lock > RuntimeLock::Keep).map(|(webhook_id, _)| webhook_id);
    locks.add_all_of(tx, changing).await?;
    runtimes
        .retain(|webhook_id, (_, lock)| *lock > RuntimeLock::Keep || locks.webhooks().contains(webhook_id));
    runtime_state::lock_all(tx, &runtimes).await?;
    let locked = locks.lock_lanes(tx).await?;
    Ok(left.intersection(&locked).cloned().collect())
}

/// Returns the lane position of a delivery that is to be retried, and its due time.
fn retry(one: &Leased<'_>) -> Option<(LanePosition, Time)> {
    let Outcome::Retry { at: due } = one.outcome.outcome else { return None };
    let LanePosition { delivery_id, webhook_id, lane, seq } = &one.lease.position;
    Some((
        LanePosition {
            delivery_id: *delivery_id,
            webhook_id: *webhook_id,
            lane: lane.for_retry(),
            seq: *seq,
        },
        due,
    ))
}

async fn wait_for_retry(tx: &Session, retries: Vec<(LanePosition, Time)>) -> Result<(), Failure> {
    if retries.is_empty() {
        return Ok(());
    }
    let ids: Vec<_> = retries.iter().map(|(position, _)| position.delivery_id).collect();
    let created = created(tx, &ids).await?;
    let wait = |(position, due): (LanePosition, Time)| WaitingDelivery {
        created_at: created.get(&position.delivery_id).copied().unwrap_or(due),
        sort_key: position,
        due,
        release_counts: ReleaseCounts::default(),
    };
    lanes::insert_waiting(tx, &retries.into_iter().map(wait).collect::<Vec<_>>()).await
}

/// Inserts dead letters for deliveries that are dead.
pub(super) async fn insert_dead_letter(tx: &Session, deliveries: &[Col<DeliveryId>]) -> Result<(), Failure> {
    if !deliveries.is_empty() {
        tx.execute(INSERT_DEAD, &[&deliveries]).await?;
    }
    Ok(())
}

async fn update(tx: &Session, outcomes: &[&OutcomeRecord]) -> Result<(), Failure> {
    fn column<'a, T>(outcomes: &[&'a OutcomeRecord], get: impl Fn(&'a OutcomeRecord) -> T) -> Vec<T> {
        outcomes.iter().map(|outcome| get(outcome)).collect()
    }
    let statuses: Vec<_> = outcomes.iter().map(|outcome| outcome.outcome.status()).collect();
    let ended =
        outcomes.iter().zip(&statuses).map(|(outcome, status)| status.is_final().then_some(Col(outcome.at)));
    tx.execute(
        UPDATE_DELIVERIES,
        &[
            &column(outcomes, |outcome| Col(outcome.delivery_id)),
            &statuses.iter().map(|status| Col(*status)).collect::<Vec<_>>(),
            &ended.collect::<Vec<_>>(),
            &column(outcomes, |outcome| match &outcome.outcome {
                Outcome::Dead(reason) => Some(Col(*reason)),
                _ => None,
            }),
            &column(outcomes, |outcome| match &outcome.outcome {
                Outcome::Cancelled(reason) => Some(reason.as_bytes()),
                _ => None,
            }),
            &column(outcomes, |outcome| outcome.attempt.as_ref().map(|attempt| attempt.number as i32)),
            &column(outcomes, |outcome| Some(outcome.attempt.as_ref()?.http_status_code? as i16)),
            &column(outcomes, |outcome| outcome.attempt.as_ref()?.failure_category.map(Col)),
            &column(outcomes, |outcome| Some(outcome.attempt.as_ref()?.error_message.as_deref()?.as_bytes())),
        ],
    )
    .await?;
    Ok(())
}

async fn disable_webhook(
    tx: &Session,
    outcome: &OutcomeRecord,
    disable: &DisableWebhook,
) -> Result<Option<i64>, Failure> {
    let Some(mut found) = webhooks::find(tx, &outcome.tenant_id, outcome.webhook_id).await? else {
        return Ok(None);
    };
    let webhook = &mut found.webhook.webhook;
    if !webhook.state.may_be_disabled_by_outcome() || webhook.spec.url != disable.url {
        return Ok(None);
    }
    webhook.state = WebhookState::Disabled(disable.reason.clone());
    webhook.updated_at = outcome.at;
    webhooks::store_with_lanes(tx, &found.webhook).await
}
