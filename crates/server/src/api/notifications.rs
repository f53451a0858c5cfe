//! `/v1/notifications`: notifications to owners.

use axum::extract::State;
use redrive_core::{DeliveryId, NotificationId, TenantId, Time, WebhookId, notification::NotificationKind};
use redrive_store::StoredNotification;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    extract::Query,
    page::{Page, Paging},
    scope::{CanRead, ScopedListing},
};
use crate::problem::{Problem, ReadProblems};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list))
}

/// Notification to the owners of a webhook or tenant, sent or pending.
#[derive(Serialize, ToSchema)]
pub(crate) struct NotificationView {
    /// Unique id of the notification; also the idempotency key of its event.
    #[schema(value_type = String)]
    id: NotificationId,
    /// Tenant that the notification belongs to.
    #[schema(value_type = String)]
    tenant_id: TenantId,
    /// Kind of the notification.
    kind: NotificationKind,
    /// Webhook that the notification is about; null if it is about the whole tenant.
    #[schema(value_type = Option<String>)]
    webhook_id: Option<WebhookId>,
    /// Number of occurrences grouped in this notification.
    count: u64,
    /// Time of the first occurrence.
    #[schema(value_type = String, format = DateTime)]
    first_at: Time,
    /// Time of the last occurrence.
    #[schema(value_type = String, format = DateTime)]
    last_at: Time,
    /// Time at which the notification was created.
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    /// Reason of the last occurrence, as a code.
    reason: Option<String>,
    /// Human-readable description of the last occurrence.
    message: Option<String>,
    /// Delivery affected last.
    #[schema(value_type = Option<String>)]
    delivery_id: Option<DeliveryId>,
    /// Event type of that delivery.
    event_type: Option<String>,
    /// Time at which the condition ends by itself, if it does.
    #[schema(value_type = Option<String>, format = DateTime)]
    until: Option<Time>,
    /// Time of the first failure since the webhook's last success, of kinds that report failures or their end.
    #[schema(value_type = Option<String>, format = DateTime)]
    since: Option<Time>,
    /// Number of failed attempts since then, of `webhook.failing`.
    failures: Option<u32>,
    /// Status per channel.
    channels: ChannelsView,
    /// Time of the next send attempt at the latest; null when no channel is pending.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_attempt_at: Option<Time>,
    /// Error of the last failed send attempt.
    error: Option<String>,
}

/// Status of a notification per channel: `pending`, `sent`, `no_recipients` (no recipient is configured, confirmed
/// and not muted), `suppressed` (an email limit was reached) or `failed`.
#[derive(Serialize, ToSchema)]
pub(crate) struct ChannelsView {
    /// Status of the event for operational webhooks.
    webhook: &'static str,
    /// Status of the email.
    email: &'static str,
}

impl From<StoredNotification> for NotificationView {
    fn from(stored: StoredNotification) -> Self {
        let StoredNotification {
            notification,
            webhook_status: event,
            email_status: email,
            next_attempt_at: next_at,
            error,
            ..
        } = stored;
        Self {
            id: notification.id,
            tenant_id: notification.tenant_id,
            kind: notification.kind,
            webhook_id: notification.webhook_id,
            count: notification.count,
            first_at: notification.first_at,
            last_at: notification.last_at,
            created_at: notification.id.time(),
            reason: notification.details.reason,
            message: notification.details.message,
            delivery_id: notification.details.delivery_id,
            event_type: notification.details.event_type,
            until: notification.details.until,
            since: notification.details.since,
            failures: notification.details.failures,
            channels: ChannelsView { webhook: event.name(), email: email.name() },
            next_attempt_at: next_at,
            error,
        }
    }
}

/// List notifications
///
/// Notifications sent to owners: failing and recovered webhooks, opened and recovered circuits, disabled webhooks, dead
/// deliveries, DNS failures, secrets due for rotation, reached quotas. Repeated occurrences are grouped. Kept for 30 days.
/// With an admin key, `tenant_id=*` lists those of all tenants.
#[utoipa::path(
    get, path = "/v1/notifications", operation_id = "listNotifications", tag = "notifications", params(Paging),
    responses((status = 200, description = "Newest first", body = Page<NotificationView>), ReadProblems),
)]
async fn list(
    State(app): State<AppState>,
    ScopedListing { tenants, query: Query(paging), .. }: ScopedListing<CanRead, Query<Paging>>,
) -> Result<axum::Json<Page<NotificationView>>, Problem> {
    let found = app.list_notifications(tenants, paging.request()?).await?;
    Ok(axum::Json(paging.page_of(found, |one| one.notification.id, NotificationView::from)))
}
