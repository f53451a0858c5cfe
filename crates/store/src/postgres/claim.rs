//! Claims deliveries: moves them from the table `waiting` to the table `leased`. A delivery that has not ended is in
//! exactly one of the two tables. The reverse direction is in `leases`.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future::Future,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use redrive_core::{DeliveryId, Time, WebhookId, event::Event};
use tokio::sync::oneshot;
use tokio_postgres::{Row, types::ToSql};

use super::{
    Postgres,
    convert::{Col, get, get_opt, hops, plain, trace},
    lanes::{self, Keys},
    leases,
    publish::LOCK_LIVE_EPOCHS,
    session::{Failure, Session, Tx},
    tickets::TicketClaim,
};
use crate::{
    Claim, ClaimedDelivery, DueLanes, Epoch, LaneCapacity, LaneClaim, LaneKey, Leases, Owned, StoreError,
    StoreFuture, TicketEntry,
};

const SELECT_DUE_LANES: &str = "SELECT l.webhook_id, l.lane, l.wake_at FROM lanes l
     WHERE l.pool = $1 AND l.claimed_by IS NULL AND l.wake_at <= $2
         AND NOT EXISTS (SELECT 1 FROM webhook_assignments h WHERE h.webhook_id = l.webhook_id AND h.epoch <> $4)
     ORDER BY l.wake_at LIMIT $3";
const SELECT_NEXT_WAKE: &str = "SELECT wake_at FROM lanes
     WHERE pool = $1 AND claimed_by IS NULL AND wake_at > $2 ORDER BY wake_at LIMIT 1";
/// Locks lanes against other claims, selected by the epoch that has claimed them and with the given lock option.
macro_rules! lock_lanes {
    ($whose:literal, $how:literal) => {
        concat!(
            "SELECT l.webhook_id, l.lane, (SELECT h.epoch FROM webhook_assignments h
             WHERE h.webhook_id = l.webhook_id), (SELECT
            CASE WHEN r.paused THEN $4::bigint ELSE greatest(r.paused_until, r.circuit_until) END
            FROM webhook_runtime r WHERE r.webhook_id = l.webhook_id)
     FROM unnest($1::uuid[], $2::text[]) AS k(webhook_id, lane) CROSS JOIN LATERAL (
         SELECT * FROM lanes l WHERE l.webhook_id = k.webhook_id AND l.lane = k.lane COLLATE \"C\" AND l.claimed_by ",
            $whose,
            " $3
         LIMIT 1 FOR NO KEY UPDATE ",
            $how,
            ") l"
        )
    };
}
/// Locks the lanes that the caller has claimed. It waits for the lock, since no other node claims from them.
const LOCK_OWN_LANES: &str = lock_lanes!("=", "");
/// Locks lanes that the caller has not claimed, skipping those that another claim has locked.
const LOCK_FREE_LANES: &str = lock_lanes!("IS DISTINCT FROM", "SKIP LOCKED");
/// Locks lanes that the caller has not claimed, waiting for other claims.
const LOCK_ANY_LANES: &str = lock_lanes!("IS DISTINCT FROM", "");
/// Ordered lanes with leased deliveries, and whether an epoch other than $3 has any of them. The codes of ordered lanes
/// begin with `=`, which sorts before letters: see `Lane::code`.
const SELECT_LEASED_ORDERS: &str = "SELECT k.webhook_id, k.lane, t.elsewhere
     FROM unnest($1::uuid[], $2::text[]) AS k(webhook_id, lane) CROSS JOIN LATERAL (
         SELECT bool_or(t.epoch <> $3) AS elsewhere FROM leased t
         WHERE t.webhook_id = k.webhook_id AND t.lane = k.lane COLLATE \"C\" AND t.lane < 'A') t
     WHERE t.elsewhere IS NOT NULL";
/// First waiting deliveries of each lane, with everything that is needed to send them. The payload is null if the
/// delivery is not due, or if the payloads before it reach $5 bytes. In an ordered lane `sort_key` is always 0.
const SELECT_DUE: &str = "SELECT k.n, w.delivery_id, w.due, w.abnormal_releases, w.crash_count, w.seq,
            d.webhook_id, d.format, d.attempt_count, d.created_at,
            e.id, e.tenant_id, e.event_type, e.timestamp, e.idempotency_key, e.source, e.subject, e.priority,
            CASE WHEN w.due <= $4 AND sum(octet_length(e.data) + $6::bigint) OVER (ROWS UNBOUNDED PRECEDING)
                    - octet_length(e.data) - $6::bigint < $5::bigint THEN e.data END, e.trace, e.hops
     FROM unnest($1::uuid[], $2::text[], $3::bigint[]) WITH ORDINALITY AS k(webhook_id, lane, most, n)
     CROSS JOIN LATERAL (
         SELECT * FROM waiting w WHERE w.webhook_id = k.webhook_id AND w.lane = k.lane COLLATE \"C\"
         AND w.sort_key <= $4
         ORDER BY w.sort_key, w.seq LIMIT k.most) w
     CROSS JOIN LATERAL (SELECT * FROM deliveries d WHERE d.id = w.delivery_id LIMIT 1) d
     CROSS JOIN LATERAL (SELECT * FROM events e WHERE e.tenant_id = d.tenant_id AND e.id = d.event_id LIMIT 1) e";
/// First waiting delivery of each ordered lane, due or not.
const SELECT_FIRST: &str = "SELECT k.n, h.delivery_id, h.due
     FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS k(webhook_id, lane, n) CROSS JOIN LATERAL (
         SELECT w.delivery_id, w.due FROM waiting w WHERE w.webhook_id = k.webhook_id AND w.lane = k.lane COLLATE \"C\"
         ORDER BY w.sort_key, w.seq LIMIT 1) h";
/// Moves deliveries from `waiting` to `leased`. Returns the ids that were in `waiting`.
pub(super) const MOVE_TO_LEASED: &str = "WITH w AS (
         DELETE FROM waiting WHERE delivery_id = ANY($2::uuid[])
         RETURNING delivery_id, webhook_id, lane, seq, abnormal_releases, crash_count)
     INSERT INTO leased (epoch, delivery_id, webhook_id, lane, seq, abnormal_releases, crash_count) SELECT $1::bigint, w.* FROM w
     RETURNING delivery_id";
