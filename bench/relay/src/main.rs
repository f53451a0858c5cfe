//! The reference relay: the least a webhook sender can do and still keep its promises on disk.
//!
//! A publish is acknowledged once its event and its delivery are committed; the delivery is then sent as a
//! signed POST to the one receiver, and its attempt and its end are committed too. There is nothing else: no
//! retries, no subscriptions, no keys, no recovery after a restart. What it reaches is therefore about what
//! the machine allows at this durability, and the benchmark states Redrive's figures as a share of it.

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

/// Events accepted and not yet finished; a publish beyond that waits for room before it is written.
const ROOM: usize = 20_000;

/// A sender with no features, to compare a real one with.
#[derive(Parser)]
struct Options {
    /// Where publishers post events.
    #[arg(long, default_value = "127.0.0.1:8090")]
    listen: SocketAddr,
    /// The SQLite file, created where it is missing, or the URL of a PostgreSQL database, `postgres://…`.
    #[arg(long, default_value = "reference-relay.db")]
    database: String,
    /// Where every event is delivered.
    #[arg(long, default_value = "http://127.0.0.1:9321/hook/0")]
    sink: Uri,
    /// Threads for HTTP; SQLite has one more. One is fastest on two cores that publishers and receiver share.
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
    let room = Arc::new(Semaphore::new(ROOM));
    let (committed_tx, committed) = mpsc::unbounded_channel();
    let writer = writer::spawn(&options.database, committed_tx, Arc::clone(&room)).await?;
    sender::spawn(&options.sink, committed, &writer);
    let listener = TcpListener::bind(options.listen).await?;
    api::serve(listener, writer, room).await
}
