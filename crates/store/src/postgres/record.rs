//! Writing down what happened to leased deliveries. The lease is the right to do so: whoever cannot delete it
//! records nothing.
//!
//! What was simply delivered, which is most, takes one statement for a whole batch. The rest shares one
//! transaction.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use redrive_core::{
    AttemptId, DeliveryId, DeliveryStatus, Time,
    notification::{Cause, Kind},
    webhook::WebhookState,
};
use tokio_postgres::types::ToSql;

use super::{
    Postgres, Shared,
    convert::{Col, get, plain, text_opt},
    lanes::{self, Keys, LaneLocks, Place, Rescued, Wait},
    leases::{Orphan, created, lock_leases, read_orphan},
    notifications,
    runtime_state::{self, RuntimeLock},
    session::{Failure, Session, Tx},
    tenancy, undelivered, webhooks,
};
use crate::{Attempt, Disable, Done, Effects, Next, Outcome, Record, Recorded};

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

/// What was delivered outside of orders and not called off meanwhile: lease, attempt and delivery at once.
/// Gives the deliveries for which that was all. A lease that somebody changes at that moment is not found by its
/// place, and is left to the usual way.
const DELIVERED: &str = concat!(
    "WITH i AS MATERIALIZED (
         SELECT i.*, l.tid FROM unnest($1::bigint[], $2::uuid[], ",
    attempt_arrays!(),
    ", $22::bigint[], $23::boolean[]) AS i(epoch, delivery, ",
    attempt_columns!(),
    ", at, knows_cancel) CROSS JOIN LATERAL (
             SELECT ctid AS tid FROM leased l WHERE l.epoch = i.epoch AND l.delivery = i.delivery
                 AND l.lane >= 'A' AND (l.cancel IS NULL OR i.knows_cancel) LIMIT 1 FOR UPDATE) l),
     gone AS (DELETE FROM leased WHERE ctid = ANY(ARRAY(SELECT tid FROM i)) RETURNING delivery),
     a AS (INSERT INTO attempts SELECT delivery, ",
    attempt_columns!(),
    " FROM i WHERE delivery = ANY(ARRAY(SELECT delivery FROM gone))),
     arrived_late AS (
         DELETE FROM undelivered WHERE delivery = ANY($25::uuid[]) AND delivery = ANY(ARRAY(SELECT delivery FROM gone)))
     UPDATE deliveries d SET status = $24, dead_reason = NULL,
            ended_at = ($22::bigint[])[array_position($2::uuid[], d.id)],
            attempt_count = ($3::integer[])[array_position($2::uuid[], d.id)],
            last_status_code = ($7::smallint[])[array_position($2::uuid[], d.id)],
            failure_category = NULL, last_error = NULL
     WHERE d.id = ANY(ARRAY(SELECT delivery FROM gone)) RETURNING d.id"
);
/// The leases that outcomes may be recorded for; those called off are left, unless that is known.
const TAKE: &str = "WITH k AS MATERIALIZED (
         SELECT l.tid FROM unnest($1::bigint[], $2::uuid[], $3::boolean[]) AS i(epoch, delivery, knows)
         CROSS JOIN LATERAL (
             SELECT ctid AS tid FROM leased l WHERE l.epoch = i.epoch AND l.delivery = i.delivery
                 AND (l.cancel IS NULL OR i.knows) LIMIT 1) l)
     DELETE FROM leased WHERE ctid = ANY(ARRAY(SELECT tid FROM k))
     RETURNING delivery, webhook, lane, seq, rescues, deaths, sending, cancel";
const CALLED_OFF: &str =
    "SELECT l.delivery, l.cancel FROM unnest($1::bigint[], $2::uuid[]) AS i(epoch, delivery)
     CROSS JOIN LATERAL (
         SELECT * FROM leased l WHERE l.epoch = i.epoch AND l.delivery = i.delivery AND l.cancel IS NOT NULL
         LIMIT 1) l";
const ATTEMPTS: &str = concat!(
    "INSERT INTO attempts SELECT i.* FROM unnest($2::uuid[], ",
    attempt_arrays!(),
    ") AS i WHERE $1::bigint[] IS NOT NULL ON CONFLICT DO NOTHING RETURNING delivery"
);
const RECORDED: &str =
    "SELECT a.delivery, a.number, a.id FROM unnest($1::uuid[], $2::integer[]) AS i(delivery, number)
     CROSS JOIN LATERAL (
         SELECT * FROM attempts a WHERE a.delivery = i.delivery AND a.number = i.number LIMIT 1) a";
