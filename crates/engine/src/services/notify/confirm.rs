//! Confirmation emails: requests them within their limits, and sends each request at most once.

use std::{sync::Arc, time::Duration};

use redrive_core::{
    TenantId, Time,
    notification::{
        confirmation::{CONFIRMATION_SEND_TIMEOUT, MailPolicy},
        mail_limit::{CONFIRMATIONS_PER_MAILBOX, CONFIRMATIONS_PER_TENANT, MailPurpose},
        preferences::normalize_address,
    },
};
use redrive_store::{ConfirmationRequestResult, EmailAddress, EmailReservation, StoreError};

use super::{MAIL_TIMEOUT, MAX_POLL_INTERVAL, MIN_POLL_INTERVAL, Notifier, STORE_RETRY_DELAY};
use crate::mailer::{MailError, Mailed, MailerHandle};

/// Delay of a confirmation email after the mail server did not accept it.
const CONFIRMATION_RETRY_DELAY: Duration = Duration::from_secs(30);

impl Notifier {
    /// Returns the operator's email policy; `None` if this node sends no email.
    pub(crate) fn mail_policy(&self) -> Option<&MailPolicy> {
        self.settings.mailer.as_ref().map(|post| post.0.policy())
    }

    /// Requests a confirmation email for an address of a tenant, within the limits.
    pub(crate) async fn request_confirmation(
        &self,
        tenant_id: TenantId,
        address: &str,
    ) -> Result<ConfirmationRequestResult, StoreError> {
        let reservation = EmailReservation {
            tenant_id,
            address: normalize_address(address),
            purpose: MailPurpose::Confirmation,
            at: self.clock.now(),
            per_tenant: CONFIRMATIONS_PER_TENANT,
            per_mailbox: CONFIRMATIONS_PER_MAILBOX,
        };
        let result = self.mail_addresses.request_confirmation(reservation).await?;
        self.metrics.notifications.count_confirmation_request(result);
        self.wakeups.confirmations.notify_one();
        Ok(result)
    }

    /// Sends due confirmation emails until the engine stops.
    pub(crate) async fn run_confirmations(self: Arc<Self>) {
        let Some(post) = self.settings.mailer.clone() else { return };
        loop {
            let next = match self.send_due_confirmation(&post).await {
                Ok(next) => next,
                Err(error) => {
                    tracing::debug!(%error, "confirmation emails delayed: store failed");
                    tokio::time::sleep(STORE_RETRY_DELAY).await;
                    None
                }
            };
            tokio::time::sleep(MIN_POLL_INTERVAL).await;
            tokio::select! {
                () = self.clock.sleep_until(next.unwrap_or_default()), if next.is_some() => {}
                () = tokio::time::sleep(MAX_POLL_INTERVAL) => {}
                () = self.wakeups.confirmations.notified() => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// Sends one confirmation email if one is due. Returns when to poll again, if known.
    ///
    /// The request is removed from the store before sending: a crash in between loses this one email, and the tenant
    /// can request another. In the opposite order a crash would send it twice, beyond the limits.
    async fn send_due_confirmation(&self, post: &MailerHandle) -> Result<Option<Time>, StoreError> {
        let now = self.clock.now();
        let next = self.mail_addresses.next_confirmation().await?;
        if next.is_none_or(|next| next > now) {
            return Ok(next);
        }
        for address in self.mail_addresses.take_confirmations(now, 1).await? {
            self.send_confirmation(post, address).await?;
        }
        Ok(Some(now))
    }

    async fn send_confirmation(&self, post: &MailerHandle, address: EmailAddress) -> Result<(), StoreError> {
        let EmailAddress { tenant_id, address: recipient, requested_at, .. } = address.clone();
        let sending = tokio::time::timeout(MAIL_TIMEOUT, post.0.send_confirmation(address));
        let error = match sending.await {
            Ok(Ok(Mailed::Sent)) => {
                self.record_mail_sent();
                self.metrics.notifications.count_confirmation("sent");
                return Ok(());
            }
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(MailError::Transient(why))) => {
                let now = self.clock.now();
                if requested_at.is_none_or(|at| now.duration_since(at) < CONFIRMATION_SEND_TIMEOUT) {
                    tracing::warn!(%tenant_id, error = why, "confirmation email not sent; will retry");
                    self.metrics.notifications.count_confirmation("retried");
                    let again = now + CONFIRMATION_RETRY_DELAY;
                    return self.mail_addresses.retry_confirmation(tenant_id, recipient, again).await;
                }
                why
            }
            Ok(Err(MailError::Permanent(why))) => why,
            Err(_) => format!("the mail server did not respond within {} s", MAIL_TIMEOUT.as_secs()),
        };
        tracing::warn!(%tenant_id, recipient, error, "confirmation email not sent");
        self.metrics.notifications.count_confirmation("failed");
        Ok(())
    }
}
