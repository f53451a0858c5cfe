//! A connection that comes back by itself, with one line in the log when it goes and one when it is there again.

use std::{
    future::Future,
    sync::atomic::{AtomicU8, Ordering::Relaxed},
    time::Duration,
};

use redrive_core::backoff::Backoff;

use super::{Office, topology};
use crate::{Inner, amqp::BrokerError, clock};

/// How long the broker may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
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

    /// A connection is there and in use.
    pub(super) fn is_up(&self, link: u8, backoff: &mut Backoff) {
        if !backoff.is_fresh() {
            tracing::info!(broker = %self.settings.broker.address(), "{} again", name(link));
        }
        backoff.reset();
        self.note(link, true);
    }

    fn is_down(&self, link: u8, backoff: &Backoff, error: &BrokerError) {
        self.note(link, false);
        if !backoff.is_fresh() {
            return;
        }
        let advice = match error {
            BrokerError::Failed(error) => topology::advice(error),
            _ => None,
        };
        tracing::warn!(
            broker = %self.settings.broker.address(), %error,
            "{} no longer; ready work goes through the store until it does{}{}",
            name(link), if advice.is_some() { ". What to do: " } else { "" }, advice.unwrap_or_default(),
        );
    }
}

fn name(link: u8) -> &'static str {
    if link == OUT { "RabbitMQ takes tickets" } else { "RabbitMQ gives tickets" }
}

impl Inner {
    /// A connection has ended. True once it is time for the next one, false if there will be none.
    pub(super) async fn goes_on(
        &self,
        office: &Office,
        link: u8,
        backoff: &mut Backoff,
        ended: Result<(), BrokerError>,
    ) -> bool {
        match &ended {
            Ok(()) => {
                office.note(link, false);
                return false;
            }
            Err(error) => office.is_down(link, backoff, error),
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next(clock::roll())) => true,
            () = self.stop.cancelled() => false,
        }
    }
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
