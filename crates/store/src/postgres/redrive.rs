//! Rounds: delivering again, or calling off.

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
    lanes::{self, Keys, LaneLocks, Place, Rescued, Wait},
    nodes, prune,
    session::{Failure, Session, Tx, Values},
    tenancy, undelivered,
};
use crate::{Again, Answer, Cancelled, Change, NewRound, Redrive, Redriven, Replayed};

macro_rules! old {
    ($rest:literal) => {
        concat!(
            "SELECT id, event, webhook, round, status, format, redriven_as, priority,
                    purged_at IS NOT NULL FROM deliveries ",
            $rest
        )
    };
}

const OLDS: &str = old!("WHERE id = ANY($1::uuid[]) AND tenant = $2");
const ADD_ROUNDS: &str = "INSERT INTO deliveries
         (id, event, webhook, round, format, priority, replay_of, tenant, status, created_at)
     SELECT *, $8, $9::smallint, $10::bigint FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::integer[],
                                                         $5::smallint[], $6::smallint[], $7::uuid[])";
const REDRIVEN: &str = "UPDATE deliveries d SET redriven_as = ($2::uuid[])[array_position($1::uuid[], d.id)]
     WHERE d.id = ANY($1::uuid[])";
const NEVER_SENT: &str = "SELECT k.event, k.webhook FROM unnest($1::uuid[], $2::uuid[]) AS k(event, webhook)
     WHERE (SELECT 1 FROM deliveries d WHERE d.event = k.event AND d.webhook = k.webhook LIMIT 1) IS NULL";
const WHERE_WAITING: &str = "SELECT delivery, webhook, lane FROM waiting WHERE delivery = ANY($1::uuid[])";
/// Only what waits where it did, since only those lanes are locked.
const STOP_WAITING: &str = "DELETE FROM waiting w WHERE w.delivery = ANY($1::uuid[])
         AND w.lane = ($2::text[])[array_position($1::uuid[], w.delivery)] COLLATE \"C\" RETURNING w.webhook, w.delivery";
const WAITING: &str = "SELECT delivery, lane, due, seq, created_at, rescues, deaths FROM waiting
     WHERE delivery = ANY($1::uuid[]) ORDER BY delivery FOR UPDATE";
macro_rules! lock_leased {
    ($how:literal) => {
        concat!(
            "SELECT delivery FROM leased WHERE delivery = ANY($2::uuid[]) AND epoch = ANY($1::bigint[])
     ORDER BY epoch, delivery FOR UPDATE",
            $how
        )
    };
}
const LOCK_LEASED: &str = lock_leased!("");
const LOCK_FREE_LEASED: &str = lock_leased!(" SKIP LOCKED");
const CALL_OFF: &str =
    "UPDATE leased SET cancel = $3 WHERE delivery = ANY($2::uuid[]) AND epoch = ANY($1::bigint[])
     RETURNING webhook, delivery";

/// The statements whose cost must follow what they change: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED: [(&str, &str); 9] = [
    ("find and lock what waits", WAITING),
    ("lock leases of deliveries", LOCK_LEASED),
    ("lock free leases of deliveries", LOCK_FREE_LEASED),
    ("find deliveries", OLDS),
    ("note later rounds", REDRIVEN),
    ("find what was never sent", NEVER_SENT),
    ("find where deliveries wait", WHERE_WAITING),
    ("stop waiting", STOP_WAITING),
    ("call off what is leased", CALL_OFF),
];

