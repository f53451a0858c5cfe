//! Clock state that nodes store, and the correction of due times after the clock was set back.

use redrive_core::{
    Time, WebhookId, cluster::clock_discipline::ClockStep, protection::breaker::SavedCircuit,
};

use super::{
    Postgres,
    convert::{Col, get, get_opt, plain},
    session::{Failure, Tx},
    webhooks::to_json,
};
use crate::{ClockState, Clocks, LaneCursor, StoreFuture};

const SELECT_STATE: &str = "SELECT confirmed_at, confirmations FROM clock";
const UPSERT_CONFIRMED_TIME: &str = "INSERT INTO clock (confirmed_at) VALUES ($1)
     ON CONFLICT (single) DO UPDATE SET confirmed_at = excluded.confirmed_at";
const INCREMENT_CONFIRMATIONS: &str = "INSERT INTO clock (confirmations) VALUES (1)
     ON CONFLICT (single) DO UPDATE SET confirmations = clock.confirmations + 1 RETURNING confirmations";
/// Locks lanes in key order, before any row that waits in them, as every other writer does.
const LOCK_LANES: &str = "SELECT webhook_id, lane FROM lanes WHERE (webhook_id, lane) > ($1, $2)
     ORDER BY webhook_id, lane LIMIT $3 FOR UPDATE";
const UPDATE_WAITING: &str = "UPDATE waiting SET due = due - $4,
         sort_key = CASE WHEN lane < 'A' THEN sort_key ELSE due - $4 END
     WHERE delivery_id = ANY(ARRAY(
         SELECT w.delivery_id FROM unnest($1::uuid[], $2::text[]) AS k(webhook_id, lane) CROSS JOIN LATERAL (
             SELECT delivery_id FROM waiting WHERE webhook_id = k.webhook_id AND lane = k.lane AND due >= $3
             AND due < $5
             OFFSET 0) w))";
/// The lanes are locked, so their `ctid` does not change.
const UPDATE_LANES: &str = "UPDATE lanes SET wake_at = $3 WHERE ctid = ANY(ARRAY(
         SELECT l.tid FROM unnest($1::uuid[], $2::text[]) AS k(webhook_id, lane) CROSS JOIN LATERAL (
             SELECT ctid AS tid FROM lanes WHERE webhook_id = k.webhook_id AND lane = k.lane
                 AND wake_at > $3 AND wake_at < $4
             OFFSET 0) l))";
/// Locks rows in the order of their webhooks, as every other writer does.
const LOCK_PAUSES: &str = "SELECT webhook_id, paused_until, circuit FROM webhook_runtime
     WHERE paused_until >= $1 AND paused_until < $2 OR circuit_until >= $1 AND circuit_until < $2
     ORDER BY webhook_id FOR UPDATE";
const UPDATE_PAUSES: &str =
    "UPDATE webhook_runtime r SET paused_until = k.paused_until, circuit = coalesce(k.circuit, r.circuit),
         circuit_until = coalesce(k.circuit_until, r.circuit_until),
         circuit_since = coalesce(k.circuit_since, r.circuit_since)
     FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[])
         AS k(webhook_id, paused_until, circuit, circuit_until, circuit_since)
     WHERE r.webhook_id = k.webhook_id";

/// Lowers the generation of closed circuits that comes from the abandoned time; otherwise newer circuits would
/// count as older.
const UPDATE_GENERATIONS: &str = "UPDATE webhook_runtime SET generation = $1 WHERE webhook_id = ANY(ARRAY(
         SELECT webhook_id FROM webhook_runtime WHERE generation > $1 AND circuit IS NULL ORDER BY webhook_id
         FOR UPDATE))";

/// Statements that update all lanes in batches; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 3] = [
    ("lanes to correct", LOCK_LANES),
    ("waiting deliveries to correct", UPDATE_WAITING),
    ("lanes to recompute", UPDATE_LANES),
];

