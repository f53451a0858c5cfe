//! What belongs to another tenant, wherever it can be named: in bodies, filters, cursors and batches. It is
//! as if it did not exist, and nothing ever changes its tenant.

use redrive_testkit::Answer;
use redrive_tests::{entries, id, text};
use serde_json::{Value, json};

use super::{
    document::{Route, TenantIn},
    fixture::{ACME, GLOBEX, Tenant, World, call},
    for_tenant,
    table::{Need, TABLE},
};

async fn both() -> (World, Tenant, Tenant) {
    let world = World::start().await;
    let (acme, globex) = (world.tenant(ACME).await, world.tenant(GLOBEX).await);
    (world, acme, globex)
}

/// What an answer tells; each has an id of its own, which tells nothing.
pub(crate) fn shown(answer: &Answer) -> (u16, String) {
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    let body = match serde_json::from_str::<Value>(&body) {
        Ok(Value::Object(mut body)) => {
            body.remove("request_id");
            Value::Object(body).to_string()
        }
        _ => body,
    };
    (answer.status, body)
}

/// Two answers that nobody could tell apart.
#[track_caller]
fn look_the_same(one: &Answer, other: &Answer, why: &str) {
    assert_eq!(shown(one), shown(other), "{why}");
}

#[tokio::test]
async fn ids_in_bodies_and_beside_own_ones_are_ids_of_nothing() {
    let (world, acme, globex) = both().await;
    let before = world.picture(&acme).await;
    let (theirs, own, none) = (&acme.things, &globex.things, acme.things.nobodys());

    let replay = format!("/v1/events/{}/replay", own.event);
    let to = |webhooks: &[&String]| globex.api.post(&replay, json!({"webhook_ids": webhooks}));
    let foreign = to(&[&theirs.webhook]).await;
    assert_eq!(foreign.status, 404);
    theirs.are_not_in(&foreign, "a replay to another's webhook");
    look_the_same(&foreign, &to(&[&none.webhook]).await, "a replay to nobody's webhook");
    assert_eq!(to(&[&own.webhook, &theirs.webhook]).await.status, 404, "all of a list or nothing");
    let rounds = globex.api.get(&format!("/v1/events/{}/deliveries", own.event)).await.expect(200);
    assert_eq!(entries(&rounds).len(), 1, "a replay that was refused made a delivery");

    let retry = |webhook: &String, delivery: &String| {
        let path = format!("/v1/webhooks/{webhook}/deliveries/{delivery}/retry");
        let api = globex.api.clone();
        async move { api.post(&path, json!({})).await }
    };
    let beside_own = retry(&own.webhook, &theirs.dead).await;
    assert_eq!(beside_own.status, 404);
    look_the_same(&beside_own, &retry(&own.webhook, &none.dead).await, "a delivery beside an own webhook");
    let beside_own = retry(&theirs.webhook, &own.dead).await;
    assert_eq!(beside_own.status, 404);
    look_the_same(&beside_own, &retry(&none.webhook, &own.dead).await, "a webhook beside an own delivery");

    // An admin who mixes tenants up changes nothing either.
    let key = format!("/v1/tenants/{GLOBEX}/api-keys/{}", theirs.key);
    world.admin.delete(&key).await.expect(404);
    world.admin.delete(&format!("/v1/admin-keys/{}", theirs.key)).await.expect(404);
    assert_eq!(before, world.picture(&acme).await);
    // The right webhooks and deliveries do go.
    assert_eq!(retry(&own.webhook, &own.dead).await.status, 202);
}

#[tokio::test]
async fn filters_by_anothers_webhook_find_nothing() {
    let (world, acme, globex) = both().await;
    let mut asked = 0;
    for row in TABLE.iter().filter(|row| world.document.takes_query(&row.route(), "webhook_id")) {
        let path = globex.things.fill(row.path);
        let by = |webhook: &String| format!("{path}?webhook_id={webhook}");
        let foreign = globex.api.get(&by(&acme.things.webhook)).await;
        acme.things.are_not_in(&foreign, row.path);
        let nobodys = globex.api.get(&by(&acme.things.nobodys().webhook)).await;
        look_the_same(&foreign, &nobodys, row.path);
        let own = globex.api.get(&by(&globex.things.webhook)).await;
        let own = (own.status, String::from_utf8_lossy(&own.body).into_owned());
        assert!(
            own.0 == 200 && own.1.contains(&globex.things.webhook),
            "{} finds nothing: {own:?}",
            row.path
        );
        asked += 1;
    }
    assert!(asked >= 3, "only {asked} routes have such a filter");
}

