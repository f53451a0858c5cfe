//! Query parameters that select deliveries.

use redrive_core::{
    DeadReason, DeliveryStatus, EventId, FailureCategory, FieldError, Time, WebhookId,
    delivery::code_filter::{CodeFilter, CodeFilterError},
    event::event_type::ExactEventType,
    webhook::uid::WebhookRef,
};
use redrive_store::{DeliveryFilter, StatusFilter};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use crate::{
    api::{export::Format, extract::List, page::Paging, scope::tenant_parameter},
    app::{App, AppError, TenantSelection, deliveries::DeliverySelection},
    problem::Problem,
};

/// Defines a query type with all filters of deliveries and additional fields.
macro_rules! delivery_query {
    ($(#[$doc:meta])* $name:ident { $($more:tt)* }) => {
        $(#[$doc])*
        #[derive(Default, Deserialize, IntoParams)]
        #[into_params(parameter_in = Query)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            /// `pending`, `in_flight`, `delivered` (or `success`), `dead`, `cancelled`; `failed`: at least one failed
            /// attempt and not delivered; `exhausted`: dead after its last attempt; `circuit_blocked`: pending, and
            /// waiting for the open circuit of its webhook.
            #[param(value_type = Option<StatusParameter>, inline)]
            status: Option<String>,
            /// Only deliveries to these webhooks, by id or uid: up to 50, separated by commas, or the parameter repeated.
            #[param(value_type = Option<Vec<String>>)]
            webhook_id: Option<List<WebhookRef>>,
            /// Only deliveries of this event.
            #[param(value_type = Option<String>)]
            event_id: Option<EventId>,
            /// Only deliveries of events with this idempotency key; the event id for events published without one.
            idempotency_key: Option<String>,
            /// Only deliveries of events with this subject.
            subject: Option<String>,
            /// Only deliveries of these event types.
            #[param(value_type = Option<Vec<String>>)]
            event_type: Option<List<ExactEventType>>,
            /// Only deliveries whose last failure has one of these categories.
            #[param(value_type = Option<Vec<FailureCategory>>)]
            failure_category: Option<List<FailureCategory>>,
            /// Only deliveries whose last response had this status code, such as `503`, or class, such as `5xx`.
            status_code: Option<String>,
            /// Only deliveries dead for one of these reasons.
            #[param(value_type = Option<Vec<DeadReason>>)]
            dead_reason: Option<List<DeadReason>>,
            /// Only dead deliveries whose last failure requires no change before a retry (`true`), or requires one
            /// (`false`).
            recoverable: Option<bool>,
            /// Only what fails: dead letters that died at this time or later, and pending deliveries with a failed
            /// attempt (RFC 3339, or a date: midnight UTC).
            #[param(value_type = Option<String>, format = DateTime)]
            failed_from: Option<Time>,
            /// Only dead letters that died before this time (RFC 3339, or a date: midnight UTC).
            #[param(value_type = Option<String>, format = DateTime)]
            failed_to: Option<Time>,
            /// Only deliveries of events from this time on (RFC 3339, or a date: midnight UTC).
            #[param(value_type = Option<String>, format = DateTime)]
            from: Option<Time>,
            /// Only deliveries of events before this time (RFC 3339, or a date: midnight UTC).
            #[param(value_type = Option<String>, format = DateTime)]
            to: Option<Time>,
            /// The tenant to act for; admin keys only.
            pub(in crate::api) tenant_id: Option<String>,
            $($more)*
        }

        tenant_parameter!($name);

        impl $name {
            /// Returns the filter, with the conditions that only the node can decide.
            pub(crate) async fn selection(
                &self,
                app: &App,
                tenants: impl Into<TenantSelection>,
            ) -> Result<DeliverySelection, Problem> {
                let circuit_blocked = self.status.as_deref() == Some(CIRCUIT_BLOCKED);
                Ok(DeliverySelection { filter: self.filter(app, tenants).await?, circuit_blocked })
            }

            /// Returns the filter of the store. It selects all pending deliveries if those that wait for an open
            /// circuit are requested.
            pub(crate) async fn filter(
                &self,
                app: &App,
                tenants: impl Into<TenantSelection>,
            ) -> Result<DeliveryFilter, Problem> {
                self.filter_for(app.webhook_ids(tenants, &List::values(&self.webhook_id)).await?)
            }

            /// Returns the filter for these webhooks; for all if there are none.
            pub(crate) fn filter_for(&self, webhooks: Vec<WebhookId>) -> Result<DeliveryFilter, Problem> {
                let dead_reasons = List::values(&self.dead_reason);
                Ok(DeliveryFilter {
                    webhooks,
                    event_id: self.event_id,
                    idempotency_key: self.idempotency_key.clone(),
                    subject: self.subject.clone(),
                    status: self.status.as_deref().map(status_filter).transpose()?,
                    event_types: List::strings(&self.event_type),
                    failure_categories: List::values(&self.failure_category),
                    status_code: self.status_code.as_deref().map(|code| code_filter("status_code", code)).transpose()?,
                    dead_reasons: match self.status.as_deref() == Some(EXHAUSTED) {
                        true => exhausted_only(&dead_reasons)?,
                        false => dead_reasons,
                    },
                    recoverable: self.recoverable,
                    failed_from: self.failed_from,
                    failed_to: self.failed_to,
                    from: self.from,
                    to: self.to,
                    tenant_managed_only: false,
                })
            }
        }
    };
}

delivery_query! {
    /// Filter and page of a delivery listing.
    DeliveryQuery {
        /// The `next_cursor` of the previous page.
        cursor: Option<String>,
        /// Page size: 1 to 500, default 50.
        #[param(minimum = 1, maximum = 500)]
        limit: Option<u32>,
        /// Number of deliveries to skip, up to 10,000; prefer `cursor`.
        #[param(maximum = 10000)]
        offset: Option<u32>,
    }
}

delivery_query! {
    /// Filter and format of a delivery export.
    ExportQuery {
        /// `ndjson` (default), one JSON object per line, or `csv`.
        #[serde(default)]
        #[param(inline)]
        pub(in crate::api) format: Format,
    }
}

/// Filter of dead letter statistics.
#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct DeadQuery {
    /// Only dead letters of these webhooks, by id or uid: up to 50, separated by commas, or the parameter repeated.
    #[param(value_type = Option<Vec<String>>)]
    webhook_id: Option<List<WebhookRef>>,
    /// Only dead letters of these event types.
    #[param(value_type = Option<Vec<String>>)]
    event_type: Option<List<ExactEventType>>,
    /// Only dead letters whose last failure has one of these categories.
    #[param(value_type = Option<Vec<FailureCategory>>)]
    failure_category: Option<List<FailureCategory>>,
    /// Only dead letters with one of these reasons.
    #[param(value_type = Option<Vec<DeadReason>>)]
    dead_reason: Option<List<DeadReason>>,
    /// Only dead letters whose last failure requires no change before a retry (`true`), or requires one (`false`).
    recoverable: Option<bool>,
    /// Only dead letters that died at this time or later (RFC 3339, or a date: midnight UTC).
    #[param(value_type = Option<String>, format = DateTime)]
    failed_from: Option<Time>,
    /// Only dead letters that died before this time (RFC 3339, or a date: midnight UTC).
    #[param(value_type = Option<String>, format = DateTime)]
    failed_to: Option<Time>,
    /// Only dead letters of events from this time on (RFC 3339, or a date: midnight UTC).
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<Time>,
    /// Only dead letters of events before this time (RFC 3339, or a date: midnight UTC).
    #[param(value_type = Option<String>, format = DateTime)]
    to: Option<Time>,
    /// The tenant to act for; admin keys only.
    pub(in crate::api) tenant_id: Option<String>,
}

