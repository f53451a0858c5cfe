//! What owners were told.

use redrive_core::{NoticeId, TenantId};
use redrive_store::{PageRequest, StoredNotice};

use super::{App, AppError};

impl App {
    /// A tenant's notices, newest first.
    pub async fn list_notices(
        &self,
        tenant: TenantId,
        page: PageRequest<NoticeId>,
    ) -> Result<Vec<StoredNotice>, AppError> {
        Ok(self.store().list_notices(tenant, page).await?)
    }
}
