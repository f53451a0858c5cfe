//! Runtime state of webhooks (pauses after a 429, circuits, failures), and the history of their circuits.

use std::borrow::Cow;

use redrive_core::{
    DeadReason, DeliveryId, DeliveryStatus, TenantId, Time, WebhookId,
    notification::{Occurrence, for_transition, grouping::with_dead_count},
    protection::breaker::{CircuitState, SavedCircuit},
    webhook::{Webhook, failures::FailingRule},
};
use rusqlite::{Connection, OptionalExtension, Row, Rows, Transaction};

use super::{
    Sqlite, backlog, changes,
    convert::{Col, get, get_opt},
    failures, lanes, notifications, record,
    transaction::WriteTransaction,
    webhooks::{from_json, to_json},
};
use crate::{
    Backlog, BackloggedWebhooks, BatchProgress, Change, CircuitPeriod, Incident, OutcomeRecord, RuntimeState,
    StoreFuture, Visibility, WebhookEffects, WebhookHistory, WebhookRuntime, WebhookTimers,
    WebhooksWithDueAction,
};

/// Newest first, so that the cost of a page is proportional to its rows.
const PERIODS: &str = "SELECT opened_at, ended_at, forced, counts FROM circuit_periods
     WHERE webhook_id = ?1 ORDER BY opened_at DESC LIMIT ?2";
const PERIODS_OF_TENANT: &str = "SELECT opened_at, ended_at, forced, counts FROM circuit_periods
     WHERE webhook_id = ?1 AND tenant_id = ?3 ORDER BY opened_at DESC LIMIT ?2";
const INCIDENTS: &str = "SELECT opened_at, closed_at, forced, counts, webhook_id FROM circuit_periods
     WHERE tenant_id = ?1 AND NOT continues AND (NOT ?3 OR NOT coalesce(
         (SELECT h.managed_by_operator FROM webhooks h WHERE h.id = circuit_periods.webhook_id), 0))
     ORDER BY opened_at DESC LIMIT ?2";
const SELECT_CIRCUITS: &str =
    "SELECT webhook_id, tenant_id, paused_until, circuit, generation, failures, failing_since
    FROM webhook_runtime
     WHERE tenant_id = ?1 AND circuit IS NOT NULL AND (NOT ?3 OR NOT coalesce(
         (SELECT h.managed_by_operator FROM webhooks h WHERE h.id = webhook_runtime.webhook_id), 0))
     ORDER BY webhook_id LIMIT ?2";
const SELECT_ALL_CIRCUITS: &str =
    "SELECT webhook_id, tenant_id, paused_until, circuit, generation, failures, failing_since
    FROM webhook_runtime INDEXED BY webhook_runtime_circuits
     WHERE circuit IS NOT NULL AND tenant_id > '' ORDER BY tenant_id, webhook_id LIMIT ?1";
const SELECT_OLDEST_WAITING: &str =
    "SELECT l.webhook_id, (SELECT min(w.created_at) FROM waiting w WHERE w.webhook_id = l.webhook_id)
     FROM lanes l WHERE l.webhook_id > ?1 GROUP BY l.webhook_id ORDER BY l.webhook_id LIMIT ?2";
const DELETE_OLD_WAITING: &str = "DELETE FROM waiting WHERE delivery_id IN
         (SELECT delivery_id FROM waiting WHERE webhook_id = ? AND created_at < ? ORDER BY created_at LIMIT ?)
     RETURNING delivery_id, lane";
const SELECT_EXPIRED_WEBHOOKS: &str =
    "SELECT tenant_id, id, state LIKE '{\"pending_verification\"%' FROM webhooks
     WHERE expires_at IS NOT NULL AND expires_at <= ? ORDER BY expires_at LIMIT ?";
const SELECT_NEXT_EXPIRY: &str =
    "SELECT min(expires_at) FROM webhooks WHERE expires_at IS NOT NULL AND expires_at > ?";
