//! The history through the API of the real binary: filters, pages, dead letters and exports.

use std::collections::BTreeSet;

use redrive_testkit::{Api, Postgres, Receiver, Redrive, Reply, Setup};
use redrive_tests::{column, deliveries_of, entries, id, text, wait_for_status};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Returns all entries of a listing, page by page.
async fn all(api: &Api, path: &str) -> Vec<Value> {
    let join = if path.contains('?') { '&' } else { '?' };
    let (mut all, mut next) = (Vec::new(), path.to_owned());
    loop {
        let page = api.get(&next).await.expect(200);
        all.extend(entries(&page));
        match page["next_cursor"].as_str() {
            Some(cursor) => next = format!("{path}{join}cursor={cursor}"),
            None => return all,
        }
    }
}

/// Publishes an event and waits until all its deliveries have ended.
async fn over(api: &Api, event: Value) -> Value {
    let event = api.post("/v1/events", event).await.expect(202);
    for delivery in deliveries_of(api, &event).await {
        let path = format!("/v1/deliveries/{}", id(&delivery));
        api.wait_until("over", &path, |one| ["delivered", "dead"].contains(&text(&one["status"]))).await;
    }
    event
}

/// Starts a receiver that responds with the status code in its path.
async fn by_path() -> Receiver {
    Receiver::with(|arrival| Reply::status(arrival.path.trim_start_matches('/').parse().unwrap_or(200))).await
}

#[tokio::test]
async fn history_is_found_by_any_known_field() {
    let receiver = by_path().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let once = json!({"retry_config": {"schedule": [0]}});
    let mut webhooks = Vec::new();
    for code in ["200", "404", "503"] {
        webhooks.push(id(&api.create_webhook(&receiver.url_at(code), &once).await).to_owned());
    }
    let first = over(&api, json!({"event_type": "order.created", "subject": "order-1", "data": 1})).await;
    let keyed = json!({"event_type": "order.paid", "idempotency_key": "k-1", "source": "shop", "data": 2});
    let second = over(&api, keyed).await;
    over(&api, json!({"event_type": "order.sent", "subject": "order-1", "data": 3})).await;

    let count = async |path: &str| all(&api, path).await.len();
    for (query, events, deliveries, dead) in [
        ("", 3, 9, 6),
        ("limit=2", 3, 9, 6),
        ("event_type=order.created", 1, 3, 2),
        ("event_type=order.created,order.sent", 2, 6, 4),
        ("event_type=order.created&event_type=order.paid&limit=1", 2, 6, 4),
        ("subject=order-1", 2, 6, 4),
        ("subject=order-1&event_type=order.sent", 1, 3, 2),
        ("subject=order-2", 0, 0, 0),
        ("idempotency_key=k-1", 1, 3, 2),
        (&format!("idempotency_key={}", id(&first)), 1, 3, 2),
        (&format!("idempotency_key={}", id(&second)), 0, 0, 0),
    ] {
        assert_eq!(count(&format!("/v1/events?{query}")).await, events, "{query}");
        assert_eq!(count(&format!("/v1/deliveries?{query}")).await, deliveries, "{query}");
        assert_eq!(count(&format!("/v1/dlq?{query}")).await, dead, "{query}");
    }
    assert_eq!(count("/v1/events?source=shop").await, 1);
    assert_eq!(count(&format!("/v1/events?id={}", id(&first))).await, 1);
    let [fine, gone, failing] = &webhooks[..] else { panic!("three") };
    for (query, deliveries, dead) in [
        (format!("event_id={}", id(&second)), 3, 2),
        (format!("webhook_id={gone}"), 3, 3),
        (format!("webhook_id={fine},{gone}"), 6, 3),
        (format!("webhook_id={fine}&webhook_id={failing}&limit=1"), 6, 3),
        (format!("webhook_id={fine}&status=dead"), 0, 0),
        ("status_code=404".into(), 3, 3),
        ("status_code=5xx".into(), 3, 3),
        ("status_code=200".into(), 3, 0),
        ("status_code=410".into(), 0, 0),
        ("failure_category=client_error,server_error&limit=4".into(), 6, 6),
        ("failure_category=server_error".into(), 3, 3),
        ("dead_reason=permanent".into(), 3, 3),
        ("dead_reason=permanent,exhausted".into(), 6, 6),
        ("recoverable=true".into(), 3, 3),
        ("recoverable=false".into(), 3, 3),
        ("recoverable=false&status_code=5xx".into(), 0, 0),
    ] {
        assert_eq!(count(&format!("/v1/deliveries?{query}")).await, deliveries, "{query}");
        assert_eq!(count(&format!("/v1/dlq?{query}")).await, dead, "{query}");
    }
    assert_eq!(
        count(&format!("/v1/webhooks/{gone}/deliveries?webhook_id={fine}")).await,
        3,
        "the path selects the webhook"
    );
}

