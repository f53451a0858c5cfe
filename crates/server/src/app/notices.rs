//! What owners were told.

use redrive_core::NoticeId;
use redrive_store::{PageRequest, StoredNotice};

use super::{App, AppError, TenantView, view::VisiblePage};

impl App {
    /// A tenant's notices, newest first.
    pub async fn list_notices(
        &self,
        tenant: impl Into<TenantView>,
        page: PageRequest<NoticeId>,
    ) -> Result<Vec<StoredNotice>, AppError> {
        let view = tenant.into();
        let mut visible = VisiblePage::new(page);
        while let Some(page) = visible.next_page() {
            let mut found = self.store().list_notices(view.id.clone(), page).await?;
            let (count, last) = (found.len(), found.last().map(|one| one.notice.id));
            if view.tenant_managed_only {
                let named = found.iter().filter_map(|one| one.notice.webhook).collect();
                let seen = self.names(&view, named).await?;
                found.retain(|one| one.notice.webhook.is_none_or(|webhook| seen.contains_key(&webhook)));
            }
            visible.add(count, last, found);
        }
        Ok(visible.into_rows())
    }
}
