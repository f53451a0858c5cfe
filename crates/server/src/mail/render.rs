//! From a notice to a mail: pure, and the same for the same notice. What tenants wrote is never in a subject, can neither
//! end a header nor begin a tag, and is nothing that an e-mail client makes a link of.

use askama::Template;
use redrive_core::{
    TenantId, Time, WebhookId,
    notification::{
        Kind, Notice,
        confirmation::CONFIRMATION_LINK_TTL,
        mail_text::{body_text, defang, subject_host},
        preferences::Language,
    },
    webhook::Webhook,
};

use super::texts::{Words, filled};

/// The longest piece of something that a tenant wrote.
const LONGEST: usize = 80;
/// The longest explanation.
const LONGEST_DETAILS: usize = 500;

/// What a notice is about, as far as a mail tells it.
#[derive(Clone, Debug)]
pub(crate) struct About {
    /// Whose it is.
    pub(crate) tenant: TenantId,
    /// What people call the tenant.
    pub(crate) tenant_name: Option<String>,
    /// The webhook, if it is about one that is still known.
    pub(crate) webhook: Option<AboutWebhook>,
    /// How links begin; none if nobody knows.
    pub(crate) base: Option<String>,
    /// Who is written to.
    pub(crate) address: String,
    /// The link that ends mails of this kind.
    pub(crate) unsubscribe: Option<String>,
}

/// What a mail tells of a webhook. Not its URL: the rest behind the host may be as good as a password.
#[derive(Clone, Debug)]
pub(crate) struct AboutWebhook {
    /// Its id.
    pub(crate) id: WebhookId,
    /// What it is for, in its owner's words.
    pub(crate) description: Option<String>,
    /// Where it is.
    pub(crate) host: String,
}

impl AboutWebhook {
    /// What a mail tells of this one.
    pub(crate) fn of(webhook: &Webhook) -> Self {
        let host = webhook.spec.host().unwrap_or_default();
        Self { id: webhook.id, description: webhook.spec.description.clone(), host }
    }
}

/// A mail without its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mail {
    /// One line.
    pub(crate) subject: String,
    /// For those who read plain text.
    pub(crate) text: String,
    /// For all others.
    pub(crate) html: String,
}

/// What both forms of a mail say.
struct Said<'a> {
    subject: &'a str,
    happened: String,
    facts: Vec<(&'static str, String)>,
    what_to_do: &'static str,
    next: &'static str,
    open: &'static str,
    link: Option<String>,
    why_you: String,
    unsubscribe: Option<&'a str>,
    unsubscribe_words: String,
    ask: String,
}

#[derive(Template)]
#[template(path = "mail/notification.txt", escape = "none")]
struct Text<'a> {
    said: &'a Said<'a>,
}

#[derive(Template)]
#[template(path = "mail/notification.html")]
struct Html<'a> {
    language: &'static str,
    said: &'a Said<'a>,
}

#[derive(Template)]
#[template(path = "mail/confirm.txt", escape = "none")]
struct ConfirmText<'a> {
    said: &'a ConfirmSaid<'a>,
}

#[derive(Template)]
#[template(path = "mail/confirm.html")]
struct ConfirmHtml<'a> {
    language: &'static str,
    said: &'a ConfirmSaid<'a>,
}

/// What both forms of a confirmation e-mail say.
struct ConfirmSaid<'a> {
    subject: &'a str,
    asked: String,
    about: String,
    what_to_do: String,
    open: &'static str,
    link: &'a str,
    ignore: &'static str,
}

/// Writes the e-mail that asks the holder of an address to confirm it. Its words are fixed; of the tenant it names the id
/// alone, which is made of plain characters only.
pub(crate) fn render_confirmation(
    tenant: &TenantId,
    base: &str,
    link: &str,
    language: Language,
) -> Result<Mail, askama::Error> {
    let words = &Words::of(language).confirm;
    let host = base.split_once("://").map_or(base, |(_, rest)| rest);
    let host = host.split('/').next().unwrap_or(host);
    let days = (CONFIRMATION_LINK_TTL.as_secs() / (24 * 3600)).to_string();
    let tenant = body_text(tenant.as_str(), LONGEST);
    let gaps = [("tenant", tenant.as_str()), ("host", host), ("days", days.as_str())];
    let subject = filled(words.subject, &gaps);
    let said = ConfirmSaid {
        subject: &subject,
        asked: filled(words.asked, &gaps),
        about: filled(words.about, &gaps),
        what_to_do: filled(words.what_to_do, &gaps),
        open: words.open,
        link,
        ignore: words.ignore,
    };
    let text = ConfirmText { said: &said }.render()?;
    let html = ConfirmHtml { language: language.code(), said: &said }.render()?;
    Ok(Mail { text, html, subject })
}

