//! Dashboard pages of webhooks: content, permissions, form validation, and escaping of user-supplied text.

use redrive_testkit::{ApiResponse, Browser, Receiver, Redrive, sse};
use serde_json::{Value, json};

const LIST: &str = "/dashboard/t/default/webhooks";
const HOSTILE: &str = "\"><script>alert(1)</script><!--/live-->'&{{7*7}}";

fn page_of(webhook: &Value) -> String {
    format!("{LIST}/{}", webhook["id"].as_str().expect("an id"))
}

async fn create_key(redrive: &Redrive, tenant: &str, scopes: &[&str]) -> String {
    let path = format!("/v1/tenants/{tenant}/api-keys");
    let created = redrive.api().post(&path, json!({"name": "n", "scopes": scopes})).await.expect(201);
    created["key"].as_str().expect("a key").to_owned()
}

async fn check(browser: &Browser, path: &str, body: Value) -> ApiResponse {
    browser.call(LIST, "POST", path, &body.to_string()).await
}

#[tokio::test]
async fn charts_are_drawings_and_not_their_source() {
    let redrive = Redrive::start().await;
    let (api, browser) = (redrive.api(), Browser::log_in(&redrive, redrive.key()).await);
    let webhook = api.create_webhook("http://127.0.0.1:8080/", json!({})).await;
    let list = browser.page(LIST).await;
    let page = browser.page(&page_of(&webhook)).await;
    for (name, page) in [("list", list), ("webhook", page)] {
        assert!(page.contains("<svg class=\""), "{name}: {page}");
        assert!(!page.contains("&lt;svg") && !page.contains("&#60;svg"), "{name}: {page}");
    }
}

#[tokio::test]
async fn webhook_list_can_be_searched_and_filtered() {
    let redrive = Redrive::start().await;
    let (api, browser) = (redrive.api(), Browser::log_in(&redrive, redrive.key()).await);
    let empty = browser.page(LIST).await;
    assert!(empty.contains("There are no webhooks yet") && empty.contains("/webhooks/new"), "{empty}");
    let orders = json!({"description": "Warehouse", "events": ["order.*"]});
    let orders = api.create_webhook("http://127.0.0.1:8080/orders", orders).await;
    let bills = json!({"events": ["invoice.paid"], "state": "paused"});
    let bills = api.create_webhook("http://127.0.0.1:8080/bills", bills).await;
    let all = browser.page(LIST).await;
    for text in
        ["Warehouse", "http://127.0.0.1:8080/orders", "order.*", "http://127.0.0.1:8080/bills", "Paused"]
    {
        assert!(all.contains(text), "{text}: {all}");
    }
    let (orders, bills) = (page_of(&orders), page_of(&bills));
    for (query, found, not_found) in [
        ("?q=wareHOUSE", &orders, &bills),
        ("?q=%2Fbills", &bills, &orders),
        ("?q=order.created", &orders, &bills),
        ("?q=invoice", &bills, &orders),
        ("?status=paused", &bills, &orders),
        ("?status=healthy&circuit=closed&q=", &orders, &bills),
    ] {
        let page = browser.page(&format!("{LIST}{query}")).await;
        assert!(page.contains(found.as_str()) && !page.contains(not_found.as_str()), "{query}");
    }
    assert!(browser.page(&format!("{LIST}?circuit=open")).await.contains("No webhook matches"));
    assert_eq!(browser.get(&format!("{LIST}?status=gone")).await.status, 400);
    assert_eq!(browser.get(&format!("{LIST}?cursor=x")).await.status, 400);
}

#[tokio::test]
async fn webhook_list_is_paginated_and_search_covers_all_pages() {
    let redrive = Redrive::start().await;
    let (api, browser) = (redrive.api(), Browser::log_in(&redrive, redrive.key()).await);
    for n in 0..30 {
        api.create_webhook(
            &format!("http://127.0.0.1:8080/{n}"),
            json!({"description": format!("webhook-{n}.")}),
        )
        .await;
    }
    let first = browser.page(LIST).await;
    assert!(first.contains("webhook-29.") && first.contains("webhook-5.") && !first.contains("webhook-4."));
    let (_, rest) = first.split_once("rel=\"next\" href=\"").expect("a next page");
    let second = browser.page(&rest.split('"').next().unwrap().replace("&#38;", "&")).await;
    assert!(second.contains("webhook-4.") && second.contains("webhook-0.") && !second.contains("webhook-5."));
    assert!(browser.page(&format!("{LIST}?q=webhook-0.")).await.contains("webhook-0."));
}

