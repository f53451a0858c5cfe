//! Access paths of listings: the index that reaches the matches with the fewest other rows. The other conditions
//! of a filter are checked on each row found, for a bounded number of rows.

use redrive_core::{
    DeliveryId, DeliveryStatus, EventId, TenantId, delivery::code_filter::CodeFilter, id::min_bytes_at,
};

use crate::{
    CrossTenantFilter, DeliveryCursor, DeliveryFilter, EventFilter, ListingPage, PageRequest, StatusFilter,
};

/// Maximum number of non-matching rows that a page may read. A page that is not full by then returns where it
/// stopped.
pub(crate) const MAX_SKIPPED_ROWS: usize = 2_000;

/// Tenants whose rows a listing reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ListedTenants<'a> {
    /// One tenant.
    One(&'a TenantId),
    /// All tenants: only for listings of [`AcrossTenants`](crate::AcrossTenants).
    All,
}

impl<'a> ListedTenants<'a> {
    /// Returns the tenant, or `None` if rows of all tenants are read.
    pub(crate) fn one(self) -> Option<&'a TenantId> {
        match self {
            Self::One(tenant_id) => Some(tenant_id),
            Self::All => None,
        }
    }
}

/// The index through which deliveries are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessPath {
    /// One event.
    Event(EventId),
    /// Events with an idempotency key.
    Key,
    /// Events with a subject.
    Subject,
    /// All events of the tenant.
    Tenant,
    /// The webhooks of the filter.
    Webhooks,
    /// Waiting and leased deliveries.
    Pending,
    /// Leased deliveries.
    Leased,
    /// Deliveries of the filter's webhooks, except those delivered without a failure.
    UndeliveredOfWebhooks,
    /// Deliveries that failed with this status code.
    Code(u16),
    /// Deliveries that failed with the filter's categories.
    Categories,
    /// Deliveries that failed in any category.
    Failed,
    /// Deliveries that ended with this status other than delivered.
    Ended(DeliveryStatus),
    /// The dead letters of the tenant.
    Dead,
    /// Dead letters of the filter's webhooks.
    DeadOfWebhooks,
    /// Dead letters of the filter's event types.
    DeadOfTypes,
    /// Dead letters that failed with the filter's categories.
    DeadOfCategories,
    /// Events of all tenants.
    EventsOfAllTenants,
    /// Deliveries of all tenants.
    DeliveriesOfAllTenants,
    /// Deliveries of all tenants, except those delivered without a failure.
    UndeliveredOfAllTenants,
    /// Dead letters of all tenants.
    DeadOfAllTenants,
}

impl AccessPath {
    /// Returns the access path for a filter of deliveries.
    pub(crate) fn for_filter(filter: &DeliveryFilter) -> Self {
        if let Some(access_path) = Self::through_events(filter) {
            return access_path;
        }
        match filter.status {
            Some(StatusFilter::Exactly(DeliveryStatus::Pending)) => return Self::Pending,
            Some(StatusFilter::Exactly(DeliveryStatus::InFlight)) => return Self::Leased,
            _ => {}
        }
        let code = filter.status_code.filter(|code| code.range().0 >= 300);
        let ended = match filter.status {
            _ if filter.is_dead_only() => Some(DeliveryStatus::Dead),
            Some(StatusFilter::Exactly(DeliveryStatus::Cancelled)) => Some(DeliveryStatus::Cancelled),
            _ => None,
        };
        let failed = filter.status == Some(StatusFilter::Failed) || code.is_some();
        let is_failing = filter.failed_from.is_some();
        let is_rare = failed || is_failing || ended.is_some() || !filter.failure_categories.is_empty();
        match (code, ended) {
            _ if is_rare && !filter.webhooks.is_empty() => Self::UndeliveredOfWebhooks,
            (Some(CodeFilter::Exactly(code)), _) => Self::Code(code),
            _ if !filter.failure_categories.is_empty() => Self::Categories,
            (_, Some(status)) => Self::Ended(status),
            _ if failed => Self::Failed,
            _ if !filter.webhooks.is_empty() => Self::Webhooks,
            _ => Self::Tenant,
        }
    }

    /// Returns the access path for a filter of dead letters.
    pub(crate) fn for_dead_filter(filter: &DeliveryFilter) -> Self {
        if let Some(access_path) = Self::through_events(filter) {
            return access_path;
        }
        match filter {
            _ if !filter.webhooks.is_empty() => Self::DeadOfWebhooks,
            _ if !filter.failure_categories.is_empty() => Self::DeadOfCategories,
            _ if !filter.event_types.is_empty() => Self::DeadOfTypes,
            _ => Self::Dead,
        }
    }