const BEGIN_PERIOD: &str =
    "INSERT INTO circuit_periods (webhook_id, tenant_id, opened_at, forced, counts, continues)
     SELECT ?1, ?5, ?2, ?3, ?4,
         EXISTS (SELECT 1 FROM circuit_periods INDEXED BY circuit_periods_unresolved
                 WHERE webhook_id = ?1 AND closed_at IS NULL AND NOT continues)
     WHERE NOT EXISTS (SELECT 1 FROM circuit_periods INDEXED BY circuit_periods_open
                       WHERE webhook_id = ?1 AND ended_at IS NULL)
     ON CONFLICT DO NOTHING";
const END_PERIOD: &str = "UPDATE circuit_periods INDEXED BY circuit_periods_open SET ended_at = ?2
     WHERE webhook_id = ?1 AND ended_at IS NULL";
const RESOLVE_INCIDENT: &str =
    "UPDATE circuit_periods INDEXED BY circuit_periods_unresolved SET closed_at = ?2
     WHERE webhook_id = ?1 AND closed_at IS NULL AND NOT continues";

/// Statements whose cost must be proportional to the rows they return or change; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const BOUNDED_STATEMENTS: [&str; 11] = [
    PERIODS,
    INCIDENTS,
    SELECT_CIRCUITS,
    SELECT_ALL_CIRCUITS,
    SELECT_OLDEST_WAITING,
    DELETE_OLD_WAITING,
    SELECT_EXPIRED_WEBHOOKS,
    SELECT_NEXT_EXPIRY,
    BEGIN_PERIOD,
    END_PERIOD,
    RESOLVE_INCIDENT,
];

impl RuntimeState for Sqlite {
    fn list_runtime(&self) -> StoreFuture<'_, Vec<WebhookRuntime>> {
        self.read(|connection| {
            connection.prepare_cached(SELECT_IMPAIRED)?.query_map((), read_runtime)?.collect()
        })
    }

    fn get_runtime(&self, webhooks: Vec<WebhookId>) -> StoreFuture<'_, Vec<WebhookRuntime>> {
        self.read(move |connection| {
            let mut of_one = connection.prepare_cached(SELECT_RUNTIME)?;
            let mut found = Vec::new();
            for webhook_id in webhooks {
                found.extend(of_one.query_row([Col(webhook_id)], read_runtime).optional()?);
            }
            Ok(found)
        })
    }

    fn set_circuit(
        &self,
        tenant_id: TenantId,
        webhook_id: WebhookId,
        circuit: SavedCircuit,
        occurrence: Option<Occurrence>,
    ) -> StoreFuture<'_, bool> {
        self.write(move |transaction| {
            let reported = occurrence_for(transaction, webhook_id, &circuit, occurrence.as_ref())?;
            let stored = set_circuit(transaction, &tenant_id, webhook_id, &circuit)?;
            if stored {
                notifications::record_occurrences(transaction, reported)?;
                lanes::recompute_lanes(transaction, webhook_id)?;
                changes::append(transaction, &Change::Runtime(webhook_id))?;
            }
            Ok(stored)
        })
    }

    fn report_failing(
        &self,
        tenant_id: TenantId,
        webhook_id: WebhookId,
        rule: FailingRule,
        now: Time,
    ) -> StoreFuture<'_, bool> {
        self.write(move |transaction| {
            let occurrence = failures::report(transaction, &tenant_id, webhook_id, &rule, now)?;
            notifications::record_occurrences(transaction, occurrence.as_ref())?;
            Ok(occurrence.is_some())
        })
    }
}

