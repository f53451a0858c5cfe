//! The publisher of `docs/ingestion.md`, with a real broker.

use std::{fs, process::Command};

use redrive_testkit::{RabbitMq, Receiver, Redrive, Setup, python_with};
use redrive_tests::text;
use serde_json::json;
use tempfile::TempDir;

use super::{Program, block, blocks};

#[tokio::test(flavor = "multi_thread")]
async fn publisher_sends_four_formats_and_an_invalid_message() {
    let (vhost, receiver) = (RabbitMq::shared().await, Receiver::start().await);
    for queue in ["shop.events", "shop.events.rejected"] {
        vhost.declare(queue).await;
    }
    let source =
        format!(r#"[{{type = "amqp", name = "shop", url = "{}", queue = "shop.events"}}]"#, vhost.url());
    let redrive = Redrive::start_with(Setup::new().env("REDRIVE_SOURCES", source)).await;
    redrive.api().create_webhook(&receiver.url(), json!({"ordering_guarantee": "strict"})).await;

    let (page, folder) = (blocks("docs/ingestion.md", "ingestion", &["publish.py"]), TempDir::new().unwrap());
    let program = block(&page, "publish.py");
    let url = "amqp://guest:guest@127.0.0.1:5672/%2f";
    assert!(program.contains(url), "the test replaces this URL");
    fs::write(folder.path().join("publish.py"), program.replace(url, &vhost.url())).unwrap();
    let mut command = Command::new(python_with(&["pika"]));
    Program::start(command.arg("publish.py").current_dir(folder.path())).finish();

    let arrivals = receiver.wait_for(4).await;
    let mut types: Vec<_> = arrivals.iter().map(|arrival| text(&arrival.json()["type"]).to_owned()).collect();
    types.sort();
    assert_eq!(types, ["order.created", "order.lost", "order.paid", "order.sent"]);
    let paid = arrivals.iter().find(|arrival| arrival.json()["type"] == "order.paid").unwrap().json();
    assert_eq!(
        (&paid["source"], &paid["subject"], &paid["data"]),
        (&json!("till"), &json!("order 2"), &json!({"order": 2}))
    );
    let created = arrivals.iter().find(|arrival| arrival.json()["type"] == "order.created").unwrap();
    assert_eq!(created.header("x-idempotency-key"), Some("order-1"));

    let started = tokio::time::Instant::now();
    let rejected = loop {
        if let Some(message) = vhost.get("shop.events.rejected").await {
            break message;
        }
        assert!(started.elapsed() < redrive_testkit::WAIT_TIMEOUT, "the invalid message was not rejected");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    assert!(String::from_utf8_lossy(&rejected.body).contains("\"order\": 5"), "{:?}", rejected.body);
}
