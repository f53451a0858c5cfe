//! Claims the deliveries that a ticket names, one by one instead of by lane.
//!
//! A claim by ticket locks the rows in `waiting` and not their lanes, and skips rows that another transaction has
//! locked: so tickets never wait for locks, others wait only briefly, and duplicate tickets are harmless. A lane
//! that becomes empty is deleted by the next claim after its wake time.

use std::collections::BTreeMap;

use redrive_core::{DeliveryId, Time, event::Event};
use tokio_postgres::types::ToSql;

use super::{
    Shared,
    claim::{MOVE_TO_LEASED, read_due},
    convert::Col,
    publish::LOCK_LIVE_EPOCHS,
    session::{Failure, Tx},
};
use crate::{ClaimedDelivery, Epoch, StoreError, TicketEntry};

/// Locks the named deliveries that are waiting, with everything that is needed to send them. The payload is null
/// if the payloads before it reach $5 bytes. Rows are looked up by id alone: with further conditions, the plan for
/// a young table would scan the lane for each row. Webhooks that are blocked after $8, or whose assigned node is
/// not $7, are skipped.
const SELECT_BY_TICKETS: &str = "SELECT k.n, w.delivery_id, w.due, w.abnormal_releases, w.crash_count, w.seq,
            d.webhook_id, d.format, d.attempt_count, d.created_at,
            e.id, e.tenant_id, e.event_type, e.timestamp, e.idempotency_key, e.source, e.subject, e.priority,
            CASE WHEN sum(octet_length(e.data) + $6::bigint) OVER (ROWS UNBOUNDED PRECEDING)
                    - octet_length(e.data) - $6::bigint < $5::bigint THEN e.data END, e.trace, e.hops
     FROM unnest($1::uuid[], $2::uuid[], $3::text[]) WITH ORDINALITY AS k(delivery_id, webhook_id, lane, n)
     CROSS JOIN LATERAL (
         SELECT * FROM waiting w WHERE w.delivery_id = k.delivery_id LIMIT 1 FOR UPDATE SKIP LOCKED) w
     CROSS JOIN LATERAL (SELECT * FROM deliveries d WHERE d.id = w.delivery_id LIMIT 1) d
     CROSS JOIN LATERAL (SELECT * FROM events e WHERE e.tenant_id = d.tenant_id AND e.id = d.event_id LIMIT 1) e
     WHERE w.webhook_id = k.webhook_id AND w.lane = k.lane COLLATE \"C\" AND w.due <= $4
         AND coalesce((SELECT h.epoch FROM webhook_assignments h
         WHERE h.webhook_id = k.webhook_id), $7::bigint) = $7::bigint
         AND coalesce((SELECT CASE WHEN r.paused THEN $9::bigint ELSE greatest(r.paused_until, r.circuit_until) END
                       FROM webhook_runtime r WHERE r.webhook_id = k.webhook_id), 0) <= $8::bigint";

/// Statements whose cost must be proportional to the deliveries that are ready, independent of those that are
/// parked; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 1] = [("deliveries of tickets", SELECT_BY_TICKETS)];

/// Claim by ticket, and the epoch that makes it.
pub(super) struct TicketClaim {
    epoch: Epoch,
    now: Time,
    /// Entries in the order of their ids, without duplicates.
    wanted: BTreeMap<DeliveryId, TicketEntry>,
    by: Time,
    max_bytes: usize,
}

impl TicketClaim {
    pub(super) fn new(epoch: Epoch, now: Time, by: Time, wanted: Vec<TicketEntry>, max_bytes: usize) -> Self {
        // Ordered lanes must be claimed from their head, which only lane claims do.
        let wanted = wanted.into_iter().filter(|one| !one.key.lane.is_ordered());
        let wanted = wanted.map(|one| (one.delivery_id, one)).collect();
        Self { epoch, now, wanted, by, max_bytes }
    }

    /// Claims in one transaction. Returns `None` if the epoch has ended.
    pub(super) async fn run(&self, shared: &Shared) -> Result<Option<Vec<ClaimedDelivery>>, StoreError> {
        shared.doubts.release_uncertain(shared).await?;
        let leased = parking_lot::Mutex::new(Vec::new());
        let taken = shared.writers.transact(|tx| self.take(tx, &leased)).await;
        if let Err(failure) = &taken
            && failure.is_commit_uncertain()
        {
            shared.doubts.add(self.epoch, std::mem::take(&mut *leased.lock()));
        }
        Ok(taken?)
    }

    async fn take(
        &self,
        tx: Tx,
        leased: &parking_lot::Mutex<Vec<(DeliveryId, Time)>>,
    ) -> Result<Option<Vec<ClaimedDelivery>>, Failure> {
        leased.lock().clear();
        let ids: Vec<_> = self.wanted.keys().map(|id| Col(*id)).collect();
        let webhooks: Vec<_> = self.wanted.values().map(|one| Col(one.key.webhook_id)).collect();
        let codes: Vec<_> = self.wanted.values().map(|one| one.key.lane.code()).collect();
        let codes: Vec<&str> = codes.iter().map(|code| &**code).collect();
        let (epochs, by, now, forever) =
            (vec![self.epoch.0], Col(self.by), Col(self.now), Col(Time::FAR_FUTURE));
        let bytes = i64::try_from(self.max_bytes).unwrap_or(i64::MAX);
        let live: [&(dyn ToSql + Sync); 1] = [&epochs];
        let values: [&(dyn ToSql + Sync); 9] = [
            &ids,
            &webhooks,
            &codes,
            &by,
            &bytes,
            &(Event::MEMORY_OVERHEAD_BYTES as i64),
            &self.epoch.0,
            &now,
            &forever,
        ];
        tx.prepare(&[LOCK_LIVE_EPOCHS, SELECT_BY_TICKETS, MOVE_TO_LEASED]).await?;
        let (started, live, found) = tokio::join!(
            biased;
            tx.begin(),
            tx.exists(LOCK_LIVE_EPOCHS, &live),
            tx.query(SELECT_BY_TICKETS, &values),
        );
        started?;
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
        // All rows are locked, so all of them are moved.
        let (changed, committed) = tokio::join!(
            biased;
            async { if ids.is_empty() { Ok(Vec::new()) } else { tx.query(MOVE_TO_LEASED, &moving).await } },
            tx.commit_pipelined(),
        );
        changed?;
        committed?;
        tx.committed();
        Ok(Some(taken))
    }
}