impl WebhookHistory for Sqlite {
    fn circuit_periods(
        &self,
        tenant_id: TenantId,
        webhook_id: WebhookId,
        from: Time,
        limit: usize,
    ) -> StoreFuture<'_, Vec<CircuitPeriod>> {
        self.list_for(tenant_id, move |connection| {
            let mut newest_first = connection.prepare_cached(PERIODS)?;
            read_periods(newest_first.query((Col(webhook_id), limit as i64))?, from)
        })
    }

    fn incidents(
        &self,
        tenant_id: TenantId,
        visibility: Visibility,
        limit: usize,
    ) -> StoreFuture<'_, Vec<Incident>> {
        self.list_for(tenant_id.clone(), move |connection| {
            let read = |row: &Row<'_>| Ok(Incident { webhook_id: get(row, 4)?, period: read_period(row)? });
            connection
                .prepare_cached(INCIDENTS)?
                .query_map((tenant_id.as_str(), limit as i64, visibility.is_restricted()), read)?
                .collect()
        })
    }

    fn circuits(
        &self,
        tenant_id: TenantId,
        visibility: Visibility,
        limit: usize,
    ) -> StoreFuture<'_, Vec<WebhookRuntime>> {
        self.list_for(tenant_id.clone(), move |connection| {
            connection
                .prepare_cached(SELECT_CIRCUITS)?
                .query_map((tenant_id.as_str(), limit as i64, visibility.is_restricted()), read_runtime)?
                .collect()
        })
    }

    fn circuit_periods_of(
        &self,
        tenant_id: TenantId,
        webhooks: Vec<WebhookId>,
        from: Time,
        limit: usize,
    ) -> StoreFuture<'_, Vec<(WebhookId, Vec<CircuitPeriod>)>> {
        self.list_for(tenant_id.clone(), move |connection| {
            let mut newest_first = connection.prepare_cached(PERIODS_OF_TENANT)?;
            let mut found = Vec::new();
            for webhook_id in webhooks {
                let rows = newest_first.query((Col(webhook_id), limit as i64, tenant_id.as_str()))?;
                let periods = read_periods(rows, from)?;
                if !periods.is_empty() {
                    found.push((webhook_id, periods));
                }
            }
            Ok(found)
        })
    }

    fn backlogs(
        &self,
        for_tenant: Option<TenantId>,
        webhooks: Vec<WebhookId>,
        now: Time,
        max: usize,
    ) -> StoreFuture<'_, Vec<(WebhookId, Backlog)>> {
        self.read_for(for_tenant, move |connection| {
            backlog::count_by_webhook(connection, &webhooks, now, max)
        })
    }

    fn backlogged(&self, tenant_id: TenantId, look_at: usize) -> StoreFuture<'_, BackloggedWebhooks> {
        self.list_for(tenant_id.clone(), move |connection| {
            backlog::list_for_tenant(connection, &tenant_id, look_at)
        })
    }
}

impl WebhookTimers for Sqlite {
    fn oldest_waiting(
        &self,
        after: Option<WebhookId>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<(WebhookId, Time)>> {
        self.read(move |connection| {
            // An empty blob sorts before every id.
            let after: Vec<u8> = after.map_or_else(Vec::new, |webhook_id| webhook_id.as_bytes().to_vec());
            connection
                .prepare_cached(SELECT_OLDEST_WAITING)?
                .query_map((after, limit as i64), |row| {
                    Ok((get(row, 0)?, get_opt(row, 1)?.unwrap_or(Time::FAR_FUTURE)))
                })?
                .collect()
        })
    }

    fn expire_deliveries(
        &self,
        webhook_id: WebhookId,
        made_before: Time,
        now: Time,
        limit: usize,
        occurrence: Option<Occurrence>,
    ) -> StoreFuture<'_, BatchProgress> {
        self.write(move |transaction| {
            let (step, expired) = expire(transaction, webhook_id, made_before, now, limit)?;
            if let Some(occurrence) = occurrence {
                notifications::record_occurrences(
                    transaction,
                    died(transaction, occurrence, expired)?.as_ref(),
                )?;
            }
            Ok(step)
        })
    }

