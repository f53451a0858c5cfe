//! The HTTP server facing untrusted clients: security headers, CORS, authentication errors, trusted proxies.

use std::io::Read;

use redrive_testkit::{Api, ApiResponse, Redrive, Setup};
use serde_json::json;

/// Asserts the security headers that every response has.
#[track_caller]
fn assert_security_headers(response: &ApiResponse) {
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("x-frame-options", "DENY"),
    ] {
        assert_eq!(response.header(name), Some(value), "{response:?}");
    }
    assert!(response.header("x-request-id").is_some_and(|id| id.len() == 28), "{response:?}");
    assert_eq!(response.header("server"), None);
    assert_eq!(response.header("strict-transport-security"), None, "plain HTTP has no HSTS header");
    assert_eq!(response.header("access-control-allow-origin"), None);
}

#[tokio::test]
async fn every_response_has_security_headers() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let anonymous = api.without_key();
    let large = json!({"event_type": "a.b", "data": "x".repeat(1 << 20)});
    for (response, status) in [
        (anonymous.get("/healthz").await, 200),
        (anonymous.get("/metrics").await, 200),
        (anonymous.get("/openapi.json").await, 200),
        (api.get("/v1/webhooks").await, 200),
        (api.post("/v1/events", json!({"event_type": "a.b", "data": 1})).await, 202),
        (api.post("/v1/events", json!({})).await, 400),
        (anonymous.get("/v1/webhooks").await, 401),
        (api.get("/nowhere").await, 404),
        (api.delete("/v1/events").await, 405),
        (api.post("/v1/events", large).await, 413),
        (api.raw("HEAD", "/nowhere", &[], "").await, 404),
    ] {
        assert_eq!(response.status, status, "{response:?}");
        assert_security_headers(&response);
        assert_eq!(response.header("cache-control"), Some("no-store"), "{response:?}");
        assert_eq!(
            response.header("content-security-policy"),
            Some("default-src 'none'; frame-ancestors 'none'"),
            "{response:?}"
        );
    }
}

