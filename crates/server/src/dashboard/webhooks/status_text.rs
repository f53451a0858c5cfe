//! Status messages of a webhook: its state, and what to do about problems.

use std::{borrow::Borrow, time::Duration};

use redrive_core::{
    FailureCategory, Time,
    delivery::retry::{RetryOn, RetryPolicy},
    protection::breaker::{BreakerPolicy, CircuitState, CircuitView, Counts},
    security::signature::rotation_due_since,
    statistics::rollup::Rollup,
    webhook::{Webhook, WebhookState},
};

use crate::{app::health::Health, dashboard::format};

/// Success rate below which a failure message is shown.
const MIN_SUCCESS_RATE: f64 = 0.9;
/// Time before a webhook's expiry at which a warning is shown.
const EXPIRY_WARNING: Duration = Duration::from_secs(7 * 24 * 3600);

/// A status message.
#[derive(Debug, PartialEq)]
pub(super) struct StatusMessage {
    /// Color class.
    pub(super) tone: &'static str,
    /// Short summary.
    pub(super) title: String,
    /// Meaning, and what to do.
    pub(super) text: String,
    /// A relevant time with the label before it.
    pub(super) at: Option<(&'static str, Time)>,
}

impl StatusMessage {
    fn new(tone: &'static str, title: impl Into<String>, text: impl Into<String>) -> Self {
        Self { tone, title: title.into(), text: text.into(), at: None }
    }

    fn at(self, words: &'static str, time: Option<Time>) -> Self {
        Self { at: time.map(|time| (words, time)), ..self }
    }
}

/// Returns the color of a webhook's state.
pub(super) fn tone(state: impl Borrow<WebhookState>) -> &'static str {
    match state.borrow() {
        WebhookState::Active => "good",
        WebhookState::Paused | WebhookState::PendingVerification(_) => "waiting",
        WebhookState::Disabled(_) | WebhookState::Deleted => "off",
    }
}

/// Returns the status messages of a webhook, the most important first.
pub(super) fn status_messages(webhook: &Webhook, health: &Health, now: Time) -> Vec<StatusMessage> {
    let mut notifications: Vec<StatusMessage> = about_state(&webhook.state).into_iter().collect();
    notifications.extend(about_circuit(&health.circuit.circuit));
    notifications.extend(about_failures(&health.last_hour, health.failing_since));
    if notifications.is_empty() {
        notifications.push(healthy_message(&health.last_24_hours));
    }
    if let Some(since) = rotation_due_since(&webhook.secrets, now) {
        let text = "Its signing secret is due for rotation. The old secret stays valid during the overlap.";
        notifications
            .push(StatusMessage::new("waiting", "Secret rotation is due", text).at("Due since", Some(since)));
    }
    if let Some(end) =
        webhook.spec.expires_at.filter(|end| *end > now && end.duration_since(now) < EXPIRY_WARNING)
    {
        let text = "It is disabled then, and what is pending is cancelled. Edit it to give it more time.";
        notifications.push(StatusMessage::new("waiting", "It expires soon", text).at("Ends", Some(end)));
    }
    notifications
}

fn healthy_message(day: &Rollup) -> StatusMessage {
    match day.attempts {
        0 => StatusMessage::new(
            "",
            "Nothing was sent in the last 24 hours",
            "Events go out as soon as they are published. Send a test event to see whether the endpoint takes them.",
        ),
        _ => StatusMessage::new("good", "Healthy", "Events go out as they are published."),
    }
}

fn about_state(state: &WebhookState) -> Option<StatusMessage> {
    match state {
        WebhookState::Active => None,
        WebhookState::Paused => Some(StatusMessage::new(
            "waiting",
            "Paused",
            "New events still become deliveries. All of them wait, and go out once it is resumed.",
        )),
        WebhookState::PendingVerification(verification) => {
            let request = match (verification.attempts, &verification.last_error) {
                (0, _) => "It is about to be asked.".to_owned(),
                (tries, None) => format!("It was asked {}.", times(tries as usize)),
                (tries, Some(error)) => {
                    format!("It was asked {}; the last time: {error}.", times(tries as usize))
                }
            };
            let text = format!(
                "Nothing is sent until the endpoint has echoed the challenge that it was sent. {request}"
            );
            Some(
                StatusMessage::new("waiting", "Waiting for the endpoint", text)
                    .at("Next time", Some(verification.next)),
            )
        }
        WebhookState::Disabled(reason) => Some(StatusMessage::new(
            "bad",
            "Disabled",
            format!(
                "Why: {reason}. No deliveries are made. Fix the cause, enable it, and backfill what it has missed."
            ),
        )),
        WebhookState::Deleted => Some(StatusMessage::new("off", "Deleted", "Its history stays.")),
    }
}

