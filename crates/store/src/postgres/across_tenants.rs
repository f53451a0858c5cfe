//! Reads over all tenants, for admins. No other file reads the history of a tenant without naming it.

use std::collections::HashMap;

use redrive_core::{
    DeliveryId, EventId, NotificationId, TenantId, Time, WebhookId, statistics::traffic::EndedCounts,
    webhook::Webhook,
};
use tokio_postgres::{Row, types::ToSql};

use super::{
    Postgres, attempts,
    convert::{Col, get, plain},
    dead, listing, notifications, runtime_state,
    session::{Failure, Tx},
    tenancy, webhooks,
};
use crate::{
    AcrossTenants, ActivityLimits, AttemptCursor, AttemptFilter, CrossTenantEventFilter, CrossTenantFilter,
    DeadCounts, Delivery, DeliveryCursor, ListedAttempt, ListingPage, PageRequest, StoreError, StoreFuture,
    StoredEvent, StoredNotification, TenantActivity, WaitingCount, WebhookRuntime,
    access_path::{AccessPath, ListedTenants},
};

/// The second condition selects the partition.
const TENANT_OF_EVENT: &str =
    "SELECT e.tenant_id FROM events e WHERE uuid_send(e.id) = uuid_send($1::uuid) AND e.id = $1::uuid";
const TENANT_OF_DELIVERY: &str = "SELECT d.tenant_id FROM deliveries d WHERE d.id = $1::uuid";
const TENANT_OF_WEBHOOK: &str = "SELECT w.tenant_id FROM webhooks w WHERE w.id = $1::uuid";
/// The resolution 1 is a minute. Dead letters are counted up to $4 per tenant.
const ACTIVITY: &str = "SELECT t.id, t.name, t.rules, t.created_at, t.metadata, r.attempts, r.successes, r.delivered,
            r.dead, r.cancelled,
            (SELECT count(*) FROM (SELECT 1 FROM dead x WHERE x.tenant_id = t.id
                                   ORDER BY x.delivery_id DESC LIMIT $4) x)
     FROM (SELECT id, name, rules, created_at, metadata FROM tenants WHERE id > $1 AND deleted_at IS NULL
           ORDER BY id LIMIT $2 OFFSET 0) t
     CROSS JOIN LATERAL (
         SELECT coalesce(sum(r.attempts), 0)::bigint AS attempts, coalesce(sum(r.successes), 0)::bigint AS successes,
                coalesce(sum(r.delivered), 0)::bigint AS delivered, coalesce(sum(r.dead), 0)::bigint AS dead,
                coalesce(sum(r.cancelled), 0)::bigint AS cancelled
         FROM tenant_rollups r WHERE r.tenant_id = t.id AND r.resolution = 1 AND r.start >= $3) r";
const FAILURES_BY_TENANT: &str = "SELECT t.id, f.webhook_id, sum(f.failures)::bigint, count(*)
     FROM unnest($1::text[]) AS t(id)
     CROSS JOIN LATERAL (
         SELECT r.webhook_id, r.attempts - r.successes AS failures FROM rollups r
         WHERE r.tenant_id = t.id COLLATE \"C\" AND r.failed AND r.minute >= $2 ORDER BY r.minute DESC LIMIT $3) f
     GROUP BY 1, 2";
/// Finds each webhook by an index lookup after the previous one, since a webhook may have very many lanes.
const COUNT_WAITING: &str = "WITH RECURSIVE found(webhook_id, n) AS (
         (SELECT webhook_id, 1::bigint FROM lanes WHERE webhook_id > $1 ORDER BY webhook_id LIMIT 1)
         UNION ALL
         SELECT (SELECT l.webhook_id FROM lanes l WHERE l.webhook_id > f.webhook_id ORDER BY l.webhook_id LIMIT 1),
                f.n + 1
         FROM found f WHERE f.webhook_id IS NOT NULL AND f.n < $2)
     SELECT f.webhook_id, h.tenant_id,
            (SELECT count(*) FROM (SELECT 1 FROM waiting w WHERE w.webhook_id = f.webhook_id LIMIT $3) w)
     FROM found f
     CROSS JOIN LATERAL (SELECT h.tenant_id FROM webhooks h WHERE h.id = f.webhook_id LIMIT 1) h";

