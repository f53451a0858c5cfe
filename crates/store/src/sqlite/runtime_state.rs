//! What holds webhooks back, and what their circuits have been through.

use redrive_core::{
    DeadReason, DeliveryId, DeliveryStatus, TenantId, Time, WebhookId,
    notification::{Cause, grouping::died_of, of_move},
    protection::breaker::{CircuitState, SavedCircuit},
    webhook::{Webhook, WebhookState},
};
use rusqlite::{OptionalExtension, Row, Rows, Transaction};

use super::{
    Sqlite, backlog, changes,
    convert::{Col, get, get_opt},
    lanes, notifications, record,
    transaction::WriteTransaction,
    webhooks::{from_json, to_json},
};
use crate::{
    Answer, Backlog, Backlogged, Change, Effects, Expiring, Failing, Gates, Incident, Outcome, Period,
    Runtime, Step, Visibility,
};

/// The newest first, so that a page costs what it shows.
const PERIODS: &str = "SELECT opened_at, ended_at, forced, counts FROM circuit_periods
     WHERE webhook = ?1 ORDER BY opened_at DESC LIMIT ?2";
const PERIODS_OF_TENANT: &str = "SELECT opened_at, ended_at, forced, counts FROM circuit_periods
     WHERE webhook = ?1 AND tenant = ?3 ORDER BY opened_at DESC LIMIT ?2";
const INCIDENTS: &str = "SELECT opened_at, ended_at, forced, counts, webhook FROM circuit_periods
     WHERE tenant = ?1 AND (NOT ?3 OR NOT coalesce(
         (SELECT h.managed_by_operator FROM webhooks h WHERE h.id = circuit_periods.webhook), 0))
     ORDER BY opened_at DESC LIMIT ?2";
const CIRCUITS: &str = "SELECT webhook, tenant, hold_until, circuit, generation, failing_since FROM runtime
     WHERE tenant = ?1 AND circuit IS NOT NULL AND (NOT ?3 OR NOT coalesce(
         (SELECT h.managed_by_operator FROM webhooks h WHERE h.id = runtime.webhook), 0))
     ORDER BY webhook LIMIT ?2";
const OLDEST: &str = "SELECT l.webhook, (SELECT min(w.created_at) FROM waiting w WHERE w.webhook = l.webhook)
     FROM lanes l WHERE l.webhook > ?1 GROUP BY l.webhook ORDER BY l.webhook LIMIT ?2";
const EXPIRE: &str = "DELETE FROM waiting WHERE delivery IN
         (SELECT delivery FROM waiting WHERE webhook = ? AND created_at < ? ORDER BY created_at LIMIT ?)
     RETURNING delivery, lane";
const EXPIRED: &str = "SELECT tenant, id, state LIKE '{\"pending_verification\"%' FROM webhooks
     WHERE expires_at IS NOT NULL AND expires_at <= ? ORDER BY expires_at LIMIT ?";
const NEXT_TO_EXPIRE: &str =
    "SELECT min(expires_at) FROM webhooks WHERE expires_at IS NOT NULL AND expires_at > ?";
const BEGIN_PERIOD: &str = "INSERT INTO circuit_periods (webhook, tenant, opened_at, forced, counts)
     SELECT ?1, ?5, ?2, ?3, ?4
     WHERE NOT EXISTS (SELECT 1 FROM circuit_periods INDEXED BY circuit_periods_open
                       WHERE webhook = ?1 AND ended_at IS NULL)
     ON CONFLICT DO NOTHING";
const END_PERIOD: &str = "UPDATE circuit_periods INDEXED BY circuit_periods_open SET ended_at = ?2
     WHERE webhook = ?1 AND ended_at IS NULL";

/// The statements whose cost must follow what they answer or change: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const BOUNDED: [&str; 9] =
    [PERIODS, INCIDENTS, CIRCUITS, OLDEST, EXPIRE, EXPIRED, NEXT_TO_EXPIRE, BEGIN_PERIOD, END_PERIOD];

