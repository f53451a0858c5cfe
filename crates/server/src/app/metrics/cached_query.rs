//! Query whose result is computed independently of the requests that need it: a request gets the last result and waits
//! only briefly for a newer one. One query runs at a time, and slow queries run less often.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use redrive_engine::clock::monotonic_now;
use redrive_store::StoreError;
use tokio::time::timeout;

/// Time that a request waits for a running query if no result is available.
const FIRST_RESULT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(60);
/// Minimum time between two queries, as a multiple of the duration of the last one.
const MIN_IDLE_FACTOR: u32 = 20;

/// Result of a query.
#[derive(Clone, Copy, Debug)]
pub(in crate::app) struct QueryResult<T> {
    pub(in crate::app) value: T,
    /// Monotonic time of the result.
    at: Duration,
    /// Duration of the query.
    pub(super) duration: Duration,
}

impl<T> QueryResult<T> {
    pub(super) fn age(&self) -> Duration {
        monotonic_now().saturating_sub(self.at)
    }
}

/// Last result, and the lock that allows one query at a time.
pub(super) struct CachedQuery<T>(Arc<State<T>>);

/// A query that has ended.
#[derive(Clone, Copy)]
struct Run {
    /// Monotonic time of its end.
    ended: Duration,
    duration: Duration,
    has_failed: bool,
}

struct State<T> {
    /// Age after which a result is no longer returned.
    max_age: Duration,
    /// Time that a request waits for a running query if an older result is available.
    request_wait: Duration,
    last: Mutex<Option<QueryResult<T>>>,
    /// The last query, whether it succeeded or failed.
    last_run: Mutex<Option<Run>>,
    turn: tokio::sync::Mutex<()>,
}

impl<T: Clone + Send + 'static> CachedQuery<T> {
    pub(super) fn new(max_age: Duration, request_wait: Duration) -> Self {
        let (last, last_run, turn) = (Mutex::default(), Mutex::default(), tokio::sync::Mutex::default());
        Self(Arc::new(State { max_age, request_wait, last, last_run, turn }))
    }

    /// Returns the result of the query if it is available quickly, otherwise the last one. Returns `None` if that is too
    /// old. The query is dropped if another one runs, or ran only recently.
    pub(super) async fn get(
        &self,
        query: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Option<QueryResult<T>> {
        let timeout = if self.last().is_some() { self.0.request_wait } else { FIRST_RESULT_TIMEOUT };
        let state = self.0.clone();
        // The query continues after the timeout; the next request uses its result.
        let _ = tokio::time::timeout(timeout, tokio::spawn(async move { state.run(query).await })).await;
        self.last()
    }

    fn last(&self) -> Option<QueryResult<T>> {
        self.0.last.lock().clone().filter(|last| last.age() < self.0.max_age)
    }
}

impl<T: Clone> State<T> {
    async fn run(&self, query: impl Future<Output = Result<T, StoreError>>) {
        let Ok(_guard) = self.turn.try_lock() else {
            // Another request is counting: wait for its result.
            drop(self.turn.lock().await);
            return;
        };
        let last_run = *self.last_run.lock();
        let started = monotonic_now();
        // A query that failed pauses too: a store that is too slow for it must not be queried all the time.
        if last_run.is_some_and(|run| started.saturating_sub(run.ended) < run.duration * MIN_IDLE_FACTOR) {
            return;
        }
        let result = timeout(QUERY_TIMEOUT, query).await;
        let ended = monotonic_now();
        let duration = ended.saturating_sub(started);
        let failure = match result {
            Ok(Ok(value)) => {
                *self.last.lock() = Some(QueryResult { value, at: ended, duration });
                None
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("no response in time".to_owned()),
        };
        *self.last_run.lock() = Some(Run { ended, duration, has_failed: failure.is_some() });
        let Some(error) = failure else { return };
        // Only the first of several failures is a warning.
        match last_run.is_some_and(|run| run.has_failed) {
            true => tracing::debug!(error, "counting in the store failed"),
            false => tracing::warn!(error, "counting in the store for metrics failed; will retry"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use tokio::sync::Semaphore;

    use super::*;

    const REQUEST_WAIT: Duration = Duration::from_millis(10);

    #[tokio::test]
    async fn one_query_runs_at_a_time_and_callers_get_the_last_result() {
        let cached = CachedQuery::new(Duration::from_secs(60), REQUEST_WAIT);
        let (count, gate) = (Arc::new(AtomicU32::new(0)), Arc::new(Semaphore::new(1)));
        let query = || {
            let (count, gate) = (count.clone(), gate.clone());
            async move {
                let number = count.fetch_add(1, SeqCst) + 1;
                gate.acquire().await.unwrap().forget();
                Ok(number)
            }
        };
        assert_eq!(cached.get(query()).await.unwrap().value, 1);
        // The second query waits at the gate; callers do not wait for it, and no third one starts.
        while count.load(SeqCst) < 2 {
            assert_eq!(cached.get(query()).await.unwrap().value, 1);
        }
        for _ in 0..3 {
            assert_eq!(cached.get(query()).await.unwrap().value, 1);
        }
        assert_eq!(count.load(SeqCst), 2);
        gate.add_permits(100);
        while cached.get(query()).await.unwrap().value == 1 {}
    }

    #[tokio::test]
    async fn failed_query_keeps_the_last_result_until_it_is_too_old() {
        let cached = CachedQuery::new(Duration::from_millis(500), REQUEST_WAIT);
        let failed = || async { Err(StoreError::Unavailable("down".into())) };
        assert!(cached.get(failed()).await.is_none());
        // The failed query is followed by a pause of its duration.
        let seven = loop {
            if let Some(result) = cached.get(async { Ok(7) }).await {
                break result.value;
            }
        };
        assert_eq!(seven, 7);
        assert_eq!(cached.get(failed()).await.unwrap().value, 7);
        while cached.get(failed()).await.is_some() {}
    }

    #[tokio::test]
    async fn failed_query_is_followed_by_a_pause() {
        let cached = CachedQuery::<u32>::new(Duration::from_secs(60), REQUEST_WAIT);
        let (count, duration) = (Arc::new(AtomicU32::new(0)), Duration::from_millis(500));
        for _ in 0..3 {
            let count = count.clone();
            let failed = async move {
                count.fetch_add(1, SeqCst);
                tokio::time::sleep(duration).await;
                Err(StoreError::Unavailable("down".into()))
            };
            assert!(cached.get(failed).await.is_none());
        }
        assert_eq!(count.load(SeqCst), 1, "the next query starts after the pause");
    }
}