impl Redrive for Postgres {
    fn retry(&self, tenant: TenantId, delivery: DeliveryId, again: Again, now: Time) -> Answer<'_, Redriven> {
        Box::pin(async move {
            let redriven = self.administer(|tx| retry(tx, &tenant, delivery, &again, now)).await?;
            self.shared.hints.work();
            Ok(redriven)
        })
    }

    fn replay(
        &self,
        tenant: TenantId,
        event: EventId,
        rounds: Vec<NewRound>,
        priority: Option<Priority>,
        now: Time,
    ) -> Answer<'_, Replayed> {
        Box::pin(async move {
            let replayed = self.administer(|tx| replay(tx, &tenant, event, &rounds, priority, now)).await?;
            self.shared.hints.work();
            Ok(replayed)
        })
    }

    fn cancel(
        &self,
        tenant: TenantId,
        delivery: DeliveryId,
        reason: String,
        now: Time,
    ) -> Answer<'_, Cancelled> {
        Box::pin(async move {
            let cancelled = self.administer(|tx| cancel(tx, &tenant, delivery, &reason, now)).await?;
            if cancelled == Cancelled::Requested {
                self.shared.hints.change();
            }
            Ok(cancelled)
        })
    }
}

async fn retry(
    tx: Tx,
    tenant: &TenantId,
    delivery: DeliveryId,
    again: &Again,
    now: Time,
) -> Result<Redriven, Failure> {
    let retried = retry_all(&tx, tenant, &[(delivery, again)], now).await?;
    Ok(retried.into_iter().next().unwrap_or(Redriven::Missing))
}

/// Makes pending deliveries due now, and ended ones new rounds. Tells of each in turn; none is named twice.
pub(super) async fn retry_all(
    tx: &Session,
    tenant: &TenantId,
    deliveries: &[(DeliveryId, &Again)],
    now: Time,
) -> Result<Vec<Redriven>, Failure> {
    // Rounds of a tenant are made one after the other, and take their numbers from its row.
    tenancy::lock(tx, tenant).await?;
    let ids: Vec<_> = deliveries.iter().map(|(delivery, _)| *delivery).collect();
    let mut olds = find_all(tx, tenant, &ids).await?;
    // Held: nothing is forgotten before its new round is there.
    let held = prune::hold_events(tx, tenant, olds.values().map(|old| old.event)).await?;
    let (mut retried, mut rounds, mut pending) = (Vec::with_capacity(ids.len()), Vec::new(), Vec::new());
    for (delivery, again) in deliveries {
        let found = olds.remove(delivery).and_then(|old| Some((held.get(&old.event)?, old)));
        let Some((event, old)) = found else {
            retried.push(Redriven::Missing);
            continue;
        };
        retried.push(match old.redriven_as {
            _ if event.erased => Redriven::Erased,
            _ if again.unless_purged && old.is_purged => Redriven::Missing,
            _ if !old.status.is_final() => {
                pending.push((old, again.priority));
                Redriven::DueNow(*delivery)
            }
            Some(round) => Redriven::AlreadyAs(round),
            None => {
                let lane = again.lane.clone();
                let round = NewRound { id: again.id, webhook: old.webhook, format: old.format, lane };
                let priority = again.priority.unwrap_or(old.priority);
                // There is no later round: it would be named.
                rounds.push(Round { event: old.event, round, priority, last: Some(old) });
                Redriven::NewRound(again.id)
            }
        });
    }
    let mut locks = locks_for(&rounds, now);
    let lanes = find_lanes(tx, &pending, now, &mut locks).await?;
    let locked = locks.lock(tx).await?;
    make_due(tx, &pending, &lanes, &locked, now).await?;
    add_rounds(tx, tenant, rounds, now).await?;
    Ok(retried)
}

/// Adds the lanes that pending deliveries wait in, and those that they are to wait in, to what is to be locked.
async fn find_lanes(
    tx: &Session,
    pending: &[(Old, Option<Priority>)],
    now: Time,
    locks: &mut LaneLocks,
) -> Result<BTreeMap<DeliveryId, Lane>, Failure> {
    if pending.is_empty() {
        return Ok(BTreeMap::new());
    }
    let ids: Vec<_> = pending.iter().map(|(old, _)| Col(old.id)).collect();
    let mut lanes = BTreeMap::new();
    for row in tx.query(WHERE_WAITING, &[&ids]).await? {
        let (delivery, webhook): (DeliveryId, WebhookId) = (get(&row, 0)?, get(&row, 1)?);
        let lane: Lane = get(&row, 2)?;
        let priority = pending.iter().find(|(old, _)| old.id == delivery).and_then(|(_, priority)| *priority);
        locks.take_from(webhook, lane.code().into_owned());
        if let Some(priority) = priority {
            locks.put_into(webhook, &lane.clone().with_priority(priority), now);
        }
        lanes.insert(delivery, lane);
    }
    Ok(lanes)
}

