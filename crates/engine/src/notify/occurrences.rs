//! What is written down as a cause, with the outcome or the change that it follows from.

use redrive_core::{
    DeadReason, FailureCategory, TenantId, Time, WebhookId,
    delivery::decide::{Decided, Decision},
    event::event_type,
    notification::{Cause, Facts, Kind},
    protection::breaker::{CircuitState, Counts},
    webhook::verification::NOT_VERIFIED,
    webhook::{Webhook, WebhookState},
};

use crate::{coordination::Moved, dispatch::Ready, expiry::EXPIRED, record::GONE};

/// The longest message that is kept of a cause.
const MESSAGE: usize = 500;

/// One cause.
pub(crate) fn cause(
    tenant: &TenantId,
    webhook: Option<WebhookId>,
    kind: Kind,
    at: Time,
    facts: Facts,
) -> Cause {
    Cause { tenant: tenant.clone(), webhook, kind, at, count: 1, facts }
}

/// What owners are told of an outcome that ends a delivery dead. Redrive's own events are not told about: what is told
/// of them could never arrive either.
pub(crate) fn died(ready: &Ready, reason: DeadReason, message: Option<&str>, at: Time) -> Option<Cause> {
    if event_type::is_reserved(&ready.event.event_type) {
        return None;
    }
    let facts = Facts {
        reason: Some(reason.name().into()),
        message: message.map(shortened),
        delivery: Some(ready.id),
        event_type: Some(ready.event.event_type.to_string()),
        until: None,
    };
    Some(cause(&ready.event.tenant, Some(ready.webhook), Kind::DeliveryDead, at, facts))
}

/// The same, if it does.
pub(crate) fn died_of(ready: &Ready, decided: &Decided, message: Option<&str>, at: Time) -> Option<Cause> {
    match decided.decision {
        Decision::Dead(reason) => died(ready, reason, message, at),
        _ => None,
    }
}

/// What owners are told of a circuit that moved by itself. Whether it is really the move that it looks like here, the
/// store finds out.
pub(crate) fn of_circuit(moved: &Moved) -> Option<Cause> {
    if moved.saved.forced.is_some() {
        return None;
    }
    let (kind, facts) = match (moved.transition.from, moved.saved.state) {
        (CircuitState::Closed, CircuitState::Open) => {
            let counts = &moved.saved.counts;
            let message = format!("{} of {} calls failed", counts.failed, counts.total);
            let reason = worst(counts).map(|category| category.name().to_owned());
            let facts =
                Facts { reason, message: Some(message), until: moved.saved.until, ..Facts::default() };
            (Kind::CircuitOpened, facts)
        }
        (CircuitState::Open | CircuitState::HalfOpen, CircuitState::Closed) => {
            (Kind::CircuitRecovered, Facts::default())
        }
        _ => return None,
    };
    Some(cause(&moved.tenant, Some(moved.webhook), kind, moved.transition.at, facts))
}

/// The way in which most calls failed.
fn worst(counts: &Counts) -> Option<FailureCategory> {
    let all = FailureCategory::ALL.into_iter().zip(counts.by_category);
    all.filter(|(_, count)| *count > 0).max_by_key(|(_, count)| *count).map(|(category, _)| category)
}

/// What owners are told of a webhook that Redrive disabled for this reason.
pub(crate) fn disabled(tenant: &TenantId, webhook: WebhookId, why: &str, at: Time) -> Cause {
    let reason = match why {
        GONE => "gone",
        EXPIRED => "expired",
        NOT_VERIFIED => "not_verified",
        _ => "failing",
    };
    let facts = Facts { reason: Some(reason.into()), message: Some(shortened(why)), ..Facts::default() };
    cause(tenant, Some(webhook), Kind::WebhookDisabled, at, facts)
}

/// The same for a change of a webhook, if it was disabled by it.
pub(crate) fn disabled_by(before: &WebhookState, webhook: &Webhook, at: Time) -> Option<Cause> {
    match (before, &webhook.state) {
        (WebhookState::Disabled(_), _) => None,
        (_, WebhookState::Disabled(why)) => Some(disabled(&webhook.tenant, webhook.id, why, at)),
        _ => None,
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(MESSAGE).collect()
}
