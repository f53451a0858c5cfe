//! Notifications to owners: their kinds, the occurrences that cause them, and their contents.
//!
//! Occurrences of one kind about one webhook are grouped: the first is sent immediately, those that follow are
//! sent together.

pub mod checks;
pub mod confirmation;
pub mod grouping;
pub mod mail_limit;
pub mod mail_text;
pub mod outage;
pub mod payload;
pub mod preferences;

use serde::{Deserialize, Serialize};

use crate::{
    event::event_type::{self, Pattern},
    id::{DeliveryId, NotificationId, WebhookId},
    protection::breaker::{CircuitState, SavedCircuit},
    tenancy::TenantId,
    time::Time,
};

/// Kind of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum NotificationKind {
    /// A webhook's circuit opened: nothing is sent to it for a while.
    #[serde(rename = "circuit.opened")]
    CircuitOpened,
    /// A webhook's circuit closed again after it had opened.
    #[serde(rename = "circuit.recovered")]
    CircuitRecovered,
    /// A webhook was disabled by Redrive: it responded 410, failed for too long, expired, or its URL was not verified.
    #[serde(rename = "webhook.disabled")]
    WebhookDisabled,
    /// A delivery is dead.
    #[serde(rename = "delivery.dead")]
    DeliveryDead,
    /// The host of a webhook could not be resolved for most attempts of the last minutes.
    #[serde(rename = "dns.failing")]
    DnsFailing,
    /// A webhook's secret is due for rotation.
    #[serde(rename = "secret.rotation_due")]
    SecretRotationDue,
    /// A request of the tenant was rejected because a quota is used up.
    #[serde(rename = "quota.reached")]
    QuotaReached,
    /// Only failures since the last success of a webhook: several, or for a while.
    #[serde(rename = "webhook.failing")]
    WebhookFailing,
    /// A webhook that was reported as failing accepted a delivery again.
    #[serde(rename = "webhook.recovered")]
    WebhookRecovered,
}

impl NotificationKind {
    /// Every kind.
    pub const ALL: [Self; 9] = [
        Self::CircuitOpened,
        Self::CircuitRecovered,
        Self::WebhookDisabled,
        Self::DeliveryDead,
        Self::DnsFailing,
        Self::SecretRotationDue,
        Self::QuotaReached,
        Self::WebhookFailing,
        Self::WebhookRecovered,
    ];

    /// Returns the canonical name; the event type for operational webhooks is `redrive.` and this name.
    pub fn name(self) -> &'static str {
        match self {
            Self::CircuitOpened => "circuit.opened",
            Self::CircuitRecovered => "circuit.recovered",
            Self::WebhookDisabled => "webhook.disabled",
            Self::DeliveryDead => "delivery.dead",
            Self::DnsFailing => "dns.failing",
            Self::SecretRotationDue => "secret.rotation_due",
            Self::QuotaReached => "quota.reached",
            Self::WebhookFailing => "webhook.failing",
            Self::WebhookRecovered => "webhook.recovered",
        }
    }

    /// Returns the event type for operational webhooks.
    pub fn event_type(self) -> String {
        format!("redrive.{}", self.name())
    }

    /// Returns the kind with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Details of the latest occurrence, beside its count and times. Stored as one document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OccurrenceDetails {
    /// Machine-readable reason: a dead reason, a reason for disabling, or a failure category.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Human-readable reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The delivery that was affected last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_id: Option<DeliveryId>,
    /// The event type of that delivery.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_type: Option<String>,
    /// Until when, for conditions that end by themselves: the next probe of a circuit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// Time of the first failure since the last success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Number of failures since then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failures: Option<u32>,
}

/// One occurrence, recorded in the transaction of its cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occurrence {
    /// Tenant whose owners are notified.
    pub tenant_id: TenantId,
    /// Webhook that it is about; `None` for the whole tenant.
    pub webhook_id: Option<WebhookId>,
    /// Kind.
    pub kind: NotificationKind,
    /// Time of the occurrence.
    pub at: Time,
    /// Number of occurrences recorded together.
    pub count: u32,
    /// Details.
    pub details: OccurrenceDetails,
}

impl Occurrence {
    /// Returns one occurrence about a webhook.
    pub fn about_webhook(
        tenant_id: &TenantId,
        webhook_id: WebhookId,
        kind: NotificationKind,
        at: Time,
        details: OccurrenceDetails,
    ) -> Self {
        Self { tenant_id: tenant_id.clone(), webhook_id: Some(webhook_id), kind, at, count: 1, details }
    }
}

