//! Tenants with ids of the application.

use redrive_testkit::{Api, Browser, Receiver, Redrive, Setup};
use redrive_tests::{entries, id, text, wait_for_event_status};
use serde_json::{Value, json};

use super::{CUSTOMER_IDS, apis, fifty, one_node, two_nodes};

#[tokio::test]
async fn customer_ids_work_everywhere() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    for (n, tenant) in CUSTOMER_IDS.into_iter().enumerate() {
        let body = json!({"name": format!("Customer {n}"), "metadata": {"plan": "gold", "n": n}});
        let created = api.put(&format!("/v1/tenants/{tenant}"), &body).await.expect(201);
        assert_eq!((&created["id"], &created["metadata"]), (&json!(tenant), &body["metadata"]));
        let webhook = api
            .create_webhook(&receiver.url_at(&format!("/{n}")), json!({"tenant_id": tenant, "uid": "main"}))
            .await;
        let key = api.post(&format!("/v1/tenants/{tenant}/api-keys"), json!({})).await.expect(201);
        let own = api.with_key(text(&key["key"]));
        let event = own.post("/v1/events", json!({"event_type": "a.b", "data": n})).await.expect(202);
        wait_for_event_status(&own, &event, "delivered").await;
        for path in [
            format!("/v1/webhooks/{}?tenant_id={tenant}", id(&webhook)),
            format!("/v1/webhooks/main?tenant_id={}", tenant.replace(':', "%3A")),
            format!("/v1/events/{}?tenant_id={tenant}", id(&event)),
            format!("/v1/tenants/{}", tenant.replace(':', "%3a")),
        ] {
            api.get(&path).await.expect(200);
        }
        let listed = own.get("/v1/webhooks").await.expect(200);
        assert_eq!(entries(&listed).len(), 1, "tenants that differ in case are separate: {tenant}");
        let exported = own.get("/v1/deliveries/export").await;
        assert!(
            exported.status == 200
                && String::from_utf8_lossy(&exported.body).contains(&format!("\"{tenant}\"")),
            "{tenant}"
        );
        let found = api.get(&format!("/v1/search?q={tenant}")).await.expect(200);
        let hits = entries(&found);
        assert!(hits.iter().any(|hit| hit["type"] == "tenant" && hit["id"] == tenant), "{found}");
        let audit = api.get(&format!("/v1/audit-log?tenant_id={tenant}")).await.expect(200);
        assert!(entries(&audit).iter().any(|entry| entry["action"] == "tenant.create"), "{audit}");
        let browser = Browser::log_in(&redrive, text(&key["key"])).await;
        assert!(
            browser.page(&format!("/dashboard/t/{tenant}/webhooks/{}", id(&webhook))).await.contains("main")
        );
    }
    let listed = entries(&api.get("/v1/tenants").await.expect(200));
    let ids: Vec<&str> = listed.iter().map(|tenant| text(&tenant["id"])).collect();
    let mut sorted = [&CUSTOMER_IDS[..], &["default"]].concat();
    sorted.sort_unstable();
    assert_eq!(ids, sorted, "sorted by bytes");
    let page = entries(&api.get("/v1/tenants?cursor=auth0:6630f1c2b9.eu&limit=1").await.expect(200));
    assert_eq!(page[0]["id"], "cus_NffrFeUfNV2Hib");
    let upper = entries(&api.get("/v1/tenants?prefix=AC").await.expect(200));
    assert_eq!((upper.len(), &upper[0]["id"]), (1, &json!("ACME")));
    let admin = Browser::log_in(&redrive, redrive.key()).await;
    for tenant in CUSTOMER_IDS {
        assert!(admin.page(&format!("/dashboard/admin/tenants/{tenant}")).await.contains("plan"), "{tenant}");
    }
}

#[tokio::test]
async fn ids_that_would_break_routes_are_refused() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    for bad in ["..", ".", "*", "-a", "a/b", "a b", "ä", "", &"x".repeat(129)] {
        let refused = api.post("/v1/tenants", json!({"id": bad})).await.expect(400);
        assert_eq!(refused["field"], "id", "{bad}: {refused}");
        let refused = api.post(
            "/v1/events",
            json!({"event_type": "a", "data": 1, "tenant_id": bad, "create_tenant": true}),
        );
        assert_eq!(refused.await.status, 400, "{bad}");
    }
    for path in ["%2e%2e", "%2E", "%2A", "-a", "a%2Fb", "a%20b"] {
        assert_eq!(api.put(&format!("/v1/tenants/{path}"), json!({})).await.status, 400, "{path}");
        assert_eq!(api.get(&format!("/v1/tenants/{path}")).await.status, 404, "{path}");
    }
    assert_eq!(entries(&api.get("/v1/tenants").await.expect(200)).len(), 1);
}

#[tokio::test]
async fn put_of_a_tenant_keeps_missing_fields() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let path = "/v1/tenants/org_1";
    let body = json!({"name": "One", "metadata": {"a": 1.50, "b": [1]}, "max_in_flight": 7});
    let created = api.put(path, &body).await.expect(201);
    assert_eq!((&created["name"], &created["max_in_flight"]), (&json!("One"), &json!(7)));
    let changed = api.put(path, json!({"name": null})).await.expect(200);
    assert_eq!((&changed["name"], &changed["max_in_flight"]), (&Value::Null, &json!(7)));
    assert_eq!(changed["metadata"], body["metadata"]);
    let raw = api.raw("PUT", path, &[], "").await;
    assert_eq!(raw.status, 200, "a body is not required");
    let replaced = api.patch(path, json!({"metadata": {"c": true}})).await.expect(200);
    assert_eq!(replaced["metadata"], json!({"c": true}));
    assert_eq!(api.patch(path, json!({"metadata": null})).await.expect(200)["metadata"], json!({}));
    let refused = api.put(path, json!({"metadata": {"big": "x".repeat(9000)}})).await.expect(400);
    assert_eq!(refused["field"], "metadata");
    api.delete(path).await.expect(204);
    assert_eq!(api.put(path, json!({})).await.problem(), "tenant_exists", "ids are not reused");
}

