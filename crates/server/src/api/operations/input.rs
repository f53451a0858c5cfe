//! What people write about a bulk operation.

use redrive_core::{
    DeadReason, DeliveryStatus, FailureCategory, Invalid, Time, WebhookId,
    delivery::bulk_operation::{MAX_RATE, Selection},
    delivery::lane::Priority,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::api::{
    extract::{List, object},
    problem::Problem,
};

/// Which ones are meant; what is left out does not matter.
#[derive(Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate::api) struct BatchFilter {
    /// Those for one of these webhooks.
    #[schema(value_type = Option<Vec<String>>, min_items = 1, max_items = 1000)]
    webhook_ids: Option<Vec<WebhookId>>,
    /// Those of one of these event types, as they are written.
    #[schema(min_items = 1, max_items = 1000)]
    event_types: Option<Vec<String>>,
    /// Those whose last attempt failed in one of these ways.
    #[schema(min_items = 1)]
    failure_categories: Option<Vec<FailureCategory>>,
    /// Those in one of these states; not for dead letters.
    #[schema(min_items = 1)]
    statuses: Option<Vec<DeliveryStatus>>,
    /// Those that died for one of these reasons.
    #[schema(min_items = 1)]
    dead_reasons: Option<Vec<DeadReason>>,
    /// Dead ones that may well succeed when they are sent again as they are (`true`), or not (`false`).
    recoverable: Option<bool>,
    /// Those of events from this time on (RFC 3339).
    #[schema(value_type = Option<String>, format = DateTime)]
    from: Option<Time>,
    /// Those of events before this time (RFC 3339).
    #[schema(value_type = Option<String>, format = DateTime)]
    to: Option<Time>,
}

/// A list that names something. One that names nothing would mean everything.
fn named<T>(field: &'static str, list: Option<Vec<T>>) -> Result<Vec<T>, Problem> {
    match list {
        Some(list) if list.is_empty() => {
            Err(Invalid::new(field, "names nothing; leave it out if it does not matter").into())
        }
        list => Ok(list.unwrap_or_default()),
    }
}

impl BatchFilter {
    pub(super) fn selection(self) -> Result<Selection, Problem> {
        Ok(Selection {
            webhook_ids: named("filter.webhook_ids", self.webhook_ids)?,
            event_types: named("filter.event_types", self.event_types)?,
            failure_categories: named("filter.failure_categories", self.failure_categories)?,
            statuses: named("filter.statuses", self.statuses)?,
            dead_reasons: named("filter.dead_reasons", self.dead_reasons)?,
            recoverable: self.recoverable,
            from: self.from,
            to: self.to,
            tenant_managed_only: false,
        })
    }
}

impl From<Selection> for BatchFilter {
    fn from(selection: Selection) -> Self {
        fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
            Some(list).filter(|list| !list.is_empty())
        }
        Self {
            webhook_ids: some(selection.webhook_ids),
            event_types: some(selection.event_types),
            failure_categories: some(selection.failure_categories),
            statuses: some(selection.statuses),
            dead_reasons: some(selection.dead_reasons),
            recoverable: selection.recoverable,
            from: selection.from,
            to: selection.to,
        }
    }
}

/// How fast.
#[derive(Clone, Copy, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct BatchRate {
    /// The most that is queued in a second.
    #[schema(minimum = 1, maximum = 10000, example = 50)]
    pub(super) requests_per_second: u32,
}

pub(super) fn rate(limit: Option<BatchRate>) -> Result<Option<u32>, Problem> {
    match limit.map(|limit| limit.requests_per_second) {
        Some(rate) if !(1..=MAX_RATE).contains(&rate) => {
            let what = format!("must be from 1 to {MAX_RATE}");
            Err(Invalid::new("rate_limit.requests_per_second", what).into())
        }
        rate => Ok(rate),
    }
}

/// A bulk retry.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate::api) struct RetryBatchInput {
    /// Which ones; all dead letters if left out.
    #[serde(deserialize_with = "object")]
    pub(super) filter: Option<BatchFilter>,
    /// How fast; as fast as they can be sent if left out.
    #[serde(deserialize_with = "object")]
    pub(super) rate_limit: Option<BatchRate>,
    /// How urgent they are from now on; as urgent as they were if left out.
    pub(super) priority: Option<Priority>,
    /// Only count them, and show a few.
    pub(super) dry_run: bool,
    /// When to begin; now if left out.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(super) start_at: Option<Time>,
    /// The tenant to act for; admin keys only.
    pub(super) tenant_id: Option<String>,
}

/// A bulk cancellation.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate::api) struct CancelBatchInput {
    /// Which ones; everything that is pending if left out.
    #[serde(deserialize_with = "object")]
    pub(super) filter: Option<BatchFilter>,
    /// Only count them, and show a few.
    pub(super) dry_run: bool,
    /// The tenant to act for; admin keys only.
    pub(super) tenant_id: Option<String>,
}

/// Which past events a webhook is to get.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate::api) struct BackfillInput {
    /// Events from this time on (RFC 3339).
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(super) from: Option<Time>,
    /// Events before this time; up to now if left out.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(super) to: Option<Time>,
    /// Only events of these types; all that the webhook subscribes to if left out.
    #[schema(max_items = 1000)]
    pub(super) event_types: Vec<String>,
    /// How fast; as fast as they can be sent if left out.
    #[serde(deserialize_with = "object")]
    pub(super) rate_limit: Option<BatchRate>,
    /// How urgent they are; as urgent as the events are if left out.
    pub(super) priority: Option<Priority>,
    /// Only count them.
    pub(super) dry_run: bool,
    /// When to begin; now if left out.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(super) start_at: Option<Time>,
    /// The tenant to act for; admin keys only.
    pub(super) tenant_id: Option<String>,
}

/// Which dead letters to purge.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct PurgeQuery {
    /// Only to this webhook, or one of these: up to 50, separated by commas, or the parameter repeated.
    #[param(value_type = Option<Vec<String>>)]
    webhook_id: Option<List<WebhookId>>,
    /// Only of this event type, or one of these.
    #[param(value_type = Option<Vec<String>>)]
    event_type: Option<List<String>>,
    /// Only with this kind of last failure, or one of these.
    #[param(value_type = Option<Vec<String>>)]
    failure_category: Option<List<FailureCategory>>,
    /// Only dead for this reason, or one of these.
    #[param(value_type = Option<Vec<String>>)]
    dead_reason: Option<List<DeadReason>>,
    /// Only those that may well succeed when they are sent again as they are (`true`), or not (`false`).
    recoverable: Option<bool>,
    /// Those of events from this time on (RFC 3339).
    #[param(value_type = Option<String>)]
    pub(super) from: Option<Time>,
    /// Those of events before this time (RFC 3339).
    #[param(value_type = Option<String>)]
    pub(super) to: Option<Time>,
    /// Only count them, and show a few.
    pub(super) dry_run: Option<bool>,
    /// The tenant to act for; admin keys only.
    pub(super) tenant_id: Option<String>,
}

impl PurgeQuery {
    pub(super) fn selection(&self) -> Selection {
        Selection {
            webhook_ids: List::values(&self.webhook_id),
            event_types: List::values(&self.event_type),
            failure_categories: List::values(&self.failure_category),
            statuses: Vec::new(),
            dead_reasons: List::values(&self.dead_reason),
            recoverable: self.recoverable,
            from: self.from,
            to: self.to,
            tenant_managed_only: false,
        }
    }
}
