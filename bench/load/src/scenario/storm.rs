//! Retries that all come due at the same time, and their effect on fresh events.
//!
//! The receiver refuses the first attempt of every event of the storm with a `Retry-After` that names the same
//! date for all. Until then the deliveries wait in the sender's store.

use std::{
    error::Error,
    sync::Arc,
    time::{Duration, SystemTime},
};

use clap::Args;
use serde_json::{Value, json};

use super::ScenarioContext;
use crate::{
    await_arrivals,
    ledger::{Ledger, ReceiverBehavior},
    options::Sender,
    publisher::Stop,
    receiver,
    report::{self, StreamResult},
    run_log::RunLog,
    settle,
    setup::{Api, WebhookRequest, fields},
    stream::Stream,
};

/// How long before the storm fresh events start, so that they run at a steady rate when it begins.
const WARM_UP: Duration = Duration::from_secs(1);
/// Upper bound of the seconds between the first publish of the storm's events and their common due time.
const MAX_LEAD_SECONDS: f64 = 300.0;

/// Measures fresh events at a fixed rate, without load and while retries that came due together are drained.
#[derive(Args)]
pub(crate) struct Storm {
    /// Deliveries that fail once and are due again at the same time.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    deliveries: u32,
    /// Fresh events per second to each of two webhooks: that of the storm and another.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// Seconds that fresh events are measured without the storm.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
}

/// Results of the fresh events to the webhook of the storm, and to another.
struct Fresh {
    same: StreamResult,
    other: StreamResult,
}

/// Result of the storm, with its start and its end.
struct StormResult {
    played: StreamResult,
    due: u64,
    over: u64,
    lead_s: u64,
    fresh: Fresh,
}

impl Storm {
    pub(crate) async fn run(&self, sender: &Sender, books: &RunLog) -> Result<Value, Box<dyn Error>> {
        set_up(sender).await?;
        settle().await;
        let context = ScenarioContext { sender, books };
        let drain = Duration::from_secs(sender.drain);

        let ledger = context.accepting(self.deliveries as usize);
        let full = context.run_stream(Stream::new("bench.same", 0), ledger, &Stop::default()).await?;
        await_arrivals(&[&full.ledger], drain).await;
        let calm = self.fresh(&context, self.seconds as usize, &Stop::default()).await?;
        await_arrivals(&[&calm.same.ledger, &calm.other.ledger], drain).await;
        let blown = self.run_storm(&context, full.arrivals_per_s()).await?;
        self.line(books, &full, &calm, &blown)
    }

    /// Publishes fresh events for `seconds` seconds, or until stopped.
    async fn fresh(
        &self,
        context: &ScenarioContext<'_>,
        seconds: usize,
        stop: &Stop,
    ) -> Result<Fresh, Box<dyn Error>> {
        let events = self.rate as usize * seconds;
        let play = |event_type| {
            context.run_stream(Stream::new(event_type, self.rate), context.accepting(events), stop)
        };
        let (same, other) = tokio::try_join!(play("bench.same"), play("bench.other"))?;
        Ok(Fresh { same, other })
    }

    /// Publishes the storm's events, then publishes fresh events from just before the retries are due until all have
    /// arrived.
    async fn run_storm(
        &self,
        context: &ScenarioContext<'_>,
        full_per_s: f64,
    ) -> Result<StormResult, Box<dyn Error>> {
        let deliveries = f64::from(self.deliveries);
        // A failed attempt takes longer to process than a delivered one; three times as long is ample.
        let lead_s = (3.0 * deliveries / full_per_s.max(1.0) + 4.0).min(MAX_LEAD_SECONDS) as u64;
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let due_s = since_1970.as_secs() + lead_s;
        let until_due = Duration::from_secs(due_s) - since_1970;

        let response = receiver::busy_until(&http_date(due_s)).into();
        let manner = ReceiverBehavior::RefuseFirst { every: 1, status: response };
        let ledger = context.books.add_stream(self.deliveries as usize, 1, manner);
        let due = ledger.now() + nanos(until_due);
        let played =
            context.run_stream(Stream::new("bench.storm", 0), Arc::clone(&ledger), &Stop::default()).await?;
        let left = Duration::from_nanos(due.saturating_sub(ledger.now()));
        tokio::time::sleep(left.saturating_sub(WARM_UP)).await;

        let timeout = Duration::from_secs(context.sender.drain);
        let stop = Stop::default();
        let most_seconds = (WARM_UP + left.min(WARM_UP) + timeout).as_secs() as usize + 1;
        let watch = async {
            tokio::time::timeout(WARM_UP + timeout, ledger.await_all()).await.ok();
            stop.now();
            Ok(ledger.now())
        };
        let (gave_up, fresh) = tokio::try_join!(watch, self.fresh(context, most_seconds, &stop))?;
        await_arrivals(&[&fresh.same.ledger, &fresh.other.ledger], timeout).await;
        let totals = ledger.summarize(.., |_| ());
        let over = if totals.missing == 0 { totals.last_arrival } else { gave_up };
        Ok(StormResult { played, due, over, lead_s, fresh })
    }

