//! Comparison of the payloads of two events of one type.

use redrive_core::EventId;
use redrive_store::{EventFilter, PageRequest, StoredEvent};

use crate::{
    app::{App, AppError, TenantView},
    dashboard::{page::PageError, text_diff::TextDiff, untrusted::pretty},
};

/// Maximum size of a formatted payload that is compared; what follows is left out.
const MAX_BYTES: usize = 64 * 1024;

/// What can be compared with an event, and the requested comparison.
#[derive(Default)]
pub(super) struct Comparison {
    /// Previous event of the same type.
    pub(super) previous: Option<EventId>,
    /// The requested id, as it was entered.
    pub(super) requested: String,
    /// Differences to the requested event.
    pub(super) found: Option<TextDiff>,
    /// Why the requested event cannot be compared.
    pub(super) error: Option<String>,
}

impl Comparison {
    /// Loads the previous event of the type, and compares an event with the requested one.
    pub(super) async fn load(
        app: &App,
        tenant: &TenantView,
        stored: &StoredEvent,
        requested: Option<&str>,
    ) -> Result<Self, PageError> {
        if stored.event.is_erased() {
            return Ok(Self::default());
        }
        let filter =
            EventFilter { event_types: vec![stored.event.event_type.to_string()], ..EventFilter::default() };
        let before = PageRequest { after: Some(stored.event.id), offset: 0, limit: 1 };
        let mut found = app.list_events(tenant.clone(), filter, before).await?.found;
        let mut comparison =
            Self { previous: found.pop().map(|previous| previous.event.id), ..Self::default() };
        if let Some(id) = requested {
            comparison.requested = id.to_owned();
            match load_other(app, tenant, stored, id).await? {
                Ok(other) => comparison.found = Some(compare(&other, stored)),
                Err(reason) => comparison.error = Some(reason),
            }
        }
        Ok(comparison)
    }
}

/// Returns the event with this id if it can be compared, or the reason why it cannot.
async fn load_other(
    app: &App,
    tenant: &TenantView,
    stored: &StoredEvent,
    id: &str,
) -> Result<Result<StoredEvent, String>, PageError> {
    let Ok(id) = id.trim().parse::<EventId>() else {
        return Ok(Err("is not an event id; it begins with evt_".to_owned()));
    };
    let other = match app.event(tenant.clone(), id).await {
        Ok(other) => other,
        Err(AppError::NotFound(_)) => return Ok(Err("there is no event with this id".to_owned())),
        Err(error) => return Err(error.into()),
    };
    if other.event.event_type != stored.event.event_type {
        let reason =
            format!("is an event of the type {}; choose one of the same type", other.event.event_type);
        return Ok(Err(reason));
    }
    if other.event.is_erased() {
        return Ok(Err("the payload of this event was erased".to_owned()));
    }
    Ok(Ok(other))
}

fn compare(before: &StoredEvent, after: &StoredEvent) -> TextDiff {
    TextDiff::new(&pretty(&before.event.data, MAX_BYTES).0, &pretty(&after.event.data, MAX_BYTES).0)
}
