//! Filters and pages of listings.

use bytes::Bytes;
use redrive_core::{
    DeadReason, DeliveryId, DeliveryStatus, EventId, FailureCategory, Time, WebhookId,
    delivery::{code_filter::CodeFilter, recovery::Recoverability},
};

/// Filter of deliveries by status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusFilter {
    /// Exactly this status; `Pending` includes deliveries in flight.
    Exactly(DeliveryStatus),
    /// At least one failed attempt, and not delivered.
    Failed,
}

/// Filter of deliveries: all given conditions must hold. An empty list is no condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeliveryFilter {
    /// Only to one of these webhooks.
    pub webhooks: Vec<WebhookId>,
    /// Only of this event.
    pub event_id: Option<EventId>,
    /// Only of events with this idempotency key, or with this id if they have no key.
    pub idempotency_key: Option<String>,
    /// Only of events with this subject.
    pub subject: Option<String>,
    /// Only in this status.
    pub status: Option<StatusFilter>,
    /// Only of one of these event types.
    pub event_types: Vec<String>,
    /// Only with one of these categories of the last failure.
    pub failure_categories: Vec<FailureCategory>,
    /// Only with a matching status code of the last response.
    pub status_code: Option<CodeFilter>,
    /// Only dead for one of these reasons.
    pub dead_reasons: Vec<DeadReason>,
    /// Only dead ones whose last failure requires no change before a resend (`true`) or requires one (`false`).
    pub recoverable: Option<bool>,
    /// Only dead letters that died at this time or later, and pending ones with a failed attempt.
    pub failed_from: Option<Time>,
    /// Only dead letters that died before this time.
    pub failed_to: Option<Time>,
    /// Only of events from this time on.
    pub from: Option<Time>,
    /// Only of events before this time.
    pub to: Option<Time>,
    /// Only to webhooks that the tenant manages.
    pub tenant_managed_only: bool,
}

impl DeliveryFilter {
    /// Returns whether only dead deliveries can match.
    pub fn is_dead_only(&self) -> bool {
        !self.dead_reasons.is_empty()
            || self.recoverable.is_some()
            || self.failed_to.is_some()
            || self.status == Some(StatusFilter::Exactly(DeliveryStatus::Dead))
    }

    /// Returns the pairs of dead reason and last failure category that match `recoverable`.
    pub(crate) fn recoverable_codes(&self) -> Option<Vec<(DeadReason, Option<FailureCategory>)>> {
        let wanted = self.recoverable?;
        let categories = || FailureCategory::ALL.into_iter().map(Some).chain([None]);
        let combinations =
            DeadReason::ALL.into_iter().flat_map(|reason| categories().map(move |kind| (reason, kind)));
        Some(
            combinations
                .filter(|(reason, kind)| Recoverability::is_likely(*reason, *kind) == wanted)
                .collect(),
        )
    }
}

/// Filter of events: all given conditions must hold. An empty list is no condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Only this event.
    pub id: Option<EventId>,
    /// Only events with this idempotency key, or with this id if they have no key.
    pub idempotency_key: Option<String>,
    /// Only with this subject.
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

/// Position in a listing of deliveries, which is sorted by event, then by delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryCursor {
    /// Event of the last delivery.
    pub event_id: EventId,
    /// The last delivery.
    pub delivery_id: DeliveryId,
}

/// A page of a listing, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListingPage<T, C> {
    /// The items.
    pub found: Vec<T>,
    /// Position at which the scan stopped before the page was full, because matches are rare; more may follow. `None`
    /// if the page is full or there are no more.
    pub stopped: Option<C>,
}

impl<T, C> ListingPage<T, C> {
    /// Converts each item.
    pub fn map<U>(self, into: impl FnMut(T) -> U) -> ListingPage<U, C> {
        ListingPage { found: self.found.into_iter().map(into).collect(), stopped: self.stopped }
    }
}

/// One step of a scan of payloads, newest event first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PayloadScan {
    /// Only payloads of these event types; of all if empty.
    pub event_types: Vec<String>,
    /// Only of events from this time on.
    pub from: Time,
    /// Only of events before this time.
    pub to: Time,
    /// Only of events older than this one.
    pub after: Option<EventId>,
    /// Maximum number of events to read.
    pub rows: usize,
    /// Maximum size of the payloads to return together; a single larger one is returned alone.
    pub max_bytes: usize,
}

/// Result of one step of a scan of payloads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PayloadPage {
    /// Payloads of the events with one of the event types, newest first; empty ones were erased.
    pub payloads: Vec<(EventId, Bytes)>,
    /// Number of events read, whatever their type.
    pub scanned: usize,
    /// The last event read.
    pub last: Option<EventId>,
    /// Whether no older event is left.
    pub finished: bool,
}
