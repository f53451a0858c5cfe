//! Email addresses that receive notifications, and counts of sent emails.

use redrive_core::{
    TenantId, Time,
    notification::{
        confirmation::{ConfirmedBy, mailbox_of},
        mail_limit::{MailPurpose, SendLimit},
    },
};

/// An address that a tenant named, and whether its holder has confirmed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmailAddress {
    /// The tenant that named it.
    pub tenant_id: TenantId,
    /// The address, normalized.
    pub address: String,
    /// Time of the last request for a confirmation email.
    pub requested_at: Option<Time>,
    /// Number of requested confirmation emails.
    pub requests: u32,
    /// Time of the confirmation, and who confirmed it.
    pub confirmed: Option<(Time, ConfirmedBy)>,
    /// Time at which a requested confirmation email is to be sent; `None` if none is pending.
    pub send_at: Option<Time>,
}

/// An email that is about to be sent for a tenant, with the limits that apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmailReservation {
    /// The tenant that it is sent for.
    pub tenant_id: TenantId,
    /// The recipient, normalized.
    pub address: String,
    /// Its purpose.
    pub purpose: MailPurpose,
    /// Time of the reservation.
    pub at: Time,
    /// Limit of the tenant.
    pub per_tenant: SendLimit,
    /// Limit of the mailbox, across all tenants.
    pub per_mailbox: SendLimit,
}

impl EmailReservation {
    /// Returns the two limits that apply, with their scopes and keys, in the order in which they are locked.
    pub(crate) fn limits(&self) -> [(EmailScope, String, SendLimit); 2] {
        [
            (EmailScope::Tenant, self.tenant_id.to_string(), self.per_tenant),
            (EmailScope::Mailbox, mailbox_of(&self.address), self.per_mailbox),
        ]
    }
}

/// Scope of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmailScope {
    /// The tenant that emails are sent for.
    Tenant,
    /// The mailbox that emails are sent to.
    Mailbox,
}

/// Result of reserving an email.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveResult {
    /// The email may be sent and was counted.
    Reserved,
    /// The limit of this scope allows no email before this time.
    LimitReached(EmailScope, Time),
}

/// Result of requesting a confirmation email.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfirmationRequestResult {
    /// An email will be sent soon, or was already pending.
    Requested,
    /// The address is already confirmed; no email is sent.
    AlreadyConfirmed,
    /// The limit of this scope allows no email before this time.
    LimitReached(EmailScope, Time),
    /// There is no such tenant.
    NotFound,
}
