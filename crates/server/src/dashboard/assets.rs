//! Static assets of the dashboard (styles, scripts, images), embedded in the binary.

use axum::{
    extract::Path,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use rust_embed::RustEmbed;

/// Embedded files. A debug build reads them from disk on each request, so changes show without a rebuild.
#[derive(RustEmbed)]
#[folder = "assets"]
struct Files;

/// Serves a file, or 304 if the browser's cached copy is current.
pub(super) async fn serve(Path(name): Path<String>, headers: HeaderMap) -> Response {
    let Some(file) = Files::get(&name) else { return StatusCode::NOT_FOUND.into_response() };
    let tag: String = file.metadata.sha256_hash()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let tag = format!("\"{tag}\"");
    // Browsers revalidate on each use, so that pages of a new version never run with scripts of the old one.
    let common = [(header::CACHE_CONTROL, "no-cache".to_owned()), (header::ETAG, tag.clone())];
    if headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        return (StatusCode::NOT_MODIFIED, common).into_response();
    }
    (common, [(header::CONTENT_TYPE, kind_of(&name))], file.data.into_owned()).into_response()
}

fn kind_of(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn files_are_served_with_content_type_and_etag() {
        let first = serve(Path("redrive.css".into()), HeaderMap::new()).await;
        assert_eq!(first.status(), 200);
        assert_eq!(first.headers()[header::CONTENT_TYPE], "text/css; charset=utf-8");
        let known = HeaderMap::from_iter([(header::IF_NONE_MATCH, first.headers()[header::ETAG].clone())]);
        assert_eq!(serve(Path("redrive.css".into()), known).await.status(), 304);
        for other in ["", "../Cargo.toml", "js", "nothing.css"] {
            assert_eq!(serve(Path(other.into()), HeaderMap::new()).await.status(), 404, "{other}");
        }
    }
}
