//! Load generator for a webhook sender: plays the publishers that send events and the receiver of the deliveries.
//! It reports only what is visible from outside, as one line of JSON: how fast events were acknowledged, how fast
//! and how late they arrived, and whether any was lost or delivered twice.
//!
//! It shares the machine with the sender under test, so it does as little work as possible: requests are prepared
//! once and only their numbers are rewritten, and the small part of HTTP that both sides need is in [`wire`].

#![allow(clippy::disallowed_methods)] // A benchmark reads clocks.

mod arrival_schedule;
mod ledger;
mod options;
mod publisher;
mod receiver;
mod report;
mod run_log;
mod scenario;
mod setup;
mod stream;
mod wire;

use std::{
    error::Error,
    io::{self, Write as _},
    sync::Arc,
    time::Duration,
};

use clap::Parser;
use ledger::{Ledger, ReceiverBehavior};
use options::{Load, Options, Scenario, Sender};
use publisher::{PublishStats, Stop};
use report::StreamResult;
use run_log::RunLog;
use serde_json::Value;
use stream::Stream;

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    options.load.check()?;
    let books = Arc::new(RunLog::new());
    receiver::start(options.sender.receiver_port, Arc::clone(&books))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let line = runtime.block_on(async {
        match &options.scenario {
            None => run(&options.sender, &options.load, &books).await,
            Some(Scenario::Neighbour(neighbour)) => neighbour.run(&options.sender, &books).await,
            Some(Scenario::Storm(storm)) => storm.run(&options.sender, &books).await,
        }
    })?;
    writeln!(io::stdout(), "{line}")?;
    Ok(())
}

async fn run(sender: &Sender, load: &Load, books: &RunLog) -> Result<Value, Box<dyn Error>> {
    let manner = match load.fail_every {
        0 => ReceiverBehavior::Accept,
        every => ReceiverBehavior::RefuseFirst { every, status: receiver::FAILED.into() },
    };
    let ledger = books.add_stream(load.events, load.fanout, manner);
    if !load.skip_setup {
        setup::create_webhooks(sender, load).await?;
    }
    let mut counts = PublishStats::default();
    if load.events > 0 {
        settle().await;
        let stream = Stream { batch: load.batch, ..Stream::new("bench.event", load.rate) };
        counts = publisher::publish(sender, &stream, &ledger, &Stop::default()).await?;
        await_arrivals(&[&ledger], Duration::from_secs(sender.drain)).await;
    }
    report::single(sender, load, books, &StreamResult { ledger, stats: counts })
}

/// Waits until the sender has applied a change of its webhooks, which is not part of the load.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(300)).await;
}

/// Waits until every acknowledged delivery has arrived, then a little longer to catch duplicates.
async fn await_arrivals(ledgers: &[&Ledger], timeout: Duration) {
    let arrived = async {
        for ledger in ledgers {
            ledger.await_all().await;
        }
    };
    // Deliveries that are missing at the timeout are reported as missing.
    tokio::time::timeout(timeout, arrived).await.ok();
    tokio::time::sleep(Duration::from_millis(250)).await;
}
