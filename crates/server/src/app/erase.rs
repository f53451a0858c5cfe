//! Erasing payloads, one by one or all of a subject.

use redrive_core::{EventId, Invalid, TenantId, event::MAX_NAME};
use redrive_store::{Erased, StoredEvent};
use serde_json::json;

use super::{
    Actor, App, AppError,
    audit::{Deed, Traces},
};

/// Payloads erased by one call; the next call goes on.
const MOST: usize = 500;

/// What came of erasing a subject's payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErasedSubject {
    /// How many were erased.
    pub erased: usize,
    /// Whether there are none left.
    pub finished: bool,
}

impl App {
    /// Erases an event's payload. Gives the event as it is then.
    pub async fn erase_event(
        &self,
        by: &Actor,
        tenant: TenantId,
        event: EventId,
    ) -> Result<StoredEvent, AppError> {
        self.event(tenant.clone(), event).await?;
        let deed = Deed { action: "event.erase", tenant: Some(&tenant), object: Some(event.to_string()) };
        self.audited(by, deed, async {
            match self.engine.erase(&tenant, event).await? {
                Erased::Missing => Err(AppError::NotFound("event")),
                Erased::Now | Erased::Before(_) => Ok(((), Traces::default())),
            }
        })
        .await?;
        self.event(tenant, event).await
    }

    /// Erases the payloads of events about a subject, the oldest first, and no more than a call may take.
    pub async fn erase_subject(
        &self,
        by: &Actor,
        tenant: TenantId,
        subject: String,
    ) -> Result<ErasedSubject, AppError> {
        if subject.is_empty() || subject.len() > MAX_NAME || subject.chars().any(char::is_control) {
            let message =
                format!("must be 1 to {MAX_NAME} bytes without control characters, as it was published");
            return Err(Invalid::new("subject", message).into());
        }
        // The subject may name a person, and the log is kept for longer than what is erased here.
        let deed = Deed { action: "event.erase_subject", tenant: Some(&tenant), object: None };
        self.audited(by, deed, async {
            let events = self.store().events_to_erase(tenant.clone(), subject, MOST + 1).await?;
            let finished = events.len() <= MOST;
            let mut erased = 0;
            for event in events.into_iter().take(MOST) {
                if self.engine.erase(&tenant, event).await? == Erased::Now {
                    erased += 1;
                }
            }
            let after = Some(json!({"erased": erased, "finished": finished}));
            Ok((ErasedSubject { erased, finished }, Traces { after, ..Traces::default() }))
        })
        .await
    }
}
