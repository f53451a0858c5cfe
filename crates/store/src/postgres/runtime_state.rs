//! Runtime state of webhooks (pauses after a 429, circuits, failures), and the history of their circuits.

use std::{borrow::Cow, collections::BTreeMap};

use redrive_core::{
    DeadReason, DeliveryId, DeliveryStatus, TenantId, Time, WebhookId,
    notification::{Occurrence, for_transition, grouping::with_dead_count},
    protection::breaker::{CircuitState, SavedCircuit},
    webhook::{Webhook, failures::FailingRule},
};
use tokio_postgres::Row;

use super::{
    Postgres, backlog, changes,
    convert::{Col, get, get_opt, plain},
    failures,
    lanes::{self, Keys},
    notifications, record,
    session::{Failure, Session, Tx},
    undelivered,
    webhooks::{from_json, to_json},
};
use crate::{
    Backlog, BackloggedWebhooks, BatchProgress, Change, CircuitPeriod, FailingChange, Incident,
    OutcomeRecord, RuntimeState, StoreFuture, Visibility, WebhookEffects, WebhookHistory, WebhookRuntime,
    WebhookTimers, WebhooksWithDueAction,
};

const SELECT_IMPAIRED: &str =
    "SELECT webhook_id, tenant_id, paused_until, circuit, generation, failures, failing_since
    FROM webhook_runtime
     WHERE paused_until > 0 OR circuit IS NOT NULL OR failing_since IS NOT NULL";
const SELECT_RUNTIME: &str =
    "SELECT webhook_id, tenant_id, paused_until, circuit, generation, failures, failing_since FROM webhook_runtime
     WHERE webhook_id = ANY($1::uuid[])
         AND (paused_until > 0 OR generation > 0 OR circuit IS NOT NULL OR failing_since IS NOT NULL)";

/// Newest first, so that the cost of a page is proportional to its rows.
const PERIODS: &str = "SELECT opened_at, ended_at, forced, counts FROM circuit_periods
     WHERE webhook_id = $1 ORDER BY opened_at DESC LIMIT $2";
const PERIODS_OF_SEVERAL: &str = "SELECT p.opened_at, p.ended_at, p.forced, p.counts, requested.id
     FROM unnest($1::uuid[]) AS requested(id)
     CROSS JOIN LATERAL (SELECT opened_at, ended_at, forced, counts FROM circuit_periods
                         WHERE webhook_id = requested.id AND tenant_id = $2 ORDER BY opened_at DESC LIMIT $4) p
     WHERE p.ended_at IS NULL OR p.ended_at > $3
     ORDER BY requested.id, p.opened_at";
const INCIDENTS: &str = "SELECT opened_at, closed_at, forced, counts, webhook_id FROM circuit_periods
     WHERE tenant_id = $1 AND NOT continues AND NOT ($3::boolean AND coalesce(
         (SELECT h.managed_by_operator FROM webhooks h WHERE h.id = circuit_periods.webhook_id LIMIT 1), false))
     ORDER BY opened_at DESC LIMIT $2";
const SELECT_CIRCUITS: &str = "SELECT webhook_id, tenant_id, paused_until, circuit, generation, failures, failing_since
    FROM webhook_runtime
     WHERE tenant_id = $1 AND circuit IS NOT NULL AND NOT ($3::boolean AND coalesce(
         (SELECT h.managed_by_operator FROM webhooks h WHERE h.id = webhook_runtime.webhook_id LIMIT 1), false))
     ORDER BY webhook_id LIMIT $2";
const SELECT_ALL_CIRCUITS: &str =
    "SELECT webhook_id, tenant_id, paused_until, circuit, generation, failures, failing_since
    FROM webhook_runtime WHERE circuit IS NOT NULL ORDER BY tenant_id, webhook_id LIMIT $1";
