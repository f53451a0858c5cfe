//! What every page has: its frame, the form of errors, and the links of listings.

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
    api::{AppState, Problem, Query},
    app::{AppError, Capability},
};

/// What the frame around every page shows.
pub(super) struct Frame {
    /// Whose things are shown; empty on pages that are nobody's.
    pub(super) tenant: String,
    /// What the room is called that the page belongs to: marked in the menu.
    pub(super) room: &'static str,
    /// Who looks.
    pub(super) who: String,
    /// Whether it is an admin, who may look at any tenant.
    pub(super) is_admin: bool,
    /// Whether it is a customer's session.
    pub(super) is_portal: bool,
    /// Whether webhooks may be created and changed.
    pub(super) may_manage: bool,
    /// Whether deliveries may be sent again or cancelled.
    pub(super) may_resend: bool,
    /// Whether signing secrets may be seen once and rotated.
    pub(super) may_rotate: bool,
    /// Whether limits of webhooks may be changed.
    pub(super) may_limit: bool,
    /// Whether publishing is allowed.
    pub(super) may_publish: bool,
    /// When a customer's session ends.
    pub(super) ends: Option<Time>,
    /// What scripts send with every change.
    pub(super) token: String,
    /// Whether everything here is made up.
    pub(super) is_demo: bool,
    /// The version of Redrive.
    pub(super) version: &'static str,
}

impl Frame {
    /// The frame of a page about a tenant.
    pub(super) fn of(viewer: &Viewer, tenant: &str, room: &'static str) -> Self {
        Self {
            tenant: tenant.to_owned(),
            room,
            who: viewer.by.name.clone(),
            is_admin: viewer.is_admin(),
            is_portal: viewer.by.session,
            may_manage: viewer.may_change(Capability::ManageEndpoints),
            may_resend: viewer.may_change(Capability::Resend),
            may_rotate: viewer.may_change(Capability::Secrets),
            may_limit: viewer.may_change(Capability::Limits),
            may_publish: viewer.may_publish(),
            ends: viewer.by.expires_at.filter(|_| viewer.by.session),
            token: viewer.token.clone(),
            is_demo: viewer.is_demo,
            version: env!("CARGO_PKG_VERSION"),
        }
    }

    /// When a customer's session ends, for those without scripts.
    pub(super) fn ends_at(&self) -> String {
        self.ends.map(format::stamp).unwrap_or_default()
    }

    /// Whether the tenant's catalogue and the like may be changed: not by its customers.
    pub(super) fn may_operate(&self) -> bool {
        self.may_manage && !self.is_portal
    }

    /// Where the pages of the tenant are.
    pub(super) fn base(&self) -> String {
        format!("/dashboard/t/{}", self.tenant)
    }

    /// What a menu item of this room says to those who cannot see its colour.
    pub(super) fn current(&self, room: &str) -> &'static str {
        if self.room == room { "page" } else { "false" }
    }
}

/// A rendered page.
pub(super) struct Html(String);

