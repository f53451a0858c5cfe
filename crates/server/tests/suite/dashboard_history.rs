//! Pages of deliveries, events, dead letters and bulk operations: they show untrusted data as text, and only to
//! viewers of its tenant.

use redrive_testkit::{Api, Browser, Receiver, Redrive, Reply};
use serde_json::{Value, json};

const T: &str = "/dashboard/t/default";
const SCRIPT: &str = "<script>alert(1)</script>";
const INERT: &str = "&#60;script&#62;alert(1)&#60;/script&#62;";

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn rows(page: &Value) -> &[Value] {
    page["data"].as_array().map_or(&[], Vec::as_slice)
}

fn id(object: &Value) -> &str {
    text(&object["id"])
}

/// Publishes an event and waits until one of its deliveries has ended. Returns the event's id and the delivery.
async fn publish_and_wait(api: &Api, event: Value) -> (String, Value) {
    let event = api.post("/v1/events", event).await.expect(202);
    let event = id(&event).to_owned();
    let has_ended =
        |page: &Value| rows(page).iter().any(|one| one["status"] == "delivered" || one["status"] == "dead");
    let page =
        api.wait_until("an ended delivery", &format!("/v1/deliveries?event_id={event}"), has_ended).await;
    (event, page["data"][0].clone())
}

/// Creates a webhook with a single attempt per delivery.
async fn single_attempt_webhook(api: &Api, url: &str) -> Value {
    api.create_webhook(url, json!({"retry_config": {"max_attempts": 1}})).await
}

async fn portal(redrive: &Redrive, tenant: &str) -> Browser {
    let session = redrive.api().post("/v1/portal-sessions", json!({"tenant_id": tenant})).await.expect(201);
    Browser::log_in(redrive, text(&session["token"])).await
}

/// Asserts that a page has no injected script or event handler.
fn assert_inert(html: &str) {
    for bad in ["<script>", "<img", "onerror=\"", "javascript:"] {
        assert!(!html.contains(bad) || bad == "<img" && html.matches("<img").count() == 1, "{bad}");
    }
}

#[tokio::test]
async fn untrusted_responses_and_payloads_are_shown_as_text() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let browser = Browser::log_in(&redrive, redrive.key()).await;
    let receiver =
        Receiver::with(|_| Reply::status(500).header("x-evil", "<img src=x onerror=alert(1)>").body(SCRIPT))
            .await;
    single_attempt_webhook(&api, &receiver.url_at("/%3Cb%3E?a=%22")).await;
    let data = json!({"a": SCRIPT, "b": "\u{202e}evil", "</pre>": [1.5]});
    let event = json!({"event_type": "order.created", "data": data, "subject": SCRIPT, "source": "\"'&<i>",
        "metadata": {"m": SCRIPT}, "idempotency_key": "<k>"});
    let (event, delivery) = publish_and_wait(&api, event).await;
    let page = browser.page(&format!("{T}/deliveries/{}", id(&delivery))).await;
    assert!(page.contains(INERT) && page.contains("&#60;img src=x onerror=alert(1)&#62;"), "{page}");
    assert!(page.contains("[redacted]") && page.contains("500 · server error"));
    assert_inert(&page);
    let page = browser.page(&format!("{T}/events/{event}")).await;
    assert!(page.matches(INERT).count() >= 3 && page.contains("\\u{202e}evil"), "{page}");
    assert_inert(&page);
    for list in ["deliveries", "events", "dead"] {
        let page = browser.page(&format!("{T}/{list}")).await;
        assert!(page.contains("order.created"), "{list}");
        assert_inert(&page);
    }
    let request =
        format!("{T}/deliveries?subject=%3Cscript%3Ealert(1)%3C/script%3E&event_type=%22%3E%3Cscript%3E");
    assert_inert(&browser.page(&request).await);

    receiver.respond_with(|_| Reply::status(502).body(vec![0u8, 159, 146, 150, b'<']));
    let (_, delivery) = publish_and_wait(&api, json!({"event_type": "a.binary", "data": 1})).await;
    let page = browser.page(&format!("{T}/deliveries/{}", id(&delivery))).await;
    assert!(page.contains("Binary:") && page.contains("00 9f 92 96 3c"), "{page}");

    let huge = "x".repeat(60_000);
    receiver.respond_with(move |_| Reply::status(500).body(huge.clone()));
    let data: Vec<_> = (0..2_000).map(|n| format!("line {n} of a long payload")).collect();
    let (event, delivery) = publish_and_wait(&api, json!({"event_type": "a.huge", "data": data})).await;
    for path in [format!("deliveries/{}", id(&delivery)), format!("events/{event}")] {
        let page = browser.page(&format!("{T}/{path}")).await;
        assert!(page.len() < 60_000, "{path}: {} bytes", page.len());
        assert!(page.contains("line 9 of") && !page.contains("line 1999 of"));
    }
    assert!(browser.page(&format!("{T}/events/{event}?whole=true")).await.contains("line 1999 of"));
    let file = browser.get(&format!("{T}/events/{event}/payload")).await;
    assert_eq!(serde_json::from_slice::<Vec<String>>(&file.body).unwrap().len(), 2_000);
    assert!(file.header("content-disposition").unwrap().starts_with("attachment"));
}

