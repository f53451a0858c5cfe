//! Reads over all tenants, for admins. No other file reads the history of a tenant without naming it.

use redrive_core::{
    DeliveryId, EventId, NotificationId, TenantId, Time, WebhookId,
    statistics::traffic::{EndedCounts, Resolution},
    webhook::Webhook,
};
use rusqlite::{Connection, OptionalExtension, Row, ToSql};

use super::{
    Sqlite, attempts,
    convert::{Col, get},
    dead, listing, notifications, runtime_state, statistics, tenancy, webhooks,
};
use crate::{
    AcrossTenants, ActivityLimits, AttemptCursor, AttemptFilter, CrossTenantEventFilter, CrossTenantFilter,
    DeadCounts, Delivery, DeliveryCursor, ListedAttempt, ListingPage, PageRequest, StoreError, StoreFuture,
    StoredEvent, StoredNotification, TenantActivity, WaitingCount, WebhookRuntime,
    access_path::{AccessPath, ListedTenants},
};

const TENANT_OF_EVENT: &str = "SELECT tenant_id FROM events INDEXED BY events_by_id WHERE id = ?";
const TENANT_OF_DELIVERY: &str = "SELECT tenant_id FROM deliveries WHERE id = ?";
const TENANT_OF_WEBHOOK: &str = "SELECT tenant_id FROM webhooks WHERE id = ?";
const TENANTS_AFTER: &str = "SELECT id, name, rules, created_at, metadata FROM tenants
     WHERE id > ? AND deleted_at IS NULL ORDER BY id LIMIT ?";
const SUM_ROLLUPS: &str = "SELECT sum(attempts), sum(successes), sum(delivered), sum(dead), sum(cancelled)
     FROM tenant_rollups WHERE tenant_id = ? AND resolution = ? AND start >= ?";
/// Counts one row per webhook with a lane, since a webhook may have very many lanes.
const COUNT_WAITING: &str = "SELECT l.webhook_id, h.tenant_id,
         (SELECT count(*) FROM (SELECT 1 FROM waiting w WHERE w.webhook_id = l.webhook_id LIMIT ?3))
     FROM (SELECT DISTINCT webhook_id FROM lanes WHERE webhook_id > ?1 ORDER BY webhook_id LIMIT ?2) l
     CROSS JOIN webhooks h ON h.id = l.webhook_id";

/// Statements whose cost must be proportional to the rows they return; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const BOUNDED_STATEMENTS: [&str; 5] =
    [TENANT_OF_EVENT, TENANT_OF_DELIVERY, TENANT_OF_WEBHOOK, TENANTS_AFTER, SUM_ROLLUPS];

