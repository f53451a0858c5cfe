//! Tenant isolation: keys with expiry and allowed networks, portal sessions, quotas, and the audit log.

use redrive_testkit::{Postgres, Receiver, Redrive, Setup};
use redrive_tests::{entries, id, text};
use serde_json::{Value, json};

async fn tenant(api: &redrive_testkit::Api, extra: Value) -> String {
    let mut body = json!({"id": "acme"});
    body.as_object_mut().unwrap().extend(extra.as_object().cloned().unwrap_or_default());
    text(&api.post("/v1/tenants", body).await.expect(201)["id"]).to_owned()
}

/// Polls until the condition holds.
async fn eventually(what: &str, is_so: impl AsyncFn() -> bool) {
    let request = async {
        while !is_so().await {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(40), request).await.expect(what);
}

#[tokio::test]
async fn key_expires_and_works_only_from_allowed_networks() {
    let redrive = Redrive::start_with(Setup::new().env("REDRIVE_DEV_CLOCK_SPEED", "60")).await;
    let api = redrive.api();
    tenant(&api, json!({})).await;
    let create_key = async |body: Value| api.post("/v1/tenants/acme/api-keys", body).await;
    let elsewhere =
        create_key(json!({"allowed_networks": ["203.0.113.0/24", "2001:db8::1"]})).await.expect(201);
    assert_eq!(elsewhere["allowed_networks"], json!(["203.0.113.0/24", "2001:db8::1/128"]));
    let here = create_key(json!({"allowed_networks": ["127.0.0.0/8"]})).await.expect(201);
    let status = async |key: &Value| api.with_key(text(&key["key"])).get("/v1/webhooks").await.status;
    assert_eq!((status(&elsewhere).await, status(&here).await), (401, 200));
    let refused = create_key(json!({"allowed_networks": ["everywhere"]})).await.expect(400);
    assert_eq!(refused["field"], "allowed_networks");
    let past = create_key(json!({"expires_at": "2020-01-01T00:00:00Z"})).await.expect(400);
    assert_eq!(past["field"], "expires_at");

    let soon = create_key(json!({"name": "short", "expires_at": "2100-01-01T00:00:00Z"})).await.expect(201);
    assert_eq!(status(&soon).await, 200);
    // By the server's fast clock: a minute from its current time passes in a second.
    let now = text(&soon["created_at"]).to_owned();
    let end = redrive_core::Time::parse(&now).unwrap() + std::time::Duration::from_secs(120);
    let ending = create_key(json!({"expires_at": end.to_string()})).await.expect(201);
    assert_eq!(status(&ending).await, 200);
    eventually("the key has expired", async || status(&ending).await != 200).await;
    let unknown = api.with_key("rdk_0000").get("/v1/webhooks").await;
    let expired = api.with_key(text(&ending["key"])).get("/v1/webhooks").await;
    assert_eq!(
        (unknown.status, unknown.problem()),
        (expired.status, expired.problem()),
        "the response does not state the reason"
    );
}

#[tokio::test]
async fn portal_session_is_limited_to_its_tenant_until_it_ends() {
    let (database, receiver) = (Postgres::shared().await, Receiver::start().await);
    let one = Redrive::start_with(Setup::new().database_url(database.url())).await;
    let two = Redrive::start_with(Setup::new().database_url(database.url())).await;
    let api = one.api();
    tenant(&api, json!({})).await;
    let foreign = api.create_webhook(&receiver.url(), Value::Null).await;
    let session = json!({"tenant_id": "acme", "name": "jane", "expires_in": 600});
    let session = api.post("/v1/portal-sessions", session).await.expect(201);
    let token = text(&session["token"]);
    assert!(token.starts_with("rdp_"));
    assert_eq!(text(&session["url"]), format!("http://{}/portal#{token}", one.address()));
    let customer = two.api().with_key(token);
    // The other node learns of the session shortly after.
    eventually("the key works on the other node", async || customer.get("/v1/webhooks").await.status == 200)
        .await;
    let own =
        customer.post("/v1/webhooks", json!({"url": receiver.url(), "events": ["*"]})).await.expect(201);
    assert_eq!(own["tenant_id"], "acme");
    assert_eq!(entries(&customer.get("/v1/webhooks").await.expect(200)).len(), 1);
    assert_eq!(customer.get(&format!("/v1/webhooks/{}", id(&foreign))).await.status, 404);
    assert_eq!(customer.post("/v1/events", json!({"event_type": "a.b", "data": 1})).await.status, 403);
    assert_eq!(customer.get("/v1/tenants").await.status, 403);
    assert_eq!(customer.post("/v1/portal-sessions", json!({"tenant_id": "acme"})).await.status, 403);
    let too_long = json!({"tenant_id": "acme", "expires_in": 100_000});
    assert_eq!(api.post("/v1/portal-sessions", too_long).await.expect(400)["field"], "expires_in");
    assert_eq!(
        entries(&api.get("/v1/tenants/acme/api-keys").await.expect(200)),
        [] as [Value; 0],
        "the session is not listed as a key"
    );

    let path = format!("/v1/portal-sessions/{}?tenant_id=acme", id(&session));
    assert_eq!(api.delete(&path).await.status, 204);
    eventually("it has ended on the other node too", async || {
        customer.get("/v1/webhooks").await.status == 401
    })
    .await;
    assert_eq!(one.api().with_key(token).get("/v1/webhooks").await.status, 401);
}

#[tokio::test]
async fn tenant_quotas_are_enforced() {
    let (redrive, receiver) = (Redrive::start().await, Receiver::start().await);
    let admin = redrive.api();
    let quotas = json!({"max_webhooks": 2, "max_events_per_day": 3, "max_payload_bytes": 100});
    tenant(&admin, json!({"quotas": quotas})).await;
    assert_eq!(admin.get("/v1/tenants/acme").await.expect(200)["quotas"], quotas);
    let key = admin.post("/v1/tenants/acme/api-keys", json!({})).await.expect(201);
    let api = admin.with_key(text(&key["key"]));
    let webhook = json!({"url": receiver.url(), "events": ["*"]});
    let first = api.post("/v1/webhooks", &webhook).await.expect(201);
    api.post("/v1/webhooks", &webhook).await.expect(201);
    let over = api.post("/v1/webhooks", &webhook).await;
    assert_eq!((over.status, over.problem().as_str()), (409, "quota_exceeded"));
    api.delete(&format!("/v1/webhooks/{}", id(&first))).await;
    api.post("/v1/webhooks", &webhook).await.expect(201);

    let large = json!({"event_type": "a.b", "data": "x".repeat(200)});
    assert_eq!(api.post("/v1/events", large).await.status, 413);
    let event = json!({"event_type": "a.b", "data": 1});
    for _ in 0..3 {
        api.post("/v1/events", &event).await.expect(202);
    }
    let over = api.post("/v1/events", &event).await;
    assert_eq!((over.status, over.problem().as_str()), (429, "quota_exceeded"));
    let seconds: u64 = over.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=24 * 3600 + 1).contains(&seconds), "until midnight: {seconds}");
    // A batch cannot exceed the quota either.
    let batch = json!({"events": vec![event.clone(); 5]});
    let response = api.post("/v1/events/batch", batch).await;
    assert!(!response.json().to_string().contains("evt_"), "{response:?}");
    // Other tenants are not affected, and a raised quota applies immediately.
    admin.post("/v1/events", &event).await.expect(202);
    admin.patch("/v1/tenants/acme", json!({"quotas": null})).await.expect(200);
    api.post("/v1/events", &event).await.expect(202);
}

