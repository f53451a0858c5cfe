//! Telling owners: makes notices of what stands, publishes them as events, and hands them to whoever sends mails.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use redrive_core::webhook::Webhook;
use redrive_store::StoredNotice;

/// What came of a mail, later.
pub type Mailing<'a> = Pin<Box<dyn Future<Output = Result<Mailed, MailError>> + Send + 'a>>;

/// Whoever sends notices as mails. A notice may come again, with the same id, if it is not known whether it was sent.
pub trait Mailer: Send + Sync {
    /// Sends a notice to those who want it. The webhook is the one that it is about, as it is now, even if it was
    /// deleted; none for a notice about the tenant as a whole.
    fn send(&self, notice: StoredNotice, webhook: Option<Webhook>) -> Mailing<'_>;
}

/// What became of a notice as a mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mailed {
    /// It was taken by the mail server.
    Sent,
    /// There is nobody to send it to, or nobody who wants it.
    Nobody,
}

/// Why a mail was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MailError {
    /// It may work later.
    #[error("{0}")]
    Later(String),
    /// It will never work.
    #[error("{0}")]
    Never(String),
}

/// The one who sends mails, as a setting.
#[derive(Clone)]
pub struct Post(pub Arc<dyn Mailer>);

impl fmt::Debug for Post {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Post")
    }
}