#[tokio::test]
async fn delivery_page_shows_history_wait_reason_and_links() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let browser = Browser::log_in(&redrive, redrive.key()).await;
    let receiver = Receiver::responding(503).await;
    let webhook = single_attempt_webhook(&api, &receiver.url()).await;
    let (_, first) = publish_and_wait(&api, json!({"event_type": "order.paid", "data": {"n": 1}})).await;
    let path = format!("{T}/deliveries/{}", id(&first));
    let page = browser.page(&path).await;
    assert!(
        page.contains("<b>Failed</b>")
            && page.contains("the delivery may succeed once the endpoint has recovered"),
        "{page}"
    );
    assert!(page.contains("waiting for the first byte") && page.contains("class=\"phase-wait\""));
    assert!(page.contains(&receiver.url()) && page.contains("Resend"));
    assert!(page.contains(&format!("{T}/webhooks/{}", id(&webhook))));

    // After a resend, the pages of both rounds link to each other.
    receiver.respond_with(|_| Reply::status(200));
    let call = format!("/v1/deliveries/{}/retry", id(&first));
    let retried = browser.call(&path, "POST", &call, "").await.expect(202);
    let second = retried["delivery_id"].as_str().unwrap().to_owned();
    api.wait_until("a delivered delivery", &format!("/v1/deliveries/{second}"), |one| {
        one["status"] == "delivered"
    })
    .await;
    let page = browser.page(&path).await;
    assert!(page.contains(&format!("{T}/deliveries/{second}\">view resend #1</a>")), "{page}");
    let page = browser.page(&format!("{T}/deliveries/{second}")).await;
    assert!(
        page.contains("alert good") && page.contains(&format!("{T}/deliveries/{}", id(&first))),
        "{page}"
    );
    assert!(
        page.contains("<dt>Resend</dt><dd>#1 · previous: <a") && page.contains("original delivery"),
        "{page}"
    );

    // A paused webhook holds its deliveries.
    api.post(&format!("/v1/webhooks/{}/pause", id(&webhook)), json!({})).await.expect(200);
    api.publish("order.paused", json!({})).await;
    let held = api.wait_until("a waiting delivery", "/v1/deliveries?event_type=order.paused", |page| {
        page["data"][0]["waiting_on"] == "paused"
    });
    let held = held.await["data"][0].clone();
    let page = browser.page(&format!("{T}/deliveries/{}", id(&held))).await;
    assert!(page.contains("the webhook is paused; resume it to continue"), "{page}");
    assert!(page.contains("Retry now") && page.contains("/cancel") && page.contains("No attempts yet"));
    assert!(browser.page(&format!("{T}/deliveries")).await.contains("webhook paused"));
    let call = format!("/v1/deliveries/{}/cancel", id(&held));
    browser.call(&path, "POST", &call, "").await.expect(202);
    let page = browser.page(&format!("{T}/deliveries/{}", id(&held))).await;
    assert!(page.contains("cancelled by request") && !page.contains("Retry now"), "{page}");
}

