//! Handing out what waits: from waiting to leased, which are the only two places where a delivery that is not
//! over can be. The way back is in `leases`.

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
    publish::LIVE,
    session::{Failure, Session, Tx},
    tickets::Taking,
};
use crate::{
    Answer, Claim, Claimed, DueLanes, Epoch, LaneClaim, LaneKey, LaneRoom, Owned, StoreError, Wanted,
};

const DUE_LANES: &str = "SELECT l.webhook, l.lane, l.wake_at FROM lanes l
     WHERE l.pool = $1 AND l.held_by IS NULL AND l.wake_at <= $2
         AND NOT EXISTS (SELECT 1 FROM homes h WHERE h.webhook = l.webhook AND h.epoch <> $4)
     ORDER BY l.wake_at LIMIT $3";
const NEXT_WAKE: &str = "SELECT wake_at FROM lanes
     WHERE pool = $1 AND held_by IS NULL AND wake_at > $2 ORDER BY wake_at LIMIT 1";
/// Locks lanes against others who take something out: by who has them, and how.
macro_rules! lock_lanes {
    ($whose:literal, $how:literal) => {
        concat!(
            "SELECT l.webhook, l.lane, (SELECT h.epoch FROM homes h WHERE h.webhook = l.webhook), (SELECT
            CASE WHEN r.paused THEN $4::bigint ELSE greatest(r.hold_until, r.circuit_until) END
            FROM runtime r WHERE r.webhook = l.webhook)
     FROM unnest($1::uuid[], $2::text[]) AS k(webhook, lane) CROSS JOIN LATERAL (
         SELECT * FROM lanes l WHERE l.webhook = k.webhook AND l.lane = k.lane COLLATE \"C\" AND l.held_by ",
            $whose,
            " $3
         LIMIT 1 FOR NO KEY UPDATE ",
            $how,
            ") l"
        )
    };
}
/// Lanes that are the caller's are waited for: it alone looks into them.
const LOCK_OWN: &str = lock_lanes!("=", "");
/// All others, but for those that somebody else looks into just now.
const LOCK_FREE: &str = lock_lanes!("IS DISTINCT FROM", "SKIP LOCKED");
/// All others, whoever looks into them.
const LOCK_ANY: &str = lock_lanes!("IS DISTINCT FROM", "");
/// Orders that somebody has some of, and whether that is somebody else than $3.
const TAKEN: &str = "SELECT k.webhook, k.lane, t.elsewhere
     FROM unnest($1::uuid[], $2::text[]) AS k(webhook, lane) CROSS JOIN LATERAL (
         SELECT bool_or(t.epoch <> $3) AS elsewhere FROM leased t
         WHERE t.webhook = k.webhook AND t.lane = k.lane COLLATE \"C\" AND t.lane < 'A') t
     WHERE t.elsewhere IS NOT NULL";
/// What waits first in each lane, with all that is needed to send it; without payload what is not due, or comes
/// after $5 bytes. In an order the place is always 0.
const DUE: &str = "SELECT k.n, w.delivery, w.due, w.rescues, w.deaths, w.seq,
            d.webhook, d.format, d.attempt_count, d.created_at,
            e.id, e.tenant, e.event_type, e.timestamp, e.idempotency_key, e.source, e.subject, e.priority,
            CASE WHEN w.due <= $4 AND sum(octet_length(e.data) + $6::bigint) OVER (ROWS UNBOUNDED PRECEDING)
                    - octet_length(e.data) - $6::bigint < $5::bigint THEN e.data END, e.trace, e.hops
     FROM unnest($1::uuid[], $2::text[], $3::bigint[]) WITH ORDINALITY AS k(webhook, lane, most, n)
     CROSS JOIN LATERAL (
         SELECT * FROM waiting w WHERE w.webhook = k.webhook AND w.lane = k.lane COLLATE \"C\" AND w.place <= $4
         ORDER BY w.place, w.seq LIMIT k.most) w
     CROSS JOIN LATERAL (SELECT * FROM deliveries d WHERE d.id = w.delivery LIMIT 1) d
     CROSS JOIN LATERAL (SELECT * FROM events e WHERE e.tenant = d.tenant AND e.id = d.event LIMIT 1) e";
/// The first of an order, whatever its time.
const FIRST: &str = "SELECT k.n, h.delivery, h.due
     FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS k(webhook, lane, n) CROSS JOIN LATERAL (
         SELECT w.delivery, w.due FROM waiting w WHERE w.webhook = k.webhook AND w.lane = k.lane COLLATE \"C\"
         ORDER BY w.place, w.seq LIMIT 1) h";
/// Out of waiting, into leased. Gives those that were there.
pub(super) const MOVE: &str = "WITH w AS (
         DELETE FROM waiting WHERE delivery = ANY($2::uuid[])
         RETURNING delivery, webhook, lane, seq, rescues, deaths)
     INSERT INTO leased (epoch, delivery, webhook, lane, seq, rescues, deaths) SELECT $1::bigint, w.* FROM w
     RETURNING delivery";