tenant_parameter!(DeadQuery);

impl DeadQuery {
    pub(in crate::api) async fn filter(
        &self,
        app: &App,
        tenants: &TenantSelection,
    ) -> Result<DeliveryFilter, AppError> {
        Ok(DeliveryFilter {
            webhooks: app.webhook_ids(tenants.clone(), &List::values(&self.webhook_id)).await?,
            event_types: List::strings(&self.event_type),
            failure_categories: List::values(&self.failure_category),
            dead_reasons: List::values(&self.dead_reason),
            recoverable: self.recoverable,
            failed_from: self.failed_from,
            failed_to: self.failed_to,
            from: self.from,
            to: self.to,
            ..DeliveryFilter::default()
        })
    }
}

/// Value of `status` for dead deliveries that used every attempt.
const EXHAUSTED: &str = "exhausted";
/// Value of `status` for pending deliveries that wait for an open circuit.
const CIRCUIT_BLOCKED: &str = "circuit_blocked";

/// Values of `status`, for the OpenAPI document.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(dead_code, reason = "it is there to be documented")]
enum StatusParameter {
    Pending,
    InFlight,
    Delivered,
    Success,
    Dead,
    Cancelled,
    Failed,
    Exhausted,
    CircuitBlocked,
}

fn status_filter(text: &str) -> Result<StatusFilter, Problem> {
    let known = match text {
        "failed" => return Ok(StatusFilter::Failed),
        "success" => Some(DeliveryStatus::Delivered),
        EXHAUSTED => Some(DeliveryStatus::Dead),
        CIRCUIT_BLOCKED => Some(DeliveryStatus::Pending),
        text => DeliveryStatus::ALL.into_iter().find(|status| status.name() == text),
    };
    known.map(StatusFilter::Exactly).ok_or_else(|| {
        let message = "must be pending, in_flight, delivered (or success), dead, cancelled, failed, exhausted or \
                       circuit_blocked";
        FieldError::new("status", message).into()
    })
}