const INSERT_ASSIGNMENT: &str =
    "INSERT INTO webhook_assignments (webhook_id, epoch) SELECT w, $2::bigint FROM unnest($1::uuid[]) AS k(w)
     ON CONFLICT DO NOTHING";

/// Statements whose cost must be proportional to the deliveries that are ready, independent of those that are
/// parked; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 9] = [
    ("due lanes", SELECT_DUE_LANES),
    ("next wake", SELECT_NEXT_WAKE),
    ("lock own lanes", LOCK_OWN_LANES),
    ("lock free lanes", LOCK_FREE_LANES),
    ("leased orders", SELECT_LEASED_ORDERS),
    ("lock any lanes", LOCK_ANY_LANES),
    ("due deliveries", SELECT_DUE),
    ("first of an order", SELECT_FIRST),
    ("move to leased", MOVE_TO_LEASED),
];

/// Delay before an ordered lane is checked again while another node has leases of it.
const ORDER_RETRY_DELAY: Duration = Duration::from_millis(50);

impl Claim for Postgres {
    fn due_lanes(
        &self,
        epoch: Epoch,
        pools: Vec<String>,
        now: Time,
        limit: usize,
    ) -> StoreFuture<'_, DueLanes> {
        Box::pin(async move { self.read(|session| due_lanes(session, epoch, &pools, now, limit)).await })
    }

    fn claim(
        &self,
        epoch: Epoch,
        now: Time,
        lanes: Vec<LaneCapacity>,
        max_bytes: usize,
    ) -> StoreFuture<'_, Vec<LaneClaim>> {
        let shared = self.shared.clone();
        own_task(async move {
            Claiming { epoch, now, lanes: &lanes, max_bytes }.claim_in_transaction(&shared).await
        })
    }

    fn claim_tickets(
        &self,
        epoch: Epoch,
        now: Time,
        due_before: Time,
        wanted: Vec<TicketEntry>,
        max_bytes: usize,
    ) -> StoreFuture<'_, Vec<ClaimedDelivery>> {
        let (shared, taking) =
            (self.shared.clone(), TicketClaim::new(epoch, now, due_before, wanted, max_bytes));
        own_task(async move { taking.run(&shared).await })
    }

    fn release_assignments(&self, epoch: Epoch, webhooks: Vec<WebhookId>) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let webhooks: Vec<_> = webhooks.into_iter().map(Col).collect();
            // Assignments are changed after the lanes are locked, in the same order as in a claim.
            let lock =
                "SELECT webhook_id, lane FROM lanes WHERE webhook_id = ANY($1::uuid[]) AND claimed_by = $2
                        ORDER BY webhook_id, lane FOR NO KEY UPDATE";
            let leave = "DELETE FROM webhook_assignments WHERE webhook_id = ANY($1::uuid[]) AND epoch = $2";
            self.write(|tx| {
                let webhooks = &webhooks;
                async move {
                    let rows = tx.query(lock, &[webhooks, &epoch.0]).await?;
                    let claimed = rows.iter().map(|row| Ok((get(row, 0)?, plain(row, 1)?)));
                    let claimed = claimed.collect::<Result<Keys, Failure>>()?;
                    tx.execute(leave, &[webhooks, &epoch.0]).await?;
                    lanes::release_lanes(&tx, &claimed, epoch).await
                }
            })
            .await?;
            self.shared.hints.work();
            Ok(())
        })
    }
}

