//! The last check before a request is sent: what has changed since the delivery was admitted?

use redrive_core::delivery::decide;
use redrive_core::delivery::outcome::Outcome;
use redrive_store::StoreError;

use super::Sender;
use crate::{
    dispatch::{EndWithoutAttempt, LeasedDelivery, end_before_send},
    routing::ResolvedWebhook,
};

/// Result of the last check of an admitted delivery.
pub(crate) enum PreSendCheck {
    /// Send the request.
    Send,
    /// End the delivery without a request.
    End(EndWithoutAttempt),
    /// Its node died, its task panicked or its outcome could not be stored too often while it was sent: record a failed
    /// attempt.
    Poison,
    /// Another node has the lease: drop the delivery.
    LeaseLost,
    /// The time by which this node may start requests under its send lease has ended, so another node may have the
    /// delivery: release it.
    LeaseUncertain,
}

impl Sender {
    /// Checks whether an admitted delivery is to be sent.
    pub(crate) async fn pre_send_check(
        &self,
        delivery: &LeasedDelivery,
        webhook: &ResolvedWebhook,
    ) -> Result<PreSendCheck, StoreError> {
        if delivery.epoch.is_ended() {
            return Ok(PreSendCheck::LeaseLost);
        }
        if let Some(end) = end_before_send(delivery, webhook, self.clock.confirmed_now()) {
            return Ok(PreSendCheck::End(end));
        }
        if delivery.crash_count >= decide::MAX_CRASHES {
            return Ok(PreSendCheck::Poison);
        }
        // Only a delivery with an abnormal release gets the extra write that marks it as being sent.
        if delivery.abnormal_releases > 0
            && !self.store.mark_sending(delivery.epoch.epoch, delivery.id).await?
        {
            return Ok(PreSendCheck::LeaseLost);
        }
        // The delivery may have been cancelled since it was started.
        if let Some(reason) = self.dispatcher.queues.cancel_reason(delivery.id) {
            return Ok(PreSendCheck::End(Outcome::Cancelled(reason).into()));
        }
        // The checks above may have outlasted the send lease.
        Ok(if self.membership.node_may_send() { PreSendCheck::Send } else { PreSendCheck::LeaseUncertain })
    }
}
