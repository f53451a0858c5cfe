//! Pages for operators: event types, tenants, keys, the audit log and settings; the view of a portal session; and
//! the first steps guide.

use redrive_testkit::{Api, Browser, Postgres, Receiver, Redrive, Setup, sse};
use serde_json::{Value, json};

const HOSTILE: &str = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>";

async fn create_tenant(api: &Api, id: &str) {
    api.post("/v1/tenants", json!({"id": id})).await.expect(201);
}

async fn create_key(api: &Api, tenant: &str, scopes: &[&str]) -> String {
    let path = format!("/v1/tenants/{tenant}/api-keys");
    let created = api.post(&path, json!({"name": "k", "scopes": scopes})).await.expect(201);
    created["key"].as_str().unwrap().to_owned()
}

async fn portal(redrive: &Redrive, tenant: &str) -> Browser {
    let session =
        redrive.api().post("/v1/portal-sessions", json!({"tenant_id": tenant, "name": "jane"})).await;
    Browser::log_in(redrive, session.expect(201)["token"].as_str().unwrap()).await
}

/// Asserts that untrusted input appears only as text.
fn assert_inert(page: &str) {
    assert!(!page.contains("<script>alert") && !page.contains("<img src=x"), "{page}");
    assert!(page.contains("alert(1)"), "untrusted text is shown as text:\n{page}");
}

/// Returns the text of a page's main part, without tags and with collapsed whitespace.
fn text_of(page: &str) -> String {
    let (_, main) = page.split_once("<main").expect("a main part");
    let mut text = String::new();
    let mut in_mark = true;
    for c in main.chars() {
        match c {
            '<' => in_mark = true,
            '>' => {
                in_mark = false;
                text.push(' ');
            }
            c if !in_mark => text.push(c),
            _ => {}
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn admin_pages_require_admin_key() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    create_tenant(&api, "acme").await;
    let keyholder =
        Browser::log_in(&redrive, &create_key(&api, "acme", &["publish", "read", "manage"]).await).await;
    let customer = portal(&redrive, "acme").await;
    let admin = Browser::log_in(&redrive, redrive.key()).await;
    for page in ["tenants", "tenants/acme", "new-tenant", "keys", "keys?tenant=acme", "audit", "settings"] {
        let page = format!("/dashboard/admin/{page}");
        assert_eq!(admin.get(&page).await.status, 200, "{page}");
        for other in [&keyholder, &customer] {
            let refused = other.get(&page).await;
            assert_eq!(refused.status, 403, "{page}");
            let html = String::from_utf8_lossy(&refused.body);
            assert!(html.contains("Not allowed") && html.contains("admin key"), "{html}");
        }
        assert_eq!(redrive.api().without_key().get(&page).await.status, 303, "{page}");
    }
}

#[tokio::test]
async fn portal_session_sees_only_its_tenant_and_cannot_publish() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    for name in ["acme", "globex"] {
        create_tenant(&api, name).await;
        let event_type = json!({"name": format!("{name}.created"), "example": {"secret_of": name}});
        api.post(&format!("/v1/event-types?tenant_id={name}"), event_type).await.expect(201);
    }
    let customer = portal(&redrive, "acme").await;
    assert_eq!(customer.get("/dashboard").await.header("location"), Some("/dashboard/t/acme"));
    let home = customer.page("/dashboard/t/acme").await;
    for section in ["", "/webhooks", "/deliveries", "/events", "/dead", "/event-types"] {
        assert!(home.contains(&format!("href=\"/dashboard/t/acme{section}\"")), "{section}");
    }
    assert!(!home.contains("/dashboard/admin") && !home.contains("/docs") && !home.contains("/publish"));
    assert!(home.contains("Session expires"));
    let types = customer.page("/dashboard/t/acme/event-types").await;
    assert!(types.contains("acme.created") && !types.contains("Register"));
    let one = customer.page("/dashboard/t/acme/event-types/acme.created").await;
    assert!(one.contains("secret_of") && !one.contains("data-call") && !one.contains("/edit"));
    for not_theirs in ["/publish", "/new-event-type", "/event-types/acme.created/edit"] {
        assert_eq!(customer.get(&format!("/dashboard/t/acme{not_theirs}")).await.status, 403, "{not_theirs}");
    }
    for other in ["", "/event-types", "/event-types/globex.created", "/publish"] {
        assert_eq!(customer.get(&format!("/dashboard/t/globex{other}")).await.status, 404, "{other}");
    }
    assert_eq!(customer.get("/dashboard/t/acme/event-types/globex.created").await.status, 404);
}

#[tokio::test]
async fn catalogue_shows_event_types_as_written() {
    let redrive = Redrive::start().await;
    let (api, admin) = (redrive.api(), Browser::log_in(&redrive, redrive.key()).await);
    let section = "/dashboard/t/default/event-types";
    assert!(admin.page(section).await.contains("No event types are registered"));
    let body = r#"{"name": "order.created", "description": "An order\nwas placed", "archived": true,
        "example": {"z": 12345678901234567890, "a": 1.10}, "schema": {"type": "object", "required": ["z"]}}"#;
    let json = ("content-type", "application/json");
    api.raw("POST", "/v1/event-types", &[json], body).await.expect(201);
    let hostile = json!({"name": "evil", "description": HOSTILE, "example": {HOSTILE: HOSTILE}});
    api.post("/v1/event-types", hostile).await.expect(201);
    let list = admin.page(section).await;
    assert_inert(&list);
    assert!(list.contains("archived") && list.contains("in use"));
    assert!(!admin.page(&format!("{section}?archived=true")).await.contains("evil"));
    let one = admin.page(&format!("{section}/order.created")).await;
    let formatted = "{\n  &#34;z&#34;: 12345678901234567890,\n  &#34;a&#34;: 1.10\n}";
    assert!(one.contains(formatted) && one.contains("required"), "{one}");
    assert_inert(&admin.page(&format!("{section}/evil")).await);
    assert_inert(&admin.page(&format!("{section}/evil/edit")).await);
    for nothing in ["none", "no.such", "%20", "a%2Fb", "x%00y"] {
        assert_eq!(admin.get(&format!("{section}/{nothing}")).await.status, 404, "{nothing}");
    }
    // A read-only viewer gets no buttons.
    let reader = Browser::log_in(&redrive, &create_key(&api, "default", &["read"]).await).await;
    let one = reader.page(&format!("{section}/order.created")).await;
    assert!(
        !one.contains("data-call=\"PATCH")
            && !one.contains("data-call=\"DELETE")
            && !one.contains("/publish")
    );
    assert_eq!(reader.get("/dashboard/t/default/new-event-type").await.status, 403);
}

