//! What holds webhooks back, and what their circuits have been through.

use std::collections::BTreeMap;

use redrive_core::{
    DeadReason, DeliveryId, DeliveryStatus, TenantId, Time, WebhookId,
    notification::{Cause, grouping::died_of, of_move},
    protection::breaker::{CircuitState, SavedCircuit},
    webhook::{Webhook, WebhookState},
};
use tokio_postgres::Row;

use super::{
    Postgres, backlog, changes,
    convert::{Col, get, get_opt, plain},
    lanes::{self, Keys},
    notifications, record,
    session::{Failure, Session, Tx},
    undelivered,
    webhooks::{from_json, to_json},
};
use crate::{
    Answer, Backlog, Backlogged, Change, Effects, Expiring, Failing, Gates, Incident, Outcome, Period,
    Runtime, Step, Visibility,
};

const TROUBLED: &str = "SELECT webhook, tenant, hold_until, circuit, generation, failing_since FROM runtime
     WHERE hold_until > 0 OR circuit IS NOT NULL OR failing_since IS NOT NULL";
const SELECT_RUNTIME: &str =
    "SELECT webhook, tenant, hold_until, circuit, generation, failing_since FROM runtime
     WHERE webhook = ANY($1::uuid[])
         AND (hold_until > 0 OR generation > 0 OR circuit IS NOT NULL OR failing_since IS NOT NULL)";

/// The newest first, so that a page costs what it shows.
const PERIODS: &str = "SELECT opened_at, ended_at, forced, counts FROM circuit_periods
     WHERE webhook = $1 ORDER BY opened_at DESC LIMIT $2";
const PERIODS_OF_SEVERAL: &str = "SELECT p.opened_at, p.ended_at, p.forced, p.counts, asked.id
     FROM unnest($1::uuid[]) AS asked(id)
     CROSS JOIN LATERAL (SELECT opened_at, ended_at, forced, counts FROM circuit_periods
                         WHERE webhook = asked.id AND tenant = $2 ORDER BY opened_at DESC LIMIT $4) p
     WHERE p.ended_at IS NULL OR p.ended_at > $3
     ORDER BY asked.id, p.opened_at";
const INCIDENTS: &str = "SELECT opened_at, ended_at, forced, counts, webhook FROM circuit_periods
     WHERE tenant = $1 AND NOT ($3::boolean AND coalesce(
         (SELECT h.managed_by_operator FROM webhooks h WHERE h.id = circuit_periods.webhook LIMIT 1), false))
     ORDER BY opened_at DESC LIMIT $2";
const CIRCUITS: &str = "SELECT webhook, tenant, hold_until, circuit, generation, failing_since FROM runtime
     WHERE tenant = $1 AND circuit IS NOT NULL AND NOT ($3::boolean AND coalesce(
         (SELECT h.managed_by_operator FROM webhooks h WHERE h.id = runtime.webhook LIMIT 1), false))
     ORDER BY webhook LIMIT $2";
/// Each webhook is looked up after the one before it: there may be very many lanes to one.
const OLDEST: &str = "WITH RECURSIVE found(webhook, n) AS (
         (SELECT webhook, 1 FROM lanes WHERE webhook > $1 ORDER BY webhook LIMIT 1)
         UNION ALL
         SELECT (SELECT l.webhook FROM lanes l WHERE l.webhook > f.webhook ORDER BY l.webhook LIMIT 1), f.n + 1
         FROM found f WHERE f.webhook IS NOT NULL AND f.n < $2)
     SELECT webhook, (SELECT w.created_at FROM waiting w WHERE w.webhook = found.webhook
                      ORDER BY w.created_at LIMIT 1)
     FROM found WHERE webhook IS NOT NULL";
/// Only what waits in lanes that are locked ($4).
const EXPIRE: &str = "DELETE FROM waiting WHERE delivery = ANY(ARRAY(
         SELECT delivery FROM waiting WHERE webhook = $1 AND created_at < $2 AND lane = ANY($4::text[])
         ORDER BY created_at LIMIT $3))
     RETURNING delivery, lane";
