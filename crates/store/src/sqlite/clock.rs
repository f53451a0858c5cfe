//! Clock state that the node stores, and the correction of due times after the clock was set back.

use redrive_core::{
    Time, WebhookId, cluster::clock_discipline::ClockStep, protection::breaker::SavedCircuit,
};
use rusqlite::OptionalExtension;

use super::{
    Sqlite,
    convert::{Col, get, get_opt},
    webhooks::{from_json, to_json},
};
use crate::{ClockState, Clocks, LaneCursor, StoreFuture};

const UPSERT_CONFIRMED_TIME: &str = "INSERT INTO clock (single, confirmed_at) VALUES (1, ?1)
     ON CONFLICT (single) DO UPDATE SET confirmed_at = excluded.confirmed_at";
const INCREMENT_CONFIRMATIONS: &str = "INSERT INTO clock (single, confirmations) VALUES (1, 1)
     ON CONFLICT (single) DO UPDATE SET confirmations = confirmations + 1 RETURNING confirmations";
const SELECT_LANES: &str = "SELECT webhook_id, lane FROM lanes WHERE (webhook_id, lane) > (?1, ?2)
     ORDER BY webhook_id, lane LIMIT ?3";
const UPDATE_WAITING: &str = "UPDATE waiting SET due = due - ?4,
         sort_key = CASE WHEN lane < 'A' THEN sort_key ELSE due - ?4 END
     WHERE webhook_id = ?1 AND lane = ?2 AND due >= ?3 AND due < ?5";
const UPDATE_LANE: &str =
    "UPDATE lanes SET wake_at = ?3 WHERE webhook_id = ?1 AND lane = ?2 AND wake_at > ?3 AND wake_at < ?4";
const SELECT_PAUSES: &str = "SELECT webhook_id, paused_until, circuit FROM webhook_runtime
     WHERE paused_until >= ?1 AND paused_until < ?2 OR circuit_until >= ?1 AND circuit_until < ?2";
const UPDATE_PAUSE: &str = "UPDATE webhook_runtime SET paused_until = ?2 WHERE webhook_id = ?1";
const UPDATE_CIRCUIT: &str =
    "UPDATE webhook_runtime SET circuit = ?2, circuit_until = ?3, circuit_since = ?4 WHERE webhook_id = ?1";

/// Lowers the generation of closed circuits that comes from the abandoned time; otherwise newer circuits would
/// count as older.
const UPDATE_GENERATIONS: &str =
    "UPDATE webhook_runtime SET generation = ?1 WHERE generation > ?1 AND circuit IS NULL";

impl Clocks for Sqlite {
    fn clock_state(&self) -> StoreFuture<'_, ClockState> {
        self.read(|connection| {
            let state = connection
                .prepare_cached("SELECT confirmed_at, confirmations FROM clock")?
                .query_row((), |row| {
                    Ok(ClockState { confirmed_at: get_opt(row, 0)?, confirmations: row.get(1)? })
                })
                .optional()?;
            Ok(state.unwrap_or_default())
        })
    }

    fn store_confirmed_time(&self, confirmed_at: Time) -> StoreFuture<'_, ()> {
        self.write(move |transaction| {
            transaction.execute(UPSERT_CONFIRMED_TIME, [Col(confirmed_at)]).map(drop)
        })
    }

    fn confirm_clock(&self) -> StoreFuture<'_, i64> {
        self.write(|transaction| transaction.query_row(INCREMENT_CONFIRMATIONS, (), |row| row.get(0)))
    }

    fn adjust_due_for_clock_step(
        &self,
        clock_step: ClockStep,
        now: Time,
        after: Option<LaneCursor>,
        limit: usize,
    ) -> StoreFuture<'_, Option<LaneCursor>> {
        self.write(move |transaction| {
            let (webhook, lane) = match &after {
                Some((webhook_id, lane)) => (webhook_id.as_bytes().to_vec(), lane.clone()),
                None => (Vec::new(), String::new()),
            };
            let lanes: Vec<LaneCursor> = transaction
                .prepare_cached(SELECT_LANES)?
                .query_map((webhook, lane, limit as i64), |row| Ok((get(row, 0)?, row.get(1)?)))?
                .collect::<rusqlite::Result<_>>()?;
            let (from, by) = (Col(clock_step.from), clock_step.by.as_millis() as i64);
            for (webhook_id, lane) in &lanes {
                let (webhook, end) = (Col(*webhook_id), Col(Time::FAR_FUTURE));
                transaction.prepare_cached(UPDATE_WAITING)?.execute((webhook, lane, from, by, end))?;
                transaction.prepare_cached(UPDATE_LANE)?.execute((webhook, lane, Col(now), end))?;
            }
            Ok(lanes.last().filter(|_| lanes.len() == limit).cloned())
        })
    }

    fn adjust_pauses_for_clock_step(&self, clock_step: ClockStep) -> StoreFuture<'_, usize> {
        self.write(move |transaction| {
            let rows: Vec<(WebhookId, Time, Option<SavedCircuit>)> = transaction
                .prepare_cached(SELECT_PAUSES)?
                .query_map((Col(clock_step.from), Col(Time::FAR_FUTURE)), |row| {
                    let circuit = row.get::<_, Option<String>>(2)?.map(|_| from_json(row, 2)).transpose()?;
                    Ok((get(row, 0)?, get(row, 1)?, circuit))
                })?
                .collect::<rusqlite::Result<_>>()?;
            for (webhook_id, pause_until, circuit) in &rows {
                let pause = (Col(*webhook_id), Col(clock_step.apply(*pause_until)));
                transaction.prepare_cached(UPDATE_PAUSE)?.execute(pause)?;
                let Some(mut circuit) = circuit.clone() else { continue };
                circuit.adjust_for_clock_step(&clock_step);
                let until = Col(circuit.blocked_until().unwrap_or_default());
                let circuit = (Col(*webhook_id), to_json(&circuit)?, until, Col(circuit.since));
                transaction.prepare_cached(UPDATE_CIRCUIT)?.execute(circuit)?;
            }
            transaction.execute(UPDATE_GENERATIONS, [Col(clock_step.from)])?;
            Ok(rows.len())
        })
    }
}
