//! Pruning. Rows are deleted in small transactions that lock nothing but these rows; partitions that are no longer
//! needed are dropped, see `partitions`.
//!
//! A new round locks its event (`lock_events`), and pruning locks an event before it deletes it: so either the
//! round exists and keeps its event, or the event is deleted and there is no round.

use std::collections::HashMap;

use redrive_core::{
    DeliveryId, DeliveryStatus, EventId, TenantId, Time, WebhookId, delivery::lane::Priority,
    id::min_bytes_at, tenancy::TenantRules,
};

use super::{
    Postgres, archive_outbox,
    convert::{Col, get, plain},
    history,
    session::{Failure, Session, Tx},
    webhooks::from_json,
};
use crate::{
    PartitionDrop, Prune, PruneCounts, PruneProgress, PruneRequest, StoreFuture, archive::FrameBuilder,
};

/// Oldest events of the tenant. Events that another transaction has locked for a new round are skipped.
const SELECT_OLD_EVENTS: &str = "SELECT id FROM events WHERE tenant_id = $1 AND id > $2 AND id < $3
     ORDER BY id LIMIT $4 FOR UPDATE SKIP LOCKED";
/// Number of deliveries of each event, counted up to $5, and whether one of them is pending.
const SELECT_EVENT_STATUS: &str = "SELECT e.id,
         (SELECT count(*) FROM (SELECT 1 FROM deliveries d WHERE d.event_id = e.id AND d.id >= $2 AND d.id < $3
          LIMIT $5) d),
         EXISTS (SELECT 1 FROM deliveries d WHERE d.event_id = e.id AND d.id >= $2 AND d.id < $3 AND d.status = $4)
     FROM unnest($1::uuid[]) AS e(id)";
const SELECT_DELIVERIES: &str = "SELECT d.id FROM unnest($1::uuid[]) AS e(id)
     CROSS JOIN LATERAL (SELECT d.id FROM deliveries d WHERE d.event_id = e.id AND d.id >= $2 AND d.id < $3
         LIMIT $4) d LIMIT $4";
/// Dead letters of the tenant in the order of their ids, and whether each died before $5.
const SELECT_OLD_DEAD: &str = "SELECT x.delivery_id, d.ended_at < $5
     FROM dead x CROSS JOIN LATERAL (SELECT * FROM deliveries d WHERE d.id = x.delivery_id LIMIT 1) d
     WHERE x.tenant_id = $1 AND x.delivery_id > $2 AND x.delivery_id < $3 ORDER BY x.delivery_id LIMIT $4";
/// Locks those that have not been redriven, in the same order as a retry: the delivery, then its dead letter.
const SELECT_STILL_DEAD: &str =
    "SELECT id FROM deliveries WHERE id = ANY($1::uuid[]) AND id >= $2 AND id < $3
     AND redriven_as IS NULL FOR UPDATE SKIP LOCKED";
const PRUNE_ATTEMPTS: &str =
    "DELETE FROM attempts WHERE delivery_id = ANY($1::uuid[]) AND delivery_id >= $2 AND delivery_id < $3";
const PRUNE_DELIVERIES: &str = "DELETE FROM deliveries WHERE id = ANY($1::uuid[]) AND id >= $2 AND id < $3";
const PRUNE_EVENTS: &str =
    "DELETE FROM events WHERE tenant_id = $1 AND id = ANY($2::uuid[]) AND id >= $3 AND id < $4";
const PRUNE_DEAD: &str = "DELETE FROM dead WHERE delivery_id = ANY($1::uuid[])";
const PRUNE_UNDELIVERED: &str = "DELETE FROM undelivered WHERE delivery_id = ANY($1::uuid[])";
const PRUNE_ATTEMPT_INDEX: &str = "DELETE FROM attempt_index WHERE delivery_id = ANY($1::uuid[])";
/// Finds each webhook by an index lookup after the previous one, since a webhook may have very many periods.
const SELECT_WEBHOOKS_WITH_PERIODS: &str = "WITH RECURSIVE found(webhook_id, n) AS (
         (SELECT webhook_id, 1 FROM circuit_periods WHERE webhook_id > $1 ORDER BY webhook_id LIMIT 1)
         UNION ALL
         SELECT (SELECT p.webhook_id FROM circuit_periods p WHERE p.webhook_id > f.webhook_id ORDER BY p.webhook_id
         LIMIT 1),
                f.n + 1
         FROM found f WHERE f.webhook_id IS NOT NULL AND f.n < $2)
     SELECT f.webhook_id, (SELECT w.tenant_id FROM webhooks w WHERE w.id = f.webhook_id)
     FROM found f WHERE f.webhook_id IS NOT NULL";