/// Locks what blocks webhooks, in their order: rows that are created if they are missing ($3), rows that are changed
/// if they are there ($4), and others that are kept as they are. Each is looked up right before it is inserted.
const LOCK: &str = "INSERT INTO runtime (webhook, tenant) SELECT k.webhook, k.tenant
     FROM unnest($1::uuid[], $2::text[], $3::boolean[], $4::boolean[]) AS k(webhook, tenant, create_it, change_it)
     LEFT JOIN LATERAL (
         SELECT true AS is_there FROM runtime r WHERE r.webhook = k.webhook AND k.change_it AND NOT k.create_it
         LIMIT 1 FOR NO KEY UPDATE) c ON true
     LEFT JOIN LATERAL (
         SELECT true AS is_there FROM runtime r WHERE r.webhook = k.webhook AND NOT k.change_it AND NOT k.create_it
         LIMIT 1 FOR SHARE) s ON true
     WHERE CASE WHEN c.is_there IS NULL AND s.is_there IS NULL THEN k.create_it ELSE false END
     ON CONFLICT (webhook) DO UPDATE SET tenant = excluded.tenant WHERE false";
const DIED: &str = "SELECT delivery, event_type FROM dead WHERE delivery = ANY($1::uuid[])";
const EXPIRED: &str = "SELECT tenant, id FROM webhooks WHERE expires_at IS NOT NULL AND expires_at <= $1
     AND (tenant <> ALL($3::text[]) OR state NOT LIKE '{\"pending_verification\"%')
     ORDER BY expires_at LIMIT $2";
const NEXT_TO_EXPIRE: &str =
    "SELECT expires_at FROM webhooks WHERE expires_at IS NOT NULL AND expires_at > $1
     ORDER BY expires_at LIMIT 1";
const BEGIN_PERIOD: &str = "INSERT INTO circuit_periods (webhook, opened_at, forced, counts, tenant)
     SELECT $1, $2, $3, $4, $5
     WHERE NOT EXISTS (SELECT 1 FROM circuit_periods WHERE webhook = $1 AND ended_at IS NULL)
     ON CONFLICT DO NOTHING";
const END_PERIOD: &str = "UPDATE circuit_periods SET ended_at = $2 WHERE webhook = $1 AND ended_at IS NULL";

/// The statements whose cost must follow what they answer or change: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED: [(&str, &str); 11] = [
    ("lock what blocks webhooks", LOCK),
    ("periods", PERIODS),
    ("incidents", INCIDENTS),
    ("circuits", CIRCUITS),
    ("oldest", OLDEST),
    ("expire", EXPIRE),
    ("died", DIED),
    ("expired webhooks", EXPIRED),
    ("next to expire", NEXT_TO_EXPIRE),
    ("begin a period", BEGIN_PERIOD),
    ("end a period", END_PERIOD),
];