/// Finds each webhook by an index lookup after the previous one, since a webhook may have very many lanes.
const SELECT_OLDEST_WAITING: &str = "WITH RECURSIVE found(webhook_id, n) AS (
         (SELECT webhook_id, 1 FROM lanes WHERE webhook_id > $1 ORDER BY webhook_id LIMIT 1)
         UNION ALL
         SELECT (SELECT l.webhook_id FROM lanes l WHERE l.webhook_id > f.webhook_id ORDER BY l.webhook_id
         LIMIT 1), f.n + 1
         FROM found f WHERE f.webhook_id IS NOT NULL AND f.n < $2)
     SELECT webhook_id, (SELECT w.created_at FROM waiting w WHERE w.webhook_id = found.webhook_id
                      ORDER BY w.created_at LIMIT 1)
     FROM found WHERE webhook_id IS NOT NULL";
/// Deletes only deliveries in locked lanes ($4).
const DELETE_OLD_WAITING: &str = "DELETE FROM waiting WHERE delivery_id = ANY(ARRAY(
         SELECT delivery_id FROM waiting WHERE webhook_id = $1 AND created_at < $2 AND lane = ANY($4::text[])
         ORDER BY created_at LIMIT $3))
     RETURNING delivery_id, lane";
/// Locks `webhook_runtime` rows in the order of webhooks: rows to create if missing ($3), rows to change if they
/// exist ($4), and other rows against changes. Each row is looked up right before it is inserted.
const LOCK_RUNTIME: &str = "INSERT INTO webhook_runtime (webhook_id, tenant_id) SELECT k.webhook_id, k.tenant_id
     FROM unnest($1::uuid[], $2::text[], $3::boolean[], $4::boolean[]) AS k(webhook_id, tenant_id, create_it, change_it)
     LEFT JOIN LATERAL (
         SELECT true AS is_there FROM webhook_runtime r WHERE r.webhook_id = k.webhook_id AND k.change_it
         AND NOT k.create_it
         LIMIT 1 FOR NO KEY UPDATE) c ON true
     LEFT JOIN LATERAL (
         SELECT true AS is_there FROM webhook_runtime r WHERE r.webhook_id = k.webhook_id AND NOT k.change_it
         AND NOT k.create_it
         LIMIT 1 FOR SHARE) s ON true
     WHERE CASE WHEN c.is_there IS NULL AND s.is_there IS NULL THEN k.create_it ELSE false END
     ON CONFLICT (webhook_id) DO UPDATE SET tenant_id = excluded.tenant_id WHERE false";
const SELECT_DEAD_EVENT_TYPES: &str =
    "SELECT delivery_id, event_type FROM dead WHERE delivery_id = ANY($1::uuid[])";
const SELECT_EXPIRED_WEBHOOKS: &str =
    "SELECT tenant_id, id FROM webhooks WHERE expires_at IS NOT NULL AND expires_at <= $1
     AND (tenant_id <> ALL($3::text[]) OR state NOT LIKE '{\"pending_verification\"%')
     ORDER BY expires_at LIMIT $2";
const SELECT_NEXT_EXPIRY: &str =
    "SELECT expires_at FROM webhooks WHERE expires_at IS NOT NULL AND expires_at > $1
     ORDER BY expires_at LIMIT 1";
const BEGIN_PERIOD: &str =
    "INSERT INTO circuit_periods (webhook_id, opened_at, forced, counts, tenant_id, continues)
     SELECT $1, $2, $3, $4, $5,
         EXISTS (SELECT 1 FROM circuit_periods WHERE webhook_id = $1 AND closed_at IS NULL AND NOT continues)
     WHERE NOT EXISTS (SELECT 1 FROM circuit_periods WHERE webhook_id = $1 AND ended_at IS NULL)
     ON CONFLICT DO NOTHING";
const END_PERIOD: &str =
    "UPDATE circuit_periods SET ended_at = $2 WHERE webhook_id = $1 AND ended_at IS NULL";
const RESOLVE_INCIDENT: &str = "UPDATE circuit_periods SET closed_at = $2
     WHERE webhook_id = $1 AND closed_at IS NULL AND NOT continues";

