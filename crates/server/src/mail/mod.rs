//! Emails to owners: selects recipients, renders and sends. A notification may be sent again, always with the same
//! Message-ID, and never to an address that is known to have received it. Notifications are never sent to an
//! unconfirmed address that needs confirmation, nor beyond the limits.

pub(crate) mod links;
pub(crate) mod render;
mod smtp;
pub(crate) mod texts;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use redrive_core::{
    NotificationId, Time,
    notification::{
        Notification, NotificationKind,
        confirmation::{CONFIRMATION_LINK_TTL, MailPolicy},
        mail_limit::MailPurpose,
        outage::{MAX_EARLIER, covering_kind},
        preferences::{EffectivePreferences, Language},
    },
    protection::limiter::{Bucket, RateLimit},
    security::vault::Vault,
    webhook::Webhook,
};
use redrive_engine::{MailError, MailFuture, Mailed, Mailer, clock::Clock};
use redrive_store::{
    ChannelStatus, EmailAddress, EmailReservation, EmailScope, ReserveResult, Store, StoreError,
    StoredNotification,
};
use sha2::{Digest, Sha256};

use self::{
    links::{Confirmation, UnsubscribeToken},
    render::{Mail, MailContext, WebhookLabel},
    smtp::{OutgoingMail, SmtpClient, SmtpError},
};
use crate::config::{ConfigError, Smtp};

/// Maximum number of notifications whose recipients are tracked until all of them are served.
const MAX_TRACKED_NOTIFICATIONS: usize = 10_000;

/// Returns the notifications whose emails informed their recipients or still will. One whose email failed, or was not sent
/// because of a limit, must not keep a later one from being sent.
fn informing(earlier: Vec<StoredNotification>) -> Vec<Notification> {
    let is_lost = |stored: &StoredNotification| {
        matches!(stored.email_status, ChannelStatus::Failed | ChannelStatus::Suppressed)
    };
    earlier.into_iter().filter(|stored| !is_lost(stored)).map(|stored| stored.notification).collect()
}

/// Result of sending a notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MailResult {
    /// The SMTP server accepted it for all recipients, except those that it rejected permanently.
    Sent,
    /// The SMTP server accepted it for some recipients; for the others the named limit was reached.
    SentToSome(String),
    /// It was sent to no recipient, because the named limit was reached.
    Suppressed(String),
    /// No recipient has confirmed its address.
    Unconfirmed,
    /// Every recipient gets the email of another kind about the same outage.
    Covered(NotificationKind),
    /// There are no recipients.
    NoRecipients,
    /// Every recipient was rejected permanently.
    Refused(String),
    /// It must be sent again, because some recipients are not served yet.
    Transient(String),
}

/// Sender of notification and confirmation emails.
pub struct MailSender {
    client: SmtpClient,
    default_language: Language,
    store: Arc<dyn Store>,
    vault: Vault,
    clock: Clock,
    policy: MailPolicy,
    /// Base URL of links. `None` if it is not known.
    base: Option<String>,
    limit: RateLimit,
    bucket: Mutex<Bucket>,
    /// Served recipients of notifications that still have unserved ones.
    served: Mutex<VecDeque<(NotificationId, BTreeSet<String>)>>,
}

impl MailSender {
    /// Creates a sender. Returns `None` if email is not configured.
    pub fn new(
        config: &Smtp,
        base: Option<String>,
        store: Arc<dyn Store>,
        vault: Vault,
        clock: Clock,
    ) -> Result<Option<Self>, ConfigError> {
        let Some(client) = SmtpClient::new(config)? else { return Ok(None) };
        check_links(config, base.is_some())?;
        let limit =
            RateLimit { requests_per_minute: config.max_per_minute, burst: Some(config.max_per_minute) };
        let (bucket, served) = (Mutex::new(Bucket::full()), Mutex::default());
        let (default_language, policy) = (config.language, config.policy());
        Ok(Some(Self { client, default_language, store, vault, clock, policy, base, limit, bucket, served }))
    }

