//! Status messages of a webhook: its state, and what to do about problems.

use std::time::Duration;

use redrive_core::{
    FailureCategory, Time,
    delivery::retry::{RetryOn, RetryPolicy},
    protection::breaker::{BreakerPolicy, CircuitState, CircuitView, Counts},
    security::signature::rotation_due_since,
    statistics::rollup::Rollup,
    webhook::{Webhook, WebhookState, status::WebhookStatus},
};

use crate::{app::health::Health, dashboard::format};

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

    fn at(self, label: &'static str, time: Option<Time>) -> Self {
        Self { at: time.map(|time| (label, time)), ..self }
    }
}

/// Returns the status messages of a webhook, the most important first.
pub(super) fn status_messages(webhook: &Webhook, health: &Health, now: Time) -> Vec<StatusMessage> {
    let mut messages: Vec<StatusMessage> = state_message(&webhook.state).into_iter().collect();
    messages.extend(circuit_message(&health.circuit.circuit));
    messages.extend(failure_message(
        health.status,
        &health.last_hour,
        &health.last_24_hours,
        health.failing_since,
    ));
    if messages.is_empty() {
        messages.push(healthy_message(&health.last_24_hours));
    }
    if let Some(since) = rotation_due_since(&webhook.secrets, now) {
        let text =
            "The signing secret is due for rotation. The previous secret stays valid during the overlap.";
        messages
            .push(StatusMessage::new("waiting", "Secret rotation is due", text).at("Due since", Some(since)));
    }
    if let Some(end) =
        webhook.spec.expires_at.filter(|end| *end > now && end.duration_since(now) < EXPIRY_WARNING)
    {
        let text = "The webhook is then disabled, and its pending deliveries are cancelled. Edit the webhook to change the expiry.";
        messages
            .push(StatusMessage::new("waiting", "The webhook expires soon", text).at("Expires", Some(end)));
    }
    messages
}

fn healthy_message(day: &Rollup) -> StatusMessage {
    match day.attempts {
        0 => StatusMessage::new(
            "",
            "No requests in the last 24 hours",
            "Events are sent as soon as they are published. Send a test event to check that the endpoint accepts them.",
        ),
        _ => StatusMessage::new("good", "Healthy", "Events are sent as soon as they are published."),
    }
}

fn state_message(state: &WebhookState) -> Option<StatusMessage> {
    match state {
        WebhookState::Active => None,
        WebhookState::Paused => Some(StatusMessage::new(
            "waiting",
            "Paused",
            "New events still create deliveries. No delivery is sent until the webhook is resumed.",
        )),
        WebhookState::PendingVerification(verification) => {
            let attempts = match (verification.attempts, &verification.last_error) {
                (0, _) => "The challenge is about to be sent.".to_owned(),
                (count, None) => format!("The challenge was sent {}.", times(count as usize)),
                (count, Some(error)) => {
                    format!("The challenge was sent {}; last error: {error}.", times(count as usize))
                }
            };
            let text = format!("No events are sent until the endpoint has echoed the challenge. {attempts}");
            Some(
                StatusMessage::new("waiting", "Waiting for verification", text)
                    .at("Next attempt", Some(verification.next)),
            )
        }
        WebhookState::Disabled(reason) => Some(StatusMessage::new(
            "bad",
            "Disabled",
            format!(
                "Reason: {reason}. No events are sent. Fix the cause, enable the webhook, and backfill the events that it \
                 missed."
            ),
        )),
        WebhookState::Deleted => {
            Some(StatusMessage::new("off", "Deleted", "The history of the webhook is kept."))
        }
    }
}

