//! Time zone in which a page shows times: UTC, or the zone of the browser. The browser's script stores the offsets of
//! its zone in a cookie, so that the server renders local times, also across changes to summer time, without a
//! database of time zones.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, header},
    middleware::Next,
    response::Response,
};
use redrive_core::Time;

use crate::api::AppState;

/// Name of the cookie. Its value is untrusted and only changes how times look.
const COOKIE: &str = "redrive_zone";
/// Maximum number of offset changes in the cookie.
const MAX_CHANGES: usize = 40;
/// Maximum length of a zone's name.
const MAX_NAME_CHARS: usize = 48;
/// Largest offset from UTC, in minutes.
const MAX_OFFSET_MINUTES: i32 = 18 * 60;
const MINUTE_MS: i64 = 60_000;

tokio::task_local! {
    /// Zone of the page that this task renders, and the time of rendering.
    static CURRENT: (Zone, Time);
}

/// A time zone. Equal zones render equal pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Zone(Option<Arc<Local>>);

/// The zone of a browser.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Local {
    name: String,
    /// Offset before the first change, in minutes.
    initial: i32,
    /// Minutes since the epoch at which the offset changes, ascending, each with the new offset.
    changes: Vec<(i64, i32)>,
}

impl Zone {
    /// UTC.
    pub(super) const UTC: Self = Self(None);

    /// Parses the value of the cookie, such as `Europe/Berlin~60~29579100:120`. Anything else is UTC.
    fn parse(value: &str) -> Self {
        Self(parse_local(value).map(Arc::new))
    }

    fn from_headers(headers: &HeaderMap) -> Self {
        let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
        let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(name, _)| *name == COOKIE).map_or(Self::UTC, |(_, value)| Self::parse(value))
    }

    /// Returns the zone of the page that is being rendered, or UTC outside of a page.
    pub(super) fn current() -> Self {
        CURRENT.try_with(|(zone, _)| zone.clone()).unwrap_or_default()
    }

    /// Describes the zone of the page that is being rendered, beside a chart, table or filter.
    pub(super) fn current_label() -> String {
        CURRENT.try_with(|(zone, now)| zone.label(*now)).unwrap_or_else(|_| Self::UTC.label(Time::default()))
    }

    /// Returns the offset from UTC at a time, in minutes.
    pub(super) fn offset_minutes(&self, time: Time) -> i32 {
        let Some(local) = &self.0 else { return 0 };
        let minute = time.millis().div_euclid(MINUTE_MS);
        let before = local.changes.iter().take_while(|(from, _)| *from <= minute).last();
        before.map_or(local.initial, |(_, offset)| *offset)
    }

    /// Returns the time whose UTC text is the local text of `time`.
    pub(super) fn to_local(&self, time: Time) -> Time {
        Time::from_millis(time.millis() + i64::from(self.offset_minutes(time)) * MINUTE_MS)
    }

    /// Returns the time whose local text is the UTC text of `local`: the reverse of `to_local`. Of an hour that is repeated, the first counts.
    pub(super) fn utc_of(&self, local: Time) -> Time {
        let with = |offset: i32| Time::from_millis(local.millis() - i64::from(offset) * MINUTE_MS);
        let earlier = with(self.offset_minutes(local.saturating_sub(Duration::from_secs(86_400))));
        if self.to_local(earlier) == local { earlier } else { with(self.offset_minutes(earlier)) }
    }

    /// Returns the offset at a time as text: `UTC`, `UTC+1` or `UTC-3:30`.
    pub(super) fn offset_text(&self, time: Time) -> String {
        let offset = self.offset_minutes(time);
        let (sign, hours, minutes) =
            (if offset < 0 { '-' } else { '+' }, offset.abs() / 60, offset.abs() % 60);
        match (hours, minutes) {
            (0, 0) => "UTC".to_owned(),
            (hours, 0) => format!("UTC{sign}{hours}"),
            (hours, minutes) => format!("UTC{sign}{hours}:{minutes:02}"),
        }
    }

    fn label(&self, now: Time) -> String {
        match &self.0 {
            None => "Times in UTC".to_owned(),
            Some(local) => format!("Times in {} ({})", local.name, self.offset_text(now)),
        }
    }
}

fn parse_local(value: &str) -> Option<Local> {
    let mut parts = value.split('~');
    let name = parts.next().filter(|name| is_zone_name(name))?.to_owned();
    let initial = parse_offset(parts.next()?)?;
    let mut changes = Vec::new();
    for part in parts {
        let (minute, offset) = part.split_once(':')?;
        let change = (minute.parse().ok()?, parse_offset(offset)?);
        let ascends = changes.last().is_none_or(|(last, _)| *last < change.0);
        if !ascends || changes.len() == MAX_CHANGES {
            return None;
        }
        changes.push(change);
    }
    Some(Local { name, initial, changes })
}