    /// Returns the access path for a filter of the deliveries of all tenants.
    pub(crate) fn for_cross_tenant_filter(filter: &CrossTenantFilter) -> Self {
        match Self::for_filter(filter) {
            Self::Tenant => Self::DeliveriesOfAllTenants,
            Self::Code(_) | Self::Categories | Self::Failed | Self::Ended(_) => Self::UndeliveredOfAllTenants,
            access_path => access_path,
        }
    }

    /// Returns the access path for a filter of the dead letters of all tenants.
    pub(crate) fn for_cross_tenant_dead_filter(filter: &CrossTenantFilter) -> Self {
        match Self::for_dead_filter(filter) {
            Self::Dead | Self::DeadOfTypes | Self::DeadOfCategories => Self::DeadOfAllTenants,
            access_path => access_path,
        }
    }

    fn through_events(filter: &DeliveryFilter) -> Option<Self> {
        match filter {
            DeliveryFilter { event_id: Some(event_id), .. } => Some(Self::Event(*event_id)),
            DeliveryFilter { idempotency_key: Some(_), .. } => Some(Self::Key),
            DeliveryFilter { subject: Some(_), .. } => Some(Self::Subject),
            _ => None,
        }
    }

    /// Returns the access path for a filter of events.
    pub(crate) fn for_event_filter(tenants: ListedTenants<'_>, filter: &EventFilter) -> Self {
        match filter {
            EventFilter { id: Some(id), .. } => Self::Event(*id),
            EventFilter { idempotency_key: Some(_), .. } => Self::Key,
            EventFilter { subject: Some(_), .. } => Self::Subject,
            _ if tenants.one().is_none() => Self::EventsOfAllTenants,
            _ => Self::Tenant,
        }
    }

    /// Returns whether it finds events first, and their deliveries through them.
    pub(crate) fn is_by_event(self) -> bool {
        matches!(self, Self::Event(_) | Self::Key | Self::Subject | Self::Tenant)
    }
}

/// The range of ids that is still to be read: from `low` on, and before `high`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdRange {
    /// The lowest id.
    pub(crate) low: [u8; 16],
    /// The first id above the range.
    pub(crate) high: [u8; 16],
}

impl IdRange {
    fn for_times(from: Option<redrive_core::Time>, to: Option<redrive_core::Time>) -> Self {
        Self { low: from.map_or([0; 16], min_bytes_at), high: to.map_or([0xff; 16], min_bytes_at) }
    }

    fn before(self, end: [u8; 16]) -> Self {
        Self { high: self.high.min(end), ..self }
    }

    /// Returns the event ids that a listing of events still has to read.
    pub(crate) fn for_events(filter: &EventFilter, after: Option<EventId>) -> Self {
        let range = Self::for_times(filter.from, filter.to);
        after.map_or(range, |after| range.before(*after.as_bytes()))
    }

    /// Returns the ids that a listing of deliveries still has to read: of events if the access path goes through
    /// events, else of deliveries. The last event of the previous page is included, since it may have more
    /// deliveries.
    pub(crate) fn for_deliveries(
        access_path: AccessPath,
        filter: &DeliveryFilter,
        after: Option<DeliveryCursor>,
    ) -> Self {
        let range = Self::for_times(filter.from, filter.to);
        match after {
            None => range,
            Some(after) if access_path.is_by_event() => {
                let event = u128::from_be_bytes(*after.event_id.as_bytes());
                range.before(event.saturating_add(1).to_be_bytes())
            }
            Some(after) => range.before(*after.delivery_id.as_bytes()),
        }
    }
}

/// Returns the cursor after everything that is found through an id.
pub(crate) fn cursor_after(access_path: AccessPath, last: [u8; 16]) -> DeliveryCursor {
    let (event, delivery) = if access_path.is_by_event() { (last, [0; 16]) } else { ([0; 16], last) };
    DeliveryCursor { event_id: EventId::from_bytes(event), delivery_id: DeliveryId::from_bytes(delivery) }
}

/// A page that is being filled.
pub(crate) struct PageBuilder<T, C> {
    found: Vec<T>,
    wanted: usize,
    offset: usize,
    scanned: usize,
    stopped: Option<C>,
}

impl<T, C: Copy> PageBuilder<T, C> {
    /// Creates an empty page.
    pub(crate) fn new(page: &PageRequest<C>) -> Self {
        let wanted = page.limit as usize + page.offset as usize;
        let wanted = if page.limit == 0 { 0 } else { wanted };
        Self { found: Vec::new(), wanted, offset: page.offset as usize, scanned: 0, stopped: None }
    }

    /// Returns how many matches are still missing.
    pub(crate) fn missing(&self) -> usize {
        self.wanted - self.found.len().min(self.wanted)
    }

