//! Every request verifies with the official libraries and with plain HMAC, before, during and after a secret
//! rotation.

use std::{
    io::Write,
    process::{Command, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{HeaderMap, HeaderName, HeaderValue};
use redrive_testkit::{ReceivedRequest, Receiver, Redrive, Reply, python_with};
use redrive_tests::{id, millis, text, wait_for_event_status};
use serde_json::{Value, json};

/// Returns whether the official Rust library accepts a request with this secret.
fn accepted(secret: &str, arrival: &ReceivedRequest) -> bool {
    let header = |(name, value): &(String, String)| {
        (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap())
    };
    let headers: HeaderMap = arrival.headers.iter().map(header).collect();
    standardwebhooks::Webhook::new(secret).unwrap().verify(&arrival.body, &headers).is_ok()
}

/// Runs a Python program that reads requests as JSON and prints one line for each request.
fn python(packages: &[&str], program: &str, requests: &[(&str, &ReceivedRequest)]) -> Vec<String> {
    let input: Vec<Value> = requests
        .iter()
        .map(|(secret, arrival)| {
            let headers: serde_json::Map<_, _> =
                arrival.headers.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
            let body = std::str::from_utf8(&arrival.body).unwrap();
            json!({"secret": secret, "headers": headers, "body": body})
        })
        .collect();
    let mut child = Command::new(python_with(packages))
        .args(["-c", program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(json!(input).to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the Python program failed");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

const OFFICIAL: &str = "
import json, sys
from standardwebhooks.webhooks import Webhook, WebhookVerificationError
for request in json.load(sys.stdin):
    try:
        Webhook(request['secret']).verify(request['body'], request['headers'])
        print('accepted')
    except WebhookVerificationError as error:
        print('refused:', error)
";

/// Verifies both formats of X-Webhook-Signature with only the standard library.
const BY_HAND: &str = "
import base64, hashlib, hmac, json, sys
for request in json.load(sys.stdin):
    key = base64.b64decode(request['secret'].removeprefix('whsec_'))
    tag = lambda message: hmac.new(key, message.encode(), hashlib.sha256).hexdigest()
    header, body = request['headers']['x-webhook-signature'], request['body']
    if header.startswith('sha256='):
        good = header == 'sha256=' + tag(body)
    else:
        time, *tags = header.split(',')
        unix = time.removeprefix('t=')
        good = unix == request['headers']['webhook-timestamp'] and 'v1=' + tag(unix + '.' + body) in tags
    print('accepted' if good else 'refused')
";

#[tokio::test]
async fn requests_verify_with_the_official_libraries() {
    // Every attempt is signed separately, so the failing first one must verify as well.
    let receiver = Receiver::with(|arrival| Reply::status(if arrival.number == 1 { 500 } else { 200 })).await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let own = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let quick = json!({"schedule": [0, 0.02, 0.02]});
    let generated = api.create_webhook(&receiver.url_at("generated"), json!({"retry_config": quick})).await;
    let given =
        api.create_webhook(&receiver.url_at("given"), json!({"secret": own, "retry_config": quick})).await;
    assert_eq!(given["secret"], own);
    let plain = api.create_webhook(&receiver.url_at("plain"), json!({"payload_format": "data"})).await;
    let secret_of = |arrival: &ReceivedRequest| match &*arrival.path {
        "/generated" => text(&generated["secret"]).to_owned(),
        "/given" => own.to_owned(),
        _ => text(&plain["secret"]).to_owned(),
    };
    for data in [json!({"name": "Zoë ☃", "n": 1e300}), json!("text"), json!(null), json!([1, [2]])] {
        api.publish("order.created", data).await;
    }
    let arrivals = receiver.wait_for(13).await;

    let requests: Vec<_> = arrivals.iter().map(|arrival| (secret_of(arrival), arrival)).collect();
    for (secret, arrival) in &requests {
        assert!(accepted(secret, arrival), "{arrival:?}");
        assert!(!accepted("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", arrival), "{arrival:?}");
    }
    let requests: Vec<_> = requests.iter().map(|(secret, arrival)| (&**secret, *arrival)).collect();
    assert_eq!(python(&["standardwebhooks"], OFFICIAL, &requests), vec!["accepted"; 13]);
    assert_eq!(python(&[], BY_HAND, &requests), vec!["accepted"; 13]);

    // The secret is shown at creation and never again.
    for webhook in [&generated, &given] {
        let shown = api.get(&format!("/v1/webhooks/{}", id(webhook))).await;
        assert!(!String::from_utf8_lossy(&shown.body).contains("whsec_"), "{shown:?}");
    }
}

/// Verifies X-Webhook-Signature with the plain text as the key, as a receiver with a plain shared secret does.
const WITH_PLAIN_SECRET: &str = "
import hashlib, hmac, json, sys
for request in json.load(sys.stdin):
    header, body = request['headers']['x-webhook-signature'], request['body']
    tag = hmac.new(request['secret'].encode(), body.encode(), hashlib.sha256).hexdigest()
    print('accepted' if header == 'sha256=' + tag else 'refused')
";

#[tokio::test]
async fn plain_text_secret_verifies_with_plain_hmac_and_the_official_libraries() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let (plain, rotated) = ("a plain säcret text", "the next plain secret");
    let fields = json!({"secret": plain, "signature": {"header_format": "sha256"}});
    let webhook = api.create_webhook(&receiver.url(), fields).await;
    api.publish("order.created", json!({"a": "ö"})).await;
    let path = format!("/v1/webhooks/{}/rotate-secret", id(&webhook));
    receiver.wait_for(1).await;
    let shown = api.post(&path, json!({"secret": rotated, "overlap": 0})).await.expect(200);
    api.publish("order.created", json!({"a": 2})).await;
    let arrivals = receiver.wait_for(2).await;

    let by_plain_text = [(plain, &arrivals[0]), (rotated, &arrivals[1])];
    assert_eq!(python(&[], WITH_PLAIN_SECRET, &by_plain_text), ["accepted"; 2]);
    let swapped = [(rotated, &arrivals[0]), (plain, &arrivals[1])];
    assert_eq!(python(&[], WITH_PLAIN_SECRET, &swapped), ["refused"; 2]);
    // The libraries take the bytes in base64, which is what Redrive shows.
    let encoded = ["YSBwbGFpbiBzw6RjcmV0IHRleHQ=", "dGhlIG5leHQgcGxhaW4gc2VjcmV0"];
    assert_eq!(text(&webhook["secret"]), format!("whsec_{}", encoded[0]));
    assert_eq!(text(&shown["secret"]), format!("whsec_{}", encoded[1]));
    let by_base64 = [(encoded[0], &arrivals[0]), (encoded[1], &arrivals[1])];
    assert_eq!(python(&["standardwebhooks"], OFFICIAL, &by_base64), ["accepted"; 2]);
    assert!(by_base64.iter().all(|(secret, arrival)| accepted(secret, arrival)));
}

#[tokio::test]
async fn sha256_format_signs_only_the_body() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let config = json!({"signature": {"header_format": "sha256"}});
    let webhook = api.create_webhook(&receiver.url(), config).await;
    api.publish("order.created", json!({"a": [1, 2]})).await;
    let arrivals = receiver.wait_for(1).await;
    let header = arrivals[0].header("x-webhook-signature").unwrap();
    assert!(header.starts_with("sha256=") && header.len() == 7 + 64, "{header}");
    let requests = [(text(&webhook["secret"]), &arrivals[0])];
    assert_eq!(python(&[], BY_HAND, &requests), ["accepted"]);
    assert!(accepted(text(&webhook["secret"]), &arrivals[0]), "the standard header is sent too");
}

#[tokio::test]
async fn both_secrets_verify_during_rotation_and_only_the_new_after() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = api.create_webhook(&receiver.url(), Value::Null).await;
    let old = text(&webhook["secret"]);
    let path = format!("/v1/webhooks/{}/rotate-secret", id(&webhook));
    let rotated = api.post(&path, json!({"overlap": "2s"})).await.expect(200);
    let new = text(&rotated["secret"]);
    assert_ne!(old, new);
    let secrets = rotated["secrets"].as_array().unwrap();
    assert_eq!((secrets.len(), &secrets[0]["expires_at"]), (2, &Value::Null));
    let ends = millis(&secrets[1]["expires_at"]);

    let event = api.publish("order.created", json!({})).await;
    wait_for_event_status(&api, &event, "delivered").await;
    let during = receiver.arrivals().remove(0);
    assert_eq!(during.header("webhook-signature").unwrap().split(' ').count(), 2);
    assert!(accepted(old, &during) && accepted(new, &during));
    let both = [(old, &during), (new, &during)];
    assert_eq!(python(&["standardwebhooks"], OFFICIAL, &both), ["accepted"; 2]);
    assert_eq!(python(&[], BY_HAND, &both), ["accepted"; 2]);

    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    tokio::time::sleep(Duration::from_millis(ends.unsigned_abs() + 5).saturating_sub(now)).await;
    let event = api.publish("order.created", json!({})).await;
    wait_for_event_status(&api, &event, "delivered").await;
    let after = receiver.arrivals().remove(1);
    assert_eq!(after.header("webhook-signature").unwrap().split(' ').count(), 1);
    assert!(!accepted(old, &after) && accepted(new, &after));
    assert_eq!(python(&[], BY_HAND, &[(old, &after), (new, &after)]), ["refused", "accepted"]);
}

#[tokio::test]
async fn rotation_without_overlap_expires_the_old_secret_immediately() {
    let receiver = Receiver::start().await;
    let mut redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = api.create_webhook(&receiver.url(), Value::Null).await;
    let own = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    let path = format!("/v1/webhooks/{}/rotate-secret", id(&webhook));
    let rotated = api.post(&path, json!({"overlap": 0, "secret": own})).await.expect(200);
    assert_eq!(rotated["secret"], own);
    assert_eq!(api.post(&path, json!({"secret": own})).await.status, 400, "a secret in use is no rotation");
    assert_eq!(api.post(&path, json!({"secret": "whsec_c2hvcnQ="})).await.status, 400, "too short");
    // The new secret is stored too.
    redrive.restart().await;
    redrive.api().publish("order.created", json!({})).await;
    let arrival = receiver.wait_for(1).await.remove(0);
    assert!(accepted(own, &arrival) && !accepted(text(&webhook["secret"]), &arrival));
}
