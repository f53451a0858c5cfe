//! Route that resends an event with an edited payload.

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use redrive_core::{EventId, FieldError, delivery::lane::Priority, webhook::uid::WebhookRef};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::publish::{MAX_BATCH, PublishedView};
use crate::{
    api::{
        AppState,
        creation::Creation,
        extract::{Id, PayloadJson},
        scope::{CanPublish, ScopedBody, TenantQuery, tenant_parameter},
    },
    app::{edited_events::EditedResend, parse::document::parse_raw_payload},
    problem::{ChangeProblems, Problem},
};

/// Edited payload, and the webhooks that receive it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct EditedInput {
    /// Edited payload: any JSON value. It is delivered byte for byte.
    #[schema(value_type = serde_json::Value)]
    data: Box<RawValue>,
    /// Webhooks to deliver to, by id or uid, whatever they subscribe to; by default all that subscribe to the event.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>, min_items = 1, max_items = 1000)]
    webhook_ids: Option<Vec<WebhookRef>>,
    /// Priority; that of the original by default.
    #[serde(default)]
    priority: Option<Priority>,
    /// Idempotency key of the new event. A repeated request with the same key returns the first event. Can also be sent as
    /// the header `Idempotency-Key`.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 256)]
    idempotency_key: Option<String>,
    /// Tenant to act for; admin keys only.
    #[serde(default)]
    tenant_id: Option<String>,
}

tenant_parameter!(EditedInput);

/// Resend an event with an edited payload
///
/// Publishes a new event with the type, source, subject and metadata of the original, and `edited_from` set to its id.
/// The original is unchanged and refers to the new event in `edited_as`. Needs the permission to publish.
#[utoipa::path(
    post, path = "/v1/events/{id}/resend-edited", tag = "events", params(("id" = String, Path), TenantQuery, ("Idempotency-Key" = Option<String>, Header, description = "A repeated key returns the first event")),
    request_body = EditedInput,
    responses(
        (status = 202, description = "Event accepted", body = PublishedView),
        (status = 200, description = "Duplicate: the event was already published with this idempotency key", body = PublishedView),
        ChangeProblems,
    ),
)]
pub(super) async fn resend_edited(
    State(app): State<AppState>,
    ScopedBody { actor, tenant, path: Id(id), body: creation, .. }: ScopedBody<
        CanPublish,
        Id<EventId>,
        Creation<PayloadJson<EditedInput>>,
    >,
) -> Result<Response, Problem> {
    let Creation { body: PayloadJson(input), request } = creation;
    let key = request.map(|request| request.key);
    if key.is_some() && input.idempotency_key.is_some() && key != input.idempotency_key {
        let what = "differs from the header Idempotency-Key";
        return Err(FieldError::new("idempotency_key", what).into());
    }
    if input.webhook_ids.as_ref().is_some_and(|ids| ids.is_empty() || ids.len() > MAX_BATCH) {
        let what = "must name 1 to 1000 webhooks; leave it out for all that subscribe to the event";
        return Err(FieldError::new("webhook_ids", what).into());
    }
    let webhook_ids = match &input.webhook_ids {
        Some(webhooks) => Some(app.webhook_ids(&tenant, webhooks).await?),
        None => None,
    };
    let resend = EditedResend {
        data: parse_raw_payload(&Bytes::from(String::from(Box::<str>::from(input.data))))?,
        webhook_ids,
        priority: input.priority,
        idempotency_key: key.or(input.idempotency_key).map(String::into_boxed_str),
    };
    let receipt = app.resend_edited(&actor, &tenant, id, resend).await?;
    let status = if receipt.duplicate { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, axum::Json(PublishedView::from(receipt))).into_response())
}