impl Gates for Sqlite {
    fn troubled(&self) -> Answer<'_, Vec<Runtime>> {
        self.read(|connection| connection.prepare_cached(TROUBLED)?.query_map((), read_runtime)?.collect())
    }

    fn trouble_of(&self, webhooks: Vec<WebhookId>) -> Answer<'_, Vec<Runtime>> {
        self.read(move |connection| {
            let mut of_one = connection.prepare_cached(SELECT_RUNTIME)?;
            let mut found = Vec::new();
            for webhook in webhooks {
                found.extend(of_one.query_row([Col(webhook)], read_runtime).optional()?);
            }
            Ok(found)
        })
    }

    fn set_circuit(
        &self,
        tenant: TenantId,
        webhook: WebhookId,
        circuit: SavedCircuit,
        cause: Option<Cause>,
    ) -> Answer<'_, bool> {
        self.write(move |transaction| {
            let told = told_of(transaction, webhook, &circuit, cause.as_ref())?;
            let stored = set_circuit(transaction, &tenant, webhook, &circuit)?;
            if stored {
                notifications::note(transaction, told)?;
                lanes::settle_all(transaction, webhook)?;
                changes::tell(transaction, &Change::Gate(webhook))?;
            }
            Ok(stored)
        })
    }

    fn circuit_periods(
        &self,
        tenant: TenantId,
        webhook: WebhookId,
        from: Time,
        limit: usize,
    ) -> Answer<'_, Vec<Period>> {
        self.list_for(tenant, move |connection| {
            let mut newest_first = connection.prepare_cached(PERIODS)?;
            read_periods(newest_first.query((Col(webhook), limit as i64))?, from)
        })
    }

    fn circuit_periods_of(
        &self,
        tenant: TenantId,
        webhooks: Vec<WebhookId>,
        from: Time,
        limit: usize,
    ) -> Answer<'_, Vec<(WebhookId, Vec<Period>)>> {
        self.list_for(tenant.clone(), move |connection| {
            let mut newest_first = connection.prepare_cached(PERIODS_OF_TENANT)?;
            let mut found = Vec::new();
            for webhook in webhooks {
                let rows = newest_first.query((Col(webhook), limit as i64, tenant.as_str()))?;
                let periods = read_periods(rows, from)?;
                if !periods.is_empty() {
                    found.push((webhook, periods));
                }
            }
            Ok(found)
        })
    }

    fn incidents(&self, tenant: TenantId, visibility: Visibility, limit: usize) -> Answer<'_, Vec<Incident>> {
        self.list_for(tenant.clone(), move |connection| {
            let read = |row: &Row<'_>| Ok(Incident { webhook: get(row, 4)?, period: read_period(row)? });
            connection
                .prepare_cached(INCIDENTS)?
                .query_map((tenant.as_str(), limit as i64, visibility.is_restricted()), read)?
                .collect()
        })
    }

    fn circuits(&self, tenant: TenantId, visibility: Visibility, limit: usize) -> Answer<'_, Vec<Runtime>> {
        self.list_for(tenant.clone(), move |connection| {
            connection
                .prepare_cached(CIRCUITS)?
                .query_map((tenant.as_str(), limit as i64, visibility.is_restricted()), read_runtime)?
                .collect()
        })
    }

    fn backlogs(
        &self,
        for_tenant: Option<TenantId>,
        webhooks: Vec<WebhookId>,
        now: Time,
        most: usize,
    ) -> Answer<'_, Vec<(WebhookId, Backlog)>> {
        self.read_for(for_tenant, move |connection| backlog::of(connection, &webhooks, now, most))
    }

    fn backlogged(&self, tenant: TenantId, look_at: usize) -> Answer<'_, Backlogged> {
        self.list_for(tenant.clone(), move |connection| backlog::of_tenant(connection, &tenant, look_at))
    }

    fn oldest(&self, after: Option<WebhookId>, limit: usize) -> Answer<'_, Vec<(WebhookId, Time)>> {
        self.read(move |connection| {
            // Nothing comes before an id of no bytes.
            let after: Vec<u8> = after.map_or_else(Vec::new, |webhook| webhook.as_bytes().to_vec());
            connection
                .prepare_cached(OLDEST)?
                .query_map((after, limit as i64), |row| {
                    Ok((get(row, 0)?, get_opt(row, 1)?.unwrap_or(Time::FOREVER)))
                })?
                .collect()
        })
    }

    fn expire(
        &self,
        webhook: WebhookId,
        made_before: Time,
        now: Time,
        limit: usize,
        cause: Option<Cause>,
    ) -> Answer<'_, Step> {
        self.write(move |transaction| {
            let (step, expired) = expire(transaction, webhook, made_before, now, limit)?;
            if let Some(cause) = cause {
                notifications::note(transaction, died(transaction, cause, expired)?.as_ref())?;
            }
            Ok(step)
        })
    }

    fn expiring(&self, now: Time, limit: usize, except: Vec<TenantId>) -> Answer<'_, Expiring> {
        self.read(move |connection| {
            // SQLite takes a negative limit for none; verifications of the tenants left out are read and skipped.
            let rows = if except.is_empty() { limit as i64 } else { -1 };
            let mut statement = connection.prepare_cached(EXPIRED)?;
            let read = |row: &Row<'_>| Ok((get(row, 0)?, get(row, 1)?, row.get::<_, bool>(2)?));
            let due = statement.query_map((Col(now), rows), read)?;
            let wanted = due.filter(
                |row| !matches!(row, Ok((tenant, _, verifies)) if *verifies && except.contains(tenant)),
            );
            let expired = wanted.take(limit).map(|row| row.map(|(tenant, webhook, _)| (tenant, webhook)));
            let expired = expired.collect::<rusqlite::Result<_>>()?;
            let next =
                connection.prepare_cached(NEXT_TO_EXPIRE)?.query_row([Col(now)], |row| get_opt(row, 0))?;
            Ok(Expiring { expired, next })
        })
    }
}