impl Gates for Postgres {
    fn troubled(&self) -> Answer<'_, Vec<Runtime>> {
        Box::pin(async move {
            self.read(|session| async move {
                session.query(TROUBLED, &[]).await?.iter().map(read_runtime).collect()
            })
            .await
        })
    }

    fn trouble_of(&self, webhooks: Vec<WebhookId>) -> Answer<'_, Vec<Runtime>> {
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
        tenant: TenantId,
        webhook: WebhookId,
        circuit: SavedCircuit,
        cause: Option<Cause>,
    ) -> Answer<'_, bool> {
        Box::pin(async move {
            let stored = self
                .write(|tx| {
                    let (tenant, circuit, cause) = (&tenant, &circuit, cause.as_ref());
                    async move {
                        let told = told_of(&tx, webhook, circuit, cause).await?;
                        let stored = set_circuit(&tx, tenant, webhook, circuit).await?;
                        if stored {
                            lanes::settle_all(&tx, webhook).await?;
                            changes::tell(&tx, &Change::Gate(webhook)).await?;
                            notifications::note(&tx, told.as_slice()).await?;
                        }
                        Ok(stored)
                    }
                })
                .await?;
            self.shared.hints.change();
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
        Box::pin(async move {
            self.list_for(&tenant, |session| circuit_periods(session, webhook, from, limit)).await
        })
    }

    fn circuit_periods_of(
        &self,
        tenant: TenantId,
        webhooks: Vec<WebhookId>,
        from: Time,
        limit: usize,
    ) -> Answer<'_, Vec<(WebhookId, Vec<Period>)>> {
        Box::pin(async move {
            let webhooks: Vec<_> = webhooks.into_iter().map(Col).collect();
            self.list_for(&tenant, |session| {
                let (tenant, webhooks) = (&tenant, &webhooks);
                async move {
                    let limit = limit as i64;
                    let rows = session
                        .query(PERIODS_OF_SEVERAL, &[webhooks, &tenant.as_str(), &Col(from), &limit])
                        .await?;
                    let mut found: Vec<(WebhookId, Vec<Period>)> = Vec::new();
                    for row in &rows {
                        let (webhook, period) = (get(row, 4)?, read_period(row)?);
                        match found.last_mut() {
                            Some((last, periods)) if *last == webhook => periods.push(period),
                            _ => found.push((webhook, vec![period])),
                        }
                    }
                    Ok(found)
                }
            })
            .await
        })
    }

    fn incidents(&self, tenant: TenantId, visibility: Visibility, limit: usize) -> Answer<'_, Vec<Incident>> {
        Box::pin(async move {
            self.list_for(&tenant, |session| {
                let tenant = &tenant;
                async move {
                    let rows = session
                        .query(INCIDENTS, &[&tenant.as_str(), &(limit as i64), &visibility.is_restricted()])
                        .await?;
                    let read = |row: &Row| Ok(Incident { webhook: get(row, 4)?, period: read_period(row)? });
                    rows.iter().map(read).collect()
                }
            })
            .await
        })
    }

    fn circuits(&self, tenant: TenantId, visibility: Visibility, limit: usize) -> Answer<'_, Vec<Runtime>> {
        Box::pin(async move {
            self.list_for(&tenant, |session| {
                let tenant = &tenant;
                async move {
                    let rows = session
                        .query(CIRCUITS, &[&tenant.as_str(), &(limit as i64), &visibility.is_restricted()])
                        .await?;
                    rows.iter().map(read_runtime).collect()
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
        most: usize,
    ) -> Answer<'_, Vec<(WebhookId, Backlog)>> {
        Box::pin(async move {
            self.read_for(for_tenant.as_ref(), |session| backlog::of(session, &webhooks, now, most)).await
        })
    }

    fn backlogged(&self, tenant: TenantId, look_at: usize) -> Answer<'_, Backlogged> {
        Box::pin(async move {
            self.list_for(&tenant, |session| backlog::of_tenant(session, &tenant, look_at)).await
        })
    }

    fn oldest(&self, after: Option<WebhookId>, limit: usize) -> Answer<'_, Vec<(WebhookId, Time)>> {
        Box::pin(async move {
            let after = Col(after.unwrap_or(WebhookId::from_bytes([0; 16])));
            self.read(|session| async move {
                let rows = session.query(OLDEST, &[&after, &(limit as i32)]).await?;
                rows.iter().map(|row| Ok((get(row, 0)?, get_opt(row, 1)?.unwrap_or(Time::FOREVER)))).collect()
            })
            .await
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
        Box::pin(async move {
            let cause = cause.as_ref();
            self.write(|tx| expire(tx, webhook, made_before, now, limit, cause)).await
        })
    }

    fn expiring(&self, now: Time, limit: usize, except: Vec<TenantId>) -> Answer<'_, Expiring> {
        Box::pin(async move {
            let except: Vec<&str> = except.iter().map(TenantId::as_str).collect();
            self.read(|session| {
                let except = &except;
                async move {
                    let rows = session.query(EXPIRED, &[&Col(now), &(limit as i64), except]).await?;
                    let expired = rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?)));
                    let expired = expired.collect::<Result<_, Failure>>()?;
                    let next = session.query_opt(NEXT_TO_EXPIRE, &[&Col(now)]).await?;
                    Ok(Expiring { expired, next: next.map(|row| get(&row, 0)).transpose()? })
                }
            })
            .await
        })
    }
}

