//! Coming in and going out: with an API key, or with the link of a portal session.

use std::net::IpAddr;

use askama::Template;
use axum::{
    extract::{Query, State},
    http::{Extensions, HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
};
use redrive_core::Time;
use serde::Deserialize;
use zeroize::Zeroizing;

use super::{
    Shown,
    form::Form,
    format,
    page::{Failed, Frame, Html},
    viewer::{Viewer, home_of},
};
use crate::{
    api::{AppState, Problem, client_address},
    app::{
        App, AppError, Caller,
        auth::Role,
        session::{self, Session, is_token_of, may_replace_unasked},
    },
    http::cookie,
};

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage<'a> {
    /// Whether it is the page for portal links.
    portal: bool,
    /// Where to go on afterwards.
    next: &'a str,
    /// What was wrong with the last try.
    error: Option<&'a str>,
    /// The session that this browser has.
    current: Option<Holder>,
}

/// Asks before a session of another key is replaced.
#[derive(Template)]
#[template(path = "login_replace.html")]
struct ReplacePage<'a> {
    current: Holder,
    offered: Holder,
    since: Time,
    /// The key, sealed.
    offer: String,
    /// Shows that the answer is to this page.
    token: String,
    portal: bool,
    next: &'a str,
}

/// The holder of a key, as people know it.
struct Holder {
    name: String,
    /// Whose things the key leads to.
    what: String,
    home: String,
}

impl Holder {
    fn of(caller: &Caller) -> Self {
        let what = match &caller.role {
            Role::Admin => "an administrator of all tenants".to_owned(),
            Role::Tenant { tenant, .. } if caller.session => {
                format!("a portal session of the tenant {tenant}")
            }
            Role::Tenant { tenant, .. } => format!("a key of the tenant {tenant}"),
        };
        Self { name: caller.name.clone(), what, home: home_of(caller) }
    }
}

/// Where to go on afterwards.
#[derive(Default, Deserialize)]
pub(super) struct Next {
    #[serde(default)]
    next: String,
}

/// Only pages of ours, in characters that a header may have: the author of a link must not choose where a visitor ends
/// up.
fn safe(next: &str) -> &str {
    let is_ours = next.starts_with("/dashboard/") && !next.contains("//") && !next.contains('\\');
    if is_ours && next.bytes().all(|byte| byte.is_ascii_graphic()) { next } else { "" }
}

/// Asks for a key.
pub(super) async fn page(
    State(app): State<AppState>,
    extensions: Extensions,
    headers: HeaderMap,
    Query(query): Query<Next>,
) -> Shown {
    // Whether the store answers or not, there is a page to log in.
    let current = current_session(&app, &headers, &extensions).await.ok().flatten();
    let current = current.map(|(session, _)| Holder::of(&session.caller));
    Html::of(&LoginPage { portal: false, next: safe(&query.next), error: None, current })
}

/// The page for portal links: a script takes the token from the fragment, which no server sees.
pub(super) async fn portal() -> Shown {
    Html::of(&LoginPage { portal: true, next: "", error: None, current: None })
}

/// The live session of this browser, and its cookie.
async fn current_session<'a>(
    app: &App,
    headers: &'a HeaderMap,
    extensions: &Extensions,
) -> Result<Option<(Session, &'a str)>, AppError> {
    let Some(cookie) = cookie::session(headers, cookie::is_secure(extensions)) else { return Ok(None) };
    let session = app.session(cookie, client_address(extensions)).await?;
    Ok(session.map(|session| (session, cookie)))
}

/// What the form sends.
#[derive(Deserialize)]
pub(super) struct Login {
    #[serde(default)]
    key: String,
    /// The key as the page has it that asks whether it may replace a session.
    #[serde(default)]
    offer: String,
    /// The token of that page's session.
    #[serde(default)]
    replace: String,
    #[serde(default)]
    next: String,
    /// Whether it was the page of those who come with a link.
    #[serde(default)]
    portal: bool,
}

impl Login {
    fn key(&self, app: &App) -> Zeroizing<String> {
        let offered = Some(&self.offer).filter(|offer| !offer.is_empty()).map(|offer| app.offered_key(offer));
        offered.map_or_else(|| Zeroizing::new(self.key.trim().to_owned()), Option::unwrap_or_default)
    }
}

/// Begins a session.
pub(super) async fn log_in(
    State(app): State<AppState>,
    extensions: Extensions,
    headers: HeaderMap,
    Form(login): Form<Login>,
) -> Result<Response, Failed> {
    let from = client_address(&extensions);
    let key = login.key(&app);
    let Some((caller, key_hash)) = app.holder(&key, from) else { return refuse(&app, &login, from) };
    refuse_too_fast(&app, &caller).await?;
    let current = current_session(&app, &headers, &extensions).await?;
    if let Some((current, cookie)) = &current {
        let is_confirmed = is_token_of(&login.replace, cookie);
        if !is_confirmed && !may_replace_unasked(&current.caller, &caller) {
            return ask_to_replace(&app, &login, &key, &caller, (current, cookie));
        }
    }
    let value = app.begin_session(key_hash).await?;
    if let Some((current, _)) = &current {
        app.end_session(current).await?;
    }
    let next = match safe(&login.next) {
        "" => home_of(&caller),
        next => next.to_owned(),
    };
    let cookie = cookie::begin(&value, cookie::is_secure(&extensions)).ok_or_else(Problem::internal)?;
    Ok(([(header::SET_COOKIE, cookie)], Redirect::to(&next)).into_response())
}