    /// Sends a notification to its recipients.
    pub async fn send_notification(
        &self,
        notification: &Notification,
        webhook: Option<&Webhook>,
    ) -> Result<MailResult, StoreError> {
        let Some(tenant) = self.store.tenant(notification.tenant_id.clone()).await? else {
            return Ok(MailResult::NoRecipients);
        };
        let owner = webhook.and_then(|webhook| webhook.spec.owner.as_ref());
        let preferences = match webhook.is_some_and(|webhook| webhook.spec.is_operator_managed()) {
            true => tenant.rules.notifications.for_operator_webhook(),
            false => tenant.rules.notifications,
        };
        let effective = EffectivePreferences { tenant: &preferences, owner };
        let all = effective.recipients(notification.kind, &[]);
        let unsubscribed =
            self.store.unsubscribed(notification.tenant_id.clone(), notification.kind, all).await?;
        let mut recipients = effective.recipients(notification.kind, &unsubscribed);
        if recipients.is_empty() {
            return Ok(MailResult::NoRecipients);
        }
        if let Some(covering) = self.covering_kind(notification).await? {
            let all = effective.recipients(covering, &[]);
            let unsubscribed = self.store.unsubscribed(notification.tenant_id.clone(), covering, all).await?;
            let informed = effective.recipients(covering, &unsubscribed);
            recipients.retain(|address| !informed.contains(address));
            if recipients.is_empty() {
                return Ok(MailResult::Covered(covering));
            }
        }
        let recipients = self.filter_confirmed(notification, recipients).await?;
        if recipients.is_empty() {
            return Ok(MailResult::Unconfirmed);
        }
        let language = effective.language(self.default_language);
        let about = MailContext {
            tenant_id: tenant.id,
            tenant_name: tenant.name,
            webhook: webhook.map(WebhookLabel::from_webhook),
            base: self.base.clone(),
            address: String::new(),
            unsubscribe: None,
        };
        self.send_all(notification, &about, &recipients, language).await
    }

    /// Returns the kind of the notification that informs owners of the same outage as this one, if there is one.
    async fn covering_kind(
        &self,
        notification: &Notification,
    ) -> Result<Option<NotificationKind>, StoreError> {
        let Some(webhook_id) = notification.webhook_id.filter(|_| notification.kind.is_about_outage()) else {
            return Ok(None);
        };
        let (tenant_id, id) = (notification.tenant_id.clone(), notification.id);
        let earlier = self.store.earlier_notifications(tenant_id, webhook_id, id, MAX_EARLIER).await?;
        Ok(covering_kind(notification, &informing(earlier)))
    }

    /// Returns the addresses that may receive notifications of the tenant.
    async fn filter_confirmed(
        &self,
        notification: &Notification,
        addresses: Vec<String>,
    ) -> Result<Vec<String>, StoreError> {
        let needs = |address: &String| self.policy.needs_confirmation(address);
        let unverified: Vec<String> = addresses.iter().filter(|address| needs(address)).cloned().collect();
        if unverified.is_empty() {
            return Ok(addresses);
        }
        let known = self.store.recipient_addresses(notification.tenant_id.clone(), unverified).await?;
        let is_confirmed = |address: &String| {
            known.iter().any(|known| known.address == *address && known.confirmed.is_some())
        };
        Ok(addresses.into_iter().filter(|address| !needs(address) || is_confirmed(address)).collect())
    }

    /// Counts an email against the limits. Returns a description of the limit if one is reached.
    async fn reserve(&self, reservation: &EmailReservation) -> Result<Option<String>, StoreError> {
        match self.store.reserve_email(reservation.clone()).await? {
            ReserveResult::Reserved => Ok(None),
            ReserveResult::LimitReached(scope, until) => {
                let (subject, setting) = match scope {
                    EmailScope::Tenant => ("the tenant has", "smtp.max_per_hour_per_tenant"),
                    EmailScope::Mailbox => ("the recipient has", "smtp.max_per_hour_per_address"),
                };
                Ok(Some(format!("{subject} reached a limit of emails until {until}; see {setting}")))
            }
        }
    }

