//! The log: lines that machines can read, that lead from one thing to the next, and that are few whatever happens.

use redrive_testkit::{Receiver, Redrive, Setup};
use redrive_tests::{delivery_is, delivery_of, event_is, id, text};
use serde_json::{Value, json};

fn as_json() -> Setup {
    Setup::new().env("REDRIVE_LOG_FORMAT", "json")
}

/// What was logged, each line read. What is printed for people goes elsewhere, and is left out.
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
    redrive.wait_exit(redrive_testkit::PATIENCE).await;
    lines(redrive)
}

#[tokio::test]
async fn every_line_of_json_is_a_flat_object_with_time_level_target_and_message() {
    let receiver = Receiver::answering(404).await;
    let mut redrive = Redrive::start_with(as_json().env("REDRIVE_LOG_LEVEL", "trace")).await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), json!({"headers": {"x-api-key": "planted-header"}})).await;
    let event = api.publish("order.created", json!({"card": "planted-payload"})).await;
    event_is(&api, &event, "dead").await;
    api.raw("GET", "/nowhere?key=planted", &[("x-request-id", "follow-me")], "").await;
    redrive.signal("TERM");
    redrive.wait_exit(redrive_testkit::PATIENCE).await;
    let output = redrive.output();
    // Behind what is printed for people at the start, everything is a line of the log.
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
async fn a_delivery_that_fails_can_be_followed_by_its_ids() {
    let receiver = Receiver::answering(500).await;
    let level = "info,redrive_engine=debug";
    let redrive = Redrive::start_with(as_json().env("REDRIVE_LOG_LEVEL", level)).await;
    let api = redrive.api();
    let policy = json!({"retry_config": {"schedule": [0, 1]}});
    let webhook = api.create_webhook(&receiver.url(), policy).await;
    let event = api.publish("order.created", json!(1)).await;
    let delivery = delivery_of(&api, &event).await;
    delivery_is(&api, id(&delivery), "dead").await;
    redrive.wait_output("a delivery is dead").await;
    let lines = lines(&redrive);
    let (failed, dead) = (saying(&lines, "an attempt failed"), saying(&lines, "a delivery is dead"));
    assert_eq!((failed.len(), dead.len()), (1, 1), "{lines:#?}");
    for line in failed.into_iter().chain(dead) {
        assert_eq!((&line["delivery_id"], &line["event_id"]), (&delivery["id"], &event["id"]));
        assert_eq!((&line["webhook_id"], &line["tenant"]), (&webhook["id"], &json!("default")));
        assert_eq!(line["failure_category"], "server_error");
    }
}

#[tokio::test]
async fn a_flood_of_refusals_gives_few_lines_and_their_count() {
    const EVENTS: usize = 300;
    let mut redrive = Redrive::start_with(as_json()).await;
    let api = redrive.api();
    let webhook = json!({
        "max_in_flight": 50, "circuit_breaker_config": {"enabled": false}, "retry_config": {"schedule": [0]},
    });
    // The server itself is refused when connecting, not when the webhook is created.
    api.create_webhook(&format!("http://{}/", redrive.address()), webhook).await;
    let events: Vec<_> = (0..EVENTS).map(|n| json!({"event_type": "a", "data": n})).collect();
    let published = api.post("/v1/events/batch", json!({"events": events})).await.expect(202);
    for event in published["data"].as_array().unwrap() {
        event_is(&api, event, "dead").await;
    }
    let lines = stopped(&mut redrive).await;
    let refused = "refused to connect";
    let written = saying(&lines, refused).len();
    let left_out: u64 = saying(&lines, &format!("left out: {refused}"))
        .iter()
        .map(|line| line["left_out"].as_u64().unwrap())
        .sum();
    println!("{EVENTS} refusals: {written} lines, {left_out} left out, {} lines in all", lines.len());
    assert_eq!(written as u64 + left_out, EVENTS as u64, "every one is written or counted");
    assert!((1..=40).contains(&written) && lines.len() <= 120, "{lines:#?}");
}

#[tokio::test]
async fn a_text_is_what_people_get_unless_they_ask_otherwise() {
    let redrive = Redrive::start_with(Setup::new().env("REDRIVE_LOG_LEVEL", "debug")).await;
    redrive.api().raw("GET", "/nowhere", &[("x-request-id", "one")], "").await;
    redrive.wait_output(r#"request_id="one" method=GET path="/nowhere""#).await;
    assert!(lines(&redrive).is_empty());
    let refused = Setup::new().env("REDRIVE_LOG_FORMAT", "xml").run_to_end().await;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("log.format: ") && said.contains("write text or json"), "{said}");
}