/// Statements whose cost must be proportional to the rows they return; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 6] = [
    ("tenant of an event", TENANT_OF_EVENT),
    ("tenant of a delivery", TENANT_OF_DELIVERY),
    ("tenant of a webhook", TENANT_OF_WEBHOOK),
    ("activity of tenants", ACTIVITY),
    ("failures by tenant", FAILURES_BY_TENANT),
    ("waiting by webhook", COUNT_WAITING),
];

impl AcrossTenants for Postgres {
    fn tenant_of_event(&self, id: EventId) -> StoreFuture<'_, Option<TenantId>> {
        Box::pin(async move { self.tenant_of(TENANT_OF_EVENT, &Col(id)).await })
    }

    fn tenant_of_delivery(&self, id: DeliveryId) -> StoreFuture<'_, Option<TenantId>> {
        Box::pin(async move { self.tenant_of(TENANT_OF_DELIVERY, &Col(id)).await })
    }

    fn tenant_of_webhook(&self, id: WebhookId) -> StoreFuture<'_, Option<TenantId>> {
        Box::pin(async move { self.tenant_of(TENANT_OF_WEBHOOK, &Col(id)).await })
    }

    fn list_events_of_all_tenants(
        &self,
        filter: CrossTenantEventFilter,
        page: PageRequest<EventId>,
    ) -> StoreFuture<'_, ListingPage<StoredEvent, EventId>> {
        Box::pin(async move {
            let tenants = ListedTenants::All;
            let listed =
                self.list_for_all_tenants(|session| listing::events(session, tenants, &filter, page));
            listed.await?.ok_or(StoreError::OffsetTooFar)
        })
    }

    fn list_deliveries_of_all_tenants(
        &self,
        filter: CrossTenantFilter,
        page: PageRequest<DeliveryCursor>,
    ) -> StoreFuture<'_, ListingPage<Delivery, DeliveryCursor>> {
        let plan = listing::ListingPlan {
            lead: AccessPath::for_cross_tenant_filter(&filter),
            dead: false,
            all: true,
        };
        Box::pin(self.list_all(plan, filter, page))
    }

    fn list_dead_of_all_tenants(
        &self,
        filter: CrossTenantFilter,
        page: PageRequest<DeliveryCursor>,
    ) -> StoreFuture<'_, ListingPage<Delivery, DeliveryCursor>> {
        let lead = AccessPath::for_cross_tenant_dead_filter(&filter);
        Box::pin(self.list_all(listing::ListingPlan { lead, dead: true, all: true }, filter, page))
    }

    fn count_dead_of_all_tenants(
        &self,
        filter: CrossTenantFilter,
        bounds: [Time; 2],
        max: usize,
    ) -> StoreFuture<'_, DeadCounts> {
        Box::pin(async move {
            let tenants = ListedTenants::All;
            self.list_for_all_tenants(|session| dead::count(session, tenants, &filter, bounds, max)).await
        })
    }

    fn list_attempts_of_all_tenants(
        &self,
        filter: AttemptFilter,
        page: PageRequest<AttemptCursor>,
    ) -> StoreFuture<'_, ListingPage<ListedAttempt, AttemptCursor>> {
        Box::pin(async move {
            let tenants = ListedTenants::All;
            let listed = self.list_for_all_tenants(|session| attempts::list(session, tenants, &filter, page));
            listed.await?.ok_or(StoreError::OffsetTooFar)
        })
    }

    fn list_webhooks_of_all_tenants(&self, page: PageRequest<WebhookId>) -> StoreFuture<'_, Vec<Webhook>> {
        Box::pin(async move {
            let found = self.list_for_all_tenants(|session| webhooks::list_all(session, page)).await?;
            self.shared.seals.open_all(found)
        })
    }

    fn list_notifications_of_all_tenants(
        &self,
        page: PageRequest<NotificationId>,
    ) -> StoreFuture<'_, Vec<StoredNotification>> {
        Box::pin(
            async move { self.list_for_all_tenants(|session| notifications::list_all(session, page)).await },
        )
    }

    fn circuits_of_all_tenants(&self, limit: usize) -> StoreFuture<'_, Vec<WebhookRuntime>> {
        Box::pin(async move {
            self.list_for_all_tenants(|session| runtime_state::list_circuits(session, limit)).await
        })
    }

    fn tenant_activity(
        &self,
        after: Option<TenantId>,
        since: Time,
        limits: ActivityLimits,
    ) -> StoreFuture<'_, Vec<TenantActivity>> {
        Box::pin(async move {
            self.list_for_all_tenants(|session| activity(session, after.as_ref(), since, limits)).await
        })
    }

    fn waiting_by_webhook(
        &self,
        after: Option<WebhookId>,
        limit: usize,
        max_each: usize,
    ) -> StoreFuture<'_, Vec<WaitingCount>> {
        Box::pin(async move {
            let after = Col(after.unwrap_or(WebhookId::from_bytes([0; 16])));
            let values: [&(dyn ToSql + Sync); 3] = [&after, &(limit as i64), &(max_each as i64)];
            let values = &values;
            let read = |row: &Row| {
                let count = plain::<i64>(row, 2)?.unsigned_abs();
                Ok(WaitingCount { webhook_id: get(row, 0)?, tenant_id: get(row, 1)?, count })
            };
            self.list_for_all_tenants(|session| async move {
                session.query(COUNT_WAITING, values).await?.iter().map(read).collect()
            })
            .await
        })
    }
}

