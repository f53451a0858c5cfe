//! Every way by which a request can leave Redrive, tried with any URL. A new way out is one more line in
//! [`Way::ALL`] and in [`Way::send`], and is then tried with everything that the others are.

use redrive_testkit::{Api, Receiver, Setup};
use serde_json::{Value, json};

use crate::{attempts_of, column, delivery_of, delivery_when, id, text};

/// The one thing that a tenant is told, whatever is or is not at the address.
pub const REFUSED: &str = "the URL's host, port or address is one that requests may not go to";
/// What a tenant sees of a name that does not exist, is denied, or resolves to a refused address.
pub const NO_SUCH_NAME: &str = "the URL's host name has no address";
/// What a tenant sees where plain http is off.
pub const HTTPS_ONLY: &str = "this installation sends to https:// only; change the webhook's URL";

/// A way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// An event that was published, and its retries.
    Delivery,
    /// A test event.
    TestEvent,
    /// A challenge that the endpoint is to echo.
    Challenge,
}

/// What became of an attempt to have a URL called.
#[derive(Clone, Debug)]
pub enum Called {
    /// The URL was not taken in the first place; this was said.
    NotTaken(String),
    /// It was tried and failed: the delivery, and its attempts.
    Failed(Value, Vec<Value>),
    /// It was tried and failed; its owner is told this.
    NotVerified(String),
    /// Somebody answered 2xx.
    Reached,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Delivery, Self::TestEvent, Self::Challenge];

    /// Has a URL called this way, alone, so many times at the most and without waits of our own in between,
    /// and tells what became of it.
    pub async fn call(self, api: &Api, url: &str, tries: usize) -> Called {
        match register(api, url, tries).await {
            Err(said) => Called::NotTaken(said),
            Ok(webhook) => {
                let called = self.send(api, &webhook).await;
                api.delete(&format!("/v1/webhooks/{}", id(&webhook))).await.expect(204);
                called
            }
        }
    }

    /// Has a registered webhook called this way.
    pub async fn send(self, api: &Api, webhook: &Value) -> Called {
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
        let delivery = delivery_when(api, id(&delivery), &what, over).await;
        match text(&delivery["status"]) {
            "delivered" => Called::Reached,
            _ => {
                let attempts = attempts_of(api, id(&delivery)).await;
                Called::Failed(delivery, attempts)
            }
        }
    }
}

async fn challenge(api: &Api, webhook: &Value) -> Called {
    let path = format!("/v1/webhooks/{}", id(webhook));
    api.post(&format!("{path}/verify"), json!({})).await.expect(200);
    let asked =
        |webhook: &Value| !webhook["verification"]["last_error"].is_null() || webhook["state"] == "active";
    let webhook = api.eventually("it was asked for an echo", &path, asked).await;
    // Whatever came of it, other ways are open again.
    api.patch(&path, json!({"verify_url": false})).await.expect(200);
    match webhook["verification"]["last_error"].as_str() {
        Some(said) if !said.starts_with("the endpoint answered 2") => Called::NotVerified(said.to_owned()),
        _ => Called::Reached,
    }
}

/// Registers a webhook that is tried so many times, or tells what was said against its URL.
pub async fn register(api: &Api, url: &str, tries: usize) -> Result<Value, String> {
    let schedule = vec![0; tries];
    let webhook = json!({"url": url, "events": ["*"], "retry_config": {"schedule": schedule}});
    let answer = api.post("/v1/webhooks", webhook).await;
    if answer.status == 400 {
        let problem = answer.json();
        assert_eq!(problem["field"], "url", "{url}: {problem}");
        return Err(text(&problem["detail"]).to_owned());
    }
    Ok(answer.expect(201))
}

/// The production profile; http so that the address alone is what is refused.
pub fn production() -> Setup {
    Setup::new().command("serve").env("REDRIVE_EGRESS_ALLOW_HTTP", "true")
}