impl Clocks for Postgres {
    fn clock_state(&self) -> StoreFuture<'_, ClockState> {
        Box::pin(async move {
            self.read(|session| async move {
                let rows = session.query(SELECT_STATE, &[]).await?;
                let Some(row) = rows.first() else { return Ok(ClockState::default()) };
                Ok(ClockState { confirmed_at: get_opt(row, 0)?, confirmations: plain(row, 1)? })
            })
            .await
        })
    }

    fn store_confirmed_time(&self, confirmed_at: Time) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let store =
                |tx: Tx| async move { tx.execute(UPSERT_CONFIRMED_TIME, &[&Col(confirmed_at)]).await };
            self.write(store).await.map(drop)
        })
    }

    fn confirm_clock(&self) -> StoreFuture<'_, i64> {
        Box::pin(async move {
            self.write(|tx| async move { plain(&tx.query_one(INCREMENT_CONFIRMATIONS, &[]).await?, 0) }).await
        })
    }

    fn adjust_due_for_clock_step(
        &self,
        clock_step: ClockStep,
        now: Time,
        after: Option<LaneCursor>,
        limit: usize,
    ) -> StoreFuture<'_, Option<LaneCursor>> {
        Box::pin(async move {
            let last =
                self.write(|tx| adjust_due_for_clock_step(tx, clock_step, now, after.clone(), limit)).await?;
            self.shared.hints.work();
            Ok(last)
        })
    }

    fn adjust_pauses_for_clock_step(&self, clock_step: ClockStep) -> StoreFuture<'_, usize> {
        Box::pin(async move { self.write(|tx| adjust_pauses_for_clock_step(tx, clock_step)).await })
    }
}

async fn adjust_pauses_for_clock_step(tx: Tx, clock_step: ClockStep) -> Result<usize, Failure> {
    let rows = tx.query(LOCK_PAUSES, &[&Col(clock_step.from), &Col(Time::FAR_FUTURE)]).await?;
    let (mut webhooks, mut pauses, mut circuits) = (Vec::new(), Vec::new(), Vec::new());
    let (mut untils, mut sinces) = (Vec::new(), Vec::new());
    for row in &rows {
        webhooks.push(Col(get::<WebhookId>(row, 0)?));
        pauses.push(Col(clock_step.apply(get(row, 1)?)));
        let mut circuit: Option<SavedCircuit> =
            plain::<Option<&str>>(row, 2)?.map(serde_json::from_str).transpose()?;
        circuit.iter_mut().for_each(|circuit| circuit.adjust_for_clock_step(&clock_step));
        circuits.push(circuit.as_ref().map(to_json).transpose()?);
        untils.push(circuit.as_ref().map(|circuit| Col(circuit.blocked_until().unwrap_or_default())));
        sinces.push(circuit.as_ref().map(|circuit| Col(circuit.since)));
    }
    tx.execute(UPDATE_PAUSES, &[&webhooks, &pauses, &circuits, &untils, &sinces]).await?;
    tx.execute(UPDATE_GENERATIONS, &[&Col(clock_step.from)]).await?;
    Ok(rows.len())
}

async fn adjust_due_for_clock_step(
    tx: Tx,
    clock_step: ClockStep,
    now: Time,
    after: Option<LaneCursor>,
    limit: usize,
) -> Result<Option<LaneCursor>, Failure> {
    let (webhook, lane) = match after {
        Some((webhook_id, lane)) => (*webhook_id.as_bytes(), lane),
        None => ([0; 16], String::new()),
    };
    let rows = tx.query(LOCK_LANES, &[&Col(webhook), &lane, &(limit as i64)]).await?;
    let lanes: Vec<LaneCursor> =
        rows.iter().map(|row| Ok((get(row, 0)?, plain(row, 1)?))).collect::<Result<_, Failure>>()?;
    let webhooks: Vec<_> = lanes.iter().map(|(webhook_id, _)| Col(*webhook_id)).collect();
    let names: Vec<_> = lanes.iter().map(|(_, lane)| lane.as_str()).collect();
    let (from, by) = (Col(clock_step.from), clock_step.by.as_millis() as i64);
    tx.execute(UPDATE_WAITING, &[&webhooks, &names, &from, &by, &Col(Time::FAR_FUTURE)]).await?;
    tx.execute(UPDATE_LANES, &[&webhooks, &names, &Col(now), &Col(Time::FAR_FUTURE)]).await?;
    Ok(lanes.last().filter(|_| lanes.len() == limit).cloned())
}