const STATUS: &str = "SELECT id, status FROM deliveries WHERE id = ANY($1::uuid[])";
const PUT_BACK: &str =
    "INSERT INTO leased (epoch, delivery, webhook, lane, seq, rescues, deaths, sending, cancel)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
/// A delivery that ended without an attempt keeps what the one before it left.
const UPDATE: &str = "UPDATE deliveries d SET status = ($2::smallint[])[array_position($1::uuid[], d.id)],
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
const BURY: &str = "INSERT INTO dead (delivery, tenant, webhook, event_type, category, reason, died_at)
     SELECT d.id, d.tenant, d.webhook, e.event_type, d.failure_category, d.dead_reason, d.ended_at
     FROM unnest($1::uuid[]) AS i(delivery)
     CROSS JOIN LATERAL (SELECT * FROM deliveries d WHERE d.id = i.delivery LIMIT 1) d
     CROSS JOIN LATERAL (SELECT * FROM events e WHERE e.tenant = d.tenant AND e.id = d.event LIMIT 1) e";

/// The statements whose cost must follow what they write: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED: [(&str, &str); 7] = [
    ("delivered", DELIVERED),
    ("take leases", TAKE),
    ("called off", CALLED_OFF),
    ("recorded before", RECORDED),
    ("status", STATUS),
    ("update deliveries", UPDATE),
    ("bury", BURY),
];

impl Record for Postgres {
    fn record(&self, outcome: Arc<Outcome>, done: Done<Recorded>) {
        self.writer.record(outcome, done);
    }
}

/// Records a batch.
pub(super) async fn commit(shared: &Shared, outcomes: &[Arc<Outcome>]) -> Result<Vec<Recorded>, Failure> {
    // Leases are locked in their order.
    let mut plain: Vec<_> = outcomes.iter().filter(|outcome| is_plain(outcome)).collect();
    plain.sort_by_key(|outcome| (outcome.epoch, outcome.delivery));
    let over = match plain.is_empty() {
        true => HashSet::new(),
        false => delivered(shared, &plain).await?,
    };
    let is_over = |outcome: &Outcome| is_plain(outcome) && over.contains(&outcome.delivery);
    let rest: Vec<_> = outcomes.iter().filter(|outcome| !is_over(outcome)).collect();
    let mut recorded = Vec::new();
    if !rest.is_empty() {
        recorded = shared.recording.write(|tx| record(tx, &rest)).await?;
        after(shared, &rest, &recorded);
    }
    let mut recorded = recorded.into_iter();
    let mut result = |outcome: &Arc<Outcome>| match is_over(outcome) {
        true => Some(Recorded::Done { config_version: None }),
        false => recorded.next(),
    };
    Ok(outcomes.iter().map_while(&mut result).collect())
}

/// Whether nothing follows from it but the end of a delivery.
fn is_plain(outcome: &Outcome) -> bool {
    outcome.next == Next::Delivered
        && outcome.attempt.is_some()
        && outcome.disable.is_none()
        && outcome.effects == Effects::default()
}

/// Tells other nodes what they should know.
fn after(shared: &Shared, outcomes: &[&Arc<Outcome>], recorded: &[Recorded]) {
    let news = |(outcome, recorded): (&&Arc<Outcome>, &Recorded)| {
        matches!(recorded, Recorded::Done { .. })
            && (outcome.disable.is_some() || outcome.effects != Effects::default())
    };
    if outcomes.iter().zip(recorded).any(news) {
        shared.hints.change();
    }
}

