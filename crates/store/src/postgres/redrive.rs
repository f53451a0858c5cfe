//! Retries, replays and cancellations.

use std::collections::{BTreeMap, BTreeSet};

use redrive_core::{
    DeliveryId, DeliveryStatus, EventId, TenantId, Time, WebhookId,
    delivery::lane::{Lane, Priority},
    event::PayloadFormat,
};
use tokio_postgres::Row;

use super::{
    Postgres, changes,
    convert::{Col, get, get_opt, plain},
    lanes::{self, Keys, LaneLocks, LanePosition, ReleaseCounts, WaitingDelivery},
    nodes, prune,
    session::{Failure, Session, Tx, Values},
    tenancy, undelivered,
};
use crate::{
    CancelResult, Change, NewRound, Redrive, RedriveOptions, RedriveResult, ReplayResult, StoreFuture,
};

macro_rules! old {
    ($rest:literal) => {
        concat!(
            "SELECT id, event_id, webhook_id, round, status, format, redriven_as, priority,
                    purged_at IS NOT NULL FROM deliveries ",
            $rest
        )
    };
}

const SELECT_PREVIOUS_ROUNDS: &str = old!("WHERE id = ANY($1::uuid[]) AND tenant_id = $2");
const INSERT_ROUNDS: &str = "INSERT INTO deliveries
         (id, event_id, webhook_id, round, format, priority, replay_of, tenant_id, status, created_at)
     SELECT *, $8, $9::smallint, $10::bigint FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::integer[],
                                                         $5::smallint[], $6::smallint[], $7::uuid[])";
const SET_REDRIVEN_AS: &str =
    "UPDATE deliveries d SET redriven_as = ($2::uuid[])[array_position($1::uuid[], d.id)]
     WHERE d.id = ANY($1::uuid[])";
const SELECT_UNSENT: &str = "SELECT k.event_id, k.webhook_id FROM unnest($1::uuid[], $2::uuid[]) AS k(event_id, webhook_id)
     WHERE (SELECT 1 FROM deliveries d WHERE d.event_id = k.event_id AND d.webhook_id = k.webhook_id LIMIT 1) IS NULL";
const SELECT_WAITING_LANES: &str =
    "SELECT delivery_id, webhook_id, lane FROM waiting WHERE delivery_id = ANY($1::uuid[])";
/// Deletes only rows that are still in the given lanes, since only those lanes are locked.
const DELETE_WAITING: &str = "DELETE FROM waiting w WHERE w.delivery_id = ANY($1::uuid[])
         AND w.lane = ($2::text[])[array_position($1::uuid[], w.delivery_id)] COLLATE \"C\"
         RETURNING w.webhook_id, w.delivery_id";
const LOCK_WAITING: &str =
    "SELECT delivery_id, lane, due, seq, created_at, abnormal_releases, crash_count FROM waiting
     WHERE delivery_id = ANY($1::uuid[]) ORDER BY delivery_id FOR UPDATE";
macro_rules! lock_leased {
    ($how:literal) => {
        concat!(
            "SELECT delivery_id FROM leased WHERE delivery_id = ANY($2::uuid[]) AND epoch = ANY($1::bigint[])
     ORDER BY epoch, delivery_id FOR UPDATE",
            $how
        )
    };
}
const LOCK_LEASED: &str = lock_leased!("");
const LOCK_FREE_LEASED: &str = lock_leased!(" SKIP LOCKED");
const MARK_CANCELLED: &str =
    "UPDATE leased SET cancel = $3 WHERE delivery_id = ANY($2::uuid[]) AND epoch = ANY($1::bigint[])
     RETURNING webhook_id, delivery_id";

/// Statements whose cost must be proportional to the rows they change; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 9] = [
    ("find and lock waiting deliveries", LOCK_WAITING),
    ("lock leases of deliveries", LOCK_LEASED),
    ("lock free leases of deliveries", LOCK_FREE_LEASED),
    ("find deliveries", SELECT_PREVIOUS_ROUNDS),
    ("set later rounds", SET_REDRIVEN_AS),
    ("find unsent events", SELECT_UNSENT),
    ("find lanes of waiting deliveries", SELECT_WAITING_LANES),
    ("delete waiting deliveries", DELETE_WAITING),
    ("cancel leased deliveries", MARK_CANCELLED),
];

