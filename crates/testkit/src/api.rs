//! A small JSON client for Redrive's API. It panics if a response is not as expected, with the request and the
//! response in the message.

use std::{borrow::Borrow, net::SocketAddr, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Request};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};

use crate::WAIT_TIMEOUT;

const JSON: (&str, &str) = ("content-type", "application/json");
/// The polling interval of [`Api::wait_until`].
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A client for one address. Clones share their connections.
#[derive(Clone)]
pub struct Api {
    client: Client<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
    key: Option<String>,
}

impl Api {
    /// Creates a client that sends `key` as its bearer token.
    pub fn new(address: SocketAddr, key: &str) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Self { client, address, key: Some(key.to_owned()) }
    }

    /// Returns the same client with another key.
    pub fn with_key(&self, key: &str) -> Self {
        Self { key: Some(key.to_owned()), ..self.clone() }
    }

    /// Returns the same client without a key.
    pub fn without_key(&self) -> Self {
        Self { key: None, ..self.clone() }
    }

    /// Sends `GET path`.
    pub async fn get(&self, path: &str) -> ApiResponse {
        self.raw("GET", path, &[], "").await
    }

    /// Sends `POST path` with a JSON body.
    pub async fn post(&self, path: &str, body: impl Borrow<Value>) -> ApiResponse {
        self.raw("POST", path, &[JSON], body.borrow().to_string()).await
    }

    /// Sends `PUT path` with a JSON body.
    pub async fn put(&self, path: &str, body: impl Borrow<Value>) -> ApiResponse {
        self.raw("PUT", path, &[JSON], body.borrow().to_string()).await
    }

    /// Sends `PATCH path` with a JSON body.
    pub async fn patch(&self, path: &str, body: impl Borrow<Value>) -> ApiResponse {
        self.raw("PATCH", path, &[JSON], body.borrow().to_string()).await
    }

    /// Sends `DELETE path`.
    pub async fn delete(&self, path: &str) -> ApiResponse {
        self.raw("DELETE", path, &[], "").await
    }

    /// Sends any request. The key is added unless `headers` contain an `authorization` header.
    pub async fn raw(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> ApiResponse {
        self.try_raw(method, path, headers, body).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Sends `POST path`; returns an error instead of panicking if the server is unavailable.
    pub async fn try_post(&self, path: &str, body: impl Borrow<Value>) -> Result<ApiResponse, String> {
        self.try_raw("POST", path, &[JSON], body.borrow().to_string()).await
    }

    /// Sends any request; returns an error instead of panicking if the server is unavailable.
    pub async fn try_raw(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<ApiResponse, String> {
        let requested = format!("{method} {path}");
        let request = self.request(method, path, headers, body.into());
        let response = async { self.send(request?).await };
        match tokio::time::timeout(WAIT_TIMEOUT, response).await {
            Ok(Ok((status, headers, body))) => Ok(ApiResponse { status, headers, body, request: requested }),
            Ok(Err(error)) => Err(format!("{requested}: {error}")),
            Err(_) => Err(format!("{requested}: no response within {WAIT_TIMEOUT:?}")),
        }
    }

    fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, String> {
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let own_key = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization"));
        if let Some(key) = self.key.as_ref().filter(|_| !own_key) {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        request.body(Full::new(body)).map_err(|error| format!("cannot be sent: {error}"))
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<(u16, HeaderMap, Bytes), String> {
        let response = self.client.request(request).await.map_err(|error| chain(&error))?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.map_err(|error| chain(&error))?.to_bytes();
        Ok((head.status.as_u16(), head.headers, body))
    }

    /// Creates a webhook for every event at `url`; the fields of `extra` are added or take precedence.
    pub async fn create_webhook(&self, url: &str, extra: impl Borrow<Value>) -> Value {
        let mut webhook = json!({"url": url, "events": ["*"]});
        match extra.borrow() {
            Value::Object(extra) => webhook.as_object_mut().unwrap().extend(extra.clone()),
            Value::Null => {}
            other => panic!("the extra fields of a webhook are an object or null, not {other}"),
        }
        self.post("/v1/webhooks", webhook).await.expect(201)
    }

    /// Publishes an event, which must be accepted as new.
    pub async fn publish(&self, event_type: &str, data: impl Borrow<Value>) -> Value {
        let event = json!({"event_type": event_type, "data": data.borrow()});
        self.post("/v1/events", event).await.expect(202)
    }

    /// Polls `GET path` until it returns 2xx with JSON for which `condition` holds.
    ///
    /// Keeps polling while the server is unavailable. Panics after `WAIT_TIMEOUT` with the last response.
    pub async fn wait_until(&self, what: &str, path: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let started = tokio::time::Instant::now();
        loop {
            let response = self.try_raw("GET", path, &[], "").await;
            if let Some(value) = response.as_ref().ok().and_then(ApiResponse::good_json).filter(&condition) {
                return value;
            }
            if started.elapsed() > WAIT_TIMEOUT {
                let last = response.map_or_else(|error| error, |response| response.describe());
                panic!("not within {WAIT_TIMEOUT:?}: {what}; last response: {last}");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Formats an error with its causes, since the client's own message is only "client error (Connect)".
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// A response of the API.
#[derive(Clone, Debug)]
pub struct ApiResponse {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
    request: String,
}

impl ApiResponse {
    /// Parses the body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("expected JSON ({error}), but {}", self.describe()))
    }

    /// Returns the body as JSON, or null if it is empty. Panics if the status is another one.
    pub fn expect(&self, status: u16) -> Value {
        assert!(self.status == status, "expected {status}, but {}", self.describe());
        if self.body.is_empty() { Value::Null } else { self.json() }
    }

    /// Returns the `code` of a problem document.
    pub fn problem(&self) -> String {
        match self.json()["code"].as_str() {
            Some(code) => code.to_owned(),
            None => panic!("expected a problem with a code, but {}", self.describe()),
        }
    }

    /// Returns the first header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    fn good_json(&self) -> Option<Value> {
        let good = (200..300).contains(&self.status);
        good.then(|| serde_json::from_slice(&self.body).ok()).flatten()
    }

    fn describe(&self) -> String {
        format!("{} returned {}: {}", self.request, self.status, String::from_utf8_lossy(&self.body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Receiver, Reply};

    fn api(receiver: &Receiver) -> Api {
        let url = receiver.url();
        let address = url.trim_start_matches("http://").trim_end_matches("/webhook");
        Api::new(address.parse().unwrap(), "rdk_one")
    }

    #[tokio::test]
    async fn client_sends_methods_bodies_and_keys() {
        let receiver = Receiver::with(|_| Reply::status(200).body("{}")).await;
        let api = api(&receiver);
        let body = json!({"a": 1});
        api.get("/v1/a?b=c").await.expect(200);
        api.with_key("rdk_two").post("/p", &body).await.expect(200);
        api.without_key().put("/p", &body).await.expect(200);
        api.patch("/p", body).await.expect(200);
        api.delete("/p").await.expect(200);
        api.raw("POST", "/p", &[("Authorization", "Basic x")], vec![0xff]).await.expect(200);

        let arrivals = receiver.arrivals();
        let seen: Vec<_> = arrivals
            .iter()
            .map(|one| {
                (&*one.method, one.header("authorization"), one.header("content-type"), one.body.len())
            })
            .collect();
        let json = Some("application/json");
        assert_eq!(
            seen,
            [
                ("GET", Some("Bearer rdk_one"), None, 0),
                ("POST", Some("Bearer rdk_two"), json, 7),
                ("PUT", None, json, 7),
                ("PATCH", Some("Bearer rdk_one"), json, 7),
                ("DELETE", Some("Bearer rdk_one"), None, 0),
                ("POST", Some("Basic x"), None, 1),
            ]
        );
        assert_eq!(arrivals[0].path, "/v1/a?b=c");
    }

    #[tokio::test]
    async fn webhooks_and_events_are_created() {
        let receiver = Receiver::with(|arrival| match &*arrival.path {
            "/v1/webhooks" => Reply::status(201).body(arrival.body.clone()),
            _ => Reply::status(202).body(arrival.body.clone()),
        })
        .await;
        let api = api(&receiver);
        let webhook = api.create_webhook("http://x", json!({"events": ["a.*"], "max_in_flight": 1})).await;
        assert_eq!(webhook, json!({"url": "http://x", "events": ["a.*"], "max_in_flight": 1}));
        let webhook = api.create_webhook("http://x", Value::Null).await;
        assert_eq!(webhook, json!({"url": "http://x", "events": ["*"]}));
        let event = api.publish("order.created", json!({"n": 1})).await;
        assert_eq!(event, json!({"event_type": "order.created", "data": {"n": 1}}));
    }

    #[tokio::test]
    async fn wait_until_polls_until_condition_holds() {
        let receiver = Receiver::with(|arrival| match arrival.number {
            1 => Reply::status(404).body(r#"{"n": 3}"#),
            n => Reply::status(200).body(json!({ "n": n }).to_string()),
        })
        .await;
        let found = api(&receiver).wait_until("the third", "/", |value| value["n"] == 3).await;
        assert_eq!((found, receiver.count()), (json!({"n": 3}), 3));
    }

    #[tokio::test]
    async fn unavailable_server_is_an_error() {
        let receiver = Receiver::start().await;
        let api = api(&receiver);
        drop(receiver);
        tokio::task::yield_now().await;
        let error = api.try_post("/v1/events", json!({})).await.unwrap_err();
        assert!(error.starts_with("POST /v1/events: ") && error.contains("refused"), "{error}");
        let error = api.try_raw("GET", "/a b", &[], "").await.unwrap_err();
        assert!(error.contains("cannot be sent"), "{error}");
    }

    #[tokio::test]
    async fn problem_code_is_returned() {
        let receiver = Receiver::with(|_| Reply::status(404).body(r#"{"code": "not_found"}"#)).await;
        assert_eq!(api(&receiver).get("/").await.problem(), "not_found");
    }

    #[tokio::test]
    #[should_panic(expected = "expected 200, but GET /v1/x returned 418: short and stout")]
    async fn unexpected_status_panics_with_the_response() {
        let receiver = Receiver::with(|_| Reply::status(418).body("short and stout")).await;
        api(&receiver).get("/v1/x").await.expect(200);
    }
}
