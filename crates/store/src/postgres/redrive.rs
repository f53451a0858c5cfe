//! Rounds: delivering again, or calling off.

use redrive_core::{
    DeliveryId, DeliveryStatus, EventId, TenantId, Time, WebhookId,
    event::PayloadFormat,
    lane::{Lane, Priority},
};
use tokio_postgres::Row;

use super::{
    Postgres, changes,
    convert::{Col, get, get_opt, plain},
    lanes::{self, Keys, Place, Rescued, Wait},
    nodes, prune,
    session::{Failure, Session, Tx, Values},
    tenancy, undelivered,
};
use crate::{Again, Answer, Cancelled, Change, NewRound, Redrive, Redriven, Replayed};

impl Redrive for Postgres {
    fn retry(&self, tenant: TenantId, delivery: DeliveryId, again: Again, now: Time) -> Answer<'_, Redriven> {
        Box::pin(async move {
            let redriven = self.write(|tx| retry(tx, &tenant, delivery, &again, now)).await?;
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
            let replayed = self.write(|tx| replay(tx, &tenant, event, &rounds, priority, now)).await?;
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
            let cancelled = self.write(|tx| cancel(tx, &tenant, delivery, &reason, now)).await?;
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
    // Rounds of a tenant are made one after the other, and take their numbers from its row.
    tenancy::lock(&tx, tenant).await?;
    let Some(old) = find(&tx, tenant, delivery).await? else { return Ok(Redriven::Missing) };
    // Held: it is not forgotten before its new round is there.
    match prune::hold_event(&tx, tenant, old.event).await? {
        None => return Ok(Redriven::Missing),
        Some(held) if held.erased => return Ok(Redriven::Erased),
        Some(_) => {}
    }
    if !old.status.is_final() {
        make_due(&tx, &old, again.priority, now).await?;
        return Ok(Redriven::DueNow(delivery));
    }
    if let Some(round) = old.redriven_as {
        return Ok(Redriven::AlreadyAs(round));
    }
    let round = NewRound { id: again.id, webhook: old.webhook, format: old.format, lane: again.lane.clone() };
    let priority = again.priority.unwrap_or(old.priority);
    add_round(&tx, tenant, old.event, &round, priority, now).await?;
    Ok(Redriven::NewRound(again.id))
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
    let held = match prune::hold_event(&tx, tenant, event).await? {
        None => return Ok(Replayed::Missing),
        Some(held) if held.erased => return Ok(Replayed::Erased),
        Some(held) => held,
    };
    let priority = priority.unwrap_or(held.priority);
    for round in rounds {
        if let Some(last) = last_round(&tx, event, round.webhook).await?
            && !last.status.is_final()
        {
            return Ok(Replayed::StillPending(last.id));
        }
    }
    for round in rounds {
        add_round(&tx, tenant, event, round, priority, now).await?;
    }
    Ok(Replayed::Done(rounds.iter().map(|round| round.id).collect()))
}

async fn cancel(
    tx: Tx,
    tenant: &TenantId,
    delivery: DeliveryId,
    reason: &str,
    now: Time,
) -> Result<Cancelled, Failure> {
    for _ in 0..3 {
        let Some(old) = find(&tx, tenant, delivery).await? else { return Ok(Cancelled::Missing) };
        if old.status.is_final() {
            return Ok(Cancelled::Over(old.status));
        }
        if let Some(lane) = lock_where_it_waits(&tx, &old).await? {
            let waited = tx.execute("DELETE FROM waiting WHERE delivery = $1", &[&Col(delivery)]).await?;
            if waited == 1 {
                end_cancelled(&tx, &[delivery], reason, now).await?;
                // Whatever waited behind it may be due long before it was.
                lanes::look_again(&tx, &Keys::from([(old.webhook, lane)])).await?;
                return Ok(Cancelled::Done);
            }
        }
        let noted = "UPDATE leased SET cancel = $3 WHERE delivery = $2 AND epoch = ANY($1::bigint[])";
        let owners = nodes::leasing(&tx).await?;
        if tx.execute(noted, &[&owners, &Col(delivery), &reason.as_bytes()]).await? == 1 {
            changes::tell(&tx, &Change::Cancel(old.webhook, delivery)).await?;
            return Ok(Cancelled::Requested);
        }
        // It has moved between the two looks.
    }
    Err(Failure::Passing)
}

/// Locks the lane that a delivery waits in, if it does.
async fn lock_where_it_waits(tx: &Session, old: &Old) -> Result<Option<String>, Failure> {
    let waits = "SELECT lane FROM waiting WHERE delivery = $1";
    let Some(row) = tx.query_opt(waits, &[&Col(old.id)]).await? else { return Ok(None) };
    let lane: String = plain(&row, 0)?;
    lanes::lock(tx, &Keys::from([(old.webhook, lane.clone())])).await?;
    Ok(Some(lane))
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
}

macro_rules! old {
    ($rest:literal) => {
        concat!(
            "SELECT id, event, webhook, round, status, format, redriven_as, priority FROM deliveries ",
            $rest
        )
    };
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
    })
}

