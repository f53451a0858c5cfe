//! Search pages: what a text from the search box finds, and events by their payloads.

use askama::Template;
use axum::{
    extract::State,
    response::{IntoResponse, Redirect, Response},
};
use redrive_core::search::SearchText;

use super::{
    PageResult, format,
    page::{FormQuery, Html, PageContext, PageError},
    untrusted,
    viewer::{TenantViewer, Viewer, home_url},
};
use crate::{
    api::{AppState, PayloadQuery, SearchQuery},
    app::{
        payload_search::PayloadMatches,
        search::{SearchHit, SearchResult},
    },
    problem::Problem,
};

/// Matches on one page of the payload search.
const PAGE_SIZE: u32 = 25;

#[derive(Template)]
#[template(path = "search.html")]
struct SearchPage {
    layout: PageContext,
    text: String,
    result: SearchResult,
}

impl SearchPage {
    /// Describes the field that matched, unless it is the title.
    fn matched(&self, hit: &SearchHit) -> String {
        format!("by {}", format::humanize(hit.matched))
    }
}

/// Redirects to the search page of the viewer's tenant, from pages without a tenant.
pub(super) async fn home(viewer: Viewer, query: FormQuery<SearchQuery>) -> Redirect {
    let text: String = url::form_urlencoded::byte_serialize(query.value("q").as_bytes()).collect();
    Redirect::to(&format!("{}/search?q={text}", home_url(&viewer.by)))
}

/// Renders what was found, or redirects to the only object that an id can mean.
pub(super) async fn page(
    State(app): State<AppState>,
    viewer: TenantViewer,
    query: FormQuery<SearchQuery>,
) -> Result<Response, PageError> {
    let text = query.value("q").to_owned();
    let parsed = SearchText::parse(&text).map_err(PageError::from)?;
    let mut result = SearchResult { is_complete: true, ..SearchResult::default() };
    if let Some(wanted) = &parsed {
        result = app.search(&viewer.viewer.by, &viewer.tenant, wanted).await?;
        if let ([only], true) = (&result.hits[..], wanted.is_id()) {
            return Ok(Redirect::to(&only.path).into_response());
        }
    }
    let page = SearchPage { layout: viewer.layout("search"), text, result };
    Html::render(&page).map(IntoResponse::into_response)
}

#[derive(Template)]
#[template(path = "payload_search.html")]
struct PayloadSearchPage {
    layout: PageContext,
    query: FormQuery<PayloadQuery>,
    matches: Option<PayloadMatches>,
    /// Why nothing was searched.
    error: Option<String>,
    next: Option<String>,
}

impl PayloadSearchPage {
    /// Returns how much of the time range has been searched, in percent.
    fn percent(&self, matches: &PayloadMatches) -> i64 {
        let (from, to) = matches.range;
        let whole = (to.millis() - from.millis()).max(1);
        (100 * (to.millis() - matches.scanned_to.millis()) / whole).clamp(0, 100)
    }
}

/// Renders the payload search: its form and, once there is a path, its matches and progress.
pub(super) async fn payloads(
    State(app): State<AppState>,
    viewer: TenantViewer,
    mut query: FormQuery<PayloadQuery>,
) -> PageResult {
    let (mut matches, mut error) = (None, None);
    if !query.is("path", "") {
        query.query = query.query.or_limit(PAGE_SIZE);
        let searched = match query.query.input() {
            Ok(input) => {
                app.search_payloads(&viewer.viewer.by, &viewer.tenant, input).await.map_err(Problem::from)
            }
            Err(problem) => Err(problem),
        };
        match searched {
            Ok(found) => matches = Some(found),
            // The form shows what to change.
            Err(problem) if matches!(problem.status, 400 | 429) => error = Some(problem.detail),
            Err(problem) => return Err(PageError::Message(problem)),
        }
    }
    let next = matches.as_ref().and_then(|matches| matches.next);
    let next = next.map(|next| query.with("cursor", &next.to_string()));
    Html::render(&PayloadSearchPage { layout: viewer.layout("events"), query, matches, error, next })
}
