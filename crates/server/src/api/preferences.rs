//! `/v1/notification-preferences`: notification settings of a tenant, confirmed addresses and unsubscriptions.

use axum::extract::State;
use redrive_core::{
    FieldError, TenantId, Time,
    notification::{
        NotificationKind,
        preferences::{Language, TenantPreferences, check_email},
    },
};
use redrive_store::{Unsubscription, UnsubscriptionCursor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    extract::{Json, Query},
    page::{Cursor, Page, Paging},
    scope::{
        CanAdminister, CanRead, ManagesEndpoints, Scoped, ScopedBody, TenantParameter, TenantQuery,
        tenant_parameter,
    },
};
use crate::{
    app::{confirmations::AddressState, parse::json::nullable},
    problem::{ChangeProblems, Problem, ReadProblems},
};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(get, patch))
        .routes(routes!(list_unsubscribed))
        .routes(routes!(resend_confirmation))
        .routes(routes!(confirm))
}

/// Notification preferences of a tenant.
#[derive(Serialize, ToSchema)]
pub(super) struct TenantPreferencesView {
    /// Addresses that receive notifications about all webhooks, in addition to each webhook's owner.
    emails: Vec<String>,
    /// Kinds of notifications that are not sent through any channel.
    muted_kinds: Vec<NotificationKind>,
    /// Language of emails; null for the server default.
    language: Option<Language>,
}

impl From<TenantPreferences> for TenantPreferencesView {
    fn from(notifications: TenantPreferences) -> Self {
        let TenantPreferences { emails, muted_kinds: mute, language } = notifications;
        Self { emails, muted_kinds: mute, language }
    }
}

/// Notification preferences of a tenant, with the confirmation status of the addresses.
#[derive(Serialize, ToSchema)]
pub(super) struct PreferencesView {
    /// Addresses that receive notifications about all webhooks, in addition to each webhook's owner.
    emails: Vec<String>,
    /// Kinds of notifications that are not sent through any channel.
    muted_kinds: Vec<NotificationKind>,
    /// Language of emails; null for the server default.
    language: Option<Language>,
    /// Confirmation status of each address.
    addresses: Vec<AddressView>,
}

impl PreferencesView {
    async fn load(
        app: &AppState,
        tenant_id: TenantId,
        notifications: TenantPreferences,
    ) -> Result<Self, crate::app::AppError> {
        let TenantPreferences { emails, muted_kinds: mute, language } = notifications;
        let states = app.address_states(tenant_id, emails.iter().map(String::as_str)).await?;
        let addresses = states.into_iter().map(AddressView::from).collect();
        Ok(Self { emails, muted_kinds: mute, language, addresses })
    }
}

/// Email address with its confirmation status.
#[derive(Serialize, ToSchema)]
pub(crate) struct AddressView {
    /// Email address, in lower case.
    #[schema(example = "jane@example.com")]
    email: String,
    /// `confirmed`; `unconfirmed`: receives nothing until its holder confirms it; or `not_required`: the operator
    /// trusts the address.
    #[schema(example = "unconfirmed")]
    status: &'static str,
    /// Time of the confirmation.
    #[schema(value_type = Option<String>, format = DateTime)]
    confirmed_at: Option<Time>,
    /// `holder` (by the link in the confirmation email) or `operator`.
    confirmed_by: Option<&'static str>,
    /// Time at which a confirmation email was last requested.
    #[schema(value_type = Option<String>, format = DateTime)]
    requested_at: Option<Time>,
    /// Number of confirmation emails requested.
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

/// Changes to notification preferences. Missing fields keep their value.
#[derive(Clone, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PreferencesChange {
    /// Addresses that receive notifications about all webhooks, in addition to each webhook's owner.
    #[schema(max_items = 10, example = json!(["ops@example.com"]))]
    emails: Option<Vec<String>>,
    /// Kinds of notifications that are not sent through any channel.
    #[schema(max_items = 9, example = json!(["secret.rotation_due"]))]
    muted_kinds: Option<Vec<NotificationKind>>,
    /// Language of emails; null for the server default.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<Language>)]
    language: Option<Option<Language>>,
}

impl TenantParameter for PreferencesChange {
    fn tenant_id(&self) -> Option<&str> {
        None
    }
}

impl PreferencesChange {
    pub(super) fn apply_to(self, notifications: &mut TenantPreferences) {
        if let Some(emails) = self.emails {
            notifications.emails = emails;
        }
        if let Some(mute) = self.muted_kinds {
            notifications.muted_kinds = mute;
        }
        if let Some(language) = self.language {
            notifications.language = language;
        }
    }
}

/// Get notification preferences
#[utoipa::path(
    get, path = "/v1/notification-preferences", operation_id = "getNotificationPreferences", tag = "notifications", params(TenantQuery),
    responses((status = 200, description = "The preferences, with the status of each address", body = PreferencesView), ReadProblems),
)]
async fn get(
    State(app): State<AppState>,
    Scoped { tenant, .. }: Scoped<CanRead>,
) -> Result<axum::Json<PreferencesView>, Problem> {
    let notifications = app.notification_preferences(tenant.id.clone()).await?;
    Ok(axum::Json(PreferencesView::load(&app, tenant.id, notifications).await?))
}

