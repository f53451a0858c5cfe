//! What owners are told about without asking: the kinds, the cause of one, and what is sent.
//!
//! Causes of one kind about one thing are folded: the first is told at once, what follows is told together.

pub mod checks;
pub mod confirmation;
pub mod grouping;
pub mod mail_limit;
pub mod mail_text;
pub mod payload;
pub mod preferences;

use serde::{Deserialize, Serialize};

use crate::{
    event::event_type::{self, Pattern},
    id::{DeliveryId, NoticeId, WebhookId},
    protection::breaker::{CircuitState, SavedCircuit},
    tenancy::TenantId,
    time::Time,
};

/// What an owner is told about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Kind {
    /// A webhook's circuit opened: nothing is sent to it for a while.
    #[serde(rename = "circuit.opened")]
    CircuitOpened,
    /// A webhook's circuit closed again after it had opened.
    #[serde(rename = "circuit.recovered")]
    CircuitRecovered,
    /// A webhook was disabled by Redrive: it answered 410, failed for too long, expired, or did not prove its URL.
    #[serde(rename = "webhook.disabled")]
    WebhookDisabled,
    /// A delivery was given up on.
    #[serde(rename = "delivery.dead")]
    DeliveryDead,
    /// The name of a webhook's host could not be looked up for most attempts of the last minutes.
    #[serde(rename = "dns.failing")]
    DnsFailing,
    /// A webhook's secret is old enough to be changed.
    #[serde(rename = "secret.due")]
    SecretDue,
    /// The tenant was refused something because a quota is used up.
    #[serde(rename = "quota.reached")]
    QuotaReached,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 7] = [
        Self::CircuitOpened,
        Self::CircuitRecovered,
        Self::WebhookDisabled,
        Self::DeliveryDead,
        Self::DnsFailing,
        Self::SecretDue,
        Self::QuotaReached,
    ];

    /// The name used everywhere; the event type of an operational webhook is `redrive.` and this.
    pub fn name(self) -> &'static str {
        match self {
            Self::CircuitOpened => "circuit.opened",
            Self::CircuitRecovered => "circuit.recovered",
            Self::WebhookDisabled => "webhook.disabled",
            Self::DeliveryDead => "delivery.dead",
            Self::DnsFailing => "dns.failing",
            Self::SecretDue => "secret.due",
            Self::QuotaReached => "quota.reached",
        }
    }

    /// The event type under which operational webhooks hear of it.
    pub fn event_type(self) -> String {
        format!("redrive.{}", self.name())
    }

    /// The kind of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// What is known of the latest cause, beside its count and times. Stored as one document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// Why, in a name that machines know: a reason of death, of disabling, or a failure category.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, in words for a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The delivery that was affected last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliveryId>,
    /// The type of its event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_type: Option<String>,
    /// Until when, where something is over by itself: the next probe of a circuit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
}

/// One cause: it is written down in the transaction of what happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Whose owners are told.
    pub tenant: TenantId,
    /// What it is about; none for the tenant as a whole.
    pub webhook: Option<WebhookId>,
    /// What happened.
    pub kind: Kind,
    /// When.
    pub at: Time,
    /// How often: more than once if several are written down together.
    pub count: u32,
    /// What is known of it.
    pub facts: Facts,
}

/// What is sent for one cause or several that were folded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The same for every channel and every try.
    pub id: NoticeId,
    /// Whose it is.
    pub tenant: TenantId,
    /// What it is about; none for the tenant as a whole.
    pub webhook: Option<WebhookId>,
    /// What happened.
    pub kind: Kind,
    /// How many causes it is about.
    pub count: u64,
    /// When the first of them was.
    pub first_at: Time,
    /// When the last of them was.
    pub last_at: Time,
    /// What is known of the last.
    pub facts: Facts,
}

/// What is told of a circuit's move from what was stored of it; nothing of what a person has decided, nor of another
/// failed try to recover.
pub fn of_move(before: Option<&SavedCircuit>, after: &SavedCircuit) -> Option<Kind> {
    if after.forced.is_some() || before.is_some_and(|before| before.forced.is_some()) {
        return None;
    }
    let was_closed = before.is_none_or(|before| before.state == CircuitState::Closed);
    match (was_closed, after.state) {
        (true, CircuitState::Open) => Some(Kind::CircuitOpened),
        (false, CircuitState::Closed) => Some(Kind::CircuitRecovered),
        _ => None,
    }
}

/// Whether a webhook subscribes to what Redrive itself has to say. Nothing is told as an event about such a webhook: an
/// event about one that fails would fail as well, and be told in turn.
pub fn is_operational(events: &[Pattern]) -> bool {
    let reserved = |pattern: &Pattern| match pattern {
        Pattern::Exact(text) | Pattern::Below(text) => event_type::is_reserved(text),
        Pattern::All => false,
    };
    events.iter().any(reserved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protection::breaker::{Circuit, Forced};

    fn circuit(state: CircuitState) -> SavedCircuit {
        let saved = Circuit::new(Time::default()).saved();
        SavedCircuit { state, ..saved }
    }

    #[test]
    fn an_opening_and_its_recovery_are_told_and_nothing_in_between() {
        use CircuitState::{Closed, HalfOpen, Open};
        let told =
            |before: Option<CircuitState>, after| of_move(before.map(circuit).as_ref(), &circuit(after));
        assert_eq!(told(None, Open), Some(Kind::CircuitOpened));
        assert_eq!(told(Some(Closed), Open), Some(Kind::CircuitOpened));
        assert_eq!(told(Some(Open), HalfOpen), None);
        assert_eq!(told(Some(HalfOpen), Open), None, "another failed recovery");
        assert_eq!(told(Some(Open), Open), None, "the same once more");
        assert_eq!(told(Some(HalfOpen), Closed), Some(Kind::CircuitRecovered));
        assert_eq!(told(Some(Open), Closed), Some(Kind::CircuitRecovered));
        assert_eq!((told(None, Closed), told(Some(Closed), Closed)), (None, None));
    }

    #[test]
    fn what_a_person_has_decided_is_not_told() {
        let forced = |open| SavedCircuit {
            forced: Some(Forced { open, until: None, by: "me".into() }),
            ..circuit(if open { CircuitState::Open } else { CircuitState::Closed })
        };
        assert_eq!(of_move(None, &forced(true)), None);
        assert_eq!(of_move(Some(&forced(true)), &circuit(CircuitState::Closed)), None);
        assert_eq!(of_move(Some(&circuit(CircuitState::Open)), &forced(false)), None);
    }

    #[test]
    fn a_webhook_is_operational_by_any_reserved_type() {
        let of = |events: &[&str]| {
            let events: Vec<_> = events.iter().map(|text| Pattern::parse(text).unwrap()).collect();
            is_operational(&events)
        };
        assert!(
            of(&["redrive.*"]) && of(&["order.created", "redrive.circuit.*"]) && of(&["redrive.secret.due"])
        );
        assert!(!of(&["*"]) && !of(&["order.*", "redriven.x"]) && !of(&[]));
        for kind in Kind::ALL {
            assert!(event_type::is_reserved(&kind.event_type()));
            assert!(!Pattern::All.matches(&kind.event_type()), "all but what is Redrive's own");
        }
    }

    #[test]
    fn every_kind_is_found_by_its_name_and_written_by_it() {
        for kind in Kind::ALL {
            assert_eq!(Kind::parse(kind.name()), Some(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        assert_eq!(Kind::parse("circuit"), None);
    }
}
