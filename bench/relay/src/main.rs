//! The reference relay: the minimum that a webhook sender can do with the same durability.
//!
//! A publish is acknowledged once its event and its delivery are committed; the delivery is then sent as a signed
//! POST to the one receiver, and its attempt and its outcome are committed too. There are no retries, no
//! subscriptions, no API keys and no recovery after a restart. Its throughput is therefore about what the machine
//! allows at this durability, and the benchmark states Redrive's results as a share of it.

#![allow(clippy::disallowed_methods)] // A benchmark reads clocks.

mod api;
mod sender;
mod writer;

use std::{error::Error, net::SocketAddr, sync::Arc};

use clap::Parser;
use hyper::Uri;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, mpsc},
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Maximum number of accepted, unfinished events; a publish beyond it waits before it is written.
const MAX_UNFINISHED_EVENTS: usize = 20_000;

/// A webhook sender without features, as a baseline for comparison.
#[derive(Parser)]
struct Options {
    /// Address where publishers post events.
    #[arg(long, default_value = "127.0.0.1:8090")]
    listen: SocketAddr,
    /// The SQLite file, created if missing, or the URL of a PostgreSQL database, `postgres://…`.
    #[arg(long, default_value = "reference-relay.db")]
    database: String,
    /// URL to which every event is delivered.
    #[arg(long, default_value = "http://127.0.0.1:9321/webhook/0")]
    sink: Uri,
    /// Threads for HTTP; SQLite uses one more. One is fastest on two cores shared with publishers and receiver.
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let runtime = if options.threads == 1 {
        tokio::runtime::Builder::new_current_thread().enable_all().build()?
    } else {
        tokio::runtime::Builder::new_multi_thread().worker_threads(options.threads).enable_all().build()?
    };
    runtime.block_on(run(options))
}

async fn run(options: Options) -> Result<(), Box<dyn Error>> {
    let capacity = Arc::new(Semaphore::new(MAX_UNFINISHED_EVENTS));
    let (committed_tx, committed) = mpsc::unbounded_channel();
    let writer = writer::spawn(&options.database, committed_tx, Arc::clone(&capacity)).await?;
    sender::spawn(&options.sink, committed, &writer);
    let listener = TcpListener::bind(options.listen).await?;
    api::serve(listener, writer, capacity).await
}
