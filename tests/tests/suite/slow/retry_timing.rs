//! Retry timing: each delay in the history is within the bounds of the policy.
//!
//! The retry clock runs fast here, so that days pass in seconds. Real delays are then long on that clock; the
//! bounds allow for them with `lag`.

use redrive_testkit::{Api, Latch, ReceivedRequest, Receiver, Reply};
use redrive_tests::{
    attempts_when, column, delivery_of, http_date, id, millis, redrive_at_speed, wait_for_status,
};
use serde_json::{Value, json};

const SECOND: f64 = 1000.0;
const MINUTE: f64 = 60.0 * SECOND;
const HOUR: f64 = 60.0 * MINUTE;
/// The allowed lag in real milliseconds, on a machine that is busy with other tests.
const LAG: f64 = 500.0;
/// How late an attempt may start after it was due, in real milliseconds.
const LATE: f64 = 10_000.0;

/// Returns the policy's delay in milliseconds after each attempt that has a next one.
fn waits(attempts: &[Value], speed: u32) -> Vec<f64> {
    let wait = |attempt: &Value| {
        let took = attempt["duration_ms"].as_f64().unwrap() * f64::from(speed);
        millis(&attempt["next_retry_at"]) as f64 - millis(&attempt["executed_at"]) as f64 - took
    };
    attempts.iter().filter(|attempt| !attempt["next_retry_at"].is_null()).map(wait).collect()
}

/// Asserts that a delay is within a range, plus the allowed lag.
fn assert_wait(wait: f64, shortest: f64, longest: f64, speed: u32, what: &str) {
    // Rounding loses a millisecond on the retry clock, and a microsecond on the real one.
    let rounding = 2.0 + f64::from(speed) / 1000.0;
    let lag = LAG * f64::from(speed);
    assert!(
        wait >= shortest - rounding && wait <= longest + lag,
        "{what}: waited {wait} ms, not {shortest} to {longest} (+ {lag} lag)"
    );
}

/// Publishes to a new webhook and returns its first attempts.
async fn first_attempts(api: &Api, receiver: &Receiver, policy: Value, count: usize) -> Vec<Value> {
    let webhook = api.create_webhook(&receiver.url(), json!({"retry_config": policy})).await;
    let event = api.publish("order.created", json!({})).await;
    let delivery = delivery_of(api, &event).await;
    let attempts = attempts_when(api, id(&delivery), count).await;
    api.delete(&format!("/v1/webhooks/{}", id(&webhook))).await.expect(204);
    attempts
}

/// Asserts the delays of the default schedule after attempts `from..=to`, at a speed that suits their length.
fn default_schedule_holds(attempts: &[Value], speed: u32, from: usize, to: usize) {
    let schedule = [
        5.0 * SECOND,
        5.0 * MINUTE,
        30.0 * MINUTE,
        2.0 * HOUR,
        5.0 * HOUR,
        10.0 * HOUR,
        14.0 * HOUR,
        20.0 * HOUR,
        24.0 * HOUR,
    ];
    let waits = waits(attempts, speed);
    for n in from..=to {
        let gap = schedule[n - 1];
        assert_wait(waits[n - 1], 0.9 * gap, 1.1 * gap, speed, &format!("after attempt {n}"));
    }
    for pair in attempts.windows(2) {
        let (due, sent) = (millis(&pair[0]["next_retry_at"]), millis(&pair[1]["executed_at"]));
        assert!(sent >= due, "{due} was not waited for: {sent}");
        assert!((sent - due) as f64 <= LATE * f64::from(speed), "sent {} ms late", sent - due);
        assert_eq!(millis(&pair[1]["scheduled_at"]), due);
    }
}

#[tokio::test]
async fn first_default_retry_is_after_five_seconds() {
    let receiver = Receiver::responding(500).await;
    let redrive = redrive_at_speed(20).await;
    let attempts = first_attempts(&redrive.api(), &receiver, json!({}), 2).await;
    default_schedule_holds(&attempts, 20, 1, 1);
}

#[tokio::test]
async fn next_default_retries_are_after_five_and_thirty_minutes() {
    let receiver = Receiver::responding(500).await;
    let redrive = redrive_at_speed(600).await;
    let attempts = first_attempts(&redrive.api(), &receiver, json!({}), 4).await;
    default_schedule_holds(&attempts, 600, 2, 3);
}