/// Of open periods, newest first, those that were not over at `from`, oldest first.
fn read_periods(mut rows: Rows<'_>, from: Time) -> rusqlite::Result<Vec<Period>> {
    let mut periods = Vec::new();
    while let Some(row) = rows.next()? {
        let period = read_period(row)?;
        if period.ended_at.is_some_and(|ended_at| ended_at <= from) {
            // They follow one another: all that came before were over as well.
            break;
        }
        periods.push(period);
    }
    periods.reverse();
    Ok(periods)
}

/// A webhook that gets events again after it got none starts anew: its failures before do not count.
pub(super) fn forgive(transaction: &Transaction<'_>, webhook: &Webhook) -> rusqlite::Result<()> {
    let was: Option<WebhookState> = transaction
        .prepare_cached("SELECT state FROM webhooks WHERE id = ?")?
        .query_row([Col(webhook.id)], |row| from_json(row, 0))
        .optional()?;
    if was.is_some_and(|was| !was.gets_events()) && webhook.state.gets_events() {
        transaction
            .prepare_cached("UPDATE runtime SET failing_since = NULL WHERE webhook = ?")?
            .execute([Col(webhook.id)])?;
    }
    Ok(())
}

/// Notes whether a webhook is paused; its lanes stand still from then on, or move again.
pub(super) fn pause(transaction: &Transaction<'_>, webhook: &Webhook) -> rusqlite::Result<()> {
    let paused = webhook.state.holds_back();
    let was: Option<bool> = transaction
        .prepare_cached("SELECT paused FROM runtime WHERE webhook = ?")?
        .query_row([Col(webhook.id)], |row| row.get(0))
        .optional()?;
    if was.unwrap_or(false) == paused {
        return Ok(());
    }
    has_row(transaction, &webhook.tenant, webhook.id)?;
    transaction
        .prepare_cached("UPDATE runtime SET paused = ?2 WHERE webhook = ?1")?
        .execute((Col(webhook.id), paused))?;
    lanes::settle_all(transaction, webhook.id)
}