/// Delivers events to webhooks that have had none of them. Gives the deliveries that were made.
pub(super) async fn send_first(
    tx: &Session,
    tenant: &TenantId,
    sends: &[(EventId, &NewRound, Priority)],
    now: Time,
) -> Result<Vec<DeliveryId>, Failure> {
    tenancy::lock(tx, tenant).await?;
    let held = prune::hold_events(tx, tenant, sends.iter().map(|(event, ..)| *event)).await?;
    let there = |event: &EventId| held.get(event).is_some_and(|held| !held.erased);
    let events: Vec<_> = sends.iter().map(|(event, ..)| Col(*event)).collect();
    let webhooks: Vec<_> = sends.iter().map(|(_, round, _)| Col(round.webhook)).collect();
    let missing: BTreeSet<(EventId, WebhookId)> = tx
        .query(NEVER_SENT, &[&events, &webhooks])
        .await?
        .iter()
        .map(|row| Ok((get(row, 0)?, get(row, 1)?)))
        .collect::<Result<_, Failure>>()?;
    let wanted =
        sends.iter().filter(|(event, round, _)| there(event) && missing.contains(&(*event, round.webhook)));
    let rounds: Vec<_> = wanted
        .map(|(event, round, priority)| Round {
            event: *event,
            round: (*round).clone(),
            priority: *priority,
            last: None,
        })
        .collect();
    let made = rounds.iter().map(|round| round.round.id).collect();
    locks_for(&rounds, now).lock(tx).await?;
    add_rounds(tx, tenant, rounds, now).await?;
    Ok(made)
}

async fn replay(
    tx: Tx,
    tenant: &TenantId,
    event: EventId,
    rounds: &[NewRound],
    priority: Option<Priority>,
    now: Time,
) -> Result<Replayed, Failure> {
    tenancy::lock(&tx, tenant).await?;
    let held = match prune::hold_events(&tx, tenant, [event]).await?.remove(&event) {
        None => return Ok(Replayed::Missing),
        Some(held) if held.erased => return Ok(Replayed::Erased),
        Some(held) => held,
    };
    let priority = priority.unwrap_or(held.priority);
    let mut made = Vec::with_capacity(rounds.len());
    for round in rounds {
        let last = last_round(&tx, event, round.webhook).await?;
        if let Some(last) = &last
            && !last.status.is_final()
        {
            return Ok(Replayed::StillPending(last.id));
        }
        made.push(Round { event, round: round.clone(), priority, last });
    }
    locks_for(&made, now).lock(&tx).await?;
    add_rounds(&tx, tenant, made, now).await?;
    Ok(Replayed::Done(rounds.iter().map(|round| round.id).collect()))
}

async fn cancel(
    tx: Tx,
    tenant: &TenantId,
    delivery: DeliveryId,
    reason: &str,
    now: Time,
) -> Result<Cancelled, Failure> {
    let cancelled = cancel_all(&tx, tenant, &[delivery], reason, now).await?;
    Ok(cancelled.into_iter().next().map_or(Cancelled::Missing, |(_, _, cancelled)| cancelled))
}