#[tokio::test]
async fn user_supplied_text_is_escaped_on_every_page() {
    let redrive = Redrive::start().await;
    let browser = Browser::log_in(&redrive, redrive.key()).await;
    let fields = json!({
        "description": HOSTILE, "metadata": {HOSTILE: HOSTILE}, "owner": {"id": HOSTILE}, "subjects": [HOSTILE],
        "filter": {"path": "/a", "eq": HOSTILE},
    });
    let url = "http://127.0.0.1:8080/\"><script>alert(1)</script>";
    let webhook = redrive.api().create_webhook(url, fields).await;
    redrive.api().publish("order.created", json!({"a": HOSTILE})).await;
    let page = page_of(&webhook);
    for page in
        [LIST.to_owned(), page.clone(), format!("{page}/edit"), format!("{LIST}?q=%22%3E%3Cscript%3E")]
    {
        let html = browser.page(&page).await;
        assert!(html.contains("&#60;script&#62;"), "{page}: the escaped text is shown: {html}");
        assert!(!html.contains("<script>") && !html.contains("alert(1)</script>"), "{page}: {html}");
        assert!(html.matches("<!--/live-->").count() <= 1, "{page}");
        assert!(!html.contains(" style=\"") && !html.contains(" onclick="), "{page}");
    }
}

#[tokio::test]
async fn confidential_values_appear_on_no_page() {
    let redrive = Redrive::start().await;
    let browser = Browser::log_in(&redrive, redrive.key()).await;
    let fields = json!({
        "headers": {"x-api-key": "hush-header"}, "auth": {"type": "basic", "username": "me", "password": "hush-word"},
        "signature": {"scheme": "standard-ed25519"},
    });
    let webhook = redrive.api().create_webhook("http://127.0.0.1:8080/", fields).await;
    let secret = webhook["secret"].as_str().unwrap();
    let page = page_of(&webhook);
    for page in [LIST.to_owned(), page.clone(), format!("{page}/edit")] {
        let html = browser.page(&page).await;
        assert!(!html.contains("hush") && !html.contains(secret) && !html.contains(&secret[6..]), "{page}");
    }
    let html = browser.page(&page).await;
    assert!(html.contains("x-api-key") && html.contains("whpk_"), "names and public keys are shown");
    assert!(browser.page(&format!("{page}/edit")).await.contains("unchanged"));
}

#[tokio::test]
async fn draft_is_validated_like_the_api_and_not_stored() {
    let redrive = Redrive::start().await;
    let browser = Browser::log_in(&redrive, redrive.key()).await;
    let path = format!("{LIST}/check");
    let url = "http://127.0.0.1:8080/";
    assert_eq!(check(&browser, &path, json!({"url": url, "events": ["order.*"]})).await.status, 204);
    assert_eq!(
        check(&browser, &path, json!({})).await.status,
        204,
        "missing fields of a draft are not errors"
    );
    for (body, field) in [
        (json!({"url": "ftp://x"}), "url"),
        (json!({"url": url, "events": []}), "events"),
        (json!({"events": ["order..x"]}), "events[0]"),
        (json!({"filter": {"path": "amount"}}), "filter"),
        (json!({"headers": {"host": "x"}}), "headers.host"),
        (json!({"retry_config": {"schedule": ["8d"]}}), "retry_config.schedule"),
        (json!({"rate_limit": {"requests_per_minute": 0}}), "rate_limit.requests_per_minute"),
        (json!({"expires_at": "2020-01-01T00:00:00Z"}), "expires_at"),
        (json!({"secret": "short"}), "secret"),
    ] {
        let response = check(&browser, &path, body.clone()).await;
        assert_eq!(response.status, 200, "{body}");
        let problem = response.json();
        assert!(problem["field"].as_str().unwrap().starts_with(field), "{body}: {problem}");
    }
    assert_eq!(redrive.api().get("/v1/webhooks").await.expect(200)["data"], json!([]));
    // For an existing webhook only the changed fields are sent; a redacted value means "unchanged".
    let known = redrive.api().create_webhook(url, json!({"headers": {"x-a": "b"}})).await;
    let path = format!("{path}?id={}", known["id"].as_str().unwrap());
    assert_eq!(check(&browser, &path, json!({"headers": {"x-a": "[redacted]"}})).await.status, 204);
    let unknown = check(&browser, &path, json!({"headers": {"x-b": "[redacted]"}})).await;
    assert_eq!(unknown.expect(200)["field"], "headers.x-b");
}

