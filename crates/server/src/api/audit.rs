//! `/v1/audit-log`: who changed what, for admins.

use axum::extract::State;
use redrive_core::{AuditId, KeyId, TenantId, Time};
use redrive_store::{AuditEntry, AuditFilter};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    extract::{Administers, May, Query},
    page::{Page, Paging},
    problem::{Problem, ReadProblems},
    tenants::named,
};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list))
}

/// Which entries to list.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditQuery {
    /// Only what was done to this tenant's things.
    tenant_id: Option<String>,
    /// Only actions that begin like this, such as `webhook.`.
    action: Option<String>,
    /// Only what was done to the thing with this id.
    object_id: Option<String>,
    /// From this time on.
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<Time>,
    /// Before this time.
    #[param(value_type = Option<String>, format = DateTime)]
    to: Option<Time>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
    /// How many: 1 to 500, 50 if left out.
    limit: Option<u32>,
    /// How many to leave out first, up to 10,000; a cursor is better.
    offset: Option<u32>,
}

impl AuditQuery {
    /// What is looked for. A tenant that it names must exist.
    pub(crate) async fn filter(&self, app: &AppState) -> Result<AuditFilter, Problem> {
        let tenant = match self.tenant_id.as_deref() {
            Some(id) => Some(named(app, id).await?),
            None => None,
        };
        let (action, object) = (self.action.clone(), self.object_id.clone());
        Ok(AuditFilter { tenant, action, object, from: self.from, to: self.to })
    }

    /// Which part of the listing.
    pub(crate) fn paging(&self) -> Paging {
        Paging { cursor: self.cursor.clone(), limit: self.limit, offset: self.offset, tenant_id: None }
    }
}

/// Something that somebody changed, or tried to.
#[derive(Serialize, ToSchema)]
pub(super) struct AuditView {
    /// Its id.
    #[schema(value_type = String)]
    id: AuditId,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    at: Time,
    /// Whose thing it was; null for what belongs to no tenant.
    #[schema(value_type = Option<String>)]
    tenant_id: Option<TenantId>,
    /// Who: the name of the key.
    actor: String,
    /// The key's id; null for the admin key that was configured.
    #[schema(value_type = Option<String>)]
    key_id: Option<KeyId>,
    /// From where.
    address: Option<String>,
    /// What was done, such as `webhook.update`.
    #[schema(example = "webhook.update")]
    action: String,
    /// The thing's id.
    object_id: Option<String>,
    /// `done`, or why not; null if the server was killed before it knew.
    result: Option<String>,
    /// The thing before, without its secrets.
    #[schema(value_type = Option<serde_json::Value>)]
    before: Option<Box<RawValue>>,
    /// The thing afterwards, without its secrets.
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
            tenant_id: entry.tenant,
            actor: entry.actor,
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

/// Look into the audit log
///
/// Every change that anybody made is in it. An entry is never changed, and is kept for `audit.retention`.
#[utoipa::path(
    get, path = "/v1/audit-log", tag = "tenants", params(AuditQuery),
    responses((status = 200, description = "Newest first", body = Page<AuditView>), ReadProblems),
)]
async fn list(
    State(app): State<AppState>,
    _: May<Administers>,
    Query(query): Query<AuditQuery>,
) -> Result<axum::Json<Page<AuditView>>, Problem> {
    let paging = query.paging();
    let entries = app.list_audit(query.filter(&app).await?, paging.request()?).await?;
    Ok(axum::Json(paging.page(entries, |entry| entry.id, AuditView::from)))
}