#[tokio::test]
async fn later_default_retries_span_about_three_days() {
    const SPEED: u32 = 60_000;
    let receiver = Receiver::responding(500).await;
    let redrive = redrive_at_speed(SPEED).await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), json!({})).await;
    let event = api.publish("order.created", json!({})).await;
    let delivery = wait_for_status(&api, id(&delivery_of(&api, &event).await), "dead").await;
    assert_eq!((&delivery["attempt_count"], &delivery["dead_reason"]), (&json!(10), &json!("exhausted")));
    let attempts = attempts_when(&api, id(&delivery), 10).await;
    default_schedule_holds(&attempts, SPEED, 4, 9);
}

#[tokio::test]
async fn delay_before_first_attempt_is_honoured() {
    let receiver = Receiver::start().await;
    let redrive = redrive_at_speed(600).await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), json!({"retry_config": {"schedule": [300]}})).await;
    let event = api.publish("order.created", json!({})).await;
    let delivery = delivery_of(&api, &event).await;
    assert_eq!((&delivery["status"], &delivery["waiting_on"]), (&json!("pending"), &json!("schedule")));
    assert_eq!(millis(&delivery["next_attempt_at"]) - millis(&delivery["created_at"]), 300_000);
    let attempt = attempts_when(&api, id(&delivery), 1).await.remove(0);
    assert!(millis(&attempt["executed_at"]) >= millis(&delivery["next_attempt_at"]));
}

#[tokio::test]
async fn retry_after_in_seconds_is_honoured_and_capped() {
    const SPEED: u32 = 600;
    let redrive = redrive_at_speed(SPEED).await;
    let api = redrive.api();
    let tenth = 1.1;
    for (status, header, policy, shortest, longest) in [
        (429, Some("120"), json!({"schedule": [0, 1]}), 120.0, 120.0 * tenth),
        (503, Some("120"), json!({"schedule": [0, 1]}), 120.0, 120.0 * tenth),
        // `Retry-After` is a minimum: a longer delay of the policy stays, but jitter never goes below the minimum.
        (503, Some("100"), json!({"schedule": [0, 105]}), 100.0, 105.0 * tenth),
        (503, Some("3600"), json!({"schedule": [0, 1], "max_delay_ms": 90_000}), 90.0, 90.0 * tenth),
        // The minimum delay of the category overrides the cap.
        (429, Some("3600"), json!({"schedule": [0, 1], "max_delay_ms": 10_000}), 60.0, 60.0 * tenth),
        (429, None, json!({"schedule": [0, 1]}), 60.0, 60.0 * tenth),
        (429, Some("5"), json!({"schedule": [0, 1]}), 60.0, 60.0 * tenth),
        (429, Some("soon"), json!({"schedule": [0, 1]}), 60.0, 60.0 * tenth),
        (503, Some("-5"), json!({"schedule": [0, 200]}), 180.0, 220.0),
        (503, Some("99999999999999999999"), json!({"schedule": [0, 1], "max_delay_ms": 90_000}), 90.0, 99.0),
        // `Retry-After` is honoured only for 429 and 503.
        (500, Some("3600"), json!({"schedule": [0, 200]}), 180.0, 220.0),
        (302, Some("3600"), json!({"schedule": [0, 200]}), 180.0, 220.0),
    ] {
        let receiver = Receiver::with(move |_| match header {
            Some(value) => Reply::status(status).header("retry-after", value),
            None => Reply::status(status),
        })
        .await;
        let attempts = first_attempts(&api, &receiver, policy, 1).await;
        let what = format!("{status} with {header:?}");
        assert_wait(waits(&attempts, SPEED)[0], shortest * SECOND, longest * SECOND, SPEED, &what);
    }
}

