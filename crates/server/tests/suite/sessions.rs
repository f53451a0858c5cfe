//! Browser sessions: when they end, on every node, and protection against foreign links, forms and untrusted text.

use std::time::Duration;

use redrive_testkit::{Api, ApiResponse, Browser, FORM, Postgres, Redrive, Setup, sse};
use serde_json::{Value, json};

const HOME: &str = "/dashboard/t/default";

async fn log_out(browser: &Browser, more: &str) -> ApiResponse {
    let token = browser.token(HOME).await;
    let headers = [FORM, ("cookie", browser.cookie.as_str())];
    browser.api.raw("POST", "/dashboard/logout", &headers, format!("token={token}{more}")).await
}

async fn new_key(api: &Api, name: &str) -> Value {
    api.post("/v1/admin-keys", json!({"name": name})).await.expect(201)
}

fn html(response: &ApiResponse) -> String {
    String::from_utf8_lossy(&response.body).into_owned()
}

/// Returns the value of a hidden form field.
fn field(html: &str, name: &str) -> String {
    let (_, rest) = html.split_once(&format!("name=\"{name}\" value=\"")).expect("a field");
    rest.split('"').next().unwrap().to_owned()
}

/// Percent-encodes a value for a form.
fn encoded(value: &str) -> String {
    value.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[tokio::test]
async fn cookie_is_invalid_after_logout() {
    let redrive = Redrive::start().await;
    let (browser, other) =
        (Browser::log_in(&redrive, redrive.key()).await, Browser::log_in(&redrive, redrive.key()).await);
    let token = browser.token(HOME).await;
    assert_eq!(log_out(&browser, "").await.status, 303);
    assert_eq!(browser.get(HOME).await.status, 303);
    let headers = [("cookie", browser.cookie.as_str()), ("x-redrive-token", token.as_str())];
    assert_eq!(browser.api.raw("GET", "/v1/webhooks", &headers, "").await.status, 401);
    assert_eq!(other.get(HOME).await.status, 200, "another browser with the same key stays logged in");
}

#[tokio::test]
async fn logging_out_everywhere_ends_all_sessions_of_the_key() {
    let redrive = Redrive::start().await;
    let key = new_key(&redrive.api(), "shared").await;
    let key = key["key"].as_str().unwrap();
    let (first, second) = (Browser::log_in(&redrive, key).await, Browser::log_in(&redrive, key).await);
    let other = Browser::log_in(&redrive, redrive.key()).await;
    assert!(first.page("/dashboard/session").await.contains("This key has 2 sessions"));
    assert_eq!(log_out(&first, "&everywhere=true").await.status, 303);
    assert_eq!((first.get(HOME).await.status, second.get(HOME).await.status), (303, 303));
    assert_eq!(other.get(HOME).await.status, 200, "sessions of another key continue");
    let log = redrive.api().get("/v1/audit-log").await.expect(200).to_string();
    assert!(log.contains("api_key.end_sessions"), "{log}");
}

#[tokio::test]
async fn live_page_ends_with_its_session() {
    let redrive = Redrive::start().await;
    let browser = Browser::log_in(&redrive, redrive.key()).await;
    let path = format!("/dashboard/live?page={}", encoded(&format!("{HOME}/deliveries")));
    let mut live = sse(redrive.address(), &path, &browser.cookie).await;
    assert!(live.next("part").await.contains("no deliveries yet"));
    assert_eq!(log_out(&browser, "").await.status, 303);
    // The page itself does not change, so only the end of the session can end the stream.
    live.wait_end().await;
}

#[tokio::test]
async fn login_with_another_key_asks_before_it_replaces_a_session() {
    let redrive = Redrive::start().await;
    let browser = Browser::log_in(&redrive, redrive.key()).await;
    let key = new_key(&redrive.api(), "the other").await;
    let key = key["key"].as_str().unwrap();
    let cookie = ("cookie", browser.cookie.as_str());
    let log_in =
        async |form: String| browser.api.raw("POST", "/dashboard/login", &[FORM, cookie], form).await;

    let request = log_in(format!("key={key}")).await;
    assert_eq!((request.status, request.header("set-cookie")), (409, None));
    let page = html(&request);
    assert!(page.contains("logged in as <b>admin</b>") && page.contains("<b>the other</b>"), "{page}");
    assert!(!page.contains(key), "the key is not in the page");
    assert_eq!(browser.get(HOME).await.status, 200, "the current session continues");
    let offer = encoded(&field(&page, "offer"));
    assert_eq!(log_in(format!("offer={offer}&replace=made-up")).await.status, 409);

    let replace = encoded(&field(&page, "replace"));
    let switched = log_in(format!("offer={offer}&replace={replace}")).await;
    assert_eq!(switched.status, 303);
    assert!(switched.header("set-cookie").unwrap().starts_with("redrive_session="));
    assert_eq!(browser.get(HOME).await.status, 303, "the session that was replaced has ended");
    // Logging in again with the same key, as the link of `redrive dev` does, needs no confirmation.
    let again = Browser::log_in(&redrive, redrive.key()).await;
    let headers = [FORM, ("cookie", again.cookie.as_str())];
    let same = again.api.raw("POST", "/dashboard/login", &headers, format!("key={}", redrive.key())).await;
    assert_eq!(same.status, 303);
}

#[tokio::test]
async fn form_with_foreign_origin_is_rejected() {
    let redrive = Redrive::start().await;
    let browser = Browser::log_in(&redrive, redrive.key()).await;
    let token = browser.token(HOME).await;
    let (address, cookie) = (redrive.address().to_string(), ("cookie", browser.cookie.as_str()));
    let own = format!("http://{address}");
    for (origin, expected) in [("null", 403), ("http://evil.example", 403), (own.as_str(), 303)] {
        let headers = [FORM, cookie, ("origin", origin), ("host", &address)];
        let login = format!("key={}", redrive.key());
        let response = browser.api.raw("POST", "/dashboard/login", &headers[..1], login.clone()).await;
        assert_eq!(response.status, 303, "a client that is not a browser sends no origin");
        let without_cookie = [FORM, ("origin", origin), ("host", &address)];
        let response = browser.api.raw("POST", "/dashboard/login", &without_cookie, login).await;
        assert_eq!(response.status, expected, "{origin}");
        let response = browser.api.raw("POST", "/dashboard/logout", &headers, format!("token={token}")).await;
        assert_eq!(response.status, expected, "{origin}");
    }
    assert_eq!(browser.get(HOME).await.status, 303, "only the last request ended the session");
}

#[tokio::test]
async fn control_characters_in_next_fall_back_to_the_home_page() {
    let redrive = Redrive::start().await;
    let api = redrive.api().without_key();
    for next in ["/dashboard/%0d%0aset-cookie:%20a=b", "/dashboard/%00", "/dashboard/%C3%BC", "%0d%0a"] {
        let form = format!("key={}&next={next}", redrive.key());
        let response = api.raw("POST", "/dashboard/login", &[FORM], form).await;
        assert_eq!((response.status, response.header("location")), (303, Some(HOME)), "{next}");
        assert_eq!(api.get(&format!("/dashboard/login?next={next}")).await.status, 200, "{next}");
    }
}

#[tokio::test]
async fn cookie_has_host_prefix_behind_a_tls_proxy() {
    for (public, host) in [
        ("https://hooks.example.com:443", "hooks.example.com"),
        ("https://b\u{fc}cher.example", "xn--bcher-kva.example:443"),
    ] {
        let redrive = Redrive::start_with(Setup::new().env("REDRIVE_SERVER_PUBLIC_URL", public)).await;
        let (api, host) = (redrive.api().without_key(), ("host", host));
        let form = format!("key={}", redrive.key());
        let set = api.raw("POST", "/dashboard/login", &[FORM, host], form).await;
        let set = set.header("set-cookie").unwrap().to_owned();
        assert!(set.starts_with("__Host-redrive_session=") && set.ends_with("; Secure"), "{set}");
        let cookie = set.split(';').next().unwrap();
        assert_eq!(api.raw("GET", HOME, &[host, ("cookie", cookie)], "").await.status, 200);
        let planted = cookie.strip_prefix("__Host-").unwrap();
        assert_eq!(api.raw("GET", HOME, &[host, ("cookie", planted)], "").await.status, 303);
    }
}

#[tokio::test]
async fn failed_logins_are_rate_limited_but_a_valid_key_still_works() {
    let redrive =
        Redrive::start_with(Setup::new().env("REDRIVE_SERVER_TRUSTED_PROXIES", r#"["127.0.0.1/32"]"#)).await;
    let api = redrive.api().without_key();
    let log_in = async |key: &str, client: &str| {
        let headers = [FORM, ("x-forwarded-for", client)];
        api.raw("POST", "/dashboard/login", &headers, format!("key={key}")).await
    };
    for _ in 0..10 {
        assert_eq!(log_in("rdk_wrong", "192.0.2.1").await.status, 401);
    }
    let limited = log_in("rdk_wrong", "192.0.2.1").await;
    assert_eq!(limited.status, 429);
    assert!(limited.header("retry-after").unwrap().parse::<u64>().unwrap() <= 6);
    assert_eq!(
        log_in("rdk_wrong", "192.0.2.2").await.status,
        401,
        "failures of another address are counted separately"
    );
    assert_eq!(
        log_in(redrive.key(), "192.0.2.1").await.status,
        303,
        "a valid key is accepted despite the failures"
    );
}

#[tokio::test]
async fn session_survives_a_restart_and_ends_with_a_changed_admin_key() {
    let mut redrive = Redrive::start().await;
    let browser = Browser::log_in(&redrive, redrive.key()).await;
    redrive.restart().await;
    let get = async |redrive: &Redrive| {
        let api = redrive.api().without_key();
        api.raw("GET", HOME, &[("cookie", browser.cookie.as_str())], "").await.status
    };
    assert_eq!(get(&redrive).await, 200);
    redrive.kill();
    let changed = Setup::new()
        .data_dir(redrive.data_dir())
        .env("REDRIVE_ADMIN_KEY", "rdk_changed_0123456789abcdef0123456789abcdef");
    let changed = Redrive::start_with(changed).await;
    assert_eq!(get(&changed).await, 303);
}

#[tokio::test]
async fn bidi_controls_in_user_text_are_escaped() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let turned = "a\u{202e}b\u{2066}c";
    let fields = json!({"description": turned, "metadata": {"note": turned}});
    let webhook = api.create_webhook("http://127.0.0.1:9009/", fields).await;
    api.post("/v1/tenants", json!({"id": "acme", "name": turned})).await.expect(201);
    let key = new_key(&api, turned).await;
    let browser = Browser::log_in(&redrive, key["key"].as_str().unwrap()).await;
    let webhook = format!("{HOME}/webhooks/{}", webhook["id"].as_str().unwrap());
    for page in [HOME, &webhook, "/dashboard/session", "/dashboard/admin/tenants", "/dashboard/admin/keys"] {
        let html = browser.page(page).await;
        assert!(!html.contains(['\u{202e}', '\u{2066}']), "{page}");
        assert!(html.contains("a\\u{202e}b\\u{2066}c"), "{page}");
    }
    let form = browser.page(&format!("{webhook}/edit")).await;
    assert!(form.contains(turned), "form fields keep the exact value");
}

mod slow {
    use super::*;

    #[tokio::test]
    async fn sessions_are_shared_by_nodes_and_survive_a_slow_store() {
        let database = Postgres::shared().await;
        let on = || {
            Setup::new()
                .database_url(database.url())
                .env("REDRIVE_DATABASE_WRITE_CONNECTIONS", "4")
                .env("REDRIVE_DATABASE_READ_CONNECTIONS", "2")
        };
        let (here, there) = (Redrive::start_with(on()).await, Redrive::start_with(on()).await);
        let browser = Browser::log_in(&here, here.key()).await;
        let cookie = [("cookie", browser.cookie.as_str())];
        let elsewhere = there.api().without_key();
        let status = async || elsewhere.raw("GET", HOME, &cookie, "").await.status;
        assert_eq!(status().await, 200);

        let lock = "BEGIN; LOCK TABLE browser_sessions IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(5); COMMIT";
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        let locked = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            status().await
        };
        let (_, while_locked) = tokio::join!(database.execute(lock), locked);
        assert_eq!(while_locked, 503, "an unavailable store does not end a session");
        assert_eq!(status().await, 200);

        assert_eq!(log_out(&browser, "").await.status, 303);
        let ended = async {
            while status().await != 303 {
                tokio::time::sleep(Duration::from_millis(50)).await
            }
        };
        tokio::time::timeout(redrive_testkit::WAIT_TIMEOUT, ended)
            .await
            .expect("the session was not ended on the other node");
    }
}
