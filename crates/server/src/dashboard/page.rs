//! Parts that all pages share: the layout's data, errors, and the queries and links of lists.

use std::borrow::Cow;

use askama::Template;
use axum::{
    extract::FromRequestParts,
    http::{StatusCode, header, request::Parts},
    response::{IntoResponse, Redirect, Response},
};
use redrive_core::Time;
use serde::de::DeserializeOwned;

use super::{format, viewer::Viewer};
use crate::{
    api::{
        AppState, AttemptQuery, AuditQuery, DeliveryQuery, EventExportQuery, EventQuery, EventTypeQuery,
        ExportQuery, Paging, PayloadQuery, Query, SearchQuery, TenantsQuery,
    },
    app::{AppError, Capability, ErrorCode},
    problem::Problem,
};

/// Data of the layout around every page.
pub(super) struct PageContext {
    /// Tenant whose data is shown; empty on pages without a tenant.
    pub(super) tenant: String,
    /// Section of the page, highlighted in the menu.
    pub(super) section: &'static str,
    /// Name of the viewer.
    pub(super) user_name: String,
    /// Role of a viewer who is a user of the identity provider. `None` for keys.
    pub(super) user_role: Option<&'static str>,
    /// Whether the viewer is an admin, who may change everything.
    pub(super) is_admin: bool,
    /// Whether the viewer may view any tenant.
    pub(super) may_view_all_tenants: bool,
    /// Whether payloads may be erased.
    pub(super) may_erase: bool,
    /// Whether the viewer has a portal session.
    pub(super) is_portal: bool,
    /// Whether webhooks may be created and changed.
    pub(super) may_manage: bool,
    /// Whether deliveries may be resent or cancelled.
    pub(super) may_resend: bool,
    /// Whether signing secrets may be seen once and rotated.
    pub(super) may_rotate: bool,
    /// Whether the limits of webhooks may be changed.
    pub(super) may_limit: bool,
    /// Whether publishing is allowed.
    pub(super) may_publish: bool,
    /// End of a portal session.
    pub(super) session_ends: Option<Time>,
    /// CSRF token that scripts send with every change.
    pub(super) token: String,
    /// Whether this is a demo with simulated data.
    pub(super) is_demo: bool,
    /// The version of Redrive.
    pub(super) version: &'static str,
}

impl PageContext {
    /// Creates the layout's data for a page about a tenant.
    pub(super) fn new(viewer: &Viewer, tenant: &str, section: &'static str) -> Self {
        Self {
            tenant: tenant.to_owned(),
            section,
            user_name: viewer.by.name.clone(),
            user_role: viewer.by.user.as_ref().and_then(|_| viewer.by.role.user_role_name()),
            is_admin: viewer.is_admin(),
            may_view_all_tenants: viewer.may_view_all_tenants(),
            may_erase: viewer.by.require_erasure().is_ok(),
            is_portal: viewer.by.session,
            may_manage: viewer.may_change(Capability::ManageEndpoints),
            may_resend: viewer.may_change(Capability::Resend),
            may_rotate: viewer.may_change(Capability::Secrets),
            may_limit: viewer.may_change(Capability::Limits),
            may_publish: viewer.may_publish(),
            session_ends: viewer.by.expires_at.filter(|_| viewer.by.session),
            token: viewer.token.clone(),
            is_demo: viewer.is_demo,
            version: env!("CARGO_PKG_VERSION"),
        }
    }

    /// Formats the end of a portal session, for browsers without scripts.
    pub(super) fn ends_at(&self) -> String {
        self.session_ends.map(format::format_time).unwrap_or_default()
    }

    /// Returns whether the tenant's catalogue and similar settings may be changed; portal sessions may not.
    pub(super) fn may_operate(&self) -> bool {
        self.may_manage && !self.is_portal
    }

    /// Returns the base path of the tenant's pages.
    pub(super) fn base(&self) -> String {
        format!("/dashboard/t/{}", self.tenant)
    }

    /// Returns the `aria-current` value of a section's menu item.
    pub(super) fn current(&self, section: &str) -> &'static str {
        if self.section == section { "page" } else { "false" }
    }
}

/// A rendered page.
pub(super) struct Html(String);