#[tokio::test]
async fn cursors_of_another_tenant_lead_nowhere_but_to_own_things() {
    let (world, acme, globex) = both().await;
    // Enough for more than one page, older and newer than all of the other's.
    let more = world.things(ACME, &acme.api).await;
    let mut asked = 0;
    for row in TABLE.iter().filter(|row| row.need == Need::Read) {
        if !world.document.takes_query(&row.route(), "cursor") {
            continue;
        }
        let mine = acme.api.get(&format!("{}?limit=1", acme.things.fill(row.path))).await.expect(200);
        let Some(cursor) = mine["next_cursor"].as_str() else { continue };
        let path = globex.things.fill(row.path);
        for extra in ["", "&offset=1", "&limit=500"] {
            let page = globex.api.get(&format!("{path}?cursor={cursor}{extra}")).await;
            let page_of = entries(&page.expect(200));
            assert!(page_of.iter().all(|entry| entry["tenant_id"] == GLOBEX), "{page_of:#?}");
            for things in [&acme.things, &more] {
                things.are_not_in(&page, row.path);
            }
        }
        asked += 1;
    }
    assert!(asked >= 5, "only {asked} listings had a second page");
}

#[tokio::test]
async fn nobody_but_an_admin_names_another_tenant() {
    let (world, acme, globex) = both().await;
    let before = world.picture(&acme).await;
    let key = world.key(GLOBEX, json!({})).await;
    let authorization = format!("Bearer {}", text(&key["key"]));
    let mut asked = 0;
    for row in TABLE.iter().filter(|row| row.need != Need::Admin) {
        if world.document.tenant_in(&row.route()) == TenantIn::Nowhere {
            continue;
        }
        for things in [&acme.things, &globex.things] {
            let (path, body) = for_tenant(&world.document, row, &things.fill(row.path), Some(ACME));
            let answer = call(&world.admin, row, &path, &body, Some(&authorization)).await;
            assert_eq!(answer.status, 403, "{} {path} {body}", row.method);
            acme.things.are_not_in(&answer, row.path);
        }
        asked += 1;
    }
    assert!(asked >= 25, "only {asked} routes take a tenant");
    assert_eq!(before, world.picture(&acme).await);
}

#[tokio::test]
async fn a_tenant_in_the_body_of_a_change_moves_nothing() {
    let (world, acme, globex) = both().await;
    let moves = |route: &Route| route.path.contains('{') && world.document.takes_field(route, "tenant_id");
    let mut asked = 0;
    for row in TABLE.iter().filter(|row| moves(&row.route())) {
        let mut body: Value = serde_json::from_str(&row.fresh_body()).unwrap();
        body["tenant_id"] = GLOBEX.into();
        let path = acme.things.fill(row.path);
        // The owner may not give it away, whoever wants it may not take it, an admin finds nothing to move.
        for (api, status) in [(&acme.api, 403), (&globex.api, 404), (&world.admin, 404)] {
            let headers = [("content-type", "application/json")];
            let answer = api.raw(row.method, &path, &headers, body.to_string()).await;
            assert_eq!(answer.status, status, "{} {path} {body}", row.method);
        }
        asked += 1;
    }
    assert!(asked >= 10, "only {asked} changes take a tenant in their body");
    for path in ["webhooks/{id}", "events/{id}", "deliveries/{id}"] {
        let path = acme.things.fill(&format!("/v1/{path}"));
        assert_eq!(acme.api.get(&path).await.expect(200)["tenant_id"], ACME);
        globex.api.get(&path).await.expect(404);
    }
    let tenant = format!("/v1/tenants/{ACME}");
    for change in [json!({"id": GLOBEX}), json!({"tenant_id": GLOBEX})] {
        world.admin.patch(&tenant, change).await.expect(400);
    }
}

#[tokio::test]
async fn events_are_published_for_nobody_else() {
    let (world, acme, globex) = both().await;
    let before = world.picture(&acme).await;
    let event = json!({"event_type": "order.paid", "data": 1});
    let with = |base: &Value, name: &str, value: &str| {
        let mut changed = base.clone();
        changed[name] = value.into();
        changed
    };
    let batch = |events: &[&Value]| json!({"events": events});
    globex.api.post("/v1/events", with(&event, "tenant_id", ACME)).await.expect(403);
    globex.api.post("/v1/events/batch", with(&batch(&[&event]), "tenant_id", ACME)).await.expect(403);
    let inside = batch(&[&with(&event, "tenant_id", ACME), &event]);
    for api in [&globex.api, &world.admin] {
        let judged = entries(&api.post("/v1/events/batch", &inside).await.expect(202));
        assert_eq!([&judged[0]["status"], &judged[1]["status"]], [400, 202], "{judged:#?}");
    }
    assert_eq!(before, world.picture(&acme).await);

    // The same key twice is one event for one tenant, and two for two.
    let keyed = with(&event, "idempotency_key", "order-42");
    let first = acme.api.post("/v1/events", &keyed).await.expect(202);
    let other = globex.api.post("/v1/events", &keyed).await.expect(202);
    assert_ne!(id(&first), id(&other));
    assert_eq!(id(&acme.api.post("/v1/events", &keyed).await.expect(200)), id(&first));
}