#[tokio::test]
async fn every_change_is_in_the_audit_log_with_its_actor() {
    let (redrive, receiver) = (Redrive::start().await, Receiver::responding(500).await);
    let admin = redrive.api();
    tenant(&admin, json!({})).await;
    let key = admin.post("/v1/tenants/acme/api-keys", json!({"name": "deploy"})).await.expect(201);
    let api = admin.with_key(text(&key["key"]));
    let retry = json!({"schedule": [0]});
    let webhook =
        json!({"url": receiver.url(), "events": ["*"], "retry_config": retry, "description": "old"});
    let webhook = api.post("/v1/webhooks", webhook).await.expect(201);
    let path = format!("/v1/webhooks/{}", id(&webhook));
    api.patch(&path, json!({"description": "new"})).await.expect(200);
    api.patch(&path, json!({"url": "nonsense"})).await.expect(400);
    for switch in ["pause", "resume", "disable", "enable", "rotate-secret"] {
        api.post(&format!("{path}/{switch}"), json!({})).await.expect(200);
    }
    api.patch(&format!("{path}/circuit-breaker"), json!({"action": "reset"})).await.expect(200);
    let event = api.post("/v1/events", json!({"event_type": "a.b", "data": 1})).await.expect(202);
    let delivery = redrive_tests::wait_for_event_status(&api, &event, "dead").await;
    api.post(&format!("/v1/deliveries/{}/retry", id(&delivery)), json!({})).await.expect(202);
    api.delete(&path).await;

    assert_eq!(api.get("/v1/audit-log").await.status, 403, "only admins may do this");
    let log = admin.get("/v1/audit-log?tenant_id=acme&limit=100").await.expect(200);
    let mut log = entries(&log);
    log.reverse();
    let actions: Vec<_> = log.iter().map(|entry| text(&entry["action"])).collect();
    let expected = [
        "tenant.create",
        "api_key.create",
        "webhook.create",
        "webhook.update",
        "webhook.update",
        "webhook.pause",
        "webhook.resume",
        "webhook.disable",
        "webhook.enable",
        "webhook.rotate_secret",
        "webhook.circuit",
        "delivery.retry",
        "webhook.delete",
    ];
    assert_eq!(actions, expected);
    assert_eq!((&log[0]["actor"], &log[0]["key_id"]), (&json!("admin"), &Value::Null));
    let changed = &log[3];
    assert_eq!((&changed["actor"], &changed["key_id"]), (&json!("deploy"), &key["id"]));
    assert_eq!((&changed["address"], &changed["result"]), (&json!("127.0.0.1"), &json!("done")));
    assert_eq!(changed["object_id"], webhook["id"]);
    assert_eq!(
        (&changed["before"]["description"], &changed["after"]["description"]),
        (&json!("old"), &json!("new"))
    );
    assert!(text(&log[4]["result"]).starts_with("url: "), "a change that was refused: {}", log[4]);
    let of_one = format!("/v1/audit-log?object_id={}&action=webhook.rotate", id(&webhook));
    assert_eq!(entries(&admin.get(&of_one).await.expect(200)).len(), 1);
    assert_eq!(entries(&admin.get("/v1/audit-log?limit=2").await.expect(200)).len(), 2);
}