    /// Returns how many rows to read next: one page at first, then growing batches up to the limit.
    pub(crate) fn next_batch_size(&self) -> usize {
        let may_cost = (MAX_SKIPPED_ROWS + self.found.len()).saturating_sub(self.scanned);
        self.missing().max(50).max(3 * self.scanned).min(may_cost.max(self.missing()))
    }

    /// Adds the matches among `looked_at` rows, the last of which was at `place`. Returns `false` if the page is full
    /// or has reached its limit.
    pub(crate) fn add(&mut self, looked_at: usize, found: impl IntoIterator<Item = T>, position: C) -> bool {
        self.scanned += looked_at;
        let missing = self.missing();
        self.found.extend(found.into_iter().take(missing));
        if self.missing() == 0 {
            return false;
        }
        if self.scanned >= MAX_SKIPPED_ROWS + self.found.len() {
            self.stopped = Some(position);
            return false;
        }
        true
    }

    /// Adds the last matches there are.
    pub(crate) fn end(&mut self, found: impl IntoIterator<Item = T>) {
        let missing = self.missing();
        self.found.extend(found.into_iter().take(missing));
        self.stopped = None;
    }

    /// Returns the page, or `None` if it stopped before the offset was reached.
    pub(crate) fn page(mut self) -> Option<ListingPage<T, C>> {
        if self.stopped.is_some() && self.found.len() < self.offset {
            return None;
        }
        let found = self.found.split_off(self.offset.min(self.found.len()));
        Some(ListingPage { found, stopped: self.stopped })
    }
}

/// Returns filters that together use every access path of deliveries.
#[cfg(feature = "conformance")]
pub(crate) fn planned_filters() -> Vec<(&'static str, DeliveryFilter)> {
    use redrive_core::{DeadReason, FailureCategory, Time, WebhookId};
    let none = DeliveryFilter::default;
    let webhooks = || vec![WebhookId::from_bytes([1; 16]), WebhookId::from_bytes([2; 16])];
    let categories = || vec![FailureCategory::Timeout, FailureCategory::Dns];
    let event_id = EventId::from_bytes([1; 16]);
    let is = |status| Some(StatusFilter::Exactly(status));
    let all = DeliveryFilter {
        status: Some(StatusFilter::Failed),
        event_types: vec!["a.b".into(), "c".into()],
        failure_categories: categories(),
        status_code: Some(CodeFilter::Class(5)),
        dead_reasons: vec![DeadReason::Expired],
        recoverable: Some(true),
        failed_from: Some(Time::default()),
        failed_to: Some(Time::FAR_FUTURE),
        from: Some(Time::default()),
        to: Some(Time::FAR_FUTURE),
        ..none()
    };
    vec![
        ("of all", none()),
        ("of an event", DeliveryFilter { event_id: Some(event_id), ..none() }),
        ("of a key", DeliveryFilter { idempotency_key: Some(event_id.to_string()), ..none() }),
        ("about a subject", DeliveryFilter { subject: Some("s".into()), ..none() }),
        ("to webhooks", DeliveryFilter { webhooks: webhooks(), ..none() }),
        (
            "to webhooks that died",
            DeliveryFilter { webhooks: webhooks(), status: is(DeliveryStatus::Dead), ..none() },
        ),
        (
            "to webhooks that fail",
            DeliveryFilter { webhooks: webhooks(), failed_from: Some(Time::default()), ..none() },
        ),
        ("that failed", DeliveryFilter { status: Some(StatusFilter::Failed), ..none() }),
        ("that are dead", DeliveryFilter { status: is(DeliveryStatus::Dead), ..none() }),
        ("that are cancelled", DeliveryFilter { status: is(DeliveryStatus::Cancelled), ..none() }),
        ("that are delivered", DeliveryFilter { status: is(DeliveryStatus::Delivered), ..none() }),
        ("that are pending", DeliveryFilter { status: is(DeliveryStatus::Pending), ..none() }),
        ("in flight", DeliveryFilter { status: is(DeliveryStatus::InFlight), ..none() }),
        ("of categories", DeliveryFilter { failure_categories: categories(), ..none() }),
        ("of a status code", DeliveryFilter { status_code: Some(CodeFilter::Exactly(503)), ..none() }),
        ("of event types", DeliveryFilter { event_types: all.event_types.clone(), ..none() }),
        ("by everything", all.clone()),
        ("to webhooks by everything", DeliveryFilter { webhooks: webhooks(), ..all.clone() }),
        ("about a subject by everything", DeliveryFilter { subject: Some("s".into()), ..all }),
    ]
}

