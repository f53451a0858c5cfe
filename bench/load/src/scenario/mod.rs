//! Loads of several streams, each of which measures one stream beside another.

pub(crate) mod neighbour;
pub(crate) mod storm;

use std::{error::Error, sync::Arc};

use crate::{
    ledger::{Ledger, Manner},
    options::Sender,
    publisher::{self, Stop},
    report::Played,
    run_log::Books,
    stream::Stream,
};

/// The sender under test and what is known of its events.
struct Stage<'a> {
    sender: &'a Sender,
    books: &'a Books,
}

impl Stage<'_> {
    /// Opens the ledger of events that go to one webhook each and are accepted there.
    fn accepting(&self, events: usize) -> Arc<Ledger> {
        self.books.open(events, 1, Manner::Accept)
    }

    /// Publishes a stream to its end, or until it is stopped.
    async fn play(
        &self,
        stream: Stream<'_>,
        ledger: Arc<Ledger>,
        stop: &Stop,
    ) -> Result<Played, Box<dyn Error>> {
        let tally = publisher::publish(self.sender, &stream, &ledger, stop).await?;
        Ok(Played { ledger, tally })
    }
}
