//! Connections to Redis: one that sends batches, one at a time, and one that subscribes to messages of other
//! nodes.

use std::time::Duration;

use futures_util::StreamExt;
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, RedisError, Script, TlsCertificates,
    aio::{MultiplexedConnection, PubSubStream},
};
use redrive_core::{Time, WebhookId};

use super::{CircuitUpdate, PreparedBatch, RedisCoordinator, wire::BatchReply};
use crate::{
    clock::{self, Clock},
    settings::RedisSettings,
};

/// The gate script, and the lines before it that set its time.
const GATE_SCRIPT: &str = include_str!("gate.lua");
const CLOCK_SCRIPT: &str = include_str!("clock.lua");

/// Connection to Redis. See the module.
pub(crate) struct RedisLink {
    client: Client,
    script: Script,
    namespace: String,
    /// Id of this node, never used before.
    node_id: String,
    /// Number of the last batch, by which the script recognises a batch that is sent twice.
    number: u64,
    timeout: Duration,
    connection: Option<MultiplexedConnection>,
}

/// Checks the settings of Redis without connecting. Returns the reason of a failure, which contains no secret.
pub fn check_redis_settings(settings: &RedisSettings) -> Result<(), String> {
    RedisLink::new(settings, clock::secret_hex()).map(drop).map_err(|error| error.to_string())
}

/// Connects to Redis once and runs the gate script, to check the settings. Returns the reason of a failure, which contains
/// no secret.
pub async fn check_redis(settings: &RedisSettings) -> Result<(), String> {
    let mut link = RedisLink::new(settings, clock::secret_hex()).map_err(|error| error.to_string())?;
    link.connect(Clock::system().now()).await.map_err(|error| format!("{}: {error}", link.server()))
}

/// Message of another node to all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerMessage {
    /// Deliveries are due.
    Work,
    /// The change feed has new entries.
    Change,
    /// A circuit made a transition.
    Circuit(WebhookId),
    /// This number of nodes want slots of a webhook, and one of them has none.
    Slots(WebhookId, u32),
}

impl RedisLink {
    /// Creates a link without connecting. Fails if the settings are invalid.
    pub(crate) fn new(settings: &RedisSettings, me: String) -> Result<Self, RedisError> {
        Self::with_clock(settings, me, CLOCK_SCRIPT)
    }

    pub(super) fn with_clock(settings: &RedisSettings, me: String, clock: &str) -> Result<Self, RedisError> {
        let client = match &settings.ca {
            Some(ca) => Client::build_with_tls(
                settings.url.as_str(),
                TlsCertificates { client_tls: None, root_cert: Some(ca.clone()) },
            )?,
            None => Client::open(settings.url.as_str())?,
        };
        Ok(Self {
            client,
            script: Script::new(&format!("{clock}\n{GATE_SCRIPT}")),
            namespace: format!("{}:", settings.namespace),
            node_id: me,
            number: 0,
            timeout: settings.timeout,
            connection: None,
        })
    }

    /// Returns the address of the server, without secrets.
    pub(crate) fn server(&self) -> String {
        self.client.get_connection_info().addr().to_string()
    }

    /// Connects, and checks that the script can run: a replica, for instance, would not let it write.
    pub(crate) async fn connect(&mut self, now: Time) -> Result<(), RedisError> {
        self.reconnect().await?;
        self.number += 1;
        self.send_batch("{}", now).await.map(drop)
    }

    async fn reconnect(&mut self) -> Result<(), RedisError> {
        self.connection = None;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(Some(self.timeout));
        let mut connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        self.script.load_async(&mut connection).await?;
        self.connection = Some(connection);
        Ok(())
    }

    /// Sends a batch and dispatches its reply. If the connection breaks, the batch is sent once more; the script
    /// applies it only once. Returns the circuit updates and the start time of the state in Redis, or the batch
    /// without a reply.
    pub(crate) async fn send(
        &mut self,
        taken: PreparedBatch,
        shared: &RedisCoordinator,
        now: Time,
    ) -> Result<(Vec<CircuitUpdate>, Time), (RedisError, PreparedBatch)> {
        self.number += 1;
        let written = taken.written();
        let reply = match self.send_batch(&written, now).await {
            Err(_) => self.resend_batch(&written, now).await,
            reply => reply,
        };
        match reply {
            Ok(reply) => Ok(taken.dispatch_replies(&reply, &shared.slots, &shared.local)),
            // The caller fails the waiters later, after it has switched to fallback.
            Err(error) => Err((error, taken)),
        }
    }