const MAKE_HOME: &str =
    "INSERT INTO homes (webhook, epoch) SELECT w, $2::bigint FROM unnest($1::uuid[]) AS k(w)
     ON CONFLICT DO NOTHING";

/// The statements whose cost must follow what is ready, never what is parked: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED: [(&str, &str); 9] = [
    ("due lanes", DUE_LANES),
    ("next wake", NEXT_WAKE),
    ("lock own lanes", LOCK_OWN),
    ("lock free lanes", LOCK_FREE),
    ("orders under way", TAKEN),
    ("lock any lanes", LOCK_ANY),
    ("due deliveries", DUE),
    ("first of an order", FIRST),
    ("move to leased", MOVE),
];

/// How long an order is left alone of which another node has some.
const LEFT_ALONE: Duration = Duration::from_millis(50);

impl Claim for Postgres {
    fn due_lanes(&self, epoch: Epoch, pools: Vec<String>, now: Time, limit: usize) -> Answer<'_, DueLanes> {
        Box::pin(async move { self.read(|session| due_lanes(session, epoch, &pools, now, limit)).await })
    }

    fn claim(
        &self,
        epoch: Epoch,
        now: Time,
        lanes: Vec<LaneRoom>,
        max_bytes: usize,
    ) -> Answer<'_, Vec<LaneClaim>> {
        let shared = self.shared.clone();
        own_task(async move { Claiming { epoch, now, lanes: &lanes, max_bytes }.carry_out(&shared).await })
    }

    fn take(
        &self,
        epoch: Epoch,
        now: Time,
        by: Time,
        wanted: Vec<Wanted>,
        max_bytes: usize,
    ) -> Answer<'_, Vec<Claimed>> {
        let (shared, taking) = (self.shared.clone(), Taking::new(epoch, now, by, wanted, max_bytes));
        own_task(async move { taking.carry_out(&shared).await })
    }

    fn release(&self, epoch: Epoch, now: Time, deliveries: Vec<(DeliveryId, Time)>) -> Answer<'_, usize> {
        Box::pin(async move {
            let released = self.write(|tx| leases::release(tx, epoch, now, &deliveries)).await?;
            self.shared.hints.work();
            Ok(released)
        })
    }

    fn leave(&self, epoch: Epoch, webhooks: Vec<WebhookId>) -> Answer<'_, ()> {
        Box::pin(async move {
            let webhooks: Vec<_> = webhooks.into_iter().map(Col).collect();
            // Homes after lanes, as a claim takes them.
            let lock = "SELECT webhook, lane FROM lanes WHERE webhook = ANY($1::uuid[]) AND held_by = $2
                        ORDER BY webhook, lane FOR NO KEY UPDATE";
            let leave = "DELETE FROM homes WHERE webhook = ANY($1::uuid[]) AND epoch = $2";
            self.write(|tx| {
                let webhooks = &webhooks;
                async move {
                    let rows = tx.query(lock, &[webhooks, &epoch.0]).await?;
                    let held = rows.iter().map(|row| Ok((get(row, 0)?, plain(row, 1)?)));
                    let held = held.collect::<Result<Keys, Failure>>()?;
                    tx.execute(leave, &[webhooks, &epoch.0]).await?;
                    lanes::let_go(&tx, &held, epoch).await
                }
            })
            .await?;
            self.shared.hints.work();
            Ok(())
        })
    }

    fn owned_by(&self, epoch: Epoch, after: Option<DeliveryId>, limit: usize) -> Answer<'_, Owned> {
        Box::pin(async move { self.read(|session| leases::owned_by(session, epoch, after, limit)).await })
    }

    fn mark_sending(&self, epoch: Epoch, delivery: DeliveryId) -> Answer<'_, bool> {
        let (answer, answered) = oneshot::channel();
        self.writer.mark(epoch, delivery, Box::new(move |result| drop(answer.send(result))));
        Box::pin(async {
            answered.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the store is closed".into())))
        })
    }
}