/// Calls deliveries off. Tells of each that there is.
pub(super) async fn cancel_all(
    tx: &Session,
    tenant: &TenantId,
    deliveries: &[DeliveryId],
    reason: &str,
    now: Time,
) -> Result<Vec<(WebhookId, DeliveryId, Cancelled)>, Failure> {
    let mut told = Vec::new();
    let olds = find_all(tx, tenant, deliveries).await?;
    let (over, open): (Vec<_>, Vec<_>) = olds.into_values().partition(|old| old.status.is_final());
    told.extend(over.into_iter().map(|old| (old.webhook, old.id, Cancelled::Over(old.status))));
    let mut left: Vec<_> = open.iter().map(|old| old.id).collect();
    for (webhook, delivery) in cancel_leased(tx, &left, reason, true).await? {
        left.retain(|id| *id != delivery);
        told.push((webhook, delivery, Cancelled::Requested));
    }
    for (webhook, delivery) in cancel_waiting(tx, &left, reason, now).await? {
        left.retain(|id| *id != delivery);
        told.push((webhook, delivery, Cancelled::Done));
    }
    // What is left was claimed between the two looks, or has ended.
    for (webhook, delivery) in cancel_leased(tx, &left, reason, false).await? {
        left.retain(|id| *id != delivery);
        told.push((webhook, delivery, Cancelled::Requested));
    }
    for old in find_all(tx, tenant, &left).await?.into_values().filter(|old| old.status.is_final()) {
        left.retain(|id| *id != old.id);
        told.push((old.webhook, old.id, Cancelled::Over(old.status)));
    }
    if left.is_empty() {
        return Ok(told);
    }
    // It has moved once more. Lanes are locked once: everything is released and done again.
    Err(Failure::Passing)
}

async fn cancel_waiting(
    tx: &Session,
    deliveries: &[DeliveryId],
    reason: &str,
    now: Time,
) -> Result<Vec<(WebhookId, DeliveryId)>, Failure> {
    let ids: Vec<_> = deliveries.iter().map(|delivery| Col(*delivery)).collect();
    let mut places: Vec<(DeliveryId, (WebhookId, String))> = Vec::new();
    for row in tx.query(WHERE_WAITING, &[&ids]).await? {
        places.push((get(&row, 0)?, (get(&row, 1)?, plain(&row, 2)?)));
    }
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let locked = lanes::lock(tx, &places.iter().map(|(_, key)| key.clone()).collect()).await?;
    places.retain(|(_, key)| locked.contains(key));
    let at: Vec<_> = places.iter().map(|(delivery, _)| Col(*delivery)).collect();
    let lanes: Vec<_> = places.iter().map(|(_, (_, lane))| lane.as_str()).collect();
    let gone = tx.query(STOP_WAITING, &[&at, &lanes]).await?;
    let gone =
        gone.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect::<Result<Vec<_>, Failure>>()?;
    let ended: Vec<_> = gone.iter().map(|(_, delivery)| *delivery).collect();
    end_cancelled(tx, &ended, reason, now).await?;
    // Whatever waited behind them may be due long before they were.
    lanes::set_by_first(tx, &locked).await?;
    Ok(gone)
}

/// Notes on leases that their deliveries are to be cancelled. Leases are locked before lanes: once lanes are locked,
/// a lease that another transaction has is left alone.
async fn cancel_leased(
    tx: &Session,
    deliveries: &[DeliveryId],
    reason: &str,
    wait: bool,
) -> Result<Vec<(WebhookId, DeliveryId)>, Failure> {
    if deliveries.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<_> = deliveries.iter().map(|delivery| Col(*delivery)).collect();
    let owners = nodes::leasing(tx).await?;
    let lock = if wait { LOCK_LEASED } else { LOCK_FREE_LEASED };
    let rows = tx.query(lock, &[&owners, &ids]).await?;
    let ids = rows.iter().map(|row| get(row, 0).map(Col)).collect::<Result<Vec<Col<DeliveryId>>, _>>()?;
    let noted = tx.query(CALL_OFF, &[&owners, &ids, &reason.as_bytes()]).await?;
    let noted =
        noted.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect::<Result<Vec<_>, Failure>>()?;
    for (webhook, delivery) in &noted {
        changes::tell(tx, &Change::Cancel(*webhook, *delivery)).await?;
    }
    Ok(noted)
}

