//! Exports: all rows that match a filter, page by page. The number of concurrent exports is limited.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use redrive_core::{EventId, TenantId};
use redrive_store::{DeliveryCursor, EventFilter, PageRequest, StoredEvent};

use super::{
    App, AppError, TenantView,
    deliveries::{DeliveryDetails, DeliverySelection},
};

/// Maximum concurrent exports of one tenant on this node.
const MAX_PER_TENANT: u32 = 2;
/// Maximum concurrent exports on this node.
const MAX_PER_NODE: u32 = 8;
/// Rows read and held in memory per page. Events are fewer because of their payloads of up to some hundred KiB
/// each.
const DELIVERY_PAGE_SIZE: u32 = 500;
const EVENT_PAGE_SIZE: u32 = 50;

/// Number of running exports per tenant on this node.
#[derive(Default)]
pub(super) struct ExportLimiter(Arc<Mutex<HashMap<TenantId, u32>>>);

/// Permit to run an export; released on drop.
pub struct ExportPermit {
    running: Arc<Mutex<HashMap<TenantId, u32>>>,
    tenant_id: TenantId,
}

impl ExportLimiter {
    fn begin(&self, tenant_id: &TenantId) -> Result<ExportPermit, AppError> {
        let mut running = self.0.lock();
        if running.get(tenant_id).is_some_and(|count| *count >= MAX_PER_TENANT) {
            return Err(AppError::TooManyExports { here: false, max: MAX_PER_TENANT });
        }
        if running.values().sum::<u32>() >= MAX_PER_NODE {
            return Err(AppError::TooManyExports { here: true, max: MAX_PER_NODE });
        }
        *running.entry(tenant_id.clone()).or_default() += 1;
        Ok(ExportPermit { running: self.0.clone(), tenant_id: tenant_id.clone() })
    }
}

impl Drop for ExportPermit {
    fn drop(&mut self) {
        let mut running = self.running.lock();
        if let Some(count) = running.get_mut(&self.tenant_id) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.tenant_id);
            }
        }
    }
}

/// Rows of an export, page by page.
pub trait Pages: Send + 'static {
    /// Type of a row.
    type Row: Send;
    /// Returns the next rows, possibly an empty page. Returns `None` at the end.
    fn next(&mut self) -> impl Future<Output = Result<Option<Vec<Self::Row>>, AppError>> + Send;
}

/// Position at which an export continues.
enum ExportCursor<C> {
    Beginning,
    After(C),
    End,
}

impl<C: Copy> ExportCursor<C> {
    /// Returns the next page to read. Returns `None` at the end.
    fn page(&self, limit: u32) -> Option<PageRequest<C>> {
        match self {
            Self::Beginning => Some(PageRequest { after: None, offset: 0, limit }),
            Self::After(cursor) => Some(PageRequest { after: Some(*cursor), offset: 0, limit }),
            Self::End => None,
        }
    }

    /// Advances past a page with this last row, or to the point at which the listing stopped early.
    fn advance(&mut self, is_full: bool, last: Option<C>, stopped: Option<C>) {
        *self = stopped.or(last.filter(|_| is_full)).map_or(Self::End, Self::After);
    }
}

/// Pages of an event export.
pub struct EventPages {
    app: Arc<App>,
    tenant_id: TenantId,
    filter: EventFilter,
    at: ExportCursor<EventId>,
    _place: ExportPermit,
}

impl Pages for EventPages {
    type Row = StoredEvent;

    async fn next(&mut self) -> Result<Option<Vec<StoredEvent>>, AppError> {
        let Some(page) = self.at.page(EVENT_PAGE_SIZE) else { return Ok(None) };
        let listed = self.app.list_events(self.tenant_id.clone(), self.filter.clone(), page).await?;
        let last = listed.found.last().map(|stored| stored.event.id);
        self.at.advance(listed.found.len() == EVENT_PAGE_SIZE as usize, last, listed.stopped);
        Ok(Some(listed.found))
    }
}

/// Pages of a delivery export.
pub struct DeliveryPages {
    app: Arc<App>,
    tenant: TenantView,
    selection: DeliverySelection,
    dead: bool,
    at: ExportCursor<DeliveryCursor>,
    _place: ExportPermit,
}

impl Pages for DeliveryPages {
    type Row = DeliveryDetails;

    async fn next(&mut self) -> Result<Option<Vec<DeliveryDetails>>, AppError> {
        let Some(page) = self.at.page(DELIVERY_PAGE_SIZE) else { return Ok(None) };
        let (tenant, selection) = (self.tenant.clone(), self.selection.clone());
        let listed = match self.dead {
            true => self.app.list_dead(tenant, selection.filter, page).await?,
            false => self.app.list_deliveries(tenant, selection, page).await?,
        };
        let last = listed.found.last().map(|details| &details.delivery);
        let last = last.map(|last| DeliveryCursor { event_id: last.event_id, delivery_id: last.id });
        self.at.advance(listed.found.len() == DELIVERY_PAGE_SIZE as usize, last, listed.stopped);
        Ok(Some(listed.found))
    }
}

impl App {
    /// Starts an export of all matching events, newest first.
    pub fn export_events(
        self: &Arc<Self>,
        tenant: impl Into<TenantView>,
        filter: EventFilter,
    ) -> Result<EventPages, AppError> {
        let tenant_id = tenant.into().id;
        let _place = self.exports.begin(&tenant_id)?;
        Ok(EventPages { app: self.clone(), tenant_id, filter, at: ExportCursor::Beginning, _place })
    }

    /// Starts an export of all matching deliveries, newest event first; only of dead letters if `dead` is set.
    pub fn export_deliveries(
        self: &Arc<Self>,
        tenant: impl Into<TenantView>,
        selection: DeliverySelection,
        dead: bool,
    ) -> Result<DeliveryPages, AppError> {
        let tenant = tenant.into();
        let _place = self.exports.begin(&tenant)?;
        Ok(DeliveryPages { app: self.clone(), tenant, selection, dead, at: ExportCursor::Beginning, _place })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_exports_are_limited_per_tenant_and_node() {
        let exports = ExportLimiter::default();
        let tenant = |n: usize| TenantId::parse(&format!("t{n}")).unwrap();
        let first = exports.begin(&tenant(0)).unwrap();
        let _second = exports.begin(&tenant(0)).unwrap();
        let refused = exports.begin(&tenant(0)).err();
        assert_eq!(refused, Some(AppError::TooManyExports { here: false, max: MAX_PER_TENANT }));
        drop(first);
        let _third = exports.begin(&tenant(0)).unwrap();
        let _others: Vec<_> = (1..=6).map(|n| exports.begin(&tenant(n)).unwrap()).collect();
        let refused = exports.begin(&tenant(9)).err();
        assert_eq!(refused, Some(AppError::TooManyExports { here: true, max: MAX_PER_NODE }));
        drop(_others);
        assert_eq!(exports.0.lock().len(), 1, "ended exports leave no entry");
    }
}
