//! Webhooks with uids of the application.

use redrive_testkit::{Api, ApiResponse, Receiver, Redrive};
use redrive_tests::{entries, id, text, wait_for_event_status, wait_for_status};
use serde_json::{Value, json};

use super::{apis, fifty, one_node, two_nodes};

const URL: &str = "https://example.com/";

fn webhook(uid: &str) -> Value {
    json!({"uid": uid, "url": URL, "events": ["never.published"]})
}

#[tokio::test]
async fn uid_names_the_webhook_wherever_its_id_does() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let uid = "crm:eu.1-Main";
    let created = api.create_webhook(&receiver.url(), json!({"uid": uid, "events": ["a.b"]})).await;
    api.create_webhook(&receiver.url_at("/other"), json!({"events": ["c.d"]})).await;
    let other = api.publish("c.d", json!(1)).await;
    wait_for_event_status(&api, &other, "delivered").await;
    assert_eq!(created["uid"], uid);
    let event = api.publish("a.b", json!(1)).await;
    wait_for_event_status(&api, &event, "delivered").await;
    let count = async |path: &str| entries(&api.get(path).await.expect(200)).len();
    for (filter, expected) in [(uid, 1), (id(&created), 1)] {
        assert_eq!(count(&format!("/v1/deliveries?webhook_id={filter}")).await, expected);
        assert_eq!(count(&format!("/v1/attempts?webhook_id={filter}")).await, expected);
        assert_eq!(count(&format!("/v1/webhooks/{filter}/deliveries")).await, expected);
    }
    assert_eq!(count(&format!("/v1/deliveries?webhook_id={uid},{}", id(&created))).await, 1, "each once");
    for path in [
        "/v1/deliveries?webhook_id=unknown",
        "/v1/deliveries/export?webhook_id=unknown",
        "/v1/dlq?webhook_id=unknown",
        "/v1/dlq/stats?webhook_id=unknown",
        "/v1/attempts?webhook_id=unknown",
        "/v1/webhooks/unknown",
        "/v1/webhooks/CRM:eu.1-Main",
    ] {
        assert_eq!(api.get(path).await.problem(), "not_found", "{path}");
    }
    let across = api.get(&format!("/v1/deliveries?webhook_id={uid}&tenant_id=*")).await.expect(400);
    assert_eq!(across["field"], "webhook_id");

    let path = format!("/v1/webhooks/{uid}");
    assert_eq!(api.get(&path).await.expect(200)["id"], created["id"]);
    assert_eq!(api.get(&format!("{path}/health")).await.expect(200)["webhook_id"], created["id"]);
    for (action, status) in
        [("pause", 200), ("resume", 200), ("disable", 200), ("enable", 200), ("test", 202)]
    {
        api.post(&format!("{path}/{action}"), json!({})).await.expect(status);
    }
    api.post(&format!("{path}/filter/test"), json!({"data": {}})).await.expect(200);
    api.patch(&format!("{path}/circuit-breaker"), json!({"action": "reset"})).await.expect(200);
    let rotated = api.post(&format!("{path}/rotate-secret"), json!({})).await.expect(200);
    assert_ne!(rotated["secret"], created["secret"]);
    let backfill = json!({"from": "2026-01-01T00:00:00Z", "dry_run": true});
    api.post(&format!("{path}/backfill"), &backfill).await.expect(200);
    let replay = json!({"webhook_ids": [uid]});
    let replayed = api.post(&format!("/v1/events/{}/replay", id(&event)), &replay).await.expect(202);
    assert_eq!(replayed["delivery_ids"].as_array().unwrap().len(), 1);
    wait_for_status(&api, text(&replayed["delivery_ids"][0]), "delivered").await;
    let edited = json!({"data": {}, "webhook_ids": [uid]});
    let resent = api.post(&format!("/v1/events/{}/resend-edited", id(&event)), &edited).await.expect(202);
    assert_eq!(resent["deliveries"], 1);
    let named = json!({"filter": {"webhook_ids": [uid]}, "dry_run": true});
    let dry_run = api.post("/v1/deliveries/retry-batch", &named).await.expect(200);
    assert!(dry_run["sample"].as_array().unwrap().iter().all(|one| one["webhook_id"] == created["id"]));
    api.delete(&format!("/v1/dlq?webhook_id={uid}&dry_run=true")).await.expect(200);
    let delivery = &entries(&api.get(&format!("{path}/deliveries")).await.expect(200))[0];
    let retry = format!("{path}/deliveries/{}/retry", id(delivery));
    assert!([202, 409].contains(&api.post(&retry, json!({})).await.status));

    assert_eq!(api.patch(&path, json!({"uid": "renamed"})).await.expect(200)["uid"], "renamed");
    assert_eq!(api.get(&path).await.status, 404);
    assert_eq!(api.patch("/v1/webhooks/renamed", json!({"uid": null})).await.expect(200)["uid"], Value::Null);
    let found = api.get(&format!("/v1/webhooks/{}", id(&created))).await.expect(200);
    assert_eq!(found["uid"], Value::Null);
}

