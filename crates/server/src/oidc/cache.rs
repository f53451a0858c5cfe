//! Cache of a document of the provider. A failed fetch is remembered for a moment, so that an outage costs each login
//! little time, and an old document is used until the next one is available.

use std::{sync::Arc, time::Duration};

use redrive_engine::clock::monotonic_now;
use tokio::sync::Mutex;

use super::error::LoginError;

/// Time after which a document is fetched again.
const MAX_AGE: Duration = Duration::from_secs(3600);
/// Time after a failure for which the document is not fetched again.
const FAILURE_TTL: Duration = Duration::from_secs(5);
/// Minimum interval of refreshes that a token with an unknown key causes, so that forged tokens cause few requests.
const REFRESH_INTERVAL: Duration = Duration::from_secs(30);

/// A cached document. It is fetched by one task at a time.
pub(super) struct DocumentCache<T>(Mutex<State<T>>);

impl<T> Default for DocumentCache<T> {
    fn default() -> Self {
        Self(Mutex::new(State { document: None, failure: None, refreshed_at: None }))
    }
}

struct State<T> {
    document: Option<(Arc<T>, Duration)>,
    failure: Option<(LoginError, Duration)>,
    /// Time of the last refresh on request.
    refreshed_at: Option<Duration>,
}

impl<T> State<T> {
    /// Returns what to use without a fetch at this time. Returns `None` if the document must be fetched.
    fn current(&self, now: Duration) -> Option<Result<Arc<T>, LoginError>> {
        let is_within = |then: Duration, period| now.saturating_sub(then) < period;
        let document = self.document.as_ref();
        if let Some((document, _)) = document.filter(|(_, fetched_at)| is_within(*fetched_at, MAX_AGE)) {
            return Some(Ok(document.clone()));
        }
        let (failure, _) = self.failure.as_ref().filter(|(_, at)| is_within(*at, FAILURE_TTL))?;
        Some(document.map_or_else(|| Err(failure.clone()), |(document, _)| Ok(document.clone())))
    }

    /// Returns whether the document may be refreshed on request at this time, and records that it is.
    fn begin_refresh(&mut self, now: Duration) -> bool {
        let may = self.refreshed_at.is_none_or(|then| now.saturating_sub(then) >= REFRESH_INTERVAL);
        if may {
            self.refreshed_at = Some(now);
        }
        may
    }

    /// Records a fetch. Returns the new document, or else the old one, or else the failure.
    fn finish(&mut self, fetched: Result<T, LoginError>, now: Duration) -> Result<Arc<T>, LoginError> {
        match fetched {
            Ok(document) => {
                let document = Arc::new(document);
                (self.document, self.failure) = (Some((document.clone(), now)), None);
                Ok(document)
            }
            Err(failure) => {
                tracing::warn!(%failure, "identity provider request failed");
                self.failure = Some((failure.clone(), now));
                self.document.as_ref().map(|(document, _)| document.clone()).ok_or(failure)
            }
        }
    }
}

impl<T> DocumentCache<T> {
    /// Returns the document, fetching it if there is none or it is old.
    pub(super) async fn get(
        &self,
        fetch: impl AsyncFnOnce() -> Result<T, LoginError>,
    ) -> Result<Arc<T>, LoginError> {
        let mut state = self.0.lock().await;
        match state.current(monotonic_now()) {
            Some(current) => current,
            None => {
                let fetched = fetch().await;
                state.finish(fetched, monotonic_now())
            }
        }
    }

    /// Fetches the document again, unless that was done a moment ago.
    pub(super) async fn refresh(
        &self,
        fetch: impl AsyncFnOnce() -> Result<T, LoginError>,
    ) -> Result<Arc<T>, LoginError> {
        let mut state = self.0.lock().await;
        if !state.begin_refresh(monotonic_now()) {
            drop(state);
            return self.get(fetch).await;
        }
        let fetched = fetch().await;
        state.finish(fetched, monotonic_now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(1_000);

    fn at(seconds: u64) -> Duration {
        START + Duration::from_secs(seconds)
    }

    fn failure() -> LoginError {
        LoginError::Unavailable("refused".into())
    }

    fn state() -> State<u32> {
        State { document: None, failure: None, refreshed_at: None }
    }

    #[test]
    fn document_is_fetched_again_when_old_and_kept_if_that_fails() {
        let mut state = state();
        assert!(state.current(START).is_none());
        assert_eq!(*state.finish(Ok(1), START).unwrap(), 1);
        assert_eq!(*state.current(at(3_599)).unwrap().unwrap(), 1);
        assert!(state.current(at(3_600)).is_none());
        assert_eq!(*state.finish(Err(failure()), at(3_600)).unwrap(), 1);
        assert_eq!(*state.current(at(3_604)).unwrap().unwrap(), 1);
        assert!(state.current(at(3_605)).is_none());
    }

    #[test]
    fn failure_without_a_document_is_remembered_for_a_moment() {
        let mut state = state();
        assert_eq!(state.finish(Err(failure()), START).unwrap_err(), failure());
        assert_eq!(state.current(at(4)).unwrap().unwrap_err(), failure());
        assert!(state.current(at(5)).is_none());
    }

    #[test]
    fn refresh_on_request_is_limited_to_one_per_interval() {
        let mut state = state();
        assert!(state.begin_refresh(START));
        assert!(!state.begin_refresh(at(29)));
        assert!(state.begin_refresh(at(30)) && !state.begin_refresh(at(31)));
    }
}
