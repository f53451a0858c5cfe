//! Pages over all tenants, for admins: the overview, and lists with a tenant column and filter. Rows lead to the
//! pages of their tenant.

mod deliveries;
mod notifications;
mod overview;
mod webhooks;

pub(super) use self::{
    deliveries::{dead, list as deliveries},
    notifications::list as notifications,
    overview::page as overview,
    webhooks::list as webhooks,
};
use super::{page::PageError, viewer::AllTenantsViewer};
use crate::{
    api::AppState,
    app::{TenantSelection, auth::ALL_TENANTS},
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