/// Returns filters that together use every access path of events.
#[cfg(feature = "conformance")]
pub(crate) fn planned_event_filters() -> Vec<(&'static str, EventFilter)> {
    use redrive_core::Time;
    let none = EventFilter::default;
    let id = EventId::from_bytes([1; 16]);
    let all = EventFilter {
        event_types: vec!["a.b".into(), "c".into()],
        source: Some("s".into()),
        from: Some(Time::default()),
        to: Some(Time::FAR_FUTURE),
        ..none()
    };
    vec![
        ("of all", none()),
        ("of an id", EventFilter { id: Some(id), ..none() }),
        ("of a key", EventFilter { idempotency_key: Some(id.to_string()), ..none() }),
        ("about a subject", EventFilter { subject: Some("s".into()), ..none() }),
        ("by everything", all.clone()),
        ("about a subject by everything", EventFilter { subject: Some("s".into()), ..all }),
    ]
}

#[cfg(test)]
mod tests {
    use redrive_core::{DeadReason, FailureCategory, WebhookId};

    use super::*;

    #[test]
    fn access_path_uses_the_most_selective_condition() {
        let none = DeliveryFilter::default;
        let webhooks = || vec![WebhookId::from_bytes([1; 16])];
        let event_id = EventId::from_bytes([2; 16]);
        let dead = Some(StatusFilter::Exactly(DeliveryStatus::Dead));
        for (filter, access_path, of_dead) in [
            (none(), AccessPath::Tenant, AccessPath::Dead),
            (
                DeliveryFilter { webhooks: webhooks(), ..none() },
                AccessPath::Webhooks,
                AccessPath::DeadOfWebhooks,
            ),
            (
                DeliveryFilter { webhooks: webhooks(), status: dead, ..none() },
                AccessPath::UndeliveredOfWebhooks,
                AccessPath::DeadOfWebhooks,
            ),
            (
                DeliveryFilter {
                    webhooks: webhooks(),
                    failed_from: Some(redrive_core::Time::default()),
                    ..none()
                },
                AccessPath::UndeliveredOfWebhooks,
                AccessPath::DeadOfWebhooks,
            ),
            (
                DeliveryFilter { status: dead, ..none() },
                AccessPath::Ended(DeliveryStatus::Dead),
                AccessPath::Dead,
            ),
            (
                DeliveryFilter { dead_reasons: vec![DeadReason::Expired], ..none() },
                AccessPath::Ended(DeliveryStatus::Dead),
                AccessPath::Dead,
            ),
            (
                DeliveryFilter { failure_categories: vec![FailureCategory::Dns], ..none() },
                AccessPath::Categories,
                AccessPath::DeadOfCategories,
            ),
            (
                DeliveryFilter { status_code: Some(CodeFilter::Exactly(503)), ..none() },
                AccessPath::Code(503),
                AccessPath::Dead,
            ),
            (
                DeliveryFilter { status_code: Some(CodeFilter::Class(5)), ..none() },
                AccessPath::Failed,
                AccessPath::Dead,
            ),
            (
                DeliveryFilter { status_code: Some(CodeFilter::Exactly(204)), ..none() },
                AccessPath::Tenant,
                AccessPath::Dead,
            ),
            (
                DeliveryFilter { event_types: vec!["a".into()], ..none() },
                AccessPath::Tenant,
                AccessPath::DeadOfTypes,
            ),
            (
                DeliveryFilter { subject: Some("s".into()), status: dead, ..none() },
                AccessPath::Subject,
                AccessPath::Subject,
            ),
            (
                DeliveryFilter { event_id: Some(event_id), subject: Some("s".into()), ..none() },
                AccessPath::Event(event_id),
                AccessPath::Event(event_id),
            ),
        ] {
            assert_eq!(
                (AccessPath::for_filter(&filter), AccessPath::for_dead_filter(&filter)),
                (access_path, of_dead),
                "{filter:?}"
            );
        }
    }

    fn walk(limit: u32, offset: u32) -> PageBuilder<usize, usize> {
        PageBuilder::new(&PageRequest { after: None, offset, limit })
    }

    #[test]
    fn page_ends_when_full_or_at_the_cost_limit() {
        let mut full = walk(3, 1);
        assert_eq!((full.missing(), full.next_batch_size()), (4, 50));
        assert!(full.add(10, [1, 2], 10));
        assert!(!full.add(10, [3, 4, 5], 20), "full");
        assert_eq!(full.page(), Some(ListingPage { found: vec![2, 3, 4], stopped: None }));
        let mut rare = walk(3, 0);
        assert!(rare.add(MAX_SKIPPED_ROWS - 1, [], 1));
        assert!(rare.add(1, [7], 2), "matching rows do not count as skipped");
        assert!(!rare.add(1, [], 3));
        assert_eq!(rare.page(), Some(ListingPage { found: vec![7], stopped: Some(3) }));
        let mut skipping = walk(3, 5);
        assert!(!skipping.add(MAX_SKIPPED_ROWS + 9, [1, 2], 1));
        assert_eq!(skipping.page(), None, "the offset cannot be applied to a partial page");
        assert_eq!(walk(0, 5).missing(), 0);
    }
}