/// A task of its own: what was committed must be known, whoever still waits for it.
fn own_task<T: Send + 'static>(
    claiming: impl Future<Output = Result<Option<T>, StoreError>> + Send + 'static,
) -> Answer<'static, T> {
    let (answer, answered) = oneshot::channel();
    tokio::spawn(async move { drop(answer.send(claiming.await)) });
    Box::pin(async {
        let closed = || Err(StoreError::Unavailable("the store is closed".into()));
        answered.await.unwrap_or_else(|_| closed())?.ok_or(StoreError::Fenced)
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
    session.prepare(&[DUE_LANES, NEXT_WAKE]).await?;
    for pool in pools {
        let (now, limit) = (Col(now), limit as i64);
        let (due_now, later): ([&(dyn ToSql + Sync); 4], [&(dyn ToSql + Sync); 2]) =
            ([pool, &now, &limit, &epoch.0], [pool, &now]);
        let (lanes, next) = tokio::join!(
            biased;
            session.query(DUE_LANES, &due_now),
            session.query_opt(NEXT_WAKE, &later),
        );
        for row in lanes? {
            due.push((get(&row, 2)?, LaneKey { webhook: get(&row, 0)?, lane: get(&row, 1)? }));
        }
        let wake = next?.map(|row| get::<Time>(&row, 0)).transpose()?;
        next_wake = next_wake.into_iter().chain(wake).min();
    }
    if pools.len() > 1 {
        due.sort_by_key(|(wake_at, _)| *wake_at);
        due.truncate(limit);
    }
    let lanes = due.into_iter().map(|(_, key)| key).collect();
    Ok(DueLanes { lanes, next_wake: next_wake.filter(|wake| *wake < Time::FOREVER) })
}

/// What is to be claimed, and by whom.
struct Claiming<'a> {
    epoch: Epoch,
    now: Time,
    lanes: &'a [LaneRoom],
    max_bytes: usize,
}

/// What one lane gives.
#[derive(Default)]
struct Given {
    deliveries: Vec<Claimed>,
    more: bool,
}

pub(super) type Code = (WebhookId, String);

/// What holds for the webhook of a lane that was locked.
struct Locked {
    /// Who alone sends to it.
    home: Option<i64>,
    blocked_until: Time,
}

/// What is to be taken from lanes, how they are left, and which webhooks get a home.
#[derive(Default)]
struct Chosen {
    taken: BTreeMap<Code, Given>,
    /// There is more in these: the caller comes back.
    held: Keys,
    /// These are to be set by what is left in them.
    done: Keys,
    /// Nothing may be taken from these before some time.
    put_off: BTreeMap<Time, Keys>,
    homes: BTreeSet<WebhookId>,
    let_go: Keys,
}

/// What a claim takes if its commit is made.
#[derive(Default)]
struct Taken {
    /// Deliveries, with the times at which they were due.
    leases: Vec<(DeliveryId, Time)>,
    /// Webhooks that are assigned to the caller by this claim.
    assigned: Vec<WebhookId>,
}

impl Chosen {
    fn deliveries(&self) -> impl Iterator<Item = &Claimed> {
        self.taken.values().flat_map(|taking| &taking.deliveries)
    }

    /// What the commit of this takes.
    fn to_taken(&self) -> Taken {
        Taken {
            leases: self.deliveries().map(|one| (one.id, one.due)).collect(),
            assigned: self.homes.iter().copied().collect(),
        }
    }

