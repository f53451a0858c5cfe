//! `/v1/notifications`: what owners were told.

use axum::extract::State;
use redrive_core::{DeliveryId, NoticeId, TenantId, Time, WebhookId, notification::Kind};
use redrive_store::StoredNotice;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    extract::{May, Query, Reads},
    page::{Page, Paging},
    problem::{Problem, ReadProblems},
};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list))
}

/// Something that owners were told, or are being told.
#[derive(Serialize, ToSchema)]
pub(crate) struct NotificationView {
    /// Its id; also the idempotency key of its event.
    #[schema(value_type = String)]
    id: NoticeId,
    /// Whose it is.
    #[schema(value_type = String)]
    tenant_id: TenantId,
    /// What happened.
    kind: Kind,
    /// The webhook that it is about; null if it is about the tenant as a whole.
    #[schema(value_type = Option<String>)]
    webhook_id: Option<WebhookId>,
    /// How many such things it tells of.
    count: u64,
    /// When the first of them was.
    #[schema(value_type = String, format = DateTime)]
    first_at: Time,
    /// When the last of them was.
    #[schema(value_type = String, format = DateTime)]
    last_at: Time,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    /// Why the last one happened, as a name.
    reason: Option<String>,
    /// Why, in words.
    message: Option<String>,
    /// The delivery that was affected last.
    #[schema(value_type = Option<String>)]
    delivery_id: Option<DeliveryId>,
    /// The type of its event.
    event_type: Option<String>,
    /// Until when, where it is over by itself.
    #[schema(value_type = Option<String>, format = DateTime)]
    until: Option<Time>,
    /// How far it is, on each way.
    channels: ChannelsView,
    /// When it is sent again at the latest; null once it is over on every way.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_try_at: Option<Time>,
    /// What went wrong last.
    error: Option<String>,
}

/// How far a notification is: `waiting`, `told` (sent), `nobody` (no recipient: none is set, has not muted it and has confirmed
/// its address), `suppressed` (a limit of e-mails was reached) or `given_up`.
#[derive(Serialize, ToSchema)]
pub(crate) struct ChannelsView {
    /// As an event for operational webhooks.
    webhook: &'static str,
    /// By e-mail.
    mail: &'static str,
}

impl From<StoredNotice> for NotificationView {
    fn from(stored: StoredNotice) -> Self {
        let StoredNotice { notice, event, mail, next_at, error, .. } = stored;
        Self {
            id: notice.id,
            tenant_id: notice.tenant,
            kind: notice.kind,
            webhook_id: notice.webhook,
            count: notice.count,
            first_at: notice.first_at,
            last_at: notice.last_at,
            created_at: notice.id.time(),
            reason: notice.facts.reason,
            message: notice.facts.message,
            delivery_id: notice.facts.delivery,
            event_type: notice.facts.event_type,
            until: notice.facts.until,
            channels: ChannelsView { webhook: event.name(), mail: mail.name() },
            next_try_at: next_at,
            error,
        }
    }
}

/// List notifications
///
/// What owners were told without asking: circuits that opened and recovered, webhooks that were disabled, deliveries that
/// died, names that are not found, secrets that are due, quotas that are used up. Repeats are folded. Kept for 30 days.
#[utoipa::path(
    get, path = "/v1/notifications", tag = "notifications", params(Paging),
    responses((status = 200, description = "Newest first", body = Page<NotificationView>), ReadProblems),
)]
async fn list(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Query(paging): Query<Paging>,
) -> Result<axum::Json<Page<NotificationView>>, Problem> {
    let tenant = app.acts_for(&caller, paging.tenant_id.as_deref()).await?;
    let found = app.list_notices(tenant, paging.request()?).await?;
    Ok(axum::Json(paging.page_of(found, |one| one.notice.id, NotificationView::from)))
}
