//! Attempts across deliveries: the listing with its filters, lookup by id, and the page of a webhook.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use redrive_testkit::{Api, Browser, Receiver, Redrive, Reply};
use serde_json::{Value, json};

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn rows(page: &Value) -> &[Value] {
    page["data"].as_array().map_or(&[], Vec::as_slice)
}

fn statuses(page: &Value) -> Vec<&str> {
    rows(page).iter().map(|attempt| text(&attempt["status"])).collect()
}

/// Publishes an event, and waits until its delivery has ended.
async fn publish_and_wait(api: &Api, event_type: &str) -> Value {
    let event = api.publish(event_type, json!({})).await;
    let ended = |page: &Value| ["delivered", "dead"].contains(&text(&page["data"][0]["status"]));
    let path = format!("/v1/deliveries?event_id={}", text(&event["id"]));
    api.wait_until("an ended delivery", &path, ended).await["data"][0].clone()
}

/// A server with a healthy webhook, one that succeeds at the second attempt, and one that refuses everything.
struct Fixture {
    redrive: Redrive,
    api: Api,
    healthy: Value,
    flaky: Value,
    refusing: Value,
    dead: Value,
    _receivers: [Receiver; 3],
}

impl Fixture {
    async fn start() -> Self {
        let redrive = Redrive::start().await;
        let api = redrive.api();
        let requests = AtomicUsize::new(0);
        let receivers = [
            Receiver::with(|_| Reply::status(200)).await,
            Receiver::with(move |_| match requests.fetch_add(1, SeqCst) % 2 {
                0 => Reply::status(503),
                _ => Reply::status(204),
            })
            .await,
            Receiver::with(|_| Reply::status(410).body("gone")).await,
        ];
        let subscribe = async |receiver: &Receiver, event_type: &str| {
            let retry_config = json!({"schedule": [0, 0], "jitter": 0});
            let extra = json!({"events": [event_type], "retry_config": retry_config});
            api.create_webhook(&receiver.url(), extra).await
        };
        let healthy = subscribe(&receivers[0], "healthy").await;
        let flaky = subscribe(&receivers[1], "flaky").await;
        let refusing = subscribe(&receivers[2], "refused").await;
        publish_and_wait(&api, "healthy").await;
        publish_and_wait(&api, "flaky").await;
        let dead = publish_and_wait(&api, "refused").await;
        Self { redrive, api, healthy, flaky, refusing, dead, _receivers: receivers }
    }

    async fn list(&self, query: &str) -> Value {
        self.api.get(&format!("/v1/attempts?{query}")).await.expect(200)
    }
}

