//! Live pages: the main part of a page is sent again as a server-sent event whenever it has changed. Each page is
//! rendered once per key or user, role and time zone, however many browsers show it.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Weak},
    time::Duration,
};

use axum::{
    Extension, Router,
    body::Body,
    extract::{Query, State},
    http::{Request, Uri},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::stream;
use http_body_util::{BodyExt, Limited};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::watch;
use tower_service::Service;

use super::{page::PageError, viewer::Viewer, zone::Zone};
use crate::{
    api::AppState,
    app::{AppError, ErrorCode, auth::Role},
};

/// Interval at which a page is rendered to find changes.
const RENDER_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of heartbeats to a browser without changes. Its script reports a connection without any message for four
/// seconds as lost: a frozen server or a dead network closes nothing.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);
/// Interval at which the session behind a live page without changes is checked.
const SESSION_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of live pages on this node.
const MAX_PAGES: usize = 500;
/// Maximum number of different live pages of one viewer, so that one viewer cannot use up all of them.
const MAX_PAGES_PER_VIEWER: usize = 50;
/// Maximum size of a page.
const MAX_PAGE_BYTES: usize = 2 << 20;
/// Markers around the part of a page that is sent again.
const BEGINS: &str = "<!--live-->";
const ENDS: &str = "<!--/live-->";

/// Identity of a viewer: the hash of the key or user, and the role, which a user's next login may change.
type ViewerKey = ([u8; 32], Role);
/// Identity of a live page: who views it, the URI, and the time zone.
type PageKey = (ViewerKey, Uri, Zone);
/// Result of rendering a page.
#[derive(Clone, Debug, PartialEq)]
enum Rendered {
    /// Not rendered yet.
    Nothing,
    /// The part between the markers.
    Part(Arc<str>),
    /// A server error; the store may be unavailable.
    Unavailable,
    /// The page does not exist, is not allowed for this viewer any more, is too large, or has no markers.
    Gone,
}

/// Registry of the pages that browsers listen to.
#[derive(Clone)]
pub(super) struct Live(Arc<Inner>);

struct Inner {
    pages: Router,
    watched: Mutex<HashMap<PageKey, Weak<watch::Receiver<Rendered>>>>,
}

impl Live {
    /// Creates the registry for these pages. Only pages with listeners are rendered.
    pub(super) fn new(pages: Router) -> Self {
        Self(Arc::new(Inner { pages, watched: Mutex::default() }))
    }

    /// Subscribes to a page, starting its renderer if needed. Returns `None` if too many pages are live already.
    fn watch(&self, viewer: Viewer, uri: Uri, app: &AppState) -> Option<Arc<watch::Receiver<Rendered>>> {
        let mut watched = self.0.watched.lock();
        let viewer_key = (viewer.session.stored.key_hash, viewer.by.role.clone());
        let page_key = (viewer_key, uri, Zone::current());
        if let Some(known) = watched.get(&page_key).and_then(Weak::upgrade) {
            return Some(known);
        }
        watched.retain(|_, page| page.strong_count() > 0);
        let count = watched.keys().filter(|(viewer_key, ..)| *viewer_key == page_key.0).count();
        if watched.len() >= MAX_PAGES || count >= MAX_PAGES_PER_VIEWER {
            return None;
        }
        let (sender, receiver) = watch::channel(Rendered::Nothing);
        let receiver = Arc::new(receiver);
        watched.insert(page_key.clone(), Arc::downgrade(&receiver));
        // The renderer has only a weak reference to the receiver, so it ends with the last listener.
        let (page, app) = (Arc::downgrade(&receiver), app.clone());
        tokio::spawn(run_renderer(self.clone(), viewer, page_key, sender, page, app));
        Some(receiver)
    }

    /// Renders the page and returns the part between its markers.
    async fn render(&self, viewer: &Viewer, (_, uri, zone): &PageKey) -> Rendered {
        let Ok(mut request) = Request::get(uri.clone()).body(Body::empty()) else { return Rendered::Gone };
        request.extensions_mut().insert(viewer.clone());
        request.extensions_mut().insert(zone.clone());
        let Ok::<_, Infallible>(response) = self.0.pages.clone().call(request).await;
        match response.status() {
            status if status.is_success() => {}
            status if status.is_server_error() => return Rendered::Unavailable,
            _ => return Rendered::Gone,
        }
        let Ok(body) = Limited::new(response.into_body(), MAX_PAGE_BYTES).collect().await else {
            return Rendered::Gone;
        };
        let body = body.to_bytes();
        match std::str::from_utf8(&body).ok().and_then(extract_part) {
            Some(part) => Rendered::Part(part.into()),
            None => Rendered::Gone,
        }
    }
}

fn extract_part(html: &str) -> Option<&str> {
    let (_, rest) = html.split_once(BEGINS)?;
    rest.rsplit_once(ENDS).map(|(part, _)| part)
}

async fn run_renderer(
    live: Live,
    viewer: Viewer,
    page_key: PageKey,
    sender: watch::Sender<Rendered>,
    page: Weak<watch::Receiver<Rendered>>,
    app: AppState,
) {
    loop {
        let now = app.engine().clock().now();
        let is_valid = now < viewer.session.stored.expires_at
            && viewer.by.key.is_none_or(|key| app.keys().is_live(key, now));
        if page.strong_count() == 0 || app.is_draining() || !is_valid {
            return;
        }
        let rendered = live.render(&viewer, &page_key).await;
        let is_gone = rendered == Rendered::Gone;
        sender.send_if_modified(|shown| {
            let changed = *shown != rendered;
            *shown = rendered;
            changed
        });
        if is_gone {
            return;
        }
        tokio::time::sleep(RENDER_INTERVAL).await;
    }
}

/// Query of the stream: the page to listen to.
#[derive(Deserialize)]
pub(super) struct LivePageQuery {
    page: String,
}

/// Sends the main part of a page whenever it has changed.
pub(super) async fn listen(
    State(app): State<AppState>,
    Extension(live): Extension<Live>,
    viewer: Viewer,
    Query(query): Query<LivePageQuery>,
) -> Result<Response, PageError> {
    let uri: Uri = query.page.parse().map_err(|_| AppError::NotFound("page"))?;
    if uri.host().is_some() || !uri.path().starts_with("/dashboard/") {
        return Err(AppError::NotFound("page").into());
    }
    let page = live.watch(viewer.clone(), uri, &app).ok_or_else(|| {
        AppError::conflict(
            ErrorCode::TooManyPages,
            "too many pages are open; close some, or reload this one manually",
        )
    })?;
    let mut parts = (*page).clone();
    // A browser that joins an already live page gets its current part first.
    if *parts.borrow() != Rendered::Nothing {
        parts.mark_changed();
    }
    let listener = Listener { parts, _page: page, viewer, app, is_stale: false };
    let events = stream::unfold(listener, async |mut listener| {
        let event = listener.next_event().await?;
        Some((Ok::<_, Infallible>(event), listener))
    });
    let alive = KeepAlive::new().interval(HEARTBEAT_INTERVAL).event(Event::default().event("beat").data("-"));
    Ok(Sse::new(events).keep_alive(alive).into_response())
}

/// A browser that listens to a page. Other browsers with the same key may listen to it in their own sessions.
struct Listener {
    parts: watch::Receiver<Rendered>,
    /// Keeps the renderer of the page running.
    _page: Arc<watch::Receiver<Rendered>>,
    viewer: Viewer,
    app: AppState,
    /// Whether the browser was notified that the page is stale.
    is_stale: bool,
}

impl Listener {
    /// Returns the next event to send, or `None` once the session has ended or the page is not rendered any more.
    async fn next_event(&mut self) -> Option<Event> {
        loop {
            let changed = tokio::time::timeout(SESSION_CHECK_INTERVAL, self.parts.changed()).await;
            match self.app.is_live(&self.viewer.session, self.viewer.by.address).await {
                Ok(true) => {}
                Ok(false) => return None,
                Err(_) => {
                    if let Some(event) = self.wait_for_store().await {
                        return Some(event);
                    }
                    continue;
                }
            }
            match changed {
                Ok(changed) => changed.ok()?,
                Err(_) => continue,
            }
            self.is_stale = false;
            let event = match &*self.parts.borrow_and_update() {
                Rendered::Part(part) => Event::default().event("part").data(&**part),
                Rendered::Nothing | Rendered::Unavailable => Event::default().event("stale").data("-"),
                Rendered::Gone => Event::default().event("gone").data("-"),
            };
            return Some(event);
        }
    }

    /// Delays changes while the store cannot confirm the session. Returns a `stale` event the first time.
    async fn wait_for_store(&mut self) -> Option<Event> {
        self.parts.mark_changed();
        tokio::time::sleep(SESSION_CHECK_INTERVAL).await;
        let was_stale = std::mem::replace(&mut self.is_stale, true);
        (!was_stale).then(|| Event::default().event("stale").data("-"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_between_markers_is_extracted() {
        assert_eq!(extract_part("<html><!--live--><p>a</p><!--/live--></html>"), Some("<p>a</p>"));
        assert_eq!(extract_part("<html></html>"), None);
        assert_eq!(extract_part("<!--live-->a"), None);
        // Untrusted text is escaped, so it cannot contain a marker.
        assert_eq!(extract_part("<!--live-->&lt;!--/live--&gt;b<!--/live-->"), Some("&lt;!--/live--&gt;b"));
    }
}