async fn circuit_periods(
    session: Tx,
    webhook: WebhookId,
    from: Time,
    limit: usize,
) -> Result<Vec<Period>, Failure> {
    let rows = session.query(PERIODS, &[&Col(webhook), &(limit as i64)]).await?;
    let mut periods = Vec::new();
    for row in &rows {
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

/// Keeps what blocks a webhook as it is until the end of the transaction.
pub(super) async fn lock(tx: &Session, webhook: WebhookId) -> Result<(), Failure> {
    tx.query("SELECT 1 FROM runtime WHERE webhook = $1 FOR SHARE", &[&Col(webhook)]).await?;
    Ok(())
}

/// Locks what blocks a webhook until the end of the transaction.
pub(super) async fn lock_to_change(tx: &Session, webhook: WebhookId) -> Result<(), Failure> {
    tx.query("SELECT 1 FROM runtime WHERE webhook = $1 FOR UPDATE", &[&Col(webhook)]).await?;
    Ok(())
}

/// How a transaction locks what blocks one webhook. The greater one is the stronger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RuntimeLock {
    /// It stays as it is.
    Keep,
    /// It is changed, if it is there.
    Change,
    /// It is changed, and created if it is missing.
    Create,
}

impl RuntimeLock {
    /// What an outcome needs for its webhook.
    pub(super) fn for_outcome(outcome: &Outcome) -> Self {
        let Effects { circuit, hold_until, failing } = &outcome.effects;
        match (circuit, hold_until, failing) {
            (None, None, None) if outcome.disable.is_none() => Self::Keep,
            (None, None, None | Some(Failing::Over)) => Self::Change,
            _ => Self::Create,
        }
    }
}

/// Locks what blocks webhooks, all of it by one statement and in order.
pub(super) async fn lock_all(
    tx: &Session,
    webhooks: &BTreeMap<WebhookId, (&TenantId, RuntimeLock)>,
) -> Result<(), Failure> {
    let ids: Vec<_> = webhooks.keys().map(|webhook| Col(*webhook)).collect();
    let tenants: Vec<_> = webhooks.values().map(|(tenant, _)| tenant.as_str()).collect();
    let create: Vec<_> = webhooks.values().map(|(_, lock)| *lock == RuntimeLock::Create).collect();
    let change: Vec<_> = webhooks.values().map(|(_, lock)| *lock >= RuntimeLock::Change).collect();
    tx.execute(LOCK, &[&ids, &tenants, &create, &change]).await?;
    Ok(())
}

/// A webhook that gets events again after it got none starts anew: its failures before do not count.
pub(super) async fn forgive(tx: &Session, webhook: &Webhook) -> Result<(), Failure> {
    let was = tx.query_opt("SELECT state FROM webhooks WHERE id = $1", &[&Col(webhook.id)]).await?;
    let was: Option<WebhookState> = was.map(|row| from_json(&row, 0)).transpose()?;
    if was.is_some_and(|was| !was.gets_events()) && webhook.state.gets_events() {
        let forgive = "UPDATE runtime SET failing_since = NULL WHERE webhook = $1";
        tx.execute(forgive, &[&Col(webhook.id)]).await?;
    }
    Ok(())
}

/// Notes whether a webhook is paused. Returns `true` if that has changed: its lanes have to be settled then.
pub(super) async fn pause(tx: &Session, webhook: &Webhook) -> Result<bool, Failure> {
    let paused = webhook.state.holds_back();
    let was = tx.query_opt("SELECT paused FROM runtime WHERE webhook = $1", &[&Col(webhook.id)]).await?;
    if was.map(|row| plain::<bool>(&row, 0)).transpose()?.unwrap_or(false) == paused {
        return Ok(false);
    }
    has_row(tx, &webhook.tenant, webhook.id).await?;
    tx.execute("UPDATE runtime SET paused = $2 WHERE webhook = $1", &[&Col(webhook.id), &paused]).await?;
    Ok(true)
}

/// What an outcome means for its webhook. What blocks it and its lanes must be locked.
pub(super) async fn take_effect<'a>(
    tx: &Session,
    outcome: &'a Outcome,
) -> Result<Option<&'a Cause>, Failure> {
    let (tenant, webhook, effects) = (&outcome.tenant, outcome.webhook, &outcome.effects);
    if *effects == Effects::default() {
        return Ok(None);
    }
    match effects.failing {
        None => {}
        Some(Failing::Since(since)) => {
            has_row(tx, tenant, webhook).await?;
            // The first failure counts, not the last one to be written down.
            let note = "UPDATE runtime SET failing_since = coalesce(failing_since, $2) WHERE webhook = $1";
            tx.execute(note, &[&Col(webhook), &Col(since)]).await?;
        }
        Some(Failing::Over) => {
            let note = "UPDATE runtime SET failing_since = NULL WHERE webhook = $1";
            tx.execute(note, &[&Col(webhook)]).await?;
        }
    }
    changes::tell(tx, &Change::Gate(webhook)).await?;
    let mut moved = false;
    if let Some(until) = effects.hold_until {
        has_row(tx, tenant, webhook).await?;
        let hold = "UPDATE runtime SET hold_until = $2 WHERE webhook = $1 AND hold_until < $2";
        moved |= tx.execute(hold, &[&Col(webhook), &Col(until)]).await? == 1;
    }
    let mut told = None;
    if let Some(circuit) = &effects.circuit {
        let cause = outcome.causes.iter().find(|cause| cause.kind.counterpart().is_some());
        let cause = told_of(tx, webhook, circuit, cause).await?;
        if set_circuit(tx, tenant, webhook, circuit).await? {
            (moved, told) = (true, cause);
        }
    }
    if moved {
        lanes::settle_locked(tx, webhook).await?;
    }
    Ok(told)
}

