//! Reconnecting broker connection, with one log record when it is lost and one when it is up again.

use std::{
    future::Future,
    sync::atomic::{AtomicU8, Ordering::Relaxed},
    time::Duration,
};

use prometheus_client::metrics::gauge::Gauge;
use redrive_core::maintenance::backoff::OutageBackoff;
use tokio_util::sync::CancellationToken;

use super::{TicketBroker, topology};
use crate::{
    amqp::BrokerError,
    clock::{self, monotonic_now},
};

/// Timeout for replies of the broker.
const RPC_TIMEOUT: Duration = Duration::from_secs(5);
/// Uptime after which a connection counts as stable, and the backoff is reset.
const STABLE_AFTER: Duration = Duration::from_secs(2);
/// Connection for publishing tickets.
pub(super) const PUBLISH_LINK: u8 = 1;
/// Connection for consuming tickets.
pub(super) const CONSUME_LINK: u8 = 2;

/// Bit sets of the connections that a node needs and of those that are up.
#[derive(Debug, Default)]
pub(super) struct LinkStatus {
    needed: AtomicU8,
    there: AtomicU8,
}

impl LinkStatus {
    pub(super) fn require(&self, link: u8) {
        self.needed.fetch_or(link, Relaxed);
    }

    pub(super) fn is_complete(&self) -> bool {
        let needed = self.needed.load(Relaxed);
        self.there.load(Relaxed) & needed == needed
    }
}

impl TicketBroker {
    fn set_up(&self, link: u8, is_there: bool) {
        let links = &self.links;
        match is_there {
            true => links.there.fetch_or(link, Relaxed),
            false => links.there.fetch_and(!link, Relaxed),
        };
        self.metrics.up.set(i64::from(links.is_complete()));
    }

    fn consecutive_failures(&self, link: u8) -> &Gauge {
        &self.metrics.consecutive_failures[usize::from(link == CONSUME_LINK)]
    }
}

/// One of these connections, across reconnects.
#[derive(Debug)]
pub(super) struct BrokerLink {
    which: u8,
    backoff: OutageBackoff,
    /// The loss has been logged.
    logged_down: bool,
    /// Monotonic time since which it is up.
    up_since: Option<Duration>,
}

impl BrokerLink {
    pub(super) fn new(which: u8) -> Self {
        Self { which, backoff: OutageBackoff::default(), logged_down: false, up_since: None }
    }

    /// Records that the connection is not up yet.
    pub(super) fn reset(&self, broker: &TicketBroker) {
        broker.set_up(self.which, false);
    }

    /// Records that the connection is up and in use.
    pub(super) fn mark_up(&mut self, broker: &TicketBroker) {
        if std::mem::take(&mut self.logged_down) {
            tracing::info!(broker = %broker.settings.broker.address(), "{} works again", activity(self.which));
        }
        self.up_since = Some(monotonic_now());
        broker.consecutive_failures(self.which).set(0);
        broker.set_up(self.which, true);
    }

    fn mark_down(&mut self, broker: &TicketBroker, error: &BrokerError) {
        broker.set_up(self.which, false);
        match self.up_since.take() {
            Some(since) if monotonic_now().saturating_sub(since) >= STABLE_AFTER => self.backoff.reset(),
            // A connection that is lost immediately does not reset the backoff.
            Some(_) => {}
            None => drop(broker.consecutive_failures(self.which).inc()),
        }
        if std::mem::replace(&mut self.logged_down, true) {
            return;
        }
        let advice = match error {
            BrokerError::Failed(error) => topology::advice(error),
            _ => None,
        };
        tracing::warn!(
            broker = %broker.settings.broker.address(), %error,
            "{} failed; ready deliveries are claimed from the store until RabbitMQ is available again{}{}",
            activity(self.which), if advice.is_some() { ". What to do: " } else { "" }, advice.unwrap_or_default(),
        );
    }

    /// Waits after a connection has ended. Returns true when it is time to reconnect, false if the engine stops.
    pub(super) async fn wait_to_reconnect(
        &mut self,
        broker: &TicketBroker,
        ended: Result<(), BrokerError>,
        stop: &CancellationToken,
    ) -> bool {
        match &ended {
            Ok(()) => {
                broker.set_up(self.which, false);
                return false;
            }
            Err(error) => self.mark_down(broker, error),
        }
        tokio::select! {
            () = tokio::time::sleep(self.backoff.next_delay(clock::random_unit())) => true,
            () = stop.cancelled() => false,
        }
    }
}

fn activity(link: u8) -> &'static str {
    if link == PUBLISH_LINK { "publishing tickets to RabbitMQ" } else { "consuming tickets from RabbitMQ" }
}

/// Applies `RPC_TIMEOUT` to a call to the broker, such as opening a channel or declaring a queue. After the
/// timeout the connection is treated as lost.
pub(super) async fn with_timeout<T>(
    request: impl Future<Output = Result<T, lapin::Error>>,
) -> Result<T, BrokerError> {
    match tokio::time::timeout(RPC_TIMEOUT, request).await {
        Ok(response) => Ok(response?),
        Err(_) => Err(BrokerError::Timeout(RPC_TIMEOUT)),
    }
}
