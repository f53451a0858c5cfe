//! Search: objects by what identifies them, events by their payloads, and the pages of both.

use redrive_testkit::{Api, Browser, Receiver, Redrive, Reply};
use serde_json::{Value, json};

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn rows(page: &Value) -> &[Value] {
    page["data"].as_array().map_or(&[], Vec::as_slice)
}

/// Searches, and returns the type, the matching field and the id of each hit.
async fn search(api: &Api, wanted: &str) -> Vec<(String, String, String)> {
    let wanted: String = url::form_urlencoded::byte_serialize(wanted.as_bytes()).collect();
    let found = api.get(&format!("/v1/search?q={wanted}")).await.expect(200);
    let parts = |hit: &Value| ["type", "matched", "id"].map(|field| text(&hit[field]).to_owned()).into();
    rows(&found).iter().map(parts).collect()
}

fn hit(kind: &str, matched: &str, id: &Value) -> (String, String, String) {
    (kind.into(), matched.into(), text(id).into())
}

/// One delivered event of a tenant, with everything that belongs to it.
struct Objects {
    webhook: Value,
    event: Value,
    delivery: Value,
    attempt: Value,
    _receiver: Receiver,
}

impl Objects {
    async fn create(api: &Api) -> Self {
        let receiver = Receiver::with(|_| Reply::status(200)).await;
        let extra = json!({"description": "Orders of the shop"});
        let webhook = api.create_webhook(&receiver.url_at("/incoming/orders"), extra).await;
        let event = json!({"event_type": "order.created", "data": {"order": {"id": "ord_1", "total": 42}},
            "subject": "customer 7", "idempotency_key": "key-7"});
        let event = api.post("/v1/events", event).await.expect(202);
        let path = format!("/v1/deliveries?event_id={}", text(&event["id"]));
        let delivered = |page: &Value| page["data"][0]["status"] == "delivered";
        let delivery = api.wait_until("a delivery", &path, delivered).await["data"][0].clone();
        let attempts =
            api.get(&format!("/v1/deliveries/{}/attempts", text(&delivery["id"]))).await.expect(200);
        let attempt = attempts["data"][0].clone();
        Self { webhook, event, delivery, attempt, _receiver: receiver }
    }

    fn ids(&self) -> [(&'static str, &Value); 4] {
        [
            ("webhook", &self.webhook["id"]),
            ("event", &self.event["id"]),
            ("delivery", &self.delivery["id"]),
            ("attempt", &self.attempt["id"]),
        ]
    }
}

async fn tenant(redrive: &Redrive, name: &str) -> Api {
    let admin = redrive.api();
    admin.post("/v1/tenants", json!({"id": name, "name": format!("The {name} company")})).await.expect(201);
    let key = json!({"scopes": ["publish", "read", "manage"]});
    let key = admin.post(&format!("/v1/tenants/{name}/api-keys"), key).await.expect(201);
    admin.with_key(text(&key["key"]))
}

#[tokio::test]
async fn objects_are_found_by_id_however_it_was_pasted() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let objects = Objects::create(&api).await;
    for (kind, id) in objects.ids() {
        let expected = vec![hit(kind, "id", id)];
        let bare = text(id).split_once('_').unwrap().1.to_owned();
        let uuid = [&bare[..8], &bare[8..12], &bare[12..16], &bare[16..20], &bare[20..]].join("-");
        for pasted in [text(id).to_owned(), format!(" \"{}\",\n", text(id)), bare, uuid] {
            assert_eq!(search(&api, &pasted).await, expected, "{pasted}");
        }
        let unknown = format!("{}0", &text(id)[..text(id).len() - 1]);
        if unknown != text(id) {
            assert_eq!(search(&api, &unknown).await, [], "{unknown}");
        }
    }
}

#[tokio::test]
async fn objects_are_found_by_texts_that_identify_them() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let objects = Objects::create(&api).await;
    api.post("/v1/event-types", json!({"name": "invoice.paid"})).await.expect(201);
    let (webhook, event) = (&objects.webhook["id"], &objects.event["id"]);
    for (wanted, expected) in [
        ("INCOMING/ord", vec![hit("webhook", "url", webhook)]),
        ("of the shop", vec![hit("webhook", "description", webhook)]),
        ("customer 7", vec![hit("event", "subject", event)]),
        ("customer", vec![]),
        ("'key-7'", vec![hit("event", "idempotency_key", event)]),
        ("invoice", vec![hit("event_type", "name", &json!("invoice.paid"))]),
        ("order.created", vec![hit("event_type", "name", &json!("order.created"))]),
        ("order.unknown", vec![]),
        ("default", vec![hit("tenant", "id", &json!("default"))]),
        (" \"\" ", vec![]),
        ("x\0", vec![]),
    ] {
        assert_eq!(search(&api, wanted).await, expected, "{wanted}");
    }
    let problem = api.get(&format!("/v1/search?q={}", "x".repeat(513))).await.expect(400);
    assert_eq!((text(&problem["field"]), text(&problem["detail"])), ("q", "q: must be at most 512 bytes"));
}

