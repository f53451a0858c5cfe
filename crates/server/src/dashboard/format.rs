//! How figures, times and names are written on pages. Templates hand references, code hands values: both are taken.

use std::{borrow::Borrow, fmt::Display, time::Duration};

use redrive_core::{
    DeliveryStatus, FailureCategory,
    dispatch::gate::WaitingOn,
    notification::{Kind, preferences::Language},
    protection::breaker::CircuitState,
};

use crate::mail::texts::Words;

/// A time, for a `<time>` element: scripts show how long ago it was.
pub(super) fn stamp(time: impl Display) -> String {
    let text = time.to_string();
    match text.split_once('T') {
        Some((day, rest)) => format!("{day} {} UTC", rest.get(..8).unwrap_or(rest)),
        None => text,
    }
}

/// A number with its thousands apart.
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

/// A share from 0 to 1 in percent. Only all of it is 100 %.
pub(super) fn percent(share: impl Borrow<f64>) -> String {
    let share = *share.borrow();
    match (share * 1000.0).floor() / 10.0 {
        whole if whole >= 100.0 || whole == 0.0 && share <= 0.0 => format!("{whole:.0} %"),
        part => format!("{part:.1} %"),
    }
}

/// Milliseconds, as exactly as is of use.
pub(super) fn millis(ms: impl Borrow<f64>) -> String {
    match *ms.borrow() {
        ms if ms < 10.0 => format!("{ms:.1} ms"),
        ms if ms < 1_000.0 => format!("{ms:.0} ms"),
        ms if ms < 10_000.0 => format!("{:.2} s", ms / 1000.0),
        ms => format!("{:.1} s", ms / 1000.0),
    }
}

/// A number in a field of a form, which is empty where there is none.
pub(super) fn filled(number: impl Borrow<Option<u32>>) -> String {
    number.borrow().map(|number| number.to_string()).unwrap_or_default()
}

/// A length of time in its two largest units.
pub(super) fn span(length: impl Borrow<Duration>) -> String {
    let seconds = length.borrow().as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{} s", seconds),
        (0, 0, _) => two(minutes, "min", seconds % 60, "s"),
        (0, ..) => two(hours, "h", minutes, "min"),
        _ => two(days, "d", hours, "h"),
    }
}

fn two(large: u64, unit: &str, small: u64, part: &str) -> String {
    match small {
        0 => format!("{large} {unit}"),
        _ => format!("{large} {unit} {small} {part}"),
    }
}

/// A name such as `client_error` in words.
pub(super) fn plain(name: &str) -> String {
    name.replace('_', " ")
}

/// The colour of a delivery's status.
pub(super) fn tone(status: impl Borrow<DeliveryStatus>) -> &'static str {
    match *status.borrow() {
        DeliveryStatus::Delivered => "good",
        DeliveryStatus::Dead => "bad",
        DeliveryStatus::Pending => "waiting",
        DeliveryStatus::InFlight => "busy",
        DeliveryStatus::Cancelled => "off",
    }
}

/// The colour of a circuit's state.
pub(super) fn circuit_tone(state: impl Borrow<CircuitState>) -> &'static str {
    match *state.borrow() {
        CircuitState::Closed => "good",
        CircuitState::HalfOpen => "waiting",
        CircuitState::Open => "bad",
    }
}

/// A kind of failure in words.
pub(super) fn category(category: impl Borrow<FailureCategory>) -> String {
    plain(category.borrow().name())
}

/// What deliveries wait for, by its name, in words.
pub(super) fn waiting_for(name: &str) -> &'static str {
    let named = WaitingOn::ALL.into_iter().find(|on| on.name() == name);
    match named.unwrap_or(WaitingOn::Capacity) {
        WaitingOn::Schedule => "the time of their next attempt",
        WaitingOn::CircuitOpen => "an open circuit",
        WaitingOn::RateLimit => "a rate limit, or a pause that the endpoint asked for",
        WaitingOn::InFlightLimit => "requests of their webhook to end",
        WaitingOn::Order => "the delivery before them in their order",
        WaitingOn::Paused => "their webhook to be resumed or verified",
        WaitingOn::Capacity => "their turn",
        WaitingOn::Pool => "a worker of their tenant's pool",
    }
}

/// The first characters of a long text, and a sign that there is more.
pub(super) fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A field with its value, as a query has it.
pub(super) fn query(name: &str, value: &str) -> String {
    url::form_urlencoded::Serializer::new(String::new()).append_pair(name, value).finish()
}

/// The end of an id, enough to tell two apart on one page.
pub(super) fn short_id(id: impl Display) -> String {
    let id = id.to_string();
    let at = id.len().saturating_sub(8);
    format!("…{}", id.get(at..).unwrap_or(&id))
}

/// The languages of mails, by their codes.
pub(super) fn languages() -> [(&'static str, &'static str); 2] {
    Language::ALL.map(|language| match language {
        Language::En => (language.code(), "English"),
        Language::De => (language.code(), "Deutsch"),
    })
}

/// Whether this is the language with this code.
pub(super) fn is_in(language: impl Borrow<Option<Language>>, code: &str) -> bool {
    language.borrow().is_some_and(|language| language.code() == code)
}

/// What owners can be told of, in words.
pub(super) fn notices() -> [(Kind, &'static str); 7] {
    Kind::ALL.map(|kind| (kind, Words::of(Language::En).kind(kind).name))
}

#[cfg(test)]
mod tests {
    use redrive_core::Time;

    use super::*;

    #[test]
    fn figures_are_written_as_people_read_them() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(|n: u64| number(n)), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0.0, 0.5, 0.9999, 1.0].map(|share: f64| percent(share)),
            ["0 %", "50.0 %", "99.9 %", "100 %"]
        );
        assert_eq!(percent(0.0001), "0.0 %", "a little is not nothing");
        assert_eq!(
            [0.42, 12.3, 1_234.0, 30_000.0].map(|ms: f64| millis(ms)),
            ["0.4 ms", "12 ms", "1.23 s", "30.0 s"]
        );
        let spans = [5, 60, 90, 3_600, 5_400, 90_000].map(|secs| span(Duration::from_secs(secs)));
        assert_eq!(spans, ["5 s", "1 min", "1 min 30 s", "1 h", "1 h 30 min", "1 d 1 h"]);
    }

    #[test]
    fn times_are_written_to_the_second() {
        assert_eq!(stamp(Time::from_millis(1_700_000_000_123)), "2023-11-14 22:13:20 UTC");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(shortened("größer", 3), "grö…");
        assert_eq!(shortened("groß", 4), "groß");
        assert_eq!(short_id("dlv_0123456789abcdef"), "…89abcdef");
        assert_eq!(short_id("é"), "…é");
    }
}
