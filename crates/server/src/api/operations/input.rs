//! Request bodies and queries of bulk operations.

use redrive_core::{
    DeadReason, DeliveryStatus, FailureCategory, FieldError, Time, WebhookId,
    delivery::{
        bulk_operation::{MAX_RATE, OperationFilter},
        lane::Priority,
    },
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{
    api::{
        extract::{List, without_repetitions},
        scope::tenant_parameter,
    },
    app::parse::json::object,
    problem::Problem,
};

/// Filter for deliveries; a missing field matches everything.
#[derive(Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate::api) struct BatchFilter {
    /// Match deliveries to these webhooks.
    #[schema(value_type = Option<Vec<String>>, min_items = 1, max_items = 1000)]
    webhook_ids: Option<Vec<WebhookId>>,
    /// Match deliveries of these event types. Names must match exactly.
    #[schema(min_items = 1, max_items = 1000)]
    event_types: Option<Vec<String>>,
    /// Match deliveries whose last attempt failed with one of these categories.
    #[schema(min_items = 1)]
    failure_categories: Option<Vec<FailureCategory>>,
    /// Match deliveries with one of these statuses; not allowed for dead letters.
    #[schema(min_items = 1)]
    statuses: Option<Vec<DeliveryStatus>>,
    /// Match deliveries that are dead for one of these reasons.
    #[schema(min_items = 1)]
    dead_reasons: Option<Vec<DeadReason>>,
    /// Match dead deliveries that are likely (`true`) or unlikely (`false`) to succeed on retry.
    recoverable: Option<bool>,
    /// Match deliveries of events published at or after this time (RFC 3339, or a date: midnight UTC).
    #[schema(value_type = Option<String>)]
    from: Option<Time>,
    /// Match deliveries of events published before this time (RFC 3339, or a date: midnight UTC).
    #[schema(value_type = Option<String>)]
    to: Option<Time>,
}

/// Returns the values of a list, each once. Rejects an empty list, which would match everything.
fn named<T: PartialEq>(field: &'static str, list: Option<Vec<T>>) -> Result<Vec<T>, Problem> {
    match list {
        Some(list) if list.is_empty() => {
            Err(FieldError::new(field, "must not be empty; omit it to match everything").into())
        }
        list => Ok(without_repetitions(list.unwrap_or_default())),
    }
}

impl BatchFilter {
    pub(super) fn selection(self) -> Result<OperationFilter, Problem> {
        Ok(OperationFilter {
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

impl From<OperationFilter> for BatchFilter {
    fn from(selection: OperationFilter) -> Self {
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

/// Rate limit of a bulk operation.
#[derive(Clone, Copy, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct BatchRate {
    /// Maximum number of deliveries queued per second.
    #[schema(minimum = 1, maximum = 10000, example = 50)]
    pub(super) requests_per_second: u32,
}

pub(super) fn rate(limit: Option<BatchRate>) -> Result<Option<u32>, Problem> {
    match limit.map(|limit| limit.requests_per_second) {
        Some(rate) if !(1..=MAX_RATE).contains(&rate) => {
            let what = format!("must be from 1 to {MAX_RATE}");
            Err(FieldError::new("rate_limit.requests_per_second", what).into())
        }
        rate => Ok(rate),
    }
}

/// Bulk retry to start.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate::api) struct RetryBatchInput {
    /// Deliveries to retry; all dead letters by default.
    #[serde(deserialize_with = "object")]
    pub(super) filter: Option<BatchFilter>,
    /// Rate limit; unlimited by default.
    #[serde(deserialize_with = "object")]
    pub(super) rate_limit: Option<BatchRate>,
    /// New priority of the deliveries; unchanged by default.
    pub(super) priority: Option<Priority>,
    /// Only count the matching deliveries and return a sample.
    pub(super) dry_run: bool,
    /// Start time; immediately by default.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(super) start_at: Option<Time>,
    /// Tenant to act for; admin keys only.
    pub(super) tenant_id: Option<String>,
}

tenant_parameter!(RetryBatchInput);

/// Bulk cancellation to start.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate::api) struct CancelBatchInput {
    /// Deliveries to cancel; all pending ones by default.
    #[serde(deserialize_with = "object")]
    pub(super) filter: Option<BatchFilter>,
    /// Only count the matching deliveries and return a sample.
    pub(super) dry_run: bool,
    /// Tenant to act for; admin keys only.
    pub(super) tenant_id: Option<String>,
}

tenant_parameter!(CancelBatchInput);

/// Past events to deliver to a webhook.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate::api) struct BackfillInput {
    /// Deliver events published at or after this time (RFC 3339, or a date: midnight UTC).
    #[schema(value_type = Option<String>)]
    pub(super) from: Option<Time>,
    /// Deliver events published before this time (RFC 3339, or a date: midnight UTC); until now by default.
    #[schema(value_type = Option<String>)]
    pub(super) to: Option<Time>,
    /// Deliver only events of these types; all that the webhook subscribes to by default.
    #[schema(max_items = 1000)]
    pub(super) event_types: Vec<String>,
    /// Rate limit; unlimited by default.
    #[serde(deserialize_with = "object")]
    pub(super) rate_limit: Option<BatchRate>,
    /// Priority of the deliveries; that of each event by default.
    pub(super) priority: Option<Priority>,
    /// Only count the matching events.
    pub(super) dry_run: bool,
    /// Start time; immediately by default.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(super) start_at: Option<Time>,
    /// Tenant to act for; admin keys only.
    pub(super) tenant_id: Option<String>,
}

tenant_parameter!(BackfillInput);

/// Filter for the dead letters to purge.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct PurgeQuery {
    /// Purge only dead letters of these webhooks: up to 50, separated by commas or as repeated parameters.
    #[param(value_type = Option<Vec<String>>)]
    webhook_id: Option<List<WebhookId>>,
    /// Purge only dead letters of these event types.
    #[param(value_type = Option<Vec<String>>)]
    event_type: Option<List<String>>,
    /// Purge only dead letters whose last attempt failed with one of these categories.
    #[param(value_type = Option<Vec<String>>)]
    failure_category: Option<List<FailureCategory>>,
    /// Purge only dead letters with one of these reasons.
    #[param(value_type = Option<Vec<String>>)]
    dead_reason: Option<List<DeadReason>>,
    /// Purge only dead letters that are likely (`true`) or unlikely (`false`) to succeed on retry.
    recoverable: Option<bool>,
    /// Purge only dead letters of events published at or after this time (RFC 3339, or a date: midnight UTC).
    #[param(value_type = Option<String>)]
    pub(super) from: Option<Time>,
    /// Purge only dead letters of events published before this time (RFC 3339, or a date: midnight UTC).
    #[param(value_type = Option<String>)]
    pub(super) to: Option<Time>,
    /// Only count the matching dead letters and return a sample.
    pub(super) dry_run: Option<bool>,
    /// Tenant to act for; admin keys only.
    pub(super) tenant_id: Option<String>,
}

tenant_parameter!(PurgeQuery);

impl PurgeQuery {
    pub(super) fn selection(&self) -> OperationFilter {
        OperationFilter {
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