impl Redrive for Postgres {
    fn retry(
        &self,
        tenant_id: TenantId,
        delivery_id: DeliveryId,
        options: RedriveOptions,
        now: Time,
    ) -> StoreFuture<'_, RedriveResult> {
        Box::pin(async move {
            let redriven = self.administer(|tx| retry(tx, &tenant_id, delivery_id, &options, now)).await?;
            self.shared.hints.work();
            Ok(redriven)
        })
    }

    fn replay(
        &self,
        tenant_id: TenantId,
        event_id: EventId,
        rounds: Vec<NewRound>,
        priority: Option<Priority>,
        now: Time,
    ) -> StoreFuture<'_, ReplayResult> {
        Box::pin(async move {
            let replayed =
                self.administer(|tx| replay(tx, &tenant_id, event_id, &rounds, priority, now)).await?;
            self.shared.hints.work();
            Ok(replayed)
        })
    }

    fn cancel(
        &self,
        tenant_id: TenantId,
        delivery_id: DeliveryId,
        reason: String,
        now: Time,
    ) -> StoreFuture<'_, CancelResult> {
        Box::pin(async move {
            let cancelled = self.administer(|tx| cancel(tx, &tenant_id, delivery_id, &reason, now)).await?;
            if cancelled == CancelResult::Requested {
                self.shared.hints.change();
            }
            Ok(cancelled)
        })
    }
}

async fn retry(
    tx: Tx,
    tenant_id: &TenantId,
    delivery_id: DeliveryId,
    options: &RedriveOptions,
    now: Time,
) -> Result<RedriveResult, Failure> {
    let retried = retry_all(&tx, tenant_id, &[(delivery_id, options)], now).await?;
    Ok(retried.into_iter().next().unwrap_or(RedriveResult::NotFound))
}

/// Makes pending deliveries due now, and creates new rounds of ended ones. Returns one result per delivery, in
/// order. No delivery may be given twice.
pub(super) async fn retry_all(
    tx: &Session,
    tenant_id: &TenantId,
    deliveries: &[(DeliveryId, &RedriveOptions)],
    now: Time,
) -> Result<Vec<RedriveResult>, Failure> {
    // Rounds of a tenant are created one after the other, and take their sequence numbers from its row.
    tenancy::lock(tx, tenant_id).await?;
    let ids: Vec<_> = deliveries.iter().map(|(delivery_id, _)| *delivery_id).collect();
    let mut olds = find_all(tx, tenant_id, &ids).await?;
    // Locked, so that no event is pruned before its new round is inserted.
    let held = prune::lock_events(tx, tenant_id, olds.values().map(|previous| previous.event_id)).await?;
    let (mut retried, mut rounds, mut pending) = (Vec::with_capacity(ids.len()), Vec::new(), Vec::new());
    for (delivery_id, options) in deliveries {
        let found =
            olds.remove(delivery_id).and_then(|previous| Some((held.get(&previous.event_id)?, previous)));
        let Some((event, previous)) = found else {
            retried.push(RedriveResult::NotFound);
            continue;
        };
        retried.push(match previous.redriven_as {
            _ if event.erased => RedriveResult::Erased,
            _ if options.unless_purged && previous.is_purged => RedriveResult::NotFound,
            _ if !previous.status.is_final() => {
                pending.push((previous, options.priority));
                RedriveResult::DueNow(*delivery_id)
            }
            Some(round) => RedriveResult::AlreadyRedriven(round),
            None => {
                let lane = options.lane.clone();
                let round = NewRound {
                    id: options.id,
                    webhook_id: previous.webhook_id,
                    format: previous.format,
                    lane,
                };
                let priority = options.priority.unwrap_or(previous.priority);
                // There is no later round: `redriven_as` would name it.
                rounds.push(Round { event_id: previous.event_id, round, priority, last: Some(previous) });
                RedriveResult::NewRound(options.id)
            }
        });
    }
    let mut locks = locks_for(&rounds, now);
    let lanes = find_lanes(tx, &pending, now, &mut locks).await?;
    let locked = locks.lock(tx).await?;
    make_due(tx, &pending, &lanes, &locked, now).await?;
    add_rounds(tx, tenant_id, rounds, now).await?;
    Ok(retried)
}

