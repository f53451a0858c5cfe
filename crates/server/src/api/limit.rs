//! Rate limit per API key, enforced before any other processing. Requests without a valid key pass through: the
//! handlers reject them.

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{AppState, scope::authenticate};
use crate::{
    app::{ErrorCode, throttle::RateLimitStatus},
    problem::Problem,
};

/// Counts a call, rejects it with 429 if the key is over its rate limit, and adds the `ratelimit-*` headers.
pub(super) async fn enforce_rate_limit(
    State(app): State<AppState>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(throttle) = app.throttle() else { return next.run(request).await };
    let caller = match authenticate(request.headers(), request.extensions(), &app).await {
        Ok(Some(caller)) => caller,
        Ok(None) => return next.run(request).await,
        Err(error) => return Problem::from(error).into_response(),
    };
    let allowance = throttle.acquire(app.engine(), caller.rate_limit_id()).await;
    let mut response = match allowance.retry_after {
        None => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Some(seconds) => rate_limited(allowance.limit, seconds),
    };
    add_headers(response.headers_mut(), allowance);
    response
}

fn rate_limited(requests_per_minute: u32, seconds: u64) -> Response {
    let detail = format!(
        "this key is over its rate limit of {requests_per_minute} calls a minute; nothing was done, call again in \
         {seconds} s"
    );
    let mut response =
        Problem::new(StatusCode::TOO_MANY_REQUESTS, ErrorCode::RateLimited, detail).into_response();
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    response
}

fn add_headers(headers: &mut HeaderMap, allowance: RateLimitStatus) {
    let statistics = [
        ("ratelimit-limit", u64::from(allowance.limit)),
        ("ratelimit-remaining", u64::from(allowance.remaining)),
        ("ratelimit-reset", allowance.reset),
    ];
    for (name, value) in statistics {
        headers.insert(HeaderName::from_static(name), HeaderValue::from(value));
    }
}
