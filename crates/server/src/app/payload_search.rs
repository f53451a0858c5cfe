//! Payload search: events whose payload has a value at a path. A request reads a bounded part of a bounded time range,
//! in small steps on connections for reads of users, and reports how far it came.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redrive_core::{
    EventId, FieldError, KeyId, TenantId, Time,
    routing::filter::{Filter, MAX_STEPS, Payload},
    search::payload_pointer,
};
use redrive_engine::clock::monotonic_now;
use redrive_store::{PayloadPage, PayloadScan, StoreError, StoredEvent};
use serde_json::{Value, value::RawValue};

use super::{App, AppError, Caller, TenantView};

/// Longest time range of a search.
const MAX_RANGE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Maximum number of events that one request reads.
const MAX_SCANNED_EVENTS: usize = 1_000_000;
/// Time after which a request reads no further events.
const MAX_SEARCH_TIME: Duration = Duration::from_secs(5);
/// Maximum number of events and bytes of payloads that one step reads.
const STEP_EVENTS: usize = 2_000;
const STEP_BYTES: usize = 4 << 20;
/// Maximum number of concurrent searches on this node.
const MAX_PER_NODE: usize = 4;
/// Longest path and value.
const MAX_PATH_BYTES: usize = 1_024;
const MAX_VALUE_BYTES: usize = 4_096;

/// How a request for a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SearchEnd {
    /// The whole range was searched.
    Complete,
    /// A limit was reached; the cursor continues.
    Limited,
    /// The store failed.
    Failed,
    /// The client disconnected.
    Cancelled,
}

impl SearchEnd {
    const ALL: [Self; 4] = [Self::Complete, Self::Limited, Self::Failed, Self::Cancelled];

    fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Limited => "limited",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Payload searches of this node.
#[derive(Default)]
struct Searches {
    /// Callers of the running searches, by the id under which their calls are counted; `None` is the admin key from the
    /// configuration.
    running: Mutex<Vec<Option<KeyId>>>,
    /// Number of searches by their end.
    ended: [AtomicU64; SearchEnd::ALL.len()],
}

/// Limits the payload searches of this node, and counts them.
#[derive(Default)]
pub(super) struct PayloadSearchLimiter(Arc<Searches>);

/// Permit to run a search; released on drop, also when the client disconnects.
struct PayloadSearchPermit {
    searches: Arc<Searches>,
    key: Option<KeyId>,
    end: SearchEnd,
}

impl PayloadSearchLimiter {
    fn begin(&self, key: Option<KeyId>) -> Result<PayloadSearchPermit, AppError> {
        let mut running = self.0.running.lock();
        if running.contains(&key) {
            return Err(AppError::TooManySearches { here: false, max: 1 });
        }
        if running.len() >= MAX_PER_NODE {
            return Err(AppError::TooManySearches { here: true, max: MAX_PER_NODE as u32 });
        }
        running.push(key);
        // Dropped before the search has ended, a permit belongs to a client that has disconnected.
        Ok(PayloadSearchPermit { searches: self.0.clone(), key, end: SearchEnd::Cancelled })
    }

    /// Returns how many searches run now.
    pub(super) fn running(&self) -> usize {
        self.0.running.lock().len()
    }

