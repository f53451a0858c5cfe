//! Nodes that share a Redis of their own, in a time that the tests tell.

mod equivalence;
mod multi_node;

use std::{cell::Cell, future::Future, time::Duration};

use redrive_core::{
    TenantId,
    tenancy::DEFAULT_POOL,
    webhook::{Webhook, WebhookSpec, WebhookState},
};

use super::*;
use crate::{
    limit_shares::Shares,
    registry::Registry,
    settings::{RedisSettings, Settings},
};

const START: i64 = 1_700_000_000_000;
/// Tests say what time it is.
const TOLD: &str = "local NOW = tonumber(ARGV[4])";

/// A node that shares Redis with others, and the time it tells.
pub(in crate::coordination) struct Node {
    pub(in crate::coordination) shared: Shared,
    link: tokio::sync::Mutex<Link>,
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
    pub(in crate::coordination) async fn start(url: &str, namespace: &str, me: &str) -> Self {
        let shares = Arc::new(Shares::new(&[DEFAULT_POOL.into()], None));
        shares.set_whole(true);
        let local = Arc::new(Local::new(shares));
        local.follow();
        let mut link = Link::with_clock(&settings(url, namespace), me.to_owned(), TOLD).unwrap();
        link.connect(Time::from_millis(START)).await.unwrap();
        let shared = Shared::new(local);
        shared.begin(false);
        Self { shared, link: tokio::sync::Mutex::new(link), now: Cell::new(START) }
    }

    pub(in crate::coordination) fn at(&self) -> Time {
        Time::from_millis(self.now.get())
    }

    pub(in crate::coordination) fn after(&self, millis: i64) {
        self.now.set(self.now.get() + millis);
    }

    /// Carries what lies on the desk, as the engine does.
    pub(in crate::coordination) async fn carry(&self) {
        let taken = self.shared.take(1_000);
        let sent = self.link.lock().await.send(taken, &self.shared, self.at()).await;
        assert!(sent.is_ok(), "{:?}", sent.err().map(|(error, _)| error));
    }

    pub(in crate::coordination) async fn through<T>(
        &self,
        question: impl Future<Output = Result<T, Away>>,
    ) -> T {
        let (answer, ()) = tokio::join!(biased; question, self.carry());
        answer.unwrap()
    }

    pub(in crate::coordination) async fn admit(&self, hook: &Arc<Hook>, events: &[EventId]) -> Vec<Grant> {
        let asks = events.iter().map(|event| Asked {
            hook: hook.clone(),
            event: *event,
            patience: PATIENCE.as_millis() as u64,
            has_slot: true,
        });
        self.through(self.shared.admit(asks.collect())).await.into_iter().map(|(grant, _)| grant).collect()
    }
}

pub(in crate::coordination) const PATIENCE: Duration = Duration::from_millis(700);

pub(in crate::coordination) fn event(number: u8) -> EventId {
    EventId::new(Time::from_millis(START), &[number; 10])
}

pub(in crate::coordination) fn hook_of(spec: &WebhookSpec) -> Arc<Hook> {
    let registry = Registry::new(Settings::default(), Arc::new(Shares::new(&[DEFAULT_POOL.into()], None)));
    let (id, now) = (WebhookId::new(Time::from_millis(START), &[1; 10]), Time::from_millis(START));
    let (tenant, state) = (TenantId::default(), WebhookState::Active);
    let spec = WebhookSpec { url: "http://127.0.0.1/".into(), ..spec.clone() };
    registry.changed(
        Webhook { id, tenant, spec, secrets: Vec::new(), state, created_at: now, updated_at: now },
        1,
    );
    registry.hook(id).unwrap()
}
