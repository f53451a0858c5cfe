//! Every path by which a request can leave Redrive, tested with any URL. A new path is one more line in
//! [`EgressPath::ALL`] and in [`EgressPath::send`], and all tests then cover it.

use redrive_testkit::{Api, Receiver, Setup};
use serde_json::{Value, json};

use crate::{attempts_of, column, delivery_of, id, text, wait_for_delivery};

/// The one message that a tenant gets for a refused URL, whatever is or is not at the address.
pub const REFUSAL_TEXT: &str = "the URL's host, port or address is blocked";
/// The message that a tenant gets for a name that does not exist, is denied, or resolves to a refused address.
pub const NO_SUCH_NAME: &str = "the URL's host name has no address";
/// The message that a tenant gets if plain http is off.
pub const HTTPS_ONLY: &str = "this installation sends to https:// only; change the webhook's URL";

/// A path by which a request can leave Redrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EgressPath {
    /// A published event, and its retries.
    Delivery,
    /// A test event.
    TestEvent,
    /// A challenge that the endpoint must echo.
    Challenge,
}

/// The result of making Redrive call a URL.
#[derive(Clone, Debug)]
pub enum CallResult {
    /// The webhook could not be created with this URL; the message of the response.
    UrlRejected(String),
    /// The delivery failed: the delivery, and its attempts.
    Failed(Value, Vec<Value>),
    /// The challenge failed: the error that the owner sees.
    NotVerified(String),
    /// The endpoint responded with 2xx.
    Reached,
}

impl EgressPath {
    /// All paths.
    pub const ALL: [Self; 3] = [Self::Delivery, Self::TestEvent, Self::Challenge];

    /// Makes Redrive call a URL on this path, from a new webhook with at most `tries` attempts and no retry delay, and
    /// returns the result.
    pub async fn call(self, api: &Api, url: &str, tries: usize) -> CallResult {
        match register(api, url, tries).await {
            Err(message) => CallResult::UrlRejected(message),
            Ok(webhook) => {
                let called = self.send(api, &webhook).await;
                api.delete(&format!("/v1/webhooks/{}", id(&webhook))).await.expect(204);
                called
            }
        }
    }

    /// Makes Redrive call an existing webhook on this path.
    pub async fn send(self, api: &Api, webhook: &Value) -> CallResult {
        let event = match self {
            Self::Delivery => api.publish("order.created", json!({})).await,
            Self::TestEvent => {
                api.post(&format!("/v1/webhooks/{}/test", id(webhook)), json!({})).await.expect(202)
            }
            Self::Challenge => return challenge(api, webhook).await,
        };
        let delivery = delivery_of(api, &event).await;
        let over = |delivery: &Value| delivery["status"] != "pending" && delivery["status"] != "in_flight";
        let what = format!("the end of {self:?} to {}", webhook["url"]);
        let delivery = wait_for_delivery(api, id(&delivery), &what, over).await;
        match text(&delivery["status"]) {
            "delivered" => CallResult::Reached,
            _ => {
                let attempts = attempts_of(api, id(&delivery)).await;
                CallResult::Failed(delivery, attempts)
            }
        }
    }
}

async fn challenge(api: &Api, webhook: &Value) -> CallResult {
    let path = format!("/v1/webhooks/{}", id(webhook));
    api.post(&format!("{path}/verify"), json!({})).await.expect(200);
    let request =
        |webhook: &Value| !webhook["verification"]["last_error"].is_null() || webhook["state"] == "active";
    let webhook = api.wait_until("the challenge was sent", &path, request).await;
    // Ends the verification whatever its result, so that the other paths work again.
    api.patch(&path, json!({"verify_url": false})).await.expect(200);
    match webhook["verification"]["last_error"].as_str() {
        Some(message) if !message.starts_with("the endpoint returned 2") => {
            CallResult::NotVerified(message.to_owned())
        }
        _ => CallResult::Reached,
    }
}

/// Creates a webhook with `tries` attempts, or returns the message that rejects its URL.
pub async fn register(api: &Api, url: &str, tries: usize) -> Result<Value, String> {
    let schedule = vec![0; tries];
    let webhook = json!({"url": url, "events": ["*"], "retry_config": {"schedule": schedule}});
    let response = api.post("/v1/webhooks", webhook).await;
    if response.status == 400 {
        let problem = response.json();
        assert_eq!(problem["field"], "url", "{url}: {problem}");
        return Err(text(&problem["detail"]).to_owned());
    }
    Ok(response.expect(201))
}

/// Returns the production profile with http allowed, so that only the address can be refused.
pub fn production() -> Setup {
    Setup::new().command("serve").env("REDRIVE_EGRESS_ALLOW_HTTP", "true")
}

