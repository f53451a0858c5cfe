//! Notifications to owners: creates them from recorded occurrences, publishes them as events, and passes them to
//! the mailer.

pub(crate) mod checks;
mod confirm;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redrive_core::{
    NotificationId, TenantId, Time,
    maintenance::backoff::OutageBackoff,
    notification::{
        NotificationKind, Occurrence, OccurrenceDetails, is_operational, payload::to_event_data,
        preferences::EffectivePreferences,
    },
    webhook::Webhook,
};
use redrive_store::{
    Channel, ChannelResult, ChannelStatus, Config, EmailAddresses, Notifications, StoreError,
    StoredNotification, Tenancy,
};
use tokio::{runtime::Handle, sync::Semaphore};
use tokio_util::sync::CancellationToken;

use crate::{
    Settings,
    clock::{self, Clock, monotonic_now},
    mailer::{MailError, Mailed, MailerHandle},
    metrics::Metrics,
    occurrences::occurrence,
    publish::{EventDraft, PublishError, Publisher},
    routing::Router,
    wakeups::Wakeups,
};

/// Maximum time between two polls, in case a wake-up was missed or another node died before it sent a
/// notification.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Minimum time between two polls; a burst of occurrences wakes the loop continuously.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Delay after a failure of the store.
const STORE_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Notifications created, or sent, per step. Two ids are generated for each, since it may come with its opposite.
const BATCH_SIZE: usize = 50;
/// Time that a claimed notification is reserved for its node, which may have died: to publish it, and to send
/// email too.
const CLAIM_TTL: Duration = Duration::from_secs(10);
const CLAIM_TTL_WITH_MAIL: Duration = Duration::from_secs(60);
/// Timeout of one attempt to send the emails of a notification; shorter than its claim.
const MAIL_TIMEOUT: Duration = Duration::from_secs(50);
/// Age of a notification after which a failed email is not retried.
const MAIL_GIVE_UP_AFTER: Duration = Duration::from_secs(3 * 24 * 3600);
/// Maximum number of notifications being sent as email concurrently, and the delay of further ones.
pub(crate) const MAX_CONCURRENT_MAILS: usize = 64;
const MAIL_BUSY_DELAY: Duration = Duration::from_secs(1);
/// Minimum interval between records of the same exhausted quota of a tenant, and the number of quotas tracked for
/// that.
const QUOTA_REPORT_INTERVAL: Duration = Duration::from_secs(60);
const MAX_TRACKED_QUOTAS: usize = 10_000;
/// Maximum length of a stored error.
const MAX_ERROR_CHARS: usize = 500;

/// Creates notifications and sends them.
pub(crate) struct Notifier {
    pub(crate) config: Arc<dyn Config>,
    pub(crate) mail_addresses: Arc<dyn EmailAddresses>,
    pub(crate) notifications: Arc<dyn Notifications>,
    pub(crate) tenancy: Arc<dyn Tenancy>,
    pub(crate) clock: Clock,
    pub(crate) settings: Arc<Settings>,
    pub(crate) router: Arc<Router>,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) wakeups: Arc<Wakeups>,
    pub(crate) tokio: Handle,
    pub(crate) stop: CancellationToken,
    /// When an exhausted quota was last recorded, by tenant and reason.
    pub(crate) quotas: Mutex<HashMap<(TenantId, &'static str), Time>>,
    pub(crate) mailing: Arc<Semaphore>,
    /// Whether the last email failed.
    pub(crate) mail_failing: AtomicBool,
}

impl Notifier {
    /// Returns whether this node's last email was sent; `None` if it sends none.
    pub(crate) fn mail_up(&self) -> Option<bool> {
        self.settings.mailer.as_ref().map(|_| !self.mail_failing.load(Relaxed))
    }

