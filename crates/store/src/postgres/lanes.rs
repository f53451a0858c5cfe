//! Lanes: when each queue of a webhook is to be claimed from next. Whatever blocks a webhook as a whole is applied
//! here and nowhere else (as the wake time of its lanes), so the deliveries of a blocked webhook cost nothing.
//!
//! A lane's row is also its lock, in two strengths. A transaction that takes deliveries out of `waiting` locks the
//! row against other such transactions. A transaction that inserts only needs the row to stay unchanged until its
//! commit, if the wake time is early enough already: so the two do not wait for each other. Before a wake time is
//! moved to later, or a lane is deleted, the row is locked exclusively (`FOR UPDATE`) and `waiting` is read after
//! that, so that no concurrent insert is missed.
//!
//! A transaction locks `webhook_runtime` rows and then lanes, each once and in order: see [`LaneLocks`] and
//! `docs/adr/0044-one-lock-order.md`.

use std::collections::{BTreeMap, BTreeSet};

use redrive_core::{DeliveryId, Time, WebhookId, delivery::lane::Lane};

use super::{
    convert::{Col, get, plain},
    session::{Failure, Session},
};
use crate::Epoch;

/// Locks `webhook_runtime` rows before the lanes; the wake times are computed from them. Takes the parameters of
/// the webhooks and of the far-future time.
macro_rules! early_lanes {
    ($webhooks:literal, $forever:literal) => {
        concat!(
            "r AS MATERIALIZED (
         SELECT webhook_id, CASE WHEN paused THEN ",
            $forever,
            "::bigint ELSE greatest(paused_until, circuit_until) END AS until
         FROM webhook_runtime WHERE webhook_id = ANY(",
            $webhooks,
            "::uuid[]) ORDER BY webhook_id FOR SHARE)"
        )
    };
}
/// Makes the wake times of lanes early enough, given `r` and `k(webhook, lane, wake_at)`. The row of a lane that
/// is early enough is only kept unchanged until the commit; ordered lanes are always locked, since only their
/// first delivery counts. Lanes are locked one after the other in key order in both cases: each is looked up right
/// before it is inserted.
macro_rules! wake_lanes {
    ($pool:literal) => {
        concat!(
            "INSERT INTO lanes (webhook_id, lane, wake_at, pool)
     SELECT k.webhook_id, k.lane, greatest(k.wake_at, (SELECT r.until FROM r
     WHERE r.webhook_id = k.webhook_id)), coalesce((
            SELECT t.pool FROM webhooks w JOIN tenants t ON t.id = w.tenant_id WHERE w.id = k.webhook_id), ",
            $pool,
            ")
     FROM (SELECT count(*) AS n FROM r) blocked
     CROSS JOIN (SELECT * FROM k ORDER BY k.webhook_id, k.lane COLLATE \"C\") k
     LEFT JOIN LATERAL (
         SELECT true AS is_early FROM lanes l WHERE l.webhook_id = k.webhook_id AND l.lane = k.lane COLLATE \"C\"
             AND l.lane >= 'A' AND l.wake_at <= k.wake_at AND blocked.n >= 0 LIMIT 1 FOR KEY SHARE) e ON true
     WHERE e.is_early IS NULL
     ON CONFLICT (webhook_id, lane) DO UPDATE SET wake_at = excluded.wake_at
     WHERE lanes.wake_at > excluded.wake_at"
        )
    };
}
pub(super) use early_lanes;
pub(super) use wake_lanes;

const INSERT_WAITING: &str =
    "INSERT INTO waiting (delivery_id, webhook_id, lane, sort_key, seq, due, created_at, abnormal_releases, crash_count)
     SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[],
                          $7::bigint[], $8::integer[], $9::integer[])";
/// Locks lanes one after the other in key order, and creates those with a wake time ($3). A lane with $4 is locked
/// exclusively (`FOR UPDATE`); one with $5 is only kept unchanged if its wake time is early enough; any other is
/// locked against changes. Returns the lanes that are locked exclusively (`FOR UPDATE`).
///
/// `created` is evaluated before the result and reads `taken` row by row, so each lane is created right after the
/// lanes before it are locked. `webhook_runtime` rows were locked before; one that was inserted since is not
/// waited for.
const LOCK_OR_CREATE_LANES: &str = "WITH r AS MATERIALIZED (
         SELECT webhook_id, CASE WHEN paused THEN $6::bigint ELSE greatest(paused_until, circuit_until) END AS until
         FROM webhook_runtime WHERE webhook_id = ANY($1::uuid[]) ORDER BY webhook_id FOR SHARE SKIP LOCKED),
     taken AS MATERIALIZED (
         SELECT k.webhook_id, k.lane, k.wake_at, f.is_there, e.is_early
         FROM (SELECT count(*) AS n FROM r) blocked CROSS JOIN
             unnest($1::uuid[], $2::text[], $3::bigint[], $4::boolean[], $5::boolean[])
                 AS k(webhook_id, lane, wake_at, fully, keep)
         LEFT JOIN LATERAL (
             SELECT true AS is_there FROM lanes l WHERE l.webhook_id = k.webhook_id AND l.lane = k.lane COLLATE \"C\"
                 AND k.fully AND blocked.n >= 0 LIMIT 1 FOR UPDATE) f ON true
         LEFT JOIN LATERAL (
             SELECT true AS is_early FROM lanes l WHERE l.webhook_id = k.webhook_id AND l.lane = k.lane COLLATE \"C\"
                 AND l.lane >= 'A' AND l.wake_at <= k.wake_at AND k.keep AND blocked.n >= 0
             LIMIT 1 FOR KEY SHARE) e ON true),
     created AS (
         INSERT INTO lanes (webhook_id, lane, wake_at, pool)
         SELECT k.webhook_id, k.lane, greatest(k.wake_at, (SELECT r.until FROM r
         WHERE r.webhook_id = k.webhook_id)), coalesce((
                SELECT t.pool FROM webhooks w JOIN tenants t ON t.id = w.tenant_id WHERE w.id = k.webhook_id), $7)
         FROM taken k WHERE k.wake_at IS NOT NULL AND k.is_early IS NULL
         ON CONFLICT (webhook_id, lane) DO UPDATE SET wake_at = excluded.wake_at
         WHERE lanes.wake_at > excluded.wake_at RETURNING 1)
     SELECT webhook_id, lane FROM taken WHERE (SELECT count(*) FROM created) >= 0 AND is_there";
/// Keeps `webhook_runtime` rows unchanged until the commit.
const LOCK_RUNTIME: &str =
    "SELECT webhook_id FROM webhook_runtime WHERE webhook_id = ANY($1::uuid[]) ORDER BY webhook_id FOR SHARE";
const LOCK_WEBHOOK_LANES: &str = "SELECT lane FROM lanes WHERE webhook_id = $1 ORDER BY lane FOR UPDATE";
/// Locks all lanes of a webhook, skipping those that other transactions have locked.
const LOCK_FREE_WEBHOOK_LANES: &str =
    "SELECT lane FROM lanes WHERE webhook_id = $1 ORDER BY lane FOR UPDATE SKIP LOCKED";
const SELECT_LANES: &str = "SELECT webhook_id, lane FROM lanes WHERE webhook_id = ANY($1::uuid[])";
/// Sets the wake time of lanes from the first delivery waiting in each, and deletes empty lanes. In an ordered
/// lane nothing may start before the first delivery has ended.
pub(super) const SET_WAKE: &str = "WITH k AS MATERIALIZED (
         SELECT l.tid FROM unnest($1::uuid[], $2::text[]) AS k(webhook_id, lane) CROSS JOIN LATERAL (
             SELECT ctid AS tid FROM lanes l WHERE l.webhook_id = k.webhook_id AND l.lane = k.lane COLLATE \"C\"
             LIMIT 1) l),
     closed AS (DELETE FROM lanes l WHERE l.ctid = ANY(ARRAY(SELECT tid FROM k)) AND (
         SELECT 1 FROM waiting w WHERE w.webhook_id = l.webhook_id AND w.lane = l.lane LIMIT 1) IS NULL)
     UPDATE lanes l SET wake_at = greatest((SELECT w.due FROM waiting w
         WHERE w.webhook_id = l.webhook_id AND w.lane = l.lane ORDER BY w.sort_key, w.seq LIMIT 1), (SELECT
             CASE WHEN r.paused THEN $3::bigint ELSE greatest(r.paused_until, r.circuit_until) END
             FROM webhook_runtime r WHERE r.webhook_id = l.webhook_id))
     WHERE l.ctid = ANY(ARRAY(SELECT tid FROM k)) AND (
         SELECT 1 FROM waiting w WHERE w.webhook_id = l.webhook_id AND w.lane = l.lane LIMIT 1) IS NOT NULL";
