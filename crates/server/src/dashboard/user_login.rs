//! Redirects the browser to the identity provider, and starts the session when it returns.

use askama::Template;
use axum::{
    extract::{Query, State},
    http::{Extensions, HeaderMap, StatusCode, header},
    response::{AppendHeaders, IntoResponse, Redirect, Response},
};

use super::{
    login::{Next, ask_to_replace, current_session, safe_path},
    page::{Html, PageError},
    viewer::home_url,
};
use crate::{
    api::AppState,
    app::{
        AppError,
        session::{SESSION_LIFETIME, Session, may_replace_unasked},
        user_login::{LOGIN_LIFETIME, VerifiedUser},
    },
    oidc::{AuthorizationResponse, LoginError},
    problem::Problem,
    request::{client_address, cookie},
};

/// Page that explains why a user could not log in.
#[derive(Template)]
#[template(path = "login_failed.html")]
struct FailurePage<'a> {
    status: u16,
    title: &'static str,
    reason: String,
    advice: &'static str,
    /// Name of the provider, to log in again. `None` if none is configured.
    display_name: Option<&'a str>,
}

fn status_and_title(error: &LoginError) -> (StatusCode, &'static str) {
    match error {
        LoginError::NotConfigured => (StatusCode::NOT_FOUND, "Not found"),
        LoginError::NoRole { .. } => (StatusCode::FORBIDDEN, "Not allowed"),
        LoginError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "Identity provider unavailable"),
        LoginError::InvalidResponse(_) | LoginError::ClientRejected => {
            (StatusCode::BAD_GATEWAY, "Identity provider misconfigured")
        }
        LoginError::NoPendingLogin
        | LoginError::StateMismatch
        | LoginError::AlreadyUsed
        | LoginError::Refused(_)
        | LoginError::CodeRejected
        | LoginError::Token(_) => (StatusCode::FORBIDDEN, "Login failed"),
    }
}

/// Returns the reason that a visitor sees. The addresses of the provider are only in the log, since they may be internal.
fn public_reason(error: &LoginError) -> String {
    match error {
        LoginError::Unavailable(_) => "the identity provider is not available".to_owned(),
        LoginError::InvalidResponse(_) => "the identity provider returned an invalid response".to_owned(),
        other => other.to_string(),
    }
}

/// Logs why a login failed: some failures of each address as a warning, since requests need no session to fail.
fn log_failure(app: &AppState, error: &LoginError, extensions: &Extensions) {
    let is_without_login =
        matches!(error, LoginError::NotConfigured | LoginError::NoPendingLogin | LoginError::StateMismatch);
    if is_without_login || app.failed_logins().count(client_address(extensions)).is_some() {
        tracing::debug!(reason = %error, "login of a user failed");
    } else {
        tracing::warn!(reason = %error, "login of a user failed");
    }
}

/// Renders why a login failed, and ends the login in progress.
fn failure(app: &AppState, error: &LoginError, extensions: &Extensions) -> Result<Response, PageError> {
    let secure = cookie::is_secure(extensions);
    let (status, title) = status_and_title(error);
    log_failure(app, error, extensions);
    let page = FailurePage {
        status: status.as_u16(),
        title,
        reason: public_reason(error),
        advice: error.advice(),
        display_name: app.identity_provider().map(|provider| provider.display_name()),
    };
    let cookie = cookie::LOGIN.end(secure).ok_or_else(Problem::internal)?;
    Ok((status, [(header::SET_COOKIE, cookie)], Html::render(&page)?).into_response())
}

/// Sends the browser to the identity provider.
pub(super) async fn begin(
    State(app): State<AppState>,
    extensions: Extensions,
    Query(query): Query<Next>,
) -> Result<Response, PageError> {
    let secure = cookie::is_secure(&extensions);
    let begun = match app.begin_login(safe_path(&query.next)).await {
        Ok(begun) => begun,
        Err(error) => return failure(&app, &error, &extensions),
    };
    let cookie = cookie::LOGIN.begin(&begun.cookie, LOGIN_LIFETIME, secure).ok_or_else(Problem::internal)?;
    Ok(([(header::SET_COOKIE, cookie)], Redirect::to(&begun.url)).into_response())
}

/// Starts a session for the user with whom the provider sent the browser back.
pub(super) async fn finish(
    State(app): State<AppState>,
    extensions: Extensions,
    headers: HeaderMap,
    Query(response): Query<AuthorizationResponse>,
) -> Result<Response, PageError> {
    let secure = cookie::is_secure(&extensions);
    let login = cookie::LOGIN.find(&headers, secure);
    let (user, next) = match app.finish_login(login, &response).await {
        Ok(finished) => finished,
        Err(error) => return failure(&app, &error, &extensions),
    };
    let current = current_session(&app, &headers, &extensions).await?;
    if let Some((current, cookie)) = &current {
        let caller = user.caller();
        if !may_replace_unasked(&current.caller, &caller) {
            let offer = app.offer_user(&user);
            return ask_to_replace(offer, false, &next, &caller, (current, cookie));
        }
    }
    let current = current.map(|(session, _)| session);
    start_session(&app, &extensions, user, current.as_ref(), &next).await
}

/// Starts a session for a user, in place of the current one.
pub(super) async fn start_session(
    app: &AppState,
    extensions: &Extensions,
    user: VerifiedUser,
    current: Option<&Session>,
    next: &str,
) -> Result<Response, PageError> {
    let secure = cookie::is_secure(extensions);
    let home_url = home_url(&user.caller());
    let value = match app.begin_user_session(user, client_address(extensions)).await {
        Ok(value) => value,
        Err(AppError::Forbidden(_)) => return failure(app, &LoginError::AlreadyUsed, extensions),
        Err(error) => return Err(error.into()),
    };
    if let Some(current) = current {
        app.end_session(current).await?;
    }
    let next = match safe_path(next) {
        "" => home_url,
        next => next.to_owned(),
    };
    let session = cookie::SESSION.begin(&value, SESSION_LIFETIME, secure).ok_or_else(Problem::internal)?;
    let login = cookie::LOGIN.end(secure).ok_or_else(Problem::internal)?;
    let cookies = AppendHeaders([(header::SET_COOKIE, session), (header::SET_COOKIE, login)]);
    Ok((cookies, Redirect::to(&next)).into_response())
}
