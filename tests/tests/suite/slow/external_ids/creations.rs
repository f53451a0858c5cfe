//! Requests that create an object and are repeated with the same idempotency key.

use redrive_testkit::{Api, Redrive};
use redrive_tests::{entries, text};
use serde_json::{Value, json};

use super::{JSON, apis, fifty, one_node, post_with_key, two_nodes};

const URL: &str = "https://example.com/";

/// Every route that creates an object: its path, a body, another body, and the fields that are returned only once.
fn creations() -> Vec<(&'static str, Value, Value, &'static [&'static str])> {
    let webhook = |description: &str| json!({"url": URL, "events": ["a.b"], "description": description});
    let batch = |name: &str| json!({"filter": {"event_types": [name]}});
    vec![
        ("/v1/webhooks", webhook("one"), webhook("two"), &["secret"]),
        ("/v1/tenants", json!({"id": "org_1"}), json!({"id": "org_2"}), &[]),
        ("/v1/tenants/default/api-keys", json!({"name": "a"}), json!({"name": "b"}), &["key"]),
        ("/v1/admin-keys", json!({"name": "a"}), json!({"name": "b"}), &["key"]),
        (
            "/v1/portal-sessions",
            json!({"tenant_id": "default"}),
            json!({"tenant_id": "default", "expires_in": 60}),
            &["token", "url"],
        ),
        ("/v1/event-types", json!({"name": "a.b"}), json!({"name": "a.c"}), &[]),
        ("/v1/dlq/retry-batch", batch("a.b"), batch("a.c"), &[]),
        ("/v1/deliveries/retry-batch", batch("a.b"), batch("a.c"), &[]),
        ("/v1/deliveries/cancel-batch", batch("a.b"), batch("a.c"), &[]),
    ]
}

#[tokio::test]
async fn repeated_request_returns_the_first_object_without_its_secret() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    for (path, body, other, secrets) in creations() {
        let first = post_with_key(&api, path, "k1", &body).await;
        assert!([200, 201, 202].contains(&first.status), "{path}: {first:?}");
        let first = first.json();
        let id = if first.get("id").is_some() { "id" } else { "name" };
        assert!(secrets.iter().all(|field| first[field].is_string()), "{path}");
        for _ in 0..2 {
            let repeated = post_with_key(&api, path, "k1", &body).await;
            assert!([200, 202].contains(&repeated.status), "{path}: {repeated:?}");
            assert_eq!(repeated.header("idempotency-replayed"), Some("true"), "{path}");
            let repeated = repeated.json();
            assert_eq!(repeated[id], first[id], "{path}");
            assert!(secrets.iter().all(|field| repeated.get(field).is_none()), "{path}: {repeated}");
        }
        let conflict = post_with_key(&api, path, "k1", &other).await;
        assert_eq!((conflict.status, conflict.problem().as_str()), (409, "idempotency_key_reused"), "{path}");
        assert!(text(&conflict.json()["detail"]).contains(text(&first[id])), "{path}");
        let second = post_with_key(&api, path, "k2", &other).await.json();
        assert_ne!(second[id], first[id], "{path}");
    }
    assert_eq!(entries(&api.get("/v1/webhooks").await.expect(200)).len(), 2);
    assert_eq!(entries(&api.get("/v1/tenants/default/api-keys").await.expect(200)).len(), 2);
    assert_eq!(entries(&api.get("/v1/dlq/batch-operations").await.expect(200)).len(), 6);
    let audited = entries(&api.get("/v1/audit-log?action=webhook.create").await.expect(200));
    assert_eq!(audited.len(), 2, "a repeated request changes nothing");
}

#[tokio::test]
async fn key_is_separate_per_tenant_and_route_and_claimed_only_by_success() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    api.post("/v1/tenants", json!({"id": "org_1"})).await.expect(201);
    let webhook = json!({"url": URL, "events": ["a.b"]});
    let refused = post_with_key(&api, "/v1/webhooks", "k", &json!({"url": URL})).await;
    assert_eq!(refused.status, 400);
    let own = post_with_key(&api, "/v1/webhooks", "k", &webhook).await.expect(201);
    let foreign = post_with_key(&api, "/v1/webhooks?tenant_id=org_1", "k", &webhook).await.expect(201);
    assert_ne!(own["id"], foreign["id"]);
    post_with_key(&api, "/v1/event-types", "k", &json!({"name": "a.b"})).await.expect(201);
    let exists = post_with_key(&api, "/v1/event-types", "k2", &json!({"name": "a.b"})).await;
    assert_eq!(exists.problem(), "event_type_exists", "a new key creates a new object");
    post_with_key(&api, "/v1/event-types", "k2", &json!({"name": "a.c"})).await.expect(201);
    for bad in ["", &"k".repeat(257)] {
        let refused = post_with_key(&api, "/v1/webhooks", bad, &webhook).await.expect(400);
        assert_eq!(refused["field"], "Idempotency-Key");
    }
    // An object that was deleted since is not created again.
    api.delete(&format!("/v1/webhooks/{}", text(&own["id"]))).await.expect(204);
    assert_eq!(post_with_key(&api, "/v1/webhooks", "k", &webhook).await.status, 404);
    assert!(entries(&api.get("/v1/webhooks").await.expect(200)).is_empty());
}

#[tokio::test]
async fn test_event_and_edited_resend_honour_the_key() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = json!({"uid": "main", "url": URL, "events": ["a.b"]});
    api.post("/v1/webhooks", webhook).await.expect(201);
    let first = post_with_key(&api, "/v1/webhooks/main/test", "t", &json!({})).await.expect(202);
    let again = post_with_key(&api, "/v1/webhooks/main/test", "t", &json!({})).await.expect(200);
    assert_eq!((&again["id"], &again["duplicate"]), (&first["id"], &json!(true)));
    let path = format!("/v1/events/{}/resend-edited", text(&api.publish("x.y", json!(1)).await["id"]));
    let edited = json!({"data": {"n": 1}});
    let first = post_with_key(&api, &path, "e", &edited).await.expect(202);
    assert_eq!(post_with_key(&api, &path, "e", &edited).await.expect(200)["id"], first["id"]);
    let both = json!({"data": {"n": 1}, "idempotency_key": "f"});
    assert_eq!(post_with_key(&api, &path, "e", &both).await.expect(400)["field"], "idempotency_key");
}

async fn concurrent_requests_create_one_webhook(apis: &[Api]) {
    let create = |api: Api, _| async move {
        let body = json!({"url": URL, "events": ["a.b"]}).to_string();
        api.raw("POST", "/v1/webhooks", &[JSON, ("Idempotency-Key", "k")], body).await
    };
    let responses = fifty(apis, create).await;
    let created: Vec<_> = responses.iter().filter(|response| response.status == 201).collect();
    assert_eq!(created.len(), 1);
    let first = created[0].json();
    for response in responses {
        assert!([200, 201].contains(&response.status), "{response:?}");
        assert_eq!(response.json()["id"], first["id"]);
    }
    assert_eq!(entries(&apis[0].get("/v1/webhooks").await.expect(200)).len(), 1);
}

#[tokio::test]
async fn concurrent_requests_on_one_node_create_one_webhook() {
    let nodes = one_node().await;
    concurrent_requests_create_one_webhook(&apis(&nodes)).await;
}

#[tokio::test]
async fn concurrent_requests_on_two_nodes_create_one_webhook() {
    let (_database, nodes) = two_nodes().await;
    concurrent_requests_create_one_webhook(&apis(&nodes)).await;
}