#[tokio::test]
async fn catalogue_is_paged() {
    let redrive = Redrive::start().await;
    let (api, admin) = (redrive.api(), Browser::log_in(&redrive, redrive.key()).await);
    for n in 0..53 {
        api.post("/v1/event-types", json!({"name": format!("type.n{n:02}")})).await.expect(201);
    }
    let first = admin.page("/dashboard/t/default/event-types").await;
    assert!(first.contains("type.n49") && !first.contains("type.n50"));
    let next = first.split("rel=\"next\" href=\"").nth(1).unwrap().split('"').next().unwrap();
    let second = admin.page(&next.replace("&#38;", "&").replace("&amp;", "&")).await;
    assert!(second.contains("type.n50") && second.contains("type.n52") && !second.contains("type.n49"));
    assert!(!second.contains("rel=\"next\"") && second.contains("From the beginning"));
}

#[tokio::test]
async fn test_event_form_has_example_and_shows_deliveries() {
    let (redrive, receiver) = (Redrive::start().await, Receiver::start().await);
    let (api, admin) = (redrive.api(), Browser::log_in(&redrive, redrive.key()).await);
    api.post("/v1/event-types", json!({"name": "order.created", "example": {"n": 1}})).await.expect(201);
    let section = "/dashboard/t/default/publish";
    let form = admin.page(&format!("{section}?type=order.created")).await;
    assert!(form.contains("value=\"order.created\"") && form.contains("&#34;n&#34;: 1"), "{form}");
    assert!(admin.page(&format!("{section}?type=free.one")).await.contains("value=\"free.one\""));
    assert_inert(&admin.page(&format!("{section}?type=%3Cscript%3Ealert(1)%3C/script%3E")).await);
    let nowhere = api.publish("other.type", json!({"text": HOSTILE})).await;
    let page = admin.page(&format!("{section}?event={}", nowhere["id"].as_str().unwrap())).await;
    assert_inert(&page);
    assert!(page.contains("No webhook subscribes to this event"));
    api.create_webhook(&receiver.url(), Value::Null).await;
    let body = r#"{"event_type": "order.created", "data": {"n": 12345678901234567890}}"#;
    let sent = admin.call(section, "POST", "/v1/events", body).await.expect(202);
    let id = sent["id"].as_str().unwrap();
    let path = format!("/dashboard/live?page=%2Fdashboard%2Ft%2Fdefault%2Fpublish%3Fevent%3D{id}");
    let mut live = sse(redrive.address(), &path, &admin.cookie).await;
    while !live.next("part").await.contains("delivered") {}
    assert!(String::from_utf8_lossy(&receiver.arrivals()[0].body).contains("12345678901234567890"));
    let again = admin.page(&format!("{section}?event={id}&repeated=true")).await;
    assert!(again.contains("No new event was published") && again.contains("12345678901234567890"));
    let manager = Browser::log_in(&redrive, &create_key(&api, "default", &["manage"]).await).await;
    assert_eq!(manager.get(section).await.status, 403, "this key publishes nothing");
}

