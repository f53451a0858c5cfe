//! Confirmation e-mails: requests them within their limits, and sends each request at most once.

use std::{sync::Arc, time::Duration};

use redrive_core::{
    TenantId, Time,
    notification::{
        confirmation::{CONFIRMATION_SEND_TIMEOUT, MailPolicy},
        mail_limit::{CONFIRMATIONS_PER_MAILBOX, CONFIRMATIONS_PER_TENANT, MailPurpose},
        preferences::same_address,
    },
};
use redrive_store::{ConfirmationRequestResult, MailAddress, MailReservation, StoreError};

use super::{AFTER_FAILURE, LOOK, MAILING, MailError, Mailed, PAUSE, Post};
use crate::{Engine, Inner};

/// How long a confirmation e-mail waits after the mail server did not accept it.
const CONFIRMATION_RETRY_DELAY: Duration = Duration::from_secs(30);

impl Engine {
    /// What the operator decided about e-mails; `None` if this node sends none.
    pub fn mail_policy(&self) -> Option<&MailPolicy> {
        self.0.settings.post.as_ref().map(|post| post.0.policy())
    }

    /// Requests a confirmation e-mail for an address of a tenant, within the limits.
    pub async fn request_confirmation(
        &self,
        tenant: TenantId,
        address: &str,
    ) -> Result<ConfirmationRequestResult, StoreError> {
        let reservation = MailReservation {
            tenant,
            address: same_address(address),
            purpose: MailPurpose::Confirmation,
            at: self.0.clock.now(),
            per_tenant: CONFIRMATIONS_PER_TENANT,
            per_mailbox: CONFIRMATIONS_PER_MAILBOX,
        };
        let result = self.0.store.request_confirmation(reservation).await?;
        self.0.metrics.notices.count_confirmation_request(result);
        self.0.notifying.confirmations.notify_one();
        Ok(result)
    }
}

impl Inner {
    /// Sends confirmation e-mails that are due, for as long as the engine runs.
    pub(crate) async fn run_confirmations(self: Arc<Self>) {
        let Some(post) = self.settings.post.clone() else { return };
        loop {
            let next = match self.send_due_confirmation(&post).await {
                Ok(next) => next,
                Err(error) => {
                    tracing::debug!(%error, "confirmation e-mails are delayed: the store failed");
                    tokio::time::sleep(AFTER_FAILURE).await;
                    None
                }
            };
            tokio::time::sleep(PAUSE).await;
            tokio::select! {
                () = self.clock.sleep_until(next.unwrap_or_default()), if next.is_some() => {}
                () = tokio::time::sleep(LOOK) => {}
                () = self.notifying.confirmations.notified() => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// Sends one confirmation e-mail if one is due. Returns when to look again, if that is known.
    ///
    /// It is taken from the store first: a crash between both loses this one e-mail, and the tenant can request another
    /// one. The other way round a crash would send it again, beyond the limits.
    async fn send_due_confirmation(&self, post: &Post) -> Result<Option<Time>, StoreError> {
        let now = self.clock.now();
        let next = self.store.next_confirmation().await?;
        if next.is_none_or(|next| next > now) {
            return Ok(next);
        }
        for address in self.store.take_confirmations(now, 1).await? {
            self.send_confirmation(post, address).await?;
        }
        Ok(Some(now))
    }

    async fn send_confirmation(&self, post: &Post, address: MailAddress) -> Result<(), StoreError> {
        let MailAddress { tenant, address: recipient, requested_at, .. } = address.clone();
        let sending = tokio::time::timeout(MAILING, post.0.send_confirmation(address));
        let error = match sending.await {
            Ok(Ok(Mailed::Sent)) => {
                self.note_mail_sent();
                self.metrics.notices.count_confirmation("sent");
                return Ok(());
            }
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(MailError::Later(why))) => {
                let now = self.clock.now();
                if requested_at.is_none_or(|at| now.since(at) < CONFIRMATION_SEND_TIMEOUT) {
                    tracing::warn!(%tenant, error = why, "confirmation e-mail not sent; it is tried again");
                    self.metrics.notices.count_confirmation("retried");
                    let again = now + CONFIRMATION_RETRY_DELAY;
                    return self.store.retry_confirmation(tenant, recipient, again).await;
                }
                why
            }
            Ok(Err(MailError::Never(why))) => why,
            Err(_) => format!("the mail server did not respond within {} s", MAILING.as_secs()),
        };
        tracing::warn!(%tenant, recipient, error, "confirmation e-mail not sent");
        self.metrics.notices.count_confirmation("failed");
        Ok(())
    }
}
