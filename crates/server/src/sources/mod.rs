//! Events that come from elsewhere than the API: queues that other services fill.
//!
//! A source publishes through `app`, by the same rules as the API, and lets go of a message only when its event is
//! stored for good, or when the message itself is safe in another queue.

mod amqp;
pub(crate) mod message;
mod metrics;
mod reject;

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use redrive_core::Invalid;
use redrive_engine::amqp::Broker;
use tokio_util::sync::CancellationToken;

use self::{amqp::Amqp, message::Reading, metrics::Figures, reject::Rejects};
use crate::{app::App, config::Config};

/// The sources of this node.
pub struct Sources(Vec<Amqp>);

impl Sources {
    /// What the settings say; nothing on a node that takes no events in.
    pub fn new(config: &Config, app: &Arc<App>) -> Result<Self, Invalid> {
        if config.sources.is_empty() {
            return Ok(Self(Vec::new()));
        }
        if !config.role.serves_api() {
            tracing::info!(
                sources = config.sources.len(),
                "this node only sends: its sources are left to nodes with --role api or all"
            );
            return Ok(Self(Vec::new()));
        }
        let figures = Figures::new(&mut app.metrics().lock());
        let mut sources = Vec::new();
        for source in &config.sources {
            let broker = Broker::new(source.address()?, &config.node);
            let rejects = Rejects::new(broker.clone(), source);
            let reading = Reading {
                tenant: source.tenant()?,
                event_type: source.event_type.as_deref().map(Into::into),
            };
            sources.push(Amqp::new(source, broker, reading, rejects, figures.of(&source.name), app.clone()));
        }
        Ok(Self(sources))
    }

    /// Takes messages in until it is told to stop, and then finishes what is under way, for so long at the most.
    pub async fn run(self, stop: &CancellationToken, patience: Duration) {
        join_all(self.0.iter().map(|source| source.run(stop, patience))).await;
    }
}
