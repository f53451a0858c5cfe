//! What owners are told: notices on their way, and how far each is.

use redrive_core::{Time, notification::Notice};

/// A notice that was made of what stood, and is being sent or was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredNotice {
    /// What is told. Its id takes the time at which it was made.
    pub notice: Notice,
    /// What became of it as an event for operational webhooks.
    pub event: Telling,
    /// What became of it as a mail.
    pub mail: Telling,
    /// How often it was taken to be sent.
    pub tries: u32,
    /// When it is to be sent again at the latest; none once there is nothing more to send.
    pub next_at: Option<Time>,
    /// What went wrong last.
    pub error: Option<String>,
}

/// A way by which owners are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// As an event, which operational webhooks receive.
    Event,
    /// By e-mail.
    Mail,
}

/// How far a notice is on a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Telling {
    /// It is still to be sent.
    Waiting,
    /// It was sent.
    Told,
    /// There was nobody to send it to, or nobody who wants it.
    Nobody,
    /// It could not be sent for so long that it never will be.
    GivenUp,
    /// It was not sent, because a limit of e-mails was reached.
    Suppressed,
}

impl Telling {
    /// The name used everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Told => "told",
            Self::Nobody => "nobody",
            Self::GivenUp => "given_up",
            Self::Suppressed => "suppressed",
        }
    }
}

/// What came of sending a notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It is over on this way: told, nobody there, or given up.
    Over(Telling, Option<String>),
    /// It failed, and is to be tried again then.
    Later(Time, String),
}