/// Refuses an invalid key, with 429 if too many logins from the address have failed. A valid key is let in regardless.
fn refuse(app: &App, login: &Login, from: Option<IpAddr>) -> Result<Response, Failed> {
    let page = |error| LoginPage {
        portal: login.portal,
        next: safe(&login.next),
        error: Some(error),
        current: None,
    };
    let Some(seconds) = app.failed_logins().count(from) else {
        let error = "This key or link is not valid: it may be mistyped, revoked, over, or not meant for use from here.";
        return Ok((StatusCode::UNAUTHORIZED, Html::of(&page(error))?).into_response());
    };
    let client = from.map(|address| address.to_string()).unwrap_or_default();
    tracing::warn!(client, "too many logins from one address have failed");
    let error =
        "This key or link is not valid, and too many before it were not. Check it before you try again.";
    let mut answer = (StatusCode::TOO_MANY_REQUESTS, Html::of(&page(error))?).into_response();
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    Ok(answer)
}

/// Logins count like calls and pages of their key.
async fn refuse_too_fast(app: &App, caller: &Caller) -> Result<(), Failed> {
    let Some(throttle) = app.throttle() else { return Ok(()) };
    match throttle.call(app.engine(), caller.key).await.retry_after {
        None => Ok(()),
        Some(seconds) => {
            let detail = format!("this key is used too often; log in again in {seconds} s");
            Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", detail).into())
        }
    }
}

fn ask_to_replace(
    app: &App,
    login: &Login,
    key: &str,
    caller: &Caller,
    (current, cookie): (&Session, &str),
) -> Result<Response, Failed> {
    let page = ReplacePage {
        current: Holder::of(&current.caller),
        offered: Holder::of(caller),
        since: current.stored.created_at,
        offer: app.offer(key),
        token: session::token(cookie),
        portal: login.portal,
        next: safe(&login.next),
    };
    Ok((StatusCode::CONFLICT, Html::of(&page)?).into_response())
}

/// What the button sends.
#[derive(Deserialize)]
pub(super) struct Logout {
    token: String,
    #[serde(default)]
    portal: bool,
    /// Whether all sessions of the same key end, in every browser.
    #[serde(default)]
    everywhere: bool,
}

/// Ends the session of this browser, or all of its key.
pub(super) async fn log_out(
    State(app): State<AppState>,
    extensions: Extensions,
    headers: HeaderMap,
    Form(logout): Form<Logout>,
) -> Result<Response, Failed> {
    let secure = cookie::is_secure(&extensions);
    let from = client_address(&extensions);
    let Some(value) = cookie::session(&headers, secure).filter(|value| is_token_of(&logout.token, value))
    else {
        return Ok(Redirect::to("/dashboard").into_response());
    };
    match app.session(value, from).await? {
        Some(session) if logout.everywhere => app.end_sessions_of_key(&session, from).await.map(drop)?,
        Some(session) => app.end_session(&session).await?,
        None => {}
    }
    let cookie = cookie::end(secure).ok_or_else(Problem::internal)?;
    let next = if logout.portal { "/portal" } else { "/dashboard/login" };
    Ok(([(header::SET_COOKIE, cookie)], Redirect::to(next)).into_response())
}

#[derive(Template)]
#[template(path = "session.html")]
struct SessionPage {
    frame: Frame,
    holder: Holder,
    since: Time,
    ends: Time,
    /// How many sessions the key has, this one included.
    count: usize,
}

/// Which session this is, and how to end it and others of its key.
pub(super) async fn show(State(app): State<AppState>, viewer: Viewer) -> Shown {
    let tenant = match &viewer.by.role {
        Role::Admin => "default",
        Role::Tenant { tenant, .. } => tenant.as_str(),
    };
    let count = app.sessions_of_key(&viewer.session).await?.len();
    let page = SessionPage {
        frame: Frame::of(&viewer, tenant, "session"),
        holder: Holder::of(&viewer.by),
        since: viewer.session.stored.created_at,
        ends: viewer.session.stored.expires_at,
        count,
    };
    Html::of(&page)
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
        for bad in [
            "",
            "https://evil.example",
            "//evil.example",
            "/dashboard/\\evil",
            "/dashboard//evil",
            "/v1/x",
            "/dashboard/\r\nset-cookie:x",
            "/dashboard/\0",
            "/dashboard/\u{fc}",
            "/dashboard/a b",
        ] {
            assert_eq!(safe(bad), "", "{bad}");
        }
    }
}
