//! The states of a delivery and the transitions between them.

pub mod bulk_operation;
pub mod code_filter;
pub mod decide;
pub mod lane;
pub mod outcome;
pub mod recovery;
pub mod response;
pub mod retry;

use serde::{Deserialize, Serialize};

/// Status of a delivery. `Delivered`, `Dead` and `Cancelled` are final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum DeliveryStatus {
    /// Waiting for its first or next attempt.
    Pending,
    /// A request is in flight.
    InFlight,
    /// The endpoint responded 2xx.
    Delivered,
    /// No longer attempted; listed as a dead letter until it is redriven, purged or pruned.
    Dead,
    /// Cancelled before it was delivered.
    Cancelled,
}

impl DeliveryStatus {
    /// Every status, in the order of a delivery's life cycle.
    pub const ALL: [Self; 5] = [Self::Pending, Self::InFlight, Self::Delivered, Self::Dead, Self::Cancelled];

    /// Returns whether the status is final.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Delivered | Self::Dead | Self::Cancelled)
    }

    /// Returns whether a transition from this status to `next` is allowed.
    pub fn may_become(self, next: Self) -> bool {
        match self {
            // Expiry ends a pending delivery as dead without another attempt.
            Self::Pending => matches!(next, Self::InFlight | Self::Cancelled | Self::Dead),
            // Back to pending: a failed attempt with retries left, or a released lease.
            Self::InFlight => next != Self::InFlight,
            Self::Delivered | Self::Dead | Self::Cancelled => false,
        }
    }

    /// Returns the name used in the API, metrics and logs.
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

/// Reason of a delivery that was cancelled by request.
pub const REASON_BY_REQUEST: &str = "cancelled by request";

/// Why a delivery is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum DeadReason {
    /// The endpoint sent a response that further attempts would not change.
    Permanent,
    /// Every attempt of the retry policy was used.
    Exhausted,
    /// TLS failed at the third attempt or later.
    TlsLimit,
    /// The address was denied at the third attempt or later.
    BlockedAddress,
    /// `give_up_after` of the delivery passed. The end of a webhook (`expires_at`) cancels its deliveries instead.
    Expired,
}

impl DeadReason {
    /// Every reason.
    pub const ALL: [Self; 5] =
        [Self::Permanent, Self::Exhausted, Self::TlsLimit, Self::BlockedAddress, Self::Expired];

    /// Returns the canonical name.
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
    fn final_status_allows_no_transition() {
        for from in DeliveryStatus::ALL.into_iter().filter(|status| status.is_final()) {
            assert!(DeliveryStatus::ALL.into_iter().all(|to| !from.may_become(to)), "{from:?}");
        }
    }

    #[test]
    fn delivery_life_cycle_transitions_are_allowed() {
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
        assert!(!Pending.may_become(Delivered), "a delivery is never delivered without a request");
        assert!(!Pending.may_become(Pending));
        assert!(!InFlight.may_become(InFlight));
    }
}
