//! What listings of the past are asked for, and what they answer.

use redrive_core::{
    DeadReason, DeliveryId, DeliveryStatus, EventId, FailureCategory, Time, WebhookId,
    delivery::recovery::Recovery,
};

/// Which status a listing of deliveries is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusFilter {
    /// Exactly this one; `Pending` takes in what is in flight.
    Is(DeliveryStatus),
    /// At least one failed attempt, and not delivered.
    Failed,
}

/// Which status codes of the last answer are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeFilter {
    /// This one.
    Is(u16),
    /// Those from this hundred: 5 stands for 500 to 599.
    Class(u16),
}

impl CodeFilter {
    /// The first code that is meant, and the last.
    pub fn range(self) -> (u16, u16) {
        match self {
            Self::Is(code) => (code, code),
            Self::Class(class) => (class.saturating_mul(100), class.saturating_mul(100).saturating_add(99)),
        }
    }
}

/// Which deliveries to list: those for which everything holds that is said. An empty list says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeliveryFilter {
    /// Only to one of these webhooks.
    pub webhooks: Vec<WebhookId>,
    /// Only of this event.
    pub event: Option<EventId>,
    /// Only of events that have this key, or this id in place of one.
    pub idempotency_key: Option<String>,
    /// Only of events about this subject.
    pub subject: Option<String>,
    /// Only in this status.
    pub status: Option<StatusFilter>,
    /// Only of one of these event types.
    pub event_types: Vec<String>,
    /// Only with one of these kinds of last failure.
    pub failure_categories: Vec<FailureCategory>,
    /// Only with such a status code of the last answer.
    pub status_code: Option<CodeFilter>,
    /// Only dead for one of these reasons.
    pub dead_reasons: Vec<DeadReason>,
    /// Only dead, and likely to succeed when they are sent again; or unlikely to.
    pub recoverable: Option<bool>,
    /// Only of events from this time on.
    pub from: Option<Time>,
    /// Only of events before this time.
    pub to: Option<Time>,
    /// Only to webhooks that the tenant manages.
    pub tenant_managed_only: bool,
}

impl DeliveryFilter {
    /// Whether only dead deliveries can pass.
    pub fn is_about_the_dead(&self) -> bool {
        !self.dead_reasons.is_empty()
            || self.recoverable.is_some()
            || self.status == Some(StatusFilter::Is(DeliveryStatus::Dead))
    }

    /// The ways to die, with the kind of the last failure, that are recoverable as it is asked for.
    pub(crate) fn recoverable_ways(&self) -> Option<Vec<(DeadReason, Option<FailureCategory>)>> {
        let wanted = self.recoverable?;
        let categories = || FailureCategory::ALL.into_iter().map(Some).chain([None]);
        let ways =
            DeadReason::ALL.into_iter().flat_map(|reason| categories().map(move |kind| (reason, kind)));
        Some(ways.filter(|(reason, kind)| Recovery::is_likely(*reason, *kind) == wanted).collect())
    }
}

/// Which events to list: those for which everything holds that is said. An empty list says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Only this one.
    pub id: Option<EventId>,
    /// Only those that have this key, or this id in place of one.
    pub idempotency_key: Option<String>,
    /// Only about this subject.
    pub subject: Option<String>,
    /// Only of one of these types.
    pub event_types: Vec<String>,
    /// Only from this source.
    pub source: Option<String>,
    /// Only from this time on.
    pub from: Option<Time>,
    /// Only before this time.
    pub to: Option<Time>,
}

/// Where a listing of deliveries stopped: it is ordered by event, then by delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryCursor {
    /// The event of the last one.
    pub event: EventId,
    /// The last one.
    pub delivery: DeliveryId,
}

/// What a listing gave, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed<T, C> {
    /// What was found.
    pub found: Vec<T>,
    /// How far was looked, where the end was not reached and less was found than there was room for: what is
    /// wanted is rare here, and may come after this. None: there was enough, or there is no more.
    pub stopped: Option<C>,
}

impl<T, C> Listed<T, C> {
    /// With each thing found made into another.
    pub fn map<U>(self, into: impl FnMut(T) -> U) -> Listed<U, C> {
        Listed { found: self.found.into_iter().map(into).collect(), stopped: self.stopped }
    }
}