impl Html {
    /// Renders a page.
    pub(super) fn render(page: &impl Template) -> Result<Self, PageError> {
        match page.render() {
            Ok(html) => Ok(Self(html)),
            Err(error) => {
                tracing::error!(%error, "rendering a page failed");
                Err(Problem::internal().into())
            }
        }
    }
}

impl IntoResponse for Html {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], self.0).into_response()
    }
}

/// Error response of a page.
pub(super) enum PageError {
    /// The viewer is not logged in.
    LogIn {
        /// Page to open after login.
        next: String,
    },
    /// An error that is shown as a page.
    Message(Problem),
    /// The query of the page is valid, and only that was asked for.
    Checked,
}

impl PageError {
    /// Creates the error for a path without a page.
    pub(super) fn not_found(path: &str) -> Self {
        let path: String = path.chars().take(200).collect();
        Self::Message(Problem::new(
            StatusCode::NOT_FOUND,
            ErrorCode::RouteNotFound,
            format!("there is no page {path}"),
        ))
    }
}

impl<E: Into<Problem>> From<E> for PageError {
    fn from(error: E) -> Self {
        Self::Message(error.into())
    }
}

#[derive(Template)]
#[template(path = "error.html")]
struct ErrorPage {
    status: u16,
    title: &'static str,
    /// Field of a filter that is invalid.
    field: String,
    detail: String,
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let problem = match self {
            Self::LogIn { next } => {
                let next: String = url::form_urlencoded::byte_serialize(next.as_bytes()).collect();
                return Redirect::to(&format!("/dashboard/login?next={next}")).into_response();
            }
            Self::Message(problem) => problem,
            Self::Checked => return StatusCode::NO_CONTENT.into_response(),
        };
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let title = match status {
            StatusCode::NOT_FOUND => "Not found",
            StatusCode::FORBIDDEN => "Not allowed",
            StatusCode::BAD_REQUEST => "Invalid request",
            StatusCode::SERVICE_UNAVAILABLE => "Unavailable",
            StatusCode::TOO_MANY_REQUESTS => "Too many requests",
            StatusCode::PAYLOAD_TOO_LARGE => "Payload too large",
            StatusCode::REQUEST_TIMEOUT => "Request timeout",
            _ => "Internal error",
        };
        let field = problem.field_name().unwrap_or_default().to_owned();
        let page = ErrorPage { status: status.as_u16(), title, field, detail: problem.detail };
        match Html::render(&page) {
            Ok(html) => (status, html).into_response(),
            Err(_) => status.into_response(),
        }
    }
}

/// Converts a failed permission check into a page error.
pub(super) fn allowed(checked: Result<(), AppError>) -> Result<(), PageError> {
    checked.map_err(PageError::from)
}

/// Header of a request that only checks a query: the page runs nothing, and responds with 204 or with the error.
const CHECK_HEADER: &str = "x-redrive-check";

/// Query of a page, which can be checked without running it.
pub(super) trait PageQuery: DeserializeOwned {
    /// Checks values that parsing accepts.
    fn check(&self) -> Result<(), Problem> {
        Ok(())
    }
}

impl PageQuery for DeliveryQuery {
    fn check(&self) -> Result<(), Problem> {
        self.selection().map(drop)
    }
}

impl PageQuery for AttemptQuery {
    fn check(&self) -> Result<(), Problem> {
        self.filter().map(drop)
    }
}

impl PageQuery for TenantsQuery {
    fn check(&self) -> Result<(), Problem> {
        Ok(self.order().map(drop)?)
    }
}

impl PageQuery for AuditQuery {}
impl PageQuery for EventExportQuery {}
impl PageQuery for EventQuery {}
impl PageQuery for EventTypeQuery {}
impl PageQuery for ExportQuery {}
impl PageQuery for Paging {}
impl PageQuery for PayloadQuery {}
impl PageQuery for SearchQuery {}

/// A query as a form sends it: empty fields are ignored. The query types are those of the API.
pub(super) struct FormQuery<T> {
    /// The parsed query.
    pub(super) query: T,
    /// Path of the page.
    path: String,
    /// Names and values of the query.
    pairs: Vec<(String, String)>,
}

