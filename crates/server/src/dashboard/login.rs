//! Login with an API key or with the link of a portal session, the login page, and logout.

use std::net::IpAddr;

use askama::Template;
use axum::{
    extract::{Query, State},
    http::{Extensions, HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
};
use redrive_core::{TenantId, Time};
use serde::Deserialize;
use zeroize::Zeroizing;

use super::{
    PageResult,
    form::Form,
    format,
    page::{Html, PageContext, PageError},
    user_login,
    viewer::{Viewer, home_url},
};
use crate::{
    api::AppState,
    app::{
        App, AppError, Caller, ErrorCode,
        auth::Role,
        session::{self, SESSION_LIFETIME, Session, is_token_of, may_replace_unasked},
        user_login::VerifiedUser,
    },
    problem::Problem,
    request::{client_address, cookie},
};

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage<'a> {
    /// Whether this is the page for portal links.
    portal: bool,
    /// Page to open after login.
    next: &'a str,
    /// Error of the previous login attempt.
    error: Option<&'a str>,
    /// Login with the identity provider. `None` if only keys log in.
    provider: Option<ProviderButton>,
    /// Key or user of this browser's current session.
    current: Option<ShownCaller>,
}

/// Link to the login with the identity provider.
struct ProviderButton {
    display_name: String,
    url: String,
}

impl ProviderButton {
    fn new(app: &App, next: &str) -> Option<Self> {
        let next: String = url::form_urlencoded::byte_serialize(next.as_bytes()).collect();
        let display_name = app.identity_provider()?.display_name().to_owned();
        Some(Self { display_name, url: format!("{}?next={next}", app.login_url()?) })
    }
}

/// Page that asks for confirmation before the session of another key is replaced.
#[derive(Template)]
#[template(path = "login_replace.html")]
struct ReplacePage<'a> {
    current: ShownCaller,
    offered: ShownCaller,
    since: Time,
    /// The offered key or user, encrypted.
    offer: String,
    /// Token of the current session; proves that the confirmation came from this page.
    token: String,
    portal: bool,
    next: &'a str,
}

/// A key or user as it is shown.
struct ShownCaller {
    name: String,
    /// Description of what the key gives access to.
    what: String,
    home_url: String,
}

impl ShownCaller {
    fn from_caller(caller: &Caller) -> Self {
        let what = match &caller.role {
            Role::Admin => "an administrator of all tenants".to_owned(),
            Role::Operator => "an operator of all tenants".to_owned(),
            Role::Viewer => "a viewer of all tenants".to_owned(),
            Role::Tenant { tenant_id, .. } if caller.session => {
                format!("a portal session of the tenant {tenant_id}")
            }
            Role::Tenant { tenant_id, .. } => format!("a key of the tenant {tenant_id}"),
        };
        Self { name: caller.name.clone(), what, home_url: home_url(caller) }
    }
}

/// Query of the login page: the page to open after login.
#[derive(Default, Deserialize)]
pub(super) struct Next {
    #[serde(default)]
    pub(super) next: String,
}

/// Returns the page if it is a dashboard path with characters that a header may have, or else an empty string, so
/// that the author of a link cannot redirect a visitor to another site.
pub(super) fn safe_path(next: &str) -> &str {
    let is_ours = next.starts_with("/dashboard/") && !next.contains("//") && !next.contains('\\');
    if is_ours && next.bytes().all(|byte| byte.is_ascii_graphic()) { next } else { "" }
}

/// Renders the login page.
pub(super) async fn page(
    State(app): State<AppState>,
    extensions: Extensions,
    headers: HeaderMap,
    Query(query): Query<Next>,
) -> PageResult {
    // The login page is shown even if the store is unavailable.
    let current = current_session(&app, &headers, &extensions).await.ok().flatten();
    let current = current.map(|(session, _)| ShownCaller::from_caller(&session.caller));
    let next = safe_path(&query.next);
    let provider = ProviderButton::new(&app, next);
    Html::render(&LoginPage { portal: false, next, error: None, provider, current })
}

