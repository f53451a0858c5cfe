//! Badge of a webhook's status, the same on every page.

use std::borrow::Borrow;

use redrive_core::webhook::{WebhookState, status::WebhookStatus};

/// Returns the color of a status.
pub(in crate::dashboard) fn tone(status: impl Borrow<WebhookStatus>) -> &'static str {
    match status.borrow() {
        WebhookStatus::Healthy => "good",
        WebhookStatus::Degraded | WebhookStatus::Paused => "waiting",
        WebhookStatus::Failing => "bad",
        WebhookStatus::Disabled => "off",
    }
}

/// Returns the word for a status.
pub(in crate::dashboard) fn word(status: impl Borrow<WebhookStatus>) -> &'static str {
    match status.borrow() {
        WebhookStatus::Healthy => "Healthy",
        WebhookStatus::Degraded => "Degraded",
        WebhookStatus::Failing => "Failing",
        WebhookStatus::Paused => "Paused",
        WebhookStatus::Disabled => "Disabled",
    }
}

/// Returns why a webhook has its status, where the word alone could be misread.
pub(in crate::dashboard) fn note(
    status: impl Borrow<WebhookStatus>,
    state: impl Borrow<WebhookState>,
    was_called: bool,
) -> Option<&'static str> {
    match (status.borrow(), state.borrow()) {
        (WebhookStatus::Paused, WebhookState::PendingVerification(_)) => Some("pending verification"),
        (WebhookStatus::Paused, WebhookState::Active) => Some("circuit forced open"),
        (WebhookStatus::Healthy, _) if !was_called => Some("no deliveries yet"),
        _ => None,
    }
}