#[tokio::test]
async fn uid_is_unique_in_its_tenant_and_free_again_after_deletion() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    api.post("/v1/tenants", json!({"id": "org_1"})).await.expect(201);
    let first = api.post("/v1/webhooks", webhook("main")).await.expect(201);
    assert_eq!(api.post("/v1/webhooks", webhook("main")).await.problem(), "webhook_exists");
    let second = api.post("/v1/webhooks", webhook("Main")).await.expect(201);
    let taken = api.patch(&format!("/v1/webhooks/{}", id(&second)), json!({"uid": "main"})).await;
    assert_eq!((taken.status, taken.problem().as_str()), (409, "webhook_exists"));
    api.post("/v1/webhooks?tenant_id=org_1", webhook("main")).await.expect(201);
    for bad in ["wh_main", id(&first), "..", "a/b", ""] {
        assert_eq!(api.post("/v1/webhooks", webhook(bad)).await.expect(400)["field"], "uid", "{bad}");
    }
    // An admin names the tenant, since another tenant may have the same uid.
    assert_eq!(api.get("/v1/webhooks/main").await.expect(200)["id"], first["id"]);
    let foreign = api.get("/v1/webhooks/main?tenant_id=org_1").await.expect(200);
    assert_ne!(foreign["id"], first["id"]);
    api.delete("/v1/webhooks/main").await.expect(204);
    assert_eq!(api.get("/v1/webhooks/main").await.status, 404);
    let again = api.post("/v1/webhooks", webhook("main")).await.expect(201);
    assert_ne!(again["id"], first["id"]);
}

#[tokio::test]
async fn put_by_uid_creates_and_then_updates_in_part() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let path = "/v1/webhooks/crm-sync";
    let incomplete = api.put(path, json!({"description": "x"})).await.expect(400);
    assert_eq!(incomplete["field"], "url");
    let body =
        json!({"url": URL, "events": ["a.b"], "secret": "a secret of mine that is long", "description": "x"});
    let created = api.put(path, &body).await.expect(201);
    assert_eq!((&created["uid"], &created["secret"].is_string()), (&json!("crm-sync"), &true));
    // The same request can be repeated, as a tool does that declares what must exist.
    let repeated = api.put(path, &body).await.expect(200);
    assert_eq!((&repeated["id"], repeated.get("secret")), (&created["id"], None));
    let other = json!({"secret": "another secret of mine, long"});
    assert_eq!(api.put(path, other).await.expect(400)["field"], "secret");
    let partial = api.put(path, json!({"events": ["c.*"]})).await.expect(200);
    assert_eq!((&partial["events"], &partial["description"]), (&json!(["c.*"]), &json!("x")));
    assert_eq!(api.put(path, json!({"uid": "crm-sync"})).await.status, 200);
    assert_eq!(api.put(path, json!({"uid": "other"})).await.expect(400)["field"], "uid");
    let by_id = format!("/v1/webhooks/{}", id(&created));
    assert_eq!(api.put(&by_id, json!({"description": "y"})).await.expect(200)["uid"], "crm-sync");
    let unknown = "/v1/webhooks/wh_018f3b1c7a5e7c40b0a8f3d2c1e0a9b8";
    assert_eq!(api.put(unknown, json!({"description": "x"})).await.status, 404, "an id is given by Redrive");
    assert_eq!(api.put("/v1/webhooks/wh_mine", json!({"description": "x"})).await.status, 404);
}

#[tokio::test]
async fn portal_session_sees_the_uid_and_cannot_set_it() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    api.post("/v1/webhooks", webhook("main")).await.expect(201);
    let hidden = json!({"uid": "hidden", "url": URL, "events": ["*"], "managed_by": "operator"});
    api.post("/v1/webhooks", hidden).await.expect(201);
    let session = api.post("/v1/portal-sessions", json!({"tenant_id": "default"})).await.expect(201);
    let portal = api.with_key(text(&session["token"]));
    assert_eq!(portal.get("/v1/webhooks/main").await.expect(200)["uid"], "main");
    assert_eq!(portal.patch("/v1/webhooks/main", json!({"description": "mine"})).await.status, 200);
    let forbidden = async |response: ApiResponse| assert_eq!(response.problem(), "forbidden");
    forbidden(portal.patch("/v1/webhooks/main", json!({"uid": "x"})).await).await;
    forbidden(portal.post("/v1/webhooks", webhook("own")).await).await;
    forbidden(portal.put("/v1/webhooks/own", webhook("own")).await).await;
    // A webhook of the operator is as unknown as one that does not exist.
    for uid in ["hidden", "unknown"] {
        assert_eq!(portal.get(&format!("/v1/webhooks/{uid}")).await.status, 404);
        assert_eq!(portal.get(&format!("/v1/deliveries?webhook_id={uid}")).await.status, 404);
        forbidden(portal.put(&format!("/v1/webhooks/{uid}"), webhook(uid)).await).await;
    }
}

async fn concurrent_puts_create_one_webhook(apis: &[Api]) {
    let put = |api: Api, n: usize| async move {
        let body = json!({"url": URL, "events": ["a.b"], "description": format!("put {n}")});
        api.put("/v1/webhooks/main", body).await
    };
    let responses = fifty(apis, put).await;
    let created: Vec<_> = responses.iter().filter(|response| response.status == 201).collect();
    assert_eq!(created.len(), 1);
    let created = created[0].json();
    assert!(created["secret"].is_string());
    for response in responses {
        assert!([200, 201].contains(&response.status), "{response:?}");
        assert_eq!(response.json()["id"], created["id"]);
    }
    for api in apis {
        assert_eq!(entries(&api.get("/v1/webhooks").await.expect(200)).len(), 1);
    }
}

#[tokio::test]
async fn concurrent_puts_on_one_node_create_one_webhook() {
    let nodes = one_node().await;
    concurrent_puts_create_one_webhook(&apis(&nodes)).await;
}

#[tokio::test]
async fn concurrent_puts_on_two_nodes_create_one_webhook() {
    let (_database, nodes) = two_nodes().await;
    concurrent_puts_create_one_webhook(&apis(&nodes)).await;
}
