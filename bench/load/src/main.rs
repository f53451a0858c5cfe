//! Plays both outsiders of a webhook sender: the publishers that hand it events and the receiver that they
//! should arrive at. It reports only what an outsider sees, as one line of JSON: how fast events were
//! acknowledged, how fast and how late they arrived, and whether any was lost or came twice.
//!
//! It shares the machine with what it measures, so it does as little as it can: requests are prepared once
//! and only their numbers are rewritten, and the few lines of HTTP that both sides need are in [`wire`].

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
use ledger::{Ledger, Manner};
use options::{Load, Options, Scenario, Sender};
use publisher::{Stop, Tally};
use report::Played;
use run_log::Books;
use serde_json::Value;
use stream::Stream;

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    options.load.check()?;
    let books = Arc::new(Books::new());
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

async fn run(sender: &Sender, load: &Load, books: &Books) -> Result<Value, Box<dyn Error>> {
    let manner = match load.fail_every {
        0 => Manner::Accept,
        every => Manner::RefuseFirst { every, answer: receiver::FAILED.into() },
    };
    let ledger = books.open(load.events, load.fanout, manner);
    if !load.skip_setup {
        setup::create_webhooks(sender, load).await?;
    }
    let mut tally = Tally::default();
    if load.events > 0 {
        settle().await;
        let stream = Stream { batch: load.batch, ..Stream::of("bench.event", load.rate) };
        tally = publisher::publish(sender, &stream, &ledger, &Stop::default()).await?;
        await_arrivals(&[&ledger], Duration::from_secs(sender.drain)).await;
    }
    report::single(sender, load, books, &Played { ledger, tally })
}

/// What the sender does after a change of its webhooks is not part of the load.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(300)).await;
}

/// Waits until everything owed has arrived, then a little longer for what should not come: duplicates.
async fn await_arrivals(ledgers: &[&Ledger], patience: Duration) {
    let arrived = async {
        for ledger in ledgers {
            ledger.await_all().await;
        }
    };
    // What is missing when patience ends is reported as such.
    tokio::time::timeout(patience, arrived).await.ok();
    tokio::time::sleep(Duration::from_millis(250)).await;
}
