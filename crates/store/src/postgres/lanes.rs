//! Lanes: when to look into each queue of a webhook. Whatever blocks the webhook as a whole is looked up here
//! and nowhere else, so that a blocked webhook's deliveries cost nothing until it may move.
//!
//! A lane's row is also its lock, in two strengths. Whoever takes something out of `waiting` has locked it
//! against others who do. Whoever puts something in only keeps it as it is until the commit, if it looks for work
//! early enough already: so the two do not wait for each other. But to let a lane look later, or to remove it,
//! it is first locked exclusively (`FOR UPDATE`) and then looked into: so nothing that comes in can be missed.
//!
//! A transaction locks what blocks webhooks and then lanes, each once and in order: see [`LaneLocks`] and
//! `docs/adr/0044-one-lock-order.md`.

use std::collections::{BTreeMap, BTreeSet};

use redrive_core::{DeliveryId, Time, WebhookId, delivery::lane::Lane};

use super::{
    convert::{Col, get, plain},
    session::{Failure, Session},
};
use crate::Epoch;

/// Locks what blocks webhooks, before their lanes: the one is counted for the other. Takes the webhooks and the number
/// of the value for ever.
macro_rules! early_lanes {
    ($webhooks:literal, $forever:literal) => {
        concat!(
            "r AS MATERIALIZED (
         SELECT webhook, CASE WHEN paused THEN ",
            $forever,
            "::bigint ELSE greatest(hold_until, circuit_until) END AS until
         FROM runtime WHERE webhook = ANY(",
            $webhooks,
            "::uuid[]) ORDER BY webhook FOR SHARE)"
        )
    };
}
/// Makes lanes look for work early enough, given `r` and `k(webhook, lane, wake_at)`. A lane that does so already is
/// kept as it is until the commit; orders are always locked, since only their first counts. Lanes are locked one after
/// the other in their order, whichever of the two happens to each: each is looked up right before it is inserted.
macro_rules! wake_lanes {
    ($pool:literal) => {
        concat!(
            "INSERT INTO lanes (webhook, lane, wake_at, pool)
     SELECT k.webhook, k.lane, greatest(k.wake_at, (SELECT r.until FROM r WHERE r.webhook = k.webhook)), coalesce((
            SELECT t.pool FROM webhooks w JOIN tenants t ON t.id = w.tenant WHERE w.id = k.webhook), ",
            $pool,
            ")
     FROM (SELECT count(*) AS n FROM r) blocked
     CROSS JOIN (SELECT * FROM k ORDER BY k.webhook, k.lane COLLATE \"C\") k
     LEFT JOIN LATERAL (
         SELECT true AS is_early FROM lanes l WHERE l.webhook = k.webhook AND l.lane = k.lane COLLATE \"C\"
             AND l.lane >= 'A' AND l.wake_at <= k.wake_at AND blocked.n >= 0 LIMIT 1 FOR KEY SHARE) e ON true
     WHERE e.is_early IS NULL
     ON CONFLICT (webhook, lane) DO UPDATE SET wake_at = excluded.wake_at
     WHERE lanes.wake_at > excluded.wake_at"
        )
    };
}
pub(super) use {early_lanes, wake_lanes};

const INSERT_WAITING: &str =
    "INSERT INTO waiting (delivery, webhook, lane, place, seq, due, created_at, rescues, deaths)
     SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[],
                          $7::bigint[], $8::integer[], $9::integer[])";
/// Locks lanes one after the other in their order, and creates those that get a time ($3). A lane with $4 is locked
/// exclusively (`FOR UPDATE`); one with $5 may be kept as it is if it looks for work early enough; any other is locked
/// against those who change it. Gives the lanes that are locked exclusively (`FOR UPDATE`).
///
/// `created` is read before the result, and reads `taken` row by row: so each lane is created right after the lanes
/// before it are locked. What blocks webhooks was locked before; a row that came since is not waited for.
const LOCK_AND_CREATE: &str = "WITH r AS MATERIALIZED (
         SELECT webhook, CASE WHEN paused THEN $6::bigint ELSE greatest(hold_until, circuit_until) END AS until
         FROM runtime WHERE webhook = ANY($1::uuid[]) ORDER BY webhook FOR SHARE SKIP LOCKED),
     taken AS MATERIALIZED (
         SELECT k.webhook, k.lane, k.wake_at, f.is_there, e.is_early
         FROM (SELECT count(*) AS n FROM r) blocked CROSS JOIN
             unnest($1::uuid[], $2::text[], $3::bigint[], $4::boolean[], $5::boolean[])
                 AS k(webhook, lane, wake_at, fully, keep)
         LEFT JOIN LATERAL (
             SELECT true AS is_there FROM lanes l WHERE l.webhook = k.webhook AND l.lane = k.lane COLLATE \"C\"
                 AND k.fully AND blocked.n >= 0 LIMIT 1 FOR UPDATE) f ON true
         LEFT JOIN LATERAL (
             SELECT true AS is_early FROM lanes l WHERE l.webhook = k.webhook AND l.lane = k.lane COLLATE \"C\"
                 AND l.lane >= 'A' AND l.wake_at <= k.wake_at AND k.keep AND blocked.n >= 0
             LIMIT 1 FOR KEY SHARE) e ON true),
     created AS (
         INSERT INTO lanes (webhook, lane, wake_at, pool)
         SELECT k.webhook, k.lane, greatest(k.wake_at, (SELECT r.until FROM r WHERE r.webhook = k.webhook)), coalesce((
                SELECT t.pool FROM webhooks w JOIN tenants t ON t.id = w.tenant WHERE w.id = k.webhook), $7)
         FROM taken k WHERE k.wake_at IS NOT NULL AND k.is_early IS NULL
         ON CONFLICT (webhook, lane) DO UPDATE SET wake_at = excluded.wake_at
         WHERE lanes.wake_at > excluded.wake_at RETURNING 1)
     SELECT webhook, lane FROM taken WHERE (SELECT count(*) FROM created) >= 0 AND is_there";
/// So that what blocks webhooks does not change until the commit.
const LOCK_RUNTIME: &str =
    "SELECT webhook FROM runtime WHERE webhook = ANY($1::uuid[]) ORDER BY webhook FOR SHARE";
const LOCK_ALL: &str = "SELECT lane FROM lanes WHERE webhook = $1 ORDER BY lane FOR UPDATE";
/// The same, but for lanes that others have locked.
const LOCK_FREE: &str = "SELECT lane FROM lanes WHERE webhook = $1 ORDER BY lane FOR UPDATE SKIP LOCKED";
const LANES_OF: &str = "SELECT webhook, lane FROM lanes WHERE webhook = ANY($1::uuid[])";
/// Sets lanes by the first that waits in each. In an order, nothing behind it may start before it is over.
pub(super) const LOOK: &str = "WITH k AS MATERIALIZED (
         SELECT l.tid FROM unnest($1::uuid[], $2::text[]) AS k(webhook, lane) CROSS JOIN LATERAL (
             SELECT ctid AS tid FROM lanes l WHERE l.webhook = k.webhook AND l.lane = k.lane COLLATE \"C\" LIMIT 1) l),
     closed AS (DELETE FROM lanes l WHERE l.ctid = ANY(ARRAY(SELECT tid FROM k)) AND (
         SELECT 1 FROM waiting w WHERE w.webhook = l.webhook AND w.lane = l.lane LIMIT 1) IS NULL)
     UPDATE lanes l SET wake_at = greatest((SELECT w.due FROM waiting w
         WHERE w.webhook = l.webhook AND w.lane = l.lane ORDER BY w.place, w.seq LIMIT 1), (SELECT
             CASE WHEN r.paused THEN $3::bigint ELSE greatest(r.hold_until, r.circuit_until) END
             FROM runtime r WHERE r.webhook = l.webhook))
     WHERE l.ctid = ANY(ARRAY(SELECT tid FROM k)) AND (
         SELECT 1 FROM waiting w WHERE w.webhook = l.webhook AND w.lane = l.lane LIMIT 1) IS NOT NULL";
/// The same, but not before $3, and nobody holds them from then on.
pub(super) const SETTLE: &str = "WITH k AS MATERIALIZED (
         SELECT l.tid FROM unnest($1::uuid[], $2::text[]) AS k(webhook, lane) CROSS JOIN LATERAL (
             SELECT ctid AS tid FROM lanes l WHERE l.webhook = k.webhook AND l.lane = k.lane COLLATE \"C\" LIMIT 1) l),
     closed AS (DELETE FROM lanes l WHERE l.ctid = ANY(ARRAY(SELECT tid FROM k)) AND (
         SELECT 1 FROM waiting w WHERE w.webhook = l.webhook AND w.lane = l.lane LIMIT 1) IS NULL)
     UPDATE lanes l SET wake_at = greatest((SELECT w.due FROM waiting w
         WHERE w.webhook = l.webhook AND w.lane = l.lane ORDER BY w.place, w.seq LIMIT 1), $3::bigint), held_by = NULL
     WHERE l.ctid = ANY(ARRAY(SELECT tid FROM k)) AND (
         SELECT 1 FROM waiting w WHERE w.webhook = l.webhook AND w.lane = l.lane LIMIT 1) IS NOT NULL";
/// Locks lanes exclusively, but for those that somebody puts something into just now.
pub(super) const LOCK_QUIET: &str = "SELECT l.webhook, l.lane
     FROM unnest($1::uuid[], $2::text[]) AS k(webhook, lane) CROSS JOIN LATERAL (
         SELECT * FROM lanes l WHERE l.webhook = k.webhook AND l.lane = k.lane COLLATE \"C\"
         LIMIT 1 FOR UPDATE SKIP LOCKED) l";
macro_rules! set_holder {
    ($now:literal, $then:literal) => {
        concat!(
            "WITH k AS MATERIALIZED (
         SELECT l.tid FROM unnest($1::uuid[], $2::text[]) AS k(webhook, lane) CROSS JOIN LATERAL (
             SELECT ctid AS tid FROM lanes l WHERE l.webhook = k.webhook AND l.lane = k.lane COLLATE \"C\"
                 AND l.held_by ",
            $now,
            " $3::bigint LIMIT 1) l)
     UPDATE lanes SET held_by = ",
            $then,
            " WHERE ctid = ANY(ARRAY(SELECT tid FROM k))"
        )
    };
}
pub(super) const HOLD: &str = set_holder!("IS DISTINCT FROM", "$3");
pub(super) const LET_GO: &str = set_holder!("=", "NULL");
const BLOCKED_UNTIL: &str = "SELECT webhook,
         CASE WHEN paused THEN $2::bigint ELSE greatest(hold_until, circuit_until) END
     FROM runtime WHERE webhook = ANY($1::uuid[])";

/// The statements whose cost must follow what they change: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED: [(&str, &str); 12] = [
    ("insert into lanes", INSERT_WAITING),
    ("lock and create lanes", LOCK_AND_CREATE),
    ("lock a webhook's free lanes", LOCK_FREE),
    ("a webhook's lanes", LANES_OF),
    ("lock what blocks", LOCK_RUNTIME),
    ("lock a webhook's lanes", LOCK_ALL),
    ("look at lanes again", LOOK),
    ("settle lanes", SETTLE),
    ("lock quiet lanes", LOCK_QUIET),
    ("hold lanes", HOLD),
    ("let go of lanes", LET_GO),
    ("what blocks", BLOCKED_UNTIL),
];

/// What a delivery has been through on nodes that died.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rescued {
    pub(super) rescues: i32,
    pub(super) deaths: i32,
}

/// A delivery as it goes from lane to lease and back.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) delivery: DeliveryId,
    pub(super) webhook: WebhookId,
    pub(super) lane: Lane,
    pub(super) seq: i64,
}

/// A delivery that is to wait.
#[derive(Clone, Debug)]
pub(super) struct Wait {
    pub(super) place: Place,
    pub(super) due: Time,
    pub(super) created_at: Time,
    pub(super) rescued: Rescued,
}

/// Lanes by webhook and code, in the order in which they are locked.
pub(super) type Keys = BTreeSet<(WebhookId, String)>;

/// Two columns of keys.
fn columns(keys: &Keys) -> (Vec<Col<WebhookId>>, Vec<&str>) {
    keys.iter().map(|(webhook, code)| (Col(*webhook), code.as_str())).unzip()
}

/// How a transaction locks one lane.
#[derive(Clone, Copy, Debug, Default)]
struct LaneLock {
    /// When the lane is to look for work; it is created if it is missing.
    wake_at: Option<Time>,
    /// Exclusively (`FOR UPDATE`): something is taken out, or the lane is to look later.
    fully: bool,
    /// Against those who change it, even if it looks for work early enough.
    change: bool,
}

/// The lanes that a transaction locks. They are gathered first and locked by one statement in their order: a
/// transaction that locked lanes twice could wait for one that waits for it.
#[derive(Debug, Default)]
pub(super) struct LaneLocks(BTreeMap<(WebhookId, String), LaneLock>);

impl LaneLocks {
    /// Locks a lane that something is put into. It looks for work no later than given.
    pub(super) fn put_into(&mut self, webhook: WebhookId, lane: &Lane, due: Time) {
        let lock = self.0.entry((webhook, lane.code().into_owned())).or_default();
        lock.wake_at = Some(lock.wake_at.map_or(due, |at| at.min(due)));
    }

    /// Locks a lane exclusively, if it is there.
    pub(super) fn take_from(&mut self, webhook: WebhookId, lane: String) {
        self.0.entry((webhook, lane)).or_default().fully = true;
    }

    /// Locks a lane so that its holder can be taken away, if it is there.
    pub(super) fn release(&mut self, webhook: WebhookId, lane: &str) {
        let lock = self.0.entry((webhook, lane.to_owned())).or_default();
        lock.change = true;
        // A lane that is not created is found by a lock alone.
        lock.fully |= lock.wake_at.is_none();
    }

    /// Locks the lanes gathered so far so that they can be changed.
    pub(super) fn change_all(&mut self) {
        for lock in self.0.values_mut() {
            lock.change = true;
        }
    }

    /// Adds all lanes of webhooks, to be locked exclusively. Those that are created later are not waited for.
    pub(super) async fn add_all_of(
        &mut self,
        tx: &Session,
        webhooks: impl IntoIterator<Item = &WebhookId>,
    ) -> Result<(), Failure> {
        let webhooks: Vec<_> = webhooks.into_iter().map(|webhook| Col(*webhook)).collect();
        for row in tx.query(LANES_OF, &[&webhooks]).await? {
            self.take_from(get(&row, 0)?, plain(&row, 1)?);
        }
        Ok(())
    }

    pub(super) fn webhooks(&self) -> BTreeSet<WebhookId> {
        self.0.keys().map(|(webhook, _)| *webhook).collect()
    }

    /// Locks what blocks the webhooks, and then the lanes.
    pub(super) async fn lock(&self, tx: &Session) -> Result<Keys, Failure> {
        let webhooks: Vec<_> = self.webhooks().into_iter().map(Col).collect();
        if webhooks.is_empty() {
            return Ok(Keys::new());
        }
        tx.query(LOCK_RUNTIME, &[&webhooks]).await?;
        self.lock_lanes(tx).await
    }

    /// Locks the lanes; what blocks their webhooks must have been locked before. Gives those that are locked
    /// exclusively.
    pub(super) async fn lock_lanes(&self, tx: &Session) -> Result<Keys, Failure> {
        if self.0.is_empty() {
            return Ok(Keys::new());
        }
        let locks = || self.0.values();
        let rows = tx
            .query(
                LOCK_AND_CREATE,
                &[
                    &self.0.keys().map(|(webhook, _)| Col(*webhook)).collect::<Vec<_>>(),
                    &self.0.keys().map(|(_, code)| code.as_str()).collect::<Vec<_>>(),
                    &locks().map(|lock| lock.wake_at.map(Col)).collect::<Vec<_>>(),
                    &locks().map(|lock| lock.fully).collect::<Vec<_>>(),
                    &locks().map(|lock| !lock.fully && !lock.change).collect::<Vec<_>>(),
                    &Col(Time::FOREVER),
                    &redrive_core::tenancy::DEFAULT_POOL,
                ],
            )
            .await?;
        rows.iter().map(|row| Ok((get(row, 0)?, plain(row, 1)?))).collect()
    }
}

/// Makes deliveries wait in lanes that were locked with [`LaneLocks::put_into`].
pub(super) async fn insert_waiting(tx: &Session, waits: &[Wait]) -> Result<(), Failure> {
    if waits.is_empty() {
        return Ok(());
    }
    let place = |wait: &Wait| if wait.place.lane.is_ordered() { 0 } else { wait.due.millis() };
    let codes: Vec<_> = waits.iter().map(|wait| wait.place.lane.code()).collect();
    tx.execute(
        INSERT_WAITING,
        &[
            &waits.iter().map(|wait| Col(wait.place.delivery)).collect::<Vec<_>>(),
            &waits.iter().map(|wait| Col(wait.place.webhook)).collect::<Vec<_>>(),
            &codes.iter().map(|code| &**code).collect::<Vec<_>>(),
            &waits.iter().map(place).collect::<Vec<_>>(),
            &waits.iter().map(|wait| wait.place.seq).collect::<Vec<_>>(),
            &waits.iter().map(|wait| Col(wait.due)).collect::<Vec<_>>(),
            &waits.iter().map(|wait| Col(wait.created_at)).collect::<Vec<_>>(),
            &waits.iter().map(|wait| wait.rescued.rescues).collect::<Vec<_>>(),
            &waits.iter().map(|wait| wait.rescued.deaths).collect::<Vec<_>>(),
        ],
    )
    .await?;
    let orders = waits.iter().filter(|wait| wait.place.lane.is_ordered());
    let orders = orders.map(|wait| (wait.place.webhook, wait.place.lane.code().into_owned())).collect();
    set_by_first(tx, &orders).await
}

/// Locks lanes and what blocks their webhooks, before anything is taken out of them. Gives those that are there:
/// nothing may be taken out of the others.
pub(super) async fn lock(tx: &Session, keys: &Keys) -> Result<Keys, Failure> {
    let mut locks = LaneLocks::default();
    for (webhook, code) in keys {
        locks.take_from(*webhook, code.clone());
    }
    locks.lock(tx).await
}

/// Locks all lanes of a webhook; what blocks it must have been locked before.
pub(super) async fn lock_all(tx: &Session, webhook: WebhookId) -> Result<Keys, Failure> {
    lock_lanes_of(tx, LOCK_ALL, webhook).await
}

async fn lock_lanes_of(tx: &Session, how: &str, webhook: WebhookId) -> Result<Keys, Failure> {
    let rows = tx.query(how, &[&Col(webhook)]).await?;
    rows.iter().map(|row| Ok((webhook, plain(row, 0)?))).collect()
}

/// Sets when lanes look for work next, whichever node holds them, after a delivery in them was added, changed or removed. They must
/// be locked exclusively (`FOR UPDATE`); for orders it is enough that they are locked.
pub(super) async fn set_by_first(tx: &Session, keys: &Keys) -> Result<(), Failure> {
    if keys.is_empty() {
        return Ok(());
    }
    let (webhooks, codes) = columns(keys);
    tx.execute(LOOK, &[&webhooks, &codes, &Col(Time::FOREVER)]).await?;
    Ok(())
}

/// Until when nothing may be claimed for these webhooks; those that nothing blocks are not named.
pub(super) async fn blocked_until(
    tx: &Session,
    webhooks: &[WebhookId],
) -> Result<BTreeMap<WebhookId, Time>, Failure> {
    let webhooks: Vec<_> = webhooks.iter().map(|webhook| Col(*webhook)).collect();
    let rows = tx.query(BLOCKED_UNTIL, &[&webhooks, &Col(Time::FOREVER)]).await?;
    rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect()
}

/// Locks lanes exclusively, and gives those that nobody puts something into just now.
pub(super) async fn lock_quiet(tx: &Session, keys: &Keys) -> Result<Keys, Failure> {
    if keys.is_empty() {
        return Ok(Keys::new());
    }
    let (webhooks, codes) = columns(keys);
    let rows = tx.query(LOCK_QUIET, &[&webhooks, &codes]).await?;
    rows.iter().map(|row| Ok((get(row, 0)?, plain(row, 1)?))).collect()
}

/// Holds lanes that are locked.
pub(super) async fn hold(tx: &Session, keys: &Keys, epoch: Epoch) -> Result<(), Failure> {
    set_holder(tx, HOLD, keys, epoch).await
}

/// Lets go of lanes that are locked, as far as they are held.
pub(super) async fn let_go(tx: &Session, keys: &Keys, epoch: Epoch) -> Result<(), Failure> {
    set_holder(tx, LET_GO, keys, epoch).await
}

async fn set_holder(tx: &Session, how: &str, keys: &Keys, epoch: Epoch) -> Result<(), Failure> {
    if keys.is_empty() {
        return Ok(());
    }
    let (webhooks, codes) = columns(keys);
    tx.execute(how, &[&webhooks, &codes, &epoch.0]).await?;
    Ok(())
}

/// Sets lanes that are locked exclusively (`FOR UPDATE`) by what is left in them, but lets them look no earlier than
/// given. Nobody holds them any more; those with nothing left go.
pub(super) async fn settle(tx: &Session, keys: &Keys, not_before: Time) -> Result<(), Failure> {
    if keys.is_empty() {
        return Ok(());
    }
    let (webhooks, codes) = columns(keys);
    tx.execute(SETTLE, &[&webhooks, &codes, &Col(not_before)]).await?;
    Ok(())
}

/// Sets when every lane of a webhook looks for work, after what blocks it has changed. No node holds them from then on.
pub(super) async fn settle_all(tx: &Session, webhook: WebhookId) -> Result<(), Failure> {
    let keys = lock_all(tx, webhook).await?;
    settle_blocked(tx, webhook, &keys).await
}

/// The same in a transaction that has locked lanes before, this webhook's among them. A lane that was created since is
/// left alone: it looks for work at the time of what waits in it, and a claim finds out what blocks it.
pub(super) async fn settle_locked(tx: &Session, webhook: WebhookId) -> Result<(), Failure> {
    let keys = lock_lanes_of(tx, LOCK_FREE, webhook).await?;
    settle_blocked(tx, webhook, &keys).await
}

async fn settle_blocked(tx: &Session, webhook: WebhookId, keys: &Keys) -> Result<(), Failure> {
    if keys.is_empty() {
        return Ok(());
    }
    let not_before = blocked_until(tx, &[webhook]).await?.remove(&webhook).unwrap_or_default();
    settle(tx, keys, not_before).await
}
