//! Throttles repeated log records: a few per call site are written, the rest are counted, and the count is logged.
//! Records at `debug` and below are never throttled.

use std::{collections::HashMap, fmt, sync::Arc};

use parking_lot::Mutex;
use redrive_core::maintenance::log_throttle::{LogThrottle, WINDOW};
use redrive_engine::clock;
use tokio_util::sync::CancellationToken;
use tracing::{
    Event, Level, Metadata,
    callsite::Identifier,
    field::{Field, Visit},
};
use tracing_subscriber::layer::{Context, Filter};

/// Target of the records that report suppressed ones; they are never suppressed themselves.
const TARGET: &str = "redrive::log_throttle";

/// Records of one call site.
struct Kind {
    repeats: LogThrottle,
    level: Level,
    target: &'static str,
    /// Message of a suppressed record.
    logged: Option<String>,
}

type Kinds = Arc<Mutex<HashMap<Identifier, Kind>>>;

/// Filter that suppresses repeated records.
pub(super) struct ThrottleFilter(Kinds);

/// Counts of suppressed records.
pub(crate) struct SuppressedLines(Kinds);

/// Creates a filter, and the counts of what it suppresses.
pub(super) fn limited() -> (ThrottleFilter, SuppressedLines) {
    let kinds = Kinds::default();
    (ThrottleFilter(kinds.clone()), SuppressedLines(kinds))
}

impl<S> Filter<S> for ThrottleFilter {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO || metadata.target() == TARGET {
            return true;
        }
        let mut kinds = self.0.lock();
        let kind = kinds.entry(metadata.callsite()).or_insert_with(|| Kind {
            repeats: LogThrottle::default(),
            level: *metadata.level(),
            target: metadata.target(),
            logged: None,
        });
        let written = kind.repeats.admit(clock::monotonic_now());
        if !written && kind.logged.is_none() {
            let mut message = Message(None);
            event.record(&mut message);
            kind.logged = message.0;
        }
        written
    }
}

struct Message(Option<String>);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = Some(format!("{value:?}"));
        }
    }
}

impl SuppressedLines {
    /// Logs the suppressed records once per window, and a last time at `stop`.
    pub(crate) async fn report_suppressed(self, stop: CancellationToken) {
        let reported = stop.run_until_cancelled(async {
            loop {
                tokio::time::sleep(WINDOW).await;
                self.report_now();
            }
        });
        let _: Option<()> = reported.await;
        self.report_now();
    }

    fn report_now(&self) {
        let suppressed = |kind: &mut Kind| {
            let count = kind.repeats.take_suppressed()?;
            Some((kind.level, kind.target, kind.logged.clone().unwrap_or_default(), count))
        };
        let reported: Vec<_> = self.0.lock().values_mut().filter_map(suppressed).collect();
        for (level, of, message, suppressed) in reported {
            match level {
                Level::INFO => tracing::info!(target: TARGET, suppressed, of, "suppressed: {message}"),
                _ => tracing::warn!(target: TARGET, suppressed, of, "suppressed: {message}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use redrive_core::maintenance::log_throttle::MAX_LINES_PER_WINDOW;
    use tracing_subscriber::{Layer, Registry, layer::SubscriberExt};

    use super::*;

    /// Layer that stores the written messages.
    #[derive(Clone, Default)]
    struct Recorded(Arc<Mutex<Vec<String>>>);

    impl Layer<Registry> for Recorded {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, Registry>) {
            let mut message = Message(None);
            event.record(&mut message);
            self.0.lock().extend(message.0);
        }
    }

    #[test]
    fn repeated_records_are_throttled_and_counted_per_call_site() {
        let (recorded, (limited, suppressed)) = (Recorded::default(), limited());
        let subscriber = tracing_subscriber::registry().with(recorded.clone().with_filter(limited));
        tracing::subscriber::with_default(subscriber, || {
            for n in 0..1000 {
                tracing::warn!(n, "a flood");
            }
            tracing::warn!("another record");
            for _ in 0..100 {
                tracing::debug!("a detail");
            }
            suppressed.report_now();
            suppressed.report_now();
        });
        let lines = recorded.0.lock().clone();
        let count = |what: &str| lines.iter().filter(|line| *line == what).count();
        assert_eq!(count("a flood"), MAX_LINES_PER_WINDOW as usize);
        assert_eq!((count("another record"), count("a detail"), count("suppressed: a flood")), (1, 100, 1));
    }
}
