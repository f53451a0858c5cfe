//! The event type catalogue: payload schemas, strict tenants, and visibility per role.

use redrive_testkit::{Api, ApiResponse, Postgres, Receiver, Redrive};
use redrive_tests::{cluster::nodes, column, entries, id, text, wait_for_event_status};
use serde_json::{Value, json};

fn order_schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "required": ["id"],
        "properties": {
            "id": {"type": "string", "pattern": "^o-[0-9]+$"},
            "items": {"type": "array", "items": {"$ref": "#/$defs/item"}},
        },
        "$defs": {"item": {"type": "object", "properties": {"count": {"type": "integer", "minimum": 1}}}},
    })
}

async fn publish(api: &Api, event_type: &str, data: Value) -> ApiResponse {
    api.post("/v1/events", json!({"event_type": event_type, "data": data})).await
}

/// Returns the code, the field and the detail of a rejection.
fn refusal(response: &ApiResponse) -> (String, String, String) {
    let problem = response.expect(400);
    let message = |name: &str| text(&problem[name]).to_owned();
    (message("code"), message("field"), message("detail"))
}

#[tokio::test]
async fn payload_must_match_the_schema_of_its_type() {
    let receiver = Receiver::start().await;
    let mut redrive = Redrive::start().await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), json!({})).await;
    let example = json!({"id": "o-1", "items": [{"count": 2}]});
    let created = json!({"name": "order.created", "description": "An order was placed", "example": example, "schema": order_schema()});
    let created = api.post("/v1/event-types", created).await.expect(201);
    assert_eq!(
        (&created["schema"], &created["example"], &created["archived"]),
        (&order_schema(), &example, &json!(false))
    );

    let first = publish(&api, "order.created", example.clone()).await.expect(202);
    let (code, field, detail) =
        refusal(&publish(&api, "order.created", json!({"id": "o-1", "items": [{"count": 0}]})).await);
    assert_eq!((&*code, &*field), ("schema_violation", "data/items/0/count"));
    assert!(detail.contains("minimum") && detail.contains("/properties/count/minimum"), "{detail}");
    assert_eq!(refusal(&publish(&api, "order.created", json!({"id": "x"})).await).1, "data/id");
    assert_eq!(refusal(&publish(&api, "order.created", json!([])).await).1, "data");
    // Other event types are not restricted.
    publish(&api, "order.paid", json!([])).await.expect(202);

    // Each event of a batch is validated separately.
    let event = |data: Value| json!({"event_type": "order.created", "data": data});
    let batch =
        json!({"events": [event(json!({"id": "o-2"})), event(json!(1)), event(json!({"id": "o-3"}))]});
    let judged = entries(&api.post("/v1/events/batch", batch).await.expect(202));
    assert_eq!(column(&judged, "status"), [202, 400, 202]);
    assert_eq!(judged[1]["error"]["code"], "schema_violation");

    // A schema change applies to later publishes. Stored events are delivered and replayed unchanged.
    let keyed = json!({"event_type": "order.created", "data": {"id": "o-9"}, "idempotency_key": "nine"});
    let taken = api.post("/v1/events", &keyed).await.expect(202);
    let path = "/v1/event-types/order.created";
    let refused = api.patch(path, json!({"schema": {"required": ["total"]}})).await;
    assert_eq!(refusal(&refused).1, "example", "an example must match the schema");
    let stricter = json!({"schema": {"required": ["total"]}, "example": null});
    assert_eq!(api.patch(path, stricter).await.expect(200)["schema"], json!({"required": ["total"]}));
    publish(&api, "order.created", example.clone()).await.expect(400);
    publish(&api, "order.created", json!({"total": 1})).await.expect(202);
    wait_for_event_status(&api, &first, "delivered").await;
    api.post(&format!("/v1/events/{}/replay", id(&first)), json!({})).await.expect(202);
    // A repeated publish with its key returns the stored event even under the new schema, and a rejected publish does
    // not use up its key.
    let again = api.post("/v1/events", &keyed).await.expect(200);
    assert_eq!((&again["id"], &again["duplicate"]), (&taken["id"], &json!(true)));
    let other = json!({"event_type": "order.created", "data": {"id": "o-10"}, "idempotency_key": "ten"});
    api.post("/v1/events", &other).await.expect(400);
    let fits = json!({"event_type": "order.created", "data": {"total": 1}, "idempotency_key": "ten"});
    api.post("/v1/events", &fits).await.expect(202);

    redrive.restart().await;
    publish(&api, "order.created", example.clone()).await.expect(400);
    api.put(path, json!({"schema": null})).await.expect(200);
    publish(&api, "order.created", example).await.expect(202);
}