/// Update notification preferences
///
/// Missing fields keep their value. Muted kinds are sent neither by email nor to operational webhooks. A new
/// address receives a confirmation email, and no notifications until its holder has confirmed it.
#[utoipa::path(
    patch, path = "/v1/notification-preferences", operation_id = "updateNotificationPreferences", tag = "notifications", params(TenantQuery),
    request_body = PreferencesChange,
    responses((status = 200, description = "The changed preferences", body = PreferencesView), ChangeProblems),
)]
async fn patch(
    State(app): State<AppState>,
    ScopedBody { actor, tenant, body: Json(input), .. }: ScopedBody<
        ManagesEndpoints,
        (),
        Json<PreferencesChange>,
    >,
) -> Result<axum::Json<PreferencesView>, Problem> {
    let changed =
        app.change_notification_preferences(&actor, tenant.id.clone(), |now| input.apply_to(now)).await;
    Ok(axum::Json(PreferencesView::load(&app, tenant.id, changed.map_err(strip_field_prefix)?).await?))
}

/// Strips the prefix `notifications.` from the field of an error: here the preferences are the top-level object.
fn strip_field_prefix(error: crate::app::AppError) -> crate::app::AppError {
    match error {
        crate::app::AppError::Invalid(FieldError { field, message }) => {
            let field = field.strip_prefix("notifications.").unwrap_or(&field).to_owned();
            FieldError::new(field, message).into()
        }
        other => other,
    }
}

/// Unsubscription of an address from one kind of notification.
#[derive(Serialize, ToSchema)]
pub(super) struct UnsubscriptionView {
    /// Email address.
    email: String,
    /// Kind of notification that the address does not receive.
    kind: NotificationKind,
    /// Time of the unsubscription.
    #[schema(value_type = String, format = DateTime)]
    unsubscribed_at: Time,
}

impl From<Unsubscription> for UnsubscriptionView {
    fn from(one: Unsubscription) -> Self {
        Self { email: one.address, kind: one.kind, unsubscribed_at: one.unsubscribed_at }
    }
}

impl Cursor for UnsubscriptionCursor {
    fn write(&self) -> String {
        format!("{}:{}", self.kind.name(), self.address)
    }

    fn read(text: &str) -> Option<Self> {
        let (kind, address) = text.split_once(':')?;
        let is_one = !address.is_empty() && address.len() <= 254 && !address.contains('\0');
        Some(Self { kind: NotificationKind::parse(kind)?, address: address.to_owned() }).filter(|_| is_one)
    }
}

/// List unsubscriptions
///
/// Only the holder of an address can subscribe again, with the link in one of the emails.
#[utoipa::path(
    get, path = "/v1/notification-preferences/unsubscriptions", operation_id = "listUnsubscriptions", tag = "notifications", params(Paging),
    responses((status = 200, description = "By address and kind", body = Page<UnsubscriptionView>), ReadProblems),
)]
async fn list_unsubscribed(
    State(app): State<AppState>,
    Scoped { tenant, query: Query(paging), .. }: Scoped<CanRead, (), Query<Paging>>,
) -> Result<axum::Json<Page<UnsubscriptionView>>, Problem> {
    let found = app.list_unsubscribed(tenant.id, paging.request()?).await?;
    Ok(axum::Json(paging.page(found, Unsubscription::cursor, UnsubscriptionView::from)))
}

/// Address to confirm.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AddressInput {
    /// Email address.
    #[schema(example = "jane@example.com")]
    email: String,
    /// Tenant to act for; admin keys only.
    #[serde(default)]
    tenant_id: Option<String>,
}

tenant_parameter!(AddressInput);

/// Resend a confirmation email
///
/// An address receives at most one per hour and 3 in 30 days, over all tenants; a tenant can send at most 20 per
/// day. Nothing is sent to an address that is confirmed or trusted.
#[utoipa::path(
    post, path = "/v1/notification-preferences/confirmations", operation_id = "sendConfirmation", tag = "notifications", request_body = AddressInput,
    responses((status = 200, description = "The address, with the status of its confirmation", body = AddressView), ChangeProblems),
)]
async fn resend_confirmation(
    State(app): State<AppState>,
    Scoped { actor, tenant, body: Json(input), .. }: Scoped<ManagesEndpoints, (), (), Json<AddressInput>>,
) -> Result<axum::Json<AddressView>, Problem> {
    check_email("email", &input.email)?;
    Ok(axum::Json(app.resend_confirmation(&actor, tenant.id, &input.email).await?.into()))
}

/// Mark an address as confirmed
///
/// For operators who know that the holder of the address wants the notifications. No email is sent.
#[utoipa::path(
    post, path = "/v1/notification-preferences/confirm", operation_id = "confirmAddress", tag = "notifications", request_body = AddressInput,
    responses((status = 200, description = "The confirmed address", body = AddressView), ChangeProblems),
)]
async fn confirm(
    State(app): State<AppState>,
    Scoped { actor, tenant, body: Json(input), .. }: Scoped<CanAdminister, (), (), Json<AddressInput>>,
) -> Result<axum::Json<AddressView>, Problem> {
    check_email("email", &input.email)?;
    Ok(axum::Json(app.confirm_as_operator(&actor, tenant.id, &input.email).await?.into()))
}