/// Returns the port of a receiver.
pub fn port_of(receiver: &Receiver) -> u16 {
    receiver.url().rsplit(':').next().unwrap().trim_end_matches("/webhook").parse().unwrap()
}

/// Asserts that a URL is refused on every path: when the webhook is created, or by three attempts and then dead.
pub async fn assert_refused(api: &Api, url: &str) {
    for path in EgressPath::ALL {
        let called = path.call(api, url, 5).await;
        if !matches!(called, CallResult::UrlRejected(_)) {
            assert_refusal_text(path, url, called);
        }
    }
}

/// Asserts that a URL whose host is a name is refused on every path exactly as if the name did not exist.
pub async fn is_unknown_name(api: &Api, url: &str) {
    for path in EgressPath::ALL {
        let called = path.call(api, url, 1).await;
        was_unknown_name(path, url, called);
    }
}

/// Asserts that the only attempt of a delivery failed as one to a name that does not exist.
pub fn was_unknown_name(path: EgressPath, url: &str, called: CallResult) {
    let (delivery, attempts) = match called {
        CallResult::Failed(delivery, attempts) => (delivery, attempts),
        CallResult::NotVerified(error) => return assert_eq!(error, NO_SUCH_NAME, "{path:?} to {url}"),
        called => panic!("{path:?} to {url}: {called:?}"),
    };
    let ended = (&delivery["status"], &delivery["dead_reason"], &delivery["attempt_count"]);
    assert_eq!(ended, (&json!("dead"), &json!("exhausted"), &json!(1)), "{path:?} to {url}: {delivery:#}");
    assert_eq!(delivery["failure_category"], "dns", "{url}");
    assert_eq!(delivery["likely_recoverable"], true, "{url}");
    for attempt in &attempts {
        assert_eq!(attempt["failure_category"], "dns", "{url}");
        assert_eq!(attempt["error_message"], NO_SUCH_NAME, "{url}");
        assert!(attempt["dns_ms"].as_f64().is_some_and(|millis| millis >= 99.0), "{url}: {attempt:#}");
        for phase in ["http_status_code", "connect_ms", "tls_ms", "ttfb_ms"] {
            assert_eq!(attempt[phase], Value::Null, "{url}: {phase}");
        }
    }
}

/// Asserts that an attempt was refused with the uniform message.
pub fn assert_refusal_text(path: EgressPath, url: &str, called: CallResult) {
    was_refused_as(path, url, called, REFUSAL_TEXT);
}

/// Asserts that an attempt was refused with this message.
pub fn was_refused_as(path: EgressPath, url: &str, called: CallResult, message: &str) {
    let (delivery, attempts) = match called {
        CallResult::Failed(delivery, attempts) => (delivery, attempts),
        CallResult::NotVerified(text) => {
            return assert_eq!(text, message, "{path:?} to {url}: the message is the same for all");
        }
        called => panic!("{path:?} to {url}: {called:?}"),
    };
    let reported = (&delivery["status"], &delivery["dead_reason"], &delivery["attempt_count"]);
    assert_eq!(
        reported,
        (&json!("dead"), &json!("blocked_address"), &json!(3)),
        "{path:?} to {url}: {delivery:#}"
    );
    assert_eq!(delivery["likely_recoverable"], false, "{url}");
    assert_eq!(column(&attempts, "status"), ["failed", "failed", "exhausted"], "{url}");
    for attempt in &attempts {
        assert_eq!(attempt["failure_category"], "blocked_address", "{url}");
        assert_eq!(attempt["error_message"], message, "{url}: the message is the same for all");
        assert_eq!(attempt["http_status_code"], Value::Null, "{url}");
        assert_eq!(attempt["connect_ms"], Value::Null, "{url}: no connection was opened");
    }
}

/// Asserts that a URL is not reached on any path, for whatever reason, and that no connection was attempted.
pub async fn assert_not_reached(api: &Api, url: &str) {
    for path in EgressPath::ALL {
        match path.call(api, url, 1).await {
            CallResult::UrlRejected(_) | CallResult::NotVerified(_) => {}
            CallResult::Reached => panic!("{path:?} reached {url:?}"),
            CallResult::Failed(_, attempts) => {
                assert!(!attempts.is_empty(), "{path:?} to {url:?}");
                let dialled = attempts.iter().any(|attempt| attempt["connect_ms"] != Value::Null);
                assert!(!dialled, "{path:?} to {url:?}: {attempts:#?}");
            }
        }
    }
}

/// Asserts that a URL is reached once on every path.
pub async fn assert_reached(api: &Api, url: &str) {
    for path in EgressPath::ALL {
        let called = path.call(api, url, 1).await;
        assert!(matches!(called, CallResult::Reached), "{path:?} to {url}: {called:?}");
    }
}