    async fn resend_batch(&mut self, written: &str, now: Time) -> Result<BatchReply, RedisError> {
        self.reconnect().await?;
        self.send_batch(written, now).await
    }

    async fn send_batch(&mut self, written: &str, now: Time) -> Result<BatchReply, RedisError> {
        let Some(connection) = &mut self.connection else {
            return Err((ErrorKind::Io, "not connected").into());
        };
        let mut call = self.script.key(&self.namespace);
        call.arg(&self.node_id).arg(self.number).arg(written).arg(now.millis());
        let reply: String = call.invoke_async(connection).await?;
        serde_json::from_str(&reply).map_err(|error| {
            RedisError::from((
                ErrorKind::UnexpectedReturnType,
                "unexpected reply of the script",
                error.to_string(),
            ))
        })
    }

    /// Returns the subscriber for messages of other nodes.
    pub(crate) fn subscriber(&self) -> PeerSubscriber {
        PeerSubscriber {
            client: self.client.clone(),
            channel: format!("{}peer_messages", self.namespace),
            node_id: self.node_id.clone(),
            timeout: self.timeout,
        }
    }
}

/// Separate connection for messages of other nodes.
pub(crate) struct PeerSubscriber {
    client: Client,
    channel: String,
    node_id: String,
    timeout: Duration,
}

impl PeerSubscriber {
    /// Subscribes to the messages of other nodes.
    pub(crate) async fn listen(&self) -> Result<PeerStream, RedisError> {
        let subscribe = async {
            let mut pubsub = self.client.get_async_pubsub().await?;
            pubsub.subscribe(&self.channel).await?;
            Ok(PeerStream { stream: pubsub.into_on_message(), node_id: self.node_id.clone() })
        };
        match tokio::time::timeout(self.timeout, subscribe).await {
            Ok(hearing) => hearing,
            Err(_) => Err((ErrorKind::Io, "no reply in time").into()),
        }
    }
}

/// Stream of incoming messages.
pub(crate) struct PeerStream {
    stream: PubSubStream,
    node_id: String,
}

impl PeerStream {
    /// Returns the next message of another node, or `None` if the connection is lost.
    pub(crate) async fn next(&mut self) -> Option<PeerMessage> {
        loop {
            let message = self.stream.next().await?;
            let Ok(text) = message.get_payload::<String>() else { continue };
            if let Some(signal) = read(&text, &self.node_id) {
                return Some(signal);
            }
        }
    }
}

/// Parses a message of another node. Returns `None` for this node's own messages and invalid ones.
fn read(text: &str, me: &str) -> Option<PeerMessage> {
    let mut words = text.split(' ');
    if words.next()? == me {
        return None;
    }
    match words.next()? {
        "work" => Some(PeerMessage::Work),
        "change" => Some(PeerMessage::Change),
        "circuit" => Some(PeerMessage::Circuit(words.next()?.parse().ok()?)),
        "slots" => Some(PeerMessage::Slots(words.next()?.parse().ok()?, words.next()?.parse().ok()?)),
        _ => None,
    }
}

/// Returns a hint for the operator on how to fix an error, or an empty text.
pub(crate) fn advice(error: &RedisError) -> &'static str {
    let text = error.to_string();
    let has = |word: &str| text.contains(word);
    if error.kind() == ErrorKind::AuthenticationFailed
        || has("NOAUTH")
        || has("WRONGPASS")
        || has("unauthenticated")
    {
        "check the user in redis.url and its redis.password or redis.password_file"
    } else if has("NoPerm") || has("NOPERM") {
        "grant the user the keys and channels that start with redis.namespace; see docs/operations/redis.md"
    } else if has("READONLY") || has("ReadOnly") {
        "set redis.url to the primary, not to a replica"
    } else if has("OOM") || has("maxmemory") {
        "raise the server's maxmemory"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_messages_are_parsed_and_invalid_ones_ignored() {
        let id = WebhookId::new(Time::default(), &[1; 10]);
        assert_eq!(read("7 work", "8"), Some(PeerMessage::Work));
        assert_eq!(read("7 work", "7"), None, "that was me");
        assert_eq!(read(&format!("7 circuit {id}"), "8"), Some(PeerMessage::Circuit(id)));
        assert_eq!(read(&format!("7 slots {id} 3"), "8"), Some(PeerMessage::Slots(id, 3)));
        for nonsense in ["", "7", "7 else", "7 circuit", "7 circuit x", &format!("7 slots {id}")] {
            assert_eq!(read(nonsense, "8"), None, "{nonsense}");
        }
    }
}