/// Writes the mail.
pub(crate) fn render(notice: &Notice, about: &About, language: Language) -> Result<Mail, askama::Error> {
    let words = Words::of(language);
    let kind = words.kind(notice.kind);
    let (webhook, tenant) = (subject_name(notice, about), about.tenant.to_string());
    let (count, first, last) = (words.number(notice.count), moment(notice.first_at), moment(notice.last_at));
    let gaps = [
        ("webhook", webhook.as_str()),
        ("tenant", tenant.as_str()),
        ("count", count.as_str()),
        ("first", first.as_str()),
        ("last", last.as_str()),
        ("kind", kind.name),
        ("address", about.address.as_str()),
    ];
    let subject = filled(kind.subject.of(notice.count), &gaps);
    // In the body a host must not become a link.
    let defanged = defang(&webhook);
    let gaps = gaps.map(|(name, value)| (name, if name == "webhook" { defanged.as_str() } else { value }));
    let said = Said {
        subject: &subject,
        happened: filled(kind.happened.of(notice.count), &gaps),
        facts: facts(notice, about, words),
        what_to_do: words.what_to_do,
        next: kind.next,
        open: words.open,
        link: link(notice, about),
        why_you: filled(words.why_you, &gaps),
        unsubscribe: about.unsubscribe.as_deref(),
        unsubscribe_words: filled(words.unsubscribe, &gaps),
        ask: filled(words.ask, &gaps),
    };
    let text = Text { said: &said }.render()?;
    let html = Html { language: language.code(), said: &said }.render()?;
    Ok(Mail { text, html, subject })
}

fn facts(notice: &Notice, about: &About, words: &Words) -> Vec<(&'static str, String)> {
    let known = &notice.facts;
    let mut facts = Vec::new();
    let mut add = |label, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            facts.push((label, value));
        }
    };
    let webhook = about.webhook.as_ref().map(|webhook| match webhook.host.as_str() {
        "" => webhook.id.to_string(),
        host => format!("{} ({})", body_text(host, LONGEST), webhook.id),
    });
    let description = about.webhook.as_ref().and_then(|webhook| webhook.description.as_deref());
    add(words.webhook, webhook.or(notice.webhook.map(|id| id.to_string())));
    add(words.description, description.map(|text| body_text(text, LONGEST)));
    add(words.tenant, Some(tenant_name(about)));
    add(words.reason, known.reason.as_deref().map(|name| body_text(words.reason(name), LONGEST)));
    add(words.details, known.message.as_deref().map(|text| body_text(text, LONGEST_DETAILS)));
    match notice.count {
        0 | 1 => add(words.when, Some(moment(notice.last_at))),
        count => {
            add(words.how_often, Some(words.number(count)));
            add(words.first, Some(moment(notice.first_at)));
            add(words.last, Some(moment(notice.last_at)));
        }
    }
    add(words.event_type, known.event_type.as_deref().map(|name| body_text(name, LONGEST)));
    add(words.delivery, known.delivery.map(|id| id.to_string()));
    add(words.until, known.until.map(moment));
    facts
}

/// The page of the dashboard to look at.
fn link(notice: &Notice, about: &About) -> Option<String> {
    let base = about.base.as_deref()?;
    let tenant = &about.tenant;
    Some(match (notice.kind, notice.webhook) {
        (Kind::DeliveryDead, Some(webhook)) => {
            format!("{base}/dashboard/t/{tenant}/dead?webhook_id={webhook}")
        }
        (_, Some(webhook)) => format!("{base}/dashboard/t/{tenant}/webhooks/{webhook}"),
        (_, None) => format!("{base}/dashboard/t/{tenant}"),
    })
}

/// What a subject calls the webhook: its host, which is part of a checked URL, or else its id.
fn subject_name(notice: &Notice, about: &About) -> String {
    let host = about.webhook.as_ref().and_then(|webhook| subject_host(&webhook.host));
    let id = || notice.webhook.map_or_else(|| about.tenant.to_string(), |id| id.to_string());
    host.map_or_else(id, str::to_owned)
}

fn tenant_name(about: &About) -> String {
    let name = about.tenant_name.as_deref().map(|name| body_text(name, LONGEST));
    match name.filter(|name| !name.is_empty()) {
        Some(name) => format!("{name} ({})", about.tenant),
        None => about.tenant.to_string(),
    }
}

/// A time to the minute.
pub(crate) fn moment(at: Time) -> String {
    let text = at.to_string();
    match (text.get(..10), text.get(11..16)) {
        (Some(day), Some(time)) => format!("{day} {time} UTC"),
        _ => text,
    }
}

#[cfg(test)]
mod tests;