/// Statements whose cost must be proportional to the rows they return or change; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 13] = [
    ("lock webhook runtime", LOCK_RUNTIME),
    ("periods", PERIODS),
    ("incidents", INCIDENTS),
    ("circuits", SELECT_CIRCUITS),
    ("circuits of all tenants", SELECT_ALL_CIRCUITS),
    ("oldest", SELECT_OLDEST_WAITING),
    ("expire", DELETE_OLD_WAITING),
    ("died", SELECT_DEAD_EVENT_TYPES),
    ("expired webhooks", SELECT_EXPIRED_WEBHOOKS),
    ("next to expire", SELECT_NEXT_EXPIRY),
    ("begin a period", BEGIN_PERIOD),
    ("end a period", END_PERIOD),
    ("resolve an incident", RESOLVE_INCIDENT),
];

impl RuntimeState for Postgres {
    fn list_runtime(&self) -> StoreFuture<'_, Vec<WebhookRuntime>> {
        Box::pin(async move {
            self.read(|session| async move {
                session.query(SELECT_IMPAIRED, &[]).await?.iter().map(read_runtime).collect()
            })
            .await
        })
    }

    fn get_runtime(&self, webhooks: Vec<WebhookId>) -> StoreFuture<'_, Vec<WebhookRuntime>> {
        Box::pin(async move {
            let webhooks: Vec<_> = webhooks.into_iter().map(Col).collect();
            self.read(|session| {
                let webhooks = &webhooks;
                async move {
                    let rows = session.query(SELECT_RUNTIME, &[webhooks]).await?;
                    rows.iter().map(read_runtime).collect()
                }
            })
            .await
        })
    }

    fn set_circuit(
        &self,
        tenant_id: TenantId,
        webhook_id: WebhookId,
        circuit: SavedCircuit,
        occurrence: Option<Occurrence>,
    ) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let stored = self
                .write(|tx| {
                    let (tenant_id, circuit, occurrence) = (&tenant_id, &circuit, occurrence.as_ref());
                    async move {
                        let reported = occurrence_for(&tx, webhook_id, circuit, occurrence).await?;
                        let stored = set_circuit(&tx, tenant_id, webhook_id, circuit).await?;
                        if stored {
                            lanes::recompute_lanes(&tx, webhook_id).await?;
                            changes::append(&tx, &Change::Runtime(webhook_id)).await?;
                            notifications::record_occurrences(&tx, reported.as_slice()).await?;
                        }
                        Ok(stored)
                    }
                })
                .await?;
            self.shared.hints.change();
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
        Box::pin(async move {
            let is_reported = self
                .write(|tx| {
                    let (tenant_id, rule) = (&tenant_id, &rule);
                    async move {
                        let occurrence = failures::report(&tx, tenant_id, webhook_id, rule, now).await?;
                        let occurrence = occurrence.as_ref();
                        notifications::record_occurrences(&tx, occurrence.as_slice()).await?;
                        Ok(occurrence.is_some())
                    }
                })
                .await?;
            if is_reported {
                self.shared.hints.change();
            }
            Ok(is_reported)
        })
    }
}