/// Sets the wake time of lanes as `SET_WAKE` does, but not before $3, and ends their claims.
pub(super) const RECOMPUTE_LANES: &str = "WITH k AS MATERIALIZED (
         SELECT l.tid FROM unnest($1::uuid[], $2::text[]) AS k(webhook_id, lane) CROSS JOIN LATERAL (
             SELECT ctid AS tid FROM lanes l WHERE l.webhook_id = k.webhook_id AND l.lane = k.lane COLLATE \"C\"
             LIMIT 1) l),
     closed AS (DELETE FROM lanes l WHERE l.ctid = ANY(ARRAY(SELECT tid FROM k)) AND (
         SELECT 1 FROM waiting w WHERE w.webhook_id = l.webhook_id AND w.lane = l.lane LIMIT 1) IS NULL)
     UPDATE lanes l SET wake_at = greatest((SELECT w.due FROM waiting w
         WHERE w.webhook_id = l.webhook_id AND w.lane = l.lane ORDER BY w.sort_key, w.seq
         LIMIT 1), $3::bigint), claimed_by = NULL
     WHERE l.ctid = ANY(ARRAY(SELECT tid FROM k)) AND (
         SELECT 1 FROM waiting w WHERE w.webhook_id = l.webhook_id AND w.lane = l.lane LIMIT 1) IS NOT NULL";
