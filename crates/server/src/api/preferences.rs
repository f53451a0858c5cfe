//! `/v1/notification-preferences`: what a tenant's owners want to hear of, and who has unsubscribed.

use axum::extract::State;
use redrive_core::{
    Invalid, Time,
    notice::{
        Kind,
        preferences::{Language, Notifications, check_email},
    },
};
use redrive_store::{Unsubscribed, UnsubscribedCursor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    events::TenantQuery,
    extract::{Json, ManagesEndpoints, May, Query, Reads, nullable},
    page::{Cursor, Page, Paging},
    problem::{ChangeProblems, Problem, ReadProblems},
};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(get, patch))
        .routes(routes!(list_unsubscribed))
        .routes(routes!(resubscribe))
}

/// What a tenant's owners want to hear of.
#[derive(Serialize, ToSchema)]
pub(super) struct NotificationsView {
    /// Addresses that are told about all webhooks, beside each webhook's owner.
    emails: Vec<String>,
    /// Kinds that nobody is told about, by any channel.
    mute: Vec<Kind>,
    /// The language of mails; null for the server's.
    language: Option<Language>,
}

impl From<Notifications> for NotificationsView {
    fn from(notifications: Notifications) -> Self {
        let Notifications { emails, mute, language } = notifications;
        Self { emails, mute, language }
    }
}

/// What to change about notifications. Whatever is left out keeps its value.
#[derive(Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NotificationsChange {
    /// Addresses that are told about all webhooks, beside each webhook's owner.
    #[schema(max_items = 10, example = json!(["ops@example.com"]))]
    emails: Option<Vec<String>>,
    /// Kinds that nobody is told about, by any channel.
    #[schema(max_items = 7, example = json!(["secret.due"]))]
    mute: Option<Vec<Kind>>,
    /// The language of mails; null for the server's.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<Language>)]
    language: Option<Option<Language>>,
}

impl NotificationsChange {
    pub(super) fn apply_to(self, notifications: &mut Notifications) {
        if let Some(emails) = self.emails {
            notifications.emails = emails;
        }
        if let Some(mute) = self.mute {
            notifications.mute = mute;
        }
        if let Some(language) = self.language {
            notifications.language = language;
        }
    }
}

/// Get what owners are told
#[utoipa::path(
    get, path = "/v1/notification-preferences", tag = "notifications", params(TenantQuery),
    responses((status = 200, body = NotificationsView), ReadProblems),
)]
async fn get(
    State(app): State<AppState>,
    May(by, _): May<Reads>,
    Query(query): Query<TenantQuery>,
) -> Result<axum::Json<NotificationsView>, Problem> {
    let tenant = app.acts_for(&by, query.tenant_id.as_deref()).await?;
    Ok(axum::Json(app.notifications(tenant.id).await?.into()))
}

/// Change what owners are told
///
/// Whatever is left out keeps its value. What is muted is told by no channel: neither by mail nor to operational
/// webhooks.
#[utoipa::path(
    patch, path = "/v1/notification-preferences", tag = "notifications", params(TenantQuery),
    request_body = NotificationsChange,
    responses((status = 200, body = NotificationsView), ChangeProblems),
)]
async fn patch(
    State(app): State<AppState>,
    May(by, _): May<ManagesEndpoints>,
    Query(query): Query<TenantQuery>,
    Json(input): Json<NotificationsChange>,
) -> Result<axum::Json<NotificationsView>, Problem> {
    let tenant = app.acts_for(&by, query.tenant_id.as_deref()).await?;
    let changed = app.change_notifications(&by, tenant.id, |now| input.apply_to(now)).await;
    Ok(axum::Json(changed.map_err(unprefixed)?.into()))
}

/// Fields here are not those of a tenant, but of its notifications alone.
fn unprefixed(error: crate::app::AppError) -> crate::app::AppError {
    match error {
        crate::app::AppError::Invalid(Invalid { field, message }) => {
            let field = field.strip_prefix("notifications.").unwrap_or(&field).to_owned();
            Invalid::new(field, message).into()
        }
        other => other,
    }
}

/// An address that is not told of a kind any more, by its own doing.
#[derive(Serialize, ToSchema)]
pub(super) struct UnsubscribedView {
    /// The address.
    email: String,
    /// What it is not told of.
    kind: Kind,
    /// Since when.
    #[schema(value_type = String, format = DateTime)]
    at: Time,
}

impl From<Unsubscribed> for UnsubscribedView {
    fn from(one: Unsubscribed) -> Self {
        Self { email: one.address, kind: one.kind, at: one.at }
    }
}

impl Cursor for UnsubscribedCursor {
    fn write(&self) -> String {
        format!("{}:{}", self.kind.name(), self.address)
    }

    fn read(text: &str) -> Option<Self> {
        let (kind, address) = text.split_once(':')?;
        let is_one = !address.is_empty() && address.len() <= 254 && !address.contains('\0');
        Some(Self { kind: Kind::parse(kind)?, address: address.to_owned() }).filter(|_| is_one)
    }
}

/// List who has unsubscribed
#[utoipa::path(
    get, path = "/v1/notification-preferences/unsubscribed", tag = "notifications", params(Paging),
    responses((status = 200, description = "By address and kind", body = Page<UnsubscribedView>), ReadProblems),
)]
async fn list_unsubscribed(
    State(app): State<AppState>,
    May(by, _): May<Reads>,
    Query(paging): Query<Paging>,
) -> Result<axum::Json<Page<UnsubscribedView>>, Problem> {
    let tenant = app.acts_for(&by, paging.tenant_id.as_deref()).await?;
    let found = app.list_unsubscribed(tenant.id, paging.request()?).await?;
    Ok(axum::Json(paging.page(found, Unsubscribed::cursor, UnsubscribedView::from)))
}

/// Who is to be told again.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Resubscribe {
    /// The address.
    #[schema(example = "jane@example.com")]
    email: String,
    /// Of what; of everything if left out.
    #[serde(default)]
    kind: Option<Kind>,
    /// The tenant to act for; admin keys only.
    #[serde(default)]
    tenant_id: Option<String>,
}

/// How many kinds somebody is told of again.
#[derive(Serialize, ToSchema)]
pub(super) struct Resubscribed {
    /// How many; 0 if there was nothing to undo.
    resubscribed: usize,
}

/// Tell an address again
///
/// Undoes what somebody did by the link in a mail.
#[utoipa::path(
    post, path = "/v1/notification-preferences/resubscribe", tag = "notifications", request_body = Resubscribe,
    responses((status = 200, body = Resubscribed), ChangeProblems),
)]
async fn resubscribe(
    State(app): State<AppState>,
    May(by, _): May<ManagesEndpoints>,
    Json(input): Json<Resubscribe>,
) -> Result<axum::Json<Resubscribed>, Problem> {
    let tenant = app.acts_for(&by, input.tenant_id.as_deref()).await?;
    check_email("email", &input.email)?;
    let resubscribed = app.resubscribe(&by, tenant.id, &input.email, input.kind).await?;
    Ok(axum::Json(Resubscribed { resubscribed }))
}