    fn reservation(&self, notification: &Notification, address: &str) -> EmailReservation {
        EmailReservation {
            tenant_id: notification.tenant_id.clone(),
            address: address.to_owned(),
            purpose: MailPurpose::Notification,
            at: self.clock.now(),
            per_tenant: self.policy.per_tenant,
            per_mailbox: self.policy.per_mailbox,
        }
    }

    async fn send_all(
        &self,
        notification: &Notification,
        about: &MailContext,
        to: &[String],
        language: Language,
    ) -> Result<MailResult, StoreError> {
        let (mut refused, mut deferred, mut suppressed) = (Vec::new(), None, Vec::new());
        for address in to {
            if self.was_sent_to(notification.id, address) {
                continue;
            }
            if let Some(due) = self.acquire_rate_token() {
                let why = format!("this node has reached smtp.max_per_minute until {due}");
                return Ok(MailResult::Transient(why));
            }
            let reservation = self.reservation(notification, address);
            if let Some(why) = self.reserve(&reservation).await? {
                suppressed.push(why);
                continue;
            }
            let sent = self.send_one(notification, about, address, language).await;
            if matches!(sent, Err(SmtpError::Refused(_) | SmtpError::Deferred(_) | SmtpError::Unavailable(_)))
            {
                self.store.release_email(reservation).await?;
            }
            match sent {
                Ok(()) => self.record_served(notification.id, address),
                Err(SmtpError::Refused(why)) => {
                    tracing::warn!(notification_id = %notification.id, tenant_id = %notification.tenant_id, recipient = %address, error = %why,
                        "recipient rejected permanently; correct or remove the address");
                    self.record_served(notification.id, address);
                    refused.push(format!("{address}: {why}"));
                }
                // Continue with the other recipients.
                Err(SmtpError::Deferred(why)) => deferred = Some(format!("{address}: {why}")),
                // A failure of the server applies to all recipients, so stop here.
                Err(SmtpError::Unavailable(why) | SmtpError::Unknown(why)) => {
                    return Ok(MailResult::Transient(why));
                }
            }
        }
        if let Some(why) = deferred {
            return Ok(MailResult::Transient(why));
        }
        self.evict_notification(notification.id);
        Ok(match suppressed.pop() {
            Some(why) if suppressed.len() + 1 == to.len() => MailResult::Suppressed(why),
            Some(why) => MailResult::SentToSome(why),
            None if refused.len() == to.len() => MailResult::Refused(refused.join("; ")),
            None => MailResult::Sent,
        })
    }

    /// Sends a confirmation request to an address. Returns false if none is needed or possible.
    async fn send_confirmation_request(&self, address: &EmailAddress) -> Result<bool, MailError> {
        let transient = |error: StoreError| MailError::Transient(error.to_string());
        let tenant = self.store.tenant(address.tenant_id.clone()).await.map_err(transient)?;
        let (Some(tenant), Some(base)) = (tenant, &self.base) else { return Ok(false) };
        if address.confirmed.is_some() {
            return Ok(false);
        }
        if self.acquire_rate_token().is_some() {
            return Err(MailError::Transient("smtp.max_per_minute is reached".into()));
        }
        let (language, now) =
            (tenant.rules.notifications.language.unwrap_or(self.default_language), self.clock.now());
        let confirmation = Confirmation {
            tenant_id: tenant.id.clone(),
            address: address.address.clone(),
            language,
            expires_at: now + CONFIRMATION_LINK_TTL,
        };
        let link = format!("{base}/confirm/{}", confirmation.seal(&self.vault));
        let email = render::render_confirmation(&tenant.id, base, &link, language)
            .map_err(|error| MailError::Permanent(format!("the email cannot be rendered: {error}")))?;
        let id = format!("confirm-{}", now.millis());
        let outgoing = OutgoingMail {
            to: &address.address,
            email: &email,
            id: &format!("{id}.{}", short_digest(&address.address)),
            at: now,
            unsubscribe: None,
        };
        match self.client.send(&outgoing).await {
            Ok(()) => Ok(true),
            Err(SmtpError::Deferred(why) | SmtpError::Unavailable(why)) => Err(MailError::Transient(why)),
            Err(SmtpError::Refused(why) | SmtpError::Unknown(why)) => Err(MailError::Permanent(why)),
        }
    }

