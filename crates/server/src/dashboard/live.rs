//! Pages that stay true while they are looked at: their main part is sent again, as a server-sent event, whenever it
//! has changed. However many people look at one page, it is rendered once.

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
use redrive_core::KeyId;
use serde::Deserialize;
use tokio::sync::watch;
use tower_service::Service;

use super::{page::Failed, viewer::Viewer};
use crate::{api::AppState, app::AppError};

/// How often a page is looked at for changes.
const EVERY: Duration = Duration::from_secs(2);
/// How often somebody who sees no changes is told that there still is somebody.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);
/// How often it is checked whether the session behind a live page without changes is still live.
const SESSION_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// The most pages that are kept alive at once on this node.
const MOST_PAGES: usize = 500;
/// The most different pages that are kept alive for one key: nobody takes all places.
const MOST_OF_A_KEY: usize = 50;
/// The largest page.
const MOST_BYTES: usize = 2 << 20;
/// What stands around the part of a page that is sent again.
const BEGINS: &str = "<!--live-->";
const ENDS: &str = "<!--/live-->";

/// A page as somebody sees it: by their key, and where it is.
type Place = (Option<KeyId>, Uri);
/// What came of rendering a page.
#[derive(Clone, Debug, PartialEq)]
enum Rendered {
    /// It was not tried yet.
    Nothing,
    /// The part that changes.
    Part(Arc<str>),
    /// Not now: the store may be away.
    Later,
    /// It is not there, not for this viewer any more, too large, or has no part that changes.
    Never,
}

/// The pages that somebody listens to.
#[derive(Clone)]
pub(super) struct Live(Arc<Inner>);

struct Inner {
    pages: Router,
    watched: Mutex<HashMap<Place, Weak<watch::Receiver<Rendered>>>>,
}

impl Live {
    /// Keeps these pages alive, those of them that somebody listens to.
    pub(super) fn new(pages: Router) -> Self {
        Self(Arc::new(Inner { pages, watched: Mutex::default() }))
    }

    /// What changes on a page. None: there are too many already.
    fn watch(&self, viewer: Viewer, uri: Uri, app: &AppState) -> Option<Arc<watch::Receiver<Rendered>>> {
        let mut watched = self.0.watched.lock();
        let place = (viewer.by.key, uri);
        if let Some(known) = watched.get(&place).and_then(Weak::upgrade) {
            return Some(known);
        }
        watched.retain(|_, page| page.strong_count() > 0);
        let of_key = watched.keys().filter(|(key, _)| *key == place.0).count();
        if watched.len() >= MOST_PAGES || of_key >= MOST_OF_A_KEY {
            return None;
        }
        let (sender, receiver) = watch::channel(Rendered::Nothing);
        let receiver = Arc::new(receiver);
        watched.insert(place.clone(), Arc::downgrade(&receiver));
        // It ends with the last who listens: by then nobody holds the receiver.
        let (page, app) = (Arc::downgrade(&receiver), app.clone());
        tokio::spawn(keep_rendering(self.clone(), viewer, place.1, sender, page, app));
        Some(receiver)
    }

    /// The part of a page that changes, as it is now.
    async fn render(&self, viewer: &Viewer, uri: &Uri) -> Rendered {
        let Ok(mut request) = Request::get(uri.clone()).body(Body::empty()) else { return Rendered::Never };
        request.extensions_mut().insert(viewer.clone());
        let Ok::<_, Infallible>(answer) = self.0.pages.clone().call(request).await;
        match answer.status() {
            status if status.is_success() => {}
            status if status.is_server_error() => return Rendered::Later,
            _ => return Rendered::Never,
        }
        let Ok(body) = Limited::new(answer.into_body(), MOST_BYTES).collect().await else {
            return Rendered::Never;
        };
        let body = body.to_bytes();
        match std::str::from_utf8(&body).ok().and_then(part_of) {
            Some(part) => Rendered::Part(part.into()),
            None => Rendered::Never,
        }
    }
}

