//! What only the store can tell, counted beside the scrapes: whoever scrapes gets what was counted last, and waits for
//! something newer only for a moment. One count runs at a time, however many scrape, and a long one is rare.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use redrive_engine::clock::ticks;
use redrive_store::{StoreError, Vitals};
use tokio::time::timeout;

use crate::app::App;

/// With more dead letters than this a tenant is told of.
pub(super) const CROWDED: usize = 1_000;
/// How long a scrape waits for a count that has just begun, if there is an older one.
const MOMENT: Duration = Duration::from_millis(10);
/// How long it waits for the first one.
const PATIENCE: Duration = Duration::from_secs(5);
/// What is older than this is not told any more.
const OLD: Duration = Duration::from_secs(60);
/// The store is not asked again within this many times as long as it took.
const REST: u32 = 20;

/// What the store has counted.
#[derive(Clone, Copy, Debug)]
pub(in crate::app) struct Counted {
    pub(in crate::app) vitals: Vitals,
    /// Due deliveries behind open circuits.
    pub(super) blocked: u64,
    /// Tenants with very many dead letters.
    pub(super) crowded: u64,
    /// When it was counted, by the ticks.
    at: Duration,
    /// How long that took.
    took: Duration,
}

impl Counted {
    fn age(&self) -> Duration {
        ticks().saturating_sub(self.at)
    }
}

/// What was counted last, and the turn to count.
#[derive(Default)]
pub(crate) struct Counting {
    last: Mutex<Option<Counted>>,
    turn: tokio::sync::Mutex<()>,
}

impl App {
    /// What the store tells: as of now if that is known in a moment, or else as of the last time.
    pub(in crate::app) async fn counted(self: &Arc<Self>) -> Option<Counted> {
        let last = *self.counting.last.lock();
        let fresh = |counted: &Counted| counted.age() < OLD;
        let patience = if last.as_ref().is_some_and(fresh) { MOMENT } else { PATIENCE };
        let app = self.clone();
        // It goes on when nobody waits any more: the next scrape has it.
        let _ = timeout(patience, tokio::spawn(async move { app.count().await })).await;
        self.counting.last.lock().filter(fresh)
    }

    async fn count(&self) {
        let Ok(_turn) = self.counting.turn.try_lock() else {
            // Somebody else is at it: what they count will do.
            drop(self.counting.turn.lock().await);
            return;
        };
        let last = *self.counting.last.lock();
        if last.is_some_and(|last| last.age() < last.took * REST) {
            return;
        }
        match timeout(OLD, self.ask_the_store()).await {
            Ok(Ok(counted)) => *self.counting.last.lock() = Some(counted),
            Ok(Err(error)) => tracing::debug!(%error, "the store could not be counted"),
            Err(_) => tracing::debug!("the store could not be counted in time"),
        }
    }

    async fn ask_the_store(&self) -> Result<Counted, StoreError> {
        let began = ticks();
        let vitals = self.store().vitals().await?;
        let blocked = self.engine.blocked_deliveries().await?;
        let crowded = self.store().crowded(CROWDED).await?;
        let at = ticks();
        Ok(Counted { vitals, blocked, crowded, at, took: at.saturating_sub(began) })
    }
}