/// Locks lanes exclusively, skipping those into which another transaction is inserting.
pub(super) const LOCK_UNCONTENDED: &str = "SELECT l.webhook_id, l.lane
     FROM unnest($1::uuid[], $2::text[]) AS k(webhook_id, lane) CROSS JOIN LATERAL (
         SELECT * FROM lanes l WHERE l.webhook_id = k.webhook_id AND l.lane = k.lane COLLATE \"C\"
         LIMIT 1 FOR UPDATE SKIP LOCKED) l";
macro_rules! set_claimed_by {
    ($now:literal, $then:literal) => {
        concat!(
            "WITH k AS MATERIALIZED (
         SELECT l.tid FROM unnest($1::uuid[], $2::text[]) AS k(webhook_id, lane) CROSS JOIN LATERAL (
             SELECT ctid AS tid FROM lanes l WHERE l.webhook_id = k.webhook_id AND l.lane = k.lane COLLATE \"C\"
                 AND l.claimed_by ",
            $now,
            " $3::bigint LIMIT 1) l)
     UPDATE lanes SET claimed_by = ",
            $then,
            " WHERE ctid = ANY(ARRAY(SELECT tid FROM k))"
        )
    };
}
pub(super) const MARK_LANES_CLAIMED: &str = set_claimed_by!("IS DISTINCT FROM", "$3");
pub(super) const RELEASE_LANES: &str = set_claimed_by!("=", "NULL");
const SELECT_BLOCKED_UNTIL: &str = "SELECT webhook_id,
         CASE WHEN paused THEN $2::bigint ELSE greatest(paused_until, circuit_until) END
     FROM webhook_runtime WHERE webhook_id = ANY($1::uuid[])";

/// Statements whose cost must be proportional to the rows they change; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 12] = [
    ("insert into lanes", INSERT_WAITING),
    ("lock and create lanes", LOCK_OR_CREATE_LANES),
    ("lock a webhook's free lanes", LOCK_FREE_WEBHOOK_LANES),
    ("a webhook's lanes", SELECT_LANES),
    ("lock webhook runtime", LOCK_RUNTIME),
    ("lock a webhook's lanes", LOCK_WEBHOOK_LANES),
    ("recompute lanes", SET_WAKE),
    ("recompute and release lanes", RECOMPUTE_LANES),
    ("lock uncontended lanes", LOCK_UNCONTENDED),
    ("mark lanes claimed", MARK_LANES_CLAIMED),
    ("release lanes", RELEASE_LANES),
    ("blocked webhooks", SELECT_BLOCKED_UNTIL),
];