async fn concurrent_puts_create_one_tenant(apis: &[Api]) {
    let put =
        |api: Api, n| async move { api.put("/v1/tenants/org_01EHZ", json!({"metadata": {"n": n}})).await };
    let responses = fifty(apis, put).await;
    assert_eq!(responses.iter().filter(|response| response.status == 201).count(), 1);
    assert!(responses.iter().all(|response| [200, 201].contains(&response.status)));
    for api in apis {
        assert_eq!(entries(&api.get("/v1/tenants?prefix=org").await.expect(200)).len(), 1);
    }
    let created = apis[0].get("/v1/audit-log?action=tenant.create&object_id=org_01EHZ").await.expect(200);
    let done = entries(&created).iter().filter(|entry| entry["result"] == "done").count();
    assert_eq!(done, 1, "{created}");
}

#[tokio::test]
async fn concurrent_puts_on_one_node_create_one_tenant() {
    let nodes = one_node().await;
    concurrent_puts_create_one_tenant(&apis(&nodes)).await;
}

#[tokio::test]
async fn concurrent_puts_on_two_nodes_create_one_tenant() {
    let (_database, nodes) = two_nodes().await;
    concurrent_puts_create_one_tenant(&apis(&nodes)).await;
}

/// Publishes to tenants that do not exist, on all nodes concurrently.
async fn publishing_creates_the_tenant(apis: &[Api]) {
    let publish = |api: Api, n| async move {
        let event = json!({"event_type": "a.b", "data": n, "tenant_id": "org_x", "create_tenant": true});
        api.post("/v1/events", event).await
    };
    let responses = fifty(apis, publish).await;
    let mut numbers: Vec<i64> =
        responses.iter().map(|response| response.expect(202)["sequence_number"].as_i64().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=50).collect::<Vec<_>>(), "all events are of one tenant");
}

#[tokio::test]
async fn publishing_creates_the_tenant_once_on_one_node() {
    let nodes = one_node().await;
    publishing_creates_the_tenant(&apis(&nodes)).await;
}

#[tokio::test]
async fn publishing_creates_the_tenant_once_on_two_nodes() {
    let (_database, nodes) = two_nodes().await;
    publishing_creates_the_tenant(&apis(&nodes)).await;
}

#[tokio::test]
async fn tenant_is_created_only_if_it_is_requested_or_set_up() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let event = |tenant: &str| json!({"event_type": "a.b", "data": 1, "tenant_id": tenant});
    assert_eq!(api.post("/v1/events", event("org_1")).await.problem(), "not_found");
    api.post("/v1/events?create_tenant=true", event("org_1")).await.expect(202);
    // Each event of a batch names its tenant.
    let events = json!({"events": [
        {"event_type": "a.b", "data": 1, "tenant_id": "org_2"},
        {"event_type": "a.b", "data": 1, "tenant_id": "org_3", "create_tenant": true},
        {"event_type": "a.b", "data": 1, "tenant_id": "org_1"},
    ]});
    let statuses = |batch: &Value| -> Vec<Value> {
        entries(batch).iter().map(|result| result["status"].clone()).collect()
    };
    assert_eq!(statuses(&api.post("/v1/events/batch", &events).await.expect(202)), [404, 202, 202]);
    let all = api.post("/v1/events/batch?create_tenant=true", &events).await.expect(202);
    assert_eq!(statuses(&all), [202, 202, 202]);
    let cloud_event = json!({"specversion": "1.0", "id": "1", "source": "s", "type": "a.b", "data": 1});
    let structured = [("content-type", "application/cloudevents+json")];
    let path = "/v1/events?tenant_id=org_4&create_tenant=true";
    assert_eq!(api.raw("POST", path, &structured, cloud_event.to_string()).await.status, 202);

    let session = json!({"tenant_id": "org_5"});
    assert_eq!(api.post("/v1/portal-sessions", &session).await.problem(), "not_found");
    let session = json!({"tenant_id": "org_5", "create_tenant": true});
    let opened = api.post("/v1/portal-sessions", &session).await.expect(201);
    assert_eq!(opened["tenant_id"], "org_5");
    assert_eq!(entries(&api.get("/v1/tenants?prefix=org_").await.expect(200)).len(), 5);

    // A tenant's own key may name only its tenant, which exists.
    let key = api.post("/v1/tenants/org_1/api-keys", json!({})).await.expect(201);
    let own = api.with_key(text(&key["key"]));
    own.post("/v1/events?create_tenant=true", event("org_1")).await.expect(202);
    assert_eq!(own.post("/v1/events?create_tenant=true", event("org_9")).await.problem(), "forbidden");
    // A deleted tenant is not created again.
    api.delete("/v1/tenants/org_1").await.expect(204);
    let deleted = api.post("/v1/events?create_tenant=true", event("org_1")).await;
    assert_eq!((deleted.status, deleted.problem().as_str()), (409, "tenant_exists"));

    let set_up = Redrive::start_with(Setup::new().env("REDRIVE_SERVER_CREATE_TENANTS", "true")).await;
    set_up.api().post("/v1/events", event("org_1")).await.expect(202);
    assert_eq!(set_up.api().get("/v1/webhooks?tenant_id=org_2").await.problem(), "not_found");
}