/// What an outcome means for its webhook.
pub(super) fn take_effect<'a>(
    transaction: &WriteTransaction<'_>,
    outcome: &'a Outcome,
) -> rusqlite::Result<Option<&'a Cause>> {
    let (tenant, webhook, effects) = (&outcome.tenant, outcome.webhook, &outcome.effects);
    match effects.failing {
        None => {}
        Some(Failing::Since(since)) => {
            has_row(transaction, tenant, webhook)?;
            // The first failure counts, not the last one to be written down.
            transaction
                .prepare_cached(
                    "UPDATE runtime SET failing_since = coalesce(failing_since, ?2) WHERE webhook = ?1",
                )?
                .execute((Col(webhook), Col(since)))?;
        }
        Some(Failing::Over) => {
            transaction
                .prepare_cached("UPDATE runtime SET failing_since = NULL WHERE webhook = ?1")?
                .execute([Col(webhook)])?;
        }
    }
    if *effects != Effects::default() {
        changes::tell(transaction, &Change::Gate(webhook))?;
    }
    let mut moved = false;
    if let Some(until) = effects.hold_until {
        has_row(transaction, tenant, webhook)?;
        let held = transaction
            .prepare_cached("UPDATE runtime SET hold_until = ?2 WHERE webhook = ?1 AND hold_until < ?2")?
            .execute((Col(webhook), Col(until)))?;
        moved |= held == 1;
    }
    let mut told = None;
    if let Some(circuit) = &effects.circuit {
        let cause = outcome.causes.iter().find(|cause| cause.kind.counterpart().is_some());
        let cause = told_of(transaction, webhook, circuit, cause)?;
        if set_circuit(transaction, tenant, webhook, circuit)? {
            (moved, told) = (true, cause);
        }
    }
    if moved {
        lanes::settle_all(transaction, webhook)?;
    }
    Ok(told)
}

fn has_row(transaction: &Transaction<'_>, tenant: &TenantId, webhook: WebhookId) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("INSERT INTO runtime (webhook, tenant) VALUES (?, ?) ON CONFLICT DO NOTHING")?
        .execute((Col(webhook), tenant.as_str()))?;
    Ok(())
}

/// Forgets what held a webhook back that is deleted and has nothing left.
pub(super) fn forget(transaction: &Transaction<'_>, webhook: WebhookId) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "DELETE FROM runtime WHERE webhook = ?1 AND (SELECT deleted FROM webhooks WHERE id = ?1)",
        )?
        .execute([Col(webhook)])?;
    Ok(())
}

/// Stores a circuit unless a newer one is there, and with it the time for which it is open.
fn set_circuit(
    transaction: &Transaction<'_>,
    tenant: &TenantId,
    webhook: WebhookId,
    circuit: &SavedCircuit,
) -> rusqlite::Result<bool> {
    has_row(transaction, tenant, webhook)?;
    let json = (!circuit.is_default()).then(|| to_json(circuit)).transpose()?;
    let stored = transaction
        .prepare_cached(
            "UPDATE runtime SET circuit = ?2, generation = ?3, circuit_until = ?4, circuit_since = ?5
             WHERE webhook = ?1 AND generation <= ?3",
        )?
        .execute((
            Col(webhook),
            json,
            circuit.generation as i64,
            Col(circuit.blocked_until().unwrap_or_default()),
            Col(circuit.since),
        ))?;
    if stored == 0 {
        return Ok(false);
    }
    let forced_open = circuit.forced.as_ref().is_some_and(|forced| forced.open);
    let forced_closed = circuit.forced.as_ref().is_some_and(|forced| !forced.open);
    if forced_open || circuit.state == CircuitState::Open && !forced_closed {
        let counts = to_json(&circuit.counts)?;
        transaction.prepare_cached(BEGIN_PERIOD)?.execute((
            Col(webhook),
            Col(circuit.since),
            forced_open,
            counts,
            tenant.as_str(),
        ))?;
    } else {
        transaction.prepare_cached(END_PERIOD)?.execute((Col(webhook), Col(circuit.since)))?;
    }
    Ok(true)
}

