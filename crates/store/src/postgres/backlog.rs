//! Backlogs of webhooks, counted up to a limit.

use std::collections::HashMap;

use redrive_core::{TenantId, Time, WebhookId};
use tokio_postgres::Row;

use super::{
    convert::{Col, get, plain},
    session::{Failure, Tx},
};
use crate::{Backlog, BacklogCounts, BackloggedWebhooks};

/// In unordered lanes `sort_key` is the due time, so the index answers both counts.
const COUNT_UNORDERED: &str = "SELECT l.webhook_id, l.lane,
            (SELECT count(*) FROM (SELECT 1 FROM waiting w
                 WHERE w.webhook_id = l.webhook_id AND w.lane = l.lane AND w.sort_key <= $2 LIMIT $3) w),
            (SELECT count(*) FROM (SELECT 1 FROM waiting w
                 WHERE w.webhook_id = l.webhook_id AND w.lane = l.lane AND w.sort_key > $2 LIMIT $3) w)
     FROM unnest($1::uuid[]) AS k(webhook_id)
     JOIN lanes l ON l.webhook_id = k.webhook_id AND l.lane >= 'A'";
const COUNT_ORDERED: &str = "SELECT k.webhook_id,
            (SELECT count(*) FROM (SELECT 1 FROM waiting w
                 WHERE w.webhook_id = k.webhook_id AND w.lane < 'A' LIMIT $2) w)
     FROM unnest($1::uuid[]) AS k(webhook_id)
     CROSS JOIN LATERAL (SELECT 1 FROM lanes l WHERE l.webhook_id = k.webhook_id AND l.lane < 'A' LIMIT 1) l";
/// The first delivery of each ordered lane without a lease.
const COUNT_ORDER_FIRSTS: &str = "SELECT k.webhook_id, count(f.due), count(f.due) FILTER (WHERE f.due <= $2)
     FROM unnest($1::uuid[]) AS k(webhook_id)
     CROSS JOIN LATERAL (
         SELECT (SELECT w.due FROM waiting w WHERE w.webhook_id = l.webhook_id AND w.lane = l.lane
                 ORDER BY w.sort_key, w.seq LIMIT 1) AS due
         FROM lanes l WHERE l.webhook_id = k.webhook_id AND l.lane < 'A' AND NOT EXISTS
             (SELECT 1 FROM leased s WHERE s.webhook_id = l.webhook_id AND s.lane = l.lane AND s.lane < 'A')
         LIMIT $3) f
     GROUP BY k.webhook_id";
const HAS_MANY_WEBHOOKS: &str =
    "SELECT 1 FROM webhooks WHERE tenant_id = $1 AND NOT deleted ORDER BY id LIMIT 1 OFFSET $2";
const BACKLOGGED_BY_WEBHOOK: &str =
    "SELECT w.id FROM (SELECT id FROM webhooks WHERE tenant_id = $1 AND NOT deleted
                       ORDER BY id LIMIT $2) w
     CROSS JOIN LATERAL (SELECT 1 FROM lanes l WHERE l.webhook_id = w.id LIMIT 1) l";
/// Finds each webhook after the previous one by an index lookup, since one webhook may have very many lanes.
const BACKLOGGED_BY_LANE: &str = "WITH RECURSIVE found(webhook_id, n) AS (
         (SELECT webhook_id, 1::bigint FROM lanes
          WHERE webhook_id > '00000000-0000-0000-0000-000000000000' ORDER BY webhook_id LIMIT 1)
         UNION ALL
         SELECT (SELECT l.webhook_id FROM lanes l WHERE l.webhook_id > f.webhook_id ORDER BY l.webhook_id
         LIMIT 1), f.n + 1
         FROM found f WHERE f.webhook_id IS NOT NULL AND f.n < $2)
     SELECT webhook_id, coalesce((SELECT w.tenant_id = $1 AND NOT w.deleted FROM webhooks w
     WHERE w.id = found.webhook_id),
                              false)
     FROM found WHERE webhook_id IS NOT NULL";

/// Statements whose cost must depend on their result only; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 6] = [
    ("backlog of unordered lanes", COUNT_UNORDERED),
    ("backlog of ordered lanes", COUNT_ORDERED),
    ("first deliveries of ordered lanes", COUNT_ORDER_FIRSTS),
    ("has many webhooks", HAS_MANY_WEBHOOKS),
    ("backlogged by webhook", BACKLOGGED_BY_WEBHOOK),
    ("backlogged by lane", BACKLOGGED_BY_LANE),
];

/// Returns the backlog of each of these webhooks.
pub(super) async fn count_by_webhook(
    session: Tx,
    webhooks: &[WebhookId],
    now: Time,
    max: usize,
) -> Result<Vec<(WebhookId, Backlog)>, Failure> {
    let limit = i64::try_from(max).unwrap_or(i64::MAX).saturating_add(1);
    let request: Vec<_> = webhooks.iter().copied().map(Col).collect();
    let count = |row: &Row, column| plain::<i64>(row, column).map(i64::unsigned_abs);
    let mut found: HashMap<WebhookId, BacklogCounts> = HashMap::new();
    for row in &session.query(COUNT_UNORDERED, &[&request, &Col(now), &limit]).await? {
        let lane = (get(row, 1)?, count(row, 2)?, count(row, 3)?);
        found.entry(get(row, 0)?).or_default().free.push(lane);
    }
    let ordered = session.query(COUNT_ORDERED, &[&request, &limit]).await?;
    for row in &ordered {
        found.entry(get(row, 0)?).or_default().ordered = count(row, 1)?;
    }
    if !ordered.is_empty() {
        let request = ordered.iter().map(|row| get(row, 0).map(Col)).collect::<Result<Vec<_>, _>>()?;
        for row in
            &session.query(COUNT_ORDER_FIRSTS, &[&request as &Vec<Col<WebhookId>>, &Col(now), &limit]).await?
        {
            let counted = found.entry(get(row, 0)?).or_default();
            (counted.firsts, counted.firsts_due) = (count(row, 1)?, count(row, 2)?);
        }
    }
    let of_one =
        |webhook_id: &WebhookId| (*webhook_id, found.remove(webhook_id).unwrap_or_default().backlog(max));
    Ok(webhooks.iter().map(of_one).collect())
}

/// Returns the webhooks of a tenant that have a backlog: reads the tenant's webhooks or, if it has more than
/// `look_at`, the webhooks of all tenants that have lanes.
pub(super) async fn list_for_tenant(
    session: Tx,
    tenant_id: &TenantId,
    look_at: usize,
) -> Result<BackloggedWebhooks, Failure> {
    let (tenant, limit) = (tenant_id.as_str(), look_at as i64);
    if !session.exists(HAS_MANY_WEBHOOKS, &[&tenant, &limit]).await? {
        let rows = session.query(BACKLOGGED_BY_WEBHOOK, &[&tenant, &limit]).await?;
        let webhooks = rows.iter().map(|row| get(row, 0)).collect::<Result<_, _>>()?;
        return Ok(BackloggedWebhooks { webhooks, more: false });
    }
    let rows = session.query(BACKLOGGED_BY_LANE, &[&tenant, &limit]).await?;
    let mut webhooks = Vec::new();
    for row in &rows {
        if plain(row, 1)? {
            webhooks.push(get(row, 0)?);
        }
    }
    Ok(BackloggedWebhooks { webhooks, more: rows.len() >= look_at })
}
