//! Names of webhooks on other pages: their URLs, in tables and as filter options.

use std::collections::HashMap;

use redrive_core::WebhookId;
use redrive_store::PageRequest;

use super::{format, page::PageError};
use crate::app::{App, TenantSelection, TenantView, webhook_names::WebhookName};

/// Maximum number of webhooks in a filter's list.
const MAX_CHOICES: u32 = 100;
/// Maximum number of characters of a URL in a table.
const MAX_URL_CHARS: usize = 60;

/// Names of the webhooks on a page.
pub(super) struct Names(HashMap<WebhookId, WebhookName>);

impl Names {
    /// Loads the names of all these webhooks with one call.
    pub(super) async fn load(
        app: &App,
        tenants: impl Into<TenantSelection>,
        ids: impl IntoIterator<Item = WebhookId>,
    ) -> Result<Self, PageError> {
        let ids = ids.into_iter().collect();
        Ok(Self(app.webhook_names(tenants, ids).await?))
    }

    /// Returns the shortened URL, for tables.
    pub(super) fn short(&self, id: &WebhookId) -> String {
        match self.0.get(id) {
            Some(named) => format::shortened(bare(&named.url), MAX_URL_CHARS),
            None => format::short_id(id),
        }
    }

    /// Returns the whole URL, or the id if the URL is not known.
    pub(super) fn long(&self, id: &WebhookId) -> String {
        self.0.get(id).map_or_else(|| id.to_string(), |named| named.url.clone())
    }

    /// Returns whether the webhook exists, and so has a page.
    pub(super) fn exists(&self, id: &WebhookId) -> bool {
        self.0.get(id).is_some_and(|named| !named.is_deleted())
    }
}

/// Removes `https://`, which most URLs start with.
fn bare(url: &str) -> &str {
    url.strip_prefix("https://").unwrap_or(url)
}

/// Options of a filter by webhook.
pub(super) struct Choices {
    /// Ids with their labels.
    pub(super) options: Vec<(String, String)>,
    /// Whether there are more webhooks than listed; then an id can be typed too.
    pub(super) more: bool,
}

impl Choices {
    /// Lists a tenant's webhooks, and the chosen ones if they are not among them.
    pub(super) async fn load(app: &App, tenant: &TenantView, chosen: &str) -> Result<Self, PageError> {
        let page = PageRequest { after: None, offset: 0, limit: MAX_CHOICES + 1 };
        let mut found = app.list_webhooks(tenant.clone(), page).await?;
        let more = found.len() > MAX_CHOICES as usize;
        found.truncate(MAX_CHOICES as usize);
        let mut options: Vec<_> = found
            .into_iter()
            .map(|webhook| {
                (webhook.id.to_string(), format::shortened(bare(&webhook.spec.url), MAX_URL_CHARS))
            })
            .collect();
        options.sort_by(|(_, a), (_, b)| a.cmp(b));
        if !chosen.is_empty() && !options.iter().any(|(id, _)| id == chosen) {
            let ids = chosen.split(',').filter_map(|id| id.parse().ok());
            let names = Names::load(app, tenant, ids).await?;
            let label = match chosen.parse() {
                Ok(id) => names.short(&id),
                Err(_) => format!("{} webhooks", chosen.split(',').count()),
            };
            options.insert(0, (chosen.to_owned(), label));
        }
        Ok(Self { options, more })
    }
}