/// Adds the current and the new lanes of pending deliveries to the locks. Returns the current ones.
async fn find_lanes(
    tx: &Session,
    pending: &[(PreviousRound, Option<Priority>)],
    now: Time,
    locks: &mut LaneLocks,
) -> Result<BTreeMap<DeliveryId, Lane>, Failure> {
    if pending.is_empty() {
        return Ok(BTreeMap::new());
    }
    let ids: Vec<_> = pending.iter().map(|(previous, _)| Col(previous.id)).collect();
    let mut lanes = BTreeMap::new();
    for row in tx.query(SELECT_WAITING_LANES, &[&ids]).await? {
        let (delivery_id, webhook_id): (DeliveryId, WebhookId) = (get(&row, 0)?, get(&row, 1)?);
        let lane: Lane = get(&row, 2)?;
        let priority = pending
            .iter()
            .find(|(previous, _)| previous.id == delivery_id)
            .and_then(|(_, priority)| *priority);
        locks.take_from(webhook_id, lane.code().into_owned());
        if let Some(priority) = priority {
            locks.put_into(webhook_id, &lane.clone().with_priority(priority), now);
        }
        lanes.insert(delivery_id, lane);
    }
    Ok(lanes)
}

/// Creates first deliveries of events to webhooks that did not get them. Returns the created deliveries.
pub(super) async fn create_first_delivery(
    tx: &Session,
    tenant_id: &TenantId,
    sends: &[(EventId, &NewRound, Priority)],
    now: Time,
) -> Result<Vec<DeliveryId>, Failure> {
    tenancy::lock(tx, tenant_id).await?;
    let held = prune::lock_events(tx, tenant_id, sends.iter().map(|(event_id, ..)| *event_id)).await?;
    let there = |event_id: &EventId| held.get(event_id).is_some_and(|held| !held.erased);
    let events: Vec<_> = sends.iter().map(|(event_id, ..)| Col(*event_id)).collect();
    let webhooks: Vec<_> = sends.iter().map(|(_, round, _)| Col(round.webhook_id)).collect();
    let missing: BTreeSet<(EventId, WebhookId)> = tx
        .query(SELECT_UNSENT, &[&events, &webhooks])
        .await?
        .iter()
        .map(|row| Ok((get(row, 0)?, get(row, 1)?)))
        .collect::<Result<_, Failure>>()?;
    let wanted = sends
        .iter()
        .filter(|(event_id, round, _)| there(event_id) && missing.contains(&(*event_id, round.webhook_id)));
    let rounds: Vec<_> = wanted
        .map(|(event_id, round, priority)| Round {
            event_id: *event_id,
            round: (*round).clone(),
            priority: *priority,
            last: None,
        })
        .collect();
    let created = rounds.iter().map(|round| round.round.id).collect();
    locks_for(&rounds, now).lock(tx).await?;
    add_rounds(tx, tenant_id, rounds, now).await?;
    Ok(created)
}

async fn replay(
    tx: Tx,
    tenant_id: &TenantId,
    event_id: EventId,
    rounds: &[NewRound],
    priority: Option<Priority>,
    now: Time,
) -> Result<ReplayResult, Failure> {
    tenancy::lock(&tx, tenant_id).await?;
    let held = match prune::lock_events(&tx, tenant_id, [event_id]).await?.remove(&event_id) {
        None => return Ok(ReplayResult::NotFound),
        Some(held) if held.erased => return Ok(ReplayResult::Erased),
        Some(held) => held,
    };
    let priority = priority.unwrap_or(held.priority);
    let mut created = Vec::with_capacity(rounds.len());
    for round in rounds {
        let last = last_round(&tx, event_id, round.webhook_id).await?;
        if let Some(last) = &last
            && !last.status.is_final()
        {
            return Ok(ReplayResult::StillPending(last.id));
        }
        created.push(Round { event_id, round: round.clone(), priority, last });
    }
    locks_for(&created, now).lock(&tx).await?;
    add_rounds(&tx, tenant_id, created, now).await?;
    Ok(ReplayResult::Done(rounds.iter().map(|round| round.id).collect()))
}

async fn cancel(
    tx: Tx,
    tenant_id: &TenantId,
    delivery_id: DeliveryId,
    reason: &str,
    now: Time,
) -> Result<CancelResult, Failure> {
    let cancelled = cancel_all(&tx, tenant_id, &[delivery_id], reason, now).await?;
    Ok(cancelled.into_iter().next().map_or(CancelResult::NotFound, |(_, _, cancelled)| cancelled))
}

