//! Coming in and going out: with an API key, or with the link of a portal session.

use askama::Template;
use axum::{
    Form,
    extract::{Query, State},
    http::{Extensions, HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
};
use serde::Deserialize;

use super::{
    Shown,
    page::{Failed, Html},
    viewer::home_of,
};
use crate::{
    api::{AppState, Problem, client_address},
    app::session,
    http::{Scheme, cookie},
};

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage<'a> {
    /// Whether somebody comes with a link.
    portal: bool,
    /// Where to go on afterwards.
    next: &'a str,
    /// What was wrong with the last try.
    error: Option<&'a str>,
}

/// Where to go on afterwards.
#[derive(Default, Deserialize)]
pub(super) struct Next {
    #[serde(default)]
    next: String,
}

/// Only pages of ours: whoever made the link must not choose where a visitor ends up.
fn safe(next: &str) -> &str {
    let is_ours = next.starts_with("/dashboard/") && !next.contains("//") && !next.contains('\\');
    if is_ours { next } else { "" }
}

/// Asks for a key.
pub(super) async fn page(Query(query): Query<Next>) -> Shown {
    Html::of(&LoginPage { portal: false, next: safe(&query.next), error: None })
}

/// Takes in whoever has a link: a script takes the token from its end, where no server sees it.
pub(super) async fn portal() -> Shown {
    Html::of(&LoginPage { portal: true, next: "", error: None })
}

/// What the form sends.
#[derive(Deserialize)]
pub(super) struct Login {
    key: String,
    #[serde(default)]
    next: String,
    /// Whether it was the page of those who come with a link.
    #[serde(default)]
    portal: bool,
}

/// Begins a session.
pub(super) async fn log_in(
    State(app): State<AppState>,
    extensions: Extensions,
    headers: HeaderMap,
    Form(login): Form<Login>,
) -> Result<Response, Failed> {
    if is_from_elsewhere(&headers) {
        let why = "the form was sent by another site; open this page yourself";
        return Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", why).into());
    }
    let Some((caller, value)) = app.log_in(login.key.trim(), client_address(&extensions)) else {
        let error = "This key or link is not valid: it may be mistyped, revoked, over, or not meant for use from here.";
        let page = LoginPage { portal: login.portal, next: safe(&login.next), error: Some(error) };
        return Ok((StatusCode::UNAUTHORIZED, Html::of(&page)?).into_response());
    };
    let next = match safe(&login.next) {
        "" => home_of(&caller),
        next => next.to_owned(),
    };
    let cookie = cookie::begin(&value, is_secure(&extensions)).ok_or_else(Problem::internal)?;
    Ok(([(header::SET_COOKIE, cookie)], Redirect::to(&next)).into_response())
}

/// What the button sends.
#[derive(Deserialize)]
pub(super) struct Logout {
    token: String,
    #[serde(default)]
    portal: bool,
}

/// Ends a session in this browser.
pub(super) async fn log_out(
    extensions: Extensions,
    headers: HeaderMap,
    Form(logout): Form<Logout>,
) -> Result<Response, Failed> {
    let is_ours = cookie::session(&headers).is_some_and(|cookie| session::is_token_of(&logout.token, cookie));
    if !is_ours {
        return Ok(Redirect::to("/dashboard").into_response());
    }
    let cookie = cookie::end(is_secure(&extensions)).ok_or_else(Problem::internal)?;
    let next = if logout.portal { "/portal" } else { "/dashboard/login" };
    Ok(([(header::SET_COOKIE, cookie)], Redirect::to(next)).into_response())
}

/// Whether a browser says that another site made it send this.
fn is_from_elsewhere(headers: &HeaderMap) -> bool {
    let told = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    // Without TLS not all browsers tell the site; all tell the origin.
    let origin = told("origin").and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
    told("sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none"))
        || origin.is_some_and(|origin| told("host").is_some_and(|host| host != origin))
}

/// Whether the browser came over TLS: then the cookie goes no other way.
fn is_secure(extensions: &Extensions) -> bool {
    extensions.get::<Scheme>() == Some(&Scheme::Https)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_sent_to_another_site() {
        assert_eq!(
            safe("/dashboard/t/acme/deliveries?status=dead"),
            "/dashboard/t/acme/deliveries?status=dead"
        );
        for bad in
            ["", "https://evil.example", "//evil.example", "/dashboard/\\evil", "/dashboard//evil", "/v1/x"]
        {
            assert_eq!(safe(bad), "", "{bad}");
        }
    }
}
