//! A connection that comes back by itself, with one line in the log when it goes and one when it is there again.

use std::{
    future::Future,
    sync::atomic::{AtomicU8, Ordering::Relaxed},
    time::Duration,
};

use prometheus_client::metrics::gauge::Gauge;
use redrive_core::maintenance::backoff::Backoff;
use tokio_util::sync::CancellationToken;

use super::{Office, topology};
use crate::{
    amqp::BrokerError,
    clock::{self, ticks},
};

/// How long the broker may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// A connection that was there for so long has worked, and is tried again soon.
const STEADY: Duration = Duration::from_secs(2);
/// The connection by which tickets leave.
pub(super) const OUT: u8 = 1;
/// The connection by which they come in.
pub(super) const IN: u8 = 2;

/// Which connections a node needs, and which of them it has.
#[derive(Debug, Default)]
pub(super) struct Links {
    needed: AtomicU8,
    there: AtomicU8,
}

impl Links {
    pub(super) fn need(&self, link: u8) {
        self.needed.fetch_or(link, Relaxed);
    }

    pub(super) fn are_all_there(&self) -> bool {
        let needed = self.needed.load(Relaxed);
        self.there.load(Relaxed) & needed == needed
    }
}

impl Office {
    fn note(&self, link: u8, is_there: bool) {
        let links = &self.links;
        match is_there {
            true => links.there.fetch_or(link, Relaxed),
            false => links.there.fetch_and(!link, Relaxed),
        };
        self.figures.up.set(i64::from(links.are_all_there()));
    }

    fn failed_tries(&self, link: u8) -> &Gauge {
        &self.figures.failed_tries[usize::from(link == IN)]
    }
}

/// One of these connections, through all its losses.
#[derive(Debug)]
pub(super) struct Link {
    which: u8,
    backoff: Backoff,
    /// It is in the log that it is gone.
    is_told: bool,
    /// Since when it is there, by the ticks.
    up_since: Option<Duration>,
}

impl Link {
    pub(super) fn new(which: u8) -> Self {
        Self { which, backoff: Backoff::default(), is_told: false, up_since: None }
    }

    /// It is there and in use.
    pub(super) fn is_up(&mut self, office: &Office) {
        if std::mem::take(&mut self.is_told) {
            tracing::info!(broker = %office.settings.broker.address(), "{} again", name(self.which));
        }
        self.up_since = Some(ticks());
        office.failed_tries(self.which).set(0);
        office.note(self.which, true);
    }

    fn is_down(&mut self, office: &Office, error: &BrokerError) {
        office.note(self.which, false);
        match self.up_since.take() {
            Some(since) if ticks().saturating_sub(since) >= STEADY => self.backoff.reset(),
            // One that is lost as soon as it is there has not worked.
            Some(_) => {}
            None => drop(office.failed_tries(self.which).inc()),
        }
        if std::mem::replace(&mut self.is_told, true) {
            return;
        }
        let advice = match error {
            BrokerError::Failed(error) => topology::advice(error),
            _ => None,
        };
        tracing::warn!(
            broker = %office.settings.broker.address(), %error,
            "{} no longer; ready work goes through the store until it does{}{}",
            name(self.which), if advice.is_some() { ". What to do: " } else { "" }, advice.unwrap_or_default(),
        );
    }

    /// It has ended. True once it is time for the next one, false if there will be none.
    pub(super) async fn goes_on(
        &mut self,
        office: &Office,
        ended: Result<(), BrokerError>,
        stop: &CancellationToken,
    ) -> bool {
        match &ended {
            Ok(()) => {
                office.note(self.which, false);
                return false;
            }
            Err(error) => self.is_down(office, error),
        }
        tokio::select! {
            () = tokio::time::sleep(self.backoff.next(clock::roll())) => true,
            () = stop.cancelled() => false,
        }
    }
}

fn name(link: u8) -> &'static str {
    if link == OUT { "RabbitMQ takes tickets" } else { "RabbitMQ gives tickets" }
}

/// What the broker is asked when a connection begins, or has to be told of something new: it answers before long, or
/// is as good as gone.
pub(super) async fn in_time<T>(
    asked: impl Future<Output = Result<T, lapin::Error>>,
) -> Result<T, BrokerError> {
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(BrokerError::Silent(PATIENCE)),
    }
}