/// The columns of attempts.
struct Columns<'a> {
    epochs: Vec<i64>,
    deliveries: Vec<Col<DeliveryId>>,
    numbers: Vec<i32>,
    ids: Vec<Col<AttemptId>>,
    statuses: Vec<Col<crate::AttemptStatus>>,
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
    fn of(outcomes: &[(&'a Outcome, &'a Attempt)]) -> Self {
        fn column<'a, T>(outcomes: &[(&'a Outcome, &'a Attempt)], of: impl Fn(&'a Attempt) -> T) -> Vec<T> {
            outcomes.iter().map(|(_, attempt)| of(attempt)).collect()
        }
        let phase = |of: fn(&Attempt) -> Option<u32>| column(outcomes, |one| of(one).map(i64::from));
        Self {
            epochs: outcomes.iter().map(|(outcome, _)| outcome.epoch.0).collect(),
            deliveries: outcomes.iter().map(|(outcome, _)| Col(outcome.delivery)).collect(),
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

    /// The values $1 to $21.
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

/// Records what was simply delivered. Gives those for which that was possible.
async fn delivered(shared: &Shared, outcomes: &[&Arc<Outcome>]) -> Result<HashSet<DeliveryId>, Failure> {
    let with_attempts: Vec<_> =
        outcomes.iter().filter_map(|outcome| Some((&***outcome, outcome.attempt.as_ref()?))).collect();
    let columns = Columns::of(&with_attempts);
    let at: Vec<_> = outcomes.iter().map(|outcome| Col(outcome.at)).collect();
    let knows: Vec<_> = outcomes.iter().map(|outcome| outcome.knows_cancel).collect();
    let mut values = columns.values();
    let delivered = Col(DeliveryStatus::Delivered);
    // Those that had failed before.
    let late: Vec<_> = with_attempts
        .iter()
        .filter(|(_, attempt)| attempt.number > 1)
        .map(|(outcome, _)| Col(outcome.delivery))
        .collect();
    values.extend([&at as &(dyn ToSql + Sync), &knows, &delivered, &late]);
    let session = shared.recording.get().await?;
    session.set_busy(true);
    match session.query(DELIVERED, &values).await {
        Ok(rows) => {
            session.committed();
            rows.iter().map(|row| get(row, 0)).collect()
        }
        // Some of it was recorded before, in whatever way: that is looked into one by one.
        Err(failure) if failure.is_duplicate() => {
            session.set_busy(false);
            Ok(HashSet::new())
        }
        Err(failure) => {
            session.set_busy(failure.leaves_doubt());
            Err(failure)
        }
    }
}

/// What came of each outcome of a transaction, as far as it is known.
type Results = [Option<Recorded>];

/// Records anything, in one transaction.
async fn record(tx: Tx, outcomes: &[&Arc<Outcome>]) -> Result<Vec<Recorded>, Failure> {
    let mut results: Vec<_> = outcomes.iter().map(|_| None).collect();
    let mut leases = take(&tx, outcomes).await?;
    let (mut leased, mut missing) = (Vec::new(), Vec::new());
    for (at, outcome) in outcomes.iter().enumerate() {
        match leases.remove(&outcome.delivery) {
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
            Some(attempt) if !fresh.contains(&one.outcome.delivery) => {
                if !is_recorded(&tx, one.outcome, attempt).await? {
                    return Err(Failure::Bad(format!("attempt {} is there already", attempt.number)));
                }
                // A late resend: the delivery was leased again since. The new lease is for the next attempt.
                put_back(&tx, one.outcome, &one.lease).await?;
                results[one.at] = Some(Recorded::Again);
            }
            _ => applied.push(one),
        }
    }
    apply(&tx, &applied, &mut results).await?;
    Ok(results.into_iter().map(|result| result.unwrap_or(Recorded::Fenced)).collect())
}

/// An outcome whose lease was taken.
struct Leased<'a> {
    at: usize,
    outcome: &'a Outcome,
    lease: Orphan,
}

async fn take(tx: &Session, outcomes: &[&Arc<Outcome>]) -> Result<HashMap<DeliveryId, Orphan>, Failure> {
    // Leases are locked in their order.
    let mut outcomes = outcomes.to_vec();
    outcomes.sort_by_key(|outcome| (outcome.epoch, outcome.delivery));
    let epochs: Vec<_> = outcomes.iter().map(|outcome| outcome.epoch.0).collect();
    let ids: Vec<_> = outcomes.iter().map(|outcome| Col(outcome.delivery)).collect();
    let knows: Vec<_> = outcomes.iter().map(|outcome| outcome.knows_cancel).collect();
    lock_leases(tx, &epochs, &ids).await?;
    let rows = tx.query(TAKE, &[&epochs, &ids, &knows]).await?;
    rows.iter().map(|row| read_orphan(row).map(|orphan| (orphan.place.delivery, orphan))).collect()
}

