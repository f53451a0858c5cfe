//! Telling owners: makes notices of what stands, publishes them as events, and hands them to whoever sends mails.

mod checks;
mod confirm;
pub(crate) mod occurrences;

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redrive_core::{
    NoticeId, TenantId, Time, WebhookId,
    maintenance::backoff::Backoff,
    notification::{
        Cause, Facts, Kind, confirmation::MailPolicy, is_operational, payload::event_data,
        preferences::Wishes,
    },
    webhook::Webhook,
};
use redrive_store::{Channel, MailAddress, StoreError, StoredNotice, Telling, Told};
use tokio::sync::{Notify, Semaphore};

use crate::{
    Draft, Engine, Inner, PublishError,
    clock::{self, ticks},
};

/// The longest time between two looks, should a ring be missed, or another node have died before it told.
const LOOK: Duration = Duration::from_secs(5);
/// The shortest: a storm of causes rings all the time.
const PAUSE: Duration = Duration::from_millis(100);
/// After a failure of the store.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// Notices made, or sent, in one step. Two ids are made for each, since what is told may have a counterpart.
const STEP: usize = 50;
/// How long a notice is left to the node that has taken it, which may be dead: to publish it, and to send mails too.
const HOLD: Duration = Duration::from_secs(10);
const HOLD_TO_MAIL: Duration = Duration::from_secs(60);
/// How long one try to send its mails may take: less than it is left to this node.
const MAILING: Duration = Duration::from_secs(50);
/// How long it is tried to send a mail.
const PATIENCE: Duration = Duration::from_secs(3 * 24 * 3600);
/// Notices whose mails are on their way at once, and how long another waits then.
const MAILS: usize = 64;
const BUSY: Duration = Duration::from_secs(1);
/// How often a node writes down that the same quota of a tenant is used up, and of how many it remembers that.
const QUOTA_NOTED: Duration = Duration::from_secs(60);
const QUOTAS: usize = 10_000;
/// The longest error that is kept.
const ERROR: usize = 500;

/// What came of a mail, later.
pub type Mailing<'a> = Pin<Box<dyn Future<Output = Result<Mailed, MailError>> + Send + 'a>>;

/// Whoever sends notices as mails. A notice may come again, with the same id, if it is not known whether it was sent.
pub trait Mailer: Send + Sync {
    /// Sends a notice to those who want it. The webhook is the one that it is about, as it is now, even if it was
    /// deleted; none for a notice about the tenant as a whole.
    fn send(&self, notice: StoredNotice, webhook: Option<Webhook>) -> Mailing<'_>;
    /// Asks the holder of an address to confirm it. `MailError::Later` only if the e-mail was certainly not sent.
    fn send_confirmation(&self, address: MailAddress) -> Mailing<'_>;
    /// What the operator decided about e-mails.
    fn policy(&self) -> &MailPolicy;
}

/// What became of a notice as a mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mailed {
    /// It was taken by the mail server.
    Sent,
    /// It was taken by the mail server, but not for all recipients: a limit was reached, which the text names.
    SentToSome(String),
    /// It was sent to no recipient: a limit was reached, which the text names.
    Suppressed(String),
    /// No recipient has confirmed its address.
    Unconfirmed,
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