/// The cause, if this is the move of a circuit that it is about.
async fn told_of<'a>(
    tx: &Session,
    webhook: WebhookId,
    circuit: &SavedCircuit,
    cause: Option<&'a Cause>,
) -> Result<Option<&'a Cause>, Failure> {
    let Some(cause) = cause else { return Ok(None) };
    // Of two nodes that found out at once, the first one tells.
    has_row(tx, &cause.tenant, webhook).await?;
    let stored = "SELECT circuit FROM runtime WHERE webhook = $1 FOR UPDATE";
    let before = tx.query_one(stored, &[&Col(webhook)]).await?;
    let before: Option<SavedCircuit> =
        plain::<Option<&str>>(&before, 0)?.map(serde_json::from_str).transpose()?;
    Ok(Some(cause).filter(|cause| of_move(before.as_ref(), circuit) == Some(cause.kind)))
}

async fn has_row(tx: &Session, tenant: &TenantId, webhook: WebhookId) -> Result<(), Failure> {
    let row = "INSERT INTO runtime (webhook, tenant) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    tx.execute(row, &[&Col(webhook), &tenant.as_str()]).await?;
    Ok(())
}

/// Forgets what held a webhook back that is deleted and has nothing left.
pub(super) async fn forget(tx: &Session, webhook: WebhookId) -> Result<(), Failure> {
    let forget = "DELETE FROM runtime WHERE webhook = $1 AND (SELECT deleted FROM webhooks WHERE id = $1)";
    tx.execute(forget, &[&Col(webhook)]).await?;
    Ok(())
}