const PRUNE_PERIODS: &str = "DELETE FROM circuit_periods WHERE ctid = ANY(ARRAY(
         SELECT ctid FROM circuit_periods WHERE webhook_id = $1 AND opened_at < $2 AND ended_at < $2
         AND (continues OR closed_at < $2) ORDER BY opened_at LIMIT $3 FOR UPDATE SKIP LOCKED))";
const LOCK_EVENTS: &str = "SELECT id, priority, erased_at IS NOT NULL FROM events
     WHERE tenant_id = $1 AND id = ANY($2::uuid[]) FOR KEY SHARE";

/// Statements whose cost must be proportional to the rows they return or change; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 14] = [
    ("lock events", LOCK_EVENTS),
    ("old events", SELECT_OLD_EVENTS),
    ("status of old events", SELECT_EVENT_STATUS),
    ("deliveries of old events", SELECT_DELIVERIES),
    ("old dead letters", SELECT_OLD_DEAD),
    ("still dead", SELECT_STILL_DEAD),
    ("prune attempts", PRUNE_ATTEMPTS),
    ("prune deliveries", PRUNE_DELIVERIES),
    ("prune events", PRUNE_EVENTS),
    ("prune dead letters", PRUNE_DEAD),
    ("prune undelivered", PRUNE_UNDELIVERED),
    ("prune the attempt index", PRUNE_ATTEMPT_INDEX),
    ("webhooks with periods", SELECT_WEBHOOKS_WITH_PERIODS),
    ("prune circuit periods", PRUNE_PERIODS),
];

impl Prune for Postgres {
    fn retention_by_tenant(
        &self,
        after: Option<TenantId>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<(TenantId, TenantRules)>> {
        Box::pin(async move {
            let after = after.as_ref().map_or("", TenantId::as_str);
            let all = "SELECT id, rules FROM tenants WHERE id > $1 ORDER BY id LIMIT $2";
            self.read(|session| async move {
                let rows = session.query(all, &[&after, &(limit as i64)]).await?;
                rows.iter().map(|row| Ok((get(row, 0)?, from_json(row, 1)?))).collect()
            })
            .await
        })
    }

    fn oldest_event(&self, tenant_id: TenantId) -> StoreFuture<'_, Option<Time>> {
        Box::pin(async move {
            let oldest = "SELECT id FROM events WHERE tenant_id = $1 ORDER BY id LIMIT 1";
            let tenant = tenant_id.as_str();
            self.read(|session| async move {
                let row = session.query_opt(oldest, &[&tenant]).await?;
                Ok(row.map(|row| get::<EventId>(&row, 0)).transpose()?.map(|id| id.time()))
            })
            .await
        })
    }

    fn prune_events(&self, request: PruneRequest<EventId>) -> StoreFuture<'_, PruneProgress<EventId>> {
        Box::pin(async move { self.write(|tx| prune_events(tx, &request)).await })
    }

    fn prune_dead(&self, request: PruneRequest<DeliveryId>) -> StoreFuture<'_, PruneProgress<DeliveryId>> {
        Box::pin(async move { self.write(|tx| prune_dead(tx, &request)).await })
    }

    fn webhooks_with_periods(
        &self,
        after: Option<WebhookId>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<(WebhookId, TenantId)>> {
        Box::pin(async move {
            let after = Col(after.unwrap_or(WebhookId::from_bytes([0; 16])));
            self.read(|session| async move {
                let rows = session.query(SELECT_WEBHOOKS_WITH_PERIODS, &[&after, &(limit as i32)]).await?;
                rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect()
            })
            .await
        })
    }

    fn prune_periods(&self, old: Vec<(WebhookId, Time)>, limit: usize) -> StoreFuture<'_, usize> {
        Box::pin(async move {
            let old = &old;
            self.write(|tx| async move {
                let mut pruned = 0;
                for (webhook_id, before) in old {
                    let left = (limit - pruned) as i64;
                    let values: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
                        [&Col(*webhook_id), &Col(*before), &left];
                    pruned += tx.execute(PRUNE_PERIODS, &values).await? as usize;
                    if pruned >= limit {
                        break;
                    }
                }
                Ok(pruned)
            })
            .await
        })
    }

    fn has_partitions(&self) -> bool {
        true
    }

    fn drop_oldest_partition(
        &self,
        before: Time,
        only_empty: bool,
        rows: usize,
    ) -> StoreFuture<'_, PartitionDrop> {
        Box::pin(async move {
            let shared = &self.shared;
            let dropped = shared.partitions.drop_one(&shared.writers, before, only_empty, rows).await;
            dropped.map_err(crate::StoreError::from)
        })
    }

    fn reclaim_space(&self, _bytes: usize) -> StoreFuture<'_, usize> {
        // PostgreSQL's autovacuum reclaims space.
        Box::pin(async { Ok(0) })
    }
}