#[tokio::test]
async fn request_is_copied_as_curl_without_secrets() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let browser = Browser::log_in(&redrive, redrive.key()).await;
    let receiver = Receiver::start().await;
    let own = json!({"headers": {"x-secret": "hush"}, "payload_format": "data"});
    let webhook = api.create_webhook(&receiver.url(), own).await;
    let (_, delivery) =
        publish_and_wait(&api, json!({"event_type": "a.b", "data": {"it's": "$(touch x)"}})).await;
    let path = format!("{T}/deliveries/{}/curl", id(&delivery));
    let copied = browser.get(&path).await;
    assert_eq!(copied.header("content-type"), Some("text/plain; charset=utf-8"));
    let command = String::from_utf8_lossy(&copied.body).into_owned();
    assert!(
        command.starts_with(&format!("curl --globoff --include --request POST '{}'", receiver.url())),
        "{command}"
    );
    assert!(command.contains(r#"--data-raw '{"it'\''s":"$(touch x)"}'"#), "{command}");
    assert!(command.contains("'webhook-signature: [redacted]'") && !command.contains("hush"), "{command}");
    // The body is the one that was sent, even if the webhook's payload format has changed since.
    let change = json!({"payload_format": "envelope"});
    api.patch(&format!("/v1/webhooks/{}", id(&webhook)), change).await.expect(200);
    assert_eq!(String::from_utf8_lossy(&browser.get(&path).await.body), command);
    assert_eq!(browser.get(&format!("{path}?attempt=2")).await.status, 404);
    assert_eq!(browser.api.get(&path).await.status, 303, "it requires a login");
}

#[tokio::test]
async fn listings_are_filtered_paged_and_linkable() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let browser = Browser::log_in(&redrive, redrive.key()).await;
    let (good, bad) = (Receiver::start().await, Receiver::responding(410).await);
    let first = api.create_webhook(&good.url_at("/good"), json!({"events": ["a.*"]})).await;
    single_attempt_webhook(&api, &bad.url_at("/bad")).await;
    for n in 0..30 {
        let event = json!({"event_type": "a.b", "data": n, "subject": format!("s-{}", n % 2)});
        api.post("/v1/events", event).await.expect(202);
    }
    let delivered = format!("/v1/deliveries?webhook_id={}&status=delivered&limit=100", id(&first));
    api.wait_until("30 delivered deliveries", &delivered, |page| rows(page).len() == 30).await;

    let shown = |html: &str| html.matches("<tr id=\"dlv_").count();
    let filter = format!("webhook_id={}&status=delivered&subject=&status_code=", id(&first));
    let page = browser.page(&format!("{T}/deliveries?{filter}")).await;
    assert_eq!(shown(&page), 25);
    assert!(page.contains(&format!("<option value=\"{}\" selected>", id(&first))), "{page}");
    let (_, next) = page.split_once("rel=\"next\" href=\"").unwrap();
    let next = next.split('"').next().unwrap().replace("&#38;", "&");
    assert!(next.contains("status=delivered") && !next.contains("subject="), "{next}");
    let page = browser.page(&next).await;
    assert_eq!(shown(&page), 5);
    assert!(page.contains("Newest") && !page.contains("rel=\"next\""));
    let page = browser.page(&format!("{T}/deliveries?subject=s-1&status_code=2xx")).await;
    assert_eq!(shown(&page), 15);
    assert!(page.contains("&#34;status_codes&#34;:[&#34;2xx&#34;]"), "{page}");
    let page = browser.page(&format!("{T}/deliveries?status=in_flight")).await;
    assert!(page.contains("These deliveries are being sent now"), "{page}");
    let events = browser.page(&format!("{T}/events?subject=s-0&event_type=a.b")).await;
    assert_eq!(events.matches("<tr id=\"evt_").count(), 15);
    for wrong in
        ["deliveries?status=lost", "deliveries?from=yesterday", "events?cursor=x", "dead?recoverable=perhaps"]
    {
        let refused = browser.get(&format!("{T}/{wrong}")).await;
        assert_eq!(refused.status, 400, "{wrong}");
        assert!(String::from_utf8_lossy(&refused.body).contains("Invalid request"), "{wrong}");
    }
    assert!(browser.page(&format!("{T}/deliveries?event_type=no.such")).await.contains("No matches. Widen"));

    // The listed rows can be exported.
    let file = browser.get(&format!("{T}/deliveries/export?format=csv&{filter}")).await;
    let text = String::from_utf8_lossy(&file.body).into_owned();
    assert_eq!((file.status, text.lines().count()), (200, 31), "{text}");
    let file = browser.get(&format!("{T}/events/export?subject=s-1")).await;
    assert_eq!(String::from_utf8_lossy(&file.body).lines().count(), 15);
    assert_eq!(browser.api.get(&format!("{T}/events/export")).await.status, 303);
}