#[tokio::test]
async fn foreign_and_hidden_objects_look_nonexistent() {
    let redrive = Redrive::start().await;
    let (acme, globex) = (tenant(&redrive, "acme").await, tenant(&redrive, "globex").await);
    let objects = Objects::create(&acme).await;
    let texts = ["customer 7", "key-7", "incoming", "order.created", "acme", "company"];
    let hidden = format!("/v1/webhooks/{}", text(&objects.webhook["id"]));
    redrive
        .api()
        .patch(&format!("{hidden}?tenant_id=acme"), json!({"managed_by": "operator"}))
        .await
        .expect(200);
    for wanted in objects.ids().map(|(_, id)| text(id)).iter().chain(&texts) {
        assert_eq!(search(&globex, wanted).await, [], "{wanted} of another tenant");
    }
    let session = redrive.api().post("/v1/portal-sessions", json!({"tenant_id": "acme"})).await.expect(201);
    let portal = redrive.api().with_key(text(&session["token"]));
    for (kind, id) in objects.ids() {
        let found = search(&portal, text(id)).await;
        let expected = if kind == "event" { vec![hit(kind, "id", id)] } else { vec![] };
        assert_eq!(found, expected, "{kind} to a webhook of the operator");
    }
    assert_eq!(search(&portal, "incoming").await, []);
    let payloads = "/v1/events/search?path=order.id&value=ord_1";
    assert_eq!(rows(&acme.get(payloads).await.expect(200)).len(), 1);
    assert_eq!(rows(&globex.get(payloads).await.expect(200)).len(), 0);
}

#[tokio::test]
async fn admin_finds_ids_of_every_tenant() {
    let redrive = Redrive::start().await;
    let acme = tenant(&redrive, "acme").await;
    let objects = Objects::create(&acme).await;
    for (kind, id) in objects.ids() {
        assert_eq!(search(&redrive.api(), text(id)).await, [hit(kind, "id", id)], "{kind}");
    }
    let attempt = format!("/v1/attempts/{}", text(&objects.attempt["id"]));
    assert_eq!(redrive.api().get(&attempt).await.expect(200)["id"], objects.attempt["id"]);
    assert_eq!(search(&redrive.api(), "acme com").await, [hit("tenant", "name", &json!("acme"))]);
}

#[tokio::test]
async fn search_over_several_tenants_names_the_tenant_whose_events_it_searched() {
    let redrive = Redrive::start().await;
    let alone = redrive.api().get("/v1/search?q=incoming").await.expect(200);
    assert_eq!((&alone["tenant_id"], &alone["complete"]), (&json!("default"), &json!(true)));
    let acme = tenant(&redrive, "acme").await;
    let objects = Objects::create(&acme).await;
    let by_url = redrive.api().get("/v1/search?q=incoming").await.expect(200);
    assert_eq!(by_url["data"][0]["id"], objects.webhook["id"], "a webhook of another tenant: {by_url}");
    assert_eq!((&by_url["data"][0]["tenant_id"], rows(&by_url).len()), (&json!("acme"), 1));
    for wanted in ["customer%207", "key-7"] {
        let found = redrive.api().get(&format!("/v1/search?q={wanted}")).await.expect(200);
        assert_eq!((rows(&found).len(), &found["tenant_id"]), (0, &json!("default")));
        assert_eq!(found["complete"], false, "acme was not searched");
        let found = redrive.api().get(&format!("/v1/search?q={wanted}&tenant_id=acme")).await.expect(200);
        assert_eq!((&found["data"][0]["id"], &found["tenant_id"]), (&objects.event["id"], &json!("acme")));
    }
    let own = acme.get("/v1/search?q=key-7").await.expect(200);
    assert_eq!((&own["tenant_id"], &own["complete"]), (&json!("acme"), &json!(true)));
    let browser = Browser::log_in(&redrive, redrive.key()).await;
    let page = browser.page("/dashboard/t/default/search?q=key-7").await;
    assert!(page.contains("Nothing was found") && page.contains("only in the tenant default"), "{page}");
}

