//! Access to the dashboard through a browser: login, security headers of pages, and CSRF protection.

use redrive_testkit::{Api, ApiResponse, Browser, FORM, Redrive, Setup, sse};
use serde_json::json;

async fn log_in(api: &Api, key: &str, next: &str) -> ApiResponse {
    api.raw("POST", "/dashboard/login", &[FORM], format!("key={key}&next={next}")).await
}

async fn new_key(api: &Api, tenant: &str, scopes: &[&str]) -> serde_json::Value {
    let created =
        api.post(&format!("/v1/tenants/{tenant}/api-keys"), json!({"name": "n", "scopes": scopes})).await;
    created.expect(201)
}

#[tokio::test]
async fn login_is_required_and_returns_to_requested_page() {
    let redrive = Redrive::start().await;
    let api = redrive.api().without_key();
    let page = "/dashboard/t/default/deliveries?status=dead";
    let request = api.get(page).await;
    assert_eq!(request.status, 303);
    let login = request.header("location").unwrap();
    assert_eq!(login, "/dashboard/login?next=%2Fdashboard%2Ft%2Fdefault%2Fdeliveries%3Fstatus%3Ddead");
    assert_eq!(api.get(login).await.status, 200);
    let came = log_in(&api, redrive.key(), "%2Fdashboard%2Ft%2Fdefault%2Fdeliveries%3Fstatus%3Ddead").await;
    assert_eq!((came.status, came.header("location")), (303, Some(page)));
    let elsewhere = log_in(&api, redrive.key(), "https%3A%2F%2Fevil.example").await;
    assert!(elsewhere.header("location").unwrap().starts_with("/dashboard/t/default"));
    let wrong = log_in(&api, "rdk_wrong", "").await;
    assert_eq!((wrong.status, wrong.header("set-cookie")), (401, None));
    assert!(String::from_utf8_lossy(&wrong.body).contains("invalid, revoked or expired"));
    assert_eq!(api.get("/").await.header("location"), Some("/dashboard"));
}

#[tokio::test]
async fn pages_have_strict_csp_and_are_not_cached() {
    let redrive = Redrive::start().await;
    let browser = Browser::log_in(&redrive, redrive.key()).await;
    let page = browser.get("/dashboard/t/default/deliveries").await;
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("script-src 'self';") && policy.contains("style-src 'self';"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("cache-control"), Some("no-store"));
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(page.header("x-frame-options"), Some("DENY"));
    let html = String::from_utf8_lossy(&page.body);
    assert!(!html.contains("<script>") && !html.contains("style=\"") && !html.contains(" onclick="));
}

#[tokio::test]
async fn cookie_without_csrf_token_is_rejected() {
    let redrive = Redrive::start().await;
    let browser = Browser::log_in(&redrive, redrive.key()).await;
    let token = browser.token("/dashboard/t/default/deliveries").await;
    let webhook = json!({"url": "http://127.0.0.1:9009/", "events": ["*"]}).to_string();
    let json = ("content-type", "application/json");
    let cookie = ("cookie", browser.cookie.as_str());
    let post = async |headers: &[(&str, &str)]| {
        browser.api.raw("POST", "/v1/webhooks", headers, webhook.clone()).await.status
    };
    assert_eq!(post(&[json, cookie]).await, 401);
    assert_eq!(post(&[json, cookie, ("x-redrive-token", "made-up")]).await, 401);
    assert_eq!(post(&[json, ("x-redrive-token", &token)]).await, 401);
    assert_eq!(post(&[json, cookie, ("x-redrive-token", &token)]).await, 201);
    assert_eq!(browser.get("/v1/webhooks").await.status, 401, "reading requires the token too");
    // Logout requires the token too, and deletes the cookie.
    let log_out = async |token: &str| {
        browser.api.raw("POST", "/dashboard/logout", &[FORM, cookie], format!("token={token}")).await
    };
    assert_eq!(log_out("made-up").await.header("set-cookie"), None);
    assert!(log_out(&token).await.header("set-cookie").unwrap().contains("Max-Age=0"));
}

