//! Where a listing begins: the index that leads to what is wanted with the fewest detours. What else a filter
//! says is asked of each row that it leads to, and of a bounded number of them.

use redrive_core::{DeliveryId, DeliveryStatus, EventId, id::first_at};

use crate::{CodeFilter, DeliveryCursor, DeliveryFilter, EventFilter, Listed, PageRequest, StatusFilter};

/// How many rows that were not wanted a page may cost. A page that is not full by then says where it stopped.
pub(crate) const DETOUR: usize = 2_000;

/// What leads to deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lead {
    /// One event.
    Event(EventId),
    /// Events with a key.
    Key,
    /// Events about a subject.
    Subject,
    /// All events of the tenant.
    Tenant,
    /// The webhooks that are named.
    Webhooks,
    /// What waits, and what nodes have.
    Pending,
    /// What nodes have.
    Leased,
    /// What did not simply arrive, of the webhooks that are named.
    UndeliveredOfWebhooks,
    /// What failed with this status code.
    Code(u16),
    /// What failed in the ways that are named.
    Categories,
    /// What failed in any way.
    Failed,
    /// What ended in this way, other than by arriving.
    Ended(DeliveryStatus),
    /// The dead letters of the tenant.
    Dead,
    /// Those of the webhooks that are named.
    DeadOfWebhooks,
    /// Those of the event types that are named.
    DeadOfTypes,
    /// Those that failed in the ways that are named.
    DeadOfCategories,
}

impl Lead {
    /// What leads to the deliveries that a filter wants.
    pub(crate) fn of(filter: &DeliveryFilter) -> Self {
        if let Some(lead) = Self::through_events(filter) {
            return lead;
        }
        match filter.status {
            Some(StatusFilter::Is(DeliveryStatus::Pending)) => return Self::Pending,
            Some(StatusFilter::Is(DeliveryStatus::InFlight)) => return Self::Leased,
            _ => {}
        }
        let code = filter.status_code.filter(|code| code.range().0 >= 300);
        let ended = match filter.status {
            _ if filter.is_about_the_dead() => Some(DeliveryStatus::Dead),
            Some(StatusFilter::Is(DeliveryStatus::Cancelled)) => Some(DeliveryStatus::Cancelled),
            _ => None,
        };
        let failed = filter.status == Some(StatusFilter::Failed) || code.is_some();
        let is_rare = failed || ended.is_some() || !filter.failure_categories.is_empty();
        match (code, ended) {
            _ if is_rare && !filter.webhooks.is_empty() => Self::UndeliveredOfWebhooks,
            (Some(CodeFilter::Is(code)), _) => Self::Code(code),
            _ if !filter.failure_categories.is_empty() => Self::Categories,
            (_, Some(status)) => Self::Ended(status),
            _ if failed => Self::Failed,
            _ if !filter.webhooks.is_empty() => Self::Webhooks,
            _ => Self::Tenant,
        }
    }

    /// What leads to the dead letters that a filter wants.
    pub(crate) fn of_dead(filter: &DeliveryFilter) -> Self {
        if let Some(lead) = Self::through_events(filter) {
            return lead;
        }
        match filter {
            _ if !filter.webhooks.is_empty() => Self::DeadOfWebhooks,
            _ if !filter.failure_categories.is_empty() => Self::DeadOfCategories,
            _ if !filter.event_types.is_empty() => Self::DeadOfTypes,
            _ => Self::Dead,
        }
    }

    fn through_events(filter: &DeliveryFilter) -> Option<Self> {
        match filter {
            DeliveryFilter { event: Some(event), .. } => Some(Self::Event(*event)),
            DeliveryFilter { idempotency_key: Some(_), .. } => Some(Self::Key),
            DeliveryFilter { subject: Some(_), .. } => Some(Self::Subject),
            _ => None,
        }
    }

    /// What leads to the events that a filter wants.
    pub(crate) fn of_events(filter: &EventFilter) -> Self {
        match filter {
            EventFilter { id: Some(id), .. } => Self::Event(*id),
            EventFilter { idempotency_key: Some(_), .. } => Self::Key,
            EventFilter { subject: Some(_), .. } => Self::Subject,
            _ => Self::Tenant,
        }
    }

    /// Whether it leads to events, and from them to their deliveries.
    pub(crate) fn is_by_event(self) -> bool {
        matches!(self, Self::Event(_) | Self::Key | Self::Subject | Self::Tenant)
    }
}

/// A range of ids, and how far a walk through it has come: from `low` on, and before `high`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    /// The least id.
    pub(crate) low: [u8; 16],
    /// The first id that is too great.
    pub(crate) high: [u8; 16],
}

impl Range {
    fn of_times(from: Option<redrive_core::Time>, to: Option<redrive_core::Time>) -> Self {
        Self { low: from.map_or([0; 16], first_at), high: to.map_or([0xff; 16], first_at) }
    }

    fn before(self, end: [u8; 16]) -> Self {
        Self { high: self.high.min(end), ..self }
    }

