//! Ends of deliveries without a request.

use redrive_core::{
    DeadReason, Time,
    delivery::{decide, outcome::Outcome},
    event::REASON_ERASED,
};

use super::LeasedDelivery;
use crate::routing::ResolvedWebhook;

/// Disable reason of a webhook past its `expires_at`. A delivery past `give_up_after` is dead for
/// [`DeadReason::Expired`] instead.
pub(crate) const REASON_EXPIRED: &str = "expired";
/// Disable reason of a webhook whose endpoint responded 410.
pub(crate) const REASON_GONE: &str = "the endpoint returned 410 Gone";

/// End of a delivery without a request.
pub(crate) struct EndWithoutAttempt {
    pub(crate) outcome: Outcome,
    /// Whether the store must verify that the webhook is inactive.
    pub(crate) requires_inactive_webhook: bool,
}

impl EndWithoutAttempt {
    /// Creates a cancellation because the webhook is inactive, which the store verifies.
    pub(crate) fn for_inactive_webhook(reason: impl Into<String>) -> Self {
        Self { outcome: Outcome::Cancelled(reason.into()), requires_inactive_webhook: true }
    }
}

impl From<Outcome> for EndWithoutAttempt {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, requires_inactive_webhook: false }
    }
}

/// Returns how a delivery ends before it is sent, if it does: its webhook cancels deliveries or has expired, its
/// payload was erased, or it has exceeded `give_up_after` by the confirmed time.
pub(crate) fn end_before_send(
    delivery: &LeasedDelivery,
    webhook: &ResolvedWebhook,
    confirmed_now: Time,
) -> Option<EndWithoutAttempt> {
    if let Some(reason) = webhook.state.cancel_reason() {
        return Some(EndWithoutAttempt::for_inactive_webhook(reason));
    }
    if delivery.event.is_erased() {
        return Some(Outcome::Cancelled(REASON_ERASED.into()).into());
    }
    if webhook.has_expired(confirmed_now) {
        return Some(EndWithoutAttempt::for_inactive_webhook(REASON_EXPIRED));
    }
    let too_old = confirmed_now >= decide::give_up_at(delivery.created_at, &webhook.retry_policy);
    too_old.then(|| Outcome::Dead(DeadReason::Expired).into())
}