#[tokio::test]
async fn invalid_filter_is_rejected_with_its_name() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let many = vec!["a"; 51].join(",");
    for (query, field) in [
        ("status_code=5x", "status_code"),
        ("status_code=20", "status_code"),
        ("webhook_id=wh_1", "webhook_id"),
        ("webhook_id=", "webhook_id"),
        ("failure_category=server_error,bad_luck", "failure_category"),
        ("event_type=a,,b", "event_type"),
        (&format!("event_type={many}"), "event_type"),
        ("dead_reason=sloth", "dead_reason"),
        ("recoverable=perhaps", "recoverable"),
        ("event_id=7", "event_id"),
    ] {
        let response = api.get(&format!("/v1/dlq?{query}")).await;
        assert_eq!(response.status, 400, "{query}");
        assert_eq!(response.json()["field"], field, "{query}: {}", response.problem());
    }
    assert_eq!(
        api.get("/v1/deliveries?limit=1&limit=2").await.status,
        400,
        "a parameter that is not a list is given once"
    );
    // Strings that the database cannot store are not an error.
    for query in ["subject=%00", "idempotency_key=a%00", "event_type=%00", "source=%00"] {
        assert_eq!(
            entries(&api.get(&format!("/v1/events?{query}")).await.expect(200)),
            [] as [Value; 0],
            "{query}"
        );
    }
}

#[tokio::test]
async fn dead_letter_shows_its_recoverability() {
    let receiver = by_path().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let once = json!({"retry_config": {"schedule": [0]}});
    for code in ["401", "503"] {
        api.create_webhook(&receiver.url_at(code), &once).await;
    }
    let event = api.publish("order.created", json!({})).await;
    for delivery in deliveries_of(&api, &event).await {
        wait_for_status(&api, id(&delivery), "dead").await;
    }
    let mut dead = entries(&api.get("/v1/dlq").await.expect(200));
    dead.sort_by_key(|one| one["last_status_code"].as_u64());
    assert_eq!(column(&dead, "likely_recoverable"), [false, true]);
    assert_eq!(
        column(&dead, "recovery_hint"),
        [
            "the endpoint rejected it with 401 (not retried); fix the webhook's credentials (auth or headers), then resend",
            "all attempts were used, and the endpoint last returned 503; the delivery may succeed once the endpoint has recovered",
        ]
    );
}