fn about_circuit(circuit: &CircuitView) -> Option<StatusMessage> {
    if let Some(forced) = &circuit.forced {
        let (tone, title, text) = match forced.open {
            true => {
                ("bad", "Its circuit is forced open", "Nothing is sent. Reset the circuit to let it go on.")
            }
            false => (
                "waiting",
                "Its circuit is forced closed",
                "Everything is sent, however much fails. Reset the circuit to have it watched again.",
            ),
        };
        let text = format!("{} decided so. {text}", forced.by);
        return Some(StatusMessage::new(tone, title, text).at("Until", forced.until));
    }
    match circuit.state {
        CircuitState::Closed => None,
        CircuitState::Open => {
            let text = format!(
                "{}. Deliveries wait, and no attempt is used up. Fix the endpoint, then reset the circuit or wait for the \
                 next probe.",
                window(&circuit.counts)
            );
            let notification = StatusMessage::new("bad", "Its circuit is open", text);
            Some(notification.at("It is tried again", circuit.next_half_open_at))
        }
        CircuitState::HalfOpen => Some(StatusMessage::new(
            "waiting",
            "Its circuit is half open",
            format!(
                "A few requests go through to see whether the endpoint has recovered: {} so far, {} of them succeeded.",
                circuit.half_open_attempts, circuit.half_open_successes
            ),
        )),
    }
}

/// Formats a number of times.
pub(super) fn times(n: usize) -> String {
    match n {
        1 => "once".to_owned(),
        n => format!("{n} times"),
    }
}

/// Describes the failures in the window that opened a circuit.
pub(super) fn window(counts: &Counts) -> String {
    let mostly = counts
        .most_frequent()
        .map_or(String::new(), |worst| format!(", mostly with {}", format::category(worst)));
    match counts.total {
        0 => "The endpoint failed too often".to_owned(),
        total => format!("{} of {total} calls had failed{mostly}", counts.failed),
    }
}

fn about_failures(hour: &Rollup, failing_since: Option<Time>) -> Option<StatusMessage> {
    let worst = hour.most_frequent()?;
    let is_trouble =
        failing_since.is_some() || hour.success_rate().is_some_and(|rate| rate < MIN_SUCCESS_RATE);
    let failed = hour.failures();
    let title = format!("{failed} of {} attempts failed in the last hour", hour.attempts);
    let (what, todo) = advice(worst);
    let mostly = if hour.by_category[worst as usize] < failed { "Mostly" } else { "Always" };
    is_trouble.then(|| {
        StatusMessage::new("bad", title, format!("{mostly}: {what}. {todo}."))
            .at("Nothing has succeeded since", failing_since)
    })
}

/// Describes a failure category, and what to do about it.
fn advice(category: FailureCategory) -> (&'static str, &'static str) {
    match category {
        FailureCategory::Timeout => (
            "the endpoint does not answer in time",
            "Let it answer at once and do the work afterwards, or give it a longer timeout",
        ),
        FailureCategory::ServerError => (
            "the endpoint answers with an error of its own (5xx)",
            "Look into its log at the time of a failed delivery; the answer is kept with the attempt",
        ),
        FailureCategory::ClientError => (
            "the endpoint refuses the requests (4xx)",
            "Check the path in the URL, its authentication, and whether it verifies with the current secret",
        ),
        FailureCategory::Network => (
            "the endpoint cannot be reached, or breaks the connection off",
            "Check that it runs, and that its firewall lets Redrive in",
        ),
        FailureCategory::Dns => {
            ("the endpoint's name cannot be resolved", "Check the host in the URL, and its name server")
        }
        FailureCategory::Tls => (
            "no secure connection could be established",
            "Check the endpoint's certificate: it may be over, for another name, or sent without its chain",
        ),
        FailureCategory::RateLimit => {
            ("the endpoint wants fewer requests (429)", "Give the webhook a rate limit that it can stand")
        }
        FailureCategory::PayloadTooLarge => (
            "the payload is too large for the endpoint (413)",
            "Let it take larger bodies, or filter large events out",
        ),
        FailureCategory::Redirect => {
            ("the endpoint redirects, and redirects are not followed", "Change the URL to where it leads")
        }
        FailureCategory::BlockedAddress => (
            "the endpoint's address is one that must not be called from here",
            "Use a public address, or ask the operator to allow this network",
        ),
    }
}