#[tokio::test]
async fn retry_after_as_a_date_is_honoured() {
    const SPEED: u32 = 600;
    let redrive = redrive_at_speed(SPEED).await;
    let api = redrive.api();
    for (status, after, wait) in [(429, 900, 900.0), (503, 900, 900.0), (503, -900, 0.0)] {
        // Computed from the sender's clock, because the retry clock differs from real time.
        let date = move |arrival: &ReceivedRequest| {
            http_date(arrival.header("webhook-timestamp").unwrap().parse::<i64>().unwrap() + after)
        };
        let receiver =
            Receiver::with(move |arrival| Reply::status(status).header("retry-after", &date(arrival))).await;
        let attempt = first_attempts(&api, &receiver, json!({"schedule": [0, 1]}), 1).await.remove(0);
        let date = millis(&attempt["executed_at"]) / 1000 * 1000 + after * 1000;
        let next = millis(&attempt["next_retry_at"]);
        assert!(next >= date, "{status}: {next} is before the date");
        let latest = date.max(millis(&attempt["executed_at"])) as f64 + 0.1 * wait * SECOND + SECOND * 1.1;
        assert!(next as f64 <= latest + LAG * f64::from(SPEED), "{status}: {next} is after {latest}");
    }
}

#[tokio::test]
async fn retry_after_timeout_waits_at_least_two_seconds() {
    const SPEED: u32 = 20;
    let gate = Latch::closed();
    let receiver = Receiver::with(move |_| Reply::status(200).latched_by(&gate)).await;
    let redrive = redrive_at_speed(SPEED).await;
    let policy = json!({"schedule": [0, 0], "timeout_ms": 100});
    let attempts = first_attempts(&redrive.api(), &receiver, policy, 2).await;
    assert_eq!(attempts[0]["failure_category"], "timeout");
    assert_wait(waits(&attempts, SPEED)[0], 2.0 * SECOND, 2.2 * SECOND, SPEED, "after a timeout");
}

#[tokio::test]
async fn exponential_delays_grow_up_to_their_cap() {
    const SPEED: u32 = 600;
    let receiver = Receiver::responding(500).await;
    let redrive = redrive_at_speed(SPEED).await;
    let api = redrive.api();
    let policy = json!({"base_delay_ms": 100_000, "backoff_multiplier": 3, "max_attempts": 4, "max_delay_ms": 500_000});
    let attempts = first_attempts(&api, &receiver, policy, 4).await;
    let waits = waits(&attempts, SPEED);
    assert_eq!(waits.len(), 3);
    for (n, (wait, seconds)) in waits.into_iter().zip([100.0, 300.0, 500.0]).enumerate() {
        let what = format!("after attempt {}", n + 1);
        assert_wait(wait, 0.9 * seconds * SECOND, 1.1 * seconds * SECOND, SPEED, &what);
    }
    assert_eq!(column(&attempts, "status"), ["failed", "failed", "failed", "exhausted"]);
    let mixed =
        json!({"url": receiver.url(), "events": ["*"], "retry_config": {"schedule": [0], "max_attempts": 4}});
    let response = api.post("/v1/webhooks", mixed).await;
    assert_eq!((response.status, response.json()["field"].clone()), (400, json!("retry_config.schedule")));
}

#[tokio::test]
async fn delays_without_jitter_are_exact() {
    const SPEED: u32 = 20;
    let receiver = Receiver::responding(500).await;
    let redrive = redrive_at_speed(SPEED).await;
    let policy = json!({"schedule": [0, 4, 8], "jitter": 0});
    let attempts = first_attempts(&redrive.api(), &receiver, policy, 3).await;
    for (wait, seconds) in waits(&attempts, SPEED).into_iter().zip([4.0, 8.0]) {
        assert_wait(wait, seconds * SECOND, seconds * SECOND, SPEED, "without jitter");
    }
}

#[tokio::test]
async fn timeouts_grow_up_to_threefold() {
    let gate = Latch::closed();
    let receiver = Receiver::with(move |_| Reply::status(200).latched_by(&gate)).await;
    let redrive = redrive_at_speed(600).await;
    let policy = json!({"schedule": [0, 0, 0, 0], "timeout_ms": 200, "timeout_growth_factor": 2});
    let mut shortest = [f64::MAX; 4];
    // A stall of the machine lengthens single attempts, so the shortest of several is compared.
    for _ in 0..3 {
        let attempts = first_attempts(&redrive.api(), &receiver, policy.clone(), 4).await;
        for (attempt, shortest) in attempts.iter().zip(&mut shortest) {
            *shortest = shortest.min(attempt["duration_ms"].as_f64().unwrap());
            assert_eq!(attempt["failure_category"], "timeout");
        }
    }
    for (took, expected) in shortest.into_iter().zip([200.0, 400.0, 600.0, 600.0]) {
        assert!(took >= expected && took <= expected + 150.0, "{took} ms, not {expected}");
    }
}