/// Returns the dead reasons that match both `status=exhausted` and the given ones, which are all if empty.
fn exhausted_only(dead_reasons: &[DeadReason]) -> Result<Vec<DeadReason>, Problem> {
    match dead_reasons.is_empty() || dead_reasons.contains(&DeadReason::Exhausted) {
        true => Ok(vec![DeadReason::Exhausted]),
        false => {
            let message = "exhausted contradicts dead_reason; use status=dead with these reasons";
            Err(FieldError::new("status", message).into())
        }
    }
}

/// Parses a filter by status code: an exact code, or a class.
pub(in crate::api) fn code_filter(field: &'static str, text: &str) -> Result<CodeFilter, Problem> {
    text.parse().map_err(|CodeFilterError| FieldError::new(field, CodeFilterError.to_string()).into())
}

impl DeliveryQuery {
    pub(crate) fn paging(&self) -> Paging {
        Paging { cursor: self.cursor.clone(), limit: self.limit, offset: self.offset, tenant_id: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_filter_takes_every_status_and_its_other_names() {
        let exactly = |status| Some(StatusFilter::Exactly(status));
        for status in DeliveryStatus::ALL {
            assert_eq!(status_filter(status.name()).ok(), exactly(status));
        }
        assert_eq!(status_filter("success").ok(), exactly(DeliveryStatus::Delivered));
        assert_eq!(status_filter("failed").ok(), Some(StatusFilter::Failed));
        let schema = serde_json::to_value(<StatusParameter as utoipa::PartialSchema>::schema()).unwrap();
        let documented = schema["enum"].as_array().unwrap();
        assert_eq!(documented.len(), DeliveryStatus::ALL.len() + 4);
        assert!(documented.iter().all(|name| status_filter(name.as_str().unwrap()).is_ok()), "{schema}");
        assert!(["", "Success", "retrying"].iter().all(|text| status_filter(text).is_err()));

        let query = |status: &str, dead_reason: Option<Vec<DeadReason>>| {
            let query: DeliveryQuery = serde_json::from_value(serde_json::json!({
                "status": status,
                "dead_reason": dead_reason.map(|reasons| {
                    reasons.iter().map(|reason| reason.name()).collect::<Vec<_>>().join(",")
                }),
            }))
            .unwrap();
            query.filter_for(Vec::new()).ok()
        };
        let exhausted = query("exhausted", None).unwrap();
        assert_eq!(exhausted.status, exactly(DeliveryStatus::Dead));
        assert_eq!(exhausted.dead_reasons, [DeadReason::Exhausted]);
        let both = vec![DeadReason::Expired, DeadReason::Exhausted];
        assert_eq!(query("exhausted", Some(both)).unwrap().dead_reasons, [DeadReason::Exhausted]);
        assert!(query("exhausted", Some(vec![DeadReason::Expired])).is_none(), "they contradict each other");
        let blocked = query("circuit_blocked", None).unwrap();
        assert_eq!(blocked.status, exactly(DeliveryStatus::Pending));
    }
}