#[tokio::test]
async fn draft_check_requires_manage_scope_and_csrf_token() {
    let redrive = Redrive::start().await;
    for tenant in ["acme", "globex"] {
        redrive.api().post("/v1/tenants", json!({"id": tenant})).await.expect(201);
    }
    let browser = Browser::log_in(&redrive, &create_key(&redrive, "acme", &["manage"]).await).await;
    let own = "/dashboard/t/acme/webhooks";
    let (token, body) = (browser.token(own).await, "{\"url\": \"ftp://x\"}");
    let (kind, cookie) = (("content-type", "application/json"), ("cookie", browser.cookie.as_str()));
    let path = format!("{own}/check");
    for headers in [vec![kind], vec![kind, cookie], vec![kind, ("x-redrive-token", &token)]] {
        assert_eq!(browser.api.raw("POST", &path, &headers, body).await.status, 401, "{headers:?}");
    }
    let other = "/dashboard/t/globex/webhooks/check";
    assert_eq!(browser.call(own, "POST", other, body).await.status, 404);
    let theirs = json!({"url": "http://127.0.0.1:8080/", "events": ["*"], "tenant_id": "globex"});
    let theirs = redrive.api().post("/v1/webhooks", theirs).await.expect(201);
    let theirs = format!("{path}?id={}", theirs["id"].as_str().unwrap());
    assert_eq!(browser.call(own, "POST", &theirs, body).await.status, 404);
    assert_eq!(
        browser.call(own, "POST", &path, body).await.expect(200)["field"],
        "url",
        "a complete request is checked"
    );
    let reader = Browser::log_in(&redrive, &create_key(&redrive, "acme", &["read"]).await).await;
    assert_eq!(reader.call(own, "POST", &path, body).await.status, 403);
}

#[tokio::test]
async fn reader_sees_no_buttons_and_other_tenants_webhooks_are_not_found() {
    let redrive = Redrive::start().await;
    for tenant in ["acme", "globex"] {
        redrive.api().post("/v1/tenants", json!({"id": tenant})).await.expect(201);
    }
    let create = async |tenant: &str| {
        let webhook = json!({"url": "http://127.0.0.1:8080/", "events": ["*"], "tenant_id": tenant});
        let created = redrive.api().post("/v1/webhooks", webhook).await.expect(201);
        created["id"].as_str().unwrap().to_owned()
    };
    let (own, other) = (create("acme").await, create("globex").await);
    let reader = Browser::log_in(&redrive, &create_key(&redrive, "acme", &["read"]).await).await;
    for page in ["/dashboard/t/acme/webhooks".to_owned(), format!("/dashboard/t/acme/webhooks/{own}")] {
        let html = reader.page(&page).await;
        for button in
            ["data-call=", "/edit", "/webhooks/new", "data-dialog=\"rotate\"", "data-dialog=\"test\""]
        {
            assert!(!html.contains(button), "{page}: {button}");
        }
    }
    for page in ["new".to_owned(), format!("{own}/edit")] {
        assert_eq!(reader.get(&format!("/dashboard/t/acme/webhooks/{page}")).await.status, 403, "{page}");
    }
    let manager = Browser::log_in(&redrive, &create_key(&redrive, "acme", &["manage"]).await).await;
    let html = manager.page(&format!("/dashboard/t/acme/webhooks/{own}")).await;
    assert!(html.contains("data-call=\"DELETE /v1/webhooks/") && html.contains("data-dialog=\"rotate\""));
    for page in [other.clone(), format!("{other}/edit"), "wh_nothing".to_owned()] {
        for tenant in ["acme", "globex"] {
            let path = format!("/dashboard/t/{tenant}/webhooks/{page}");
            assert_eq!(manager.get(&path).await.status, 404, "{path}");
        }
    }
}

