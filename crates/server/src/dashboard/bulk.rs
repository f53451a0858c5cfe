//! Converts the filter of a listing into the selection of a bulk operation.

use redrive_core::{DeliveryStatus, delivery::bulk_operation::OperationFilter};
use redrive_store::{DeliveryFilter, StatusFilter};

use crate::app::deliveries::DeliverySelection;

/// A state of a moment, which only a node knows: bulk operations cannot select by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MomentaryState {
    /// A request is being sent.
    InFlight,
    /// An open circuit blocks the delivery.
    CircuitBlocked,
}

impl MomentaryState {
    /// Returns what can be done with deliveries in this state instead of a bulk operation.
    fn advice(self) -> &'static str {
        match self {
            Self::InFlight => {
                "These deliveries are being sent now, so there is nothing to resend: wait for the result. To prevent \
                 further attempts, select rows and use “Cancel pending”."
            }
            Self::CircuitBlocked => {
                "These deliveries are still pending and are sent when their circuit closes, so there is nothing to \
                 resend: fix the endpoint, then reset the circuit on the page of its webhook. To prevent further \
                 attempts, select rows and use “Cancel pending”."
            }
        }
    }
}

/// Selection that the bulk buttons of a listing would act on.
pub(super) struct Bulk {
    /// The selection as JSON, as the API accepts it.
    pub(super) filter: String,
    /// Whether the selection is unfiltered.
    pub(super) is_all: bool,
    /// State in the filter that bulk operations do not support, so an operation would select more than is listed.
    momentary: Option<MomentaryState>,
}

impl Bulk {
    /// Builds the selection from that of a listing.
    pub(super) fn for_selection(selection: &DeliverySelection) -> Self {
        let mut bulk = Self::for_filter(&selection.filter);
        if selection.circuit_blocked {
            bulk.momentary = Some(MomentaryState::CircuitBlocked);
        }
        bulk
    }

    /// Builds the selection from the filter of a listing.
    pub(super) fn for_filter(filter: &DeliveryFilter) -> Self {
        let (selection, momentary) = selection(filter);
        let is_all = selection.is_unfiltered();
        // Serializing ids, names and times cannot fail.
        let filter = serde_json::to_string(&selection).unwrap_or_default();
        Self { filter, is_all, momentary }
    }

    /// Returns whether a bulk operation would select exactly what is listed.
    pub(super) fn is_exact(&self) -> bool {
        self.momentary.is_none()
    }

    /// Returns what can be done with the listed deliveries if no bulk operation selects them.
    pub(super) fn advice(&self) -> &'static str {
        self.momentary.map_or("", MomentaryState::advice)
    }
}

/// Returns the selection of a listing, and the state in its filter that bulk operations do not support.
fn selection(filter: &DeliveryFilter) -> (OperationFilter, Option<MomentaryState>) {
    let mut momentary = None;
    let statuses = match filter.status {
        None | Some(StatusFilter::Failed) => Vec::new(),
        Some(StatusFilter::Exactly(DeliveryStatus::InFlight)) => {
            momentary = Some(MomentaryState::InFlight);
            Vec::new()
        }
        Some(StatusFilter::Exactly(status)) => vec![status],
    };
    let selection = OperationFilter {
        webhook_ids: filter.webhooks.clone(),
        event_types: filter.event_types.clone(),
        event_ids: filter.event_id.into_iter().collect(),
        idempotency_keys: filter.idempotency_key.iter().cloned().collect(),
        subjects: filter.subject.iter().cloned().collect(),
        failure_categories: filter.failure_categories.clone(),
        status_codes: filter.status_code.into_iter().collect(),
        statuses,
        failed: filter.status == Some(StatusFilter::Failed),
        dead_reasons: filter.dead_reasons.clone(),
        recoverable: filter.recoverable,
        failed_from: filter.failed_from,
        failed_to: filter.failed_to,
        from: filter.from,
        to: filter.to,
        ..OperationFilter::default()
    };
    (selection, momentary)
}

#[cfg(test)]
mod tests {
    use redrive_core::{FailureCategory, WebhookId};

    use super::*;

    #[test]
    fn bulk_selection_matches_listing_or_advises_what_to_do() {
        let shown = Bulk::for_filter(&DeliveryFilter {
            webhooks: vec![WebhookId::from_bytes([1; 16])],
            status: Some(StatusFilter::Exactly(DeliveryStatus::Dead)),
            failure_categories: vec![FailureCategory::Timeout],
            recoverable: Some(true),
            ..DeliveryFilter::default()
        });
        assert!(shown.is_exact() && !shown.is_all);
        let id = WebhookId::from_bytes([1; 16]);
        let filter = format!(
            r#"{{"webhook_ids":["{id}"],"failure_categories":["timeout"],"statuses":["dead"],"recoverable":true}}"#
        );
        assert_eq!(shown.filter, filter);
        let all = Bulk::for_filter(&DeliveryFilter::default());
        assert_eq!((all.is_all, all.is_exact(), &*all.filter), (true, true, "{}"));
        let narrow = DeliveryFilter {
            subject: Some("a".into()),
            idempotency_key: Some("k".into()),
            status_code: "5xx".parse().ok(),
            status: Some(StatusFilter::Failed),
            failed_from: Some(redrive_core::Time::from_secs(60)),
            ..DeliveryFilter::default()
        };
        let narrow = Bulk::for_filter(&narrow);
        assert!(narrow.is_exact() && !narrow.is_all);
        let filter = r#"{"idempotency_keys":["k"],"subjects":["a"],"status_codes":["5xx"],"failed":true,"failed_from":"1970-01-01T00:01:00.000Z"}"#;
        assert_eq!(narrow.filter, filter);
        let in_flight = DeliveryFilter {
            status: Some(StatusFilter::Exactly(DeliveryStatus::InFlight)),
            ..DeliveryFilter::default()
        };
        let in_flight = Bulk::for_filter(&in_flight);
        assert!(!in_flight.is_exact() && in_flight.advice().contains("being sent now"));
        let pending = DeliveryFilter {
            status: Some(StatusFilter::Exactly(DeliveryStatus::Pending)),
            ..DeliveryFilter::default()
        };
        let blocked = DeliverySelection { filter: pending, circuit_blocked: true };
        assert!(Bulk::for_selection(&blocked).advice().contains("reset the circuit"));
    }
}
