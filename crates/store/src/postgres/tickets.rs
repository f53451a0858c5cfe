//! Handing out what a ticket names, one by one and not by lanes.
//!
//! Whoever takes by ticket locks what waits itself and not its lane, and passes over what somebody else has locked:
//! so tickets wait for nobody, nobody waits for long, and two of the same never do each other harm. A lane that is
//! left empty is looked into once at its time, and goes.

use std::collections::BTreeMap;

use redrive_core::{DeliveryId, Time, event::Event};
use tokio_postgres::types::ToSql;

use super::{
    Shared,
    claim::{MOVE, read_due},
    convert::Col,
    publish::LIVE,
    session::{Failure, Tx},
};
use crate::{Claimed, Epoch, StoreError, Wanted};

/// What waits of that which is wanted, locked, with all that is needed to send it; without payload what comes after
/// $5 bytes. It is looked for by its id alone: with more to go by, a young table's plan would walk through the lane
/// for each. Nothing of a webhook that is blocked after $8, or is at home with somebody else than $7.
const WANTED: &str = "SELECT k.n, w.delivery, w.due, w.rescues, w.deaths, w.seq,
            d.webhook, d.format, d.attempt_count, d.created_at,
            e.id, e.tenant, e.event_type, e.timestamp, e.idempotency_key, e.source, e.subject, e.priority,
            CASE WHEN sum(octet_length(e.data) + $6::bigint) OVER (ROWS UNBOUNDED PRECEDING)
                    - octet_length(e.data) - $6::bigint < $5::bigint THEN e.data END, e.trace, e.hops
     FROM unnest($1::uuid[], $2::uuid[], $3::text[]) WITH ORDINALITY AS k(delivery, webhook, lane, n)
     CROSS JOIN LATERAL (
         SELECT * FROM waiting w WHERE w.delivery = k.delivery LIMIT 1 FOR UPDATE SKIP LOCKED) w
     CROSS JOIN LATERAL (SELECT * FROM deliveries d WHERE d.id = w.delivery LIMIT 1) d
     CROSS JOIN LATERAL (SELECT * FROM events e WHERE e.tenant = d.tenant AND e.id = d.event LIMIT 1) e
     WHERE w.webhook = k.webhook AND w.lane = k.lane COLLATE \"C\" AND w.due <= $4
         AND coalesce((SELECT h.epoch FROM homes h WHERE h.webhook = k.webhook), $7::bigint) = $7::bigint
         AND coalesce((SELECT CASE WHEN r.paused THEN $9::bigint ELSE greatest(r.hold_until, r.circuit_until) END
                       FROM runtime r WHERE r.webhook = k.webhook), 0) <= $8::bigint";

/// The statements whose cost must follow what is ready, never what is parked: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED: [(&str, &str); 1] = [("wanted by tickets", WANTED)];

/// What is to be taken, and by whom.
pub(super) struct Taking {
    epoch: Epoch,
    now: Time,
    /// In the order of their ids, each once.
    wanted: BTreeMap<DeliveryId, Wanted>,
    by: Time,
    max_bytes: usize,
}

impl Taking {
    pub(super) fn new(epoch: Epoch, now: Time, by: Time, wanted: Vec<Wanted>, max_bytes: usize) -> Self {
        // An order is given from its first on, and by claims alone.
        let wanted = wanted.into_iter().filter(|one| !one.key.lane.is_ordered());
        let wanted = wanted.map(|one| (one.delivery, one)).collect();
        Self { epoch, now, wanted, by, max_bytes }
    }

    /// Takes in one transaction. None: the epoch is over.
    pub(super) async fn carry_out(&self, shared: &Shared) -> Result<Option<Vec<Claimed>>, StoreError> {
        shared.doubts.settle(shared).await?;
        let leased = parking_lot::Mutex::new(Vec::new());
        let taken = shared.writers.transact(|tx| self.take(tx, &leased)).await;
        if let Err(failure) = &taken
            && failure.leaves_doubt()
        {
            shared.doubts.add(self.epoch, std::mem::take(&mut *leased.lock()));
        }
        Ok(taken?)
    }

    async fn take(
        &self,
        tx: Tx,
        leased: &parking_lot::Mutex<Vec<(DeliveryId, Time)>>,
    ) -> Result<Option<Vec<Claimed>>, Failure> {
        leased.lock().clear();
        let ids: Vec<_> = self.wanted.keys().map(|id| Col(*id)).collect();
        let webhooks: Vec<_> = self.wanted.values().map(|one| Col(one.key.webhook)).collect();
        let codes: Vec<_> = self.wanted.values().map(|one| one.key.lane.code()).collect();
        let codes: Vec<&str> = codes.iter().map(|code| &**code).collect();
        let (epochs, by, now, forever) =
            (vec![self.epoch.0], Col(self.by), Col(self.now), Col(Time::FOREVER));
        let bytes = i64::try_from(self.max_bytes).unwrap_or(i64::MAX);
        let live: [&(dyn ToSql + Sync); 1] = [&epochs];
        let values: [&(dyn ToSql + Sync); 9] =
            [&ids, &webhooks, &codes, &by, &bytes, &(Event::OVERHEAD as i64), &self.epoch.0, &now, &forever];
        tx.prepare(&[LIVE, WANTED, MOVE]).await?;
        let (begun, live, found) = tokio::join!(
            biased;
            tx.begin(),
            tx.exists(LIVE, &live),
            tx.query(WANTED, &values),
        );
        begun?;
        if !live? {
            tx.commit().await?;
            return Ok(None);
        }
        let mut taken = Vec::new();
        for row in &found? {
            let (one, fits) = read_due(row)?;
            if fits {
                taken.push(one);
            }
        }
        *leased.lock() = taken.iter().map(|one| (one.id, one.due)).collect();
        let ids: Vec<_> = taken.iter().map(|one| Col(one.id)).collect();
        let moving: [&(dyn ToSql + Sync); 2] = [&self.epoch.0, &ids];
        // All of them are locked: all of them move.
        let (moved, committed) = tokio::join!(
            biased;
            async { if ids.is_empty() { Ok(Vec::new()) } else { tx.query(MOVE, &moving).await } },
            tx.commit_unseen(),
        );
        moved?;
        committed?;
        tx.committed();
        Ok(Some(taken))
    }
}