/// Describes what one delivery waits for, given its API name.
pub(super) fn wait_text_singular(name: &str) -> String {
    format::wait_text(name).replace("before them", "before it").replace("their", "its")
}

/// Describes when a circuit opens, and when it is probed.
pub(super) fn breaker(policy: &BreakerPolicy) -> String {
    if !policy.enabled {
        return "It never opens by itself.".to_owned();
    }
    format!(
        "Opens when {} % or more of at least {} calls within {} fail. Tried again after {}, doubled each time up to a \
         day, with {} requests of which {} % have to succeed.",
        policy.error_threshold_percentage,
        policy.minimum_throughput,
        format::format_duration(policy.window),
        format::format_duration(policy.sleep_window),
        policy.half_open_max_calls,
        policy.half_open_success_threshold * 100.0,
    )
}

/// Describes a retry policy, except for its schedule.
pub(super) fn retry(policy: &RetryPolicy) -> String {
    let timeout = format::format_duration(Duration::from_millis(policy.timeout_ms));
    let jitter = match policy.jitter {
        0.0 => String::new(),
        jitter => format!(" Waits vary by {:.0} % either way.", jitter * 100.0),
    };
    let codes: Vec<_> = policy.permanent_status_codes.iter().map(u16::to_string).collect();
    let permanent = match (policy.retry_on, codes.is_empty()) {
        (RetryOn::All, _) => " Every failure is retried.".to_owned(),
        (_, true) => String::new(),
        (_, false) => format!(" Not retried: answers with {}.", codes.join(", ")),
    };
    let max = match policy.max_attempts() {
        1 => "One attempt".to_owned(),
        max => format!("Up to {max} attempts"),
    };
    let give_up = format::format_duration(policy.give_up_after.as_duration());
    format!("{max}, given up after {give_up} at the latest. An answer may take {timeout}.{jitter}{permanent}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hour(successes: u32, failed: &[(FailureCategory, u32)]) -> Rollup {
        let mut rollup = Rollup { attempts: successes, successes, ..Rollup::default() };
        for (category, count) in failed {
            rollup.attempts += count;
            rollup.by_category[*category as usize] = *count;
        }
        rollup
    }

    #[test]
    fn failures_are_shown_with_advice() {
        let failing = hour(1, &[(FailureCategory::Tls, 3), (FailureCategory::Dns, 1)]);
        let notification = about_failures(&failing, None).unwrap();
        assert_eq!(notification.title, "4 of 5 attempts failed in the last hour");
        assert!(notification.text.starts_with(
            "Mostly: no secure connection could be established. Check the endpoint's certificate"
        ));
        assert_eq!(
            about_failures(&hour(99, &[(FailureCategory::Timeout, 1)]), None),
            None,
            "one in a hundred"
        );
        let since = Some(Time::from_secs(5));
        let row = about_failures(&hour(99, &[(FailureCategory::Timeout, 1)]), since).unwrap();
        assert_eq!(row.at, since.map(|since| ("Nothing has succeeded since", since)));
        assert_eq!(about_failures(&hour(3, &[]), since), None);
    }

    #[test]
    fn every_failure_category_has_advice() {
        let all = FailureCategory::ALL.map(advice);
        assert!(all.iter().all(|(what, todo)| !what.ends_with('.') && !todo.ends_with('.')));
    }

    #[test]
    fn policies_are_described_as_text() {
        assert_eq!(
            retry(&RetryPolicy::default()),
            "Up to 10 attempts, given up after 5 d at the latest. An answer may take 30 s. Waits vary by 10 % either \
             way. Not retried: answers with 400, 401, 403, 404, 410, 413, 414, 415, 451."
        );
        let reported = breaker(&BreakerPolicy::default());
        assert!(
            reported.starts_with("Opens when 60 % or more of at least 20 calls within 1 min fail."),
            "{reported}"
        );
    }
}