fn parse_offset(text: &str) -> Option<i32> {
    text.parse().ok().filter(|offset| (-MAX_OFFSET_MINUTES..=MAX_OFFSET_MINUTES).contains(offset))
}

fn is_zone_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '-' | '+');
    (1..=MAX_NAME_CHARS).contains(&name.len()) && name.chars().all(is_allowed)
}

/// Renders pages in the zone of the browser, or in the zone of the live page that is rendered again.
pub(super) async fn in_browser_zone(State(app): State<AppState>, request: Request, next: Next) -> Response {
    let of_live_page = request.extensions().get::<Zone>().cloned();
    let zone = of_live_page.unwrap_or_else(|| Zone::from_headers(request.headers()));
    let now = app.engine().clock().now();
    CURRENT.scope((zone, now), next.run(request)).await
}

/// Runs `work` in a zone.
#[cfg(test)]
pub(super) fn with_zone<T>(cookie: &str, work: impl FnOnce() -> T) -> T {
    CURRENT.sync_scope((Zone::parse(cookie), Time::default()), work)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    /// Berlin from October 2025 until October 2026, as the script writes it.
    pub(super) const BERLIN: &str = "Europe/Berlin~60~29579100:120~29881500:60";

    fn at(text: &str) -> Time {
        Time::parse_or_date(text).unwrap()
    }

    #[test]
    fn offset_follows_summer_time() {
        let berlin = Zone::parse(BERLIN);
        let local = |time: &str| berlin.to_local(at(time)).to_string();
        assert_eq!(local("2026-03-29T00:59:59Z"), "2026-03-29T01:59:59.000Z");
        assert_eq!(local("2026-03-29T01:00:00Z"), "2026-03-29T03:00:00.000Z");
        assert_eq!(local("2026-10-25T00:59:59Z"), "2026-10-25T02:59:59.000Z");
        assert_eq!(local("2026-10-25T01:00:00Z"), "2026-10-25T02:00:00.000Z");
        assert_eq!(berlin.offset_text(at("2026-07-01")), "UTC+2");
        assert_eq!(berlin.label(at("2026-01-01")), "Times in Europe/Berlin (UTC+1)");
    }

    #[test]
    fn local_time_converts_back() {
        let berlin = Zone::parse(BERLIN);
        for time in
            ["2026-01-01T11:00:00Z", "2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z", "2026-07-01T11:00:00Z"]
        {
            assert_eq!(berlin.utc_of(berlin.to_local(at(time))), at(time), "{time}");
        }
        let repeated = berlin.to_local(at("2026-10-25T01:30:00Z"));
        assert_eq!(berlin.utc_of(repeated), at("2026-10-25T00:30:00Z"));
    }

    #[test]
    fn offsets_are_written_with_minutes_where_they_have_some() {
        for (cookie, text) in
            [("Asia/Kolkata~330", "UTC+5:30"), ("America/St_Johns~-210", "UTC-3:30"), ("UTC~0", "UTC")]
        {
            assert_eq!(Zone::parse(cookie).offset_text(at("2026-01-01")), text);
        }
    }

    #[test]
    fn invalid_cookie_is_utc() {
        let many: String = (0..=MAX_CHANGES).map(|n| format!("~{n}:60")).collect();
        for value in [
            "",
            "Europe/Berlin",
            "~60",
            "<script>~60",
            "Europe/Berlin~x",
            "Europe/Berlin~9999",
            "Europe/Berlin~60~5",
            "Europe/Berlin~60~5:120~4:60",
            &format!("{}~60", "a".repeat(MAX_NAME_CHARS + 1)),
            &format!("Europe/Berlin~60{many}"),
        ] {
            assert_eq!(Zone::parse(value), Zone::UTC, "{value}");
        }
    }

    #[test]
    fn zone_is_found_among_other_cookies() {
        let header = format!("a=b; redrive_zone={BERLIN}; redrive_session=x");
        let headers = HeaderMap::from_iter([(header::COOKIE, HeaderValue::from_str(&header).unwrap())]);
        assert_eq!(Zone::from_headers(&headers), Zone::parse(BERLIN));
        assert_eq!(Zone::from_headers(&HeaderMap::new()), Zone::UTC);
    }

    #[test]
    fn zone_applies_only_while_its_page_is_rendered() {
        assert_eq!(with_zone(BERLIN, Zone::current), Zone::parse(BERLIN));
        assert_eq!(Zone::current(), Zone::UTC);
    }
}
