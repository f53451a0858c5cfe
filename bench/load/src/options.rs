//! Command-line options.

use std::net::SocketAddr;

use clap::{Args, Parser, Subcommand};

use crate::scenario::{neighbour::Neighbour, storm::Storm};

/// Publishes events to a webhook sender, receives them, and prints one line of JSON about it.
#[derive(Parser)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) sender: Sender,
    #[command(flatten)]
    pub(crate) load: Load,
    /// Without a scenario, the options above describe a single load.
    #[command(subcommand)]
    pub(crate) scenario: Option<Scenario>,
}

/// Loads of several streams, which measure one stream against another.
#[derive(Subcommand)]
pub(crate) enum Scenario {
    Neighbour(Neighbour),
    Storm(Storm),
}

/// Address of the sender and how to call it: the same for a load and for every scenario.
#[derive(Args)]
pub(crate) struct Sender {
    /// Address of the sender's API.
    #[arg(long, global = true, default_value = "127.0.0.1:8080")]
    pub(crate) api: SocketAddr,
    /// API key, sent as a bearer token.
    #[arg(long, global = true, env = "REDRIVE_ADMIN_KEY", default_value = "", hide_env_values = true)]
    pub(crate) key: String,
    /// Keep-alive connections that publish concurrently, per stream.
    #[arg(long, global = true, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connections: u32,
    /// Bytes of each event's `data`.
    #[arg(long, global = true, default_value_t = 512)]
    pub(crate) payload: usize,
    /// JSON object merged into the body that creates each webhook.
    #[arg(long, global = true, default_value = "{}")]
    pub(crate) webhook_extra: String,
    /// Port of the receiver on the loopback address.
    #[arg(long, global = true, default_value_t = 9321)]
    pub(crate) receiver_port: u16,
    /// Seconds to wait for the last arrivals once the last event is published.
    #[arg(long, global = true, default_value_t = 60)]
    pub(crate) drain: u64,
}

/// A single load.
#[derive(Args)]
pub(crate) struct Load {
    /// Events to publish; 0 only creates the webhooks.
    #[arg(long, default_value_t = 20_000)]
    pub(crate) events: usize,
    /// Events per second, evenly spaced; latencies then count from the scheduled time of an event.
    /// 0 publishes as fast as acknowledgements come back.
    #[arg(long, default_value_t = 0)]
    pub(crate) rate: u32,
    /// Events per call; more than one uses the batch endpoint.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) batch: u32,
    /// Webhooks to create; each receives every event.
    #[arg(long, default_value_t = 1)]
    pub(crate) fanout: usize,
    /// Create no webhooks: the sender already has them.
    #[arg(long)]
    pub(crate) skip_setup: bool,
    /// Respond 500 to the first arrival of every n-th event, so that it must be retried; 0 for none.
    #[arg(long, default_value_t = 0)]
    pub(crate) fail_every: usize,
}

impl Load {
    pub(crate) fn check(&self) -> Result<(), String> {
        if !self.events.is_multiple_of(self.batch as usize) {
            return Err("--events must be a multiple of --batch".into());
        }
        if self.fanout == 0 {
            return Err("--fanout must be at least 1".into());
        }
        Ok(())
    }
}
