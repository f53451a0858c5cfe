//! Webhooks on the pages of other rooms: shown by their URLs, and chosen by them in filters.

use std::collections::HashMap;

use redrive_core::WebhookId;
use redrive_store::PageRequest;

use super::{format, page::Failed};
use crate::app::{App, TenantView, webhook_names::Named};

/// The most webhooks that a filter lists.
const CHOICES: u32 = 100;
/// How much of a URL is shown in a table.
const SHOWN: usize = 60;

/// What the webhooks of a page are called.
pub(super) struct Names(HashMap<WebhookId, Named>);

impl Names {
    /// Looks all of them up at once.
    pub(super) async fn of(
        app: &App,
        tenant: &TenantView,
        ids: impl IntoIterator<Item = WebhookId>,
    ) -> Result<Self, Failed> {
        let ids = ids.into_iter().collect();
        Ok(Self(app.names(tenant, ids).await?))
    }

    /// The URL as a table shows it.
    pub(super) fn short(&self, id: &WebhookId) -> String {
        match self.0.get(id) {
            Some(named) => format::shortened(bare(&named.url), SHOWN),
            None => format::short_id(id),
        }
    }

    /// The whole URL, or the id where there is none.
    pub(super) fn long(&self, id: &WebhookId) -> String {
        self.0.get(id).map_or_else(|| id.to_string(), |named| named.url.clone())
    }

    /// Whether it has a page of its own.
    pub(super) fn is_there(&self, id: &WebhookId) -> bool {
        self.0.get(id).is_some_and(|named| !named.is_deleted())
    }
}

/// A URL as a table shows it: what all of them begin with tells nobody anything.
fn bare(url: &str) -> &str {
    url.strip_prefix("https://").unwrap_or(url)
}

/// What a filter by webhook offers.
pub(super) struct Choices {
    /// Ids, with what is shown for each.
    pub(super) options: Vec<(String, String)>,
    /// Whether there are more than are listed: then an id can be typed, too.
    pub(super) more: bool,
}

impl Choices {
    /// A tenant's webhooks, and whatever was chosen.
    pub(super) async fn of(app: &App, tenant: &TenantView, chosen: &str) -> Result<Self, Failed> {
        let page = PageRequest { after: None, offset: 0, limit: CHOICES + 1 };
        let mut found = app.list_webhooks(tenant.clone(), page).await?;
        let more = found.len() > CHOICES as usize;
        found.truncate(CHOICES as usize);
        let mut options: Vec<_> = found
            .into_iter()
            .map(|webhook| (webhook.id.to_string(), format::shortened(bare(&webhook.spec.url), SHOWN)))
            .collect();
        options.sort_by(|(_, a), (_, b)| a.cmp(b));
        if !chosen.is_empty() && !options.iter().any(|(id, _)| id == chosen) {
            let ids = chosen.split(',').filter_map(|id| id.parse().ok());
            let names = Names::of(app, tenant, ids).await?;
            let label = match chosen.parse() {
                Ok(id) => names.short(&id),
                Err(_) => format!("{} webhooks", chosen.split(',').count()),
            };
            options.insert(0, (chosen.to_owned(), label));
        }
        Ok(Self { options, more })
    }
}