/// How often the lease of a delivery has ended without an outcome because its node died, its task panicked, or its
/// outcome could not be stored; `crash_count` is how often of these it was known to be sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReleaseCounts {
    pub(super) abnormal_releases: i32,
    pub(super) crash_count: i32,
}

/// Position of a delivery, which stays the same in `waiting` and `leased`.
#[derive(Clone, Debug)]
pub(super) struct LanePosition {
    pub(super) delivery_id: DeliveryId,
    pub(super) webhook_id: WebhookId,
    pub(super) lane: Lane,
    pub(super) seq: i64,
}

/// Delivery to be inserted into `waiting`.
#[derive(Clone, Debug)]
pub(super) struct WaitingDelivery {
    pub(super) sort_key: LanePosition,
    pub(super) due: Time,
    pub(super) created_at: Time,
    pub(super) release_counts: ReleaseCounts,
}

/// Lanes by webhook and code, in the order in which they are locked.
pub(super) type Keys = BTreeSet<(WebhookId, String)>;

/// Splits keys into two columns.
fn columns(keys: &Keys) -> (Vec<Col<WebhookId>>, Vec<&str>) {
    keys.iter().map(|(webhook_id, code)| (Col(*webhook_id), code.as_str())).unzip()
}

/// How a transaction locks one lane.
#[derive(Clone, Copy, Debug, Default)]
struct LaneLock {
    /// Latest wake time of the lane, which is created if it is missing. `None` if it must not be created.
    wake_at: Option<Time>,
    /// Exclusively (`FOR UPDATE`): deliveries are taken out, or the wake time may move to later.
    fully: bool,
    /// Against changes, even if the wake time is early enough.
    change: bool,
}

/// Lanes that a transaction locks. They are collected first and locked by one statement in key order: a
/// transaction that locked lanes twice could deadlock.
#[derive(Debug, Default)]
pub(super) struct LaneLocks(BTreeMap<(WebhookId, String), LaneLock>);

impl LaneLocks {
    /// Locks a lane into which a delivery is inserted. Its wake time becomes `due` or earlier.
    pub(super) fn put_into(&mut self, webhook_id: WebhookId, lane: &Lane, due: Time) {
        let lock = self.0.entry((webhook_id, lane.code().into_owned())).or_default();
        lock.wake_at = Some(lock.wake_at.map_or(due, |at| at.min(due)));
    }

    /// Locks a lane exclusively, if it exists.
    pub(super) fn take_from(&mut self, webhook_id: WebhookId, lane: String) {
        self.0.entry((webhook_id, lane)).or_default().fully = true;
    }

    /// Locks a lane so that its claim can be ended, if it exists.
    pub(super) fn release(&mut self, webhook_id: WebhookId, lane: &str) {
        let lock = self.0.entry((webhook_id, lane.to_owned())).or_default();
        lock.change = true;
        // A lane without a wake time is not upserted, so only the exclusive lock can lock it.
        lock.fully |= lock.wake_at.is_none();
    }

    /// Locks the lanes collected so far against changes.
    pub(super) fn change_all(&mut self) {
        for lock in self.0.values_mut() {
            lock.change = true;
        }
    }

    /// Adds all lanes of webhooks, to be locked exclusively. Lanes that are created later are not included.
    pub(super) async fn add_all_of(
        &mut self,
        tx: &Session,
        webhooks: impl IntoIterator<Item = &WebhookId>,
    ) -> Result<(), Failure> {
        let webhooks: Vec<_> = webhooks.into_iter().map(|webhook_id| Col(*webhook_id)).collect();
        for row in tx.query(SELECT_LANES, &[&webhooks]).await? {
            self.take_from(get(&row, 0)?, plain(&row, 1)?);
        }
        Ok(())
    }

    pub(super) fn webhooks(&self) -> BTreeSet<WebhookId> {
        self.0.keys().map(|(webhook_id, _)| *webhook_id).collect()
    }

    /// Locks the `webhook_runtime` rows, and then the lanes.
    pub(super) async fn lock(&self, tx: &Session) -> Result<Keys, Failure> {
        let webhooks: Vec<_> = self.webhooks().into_iter().map(Col).collect();
        if webhooks.is_empty() {
            return Ok(Keys::new());
        }
        tx.query(LOCK_RUNTIME, &[&webhooks]).await?;
        self.lock_lanes(tx).await
    }

