//! Addresses that notifications are sent to, and how many e-mails were sent.

use redrive_core::{
    TenantId, Time,
    notification::{
        confirmation::{ConfirmedBy, mailbox_of},
        mail_limit::{MailPurpose, SendLimit},
    },
};

/// An address that a tenant named, and whether its holder has confirmed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailAddress {
    /// The tenant that named it.
    pub tenant: TenantId,
    /// The address, normalized.
    pub address: String,
    /// When a confirmation e-mail was last requested.
    pub requested_at: Option<Time>,
    /// How many confirmation e-mails were requested.
    pub requests: u32,
    /// When it was confirmed, and who did it.
    pub confirmed: Option<(Time, ConfirmedBy)>,
    /// When a requested confirmation e-mail is to be sent; `None` if none is waiting.
    pub send_at: Option<Time>,
}

/// One e-mail that is about to be sent for a tenant, and the limits that it must respect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailReservation {
    /// For whom it is sent.
    pub tenant: TenantId,
    /// To whom it is sent, normalized.
    pub address: String,
    /// What it is for.
    pub purpose: MailPurpose,
    /// When it is reserved.
    pub at: Time,
    /// How many may be sent for the tenant.
    pub per_tenant: SendLimit,
    /// How many may be sent to the mailbox, over all tenants.
    pub per_mailbox: SendLimit,
}

impl MailReservation {
    /// The two limits that apply, in the order in which they are locked: what they count by, and the limit.
    pub(crate) fn limits(&self) -> [(MailScope, String, SendLimit); 2] {
        [
            (MailScope::Tenant, self.tenant.to_string(), self.per_tenant),
            (MailScope::Mailbox, mailbox_of(&self.address), self.per_mailbox),
        ]
    }
}

/// What a limit counts by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailScope {
    /// The tenant that e-mails are sent for.
    Tenant,
    /// The mailbox that e-mails are sent to.
    Mailbox,
}

/// Whether an e-mail may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveResult {
    /// It may, and is counted.
    Reserved,
    /// It may not before this time, by the limit of this scope.
    LimitReached(MailScope, Time),
}

/// What came of asking for a confirmation e-mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfirmationRequestResult {
    /// One is sent soon, or was waiting to be sent already.
    Requested,
    /// The address is confirmed; none is sent.
    AlreadyConfirmed,
    /// None is sent before this time, by the limit of this scope.
    LimitReached(MailScope, Time),
    /// There is no such tenant.
    NotFound,
}
