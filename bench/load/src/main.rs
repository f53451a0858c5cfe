//! Plays both outsiders of a webhook sender: the publishers that hand it events and the receiver that they
//! should arrive at. It reports only what an outsider sees, as one line of JSON: how fast events were
//! acknowledged, how fast and how late they arrived, and whether any was lost or came twice.
//!
//! It shares the machine with what it measures, so it does as little as it can: requests are prepared once
//! and only their numbers are rewritten, and the few lines of HTTP that both sides need are in [`wire`].

#![allow(clippy::disallowed_methods)] // A benchmark reads clocks.

mod ledger;
mod pace;
mod publisher;
mod receiver;
mod report;
mod setup;
mod wire;

use std::{error::Error, net::SocketAddr, sync::Arc, time::Duration};

use clap::Parser;
use ledger::Ledger;

/// Publishes events to a webhook sender, receives them, and prints one line of JSON about it.
#[derive(Parser)]
struct Options {
    /// Address of the sender's API.
    #[arg(long, default_value = "127.0.0.1:8080")]
    api: SocketAddr,
    /// API key, sent as a bearer token.
    #[arg(long, env = "REDRIVE_ADMIN_KEY", default_value = "", hide_env_values = true)]
    key: String,
    /// Events to publish; 0 only creates the webhooks.
    #[arg(long, default_value_t = 20_000)]
    events: usize,
    /// Keep-alive connections that publish at the same time.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Events per second, evenly spaced; latencies then count from the moment an event should have been
    /// sent. 0 publishes as fast as acknowledgements come back.
    #[arg(long, default_value_t = 0)]
    rate: u32,
    /// Bytes of each event's `data`.
    #[arg(long, default_value_t = 512)]
    payload: usize,
    /// Events per call, by the batch endpoint where it is more than one.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// Webhooks to create, each of which gets every event.
    #[arg(long, default_value_t = 1)]
    fanout: usize,
    /// JSON object merged into the body that creates each webhook.
    #[arg(long, default_value = "{}")]
    webhook_extra: String,
    /// Create no webhook: the sender already knows where to deliver.
    #[arg(long)]
    skip_setup: bool,
    /// Port of the receiver on the loopback address.
    #[arg(long, default_value_t = 9321)]
    receiver_port: u16,
    /// Answer 500 to the first arrival of every n-th event, so that it must be retried; 0 for none.
    #[arg(long, default_value_t = 0)]
    fail_every: usize,
    /// Seconds to wait for the last arrivals once the last event is published.
    #[arg(long, default_value_t = 60)]
    drain: u64,
}

impl Options {
    fn check(&self) -> Result<(), String> {
        if !self.events.is_multiple_of(self.batch as usize) {
            return Err("--events must be a multiple of --batch".into());
        }
        if self.fanout == 0 {
            return Err("--fanout must be at least 1".into());
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    options.check()?;
    let ledger = Arc::new(Ledger::new(options.events, options.fanout, options.fail_every));
    receiver::start(options.receiver_port, Arc::clone(&ledger))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tally = runtime.block_on(run(&options, &ledger))?;
    report::print(&options, &ledger, &tally)?;
    Ok(())
}

async fn run(options: &Options, ledger: &Arc<Ledger>) -> Result<publisher::Tally, Box<dyn Error>> {
    if !options.skip_setup {
        setup::create_webhooks(options).await?;
    }
    if options.events == 0 {
        return Ok(publisher::Tally::default());
    }
    // What the sender does after a change of its webhooks is not part of the load.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let tally = publisher::publish_all(options, ledger).await?;
    await_arrivals(ledger, Duration::from_secs(options.drain)).await;
    Ok(tally)
}

/// Waits until everything owed has arrived, then a little longer for what should not come: duplicates.
async fn await_arrivals(ledger: &Ledger, patience: Duration) {
    let deadline = ledger.now() + u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
    let mut settled = 0;
    while ledger.now() < deadline {
        settled = ledger.settled_from(settled);
        if settled == ledger.events() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(250)).await;
}