/// Cancels deliveries. Returns a result for each one that exists.
pub(super) async fn cancel_all(
    tx: &Session,
    tenant_id: &TenantId,
    deliveries: &[DeliveryId],
    reason: &str,
    now: Time,
) -> Result<Vec<(WebhookId, DeliveryId, CancelResult)>, Failure> {
    let mut reported = Vec::new();
    let olds = find_all(tx, tenant_id, deliveries).await?;
    let (over, open): (Vec<_>, Vec<_>) = olds.into_values().partition(|previous| previous.status.is_final());
    reported.extend(
        over.into_iter()
            .map(|previous| (previous.webhook_id, previous.id, CancelResult::AlreadyEnded(previous.status))),
    );
    let mut left: Vec<_> = open.iter().map(|previous| previous.id).collect();
    for (webhook_id, delivery_id) in cancel_leased(tx, &left, reason, true).await? {
        left.retain(|id| *id != delivery_id);
        reported.push((webhook_id, delivery_id, CancelResult::Requested));
    }
    for (webhook_id, delivery_id) in cancel_waiting(tx, &left, reason, now).await? {
        left.retain(|id| *id != delivery_id);
        reported.push((webhook_id, delivery_id, CancelResult::Done));
    }
    // The remaining ones were claimed between the two statements, or have ended.
    for (webhook_id, delivery_id) in cancel_leased(tx, &left, reason, false).await? {
        left.retain(|id| *id != delivery_id);
        reported.push((webhook_id, delivery_id, CancelResult::Requested));
    }
    for previous in
        find_all(tx, tenant_id, &left).await?.into_values().filter(|previous| previous.status.is_final())
    {
        left.retain(|id| *id != previous.id);
        reported.push((previous.webhook_id, previous.id, CancelResult::AlreadyEnded(previous.status)));
    }
    if left.is_empty() {
        return Ok(reported);
    }
    // A delivery has moved once more. Lanes may be locked only once, so the transaction is rolled back and repeated.
    Err(Failure::Contention)
}

async fn cancel_waiting(
    tx: &Session,
    deliveries: &[DeliveryId],
    reason: &str,
    now: Time,
) -> Result<Vec<(WebhookId, DeliveryId)>, Failure> {
    let ids: Vec<_> = deliveries.iter().map(|delivery_id| Col(*delivery_id)).collect();
    let mut positions: Vec<(DeliveryId, (WebhookId, String))> = Vec::new();
    for row in tx.query(SELECT_WAITING_LANES, &[&ids]).await? {
        positions.push((get(&row, 0)?, (get(&row, 1)?, plain(&row, 2)?)));
    }
    if positions.is_empty() {
        return Ok(Vec::new());
    }
    let locked = lanes::lock(tx, &positions.iter().map(|(_, key)| key.clone()).collect()).await?;
    positions.retain(|(_, key)| locked.contains(key));
    let at: Vec<_> = positions.iter().map(|(delivery_id, _)| Col(*delivery_id)).collect();
    let lanes: Vec<_> = positions.iter().map(|(_, (_, lane))| lane.as_str()).collect();
    let gone = tx.query(DELETE_WAITING, &[&at, &lanes]).await?;
    let gone =
        gone.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect::<Result<Vec<_>, Failure>>()?;
    let ended: Vec<_> = gone.iter().map(|(_, delivery_id)| *delivery_id).collect();
    end_cancelled(tx, &ended, reason, now).await?;
    // The deliveries behind them may be due earlier.
    lanes::set_by_first(tx, &locked).await?;
    Ok(gone)
}

/// Marks leases whose deliveries are to be cancelled. Leases are locked before lanes: once lanes are locked, a
/// lease that another transaction has locked is skipped.
async fn cancel_leased(
    tx: &Session,
    deliveries: &[DeliveryId],
    reason: &str,
    wait: bool,
) -> Result<Vec<(WebhookId, DeliveryId)>, Failure> {
    if deliveries.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<_> = deliveries.iter().map(|delivery_id| Col(*delivery_id)).collect();
    let owners = nodes::leasing(tx).await?;
    let lock = if wait { LOCK_LEASED } else { LOCK_FREE_LEASED };
    let rows = tx.query(lock, &[&owners, &ids]).await?;
    let ids = rows.iter().map(|row| get(row, 0).map(Col)).collect::<Result<Vec<Col<DeliveryId>>, _>>()?;
    let noted = tx.query(MARK_CANCELLED, &[&owners, &ids, &reason.as_bytes()]).await?;
    let noted =
        noted.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect::<Result<Vec<_>, Failure>>()?;
    for (webhook_id, delivery_id) in &noted {
        changes::append(tx, &Change::Cancel(*webhook_id, *delivery_id)).await?;
    }
    Ok(noted)
}