/// What there is to tell, as far as this node knows.
pub(crate) struct Notifying {
    /// There may be something to tell.
    alarm: Notify,
    /// Webhooks whose hosts' names could not be looked up lately.
    suspects: Mutex<HashMap<WebhookId, TenantId>>,
    /// When it was last written down that a tenant's quota is used up, and which.
    quotas: Mutex<HashMap<(TenantId, &'static str), Time>>,
    mailing: Arc<Semaphore>,
    /// A confirmation e-mail may wait to be sent.
    confirmations: Notify,
    /// Whether the last mail did not go out.
    mail_stuck: AtomicBool,
}

impl Default for Notifying {
    fn default() -> Self {
        Self {
            alarm: Notify::new(),
            suspects: Mutex::default(),
            quotas: Mutex::default(),
            mailing: Arc::new(Semaphore::new(MAILS)),
            confirmations: Notify::new(),
            mail_stuck: AtomicBool::new(false),
        }
    }
}

impl Notifying {
    /// Has what was written down told soon.
    pub(crate) fn ring(&self) {
        self.alarm.notify_one();
    }
}

impl Engine {
    /// Whether mails go out, as far as this node has tried; none if it sends none.
    pub fn mail_up(&self) -> Option<bool> {
        self.0.settings.post.as_ref().map(|_| !self.0.notifying.mail_stuck.load(Relaxed))
    }

    /// Something was refused to a tenant because its quota is used up. Written down beside whatever goes on, and once
    /// in a while: somebody may be refused very often.
    pub fn quota_reached(&self, tenant: &TenantId, reason: &'static str, message: &str, until: Option<Time>) {
        let inner = &self.0;
        let (key, now) = ((tenant.clone(), reason), inner.clock.now());
        {
            let mut noted = inner.notifying.quotas.lock();
            if noted.get(&key).is_some_and(|at| now < *at + QUOTA_NOTED) {
                return;
            }
            if noted.len() >= QUOTAS {
                noted.retain(|_, at| now < *at + QUOTA_NOTED);
            }
            if noted.len() >= QUOTAS {
                return;
            }
            noted.insert(key.clone(), now);
        }
        let (reason, message) = (Some(reason.to_owned()), Some(message.to_owned()));
        let facts = Facts { reason, message, until, ..Facts::default() };
        let cause = occurrences::cause(tenant, None, Kind::QuotaReached, now, facts);
        let engine = self.clone();
        inner.runtime.spawn(async move {
            if let Err(error) = engine.note(vec![cause]).await {
                tracing::debug!(%error, "that a quota is used up is told later");
                engine.0.notifying.quotas.lock().remove(&key);
            }
        });
    }

