//! Filters and pages of the listing of attempts.

use redrive_core::{
    AttemptId, DeliveryId, FailureCategory, TenantId, Time, WebhookId,
    delivery::{code_filter::CodeFilter, outcome::AttemptStatus},
};

use crate::{Attempt, StoredAttempt};

/// Filter of attempts: all given conditions must hold. An empty list is no condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttemptFilter {
    /// Only to this webhook. It must belong to the tenant.
    pub webhook_id: Option<WebhookId>,
    /// Only with one of these statuses.
    pub statuses: Vec<AttemptStatus>,
    /// Only with one of these categories of the failure.
    pub failure_categories: Vec<FailureCategory>,
    /// Only with a matching status code of the response.
    pub status_code: Option<CodeFilter>,
    /// Only sent at this time or later.
    pub from: Option<Time>,
    /// Only sent before this time.
    pub to: Option<Time>,
    /// Only to webhooks that the tenant manages.
    pub tenant_managed_only: bool,
}

impl AttemptFilter {
    /// Returns whether an attempt matches. The webhook is not compared.
    pub fn matches(&self, attempt: &Attempt) -> bool {
        self.matches_result(attempt.status, attempt.failure_category, attempt.http_status_code)
            && self.from.is_none_or(|from| attempt.executed_at >= from)
            && self.to.is_none_or(|to| attempt.executed_at < to)
    }

    /// Returns whether an attempt with this result may match.
    pub(crate) fn matches_result(
        &self,
        status: AttemptStatus,
        category: Option<FailureCategory>,
        code: Option<u16>,
    ) -> bool {
        let in_range = |(first, last): (u16, u16)| code.is_some_and(|code| (first..=last).contains(&code));
        (self.statuses.is_empty() || self.statuses.contains(&status))
            && (self.failure_categories.is_empty()
                || category.is_some_and(|category| self.failure_categories.contains(&category)))
            && self.status_code.is_none_or(|wanted| in_range(wanted.range()))
    }

    /// Returns whether no success can match.
    pub(crate) fn is_failed_only(&self) -> bool {
        (!self.statuses.is_empty() && !self.statuses.contains(&AttemptStatus::Success))
            || !self.failure_categories.is_empty()
            || self.status_code.map(CodeFilter::range).is_some_and(|(first, last)| first > 299 || last < 200)
    }
}

/// Position in a listing of attempts, which begins with the newest. A prompt success is placed at the time of its
/// event, every other attempt at the time at which it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttemptCursor {
    /// Id whose time is the position: of the event or the delivery of a prompt success, or of the attempt.
    pub position: [u8; 16],
    /// Delivery of a prompt success; the lowest id at the position of another attempt.
    pub delivery_id: DeliveryId,
}

impl AttemptCursor {
    /// Returns the cursor after an attempt that is not a prompt success.
    pub(crate) fn at_attempt(id: AttemptId) -> Self {
        Self { position: *id.as_bytes(), delivery_id: DeliveryId::from_bytes([0; 16]) }
    }
}

/// Number of attempts with the same result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptCount {
    /// Status code of the response; `None` if there was none.
    pub code: Option<u16>,
    /// Category of the failure; `None` for a success.
    pub category: Option<FailureCategory>,
    /// Number of attempts.
    pub count: usize,
}

/// An attempt and its position in the listing.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedAttempt {
    /// Its tenant.
    pub tenant_id: TenantId,
    /// The attempt.
    pub stored: StoredAttempt,
    /// Its position.
    pub cursor: AttemptCursor,
}
