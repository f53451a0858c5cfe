//! How fast each key may call. Counted before anything else is looked at; whoever has no valid key is told so
//! elsewhere.

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{AppState, extract::caller, problem::Problem};
use crate::app::throttle::Allowance;

/// Counts a call, refuses it if it is one too many, and tells where its key stands.
pub(super) async fn limited(State(app): State<AppState>, mut request: Request, next: Next) -> Response {
    let Some(throttle) = app.throttle() else { return next.run(request).await };
    let caller = match caller(request.headers(), request.extensions(), &app).await {
        Ok(Some(caller)) => caller,
        Ok(None) => return next.run(request).await,
        Err(error) => return Problem::from(error).into_response(),
    };
    let allowance = throttle.call(app.engine(), caller.key).await;
    let mut answer = match allowance.retry_after {
        None => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Some(seconds) => too_fast(allowance.limit, seconds),
    };
    tell(answer.headers_mut(), allowance);
    answer
}

fn too_fast(requests_per_minute: u32, seconds: u64) -> Response {
    let detail = format!(
        "this key is over its rate limit of {requests_per_minute} calls a minute; nothing was done, call again in \
         {seconds} s"
    );
    let mut answer = Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", detail).into_response();
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    answer
}

fn tell(headers: &mut HeaderMap, allowance: Allowance) {
    let figures = [
        ("ratelimit-limit", u64::from(allowance.limit)),
        ("ratelimit-remaining", u64::from(allowance.remaining)),
        ("ratelimit-reset", allowance.reset),
    ];
    for (name, figure) in figures {
        headers.insert(HeaderName::from_static(name), HeaderValue::from(figure));
    }
}
