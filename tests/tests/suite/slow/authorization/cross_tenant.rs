//! Access to another tenant's objects wherever they can be named: in bodies, filters, cursors and batches. They
//! must look as if they did not exist, and nothing ever changes the tenant of an object.

use redrive_testkit::ApiResponse;
use redrive_tests::{entries, id, text};
use serde_json::{Value, json};

use super::{
    document::{Route, TenantIn},
    fixture::{ACME, Fixture, GLOBEX, Tenant, call},
    for_tenant,
    roles::{Role, callers},
    table::{RequiredRole, TABLE},
};

async fn both() -> (Fixture, Tenant, Tenant) {
    let fixture = Fixture::start().await;
    let (acme, globex) = (fixture.tenant(ACME).await, fixture.tenant(GLOBEX).await);
    (fixture, acme, globex)
}

/// Returns the status and body of a response without its request id, which is unique and reveals nothing.
pub(crate) fn visible(response: &ApiResponse) -> (u16, String) {
    let body = String::from_utf8_lossy(&response.body).into_owned();
    let body = match serde_json::from_str::<Value>(&body) {
        Ok(Value::Object(mut body)) => {
            body.remove("request_id");
            Value::Object(body).to_string()
        }
        _ => body,
    };
    (response.status, body)
}

/// Asserts that two responses are indistinguishable.
#[track_caller]
fn assert_indistinguishable(one: &ApiResponse, other: &ApiResponse, why: &str) {
    assert_eq!(visible(one), visible(other), "{why}");
}

#[tokio::test]
async fn foreign_ids_in_bodies_and_paths_are_not_found() {
    let (fixture, acme, globex) = both().await;
    let before = fixture.snapshot(&acme).await;
    let (theirs, own, none) = (&acme.things, &globex.things, acme.things.nonexistent_ids());

    let replay = format!("/v1/events/{}/replay", own.event);
    let to = |webhooks: &[&String]| globex.api.post(&replay, json!({"webhook_ids": webhooks}));
    let foreign = to(&[&theirs.webhook]).await;
    assert_eq!(foreign.status, 404);
    theirs.assert_not_leaked(&foreign, "a replay to a foreign webhook");
    assert_indistinguishable(&foreign, &to(&[&none.webhook]).await, "a replay to a nonexistent webhook");
    assert_eq!(
        to(&[&own.webhook, &theirs.webhook]).await.status,
        404,
        "a list with one foreign webhook is rejected as a whole"
    );
    let rounds = globex.api.get(&format!("/v1/events/{}/deliveries", own.event)).await.expect(200);
    assert_eq!(entries(&rounds).len(), 1, "a rejected replay created a delivery");

    let retry = |webhook: &String, delivery: &String| {
        let path = format!("/v1/webhooks/{webhook}/deliveries/{delivery}/retry");
        let api = globex.api.clone();
        async move { api.post(&path, json!({})).await }
    };
    let beside_own = retry(&own.webhook, &theirs.dead).await;
    assert_eq!(beside_own.status, 404);
    assert_indistinguishable(
        &beside_own,
        &retry(&own.webhook, &none.dead).await,
        "a foreign delivery with an own webhook",
    );
    let beside_own = retry(&theirs.webhook, &own.dead).await;
    assert_eq!(beside_own.status, 404);
    assert_indistinguishable(
        &beside_own,
        &retry(&none.webhook, &own.dead).await,
        "a foreign webhook with an own delivery",
    );

    // An admin who names the wrong tenant changes nothing either.
    let key = format!("/v1/tenants/{GLOBEX}/api-keys/{}", theirs.key);
    fixture.admin.delete(&key).await.expect(404);
    fixture.admin.delete(&format!("/v1/admin-keys/{}", theirs.key)).await.expect(404);
    assert_eq!(before, fixture.snapshot(&acme).await);
    // The tenant's own webhook and delivery work.
    assert_eq!(retry(&own.webhook, &own.dead).await.status, 202);
}

#[tokio::test]
async fn filters_by_foreign_webhook_find_nothing() {
    let (fixture, acme, globex) = both().await;
    let mut requests = 0;
    for row in TABLE.iter().filter(|row| fixture.document.takes_query(&row.route(), "webhook_id")) {
        let path = globex.things.fill(row.path);
        let by = |webhook: &String| format!("{path}?webhook_id={webhook}");
        let foreign = globex.api.get(&by(&acme.things.webhook)).await;
        acme.things.assert_not_leaked(&foreign, row.path);
        let nonexistent = globex.api.get(&by(&acme.things.nonexistent_ids().webhook)).await;
        assert_indistinguishable(&foreign, &nonexistent, row.path);
        let own = globex.api.get(&by(&globex.things.webhook)).await;
        let own = (own.status, String::from_utf8_lossy(&own.body).into_owned());
        assert!(
            own.0 == 200 && own.1.contains(&globex.things.webhook),
            "{} finds nothing: {own:?}",
            row.path
        );
        requests += 1;
    }
    assert!(requests >= 3, "only {requests} routes have such a filter");
}