#[tokio::test]
async fn tenants_are_found_by_id_prefix() {
    let redrive = Redrive::start().await;
    let (api, admin) = (redrive.api(), Browser::log_in(&redrive, redrive.key()).await);
    for name in ["acme", "acme-eu", "acme-us", "acmf", "b"] {
        create_tenant(&api, name).await;
    }
    api.patch("/v1/tenants/acme", json!({"name": HOSTILE, "quotas": {"max_webhooks": 7}})).await.expect(200);
    let listed = async |query: &str| {
        let page = admin.page(&format!("/dashboard/admin/tenants{query}")).await;
        let rows = page.split("id=\"tenant-").skip(1).map(|row| row.split('"').next().unwrap().to_owned());
        rows.collect::<Vec<_>>()
    };
    assert_eq!(listed("").await, ["acme", "acme-eu", "acme-us", "acmf", "b", "default"]);
    assert_eq!(listed("?prefix=acme").await, ["acme", "acme-eu", "acme-us"]);
    assert_eq!(listed("?prefix=acme-").await, ["acme-eu", "acme-us"]);
    assert_eq!(listed("?prefix=ACME-").await, [] as [String; 0], "ids are case-sensitive");
    assert_eq!(listed("?prefix=%3Cb%3E").await, [] as [String; 0]);
    // The API finds the same tenants, with paging.
    let ids = async |query: &str| {
        let page = api.get(&format!("/v1/tenants?{query}")).await.expect(200);
        let ids: Vec<_> = page["data"].as_array().unwrap().iter().map(|one| one["id"].clone()).collect();
        (ids, page["next_cursor"].clone())
    };
    assert_eq!(ids("prefix=acme&limit=2").await, (vec![json!("acme"), json!("acme-eu")], json!("acme-eu")));
    assert_eq!(ids("prefix=acme&limit=2&cursor=acme-eu").await, (vec![json!("acme-us")], Value::Null));
    assert_eq!(ids("prefix=acme&offset=1").await.0, [json!("acme-eu"), json!("acme-us")]);
    assert_eq!(ids("prefix=acme-&offset=1").await.0, [json!("acme-us")]);
    assert_inert(&admin.page("/dashboard/admin/tenants").await);
    let one = admin.page("/dashboard/admin/tenants/acme").await;
    assert_inert(&one);
    assert!(one.contains("data-confirm-by=\"acme\"") && one.contains("name=\"quotas.max_webhooks\""));
    assert!(!admin.page("/dashboard/admin/tenants/default").await.contains("DELETE /v1/tenants"));
    assert_eq!(admin.get("/dashboard/admin/tenants/unknown").await.status, 404);
}