impl WebhookHistory for Postgres {
    fn circuit_periods(
        &self,
        tenant_id: TenantId,
        webhook_id: WebhookId,
        from: Time,
        limit: usize,
    ) -> StoreFuture<'_, Vec<CircuitPeriod>> {
        Box::pin(async move {
            self.list_for(&tenant_id, |session| circuit_periods(session, webhook_id, from, limit)).await
        })
    }

    fn incidents(
        &self,
        tenant_id: TenantId,
        visibility: Visibility,
        limit: usize,
    ) -> StoreFuture<'_, Vec<Incident>> {
        Box::pin(async move {
            self.list_for(&tenant_id, |session| {
                let tenant_id = &tenant_id;
                async move {
                    let rows = session
                        .query(
                            INCIDENTS,
                            &[&tenant_id.as_str(), &(limit as i64), &visibility.is_restricted()],
                        )
                        .await?;
                    let read =
                        |row: &Row| Ok(Incident { webhook_id: get(row, 4)?, period: read_period(row)? });
                    rows.iter().map(read).collect()
                }
            })
            .await
        })
    }

    fn circuits(
        &self,
        tenant_id: TenantId,
        visibility: Visibility,
        limit: usize,
    ) -> StoreFuture<'_, Vec<WebhookRuntime>> {
        Box::pin(async move {
            self.list_for(&tenant_id, |session| {
                let tenant_id = &tenant_id;
                async move {
                    let rows = session
                        .query(
                            SELECT_CIRCUITS,
                            &[&tenant_id.as_str(), &(limit as i64), &visibility.is_restricted()],
                        )
                        .await?;
                    rows.iter().map(read_runtime).collect()
                }
            })
            .await
        })
    }

    fn circuit_periods_of(
        &self,
        tenant_id: TenantId,
        webhooks: Vec<WebhookId>,
        from: Time,
        limit: usize,
    ) -> StoreFuture<'_, Vec<(WebhookId, Vec<CircuitPeriod>)>> {
        Box::pin(async move {
            let webhooks: Vec<_> = webhooks.into_iter().map(Col).collect();
            self.list_for(&tenant_id, |session| {
                let (tenant_id, webhooks) = (&tenant_id, &webhooks);
                async move {
                    let limit = limit as i64;
                    let rows = session
                        .query(PERIODS_OF_SEVERAL, &[webhooks, &tenant_id.as_str(), &Col(from), &limit])
                        .await?;
                    let mut found: Vec<(WebhookId, Vec<CircuitPeriod>)> = Vec::new();
                    for row in &rows {
                        let (webhook_id, period) = (get(row, 4)?, read_period(row)?);
                        match found.last_mut() {
                            Some((last, periods)) if *last == webhook_id => periods.push(period),
                            _ => found.push((webhook_id, vec![period])),
                        }
                    }
                    Ok(found)
                }
            })
            .await
        })
    }

    fn backlogs(
        &self,
        for_tenant: Option<TenantId>,
        webhooks: Vec<WebhookId>,
        now: Time,
        max: usize,
    ) -> StoreFuture<'_, Vec<(WebhookId, Backlog)>> {
        Box::pin(async move {
            self.read_for(for_tenant.as_ref(), |session| {
                backlog::count_by_webhook(session, &webhooks, now, max)
            })
            .await
        })
    }

    fn backlogged(&self, tenant_id: TenantId, look_at: usize) -> StoreFuture<'_, BackloggedWebhooks> {
        Box::pin(async move {
            self.list_for(&tenant_id, |session| backlog::list_for_tenant(session, &tenant_id, look_at)).await
        })
    }
}

impl WebhookTimers for Postgres {
    fn oldest_waiting(
        &self,
        after: Option<WebhookId>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<(WebhookId, Time)>> {
        Box::pin(async move {
            let after = Col(after.unwrap_or(WebhookId::from_bytes([0; 16])));
            self.read(|session| async move {
                let rows = session.query(SELECT_OLDEST_WAITING, &[&after, &(limit as i32)]).await?;
                rows.iter()
                    .map(|row| Ok((get(row, 0)?, get_opt(row, 1)?.unwrap_or(Time::FAR_FUTURE))))
                    .collect()
            })
            .await
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
        Box::pin(async move {
            let occurrence = occurrence.as_ref();
            self.write(|tx| expire(tx, webhook_id, made_before, now, limit, occurrence)).await
        })
    }

    fn webhooks_with_due_action(
        &self,
        now: Time,
        limit: usize,
        except: Vec<TenantId>,
    ) -> StoreFuture<'_, WebhooksWithDueAction> {
        Box::pin(async move {
            let except: Vec<&str> = except.iter().map(TenantId::as_str).collect();
            self.read(|session| {
                let except = &except;
                async move {
                    let rows =
                        session.query(SELECT_EXPIRED_WEBHOOKS, &[&Col(now), &(limit as i64), except]).await?;
                    let due = rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?)));
                    let due = due.collect::<Result<_, Failure>>()?;
                    let next = session.query_opt(SELECT_NEXT_EXPIRY, &[&Col(now)]).await?;
                    Ok(WebhooksWithDueAction { due, next: next.map(|row| get(&row, 0)).transpose()? })
                }
            })
            .await
        })
    }
}

