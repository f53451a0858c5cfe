//! E-mail to owners: who gets one, what is in it, and sending it. A notice may be sent again, always under the same
//! Message-ID, and never to an address that it is known to have reached. No notice is sent to an address whose holder has
//! not confirmed it, and none beyond the limits.

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
    NoticeId, Time,
    notification::{
        Notice,
        confirmation::{CONFIRMATION_LINK_TTL, MailPolicy},
        mail_limit::MailPurpose,
        preferences::{Language, Wishes},
    },
    protection::limiter::{Bucket, RateLimit},
    security::vault::Vault,
    webhook::Webhook,
};
use redrive_engine::{MailError, Mailed, Mailer, Mailing, clock::Clock};
use redrive_store::{
    MailAddress, MailReservation, MailScope, ReserveResult, Store, StoreError, StoredNotice,
};
use sha2::{Digest, Sha256};

use self::{
    links::{Confirmation, Ending},
    render::{About, AboutWebhook, Mail},
    smtp::{Letter, Trouble, Way},
};
use crate::config::{ConfigError, Smtp};

/// Notices whose recipients are remembered until all of them are served.
const REMEMBERED: usize = 10_000;

/// What became of a notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Posted {
    /// The mail server has taken it for everybody who wants it, but for those it refused for good.
    Sent,
    /// The mail server has taken it for some of those who want it; for the others a limit was reached, which is named.
    SentToSome(String),
    /// It was sent to no recipient: a limit was reached, which is named.
    Suppressed(String),
    /// No recipient has confirmed its address.
    Unconfirmed,
    /// Nobody wants it.
    Nobody,
    /// Every recipient was refused for good.
    Refused(String),
    /// Somebody still has to get it.
    Later(String),
}

/// Sends mails.
pub struct Mails {
    way: Way,
    usual: Language,
    store: Arc<dyn Store>,
    vault: Vault,
    clock: Clock,
    policy: MailPolicy,
    /// How links begin; none if nobody knows.
    base: Option<String>,
    limit: RateLimit,
    bucket: Mutex<Bucket>,
    /// Who has got what already, where somebody else has not.
    reached: Mutex<VecDeque<(NoticeId, BTreeSet<String>)>>,
}

impl Mails {
    /// Mails as they are configured; none if they are off.
    pub fn new(
        config: &Smtp,
        base: Option<String>,
        store: Arc<dyn Store>,
        vault: Vault,
        clock: Clock,
    ) -> Result<Option<Self>, ConfigError> {
        let Some(way) = Way::new(config)? else { return Ok(None) };
        if config.confirm_addresses && base.is_none() {
            return Err(ConfigError::Invalid {
                setting: "smtp.confirm_addresses".into(),
                reason: "needs server.public_url for the link in confirmation e-mails; set it, or set \
                         smtp.confirm_addresses = false if only you name addresses"
                    .into(),
            });
        }
        let limit =
            RateLimit { requests_per_minute: config.max_per_minute, burst: Some(config.max_per_minute) };
        let (bucket, reached) = (Mutex::new(Bucket::full()), Mutex::default());
        let (usual, policy) = (config.language, config.policy());
        Ok(Some(Self { way, usual, store, vault, clock, policy, base, limit, bucket, reached }))
    }

    /// Sends a notice to those who want it.
    pub async fn post(&self, notice: &Notice, webhook: Option<&Webhook>) -> Result<Posted, StoreError> {
        let Some(tenant) = self.store.tenant(notice.tenant.clone()).await? else { return Ok(Posted::Nobody) };
        let owner = webhook.and_then(|webhook| webhook.spec.owner.as_ref());
        let preferences = match webhook.is_some_and(|webhook| webhook.spec.is_operator_managed()) {
            true => tenant.rules.notifications.for_operator_webhook(),
            false => tenant.rules.notifications,
        };
        let wishes = Wishes { tenant: &preferences, owner };
        let all = wishes.recipients(notice.kind, &[]);
        let gone = self.store.unsubscribed(notice.tenant.clone(), notice.kind, all).await?;
        let recipients = wishes.recipients(notice.kind, &gone);
        if recipients.is_empty() {
            return Ok(Posted::Nobody);
        }
        let recipients = self.confirmed(notice, recipients).await?;
        if recipients.is_empty() {
            return Ok(Posted::Unconfirmed);
        }
        let language = wishes.language(self.usual);
        let about = About {
            tenant: tenant.id,
            tenant_name: tenant.name,
            webhook: webhook.map(AboutWebhook::of),
            base: self.base.clone(),
            address: String::new(),
            unsubscribe: None,
        };
        self.send_all(notice, &about, &recipients, language).await
    }

