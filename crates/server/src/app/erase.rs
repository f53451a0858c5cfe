//! Erases payloads of single events or of all events with a subject.

use redrive_core::{EventId, FieldError, TenantId, event::MAX_SUBJECT_BYTES};
use redrive_store::{EraseResult, StoredEvent};
use serde_json::json;

use super::{
    Actor, App, AppError,
    audit::{AuditChange, AuditedAction},
};

/// Maximum number of payloads erased per call; the next call continues.
const MAX_ERASED_PER_CALL: usize = 500;

/// Result of erasing the payloads of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErasedSubject {
    /// Number of payloads erased.
    pub erased: usize,
    /// Whether none are left.
    pub finished: bool,
}

impl App {
    /// Erases an event's payload. Returns the event without it.
    pub async fn erase_event(
        &self,
        actor: &Actor,
        tenant_id: TenantId,
        event_id: EventId,
    ) -> Result<StoredEvent, AppError> {
        self.event(tenant_id.clone(), event_id).await?;
        let audited = AuditedAction {
            action: "event.erase",
            tenant: Some(&tenant_id),
            object: Some(event_id.to_string()),
        };
        self.with_audit(actor, audited, async {
            match self.engine.erase(&tenant_id, event_id).await? {
                EraseResult::NotFound => Err(AppError::NotFound("event")),
                EraseResult::Erased | EraseResult::AlreadyErased(_) => Ok(((), AuditChange::default())),
            }
        })
        .await?;
        self.event(tenant_id, event_id).await
    }

    /// Erases the payloads of events with a subject, oldest first, up to `MAX_ERASED_PER_CALL`.
    pub async fn erase_subject(
        &self,
        actor: &Actor,
        tenant_id: TenantId,
        subject: String,
    ) -> Result<ErasedSubject, AppError> {
        if subject.is_empty() || subject.len() > MAX_SUBJECT_BYTES || subject.chars().any(char::is_control) {
            let message = format!(
                "must be 1 to {MAX_SUBJECT_BYTES} bytes without control characters, as it was published"
            );
            return Err(FieldError::new("subject", message).into());
        }
        // The subject may identify a person, and the audit log outlives the erased data: it must not contain the subject.
        let audited = AuditedAction { action: "event.erase_subject", tenant: Some(&tenant_id), object: None };
        self.with_audit(actor, audited, async {
            let events =
                self.store().events_to_erase(tenant_id.clone(), subject, MAX_ERASED_PER_CALL + 1).await?;
            let finished = events.len() <= MAX_ERASED_PER_CALL;
            let mut erased = 0;
            for event_id in events.into_iter().take(MAX_ERASED_PER_CALL) {
                if self.engine.erase(&tenant_id, event_id).await? == EraseResult::Erased {
                    erased += 1;
                }
            }
            let after = Some(json!({"erased": erased, "finished": finished}));
            Ok((ErasedSubject { erased, finished }, AuditChange { after, ..AuditChange::default() }))
        })
        .await
    }
}
