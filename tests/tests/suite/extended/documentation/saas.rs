//! The commands of `docs/model-your-saas.md`, and its statements about responses.

use redrive_testkit::{Postgres, Redrive};
use redrive_tests::{entries, text};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Shell, block, blocks};

const NAMES: [&str; 6] = ["variables", "tenant", "event-type", "outbox", "publish", "portal"];

fn page() -> Vec<(String, String)> {
    blocks("docs/model-your-saas.md", "saas", &NAMES)
}

fn parse(output: &str) -> Value {
    serde_json::from_str(output).unwrap_or_else(|error| panic!("{error}: {output}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_for_tenants_work() {
    let (blocks, folder, redrive) = (page(), TempDir::new().unwrap(), Redrive::start().await);
    let api = redrive.api();
    std::fs::create_dir(folder.path().join("redrive-data")).unwrap();
    std::fs::write(folder.path().join("redrive-data/admin.key"), redrive.key()).unwrap();
    let mut shell = Shell::start(folder.path());
    let mut step = |name: &str| {
        shell.run(&block(&blocks, name).replace("127.0.0.1:8080", &redrive.address().to_string()))
    };
    step("variables");

    // A publish for a tenant that does not exist is a 404, alone and in a batch.
    let unknown = json!({"tenant_id": "cus-4711", "event_type": "invoice.paid", "data": {}});
    assert_eq!(api.post("/v1/events", &unknown).await.expect(404)["code"], "not_found");
    let items = parse(&step("publish"));
    assert_eq!(items["data"][0]["status"], 404, "{items}");

    let tenant = parse(&step("tenant"));
    assert_eq!(
        (&tenant["id"], &tenant["quotas"]["max_webhooks"]),
        (&json!("cus-4711"), &json!(20)),
        "{tenant}"
    );
    assert_eq!(parse(&step("tenant"))["code"], "tenant_exists", "a repetition");

    let output = step("event-type");
    let responses: Vec<_> = output.lines().map(parse).collect();
    assert_eq!(
        (&responses[0]["name"], &responses[1]["strict_event_types"]),
        (&json!("invoice.paid"), &json!(true))
    );
    let misspelled = json!({"tenant_id": "cus-4711", "event_type": "invoice.payed", "data": {}});
    assert_eq!(api.post("/v1/events", misspelled).await.expect(400)["code"], "event_type_not_registered");

    let first = parse(&step("publish"));
    assert_eq!(first["data"][0]["status"], 202, "{first}");
    let again = parse(&step("publish"));
    assert_eq!(again["data"][0]["status"], 200, "the relay repeats a row: {again}");
    assert_eq!(entries(&api.get("/v1/events?tenant_id=cus-4711").await.expect(200)).len(), 1);

    let session = parse(&step("portal"));
    let token = text(&session["token"]);
    assert_eq!(text(&session["url"]), format!("http://{}/portal#{token}", redrive.address()));
    let customer = api.with_key(token);
    customer.get("/v1/webhooks").await.expect(200);
    assert_eq!(
        customer.post("/v1/events", json!({"event_type": "invoice.paid", "data": {}})).await.status,
        403
    );

    api.delete("/v1/tenants/cus-4711").await.expect(204);
    let reused = api.post("/v1/tenants", json!({"id": "cus-4711"})).await;
    assert_eq!(reused.status, 409, "an id is never reused: {}", reused.problem());
    assert_eq!(customer.get("/v1/webhooks").await.status, 401, "its keys are revoked");
}

#[tokio::test(flavor = "multi_thread")]
async fn outbox_holds_what_the_batch_needs() {
    let (blocks, database) = (page(), Postgres::shared().await);
    database.execute("CREATE TABLE invoices (id int PRIMARY KEY, status text); INSERT INTO invoices VALUES (17, 'open')").await;
    database.execute(block(&blocks, "outbox")).await;
    let rows = database
        .query("SELECT id, tenant_id, event_type, subject, data FROM webhook_outbox ORDER BY id")
        .await;
    // The item of the batch on the page is this row.
    let batch = block(&blocks, "publish");
    let item = &parse(&batch[batch.find("'{").unwrap() + 1..batch.rfind('\'').unwrap()])["events"][0];
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!(item["idempotency_key"], format!("outbox-{}", row[0]));
    assert_eq!(row[1..4], ["tenant_id", "event_type", "subject"].map(|field| text(&item[field]).to_owned()));
    assert_eq!(item["data"], parse(&row[4]));
    assert_eq!(database.query("SELECT status FROM invoices").await, [["paid"]]);
}