impl Leases for Postgres {
    fn release(
        &self,
        epoch: Epoch,
        now: Time,
        deliveries: Vec<(DeliveryId, Time)>,
    ) -> StoreFuture<'_, usize> {
        Box::pin(async move {
            let released = self.write(|tx| leases::release(tx, epoch, now, &deliveries, 0)).await?;
            self.shared.hints.work();
            Ok(released)
        })
    }

    fn release_crashed(
        &self,
        epoch: Epoch,
        now: Time,
        deliveries: Vec<(DeliveryId, Time)>,
    ) -> StoreFuture<'_, usize> {
        Box::pin(async move { self.write(|tx| leases::release(tx, epoch, now, &deliveries, 1)).await })
    }

    fn owned_by(&self, epoch: Epoch, after: Option<DeliveryId>, limit: usize) -> StoreFuture<'_, Owned> {
        Box::pin(async move { self.read(|session| leases::owned_by(session, epoch, after, limit)).await })
    }

    fn mark_sending(&self, epoch: Epoch, delivery_id: DeliveryId) -> StoreFuture<'_, bool> {
        let (sender, reply) = oneshot::channel();
        self.writer.mark_sending(epoch, delivery_id, Box::new(move |result| drop(sender.send(result))));
        Box::pin(async {
            reply.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the store is closed".into())))
        })
    }
}

/// Runs a claim in its own task, so that its result is processed even if the caller stops waiting for it.
fn own_task<T: Send + 'static>(
    claiming: impl Future<Output = Result<Option<T>, StoreError>> + Send + 'static,
) -> StoreFuture<'static, T> {
    let (sender, reply) = oneshot::channel();
    tokio::spawn(async move { drop(sender.send(claiming.await)) });
    Box::pin(async {
        let closed = || Err(StoreError::Unavailable("the store is closed".into()));
        reply.await.unwrap_or_else(|_| closed())?.ok_or(StoreError::Fenced)
    })
}

async fn due_lanes(
    session: Tx,
    epoch: Epoch,
    pools: &[String],
    now: Time,
    limit: usize,
) -> Result<DueLanes, Failure> {
    let mut due: Vec<(Time, LaneKey)> = Vec::new();
    let mut next_wake: Option<Time> = None;
    session.prepare(&[SELECT_DUE_LANES, SELECT_NEXT_WAKE]).await?;
    for pool in pools {
        let (now, limit) = (Col(now), limit as i64);
        let (due_now, later): ([&(dyn ToSql + Sync); 4], [&(dyn ToSql + Sync); 2]) =
            ([pool, &now, &limit, &epoch.0], [pool, &now]);
        let (lanes, next) = tokio::join!(
            biased;
            session.query(SELECT_DUE_LANES, &due_now),
            session.query_opt(SELECT_NEXT_WAKE, &later),
        );
        for row in lanes? {
            due.push((get(&row, 2)?, LaneKey { webhook_id: get(&row, 0)?, lane: get(&row, 1)? }));
        }
        let wake = next?.map(|row| get::<Time>(&row, 0)).transpose()?;
        next_wake = next_wake.into_iter().chain(wake).min();
    }
    if pools.len() > 1 {
        due.sort_by_key(|(wake_at, _)| *wake_at);
        due.truncate(limit);
    }
    let lanes = due.into_iter().map(|(_, key)| key).collect();
    Ok(DueLanes { lanes, next_wake: next_wake.filter(|wake| *wake < Time::FAR_FUTURE) })
}