/// Columns of an event that a new round needs.
pub(super) struct HeldEvent {
    pub(super) priority: Priority,
    pub(super) erased: bool,
}

/// Locks events against pruning until the end of the transaction. Returns those that exist.
pub(super) async fn lock_events(
    tx: &Session,
    tenant_id: &TenantId,
    events: impl IntoIterator<Item = EventId>,
) -> Result<HashMap<EventId, HeldEvent>, Failure> {
    let events: Vec<_> = events.into_iter().map(Col).collect();
    let rows = tx.query(LOCK_EVENTS, &[&tenant_id.as_str(), &events]).await?;
    let held = rows
        .iter()
        .map(|row| Ok((get(row, 0)?, HeldEvent { priority: get(row, 1)?, erased: plain(row, 2)? })));
    held.collect()
}

/// Id range of deliveries whose events have these times. A delivery's id has its event's time.
struct Range(Col<[u8; 16]>, Col<[u8; 16]>);

impl Range {
    fn new(first: Time, last: Time) -> Self {
        Self(Col(min_bytes_at(first)), Col(min_bytes_at(Time::from_millis(last.millis() + 1))))
    }
}

async fn prune_events(tx: Tx, request: &PruneRequest<EventId>) -> Result<PruneProgress<EventId>, Failure> {
    let max = request.rows.max(1);
    let after = request.after.unwrap_or(EventId::from_bytes([0; 16]));
    let values: super::session::Values<'_> =
        &[&request.tenant_id.as_str(), &Col(after), &Col(min_bytes_at(request.before)), &(max as i64)];
    let rows = tx.query(SELECT_OLD_EVENTS, values).await?;
    let events = rows.iter().map(|row| get(row, 0)).collect::<Result<Vec<EventId>, _>>()?;
    let (Some(first), Some(last)) = (events.first(), events.last()) else {
        return Ok(PruneProgress { left: PruneCounts::default(), last: request.after, finished: true });
    };
    let range = Range::new(first.time(), last.time());
    // Read after the events are locked: no further round of them can be created.
    let standing = delete_groups(&tx, &events, &range, max).await?;
    let (mut whole, mut part, mut budget) = (Vec::new(), None, max);
    let mut done = request.after;
    for event_id in &events {
        let Some(&(deliveries, pending)) = standing.get(event_id) else { continue };
        if !pending {
            if budget == 0 {
                break;
            }
            if deliveries > budget {
                part = Some(*event_id);
                break;
            }
            budget -= deliveries.max(1).min(budget);
            whole.push(*event_id);
        }
        done = Some(*event_id);
    }
    let mut packing = request.archive.then(FrameBuilder::default);
    if let Some(packing) = &mut packing
        && let Some(more) = pack_events(&tx, request, &mut whole, &range, packing).await?
    {
        (done, part) = (more, None);
    }
    let mut counts = delete_events(&tx, request, &whole, &range, max).await?;
    // An event with more deliveries than fit into one step is deleted in several steps, the event itself last.
    if let Some(event_id) = part
        && whole.is_empty()
    {
        let some = deliveries_of(&tx, &[event_id], &range, max).await?;
        if let Some(packing) = &mut packing {
            pack_deliveries(&tx, &some, packing).await?;
        }
        delete_deliveries(&tx, &some, &range, &mut counts).await?;
    }
    if let Some(packing) = packing {
        archive_outbox::insert_frames(&tx, packing).await?;
    }
    let finished = done == events.last().copied() && events.len() < max;
    Ok(PruneProgress { left: counts, last: done, finished })
}

/// Packs events with their deliveries and attempts until the step is full. Removes the remaining ones from
/// `events`, and returns the position from which to continue.
async fn pack_events(
    tx: &Session,
    request: &PruneRequest<EventId>,
    events: &mut Vec<EventId>,
    range: &Range,
    packing: &mut FrameBuilder,
) -> Result<Option<Option<EventId>>, Failure> {
    for (index, event_id) in events.iter().enumerate() {
        if packing.is_full() {
            let last = index.checked_sub(1).map_or(request.after, |last| Some(events[last]));
            events.truncate(index);
            return Ok(Some(last));
        }
        let deliveries = deliveries_of(tx, &[*event_id], range, usize::MAX >> 1).await?;
        pack_deliveries(tx, &deliveries, packing).await?;
        if let Some(stored) = history::find_event(tx, &request.tenant_id, *event_id).await? {
            packing.event(&stored)?;
        }
    }
    Ok(None)
}