    /// Keeps only these. False if that would tear an order apart.
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

fn code(key: &LaneKey) -> Code {
    (key.webhook, key.lane.code().into_owned())
}

impl Claiming<'_> {
    /// Claims in one transaction. None: the epoch is over.
    async fn carry_out(&self, shared: &super::Shared) -> Result<Option<Vec<LaneClaim>>, StoreError> {
        shared.doubts.settle(shared).await?;
        let taken = parking_lot::Mutex::new(Taken::default());
        let claimed = shared.writers.transact(|tx| self.claim(tx, &taken)).await;
        if let Err(failure) = &claimed
            && failure.leaves_doubt()
        {
            let Taken { leases, assigned } = taken.into_inner();
            shared.doubts.add(self.epoch, leases);
            let lanes = self.lanes.iter().map(|room| code(&room.key));
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
        self.carry(&tx, &mut chosen, taken).await?;
        let mut given = chosen.taken;
        let claims = self.lanes.iter().map(|room| {
            let Given { deliveries, more } = given.remove(&code(&room.key)).unwrap_or_default();
            LaneClaim { key: room.key.clone(), deliveries, more }
        });
        Ok(Some(claims.collect()))
    }

    /// Begins, and locks the lanes that nobody else looks into just now. If that leaves nothing, the first is
    /// waited for: whoever has it is soon done. None: the epoch is over.
    async fn lock(&self, tx: &Session) -> Result<Option<BTreeMap<Code, Locked>>, Failure> {
        let keys: Keys = self.lanes.iter().map(|room| code(&room.key)).collect();
        let webhooks: Vec<_> = keys.iter().map(|(webhook, _)| Col(*webhook)).collect();
        let codes: Vec<_> = keys.iter().map(|(_, code)| code.as_str()).collect();
        let (epochs, forever) = (vec![self.epoch.0], Col(Time::FOREVER));
        let live: [&(dyn ToSql + Sync); 1] = [&epochs];
        let values: [&(dyn ToSql + Sync); 4] = [&webhooks, &codes, &self.epoch.0, &forever];
        tx.prepare(&[LIVE, LOCK_OWN, LOCK_FREE]).await?;
        let (begun, live, own, free) = tokio::join!(
            biased;
            tx.begin(),
            tx.exists(LIVE, &live),
            tx.query(LOCK_OWN, &values),
            tx.query(LOCK_FREE, &values),
        );
        begun?;
        if !live? {
            return Ok(None);
        }
        let mut locked = own?.iter().chain(&free?).map(read_locked).collect::<Result<BTreeMap<_, _>, _>>()?;
        if locked.is_empty() && !keys.is_empty() {
            let values: [&(dyn ToSql + Sync); 4] = [&&webhooks[..1], &&codes[..1], &self.epoch.0, &forever];
            let rows = tx.query(LOCK_ANY, &values).await?;
            locked = rows.iter().map(read_locked).collect::<Result<_, _>>()?;
        }
        Ok(Some(locked))
    }

    /// Chooses what to take from each lane, and how each is left.
    async fn choose(&self, tx: &Session, locked: &BTreeMap<Code, Locked>) -> Result<Chosen, Failure> {
        let under_way = self.under_way(tx, locked).await?;
        // What blocked when the lanes were being locked may be over: it is read again before anything is put off.
        let blocked: Vec<_> = locked
            .iter()
            .filter(|(_, about)| about.blocked_until > self.now)
            .map(|((webhook, _), _)| *webhook)
            .collect();
        let blocked = match blocked.is_empty() {
            true => BTreeMap::new(),
            false => lanes::blocked_until(tx, &blocked).await?,
        };
        let (mut chosen, mut rooms, mut orders) = (Chosen::default(), Vec::new(), Vec::new());
        for room in self.lanes {
            let key = code(&room.key);
            let Some(about) = locked.get(&key) else { continue };
            if about.home.is_some_and(|home| home != self.epoch.0) {
                // The home could not see a lane that is held by somebody else.
                chosen.let_go.insert(key);
                continue;
            }
            let mut put_off = |until, key| {
                chosen.put_off.entry(until).or_default().insert(key);
            };
            if let Some(until) = blocked.get(&room.key.webhook).filter(|until| **until > self.now) {
                put_off(*until, key);
                continue;
            }
            match under_way.get(&key) {
                Some(true) => put_off(self.now + LEFT_ALONE, key),
                Some(false) => orders.push(key),
                None => rooms.push(room),
            }
        }
        // The caller comes back for what is due of an order once its own are over.
        for key in self.with_first_due(tx, &orders).await? {
            chosen.taken.insert(key, Given { deliveries: Vec::new(), more: true });
        }
        self.look(tx, &rooms, &mut chosen.taken).await?;
        for key in orders.into_iter().chain(rooms.iter().map(|room| code(&room.key))) {
            match chosen.taken.get(&key).is_some_and(|taking| taking.more) {
                true => chosen.held.insert(key),
                false => chosen.done.insert(key),
            };
        }
        for room in rooms {
            let key = code(&room.key);
            let gives = chosen.taken.get(&key).is_some_and(|taking| !taking.deliveries.is_empty());
            if room.alone && gives && locked.get(&key).is_some_and(|about| about.home.is_none()) {
                chosen.homes.insert(room.key.webhook);
            }
        }
        Ok(chosen)
    }

    /// Carries out what was chosen, and commits.
    async fn carry(
        &self,
        tx: &Session,
        chosen: &mut Chosen,
        taken: &parking_lot::Mutex<Taken>,
    ) -> Result<(), Failure> {
        if !chosen.homes.is_empty() {
            let homes: Vec<_> = chosen.homes.iter().map(|webhook| Col(*webhook)).collect();
            if tx.execute(MAKE_HOME, &[&homes, &self.epoch.0]).await? < homes.len() as u64 {
                // Another node has just claimed from another lane of the same webhook.
                return Err(Failure::Passing);
            }
        }
        for (until, keys) in &chosen.put_off {
            // One that something is put into just now is not waited for: it stays as it is, and is looked at again.
            let quiet = lanes::lock_quiet(tx, keys).await?;
            lanes::settle(tx, &quiet, *until).await?;
            let others = keys.difference(&quiet).cloned().collect();
            lanes::let_go(tx, &others, self.epoch).await?;
        }
        let ids: Vec<_> = chosen.deliveries().map(|one| Col(one.id)).collect();
        let moving: [&(dyn ToSql + Sync); 2] = [&self.epoch.0, &ids];
        tx.prepare(&[MOVE, lanes::HOLD, lanes::LET_GO, lanes::LOCK_QUIET, lanes::SETTLE]).await?;
        let (moved, let_go, held, quiet) = tokio::join!(
            biased;
            async { if ids.is_empty() { Ok(Vec::new()) } else { tx.query(MOVE, &moving).await } },
            lanes::let_go(tx, &chosen.let_go, self.epoch),
            lanes::hold(tx, &chosen.held, self.epoch),
            lanes::lock_quiet(tx, &chosen.done),
        );
        let moved = moved?;
        if moved.len() < ids.len() {
            // Somebody took one by its ticket, or out of a lane that was gone when it was to be locked.
            let moved = moved.iter().map(|row| get(row, 0)).collect::<Result<BTreeSet<_>, Failure>>()?;
            if !chosen.keep(&moved) {
                return Err(Failure::Passing);
            }
            // If the commit is left in doubt, only these may be given back.
            *taken.lock() = chosen.to_taken();
        }
        let_go?;
        held?;
        // Whoever puts something into the others tells once it is there: they look for work as before.
        let quiet = quiet?;
        let others = chosen.done.difference(&quiet).cloned().collect();
        let (settled, let_go, committed) = tokio::join!(
            biased;
            lanes::settle(tx, &quiet, Time::default()),
            lanes::let_go(tx, &others, self.epoch),
            tx.commit_unseen(),
        );
        settled?;
        let_go?;
        committed?;
        tx.committed();
        Ok(())
    }

    /// The orders among these lanes that somebody has some of, and whether that is another node.
    async fn under_way(
        &self,
        tx: &Session,
        locked: &BTreeMap<Code, Locked>,
    ) -> Result<HashMap<Code, bool>, Failure> {
        let orders: Vec<_> = locked.keys().filter(|(_, code)| code.starts_with('=')).collect();
        if orders.is_empty() {
            return Ok(HashMap::new());
        }
        let webhooks: Vec<_> = orders.iter().map(|(webhook, _)| Col(*webhook)).collect();
        let codes: Vec<_> = orders.iter().map(|(_, code)| code.as_str()).collect();
        let rows = tx.query(TAKEN, &[&webhooks, &codes, &self.epoch.0]).await?;
        rows.iter().map(|row| Ok(((get(row, 0)?, plain(row, 1)?), plain(row, 2)?))).collect()
    }

    /// Those of these lanes whose first is due.
    async fn with_first_due(&self, tx: &Session, keys: &[Code]) -> Result<Vec<Code>, Failure> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let webhooks: Vec<_> = keys.iter().map(|(webhook, _)| Col(*webhook)).collect();
        let codes: Vec<_> = keys.iter().map(|(_, code)| code.as_str()).collect();
        let mut due = Vec::new();
        for row in tx.query(FIRST, &[&webhooks, &codes]).await? {
            if get::<Time>(&row, 2)? <= self.now {
                due.push(keys[plain::<i64>(&row, 0)? as usize - 1].clone());
            }
        }
        Ok(due)
    }

