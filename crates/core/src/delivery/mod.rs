//! The states of a delivery and the moves between them.

pub mod bulk_operation;
pub mod decide;
pub mod lane;
pub mod recovery;
pub mod response;
pub mod retry;

use serde::{Deserialize, Serialize};

/// Where a delivery stands. `Delivered`, `Dead` and `Cancelled` are final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum DeliveryStatus {
    /// Owed, and waiting for its turn or its next attempt.
    Pending,
    /// A request is under way right now.
    InFlight,
    /// The endpoint answered 2xx.
    Delivered,
    /// Given up on, in plain sight; it can be redriven.
    Dead,
    /// Called off before it was delivered.
    Cancelled,
}

impl DeliveryStatus {
    /// Every status, in the order of a delivery's life.
    pub const ALL: [Self; 5] = [Self::Pending, Self::InFlight, Self::Delivered, Self::Dead, Self::Cancelled];

    /// Whether the delivery is over.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Delivered | Self::Dead | Self::Cancelled)
    }

    /// Whether a delivery may move from this status to `next`.
    pub fn may_become(self, next: Self) -> bool {
        match self {
            // Expiry ends a pending delivery as dead without another attempt.
            Self::Pending => matches!(next, Self::InFlight | Self::Cancelled | Self::Dead),
            // Back to pending: a failed attempt with retries left, or a lease that was handed back.
            Self::InFlight => next != Self::InFlight,
            Self::Delivered | Self::Dead | Self::Cancelled => false,
        }
    }

    /// The name used everywhere: API, metrics, logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InFlight => "in_flight",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Why a delivery was called off that somebody asked to have called off.
pub const BY_REQUEST: &str = "cancelled by request";

/// Why a delivery was given up on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum DeadReason {
    /// The endpoint gave an answer that more attempts would not change.
    Permanent,
    /// Every attempt of the retry policy was used.
    Exhausted,
    /// TLS failed three times.
    TlsLimit,
    /// The address was refused three times.
    BlockedAddress,
    /// `give_up_after` passed.
    Expired,
}

impl DeadReason {
    /// Every reason.
    pub const ALL: [Self; 5] =
        [Self::Permanent, Self::Exhausted, Self::TlsLimit, Self::BlockedAddress, Self::Expired];

    /// The name used everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::Permanent => "permanent",
            Self::Exhausted => "exhausted",
            Self::TlsLimit => "tls_limit",
            Self::BlockedAddress => "blocked_address",
            Self::Expired => "expired",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DeliveryStatus::*, *};

    #[test]
    fn final_states_stay() {
        for from in DeliveryStatus::ALL.into_iter().filter(|status| status.is_final()) {
            assert!(DeliveryStatus::ALL.into_iter().all(|to| !from.may_become(to)), "{from:?}");
        }
    }

    #[test]
    fn every_life_can_be_lived() {
        for (from, to) in [
            (Pending, InFlight),
            (Pending, Cancelled),
            (Pending, Dead),
            (InFlight, Delivered),
            (InFlight, Dead),
            (InFlight, Cancelled),
            (InFlight, Pending),
        ] {
            assert!(from.may_become(to), "{from:?} -> {to:?}");
        }
        assert!(!Pending.may_become(Delivered), "nothing is delivered without a request");
        assert!(!Pending.may_become(Pending));
        assert!(!InFlight.may_become(InFlight));
    }
}