    /// The ids of events that a listing of events has yet to look at.
    pub(crate) fn of_events(filter: &EventFilter, after: Option<EventId>) -> Self {
        let range = Self::of_times(filter.from, filter.to);
        after.map_or(range, |after| range.before(*after.as_bytes()))
    }

    /// The ids that a listing of deliveries has yet to look at: of events where these lead, else of deliveries.
    /// The event that the page before ended with may have more deliveries.
    pub(crate) fn of_deliveries(lead: Lead, filter: &DeliveryFilter, after: Option<DeliveryCursor>) -> Self {
        let range = Self::of_times(filter.from, filter.to);
        match after {
            None => range,
            Some(after) if lead.is_by_event() => {
                let event = u128::from_be_bytes(*after.event.as_bytes());
                range.before(event.saturating_add(1).to_be_bytes())
            }
            Some(after) => range.before(*after.delivery.as_bytes()),
        }
    }
}

/// The place behind everything that an id leads to.
pub(crate) fn behind(lead: Lead, last: [u8; 16]) -> DeliveryCursor {
    let (event, delivery) = if lead.is_by_event() { (last, [0; 16]) } else { ([0; 16], last) };
    DeliveryCursor { event: EventId::from_bytes(event), delivery: DeliveryId::from_bytes(delivery) }
}

/// A page while it is being filled.
pub(crate) struct Walk<T, C> {
    found: Vec<T>,
    wanted: usize,
    offset: usize,
    looked_at: usize,
    stopped: Option<C>,
}

impl<T, C: Copy> Walk<T, C> {
    /// An empty one.
    pub(crate) fn new(page: &PageRequest<C>) -> Self {
        let wanted = page.limit as usize + page.offset as usize;
        let wanted = if page.limit == 0 { 0 } else { wanted };
        Self { found: Vec::new(), wanted, offset: page.offset as usize, looked_at: 0, stopped: None }
    }

    /// How many are still wanted.
    pub(crate) fn missing(&self) -> usize {
        self.wanted - self.found.len().min(self.wanted)
    }

    /// How many rows to look at next, where that must be said beforehand: a page full, then ever more.
    pub(crate) fn stride(&self) -> usize {
        let may_cost = (DETOUR + self.found.len()).saturating_sub(self.looked_at);
        self.missing().max(50).max(3 * self.looked_at).min(may_cost.max(self.missing()))
    }

    /// Adds what so many rows led to, the last of which was at `place`. False: that is enough.
    pub(crate) fn add(&mut self, looked_at: usize, found: impl IntoIterator<Item = T>, place: C) -> bool {
        self.looked_at += looked_at;
        let missing = self.missing();
        self.found.extend(found.into_iter().take(missing));
        if self.missing() == 0 {
            return false;
        }
        if self.looked_at >= DETOUR + self.found.len() {
            self.stopped = Some(place);
            return false;
        }
        true
    }

    /// Adds the last there is to find.
    pub(crate) fn end(&mut self, found: impl IntoIterator<Item = T>) {
        let missing = self.missing();
        self.found.extend(found.into_iter().take(missing));
        self.stopped = None;
    }

    /// The page. None if it is not known yet what to leave out.
    pub(crate) fn page(mut self) -> Option<Listed<T, C>> {
        if self.stopped.is_some() && self.found.len() < self.offset {
            return None;
        }
        let found = self.found.split_off(self.offset.min(self.found.len()));
        Some(Listed { found, stopped: self.stopped })
    }
}

/// Filters that between them go every way that a listing of deliveries can go.
#[cfg(feature = "conformance")]
pub(crate) fn planned_filters() -> Vec<(&'static str, DeliveryFilter)> {
    use redrive_core::{DeadReason, FailureCategory, Time, WebhookId};
    let none = DeliveryFilter::default;
    let webhooks = || vec![WebhookId::from_bytes([1; 16]), WebhookId::from_bytes([2; 16])];
    let categories = || vec![FailureCategory::Timeout, FailureCategory::Dns];
    let event = EventId::from_bytes([1; 16]);
    let is = |status| Some(StatusFilter::Is(status));
    let all = DeliveryFilter {
        status: Some(StatusFilter::Failed),
        event_types: vec!["a.b".into(), "c".into()],
        failure_categories: categories(),
        status_code: Some(CodeFilter::Class(5)),
        dead_reasons: vec![DeadReason::Expired],
        recoverable: Some(true),
        from: Some(Time::default()),
        to: Some(Time::FOREVER),
        ..none()
    };
    vec![
        ("of all", none()),
        ("of an event", DeliveryFilter { event: Some(event), ..none() }),
        ("of a key", DeliveryFilter { idempotency_key: Some(event.to_string()), ..none() }),
        ("about a subject", DeliveryFilter { subject: Some("s".into()), ..none() }),
        ("to webhooks", DeliveryFilter { webhooks: webhooks(), ..none() }),
        (
            "to webhooks that died",
            DeliveryFilter { webhooks: webhooks(), status: is(DeliveryStatus::Dead), ..none() },
        ),
        ("that failed", DeliveryFilter { status: Some(StatusFilter::Failed), ..none() }),
        ("that are dead", DeliveryFilter { status: is(DeliveryStatus::Dead), ..none() }),
        ("that are cancelled", DeliveryFilter { status: is(DeliveryStatus::Cancelled), ..none() }),
        ("that are delivered", DeliveryFilter { status: is(DeliveryStatus::Delivered), ..none() }),
        ("that are not over", DeliveryFilter { status: is(DeliveryStatus::Pending), ..none() }),
        ("under way", DeliveryFilter { status: is(DeliveryStatus::InFlight), ..none() }),
        ("of categories", DeliveryFilter { failure_categories: categories(), ..none() }),
        ("of a status code", DeliveryFilter { status_code: Some(CodeFilter::Is(503)), ..none() }),
        ("of event types", DeliveryFilter { event_types: all.event_types.clone(), ..none() }),
        ("by everything", all.clone()),
        ("to webhooks by everything", DeliveryFilter { webhooks: webhooks(), ..all.clone() }),
        ("about a subject by everything", DeliveryFilter { subject: Some("s".into()), ..all }),
    ]
}

