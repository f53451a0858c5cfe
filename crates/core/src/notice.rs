//! What owners are told about without asking: the kinds, the cause of one, and what is sent.
//!
//! Causes of one kind about one thing are folded: the first is told at once, what follows is told together.

pub mod fold;
pub mod preferences;

use serde::{Deserialize, Serialize};

use crate::{
    id::{DeliveryId, NoticeId, WebhookId},
    tenant::TenantId,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_by_its_name_and_written_by_it() {
        for kind in Kind::ALL {
            assert_eq!(Kind::parse(kind.name()), Some(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        assert_eq!(Kind::parse("circuit"), None);
    }
}
