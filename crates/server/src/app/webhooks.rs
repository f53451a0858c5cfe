//! Webhooks: making, changing, testing, rotating secrets, ending.

use std::time::Duration;

use bytes::Bytes;
use redrive_core::{
    TenantId, WebhookId,
    signature::{self, LiveSecret, Secret},
    time::Span,
    webhook::{Webhook, WebhookSpec, WebhookState},
};
use redrive_engine::{Draft, Receipt, clock};
use redrive_store::PageRequest;

use super::{App, AppError};

/// What the test event is called.
pub const TEST_EVENT: &str = "redrive.test";
/// How long the old secret still signs after a rotation.
pub const DEFAULT_OVERLAP: Span = Span::secs(24 * 3600);

impl App {
    /// Makes a webhook with the given secret or a new one.
    pub async fn create_webhook(
        &self,
        tenant: TenantId,
        spec: WebhookSpec,
        secret: Option<Secret>,
        active: bool,
    ) -> Result<Webhook, AppError> {
        let now = self.engine.clock().now();
        let secret = secret.unwrap_or_else(|| Secret::from_bytes(&clock::secret_bytes()));
        let webhook = Webhook {
            id: WebhookId::new(now, &clock::randomness()),
            tenant,
            spec,
            secrets: vec![LiveSecret { secret, created_at: now, expires_at: None }],
            state: if active { WebhookState::Active } else { disabled_by_request() },
            created_at: now,
            updated_at: now,
        };
        self.check(&webhook)?;
        match self.engine.create_webhook(webhook.clone()).await? {
            true => Ok(webhook),
            false => Err(AppError::NotFound("tenant")),
        }
    }

    fn check(&self, webhook: &Webhook) -> Result<(), AppError> {
        webhook.spec.validate(self.rules.urls)?;
        self.engine.registry().check_retry(webhook)?;
        Ok(())
    }

    /// One webhook.
    pub async fn webhook(&self, tenant: TenantId, id: WebhookId) -> Result<Webhook, AppError> {
        let found = self.store().webhook(tenant, id).await?;
        Ok(self.current(found.ok_or(AppError::NotFound("webhook"))?.webhook))
    }

    /// Refuses a webhook that this tenant never had; one that was deleted still has its history.
    pub async fn had_webhook(&self, tenant: &TenantId, id: WebhookId) -> Result<(), AppError> {
        let found = self.store().webhooks_by_id(vec![id]).await?;
        match found.iter().any(|webhook| webhook.tenant == *tenant) {
            true => Ok(()),
            false => Err(AppError::NotFound("webhook")),
        }
    }

    /// Webhooks, newest first.
    pub async fn list_webhooks(
        &self,
        tenant: TenantId,
        page: PageRequest<WebhookId>,
    ) -> Result<Vec<Webhook>, AppError> {
        let found = self.store().list_webhooks(tenant, page).await?;
        Ok(found.into_iter().map(|webhook| self.current(webhook)).collect())
    }

    /// A webhook without the secrets that have expired.
    fn current(&self, mut webhook: Webhook) -> Webhook {
        let now = self.engine.clock().now();
        webhook.secrets.retain(|live| live.expires_at.is_none_or(|end| end > now));
        webhook
    }

    /// Changes a webhook.
    pub async fn change_webhook(
        &self,
        tenant: &TenantId,
        id: WebhookId,
        mut change: impl FnMut(&mut Webhook) -> Result<(), AppError>,
    ) -> Result<Webhook, AppError> {
        let checked = |webhook: &mut Webhook| {
            change(webhook)?;
            self.check(webhook)
        };
        Ok(self.current(self.engine.change_webhook(tenant, id, checked).await?))
    }

    /// Ends a webhook: what is pending is cancelled, its history stays.
    pub async fn delete_webhook(&self, tenant: &TenantId, id: WebhookId) -> Result<(), AppError> {
        let delete = |webhook: &mut Webhook| {
            webhook.state = WebhookState::Deleted;
            Ok(())
        };
        self.engine.change_webhook(tenant, id, delete).await?;
        Ok(())
    }

    /// Makes a new secret. The old ones go on signing for `overlap`.
    pub async fn rotate_secret(
        &self,
        tenant: &TenantId,
        id: WebhookId,
        secret: Option<Secret>,
        overlap: Duration,
    ) -> Result<Webhook, AppError> {
        let secret = secret.unwrap_or_else(|| Secret::from_bytes(&clock::secret_bytes()));
        let now = self.engine.clock().now();
        self.change_webhook(tenant, id, |webhook| {
            Ok(signature::rotate(&mut webhook.secrets, secret.clone(), now, overlap)?)
        })
        .await
    }

    /// Sends a test event through the real pipeline to this webhook alone.
    pub async fn test_webhook(
        &self,
        tenant: TenantId,
        id: WebhookId,
        data: Bytes,
    ) -> Result<Receipt, AppError> {
        let webhook = self.webhook(tenant.clone(), id).await?;
        if webhook.state != WebhookState::Active {
            let state = webhook.state.name();
            return Err(AppError::conflict(
                "webhook_not_active",
                format!("the webhook is {state}; enable it first"),
            ));
        }
        let draft = Draft {
            tenant,
            event_type: TEST_EVENT.into(),
            data,
            idempotency_key: None,
            source: None,
            subject: None,
            metadata: None,
            only: Some(id),
        };
        self.publish(draft).await
    }
}

/// The state of a webhook that its owner has switched off.
pub fn disabled_by_request() -> WebhookState {
    WebhookState::Disabled("disabled by request".into())
}