    async fn send_one(
        &self,
        notification: &Notification,
        about: &MailContext,
        address: &str,
        language: Language,
    ) -> Result<(), SmtpError> {
        let token = UnsubscribeToken {
            tenant_id: notification.tenant_id.clone(),
            kind: notification.kind,
            address: address.to_owned(),
            language,
        };
        let link = |base: &String| format!("{base}/unsubscribe/{}", token.seal(&self.vault));
        let unsubscribe = self.base.as_ref().map(link);
        let about =
            MailContext { address: address.to_owned(), unsubscribe: unsubscribe.clone(), ..about.clone() };
        let email = render::render(notification, &about, language)
            .map_err(|error| SmtpError::Refused(format!("the email cannot be rendered: {error}")))?;
        let outgoing = OutgoingMail {
            to: address,
            email: &email,
            id: &message_id(notification.id, address),
            at: self.clock.now(),
            unsubscribe: unsubscribe.as_deref(),
        };
        self.client.send(&outgoing).await
    }

    /// Takes a token of the node's rate limit. Returns the time of the next token if there is none.
    fn acquire_rate_token(&self) -> Option<Time> {
        let (mut bucket, now) = (self.bucket.lock(), self.clock.now());
        let due = bucket.next_token_at(&self.limit, now);
        if due.is_none() {
            bucket.take(&self.limit, now);
        }
        due
    }

    fn was_sent_to(&self, notification_id: NotificationId, address: &str) -> bool {
        let served = self.served.lock();
        served.iter().any(|(id, addresses)| *id == notification_id && addresses.contains(address))
    }

    fn record_served(&self, notification_id: NotificationId, address: &str) {
        let mut served = self.served.lock();
        match served.iter_mut().find(|(id, _)| *id == notification_id) {
            Some((_, addresses)) => drop(addresses.insert(address.to_owned())),
            None => {
                if served.len() == MAX_TRACKED_NOTIFICATIONS {
                    served.pop_front();
                }
                served.push_back((notification_id, BTreeSet::from([address.to_owned()])));
            }
        }
    }

    fn evict_notification(&self, notification_id: NotificationId) {
        self.served.lock().retain(|(id, _)| *id != notification_id);
    }
}

impl Mailer for MailSender {
    fn send(&self, notification: StoredNotification, webhook: Option<Webhook>) -> MailFuture<'_> {
        Box::pin(async move {
            match self.send_notification(&notification.notification, webhook.as_ref()).await {
                Ok(MailResult::Sent) => Ok(Mailed::Sent),
                Ok(MailResult::SentToSome(why)) => Ok(Mailed::SentToSome(why)),
                Ok(MailResult::Suppressed(why)) => Ok(Mailed::Suppressed(why)),
                Ok(MailResult::Unconfirmed) => Ok(Mailed::Unconfirmed),
                Ok(MailResult::Covered(kind)) => Ok(Mailed::Covered(kind)),
                Ok(MailResult::NoRecipients) => Ok(Mailed::NoRecipients),
                Ok(MailResult::Refused(why)) => Err(MailError::Permanent(why)),
                Ok(MailResult::Transient(why)) => Err(MailError::Transient(why)),
                Err(error) => Err(MailError::Transient(error.to_string())),
            }
        })
    }

    fn send_confirmation(&self, address: EmailAddress) -> MailFuture<'_> {
        Box::pin(async move {
            Ok(if self.send_confirmation_request(&address).await? {
                Mailed::Sent
            } else {
                Mailed::NoRecipients
            })
        })
    }

    fn policy(&self) -> &MailPolicy {
        &self.policy
    }
}