    /// Writes causes down, and has them told.
    pub async fn note(&self, causes: Vec<Cause>) -> Result<(), StoreError> {
        self.0.store.note(causes).await?;
        self.0.notifying.ring();
        Ok(())
    }
}

impl Inner {
    /// Tells what is to be told, for as long as the engine runs.
    pub(crate) async fn keep_telling(self: Arc<Self>) {
        loop {
            let next = match self.tell_due().await {
                Ok(next) => next,
                Err(error) => {
                    tracing::debug!(%error, "owners are told later");
                    tokio::time::sleep(AFTER_FAILURE).await;
                    None
                }
            };
            tokio::time::sleep(PAUSE).await;
            tokio::select! {
                () = self.clock.sleep_until(next.unwrap_or_default()), if next.is_some() => {}
                () = tokio::time::sleep(LOOK) => {}
                () = self.notifying.alarm.notified() => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// Tells what is due, a step of it. Gives when there is more, if that is known.
    async fn tell_due(self: &Arc<Self>) -> Result<Option<Time>, StoreError> {
        let now = self.clock.now();
        let next = self.store.next_notice().await?;
        if next.is_none_or(|next| next > now) {
            return Ok(next);
        }
        let fresh = (0..2 * STEP).map(|_| NoticeId::new(now, &clock::randomness())).collect();
        let made = self.store.make_notices(now, self.settings.folds, fresh).await?;
        let hold = if self.settings.post.is_some() { HOLD_TO_MAIL } else { HOLD };
        let (taken, since) = (self.store.take_notices(now, now + hold, STEP).await?, ticks());
        let more = made + taken.len() > 0;
        let mut failed = None;
        // One that cannot be told must not keep those after it from being told.
        for notice in taken {
            if let Err(error) = self.tell(notice, since).await {
                failed.get_or_insert(error);
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(more.then_some(now)),
        }
    }

    /// Sends a notice on every way on which it is to be sent. It has been this node's since then.
    async fn tell(self: &Arc<Self>, notice: StoredNotice, since: Duration) -> Result<(), StoreError> {
        let id = notice.notice.id;
        let webhook = match notice.notice.webhook {
            Some(webhook) => match self.store.webhooks_by_id(vec![webhook]).await {
                // One that cannot be read is told of without its name.
                Err(StoreError::Refused(_)) => None,
                found => found?.pop(),
            },
            None => None,
        };
        // The mail first: it has less time the later it begins.
        if notice.mail == Telling::Waiting {
            self.begin_mailing(&notice, webhook.clone(), since).await?;
        }
        if notice.event == Telling::Waiting {
            let told = match self.publish_notice(&notice, webhook.as_ref()).await {
                Err(StoreError::Refused(why)) => Told::Over(Telling::GivenUp, Some(why)),
                told => told?,
            };
            if let Told::Over(Telling::GivenUp, error) = &told {
                let (tenant, error) = (&notice.notice.tenant, error.as_deref().unwrap_or_default());
                tracing::error!(notice_id = %id, %tenant, error, "a notice is not told to webhooks: it is given up on");
            }
            self.metrics.notices.count(Channel::Event, &told);
            self.store.notice_told(id, Channel::Event, told).await?;
        }
        Ok(())
    }

    /// Has a notice's mails sent beside whatever goes on.
    async fn begin_mailing(
        self: &Arc<Self>,
        notice: &StoredNotice,
        webhook: Option<Webhook>,
        since: Duration,
    ) -> Result<(), StoreError> {
        let id = notice.notice.id;
        let Some(post) = self.settings.post.clone() else {
            let nobody = Told::Over(Telling::Nobody, None);
            self.metrics.notices.count(Channel::Mail, &nobody);
            return self.store.notice_told(id, Channel::Mail, nobody).await;
        };
        let Ok(turn) = self.notifying.mailing.clone().try_acquire_owned() else {
            let later = Told::Later(self.clock.now() + BUSY, "many other mails are on their way".into());
            return self.store.notice_told(id, Channel::Mail, later).await;
        };
        let (inner, notice) = (self.clone(), notice.clone());
        self.runtime.spawn(async move {
            let left = MAILING.saturating_sub(ticks().saturating_sub(since));
            let told = inner.mail(&post, notice, webhook, left).await;
            inner.metrics.notices.count(Channel::Mail, &told);
            if let Err(error) = inner.store.notice_told(id, Channel::Mail, told).await {
                tracing::warn!(notice_id = %id, %error, "what came of a mail cannot be stored; it is sent again");
            }
            drop(turn);
        });
        Ok(())
    }

    fn note_mail_sent(&self) {
        if self.notifying.mail_stuck.swap(false, Relaxed) {
            tracing::info!("mails to owners go out again");
        }
    }

    async fn mail(
        &self,
        post: &Post,
        notice: StoredNotice,
        webhook: Option<Webhook>,
        left: Duration,
    ) -> Told {
        let (id, tries, tenant) = (notice.notice.id, notice.tries, notice.notice.tenant.clone());
        let (why, never) = match tokio::time::timeout(left, post.0.send(notice, webhook)).await {
            Ok(Ok(Mailed::Sent)) => {
                self.note_mail_sent();
                return Told::Over(Telling::Told, None);
            }
            Ok(Ok(Mailed::SentToSome(why))) => {
                self.note_mail_sent();
                return Told::Over(Telling::Told, Some(why));
            }
            Ok(Ok(Mailed::Suppressed(why))) => {
                tracing::debug!(notice_id = %id, %tenant, reason = why, "notification e-mail suppressed");
                return Told::Over(Telling::Suppressed, Some(why));
            }
            Ok(Ok(Mailed::Unconfirmed)) => {
                let why = "no recipient has confirmed its address";
                return Told::Over(Telling::Nobody, Some(why.into()));
            }
            Ok(Ok(Mailed::Nobody)) => return Told::Over(Telling::Nobody, None),
            Ok(Err(MailError::Later(why))) => (why, false),
            Ok(Err(MailError::Never(why))) => (why, true),
            Err(_) => (format!("not all of its mails were sent within {} s", MAILING.as_secs()), false),
        };
        let why: String = why.chars().filter(|char| *char != '\0').take(ERROR).collect();
        let now = self.clock.now();
        if never || self.clock.confirmed_now().since(id.time()) >= PATIENCE {
            tracing::error!(notice_id = %id, %tenant, error = why, "a notice is not sent as a mail: it is given up on");
            return Told::Over(Telling::GivenUp, Some(why));
        }
        // Of an outage one line is enough; notices have their own state.
        if self.notifying.mail_stuck.swap(true, Relaxed) {
            tracing::debug!(notice_id = %id, %tenant, attempt = tries, error = why, "a mail is sent later");
        } else {
            tracing::warn!(notice_id = %id, %tenant, attempt = tries, error = why, "mails to owners do not go out; they are tried again");
        }
        Told::Later(now + wait_after(tries), why)
    }

    /// Publishes a notice for whoever subscribes to its type; under its id, so that it is published once.
    async fn publish_notice(
        self: &Arc<Self>,
        stored: &StoredNotice,
        webhook: Option<&Webhook>,
    ) -> Result<Told, StoreError> {
        let notice = &stored.notice;
        let nobody = Ok(Told::Over(Telling::Nobody, None));
        // Portal sessions read the tenant's events, and must not see webhooks that the operator manages.
        if webhook.is_some_and(|one| is_operational(&one.spec.events) || one.spec.is_operator_managed()) {
            return nobody;
        }
        let Some(tenant) = self.store.tenant(notice.tenant.clone()).await? else { return nobody };
        let owner = webhook.and_then(|webhook| webhook.spec.owner.as_ref());
        if !(Wishes { tenant: &tenant.rules.notifications, owner }).tells(notice.kind) {
            return nobody;
        }
        let (event_type, subject) = (notice.kind.event_type(), notice.webhook.map(|id| id.to_string()));
        self.registry.refresh(&*self.store, &notice.tenant).await?;
        let wanted = self
            .registry
            .fan_out(&*self.store, &notice.tenant, &event_type, subject.as_deref(), None)
            .await?;
        if wanted.is_none_or(|wanted| wanted.hooks.is_empty()) {
            return nobody;
        }
        let data = match event_data(notice, webhook) {
            Ok(data) => data,
            Err(error) => return Ok(Told::Over(Telling::GivenUp, Some(error.to_string()))),
        };
        let draft = Draft {
            tenant: notice.tenant.clone(),
            event_type: event_type.into(),
            data: data.into(),
            idempotency_key: Some(notice.id.to_string().into()),
            source: Some("redrive".into()),
            subject: subject.map(Into::into),
            metadata: None,
            priority: redrive_core::delivery::lane::Priority::Normal,
            only: None,
            trace: None,
            hops: 0,
        };
        match Engine(self.clone()).publish_own(draft).await {
            // The webhook may have changed between two tries: then it was published as it was.
            Ok(_) | Err(PublishError::KeyReused(_)) => Ok(Told::Over(Telling::Told, None)),
            Err(PublishError::NoTenant) => nobody,
            Err(PublishError::Store(error)) => Err(error),
            Err(error) => Ok(Told::Over(Telling::GivenUp, Some(error.to_string()))),
        }
    }
}

/// How long to wait after so many tries.
fn wait_after(tries: u32) -> Duration {
    let mut backoff = Backoff::default();
    let mut wait = backoff.next(clock::roll());
    for _ in 1..tries.min(100) {
        wait = backoff.next(clock::roll());
    }
    wait
}