/// Stores a circuit unless a newer one is there, and with it the time for which it is open.
async fn set_circuit(
    tx: &Session,
    tenant: &TenantId,
    webhook: WebhookId,
    circuit: &SavedCircuit,
) -> Result<bool, Failure> {
    has_row(tx, tenant, webhook).await?;
    let json = (!circuit.is_default()).then(|| to_json(circuit)).transpose()?;
    let stored = tx
        .execute(
            "UPDATE runtime SET circuit = $2, generation = $3, circuit_until = $4, circuit_since = $5
             WHERE webhook = $1 AND generation <= $3",
            &[
                &Col(webhook),
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
    let forced_open = circuit.forced.as_ref().is_some_and(|forced| forced.open);
    let forced_closed = circuit.forced.as_ref().is_some_and(|forced| !forced.open);
    if forced_open || circuit.state == CircuitState::Open && !forced_closed {
        let counts = to_json(&circuit.counts)?;
        tx.execute(
            BEGIN_PERIOD,
            &[&Col(webhook), &Col(circuit.since), &forced_open, &counts, &tenant.as_str()],
        )
        .await?;
    } else {
        tx.execute(END_PERIOD, &[&Col(webhook), &Col(circuit.since)]).await?;
    }
    Ok(true)
}

async fn expire(
    tx: Tx,
    webhook: WebhookId,
    made_before: Time,
    now: Time,
    limit: usize,
    cause: Option<&Cause>,
) -> Result<Step, Failure> {
    lock(&tx, webhook).await?;
    let locked = lanes::lock_all(&tx, webhook).await?;
    let lanes: Vec<_> = locked.iter().map(|(_, lane)| lane.as_str()).collect();
    let mut keys = Keys::new();
    let mut expired: Vec<Col<DeliveryId>> = Vec::new();
    for row in tx.query(EXPIRE, &[&Col(webhook), &Col(made_before), &(limit as i64), &lanes]).await? {
        expired.push(Col(get(&row, 0)?));
        keys.insert((webhook, plain(&row, 1)?));
    }
    tx.execute(
        "UPDATE deliveries d SET status = $2, ended_at = $3, dead_reason = $4 WHERE d.id = ANY($1::uuid[])",
        &[&expired, &Col(DeliveryStatus::Dead), &Col(now), &Col(DeadReason::Expired)],
    )
    .await?;
    record::bury(&tx, &expired).await?;
    undelivered::note(&tx, &expired).await?;
    lanes::set_by_first(&tx, &keys).await?;
    if let Some(cause) = cause {
        let dead = tx.query(DIED, &[&expired]).await?;
        let dead = dead.iter().map(|row| Ok((get(row, 0)?, plain(row, 1)?)));
        let cause = died_of(cause.clone(), dead.collect::<Result<_, Failure>>()?);
        notifications::note(&tx, cause.as_ref().as_slice()).await?;
    }
    Ok(Step { moved: expired.len(), finished: expired.len() < limit })
}

fn read_runtime(row: &Row) -> Result<Runtime, Failure> {
    Ok(Runtime {
        webhook: get(row, 0)?,
        tenant: get(row, 1)?,
        hold_until: Some(get(row, 2)?).filter(|until| *until > Time::default()),
        circuit: plain::<Option<&str>>(row, 3)?.map(serde_json::from_str).transpose()?,
        generation: plain::<i64>(row, 4)? as u64,
        failing_since: get_opt(row, 5)?,
    })
}

fn read_period(row: &Row) -> Result<Period, Failure> {
    Ok(Period {
        opened_at: get(row, 0)?,
        ended_at: get_opt(row, 1)?,
        forced: plain(row, 2)?,
        counts: from_json(row, 3)?,
    })
}
