//! Renders a notification as an email. Pure: the same notification gives the same email. Text written by tenants
//! never appears in a subject, cannot end a header or start a tag, and is never turned into a link by an email
//! client.

use askama::Template;
use redrive_core::{
    TenantId, Time, WebhookId,
    notification::{
        Notification, NotificationKind,
        confirmation::CONFIRMATION_LINK_TTL,
        mail_text::{body_text, defang, subject_host},
        preferences::Language,
    },
    webhook::Webhook,
};

use super::texts::{MailTexts, fill_placeholders};

/// Maximum length of a text written by a tenant.
const MAX_TEXT_CHARS: usize = 80;
/// Maximum length of the details.
const MAX_DETAILS_CHARS: usize = 500;

/// Context of a notification that the email shows.
#[derive(Clone, Debug)]
pub(crate) struct MailContext {
    /// Tenant of the notification.
    pub(crate) tenant_id: TenantId,
    /// Display name of the tenant.
    pub(crate) tenant_name: Option<String>,
    /// The webhook, if the notification is about one that still exists.
    pub(crate) webhook: Option<WebhookLabel>,
    /// Base URL of links. `None` if it is not known.
    pub(crate) base: Option<String>,
    /// Address of the recipient.
    pub(crate) address: String,
    /// Unsubscribe link for this kind of notification.
    pub(crate) unsubscribe: Option<String>,
}

/// Webhook as shown in an email. It excludes the URL, whose path and query may be a credential.
#[derive(Clone, Debug)]
pub(crate) struct WebhookLabel {
    /// Id of the webhook.
    pub(crate) id: WebhookId,
    /// Description by its owner.
    pub(crate) description: Option<String>,
    /// Host of its URL.
    pub(crate) host: String,
}

impl WebhookLabel {
    /// Creates the label of a webhook.
    pub(crate) fn from_webhook(webhook: &Webhook) -> Self {
        let host = webhook.spec.host().unwrap_or_default();
        Self { id: webhook.id, description: webhook.spec.description.clone(), host }
    }
}

/// Content of an email, without its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mail {
    /// Subject, on one line.
    pub(crate) subject: String,
    /// Plain text part.
    pub(crate) text: String,
    /// HTML part.
    pub(crate) html: String,
}

/// Content that both parts of a notification email have.
struct MailContent<'a> {
    subject: &'a str,
    happened: String,
    details: Vec<(&'static str, String)>,
    what_to_do: &'static str,
    next: &'static str,
    open: &'static str,
    link: Option<String>,
    why_you: String,
    unsubscribe: Option<&'a str>,
    unsubscribe_text: String,
    ask: String,
}

#[derive(Template)]
#[template(path = "mail/notification.txt", escape = "none")]
struct Text<'a> {
    content: &'a MailContent<'a>,
}

#[derive(Template)]
#[template(path = "mail/notification.html")]
struct Html<'a> {
    language: &'static str,
    content: &'a MailContent<'a>,
}

#[derive(Template)]
#[template(path = "mail/confirm.txt", escape = "none")]
struct ConfirmText<'a> {
    content: &'a ConfirmContent<'a>,
}

#[derive(Template)]
#[template(path = "mail/confirm.html")]
struct ConfirmHtml<'a> {
    language: &'static str,
    content: &'a ConfirmContent<'a>,
}

/// Content that both parts of a confirmation email have.
struct ConfirmContent<'a> {
    subject: &'a str,
    requested: String,
    about: String,
    what_to_do: String,
    open: &'static str,
    link: &'a str,
    ignore: &'static str,
}

/// Renders the email that asks the holder of an address to confirm it. Its text is fixed; of the tenant it
/// contains only the id, which has plain characters only.
pub(crate) fn render_confirmation(
    tenant_id: &TenantId,
    base: &str,
    link: &str,
    language: Language,
) -> Result<Mail, askama::Error> {
    let texts = &MailTexts::for_language(language).confirm;
    let host = base.split_once("://").map_or(base, |(_, rest)| rest);
    let host = host.split('/').next().unwrap_or(host);
    let days = (CONFIRMATION_LINK_TTL.as_secs() / (24 * 3600)).to_string();
    let tenant = body_text(tenant_id.as_str(), MAX_TEXT_CHARS);
    let values = [("tenant", tenant.as_str()), ("host", host), ("days", days.as_str())];
    let subject = fill_placeholders(texts.subject, &values);
    let content = ConfirmContent {
        subject: &subject,
        requested: fill_placeholders(texts.requested, &values),
        about: fill_placeholders(texts.about, &values),
        what_to_do: fill_placeholders(texts.what_to_do, &values),
        open: texts.open,
        link,
        ignore: texts.ignore,
    };
    let text = ConfirmText { content: &content }.render()?;
    let html = ConfirmHtml { language: language.code(), content: &content }.render()?;
    Ok(Mail { text, html, subject })
}