async fn circuit_periods(
    session: Tx,
    webhook_id: WebhookId,
    from: Time,
    limit: usize,
) -> Result<Vec<CircuitPeriod>, Failure> {
    let rows = session.query(PERIODS, &[&Col(webhook_id), &(limit as i64)]).await?;
    let mut periods = Vec::new();
    for row in &rows {
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

/// Locks a webhook's `webhook_runtime` row against changes (`FOR SHARE`) until the end of the transaction.
pub(super) async fn lock(tx: &Session, webhook_id: WebhookId) -> Result<(), Failure> {
    tx.query("SELECT 1 FROM webhook_runtime WHERE webhook_id = $1 FOR SHARE", &[&Col(webhook_id)]).await?;
    Ok(())
}

/// Locks a webhook's `webhook_runtime` row exclusively (`FOR UPDATE`) until the end of the transaction.
pub(super) async fn lock_to_change(tx: &Session, webhook_id: WebhookId) -> Result<(), Failure> {
    tx.query("SELECT 1 FROM webhook_runtime WHERE webhook_id = $1 FOR UPDATE", &[&Col(webhook_id)]).await?;
    Ok(())
}

/// How a transaction locks the `webhook_runtime` row of one webhook, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RuntimeLock {
    /// The row must not change.
    Keep,
    /// The row is changed if it exists.
    Change,
    /// The row is changed, and created if it is missing.
    Create,
}

impl RuntimeLock {
    /// Returns the lock that an outcome needs for its webhook.
    pub(super) fn for_outcome(outcome: &OutcomeRecord) -> Self {
        let WebhookEffects { circuit, pause_until, failing } = &outcome.effects;
        match (circuit, pause_until, failing) {
            (None, None, None) if outcome.disable.is_none() => Self::Keep,
            (None, None, None | Some(FailingChange::Recovered)) => Self::Change,
            _ => Self::Create,
        }
    }
}

/// Locks the `webhook_runtime` rows of several webhooks in order, with one statement.
pub(super) async fn lock_all(
    tx: &Session,
    webhooks: &BTreeMap<WebhookId, (&TenantId, RuntimeLock)>,
) -> Result<(), Failure> {
    let ids: Vec<_> = webhooks.keys().map(|webhook_id| Col(*webhook_id)).collect();
    let tenants: Vec<_> = webhooks.values().map(|(tenant, _)| tenant.as_str()).collect();
    let create: Vec<_> = webhooks.values().map(|(_, lock)| *lock == RuntimeLock::Create).collect();
    let change: Vec<_> = webhooks.values().map(|(_, lock)| *lock >= RuntimeLock::Change).collect();
    tx.execute(LOCK_RUNTIME, &[&ids, &tenants, &create, &change]).await?;
    Ok(())
}

/// Stores whether a webhook is paused. Returns `true` if that has changed: its lanes must be recomputed then.
pub(super) async fn pause(tx: &Session, webhook: &Webhook) -> Result<bool, Failure> {
    let paused = webhook.state.parks_deliveries();
    let was =
        tx.query_opt("SELECT paused FROM webhook_runtime WHERE webhook_id = $1", &[&Col(webhook.id)]).await?;
    if was.map(|row| plain::<bool>(&row, 0)).transpose()?.unwrap_or(false) == paused {
        return Ok(false);
    }
    ensure_runtime(tx, &webhook.tenant_id, webhook.id).await?;
    tx.execute("UPDATE webhook_runtime SET paused = $2 WHERE webhook_id = $1", &[&Col(webhook.id), &paused])
        .await?;
    Ok(true)
}

/// Applies the effects of an outcome to its webhook. The `webhook_runtime` row and the lanes must be locked.
pub(super) async fn apply_effects<'a>(
    tx: &Session,
    outcome: &'a OutcomeRecord,
    reported: &mut Vec<Cow<'a, Occurrence>>,
) -> Result<(), Failure> {
    let (tenant_id, webhook_id, effects) = (&outcome.tenant_id, outcome.webhook_id, &outcome.effects);
    if *effects == WebhookEffects::default() {
        return Ok(());
    }
    if let Some(change) = effects.failing {
        reported.extend(failures::apply(tx, outcome, change).await?.map(Cow::Owned));
    }
    changes::append(tx, &Change::Runtime(webhook_id)).await?;
    let mut changed = false;
    if let Some(until) = effects.pause_until {
        ensure_runtime(tx, tenant_id, webhook_id).await?;
        let set_pause =
            "UPDATE webhook_runtime SET paused_until = $2 WHERE webhook_id = $1 AND paused_until < $2";
        changed |= tx.execute(set_pause, &[&Col(webhook_id), &Col(until)]).await? == 1;
    }
    if let Some(circuit) = &effects.circuit {
        let occurrence =
            outcome.occurrences.iter().find(|occurrence| occurrence.kind.is_circuit_transition());
        let occurrence = occurrence_for(tx, webhook_id, circuit, occurrence).await?;
        if set_circuit(tx, tenant_id, webhook_id, circuit).await? {
            changed = true;
            reported.extend(occurrence.map(Cow::Borrowed));
        }
    }
    if changed {
        lanes::settle_locked(tx, webhook_id).await?;
    }
    Ok(())
}

