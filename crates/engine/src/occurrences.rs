//! Occurrences that are recorded with the outcome or the change that caused them.

use redrive_core::{
    DeadReason, FailureCategory, TenantId, Time, WebhookId,
    delivery::{decide::DecisionEffects, outcome::Outcome},
    event::event_type,
    notification::{NotificationKind, Occurrence, OccurrenceDetails},
    protection::breaker::{CircuitState, Counts},
    webhook::{Webhook, WebhookState, verification::REASON_NOT_VERIFIED},
};

use crate::{
    coordinate::CircuitChange,
    dispatch::{LeasedDelivery, REASON_EXPIRED, REASON_GONE},
};

/// Maximum length of the message of an occurrence.
const MAX_MESSAGE_CHARS: usize = 500;

/// Creates an occurrence.
pub(crate) fn occurrence(
    tenant_id: &TenantId,
    webhook_id: Option<WebhookId>,
    kind: NotificationKind,
    at: Time,
    details: OccurrenceDetails,
) -> Occurrence {
    Occurrence { tenant_id: tenant_id.clone(), webhook_id, kind, at, count: 1, details }
}

/// Returns the occurrence for a delivery that ends dead. Returns `None` for Redrive's own events: a notification
/// about them would fail in the same way.
pub(crate) fn delivery_dead(
    delivery: &LeasedDelivery,
    reason: DeadReason,
    message: Option<&str>,
    at: Time,
) -> Option<Occurrence> {
    if event_type::is_reserved(&delivery.event.event_type) {
        return None;
    }
    let details = OccurrenceDetails {
        reason: Some(reason.name().into()),
        message: message.map(shortened),
        delivery_id: Some(delivery.id),
        event_type: Some(delivery.event.event_type.to_string()),
        ..OccurrenceDetails::default()
    };
    Some(occurrence(
        &delivery.event.tenant_id,
        Some(delivery.webhook_id),
        NotificationKind::DeliveryDead,
        at,
        details,
    ))
}

/// Returns the occurrence for a decision that marks the delivery dead, else `None`.
pub(crate) fn delivery_dead_by(
    delivery: &LeasedDelivery,
    decided: &DecisionEffects,
    message: Option<&str>,
    at: Time,
) -> Option<Occurrence> {
    match decided.outcome {
        Outcome::Dead(reason) => delivery_dead(delivery, reason, message, at),
        _ => None,
    }
}

/// Returns the occurrence for an automatic circuit transition. The store verifies whether the transition takes
/// effect. `since` is the start of the webhook's series of failures.
pub(crate) fn circuit_transition(change: &CircuitChange, since: Option<Time>) -> Option<Occurrence> {
    if change.saved.forced.is_some() {
        return None;
    }
    let (kind, details) = match (change.transition.from, change.saved.state) {
        (CircuitState::Closed, CircuitState::Open) => {
            let counts = &change.saved.counts;
            let message = format!("{} of {} attempts failed", counts.failed, counts.total);
            let reason = worst(counts).map(|category| category.name().to_owned());
            let details = OccurrenceDetails {
                reason,
                message: Some(message),
                until: change.saved.until,
                since,
                ..OccurrenceDetails::default()
            };
            (NotificationKind::CircuitOpened, details)
        }
        (CircuitState::Open | CircuitState::HalfOpen, CircuitState::Closed) => {
            (NotificationKind::CircuitRecovered, OccurrenceDetails::default())
        }
        _ => return None,
    };
    Some(occurrence(&change.tenant_id, Some(change.webhook_id), kind, change.transition.at, details))
}

/// Returns the most frequent failure category.
fn worst(counts: &Counts) -> Option<FailureCategory> {
    let all = FailureCategory::ALL.into_iter().zip(counts.by_category);
    all.filter(|(_, count)| *count > 0).max_by_key(|(_, count)| *count).map(|(category, _)| category)
}

/// Returns the occurrence for a webhook that Redrive disabled for this reason.
pub(crate) fn webhook_disabled(
    tenant_id: &TenantId,
    webhook_id: WebhookId,
    why: &str,
    at: Time,
) -> Occurrence {
    let reason = match why {
        REASON_GONE => "gone",
        REASON_EXPIRED => "expired",
        REASON_NOT_VERIFIED => "not_verified",
        _ => "failing",
    };
    let details = OccurrenceDetails {
        reason: Some(reason.into()),
        message: Some(shortened(why)),
        ..OccurrenceDetails::default()
    };
    occurrence(tenant_id, Some(webhook_id), NotificationKind::WebhookDisabled, at, details)
}

/// Returns the occurrence for a change that disabled the webhook, else `None`.
pub(crate) fn webhook_disabled_by_change(
    before: &WebhookState,
    webhook: &Webhook,
    at: Time,
) -> Option<Occurrence> {
    match (before, &webhook.state) {
        (WebhookState::Disabled(_), _) => None,
        (_, WebhookState::Disabled(why)) => Some(webhook_disabled(&webhook.tenant_id, webhook.id, why, at)),
        _ => None,
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(MAX_MESSAGE_CHARS).collect()
}