impl Postgres {
    async fn tenant_of(
        &self,
        statement: &str,
        id: &(dyn ToSql + Sync),
    ) -> Result<Option<TenantId>, StoreError> {
        self.list_for_all_tenants(|session| async move {
            let row = session.query_opt(statement, &[id]).await?;
            row.map(|row| get(&row, 0)).transpose()
        })
        .await
    }

    async fn list_all(
        &self,
        plan: listing::ListingPlan,
        filter: CrossTenantFilter,
        page: PageRequest<DeliveryCursor>,
    ) -> Result<ListingPage<Delivery, DeliveryCursor>, StoreError> {
        let tenants = ListedTenants::All;
        let listed =
            self.list_for_all_tenants(|session| listing::deliveries(session, tenants, plan, &filter, page));
        listed.await?.ok_or(StoreError::OffsetTooFar)
    }
}

async fn activity(
    session: Tx,
    after: Option<&TenantId>,
    since: Time,
    limits: ActivityLimits,
) -> Result<Vec<TenantActivity>, Failure> {
    let after = after.map_or("", TenantId::as_str);
    let values: [&(dyn ToSql + Sync); 4] =
        [&after, &(limits.tenants as i64), &Col(since), &(limits.dead_letters as i64)];
    let rows = session.query(ACTIVITY, &values).await?;
    let number = |row: &Row, column| plain::<i64>(row, column).map(i64::unsigned_abs);
    let read = |row: &Row| {
        let (delivered, dead, cancelled) = (number(row, 7)?, number(row, 8)?, number(row, 9)?);
        Ok::<_, Failure>(TenantActivity {
            tenant: tenancy::read_tenant(row)?,
            attempts: number(row, 5)?,
            successes: number(row, 6)?,
            ended: EndedCounts { delivered, dead, cancelled },
            dead_letters: number(row, 10)?,
            failures: Vec::new(),
            has_more_failures: false,
        })
    };
    let mut found = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    found.sort_by(|a, b| a.tenant.id.cmp(&b.tenant.id));
    let failing = found.iter().filter(|one| one.attempts > one.successes);
    let failing: Vec<_> = failing.map(|one| one.tenant.id.as_str()).collect();
    let mut failures: HashMap<TenantId, (Vec<(WebhookId, u64)>, u64)> = HashMap::new();
    // One more than the limit, to know whether there are more.
    let limit = limits.failed_minutes as i64 + 1;
    for row in &session.query(FAILURES_BY_TENANT, &[&failing, &Col(since), &limit]).await? {
        let (by_webhook, minutes) = failures.entry(get(row, 0)?).or_default();
        by_webhook.push((get(row, 1)?, number(row, 2)?));
        *minutes += number(row, 3)?;
    }
    for one in &mut found {
        let (by_webhook, minutes) = failures.remove(&one.tenant.id).unwrap_or_default();
        one.has_more_failures = minutes > limits.failed_minutes as u64;
        one.failures = by_webhook;
    }
    Ok(found)
}