    /// Returns how many searches ended in each way.
    pub(super) fn ended(&self) -> [(&'static str, u64); SearchEnd::ALL.len()] {
        SearchEnd::ALL.map(|end| (end.name(), self.0.ended[end as usize].load(Relaxed)))
    }
}

impl Drop for PayloadSearchPermit {
    fn drop(&mut self) {
        self.searches.ended[self.end as usize].fetch_add(1, Relaxed);
        let mut running = self.searches.running.lock();
        if let Some(index) = running.iter().position(|key| *key == self.key) {
            running.swap_remove(index);
        }
    }
}

/// A payload search as requested.
#[derive(Clone, Debug, Default)]
pub struct PayloadSearchInput {
    /// JSON pointer or dotted path.
    pub path: String,
    /// JSON value; a text that is not JSON is taken as a string.
    pub value: String,
    /// Only events of these types; of all if empty.
    pub event_types: Vec<String>,
    /// Only events from this time on; by default as long ago as allowed.
    pub from: Option<Time>,
    /// Only events before this time; by default until now.
    pub to: Option<Time>,
    /// Only events older than this one.
    pub after: Option<EventId>,
    /// Maximum number of matches.
    pub limit: usize,
}

/// A valid payload search.
#[derive(Clone, Debug)]
struct PayloadSearch {
    filter: Arc<Filter>,
    event_types: Vec<String>,
    from: Time,
    to: Time,
    after: Option<EventId>,
    limit: usize,
}

/// Result of a payload search.
#[derive(Clone, Debug)]
pub struct PayloadMatches {
    /// The matching events, newest first.
    pub found: Vec<StoredEvent>,
    /// Number of events that this request read.
    pub scanned: usize,
    /// Time of the oldest event that was read, or the start of the range if all were read.
    pub scanned_to: Time,
    /// The time range that is searched.
    pub range: (Time, Time),
    /// Position to continue from; `None` if the whole range was searched.
    pub next: Option<EventId>,
}

impl PayloadSearch {
    fn new(input: PayloadSearchInput, now: Time) -> Result<Self, FieldError> {
        let filter = filter(&input.path, &input.value)?;
        let end = input.to.unwrap_or(now);
        let longest = MAX_RANGE.as_millis() as i64;
        let from = input.from.unwrap_or_else(|| Time::from_millis((end.millis() - longest).max(0)));
        if from >= end {
            return Err(FieldError::new("from", "must be before to"));
        }
        if end.millis() - from.millis() > longest {
            let message =
                "a payload search covers at most 7 days; narrow from and to, or search week by week";
            return Err(FieldError::new("from", message));
        }
        Ok(Self {
            filter: Arc::new(filter),
            event_types: input.event_types,
            from,
            // Events of the current millisecond are included.
            to: input.to.unwrap_or(now + Duration::from_secs(1)),
            after: input.after,
            limit: input.limit,
        })
    }

    fn step(&self, after: Option<EventId>, scanned: usize) -> PayloadScan {
        PayloadScan {
            event_types: self.event_types.clone(),
            from: self.from,
            to: self.to,
            after,
            rows: STEP_EVENTS.min(MAX_SCANNED_EVENTS - scanned),
            max_bytes: STEP_BYTES,
        }
    }
}

/// Builds the filter that a payload must pass.
fn filter(path: &str, value: &str) -> Result<Filter, FieldError> {
    if path.len() > MAX_PATH_BYTES {
        return Err(FieldError::new("path", format!("must be at most {MAX_PATH_BYTES} bytes")));
    }
    if value.len() > MAX_VALUE_BYTES {
        return Err(FieldError::new("value", format!("must be at most {MAX_VALUE_BYTES} bytes")));
    }
    let pointer = payload_pointer(path)?;
    let steps = pointer.matches('/').count();
    if steps > MAX_STEPS {
        let message = format!("has {steps} steps; at most {MAX_STEPS} are allowed");
        return Err(FieldError::new("path", message));
    }
    let value = match serde_json::from_str::<&RawValue>(value.trim()) {
        Ok(json) if json.get().starts_with(['{', '[']) => {
            let message =
                "must be a string, a number, true, false or null; search for a value inside instead";
            return Err(FieldError::new("value", message));
        }
        Ok(json) => json.get().to_owned(),
        Err(_) => Value::from(value).to_string(),
    };
    let text = format!("{{\"path\": {}, \"eq\": {value}}}", Value::from(pointer));
    Filter::parse(&text).map_err(|error| {
        let field = if error.field.contains("path") { "path" } else { "value" };
        FieldError::new(field, error.message)
    })
}

/// Returns the events of a page that match.
fn matching(filter: &Filter, page: &PayloadPage) -> Vec<EventId> {
    let matches = |(_, data): &&(EventId, bytes::Bytes)| filter.matches(&Payload::new(data));
    page.payloads.iter().filter(matches).map(|(id, _)| *id).collect()
}

impl App {
    /// Searches payloads of a tenant's events, newest first. Each caller may run one search at a time.
    pub async fn search_payloads(
        &self,
        caller: &Caller,
        tenant: impl Into<TenantView>,
        input: PayloadSearchInput,
    ) -> Result<PayloadMatches, AppError> {
        let search = PayloadSearch::new(input, self.engine.clock().now())?;
        let mut permit = self.payload_searches.begin(caller.rate_limit_id())?;
        let found = self.run_search(tenant.into().id, &search).await;
        permit.end = match &found {
            Ok(PayloadMatches { next: None, .. }) => SearchEnd::Complete,
            Ok(_) => SearchEnd::Limited,
            Err(_) => SearchEnd::Failed,
        };
        found
    }

