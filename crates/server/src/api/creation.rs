//! Bodies of requests that create an object, with the idempotency key of the request.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{FromRequest, Request},
    http::{HeaderName, HeaderValue, StatusCode},
    response::{IntoResponse, Response},
};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use redrive_core::{FieldError, TenantId};
use redrive_store::CreationKey;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::{AppState, scope::TenantParameter};
use crate::{
    app::{App, AppError, RequestKey},
    problem::Problem,
};

/// Header with the idempotency key.
const KEY_HEADER: &str = "idempotency-key";
/// Header of a response with an object that an earlier request created.
const REPLAYED_HEADER: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Body of a request that creates an object, and the idempotency key of the request.
pub(super) struct Creation<B> {
    /// The body.
    pub(super) body: B,
    /// The key.
    pub(super) request: Option<RequestKey>,
}

impl<B> Creation<B> {
    /// Separates the body from the key, for an object of a tenant, or of the installation without one.
    pub(super) fn into_parts(
        self,
        app: &App,
        tenant_id: Option<&TenantId>,
    ) -> Result<(B, Option<CreationKey>), AppError> {
        let key = self.request.as_ref().map(|request| app.creation_key(tenant_id, request)).transpose()?;
        Ok((self.body, key))
    }
}

impl<B: TenantParameter> TenantParameter for Creation<B> {
    fn tenant_id(&self) -> Option<&str> {
        self.body.tenant_id()
    }
}

impl<B: FromRequest<AppState>> FromRequest<AppState> for Creation<B>
where
    B::Rejection: IntoResponse,
{
    type Rejection = Response;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, Response> {
        let Some(key) = request.headers().get(KEY_HEADER) else {
            let body = B::from_request(request, app).await.map_err(IntoResponse::into_response)?;
            return Ok(Self { body, request: None });
        };
        let key = key.to_str().map_err(|_| FieldError::new("Idempotency-Key", "must be visible ASCII"));
        let key = key.map_err(|invalid| Problem::from(invalid).into_response())?.to_owned();
        let route = format!("{} {}", request.method(), request.uri().path());
        let (request, hash) = hash_body(request);
        let body = B::from_request(request, app).await.map_err(IntoResponse::into_response)?;
        let body_hash = hash.lock().finalize_reset().into();
        Ok(Self { body, request: Some(RequestKey { key, route, body_hash }) })
    }
}

/// Returns the request with a body that is hashed while it is read.
fn hash_body(request: Request) -> (Request, Arc<Mutex<Sha256>>) {
    let hash = Arc::new(Mutex::new(Sha256::new()));
    let hashed = hash.clone();
    let request = request.map(|body| {
        // The error that ended the body is passed on, because the reader looks at its type.
        let body = body.map_err(axum::Error::into_inner).map_frame(move |frame| {
            if let Some(data) = frame.data_ref() {
                hashed.lock().update(data);
            }
            frame
        });
        Body::new(body)
    });
    (request, hash)
}

/// Returns the response with an object that an earlier request with the same key created.
pub(super) fn replayed<T: Serialize>(view: T) -> Response {
    mark_replayed((StatusCode::OK, axum::Json(view)).into_response())
}

/// Marks a response as one with an object that an earlier request with the same key created.
pub(super) fn mark_replayed(mut response: Response) -> Response {
    response.headers_mut().insert(REPLAYED_HEADER, HeaderValue::from_static("true"));
    response
}