#[tokio::test]
async fn dead_letters_are_counted_by_age_category_and_webhook() {
    let receiver = by_path().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let once = json!({"retry_config": {"schedule": [0]}});
    let mut webhooks = Vec::new();
    for code in ["200", "404", "503"] {
        webhooks.push(id(&api.create_webhook(&receiver.url_at(code), &once).await).to_owned());
    }
    let nothing = api.get("/v1/dlq/stats").await.expect(200);
    assert_eq!((&nothing["size"], &nothing["entries"]["last_hour"]["rate"]), (&json!(0), &json!(null)));
    for event_type in ["order.created", "order.created", "order.paid"] {
        over(&api, json!({"event_type": event_type, "data": 1})).await;
    }
    let stats = api.get("/v1/dlq/stats").await.expect(200);
    assert_eq!((&stats["size"], &stats["counted_up_to"]), (&json!(6), &json!(null)));
    for period in ["last_hour", "last_24_hours"] {
        let rate = &stats["entries"][period];
        assert_eq!((&rate["dead"], &rate["ended"]), (&json!(6), &json!(9)), "{period}");
        assert!((rate["rate"].as_f64().unwrap() - 6.0 / 9.0).abs() < 1e-9);
    }
    assert_eq!(stats["age"], json!({"under_1_hour": 6, "from_1_to_24_hours": 0, "over_24_hours": 0}));
    assert_eq!(stats["recoverability"], json!({"likely_recoverable": 3, "permanent": 3}));
    let types =
        json!([{"event_type": "order.created", "count": 4}, {"event_type": "order.paid", "count": 2}]);
    assert_eq!((&stats["by_event_type"], &stats["other_event_types"]), (&types, &json!(0)));
    let by_webhook =
        json!([{"webhook_id": webhooks[1], "count": 3}, {"webhook_id": webhooks[2], "count": 3}]);
    assert_eq!(stats["by_webhook"], by_webhook);
    let size =
        async |query: &str| api.get(&format!("/v1/dlq/stats?{query}")).await.expect(200)["size"].clone();
    assert_eq!(size("event_type=order.paid").await, 2);
    assert_eq!(size(&format!("webhook_id={},{}", webhooks[0], webhooks[1])).await, 3);
    assert_eq!(size("failure_category=server_error&recoverable=true").await, 3);
    assert_eq!(size("to=2020-01-01T00:00:00Z").await, 0);
    // A resent dead letter leaves the list, but still counts as dead in the hour.
    let dead = entries(&api.get("/v1/dlq?limit=1").await.expect(200)).remove(0);
    api.post(&format!("/v1/deliveries/{}/retry", id(&dead)), json!({})).await.expect(202);
    let stats = api.get("/v1/dlq/stats").await.expect(200);
    assert!(stats["entries"]["last_hour"]["dead"].as_u64() >= Some(6));
    assert_eq!(api.get("/v1/dlq/stats?subject=x").await.status, 400);
}