    async fn run_search(
        &self,
        tenant_id: TenantId,
        search: &PayloadSearch,
    ) -> Result<PayloadMatches, AppError> {
        let (mut ids, mut scanned, mut after) = (Vec::new(), 0, search.after);
        let started = monotonic_now();
        let next = loop {
            let page = self.store().scan_payloads(tenant_id.clone(), search.step(after, scanned)).await?;
            scanned += page.scanned;
            let (last, finished) = (page.last, page.finished);
            let filter = search.filter.clone();
            let matches = tokio::task::spawn_blocking(move || matching(&filter, &page)).await;
            let matches = matches.map_err(|error| StoreError::Unavailable(error.to_string()))?;
            ids.extend(matches);
            if ids.len() > search.limit {
                ids.truncate(search.limit);
                break ids.last().copied();
            }
            if finished {
                break None;
            }
            after = last.or(after);
            let is_over = monotonic_now().saturating_sub(started) >= MAX_SEARCH_TIME;
            if is_over || scanned >= MAX_SCANNED_EVENTS || ids.len() == search.limit {
                break after;
            }
        };
        let mut found = Vec::with_capacity(ids.len());
        for id in ids {
            // An event that was pruned concurrently is left out.
            found.extend(self.store().event(tenant_id.clone(), id).await?);
        }
        let scanned_to = next.map_or(search.from, |next| next.time());
        Ok(PayloadMatches { found, scanned, scanned_to, range: (search.from, search.to), next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_secs(1_700_000_000);

    fn search(path: &str, value: &str, from: Option<u32>, to: Option<u32>) -> Result<PayloadSearch, String> {
        let day = |days: u32| Time::from_secs(1_700_000_000 - days * 24 * 3600);
        let input = PayloadSearchInput {
            path: path.into(),
            value: value.into(),
            from: from.map(day),
            to: to.map(day),
            limit: 50,
            ..PayloadSearchInput::default()
        };
        PayloadSearch::new(input, NOW).map_err(|error| error.to_string())
    }

    #[test]
    fn value_is_json_or_a_text() {
        let matches = |path: &str, value: &str, payload: &str| {
            search(path, value, None, None).unwrap().filter.matches(&Payload::new(payload.as_bytes()))
        };
        let payload = r#"{"order": {"id": "42", "n": 42, "open": true, "tags": ["a"], "none": null}}"#;
        assert!(matches("order.id", "\"42\"", payload) && matches("/order/n", "42.0", payload));
        assert!(!matches("order.id", "42", payload) && !matches("order.n", "\"42\"", payload));
        assert!(matches("order.open", "true", payload) && matches("order.tags[0]", "a", payload));
        assert!(matches("order.none", "null", payload) && !matches("order.missing", "null", payload));
        assert!(matches("$", "7", "7"));
    }

    #[test]
    fn invalid_search_names_its_field_and_the_limit() {
        for (path, value, from, to, field, part) in [
            ("a..b", "1", None, None, "path", "JSON pointer"),
            (&"/x".repeat(33), "1", None, None, "path", "at most 32"),
            (&"x".repeat(1_025), "1", None, None, "path", "1024 bytes"),
            ("/a~2", "1", None, None, "path", "~"),
            ("a", "{}", None, None, "value", "a string, a number"),
            ("a", "[1]", None, None, "value", "a string, a number"),
            ("a", "1", Some(8), None, "from", "at most 7 days"),
            ("a", "1", Some(20), Some(12), "from", "at most 7 days"),
            ("a", "1", Some(1), Some(2), "from", "before to"),
        ] {
            let error = search(path, value, from, to).unwrap_err();
            assert!(error.starts_with(field) && error.contains(part), "{error}");
        }
        let week = search("a", "1", Some(7), None).unwrap();
        assert_eq!((week.from, week.to > NOW), (Time::from_secs(1_700_000_000 - 7 * 24 * 3600), true));
        assert_eq!(
            search("a", "1", None, Some(3)).unwrap().from,
            search("a", "1", Some(10), Some(3)).unwrap().from
        );
    }

    #[test]
    fn concurrent_searches_are_limited_per_caller_and_node() {
        let searches = PayloadSearchLimiter::default();
        let key = |n: u8| Some(KeyId::from_bytes([n; 16]));
        let first = searches.begin(None).unwrap();
        assert_eq!(searches.begin(None).err(), Some(AppError::TooManySearches { here: false, max: 1 }));
        let _others: Vec<_> = (1..=3).map(|n| searches.begin(key(n)).unwrap()).collect();
        assert_eq!(searches.begin(key(9)).err(), Some(AppError::TooManySearches { here: true, max: 4 }));
        drop(first);
        assert!(searches.begin(key(9)).is_ok() && searches.begin(None).is_ok());
        let mut complete = searches.begin(None).unwrap();
        complete.end = SearchEnd::Complete;
        drop(complete);
        assert_eq!(searches.ended(), [("complete", 1), ("limited", 0), ("failed", 0), ("cancelled", 3)]);
    }
}