    /// Records in the background that a request of a tenant was rejected because its quota is exhausted; at most once
    /// per `QUOTA_REPORT_INTERVAL`, since a tenant may be rejected very often.
    pub(crate) fn quota_reached(
        self: &Arc<Self>,
        tenant_id: &TenantId,
        reason: &'static str,
        message: &str,
        until: Option<Time>,
    ) {
        let (key, now) = ((tenant_id.clone(), reason), self.clock.now());
        {
            let mut noted = self.quotas.lock();
            if noted.get(&key).is_some_and(|at| now < *at + QUOTA_REPORT_INTERVAL) {
                return;
            }
            if noted.len() >= MAX_TRACKED_QUOTAS {
                noted.retain(|_, at| now < *at + QUOTA_REPORT_INTERVAL);
            }
            if noted.len() >= MAX_TRACKED_QUOTAS {
                return;
            }
            noted.insert(key.clone(), now);
        }
        let (reason, message) = (Some(reason.to_owned()), Some(message.to_owned()));
        let details = OccurrenceDetails { reason, message, until, ..OccurrenceDetails::default() };
        let occurrence = occurrence(tenant_id, None, NotificationKind::QuotaReached, now, details);
        let notifier = self.clone();
        self.tokio.spawn(async move {
            if let Err(error) = notifier.record_occurrences(vec![occurrence]).await {
                tracing::debug!(%error, "recording a reached quota failed; will retry");
                notifier.quotas.lock().remove(&key);
            }
        });
    }

    /// Records occurrences and wakes the notifier.
    pub(crate) async fn record_occurrences(&self, occurrences: Vec<Occurrence>) -> Result<(), StoreError> {
        self.notifications.record_occurrences(occurrences).await?;
        self.wakeups.notifier.notify_one();
        Ok(())
    }