/// The port of a receiver.
pub fn port_of(receiver: &Receiver) -> u16 {
    receiver.url().rsplit(':').next().unwrap().trim_end_matches("/hook").parse().unwrap()
}

/// Checks that a URL is refused on every way out: at the door, or three times and then dead.
pub async fn is_refused(api: &Api, url: &str) {
    for way in Way::ALL {
        let called = way.call(api, url, 5).await;
        if !matches!(called, Called::NotTaken(_)) {
            was_refused(way, url, called);
        }
    }
}

/// Checks that a URL whose host is a name is refused on every path, exactly as if the name did not exist.
pub async fn is_unknown_name(api: &Api, url: &str) {
    for way in Way::ALL {
        let called = way.call(api, url, 1).await;
        was_unknown_name(way, url, called);
    }
}

/// Checks that the only attempt of a delivery failed as one to a name that does not exist.
pub fn was_unknown_name(way: Way, url: &str, called: Called) {
    let (delivery, attempts) = match called {
        Called::Failed(delivery, attempts) => (delivery, attempts),
        Called::NotVerified(error) => return assert_eq!(error, NO_SUCH_NAME, "{way:?} to {url}"),
        called => panic!("{way:?} to {url}: {called:?}"),
    };
    let ended = (&delivery["status"], &delivery["dead_reason"], &delivery["attempt_count"]);
    assert_eq!(ended, (&json!("dead"), &json!("exhausted"), &json!(1)), "{way:?} to {url}: {delivery:#}");
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

/// Checks that an attempt was refused in the words that are the same for all.
pub fn was_refused(way: Way, url: &str, called: Called) {
    was_refused_as(way, url, called, REFUSED);
}

/// Checks that an attempt was refused with this message.
pub fn was_refused_as(way: Way, url: &str, called: Called, message: &str) {
    let (delivery, attempts) = match called {
        Called::Failed(delivery, attempts) => (delivery, attempts),
        Called::NotVerified(said) => {
            return assert_eq!(said, message, "{way:?} to {url}: the same words for all");
        }
        called => panic!("{way:?} to {url}: {called:?}"),
    };
    let told = (&delivery["status"], &delivery["dead_reason"], &delivery["attempt_count"]);
    assert_eq!(
        told,
        (&json!("dead"), &json!("blocked_address"), &json!(3)),
        "{way:?} to {url}: {delivery:#}"
    );
    assert_eq!(delivery["likely_recoverable"], false, "{url}");
    assert_eq!(column(&attempts, "status"), ["failed", "failed", "exhausted"], "{url}");
    for attempt in &attempts {
        assert_eq!(attempt["failure_category"], "blocked_address", "{url}");
        assert_eq!(attempt["error_message"], message, "{url}: the same words for all");
        assert_eq!(attempt["http_status_code"], Value::Null, "{url}");
        assert_eq!(attempt["connect_ms"], Value::Null, "{url}: nothing was dialled");
    }
}

/// Checks that a URL is not reached on any way out, for whatever reason, and nothing was dialled for it.
pub async fn is_not_reached(api: &Api, url: &str) {
    for way in Way::ALL {
        match way.call(api, url, 1).await {
            Called::NotTaken(_) | Called::NotVerified(_) => {}
            Called::Reached => panic!("{way:?} reached {url:?}"),
            Called::Failed(_, attempts) => {
                assert!(!attempts.is_empty(), "{way:?} to {url:?}");
                let dialled = attempts.iter().any(|attempt| attempt["connect_ms"] != Value::Null);
                assert!(!dialled, "{way:?} to {url:?}: {attempts:#?}");
            }
        }
    }
}

/// Checks that a URL is reached on every way out, once on each.
pub async fn is_reached(api: &Api, url: &str) {
    for way in Way::ALL {
        let called = way.call(api, url, 1).await;
        assert!(matches!(called, Called::Reached), "{way:?} to {url}: {called:?}");
    }
}