/// No lease to take: the delivery was called off, or this very outcome was recorded before, or it is somebody
/// else's.
async fn explain_missing(
    tx: &Session,
    missing: &[(usize, &Arc<Outcome>)],
    results: &mut Results,
) -> Result<(), Failure> {
    if missing.is_empty() {
        return Ok(());
    }
    let epochs: Vec<_> = missing.iter().map(|(_, outcome)| outcome.epoch.0).collect();
    let ids: Vec<_> = missing.iter().map(|(_, outcome)| Col(outcome.delivery)).collect();
    let mut called_off = HashMap::new();
    for row in tx.query(CALLED_OFF, &[&epochs, &ids]).await? {
        called_off.insert(get::<DeliveryId>(&row, 0)?, text_opt(&row, 1)?.unwrap_or_default());
    }
    let with_attempts = missing.iter().filter_map(|(_, outcome)| Some((outcome, outcome.attempt.as_ref()?)));
    let (keys, numbers): (Vec<_>, Vec<_>) =
        with_attempts.map(|(outcome, attempt)| (Col(outcome.delivery), attempt.number as i32)).unzip();
    let mut attempts = HashSet::new();
    for row in tx.query(RECORDED, &[&keys, &numbers]).await? {
        attempts.insert((get::<DeliveryId>(&row, 0)?, plain::<i32>(&row, 1)?, get::<AttemptId>(&row, 2)?));
    }
    let mut statuses = HashMap::new();
    for row in tx.query(STATUS, &[&ids]).await? {
        statuses.insert(get::<DeliveryId>(&row, 0)?, get::<DeliveryStatus>(&row, 1)?);
    }
    for (at, outcome) in missing {
        let again = match &outcome.attempt {
            Some(attempt) => attempts.contains(&(outcome.delivery, attempt.number as i32, attempt.id)),
            None => statuses.get(&outcome.delivery) == Some(&status_after(&outcome.next)),
        };
        let result = match called_off.get(&outcome.delivery) {
            Some(reason) if !again => Recorded::CancelRequested(reason.clone()),
            _ if again => Recorded::Again,
            _ => Recorded::Fenced,
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
    let claimed = |one: &&Leased<'_>| one.outcome.requires_ended_webhook;
    let webhook_ids: BTreeSet<_> = leased.iter().filter(claimed).map(|one| one.outcome.webhook).collect();
    if webhook_ids.is_empty() {
        return Ok(leased);
    }
    let stored = webhooks::by_ids(tx, webhook_ids).await?;
    let mut confirmed = Vec::with_capacity(leased.len());
    for one in leased {
        let has_ended = stored.get(&one.outcome.webhook).is_none_or(|found| found.has_ended(one.outcome.at));
        if one.outcome.requires_ended_webhook && !has_ended {
            put_back(tx, one.outcome, &one.lease).await?;
            results[one.at] = Some(Recorded::WebhookNotEnded);
        } else {
            confirmed.push(one);
        }
    }
    Ok(confirmed)
}

/// Adds attempts. Gives the deliveries whose attempt was not there before.
async fn insert_attempts(tx: &Session, leased: &[Leased<'_>]) -> Result<HashSet<DeliveryId>, Failure> {
    let attempts: Vec<_> =
        leased.iter().filter_map(|one| Some((one.outcome, one.outcome.attempt.as_ref()?))).collect();
    if attempts.is_empty() {
        return Ok(HashSet::new());
    }
    let columns = Columns::of(&attempts);
    let rows = tx.query(ATTEMPTS, &columns.values()).await?;
    rows.iter().map(|row| get(row, 0)).collect()
}

async fn is_recorded(tx: &Session, outcome: &Outcome, attempt: &Attempt) -> Result<bool, Failure> {
    let known = "SELECT 1 FROM attempts WHERE delivery = $1 AND number = $2 AND id = $3";
    tx.exists(known, &[&Col(outcome.delivery), &(attempt.number as i32), &Col(attempt.id)]).await
}

/// Puts a lease back as it was.
async fn put_back(tx: &Session, outcome: &Outcome, lease: &Orphan) -> Result<(), Failure> {
    let Orphan { place, rescued, sending, cancel } = lease;
    tx.execute(
        PUT_BACK,
        &[
            &outcome.epoch.0,
            &Col(place.delivery),
            &Col(place.webhook),
            &&*place.lane.code(),
            &place.seq,
            &rescued.rescues,
            &rescued.deaths,
            sending,
            &cancel.as_deref().map(str::as_bytes),
        ],
    )
    .await?;
    Ok(())
}

fn status_after(next: &Next) -> DeliveryStatus {
    match next {
        Next::Delivered => DeliveryStatus::Delivered,
        Next::Retry { .. } => DeliveryStatus::Pending,
        Next::Dead { .. } => DeliveryStatus::Dead,
        Next::Cancelled { .. } => DeliveryStatus::Cancelled,
    }
}

/// Carries out what outcomes say about deliveries whose leases were taken.
async fn apply(tx: &Session, applied: &[Leased<'_>], results: &mut Results) -> Result<(), Failure> {
    if applied.is_empty() {
        return Ok(());
    }
    let outcomes: Vec<_> = applied.iter().map(|one| one.outcome).collect();
    let orders = lock(tx, applied).await?;
    update(tx, &outcomes).await?;
    let (arrived, others): (Vec<&Outcome>, Vec<&Outcome>) =
        outcomes.iter().partition(|outcome| outcome.next == Next::Delivered);
    let ids = |outcomes: Vec<&Outcome>| -> Vec<_> {
        outcomes.into_iter().map(|outcome| Col(outcome.delivery)).collect()
    };
    undelivered::clear(tx, &ids(arrived)).await?;
    undelivered::note(tx, &ids(others)).await?;
    let died = outcomes.iter().filter(|outcome| matches!(outcome.next, Next::Dead { .. }));
    bury(tx, &died.map(|outcome| Col(outcome.delivery)).collect::<Vec<_>>()).await?;
    let retries: Vec<_> = applied.iter().filter_map(retry).collect();
    wait_for_retry(tx, retries).await?;
    lanes::set_by_first(tx, &orders).await?;
    let mut told: Vec<&Cause> = Vec::new();
    for Leased { at, outcome, .. } in applied {
        told.extend(runtime_state::take_effect(tx, outcome).await?);
        let config_version = match &outcome.disable {
            Some(disable) => disable_webhook(tx, outcome, disable).await?,
            None => None,
        };
        let of = |kind| outcome.causes.iter().filter(move |cause| cause.kind == kind);
        if matches!(outcome.next, Next::Dead { .. }) {
            told.extend(of(Kind::DeliveryDead));
        }
        if config_version.is_some() {
            told.extend(of(Kind::WebhookDisabled));
        }
        results[*at] = Some(Recorded::Done { config_version });
    }
    notifications::note(tx, &told).await
}

/// Locks all that outcomes change beside their deliveries, in the order of `docs/adr/0044-one-lock-order.md`. Gives the
/// orders that one of them has left.
async fn lock(tx: &Session, applied: &[Leased<'_>]) -> Result<Keys, Failure> {
    let disabling = || applied.iter().map(|one| one.outcome).filter(|one| one.disable.is_some());
    // A webhook that is to be disabled must not change after it was read.
    let owners: BTreeSet<_> = disabling().map(|one| &one.tenant).collect();
    for tenant in owners {
        tenancy::lock(tx, tenant).await?;
    }
    webhooks::lock(tx, disabling().map(|one| one.webhook)).await?;
    let (mut runtimes, mut locks, mut left) = (BTreeMap::new(), LaneLocks::default(), Keys::new());
    for one in applied {
        let Leased { outcome, lease, .. } = one;
        let lock = RuntimeLock::for_outcome(outcome);
        let known = runtimes.entry(outcome.webhook).or_insert((&outcome.tenant, lock));
        known.1 = known.1.max(lock);
        match retry(one) {
            Some((place, due)) => locks.put_into(place.webhook, &place.lane, due),
            None if lease.place.lane.is_ordered() => {
                let code = lease.place.lane.code().into_owned();
                locks.take_from(lease.place.webhook, code.clone());
                left.insert((lease.place.webhook, code));
            }
            None => {}
        }
    }
    // A webhook with other changes may be blocked by them: all of its lanes are set then.
    let changing =
        runtimes.iter().filter(|(_, (_, lock))| *lock > RuntimeLock::Keep).map(|(webhook, _)| webhook);
    locks.add_all_of(tx, changing).await?;
    runtimes.retain(|webhook, (_, lock)| *lock > RuntimeLock::Keep || locks.webhooks().contains(webhook));
    runtime_state::lock_all(tx, &runtimes).await?;
    let locked = locks.lock_lanes(tx).await?;
    Ok(left.intersection(&locked).cloned().collect())
}

/// Where a delivery waits for its next attempt, and until when.
fn retry(one: &Leased<'_>) -> Option<(Place, Time)> {
    let Next::Retry { due } = one.outcome.next else { return None };
    let Place { delivery, webhook, lane, seq } = &one.lease.place;
    Some((Place { delivery: *delivery, webhook: *webhook, lane: lane.for_retry(), seq: *seq }, due))
}

async fn wait_for_retry(tx: &Session, retries: Vec<(Place, Time)>) -> Result<(), Failure> {
    if retries.is_empty() {
        return Ok(());
    }
    let ids: Vec<_> = retries.iter().map(|(place, _)| place.delivery).collect();
    let created = created(tx, &ids).await?;
    let wait = |(place, due): (Place, Time)| Wait {
        created_at: created.get(&place.delivery).copied().unwrap_or(due),
        place,
        due,
        rescued: Rescued::default(),
    };
    lanes::insert_waiting(tx, &retries.into_iter().map(wait).collect::<Vec<_>>()).await
}

/// Puts deliveries that have died on the dead-letter list.
pub(super) async fn bury(tx: &Session, deliveries: &[Col<DeliveryId>]) -> Result<(), Failure> {
    if !deliveries.is_empty() {
        tx.execute(BURY, &[&deliveries]).await?;
    }
    Ok(())
}

async fn update(tx: &Session, outcomes: &[&Outcome]) -> Result<(), Failure> {
    fn of<'a, T>(outcomes: &[&'a Outcome], get: impl Fn(&'a Outcome) -> T) -> Vec<T> {
        outcomes.iter().map(|outcome| get(outcome)).collect()
    }
    let statuses: Vec<_> = outcomes.iter().map(|outcome| status_after(&outcome.next)).collect();
    let ended =
        outcomes.iter().zip(&statuses).map(|(outcome, status)| status.is_final().then_some(Col(outcome.at)));
    tx.execute(
        UPDATE,
        &[
            &of(outcomes, |outcome| Col(outcome.delivery)),
            &statuses.iter().map(|status| Col(*status)).collect::<Vec<_>>(),
            &ended.collect::<Vec<_>>(),
            &of(outcomes, |outcome| match &outcome.next {
                Next::Dead { reason } => Some(Col(*reason)),
                _ => None,
            }),
            &of(outcomes, |outcome| match &outcome.next {
                Next::Cancelled { reason } => Some(reason.as_bytes()),
                _ => None,
            }),
            &of(outcomes, |outcome| outcome.attempt.as_ref().map(|attempt| attempt.number as i32)),
            &of(outcomes, |outcome| Some(outcome.attempt.as_ref()?.http_status_code? as i16)),
            &of(outcomes, |outcome| outcome.attempt.as_ref()?.failure_category.map(Col)),
            &of(outcomes, |outcome| Some(outcome.attempt.as_ref()?.error_message.as_deref()?.as_bytes())),
        ],
    )
    .await?;
    Ok(())
}

async fn disable_webhook(tx: &Session, outcome: &Outcome, disable: &Disable) -> Result<Option<i64>, Failure> {
    let Some(mut found) = webhooks::find(tx, &outcome.tenant, outcome.webhook).await? else {
        return Ok(None);
    };
    let webhook = &mut found.webhook.webhook;
    if !webhook.state.gets_events() || webhook.spec.url != disable.url {
        return Ok(None);
    }
    webhook.state = WebhookState::Disabled(disable.reason.clone());
    webhook.updated_at = outcome.at;
    webhooks::store_with_lanes(tx, &found.webhook).await
}