fn circuit_message(circuit: &CircuitView) -> Option<StatusMessage> {
    if let Some(forced) = &circuit.forced {
        let (tone, title, text) = match forced.open {
            true => (
                "bad",
                "Circuit breaker forced open",
                "No requests are sent. Reset the circuit to resume sending.",
            ),
            false => (
                "waiting",
                "Circuit breaker forced closed",
                "Requests are sent even while the endpoint fails. Reset the circuit to let it open automatically again.",
            ),
        };
        let text = format!("Forced by {}. {text}", forced.by);
        return Some(StatusMessage::new(tone, title, text).at("Until", forced.until));
    }
    match circuit.state {
        CircuitState::Closed => None,
        CircuitState::Open => {
            let text = format!(
                "{}. Blocked deliveries use no attempts. Fix the endpoint, then reset the circuit or wait for the \
                 next probe.",
                describe_window(&circuit.counts)
            );
            let message = StatusMessage::new("bad", "Circuit breaker open", text);
            Some(message.at("Next probe", circuit.next_half_open_at))
        }
        CircuitState::HalfOpen => Some(StatusMessage::new(
            "waiting",
            "Circuit breaker half-open",
            format!(
                "A few probes check whether the endpoint has recovered: {} sent so far, {} succeeded.",
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
pub(super) fn describe_window(counts: &Counts) -> String {
    let mostly = counts
        .most_frequent()
        .map_or(String::new(), |worst| format!(", mostly with {}", format::category(worst)));
    match counts.total {
        0 => "The endpoint failed too often".to_owned(),
        total => format!("{} of {total} attempts had failed{mostly}", counts.failed),
    }
}

fn failure_message(
    status: WebhookStatus,
    hour: &Rollup,
    day: &Rollup,
    failing_since: Option<Time>,
) -> Option<StatusMessage> {
    let has_recent = hour.failures() > 0;
    match status {
        WebhookStatus::Degraded | WebhookStatus::Failing => {}
        _ if has_recent && failing_since.is_some() => {}
        _ => return None,
    }
    let tone = if status == WebhookStatus::Failing { "bad" } else { "waiting" };
    // A quiet webhook has no attempts in the last hour, and its last ones failed.
    let (rollup, period) = if has_recent { (hour, "last hour") } else { (day, "last 24 hours") };
    let Some(worst) = rollup.most_frequent() else {
        let text = "No request was sent in the last 24 hours. Send a test event to check the endpoint.";
        let message = StatusMessage::new(tone, "The last attempts failed", text);
        return Some(message.at("Failing since", failing_since));
    };
    let failed = rollup.failures();
    let title = format!("{failed} of {} attempts failed in the {period}", rollup.attempts);
    let (cause, action) = explain_failure(worst);
    let mostly = if rollup.by_category[worst as usize] < failed { "Mostly" } else { "All failures" };
    let advice = match failing_since {
        Some(_) => format!("{action}."),
        None => "The last attempt succeeded.".to_owned(),
    };
    let message = StatusMessage::new(tone, title, format!("{mostly}: {cause}. {advice}"));
    Some(message.at("Failing since", failing_since))
}

/// Describes a failure category, and what to do about it.
fn explain_failure(category: FailureCategory) -> (&'static str, &'static str) {
    match category {
        FailureCategory::Timeout => (
            "the endpoint does not respond within the timeout",
            "Respond before processing the event, or increase the timeout",
        ),
        FailureCategory::ServerError => (
            "the endpoint returns a server error (5xx)",
            "Check the endpoint's log at the time of a failed attempt; each attempt shows the response",
        ),
        FailureCategory::ClientError => (
            "the endpoint rejects the requests (4xx)",
            "Check the path in the URL, the authentication, and whether the endpoint verifies with the current secret",
        ),
        FailureCategory::Network => (
            "the endpoint cannot be reached, or closes the connection",
            "Check that the endpoint is running, and that its firewall allows connections from Redrive",
        ),
        FailureCategory::Dns => {
            ("the endpoint's host cannot be resolved", "Check the host in the URL, and its name server")
        }
        FailureCategory::Tls => (
            "no secure connection could be established",
            "Check the endpoint's certificate: it may be expired, for another host, or sent without its chain",
        ),
        FailureCategory::RateLimit => (
            "the endpoint limits the request rate (429)",
            "Set a rate limit for the webhook that the endpoint accepts",
        ),
        FailureCategory::PayloadTooLarge => (
            "the payload is too large for the endpoint (413)",
            "Accept larger bodies, or filter out large events",
        ),
        FailureCategory::Redirect => (
            "the endpoint redirects, and redirects are not followed",
            "Use the target of the redirect as URL",
        ),
        FailureCategory::BlockedAddress => (
            "the egress rules do not allow the endpoint's address",
            "Use a public address, or ask the operator to allow this network",
        ),
    }
}

/// Describes when a circuit opens, and how it closes again.
pub(super) fn describe_breaker(policy: &BreakerPolicy) -> String {
    if !policy.enabled {
        return "The circuit never opens automatically.".to_owned();
    }
    format!(
        "Opens when {} % or more of at least {} attempts within {} fail. After {}, up to {} test requests (probes) \
         are sent: the circuit closes if {} % of them succeed; otherwise it opens again, for twice as long, up to a day.",
        policy.error_threshold_percentage,
        policy.minimum_throughput,
        format::format_duration(policy.window),
        format::format_duration(policy.sleep_window),
        policy.half_open_max_calls,
        policy.half_open_success_threshold * 100.0,
    )
}

/// Describes a retry policy, except for its schedule.
pub(super) fn describe_retry(policy: &RetryPolicy) -> String {
    let timeout = format::format_duration(Duration::from_millis(policy.timeout_ms));
    let jitter = match policy.jitter {
        0.0 => String::new(),
        jitter => format!(" Delays vary by ±{:.0} %.", jitter * 100.0),
    };
    let codes: Vec<_> = policy.permanent_status_codes.iter().map(u16::to_string).collect();
    let permanent = match (policy.retry_on, codes.is_empty()) {
        (RetryOn::All, _) => " Every failure is retried.".to_owned(),
        (_, true) => String::new(),
        (_, false) => format!(" Not retried: status codes {}.", codes.join(", ")),
    };
    let max = match policy.max_attempts() {
        1 => "One attempt".to_owned(),
        max => format!("Up to {max} attempts"),
    };
    let give_up = format::format_duration(policy.give_up_after.as_duration());
    format!("{max} within {give_up}. Timeout per attempt: {timeout}.{jitter}{permanent}")
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
    fn failures_are_shown_with_suggested_action() {
        let none = Rollup::default();
        let failing = hour(1, &[(FailureCategory::Tls, 3), (FailureCategory::Dns, 1)]);
        let since = Some(Time::from_secs(5));
        let message = failure_message(WebhookStatus::Degraded, &failing, &none, since).unwrap();
        assert_eq!((&*message.title, message.tone), ("4 of 5 attempts failed in the last hour", "waiting"));
        assert!(message.text.starts_with(
            "Mostly: no secure connection could be established. Check the endpoint's certificate"
        ));
        let message = failure_message(WebhookStatus::Degraded, &failing, &none, None).unwrap();
        assert!(message.text.ends_with("established. The last attempt succeeded."), "{}", message.text);
        let one_percent = hour(99, &[(FailureCategory::Timeout, 1)]);
        assert_eq!(
            failure_message(WebhookStatus::Healthy, &one_percent, &none, None),
            None,
            "1 % of failures needs no message"
        );
        let message = failure_message(WebhookStatus::Failing, &one_percent, &none, since).unwrap();
        assert_eq!((message.at, message.tone), (since.map(|since| ("Failing since", since)), "bad"));
    }

    #[test]
    fn quiet_failing_webhook_is_not_called_healthy() {
        let since = Some(Time::from_secs(5));
        let (none, day) = (Rollup::default(), hour(0, &[(FailureCategory::Network, 2)]));
        let message = failure_message(WebhookStatus::Failing, &none, &day, since).unwrap();
        assert_eq!((&*message.title, message.tone), ("2 of 2 attempts failed in the last 24 hours", "bad"));
        assert!(message.text.starts_with("All failures: the endpoint cannot be reached"), "{}", message.text);
        let message = failure_message(WebhookStatus::Degraded, &none, &none, since).unwrap();
        assert_eq!((&*message.title, message.tone), ("The last attempts failed", "waiting"));
        assert_eq!(failure_message(WebhookStatus::Healthy, &none, &day, since), None);
    }

    #[test]
    fn every_failure_category_has_suggested_action() {
        let all = FailureCategory::ALL.map(explain_failure);
        assert!(all.iter().all(|(cause, action)| !cause.ends_with('.') && !action.ends_with('.')));
    }

    #[test]
    fn policies_are_described_as_text() {
        assert_eq!(
            describe_retry(&RetryPolicy::default()),
            "Up to 10 attempts within 5 d. Timeout per attempt: 30 s. Delays vary by ±10 %. Not retried: status codes \
             400, 401, 403, 404, 410, 413, 414, 415, 451."
        );
        let text = describe_breaker(&BreakerPolicy::default());
        assert!(
            text.starts_with("Opens when 60 % or more of at least 20 attempts within 1 min fail."),
            "{text}"
        );
    }
}