/// Renders the page for portal links: a script reads the token from the fragment, which is not sent to servers.
pub(super) async fn portal() -> PageResult {
    Html::render(&LoginPage { portal: true, next: "", error: None, provider: None, current: None })
}

/// Returns the live session of this browser and its cookie.
pub(super) async fn current_session<'a>(
    app: &App,
    headers: &'a HeaderMap,
    extensions: &Extensions,
) -> Result<Option<(Session, &'a str)>, AppError> {
    let Some(cookie) = cookie::session(headers, cookie::is_secure(extensions)) else { return Ok(None) };
    let session = app.session(cookie, client_address(extensions)).await?;
    Ok(session.map(|session| (session, cookie)))
}

/// Content of the login form.
#[derive(Deserialize)]
pub(super) struct Login {
    #[serde(default)]
    key: String,
    /// The encrypted key or user from the confirmation page.
    #[serde(default)]
    offer: String,
    /// The session token from the confirmation page.
    #[serde(default)]
    replace: String,
    #[serde(default)]
    next: String,
    /// Whether the form was on the page for portal links.
    #[serde(default)]
    portal: bool,
}

impl Login {
    fn key(&self, app: &App) -> Zeroizing<String> {
        let offered = Some(&self.offer).filter(|offer| !offer.is_empty()).map(|offer| app.offered_key(offer));
        offered.map_or_else(|| Zeroizing::new(self.key.trim().to_owned()), Option::unwrap_or_default)
    }
}

/// Starts a session.
pub(super) async fn log_in(
    State(app): State<AppState>,
    extensions: Extensions,
    headers: HeaderMap,
    Form(login): Form<Login>,
) -> Result<Response, PageError> {
    if let Some(user) = app.offered_user(&login.offer) {
        return replace_by_user(&app, &extensions, &headers, &login, user).await;
    }
    let from = client_address(&extensions);
    let key = login.key(&app);
    let Some((caller, key_hash)) = app.holder(&key, from) else { return reject_login(&app, &login, from) };
    check_rate_limit(&app, &caller).await?;
    let current = current_session(&app, &headers, &extensions).await?;
    if let Some((current, cookie)) = &current {
        let is_confirmed = is_token_of(&login.replace, cookie);
        if !is_confirmed && !may_replace_unasked(&current.caller, &caller) {
            return ask_to_replace(app.offer(&key), login.portal, &login.next, &caller, (current, cookie));
        }
    }
    let value = app.begin_session(key_hash).await?;
    if let Some((current, _)) = &current {
        app.end_session(current).await?;
    }
    let next = match safe_path(&login.next) {
        "" => home_url(&caller),
        next => next.to_owned(),
    };
    let cookie = cookie::SESSION
        .begin(&value, SESSION_LIFETIME, cookie::is_secure(&extensions))
        .ok_or_else(Problem::internal)?;
    Ok(([(header::SET_COOKIE, cookie)], Redirect::to(&next)).into_response())
}

/// Starts a session for a user who has confirmed that it replaces the current one.
async fn replace_by_user(
    app: &AppState,
    extensions: &Extensions,
    headers: &HeaderMap,
    login: &Login,
    user: VerifiedUser,
) -> Result<Response, PageError> {
    let current = current_session(app, headers, extensions).await?;
    if let Some((current, cookie)) = &current
        && !is_token_of(&login.replace, cookie)
    {
        return ask_to_replace(login.offer.clone(), false, &login.next, &user.caller(), (current, cookie));
    }
    let current = current.map(|(session, _)| session);
    user_login::start_session(app, extensions, user, current.as_ref(), &login.next).await
}