#[tokio::test]
async fn foreign_cursors_return_only_own_objects() {
    let (fixture, acme, globex) = both().await;
    // Enough for more than one page, older and newer than all objects of the other tenant.
    let more = fixture.things(ACME, &acme.api).await;
    let mut requests = 0;
    for row in TABLE.iter().filter(|row| row.need == RequiredRole::Read) {
        // The payload search needs a path and a value; its own test searches as another tenant.
        let needs_more = row.path == "/v1/events/search";
        if needs_more || !fixture.document.takes_query(&row.route(), "cursor") {
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
                things.assert_not_leaked(&page, row.path);
            }
        }
        requests += 1;
    }
    assert!(requests >= 5, "only {requests} listings had a second page");
}

#[tokio::test]
async fn only_admins_may_name_another_tenant() {
    let (fixture, acme, globex) = both().await;
    let before = fixture.snapshot(&acme).await;
    let key = fixture.key(GLOBEX, json!({})).await;
    let authorization = format!("Bearer {}", text(&key["key"]));
    let mut requests = 0;
    for row in TABLE.iter().filter(|row| row.need != RequiredRole::Admin) {
        if fixture.document.tenant_in(&row.route()) == TenantIn::Nowhere {
            continue;
        }
        for things in [&acme.things, &globex.things] {
            let (path, body) = for_tenant(&fixture.document, row, &things.fill(row.path), Some(ACME));
            let response = call(&fixture.admin, row, &path, &body, Some(&authorization)).await;
            assert_eq!(response.status, 403, "{} {path} {body}", row.method);
            acme.things.assert_not_leaked(&response, row.path);
        }
        requests += 1;
    }
    assert!(requests >= 25, "only {requests} routes take a tenant");
    assert_eq!(before, fixture.snapshot(&acme).await);
}

/// Listings that an admin may run over all tenants.
const LISTINGS_OF_ALL_TENANTS: [&str; 8] = [
    "/v1/attempts",
    "/v1/deliveries",
    "/v1/dlq",
    "/v1/dlq/stats",
    "/v1/webhooks",
    "/v1/events",
    "/v1/notifications",
    "/v1/overview",
];

#[tokio::test]
async fn all_tenants_are_listed_for_admins_and_users_only() {
    let (fixture, acme, globex) = both().await;
    let callers = callers(&fixture).await;
    let before = fixture.snapshot(&acme).await;
    let mut requests = 0;
    // Routes about all tenants ignore the parameter.
    let others = [RequiredRole::Admin, RequiredRole::AllTenants, RequiredRole::Public];
    for row in TABLE.iter().filter(|row| !others.contains(&row.need)) {
        if fixture.document.tenant_in(&row.route()) == TenantIn::Nowhere {
            continue;
        }
        let is_listing = row.method == "GET" && LISTINGS_OF_ALL_TENANTS.contains(&row.path);
        let (path, body) = for_tenant(&fixture.document, row, &acme.things.fill(row.path), Some("*"));
        for caller in &callers {
            let is_user = matches!(caller.role, Role::ViewerUser | Role::OperatorUser | Role::AdminUser);
            let is_admin = matches!(caller.role, Role::AdminForOther | Role::AdminForOwner);
            for authorization in caller.authorizations.iter().map(Option::as_deref) {
                let response = call(&fixture.admin, row, &path, &body, authorization).await;
                let why = format!("{} {path} by {:?}", row.method, caller.role);
                match (is_admin || is_user, is_listing) {
                    (true, true) => assert_eq!(response.status, 200, "{why}"),
                    // The role of a user is checked before the tenant.
                    (true, false) if is_user => assert!([400, 403].contains(&response.status), "{why}"),
                    (true, false) => assert_eq!(response.status, 400, "{why}"),
                    (false, _) => {
                        assert!([401, 403].contains(&response.status), "{why}: {}", response.status);
                        acme.things.assert_not_leaked(&response, &why);
                        globex.things.assert_not_leaked(&response, &why);
                    }
                }
                requests += 1;
            }
        }
    }
    assert!(requests >= 500, "only {requests} requests named all tenants");
    assert_eq!(before, fixture.snapshot(&acme).await);
    for path in ["/v1/deliveries", "/v1/dlq", "/v1/webhooks"] {
        let page = entries(&fixture.admin.get(&format!("{path}?tenant_id=*&limit=500")).await.expect(200));
        for tenant in [ACME, GLOBEX] {
            assert!(
                page.iter().any(|entry| entry["tenant_id"] == tenant),
                "{path} lists nothing of {tenant}"
            );
        }
    }
    // The roles published many events for `default`, so those of the tenants are selected by their ids.
    for (tenant, things) in [(ACME, &acme.things), (GLOBEX, &globex.things)] {
        let path = format!("/v1/events?tenant_id=*&id={}", things.event);
        assert_eq!(entries(&fixture.admin.get(&path).await.expect(200))[0]["tenant_id"], tenant);
    }
}

