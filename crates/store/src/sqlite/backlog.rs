//! Backlogs of webhooks, counted up to a limit.

use redrive_core::{TenantId, Time, WebhookId};
use rusqlite::{Connection, Row};

use super::convert::{Col, get, get_opt};
use crate::{Backlog, BacklogCounts, BackloggedWebhooks};

/// Counts of unordered lanes, due and not due. In these lanes `sort_key` is the due time, which the index
/// contains.
const COUNT_UNORDERED: &str = "SELECT lane,
            (SELECT count(*) FROM (SELECT 1 FROM waiting w
                 WHERE w.webhook_id = l.webhook_id AND w.lane = l.lane AND w.sort_key <= ?2 LIMIT ?3)),
            (SELECT count(*) FROM (SELECT 1 FROM waiting w
                 WHERE w.webhook_id = l.webhook_id AND w.lane = l.lane AND w.sort_key > ?2 LIMIT ?3))
     FROM lanes l WHERE l.webhook_id = ?1 AND l.lane >= 'A'";
const HAS_ORDERS: &str = "SELECT 1 FROM lanes WHERE webhook_id = ?1 AND lane < 'A' LIMIT 1";
const COUNT_ORDERED: &str = "SELECT count(*) FROM (SELECT 1 FROM waiting
     WHERE webhook_id = ?1 AND lane < 'A' LIMIT ?2)";
/// Due times of the first delivery of each ordered lane that has no leased delivery.
const SELECT_ORDER_FIRSTS: &str = "SELECT (SELECT w.due FROM waiting w WHERE w.webhook_id = l.webhook_id AND w.lane = l.lane
             ORDER BY w.sort_key, w.seq LIMIT 1)
     FROM lanes l WHERE l.webhook_id = ?1 AND l.lane < 'A' AND NOT EXISTS
         (SELECT 1 FROM leased s WHERE s.webhook_id = l.webhook_id AND s.lane = l.lane AND s.lane < 'A') LIMIT ?2";
const HAS_MANY_WEBHOOKS: &str =
    "SELECT 1 FROM webhooks WHERE tenant_id = ?1 AND deleted = 0 ORDER BY id LIMIT 1 OFFSET ?2";
const BACKLOGGED_BY_WEBHOOK: &str =
    "SELECT w.id FROM (SELECT id FROM webhooks WHERE tenant_id = ?1 AND deleted = 0
                       ORDER BY id LIMIT ?2) w
     WHERE EXISTS (SELECT 1 FROM lanes l WHERE l.webhook_id = w.id)";
/// Finds each webhook by an index lookup after the previous one, since a webhook may have very many lanes.
const BACKLOGGED_BY_LANE: &str = "WITH RECURSIVE found(webhook_id, n) AS (
         SELECT (SELECT min(webhook_id) FROM lanes WHERE webhook_id > x''), 1
         UNION ALL
         SELECT (SELECT min(l.webhook_id) FROM lanes l WHERE l.webhook_id > found.webhook_id), found.n + 1
         FROM found WHERE found.webhook_id IS NOT NULL AND found.n < ?2)
     SELECT webhook_id, EXISTS (SELECT 1 FROM webhooks w
                             WHERE w.id = found.webhook_id AND w.tenant_id = ?1 AND w.deleted = 0)
     FROM found WHERE webhook_id IS NOT NULL";

/// Statements whose cost must be proportional to the rows they return; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const BOUNDED_STATEMENTS: [&str; 7] = [
    COUNT_UNORDERED,
    HAS_ORDERS,
    COUNT_ORDERED,
    SELECT_ORDER_FIRSTS,
    HAS_MANY_WEBHOOKS,
    BACKLOGGED_BY_WEBHOOK,
    BACKLOGGED_BY_LANE,
];

/// Returns the backlog of each webhook.
pub(super) fn count_by_webhook(
    connection: &Connection,
    webhooks: &[WebhookId],
    now: Time,
    max: usize,
) -> rusqlite::Result<Vec<(WebhookId, Backlog)>> {
    let limit = i64::try_from(max).unwrap_or(i64::MAX).saturating_add(1);
    // Looked up in the statement cache once, since there may be very many webhooks.
    let mut free = connection.prepare_cached(COUNT_UNORDERED)?;
    let mut has_orders = connection.prepare_cached(HAS_ORDERS)?;
    let mut backlogs = Vec::with_capacity(webhooks.len());
    for webhook_id in webhooks {
        let mut counted = BacklogCounts::default();
        let mut rows = free.query((Col(*webhook_id), Col(now), limit))?;
        while let Some(row) = rows.next()? {
            counted.free.push((get(row, 0)?, number(row, 1)?, number(row, 2)?));
        }
        if has_orders.exists([Col(*webhook_id)])? {
            count_orders(connection, *webhook_id, now, limit, &mut counted)?;
        }
        backlogs.push((*webhook_id, counted.backlog(max)));
    }
    Ok(backlogs)
}

fn number(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(i64::unsigned_abs)
}

fn count_orders(
    connection: &Connection,
    webhook_id: WebhookId,
    now: Time,
    limit: i64,
    counted: &mut BacklogCounts,
) -> rusqlite::Result<()> {
    let webhook = Col(webhook_id);
    counted.ordered =
        connection.prepare_cached(COUNT_ORDERED)?.query_row((webhook, limit), |row| number(row, 0))?;
    let mut firsts = connection.prepare_cached(SELECT_ORDER_FIRSTS)?;
    let mut rows = firsts.query((webhook, limit))?;
    while let Some(row) = rows.next()? {
        // A node may have claimed a lane that is empty.
        let Some(due) = get_opt::<Time>(row, 0)? else { continue };
        counted.firsts += 1;
        counted.firsts_due += u64::from(due <= now);
    }
    Ok(())
}

/// Returns the webhooks of a tenant with waiting deliveries: by checking all webhooks of the tenant or, if it has
/// very many, all webhooks that have lanes.
pub(super) fn list_for_tenant(
    connection: &Connection,
    tenant_id: &TenantId,
    look_at: usize,
) -> rusqlite::Result<BackloggedWebhooks> {
    let (tenant, limit) = (tenant_id.as_str(), look_at as i64);
    if !connection.prepare_cached(HAS_MANY_WEBHOOKS)?.exists((tenant, limit))? {
        let mut few = connection.prepare_cached(BACKLOGGED_BY_WEBHOOK)?;
        let webhooks = few.query_map((tenant, limit), |row| get(row, 0))?.collect::<rusqlite::Result<_>>()?;
        return Ok(BackloggedWebhooks { webhooks, more: false });
    }
    let mut many = connection.prepare_cached(BACKLOGGED_BY_LANE)?;
    let mut rows = many.query((tenant, limit))?;
    let (mut webhooks, mut seen) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        seen += 1;
        if row.get(1)? {
            webhooks.push(get(row, 0)?);
        }
    }
    Ok(BackloggedWebhooks { webhooks, more: seen >= look_at })
}
