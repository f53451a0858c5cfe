//! Notifications to owners, and the addresses that they are sent to.

use redrive_core::{
    NotificationId, TenantId, Time, WebhookId, notification::NotificationKind, notification::Occurrence,
    notification::confirmation::ConfirmedBy, notification::grouping::GroupIntervals,
};

use crate::{
    Channel, ChannelResult, ConfirmationRequestResult, EmailAddress, EmailReservation, PageRequest,
    ReserveResult, StoreFuture, StoredNotification, Unsubscription, UnsubscriptionCursor,
};

/// Notification groups with their pending occurrences, and the notifications created from them.
pub trait Notifications: Send + Sync {
    /// Records occurrences that belong to no other change.
    fn record_occurrences(&self, occurrences: Vec<Occurrence>) -> StoreFuture<'_, ()>;
    /// Returns the earliest time at which a notification may have to be created or sent. A group may have to wait
    /// longer.
    fn next_notification_at(&self) -> StoreFuture<'_, Option<Time>>;
    /// Creates notifications of the groups that are due, at most one per id in `new_ids`, and suppresses each group until
    /// its interval has passed. Returns their number. See `core::notification::grouping`.
    fn create_notifications(
        &self,
        now: Time,
        intervals: GroupIntervals,
        new_ids: Vec<NotificationId>,
    ) -> StoreFuture<'_, usize>;
    /// Claims notifications that are due to be sent, oldest first. No other node can claim them until `claimed_until`,
    /// unless the result recorded for them sets another time.
    fn claim_notifications(
        &self,
        now: Time,
        claimed_until: Time,
        limit: usize,
    ) -> StoreFuture<'_, Vec<StoredNotification>>;
    /// Records the result of sending a notification on a channel. It is not sent again once every channel is done.
    fn record_notification_result(
        &self,
        id: NotificationId,
        channel: Channel,
        result: ChannelResult,
    ) -> StoreFuture<'_, ()>;
    /// Lists a tenant's notifications, newest first.
    fn list_notifications(
        &self,
        tenant_id: TenantId,
        page: PageRequest<NotificationId>,
    ) -> StoreFuture<'_, Vec<StoredNotification>>;
    /// Lists the last `limit` notifications about a webhook of a tenant before this one, newest first.
    fn earlier_notifications(
        &self,
        tenant_id: TenantId,
        webhook_id: WebhookId,
        before: NotificationId,
        limit: usize,
    ) -> StoreFuture<'_, Vec<StoredNotification>>;
    /// Prunes up to `limit` notifications before this time, and as many groups that have been idle since then.
    fn prune_notifications(&self, before: Time, limit: usize) -> StoreFuture<'_, usize>;
}

/// Email addresses that receive notifications: their confirmation, and the number of emails sent. Addresses are
/// deleted with their tenant; usage of limits is not, so that deleting a tenant resets no limit.
pub trait EmailAddresses: Send + Sync {
    /// Requests a confirmation email for an address, within the limits of the reservation. An address without a
    /// request is stored only if the limits allow one.
    fn request_confirmation(
        &self,
        reservation: EmailReservation,
    ) -> StoreFuture<'_, ConfirmationRequestResult>;
    /// Returns when the next requested confirmation email is to be sent.
    fn next_confirmation(&self) -> StoreFuture<'_, Option<Time>>;
    /// Claims up to `limit` requested confirmation emails that are due. Each is claimed once: if its node dies, it is
    /// not sent, so that a crash never sends more than the limits allow.
    fn take_confirmations(&self, now: Time, limit: usize) -> StoreFuture<'_, Vec<EmailAddress>>;
    /// Schedules a confirmation email again that was claimed and certainly not sent.
    fn retry_confirmation(&self, tenant_id: TenantId, address: String, send_at: Time) -> StoreFuture<'_, ()>;
    /// Marks an address as confirmed. Returns `false` if it already was, or there is no such tenant.
    fn confirm_address(
        &self,
        tenant_id: TenantId,
        address: String,
        by: ConfirmedBy,
        now: Time,
    ) -> StoreFuture<'_, bool>;
    /// Returns the state of these addresses of a tenant, by address: for the tenant's own users.
    fn email_addresses(
        &self,
        tenant_id: TenantId,
        addresses: Vec<String>,
    ) -> StoreFuture<'_, Vec<EmailAddress>>;
    /// Returns the state of these addresses of a tenant, by address: for the notification sender, which does not wait
    /// for the reads of the tenant's users.
    fn recipient_addresses(
        &self,
        tenant_id: TenantId,
        addresses: Vec<String>,
    ) -> StoreFuture<'_, Vec<EmailAddress>>;
    /// Counts an email against its limits, or returns which limit is reached.
    fn reserve_email(&self, reservation: EmailReservation) -> StoreFuture<'_, ReserveResult>;
    /// Releases the reservation of an email that was not sent.
    fn release_email(&self, reservation: EmailReservation) -> StoreFuture<'_, ()>;
    /// Deletes up to `limit` unconfirmed addresses whose last request was before `unconfirmed_before`, and up to `limit`
    /// records of usage that were last changed before `usage_before`.
    fn prune_email_addresses(
        &self,
        unconfirmed_before: Time,
        usage_before: Time,
        limit: usize,
    ) -> StoreFuture<'_, usize>;
}

/// Unsubscriptions of email addresses. They are deleted with their tenant.
pub trait Unsubscriptions: Send + Sync {
    /// Unsubscribes an address from a kind. Returns `false` if it already was unsubscribed, or there is no such
    /// tenant.
    fn unsubscribe(
        &self,
        tenant_id: TenantId,
        address: String,
        kind: NotificationKind,
        now: Time,
    ) -> StoreFuture<'_, bool>;
    /// Resubscribes an address to a kind, or to all kinds if `None`. Returns the number of kinds changed.
    fn resubscribe(
        &self,
        tenant_id: TenantId,
        address: String,
        kind: Option<NotificationKind>,
    ) -> StoreFuture<'_, usize>;
    /// Returns those of these addresses that are unsubscribed from a kind.
    fn unsubscribed(
        &self,
        tenant_id: TenantId,
        kind: NotificationKind,
        addresses: Vec<String>,
    ) -> StoreFuture<'_, Vec<String>>;
    /// Lists all unsubscriptions of a tenant, by address and kind.
    fn list_unsubscribed(
        &self,
        tenant_id: TenantId,
        page: PageRequest<UnsubscriptionCursor>,
    ) -> StoreFuture<'_, Vec<Unsubscription>>;
}