#[tokio::test]
async fn dead_letters_are_grouped_and_resent_in_bulk() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let browser = Browser::log_in(&redrive, redrive.key()).await;
    assert!(browser.page(&format!("{T}/dead")).await.contains("No dead letters"));
    assert!(browser.page(&format!("{T}/operations")).await.contains("There are no bulk operations yet"));
    let receiver = Receiver::responding(404).await;
    let webhook = single_attempt_webhook(&api, &receiver.url_at("/old")).await;
    for _ in 0..3 {
        api.publish("order.created", json!({})).await;
    }
    let dead = |page: &Value| rows(page).len() == 3;
    api.wait_until("3 dead letters", "/v1/dlq", dead).await;
    let path = format!("{T}/dead");
    let page = browser.page(&path).await;
    for link in [
        "?failure_category=client_error".to_owned(),
        format!("?webhook_id={}", id(&webhook)),
        "?event_type=order.created".to_owned(),
    ] {
        assert!(page.contains(&format!("{path}{link}")), "{link}: {page}");
    }
    assert!(
        page.contains(">not retryable as is: rejected with 404</span>")
            && page.contains("check the webhook&#39;s URL"),
        "{page}"
    );
    assert!(
        page.contains("data-bulk=\"POST /v1/dlq/retry-batch\"")
            && page.contains("data-bulk=\"DELETE /v1/dlq?\"")
    );
    let request =
        format!("{path}?failure_category=client_error&recoverable=false&webhook_id={}", id(&webhook));
    let page = browser.page(&request).await;
    assert_eq!(page.matches("<tr id=\"dlv_").count(), 3);
    // The filter that the page's button sends.
    let (_, filter) = page.split_once("data-filter=\"").unwrap();
    let filter = filter.split('"').next().unwrap().replace("&#34;", "\"");
    let filter: Value = serde_json::from_str(&filter).unwrap();
    assert_eq!(filter["recoverable"], false);
    let batch = "/v1/dlq/retry-batch";
    let dry = json!({"filter": filter, "dry_run": true}).to_string();
    assert_eq!(browser.call(&request, "POST", batch, &dry).await.expect(200)["total"], 3);

    receiver.respond_with(|_| Reply::status(200));
    let body =
        json!({"filter": filter, "rate_limit": {"requests_per_second": 100}, "priority": "low"}).to_string();
    let operation = browser.call(&request, "POST", batch, &body).await.expect(202);
    let at = format!("/v1/dlq/batch-operations/{}", id(&operation));
    api.wait_until("a completed operation", &at, |one| one["status"] == "completed").await;
    let page = browser.page(&format!("{T}/operations/{}", id(&operation))).await;
    assert!(page.contains("100 %") && page.contains("3 delivered") && page.contains("at most 100"), "{page}");
    assert!(page.contains(&receiver.url_at("/old")) && page.contains("requires a change"), "{page}");
    assert!(
        !page.contains("/pause\"") && !page.contains("/cancel\""),
        "a completed operation has no buttons"
    );
    assert!(browser.page(&format!("{T}/operations")).await.contains("Resend of dead letters"));
    assert!(browser.page(&path).await.contains("No dead letters"));

    let later = json!({"start_at": "2100-01-01T00:00:00Z"}).to_string();
    let operation = browser.call(&path, "POST", batch, &later).await.expect(202);
    let page = browser.page(&format!("{T}/operations/{}", id(&operation))).await;
    assert!(
        page.contains("Not started") && page.contains("/pause\"") && page.contains("/cancel\""),
        "{page}"
    );
}