/// A notification about one occurrence or a group of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The same id for every channel and every attempt.
    pub id: NotificationId,
    /// Tenant that it belongs to.
    pub tenant_id: TenantId,
    /// Webhook that it is about; `None` for the whole tenant.
    pub webhook_id: Option<WebhookId>,
    /// Kind.
    pub kind: NotificationKind,
    /// Number of occurrences.
    pub count: u64,
    /// Time of the first occurrence.
    pub first_at: Time,
    /// Time of the last occurrence.
    pub last_at: Time,
    /// Details of the last occurrence.
    pub details: OccurrenceDetails,
}

/// Returns the kind of notification for a transition of a stored circuit. Returns `None` for forced states and
/// for a failed recovery.
pub fn for_transition(before: Option<&SavedCircuit>, after: &SavedCircuit) -> Option<NotificationKind> {
    if after.forced.is_some() || before.is_some_and(|before| before.forced.is_some()) {
        return None;
    }
    let was_closed = before.is_none_or(|before| before.state == CircuitState::Closed);
    match (was_closed, after.state) {
        (true, CircuitState::Open) => Some(NotificationKind::CircuitOpened),
        (false, CircuitState::Closed) => Some(NotificationKind::CircuitRecovered),
        _ => None,
    }
}

/// Returns whether a webhook subscribes to Redrive's own events. No operational event is published about such a
/// webhook: if it fails, the event about it would fail too and cause another event.
pub fn is_operational(events: &[Pattern]) -> bool {
    let reserved = |pattern: &Pattern| match pattern {
        Pattern::Exact(text) | Pattern::Prefix(text) => event_type::is_reserved(text),
        Pattern::All => false,
    };
    events.iter().any(reserved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protection::breaker::{Circuit, Forced};

    fn circuit(state: CircuitState) -> SavedCircuit {
        let saved = Circuit::new(Time::default()).to_saved();
        SavedCircuit { state, ..saved }
    }

    #[test]
    fn only_opening_and_recovery_of_circuit_are_notified() {
        use CircuitState::{Closed, HalfOpen, Open};
        let reported = |before: Option<CircuitState>, after| {
            for_transition(before.map(circuit).as_ref(), &circuit(after))
        };
        assert_eq!(reported(None, Open), Some(NotificationKind::CircuitOpened));
        assert_eq!(reported(Some(Closed), Open), Some(NotificationKind::CircuitOpened));
        assert_eq!(reported(Some(Open), HalfOpen), None);
        assert_eq!(reported(Some(HalfOpen), Open), None, "another failed recovery");
        assert_eq!(reported(Some(Open), Open), None, "an unchanged state");
        assert_eq!(reported(Some(HalfOpen), Closed), Some(NotificationKind::CircuitRecovered));
        assert_eq!(reported(Some(Open), Closed), Some(NotificationKind::CircuitRecovered));
        assert_eq!((reported(None, Closed), reported(Some(Closed), Closed)), (None, None));
    }

    #[test]
    fn forced_circuit_is_not_notified() {
        let forced = |open| SavedCircuit {
            forced: Some(Forced { open, until: None, by: "me".into() }),
            ..circuit(if open { CircuitState::Open } else { CircuitState::Closed })
        };
        assert_eq!(for_transition(None, &forced(true)), None);
        assert_eq!(for_transition(Some(&forced(true)), &circuit(CircuitState::Closed)), None);
        assert_eq!(for_transition(Some(&circuit(CircuitState::Open)), &forced(false)), None);
    }

    #[test]
    fn webhook_with_any_reserved_type_is_operational() {
        let of = |events: &[&str]| {
            let events: Vec<_> = events.iter().map(|text| Pattern::parse(text).unwrap()).collect();
            is_operational(&events)
        };
        assert!(
            of(&["redrive.*"])
                && of(&["order.created", "redrive.circuit.*"])
                && of(&["redrive.secret.rotation_due"])
        );
        assert!(!of(&["*"]) && !of(&["order.*", "redriven.x"]) && !of(&[]));
        for kind in NotificationKind::ALL {
            assert!(event_type::is_reserved(&kind.event_type()));
            assert!(!Pattern::All.matches(&kind.event_type()), "`*` excludes reserved types");
        }
    }

    #[test]
    fn kind_name_round_trips_and_matches_serialization() {
        for kind in NotificationKind::ALL {
            assert_eq!(NotificationKind::parse(kind.name()), Some(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        assert_eq!(NotificationKind::parse("circuit"), None);
    }
}
