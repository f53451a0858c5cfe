//! Request bodies and queries of bulk operations.

use redrive_core::{
    DeadReason, DeliveryStatus, EventId, FailureCategory, FieldError, Time,
    delivery::{
        bulk_operation::{MAX_RATE, OperationFilter},
        code_filter::CodeFilter,
        lane::Priority,
    },
    event::event_type::ExactEventType,
    webhook::uid::WebhookRef,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{
    api::{
        extract::{List, without_repetitions},
        scope::tenant_parameter,
    },
    app::{App, AppError, TenantView, parse::json::object},
    problem::Problem,
};

/// Filter for deliveries; a missing field matches everything.
#[derive(Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate::api) struct BatchFilter {
    /// Match deliveries to these webhooks, by id or uid.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>, min_items = 1, max_items = 1000)]
    webhook_ids: Option<Vec<WebhookRef>>,
    /// Match deliveries of these event types. Names must match exactly.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1, max_items = 1000)]
    event_types: Option<Vec<String>>,
    /// Match deliveries of these events.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>, min_items = 1, max_items = 1000)]
    event_ids: Option<Vec<EventId>>,
    /// Match deliveries of events with these idempotency keys; the event id for events published without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1, max_items = 1000)]
    idempotency_keys: Option<Vec<String>>,
    /// Match deliveries of events with these subjects.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1, max_items = 1000)]
    subjects: Option<Vec<String>>,
    /// Match deliveries whose last attempt failed with one of these categories.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1)]
    failure_categories: Option<Vec<FailureCategory>>,
    /// Match deliveries whose last response had one of these status codes, such as `503`, or classes, such as `5xx`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>, min_items = 1, max_items = 1000)]
    status_codes: Option<Vec<CodeFilter>>,
    /// Match deliveries with one of these statuses; not allowed for dead letters.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1)]
    statuses: Option<Vec<DeliveryStatus>>,
    /// `true`: match deliveries with a failed attempt that were not delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<bool>,
    /// Match deliveries that are dead for one of these reasons.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1)]
    dead_reasons: Option<Vec<DeadReason>>,
    /// Match dead deliveries whose last failure requires no change before a retry (`true`), or requires one (`false`).
    #[serde(skip_serializing_if = "Option::is_none")]
    recoverable: Option<bool>,
    /// Match what fails: dead letters that died at or after this time, and pending deliveries with a failed attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    failed_from: Option<Time>,
    /// Match dead letters that died before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    failed_to: Option<Time>,
    /// Match deliveries of events published at or after this time (RFC 3339, or a date: midnight UTC).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    from: Option<Time>,
    /// Match deliveries of events published before this time (RFC 3339, or a date: midnight UTC).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
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

/// Rejects patterns among names of event types.
fn check_exact(names: &[String]) -> Result<(), FieldError> {
    names.iter().enumerate().try_for_each(|(index, name)| {
        let rejected = ExactEventType::try_from(name.clone()).err();
        rejected
            .map_or(Ok(()), |message| Err(FieldError::new(format!("filter.event_types[{index}]"), message)))
    })
}

impl BatchFilter {
    pub(super) async fn selection(self, app: &App, tenant: &TenantView) -> Result<OperationFilter, Problem> {
        check_exact(self.event_types.as_deref().unwrap_or_default())?;
        let webhooks = named("filter.webhook_ids", self.webhook_ids)?;
        Ok(OperationFilter {
            webhook_ids: app.webhook_ids(tenant, &webhooks).await?,
            event_types: named("filter.event_types", self.event_types)?,
            event_ids: named("filter.event_ids", self.event_ids)?,
            idempotency_keys: named("filter.idempotency_keys", self.idempotency_keys)?,
            subjects: named("filter.subjects", self.subjects)?,
            failure_categories: named("filter.failure_categories", self.failure_categories)?,
            status_codes: named("filter.status_codes", self.status_codes)?,
            statuses: named("filter.statuses", self.statuses)?,
            failed: self.failed.unwrap_or(false),
            dead_reasons: named("filter.dead_reasons", self.dead_reasons)?,
            recoverable: self.recoverable,
            failed_from: self.failed_from,
            failed_to: self.failed_to,
            from: self.from,
            to: self.to,
            ..OperationFilter::default()
        })
    }
}

impl From<OperationFilter> for BatchFilter {
    fn from(selection: OperationFilter) -> Self {
        fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
            Some(list).filter(|list| !list.is_empty())
        }
        Self {
            webhook_ids: some(selection.webhook_ids.into_iter().map(WebhookRef::Id).collect()),
            event_types: some(selection.event_types),
            event_ids: some(selection.event_ids),
            idempotency_keys: some(selection.idempotency_keys),
            subjects: some(selection.subjects),
            failure_categories: some(selection.failure_categories),
            status_codes: some(selection.status_codes),
            statuses: some(selection.statuses),
            failed: selection.failed.then_some(true),
            dead_reasons: some(selection.dead_reasons),
            recoverable: selection.recoverable,
            failed_from: selection.failed_from,
            failed_to: selection.failed_to,
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
    /// Deliveries to retry, by id, instead of `filter`. A repeated id counts once.
    #[schema(min_items = 1, max_items = 1000)]
    pub(super) delivery_ids: Option<Vec<String>>,
    /// Whether deliveries that were delivered are sent again; otherwise they are counted and left out. By default only
    /// if `filter.statuses` names `delivered`. No dead letter was delivered.
    pub(super) include_delivered: Option<bool>,
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
    /// Deliveries to cancel, by id, instead of `filter`. A repeated id counts once.
    #[schema(min_items = 1, max_items = 1000)]
    pub(super) delivery_ids: Option<Vec<String>>,
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
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(super) from: Option<Time>,
    /// Deliver events published before this time (RFC 3339, or a date: midnight UTC); until now by default.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(super) to: Option<Time>,
    /// Deliver only events of these types; all that the webhook subscribes to by default.
    #[schema(value_type = Vec<String>, max_items = 1000)]
    pub(super) event_types: Vec<ExactEventType>,
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
    /// Purge only dead letters of these webhooks, by id or uid: up to 50, separated by commas or as repeated parameters.
    #[param(value_type = Option<Vec<String>>)]
    webhook_id: Option<List<WebhookRef>>,
    /// Purge only dead letters of these event types.
    #[param(value_type = Option<Vec<String>>)]
    event_type: Option<List<ExactEventType>>,
    /// Purge only dead letters whose last attempt failed with one of these categories.
    #[param(value_type = Option<Vec<FailureCategory>>)]
    failure_category: Option<List<FailureCategory>>,
    /// Purge only dead letters with one of these reasons.
    #[param(value_type = Option<Vec<DeadReason>>)]
    dead_reason: Option<List<DeadReason>>,
    /// Purge only dead letters whose last failure requires no change before a retry (`true`), or requires one (`false`).
    recoverable: Option<bool>,
    /// Purge only dead letters of this event.
    #[param(value_type = Option<String>)]
    event_id: Option<EventId>,
    /// Purge only dead letters of events with this idempotency key; the event id for events published without one.
    idempotency_key: Option<String>,
    /// Purge only dead letters of events with this subject.
    subject: Option<String>,
    /// Purge only dead letters whose last response had this status code, such as `503`, or class, such as `5xx`.
    #[param(value_type = Option<String>)]
    status_code: Option<CodeFilter>,
    /// Purge only dead letters that died at or after this time (RFC 3339, or a date: midnight UTC).
    #[param(value_type = Option<String>, format = DateTime)]
    failed_from: Option<Time>,
    /// Purge only dead letters that died before this time (RFC 3339, or a date: midnight UTC).
    #[param(value_type = Option<String>, format = DateTime)]
    failed_to: Option<Time>,
    /// Purge only dead letters of events published at or after this time (RFC 3339, or a date: midnight UTC).
    #[param(value_type = Option<String>, format = DateTime)]
    pub(super) from: Option<Time>,
    /// Purge only dead letters of events published before this time (RFC 3339, or a date: midnight UTC).
    #[param(value_type = Option<String>, format = DateTime)]
    pub(super) to: Option<Time>,
    /// Only count the matching dead letters and return a sample.
    pub(super) dry_run: Option<bool>,
    /// Tenant to act for; admin keys only.
    pub(super) tenant_id: Option<String>,
}

tenant_parameter!(PurgeQuery);

impl PurgeQuery {
    pub(super) async fn selection(
        &self,
        app: &App,
        tenant: &TenantView,
    ) -> Result<OperationFilter, AppError> {
        Ok(OperationFilter {
            webhook_ids: app.webhook_ids(tenant, &List::values(&self.webhook_id)).await?,
            event_types: List::strings(&self.event_type),
            event_ids: self.event_id.into_iter().collect(),
            idempotency_keys: self.idempotency_key.iter().cloned().collect(),
            subjects: self.subject.iter().cloned().collect(),
            failure_categories: List::values(&self.failure_category),
            status_codes: self.status_code.into_iter().collect(),
            dead_reasons: List::values(&self.dead_reason),
            recoverable: self.recoverable,
            failed_from: self.failed_from,
            failed_to: self.failed_to,
            from: self.from,
            to: self.to,
            ..OperationFilter::default()
        })
    }
}