/// Renders the email of a notification.
pub(crate) fn render(
    notification: &Notification,
    about: &MailContext,
    language: Language,
) -> Result<Mail, askama::Error> {
    let texts = MailTexts::for_language(language);
    let kind = texts.kind(notification.kind);
    let (webhook, tenant) = (subject_name(notification, about), about.tenant_id.to_string());
    let (count, first, last) = (
        texts.number(notification.count),
        format_minute(notification.first_at),
        format_minute(notification.last_at),
    );
    let values = [
        ("webhook", webhook.as_str()),
        ("tenant", tenant.as_str()),
        ("count", count.as_str()),
        ("first", first.as_str()),
        ("last", last.as_str()),
        ("kind", kind.name),
        ("address", about.address.as_str()),
    ];
    let subject = fill_placeholders(kind.subject.for_count(notification.count), &values);
    // In the body, email clients must not turn the host into a link.
    let defanged = defang(&webhook);
    let values =
        values.map(|(name, value)| (name, if name == "webhook" { defanged.as_str() } else { value }));
    let content = MailContent {
        subject: &subject,
        happened: fill_placeholders(kind.happened.for_count(notification.count), &values),
        details: details(notification, about, texts),
        what_to_do: texts.what_to_do,
        next: kind.next,
        open: texts.open,
        link: link(notification, about),
        why_you: fill_placeholders(texts.why_you, &values),
        unsubscribe: about.unsubscribe.as_deref(),
        unsubscribe_text: fill_placeholders(texts.unsubscribe, &values),
        ask: fill_placeholders(texts.ask, &values),
    };
    let text = Text { content: &content }.render()?;
    let html = Html { language: language.code(), content: &content }.render()?;
    Ok(Mail { text, html, subject })
}

/// Returns the labelled details of a notification.
fn details(
    notification: &Notification,
    about: &MailContext,
    texts: &MailTexts,
) -> Vec<(&'static str, String)> {
    let known = &notification.details;
    let mut rows = Vec::new();
    let mut add = |label, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            rows.push((label, value));
        }
    };
    let webhook = about.webhook.as_ref().map(|webhook| match webhook.host.as_str() {
        "" => webhook.id.to_string(),
        host => format!("{} ({})", body_text(host, MAX_TEXT_CHARS), webhook.id),
    });
    let description = about.webhook.as_ref().and_then(|webhook| webhook.description.as_deref());
    add(texts.webhook, webhook.or(notification.webhook_id.map(|id| id.to_string())));
    add(texts.description, description.map(|text| body_text(text, MAX_TEXT_CHARS)));
    add(texts.tenant, Some(tenant_name(about)));
    add(texts.reason, known.reason.as_deref().map(|name| body_text(texts.reason(name), MAX_TEXT_CHARS)));
    add(texts.details, known.message.as_deref().map(|text| body_text(text, MAX_DETAILS_CHARS)));
    match notification.count {
        0 | 1 => add(texts.when, Some(format_minute(notification.last_at))),
        count => {
            add(texts.how_often, Some(texts.number(count)));
            add(texts.first, Some(format_minute(notification.first_at)));
            add(texts.last, Some(format_minute(notification.last_at)));
        }
    }
    add(texts.event_type, known.event_type.as_deref().map(|name| body_text(name, MAX_TEXT_CHARS)));
    add(texts.delivery, known.delivery_id.map(|id| id.to_string()));
    add(texts.until, known.until.map(format_minute));
    rows
}

/// Returns the link to the dashboard page about the notification.
fn link(notification: &Notification, about: &MailContext) -> Option<String> {
    let base = about.base.as_deref()?;
    let tenant_id = &about.tenant_id;
    Some(match (notification.kind, notification.webhook_id) {
        (NotificationKind::DeliveryDead, Some(webhook_id)) => {
            format!("{base}/dashboard/t/{tenant_id}/dead?webhook_id={webhook_id}")
        }
        (_, Some(webhook_id)) => format!("{base}/dashboard/t/{tenant_id}/webhooks/{webhook_id}"),
        (_, None) => format!("{base}/dashboard/t/{tenant_id}"),
    })
}

/// Returns the name of the webhook for the subject: its host, which comes from a validated URL, or else its id.
fn subject_name(notification: &Notification, about: &MailContext) -> String {
    let host = about.webhook.as_ref().and_then(|webhook| subject_host(&webhook.host));
    let id = || notification.webhook_id.map_or_else(|| about.tenant_id.to_string(), |id| id.to_string());
    host.map_or_else(id, str::to_owned)
}

fn tenant_name(about: &MailContext) -> String {
    let name = about.tenant_name.as_deref().map(|name| body_text(name, MAX_TEXT_CHARS));
    match name.filter(|name| !name.is_empty()) {
        Some(name) => format!("{name} ({})", about.tenant_id),
        None => about.tenant_id.to_string(),
    }
}

/// Formats a time to the minute.
pub(crate) fn format_minute(at: Time) -> String {
    let text = at.to_string();
    match (text.get(..10), text.get(11..16)) {
        (Some(day), Some(time)) => format!("{day} {time} UTC"),
        _ => text,
    }
}

#[cfg(test)]
mod tests;