    /// What is due in each lane from its first on, as much as there is room for, and whether there is more.
    async fn look(
        &self,
        tx: &Session,
        rooms: &[&LaneRoom],
        taken: &mut BTreeMap<Code, Given>,
    ) -> Result<(), Failure> {
        if rooms.is_empty() {
            return Ok(());
        }
        let codes: Vec<_> = rooms.iter().map(|room| room.key.lane.code()).collect();
        // One more than there is room for, to know whether there is more.
        let most = |room: usize| i64::try_from(room).unwrap_or(i64::MAX).saturating_add(1);
        let rows = tx
            .query(
                DUE,
                &[
                    &rooms.iter().map(|room| Col(room.key.webhook)).collect::<Vec<_>>(),
                    &codes.iter().map(|code| &**code).collect::<Vec<_>>(),
                    &rooms.iter().map(|room| most(room.room)).collect::<Vec<_>>(),
                    &Col(self.now),
                    &i64::try_from(self.max_bytes).unwrap_or(i64::MAX),
                    &(Event::OVERHEAD as i64),
                ],
            )
            .await?;
        let mut found: Vec<Vec<(Claimed, bool)>> = rooms.iter().map(|_| Vec::new()).collect();
        for row in &rows {
            found[plain::<i64>(row, 0)? as usize - 1].push(read_due(row)?);
        }
        for (room, mut due) in rooms.iter().zip(found) {
            match room.key.lane.is_ordered() {
                true => due.sort_by_key(|(one, _)| one.seq),
                false => due.sort_by_key(|(one, _)| (one.due, one.seq)),
            }
            let mut taking = Given::default();
            for (one, fits) in due {
                // In an order all behind one that is not due have to wait.
                if one.due > self.now {
                    break;
                }
                if taking.deliveries.len() >= room.room || !fits {
                    taking.more = true;
                    break;
                }
                taking.deliveries.push(one);
            }
            taken.insert(code(&room.key), taking);
        }
        Ok(())
    }
}