impl<T> FormQuery<T> {
    /// Returns the value of a form field.
    pub(super) fn value(&self, name: &str) -> &str {
        self.pairs.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// Returns whether a form field has this value.
    pub(super) fn is(&self, name: &str, value: &str) -> bool {
        self.value(name) == value
    }

    /// Returns whether the query has any field other than the cursor.
    pub(super) fn is_filtered(&self) -> bool {
        self.pairs.iter().any(|(name, _)| name != "cursor")
    }

    /// Returns the query string without paging.
    pub(super) fn filter_query(&self) -> String {
        let is_filter = |name: &str| !matches!(name, "cursor" | "limit" | "offset");
        let filters = self.pairs.iter().filter(|(name, _)| is_filter(name));
        url::form_urlencoded::Serializer::new(String::new()).extend_pairs(filters).finish()
    }

    /// Returns the URL of the first page sorted by a field. Without `order`, the field's default order applies.
    pub(super) fn sorted_by(&self, sort: &str, order: Option<&str>) -> String {
        let is_kept = |name: &str| !matches!(name, "sort" | "order" | "cursor");
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(self.pairs.iter().filter(|(name, _)| is_kept(name)));
        query.append_pair("sort", sort);
        if let Some(order) = order {
            query.append_pair("order", order);
        }
        format!("{}?{}", self.path, query.finish())
    }

    /// Returns the URL of the page with one field changed. The cursor is removed unless it is that field.
    pub(super) fn with(&self, name: &str, value: &str) -> String {
        self.with_all(&[(name, value)])
    }

    /// Returns the URL of the page with some fields changed; an empty value removes the field. The cursor is removed
    /// unless it is one of them.
    pub(super) fn with_all(&self, changed: &[(&str, &str)]) -> String {
        let is_other = |known: &str| known != "cursor" && changed.iter().all(|(name, _)| *name != known);
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(self.pairs.iter().filter(|(known, _)| is_other(known)));
        query.extend_pairs(changed.iter().filter(|(_, value)| !value.is_empty()));
        format!("{}?{}", self.path, query.finish())
    }
}

/// Adds the UTC zone to a time as date-time fields send it, without a zone.
fn in_utc<'a>(name: &str, value: &'a str) -> Cow<'a, str> {
    let shape: String = value.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    let is_time = |name: &str| matches!(name, "from" | "to" | "failed_from" | "failed_to");
    match shape.as_str() {
        "0000-00-00T00:00" if is_time(name) => format!("{value}:00Z").into(),
        "0000-00-00T00:00:00" if is_time(name) => format!("{value}Z").into(),
        _ => value.into(),
    }
}

impl<T: PageQuery> FromRequestParts<AppState> for FormQuery<T> {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, PageError> {
        let path = parts.uri.path().to_owned();
        let text = parts.uri.query().unwrap_or_default();
        let pairs = url::form_urlencoded::parse(text.as_bytes()).into_owned();
        // A tenant's pages take the tenant only from the path.
        let has_tenant = path.starts_with("/dashboard/t/");
        let is_given =
            |name: &str, value: &str| !(value.trim().is_empty() || has_tenant && name == "tenant_id");
        let given = pairs.filter(|(name, value)| is_given(name, value));
        let with_zone = |(name, value): (String, String)| {
            let value = in_utc(&name, &value).into_owned();
            (name, value)
        };
        let pairs: Vec<_> = given.map(with_zone).collect();
        let filled = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(&pairs).finish();
        let uri = format!("{path}?{filled}").parse().map_err(|_| AppError::NotFound("page"))?;
        let original = std::mem::replace(&mut parts.uri, uri);
        let query = Query::<T>::from_request_parts(parts, app).await;
        parts.uri = original;
        let query = query?.0;
        if parts.headers.contains_key(CHECK_HEADER) {
            query.check()?;
            return Err(PageError::Checked);
        }
        Ok(Self { query, path, pairs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_zone_is_read_as_utc() {
        assert_eq!(in_utc("from", "2026-01-31T12:00"), "2026-01-31T12:00:00Z");
        assert_eq!(in_utc("to", "2026-01-31T12:00:05"), "2026-01-31T12:00:05Z");
        for other in ["2026-01-31T12:00:00+02:00", "2026-01-31T12:00:00Z", "soon", ""] {
            assert_eq!(in_utc("from", other), other);
        }
        assert_eq!(
            in_utc("event_type", "2026-01-31T12:00"),
            "2026-01-31T12:00",
            "a field without a time stays unchanged"
        );
    }
}