/// Ends deliveries as cancelled. They must be neither waiting nor leased any more.
pub(super) async fn end_cancelled(
    tx: &Session,
    deliveries: &[DeliveryId],
    reason: &str,
    now: Time,
) -> Result<(), Failure> {
    let ids: Vec<_> = deliveries.iter().map(|delivery_id| Col(*delivery_id)).collect();
    tx.execute(
        "UPDATE deliveries SET status = $2, ended_at = $3, cancel_reason = $4 WHERE id = ANY($1::uuid[])",
        &[&ids, &Col(DeliveryStatus::Cancelled), &Col(now), &reason.as_bytes()],
    )
    .await?;
    undelivered::record(tx, &ids).await
}

struct PreviousRound {
    id: DeliveryId,
    event_id: EventId,
    webhook_id: WebhookId,
    round: i32,
    status: DeliveryStatus,
    format: PayloadFormat,
    redriven_as: Option<DeliveryId>,
    priority: Priority,
    is_purged: bool,
}

fn read_old(row: &Row) -> Result<PreviousRound, Failure> {
    Ok(PreviousRound {
        id: get(row, 0)?,
        event_id: get(row, 1)?,
        webhook_id: get(row, 2)?,
        round: plain(row, 3)?,
        status: get(row, 4)?,
        format: get(row, 5)?,
        redriven_as: get_opt(row, 6)?,
        priority: get(row, 7)?,
        is_purged: plain(row, 8)?,
    })
}

async fn one(tx: &Session, statement: &str, values: Values<'_>) -> Result<Option<PreviousRound>, Failure> {
    tx.query_opt(statement, values).await?.map(|row| read_old(&row)).transpose()
}

async fn find_all(
    tx: &Session,
    tenant_id: &TenantId,
    deliveries: &[DeliveryId],
) -> Result<BTreeMap<DeliveryId, PreviousRound>, Failure> {
    let ids: Vec<_> = deliveries.iter().map(|delivery_id| Col(*delivery_id)).collect();
    let rows = tx.query(SELECT_PREVIOUS_ROUNDS, &[&ids, &tenant_id.as_str()]).await?;
    rows.iter().map(|row| read_old(row).map(|previous| (previous.id, previous))).collect()
}

async fn last_round(
    tx: &Session,
    event_id: EventId,
    webhook_id: WebhookId,
) -> Result<Option<PreviousRound>, Failure> {
    let last = old!("WHERE event_id = $1 AND webhook_id = $2 ORDER BY round DESC LIMIT 1");
    one(tx, last, &[&Col(event_id), &Col(webhook_id)]).await
}

/// Makes waiting deliveries due now, in the lane of their priority. Leased ones are being sent already. `lanes`
/// are the lanes of the deliveries before any were locked.
async fn make_due(
    tx: &Session,
    pending: &[(PreviousRound, Option<Priority>)],
    lanes: &BTreeMap<DeliveryId, Lane>,
    locked: &Keys,
    now: Time,
) -> Result<(), Failure> {
    if pending.is_empty() {
        return Ok(());
    }
    let ids: Vec<_> = pending.iter().map(|(previous, _)| Col(previous.id)).collect();
    let (mut waits, mut taken, mut changed) = (Vec::new(), Vec::new(), Keys::new());
    for row in tx.query(LOCK_WAITING, &[&ids]).await? {
        let (id, lane): (DeliveryId, Lane) = (get(&row, 0)?, get(&row, 1)?);
        let Some((previous, priority)) = pending.iter().find(|(previous, _)| previous.id == id) else {
            continue;
        };
        let key = (previous.webhook_id, lane.code().into_owned());
        if lanes.get(&id) != Some(&lane) || !locked.contains(&key) {
            // It has moved to another lane since the lanes were read.
            return Err(Failure::Contention);
        }
        changed.insert(key);
        let new_lane = priority.map_or_else(|| lane.clone(), |priority| lane.with_priority(priority));
        let position = LanePosition {
            delivery_id: id,
            webhook_id: previous.webhook_id,
            lane: new_lane,
            seq: plain(&row, 3)?,
        };
        let release_counts =
            ReleaseCounts { abnormal_releases: plain(&row, 5)?, crash_count: plain(&row, 6)? };
        let due = get::<Time>(&row, 2)?.min(now);
        waits.push(WaitingDelivery { sort_key: position, due, created_at: get(&row, 4)?, release_counts });
        taken.push(Col(id));
    }
    tx.execute("DELETE FROM waiting WHERE delivery_id = ANY($1::uuid[])", &[&taken]).await?;
    lanes::insert_waiting(tx, &waits).await?;
    for priority in Priority::ALL {
        let of = |wait: &&WaitingDelivery| {
            pending
                .iter()
                .any(|(previous, new)| previous.id == wait.sort_key.delivery_id && *new == Some(priority))
        };
        let ids: Vec<_> = waits.iter().filter(of).map(|wait| Col(wait.sort_key.delivery_id)).collect();
        if !ids.is_empty() {
            let change = "UPDATE deliveries SET priority = $2 WHERE id = ANY($1::uuid[])";
            tx.execute(change, &[&ids, &Col(priority)]).await?;
        }
    }
    lanes::set_by_first(tx, &changed).await
}

