//! Scenarios: loads of several streams that measure one stream beside another.

pub(crate) mod neighbour;
pub(crate) mod storm;

use std::{error::Error, sync::Arc};

use crate::{
    ledger::{Ledger, ReceiverBehavior},
    options::Sender,
    publisher::{self, Stop},
    report::StreamResult,
    run_log::RunLog,
    stream::Stream,
};

/// The sender under test and the log of its events.
struct ScenarioContext<'a> {
    sender: &'a Sender,
    books: &'a RunLog,
}

impl ScenarioContext<'_> {
    /// Adds a ledger for events that go to one webhook each and are accepted there.
    fn accepting(&self, events: usize) -> Arc<Ledger> {
        self.books.add_stream(events, 1, ReceiverBehavior::Accept)
    }

    /// Publishes a stream to its end, or until it is stopped.
    async fn run_stream(
        &self,
        stream: Stream<'_>,
        ledger: Arc<Ledger>,
        stop: &Stop,
    ) -> Result<StreamResult, Box<dyn Error>> {
        let counts = publisher::publish(self.sender, &stream, &ledger, stop).await?;
        Ok(StreamResult { ledger, stats: counts })
    }
}
