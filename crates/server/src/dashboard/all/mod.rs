//! Pages over all tenants, for admins: the overview, and lists with a tenant column and filter. Rows lead to the
//! pages of their tenant.

mod deliveries;
mod notifications;
mod overview;
mod webhooks;

use std::collections::BTreeMap;

use redrive_core::{TenantId, WebhookId};

pub(super) use self::{
    deliveries::{dead, list as deliveries},
    notifications::list as notifications,
    overview::page as overview,
    webhooks::list as webhooks,
};
use super::{page::PageError, viewer::AllTenantsViewer, webhook_names::Names};
use crate::{
    api::AppState,
    app::{TenantSelection, across_tenants::read_each, auth::ALL_TENANTS},
};

/// Rows on one page.
const PAGE_SIZE: u32 = 25;

/// Returns the tenants of a list: the one in its filter, or all.
async fn selected_tenants(
    app: &AppState,
    viewer: &AllTenantsViewer,
    filter: &str,
) -> Result<TenantSelection, PageError> {
    let named = match filter.trim() {
        "" => ALL_TENANTS.to_owned(),
        // Ids of tenants are lower case.
        named => named.to_lowercase(),
    };
    Ok(app.resolve_tenants(viewer.actor(), Some(&named)).await?)
}

/// Loads the names of webhooks of several tenants, with one call per tenant.
async fn webhook_names(
    app: &AppState,
    webhooks: impl IntoIterator<Item = (&TenantId, WebhookId)>,
) -> Result<Names, PageError> {
    let mut by_tenant: BTreeMap<&TenantId, Vec<WebhookId>> = BTreeMap::new();
    for (tenant_id, webhook_id) in webhooks {
        by_tenant.entry(tenant_id).or_default().push(webhook_id);
    }
    let load = by_tenant.into_iter().map(|(tenant_id, ids)| async move {
        let view = tenant_id.clone().into();
        Names::load(app, &view, ids).await
    });
    Ok(read_each(load).await?.into_iter().collect())
}
