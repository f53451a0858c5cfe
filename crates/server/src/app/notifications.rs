//! Notifications to owners.

use redrive_core::NotificationId;
use redrive_store::{ListingPage, PageRequest, StoredNotification};

use super::{App, AppError, TenantSelection, view::VisiblePage};

impl App {
    /// Lists notifications, newest first.
    pub async fn list_notifications(
        &self,
        tenants: impl Into<TenantSelection>,
        page: PageRequest<NotificationId>,
    ) -> Result<ListingPage<StoredNotification, NotificationId>, AppError> {
        let view = match tenants.into() {
            TenantSelection::One(view) => view,
            TenantSelection::All(all) => {
                let found = self.read_all_notifications(all, page).await?;
                return Ok(ListingPage { found, stopped: None });
            }
        };
        if !view.tenant_managed_only {
            let found = self.store().list_notifications(view.id, page).await?;
            return Ok(ListingPage { found, stopped: None });
        }
        let mut visible = VisiblePage::new(page);
        while let Some(round) = visible.next_round() {
            let mut found = self.store().list_notifications(view.id.clone(), round).await?;
            let (count, last) = (found.len(), found.last().map(|one| one.notification.id));
            let named = found.iter().filter_map(|one| one.notification.webhook_id).collect();
            let visible_names = self.webhook_names(&view, named).await?;
            found.retain(|one| {
                one.notification.webhook_id.is_none_or(|webhook_id| visible_names.contains_key(&webhook_id))
            });
            visible.add(count, last, found);
        }
        Ok(visible.finish()?)
    }
}
