//! Formats numbers, times and names for pages. Functions accept references (from templates) and values (from
//! code).

use std::{borrow::Borrow, fmt::Display, time::Duration};

use redrive_core::{
    DeadReason, DeliveryStatus, FailureCategory, Time,
    dispatch::gate::WaitingOn,
    notification::{NotificationKind, preferences::Language},
    protection::breaker::CircuitState,
};

use super::zone::Zone;
use crate::mail::texts::MailTexts;

/// Returns the `aria-current` value of the link with this name.
pub(super) fn is_current(name: impl AsRef<str>, current: impl AsRef<str>) -> bool {
    name.as_ref() == current.as_ref()
}

/// Returns whether a filter has the name of one status.
pub(super) fn is_delivery_status(name: impl AsRef<str>) -> bool {
    DeliveryStatus::ALL.iter().any(|known| known.name() == name.as_ref())
}

/// Returns whether a filter has the name of one failure category.
pub(super) fn is_failure_category(name: impl AsRef<str>) -> bool {
    FailureCategory::ALL.iter().any(|known| known.name() == name.as_ref())
}

/// Returns whether a filter has the name of one dead reason.
pub(super) fn is_dead_reason(name: impl AsRef<str>) -> bool {
    DeadReason::ALL.iter().any(|known| known.name() == name.as_ref())
}

/// Returns the base path of the pages of a tenant.
pub(super) fn tenant_path(tenant_id: impl Display) -> String {
    format!("/dashboard/t/{tenant_id}")
}

/// Formats a time for a `<time>` element, in the time zone of the page; scripts show how long ago it was.
pub(super) fn format_time(time: impl Display) -> String {
    let text = time.to_string();
    let Some(time) = Time::parse_or_date(&text) else { return text };
    let zone = Zone::current();
    let local = zone.to_local(time).to_string();
    match local.split_once('T') {
        Some((day, rest)) => format!("{day} {} {}", rest.get(..8).unwrap_or(rest), zone.offset_text(time)),
        None => local,
    }
}

/// Returns the time zone of the page, as the label beside charts, tables and filters.
pub(super) fn zone_label() -> String {
    Zone::current_label()
}

/// Formats a number with thousands separators.
pub(super) fn number(n: impl Display) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a share from 0 to 1 in percent, rounded down, so that only the whole is 100 %.
pub(super) fn percent(share: impl Borrow<f64>) -> String {
    let share = *share.borrow();
    match (share * 1000.0).floor() / 10.0 {
        whole if whole >= 100.0 || whole == 0.0 && share <= 0.0 => format!("{whole:.0} %"),
        part => format!("{part:.1} %"),
    }
}

/// Formats milliseconds with a useful precision.
pub(super) fn millis(ms: impl Borrow<f64>) -> String {
    match *ms.borrow() {
        ms if ms < 10.0 => format!("{ms:.1} ms"),
        ms if ms < 1_000.0 => format!("{ms:.0} ms"),
        ms if ms < 10_000.0 => format!("{:.2} s", ms / 1000.0),
        ms => format!("{:.1} s", ms / 1000.0),
    }
}

/// Formats a number for a form field, empty if there is none.
pub(super) fn filled(number: impl Borrow<Option<u32>>) -> String {
    number.borrow().map(|number| number.to_string()).unwrap_or_default()
}

/// Formats a duration in its two largest units.
pub(super) fn format_duration(length: impl Borrow<Duration>) -> String {
    let seconds = length.borrow().as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{} s", seconds),
        (0, 0, _) => format_two_units(minutes, "min", seconds % 60, "s"),
        (0, ..) => format_two_units(hours, "h", minutes, "min"),
        _ => format_two_units(days, "d", hours, "h"),
    }
}

fn format_two_units(large: u64, unit: &str, small: u64, part: &str) -> String {
    match small {
        0 => format!("{large} {unit}"),
        _ => format!("{large} {unit} {small} {part}"),
    }
}

/// Formats a name such as `client_error` as words.
pub(super) fn humanize(name: &str) -> String {
    name.replace('_', " ")
}

/// Returns the color of a delivery's status.
pub(super) fn status_color(status: impl Borrow<DeliveryStatus>) -> &'static str {
    match *status.borrow() {
        DeliveryStatus::Delivered => "good",
        DeliveryStatus::Dead => "bad",
        DeliveryStatus::Pending => "waiting",
        DeliveryStatus::InFlight => "busy",
        DeliveryStatus::Cancelled => "off",
    }
}

/// Returns the color of a circuit's state.
pub(super) fn circuit_color(state: impl Borrow<CircuitState>) -> &'static str {
    match *state.borrow() {
        CircuitState::Closed => "good",
        CircuitState::HalfOpen => "waiting",
        CircuitState::Open => "bad",
    }
}

