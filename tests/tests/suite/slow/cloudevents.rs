//! CloudEvents in and out, checked with the official Python SDK: what it reads, and what it writes.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use http::{HeaderMap, HeaderName, HeaderValue};
use redrive_testkit::{Api, ApiResponse, ReceivedRequest, Receiver, Redrive, Reply, python_with};
use redrive_tests::{attempts_of, column, delivery_of, entries, id, text, wait_for_status};
use serde_json::{Value, json};

const SDK: [&str; 1] = ["cloudevents==2.2.0"];

/// Runs a Python program with the SDK that reads JSON and prints JSON.
async fn sdk(program: &'static str, input: Value) -> Value {
    let request = tokio::task::spawn_blocking(move || {
        let mut child = Command::new(python_with(&SDK))
            .args(["-c", program])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.to_string().as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "the Python program failed");
        serde_json::from_slice(&output.stdout).unwrap()
    });
    request.await.unwrap()
}

/// Parses requests as events.
const READ: &str = "
import json, sys
from cloudevents.core.bindings.http import HTTPMessage, from_http
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
events = []
for request in json.load(sys.stdin):
    event = from_http(HTTPMessage(request['headers'], request['body'].encode()), JSONFormat(), CloudEvent)
    attributes = {name: str(value) for name, value in event.get_attributes().items()}
    events.append({'attributes': attributes, 'data': event.get_data()})
json.dump(events, sys.stdout)
";

/// Writes events as requests, in both modes.
const WRITE: &str = "
import json, sys
from datetime import datetime, timezone
from cloudevents.core.bindings.http import to_binary, to_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
requests = []
for event in json.load(sys.stdin):
    attributes = event['attributes']
    attributes['time'] = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    event = CloudEvent(attributes, event['data'])
    for write in (to_structured, to_binary):
        message = write(event, JSONFormat())
        requests.append({'headers': message.headers, 'body': message.body.decode()})
json.dump(requests, sys.stdout)
";

fn request(arrival: &ReceivedRequest) -> Value {
    let headers: serde_json::Map<_, _> =
        arrival.headers.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    json!({"headers": headers, "body": std::str::from_utf8(&arrival.body).unwrap()})
}

async fn read_by_sdk(arrivals: &[ReceivedRequest]) -> Vec<Value> {
    sdk(READ, arrivals.iter().map(request).collect()).await.as_array().unwrap().clone()
}

fn accepted(secret: &str, arrival: &ReceivedRequest) -> bool {
    let header = |(name, value): &(String, String)| {
        (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap())
    };
    let headers: HeaderMap = arrival.headers.iter().map(header).collect();
    standardwebhooks::Webhook::new(secret).unwrap().verify(&arrival.body, &headers).is_ok()
}

#[tokio::test]
async fn cloudevents_headers_are_reserved() {
    let redrive = Redrive::start().await;
    let webhook = json!({"url": "https://example.com/", "events": ["*"], "headers": {"Ce-Source": "mine"}});
    let refused = redrive.api().post("/v1/webhooks", webhook).await.expect(400);
    assert_eq!(refused["field"], "headers.ce-source");
}

async fn send(api: &Api, path: &str, request: &Value) -> ApiResponse {
    let headers: Vec<_> =
        request["headers"].as_object().unwrap().iter().map(|(name, value)| (&**name, text(value))).collect();
    api.raw("POST", path, &headers, text(&request["body"]).to_owned()).await
}

