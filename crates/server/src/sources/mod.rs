//! Sources: queues whose messages are published as events.
//!
//! A source publishes through `app`, under the same rules as the API. It acknowledges a message only after its
//! event is committed or the message is stored in the reject queue.

mod amqp;
pub(crate) mod message;
mod metrics;
mod reject;

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use redrive_core::FieldError;
use redrive_engine::amqp::Broker;
use tokio_util::sync::CancellationToken;

use self::{amqp::AmqpSource, message::MessageParser, metrics::SourceMetricsRegistry, reject::RejectQueue};
use crate::{app::App, config::Config};

/// The sources of this node.
pub struct Sources(Vec<AmqpSource>);

impl Sources {
    /// Creates the configured sources. There are none on a node that does not serve the API.
    pub fn new(config: &Config, app: &Arc<App>) -> Result<Self, FieldError> {
        if config.sources.is_empty() {
            return Ok(Self(Vec::new()));
        }
        if !config.role.serves_api() {
            tracing::info!(
                sources = config.sources.len(),
                "sources are not consumed on a worker; run a node with --role api or all"
            );
            return Ok(Self(Vec::new()));
        }
        let metrics = SourceMetricsRegistry::new(&mut app.metrics().lock());
        let mut sources = Vec::new();
        for source in &config.sources {
            let broker = Broker::new(source.address()?, &config.node);
            let rejects = RejectQueue::new(broker.clone(), source);
            let parser = MessageParser {
                tenant_id: source.tenant()?,
                event_type: source.event_type.as_deref().map(Into::into),
            };
            sources.push(AmqpSource::new(
                source,
                broker,
                parser,
                rejects,
                metrics.for_source(&source.name),
                app.clone(),
            ));
        }
        Ok(Self(sources))
    }

    /// Consumes messages until `stop`, then finishes running publishes, up to the timeout.
    pub async fn run(self, stop: &CancellationToken, timeout: Duration) {
        join_all(self.0.iter().map(|source| source.run(stop, timeout))).await;
    }
}
