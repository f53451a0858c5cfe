//! Reads over all tenants by admins: `tenant_id=*`, lookups by id, the overview, and the pages. On both stores.

use redrive_testkit::{Api, Browser, Postgres, Receiver, Redrive, Setup};
use serde_json::{Value, json};

/// A server with two tenants: `acme`, whose endpoint works, and `globex`, whose endpoint rejects everything.
struct Fixture {
    redrive: Redrive,
    api: Api,
    acme: Tenant,
    globex: Tenant,
    _receivers: [Receiver; 2],
    _database: Option<redrive_testkit::Database>,
}

struct Tenant {
    webhook: String,
    event: String,
    delivery: String,
}

impl Fixture {
    async fn on_sqlite() -> Self {
        Self::start(Setup::new(), None).await
    }

    async fn on_postgres() -> Self {
        let database = Postgres::shared().await;
        Self::start(Setup::new().database_url(database.url()), Some(database)).await
    }

    async fn start(setup: Setup, database: Option<redrive_testkit::Database>) -> Self {
        let redrive = Redrive::start_with(setup).await;
        let api = redrive.api();
        let receivers = [Receiver::start().await, Receiver::responding(400).await];
        let acme = tenant(&api, "acme", &receivers[0], "delivered").await;
        let globex = tenant(&api, "globex", &receivers[1], "dead").await;
        Self { redrive, api, acme, globex, _receivers: receivers, _database: database }
    }