async fn pack_deliveries(
    tx: &Session,
    deliveries: &[Col<DeliveryId>],
    packing: &mut FrameBuilder,
) -> Result<(), Failure> {
    for delivery in deliveries {
        if let Some((stored, attempts)) = history::find_history(tx, delivery.0).await? {
            packing.delivery(&stored, &attempts)?;
        }
    }
    Ok(())
}

async fn delete_groups(
    tx: &Session,
    events: &[EventId],
    range: &Range,
    max: usize,
) -> Result<HashMap<EventId, (usize, bool)>, Failure> {
    let ids: Vec<_> = events.iter().map(|event_id| Col(*event_id)).collect();
    let pending = Col(DeliveryStatus::Pending);
    let rows =
        tx.query(SELECT_EVENT_STATUS, &[&ids, &range.0, &range.1, &pending, &(max as i64 + 1)]).await?;
    let read = |row| Ok((get(row, 0)?, (plain::<i64>(row, 1)? as usize, plain(row, 2)?)));
    rows.iter().map(read).collect()
}

async fn deliveries_of(
    tx: &Session,
    events: &[EventId],
    range: &Range,
    max: usize,
) -> Result<Vec<Col<DeliveryId>>, Failure> {
    let ids: Vec<_> = events.iter().map(|event_id| Col(*event_id)).collect();
    let rows = tx.query(SELECT_DELIVERIES, &[&ids, &range.0, &range.1, &(max as i64)]).await?;
    rows.iter().map(|row| get(row, 0).map(Col)).collect()
}

async fn delete_events(
    tx: &Session,
    request: &PruneRequest<EventId>,
    events: &[EventId],
    range: &Range,
    max: usize,
) -> Result<PruneCounts, Failure> {
    let mut counts = PruneCounts::default();
    if events.is_empty() {
        return Ok(counts);
    }
    let deliveries = deliveries_of(tx, events, range, max).await?;
    delete_deliveries(tx, &deliveries, range, &mut counts).await?;
    let ids: Vec<_> = events.iter().map(|event_id| Col(*event_id)).collect();
    let pruned = tx.execute(PRUNE_EVENTS, &[&request.tenant_id.as_str(), &ids, &range.0, &range.1]).await?;
    counts.events += pruned as usize;
    Ok(counts)
}

async fn delete_deliveries(
    tx: &Session,
    deliveries: &[Col<DeliveryId>],
    range: &Range,
    counts: &mut PruneCounts,
) -> Result<(), Failure> {
    if deliveries.is_empty() {
        return Ok(());
    }
    counts.attempts += tx.execute(PRUNE_ATTEMPTS, &[&deliveries, &range.0, &range.1]).await? as usize;
    // In the same lock order as a retry and a purge.
    counts.deliveries += tx.execute(PRUNE_DELIVERIES, &[&deliveries, &range.0, &range.1]).await? as usize;
    tx.execute(PRUNE_DEAD, &[&deliveries]).await?;
    tx.execute(PRUNE_UNDELIVERED, &[&deliveries]).await?;
    tx.execute(PRUNE_ATTEMPT_INDEX, &[&deliveries]).await?;
    Ok(())
}

async fn prune_dead(
    tx: Tx,
    request: &PruneRequest<DeliveryId>,
) -> Result<PruneProgress<DeliveryId>, Failure> {
    let max = request.rows.max(1);
    let after = Col(request.after.unwrap_or(DeliveryId::from_bytes([0; 16])));
    // A delivery cannot die before its event's time, so the id range contains every old dead letter.
    let before = Col(min_bytes_at(request.before));
    let rows = tx
        .query(
            SELECT_OLD_DEAD,
            &[&request.tenant_id.as_str(), &after, &before, &(max as i64), &Col(request.before)],
        )
        .await?;
    let mut ids = Vec::new();
    let (mut first, mut last) = (None, request.after);
    for row in &rows {
        let delivery_id: DeliveryId = get(row, 0)?;
        first.get_or_insert(delivery_id);
        last = Some(delivery_id);
        if plain(row, 1)? {
            ids.push(Col(delivery_id));
        }
    }
    let mut counts = PruneCounts::default();
    if let (Some(first), Some(last), false) = (first, last, ids.is_empty()) {
        let range = Range::new(first.time(), last.time());
        let rows = tx.query(SELECT_STILL_DEAD, &[&ids, &range.0, &range.1]).await?;
        let still = rows.iter().map(|row| get(row, 0).map(Col)).collect::<Result<Vec<_>, _>>()?;
        if request.archive {
            let mut packing = FrameBuilder::default();
            pack_deliveries(&tx, &still, &mut packing).await?;
            archive_outbox::insert_frames(&tx, packing).await?;
        }
        delete_deliveries(&tx, &still, &range, &mut counts).await?;
    }
    Ok(PruneProgress { left: counts, last, finished: rows.len() < max })
}
