//! Notifications that owners were sent.

use redrive_core::NoticeId;
use redrive_store::{Listed, PageRequest, StoredNotice};

use super::{App, AppError, TenantView, view::VisiblePage};

impl App {
    /// A tenant's notifications, newest first.
    pub async fn list_notices(
        &self,
        tenant: impl Into<TenantView>,
        page: PageRequest<NoticeId>,
    ) -> Result<Listed<StoredNotice, NoticeId>, AppError> {
        let view = tenant.into();
        if !view.tenant_managed_only {
            let found = self.store().list_notices(view.id, page).await?;
            return Ok(Listed { found, stopped: None });
        }
        let mut visible = VisiblePage::new(page);
        while let Some(round) = visible.next_round() {
            let mut found = self.store().list_notices(view.id.clone(), round).await?;
            let (count, last) = (found.len(), found.last().map(|one| one.notice.id));
            let named = found.iter().filter_map(|one| one.notice.webhook).collect();
            let seen = self.names(&view, named).await?;
            found.retain(|one| one.notice.webhook.is_none_or(|webhook| seen.contains_key(&webhook)));
            visible.add(count, last, found);
        }
        Ok(visible.finish()?)
    }
}