/// Returns the occurrence if this circuit change is the transition that it reports.
async fn occurrence_for<'a>(
    tx: &Session,
    webhook_id: WebhookId,
    circuit: &SavedCircuit,
    occurrence: Option<&'a Occurrence>,
) -> Result<Option<&'a Occurrence>, Failure> {
    let Some(occurrence) = occurrence else { return Ok(None) };
    // If two nodes detect the transition concurrently, only the first one reports it.
    ensure_runtime(tx, &occurrence.tenant_id, webhook_id).await?;
    let stored = "SELECT circuit FROM webhook_runtime WHERE webhook_id = $1 FOR UPDATE";
    let before = tx.query_one(stored, &[&Col(webhook_id)]).await?;
    let before: Option<SavedCircuit> =
        plain::<Option<&str>>(&before, 0)?.map(serde_json::from_str).transpose()?;
    Ok(Some(occurrence)
        .filter(|occurrence| for_transition(before.as_ref(), circuit) == Some(occurrence.kind)))
}

pub(super) async fn ensure_runtime(
    tx: &Session,
    tenant_id: &TenantId,
    webhook_id: WebhookId,
) -> Result<(), Failure> {
    let row = "INSERT INTO webhook_runtime (webhook_id, tenant_id) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    tx.execute(row, &[&Col(webhook_id), &tenant_id.as_str()]).await?;
    Ok(())
}

/// Deletes the `webhook_runtime` row of a deleted webhook that has no deliveries left.
pub(super) async fn delete_runtime(tx: &Session, webhook_id: WebhookId) -> Result<(), Failure> {
    let delete =
        "DELETE FROM webhook_runtime WHERE webhook_id = $1 AND (SELECT deleted FROM webhooks WHERE id = $1)";
    tx.execute(delete, &[&Col(webhook_id)]).await?;
    Ok(())
}

/// Returns the generation of the newest circuit that was stored for a webhook, 0 if there was none.
pub(super) async fn circuit_generation(tx: &Session, webhook_id: WebhookId) -> Result<u64, Failure> {
    let stored = "SELECT generation FROM webhook_runtime WHERE webhook_id = $1";
    let stored = tx.query_opt(stored, &[&Col(webhook_id)]).await?;
    Ok(stored.map(|row| plain::<i64>(&row, 0)).transpose()?.map_or(0, i64::unsigned_abs))
}

/// Stores a circuit, and the time until which it blocks, unless a newer one is stored.
pub(super) async fn set_circuit(
    tx: &Session,
    tenant_id: &TenantId,
    webhook_id: WebhookId,
    circuit: &SavedCircuit,
) -> Result<bool, Failure> {
    ensure_runtime(tx, tenant_id, webhook_id).await?;
    let json = (!circuit.is_default()).then(|| to_json(circuit)).transpose()?;
    let stored = tx
        .execute(
            "UPDATE webhook_runtime SET circuit = $2, generation = $3, circuit_until = $4, circuit_since = $5
             WHERE webhook_id = $1 AND generation <= $3",
            &[
                &Col(webhook_id),
                &json,
                &(circuit.generation as i64),
                &Col(circuit.blocked_until().unwrap_or_default()),
                &Col(circuit.since),
            ],
        )
        .await?;
    if stored == 0 {
        return Ok(false);
    }
    set_period(tx, tenant_id, webhook_id, circuit).await?;
    Ok(true)
}