/// Formats a failure category.
pub(super) fn category(category: impl Borrow<FailureCategory>) -> String {
    humanize(category.borrow().name())
}

/// Returns the cause that delays a pending delivery, given its API name.
pub(super) fn wait_cause(name: &str) -> &'static str {
    let named = WaitingOn::ALL.into_iter().find(|on| on.name() == name);
    match named.unwrap_or(WaitingOn::Capacity) {
        WaitingOn::Schedule => "next attempt scheduled",
        WaitingOn::CircuitOpen => "open circuit",
        WaitingOn::RateLimit => "rate limit, or pause after a 429",
        WaitingOn::InFlightLimit => "concurrency limit of the webhook",
        WaitingOn::Order => "previous delivery of the ordering key",
        WaitingOn::Paused => "webhook paused, or its URL not verified",
        WaitingOn::Capacity => "ready, or waiting for a free slot of the tenant, host or node",
        WaitingOn::Pool => "no worker serves the pool",
    }
}

/// Describes pending deliveries by the cause that delays them, given its API name.
pub(super) fn wait_text(name: &str) -> String {
    match WaitingOn::ALL.into_iter().find(|on| on.name() == name) {
        Some(WaitingOn::Schedule) => "scheduled for later".to_owned(),
        Some(WaitingOn::Capacity) | None => wait_cause(name).to_owned(),
        Some(_) => format!("waiting: {}", wait_cause(name)),
    }
}

/// Truncates a text to a number of characters, with an ellipsis.
pub(super) fn shortened(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Formats a name and value as a query string.
pub(super) fn query(name: &str, value: &str) -> String {
    url::form_urlencoded::Serializer::new(String::new()).append_pair(name, value).finish()
}

/// Returns the end of an id, enough to distinguish ids on one page.
pub(super) fn short_id(id: impl Display) -> String {
    let id = id.to_string();
    let at = id.len().saturating_sub(8);
    format!("…{}", id.get(at..).unwrap_or(&id))
}

/// Returns the languages of emails with their codes.
pub(super) fn languages() -> [(&'static str, &'static str); 2] {
    Language::ALL.map(|language| match language {
        Language::En => (language.code(), "English"),
        Language::De => (language.code(), "Deutsch"),
    })
}

/// Returns whether the language has this code.
pub(super) fn is_in(language: impl Borrow<Option<Language>>, code: &str) -> bool {
    language.borrow().is_some_and(|language| language.code() == code)
}

/// Returns the notification kinds with their names.
pub(super) fn notification_kinds() -> [(NotificationKind, &'static str); NotificationKind::ALL.len()] {
    NotificationKind::ALL.map(|kind| (kind, MailTexts::for_language(Language::En).kind(kind).name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::zone::with_zone;

    #[test]
    fn numbers_and_durations_are_formatted_for_people() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(|n: u64| number(n)), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0.0, 0.5, 0.9999, 1.0].map(|share: f64| percent(share)),
            ["0 %", "50.0 %", "99.9 %", "100 %"]
        );
        assert_eq!(percent(0.0001), "0.0 %", "a small share is not shown as 0 %");
        assert_eq!(
            [0.42, 12.3, 1_234.0, 30_000.0].map(|ms: f64| millis(ms)),
            ["0.4 ms", "12 ms", "1.23 s", "30.0 s"]
        );
        let spans = [5, 60, 90, 3_600, 5_400, 90_000].map(|secs| format_duration(Duration::from_secs(secs)));
        assert_eq!(spans, ["5 s", "1 min", "1 min 30 s", "1 h", "1 h 30 min", "1 d 1 h"]);
    }

    #[test]
    fn pending_deliveries_are_described_by_cause() {
        assert_eq!(wait_text("circuit_open"), "waiting: open circuit");
        assert_eq!(wait_text("in_flight_limit"), "waiting: concurrency limit of the webhook");
        assert_eq!(wait_text("schedule"), "scheduled for later");
    }

    #[test]
    fn times_are_formatted_to_the_second() {
        assert_eq!(format_time(Time::from_millis(1_700_000_000_123)), "2023-11-14 22:13:20 UTC");
        let in_kolkata = with_zone("Asia/Kolkata~330", || format_time(Time::from_millis(1_700_000_000_123)));
        assert_eq!(in_kolkata, "2023-11-15 03:43:20 UTC+5:30");
    }

    #[test]
    fn long_texts_are_truncated_at_character_boundaries() {
        assert_eq!(shortened("größer", 3), "grö…");
        assert_eq!(shortened("groß", 4), "groß");
        assert_eq!(short_id("dlv_0123456789abcdef"), "…89abcdef");
        assert_eq!(short_id("é"), "…é");
    }
}
