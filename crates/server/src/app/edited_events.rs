//! Resends an event with an edited payload, as a new event that refers to the original.

use bytes::Bytes;
use redrive_core::{EventId, WebhookId, delivery::lane::Priority};
use redrive_engine::{EditedCopy, EventDraft, PublishReceipt};
use serde_json::json;

use super::{
    Actor, App, AppError, ErrorCode, TenantView,
    audit::{AuditChange, AuditedAction},
};

/// Maximum number of edited copies listed for an event.
const MAX_COPIES: usize = 100;

/// Edited resend of an event.
#[derive(Debug)]
pub struct EditedResend {
    /// The edited payload.
    pub data: Bytes,
    /// Recipients; `None` for the webhooks that subscribe to the event.
    pub webhook_ids: Option<Vec<WebhookId>>,
    /// Priority; `None` for that of the original.
    pub priority: Option<Priority>,
    /// Idempotency key of the new event.
    pub idempotency_key: Option<Box<str>>,
}

impl App {
    /// Publishes an edited copy of an event: a new event with the type, source, subject and metadata of the original.
    pub async fn resend_edited(
        &self,
        actor: &Actor,
        view: &TenantView,
        id: EventId,
        resend: EditedResend,
    ) -> Result<PublishReceipt, AppError> {
        let original = self.event(view, id).await?.event;
        if original.is_erased() {
            let detail = "the payload of this event was erased; publish a new event instead";
            return Err(AppError::conflict(ErrorCode::PayloadErased, detail));
        }
        if let Some(named) = &resend.webhook_ids {
            self.require_all_receiving(view, named).await?;
        }
        let draft = EventDraft {
            tenant_id: view.id.clone(),
            event_type: original.event_type,
            data: resend.data,
            idempotency_key: resend.idempotency_key,
            source: original.source,
            subject: original.subject,
            metadata: original.metadata,
            priority: resend.priority.unwrap_or(original.priority),
            only_webhook: None,
            edited: Some(EditedCopy { original_id: id, webhook_ids: resend.webhook_ids.clone() }),
            trace: None,
            hops: original.hops,
        };
        let audited = AuditedAction {
            action: "event.resend_edited",
            tenant: Some(&view.id),
            object: Some(id.to_string()),
        };
        self.with_audit(actor, audited, async {
            let receipt = self.publish(draft).await?;
            let after = Some(json!({"event_id": receipt.event_id, "webhook_ids": resend.webhook_ids}));
            Ok((receipt, AuditChange { after, ..AuditChange::default() }))
        })
        .await
    }

    /// Returns the ids of the edited copies of an event, newest first.
    pub async fn edited_copies(&self, view: &TenantView, id: EventId) -> Result<Vec<EventId>, AppError> {
        Ok(self.store().edited_copies(view.id.clone(), id, MAX_COPIES).await?)
    }
}
