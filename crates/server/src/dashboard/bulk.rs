//! Converts the filter of a listing into the selection of a bulk operation.

use redrive_core::{DeliveryStatus, delivery::bulk_operation::OperationFilter};
use redrive_store::{DeliveryFilter, StatusFilter};

use crate::app::deliveries::DeliverySelection;

/// Selection that the bulk buttons of a listing would act on.
pub(super) struct Bulk {
    /// The selection as JSON, as the API accepts it.
    pub(super) filter: String,
    /// Whether the selection is unfiltered.
    pub(super) is_all: bool,
    /// Parts of the filter that bulk operations do not support, so an operation would select more than is listed.
    pub(super) unsupported: Vec<&'static str>,
}

impl Bulk {
    /// Builds the selection from that of a listing.
    pub(super) fn for_selection(selection: &DeliverySelection) -> Self {
        let mut bulk = Self::for_filter(&selection.filter);
        if selection.circuit_blocked {
            bulk.unsupported.push("blocked by an open circuit");
        }
        bulk
    }

    /// Builds the selection from the filter of a listing.
    pub(super) fn for_filter(filter: &DeliveryFilter) -> Self {
        let (selection, unsupported) = selection(filter);
        let is_all = selection.is_unfiltered();
        // Serializing ids, names and times cannot fail.
        let filter = serde_json::to_string(&selection).unwrap_or_default();
        Self { filter, is_all, unsupported }
    }

    /// Returns whether a bulk operation would select exactly what is listed.
    pub(super) fn is_exact(&self) -> bool {
        self.unsupported.is_empty()
    }

    /// Returns the unsupported parts of the filter as text.
    pub(super) fn unsupported(&self) -> String {
        self.unsupported.join(", ")
    }
}

/// Returns the selection of a listing, and the parts of its filter that bulk operations do not support.
fn selection(filter: &DeliveryFilter) -> (OperationFilter, Vec<&'static str>) {
    let mut unsupported = Vec::new();
    let statuses = match filter.status {
        None => Vec::new(),
        Some(StatusFilter::Exactly(DeliveryStatus::InFlight)) => {
            unsupported.push("in flight");
            Vec::new()
        }
        Some(StatusFilter::Failed) => {
            unsupported.push("failed (choose pending or dead instead)");
            Vec::new()
        }
        Some(StatusFilter::Exactly(status)) => vec![status],
    };
    for (is_set, name) in [
        (filter.event_id.is_some(), "event ID"),
        (filter.idempotency_key.is_some(), "idempotency key"),
        (filter.subject.is_some(), "subject"),
        (filter.status_code.is_some(), "status code"),
    ] {
        if is_set {
            unsupported.push(name);
        }
    }
    let selection = OperationFilter {
        webhook_ids: filter.webhooks.clone(),
        event_types: filter.event_types.clone(),
        failure_categories: filter.failure_categories.clone(),
        statuses,
        dead_reasons: filter.dead_reasons.clone(),
        recoverable: filter.recoverable,
        from: filter.from,
        to: filter.to,
        tenant_managed_only: false,
    };
    (selection, unsupported)
}

#[cfg(test)]
mod tests {
    use redrive_core::{FailureCategory, WebhookId};

    use super::*;

    #[test]
    fn bulk_selection_matches_listing_or_names_unsupported_filters() {
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
        let narrow = DeliveryFilter { subject: Some("a".into()), ..DeliveryFilter::default() };
        assert_eq!(Bulk::for_filter(&narrow).unsupported(), "subject");
        let failed = DeliveryFilter { status: Some(StatusFilter::Failed), ..DeliveryFilter::default() };
        assert!(!Bulk::for_filter(&failed).is_exact());
        let pending = DeliveryFilter {
            status: Some(StatusFilter::Exactly(DeliveryStatus::Pending)),
            ..DeliveryFilter::default()
        };
        let blocked = DeliverySelection { filter: pending, circuit_blocked: true };
        assert_eq!(Bulk::for_selection(&blocked).unsupported(), "blocked by an open circuit");
    }
}