    /// Sends due notifications until the engine stops.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            let next = match self.send_due().await {
                Ok(next) => next,
                Err(error) => {
                    tracing::debug!(%error, "creating notifications failed; will retry");
                    tokio::time::sleep(STORE_RETRY_DELAY).await;
                    None
                }
            };
            tokio::time::sleep(MIN_POLL_INTERVAL).await;
            tokio::select! {
                () = self.clock.sleep_until(next.unwrap_or_default()), if next.is_some() => {}
                () = tokio::time::sleep(MAX_POLL_INTERVAL) => {}
                () = self.wakeups.notifier.notified() => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// Creates and sends one step of due notifications. Returns when the next ones are due, if known.
    async fn send_due(self: &Arc<Self>) -> Result<Option<Time>, StoreError> {
        let now = self.clock.now();
        let next = self.notifications.next_notification_at().await?;
        if next.is_none_or(|next| next > now) {
            return Ok(next);
        }
        let new_ids =
            (0..2 * BATCH_SIZE).map(|_| NotificationId::new(now, &clock::random_id_bytes())).collect();
        let created_count =
            self.notifications.create_notifications(now, self.settings.group_intervals, new_ids).await?;
        let hold = if self.settings.mailer.is_some() { CLAIM_TTL_WITH_MAIL } else { CLAIM_TTL };
        let (taken, since) =
            (self.notifications.claim_notifications(now, now + hold, BATCH_SIZE).await?, monotonic_now());
        let more = created_count + taken.len() > 0;
        let mut failed = None;
        // A notification that fails must not block the ones after it.
        for notification in taken {
            if let Err(error) = self.send_notification(notification, since).await {
                failed.get_or_insert(error);
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(more.then_some(now)),
        }
    }

    /// Sends a notification on every pending channel. This node has held its claim since `since`.
    async fn send_notification(
        self: &Arc<Self>,
        notification: StoredNotification,
        since: Duration,
    ) -> Result<(), StoreError> {
        let id = notification.notification.id;
        let webhook = match notification.notification.webhook_id {
            Some(webhook_id) => match self.config.webhooks_by_id(vec![webhook_id]).await {
                // The notification of an unreadable webhook is sent without its name.
                Err(StoreError::InvalidItem(_)) => None,
                found => found?.pop(),
            },
            None => None,
        };
        // Email first: its timeout counts from the claim.
        if notification.email_status == ChannelStatus::Pending {
            self.spawn_mail(&notification, webhook.clone(), since).await?;
        }
        if notification.webhook_status == ChannelStatus::Pending {
            let result = match self.publish_notification(&notification, webhook.as_ref()).await {
                Err(StoreError::InvalidItem(why)) => ChannelResult::Done(ChannelStatus::Failed, Some(why)),
                result => result?,
            };
            if let ChannelResult::Done(ChannelStatus::Failed, error) = &result {
                let (tenant_id, error) =
                    (&notification.notification.tenant_id, error.as_deref().unwrap_or_default());
                tracing::error!(notification_id = %id, %tenant_id, error, "publishing a notification event failed permanently");
            }
            self.metrics.notifications.count(Channel::Webhook, &result);
            self.notifications.record_notification_result(id, Channel::Webhook, result).await?;
        }
        Ok(())
    }

    /// Sends the emails of a notification in a separate task.
    async fn spawn_mail(
        self: &Arc<Self>,
        notification: &StoredNotification,
        webhook: Option<Webhook>,
        since: Duration,
    ) -> Result<(), StoreError> {
        let id = notification.notification.id;
        let Some(post) = self.settings.mailer.clone() else {
            let unknown = ChannelResult::Done(ChannelStatus::NoRecipients, None);
            self.metrics.notifications.count(Channel::Email, &unknown);
            return self.notifications.record_notification_result(id, Channel::Email, unknown).await;
        };
        let Ok(turn) = self.mailing.clone().try_acquire_owned() else {
            let later = ChannelResult::RetryAt(
                self.clock.now() + MAIL_BUSY_DELAY,
                "too many emails are being sent at the moment".into(),
            );
            return self.notifications.record_notification_result(id, Channel::Email, later).await;
        };
        let (notifier, notification) = (self.clone(), notification.clone());
        self.tokio.spawn(async move {
            let left = MAIL_TIMEOUT.saturating_sub(monotonic_now().saturating_sub(since));
            let result = notifier.send_mail(&post, notification, webhook, left).await;
            notifier.metrics.notifications.count(Channel::Email, &result);
            if let Err(error) = notifier.notifications.record_notification_result(id, Channel::Email, result).await {
                tracing::warn!(notification_id = %id, %error, "storing the result of an email failed; the email will be sent again");
            }
            drop(turn);
        });
        Ok(())
    }

    fn record_mail_sent(&self) {
        if self.mail_failing.swap(false, Relaxed) {
            tracing::info!("sending notification emails recovered");
        }
    }

    async fn send_mail(
        &self,
        post: &MailerHandle,
        notification: StoredNotification,
        webhook: Option<Webhook>,
        left: Duration,
    ) -> ChannelResult {
        let (id, attempts, tenant_id) = (
            notification.notification.id,
            notification.attempts,
            notification.notification.tenant_id.clone(),
        );
        let (why, never) = match tokio::time::timeout(left, post.0.send(notification, webhook)).await {
            Ok(Ok(Mailed::Sent)) => {
                self.record_mail_sent();
                return ChannelResult::Done(ChannelStatus::Sent, None);
            }
            Ok(Ok(Mailed::SentToSome(why))) => {
                self.record_mail_sent();
                return ChannelResult::Done(ChannelStatus::Sent, Some(why));
            }
            Ok(Ok(Mailed::Suppressed(why))) => {
                tracing::debug!(notification_id = %id, %tenant_id, reason = why, "notification email suppressed");
                return ChannelResult::Done(ChannelStatus::Suppressed, Some(why));
            }
            Ok(Ok(Mailed::Unconfirmed)) => {
                let why = "no recipient has confirmed its address";
                return ChannelResult::Done(ChannelStatus::NoRecipients, Some(why.into()));
            }
            Ok(Ok(Mailed::Covered(kind))) => {
                let why = format!("the recipients are informed of the same outage by {}", kind.name());
                return ChannelResult::Done(ChannelStatus::NoRecipients, Some(why));
            }
            Ok(Ok(Mailed::NoRecipients)) => return ChannelResult::Done(ChannelStatus::NoRecipients, None),
            Ok(Err(MailError::Transient(why))) => (why, false),
            Ok(Err(MailError::Permanent(why))) => (why, true),
            Err(_) => (format!("not all of its emails were sent within {} s", MAIL_TIMEOUT.as_secs()), false),
        };
        let why: String = why.chars().filter(|char| *char != '\0').take(MAX_ERROR_CHARS).collect();
        let now = self.clock.now();
        if never || self.clock.confirmed_now().duration_since(id.time()) >= MAIL_GIVE_UP_AFTER {
            tracing::error!(notification_id = %id, %tenant_id, error = why, "sending a notification email failed permanently");
            return ChannelResult::Done(ChannelStatus::Failed, Some(why));
        }
        // One warning per outage; each notification has its own state.
        if self.mail_failing.swap(true, Relaxed) {
            tracing::debug!(notification_id = %id, %tenant_id, attempt = attempts, error = why, "sending an email failed; will retry");
        } else {
            tracing::warn!(notification_id = %id, %tenant_id, attempt = attempts, error = why, "sending notification emails failed; will retry");
        }
        ChannelResult::RetryAt(now + retry_delay(attempts), why)
    }

    /// Publishes a notification as an event, with its id as the idempotency key so that it is published once.
    async fn publish_notification(
        &self,
        stored: &StoredNotification,
        webhook: Option<&Webhook>,
    ) -> Result<ChannelResult, StoreError> {
        let notification = &stored.notification;
        let unknown = Ok(ChannelResult::Done(ChannelStatus::NoRecipients, None));
        // Portal sessions read the tenant's events and must not see webhooks that the operator manages.
        if webhook.is_some_and(|one| is_operational(&one.spec.events) || one.spec.is_operator_managed()) {
            return unknown;
        }
        let Some(tenant) = self.tenancy.tenant(notification.tenant_id.clone()).await? else { return unknown };
        let owner = webhook.and_then(|webhook| webhook.spec.owner.as_ref());
        if !(EffectivePreferences { tenant: &tenant.rules.notifications, owner }).wants(notification.kind) {
            return unknown;
        }
        let (event_type, subject) =
            (notification.kind.event_type(), notification.webhook_id.map(|id| id.to_string()));
        self.router.refresh(&notification.tenant_id).await?;
        let wanted = self
            .router
            .match_webhooks(&notification.tenant_id, &event_type, subject.as_deref(), None)
            .await?;
        if wanted.is_none_or(|wanted| wanted.webhooks.is_empty()) {
            return unknown;
        }
        let data = match to_event_data(notification, webhook) {
            Ok(data) => data,
            Err(error) => return Ok(ChannelResult::Done(ChannelStatus::Failed, Some(error.to_string()))),
        };
        let draft = EventDraft {
            tenant_id: notification.tenant_id.clone(),
            event_type: event_type.into(),
            data: data.into(),
            idempotency_key: Some(notification.id.to_string().into()),
            source: Some("redrive".into()),
            subject: subject.map(Into::into),
            metadata: None,
            priority: redrive_core::delivery::lane::Priority::Normal,
            only_webhook: None,
            edited: None,
            trace: None,
            hops: 0,
        };
        match self.publisher.publish(draft).await {
            // The webhook may have changed between two attempts; the event was then published with its earlier state.
            Ok(_) | Err(PublishError::KeyReused(_)) => Ok(ChannelResult::Done(ChannelStatus::Sent, None)),
            Err(PublishError::NoTenant) => unknown,
            Err(PublishError::Store(error)) => Err(error),
            Err(error) => Ok(ChannelResult::Done(ChannelStatus::Failed, Some(error.to_string()))),
        }
    }
}

/// Returns the delay before the next attempt after `attempts` attempts.
fn retry_delay(attempts: u32) -> Duration {
    let mut backoff = OutageBackoff::default();
    let mut wait = backoff.next_delay(clock::random_unit());
    for _ in 1..attempts.min(100) {
        wait = backoff.next_delay(clock::random_unit());
    }
    wait
}