/// Begins or ends the open period of a circuit, and its incident.
async fn set_period(
    tx: &Session,
    tenant_id: &TenantId,
    webhook_id: WebhookId,
    circuit: &SavedCircuit,
) -> Result<(), Failure> {
    let state = circuit.effective_state();
    if state == CircuitState::Open {
        let (forced, counts) = (circuit.forced.is_some(), to_json(&circuit.counts)?);
        let since = Col(circuit.since);
        tx.execute(BEGIN_PERIOD, &[&Col(webhook_id), &since, &forced, &counts, &tenant_id.as_str()]).await?;
        return Ok(());
    }
    tx.execute(END_PERIOD, &[&Col(webhook_id), &Col(circuit.since)]).await?;
    if state == CircuitState::Closed {
        tx.execute(RESOLVE_INCIDENT, &[&Col(webhook_id), &Col(circuit.since)]).await?;
    }
    Ok(())
}

async fn expire(
    tx: Tx,
    webhook_id: WebhookId,
    made_before: Time,
    now: Time,
    limit: usize,
    occurrence: Option<&Occurrence>,
) -> Result<BatchProgress, Failure> {
    lock(&tx, webhook_id).await?;
    let locked = lanes::lock_all(&tx, webhook_id).await?;
    let lanes: Vec<_> = locked.iter().map(|(_, lane)| lane.as_str()).collect();
    let mut keys = Keys::new();
    let mut expired: Vec<Col<DeliveryId>> = Vec::new();
    for row in
        tx.query(DELETE_OLD_WAITING, &[&Col(webhook_id), &Col(made_before), &(limit as i64), &lanes]).await?
    {
        expired.push(Col(get(&row, 0)?));
        keys.insert((webhook_id, plain(&row, 1)?));
    }
    tx.execute(
        "UPDATE deliveries d SET status = $2, ended_at = $3, dead_reason = $4 WHERE d.id = ANY($1::uuid[])",
        &[&expired, &Col(DeliveryStatus::Dead), &Col(now), &Col(DeadReason::Expired)],
    )
    .await?;
    record::insert_dead_letter(&tx, &expired).await?;
    undelivered::record(&tx, &expired).await?;
    lanes::set_by_first(&tx, &keys).await?;
    if let Some(occurrence) = occurrence {
        let dead = tx.query(SELECT_DEAD_EVENT_TYPES, &[&expired]).await?;
        let dead = dead.iter().map(|row| Ok((get(row, 0)?, plain(row, 1)?)));
        let occurrence = with_dead_count(occurrence.clone(), dead.collect::<Result<_, Failure>>()?);
        notifications::record_occurrences(&tx, occurrence.as_ref().as_slice()).await?;
    }
    Ok(BatchProgress { changed: expired.len(), finished: expired.len() < limit })
}

/// Lists the circuits of all tenants that are not closed, or were set manually.
pub(super) async fn list_circuits(session: Tx, limit: usize) -> Result<Vec<WebhookRuntime>, Failure> {
    session.query(SELECT_ALL_CIRCUITS, &[&(limit as i64)]).await?.iter().map(read_runtime).collect()
}

fn read_runtime(row: &Row) -> Result<WebhookRuntime, Failure> {
    Ok(WebhookRuntime {
        webhook_id: get(row, 0)?,
        tenant_id: get(row, 1)?,
        pause_until: Some(get(row, 2)?).filter(|until| *until > Time::default()),
        circuit: plain::<Option<&str>>(row, 3)?.map(serde_json::from_str).transpose()?,
        generation: plain::<i64>(row, 4)? as u64,
        failures: failures::read_series(row, 5, 6)?,
    })
}

fn read_period(row: &Row) -> Result<CircuitPeriod, Failure> {
    Ok(CircuitPeriod {
        opened_at: get(row, 0)?,
        ended_at: get_opt(row, 1)?,
        forced: plain(row, 2)?,
        counts: from_json(row, 3)?,
    })
}