#[tokio::test]
async fn payloads_are_searched_by_path_and_value_in_pages() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    for n in 0..30 {
        let data = json!({"order": {"id": format!("ord_{}", n % 3), "n": n % 2, "lines": [{"sku": "a/b"}]}});
        let event_type = ["order.created", "order.paid"][n % 2];
        api.post("/v1/events", json!({"event_type": event_type, "data": data})).await.expect(202);
    }
    for (query, expected) in [
        ("path=order.id&value=ord_1", 10),
        ("path=/order/id&value=%22ord_1%22", 10),
        ("path=order.n&value=1", 15),
        ("path=order.n&value=1.0&event_type=order.created", 0),
        ("path=$.order.lines[0].sku&value=a/b&event_type=order.paid", 15),
        ("path=order.n&value=%221%22", 0),
        ("path=missing&value=null", 0),
        ("path=order.n&value=1&to=2024-01-01&from=2023-12-30", 0),
    ] {
        let found = api.get(&format!("/v1/events/search?{query}&limit=100")).await.expect(200);
        assert_eq!(rows(&found).len(), expected, "{query}");
        assert!(
            found["next_cursor"].is_null() && found["progress"]["scanned_to"] == found["progress"]["from"]
        );
    }
    let (mut ids, mut cursor) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/events/search?path=order.id&value=ord_1&limit=4{cursor}");
        let page = api.get(&path).await.expect(200);
        assert!(rows(&page).len() <= 4 && page["progress"]["scanned"].as_u64() > Some(0), "{page}");
        ids.extend(rows(&page).iter().map(|event| text(&event["id"]).to_owned()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert!(ids.len() == 10 && ids.is_sorted_by(|newer, older| newer > older), "{ids:?}");
}

#[tokio::test]
async fn payload_search_beyond_its_limits_is_refused() {
    let redrive = Redrive::start().await;
    for (query, field, part) in [
        ("", "path", "is missing"),
        ("path=a", "value", "is missing"),
        ("path=a..b&value=1", "path", "JSON pointer"),
        ("path=a&value=%7B%7D", "value", "a string, a number"),
        ("path=a&value=1&from=2024-01-01", "from", "at most 7 days"),
        ("path=a&value=1&from=2024-01-01&to=2024-01-08T00:00:01Z", "from", "at most 7 days"),
        ("path=a&value=1&limit=501", "limit", "1 to 500"),
        ("path=a&value=1&cursor=x", "cursor", "next_cursor"),
    ] {
        let problem = redrive.api().get(&format!("/v1/events/search?{query}")).await.expect(400);
        assert_eq!(problem["field"], field, "{query}: {problem}");
        assert!(text(&problem["detail"]).contains(part), "{query}: {problem}");
    }
}

#[tokio::test]
async fn search_page_redirects_to_the_object_of_an_id_and_lists_other_hits() {
    let redrive = Redrive::start().await;
    let objects = Objects::create(&redrive.api()).await;
    let browser = Browser::log_in(&redrive, redrive.key()).await;
    let page = "/dashboard/t/default";
    let delivery = text(&objects.delivery["id"]);
    let response = browser.get(&format!("{page}/search?q={delivery}")).await;
    let location = response.header("location").unwrap_or_default().to_owned();
    assert_eq!((response.status, location), (303, format!("{page}/deliveries/{delivery}")));
    let listed = browser.page(&format!("{page}/search?q=incoming")).await;
    assert!(listed.contains(&format!("{page}/webhooks/{}", text(&objects.webhook["id"]))), "{listed}");
    let none = browser.page(&format!("{page}/search?q=%3Cscript%3E")).await;
    assert!(none.contains("Nothing was found") && !none.contains("<script>"), "{none}");
    let payloads = browser.page(&format!("{page}/search/payloads?path=order.id&value=ord_1")).await;
    assert!(
        payloads.contains(text(&objects.event["id"])) && payloads.contains("Searched 100 %"),
        "{payloads}"
    );
    let wrong = browser.page(&format!("{page}/search/payloads?path=a..b&value=1")).await;
    assert!(wrong.contains("must be a JSON pointer"), "{wrong}");
}
