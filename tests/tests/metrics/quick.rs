//! A scrape is quick, however many webhooks there are.

use std::time::{Duration, Instant};

use redrive_testkit::{Receiver, Redrive};
use serde_json::json;
use tokio::task::JoinSet;

const WEBHOOKS: usize = 10_000;
const AT_ONCE: usize = 32;

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::print_stdout, reason = "the figure is for whoever runs it")]
async fn a_scrape_is_quick_with_ten_thousand_webhooks() {
    let (redrive, receiver) = (Redrive::start().await, Receiver::start().await);
    let mut tasks = JoinSet::new();
    for task in 0..AT_ONCE {
        let (api, url) = (redrive.api(), receiver.url());
        tasks.spawn(async move {
            for n in (task..WEBHOOKS).step_by(AT_ONCE) {
                api.create_webhook(&format!("{url}{n}"), json!({"events": [format!("type.{n}")]})).await;
            }
        });
    }
    tasks.join_all().await;
    redrive.api().publish("type.7", json!({})).await;
    receiver.wait_for(1).await;
    let mut took = Vec::new();
    for _ in 0..30 {
        let began = Instant::now();
        let page = redrive.api().get("/metrics").await;
        took.push(began.elapsed());
        assert_eq!(page.status, 200);
        assert!(String::from_utf8_lossy(&page.body).contains("redrive_webhooks 10000\n"));
    }
    took.sort();
    let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
    println!("a scrape with {WEBHOOKS} webhooks: median {median:?}, longest {longest:?}");
    // The budget of a release build is 20 ms; this one may be slow, and others are at work.
    assert!(median < Duration::from_millis(100), "{took:?}");
}