/// Ends deliveries that are neither waiting nor leased any more.
pub(super) async fn end_cancelled(
    tx: &Session,
    deliveries: &[DeliveryId],
    reason: &str,
    now: Time,
) -> Result<(), Failure> {
    let ids: Vec<_> = deliveries.iter().map(|delivery| Col(*delivery)).collect();
    tx.execute(
        "UPDATE deliveries SET status = $2, ended_at = $3, cancel_reason = $4 WHERE id = ANY($1::uuid[])",
        &[&ids, &Col(DeliveryStatus::Cancelled), &Col(now), &reason.as_bytes()],
    )
    .await?;
    undelivered::note(tx, &ids).await
}

struct Old {
    id: DeliveryId,
    event: EventId,
    webhook: WebhookId,
    round: i32,
    status: DeliveryStatus,
    format: PayloadFormat,
    redriven_as: Option<DeliveryId>,
    priority: Priority,
    is_purged: bool,
}

fn read_old(row: &Row) -> Result<Old, Failure> {
    Ok(Old {
        id: get(row, 0)?,
        event: get(row, 1)?,
        webhook: get(row, 2)?,
        round: plain(row, 3)?,
        status: get(row, 4)?,
        format: get(row, 5)?,
        redriven_as: get_opt(row, 6)?,
        priority: get(row, 7)?,
        is_purged: plain(row, 8)?,
    })
}

async fn one(tx: &Session, statement: &str, values: Values<'_>) -> Result<Option<Old>, Failure> {
    tx.query_opt(statement, values).await?.map(|row| read_old(&row)).transpose()
}

async fn find_all(
    tx: &Session,
    tenant: &TenantId,
    deliveries: &[DeliveryId],
) -> Result<BTreeMap<DeliveryId, Old>, Failure> {
    let ids: Vec<_> = deliveries.iter().map(|delivery| Col(*delivery)).collect();
    let rows = tx.query(OLDS, &[&ids, &tenant.as_str()]).await?;
    rows.iter().map(|row| read_old(row).map(|old| (old.id, old))).collect()
}

async fn last_round(tx: &Session, event: EventId, webhook: WebhookId) -> Result<Option<Old>, Failure> {
    let last = old!("WHERE event = $1 AND webhook = $2 ORDER BY round DESC LIMIT 1");
    one(tx, last, &[&Col(event), &Col(webhook)]).await
}

/// Makes what waits due now, in the lane of its priority. What a node has is on its way already. `lanes` are those that
/// deliveries waited in before any were locked.
async fn make_due(
    tx: &Session,
    pending: &[(Old, Option<Priority>)],
    lanes: &BTreeMap<DeliveryId, Lane>,
    locked: &Keys,
    now: Time,
) -> Result<(), Failure> {
    if pending.is_empty() {
        return Ok(());
    }
    let ids: Vec<_> = pending.iter().map(|(old, _)| Col(old.id)).collect();
    let (mut waits, mut taken, mut changed) = (Vec::new(), Vec::new(), Keys::new());
    for row in tx.query(WAITING, &[&ids]).await? {
        let (id, lane): (DeliveryId, Lane) = (get(&row, 0)?, get(&row, 1)?);
        let Some((old, priority)) = pending.iter().find(|(old, _)| old.id == id) else { continue };
        let key = (old.webhook, lane.code().into_owned());
        if lanes.get(&id) != Some(&lane) || !locked.contains(&key) {
            // It waits elsewhere since the lanes were locked.
            return Err(Failure::Passing);
        }
        changed.insert(key);
        let new_lane = priority.map_or_else(|| lane.clone(), |priority| lane.with_priority(priority));
        let place = Place { delivery: id, webhook: old.webhook, lane: new_lane, seq: plain(&row, 3)? };
        let rescued = Rescued { rescues: plain(&row, 5)?, deaths: plain(&row, 6)? };
        let due = get::<Time>(&row, 2)?.min(now);
        waits.push(Wait { place, due, created_at: get(&row, 4)?, rescued });
        taken.push(Col(id));
    }
    tx.execute("DELETE FROM waiting WHERE delivery = ANY($1::uuid[])", &[&taken]).await?;
    lanes::insert_waiting(tx, &waits).await?;
    for priority in Priority::ALL {
        let of = |wait: &&Wait| {
            pending.iter().any(|(old, new)| old.id == wait.place.delivery && *new == Some(priority))
        };
        let ids: Vec<_> = waits.iter().filter(of).map(|wait| Col(wait.place.delivery)).collect();
        if !ids.is_empty() {
            let change = "UPDATE deliveries SET priority = $2 WHERE id = ANY($1::uuid[])";
            tx.execute(change, &[&ids, &Col(priority)]).await?;
        }
    }
    lanes::set_by_first(tx, &changed).await
}