    fn webhooks_with_due_action(
        &self,
        now: Time,
        limit: usize,
        except: Vec<TenantId>,
    ) -> StoreFuture<'_, WebhooksWithDueAction> {
        self.read(move |connection| {
            // SQLite treats a negative limit as no limit; verifications of excluded tenants are read and skipped.
            let rows = if except.is_empty() { limit as i64 } else { -1 };
            let mut statement = connection.prepare_cached(SELECT_EXPIRED_WEBHOOKS)?;
            let read = |row: &Row<'_>| Ok((get(row, 0)?, get(row, 1)?, row.get::<_, bool>(2)?));
            let found = statement.query_map((Col(now), rows), read)?;
            let wanted = found.filter(
                |row| !matches!(row, Ok((tenant_id, _, verifies)) if *verifies && except.contains(tenant_id)),
            );
            let due =
                wanted.take(limit).map(|row| row.map(|(tenant_id, webhook_id, _)| (tenant_id, webhook_id)));
            let due = due.collect::<rusqlite::Result<_>>()?;
            let next = connection
                .prepare_cached(SELECT_NEXT_EXPIRY)?
                .query_row([Col(now)], |row| get_opt(row, 0))?;
            Ok(WebhooksWithDueAction { due, next })
        })
    }
}

/// Reads periods, given newest first, that had not ended at `from`. Returns them oldest first.
fn read_periods(mut rows: Rows<'_>, from: Time) -> rusqlite::Result<Vec<CircuitPeriod>> {
    let mut periods = Vec::new();
    while let Some(row) = rows.next()? {
        let period = read_period(row)?;
        if period.ended_at.is_some_and(|ended_at| ended_at <= from) {
            // Periods do not overlap: all earlier ones ended before this one.
            break;
        }
        periods.push(period);
    }
    periods.reverse();
    Ok(periods)
}

/// Stores whether a webhook is paused. If that has changed, its lanes are recomputed.
pub(super) fn pause(transaction: &Transaction<'_>, webhook: &Webhook) -> rusqlite::Result<()> {
    let paused = webhook.state.parks_deliveries();
    let was: Option<bool> = transaction
        .prepare_cached("SELECT paused FROM webhook_runtime WHERE webhook_id = ?")?
        .query_row([Col(webhook.id)], |row| row.get(0))
        .optional()?;
    if was.unwrap_or(false) == paused {
        return Ok(());
    }
    ensure_runtime(transaction, &webhook.tenant_id, webhook.id)?;
    transaction
        .prepare_cached("UPDATE webhook_runtime SET paused = ?2 WHERE webhook_id = ?1")?
        .execute((Col(webhook.id), paused))?;
    lanes::recompute_lanes(transaction, webhook.id)
}

/// Applies the effects of an outcome to its webhook.
pub(super) fn apply_effects<'a>(
    transaction: &WriteTransaction<'_>,
    outcome: &'a OutcomeRecord,
    reported: &mut Vec<Cow<'a, Occurrence>>,
) -> rusqlite::Result<()> {
    let (tenant_id, webhook_id, effects) = (&outcome.tenant_id, outcome.webhook_id, &outcome.effects);
    if let Some(change) = effects.failing {
        reported.extend(failures::apply(transaction, outcome, change)?.map(Cow::Owned));
    }
    if *effects != WebhookEffects::default() {
        changes::append(transaction, &Change::Runtime(webhook_id))?;
    }
    let mut changed = false;
    if let Some(until) = effects.pause_until {
        ensure_runtime(transaction, tenant_id, webhook_id)?;
        let held = transaction
            .prepare_cached(
                "UPDATE webhook_runtime SET paused_until = ?2 WHERE webhook_id = ?1 AND paused_until < ?2",
            )?
            .execute((Col(webhook_id), Col(until)))?;
        changed |= held == 1;
    }
    if let Some(circuit) = &effects.circuit {
        let occurrence =
            outcome.occurrences.iter().find(|occurrence| occurrence.kind.is_circuit_transition());
        let occurrence = occurrence_for(transaction, webhook_id, circuit, occurrence)?;
        if set_circuit(transaction, tenant_id, webhook_id, circuit)? {
            changed = true;
            reported.extend(occurrence.map(Cow::Borrowed));
        }
    }
    if changed {
        lanes::recompute_lanes(transaction, webhook_id)?;
    }
    Ok(())
}