fn part_of(html: &str) -> Option<&str> {
    let (_, rest) = html.split_once(BEGINS)?;
    rest.rsplit_once(ENDS).map(|(part, _)| part)
}

async fn keep_rendering(
    live: Live,
    viewer: Viewer,
    uri: Uri,
    sender: watch::Sender<Rendered>,
    page: Weak<watch::Receiver<Rendered>>,
    app: AppState,
) {
    loop {
        let now = app.engine().clock().now();
        let is_known = now < viewer.session.stored.expires_at
            && viewer.by.key.is_none_or(|key| app.keys().is_live(key, now));
        if page.strong_count() == 0 || app.is_draining() || !is_known {
            return;
        }
        let rendered = live.render(&viewer, &uri).await;
        let is_over = rendered == Rendered::Never;
        sender.send_if_modified(|shown| {
            let changed = *shown != rendered;
            *shown = rendered;
            changed
        });
        if is_over {
            return;
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Which page to listen to.
#[derive(Deserialize)]
pub(super) struct Which {
    page: String,
}

/// Sends the main part of a page whenever it has changed.
pub(super) async fn listen(
    State(app): State<AppState>,
    Extension(live): Extension<Live>,
    viewer: Viewer,
    Query(which): Query<Which>,
) -> Result<Response, Failed> {
    let uri: Uri = which.page.parse().map_err(|_| AppError::NotFound("page"))?;
    if uri.host().is_some() || !uri.path().starts_with("/dashboard/") {
        return Err(AppError::NotFound("page").into());
    }
    let page = live.watch(viewer.clone(), uri, &app).ok_or_else(|| {
        AppError::conflict(
            "too_many_pages",
            "too many pages are open; close some, or reload this one by hand",
        )
    })?;
    let mut parts = (*page).clone();
    // Whoever comes later than others begins with what they see.
    if *parts.borrow() != Rendered::Nothing {
        parts.mark_changed();
    }
    let listener = Listener { parts, _page: page, viewer, app, is_stale: false };
    let events = stream::unfold(listener, async |mut listener| {
        let event = listener.next_event().await?;
        Some((Ok::<_, Infallible>(event), listener))
    });
    let alive = KeepAlive::new().interval(SIGN_OF_LIFE);
    Ok(Sse::new(events).keep_alive(alive).into_response())
}

/// A browser that listens to a page. Others with the same key may listen to the same page, in sessions of their own.
struct Listener {
    parts: watch::Receiver<Rendered>,
    /// Keeps the page being rendered.
    _page: Arc<watch::Receiver<Rendered>>,
    viewer: Viewer,
    app: AppState,
    /// Whether the browser was told that the page is not up to date.
    is_stale: bool,
}

impl Listener {
    /// What to send next. Returns `None` once the session has ended, or the page is not rendered any more.
    async fn next_event(&mut self) -> Option<Event> {
        loop {
            let changed = tokio::time::timeout(SESSION_CHECK_INTERVAL, self.parts.changed()).await;
            match self.app.is_live(&self.viewer.session, self.viewer.by.address).await {
                Ok(true) => {}
                Ok(false) => return None,
                Err(_) => {
                    if let Some(event) = self.wait_for_the_store().await {
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
                Rendered::Nothing | Rendered::Later => Event::default().event("stale").data("-"),
                Rendered::Never => Event::default().event("gone").data("-"),
            };
            return Some(event);
        }
    }

    /// The store did not say whether the session is live: what has changed is shown once it does.
    async fn wait_for_the_store(&mut self) -> Option<Event> {
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
    fn the_part_between_the_marks_is_sent_again() {
        assert_eq!(part_of("<html><!--live--><p>a</p><!--/live--></html>"), Some("<p>a</p>"));
        assert_eq!(part_of("<html></html>"), None);
        assert_eq!(part_of("<!--live-->a"), None);
        // Text of others is escaped: it cannot bring a mark of its own.
        assert_eq!(part_of("<!--live-->&lt;!--/live--&gt;b<!--/live-->"), Some("&lt;!--/live--&gt;b"));
    }
}