#[tokio::test]
async fn archived_types_are_rejected_and_deleted_ones_unrestricted() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    api.post("/v1/event-types", json!({"name": "order.old", "archived": true})).await.expect(201);
    let (code, field, detail) = refusal(&publish(&api, "order.old", json!(1)).await);
    assert_eq!((&*code, &*field), ("event_type_archived", "event_type"));
    assert!(detail.contains("PATCH /v1/event-types/order.old"), "{detail}");
    api.patch("/v1/event-types/order.old", json!({"archived": false})).await.expect(200);
    publish(&api, "order.old", json!(1)).await.expect(202);
    api.patch("/v1/event-types/order.old", json!({"archived": true})).await.expect(200);
    api.delete("/v1/event-types/order.old").await.expect(204);
    publish(&api, "order.old", json!(1)).await.expect(202);
    for gone in [
        api.get("/v1/event-types/order.old").await,
        api.delete("/v1/event-types/order.old").await,
        api.patch("/v1/event-types/order.old", json!({})).await,
    ] {
        assert_eq!(gone.problem(), "not_found");
        assert_eq!(gone.status, 404);
    }
}

#[tokio::test]
async fn strict_tenant_publishes_only_registered_types() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let admin = redrive.api();
    let tenant = admin.post("/v1/tenants", json!({"id": "acme"})).await.expect(201);
    assert_eq!(tenant["strict_event_types"], false);
    let key = admin.post("/v1/tenants/acme/api-keys", json!({})).await.expect(201);
    let api = admin.with_key(text(&key["key"]));
    let webhook = api.create_webhook(&receiver.url(), json!({})).await;
    publish(&api, "order.created", json!(1)).await.expect(202);
    let strict = admin.patch("/v1/tenants/acme", json!({"strict_event_types": true})).await.expect(200);
    assert_eq!(strict["strict_event_types"], true);
    let (code, field, detail) = refusal(&publish(&api, "order.created", json!(1)).await);
    assert_eq!((&*code, &*field), ("event_type_not_registered", "event_type"));
    assert!(detail.contains("POST /v1/event-types"), "{detail}");
    api.post("/v1/event-types", json!({"name": "order.created"})).await.expect(201);
    publish(&api, "order.created", json!(1)).await.expect(202);
    publish(&api, "order.creatde", json!(1)).await.expect(400);
    // Other tenants are not affected, and Redrive itself publishes test events.
    publish(&admin, "order.creatde", json!(1)).await.expect(202);
    api.post(&format!("/v1/webhooks/{}/test", id(&webhook)), json!({})).await.expect(202);
    admin.patch("/v1/tenants/acme", json!({"strict_event_types": false})).await.expect(200);
    publish(&api, "order.creatde", json!(1)).await.expect(202);
}

#[tokio::test]
async fn read_only_callers_cannot_change_the_catalogue() {
    let redrive = Redrive::start().await;
    let admin = redrive.api();
    admin.post("/v1/tenants", json!({"id": "acme"})).await.expect(201);
    for (name, archived) in
        [("order.paid", false), ("order.created", false), ("order.old", true), ("a", false)]
    {
        let created = json!({"name": name, "archived": archived, "tenant_id": "acme"});
        admin.post("/v1/event-types", created).await.expect(201);
    }
    let session = admin.post("/v1/portal-sessions", json!({"tenant_id": "acme"})).await.expect(201);
    let key = admin.post("/v1/tenants/acme/api-keys", json!({"scopes": ["read"]})).await.expect(201);
    for api in [admin.with_key(text(&session["token"])), admin.with_key(text(&key["key"]))] {
        let listed = async |query: &str| {
            let page = api.get(&format!("/v1/event-types{query}")).await.expect(200);
            let data = entries(&page);
            let names: Vec<_> = data.iter().map(|one| text(&one["name"]).to_owned()).collect();
            (names, page["next_cursor"].clone())
        };
        assert_eq!(listed("").await.0, ["a", "order.created", "order.old", "order.paid"]);
        assert_eq!(listed("?archived=true").await.0, ["order.old"]);
        let (first, cursor) = listed("?archived=false&limit=2").await;
        assert_eq!(first, ["a", "order.created"]);
        let (rest, end) = listed(&format!("?archived=false&limit=2&cursor={}", text(&cursor))).await;
        assert_eq!((rest, end), (vec!["order.paid".to_owned()], Value::Null));
        assert_eq!(api.get("/v1/event-types/a").await.expect(200)["tenant_id"], "acme");
        for refused in [
            api.post("/v1/event-types", json!({"name": "b"})).await,
            api.patch("/v1/event-types/a", json!({"archived": true})).await,
            api.delete("/v1/event-types/a").await,
        ] {
            assert_eq!(refused.problem(), "forbidden");
        }
    }
    assert_eq!(
        entries(&admin.get("/v1/event-types").await.expect(200)),
        [] as [Value; 0],
        "each tenant has its own event types"
    );
    let log = entries(&admin.get("/v1/audit-log?action=event_type.").await.expect(200));
    assert_eq!(column(&log, "object_id"), ["a", "order.old", "order.created", "order.paid"]);
    assert_eq!(log[1]["after"]["archived"], true);
}