async fn one(tx: &Session, statement: &str, values: Values<'_>) -> Result<Option<Old>, Failure> {
    tx.query_opt(statement, values).await?.map(|row| read_old(&row)).transpose()
}

async fn find(tx: &Session, tenant: &TenantId, delivery: DeliveryId) -> Result<Option<Old>, Failure> {
    one(tx, old!("WHERE id = $1 AND tenant = $2"), &[&Col(delivery), &tenant.as_str()]).await
}

async fn last_round(tx: &Session, event: EventId, webhook: WebhookId) -> Result<Option<Old>, Failure> {
    let last = old!("WHERE event = $1 AND webhook = $2 ORDER BY round DESC LIMIT 1");
    one(tx, last, &[&Col(event), &Col(webhook)]).await
}

/// Makes what waits due now, in the lane of its priority. What a node has is on its way already.
async fn make_due(tx: &Session, old: &Old, priority: Option<Priority>, now: Time) -> Result<(), Failure> {
    let Some(code) = lock_where_it_waits(tx, old).await? else { return Ok(()) };
    let waits = "SELECT lane, due FROM waiting WHERE delivery = $1";
    // It may have been claimed before its lane was locked.
    let Some(row) = tx.query_opt(waits, &[&Col(old.id)]).await? else { return Ok(()) };
    let (lane, due) = (get::<Lane>(&row, 0)?, get::<Time>(&row, 1)?);
    let due = due.min(now);
    let new_lane = priority.map_or_else(|| lane.clone(), |priority| lane.with_priority(priority));
    let taken = "DELETE FROM waiting WHERE delivery = $1 RETURNING seq, created_at, rescues, deaths";
    let row = tx.query_one(taken, &[&Col(old.id)]).await?;
    let place = Place { delivery: old.id, webhook: old.webhook, lane: new_lane, seq: plain(&row, 0)? };
    let rescued = Rescued { rescues: plain(&row, 2)?, deaths: plain(&row, 3)? };
    lanes::wait(tx, &[Wait { place, due, created_at: get(&row, 1)?, rescued }]).await?;
    if let Some(priority) = priority {
        let change = "UPDATE deliveries SET priority = $2 WHERE id = $1";
        tx.execute(change, &[&Col(old.id), &Col(priority)]).await?;
    }
    lanes::look_again(tx, &Keys::from([(old.webhook, code)])).await
}

async fn add_round(
    tx: &Session,
    tenant: &TenantId,
    event: EventId,
    round: &NewRound,
    priority: Priority,
    now: Time,
) -> Result<(), Failure> {
    let last = last_round(tx, event, round.webhook).await?;
    tx.execute(
        "INSERT INTO deliveries (id, tenant, event, webhook, round, status, format, priority, created_at, replay_of)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        &[
            &Col(round.id),
            &tenant.as_str(),
            &Col(event),
            &Col(round.webhook),
            &last.as_ref().map_or(1, |last| last.round + 1),
            &Col(DeliveryStatus::Pending),
            &Col(round.format),
            &Col(priority),
            &Col(now),
            &last.as_ref().map(|last| Col(last.id)),
        ],
    )
    .await?;
    if let Some(last) = last {
        let redriven = "UPDATE deliveries SET redriven_as = $1 WHERE id = $2";
        if tx.execute(redriven, &[&Col(round.id), &Col(last.id)]).await? == 0 {
            // It was forgotten since it was read.
            return Err(Failure::Passing);
        }
        tx.execute("DELETE FROM dead WHERE delivery = $1", &[&Col(last.id)]).await?;
    }
    // A number of its own from the sequence: in an order it goes to the back.
    let number = "UPDATE tenants SET next_seq = next_seq + 1 WHERE id = $1 RETURNING next_seq - 1";
    let seq = plain(&tx.query_one(number, &[&tenant.as_str()]).await?, 0)?;
    let lane = round.lane.with_priority(priority);
    let place = Place { delivery: round.id, webhook: round.webhook, lane, seq };
    lanes::wait(tx, &[Wait { place, due: now, created_at: now, rescued: Rescued::default() }]).await
}