impl Html {
    /// Renders a page.
    pub(super) fn of(page: &impl Template) -> Result<Self, Failed> {
        match page.render() {
            Ok(html) => Ok(Self(html)),
            Err(error) => {
                tracing::error!(%error, "a page could not be rendered");
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

/// Why there is no page.
pub(super) enum Failed {
    /// Nobody is logged in.
    LogIn {
        /// Where to go on afterwards.
        next: String,
    },
    /// Something is wrong, in words.
    Because(Problem),
}

impl Failed {
    /// There is no such page.
    pub(super) fn nothing_at(path: &str) -> Self {
        let path: String = path.chars().take(200).collect();
        Self::Because(Problem::new(StatusCode::NOT_FOUND, "no_such_path", format!("there is no page {path}")))
    }
}

impl<E: Into<Problem>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self::Because(error.into())
    }
}

#[derive(Template)]
#[template(path = "error.html")]
struct ErrorPage {
    status: u16,
    title: &'static str,
    detail: String,
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let problem = match self {
            Self::LogIn { next } => {
                let next: String = url::form_urlencoded::byte_serialize(next.as_bytes()).collect();
                return Redirect::to(&format!("/dashboard/login?next={next}")).into_response();
            }
            Self::Because(problem) => problem,
        };
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let title = match status {
            StatusCode::NOT_FOUND => "Not found",
            StatusCode::FORBIDDEN => "Not allowed",
            StatusCode::BAD_REQUEST => "That does not work",
            StatusCode::SERVICE_UNAVAILABLE => "Not now",
            StatusCode::TOO_MANY_REQUESTS => "Too many requests",
            StatusCode::PAYLOAD_TOO_LARGE => "Too large",
            StatusCode::REQUEST_TIMEOUT => "Too slow",
            _ => "Something went wrong",
        };
        let page = ErrorPage { status: status.as_u16(), title, detail: problem.detail };
        match Html::of(&page) {
            Ok(html) => (status, html).into_response(),
            Err(_) => status.into_response(),
        }
    }
}

/// Refuses whoever lacks what a page needs.
pub(super) fn allowed(checked: Result<(), AppError>) -> Result<(), Failed> {
    checked.map_err(Failed::from)
}

/// A query as a form writes it: fields that were left empty are not there. The types are those of the API.
pub(super) struct Asked<T> {
    /// What was asked.
    pub(super) query: T,
    /// Where the page is.
    path: String,
    /// What was asked, as text.
    pairs: Vec<(String, String)>,
}

impl<T> Asked<T> {
    /// What a field of the form was filled with.
    pub(super) fn value(&self, name: &str) -> &str {
        self.pairs.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// The same for a field that picks a time, which shows it without its zone.
    pub(super) fn moment(&self, name: &str) -> &str {
        let value = self.value(name).trim_end_matches('Z');
        let seconds = value.split_once('.').map_or(value, |(seconds, _)| seconds);
        // Whole minutes are shown as such.
        let minutes = seconds.strip_suffix(":00").filter(|minutes| minutes.contains(':'));
        minutes.unwrap_or(seconds)
    }

    /// Whether this is what a field was filled with.
    pub(super) fn is(&self, name: &str, value: &str) -> bool {
        self.value(name) == value
    }

    /// Whether anything was asked for at all, other than to go on.
    pub(super) fn is_filtered(&self) -> bool {
        self.pairs.iter().any(|(name, _)| name != "cursor")
    }

    /// What was asked, as a query, but for which page of it.
    pub(super) fn filter_query(&self) -> String {
        let is_filter = |name: &str| !matches!(name, "cursor" | "limit" | "offset");
        let kept = self.pairs.iter().filter(|(name, _)| is_filter(name));
        url::form_urlencoded::Serializer::new(String::new()).extend_pairs(kept).finish()
    }

    /// The page with this one changed, from its beginning unless it is to go on.
    pub(super) fn with(&self, name: &str, value: &str) -> String {
        let kept = self.pairs.iter().filter(|(known, _)| known != name && known != "cursor");
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(kept);
        if !value.is_empty() {
            query.append_pair(name, value);
        }
        format!("{}?{}", self.path, query.finish())
    }
}

/// A time as fields of browsers write it, to the minute and without a zone, is meant in UTC.
fn in_utc<'a>(name: &str, value: &'a str) -> Cow<'a, str> {
    let shape: String = value.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    match shape.as_str() {
        "0000-00-00T00:00" if matches!(name, "from" | "to") => format!("{value}:00Z").into(),
        "0000-00-00T00:00:00" if matches!(name, "from" | "to") => format!("{value}Z").into(),
        _ => value.into(),
    }
}

impl<T: DeserializeOwned> FromRequestParts<AppState> for Asked<T> {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Failed> {
        let path = parts.uri.path().to_owned();
        let text = parts.uri.query().unwrap_or_default();
        let pairs = url::form_urlencoded::parse(text.as_bytes()).into_owned();
        // Whose things a tenant's pages show is in their path, and nowhere else.
        let has_tenant = path.starts_with("/dashboard/t/");
        let is_said =
            |name: &str, value: &str| !(value.trim().is_empty() || has_tenant && name == "tenant_id");
        let said = pairs.filter(|(name, value)| is_said(name, value));
        let meant = |(name, value): (String, String)| {
            let value = in_utc(&name, &value).into_owned();
            (name, value)
        };
        let pairs: Vec<_> = said.map(meant).collect();
        let filled = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(&pairs).finish();
        let uri = format!("{path}?{filled}").parse().map_err(|_| AppError::NotFound("page"))?;
        let whole = std::mem::replace(&mut parts.uri, uri);
        let query = Query::<T>::from_request_parts(parts, app).await;
        parts.uri = whole;
        Ok(Self { query: query?.0, path, pairs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_without_a_zone_is_meant_in_utc() {
        assert_eq!(in_utc("from", "2026-01-31T12:00"), "2026-01-31T12:00:00Z");
        assert_eq!(in_utc("to", "2026-01-31T12:00:05"), "2026-01-31T12:00:05Z");
        for other in ["2026-01-31T12:00:00+02:00", "2026-01-31T12:00:00Z", "soon", ""] {
            assert_eq!(in_utc("from", other), other);
        }
        assert_eq!(in_utc("event_type", "2026-01-31T12:00"), "2026-01-31T12:00", "no time at all");
    }

    #[test]
    fn a_field_shows_the_time_it_was_filled_with() {
        let asked = |value: &str| {
            let asked = Asked { query: (), path: "/".into(), pairs: vec![("from".into(), value.into())] };
            asked.moment("from").to_owned()
        };
        assert_eq!(asked("2026-01-31T12:00"), "2026-01-31T12:00");
        assert_eq!(asked("2026-01-31T12:00:00.000Z"), "2026-01-31T12:00");
        assert_eq!(asked("2026-01-31T12:00:05Z"), "2026-01-31T12:00:05");
    }
}