/// The same for listings of events.
#[cfg(feature = "conformance")]
pub(crate) fn planned_event_filters() -> Vec<(&'static str, EventFilter)> {
    use redrive_core::Time;
    let none = EventFilter::default;
    let id = EventId::from_bytes([1; 16]);
    let all = EventFilter {
        event_types: vec!["a.b".into(), "c".into()],
        source: Some("s".into()),
        from: Some(Time::default()),
        to: Some(Time::FOREVER),
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
    fn a_filter_is_led_by_what_is_rarest() {
        let none = DeliveryFilter::default;
        let webhooks = || vec![WebhookId::from_bytes([1; 16])];
        let event = EventId::from_bytes([2; 16]);
        let dead = Some(StatusFilter::Is(DeliveryStatus::Dead));
        for (filter, lead, of_dead) in [
            (none(), Lead::Tenant, Lead::Dead),
            (DeliveryFilter { webhooks: webhooks(), ..none() }, Lead::Webhooks, Lead::DeadOfWebhooks),
            (
                DeliveryFilter { webhooks: webhooks(), status: dead, ..none() },
                Lead::UndeliveredOfWebhooks,
                Lead::DeadOfWebhooks,
            ),
            (DeliveryFilter { status: dead, ..none() }, Lead::Ended(DeliveryStatus::Dead), Lead::Dead),
            (
                DeliveryFilter { dead_reasons: vec![DeadReason::Expired], ..none() },
                Lead::Ended(DeliveryStatus::Dead),
                Lead::Dead,
            ),
            (
                DeliveryFilter { failure_categories: vec![FailureCategory::Dns], ..none() },
                Lead::Categories,
                Lead::DeadOfCategories,
            ),
            (
                DeliveryFilter { status_code: Some(CodeFilter::Is(503)), ..none() },
                Lead::Code(503),
                Lead::Dead,
            ),
            (DeliveryFilter { status_code: Some(CodeFilter::Class(5)), ..none() }, Lead::Failed, Lead::Dead),
            (DeliveryFilter { status_code: Some(CodeFilter::Is(204)), ..none() }, Lead::Tenant, Lead::Dead),
            (DeliveryFilter { event_types: vec!["a".into()], ..none() }, Lead::Tenant, Lead::DeadOfTypes),
            (
                DeliveryFilter { subject: Some("s".into()), status: dead, ..none() },
                Lead::Subject,
                Lead::Subject,
            ),
            (
                DeliveryFilter { event: Some(event), subject: Some("s".into()), ..none() },
                Lead::Event(event),
                Lead::Event(event),
            ),
        ] {
            assert_eq!((Lead::of(&filter), Lead::of_dead(&filter)), (lead, of_dead), "{filter:?}");
        }
    }

    fn walk(limit: u32, offset: u32) -> Walk<usize, usize> {
        Walk::new(&PageRequest { after: None, offset, limit })
    }

    #[test]
    fn a_page_ends_when_it_is_full_or_costs_too_much() {
        let mut full = walk(3, 1);
        assert_eq!((full.missing(), full.stride()), (4, 50));
        assert!(full.add(10, [1, 2], 10));
        assert!(!full.add(10, [3, 4, 5], 20), "full");
        assert_eq!(full.page(), Some(Listed { found: vec![2, 3, 4], stopped: None }));
        let mut rare = walk(3, 0);
        assert!(rare.add(DETOUR - 1, [], 1));
        assert!(rare.add(1, [7], 2), "what is found is no detour");
        assert!(!rare.add(1, [], 3));
        assert_eq!(rare.page(), Some(Listed { found: vec![7], stopped: Some(3) }));
        let mut skipping = walk(3, 5);
        assert!(!skipping.add(DETOUR + 9, [1, 2], 1));
        assert_eq!(skipping.page(), None, "nobody knows what to leave out");
        assert_eq!(walk(0, 5).missing(), 0);
    }
}