    /// Those of these addresses that may receive notifications of the tenant.
    async fn confirmed(&self, notice: &Notice, addresses: Vec<String>) -> Result<Vec<String>, StoreError> {
        let needs = |address: &String| self.policy.needs_confirmation(address);
        let asked: Vec<String> = addresses.iter().filter(|address| needs(address)).cloned().collect();
        if asked.is_empty() {
            return Ok(addresses);
        }
        let known = self.store.recipient_addresses(notice.tenant.clone(), asked).await?;
        let is_confirmed = |address: &String| {
            known.iter().any(|known| known.address == *address && known.confirmed.is_some())
        };
        Ok(addresses.into_iter().filter(|address| !needs(address) || is_confirmed(address)).collect())
    }

    /// Counts an e-mail against the limits. Returns the limit that is reached in words, if one is.
    async fn reserve(&self, reservation: &MailReservation) -> Result<Option<String>, StoreError> {
        match self.store.reserve_mail(reservation.clone()).await? {
            ReserveResult::Reserved => Ok(None),
            ReserveResult::LimitReached(scope, until) => {
                let (what, settings) = match scope {
                    MailScope::Tenant => ("the tenant has", "smtp.max_per_hour_per_tenant"),
                    MailScope::Mailbox => ("the recipient has", "smtp.max_per_hour_per_address"),
                };
                Ok(Some(format!("{what} reached a limit of e-mails until {until}; see {settings}")))
            }
        }
    }

    fn reservation(&self, notice: &Notice, address: &str) -> MailReservation {
        MailReservation {
            tenant: notice.tenant.clone(),
            address: address.to_owned(),
            purpose: MailPurpose::Notification,
            at: self.clock.now(),
            per_tenant: self.policy.per_tenant,
            per_mailbox: self.policy.per_mailbox,
        }
    }

    async fn send_all(
        &self,
        notice: &Notice,
        about: &About,
        to: &[String],
        language: Language,
    ) -> Result<Posted, StoreError> {
        let (mut refused, mut deferred, mut suppressed) = (Vec::new(), None, Vec::new());
        for address in to {
            if self.has_reached(notice.id, address) {
                continue;
            }
            if let Some(due) = self.take_turn() {
                let why =
                    format!("this node has sent as many mails as smtp.max_per_minute allows until {due}");
                return Ok(Posted::Later(why));
            }
            let reservation = self.reservation(notice, address);
            if let Some(why) = self.reserve(&reservation).await? {
                suppressed.push(why);
                continue;
            }
            let sent = self.send_one(notice, about, address, language).await;
            if matches!(sent, Err(Trouble::Refused(_) | Trouble::Deferred(_) | Trouble::Later(_))) {
                self.store.release_mail(reservation).await?;
            }
            match sent {
                Ok(()) => self.note_reached(notice.id, address),
                Err(Trouble::Refused(why)) => {
                    tracing::warn!(notice_id = %notice.id, tenant = %notice.tenant, recipient = %address, error = %why,
                        "an owner cannot be told by mail: correct or remove the address");
                    self.note_reached(notice.id, address);
                    refused.push(format!("{address}: {why}"));
                }
                // The others must not wait for this one.
                Err(Trouble::Deferred(why)) => deferred = Some(format!("{address}: {why}")),
                // What is wrong with the server is wrong for all.
                Err(Trouble::Later(why) | Trouble::Unknown(why)) => return Ok(Posted::Later(why)),
            }
        }
        if let Some(why) = deferred {
            return Ok(Posted::Later(why));
        }
        self.forget(notice.id);
        Ok(match suppressed.pop() {
            Some(why) if suppressed.len() + 1 == to.len() => Posted::Suppressed(why),
            Some(why) => Posted::SentToSome(why),
            None if refused.len() == to.len() => Posted::Refused(refused.join("; ")),
            None => Posted::Sent,
        })
    }

    /// Asks the holder of an address to confirm it. Returns false if there is nothing to ask.
    async fn ask_to_confirm(&self, address: &MailAddress) -> Result<bool, MailError> {
        let later = |error: StoreError| MailError::Later(error.to_string());
        let tenant = self.store.tenant(address.tenant.clone()).await.map_err(later)?;
        let (Some(tenant), Some(base)) = (tenant, &self.base) else { return Ok(false) };
        if address.confirmed.is_some() {
            return Ok(false);
        }
        if self.take_turn().is_some() {
            return Err(MailError::Later("smtp.max_per_minute is reached".into()));
        }
        let (language, now) = (tenant.rules.notifications.language.unwrap_or(self.usual), self.clock.now());
        let confirmation = Confirmation {
            tenant: tenant.id.clone(),
            address: address.address.clone(),
            language,
            expires_at: now + CONFIRMATION_LINK_TTL,
        };
        let link = format!("{base}/confirm/{}", confirmation.seal(&self.vault));
        let mail = render::render_confirmation(&tenant.id, base, &link, language)
            .map_err(|error| MailError::Never(format!("the e-mail cannot be written: {error}")))?;
        let id = format!("confirm-{}", now.millis());
        let letter = Letter {
            to: &address.address,
            mail: &mail,
            id: &format!("{id}.{}", short_digest(&address.address)),
            at: now,
            unsubscribe: None,
        };
        match self.way.send(&letter).await {
            Ok(()) => Ok(true),
            Err(Trouble::Deferred(why) | Trouble::Later(why)) => Err(MailError::Later(why)),
            Err(Trouble::Refused(why) | Trouble::Unknown(why)) => Err(MailError::Never(why)),
        }
    }