#[tokio::test]
async fn secrets_shown_once_appear_on_no_page_later() {
    let redrive = Redrive::start().await;
    let (api, admin) = (redrive.api(), Browser::log_in(&redrive, redrive.key()).await);
    create_tenant(&api, "acme").await;
    let new = json!({"name": HOSTILE, "scopes": ["publish"], "allowed_networks": ["10.0.0.0/8"]}).to_string();
    let section = "/dashboard/admin/keys?tenant=acme";
    let created = admin.call(section, "POST", "/v1/tenants/acme/api-keys", &new).await.expect(201);
    let root = admin.call("/dashboard/admin/keys", "POST", "/v1/admin-keys", r#"{"name": "root"}"#).await;
    let root = root.expect(201);
    let session = r#"{"tenant_id": "acme", "name": "jane"}"#;
    let session = admin.call(section, "POST", "/v1/portal-sessions", session).await.expect(201);
    let keys = admin.page(section).await;
    assert_inert(&keys);
    let text = text_of(&keys);
    assert!(text.contains("active publish 10.0.0.0/8"), "{text}");
    assert!(!text.contains("jane"), "sessions are not listed as keys");
    assert!(text_of(&admin.page("/dashboard/admin/keys").await).contains("root"));
    let secrets = [&created["key"], &root["key"], &session["token"]].map(|secret| secret.as_str().unwrap());
    for page in ["keys", "keys?tenant=acme", "tenants/acme", "audit", "settings"] {
        let page = admin.page(&format!("/dashboard/admin/{page}")).await;
        assert!(secrets.iter().all(|secret| !page.contains(secret)));
        assert!(!page.contains(redrive.key()));
    }
    let revoke = format!("/v1/tenants/acme/api-keys/{}", created["id"].as_str().unwrap());
    assert_eq!(admin.call(section, "DELETE", &revoke, "").await.status, 204);
    let after = admin.page(section).await;
    assert!(text_of(&after).contains("revoked") && !after.contains("data-call=\"DELETE"));
    assert_eq!(admin.get("/dashboard/admin/keys?tenant=unknown").await.status, 404);
}

#[tokio::test]
async fn audit_log_shows_actor_action_and_differences() {
    let redrive = Redrive::start().await;
    let (api, admin) = (redrive.api(), Browser::log_in(&redrive, redrive.key()).await);
    create_tenant(&api, "acme").await;
    api.patch("/v1/tenants/acme", json!({"name": HOSTILE, "max_in_flight": 3})).await.expect(200);
    api.patch("/v1/tenants/acme", json!({"max_in_flight": 5})).await.expect(200);
    api.post("/v1/tenants", json!({"id": "acme"})).await.expect(409);
    let log = admin.page("/dashboard/admin/audit").await;
    assert_inert(&log);
    let text = text_of(&log);
    assert!(text.contains("admin from 127.0.0.1 tenant.update acme"), "{text}");
    assert!(text.contains("rules.max_in_flight 3 5"), "{text}");
    assert!(text.contains("exists or was deleted") && text.contains("rejected"), "{text}");
    let filtered = text_of(&admin.page("/dashboard/admin/audit?action=tenant.create&tenant_id=acme").await);
    assert!(filtered.contains("tenant.create") && !filtered.contains("tenant.update acme"), "{filtered}");
    // The time as a date-time field sends it: to the minute, without a zone.
    let future = admin.page("/dashboard/admin/audit?from=2100-01-01T00:00&to=").await;
    assert!(future.contains("No entries match") && future.contains("value=\"2100-01-01T00:00:00Z\""));
    let bad = admin.get("/dashboard/admin/audit?from=soon").await;
    assert_eq!(bad.status, 400);
    assert!(String::from_utf8_lossy(&bad.body).contains("not an RFC 3339 time"));
}

#[tokio::test]
async fn settings_page_shows_meaning_but_no_secrets() {
    let redrive = Redrive::start().await;
    let admin = Browser::log_in(&redrive, redrive.key()).await;
    let page = admin.page("/dashboard/admin/settings").await;
    let text = text_of(&page);
    for shown in [
        "retention.events 90 d Retention of events",
        "auth.admin_key set, not shown explicit",
        "secrets.master_key set, not shown explicit",
        "Store SQLite",
        "role all",
        "pools default",
        "Dead letters 0",
    ] {
        assert!(text.contains(shown), "{shown} is not in: {text}");
    }
    assert!(!page.contains(redrive.key()) && !page.contains("BwcHBwcH"), "no key is shown");
    assert!(page.len() < 100_000, "{} bytes", page.len());
}

#[tokio::test]
async fn settings_page_lists_nodes_of_shared_store() {
    let database = Postgres::shared().await;
    let on = |name: &str, role: &str| {
        let node = Setup::new().database_url(database.url()).role(role).env("REDRIVE_NODE", name);
        node.env("REDRIVE_DATABASE_WRITE_CONNECTIONS", "4").env("REDRIVE_DATABASE_READ_CONNECTIONS", "2")
    };
    let redrive = Redrive::start_with(on("front", "api")).await;
    let _worker = Redrive::start_with(on("back", "worker").arg("--pool").arg("gold")).await;
    let admin = Browser::log_in(&redrive, redrive.key()).await;
    let text = text_of(&admin.page("/dashboard/admin/settings").await);
    for shown in [
        "Store PostgreSQL shared by 2 nodes",
        "front this node api sends nothing",
        "back worker gold",
        "role api",
    ] {
        assert!(text.contains(shown), "{shown} is not in: {text}");
    }
    assert!(text.contains("none: it sends nothing"), "{text}");
}

#[tokio::test]
async fn first_steps_are_marked_done_live() {
    let (redrive, receiver) = (Redrive::start().await, Receiver::start().await);
    let browser = Browser::log_in(&redrive, redrive.key()).await;
    let home = "/dashboard/t/default";
    let mut live =
        sse(redrive.address(), "/dashboard/live?page=%2Fdashboard%2Ft%2Fdefault", &browser.cookie).await;
    let steps = |part: &str| {
        ["step-webhook", "step-test", "step-arrival"]
            .map(|step| part.contains(&format!("class=\"done\" id=\"{step}\"")))
    };
    assert_eq!(steps(&live.next("part").await), [false; 3]);
    let webhook = json!({"url": receiver.url(), "events": ["*"]}).to_string();
    let created = browser.call(home, "POST", "/v1/webhooks", &webhook).await.expect(201);
    let part = live.next("part").await;
    assert_eq!(steps(&part), [true, false, false]);
    assert!(!part.contains(created["secret"].as_str().unwrap()));
    let test = format!("/v1/webhooks/{}/test", created["id"].as_str().unwrap());
    browser.call(home, "POST", &test, "{}").await.expect(202);
    while steps(&live.next("part").await) != [true; 3] {}
    // With a second webhook the guide is no longer shown.
    redrive.api().create_webhook(&receiver.url(), Value::Null).await;
    assert!(!browser.page(home).await.contains("step-webhook"));
    // A viewer that may not create webhooks is not asked to.
    create_tenant(&redrive.api(), "acme").await;
    let reader = Browser::log_in(&redrive, &create_key(&redrive.api(), "acme", &["read"]).await).await;
    let page = reader.page("/dashboard/t/acme").await;
    assert!(page.contains("step-webhook") && !page.contains("POST /v1/webhooks"));
}

#[tokio::test]
async fn tenant_of_page_is_taken_from_path() {
    let redrive = Redrive::start().await;
    for tenant in ["acme", "globex"] {
        redrive.api().post("/v1/tenants", json!({"id": tenant})).await.expect(201);
    }
    let browser = Browser::log_in(&redrive, redrive.key()).await;
    let page = browser.page("/dashboard/t/acme/dead?tenant_id=globex&event_type=order.paid").await;
    assert!(page.contains("DELETE /v1/dlq?event_type=order.paid"), "{page}");
    assert!(!page.contains("globex"), "{page}");
}