#[tokio::test]
async fn invalid_cloudevents_are_rejected_with_their_field() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let structured = async |body: Value| {
        api.raw("POST", "/v1/events", &[("content-type", "application/cloudevents+json")], body.to_string())
            .await
    };
    let event = json!({"specversion": "1.0", "id": "1", "source": "/s", "type": "a.b"});
    let with = |name: &str, value: Value| {
        let mut event = event.clone();
        event[name] = value;
        event
    };
    for (name, value) in [
        ("specversion", json!("2.0")),
        ("id", json!("")),
        ("source", json!("")),
        ("type", json!("a b")),
        ("time", json!("now")),
        ("datacontenttype", json!("text/xml")),
        ("data_base64", json!("aGk=")),
        ("Extension", json!("x")),
    ] {
        assert_eq!(structured(with(name, value)).await.expect(400)["field"], name);
    }
    assert_eq!(structured(json!([])).await.problem(), "invalid_json");
    structured(with("data", Value::Null)).await.expect(202);
    // Source and id are the idempotency key: the same key with another payload is a conflict.
    assert_eq!(structured(with("data", json!(1))).await.problem(), "idempotency_key_reused");

    let ce = [("ce-specversion", "1.0"), ("ce-id", "2"), ("ce-source", "/s"), ("ce-type", "a.b")];
    api.raw("POST", "/v1/events", &ce, "").await.expect(202);
    let bad = [("ce-specversion", "1.0"), ("ce-id", "%ff"), ("ce-source", "/s"), ("ce-type", "a.b")];
    assert_eq!(api.raw("POST", "/v1/events", &bad, "1").await.expect(400)["field"], "ce-id");
    assert_eq!(api.raw("POST", "/v1/events", &ce, "{").await.problem(), "invalid_json");
    let xml: Vec<_> = ce.into_iter().chain([("content-type", "text/xml")]).collect();
    api.raw("POST", "/v1/events", &xml, "1").await.expect(415);
    for (path, kind) in [
        ("/v1/events", "application/cloudevents-batch+json"),
        ("/v1/events/batch", "application/cloudevents+json"),
    ] {
        let lost = api.raw("POST", path, &[("content-type", kind)], event.to_string()).await;
        assert_eq!((lost.status, lost.problem()), (415, "unsupported_media_type".to_owned()));
    }
    // An admin names the tenant in the query string.
    api.post("/v1/tenants", json!({"id": "acme"})).await.expect(201);
    let headers = [("content-type", "application/cloudevents+json")];
    let made = api.raw("POST", "/v1/events?tenant_id=acme", &headers, event.to_string()).await.expect(202);
    api.get(&format!("/v1/events/{}?tenant_id=acme", id(&made))).await.expect(200);
}

mod extended {
    use super::*;

