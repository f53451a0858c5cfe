//! A tenant's things as one caller sees them: portal sessions see nothing of webhooks that the operator manages.

use std::{collections::HashSet, ops::Deref};

use redrive_core::{TenantId, WebhookId, webhook::Webhook};
use redrive_store::{DeliveryFilter, PageRequest};

use super::{App, AppError};

/// A tenant, and how much of it a caller sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantView {
    /// The tenant.
    pub id: TenantId,
    /// Whether webhooks that the operator manages do not exist for the caller.
    pub tenant_managed_only: bool,
}

impl TenantView {
    /// Whether the caller sees a webhook.
    pub fn sees(&self, webhook: &Webhook) -> bool {
        webhook.tenant == self.id && !(self.tenant_managed_only && webhook.spec.is_operator_managed())
    }

    /// A filter that leaves out what the caller does not see.
    pub fn restrict(&self, filter: DeliveryFilter) -> DeliveryFilter {
        DeliveryFilter {
            tenant_managed_only: filter.tenant_managed_only || self.tenant_managed_only,
            ..filter
        }
    }
}

impl Deref for TenantView {
    type Target = TenantId;

    fn deref(&self) -> &TenantId {
        &self.id
    }
}

impl From<TenantId> for TenantView {
    /// Everything of a tenant.
    fn from(id: TenantId) -> Self {
        Self { id, tenant_managed_only: false }
    }
}

impl From<&Self> for TenantView {
    fn from(view: &Self) -> Self {
        view.clone()
    }
}

/// A page that is filled from several pages of the store, since the caller does not see all of their rows.
pub(super) struct VisiblePage<T, C> {
    limit: u32,
    next: Option<PageRequest<C>>,
    rows: Vec<T>,
}

impl<T, C: Copy> VisiblePage<T, C> {
    pub(super) fn new(page: PageRequest<C>) -> Self {
        Self { limit: page.limit, next: Some(page), rows: Vec::new() }
    }

    /// The page to read next. Returns `None` once this one is full or nothing follows.
    pub(super) fn next_page(&mut self) -> Option<PageRequest<C>> {
        self.next.take()
    }

    /// Adds what the caller sees of a page of `found` rows, of which `last` is the last.
    pub(super) fn add(&mut self, found: usize, last: Option<C>, visible: Vec<T>) {
        self.rows.extend(visible);
        let limit = self.limit as usize;
        if found >= limit && self.rows.len() < limit {
            self.next = last.map(|last| PageRequest { after: Some(last), offset: 0, limit: self.limit });
        }
        self.rows.truncate(limit);
    }

    pub(super) fn into_rows(self) -> Vec<T> {
        self.rows
    }
}

impl App {
    /// The webhooks of a tenant that the caller does not see, as far as they are not deleted.
    pub(super) async fn hidden_webhooks(&self, view: &TenantView) -> Result<HashSet<WebhookId>, AppError> {
        match view.tenant_managed_only {
            true => Ok(self.engine.operator_webhooks(&view.id).await?),
            false => Ok(HashSet::new()),
        }
    }
}