#[tokio::test]
async fn tenant_sees_only_own_pages_until_key_is_revoked() {
    let redrive = Redrive::start().await;
    let admin = redrive.api();
    for tenant in ["acme", "globex"] {
        admin.post("/v1/tenants", json!({"id": tenant})).await.expect(201);
    }
    let key = new_key(&admin, "acme", &["read"]).await;
    let browser = Browser::log_in(&redrive, key["key"].as_str().unwrap()).await;
    assert!(browser.page("/dashboard/t/acme/deliveries").await.contains("Deliveries"));
    for other in
        ["/dashboard/t/globex/deliveries", "/dashboard/t/unknown/deliveries", "/dashboard/t/%20/deliveries"]
    {
        assert_eq!(browser.get(other).await.status, 404, "{other}");
    }
    let publisher = new_key(&admin, "acme", &["publish"]).await;
    let publisher = Browser::log_in(&redrive, publisher["key"].as_str().unwrap()).await;
    assert_eq!(publisher.get("/dashboard/t/acme/deliveries").await.status, 403);
    admin.delete(&format!("/v1/tenants/acme/api-keys/{}", key["id"].as_str().unwrap())).await.expect(204);
    assert_eq!(browser.get("/dashboard/t/acme/deliveries").await.status, 303, "its key is revoked");
}

#[tokio::test]
async fn live_page_is_sent_again_after_change() {
    let redrive = Redrive::start().await;
    let browser = Browser::log_in(&redrive, redrive.key()).await;
    let page = "%2Fdashboard%2Ft%2Fdefault%2Fdeliveries";
    let mut live = sse(redrive.address(), &format!("/dashboard/live?page={page}"), &browser.cookie).await;
    assert!(live.next("part").await.contains("no deliveries yet"));
    redrive.api().create_webhook("http://127.0.0.1:9009/", json!({})).await;
    redrive.api().publish("order.created", json!({})).await;
    assert!(live.next("part").await.contains("order.created"));
    for elsewhere in ["https%3A%2F%2Fevil.example%2F", "%2Fv1%2Fevents", "x"] {
        assert_eq!(
            browser.get(&format!("/dashboard/live?page={elsewhere}")).await.status,
            404,
            "{elsewhere}"
        );
    }
}

#[tokio::test]
async fn live_page_reports_deleted_webhook() {
    let redrive = Redrive::start().await;
    let browser = Browser::log_in(&redrive, redrive.key()).await;
    let webhook = redrive.api().create_webhook("http://127.0.0.1:9009/", json!({})).await;
    let id = webhook["id"].as_str().unwrap();
    let page = format!("%2Fdashboard%2Ft%2Fdefault%2Fwebhooks%2F{id}");
    let mut live = sse(redrive.address(), &format!("/dashboard/live?page={page}"), &browser.cookie).await;
    assert!(live.next("part").await.contains("Circuit"));
    redrive.api().delete(&format!("/v1/webhooks/{id}")).await.expect(204);
    live.next("gone").await;
}

#[tokio::test]
async fn portal_logout_returns_to_portal_page() {
    let redrive = Redrive::start().await;
    redrive.api().post("/v1/tenants", json!({"id": "acme"})).await.expect(201);
    let session = redrive.api().post("/v1/portal-sessions", json!({"tenant_id": "acme"})).await.expect(201);
    let browser = Browser::log_in(&redrive, session["token"].as_str().unwrap()).await;
    let token = browser.token("/dashboard/t/acme").await;
    let form = format!("token={token}&portal=true");
    let out = browser.api.raw("POST", "/dashboard/logout", &[FORM, ("cookie", &browser.cookie)], form).await;
    assert_eq!((out.status, out.header("location")), (303, Some("/portal")));
    let wrong = browser.api.raw("POST", "/dashboard/login", &[FORM], "key=rdp_wrong&portal=true").await;
    assert_eq!(wrong.status, 401);
    assert!(String::from_utf8_lossy(&wrong.body).contains("Your webhooks"));
    let other = [FORM, ("origin", "http://evil.example"), ("host", "127.0.0.1")];
    let forged = browser.api.raw("POST", "/dashboard/login", &other, format!("key={}", redrive.key())).await;
    assert_eq!(forged.status, 403, "a form of another site starts no session");
}

#[tokio::test]
async fn pages_count_against_rate_limit_of_key() {
    let setup =
        Setup::new().env("REDRIVE_LIMITS_API_REQUESTS_PER_MINUTE", "60").env("REDRIVE_LIMITS_API_BURST", "5");
    let redrive = Redrive::start_with(setup).await;
    let browser = Browser::log_in(&redrive, redrive.key()).await;
    let mut statuses = Vec::new();
    for _ in 0..10 {
        statuses.push(browser.get("/dashboard/t/default/deliveries").await.status);
    }
    assert!(statuses.starts_with(&[200]) && statuses.contains(&429), "{statuses:?}");
}