pub(super) fn ensure_runtime(
    transaction: &Transaction<'_>,
    tenant_id: &TenantId,
    webhook_id: WebhookId,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT INTO webhook_runtime (webhook_id, tenant_id) VALUES (?, ?) ON CONFLICT DO NOTHING",
        )?
        .execute((Col(webhook_id), tenant_id.as_str()))?;
    Ok(())
}

/// Deletes the `webhook_runtime` row of a deleted webhook that has no deliveries left.
pub(super) fn delete_runtime(transaction: &Transaction<'_>, webhook_id: WebhookId) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "DELETE FROM webhook_runtime WHERE webhook_id = ?1 AND (SELECT deleted FROM webhooks WHERE id = ?1)",
        )?
        .execute([Col(webhook_id)])?;
    Ok(())
}

/// Returns the generation of the newest circuit that was stored for a webhook, 0 if there was none.
pub(super) fn circuit_generation(
    transaction: &Transaction<'_>,
    webhook_id: WebhookId,
) -> rusqlite::Result<u64> {
    let stored: Option<i64> = transaction
        .prepare_cached("SELECT generation FROM webhook_runtime WHERE webhook_id = ?")?
        .query_row([Col(webhook_id)], |row| row.get(0))
        .optional()?;
    Ok(stored.map_or(0, i64::unsigned_abs))
}

/// Stores a circuit, and the time until which it blocks, unless a newer one is stored.
pub(super) fn set_circuit(
    transaction: &Transaction<'_>,
    tenant_id: &TenantId,
    webhook_id: WebhookId,
    circuit: &SavedCircuit,
) -> rusqlite::Result<bool> {
    ensure_runtime(transaction, tenant_id, webhook_id)?;
    let json = (!circuit.is_default()).then(|| to_json(circuit)).transpose()?;
    let stored = transaction
        .prepare_cached(
            "UPDATE webhook_runtime SET circuit = ?2, generation = ?3, circuit_until = ?4, circuit_since = ?5
             WHERE webhook_id = ?1 AND generation <= ?3",
        )?
        .execute((
            Col(webhook_id),
            json,
            circuit.generation as i64,
            Col(circuit.blocked_until().unwrap_or_default()),
            Col(circuit.since),
        ))?;
    if stored == 0 {
        return Ok(false);
    }
    set_period(transaction, tenant_id, webhook_id, circuit)?;
    Ok(true)
}

/// Begins or ends the open period of a circuit, and its incident.
fn set_period(
    transaction: &Transaction<'_>,
    tenant_id: &TenantId,
    webhook_id: WebhookId,
    circuit: &SavedCircuit,
) -> rusqlite::Result<()> {
    let (state, since) = (circuit.effective_state(), Col(circuit.since));
    if state == CircuitState::Open {
        let (forced, counts) = (circuit.forced.is_some(), to_json(&circuit.counts)?);
        let begun = (Col(webhook_id), since, forced, counts, tenant_id.as_str());
        transaction.prepare_cached(BEGIN_PERIOD)?.execute(begun)?;
        return Ok(());
    }
    transaction.prepare_cached(END_PERIOD)?.execute((Col(webhook_id), Col(circuit.since)))?;
    if state == CircuitState::Closed {
        transaction.prepare_cached(RESOLVE_INCIDENT)?.execute((Col(webhook_id), since))?;
    }
    Ok(())
}

