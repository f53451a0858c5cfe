//! Background services that keep failing, as an operator sees them.

use std::time::{Duration, Instant};

use redrive_testkit::{Receiver, Redrive, Setup, WAIT_TIMEOUT};
use redrive_tests::{text, wait_for_event_status};
use serde_json::{Value, json};

/// Makes a service of the server panic whenever it starts. Only test builds know this variable.
fn panicking(service: &str) -> Setup {
    Setup::new().env("FAULT_INJECTION_PANIC_IN", service)
}

#[tokio::test]
async fn process_exits_when_an_essential_service_keeps_failing() {
    let folder = tempfile::tempdir().unwrap();
    let mut redrive = Redrive::start_with(panicking("gate_timer").data_dir(folder.path())).await;
    let api = redrive.api();
    let started = Instant::now();
    let not_ready = loop {
        assert!(started.elapsed() < WAIT_TIMEOUT, "the node stays ready");
        let response = api.get("/readyz").await;
        if response.status == 503 {
            break response.json();
        }
    };
    assert_eq!(not_ready["code"], "service_down", "{not_ready}");
    assert!(text(&not_ready["detail"]).contains("gate_timer"), "{not_ready}");
    assert_eq!(redrive.wait_exit(WAIT_TIMEOUT).await.code(), Some(70));
    let output = redrive.output();
    let reason = "error: the service gate_timer failed more than 5 times within 60 s; last failure: panic: injected fault";
    assert!(output.contains(reason), "{output}");

    // The next start goes on with the same store.
    let receiver = Receiver::start().await;
    let redrive = Redrive::start_with(Setup::new().data_dir(folder.path())).await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), json!({})).await;
    let event = api.publish("order.created", json!({})).await;
    wait_for_event_status(&api, &event, "delivered").await;
}

#[tokio::test]
async fn node_delivers_while_an_auxiliary_service_keeps_failing() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start_with(panicking("pruner")).await;
    let api = redrive.api();
    let started = Instant::now();
    let finding = loop {
        let status = api.get("/v1/status").await.expect(200);
        let findings = status["findings"].as_array().unwrap();
        if let Some(finding) = findings.iter().find(|finding| finding["code"] == "service_down") {
            break finding.clone();
        }
        assert!(started.elapsed() < WAIT_TIMEOUT, "{status:#}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(finding["level"], "warning", "{finding}");
    assert!(
        text(&finding["message"]).contains("the background service pruner of this node failed"),
        "{finding}"
    );
    assert_eq!(api.get("/readyz").await.status, 200);
    api.create_webhook(&receiver.url(), json!({})).await;
    let event: Value = api.publish("order.created", json!({})).await;
    wait_for_event_status(&api, &event, "delivered").await;
    let metrics = loop {
        let metrics = String::from_utf8(api.get("/metrics").await.body.to_vec()).unwrap();
        if !metrics.contains("redrive_service_restarts_total{service=\"pruner\"} 0") {
            break metrics;
        }
        assert!(started.elapsed() < WAIT_TIMEOUT, "{metrics}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(metrics.contains("redrive_service_up{service=\"scheduler\"} 1"), "{metrics}");
}