    /// Locks the lanes; the `webhook_runtime` rows must be locked already. Returns the lanes that are locked
    /// exclusively.
    pub(super) async fn lock_lanes(&self, tx: &Session) -> Result<Keys, Failure> {
        if self.0.is_empty() {
            return Ok(Keys::new());
        }
        let locks = || self.0.values();
        let rows = tx
            .query(
                LOCK_OR_CREATE_LANES,
                &[
                    &self.0.keys().map(|(webhook_id, _)| Col(*webhook_id)).collect::<Vec<_>>(),
                    &self.0.keys().map(|(_, code)| code.as_str()).collect::<Vec<_>>(),
                    &locks().map(|lock| lock.wake_at.map(Col)).collect::<Vec<_>>(),
                    &locks().map(|lock| lock.fully).collect::<Vec<_>>(),
                    &locks().map(|lock| !lock.fully && !lock.change).collect::<Vec<_>>(),
                    &Col(Time::FAR_FUTURE),
                    &redrive_core::tenancy::DEFAULT_POOL,
                ],
            )
            .await?;
        rows.iter().map(|row| Ok((get(row, 0)?, plain(row, 1)?))).collect()
    }
}

/// Inserts deliveries into lanes that were locked with [`LaneLocks::put_into`].
pub(super) async fn insert_waiting(tx: &Session, waits: &[WaitingDelivery]) -> Result<(), Failure> {
    if waits.is_empty() {
        return Ok(());
    }
    let index = |wait: &WaitingDelivery| if wait.sort_key.lane.is_ordered() { 0 } else { wait.due.millis() };
    let codes: Vec<_> = waits.iter().map(|wait| wait.sort_key.lane.code()).collect();
    tx.execute(
        INSERT_WAITING,
        &[
            &waits.iter().map(|wait| Col(wait.sort_key.delivery_id)).collect::<Vec<_>>(),
            &waits.iter().map(|wait| Col(wait.sort_key.webhook_id)).collect::<Vec<_>>(),
            &codes.iter().map(|code| &**code).collect::<Vec<_>>(),
            &waits.iter().map(index).collect::<Vec<_>>(),
            &waits.iter().map(|wait| wait.sort_key.seq).collect::<Vec<_>>(),
            &waits.iter().map(|wait| Col(wait.due)).collect::<Vec<_>>(),
            &waits.iter().map(|wait| Col(wait.created_at)).collect::<Vec<_>>(),
            &waits.iter().map(|wait| wait.release_counts.abnormal_releases).collect::<Vec<_>>(),
            &waits.iter().map(|wait| wait.release_counts.crash_count).collect::<Vec<_>>(),
        ],
    )
    .await?;
    let orders = waits.iter().filter(|wait| wait.sort_key.lane.is_ordered());
    let orders =
        orders.map(|wait| (wait.sort_key.webhook_id, wait.sort_key.lane.code().into_owned())).collect();
    set_by_first(tx, &orders).await
}

/// Locks lanes and `webhook_runtime` rows before deliveries are taken out. Returns the lanes that exist: nothing
/// may be taken out of the others.
pub(super) async fn lock(tx: &Session, keys: &Keys) -> Result<Keys, Failure> {
    let mut locks = LaneLocks::default();
    for (webhook_id, code) in keys {
        locks.take_from(*webhook_id, code.clone());
    }
    locks.lock(tx).await
}

/// Locks all lanes of a webhook; its `webhook_runtime` row must be locked already.
pub(super) async fn lock_all(tx: &Session, webhook_id: WebhookId) -> Result<Keys, Failure> {
    lock_lanes_of(tx, LOCK_WEBHOOK_LANES, webhook_id).await
}

async fn lock_lanes_of(tx: &Session, how: &str, webhook_id: WebhookId) -> Result<Keys, Failure> {
    let rows = tx.query(how, &[&Col(webhook_id)]).await?;
    rows.iter().map(|row| Ok((webhook_id, plain(row, 0)?))).collect()
}

