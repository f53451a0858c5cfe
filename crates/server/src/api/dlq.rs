//! `/v1/dlq`: deliveries that were given up on and not redriven yet.

use axum::extract::State;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    deliveries::{DeliveryQuery, DeliveryView, cursor_of},
    extract::{May, Query, Reads},
    page::Page,
    problem::{Problem, ReadProblems},
};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list))
}

/// List dead deliveries
#[utoipa::path(
    get, path = "/v1/dlq", tag = "dlq", params(DeliveryQuery),
    responses((status = 200, description = "Newest event first", body = Page<DeliveryView>), ReadProblems),
)]
async fn list(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Query(query): Query<DeliveryQuery>,
) -> Result<axum::Json<Page<DeliveryView>>, Problem> {
    let tenant = app.acts_for(&caller, query.tenant_id.as_deref()).await?;
    let paging = query.paging();
    let dead = app.list_dead(tenant, query.filter()?, paging.request()?).await?;
    Ok(axum::Json(paging.page_of(dead, cursor_of, DeliveryView::from)))
}