#[tokio::test]
async fn attempts_are_listed_by_webhook_status_category_code_and_time() {
    let fixture = Fixture::start().await;
    let [healthy, flaky, refusing] =
        [&fixture.healthy, &fixture.flaky, &fixture.refusing].map(|webhook| text(&webhook["id"]));
    let all = fixture.list("").await;
    assert_eq!(statuses(&all).len(), 4, "{all}");
    for (query, expected) in [
        (format!("webhook_id={healthy}"), &["success"][..]),
        (format!("webhook_id={flaky}"), &["success", "failed"]),
        (format!("webhook_id={refusing}"), &["exhausted"]),
        ("status=success".into(), &["success", "success"]),
        ("status=failed,exhausted".into(), &["exhausted", "failed"]),
        ("status=failed&status=exhausted&status=failed".into(), &["exhausted", "failed"]),
        ("failure_category=server_error".into(), &["failed"]),
        ("failure_category=server_error,client_error".into(), &["exhausted", "failed"]),
        ("http_status_code=204".into(), &["success"]),
        ("http_status_code=5xx".into(), &["failed"]),
        ("from=2100-01-01".into(), &[]),
        ("to=2024-01-01".into(), &[]),
        (format!("webhook_id={flaky}&status=failed&from=2024-01-01&to=2100-01-01"), &["failed"]),
        ("webhook_id=wh_00000000000000000000000000000000".into(), &[]),
    ] {
        let page = fixture.list(&query).await;
        assert_eq!(statuses(&page), expected, "{query}: {page}");
        assert!(page["next_cursor"].is_null(), "{query}");
    }
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = fixture.list(&format!("limit=1{cursor}")).await;
        seen.extend(rows(&page).iter().map(|attempt| attempt["id"].clone()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    let listed: Vec<_> = rows(&all).iter().map(|attempt| attempt["id"].clone()).collect();
    assert_eq!(seen, listed, "pages neither skip nor repeat");
}

#[tokio::test]
async fn invalid_filters_of_attempts_name_the_field() {
    let redrive = Redrive::start().await;
    for (query, field, part) in [
        ("status=circuit_blocked", "status", "/v1/deliveries?status=circuit_blocked"),
        ("status=ok", "status", "success, failed or exhausted"),
        ("http_status_code=x", "http_status_code", "503"),
        ("cursor=x", "cursor", "next_cursor"),
        ("limit=501", "limit", "1 to 500"),
    ] {
        let problem = redrive.api().get(&format!("/v1/attempts?{query}")).await.expect(400);
        assert_eq!(problem["field"], field, "{problem}");
        assert!(text(&problem["detail"]).contains(part), "{problem}");
    }
}

#[tokio::test]
async fn every_listed_attempt_is_found_by_its_id() {
    let fixture = Fixture::start().await;
    for listed in rows(&fixture.list("").await) {
        let id = text(&listed["id"]);
        let attempt = fixture.api.get(&format!("/v1/attempts/{id}")).await.expect(200);
        for field in ["id", "number", "delivery_id", "event_id", "webhook_id", "status", "executed_at"] {
            assert_eq!(attempt[field], listed[field], "{field} of {attempt}");
        }
        assert!(!rows(&json!({"data": attempt["request_headers"]})).is_empty());
    }
    let unknown = format!("/v1/attempts/att_{}", "0".repeat(32));
    fixture.api.get(&unknown).await.expect(404);
}

#[tokio::test]
async fn attempts_to_operator_managed_webhooks_are_hidden_from_portal_sessions() {
    let fixture = Fixture::start().await;
    let hidden = format!("/v1/webhooks/{}", text(&fixture.refusing["id"]));
    fixture.api.patch(&hidden, json!({"managed_by": "operator"})).await.expect(200);
    let session = json!({"tenant_id": "default"});
    let session = fixture.api.post("/v1/portal-sessions", session).await.expect(201);
    let portal = fixture.api.with_key(text(&session["token"]));
    let visible = portal.get("/v1/attempts").await.expect(200);
    assert_eq!(rows(&visible).len(), 3, "{visible}");
    let exhausted = fixture.list("status=exhausted").await;
    let hidden = text(&rows(&exhausted)[0]["id"]);
    portal.get(&format!("/v1/attempts/{hidden}")).await.expect(404);
    let of_hidden = format!("/v1/attempts?webhook_id={}", text(&fixture.refusing["id"]));
    assert_eq!(rows(&portal.get(&of_hidden).await.expect(200)).len(), 0);
}

#[tokio::test]
async fn page_of_a_webhook_links_its_attempts() {
    let fixture = Fixture::start().await;
    let browser = Browser::log_in(&fixture.redrive, fixture.redrive.key()).await;
    let webhook = format!("/dashboard/t/default/webhooks/{}", text(&fixture.refusing["id"]));
    assert!(browser.page(&webhook).await.contains(&format!("{webhook}/attempts")));
    let page = browser.page(&format!("{webhook}/attempts")).await;
    let delivery = format!("/deliveries/{}#attempt-1", text(&fixture.dead["id"]));
    assert!(page.contains(&delivery) && page.contains("the endpoint returned 410"), "{page}");
    let none = browser.page(&format!("{webhook}/attempts?status=success")).await;
    assert!(none.contains("No matches") && !none.contains(&delivery), "{none}");
}