#[tokio::test]
async fn docs_page_may_run_only_its_own_scripts() {
    let redrive = Redrive::start().await;
    let api = redrive.api().without_key();
    let page = api.get("/docs/").await;
    assert_security_headers(&page);
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'self'; "), "{policy}");
    assert!(policy.contains("connect-src 'self'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert!(!policy.contains("http") && !policy.contains("unsafe-eval"), "{policy}");
    // The policy forbids inline scripts, so the page must have none.
    assert_eq!(page.header("content-encoding"), Some("gzip"));
    let mut html = String::new();
    flate2::read::GzDecoder::new(&page.body[..]).read_to_string(&mut html).unwrap();
    let scripts = html.matches("<script").count();
    assert!(scripts > 0 && html.matches("<script src=\"./").count() == scripts, "{html}");
    assert!(!html.contains(" onload=") && !html.contains("<style"), "{html}");
    let settings = api.get("/docs/swagger-initializer.js").await;
    let settings = String::from_utf8_lossy(&settings.body).into_owned();
    assert!(
        settings.contains("/openapi.json") && settings.contains("SwaggerUIStandalonePreset"),
        "{settings}"
    );
    assert!(settings.contains("\"validatorUrl\": \"none\""), "no external validator is used: {settings}");
    assert_eq!(api.get("/docsx").await.header("cache-control"), Some("no-store"));
}

#[tokio::test]
async fn request_id_is_in_the_response_and_the_log() {
    let redrive = Redrive::start_with(Setup::new().env("REDRIVE_LOG_LEVEL", "debug")).await;
    let api = redrive.api();
    let named = |id: &'static str| api.raw_get("/nowhere", ("x-request-id", id));
    let kept = named("trace-1.span_2").await;
    assert_eq!(kept.header("x-request-id"), Some("trace-1.span_2"));
    assert_eq!(kept.json()["request_id"], "trace-1.span_2");
    assert_eq!(kept.header("content-length"), Some(kept.body.len().to_string().as_str()));
    redrive.wait_output("trace-1.span_2").await;
    let fine = api.raw("GET", "/healthz", &[("x-request-id", "fine")], "").await;
    assert_eq!((fine.status, fine.header("x-request-id")), (200, Some("fine")));
    for odd in ["two words", "<b>", "a,b"] {
        let response = named(odd).await;
        let id = response.header("x-request-id").unwrap();
        assert!(id.starts_with("req_") && response.json()["request_id"] == id, "{response:?}");
    }
    let document = api.get("/openapi.json").await.expect(200);
    assert!(document["components"]["schemas"]["Problem"]["properties"]["request_id"].is_object());
}

/// Adds a `GET` with one extra header.
trait Get {
    async fn raw_get(&self, path: &str, header: (&str, &str)) -> ApiResponse;
}

impl Get for Api {
    async fn raw_get(&self, path: &str, header: (&str, &str)) -> ApiResponse {
        self.raw("GET", path, &[header], "").await
    }
}

const ORIGIN: (&str, &str) = ("origin", "https://app.example.com");
const PREFLIGHT: (&str, &str) = ("access-control-request-method", "POST");

#[tokio::test]
async fn cors_is_denied_by_default() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let response = api.raw_get("/v1/webhooks", ORIGIN).await;
    assert_security_headers(&response);
    assert_eq!((response.status, response.header("vary")), (200, None));
    let preflight = api.without_key().raw("OPTIONS", "/v1/events", &[ORIGIN, PREFLIGHT], "").await;
    assert_security_headers(&preflight);
    assert_eq!(preflight.status, 405);
}

#[tokio::test]
async fn cors_is_allowed_for_configured_origins() {
    let origins = r#"["https://app.example.com", "http://localhost:3000"]"#;
    let redrive = Redrive::start_with(Setup::new().env("REDRIVE_SERVER_CORS_ORIGINS", origins)).await;
    let api = redrive.api();
    let preflight = api.without_key().raw("OPTIONS", "/v1/events", &[ORIGIN, PREFLIGHT], "").await;
    assert_eq!(preflight.status, 204);
    assert_eq!(preflight.header("access-control-allow-origin"), Some(ORIGIN.1));
    assert_eq!(preflight.header("access-control-allow-credentials"), None);
    assert!(preflight.header("access-control-allow-methods").unwrap().contains("PATCH"));
    let headers = preflight.header("access-control-allow-headers").unwrap();
    assert!(headers.contains("authorization") && headers.contains("idempotency-key"), "{headers}");
    assert_eq!(preflight.header("vary"), Some("origin"));

    let response = api.raw_get("/v1/webhooks", ORIGIN).await;
    assert_eq!((response.status, response.header("access-control-allow-origin")), (200, Some(ORIGIN.1)));
    assert!(response.header("access-control-expose-headers").unwrap().contains("x-request-id"));
    let refused = api.without_key().raw_get("/v1/webhooks", ORIGIN).await;
    assert_eq!(refused.status, 401, "an allowed origin does not replace a key");
    assert_eq!(refused.header("access-control-allow-origin"), Some(ORIGIN.1), "the page can read the error");

    for other in ["https://app.example.com.evil.example", "http://app.example.com", "null", "https://x"] {
        let response = api.raw_get("/v1/webhooks", ("origin", other)).await;
        assert_eq!((response.status, response.header("access-control-allow-origin")), (200, None), "{other}");
        assert_eq!(response.header("vary"), Some("origin"));
        let preflight = api.raw("OPTIONS", "/v1/events", &[("origin", other), PREFLIGHT], "").await;
        assert_eq!((preflight.status, preflight.header("access-control-allow-origin")), (405, None));
    }
    let options = api.raw("OPTIONS", "/v1/events", &[ORIGIN], "").await;
    assert_eq!(options.status, 405, "OPTIONS without a preflight header is routed normally");
}

#[tokio::test]
async fn every_invalid_key_gets_the_same_response() {
    let redrive = Redrive::start().await;
    let admin = redrive.api();
    let created = admin.post("/v1/tenants/default/api-keys", json!({"scopes": ["read"]})).await.expect(201);
    let revoked = created["key"].as_str().unwrap().to_owned();
    assert_eq!(admin.with_key(&revoked).get("/v1/webhooks").await.status, 200);
    let id = created["id"].as_str().unwrap();
    assert_eq!(admin.delete(&format!("/v1/tenants/default/api-keys/{id}")).await.status, 204);

    let wrong = format!("rdk_{}", "0".repeat(64));
    let nearly = format!("{}x", redrive.key());
    let cases: [(&str, Vec<(&str, String)>); 10] = [
        ("none", vec![]),
        ("unknown", vec![("authorization", format!("Bearer {wrong}"))]),
        ("revoked", vec![("authorization", format!("Bearer {revoked}"))]),
        ("almost the admin key", vec![("authorization", format!("Bearer {nearly}"))]),
        ("malformed", vec![("authorization", "Bearer rdk_x".into())]),
        ("empty", vec![("authorization", "Bearer ".into())]),
        ("no scheme", vec![("authorization", redrive.key().into())]),
        ("another scheme", vec![("authorization", format!("Basic {}", redrive.key()))]),
        ("very long", vec![("authorization", format!("Bearer {}", "x".repeat(8000)))]),
        ("not ASCII", vec![("authorization", "Bearer \u{fc}".into())]),
    ];
    let mut responses = Vec::new();
    for (what, headers) in cases {
        let mut headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        headers.push(("x-request-id", "same"));
        let response = admin.without_key().raw("GET", "/v1/webhooks", &headers, "").await;
        assert_eq!(response.status, 401, "{what}");
        let mut kept = response.headers.clone();
        kept.remove("date");
        responses.push((what, kept, response.body.clone()));
    }
    for (what, headers, body) in &responses {
        assert_eq!((headers, body), (&responses[0].1, &responses[0].2), "{what}");
    }
}

#[tokio::test]
async fn forwarded_client_address_is_used_only_from_trusted_proxies() {
    let setup = || Setup::new().env("REDRIVE_LOG_LEVEL", "debug");
    let call = async |redrive: &Redrive, id: &str, forwarded: &str| {
        let headers = [("x-request-id", id), ("x-forwarded-for", forwarded)];
        redrive.api().raw("GET", "/nowhere", &headers, "").await;
        let at = |client: &str| format!("id=\"{id}\" method=GET path=\"/nowhere\" client={client}");
        redrive.wait_output(&at("")).await;
        let output = redrive.output();
        let line = output.lines().find(|line| line.contains(&at(""))).unwrap().to_owned();
        line.split("client=").nth(1).unwrap().split(' ').next().unwrap().to_owned()
    };
    let redrive = Redrive::start_with(setup()).await;
    assert_eq!(
        call(&redrive, "untrusted", "192.0.2.7").await,
        "127.0.0.1",
        "an untrusted client can set that header"
    );
    let networks = r#"["127.0.0.0/8", "10.0.0.0/8"]"#;
    let redrive = Redrive::start_with(setup().env("REDRIVE_SERVER_TRUSTED_PROXIES", networks)).await;
    assert_eq!(call(&redrive, "one", "192.0.2.7").await, "192.0.2.7");
    assert_eq!(call(&redrive, "spoofed", "1.1.1.1, 192.0.2.7, 10.0.0.1").await, "192.0.2.7");
    assert_eq!(call(&redrive, "mapped", "::ffff:192.0.2.7").await, "192.0.2.7");
    assert_eq!(call(&redrive, "odd", "1.1.1.1, unknown").await, "127.0.0.1");
}

/// Creates a portal session by a request with these headers and returns the base URL of its link.
async fn portal(redrive: &Redrive, headers: &[(&str, &str)]) -> String {
    let mut all = vec![("content-type", "application/json")];
    all.extend(headers);
    let request = redrive.api().raw("POST", "/v1/portal-sessions", &all, r#"{"tenant_id": "default"}"#).await;
    let session = request.expect(201);
    let (link, token) = (session["url"].as_str().unwrap(), session["token"].as_str().unwrap());
    let base = link.strip_suffix(&format!("/portal#{token}"));
    base.unwrap_or_else(|| panic!("{session}")).to_owned()
}

#[tokio::test]
async fn portal_link_uses_the_address_of_the_request_or_the_public_url() {
    const HOST: (&str, &str) = ("host", "Hooks.example.com:8443");
    const HTTPS: (&str, &str) = ("x-forwarded-proto", "https");
    let redrive = Redrive::start().await;
    assert_eq!(portal(&redrive, &[]).await, format!("http://{}", redrive.address()));
    assert_eq!(portal(&redrive, &[HOST]).await, "http://hooks.example.com:8443");
    assert_eq!(
        portal(&redrive, &[HOST, HTTPS]).await,
        "http://hooks.example.com:8443",
        "headers of an untrusted client are ignored"
    );
    let api = redrive.api();
    for odd in ["me@evil.example", "a/b", "a b", "<script>", "x:0"] {
        let headers = [("content-type", "application/json"), ("host", odd)];
        let refused = api.raw("POST", "/v1/portal-sessions", &headers, r#"{"tenant_id": "default"}"#).await;
        let refused = refused.expect(400);
        assert_eq!(refused["field"], "Host", "{refused}");
        assert!(refused["detail"].as_str().unwrap().contains("server.public_url"), "{refused}");
    }
    drop(redrive);

    let proxied = Setup::new().env("REDRIVE_SERVER_TRUSTED_PROXIES", r#"["127.0.0.0/8"]"#);
    let redrive = Redrive::start_with(proxied).await;
    assert_eq!(portal(&redrive, &[HOST]).await, "http://hooks.example.com:8443");
    assert_eq!(portal(&redrive, &[HOST, HTTPS]).await, "https://hooks.example.com:8443");
    drop(redrive);

    let reported = Setup::new().env("REDRIVE_SERVER_PUBLIC_URL", "https://example.org/redrive/");
    let redrive = Redrive::start_with(reported).await;
    assert_eq!(portal(&redrive, &[HOST]).await, "https://example.org/redrive");
    assert_eq!(portal(&redrive, &[("host", "<script>")]).await, "https://example.org/redrive");
}