impl AcrossTenants for Sqlite {
    fn tenant_of_event(&self, id: EventId) -> StoreFuture<'_, Option<TenantId>> {
        self.list_for_all_tenants(move |connection| tenant_of(connection, TENANT_OF_EVENT, Col(id)))
    }

    fn tenant_of_delivery(&self, id: DeliveryId) -> StoreFuture<'_, Option<TenantId>> {
        self.list_for_all_tenants(move |connection| tenant_of(connection, TENANT_OF_DELIVERY, Col(id)))
    }

    fn tenant_of_webhook(&self, id: WebhookId) -> StoreFuture<'_, Option<TenantId>> {
        self.list_for_all_tenants(move |connection| tenant_of(connection, TENANT_OF_WEBHOOK, Col(id)))
    }

    fn list_events_of_all_tenants(
        &self,
        filter: CrossTenantEventFilter,
        page: PageRequest<EventId>,
    ) -> StoreFuture<'_, ListingPage<StoredEvent, EventId>> {
        let listed = self.list_for_all_tenants(move |connection| {
            listing::events(connection, ListedTenants::All, &filter, &page)
        });
        Box::pin(async move { listed.await?.ok_or(StoreError::OffsetTooFar) })
    }

    fn list_deliveries_of_all_tenants(
        &self,
        filter: CrossTenantFilter,
        page: PageRequest<DeliveryCursor>,
    ) -> StoreFuture<'_, ListingPage<Delivery, DeliveryCursor>> {
        let access_path = AccessPath::for_cross_tenant_filter(&filter);
        self.list_all(access_path, filter, page, false)
    }

    fn list_dead_of_all_tenants(
        &self,
        filter: CrossTenantFilter,
        page: PageRequest<DeliveryCursor>,
    ) -> StoreFuture<'_, ListingPage<Delivery, DeliveryCursor>> {
        let access_path = AccessPath::for_cross_tenant_dead_filter(&filter);
        self.list_all(access_path, filter, page, true)
    }

    fn count_dead_of_all_tenants(
        &self,
        filter: CrossTenantFilter,
        bounds: [Time; 2],
        max: usize,
    ) -> StoreFuture<'_, DeadCounts> {
        self.list_for_all_tenants(move |connection| {
            dead::count(connection, ListedTenants::All, &filter, bounds, max)
        })
    }

    fn list_attempts_of_all_tenants(
        &self,
        filter: AttemptFilter,
        page: PageRequest<AttemptCursor>,
    ) -> StoreFuture<'_, ListingPage<ListedAttempt, AttemptCursor>> {
        let listed = self.list_for_all_tenants(move |connection| {
            attempts::list(connection, ListedTenants::All, &filter, &page)
        });
        Box::pin(async move { listed.await?.ok_or(StoreError::OffsetTooFar) })
    }

    fn list_webhooks_of_all_tenants(&self, page: PageRequest<WebhookId>) -> StoreFuture<'_, Vec<Webhook>> {
        let found = self.list_for_all_tenants(move |connection| webhooks::list_all(connection, page));
        Box::pin(async { self.seals.open_all(found.await?) })
    }

    fn list_notifications_of_all_tenants(
        &self,
        page: PageRequest<NotificationId>,
    ) -> StoreFuture<'_, Vec<StoredNotification>> {
        self.list_for_all_tenants(move |connection| notifications::list_all(connection, page))
    }

    fn circuits_of_all_tenants(&self, limit: usize) -> StoreFuture<'_, Vec<WebhookRuntime>> {
        self.list_for_all_tenants(move |connection| runtime_state::list_circuits(connection, limit))
    }

    fn tenant_activity(
        &self,
        after: Option<TenantId>,
        since: Time,
        limits: ActivityLimits,
    ) -> StoreFuture<'_, Vec<TenantActivity>> {
        self.list_for_all_tenants(move |connection| activity(connection, after.as_ref(), since, limits))
    }

    fn waiting_by_webhook(
        &self,
        after: Option<WebhookId>,
        limit: usize,
        max_each: usize,
    ) -> StoreFuture<'_, Vec<WaitingCount>> {
        self.list_for_all_tenants(move |connection| {
            let after = Col(after.unwrap_or(WebhookId::from_bytes([0; 16])));
            let read = |row: &Row<'_>| {
                let count = row.get::<_, i64>(2)?.unsigned_abs();
                Ok(WaitingCount { webhook_id: get(row, 0)?, tenant_id: get(row, 1)?, count })
            };
            let mut counts = connection.prepare_cached(COUNT_WAITING)?;
            counts.query_map((after, limit as i64, max_each as i64), read)?.collect()
        })
    }
}

impl Sqlite {
    fn list_all(
        &self,
        access_path: AccessPath,
        filter: CrossTenantFilter,
        page: PageRequest<DeliveryCursor>,
        dead: bool,
    ) -> StoreFuture<'_, ListingPage<Delivery, DeliveryCursor>> {
        let listed = self.list_for_all_tenants(move |connection| {
            listing::deliveries(connection, ListedTenants::All, access_path, &filter, &page, dead)
        });
        Box::pin(async move { listed.await?.ok_or(StoreError::OffsetTooFar) })
    }
}

fn tenant_of(
    connection: &Connection,
    statement: &'static str,
    id: impl ToSql,
) -> rusqlite::Result<Option<TenantId>> {
    connection.prepare_cached(statement)?.query_row([id], |row| get(row, 0)).optional()
}

fn activity(
    connection: &Connection,
    after: Option<&TenantId>,
    since: Time,
    limits: ActivityLimits,
) -> rusqlite::Result<Vec<TenantActivity>> {
    let after = after.map_or("", TenantId::as_str);
    let tenants = connection
        .prepare_cached(TENANTS_AFTER)?
        .query_map((after, limits.tenants as i64), tenancy::read_tenant)?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let mut sums = connection.prepare_cached(SUM_ROLLUPS)?;
    let mut found = Vec::with_capacity(tenants.len());
    for tenant in tenants {
        let key = (tenant.id.as_str(), Col(Resolution::Minute), Col(since));
        let [attempts, successes, delivered, dead, cancelled] = sums.query_row(key, |row| {
            let mut sums = [0; 5];
            for (column, sum) in sums.iter_mut().enumerate() {
                *sum = row.get::<_, Option<i64>>(column)?.unwrap_or_default().unsigned_abs();
            }
            Ok(sums)
        })?;
        let dead_letters = dead::size(connection, &tenant.id, limits.dead_letters)? as u64;
        // Failed attempts are only among those that did not succeed.
        let (failures, has_more_failures) = match attempts > successes {
            true => {
                let found = statistics::failures_of(connection, &tenant.id, since, limits.failed_minutes)?;
                (found.by_webhook, found.only_since.is_some())
            }
            false => (Vec::new(), false),
        };
        let ended = EndedCounts { delivered, dead, cancelled };
        found.push(TenantActivity {
            tenant,
            attempts,
            successes,
            ended,
            dead_letters,
            failures,
            has_more_failures,
        });
    }
    Ok(found)
}
