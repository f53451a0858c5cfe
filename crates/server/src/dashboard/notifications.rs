//! Notifications page of a tenant: what was sent to its owners, and who is notified about what.

use std::collections::BTreeSet;

use askama::Template;
use axum::extract::State;
use redrive_core::notification::{
    NotificationKind,
    preferences::{Language, TenantPreferences},
};
use redrive_store::{ChannelStatus, PageRequest, StoredNotification, Unsubscription};
use serde_json::json;

use super::{
    PageResult, format, outcome_text,
    page::{FormQuery, Html, PageContext},
    viewer::TenantViewer,
    webhook_names::Names,
};
use crate::{
    api::{AppState, Paging},
    app::confirmations::{AddressState, AddressStatus},
    mail::texts::MailTexts,
};

/// Rows on one page.
const PAGE_SIZE: u32 = 25;
/// Maximum number of unsubscribed addresses shown.
const MAX_UNSUBSCRIBED: u32 = 50;

/// Maximum number of characters shown of a message.
const MAX_MESSAGE_CHARS: usize = 300;

/// A notification in a list.
pub(super) struct NotificationRow {
    pub(super) stored: StoredNotification,
    /// Recipients of its email; empty if they are not known.
    pub(super) recipients: String,
}

impl NotificationRow {
    pub(super) fn kind(&self) -> &'static str {
        kind_name(&self.stored.notification.kind)
    }

    /// Returns the channels with their status.
    pub(super) fn channels(&self) -> [(&'static str, ChannelStatus); 2] {
        [("Email", self.stored.email_status), ("Webhook event", self.stored.webhook_status)]
    }

    /// Returns the message of the last occurrence, with its times in the time zone of the page. Empty if there is none.
    pub(super) fn message(&self) -> String {
        let message = self.stored.notification.details.message.as_deref().unwrap_or_default();
        format::shortened(&outcome_text::format_times(message), MAX_MESSAGE_CHARS)
    }
}

/// Returns the name of a kind, as in the subject of its email.
fn kind_name(kind: &NotificationKind) -> &'static str {
    MailTexts::for_language(Language::En).kind(*kind).name
}

/// Describes whom an email goes to, as configured now: the owner of the webhook and the addresses of the tenant. Empty
/// if it has no recipients.
fn describe_recipients(status: ChannelStatus, owner: Option<&str>, has_addresses: bool) -> String {
    if status == ChannelStatus::NoRecipients {
        return String::new();
    }
    let tenant = has_addresses.then_some("the addresses of the tenant");
    owner.into_iter().chain(tenant).collect::<Vec<_>>().join(" and ")
}

/// Returns the color of a channel's status.
pub(super) fn channel_tone(status: &ChannelStatus) -> &'static str {
    match status {
        ChannelStatus::Sent => "good",
        ChannelStatus::Pending => "busy",
        ChannelStatus::NoRecipients => "off",
        ChannelStatus::Suppressed => "waiting",
        ChannelStatus::Failed => "bad",
    }
}

#[derive(Template)]
#[template(path = "notifications.html")]
struct NotificationsPage {
    layout: PageContext,
    query: FormQuery<Paging>,
    rows: Vec<NotificationRow>,
    names: Names,
    next: Option<String>,
    preferences: TenantPreferences,
    addresses: Vec<AddressState>,
    unsubscribed: Vec<Unsubscription>,
}

impl NotificationsPage {
    /// Returns the body of the call that requests another confirmation email.
    fn confirmation_body(&self, address: &AddressState) -> String {
        json!({"email": address.address}).to_string()
    }
}

/// Renders the page.
pub(super) async fn page(
    State(app): State<AppState>,
    viewer: TenantViewer,
    query: FormQuery<Paging>,
) -> PageResult {
    let tenant = viewer.tenant.clone();
    let paging = query.query.clone().or_limit(PAGE_SIZE);
    let found = app.list_notifications(tenant.clone(), paging.request()?).await?;
    let listed = paging.page_of(found, |one| one.notification.id, |one| one);
    let next = listed.next_cursor.map(|cursor| query.with("cursor", &cursor));
    let webhook_ids: BTreeSet<_> = listed.data.iter().filter_map(|one| one.notification.webhook_id).collect();
    let names = Names::load(&app, &tenant, webhook_ids.iter().copied()).await?;
    let owners = app.owner_emails(&tenant, webhook_ids).await?;
    let preferences = app.notification_preferences(tenant.id.clone()).await?;
    let has_addresses = !preferences.emails.is_empty();
    let rows = listed.data.into_iter().map(|stored| {
        let owner = stored.notification.webhook_id.and_then(|id| owners.get(&id));
        let recipients = describe_recipients(stored.email_status, owner.map(String::as_str), has_addresses);
        NotificationRow { stored, recipients }
    });
    let rows = rows.collect();
    let named = preferences.emails.iter().map(String::as_str);
    let addresses = app.address_states(tenant.id.clone(), named).await?;
    let first = PageRequest { after: None, offset: 0, limit: MAX_UNSUBSCRIBED };
    let unsubscribed = app.list_unsubscribed(tenant.id, first).await?;
    let layout = viewer.layout("notifications");
    Html::render(&NotificationsPage {
        layout,
        query,
        rows,
        names,
        next,
        preferences,
        addresses,
        unsubscribed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipients_are_the_owner_and_the_addresses_of_the_tenant() {
        let sent = |owner, has_addresses| describe_recipients(ChannelStatus::Sent, owner, has_addresses);
        assert_eq!(sent(Some("jane@example.com"), true), "jane@example.com and the addresses of the tenant");
        assert_eq!(sent(Some("jane@example.com"), false), "jane@example.com");
        assert_eq!(sent(None, true), "the addresses of the tenant");
        assert_eq!(describe_recipients(ChannelStatus::NoRecipients, Some("jane@example.com"), true), "");
    }
}