#[tokio::test]
async fn invalid_event_type_is_rejected_with_its_field() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let long = json!({"description": "x".repeat(70_000)});
    for (fields, field, says) in [
        (
            json!({"schema": {"properties": {"a": {"$ref": "https://example.com/a.json"}}}}),
            "schema/properties/a/$ref",
            "never fetched",
        ),
        (json!({"schema": {"$ref": "file:///etc/passwd"}}), "schema/$ref", "never fetched"),
        (
            json!({"schema": {"properties": {"child": {"$ref": "#"}}}}),
            "schema/properties/child/$ref",
            "recursive",
        ),
        (
            json!({"schema": {"properties": {"a": {"type": "strng"}}}}),
            "schema/properties/a/type",
            "draft 2020-12",
        ),
        (
            json!({"schema": {"$schema": "http://json-schema.org/draft-07/schema#"}}),
            "schema/$schema",
            "2020-12",
        ),
        (json!({"schema": long}), "schema", "bytes long"),
        (json!({"schema": 7}), "schema", "an object, true or false"),
        (json!({"schema": {"pattern": "(?=a)b"}}), "schema/pattern", "JSON Schema"),
        (json!({"description": "x".repeat(5_000)}), "description", "at most"),
        (json!({"example": 1, "schema": {"type": "string"}}), "example", "does not fit"),
        (json!({"name": "a b"}), "name", "segments"),
        (json!({"name": "redrive.mine"}), "name", "which is reserved"),
        (json!({"name": null}), "name", "is missing"),
        (json!({"shema": {}}), "shema", "unknown field"),
    ] {
        let mut body = json!({"name": "order.created"});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let problem = api.post("/v1/event-types", &body).await.expect(400);
        assert_eq!(problem["field"], field, "{problem}");
        assert!(text(&problem["detail"]).contains(says), "{problem}");
    }
    api.post("/v1/event-types", json!({"name": "order.created"})).await.expect(201);
    let twice = api.post("/v1/event-types", json!({"name": "order.created"})).await;
    assert_eq!((twice.status, twice.problem()), (409, "event_type_exists".to_owned()));
    let renamed = api.patch("/v1/event-types/order.created", json!({"name": "order.made"})).await;
    assert_eq!(refusal(&renamed).1, "name");
}

mod slow {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn schema_change_applies_to_next_publish_on_another_node() {
        let database = Postgres::shared().await;
        let nodes = nodes(&database.url(), 2).await;
        let (one, other) = (nodes[0].api(), nodes[1].api());
        publish(&other, "order.created", json!(0)).await.expect(202);
        one.post("/v1/event-types", json!({"name": "order.created"})).await.expect(201);
        for round in 0..20 {
            let (wanted, refused) =
                if round % 2 == 0 { ("string", json!(1)) } else { ("number", json!("a")) };
            let taken = if round % 2 == 0 { json!("a") } else { json!(1) };
            one.patch("/v1/event-types/order.created", json!({"schema": {"type": wanted}})).await.expect(200);
            publish(&other, "order.created", refused).await.expect(400);
            publish(&other, "order.created", taken).await.expect(202);
        }
        one.delete("/v1/event-types/order.created").await.expect(204);
        publish(&other, "order.created", json!({})).await.expect(202);
        one.patch("/v1/tenants/default", json!({"strict_event_types": true})).await.expect(200);
        publish(&other, "order.created", json!({})).await.expect(400);
    }
}