#[tokio::test]
async fn admin_without_tenant_acts_for_the_tenant_of_the_object() {
    let (fixture, acme, _) = both().await;
    for kind in ["webhooks", "events", "deliveries"] {
        let path = acme.things.fill(&format!("/v1/{kind}/{{id}}"));
        assert_eq!(fixture.admin.get(&path).await.expect(200)["tenant_id"], ACME);
        fixture.admin.get(&format!("{path}?tenant_id={GLOBEX}")).await.expect(404);
    }
}

#[tokio::test]
async fn tenant_in_update_body_moves_nothing() {
    let (fixture, acme, globex) = both().await;
    let transitions =
        |route: &Route| route.path.contains('{') && fixture.document.takes_field(route, "tenant_id");
    let mut requests = 0;
    for row in TABLE.iter().filter(|row| transitions(&row.route())) {
        let mut body: Value = serde_json::from_str(&row.fresh_body()).unwrap();
        body["tenant_id"] = GLOBEX.into();
        let path = acme.things.fill(row.path);
        // The owner may not transfer the object, the other tenant may not take it, and an admin finds nothing to move.
        for (api, status) in [(&acme.api, 403), (&globex.api, 404), (&fixture.admin, 404)] {
            let headers = [("content-type", "application/json")];
            let response = api.raw(row.method, &path, &headers, body.to_string()).await;
            assert_eq!(response.status, status, "{} {path} {body}", row.method);
        }
        requests += 1;
    }
    assert!(requests >= 10, "only {requests} changes take a tenant in their body");
    for path in ["webhooks/{id}", "events/{id}", "deliveries/{id}"] {
        let path = acme.things.fill(&format!("/v1/{path}"));
        assert_eq!(acme.api.get(&path).await.expect(200)["tenant_id"], ACME);
        globex.api.get(&path).await.expect(404);
    }
    let tenant = format!("/v1/tenants/{ACME}");
    for change in [json!({"id": GLOBEX}), json!({"tenant_id": GLOBEX})] {
        fixture.admin.patch(&tenant, change).await.expect(400);
    }
}

#[tokio::test]
async fn events_cannot_be_published_for_another_tenant() {
    let (fixture, acme, globex) = both().await;
    let before = fixture.snapshot(&acme).await;
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
    let judged = entries(&globex.api.post("/v1/events/batch", &inside).await.expect(202));
    assert_eq!([&judged[0]["status"], &judged[1]["status"]], [403, 202], "{judged:#?}");
    assert_eq!(before, fixture.snapshot(&acme).await);

    // An admin key may name a tenant per event. Order holds within each tenant.
    let numbered = |tenant: &str, number: u64| {
        let event = json!({"event_type": "order.paid", "data": number});
        with(&event, "tenant_id", tenant)
    };
    let (to_acme, to_globex) = ([0, 2].map(|n| numbered(ACME, n)), [1, 3].map(|n| numbered(GLOBEX, n)));
    let mixed = batch(&[&to_acme[0], &to_globex[0], &to_acme[1], &to_globex[1]]);
    let judged = entries(&fixture.admin.post("/v1/events/batch", &mixed).await.expect(202));
    let sequence = |index: usize| judged[index]["sequence_number"].as_i64().unwrap();
    assert_eq!(sequence(2), sequence(0) + 1, "{judged:#?}");
    assert_eq!(sequence(3), sequence(1) + 1, "{judged:#?}");
    let unknown = batch(&[&event, &with(&event, "tenant_id", "nobody-has-this-name")]);
    let judged = entries(&fixture.admin.post("/v1/events/batch", &unknown).await.expect(202));
    assert_eq!([&judged[0]["status"], &judged[1]["status"]], [202, 404], "{judged:#?}");

    // The same key twice is one event for one tenant, and two events for two tenants.
    let keyed = with(&event, "idempotency_key", "order-42");
    let first = acme.api.post("/v1/events", &keyed).await.expect(202);
    let other = globex.api.post("/v1/events", &keyed).await.expect(202);
    assert_ne!(id(&first), id(&other));
    assert_eq!(id(&acme.api.post("/v1/events", &keyed).await.expect(200)), id(&first));
}
