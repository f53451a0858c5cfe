//! The formats of the metrics: which one a client gets, and that they agree.

use std::collections::BTreeSet;

use redrive_testkit::{Api, Receiver, Redrive, Setup, check_metrics};
use serde_json::json;

use super::publish;

const PAGES: [&str; 2] = ["/metrics", "/metrics/tenants"];
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// What Prometheus 2.42 sends.
const PROMETHEUS: &str = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

/// Returns the content type and the page.
async fn scrape(api: &Api, path: &str, accept: Option<&str>) -> (String, String) {
    let headers: Vec<_> = accept.iter().map(|accept| ("accept", *accept)).collect();
    let page = api.raw("GET", path, &headers, "").await;
    assert_eq!(page.status, 200);
    assert_eq!(page.header("vary"), Some("accept"));
    let kind = page.header("content-type").unwrap().to_owned();
    (kind, String::from_utf8(page.body.to_vec()).unwrap())
}

/// Returns the names and labels of all samples.
fn series(page: &str) -> BTreeSet<String> {
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    samples.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
}

async fn node() -> (Redrive, Receiver) {
    let breakdowns =
        ["REDRIVE_METRICS_BY_TENANT", "REDRIVE_METRICS_BY_WEBHOOK", "REDRIVE_METRICS_BY_EVENT_TYPE"];
    let setup = breakdowns.into_iter().fold(Setup::new(), |setup, name| setup.env(name, "true"));
    let redrive = Redrive::start_with(setup).await;
    let receiver = Receiver::start().await;
    redrive.api().create_webhook(&receiver.url(), json!({"rate_limit": {"requests_per_minute": 600}})).await;
    publish(&redrive.api(), "quick.test", 3).await;
    receiver.wait_for(3).await;
    (redrive, receiver)
}

#[tokio::test(flavor = "multi_thread")]
async fn openmetrics_is_sent_only_to_clients_that_ask_for_it() {
    let (redrive, _receiver) = node().await;
    let api = redrive.api();
    for path in PAGES {
        for (accept, expected) in [
            (None, TEXT),
            (Some("*/*"), TEXT),
            (Some("text/html,*/*;q=0.8"), TEXT),
            (Some("application/openmetrics-text;q=0.4,text/plain;q=0.5"), TEXT),
            (Some("application/openmetrics-text"), OPENMETRICS),
            (Some(PROMETHEUS), OPENMETRICS),
        ] {
            let (kind, page) = scrape(&api, path, accept).await;
            assert_eq!(kind, expected, "{path} {accept:?}");
            let ends = usize::from(expected == OPENMETRICS);
            assert_eq!(page.matches("# EOF").count(), ends, "{path} {accept:?}");
            assert_eq!(page.ends_with("# EOF\n"), expected == OPENMETRICS);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_formats_have_the_same_series() {
    let (redrive, _receiver) = node().await;
    for path in PAGES {
        let (_, text) = scrape(&redrive.api(), path, None).await;
        let (_, openmetrics) = scrape(&redrive.api(), path, Some(OPENMETRICS)).await;
        let (text, openmetrics) = (series(&text), series(&openmetrics));
        assert!(text.len() > 5, "{path}: {text:?}");
        assert_eq!(text, openmetrics, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn promtool_accepts_all_metrics() {
    let (redrive, _receiver) = node().await;
    for path in PAGES {
        let (_, page) = scrape(&redrive.api(), path, None).await;
        let output = check_metrics(&page);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && message.is_empty(), "{path}: {message}\n{page}");
    }
    let (_, openmetrics) = scrape(&redrive.api(), "/metrics", Some(OPENMETRICS)).await;
    assert!(!check_metrics(&openmetrics).status.success(), "it reads the text format only");
}