/// Sets the wake time of lanes, whichever node has claimed them, after a delivery in them was added, changed or removed.
/// They must be locked exclusively (`FOR UPDATE`); for ordered lanes any lock is enough.
pub(super) async fn set_by_first(tx: &Session, keys: &Keys) -> Result<(), Failure> {
    if keys.is_empty() {
        return Ok(());
    }
    let (webhooks, codes) = columns(keys);
    tx.execute(SET_WAKE, &[&webhooks, &codes, &Col(Time::FAR_FUTURE)]).await?;
    Ok(())
}

/// Returns the times until which nothing may be claimed for these webhooks. Webhooks that nothing blocks are left
/// out, or have a time in the past.
pub(super) async fn blocked_until(
    tx: &Session,
    webhooks: &[WebhookId],
) -> Result<BTreeMap<WebhookId, Time>, Failure> {
    let webhooks: Vec<_> = webhooks.iter().map(|webhook_id| Col(*webhook_id)).collect();
    let rows = tx.query(SELECT_BLOCKED_UNTIL, &[&webhooks, &Col(Time::FAR_FUTURE)]).await?;
    rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect()
}

/// Locks lanes exclusively, and returns those into which no other transaction is inserting.
pub(super) async fn lock_uncontended(tx: &Session, keys: &Keys) -> Result<Keys, Failure> {
    if keys.is_empty() {
        return Ok(Keys::new());
    }
    let (webhooks, codes) = columns(keys);
    let rows = tx.query(LOCK_UNCONTENDED, &[&webhooks, &codes]).await?;
    rows.iter().map(|row| Ok((get(row, 0)?, plain(row, 1)?))).collect()
}

/// Marks locked lanes as claimed by an epoch.
pub(super) async fn mark_claimed(tx: &Session, keys: &Keys, epoch: Epoch) -> Result<(), Failure> {
    set_claimed_by(tx, MARK_LANES_CLAIMED, keys, epoch).await
}

/// Ends the claims of locked lanes, if the epoch has claimed them.
pub(super) async fn release_lanes(tx: &Session, keys: &Keys, epoch: Epoch) -> Result<(), Failure> {
    set_claimed_by(tx, RELEASE_LANES, keys, epoch).await
}

async fn set_claimed_by(tx: &Session, how: &str, keys: &Keys, epoch: Epoch) -> Result<(), Failure> {
    if keys.is_empty() {
        return Ok(());
    }
    let (webhooks, codes) = columns(keys);
    tx.execute(how, &[&webhooks, &codes, &epoch.0]).await?;
    Ok(())
}

/// Recomputes lanes that are locked exclusively (`FOR UPDATE`) from what is waiting in them, with a wake time no
/// earlier than `not_before`. Ends their claims and deletes empty lanes.
pub(super) async fn recompute_lane(tx: &Session, keys: &Keys, not_before: Time) -> Result<(), Failure> {
    if keys.is_empty() {
        return Ok(());
    }
    let (webhooks, codes) = columns(keys);
    tx.execute(RECOMPUTE_LANES, &[&webhooks, &codes, &Col(not_before)]).await?;
    Ok(())
}

/// Recomputes every lane of a webhook after its `webhook_runtime` row has changed, and ends their claims.
pub(super) async fn recompute_lanes(tx: &Session, webhook_id: WebhookId) -> Result<(), Failure> {
    let keys = lock_all(tx, webhook_id).await?;
    settle_blocked(tx, webhook_id, &keys).await
}

/// Recomputes the lanes of a webhook in a transaction that has locked them already. A lane that was created since
/// is left unchanged: it wakes when its first delivery is due, and the claim then finds that the webhook is
/// blocked.
pub(super) async fn settle_locked(tx: &Session, webhook_id: WebhookId) -> Result<(), Failure> {
    let keys = lock_lanes_of(tx, LOCK_FREE_WEBHOOK_LANES, webhook_id).await?;
    settle_blocked(tx, webhook_id, &keys).await
}

async fn settle_blocked(tx: &Session, webhook_id: WebhookId, keys: &Keys) -> Result<(), Failure> {
    if keys.is_empty() {
        return Ok(());
    }
    let not_before = blocked_until(tx, &[webhook_id]).await?.remove(&webhook_id).unwrap_or_default();
    recompute_lane(tx, keys, not_before).await
}