/// One claim request and the epoch that makes it.
struct Claiming<'a> {
    epoch: Epoch,
    now: Time,
    lanes: &'a [LaneCapacity],
    max_bytes: usize,
}

/// Deliveries that are claimed from one lane.
#[derive(Default)]
struct Given {
    deliveries: Vec<ClaimedDelivery>,
    more: bool,
}

/// Key of a lane in the database: the webhook, and the lane as text.
pub(super) type LaneCode = (WebhookId, String);

/// State of the webhook of a locked lane.
struct Locked {
    /// Epoch of the assigned node.
    assigned_epoch: Option<i64>,
    blocked_until: Time,
}

/// Deliveries to claim, the new state of each lane, and the webhooks to assign to the caller.
#[derive(Default)]
struct Chosen {
    taken: BTreeMap<LaneCode, Given>,
    /// Lanes with more due deliveries: they stay claimed by the caller, which claims from them again.
    claimed_lanes: Keys,
    /// Lanes whose wake time is recomputed from what is still waiting in them.
    done: Keys,
    /// Lanes from which nothing may be claimed before the given time.
    put_off: BTreeMap<Time, Keys>,
    assignments: BTreeSet<WebhookId>,
    let_go: Keys,
}

/// Leases and assignments that a claim creates if its commit succeeds.
#[derive(Default)]
struct Taken {
    /// Deliveries with their due times.
    leases: Vec<(DeliveryId, Time)>,
    /// Webhooks that this claim assigns to the caller.
    assigned: Vec<WebhookId>,
}

impl Chosen {
    fn deliveries(&self) -> impl Iterator<Item = &ClaimedDelivery> {
        self.taken.values().flat_map(|taking| &taking.deliveries)
    }

    /// Returns the leases and assignments that the commit creates.
    fn to_taken(&self) -> Taken {
        Taken {
            leases: self.deliveries().map(|one| (one.id, one.due)).collect(),
            assigned: self.assignments.iter().copied().collect(),
        }
    }

    /// Keeps only the deliveries in `moved`. Returns `false` if an ordered lane would lose one of its deliveries.
    fn keep(&mut self, moved: &BTreeSet<DeliveryId>) -> bool {
        for ((_, lane), taking) in &mut self.taken {
            let before = taking.deliveries.len();
            taking.deliveries.retain(|one| moved.contains(&one.id));
            if taking.deliveries.len() < before && lane.starts_with('=') {
                return false;
            }
        }
        true
    }
}

fn lane_code(key: &LaneKey) -> LaneCode {
    (key.webhook_id, key.lane.code().into_owned())
}