    async fn send_one(
        &self,
        notice: &Notice,
        about: &About,
        address: &str,
        language: Language,
    ) -> Result<(), Trouble> {
        let ending = Ending {
            tenant: notice.tenant.clone(),
            kind: notice.kind,
            address: address.to_owned(),
            language,
        };
        let link = |base: &String| format!("{base}/unsubscribe/{}", ending.seal(&self.vault));
        let unsubscribe = self.base.as_ref().map(link);
        let about = About { address: address.to_owned(), unsubscribe: unsubscribe.clone(), ..about.clone() };
        let mail = render::render(notice, &about, language)
            .map_err(|error| Trouble::Refused(format!("the mail cannot be written: {error}")))?;
        let letter = Letter {
            to: address,
            mail: &mail,
            id: &message_id(notice.id, address),
            at: self.clock.now(),
            unsubscribe: unsubscribe.as_deref(),
        };
        self.way.send(&letter).await
    }

    /// Takes a turn; or gives when the next one is.
    fn take_turn(&self) -> Option<Time> {
        let (mut bucket, now) = (self.bucket.lock(), self.clock.now());
        let due = bucket.due(&self.limit, now);
        if due.is_none() {
            bucket.take(&self.limit, now);
        }
        due
    }

    fn has_reached(&self, notice: NoticeId, address: &str) -> bool {
        let reached = self.reached.lock();
        reached.iter().any(|(id, addresses)| *id == notice && addresses.contains(address))
    }

    fn note_reached(&self, notice: NoticeId, address: &str) {
        let mut reached = self.reached.lock();
        match reached.iter_mut().find(|(id, _)| *id == notice) {
            Some((_, addresses)) => drop(addresses.insert(address.to_owned())),
            None => {
                if reached.len() == REMEMBERED {
                    reached.pop_front();
                }
                reached.push_back((notice, BTreeSet::from([address.to_owned()])));
            }
        }
    }

    fn forget(&self, notice: NoticeId) {
        self.reached.lock().retain(|(id, _)| *id != notice);
    }
}

impl Mailer for Mails {
    fn send(&self, notice: StoredNotice, webhook: Option<Webhook>) -> Mailing<'_> {
        Box::pin(async move {
            match self.post(&notice.notice, webhook.as_ref()).await {
                Ok(Posted::Sent) => Ok(Mailed::Sent),
                Ok(Posted::SentToSome(why)) => Ok(Mailed::SentToSome(why)),
                Ok(Posted::Suppressed(why)) => Ok(Mailed::Suppressed(why)),
                Ok(Posted::Unconfirmed) => Ok(Mailed::Unconfirmed),
                Ok(Posted::Nobody) => Ok(Mailed::Nobody),
                Ok(Posted::Refused(why)) => Err(MailError::Never(why)),
                Ok(Posted::Later(why)) => Err(MailError::Later(why)),
                Err(error) => Err(MailError::Later(error.to_string())),
            }
        })
    }

    fn send_confirmation(&self, address: MailAddress) -> Mailing<'_> {
        Box::pin(async move {
            Ok(if self.ask_to_confirm(&address).await? { Mailed::Sent } else { Mailed::Nobody })
        })
    }

    fn policy(&self) -> &MailPolicy {
        &self.policy
    }
}

/// The same for every try, and another for each recipient.
fn message_id(notice: NoticeId, address: &str) -> String {
    format!("{notice}.{}", short_digest(address))
}

fn short_digest(address: &str) -> String {
    let digest = Sha256::digest(address.as_bytes());
    digest[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Sends a mail to somebody who wants to know whether mails arrive. Says what is wrong if it does not go out.
pub(crate) async fn send_test(config: &Smtp, to: &str, clock: &Clock) -> Result<String, String> {
    let way = Way::new(config).map_err(|error| error.to_string())?;
    let Some(way) = way else {
        return Err("mails are off: set smtp.host and smtp.from; see docs/notifications.md".into());
    };
    let text = "This is a test of Redrive. If you can read it, owners can be told of trouble by mail.";
    let mail = Mail {
        subject: "Redrive can send mails".into(),
        text: format!("{text}\n"),
        html: format!("<!doctype html><meta name=\"color-scheme\" content=\"light dark\"><p>{text}</p>"),
    };
    let now = clock.now();
    let id = format!("test-{}", now.millis());
    match way.send(&Letter { to, mail: &mail, id: &id, at: now, unsubscribe: None }).await {
        Ok(()) => Ok(way.from().to_string()),
        Err(Trouble::Refused(why) | Trouble::Deferred(why) | Trouble::Later(why) | Trouble::Unknown(why)) => {
            Err(why)
        }
    }
}