    #[tokio::test]
    async fn events_written_by_the_sdk_are_published() {
        let receiver = Receiver::start().await;
        let redrive = Redrive::start().await;
        let api = redrive.api();
        api.create_webhook(&receiver.url(), json!({"payload_format": "cloudevents_binary"})).await;
        let event = |number: u32, data: Value| {
            let attributes = json!({
                "type": "com.example.order", "source": format!("/shop/{number}"), "id": "same everywhere ☃", "subject": "ö 1",
                "datacontenttype": "application/json", "comexampletrace": "a b", "number": number.to_string(),
            });
            json!({"attributes": attributes, "data": data})
        };
        let data = json!({"name": "Zoë", "list": [1, 2.5]});
        let bare = json!({"attributes": {"type": "com.example.bare", "source": "/bare", "id": "1"}, "data": {"n": 1}});
        let written = sdk(WRITE, json!([event(1, data.clone()), event(2, json!({})), bare])).await;
        let written = written.as_array().unwrap();

        // An event in both modes is the same event; the same id from another source is another event.
        let first = send(&api, "/v1/events", &written[0]).await.expect(202);
        let again = send(&api, "/v1/events", &written[1]).await.expect(200);
        assert_eq!((&again["id"], &again["duplicate"]), (&first["id"], &json!(true)));
        let second = send(&api, "/v1/events", &written[3]).await.expect(202);
        assert_ne!(second["id"], first["id"]);
        assert_eq!(send(&api, "/v1/events", &written[2]).await.expect(200)["id"], second["id"]);
        let third = send(&api, "/v1/events", &written[5]).await.expect(202);

        let stored = api.get(&format!("/v1/events/{}", id(&first))).await.expect(200);
        assert_eq!(
            (&stored["event_type"], &stored["source"]),
            (&json!("com.example.order"), &json!("/shop/1"))
        );
        assert_eq!((&stored["subject"], &stored["data"]), (&json!("ö 1"), &data));
        assert_eq!(stored["idempotency_key"], "ce:/shop/1 same everywhere ☃");
        assert_eq!(
            stored["metadata"],
            json!({"cloudevents_id": "same everywhere ☃", "cloudevents_time": "2026-01-02T03:04:05Z", "comexampletrace": "a b", "number": "1"})
        );
        let arrivals = receiver.wait_for(3).await;
        for (arrival, event) in arrivals.iter().zip(read_by_sdk(&arrivals).await) {
            let (source, data) = match arrival.webhook_id() {
                one if one == id(&first) => ("/shop/1", data.clone()),
                two if two == id(&second) => ("/shop/2", json!({})),
                three => (if three == id(&third) { "/bare" } else { "" }, json!({"n": 1})),
            };
            assert_eq!((&event["attributes"]["source"], &event["data"]), (&json!(source), &data));
        }

        // A batch, whose items are validated separately. The repeated item has the same bytes.
        let body = text(&written[0]["body"]);
        let broken = body.replace("\"1.0\"", "\"0.3\"");
        let fresh = body.replace("same everywhere", "fresh");
        assert!(broken != body && fresh != body);
        let batch = format!(r#"[{body}, {broken}, {fresh}, {{"no": "event"}}, 7]"#);
        let headers = [("content-type", "application/cloudevents-batch+json; charset=utf-8")];
        let judged = api.raw("POST", "/v1/events/batch", &headers, batch).await.expect(202);
        let judged = entries(&judged);
        assert_eq!(column(&judged, "status"), [200, 400, 202, 400, 400]);
        assert_eq!(judged[1]["error"]["field"], "specversion");
        delivery_of(&api, &judged[2]).await;
    }

    #[tokio::test]
    async fn sdk_reads_both_modes_on_every_attempt() {
        // The first attempt of each delivery fails, so that there is a second one, read from the store.
        let receiver = Receiver::with(|arrival| match arrival.header("x-webhook-attempt") {
            Some("1") => Reply::status(500),
            _ => Reply::status(200),
        })
        .await;
        let redrive = Redrive::start().await;
        let api = redrive.api();
        let quick = json!({"schedule": [0, 0.05]});
        let mut secrets = Vec::new();
        for format in ["cloudevents", "cloudevents_binary"] {
            let webhook = json!({"payload_format": format, "retry_config": quick, "events": ["order.*"]});
            let webhook = api.create_webhook(&receiver.url_at(format), webhook).await;
            assert_eq!(webhook["payload_format"], format);
            secrets.push((format!("/{format}"), text(&webhook["secret"]).to_owned()));
        }
        let data = json!({"name": "Zoë ☃", "n": 1e300, "deep": [[1, null]]});
        let full = json!({"event_type": "order.created", "data": data, "source": "the shop", "subject": "100% \"süß\""});
        let full = api.post("/v1/events", full).await.expect(202);
        let bare = api.publish("order.paid", json!(null)).await;
        let arrivals = receiver.wait_for(8).await;

        for arrival in &arrivals {
            let (_, secret) = secrets.iter().find(|(path, _)| **path == *arrival.path).unwrap();
            assert!(accepted(secret, arrival), "{arrival:?}");
            let content_type = if &*arrival.path == "/cloudevents" {
                "application/cloudevents+json"
            } else {
                "application/json"
            };
            assert_eq!(arrival.header("content-type"), Some(content_type));
            let same = |other: &&ReceivedRequest| {
                other.path == arrival.path && other.webhook_id() == arrival.webhook_id()
            };
            let bodies: Vec<_> = arrivals.iter().filter(same).map(|other| &other.body).collect();
            assert_eq!(bodies.len(), 2, "two attempts");
            assert_eq!(bodies[0], bodies[1], "and the same bytes");
        }
        for (arrival, event) in arrivals.iter().zip(read_by_sdk(&arrivals).await) {
            let attributes = &event["attributes"];
            assert_eq!(attributes["id"], arrival.webhook_id());
            assert_eq!(
                (&attributes["specversion"], &attributes["datacontenttype"]),
                (&json!("1.0"), &json!("application/json"))
            );
            if attributes["id"] == full["id"] {
                assert_eq!(
                    (&attributes["type"], &attributes["source"]),
                    (&json!("order.created"), &json!("the%20shop"))
                );
                assert_eq!((&attributes["subject"], &event["data"]), (&json!("100% \"süß\""), &data));
            } else {
                assert_eq!((&attributes["id"], &attributes["type"]), (&bare["id"], &json!("order.paid")));
                assert_eq!((&attributes["source"], attributes.get("subject")), (&json!("urn:redrive"), None));
                assert_eq!(event["data"], Value::Null);
            }
            let published = if attributes["id"] == full["id"] { &full } else { &bare };
            let seconds = |time: &Value| text(time).replace('T', " ")[..19].to_owned();
            assert_eq!(seconds(&attributes["time"]), seconds(&published["timestamp"]));
        }

        // The history has the request that was sent.
        for delivery in entries(&api.get(&format!("/v1/events/{}/deliveries", id(&full))).await.expect(200)) {
            wait_for_status(&api, id(&delivery), "delivered").await;
            let attempt = attempts_of(&api, id(&delivery)).await.remove(1);
            let sent = attempt["request_headers"].as_array().unwrap();
            let value = |name: &str| {
                sent.iter()
                    .filter(|one| one["name"] == name)
                    .map(|one| text(&one["value"]).to_owned())
                    .collect::<Vec<_>>()
            };
            match &*value("content-type")[0] {
                "application/json" => assert_eq!(value("ce-source"), ["the%2520shop"]),
                other => assert_eq!((other, value("ce-id").len()), ("application/cloudevents+json", 0)),
            }
            assert_eq!(value("content-type").len(), 1);
        }
    }
}