fn read_locked(row: &Row) -> Result<(Code, Locked), Failure> {
    let about = Locked { home: plain(row, 2)?, blocked_until: get_opt(row, 3)?.unwrap_or_default() };
    Ok(((get(row, 0)?, plain(row, 1)?), about))
}

/// A delivery that waits, and whether its payload came along.
pub(super) fn read_due(row: &Row) -> Result<(Claimed, bool), Failure> {
    let text = |column| plain::<Option<String>>(row, column).map(|text| text.map(String::into_boxed_str));
    let data = plain::<Option<Vec<u8>>>(row, 18)?;
    let fits = data.is_some();
    let event = Event {
        id: get(row, 10)?,
        tenant: get(row, 11)?,
        event_type: plain::<String>(row, 12)?.into(),
        data: Bytes::from(data.unwrap_or_default()),
        timestamp: get(row, 13)?,
        idempotency_key: text(14)?,
        source: text(15)?,
        subject: text(16)?,
        priority: get(row, 17)?,
        // The publisher's own notes are not sent.
        metadata: None,
        trace: trace(row, 19)?,
        hops: hops(row, 20)?,
    };
    let claimed = Claimed {
        id: get(row, 1)?,
        webhook: get(row, 6)?,
        due: get(row, 2)?,
        rescues: plain::<i32>(row, 3)?.unsigned_abs(),
        deaths: plain::<i32>(row, 4)?.unsigned_abs(),
        format: get(row, 7)?,
        attempt_count: plain::<i32>(row, 8)?.unsigned_abs(),
        created_at: get(row, 9)?,
        seq: plain(row, 5)?,
        event: Arc::new(event),
    };
    Ok((claimed, fits))
}