impl Claiming<'_> {
    /// Claims in one transaction. Returns `None` if the epoch has ended.
    async fn claim_in_transaction(
        &self,
        shared: &super::Shared,
    ) -> Result<Option<Vec<LaneClaim>>, StoreError> {
        shared.doubts.release_uncertain(shared).await?;
        let taken = parking_lot::Mutex::new(Taken::default());
        let claimed = shared.writers.transact(|tx| self.claim(tx, &taken)).await;
        if let Err(failure) = &claimed
            && failure.is_commit_uncertain()
        {
            let Taken { leases, assigned } = taken.into_inner();
            shared.doubts.add(self.epoch, leases);
            let lanes = self.lanes.iter().map(|capacity| lane_code(&capacity.key));
            shared.doubts.add_lanes(self.epoch, lanes, assigned);
        }
        Ok(claimed?)
    }

    async fn claim(
        &self,
        tx: Tx,
        taken: &parking_lot::Mutex<Taken>,
    ) -> Result<Option<Vec<LaneClaim>>, Failure> {
        *taken.lock() = Taken::default();
        let Some(locked) = self.lock(&tx).await? else {
            tx.commit().await?;
            return Ok(None);
        };
        let mut chosen = self.choose(&tx, &locked).await?;
        *taken.lock() = chosen.to_taken();
        self.commit_choice(&tx, &mut chosen, taken).await?;
        let mut given = chosen.taken;
        let claims = self.lanes.iter().map(|capacity| {
            let Given { deliveries, more } = given.remove(&lane_code(&capacity.key)).unwrap_or_default();
            LaneClaim { key: capacity.key.clone(), deliveries, has_more_due: more }
        });
        Ok(Some(claims.collect()))
    }

    /// Begins the transaction and locks the lanes that no other claim has locked. If there are none, waits for the
    /// first lane, since other claims are short. Returns `None` if the epoch has ended.
    async fn lock(&self, tx: &Session) -> Result<Option<BTreeMap<LaneCode, Locked>>, Failure> {
        let keys: Keys = self.lanes.iter().map(|capacity| lane_code(&capacity.key)).collect();
        let webhooks: Vec<_> = keys.iter().map(|(webhook_id, _)| Col(*webhook_id)).collect();
        let codes: Vec<_> = keys.iter().map(|(_, code)| code.as_str()).collect();
        let (epochs, forever) = (vec![self.epoch.0], Col(Time::FAR_FUTURE));
        let live: [&(dyn ToSql + Sync); 1] = [&epochs];
        let values: [&(dyn ToSql + Sync); 4] = [&webhooks, &codes, &self.epoch.0, &forever];
        tx.prepare(&[LOCK_LIVE_EPOCHS, LOCK_OWN_LANES, LOCK_FREE_LANES]).await?;
        let (started, live, own, free) = tokio::join!(
            biased;
            tx.begin(),
            tx.exists(LOCK_LIVE_EPOCHS, &live),
            tx.query(LOCK_OWN_LANES, &values),
            tx.query(LOCK_FREE_LANES, &values),
        );
        started?;
        if !live? {
            return Ok(None);
        }
        let mut locked = own?.iter().chain(&free?).map(read_locked).collect::<Result<BTreeMap<_, _>, _>>()?;
        if locked.is_empty() && !keys.is_empty() {
            let values: [&(dyn ToSql + Sync); 4] = [&&webhooks[..1], &&codes[..1], &self.epoch.0, &forever];
            let rows = tx.query(LOCK_ANY_LANES, &values).await?;
            locked = rows.iter().map(read_locked).collect::<Result<_, _>>()?;
        }
        Ok(Some(locked))
    }

    /// Chooses the deliveries to claim from each lane, and the new state of each lane.
    async fn choose(&self, tx: &Session, locked: &BTreeMap<LaneCode, Locked>) -> Result<Chosen, Failure> {
        let leased_orders = self.leased_orders(tx, locked).await?;
        // A block may have ended while the lanes were being locked: read it again before a lane is postponed.
        let blocked: Vec<_> = locked
            .iter()
            .filter(|(_, about)| about.blocked_until > self.now)
            .map(|((webhook_id, _), _)| *webhook_id)
            .collect();
        let blocked = match blocked.is_empty() {
            true => BTreeMap::new(),
            false => lanes::blocked_until(tx, &blocked).await?,
        };
        let (mut chosen, mut capacities, mut orders) = (Chosen::default(), Vec::new(), Vec::new());
        for capacity in self.lanes {
            let key = lane_code(&capacity.key);
            let Some(about) = locked.get(&key) else { continue };
            if about.assigned_epoch.is_some_and(|assigned_epoch| assigned_epoch != self.epoch.0) {
                // Release the lane: the assigned node does not see lanes that another node has claimed.
                chosen.let_go.insert(key);
                continue;
            }
            let mut put_off = |until, key| {
                chosen.put_off.entry(until).or_default().insert(key);
            };
            if let Some(until) = blocked.get(&capacity.key.webhook_id).filter(|until| **until > self.now) {
                put_off(*until, key);
                continue;
            }
            match leased_orders.get(&key) {
                Some(true) => put_off(self.now + ORDER_RETRY_DELAY, key),
                Some(false) => orders.push(key),
                None => capacities.push(capacity),
            }
        }
        // If the first delivery is due, the caller claims again once its own leases of the ordered lane have ended.
        for key in self.with_first_due(tx, &orders).await? {
            chosen.taken.insert(key, Given { deliveries: Vec::new(), more: true });
        }
        self.read_due_lanes(tx, &capacities, &mut chosen.taken).await?;
        for key in orders.into_iter().chain(capacities.iter().map(|capacity| lane_code(&capacity.key))) {
            match chosen.taken.get(&key).is_some_and(|taking| taking.more) {
                true => chosen.claimed_lanes.insert(key),
                false => chosen.done.insert(key),
            };
        }
        for capacity in capacities {
            let key = lane_code(&capacity.key);
            let gives = chosen.taken.get(&key).is_some_and(|taking| !taking.deliveries.is_empty());
            if capacity.exclusive
                && gives
                && locked.get(&key).is_some_and(|about| about.assigned_epoch.is_none())
            {
                chosen.assignments.insert(capacity.key.webhook_id);
            }
        }
        Ok(chosen)
    }

    /// Writes the chosen changes and commits.
    async fn commit_choice(
        &self,
        tx: &Session,
        chosen: &mut Chosen,
        taken: &parking_lot::Mutex<Taken>,
    ) -> Result<(), Failure> {
        if !chosen.assignments.is_empty() {
            let assignments: Vec<_> = chosen.assignments.iter().map(|webhook_id| Col(*webhook_id)).collect();
            if tx.execute(INSERT_ASSIGNMENT, &[&assignments, &self.epoch.0]).await? < assignments.len() as u64
            {
                // Another node has just assigned the webhook to itself by claiming from another of its lanes.
                return Err(Failure::Contention);
            }
        }
        for (until, keys) in &chosen.put_off {
            // A lane into which another transaction is inserting is not waited for: its wake time stays, and it is
            // claimed again.
            let quiet = lanes::lock_uncontended(tx, keys).await?;
            lanes::recompute_lane(tx, &quiet, *until).await?;
            let others = keys.difference(&quiet).cloned().collect();
            lanes::release_lanes(tx, &others, self.epoch).await?;
        }
        let ids: Vec<_> = chosen.deliveries().map(|one| Col(one.id)).collect();
        let moving: [&(dyn ToSql + Sync); 2] = [&self.epoch.0, &ids];
        tx.prepare(&[
            MOVE_TO_LEASED,
            lanes::MARK_LANES_CLAIMED,
            lanes::RELEASE_LANES,
            lanes::LOCK_UNCONTENDED,
            lanes::RECOMPUTE_LANES,
        ])
        .await?;
        let (moved, let_go, marked, quiet) = tokio::join!(
            biased;
            async { if ids.is_empty() { Ok(Vec::new()) } else { tx.query(MOVE_TO_LEASED, &moving).await } },
            lanes::release_lanes(tx, &chosen.let_go, self.epoch),
            lanes::mark_claimed(tx, &chosen.claimed_lanes, self.epoch),
            lanes::lock_uncontended(tx, &chosen.done),
        );
        let moved = moved?;
        if moved.len() < ids.len() {
            // A delivery was claimed by its ticket, or from a lane whose row did not exist when it was to be locked.
            let moved = moved.iter().map(|row| get(row, 0)).collect::<Result<BTreeSet<_>, Failure>>()?;
            if !chosen.keep(&moved) {
                return Err(Failure::Contention);
            }
            // If the result of the commit is uncertain, only these leases may be returned.
            *taken.lock() = chosen.to_taken();
        }
        let_go?;
        marked?;
        // Lanes into which another transaction is inserting keep their wake time; that transaction sends a hint after
        // commit.
        let quiet = quiet?;
        let others = chosen.done.difference(&quiet).cloned().collect();
        let (settled, let_go, committed) = tokio::join!(
            biased;
            lanes::recompute_lane(tx, &quiet, Time::default()),
            lanes::release_lanes(tx, &others, self.epoch),
            tx.commit_pipelined(),
        );
        settled?;
        let_go?;
        committed?;
        tx.committed();
        Ok(())
    }

    /// Returns the ordered lanes that have leased deliveries, and whether another node has any of them.
    async fn leased_orders(
        &self,
        tx: &Session,
        locked: &BTreeMap<LaneCode, Locked>,
    ) -> Result<HashMap<LaneCode, bool>, Failure> {
        let orders: Vec<_> = locked.keys().filter(|(_, code)| code.starts_with('=')).collect();
        if orders.is_empty() {
            return Ok(HashMap::new());
        }
        let webhooks: Vec<_> = orders.iter().map(|(webhook_id, _)| Col(*webhook_id)).collect();
        let codes: Vec<_> = orders.iter().map(|(_, code)| code.as_str()).collect();
        let rows = tx.query(SELECT_LEASED_ORDERS, &[&webhooks, &codes, &self.epoch.0]).await?;
        rows.iter().map(|row| Ok(((get(row, 0)?, plain(row, 1)?), plain(row, 2)?))).collect()
    }

    /// Returns the lanes whose first delivery is due.
    async fn with_first_due(&self, tx: &Session, keys: &[LaneCode]) -> Result<Vec<LaneCode>, Failure> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let webhooks: Vec<_> = keys.iter().map(|(webhook_id, _)| Col(*webhook_id)).collect();
        let codes: Vec<_> = keys.iter().map(|(_, code)| code.as_str()).collect();
        let mut due = Vec::new();
        for row in tx.query(SELECT_FIRST, &[&webhooks, &codes]).await? {
            if get::<Time>(&row, 2)? <= self.now {
                due.push(keys[plain::<i64>(&row, 0)? as usize - 1].clone());
            }
        }
        Ok(due)
    }

    /// Reads the due deliveries of each lane from its head, up to the capacity, and whether there are more.
    async fn read_due_lanes(
        &self,
        tx: &Session,
        capacities: &[&LaneCapacity],
        taken: &mut BTreeMap<LaneCode, Given>,
    ) -> Result<(), Failure> {
        if capacities.is_empty() {
            return Ok(());
        }
        let codes: Vec<_> = capacities.iter().map(|capacity| capacity.key.lane.code()).collect();
        // One more than the capacity, to know whether there are more.
        let max = |capacity: usize| i64::try_from(capacity).unwrap_or(i64::MAX).saturating_add(1);
        let rows = tx
            .query(
                SELECT_DUE,
                &[
                    &capacities.iter().map(|capacity| Col(capacity.key.webhook_id)).collect::<Vec<_>>(),
                    &codes.iter().map(|code| &**code).collect::<Vec<_>>(),
                    &capacities.iter().map(|capacity| max(capacity.max_deliveries)).collect::<Vec<_>>(),
                    &Col(self.now),
                    &i64::try_from(self.max_bytes).unwrap_or(i64::MAX),
                    &(Event::MEMORY_OVERHEAD_BYTES as i64),
                ],
            )
            .await?;
        let mut found: Vec<Vec<(ClaimedDelivery, bool)>> = capacities.iter().map(|_| Vec::new()).collect();
        for row in &rows {
            found[plain::<i64>(row, 0)? as usize - 1].push(read_due(row)?);
        }
        for (capacity, mut due) in capacities.iter().zip(found) {
            match capacity.key.lane.is_ordered() {
                true => due.sort_by_key(|(one, _)| one.seq),
                false => due.sort_by_key(|(one, _)| (one.due, one.seq)),
            }
            let mut taking = Given::default();
            for (one, fits) in due {
                // In an ordered lane, everything behind a delivery that is not due has to wait.
                if one.due > self.now {
                    break;
                }
                if taking.deliveries.len() >= capacity.max_deliveries || !fits {
                    taking.more = true;
                    break;
                }
                taking.deliveries.push(one);
            }
            taken.insert(lane_code(&capacity.key), taking);
        }
        Ok(())
    }
}