/// Round to be created, and the previous one.
struct Round {
    event_id: EventId,
    round: NewRound,
    priority: Priority,
    last: Option<PreviousRound>,
}

/// Returns the lanes into which rounds are inserted.
fn locks_for(rounds: &[Round], now: Time) -> LaneLocks {
    let mut locks = LaneLocks::default();
    for one in rounds {
        locks.put_into(one.round.webhook_id, &one.round.lane.clone().with_priority(one.priority), now);
    }
    locks
}

/// Creates rounds. Their lanes must be locked.
async fn add_rounds(
    tx: &Session,
    tenant_id: &TenantId,
    rounds: Vec<Round>,
    now: Time,
) -> Result<(), Failure> {
    if rounds.is_empty() {
        return Ok(());
    }
    tx.execute(
        INSERT_ROUNDS,
        &[
            &rounds.iter().map(|one| Col(one.round.id)).collect::<Vec<_>>(),
            &rounds.iter().map(|one| Col(one.event_id)).collect::<Vec<_>>(),
            &rounds.iter().map(|one| Col(one.round.webhook_id)).collect::<Vec<_>>(),
            &rounds.iter().map(|one| one.last.as_ref().map_or(1, |last| last.round + 1)).collect::<Vec<_>>(),
            &rounds.iter().map(|one| Col(one.round.format)).collect::<Vec<_>>(),
            &rounds.iter().map(|one| Col(one.priority)).collect::<Vec<_>>(),
            &rounds.iter().map(|one| one.last.as_ref().map(|last| Col(last.id))).collect::<Vec<_>>(),
            &tenant_id.as_str(),
            &Col(DeliveryStatus::Pending),
            &Col(now),
        ],
    )
    .await?;
    let lasts: Vec<_> = rounds.iter().filter_map(|one| Some((one.last.as_ref()?.id, one.round.id))).collect();
    let (lasts, new_ids): (Vec<_>, Vec<_>) =
        lasts.into_iter().map(|(last, new)| (Col(last), Col(new))).unzip();
    if !lasts.is_empty() {
        if tx.execute(SET_REDRIVEN_AS, &[&lasts, &new_ids]).await? < lasts.len() as u64 {
            // A delivery was pruned since it was read.
            return Err(Failure::Contention);
        }
        tx.execute("DELETE FROM dead WHERE delivery_id = ANY($1::uuid[])", &[&lasts]).await?;
    }
    // They get new sequence numbers: in an ordered lane they go to the end.
    let number = "UPDATE tenants SET next_seq = next_seq + $2 WHERE id = $1 RETURNING next_seq - $2";
    let count = rounds.len() as i64;
    let first: i64 = plain(&tx.query_one(number, &[&tenant_id.as_str(), &count]).await?, 0)?;
    let waits: Vec<_> = rounds
        .into_iter()
        .zip(first..)
        .map(|(one, seq)| {
            let lane = one.round.lane.with_priority(one.priority);
            let position =
                LanePosition { delivery_id: one.round.id, webhook_id: one.round.webhook_id, lane, seq };
            WaitingDelivery {
                sort_key: position,
                due: now,
                created_at: now,
                release_counts: ReleaseCounts::default(),
            }
        })
        .collect();
    lanes::insert_waiting(tx, &waits).await
}
