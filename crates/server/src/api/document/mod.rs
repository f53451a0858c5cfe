//! The OpenAPI document: what utoipa derives from the routes and types, in the form that linters and client generators
//! accept. It changes only how the API is described, never what it does.

mod names;
mod responses;
mod sides;
#[cfg(test)]
mod tests;
mod text;
mod tidy;
mod variants;
mod walk;

use axum::http::header;
use bytes::Bytes;
use serde_json::Value;

/// Path of the document.
pub(super) const PATH: &str = "/openapi.json";

/// Serves a document as `/openapi.json`.
pub(super) fn route<S: Clone + Send + Sync + 'static>(document: &Value) -> axum::Router<S> {
    let text = Bytes::from(text::to_text(document));
    let respond = move || std::future::ready(([(header::CONTENT_TYPE, "application/json")], text.clone()));
    axum::Router::new().route(PATH, axum::routing::get(respond))
}

/// Returns the document in its final form.
pub(super) fn finish(mut document: Value) -> Value {
    names::refer_to_items(&mut document);
    tidy::tidy(&mut document);
    variants::separate(&mut document);
    sides::separate(&mut document);
    names::rename(&mut document);
    responses::share_problems(&mut document);
    document
}
