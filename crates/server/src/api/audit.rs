//! `/v1/audit-log`: log of changes, for admins.

use axum::extract::State;
use redrive_core::{AuditId, KeyId, TenantId, Time};
use redrive_store::{AuditEntry, AuditFilter};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    extract::Query,
    page::{Page, Paging},
    scope::{Authorized, CanAdminister},
    tenants::named,
};
use crate::problem::{Problem, ReadProblems};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list))
}

/// Filter and page of an audit log listing.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditQuery {
    /// Only entries about objects of this tenant.
    tenant_id: Option<String>,
    /// Only actions with this prefix, such as `webhook.`.
    action: Option<String>,
    /// Only entries about the object with this id.
    object_id: Option<String>,
    /// Only entries from this time on (RFC 3339, or a date: midnight UTC).
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<Time>,
    /// Only entries before this time (RFC 3339, or a date: midnight UTC).
    #[param(value_type = Option<String>, format = DateTime)]
    to: Option<Time>,
    /// The `next_cursor` of the previous page.
    cursor: Option<String>,
    /// Page size: 1 to 500, default 50.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// Number of entries to skip, up to 10,000; prefer `cursor`.
    #[param(maximum = 10000)]
    offset: Option<u32>,
}

impl AuditQuery {
    /// Returns the filter. Fails if the named tenant does not exist.
    pub(crate) async fn filter(&self, app: &AppState) -> Result<AuditFilter, Problem> {
        let tenant_id = match self.tenant_id.as_deref() {
            Some(id) => Some(named(app, id).await?),
            None => None,
        };
        let (action, object) = (self.action.clone(), self.object_id.clone());
        Ok(AuditFilter { tenant_id, action, object, from: self.from, to: self.to })
    }

    /// Returns the requested page.
    pub(crate) fn paging(&self) -> Paging {
        Paging { cursor: self.cursor.clone(), limit: self.limit, offset: self.offset, tenant_id: None }
    }
}

/// A change, or an attempt to make one.
#[derive(Serialize, ToSchema)]
pub(super) struct AuditView {
    /// Entry id.
    #[schema(value_type = String)]
    id: AuditId,
    /// Time of the change.
    #[schema(value_type = String, format = DateTime)]
    at: Time,
    /// Tenant of the object; null for objects without a tenant.
    #[schema(value_type = Option<String>)]
    tenant_id: Option<TenantId>,
    /// Name of the API key or user that made the change.
    actor: String,
    /// Subject of the user at the identity provider, such as `oidc:248289761001`; null for API keys.
    actor_subject: Option<String>,
    /// Id of the API key; null for users and the configured admin key.
    #[schema(value_type = Option<String>)]
    key_id: Option<KeyId>,
    /// Client address.
    address: Option<String>,
    /// Action, such as `webhook.update`.
    #[schema(example = "webhook.update")]
    action: String,
    /// Id of the object.
    object_id: Option<String>,
    /// `done`, or the reason of the failure; null if the server was killed before the result was known.
    result: Option<String>,
    /// The object before the change, without secrets.
    #[schema(value_type = Option<serde_json::Value>)]
    before: Option<Box<RawValue>>,
    /// The object after the change, without secrets.
    #[schema(value_type = Option<serde_json::Value>)]
    after: Option<Box<RawValue>>,
}

impl From<AuditEntry> for AuditView {
    fn from(entry: AuditEntry) -> Self {
        let json = |text: Option<String>| RawValue::from_string(text?).ok();
        let (result, before, after) = match entry.end {
            Some(end) => (Some(end.result), json(end.before), json(end.after)),
            None => (None, None, None),
        };
        Self {
            id: entry.id,
            at: entry.id.time(),
            tenant_id: entry.tenant_id,
            actor: entry.actor,
            actor_subject: entry.subject,
            key_id: entry.key,
            address: entry.address.map(|address| address.to_string()),
            action: entry.action,
            object_id: entry.object,
            result,
            before,
            after,
        }
    }
}

/// List audit log entries
///
/// Contains every change. Entries are never changed, and are kept for `audit.retention`.
#[utoipa::path(
    get, path = "/v1/audit-log", operation_id = "listAuditEntries", tag = "tenants", params(AuditQuery),
    responses((status = 200, description = "Newest first", body = Page<AuditView>), ReadProblems),
)]
async fn list(
    State(app): State<AppState>,
    _: Authorized<CanAdminister>,
    Query(query): Query<AuditQuery>,
) -> Result<axum::Json<Page<AuditView>>, Problem> {
    let paging = query.paging();
    let entries = app.list_audit(query.filter(&app).await?, paging.request()?).await?;
    Ok(axum::Json(paging.page(entries, |entry| entry.id, AuditView::from)))
}
