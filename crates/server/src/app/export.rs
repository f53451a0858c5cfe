//! Exports: everything that a filter wants, page by page, to whoever reads it. How many run at once is bounded.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use redrive_core::{EventId, TenantId};
use redrive_store::{DeliveryCursor, DeliveryFilter, EventFilter, PageRequest, StoredEvent};

use super::{App, AppError, TenantView, deliveries::Seen};

/// Exports of one tenant at a time, on this node.
const MOST_OF_TENANT: u32 = 2;
/// Exports at a time on this node.
const MOST: u32 = 8;
/// Rows that are read and held at a time. Events have payloads, of up to some hundred KiB each.
const DELIVERIES: u32 = 500;
const EVENTS: u32 = 50;

/// The exports that run on this node.
#[derive(Default)]
pub(super) struct Exports(Arc<Mutex<HashMap<TenantId, u32>>>);

/// The right to run an export, given back when it is dropped.
pub struct Place {
    running: Arc<Mutex<HashMap<TenantId, u32>>>,
    tenant: TenantId,
}

impl Exports {
    fn begin(&self, tenant: &TenantId) -> Result<Place, AppError> {
        let mut running = self.0.lock();
        if running.get(tenant).is_some_and(|count| *count >= MOST_OF_TENANT) {
            return Err(AppError::TooManyExports { here: false, most: MOST_OF_TENANT });
        }
        if running.values().sum::<u32>() >= MOST {
            return Err(AppError::TooManyExports { here: true, most: MOST });
        }
        *running.entry(tenant.clone()).or_default() += 1;
        Ok(Place { running: self.0.clone(), tenant: tenant.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut running = self.running.lock();
        if let Some(count) = running.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.tenant);
            }
        }
    }
}

/// Rows of an export, page by page.
pub trait Pages: Send + 'static {
    /// A row.
    type Row: Send;
    /// The next rows, perhaps none of them; none at the end.
    fn next(&mut self) -> impl Future<Output = Result<Option<Vec<Self::Row>>, AppError>> + Send;
}

/// Where an export goes on.
enum At<C> {
    Beginning,
    After(C),
    End,
}

impl<C: Copy> At<C> {
    /// The page to read next; none at the end.
    fn page(&self, limit: u32) -> Option<PageRequest<C>> {
        match self {
            Self::Beginning => Some(PageRequest { after: None, offset: 0, limit }),
            Self::After(cursor) => Some(PageRequest { after: Some(*cursor), offset: 0, limit }),
            Self::End => None,
        }
    }

    /// After a page with this last row that stopped there.
    fn go_on(&mut self, is_full: bool, last: Option<C>, stopped: Option<C>) {
        *self = stopped.or(last.filter(|_| is_full)).map_or(Self::End, Self::After);
    }
}

/// Events as they are exported.
pub struct EventPages {
    app: Arc<App>,
    tenant: TenantId,
    filter: EventFilter,
    at: At<EventId>,
    _place: Place,
}

impl Pages for EventPages {
    type Row = StoredEvent;

    async fn next(&mut self) -> Result<Option<Vec<StoredEvent>>, AppError> {
        let Some(page) = self.at.page(EVENTS) else { return Ok(None) };
        let listed = self.app.list_events(self.tenant.clone(), self.filter.clone(), page).await?;
        let last = listed.found.last().map(|stored| stored.event.id);
        self.at.go_on(listed.found.len() == EVENTS as usize, last, listed.stopped);
        Ok(Some(listed.found))
    }
}

/// Deliveries as they are exported.
pub struct DeliveryPages {
    app: Arc<App>,
    tenant: TenantView,
    filter: DeliveryFilter,
    dead: bool,
    at: At<DeliveryCursor>,
    _place: Place,
}

impl Pages for DeliveryPages {
    type Row = Seen;

    async fn next(&mut self) -> Result<Option<Vec<Seen>>, AppError> {
        let Some(page) = self.at.page(DELIVERIES) else { return Ok(None) };
        let (tenant, filter) = (self.tenant.clone(), self.filter.clone());
        let listed = match self.dead {
            true => self.app.list_dead(tenant, filter, page).await?,
            false => self.app.list_deliveries(tenant, filter, page).await?,
        };
        let last = listed.found.last().map(|seen| &seen.delivery);
        let last = last.map(|last| DeliveryCursor { event: last.event, delivery: last.id });
        self.at.go_on(listed.found.len() == DELIVERIES as usize, last, listed.stopped);
        Ok(Some(listed.found))
    }
}

impl App {
    /// All events that a filter wants, newest first.
    pub fn export_events(
        self: &Arc<Self>,
        tenant: impl Into<TenantView>,
        filter: EventFilter,
    ) -> Result<EventPages, AppError> {
        let tenant = tenant.into().id;
        let _place = self.exports.begin(&tenant)?;
        Ok(EventPages { app: self.clone(), tenant, filter, at: At::Beginning, _place })
    }

    /// All deliveries that a filter wants, newest event first; dead letters alone if so.
    pub fn export_deliveries(
        self: &Arc<Self>,
        tenant: impl Into<TenantView>,
        filter: DeliveryFilter,
        dead: bool,
    ) -> Result<DeliveryPages, AppError> {
        let tenant = tenant.into();
        let _place = self.exports.begin(&tenant)?;
        Ok(DeliveryPages { app: self.clone(), tenant, filter, dead, at: At::Beginning, _place })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_exports_run_at_once_and_no_more() {
        let exports = Exports::default();
        let tenant = |n: usize| TenantId::parse(&format!("t{n}")).unwrap();
        let first = exports.begin(&tenant(0)).unwrap();
        let _second = exports.begin(&tenant(0)).unwrap();
        let refused = exports.begin(&tenant(0)).err();
        assert_eq!(refused, Some(AppError::TooManyExports { here: false, most: MOST_OF_TENANT }));
        drop(first);
        let _third = exports.begin(&tenant(0)).unwrap();
        let _others: Vec<_> = (1..=6).map(|n| exports.begin(&tenant(n)).unwrap()).collect();
        let refused = exports.begin(&tenant(9)).err();
        assert_eq!(refused, Some(AppError::TooManyExports { here: true, most: MOST }));
        drop(_others);
        assert_eq!(exports.0.lock().len(), 1, "nothing is left of those that are over");
    }
}