    /// Returns the listed pairs of tenant and id.
    async fn listed(&self, path: &str) -> Vec<(String, String)> {
        let page = self.api.get(path).await.expect(200);
        let pair = |row: &Value| (text(&row["tenant_id"]), text(&row["id"]));
        page["data"].as_array().unwrap().iter().map(pair).collect()
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

/// Creates a tenant with a webhook, and publishes an event whose delivery ends in this status.
async fn tenant(api: &Api, id: &str, receiver: &Receiver, status: &str) -> Tenant {
    api.post("/v1/tenants", json!({"id": id, "name": format!("The {id} company")})).await.expect(201);
    let webhook = json!({"tenant_id": id, "url": receiver.url(), "events": ["*"]});
    let webhook = text(&api.post("/v1/webhooks", webhook).await.expect(201)["id"]);
    let event = json!({"tenant_id": id, "event_type": "order.paid", "data": {}, "subject": "s"});
    let event = text(&api.post("/v1/events", event).await.expect(202)["id"]);
    let path = format!("/v1/deliveries?tenant_id={id}&status={status}");
    let delivery = loop {
        let page = api.get(&path).await.expect(200);
        if let Some(row) = page["data"].as_array().unwrap().first() {
            break text(&row["id"]);
        }
    };
    Tenant { webhook, event, delivery }
}

fn pair(tenant: &str, id: &str) -> (String, String) {
    (tenant.to_owned(), id.to_owned())
}

async fn admin_lists_all_tenants(fixture: Fixture) {
    let Fixture { acme, globex, .. } = &fixture;
    let both = |newer: &str, older: &str| [pair("globex", newer), pair("acme", older)];
    let deliveries = both(&globex.delivery, &acme.delivery);
    assert_eq!(fixture.listed("/v1/deliveries?tenant_id=*").await, deliveries);
    assert_eq!(fixture.listed("/v1/deliveries?tenant_id=*&status=delivered").await, deliveries[1..]);
    assert_eq!(fixture.listed("/v1/deliveries?tenant_id=*&status=failed").await, deliveries[..1]);
    let by_webhook = format!("/v1/deliveries?tenant_id=*&webhook_id={}", acme.webhook);
    assert_eq!(fixture.listed(&by_webhook).await, deliveries[1..]);
    let by_event = format!("/v1/deliveries?tenant_id=*&event_id={}", globex.event);
    assert_eq!(fixture.listed(&by_event).await, deliveries[..1]);
    for status in ["pending", "in_flight", "circuit_blocked"] {
        assert_eq!(fixture.listed(&format!("/v1/deliveries?tenant_id=*&status={status}")).await, []);
    }
    assert_eq!(fixture.listed("/v1/dlq?tenant_id=*").await, deliveries[..1]);
    assert_eq!(fixture.listed("/v1/webhooks?tenant_id=*").await, both(&globex.webhook, &acme.webhook));
    assert_eq!(
        fixture.listed("/v1/events?tenant_id=*&event_type=order.paid").await,
        both(&globex.event, &acme.event)
    );
    let by_id = format!("/v1/events?tenant_id=*&id={}", acme.event);
    assert_eq!(fixture.listed(&by_id).await, [pair("acme", &acme.event)]);
    let unknown = "evt_00000000000000000000000000000001";
    assert_eq!(fixture.listed(&format!("/v1/events?tenant_id=*&id={unknown}")).await, []);
    let stats = fixture.api.get("/v1/dlq/stats?tenant_id=*").await.expect(200);
    assert_eq!((&stats["size"], &stats["by_webhook"][0]["webhook_id"]), (&json!(1), &json!(globex.webhook)));
    assert_eq!(stats["by_tenant"], json!([{"tenant_id": "globex", "count": 1}]));
    assert_eq!(stats["other_tenants"], 0);
    let of_one = fixture.api.get("/v1/dlq/stats?tenant_id=globex").await.expect(200);
    assert_eq!(
        (&of_one["size"], of_one.get("by_tenant"), of_one.get("other_tenants")),
        (&json!(1), None, None)
    );
    // Without a tenant, an admin acts for `default`, as before.
    assert_eq!(fixture.listed("/v1/deliveries").await, []);
    // Pages follow each other by their cursors.
    let first = fixture.api.get("/v1/deliveries?tenant_id=*&limit=1").await.expect(200);
    let next = format!("/v1/deliveries?tenant_id=*&limit=1&cursor={}", text(&first["next_cursor"]));
    assert_eq!(fixture.listed(&next).await, deliveries[1..]);
}

#[tokio::test]
async fn admin_lists_all_tenants_on_sqlite() {
    admin_lists_all_tenants(Fixture::on_sqlite().await).await;
}

#[tokio::test]
async fn admin_lists_all_tenants_on_postgres() {
    admin_lists_all_tenants(Fixture::on_postgres().await).await;
}

#[tokio::test]
async fn notifications_of_all_tenants_are_listed() {
    let fixture = Fixture::on_sqlite().await;
    loop {
        let page = fixture.api.get("/v1/notifications?tenant_id=*").await.expect(200);
        if let Some(row) = page["data"].as_array().unwrap().first() {
            assert_eq!((&row["tenant_id"], &row["kind"]), (&json!("globex"), &json!("delivery.dead")));
            break;
        }
    }
    assert_eq!(fixture.listed("/v1/notifications").await, []);
}

#[tokio::test]
async fn filter_that_needs_a_tenant_is_refused_for_all() {
    let fixture = Fixture::on_sqlite().await;
    for (path, field) in [
        ("/v1/deliveries?tenant_id=*&subject=s", "subject"),
        ("/v1/deliveries?tenant_id=*&idempotency_key=k", "idempotency_key"),
        ("/v1/dlq?tenant_id=*&subject=s", "subject"),
        ("/v1/events?tenant_id=*&idempotency_key=k", "idempotency_key"),
        ("/v1/deliveries/export?tenant_id=*", "tenant_id"),
        ("/v1/event-types?tenant_id=*", "tenant_id"),
    ] {
        let problem = fixture.api.get(path).await.expect(400);
        assert!(problem.to_string().contains(field), "{path}: {problem}");
    }
    let publish = json!({"tenant_id": "*", "event_type": "a.b", "data": 1});
    let problem = fixture.api.post("/v1/events", publish).await.expect(400);
    assert!(problem.to_string().contains("only by listings"), "{problem}");
}

#[tokio::test]
async fn object_is_found_by_id_in_any_tenant_by_admin_only() {
    for fixture in [Fixture::on_sqlite().await, Fixture::on_postgres().await] {
        let Fixture { acme, globex, api, .. } = &fixture;
        let created = api.post("/v1/tenants/acme/api-keys", json!({"scopes": ["read", "manage"]})).await;
        let tenant_key = api.with_key(&text(&created.expect(201)["key"]));
        let paths = |of: &Tenant| {
            let Tenant { webhook, event, delivery } = of;
            [
                format!("/v1/deliveries/{delivery}"),
                format!("/v1/deliveries/{delivery}/attempts"),
                format!("/v1/events/{event}"),
                format!("/v1/events/{event}/deliveries"),
                format!("/v1/events/{event}/attempts"),
                format!("/v1/webhooks/{webhook}"),
                format!("/v1/webhooks/{webhook}/health"),
                format!("/v1/webhooks/{webhook}/deliveries"),
            ]
        };
        for (tenant, of) in [("acme", acme), ("globex", globex)] {
            for path in paths(of) {
                let found = api.get(&path).await.expect(200);
                if let Some(owner) = found.get("tenant_id") {
                    assert_eq!(owner, tenant, "{path}");
                }
                let other = if tenant == "acme" { "globex" } else { "acme" };
                api.get(&format!("{path}?tenant_id={other}")).await.expect(404);
                api.get(&format!("{path}?tenant_id={tenant}")).await.expect(200);
                tenant_key.get(&path).await.expect(if tenant == "acme" { 200 } else { 404 });
            }
        }
        // Changes reach the object's own tenant as well.
        let retried = api.post(&format!("/v1/deliveries/{}/retry", globex.delivery), json!({})).await;
        retried.expect(202);
        api.post(&format!("/v1/webhooks/{}/pause", acme.webhook), json!({})).await.expect(200);
        let circuit = format!("/v1/webhooks/{}/circuit-breaker", acme.webhook);
        api.patch(&circuit, json!({"action": "force_open"})).await.expect(200);
        api.get("/v1/deliveries/dlv_00000000000000000000000000000001").await.expect(404);
    }
}

#[tokio::test]
async fn tenants_are_listed_by_health_and_searched_by_name() {
    for fixture in [Fixture::on_sqlite().await, Fixture::on_postgres().await] {
        let api = &fixture.api;
        let ids = async |query: &str| {
            let page = api.get(&format!("/v1/tenants?{query}")).await.expect(200);
            page["data"].as_array().unwrap().iter().map(|one| text(&one["id"])).collect::<Vec<_>>()
        };
        let globex = loop {
            let page = api.get("/v1/tenants?search=GLOBEX%20comp").await.expect(200);
            let row = page["data"][0].clone();
            // Counts in memory are added to the store every few seconds.
            if row["health"]["attempts"] == 1 {
                break row;
            }
        };
        let health = &globex["health"];
        assert_eq!((&health["status"], &health["success_rate"]), (&json!("failing"), &json!(0.0)));
        assert_eq!((&health["deliveries"], &health["dead_letters"]), (&json!(1), &json!(1)));
        assert_eq!(ids("").await, ["acme", "default", "globex"]);
        assert_eq!(ids("sort=status&limit=1").await, ["globex"]);
        assert_eq!(ids("sort=dead_letters").await, ["globex", "acme", "default"]);
        assert_eq!(ids("sort=dead_letters&limit=1&cursor=globex").await, ["acme"]);
        assert_eq!(ids("sort=id&order=desc").await, ["globex", "default", "acme"]);
        assert_eq!(ids("search=the%20&sort=name&order=desc").await, ["globex", "acme"]);
        api.get("/v1/tenants?sort=size").await.expect(400);
        api.get("/v1/tenants?order=up").await.expect(400);
        api.get("/v1/tenants?sort=status&cursor=unknown").await.expect(400);
        // A new tenant is found by the next search.
        api.post("/v1/tenants", json!({"id": "initech", "name": "Brand new"})).await.expect(201);
        assert_eq!(ids("search=brand").await, ["initech"]);
        api.patch("/v1/tenants/initech", json!({"name": "Renamed"})).await.expect(200);
        assert_eq!(ids("search=renamed").await, ["initech"]);
        api.delete("/v1/tenants/initech").await.expect(204);
        assert_eq!(ids("search=renamed").await, [] as [&str; 0]);
    }
}

#[tokio::test]
async fn overview_of_all_tenants_names_the_failing_ones() {
    for fixture in [Fixture::on_sqlite().await, Fixture::on_postgres().await] {
        let api = &fixture.api;
        let overview = loop {
            let overview = api.get("/v1/overview?tenant_id=*").await.expect(200);
            if overview["worst_webhooks"].as_array().is_some_and(|worst| !worst.is_empty()) {
                break overview;
            }
        };
        assert_eq!((&overview["tenant_id"], &overview["dead_letters"]["total"]), (&json!("*"), &json!(1)));
        let traffic = &overview["traffic"];
        assert_eq!(
            (&traffic["attempts"], &traffic["successes"], &traffic["dead"]),
            (&json!(2), &json!(1), &json!(1))
        );
        assert_eq!(overview["worst_tenants"][0]["tenant_id"], "globex");
        assert_eq!(overview["webhooks_with_failures"], 1);
        let worst = &overview["worst_webhooks"][0];
        assert_eq!(
            (&worst["tenant_id"], &worst["webhook_id"]),
            (&json!("globex"), &json!(fixture.globex.webhook))
        );
        let one = api.get("/v1/overview?tenant_id=acme&range=24h").await.expect(200);
        assert_eq!((&one["traffic"]["attempts"], one.get("worst_tenants")), (&json!(1), None));
        api.get("/v1/overview?tenant_id=*&range=2h").await.expect(400);
    }
}

#[tokio::test]
async fn pages_of_all_tenants_have_a_tenant_column_and_filter() {
    let fixture = Fixture::on_sqlite().await;
    let Fixture { acme, globex, .. } = &fixture;
    let admin = Browser::log_in(&fixture.redrive, fixture.redrive.key()).await;
    let link = |tenant: &str, kind: &str, id: &str| format!("/dashboard/t/{tenant}/{kind}/{id}\"");
    let of_acme = link("acme", "deliveries", &acme.delivery);
    let of_globex = link("globex", "deliveries", &globex.delivery);
    let page = admin.page("/dashboard/all/deliveries").await;
    assert!(page.contains(&of_acme) && page.contains(&of_globex) && page.contains("<!--live-->"), "{page}");
    let page = admin.page("/dashboard/all/deliveries?tenant_id=ACME").await;
    assert!(page.contains(&of_acme) && !page.contains(&of_globex), "{page}");
    let page = admin.page("/dashboard/all/dead").await;
    assert!(page.contains(&of_globex) && !page.contains(&of_acme), "{page}");
    let page = admin.page("/dashboard/all/webhooks").await;
    let webhooks = [link("acme", "webhooks", &acme.webhook), link("globex", "webhooks", &globex.webhook)];
    assert!(webhooks.iter().all(|link| page.contains(link)), "{page}");
    let page = admin.page("/dashboard/all/webhooks?tenant_id=globex&circuit=closed").await;
    assert!(!page.contains(&webhooks[0]) && page.contains(&webhooks[1]), "{page}");
    while !admin.page("/dashboard/all/notifications").await.contains("dead deliveries") {}
    loop {
        let page = admin.page("/dashboard/all").await;
        if page.contains("id=\"tenant-globex\"") && page.contains(&format!("id=\"worst-{}\"", globex.webhook))
        {
            assert!(!page.contains("id=\"tenant-acme\""), "acme is healthy: {page}");
            break;
        }
    }
    let page = admin.page("/dashboard/admin/tenants?sort=status&search=company").await;
    let rows: Vec<_> = page.split("id=\"tenant-").skip(1).map(|row| row.split('"').next().unwrap()).collect();
    assert_eq!(rows, ["globex", "acme"]);
    assert!(
        page.contains("aria-sort=\"ascending\"") && page.contains("sort=status&#38;order=desc"),
        "{page}"
    );
    assert_eq!(admin.get("/dashboard/all/deliveries?tenant_id=unknown").await.status, 404);
}

#[tokio::test]
async fn pages_of_all_tenants_require_admin_key() {
    let redrive = Redrive::start().await;
    let created = redrive.api().post("/v1/tenants/default/api-keys", json!({})).await.expect(201);
    let keyholder = Browser::log_in(&redrive, created["key"].as_str().unwrap()).await;
    let admin = Browser::log_in(&redrive, redrive.key()).await;
    for page in ["", "/webhooks", "/deliveries", "/dead", "/notifications"] {
        let page = format!("/dashboard/all{page}");
        assert_eq!(keyholder.get(&page).await.status, 403, "{page}");
        assert_eq!(admin.get(&page).await.status, 200, "{page}");
    }
}
