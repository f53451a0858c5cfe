//! Lines that come too often: a few of a kind are written, the rest is counted, and the count is told. A kind is a
//! place in the code. Whoever asks for details (`debug`) gets all of them.

use std::{collections::HashMap, fmt, sync::Arc};

use parking_lot::Mutex;
use redrive_core::maintenance::log_throttle::{Repeats, WINDOW};
use redrive_engine::clock;
use tokio_util::sync::CancellationToken;
use tracing::{
    Event, Level, Metadata,
    callsite::Identifier,
    field::{Field, Visit},
};
use tracing_subscriber::layer::{Context, Filter};

/// What the lines are called that tell of others; they are never left out.
const TARGET: &str = "redrive::repeats";

/// Lines of one place in the code.
struct Kind {
    repeats: Repeats,
    level: Level,
    target: &'static str,
    /// What one of them said.
    said: Option<String>,
}

type Kinds = Arc<Mutex<HashMap<Identifier, Kind>>>;

/// Leaves lines out.
pub(super) struct Limited(Kinds);

/// What was left out.
pub(crate) struct LeftOut(Kinds);

/// A filter that leaves lines out, and what it has left out.
pub(super) fn limited() -> (Limited, LeftOut) {
    let kinds = Kinds::default();
    (Limited(kinds.clone()), LeftOut(kinds))
}

impl<S> Filter<S> for Limited {
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
            repeats: Repeats::default(),
            level: *metadata.level(),
            target: metadata.target(),
            said: None,
        });
        let written = kind.repeats.admit(clock::ticks());
        if !written && kind.said.is_none() {
            let mut message = Message(None);
            event.record(&mut message);
            kind.said = message.0;
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

impl LeftOut {
    /// Tells now and then what was left out, and once more at the end.
    pub(crate) async fn tell(self, stop: CancellationToken) {
        let told = stop.run_until_cancelled(async {
            loop {
                tokio::time::sleep(WINDOW).await;
                self.tell_now();
            }
        });
        let _: Option<()> = told.await;
        self.tell_now();
    }

    fn tell_now(&self) {
        let left_out = |kind: &mut Kind| {
            let count = kind.repeats.left_out()?;
            Some((kind.level, kind.target, kind.said.clone().unwrap_or_default(), count))
        };
        let told: Vec<_> = self.0.lock().values_mut().filter_map(left_out).collect();
        for (level, of, said, left_out) in told {
            match level {
                Level::INFO => tracing::info!(target: TARGET, left_out, of, "left out: {said}"),
                _ => tracing::warn!(target: TARGET, left_out, of, "left out: {said}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use redrive_core::maintenance::log_throttle::LINES;
    use tracing_subscriber::{Layer, Registry, layer::SubscriberExt};

    use super::*;

    /// Keeps what is written.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<String>>>);

    impl Layer<Registry> for Kept {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, Registry>) {
            let mut message = Message(None);
            event.record(&mut message);
            self.0.lock().extend(message.0);
        }
    }

    #[test]
    fn a_flood_gives_a_few_lines_and_their_count_and_hides_nothing_else() {
        let (kept, (limited, left_out)) = (Kept::default(), limited());
        let subscriber = tracing_subscriber::registry().with(kept.clone().with_filter(limited));
        tracing::subscriber::with_default(subscriber, || {
            for n in 0..1000 {
                tracing::warn!(n, "a flood");
            }
            tracing::warn!("something else");
            for _ in 0..100 {
                tracing::debug!("a detail");
            }
            left_out.tell_now();
            left_out.tell_now();
        });
        let lines = kept.0.lock().clone();
        let count = |what: &str| lines.iter().filter(|line| *line == what).count();
        assert_eq!(count("a flood"), LINES as usize);
        assert_eq!((count("something else"), count("a detail"), count("left out: a flood")), (1, 100, 1));
    }
}
