//! The mailer as the engine uses it; the server implements it.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use redrive_core::{
    notification::{NotificationKind, confirmation::MailPolicy},
    webhook::Webhook,
};
use redrive_store::{EmailAddress, StoredNotification};

/// Future of the result of sending email.
pub type MailFuture<'a> = Pin<Box<dyn Future<Output = Result<Mailed, MailError>> + Send + 'a>>;

/// Sends notifications as email. A notification may be passed again with the same id if its result is uncertain.
pub trait Mailer: Send + Sync {
    /// Sends a notification to its recipients. `webhook` is the current state of the webhook that it is about, even if
    /// it was deleted; `None` for a notification about the tenant.
    fn send(&self, notification: StoredNotification, webhook: Option<Webhook>) -> MailFuture<'_>;
    /// Asks the holder of an address to confirm it. Returns `MailError::Transient` only if the email was certainly not
    /// sent.
    fn send_confirmation(&self, address: EmailAddress) -> MailFuture<'_>;
    /// Returns the operator's email policy.
    fn policy(&self) -> &MailPolicy;
}

/// Result of sending a notification as email.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mailed {
    /// The mail server accepted it.
    Sent,
    /// The mail server accepted it, but not for all recipients: the limit named in the text was reached.
    SentToSome(String),
    /// It was sent to no recipient: the limit named in the text was reached.
    Suppressed(String),
    /// No recipient has confirmed their address.
    Unconfirmed,
    /// Every recipient gets the email of another kind about the same outage.
    Covered(NotificationKind),
    /// There are no recipients, or none wants it.
    NoRecipients,
}

/// Error of sending email.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MailError {
    /// A retry may succeed.
    #[error("{0}")]
    Transient(String),
    /// No retry will succeed.
    #[error("{0}")]
    Permanent(String),
}

/// The mailer as a setting.
#[derive(Clone)]
pub struct MailerHandle(pub Arc<dyn Mailer>);

impl fmt::Debug for MailerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Post")
    }
}