#[tokio::test]
async fn attempt_has_all_fields() {
    let receiver =
        Receiver::with(|_| Reply::status(503).header("x-response", "not now").body("try later")).await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let config = json!({"retry_config": {"schedule": [0, 3600]}, "headers": {"x-own": "a secret"}});
    let webhook = api.create_webhook(&receiver.url(), config).await;
    let event = api.publish("order.created", json!({})).await;
    let delivery = deliveries_of(&api, &event).await.remove(0);
    let path = format!("/v1/deliveries/{}/attempts", id(&delivery));
    let tried =
        api.wait_until("an attempt", &path, |page| page["data"].as_array().is_some_and(|all| all.len() == 1));
    let attempt = entries(&tried.await).remove(0);
    for (field, expected) in [
        ("number", json!(1)),
        ("status", json!("failed")),
        ("failure_category", json!("server_error")),
        ("http_status_code", json!(503)),
        ("response_body_sample", json!("try later")),
        ("error_message", json!("the endpoint returned 503")),
        ("retry_reason", json!("server_error")),
        ("circuit_state_at_attempt", json!("closed")),
        ("delivery_id", delivery["id"].clone()),
        ("event_id", event["id"].clone()),
        ("webhook_id", webhook["id"].clone()),
    ] {
        assert_eq!(attempt[field], expected, "{field}");
    }
    for time in ["scheduled_at", "executed_at", "next_retry_at"] {
        assert!(attempt[time].is_string(), "{time}: {attempt}");
    }
    for span in ["connect_ms", "ttfb_ms", "duration_ms"] {
        assert!(attempt[span].is_number(), "{span}: {attempt}");
    }
    assert!(
        attempt["dns_ms"].is_null() && attempt["tls_ms"].is_null(),
        "neither DNS nor TLS was used: {attempt}"
    );
    assert!(!text(&attempt["worker"]).is_empty());
    let value = |list: &str, name: &str| {
        let headers = attempt[list].as_array().unwrap().iter();
        headers
            .filter(|header| header["name"] == name)
            .map(|header| header["value"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(value("request_headers", "webhook-id"), [event["id"].clone()]);
    for secret in ["webhook-signature", "x-webhook-signature", "x-own"] {
        assert_eq!(value("request_headers", secret), ["[redacted]"], "{secret}");
    }
    assert_eq!(value("response_headers", "x-response"), ["not now"]);
    let of_event = api.get(&format!("/v1/events/{}/attempts", id(&event))).await.expect(200);
    assert_eq!(entries(&of_event), [attempt]);
}

/// Publishes `count` events of some KiB each, without subscribers or to paused webhooks.
async fn publish_many(api: &Api, count: usize, event_type: &str) -> Vec<String> {
    let mut ids = Vec::new();
    let pad = "x".repeat(4 << 10);
    for start in (0..count).step_by(1_000) {
        let event = |n: usize| json!({"event_type": event_type, "data": {"n": n, "pad": pad}});
        let events: Vec<_> = (start..(start + 1_000).min(count)).map(event).collect();
        let response = api.post("/v1/events/batch", json!({"events": events})).await.expect(202);
        ids.extend(entries(&response).iter().map(|one| id(one).to_owned()));
    }
    ids
}

/// Returns the peak memory of a process, in KiB.
fn high_water(redrive: &Redrive) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", redrive.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

async fn exports_are_whole(redrive: &Redrive) {
    let api = redrive.api();
    let receiver = Receiver::start().await;
    let webhook = api.create_webhook(&receiver.url(), json!({"events": ["export.*"]})).await;
    api.post(&format!("/v1/webhooks/{}/pause", id(&webhook)), json!({})).await.expect(200);
    let there: BTreeSet<_> = publish_many(&api, 20_000, "export.this").await.into_iter().collect();
    let noise = tokio::spawn({
        let api = api.clone();
        async move {
            loop {
                publish_many(&api, 10, "export.other").await;
            }
        }
    });
    let before = high_water(redrive);
    for (path, member) in [("/v1/events/export", "id"), ("/v1/deliveries/export?webhook_id", "event_id")] {
        let path = path.replace("webhook_id", &format!("webhook_id={}", id(&webhook)));
        let response = api.get(&path).await;
        assert_eq!((response.status, response.header("content-type")), (200, Some("application/x-ndjson")));
        let lines: Vec<Value> = response
            .body
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect();
        let ids: BTreeSet<_> = lines.iter().map(|line| text(&line[member]).to_owned()).collect();
        assert_eq!(ids.len(), lines.len(), "no entry occurs twice: {path}");
        assert!(there.is_subset(&ids), "no entry is missing: {path}");
    }
    let csv = api.get("/v1/events/export?format=csv&event_type=export.this").await;
    let csv = String::from_utf8(csv.body.to_vec()).unwrap();
    assert_eq!(csv.matches("\r\n").count(), 20_001, "a header line and one line per entry");
    assert!(csv.starts_with("id,event_type,timestamp,"));
    noise.abort();
    let grown = high_water(redrive) - before;
    // Each export of events is more than 80 MiB.
    assert!(grown < 48 << 10, "exports took {grown} KiB of memory");
}

mod extended {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn export_from_postgres_is_complete() {
        let database = Postgres::shared().await;
        exports_are_whole(&Redrive::start_with(Setup::new().database_url(database.url())).await).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn export_is_complete_under_writes_and_uses_little_memory() {
        exports_are_whole(&Redrive::start().await).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn unread_exports_are_aborted_and_free_their_slots() {
        let redrive = Redrive::start_with(Setup::new().env("REDRIVE_SERVER_WRITE_TIMEOUT", "2s")).await;
        let api = redrive.api();
        publish_many(&api, 10_000, "export.this").await;
        let mut unread = Vec::new();
        for _ in 0..2 {
            let mut stream = tokio::net::TcpStream::connect(redrive.address()).await.unwrap();
            let key = redrive.key();
            let head = format!(
                "GET /v1/events/export HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            // The export has started once its first bytes are received.
            let mut first = [0; 12];
            stream.read_exact(&mut first).await.unwrap();
            assert_eq!(&first, b"HTTP/1.1 200");
            unread.push(stream);
        }
        let refused = api.get("/v1/dlq/export").await;
        assert_eq!((refused.status, refused.json()["code"].clone()), (429, json!("too_many_exports")));
        assert!(refused.header("retry-after").is_some());
        // The clients neither read nor disconnect, but the write timeout frees their export slots.
        while api.get("/v1/dlq/export").await.status != 200 {
            tokio::task::yield_now().await;
        }
        // Both exports are aborted; reading the streams now must not yield a complete export.
        let mut whole = 0;
        for mut stream in unread {
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
            whole += usize::from(rest.ends_with(b"0\r\n\r\n"));
        }
        assert!(whole <= 1, "an aborted export does not end like a complete one");
    }
}