/// Rejects an invalid key, with 429 if too many logins from the address have failed. A valid key is never rejected
/// for that.
fn reject_login(app: &App, login: &Login, from: Option<IpAddr>) -> Result<Response, PageError> {
    let page = |error| LoginPage {
        portal: login.portal,
        next: safe_path(&login.next),
        error: Some(error),
        provider: ProviderButton::new(app, safe_path(&login.next)).filter(|_| !login.portal),
        current: None,
    };
    let Some(seconds) = app.failed_logins().count(from) else {
        let error = "This key or link is invalid, revoked or expired, or not allowed from this network.";
        return Ok((StatusCode::UNAUTHORIZED, Html::render(&page(error))?).into_response());
    };
    let client = from.map(|address| address.to_string()).unwrap_or_default();
    tracing::warn!(client, "too many failed logins from one address");
    let error =
        "This key or link is not valid, and too many logins have failed. Check it before you try again.";
    let mut response = (StatusCode::TOO_MANY_REQUESTS, Html::render(&page(error))?).into_response();
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    Ok(response)
}

/// Applies the rate limit of the key, which logins share with API calls and pages.
async fn check_rate_limit(app: &App, caller: &Caller) -> Result<(), PageError> {
    let Some(throttle) = app.throttle() else { return Ok(()) };
    match throttle.acquire(app.engine(), caller.rate_limit_id()).await.retry_after {
        None => Ok(()),
        Some(seconds) => {
            let detail = format!("this key is used too often; log in again in {seconds} s");
            Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, ErrorCode::RateLimited, detail).into())
        }
    }
}

pub(super) fn ask_to_replace(
    offer: String,
    portal: bool,
    next: &str,
    caller: &Caller,
    (current, cookie): (&Session, &str),
) -> Result<Response, PageError> {
    let page = ReplacePage {
        current: ShownCaller::from_caller(&current.caller),
        offered: ShownCaller::from_caller(caller),
        since: current.stored.created_at,
        offer,
        token: session::token(cookie),
        portal,
        next: safe_path(next),
    };
    Ok((StatusCode::CONFLICT, Html::render(&page)?).into_response())
}

/// Content of the logout form.
#[derive(Deserialize)]
pub(super) struct Logout {
    token: String,
    #[serde(default)]
    portal: bool,
    /// Whether to end all sessions of the same key, in every browser.
    #[serde(default)]
    everywhere: bool,
}

/// Ends the session of this browser, or all sessions of its key.
pub(super) async fn log_out(
    State(app): State<AppState>,
    extensions: Extensions,
    headers: HeaderMap,
    Form(logout): Form<Logout>,
) -> Result<Response, PageError> {
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
    let cookie = cookie::SESSION.end(secure).ok_or_else(Problem::internal)?;
    let next = if logout.portal { "/portal" } else { "/dashboard/login" };
    Ok(([(header::SET_COOKIE, cookie)], Redirect::to(next)).into_response())
}

#[derive(Template)]
#[template(path = "session.html")]
struct SessionPage {
    layout: PageContext,
    shown: ShownCaller,
    /// Whether the session is that of a user, not of a key.
    is_user: bool,
    since: Time,
    ends: Time,
    /// Number of sessions of the key or user, including this one.
    count: usize,
}

/// Renders the current session, with buttons to end it or all sessions of its key.
pub(super) async fn show(State(app): State<AppState>, viewer: Viewer) -> PageResult {
    let tenant = viewer.by.role.tenant_id().map_or(TenantId::DEFAULT, TenantId::as_str);
    let count = app.sessions_of_key(&viewer.session).await?.len();
    let page = SessionPage {
        layout: PageContext::new(&viewer, tenant, "session"),
        shown: ShownCaller::from_caller(&viewer.by),
        is_user: viewer.by.user.is_some(),
        since: viewer.session.stored.created_at,
        ends: viewer.session.stored.expires_at,
        count,
    };
    Html::render(&page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_redirects_only_to_dashboard_pages() {
        assert_eq!(
            safe_path("/dashboard/t/acme/deliveries?status=dead"),
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
            assert_eq!(safe_path(bad), "", "{bad}");
        }
    }
}
