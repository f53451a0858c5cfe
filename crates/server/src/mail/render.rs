//! From a notice to a mail: pure, and the same for the same notice. What tenants wrote can neither end a header nor
//! begin a tag.

use askama::Template;
use redrive_core::{
    TenantId, Time, WebhookId,
    notice::{Kind, Notice, preferences::Language},
    webhook::Webhook,
};

use super::words::{Words, filled};

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
#[template(path = "mail/notice.txt", escape = "none")]
struct Text<'a> {
    said: &'a Said<'a>,
}

#[derive(Template)]
#[template(path = "mail/notice.html")]
struct Html<'a> {
    language: &'static str,
    said: &'a Said<'a>,
}

/// Writes the mail.
pub(crate) fn render(notice: &Notice, about: &About, language: Language) -> Result<Mail, askama::Error> {
    let words = Words::of(language);
    let kind = words.kind(notice.kind);
    let (webhook, tenant) = (name_of(notice, about), tenant_name(about));
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
        host => format!("{} ({})", one_line(host, LONGEST), webhook.id),
    });
    add(words.webhook, webhook.or(notice.webhook.map(|id| id.to_string())));
    add(words.tenant, Some(tenant_name(about)));
    add(words.reason, known.reason.as_deref().map(|name| one_line(words.reason(name), LONGEST)));
    add(words.details, known.message.as_deref().map(|text| one_line(text, LONGEST_DETAILS)));
    match notice.count {
        0 | 1 => add(words.when, Some(moment(notice.last_at))),
        count => {
            add(words.how_often, Some(words.number(count)));
            add(words.first, Some(moment(notice.first_at)));
            add(words.last, Some(moment(notice.last_at)));
        }
    }
    add(words.event_type, known.event_type.as_deref().map(|name| one_line(name, LONGEST)));
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

/// What people call the webhook: by what it is for, or else by where it is.
fn name_of(notice: &Notice, about: &About) -> String {
    let said = |webhook: &AboutWebhook| {
        let description = webhook.description.as_deref().map(|text| one_line(text, LONGEST));
        let description = description.filter(|text| !text.is_empty());
        description.unwrap_or_else(|| one_line(&webhook.host, LONGEST))
    };
    let named = about.webhook.as_ref().map(said).filter(|name| !name.is_empty());
    named.or(notice.webhook.map(|id| id.to_string())).unwrap_or_else(|| tenant_name(about))
}

fn tenant_name(about: &About) -> String {
    let name = about.tenant_name.as_deref().map(|name| one_line(name, LONGEST));
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| about.tenant.to_string())
}

/// A time to the minute.
pub(crate) fn moment(at: Time) -> String {
    let text = at.to_string();
    match (text.get(..10), text.get(11..16)) {
        (Some(day), Some(time)) => format!("{day} {time} UTC"),
        _ => text,
    }
}

/// What somebody wrote, in one line: no control characters, and none that turn the direction of writing.
pub(crate) fn one_line(text: &str, most: usize) -> String {
    let turns =
        |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let breaks = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    let plain: String =
        text.chars().filter(|c| !turns(*c)).map(|c| if breaks(c) { ' ' } else { c }).collect();
    let plain = plain.trim();
    match plain.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", plain[..end].trim_end()),
        None => plain.to_owned(),
    }
}

#[cfg(test)]
mod tests;