/// A round to be made, and the one before it.
struct Round {
    event: EventId,
    round: NewRound,
    priority: Priority,
    last: Option<Old>,
}

/// The lanes that rounds are put into.
fn locks_for(rounds: &[Round], now: Time) -> LaneLocks {
    let mut locks = LaneLocks::default();
    for one in rounds {
        locks.put_into(one.round.webhook, &one.round.lane.clone().with_priority(one.priority), now);
    }
    locks
}

/// Makes rounds. Their lanes must be locked.
async fn add_rounds(tx: &Session, tenant: &TenantId, rounds: Vec<Round>, now: Time) -> Result<(), Failure> {
    if rounds.is_empty() {
        return Ok(());
    }
    tx.execute(
        ADD_ROUNDS,
        &[
            &rounds.iter().map(|one| Col(one.round.id)).collect::<Vec<_>>(),
            &rounds.iter().map(|one| Col(one.event)).collect::<Vec<_>>(),
            &rounds.iter().map(|one| Col(one.round.webhook)).collect::<Vec<_>>(),
            &rounds.iter().map(|one| one.last.as_ref().map_or(1, |last| last.round + 1)).collect::<Vec<_>>(),
            &rounds.iter().map(|one| Col(one.round.format)).collect::<Vec<_>>(),
            &rounds.iter().map(|one| Col(one.priority)).collect::<Vec<_>>(),
            &rounds.iter().map(|one| one.last.as_ref().map(|last| Col(last.id))).collect::<Vec<_>>(),
            &tenant.as_str(),
            &Col(DeliveryStatus::Pending),
            &Col(now),
        ],
    )
    .await?;
    let lasts: Vec<_> = rounds.iter().filter_map(|one| Some((one.last.as_ref()?.id, one.round.id))).collect();
    let (lasts, news): (Vec<_>, Vec<_>) = lasts.into_iter().map(|(last, new)| (Col(last), Col(new))).unzip();
    if !lasts.is_empty() {
        if tx.execute(REDRIVEN, &[&lasts, &news]).await? < lasts.len() as u64 {
            // One was forgotten since it was read.
            return Err(Failure::Passing);
        }
        tx.execute("DELETE FROM dead WHERE delivery = ANY($1::uuid[])", &[&lasts]).await?;
    }
    // Numbers of their own from the sequence: in an order they go to the back.
    let number = "UPDATE tenants SET next_seq = next_seq + $2 WHERE id = $1 RETURNING next_seq - $2";
    let count = rounds.len() as i64;
    let first: i64 = plain(&tx.query_one(number, &[&tenant.as_str(), &count]).await?, 0)?;
    let waits: Vec<_> = rounds
        .into_iter()
        .zip(first..)
        .map(|(one, seq)| {
            let lane = one.round.lane.with_priority(one.priority);
            let place = Place { delivery: one.round.id, webhook: one.round.webhook, lane, seq };
            Wait { place, due: now, created_at: now, rescued: Rescued::default() }
        })
        .collect();
    lanes::insert_waiting(tx, &waits).await
}
