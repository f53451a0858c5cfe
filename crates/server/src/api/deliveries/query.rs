//! Which deliveries to list, as people write it in a query.

use redrive_core::{DeadReason, DeliveryStatus, EventId, FailureCategory, Invalid, Time, WebhookId};
use redrive_store::{CodeFilter, DeliveryFilter, StatusFilter};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::api::{export::Format, extract::List, page::Paging, problem::Problem};

/// A query with every filter of deliveries, and more.
macro_rules! delivery_query {
    ($(#[$doc:meta])* $name:ident { $($more:tt)* }) => {
        $(#[$doc])*
        #[derive(Default, Deserialize, IntoParams)]
        #[into_params(parameter_in = Query)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            /// `pending`, `in_flight`, `delivered`, `dead`, `cancelled`, or `failed`: at least one failed attempt and
            /// not delivered.
            status: Option<String>,
            /// Only to this webhook, or one of these: up to 50, separated by commas, or the parameter repeated.
            #[param(value_type = Option<Vec<String>>)]
            webhook_id: Option<List<WebhookId>>,
            /// Only of this event.
            #[param(value_type = Option<String>)]
            event_id: Option<EventId>,
            /// Only of events with this key; the event's id where it was published without one.
            idempotency_key: Option<String>,
            /// Only of events about this subject.
            subject: Option<String>,
            /// Only of this event type, or one of these.
            #[param(value_type = Option<Vec<String>>)]
            event_type: Option<List<String>>,
            /// Only with this kind of last failure, or one of these.
            #[param(value_type = Option<Vec<String>>)]
            failure_category: Option<List<FailureCategory>>,
            /// Only with this status code of the last answer, such as `503`, or one of its hundred, such as `5xx`.
            status_code: Option<String>,
            /// Only dead for this reason, or one of these.
            #[param(value_type = Option<Vec<String>>)]
            dead_reason: Option<List<DeadReason>>,
            /// Only dead ones that may well succeed when they are sent again as they are (`true`), or not (`false`).
            recoverable: Option<bool>,
            /// Only of events from this time on (RFC 3339).
            #[param(value_type = Option<String>)]
            from: Option<Time>,
            /// Only of events before this time (RFC 3339).
            #[param(value_type = Option<String>)]
            to: Option<Time>,
            /// The tenant to act for; admin keys only.
            pub(in crate::api) tenant_id: Option<String>,
            $($more)*
        }

        impl $name {
            pub(crate) fn filter(&self) -> Result<DeliveryFilter, Problem> {
                Ok(DeliveryFilter {
                    webhooks: List::values(&self.webhook_id),
                    event: self.event_id,
                    idempotency_key: self.idempotency_key.clone(),
                    subject: self.subject.clone(),
                    status: self.status.as_deref().map(status_filter).transpose()?,
                    event_types: List::values(&self.event_type),
                    failure_categories: List::values(&self.failure_category),
                    status_code: self.status_code.as_deref().map(code_filter).transpose()?,
                    dead_reasons: List::values(&self.dead_reason),
                    recoverable: self.recoverable,
                    from: self.from,
                    to: self.to,
                    tenant_managed_only: false,
                })
            }
        }
    };
}

delivery_query! {
    /// Which deliveries to list.
    DeliveryQuery {
        /// The `next_cursor` of the page before.
        cursor: Option<String>,
        /// How many to give: 1 to 500, 50 if left out.
        #[param(minimum = 1, maximum = 500)]
        limit: Option<u32>,
        /// How many to leave out first, up to 10,000; a cursor is better.
        #[param(maximum = 10000)]
        offset: Option<u32>,
    }
}

delivery_query! {
    /// Which deliveries to export, and how.
    ExportQuery {
        /// `ndjson`, one JSON object a line, if left out; or `csv`.
        #[serde(default)]
        #[param(inline)]
        pub(in crate::api) format: Format,
    }
}

/// Which dead letters to count.
#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct DeadQuery {
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
    /// Only of events from this time on (RFC 3339).
    #[param(value_type = Option<String>)]
    from: Option<Time>,
    /// Only of events before this time (RFC 3339).
    #[param(value_type = Option<String>)]
    to: Option<Time>,
    /// The tenant to act for; admin keys only.
    pub(in crate::api) tenant_id: Option<String>,
}

impl DeadQuery {
    pub(in crate::api) fn filter(&self) -> DeliveryFilter {
        DeliveryFilter {
            webhooks: List::values(&self.webhook_id),
            event_types: List::values(&self.event_type),
            failure_categories: List::values(&self.failure_category),
            dead_reasons: List::values(&self.dead_reason),
            recoverable: self.recoverable,
            from: self.from,
            to: self.to,
            ..DeliveryFilter::default()
        }
    }
}

fn status_filter(text: &str) -> Result<StatusFilter, Problem> {
    if text == "failed" {
        return Ok(StatusFilter::Failed);
    }
    let known = DeliveryStatus::ALL.into_iter().find(|status| status.name() == text);
    known.map(StatusFilter::Is).ok_or_else(|| {
        Invalid::new("status", "must be pending, in_flight, delivered, dead, cancelled or failed").into()
    })
}

fn code_filter(text: &str) -> Result<CodeFilter, Problem> {
    let filter = match text.strip_suffix("xx") {
        Some(class) => class.parse().ok().filter(|class| (1..=9).contains(class)).map(CodeFilter::Class),
        None => text.parse().ok().filter(|code| (100..=999).contains(code)).map(CodeFilter::Is),
    };
    filter.ok_or_else(|| {
        Invalid::new("status_code", "must be a status code such as 503, or a hundred of them such as 5xx")
            .into()
    })
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
    fn a_status_code_is_exact_or_a_hundred() {
        for (text, filter) in [
            ("503", Some(CodeFilter::Is(503))),
            ("100", Some(CodeFilter::Is(100))),
            ("5xx", Some(CodeFilter::Class(5))),
            ("xx", None),
            ("0xx", None),
            ("55xx", None),
            ("99", None),
            ("1000", None),
            ("-503", None),
            ("", None),
        ] {
            assert_eq!(code_filter(text).ok(), filter, "{text}");
        }
        assert_eq!(CodeFilter::Class(5).range(), (500, 599));
        assert_eq!(CodeFilter::Is(503).range(), (503, 503));
    }
}