/// Returns a Message-ID that is the same for every attempt and different for each recipient.
fn message_id(notification_id: NotificationId, address: &str) -> String {
    format!("{notification_id}.{}", short_digest(address))
}

fn short_digest(address: &str) -> String {
    let digest = Sha256::digest(address.as_bytes());
    digest[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checks the settings without connecting to the server. `has_links` tells whether emails have a URL for links.
pub(crate) fn check_settings(config: &Smtp, has_links: bool) -> Result<(), ConfigError> {
    match SmtpClient::new(config)? {
        Some(_) => check_links(config, has_links),
        None => Ok(()),
    }
}

/// Confirmation emails need a URL for their link.
fn check_links(config: &Smtp, has_links: bool) -> Result<(), ConfigError> {
    if !config.confirm_addresses || has_links {
        return Ok(());
    }
    Err(ConfigError::Invalid {
        setting: "smtp.confirm_addresses".into(),
        reason: "needs server.public_url for the link in confirmation emails; set it, or set \
                 smtp.confirm_addresses = false if only you enter addresses"
            .into(),
    })
}

/// Connects to the SMTP server without sending an email. Returns whether one is configured, or the reason of the failure.
pub(crate) async fn check_connection(config: &Smtp) -> Result<bool, String> {
    match SmtpClient::new(config).map_err(|error| error.to_string())? {
        Some(client) => client.check_connection().await.map(|()| true),
        None => Ok(false),
    }
}

/// Sends a test email and returns the sender, or the reason why sending failed.
pub(crate) async fn send_test(config: &Smtp, to: &str, clock: &Clock) -> Result<String, String> {
    let client = SmtpClient::new(config).map_err(|error| error.to_string())?;
    let Some(client) = client else {
        return Err("email is not configured: set smtp.host and smtp.from; see docs/notifications.md".into());
    };
    let text = "This is a test email of Redrive. If you can read it, Redrive can send notification emails.";
    let email = Mail {
        subject: "Redrive test email".into(),
        text: format!("{text}\n"),
        html: format!("<!doctype html><meta name=\"color-scheme\" content=\"light dark\"><p>{text}</p>"),
    };
    let now = clock.now();
    let id = format!("test-{}", now.millis());
    match client.send(&OutgoingMail { to, email: &email, id: &id, at: now, unsubscribe: None }).await {
        Ok(()) => Ok(client.from().to_string()),
        Err(
            SmtpError::Refused(why)
            | SmtpError::Deferred(why)
            | SmtpError::Unavailable(why)
            | SmtpError::Unknown(why),
        ) => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use redrive_core::{TenantId, notification::OccurrenceDetails};

    use super::*;

    #[test]
    fn notification_without_an_email_informs_no_recipient() {
        let stored = |email_status| StoredNotification {
            notification: Notification {
                id: NotificationId::new(Time::from_secs(1), &[1; 10]),
                tenant_id: TenantId::default(),
                webhook_id: None,
                kind: NotificationKind::CircuitOpened,
                count: 1,
                first_at: Time::from_secs(1),
                last_at: Time::from_secs(1),
                details: OccurrenceDetails::default(),
            },
            webhook_status: ChannelStatus::Sent,
            email_status,
            attempts: 1,
            next_attempt_at: None,
            error: None,
        };
        let informs = |status| !informing(vec![stored(status)]).is_empty();
        assert!(informs(ChannelStatus::Sent) && informs(ChannelStatus::Pending));
        assert!(!informs(ChannelStatus::Failed) && !informs(ChannelStatus::Suppressed));
    }
}
