//! Nodes that share a Redis, with a time set by the tests.

mod equivalence;
mod multi_node;

use std::{cell::Cell, future::Future, time::Duration};

use redrive_core::{
    tenancy::DEFAULT_POOL,
    webhook::{WebhookSpec, failures::FailingRule},
};

use super::*;
use crate::{cluster::limit_shares::LimitShares, routing::resolve_for_test, settings::RedisSettings};

const START: i64 = 1_700_000_000_000;
/// Clock script that takes the time from the test.
const TEST_CLOCK: &str = "local NOW = tonumber(ARGV[4])";

/// A node that shares Redis with others, with its own time.
pub(in crate::coordinate) struct Node {
    pub(in crate::coordinate) shared: RedisCoordinator,
    link: tokio::sync::Mutex<RedisLink>,
    now: Cell<i64>,
}

fn settings(url: &str, namespace: &str) -> RedisSettings {
    RedisSettings {
        url: url.to_owned(),
        namespace: namespace.to_owned(),
        timeout: Duration::from_secs(10),
        ca: None,
    }
}

impl Node {
    pub(in crate::coordinate) async fn start(url: &str, namespace: &str, me: &str) -> Self {
        let shares = Arc::new(LimitShares::new(&[DEFAULT_POOL.into()], None));
        shares.set_undivided(true);
        let local = Arc::new(LocalCoordinator::new(shares, FailingRule::default()));
        local.delegate_to_redis();
        let mut link = RedisLink::with_clock(&settings(url, namespace), me.to_owned(), TEST_CLOCK).unwrap();
        link.connect(Time::from_millis(START)).await.unwrap();
        let shared = RedisCoordinator::new(local);
        shared.mark_up(false);
        Self { shared, link: tokio::sync::Mutex::new(link), now: Cell::new(START) }
    }

    pub(in crate::coordinate) fn at(&self) -> Time {
        Time::from_millis(self.now.get())
    }

    pub(in crate::coordinate) fn after(&self, millis: i64) {
        self.now.set(self.now.get() + millis);
    }

    /// Sends the pending operations, as the engine does.
    pub(in crate::coordinate) async fn exchange(&self) {
        let taken = self.shared.take(1_000);
        let sent = self.link.lock().await.send(taken, &self.shared, self.at()).await;
        assert!(sent.is_ok(), "{:?}", sent.err().map(|(error, _)| error));
    }

    pub(in crate::coordinate) async fn through<T>(
        &self,
        question: impl Future<Output = Result<T, RedisUnavailable>>,
    ) -> T {
        let (reply, ()) = tokio::join!(biased; question, self.exchange());
        reply.unwrap()
    }

    pub(in crate::coordinate) async fn admit(
        &self,
        webhook: &Arc<ResolvedWebhook>,
        events: &[EventId],
    ) -> Vec<AdmissionDecision> {
        let requests = events.iter().map(|event_id| RedisAdmissionRequest {
            webhook: webhook.clone(),
            event_id: *event_id,
            probe_timeout: WAIT_TIMEOUT.as_millis() as u64,
            has_slot: true,
        });
        self.through(self.shared.admit(requests.collect()))
            .await
            .into_iter()
            .map(|(decision, _)| decision)
            .collect()
    }
}

pub(in crate::coordinate) const WAIT_TIMEOUT: Duration = Duration::from_millis(700);

pub(in crate::coordinate) fn event(number: u8) -> EventId {
    EventId::new(Time::from_millis(START), &[number; 10])
}

pub(in crate::coordinate) fn webhook_for(spec: &WebhookSpec) -> Arc<ResolvedWebhook> {
    let shares = Arc::new(LimitShares::new(&[DEFAULT_POOL.into()], None));
    resolve_for_test(spec.clone(), Time::from_millis(START), shares)
}
