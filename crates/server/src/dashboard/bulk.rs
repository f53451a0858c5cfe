//! What a listing shows, as a bulk operation is asked for it.

use redrive_core::{DeliveryStatus, delivery::bulk_operation::Selection};
use redrive_store::{DeliveryFilter, StatusFilter};

/// What the buttons of a listing would do with all that its filter names.
pub(super) struct Bulk {
    /// The filter, as calls of the API take it.
    pub(super) filter: String,
    /// Whether it names everything there is.
    pub(super) is_all: bool,
    /// Parts of the filter that no bulk operation can heed: it would do more than is shown.
    pub(super) unheeded: Vec<&'static str>,
}

impl Bulk {
    /// By the filter of a listing.
    pub(super) fn of(filter: &DeliveryFilter) -> Self {
        let (selection, unheeded) = selection(filter);
        let is_all = selection.is_all();
        // Ids, names and times: there is nothing that could not be written.
        let filter = serde_json::to_string(&selection).unwrap_or_default();
        Self { filter, is_all, unheeded }
    }

    /// Whether what a bulk operation would take on is what is shown.
    pub(super) fn is_exact(&self) -> bool {
        self.unheeded.is_empty()
    }

    /// What cannot be heeded, in words.
    pub(super) fn unheeded(&self) -> String {
        self.unheeded.join(", ")
    }
}

/// What a listing shows, and what of its filter cannot be said to a bulk operation.
fn selection(filter: &DeliveryFilter) -> (Selection, Vec<&'static str>) {
    let mut unheeded = Vec::new();
    let statuses = match filter.status {
        None => Vec::new(),
        Some(StatusFilter::Is(DeliveryStatus::InFlight)) => {
            unheeded.push("in flight");
            Vec::new()
        }
        Some(StatusFilter::Failed) => {
            unheeded.push("failed (choose pending or dead instead)");
            Vec::new()
        }
        Some(StatusFilter::Is(status)) => vec![status],
    };
    for (is_asked, name) in [
        (filter.event.is_some(), "event id"),
        (filter.idempotency_key.is_some(), "idempotency key"),
        (filter.subject.is_some(), "subject"),
        (filter.status_code.is_some(), "status code"),
    ] {
        if is_asked {
            unheeded.push(name);
        }
    }
    let selection = Selection {
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
    (selection, unheeded)
}

#[cfg(test)]
mod tests {
    use redrive_core::{FailureCategory, WebhookId};

    use super::*;

    #[test]
    fn a_bulk_operation_takes_on_what_is_shown_or_says_why_not() {
        let shown = Bulk::of(&DeliveryFilter {
            webhooks: vec![WebhookId::from_bytes([1; 16])],
            status: Some(StatusFilter::Is(DeliveryStatus::Dead)),
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
        let all = Bulk::of(&DeliveryFilter::default());
        assert_eq!((all.is_all, all.is_exact(), &*all.filter), (true, true, "{}"));
        let narrow = DeliveryFilter { subject: Some("a".into()), ..DeliveryFilter::default() };
        assert_eq!(Bulk::of(&narrow).unheeded(), "subject");
        let failed = DeliveryFilter { status: Some(StatusFilter::Failed), ..DeliveryFilter::default() };
        assert!(!Bulk::of(&failed).is_exact());
    }
}
