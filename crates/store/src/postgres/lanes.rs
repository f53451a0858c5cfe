//! Lanes: when to look into each queue of a webhook. Whatever blocks the webhook as a whole is looked up here
//! and nowhere else, so that a blocked webhook's deliveries cost nothing until it may move.
//!
//! A lane's row is also its lock, in two strengths. Whoever takes something out of `waiting` has locked it
//! against others who do. Whoever puts something in only keeps it as it is until the commit, if it looks for work
//! early enough already: so the two do not wait for each other. But to let a lane look later, or to remove it,
//! it is first locked against everybody and then looked into: so nothing that comes in can be missed.

use std::collections::{BTreeMap, BTreeSet};

use redrive_core::{DeliveryId, Time, WebhookId, lane::Lane};

use super::{
    convert::{Col, get, plain},
    session::{Failure, Session},
};
use crate::Epoch;

/// What lets lanes look for work early enough, given `k(webhook, lane, wake_at)`, its webhooks, and the numbers of
/// the values for ever and for the default pool. Lanes that do so already are kept as they are until the commit;
/// orders are always locked, since only their first counts. What blocks webhooks is locked before their lanes: the one
/// is counted for the other.
macro_rules! early_lanes {
    ($webhooks:literal, $forever:literal) => {
        concat!(
            "r AS MATERIALIZED (
         SELECT webhook, CASE WHEN paused THEN ",
            $forever,
            "::bigint ELSE greatest(hold_until, circuit_until) END AS until
         FROM runtime WHERE webhook = ANY(",
            $webhooks,
            "::uuid[]) ORDER BY webhook FOR SHARE),
     early AS MATERIALIZED (
         SELECT l.webhook, l.lane FROM (SELECT count(*) AS n FROM r) locked CROSS JOIN k CROSS JOIN LATERAL (
             SELECT * FROM lanes l WHERE l.webhook = k.webhook AND l.lane = k.lane COLLATE \"C\"
                 AND l.lane >= 'A' AND l.wake_at <= k.wake_at AND locked.n >= 0 LIMIT 1 FOR KEY SHARE) l)"
        )
    };
}
macro_rules! wake_lanes {
    ($pool:literal) => {
        concat!(
            "INSERT INTO lanes (webhook, lane, wake_at, pool)
     SELECT k.webhook, k.lane, greatest(k.wake_at, r.until), coalesce((
            SELECT t.pool FROM webhooks w JOIN tenants t ON t.id = w.tenant WHERE w.id = k.webhook), ",
            $pool,
            ")
     FROM k LEFT JOIN r ON r.webhook = k.webhook
     WHERE NOT EXISTS (SELECT 1 FROM early e WHERE e.webhook = k.webhook AND e.lane = k.lane COLLATE \"C\")
     ORDER BY k.webhook, k.lane COLLATE \"C\"
     ON CONFLICT (webhook, lane) DO UPDATE SET wake_at = excluded.wake_at
     WHERE lanes.wake_at > excluded.wake_at"
        )
    };
}
pub(super) use {early_lanes, wake_lanes};

/// Makes deliveries wait, and their lanes look for work no later than given, or than whatever blocks their
/// webhooks.
pub(super) const WAIT: &str = concat!(
    "WITH new AS (
         INSERT INTO waiting (delivery, webhook, lane, place, seq, due, created_at, rescues, deaths)
         SELECT * FROM unnest($6::uuid[], $7::uuid[], $8::text[], $9::bigint[], $10::bigint[], $11::bigint[],
                              $12::bigint[], $13::integer[], $14::integer[])),
     k AS (
         SELECT * FROM unnest($1::uuid[], $2::text[], $3::bigint[]) AS k(webhook, lane, wake_at)), ",
    early_lanes!("$1", "$4"),
    wake_lanes!("$5")
);
/// So that what blocks webhooks does not change meanwhile.
const LOCK_RUNTIME: &str =
    "SELECT webhook FROM runtime WHERE webhook = ANY($1::uuid[]) ORDER BY webhook FOR SHARE";
const LOCK: &str = "SELECT l.webhook, l.lane FROM unnest($1::uuid[], $2::text[]) AS k(webhook, lane)
     CROSS JOIN LATERAL (
         SELECT * FROM lanes l WHERE l.webhook = k.webhook AND l.lane = k.lane COLLATE \"C\" LIMIT 1 FOR UPDATE) l";
const LOCK_ALL: &str = "SELECT lane FROM lanes WHERE webhook = $1 ORDER BY lane FOR UPDATE";
/// Sets lanes by the first that waits in each. In an order, nothing behind it may start before it is over.
const LOOK: &str = "WITH k AS MATERIALIZED (
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
/// Locks lanes against everybody, but for those that somebody puts something into just now.
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
pub(super) const PLANNED: [(&str, &str); 10] = [
    ("make wait", WAIT),
    ("lock what blocks", LOCK_RUNTIME),
    ("lock lanes", LOCK),
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

/// What is needed to make deliveries wait: by which times their lanes are to look, and which are orders.
pub(super) struct Waits<'a> {
    waits: &'a [Wait],
    wakes: BTreeMap<(WebhookId, String), Time>,
    orders: Keys,
}

impl<'a> Waits<'a> {
    pub(super) fn new(waits: &'a [Wait]) -> Self {
        let mut wakes: BTreeMap<(WebhookId, String), Time> = BTreeMap::new();
        let mut orders = Keys::new();
        for wait in waits {
            let key = (wait.place.webhook, wait.place.lane.code().into_owned());
            if wait.place.lane.is_ordered() {
                orders.insert(key.clone());
            }
            let at = wakes.entry(key).or_insert(wait.due);
            *at = wait.due.min(*at);
        }
        Self { waits, wakes, orders }
    }

    /// Whether one statement is all.
    pub(super) fn is_simple(&self) -> bool {
        self.orders.is_empty()
    }

    /// Makes them wait, by one statement.
    pub(super) async fn insert(&self, tx: &Session) -> Result<(), Failure> {
        let (waits, wakes) = (self.waits, &self.wakes);
        let place = |wait: &Wait| if wait.place.lane.is_ordered() { 0 } else { wait.due.millis() };
        let codes: Vec<_> = waits.iter().map(|wait| wait.place.lane.code()).collect();
        tx.execute(
            WAIT,
            &[
                &wakes.keys().map(|(webhook, _)| Col(*webhook)).collect::<Vec<_>>(),
                &wakes.keys().map(|(_, code)| code.as_str()).collect::<Vec<_>>(),
                &wakes.values().map(|at| Col(*at)).collect::<Vec<_>>(),
                &Col(Time::FOREVER),
                &redrive_core::tenant::DEFAULT_POOL,
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
        Ok(())
    }
}

/// Makes deliveries wait, and their lanes look at them in time.
pub(super) async fn wait(tx: &Session, waits: &[Wait]) -> Result<(), Failure> {
    if waits.is_empty() {
        return Ok(());
    }
    let waits = Waits::new(waits);
    waits.insert(tx).await?;
    // In an order only the first one counts, and none of these may be it.
    match waits.is_simple() {
        true => Ok(()),
        false => set_by_first(tx, &waits.orders).await,
    }
}

/// Locks lanes, and what blocks their webhooks, before anything is taken out of them. Gives those that are
/// there.
pub(super) async fn lock(tx: &Session, keys: &Keys) -> Result<Keys, Failure> {
    let (webhooks, _) = columns(keys);
    tx.query(LOCK_RUNTIME, &[&webhooks]).await?;
    lock_fully(tx, keys).await
}

/// Locks lanes against everybody, and gives those that are there.
pub(super) async fn lock_fully(tx: &Session, keys: &Keys) -> Result<Keys, Failure> {
    let (webhooks, codes) = columns(keys);
    let rows = tx.query(LOCK, &[&webhooks, &codes]).await?;
    rows.iter().map(|row| Ok((get(row, 0)?, plain(row, 1)?))).collect()
}

/// Locks all lanes of a webhook; what blocks it must have been locked before.
pub(super) async fn lock_all(tx: &Session, webhook: WebhookId) -> Result<Keys, Failure> {
    let rows = tx.query(LOCK_ALL, &[&Col(webhook)]).await?;
    rows.iter().map(|row| Ok((webhook, plain(row, 0)?))).collect()
}

/// Sets what lanes look at next anew, whoever holds them, after something in them has come, changed or gone.
pub(super) async fn look_again(tx: &Session, keys: &Keys) -> Result<(), Failure> {
    if keys.is_empty() {
        return Ok(());
    }
    lock(tx, keys).await?;
    set_by_first(tx, keys).await
}

async fn set_by_first(tx: &Session, keys: &Keys) -> Result<(), Failure> {
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

/// Locks lanes against everybody, and gives those that nobody puts something into just now.
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

/// Sets lanes that are locked against everybody by what is left in them, but lets them look no earlier than
/// given. Nobody holds them any more; those with nothing left go.
pub(super) async fn settle(tx: &Session, keys: &Keys, not_before: Time) -> Result<(), Failure> {
    if keys.is_empty() {
        return Ok(());
    }
    let (webhooks, codes) = columns(keys);
    tx.execute(SETTLE, &[&webhooks, &codes, &Col(not_before)]).await?;
    Ok(())
}

/// Sets every lane of a webhook anew, after what blocks it has changed. Nobody holds them from then on.
pub(super) async fn settle_all(tx: &Session, webhook: WebhookId) -> Result<(), Failure> {
    let keys = lock_all(tx, webhook).await?;
    if keys.is_empty() {
        return Ok(());
    }
    let not_before = blocked_until(tx, &[webhook]).await?.remove(&webhook).unwrap_or_default();
    settle(tx, &keys, not_before).await
}