#[tokio::test]
async fn deleted_tenant_is_removed_on_all_nodes() {
    let (database, receiver) = (Postgres::shared().await, Receiver::start().await);
    let one = Redrive::start_with(Setup::new().database_url(database.url())).await;
    let two = Redrive::start_with(Setup::new().database_url(database.url())).await;
    let admin = one.api();
    tenant(&admin, json!({})).await;
    let key = admin.post("/v1/tenants/acme/api-keys", json!({})).await.expect(201);
    let (here, there) = (admin.with_key(text(&key["key"])), two.api().with_key(text(&key["key"])));
    here.post("/v1/webhooks", json!({"url": receiver.url(), "events": ["*"]})).await.expect(201);
    let event = json!({"event_type": "a.b", "data": 1});
    eventually("the key works on the other node", async || {
        there.post("/v1/events", &event).await.status == 202
    })
    .await;
    receiver.wait_for(1).await;
    assert_eq!(admin.delete("/v1/tenants/acme").await.status, 204);
    assert_eq!(here.post("/v1/events", &event).await.status, 401);
    eventually("the other node rejects the key", async || {
        there.post("/v1/events", &event).await.status == 401
    })
    .await;
    for api in [&admin, &two.api()] {
        let as_admin = json!({"event_type": "a.b", "data": 1, "tenant_id": "acme"});
        assert_eq!(api.post("/v1/events", as_admin).await.status, 404);
        assert_eq!(api.get("/v1/tenants/acme").await.status, 404);
        assert_eq!(api.get("/v1/webhooks?tenant_id=acme").await.status, 404);
    }
    let again = admin.post("/v1/tenants", json!({"id": "acme"})).await;
    assert_eq!((again.status, again.problem().as_str()), (409, "tenant_exists"));
    let default = admin.delete("/v1/tenants/default").await;
    assert_eq!((default.status, default.problem().as_str()), (409, "default_tenant_protected"));
}

mod extended {
    use super::*;

    #[tokio::test]
    async fn last_use_of_a_key_is_shown() {
        let redrive = Redrive::start_with(Setup::new().env("REDRIVE_DEV_CLOCK_SPEED", "600")).await;
        let api = redrive.api();
        tenant(&api, json!({})).await;
        let key = api.post("/v1/tenants/acme/api-keys", json!({})).await.expect(201);
        assert_eq!(key["last_used_at"], Value::Null);
        api.with_key(text(&key["key"])).get("/v1/webhooks").await.expect(200);
        let used = |page: &Value| entries(page)[0]["last_used_at"].is_string();
        eventually("its last use is shown", async || {
            used(&api.get("/v1/tenants/acme/api-keys").await.expect(200))
        })
        .await;
    }
}