fn read_locked(row: &Row) -> Result<(LaneCode, Locked), Failure> {
    let about =
        Locked { assigned_epoch: plain(row, 2)?, blocked_until: get_opt(row, 3)?.unwrap_or_default() };
    Ok(((get(row, 0)?, plain(row, 1)?), about))
}

/// Reads a waiting delivery, and whether its payload was included.
pub(super) fn read_due(row: &Row) -> Result<(ClaimedDelivery, bool), Failure> {
    let text = |column| plain::<Option<String>>(row, column).map(|text| text.map(String::into_boxed_str));
    let data = plain::<Option<Vec<u8>>>(row, 18)?;
    let fits = data.is_some();
    let event = Event {
        id: get(row, 10)?,
        tenant_id: get(row, 11)?,
        event_type: plain::<String>(row, 12)?.into(),
        data: Bytes::from(data.unwrap_or_default()),
        timestamp: get(row, 13)?,
        idempotency_key: text(14)?,
        source: text(15)?,
        subject: text(16)?,
        priority: get(row, 17)?,
        // The publisher's metadata is not sent.
        metadata: None,
        trace: trace(row, 19)?,
        hops: hops(row, 20)?,
    };
    let claimed = ClaimedDelivery {
        id: get(row, 1)?,
        webhook_id: get(row, 6)?,
        due: get(row, 2)?,
        abnormal_releases: plain::<i32>(row, 3)?.unsigned_abs(),
        crash_count: plain::<i32>(row, 4)?.unsigned_abs(),
        format: get(row, 7)?,
        attempt_count: plain::<i32>(row, 8)?.unsigned_abs(),
        created_at: get(row, 9)?,
        seq: plain(row, 5)?,
        event: Arc::new(event),
    };
    Ok((claimed, fits))
}