fn expire(
    transaction: &Transaction<'_>,
    webhook: WebhookId,
    made_before: Time,
    now: Time,
    limit: usize,
) -> rusqlite::Result<(Step, Vec<DeliveryId>)> {
    let expired = transaction
        .prepare_cached(EXPIRE)?
        .query_map((Col(webhook), Col(made_before), limit as i64), |row| Ok((get(row, 0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<Vec<(DeliveryId, String)>>>()?;
    for (delivery, _) in &expired {
        transaction
            .prepare_cached(
                "UPDATE deliveries SET status = ?2, ended_at = ?3, dead_reason = ?4 WHERE id = ?1",
            )?
            .execute((Col(*delivery), Col(DeliveryStatus::Dead), Col(now), Col(DeadReason::Expired)))?;
        record::bury(transaction, *delivery)?;
    }
    lanes::look_again_at(transaction, webhook, expired.iter().map(|(_, lane)| lane))?;
    let step = Step { moved: expired.len(), finished: expired.len() < limit };
    Ok((step, expired.into_iter().map(|(delivery, _)| delivery).collect()))
}

/// A cause with how many of these dead deliveries it is about.
fn died(
    transaction: &Transaction<'_>,
    cause: Cause,
    deliveries: Vec<DeliveryId>,
) -> rusqlite::Result<Option<Cause>> {
    let mut dead = Vec::with_capacity(deliveries.len());
    for delivery in deliveries {
        let event_type = transaction
            .prepare_cached("SELECT event_type FROM dead WHERE delivery = ?")?
            .query_row([Col(delivery)], |row| row.get(0))?;
        dead.push((delivery, event_type));
    }
    Ok(died_of(cause, dead))
}

/// The cause, if this is the move of a circuit that it is about.
pub(super) fn told_of<'a>(
    transaction: &Transaction<'_>,
    webhook: WebhookId,
    circuit: &SavedCircuit,
    cause: Option<&'a Cause>,
) -> rusqlite::Result<Option<&'a Cause>> {
    let Some(cause) = cause else { return Ok(None) };
    let before: Option<SavedCircuit> = transaction
        .prepare_cached("SELECT circuit FROM runtime WHERE webhook = ? AND circuit IS NOT NULL")?
        .query_row([Col(webhook)], |row| from_json(row, 0))
        .optional()?;
    Ok(Some(cause).filter(|cause| of_move(before.as_ref(), circuit) == Some(cause.kind)))
}

const TROUBLED: &str = "SELECT webhook, tenant, hold_until, circuit, generation, failing_since FROM runtime
     WHERE hold_until > 0 OR circuit IS NOT NULL OR failing_since IS NOT NULL";
const SELECT_RUNTIME: &str = "SELECT webhook, tenant, hold_until, circuit, generation, failing_since FROM runtime
     WHERE webhook = ? AND (hold_until > 0 OR generation > 0 OR circuit IS NOT NULL OR failing_since IS NOT NULL)";

fn read_runtime(row: &Row<'_>) -> rusqlite::Result<Runtime> {
    Ok(Runtime {
        webhook: get(row, 0)?,
        tenant: get(row, 1)?,
        hold_until: Some(get(row, 2)?).filter(|until| *until > Time::default()),
        circuit: row.get::<_, Option<String>>(3)?.map(|_| from_json(row, 3)).transpose()?,
        generation: row.get::<_, i64>(4)? as u64,
        failing_since: get_opt(row, 5)?,
    })
}

fn read_period(row: &Row<'_>) -> rusqlite::Result<Period> {
    Ok(Period {
        opened_at: get(row, 0)?,
        ended_at: get_opt(row, 1)?,
        forced: row.get(2)?,
        counts: from_json(row, 3)?,
    })
}
