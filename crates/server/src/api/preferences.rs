//! `/v1/notification-preferences`: what a tenant's owners want to hear of, and who has unsubscribed.

use axum::extract::State;
use redrive_core::{
    Invalid, TenantId, Time,
    notification::{
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
    extract::{Administers, Json, ManagesEndpoints, May, Query, Reads, nullable},
    page::{Cursor, Page, Paging},
    problem::{ChangeProblems, Problem, ReadProblems},
};
use crate::app::confirmations::AddressState;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(get, patch))
        .routes(routes!(list_unsubscribed))
        .routes(routes!(resend_confirmation))
        .routes(routes!(confirm))
}

/// What a tenant's owners want to hear of.
#[derive(Serialize, ToSchema)]
pub(super) struct NotificationsView {
    /// Addresses that receive notifications about all webhooks, beside each webhook's owner.
    emails: Vec<String>,
    /// Kinds of notifications that are not sent by any channel.
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

/// What a tenant's owners want to hear of, and whether their addresses are confirmed.
#[derive(Serialize, ToSchema)]
pub(super) struct PreferencesView {
    /// Addresses that receive notifications about all webhooks, beside each webhook's owner.
    emails: Vec<String>,
    /// Kinds of notifications that are not sent by any channel.
    mute: Vec<Kind>,
    /// The language of mails; null for the server's.
    language: Option<Language>,
    /// Whether each of these addresses receives notifications.
    addresses: Vec<AddressView>,
}

impl PreferencesView {
    async fn of(
        app: &AppState,
        tenant: TenantId,
        notifications: Notifications,
    ) -> Result<Self, crate::app::AppError> {
        let Notifications { emails, mute, language } = notifications;
        let states = app.address_states(tenant, emails.iter().map(String::as_str)).await?;
        let addresses = states.into_iter().map(AddressView::from).collect();
        Ok(Self { emails, mute, language, addresses })
    }
}

/// An address, and whether it receives notifications.
#[derive(Serialize, ToSchema)]
pub(crate) struct AddressView {
    /// The address, in lower case.
    #[schema(example = "jane@example.com")]
    email: String,
    /// `confirmed`; `unconfirmed`, which receives nothing until its holder has confirmed it; or `not_required`, where the
    /// operator trusts it.
    #[schema(example = "unconfirmed")]
    status: &'static str,
    /// When it was confirmed.
    #[schema(value_type = Option<String>, format = DateTime)]
    confirmed_at: Option<Time>,
    /// `holder`, by the link in the confirmation e-mail, or `operator`.
    confirmed_by: Option<&'static str>,
    /// When a confirmation e-mail was last requested.
    #[schema(value_type = Option<String>, format = DateTime)]
    requested_at: Option<Time>,
    /// How many confirmation e-mails were requested.
    requests: u32,
}

impl From<AddressState> for AddressView {
    fn from(state: AddressState) -> Self {
        let record = state.record.as_ref();
        let confirmed = record.and_then(|record| record.confirmed);
        Self {
            status: state.status.name(),
            confirmed_at: confirmed.map(|(at, _)| at),
            confirmed_by: confirmed.map(|(_, by)| by.name()),
            requested_at: record.and_then(|record| record.requested_at),
            requests: record.map_or(0, |record| record.requests),
            email: state.address,
        }
    }
}

/// What to change about notifications. Whatever is left out keeps its value.
#[derive(Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NotificationsChange {
    /// Addresses that receive notifications about all webhooks, beside each webhook's owner.
    #[schema(max_items = 10, example = json!(["ops@example.com"]))]
    emails: Option<Vec<String>>,
    /// Kinds of notifications that are not sent by any channel.
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
    responses((status = 200, body = PreferencesView), ReadProblems),
)]
async fn get(
    State(app): State<AppState>,
    May(by, _): May<Reads>,
    Query(query): Query<TenantQuery>,
) -> Result<axum::Json<PreferencesView>, Problem> {
    let tenant = app.acts_for(&by, query.tenant_id.as_deref()).await?;
    let notifications = app.notifications(tenant.id.clone()).await?;
    Ok(axum::Json(PreferencesView::of(&app, tenant.id, notifications).await?))
}

/// Change what owners are told
///
/// Whatever is left out keeps its value. What is muted is told by no channel: neither by mail nor to operational
/// webhooks. An address that is new gets a confirmation e-mail, and no notification before its holder has confirmed it.
#[utoipa::path(
    patch, path = "/v1/notification-preferences", tag = "notifications", params(TenantQuery),
    request_body = NotificationsChange,
    responses((status = 200, body = PreferencesView), ChangeProblems),
)]
async fn patch(
    State(app): State<AppState>,
    May(by, _): May<ManagesEndpoints>,
    Query(query): Query<TenantQuery>,
    Json(input): Json<NotificationsChange>,
) -> Result<axum::Json<PreferencesView>, Problem> {
    let tenant = app.acts_for(&by, query.tenant_id.as_deref()).await?;
    let changed = app.change_notifications(&by, tenant.id.clone(), |now| input.apply_to(now)).await;
    Ok(axum::Json(PreferencesView::of(&app, tenant.id, changed.map_err(unprefixed)?).await?))
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
///
/// Only the holder of an address can undo it, by the link in one of the mails.
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

/// An address to confirm.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AddressInput {
    /// The address.
    #[schema(example = "jane@example.com")]
    email: String,
    /// The tenant to act for; admin keys only.
    #[serde(default)]
    tenant_id: Option<String>,
}

/// Send a confirmation e-mail again
///
/// An address gets one at most once in an hour and 3 times in 30 days, over all tenants; a tenant sends 20 in a day at
/// most. Nothing is sent to an address that is confirmed or trusted.
#[utoipa::path(
    post, path = "/v1/notification-preferences/confirmations", tag = "notifications", request_body = AddressInput,
    responses((status = 200, body = AddressView), ChangeProblems),
)]
async fn resend_confirmation(
    State(app): State<AppState>,
    May(by, _): May<ManagesEndpoints>,
    Json(input): Json<AddressInput>,
) -> Result<axum::Json<AddressView>, Problem> {
    let tenant = app.acts_for(&by, input.tenant_id.as_deref()).await?;
    check_email("email", &input.email)?;
    Ok(axum::Json(app.resend_confirmation(&by, tenant.id, &input.email).await?.into()))
}

/// Mark an address as confirmed
///
/// For operators who know that its holder wants the notifications. No e-mail is sent.
#[utoipa::path(
    post, path = "/v1/notification-preferences/confirm", tag = "notifications", request_body = AddressInput,
    responses((status = 200, body = AddressView), ChangeProblems),
)]
async fn confirm(
    State(app): State<AppState>,
    May(by, _): May<Administers>,
    Json(input): Json<AddressInput>,
) -> Result<axum::Json<AddressView>, Problem> {
    let tenant = app.acts_for(&by, input.tenant_id.as_deref()).await?;
    check_email("email", &input.email)?;
    Ok(axum::Json(app.confirm_as_operator(&by, tenant.id, &input.email).await?.into()))
}
