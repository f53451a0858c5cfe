//! The log: machine-readable records that are linked by ids, and few of them even under load.

use redrive_testkit::{Receiver, Redrive, Setup};
use redrive_tests::{delivery_of, id, text, wait_for_event_status, wait_for_status};
use serde_json::{Value, json};

fn as_json() -> Setup {
    Setup::new().env("REDRIVE_LOG_FORMAT", "json")
}

/// Returns the parsed log records. The startup banner is not part of the log and is left out.
fn lines(redrive: &Redrive) -> Vec<Value> {
    let output = redrive.output();
    let lines = output.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

fn saying<'a>(lines: &'a [Value], message: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| text(&line["message"]).starts_with(message)).collect()
}

async fn stopped(redrive: &mut Redrive) -> Vec<Value> {
    redrive.signal("TERM");
    redrive.wait_exit(redrive_testkit::WAIT_TIMEOUT).await;
    lines(redrive)
}

#[tokio::test]
async fn json_log_records_are_flat_objects_with_time_level_and_target() {
    let receiver = Receiver::responding(404).await;
    let mut redrive = Redrive::start_with(as_json().env("REDRIVE_LOG_LEVEL", "trace")).await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), json!({"headers": {"x-api-key": "planted-header"}})).await;
    let event = api.publish("order.created", json!({"card": "planted-payload"})).await;
    wait_for_event_status(&api, &event, "dead").await;
    api.raw("GET", "/nowhere?key=planted", &[("x-request-id", "follow-me")], "").await;
    redrive.signal("TERM");
    redrive.wait_exit(redrive_testkit::WAIT_TIMEOUT).await;
    let output = redrive.output();
    // After the startup banner, every output line is a log record.
    let (_, log) = output.split_once("Dashboard: ").unwrap();
    let log: Vec<_> = log.lines().skip(1).collect();
    assert!(log.len() > 10 && log.iter().all(|line| line.starts_with('{')), "{output}");
    for line in lines(&redrive) {
        for key in ["timestamp", "level", "target"] {
            assert!(line[key].is_string(), "{line}");
        }
        assert!(redrive_core::Time::parse(text(&line["timestamp"])).is_some(), "{line}");
        assert!(["error", "warn", "info", "debug", "trace"].contains(&text(&line["level"])), "{line}");
        assert!(
            line.as_object().unwrap().values().all(|value| !value.is_object() && !value.is_array()),
            "{line}"
        );
    }
    assert!(!output.contains("planted"), "no payload, no secret, no query");
    assert!(output.contains("follow-me"));
}

#[tokio::test]
async fn failing_delivery_is_traceable_by_its_ids() {
    let receiver = Receiver::responding(500).await;
    let level = "info,redrive_engine=debug";
    let redrive = Redrive::start_with(as_json().env("REDRIVE_LOG_LEVEL", level)).await;
    let api = redrive.api();
    let policy = json!({"retry_config": {"schedule": [0, 1]}});
    let webhook = api.create_webhook(&receiver.url(), policy).await;
    let event = api.publish("order.created", json!(1)).await;
    let delivery = delivery_of(&api, &event).await;
    wait_for_status(&api, id(&delivery), "dead").await;
    redrive.wait_output("delivery marked dead").await;
    let lines = lines(&redrive);
    let (failed, dead) = (saying(&lines, "attempt failed"), saying(&lines, "delivery marked dead"));
    assert_eq!((failed.len(), dead.len()), (1, 1), "{lines:#?}");
    for line in failed.into_iter().chain(dead) {
        assert_eq!((&line["delivery_id"], &line["event_id"]), (&delivery["id"], &event["id"]));
        assert_eq!((&line["webhook_id"], &line["tenant_id"]), (&webhook["id"], &json!("default")));
        assert_eq!(line["failure_category"], "server_error");
    }
}

#[tokio::test]
async fn repeated_refusals_are_throttled_and_counted() {
    const EVENTS: usize = 300;
    let mut redrive = Redrive::start_with(as_json()).await;
    let api = redrive.api();
    let webhook = json!({
        "max_in_flight": 50, "circuit_breaker_config": {"enabled": false}, "retry_config": {"schedule": [0]},
    });
    // The server's own address is refused when connecting, not when the webhook is created.
    api.create_webhook(&format!("http://{}/", redrive.address()), webhook).await;
    let events: Vec<_> = (0..EVENTS).map(|n| json!({"event_type": "a", "data": n})).collect();
    let published = api.post("/v1/events/batch", json!({"events": events})).await.expect(202);
    for event in published["data"].as_array().unwrap() {
        wait_for_event_status(&api, event, "dead").await;
    }
    let lines = stopped(&mut redrive).await;
    let refused = "refused to connect";
    let written = saying(&lines, refused).len();
    let suppressed: u64 = saying(&lines, &format!("suppressed: {refused}"))
        .iter()
        .map(|line| line["suppressed"].as_u64().unwrap())
        .sum();
    println!(
        "{EVENTS} refusals: {written} logged, {suppressed} suppressed, {} log records in total",
        lines.len()
    );
    assert_eq!(written as u64 + suppressed, EVENTS as u64, "every refusal is logged or counted");
    assert!((1..=40).contains(&written) && lines.len() <= 120, "{lines:#?}");
}

#[tokio::test]
async fn log_format_is_text_by_default() {
    let redrive = Redrive::start_with(Setup::new().env("REDRIVE_LOG_LEVEL", "debug")).await;
    redrive.api().raw("GET", "/nowhere", &[("x-request-id", "one")], "").await;
    redrive.wait_output(r#"request_id="one" method=GET path="/nowhere""#).await;
    assert!(lines(&redrive).is_empty());
    let refused = Setup::new().env("REDRIVE_LOG_FORMAT", "xml").run_to_end().await;
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(message.contains("log.format: ") && message.contains("write text or json"), "{message}");
}