#[tokio::test]
async fn event_is_replayed_to_selected_webhooks_and_erased() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let browser = Browser::log_in(&redrive, redrive.key()).await;
    let (one, other) = (Receiver::start().await, Receiver::start().await);
    api.create_webhook(&one.url(), json!({"events": ["a.b"]})).await;
    let second = api.create_webhook(&other.url_at("/other"), json!({"events": ["c.d"]})).await;
    let (event, delivery) =
        publish_and_wait(&api, json!({"event_type": "a.b", "data": {"secret": "hush"}})).await;
    let path = format!("{T}/events/{event}");
    let page = browser.page(&path).await;
    assert!(page.contains("hush") && page.contains(&format!("value=\"{}\"", id(&second))), "{page}");
    let body = json!({"webhook_ids": [id(&second)]}).to_string();
    browser.call(&path, "POST", &format!("/v1/events/{event}/replay"), &body).await.expect(202);
    other.wait_for(1).await;
    assert!(browser.page(&path).await.contains("127.0.0.1"));
    browser.call(&path, "POST", &format!("/v1/events/{event}/erase"), "").await.expect(200);
    let page = browser.page(&path).await;
    assert!(
        page.contains("The payload was erased") && !page.contains("hush") && !page.contains("/replay"),
        "{page}"
    );
    let page = browser.page(&format!("{T}/deliveries/{}", id(&delivery))).await;
    assert!(
        page.contains("The payload was erased") && !page.contains("Resend") && !page.contains("/curl"),
        "{page}"
    );
    assert_eq!(browser.get(&format!("{path}/payload")).await.status, 404);
    assert!(browser.page(&format!("{T}/events")).await.contains("erased"));
}

#[tokio::test]
async fn history_is_isolated_by_tenant_and_permission() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let receiver = Receiver::responding(400).await;
    api.post("/v1/tenants", json!({"id": "acme"})).await.expect(201);
    single_attempt_webhook(&api, &receiver.url()).await;
    let (event, delivery) = publish_and_wait(&api, json!({"event_type": "a.b", "data": 1})).await;
    let operation =
        api.post("/v1/dlq/retry-batch", json!({"start_at": "2100-01-01T00:00:00Z"})).await.expect(202);
    let paths = [
        format!("deliveries/{}", id(&delivery)),
        format!("deliveries/{}/curl", id(&delivery)),
        format!("events/{event}"),
        format!("events/{event}/payload"),
        format!("operations/{}", id(&operation)),
    ];
    let (admin, customer) = (Browser::log_in(&redrive, redrive.key()).await, portal(&redrive, "acme").await);
    for path in &paths {
        assert_eq!(admin.get(&format!("{T}/{path}")).await.status, 200, "{path}");
        for browser in [&admin, &customer] {
            let response = browser.get(&format!("/dashboard/t/acme/{path}")).await;
            assert_eq!(response.status, 404, "{path}: belongs to another tenant");
        }
        assert_eq!(customer.get(&format!("{T}/{path}")).await.status, 404, "{path}");
    }
    for list in
        ["deliveries", "events", "dead", "operations", "deliveries/export", "events/export", "dead/export"]
    {
        assert_eq!(customer.get(&format!("{T}/{list}")).await.status, 404, "{list}");
        let own = customer.get(&format!("/dashboard/t/acme/{list}")).await;
        assert_eq!(own.status, 200, "{list}");
        assert!(!String::from_utf8_lossy(&own.body).contains("a.b"), "{list}");
    }
    for wrong in ["deliveries/x", "events/evt_1", "operations/op_zz", "deliveries/../events"] {
        assert_eq!(admin.get(&format!("{T}/{wrong}")).await.status, 404, "{wrong}");
    }
    // A portal session may view and resend its own events, but not erase them.
    let own = api
        .post(
            "/v1/webhooks?tenant_id=acme",
            json!({"url": receiver.url(), "events": ["*"],
        "retry_config": {"max_attempts": 1}}),
        )
        .await;
    own.expect(201);
    let event =
        api.post("/v1/events?tenant_id=acme", json!({"event_type": "c.d", "data": "own"})).await.expect(202);
    let event = id(&event).to_owned();
    let page = customer.page(&format!("/dashboard/t/acme/events/{event}")).await;
    assert!(page.contains("own") && page.contains("/replay") && !page.contains("/erase"), "{page}");

    let key = json!({"name": "n", "scopes": ["read"]});
    let reader = api.post("/v1/tenants/default/api-keys", key).await.expect(201);
    let reader = Browser::log_in(&redrive, reader["key"].as_str().unwrap()).await;
    for path in ["dead", &*paths[0], &*paths[2], &*paths[4]] {
        let page = reader.page(&format!("{T}/{path}")).await;
        assert!(
            !page.contains("data-call") && !page.contains("data-bulk"),
            "{path}: a reader gets no buttons"
        );
    }
}