fn expire(
    transaction: &Transaction<'_>,
    webhook_id: WebhookId,
    made_before: Time,
    now: Time,
    limit: usize,
) -> rusqlite::Result<(BatchProgress, Vec<DeliveryId>)> {
    let expired = transaction
        .prepare_cached(DELETE_OLD_WAITING)?
        .query_map((Col(webhook_id), Col(made_before), limit as i64), |row| Ok((get(row, 0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<Vec<(DeliveryId, String)>>>()?;
    for (delivery_id, _) in &expired {
        transaction
            .prepare_cached(
                "UPDATE deliveries SET status = ?2, ended_at = ?3, dead_reason = ?4 WHERE id = ?1",
            )?
            .execute((Col(*delivery_id), Col(DeliveryStatus::Dead), Col(now), Col(DeadReason::Expired)))?;
        record::insert_dead_letter(transaction, *delivery_id)?;
    }
    lanes::recompute_wake_for(transaction, webhook_id, expired.iter().map(|(_, lane)| lane))?;
    let step = BatchProgress { changed: expired.len(), finished: expired.len() < limit };
    Ok((step, expired.into_iter().map(|(delivery_id, _)| delivery_id).collect()))
}

/// Returns the occurrence with the number of these dead deliveries.
fn died(
    transaction: &Transaction<'_>,
    occurrence: Occurrence,
    deliveries: Vec<DeliveryId>,
) -> rusqlite::Result<Option<Occurrence>> {
    let mut dead = Vec::with_capacity(deliveries.len());
    for delivery_id in deliveries {
        let event_type = transaction
            .prepare_cached("SELECT event_type FROM dead WHERE delivery_id = ?")?
            .query_row([Col(delivery_id)], |row| row.get(0))?;
        dead.push((delivery_id, event_type));
    }
    Ok(with_dead_count(occurrence, dead))
}

/// Returns the occurrence if this circuit change is the transition that it reports.
pub(super) fn occurrence_for<'a>(
    transaction: &Transaction<'_>,
    webhook_id: WebhookId,
    circuit: &SavedCircuit,
    occurrence: Option<&'a Occurrence>,
) -> rusqlite::Result<Option<&'a Occurrence>> {
    let Some(occurrence) = occurrence else { return Ok(None) };
    let before: Option<SavedCircuit> = transaction
        .prepare_cached("SELECT circuit FROM webhook_runtime WHERE webhook_id = ? AND circuit IS NOT NULL")?
        .query_row([Col(webhook_id)], |row| from_json(row, 0))
        .optional()?;
    Ok(Some(occurrence)
        .filter(|occurrence| for_transition(before.as_ref(), circuit) == Some(occurrence.kind)))
}

const SELECT_IMPAIRED: &str =
    "SELECT webhook_id, tenant_id, paused_until, circuit, generation, failures, failing_since
    FROM webhook_runtime
     WHERE paused_until > 0 OR circuit IS NOT NULL OR failing_since IS NOT NULL";
const SELECT_RUNTIME: &str = "SELECT webhook_id, tenant_id, paused_until, circuit, generation, failures, failing_since
    FROM webhook_runtime
     WHERE webhook_id = ? AND (paused_until > 0 OR generation > 0 OR circuit IS NOT NULL OR failing_since IS NOT NULL)";

/// Lists the circuits of all tenants that are not closed, or were set manually.
pub(super) fn list_circuits(connection: &Connection, limit: usize) -> rusqlite::Result<Vec<WebhookRuntime>> {
    connection.prepare_cached(SELECT_ALL_CIRCUITS)?.query_map([limit as i64], read_runtime)?.collect()
}

fn read_runtime(row: &Row<'_>) -> rusqlite::Result<WebhookRuntime> {
    Ok(WebhookRuntime {
        webhook_id: get(row, 0)?,
        tenant_id: get(row, 1)?,
        pause_until: Some(get(row, 2)?).filter(|until| *until > Time::default()),
        circuit: row.get::<_, Option<String>>(3)?.map(|_| from_json(row, 3)).transpose()?,
        generation: row.get::<_, i64>(4)? as u64,
        failures: failures::read_series(row, 5, 6)?,
    })
}

fn read_period(row: &Row<'_>) -> rusqlite::Result<CircuitPeriod> {
    Ok(CircuitPeriod {
        opened_at: get(row, 0)?,
        ended_at: get_opt(row, 1)?,
        forced: row.get(2)?,
        counts: from_json(row, 3)?,
    })
}