    fn line(
        &self,
        books: &RunLog,
        full: &StreamResult,
        calm: &Fresh,
        blown: &StormResult,
    ) -> Result<Value, Box<dyn Error>> {
        let StormResult { played: storm, due, over, lead_s, fresh } = blown;
        let drained = storm.ledger.arrived_before(u64::MAX) - storm.ledger.arrived_before(*due);
        let during = *due..=*over;
        let mut line = json!({
            "scenario": "storm",
            "deliveries": self.deliveries,
            "rate": self.rate,
            "lead_s": lead_s,
            "full_per_s": full.arrivals_per_s(),
            "drain_s": over.saturating_sub(*due) as f64 / 1e9,
            "drained_per_s": report::per_second(drained as f64, *due, *over),
            "calm": {"same": calm.same.late_ms(..)?, "other": calm.other.late_ms(..)?},
            "storm": {"same": fresh.same.late_ms(during.clone())?, "other": fresh.other.late_ms(during)?},
            // Both must be 0; otherwise the retries were not all due at the same time.
            "refused_late": refused_from(&storm.ledger, *due),
            "retried_early": storm.ledger.arrived_before(*due),
        });
        let all = [full, &calm.same, &calm.other, storm, &fresh.same, &fresh.other];
        report::merge(&mut line, report::delivery_guarantees(books, &all));
        Ok(line)
    }
}

async fn set_up(sender: &Sender) -> Result<(), Box<dyn Error>> {
    let mut extra = fields(&sender.webhook_extra)?;
    extra.insert("retry_config".into(), json!({"schedule": [0, 1, 5, 5, 5], "jitter": 0}));
    let mut api = Api::connect(sender).await?;
    let webhooks: [(&str, &[&str]); 2] =
        [("/same/0", &["bench.same", "bench.storm"]), ("/other/0", &["bench.other"])];
    for (path, events) in webhooks {
        let webhook = WebhookRequest { tenant: None, path: path.into(), events, extra: extra.clone() };
        api.create_webhook(webhook).await?;
    }
    Ok(())
}

fn refused_from(ledger: &Ledger, moment: u64) -> u64 {
    ledger.refused_before(u64::MAX) - ledger.refused_before(moment)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Formats seconds since 1970 as an HTTP date.
fn http_date(seconds: u64) -> String {
    const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "Jan", "Feb"];
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years are counted from March, so that the leap day comes last; 1968-03-01 was 671 days before 1970-01-01.
    // From 1901 to 2099 every fourth year is a leap year.
    let since_1968 = days + 671;
    let (cycle, day_of_cycle) = (since_1968 / 1461, since_1968 % 1461);
    let year = (day_of_cycle / 365).min(3);
    let day_of_year = day_of_cycle - 365 * year;
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    format!(
        "{}, {day:02} {} {} {:02}:{:02}:{:02} GMT",
        WEEKDAYS[(days % 7) as usize],
        MONTHS[month as usize],
        1968 + 4 * cycle + year + u64::from(month >= 10),
        second / 3600,
        second / 60 % 60,
        second % 60,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_date_matches_known_dates() {
        for (seconds, date) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (951_868_799, "Tue, 29 Feb 2000 23:59:59 GMT"),
            (951_868_800, "Wed, 01 Mar 2000 00:00:00 GMT"),
            (1_767_225_599, "Wed, 31 Dec 2025 23:59:59 GMT"),
            (1_798_761_600, "Fri, 01 Jan 2027 00:00:00 GMT"),
        ] {
            assert_eq!(http_date(seconds), date);
        }
    }
}