#[tokio::test]
async fn failing_endpoint_is_explained_and_circuit_can_be_reset_from_page() {
    let redrive = Redrive::start().await;
    let browser = Browser::log_in(&redrive, redrive.key()).await;
    let receiver = Receiver::responding(503).await;
    let fields = json!({
        "circuit_breaker_config": {"minimum_throughput": 1},
        "retry_config": {"schedule": [0, "1h"], "give_up_after": "30m"},
    });
    let webhook = redrive.api().create_webhook(&receiver.url(), fields).await;
    let (id, page) = (webhook["id"].as_str().unwrap(), page_of(&webhook));
    let fresh = browser.page(&page).await;
    assert!(
        fresh.contains("No requests in the last 24 hours") && fresh.contains("No deliveries are pending")
    );
    redrive.api().publish("order.created", json!({})).await;
    let open = |health: &Value| health["circuit"]["state"] == "open";
    redrive.api().wait_until("an open circuit", &format!("/v1/webhooks/{id}/health"), open).await;
    // The circuit opens in memory before the outcome is committed; the page also shows the stored outcome.
    let recorded = |list: &Value| list["data"][0]["attempt_count"] == 1;
    redrive.api().wait_until("a stored attempt", &format!("/v1/webhooks/{id}/deliveries"), recorded).await;
    let html = browser.page(&page).await;
    for text in [
        "Circuit breaker open",
        "1 of 1 attempts had failed, mostly with server error",
        "1 of 1 attempts failed in the last hour",
        "the endpoint returns a server error (5xx)",
        "The circuit was open once in the last 24 hours",
        "failed: 1",
        "order.created",
        "Attempt 2 is not sent",
        "within 30 min",
    ] {
        assert!(html.contains(text), "{text}: {html}");
    }
    assert!(browser.page(&format!("{LIST}?circuit=open")).await.contains(id));
    let call = format!("/v1/webhooks/{id}/circuit-breaker");
    assert!(html.contains(&format!("data-call=\"PATCH {call}\"")));
    browser.call(&page, "PATCH", &call, "{\"action\": \"reset\"}").await.expect(200);
    let html = browser.page(&page).await;
    assert!(!html.contains("Circuit breaker open") && html.contains("badge good\">closed"), "{html}");
}

#[tokio::test]
async fn webhook_page_explains_state_and_offers_the_next_action() {
    let redrive = Redrive::start().await;
    let (api, browser) = (redrive.api(), Browser::log_in(&redrive, redrive.key()).await);
    let webhook = api.create_webhook("http://127.0.0.1:8080/", json!({"state": "paused"})).await;
    let (id, page) = (webhook["id"].as_str().unwrap(), page_of(&webhook));
    api.publish("order.created", json!({})).await;
    let html = browser.page(&page).await;
    assert!(html.contains("<b>Paused.</b>") && html.contains(&format!("POST /v1/webhooks/{id}/resume")));
    assert!(html.contains("<b>1</b> waiting: webhook paused"), "{html}");
    assert!(!html.contains("data-dialog=\"test\""), "a paused webhook offers no test");
    api.post(&format!("/v1/webhooks/{id}/disable"), json!({})).await.expect(200);
    let html = browser.page(&page).await;
    assert!(
        html.contains("Reason: disabled by request.")
            && html.contains(&format!("POST /v1/webhooks/{id}/enable"))
    );
    assert!(!html.contains("data-dialog=\"backfill\""));
    api.delete(&format!("/v1/webhooks/{id}")).await.expect(204);
    assert_eq!(browser.get(&page).await.status, 404);
}

#[tokio::test]
async fn webhook_page_updates_live() {
    let redrive = Redrive::start().await;
    let browser = Browser::log_in(&redrive, redrive.key()).await;
    let receiver = Receiver::start().await;
    let webhook = redrive.api().create_webhook(&receiver.url(), json!({})).await;
    let page = page_of(&webhook).replace('/', "%2F");
    let mut live = sse(redrive.address(), &format!("/dashboard/live?page={page}"), &browser.cookie).await;
    assert!(live.next("part").await.contains("There are no deliveries yet."));
    redrive.api().publish("order.created", json!({})).await;
    while !live.next("part").await.contains("badge good\">delivered") {}
}
