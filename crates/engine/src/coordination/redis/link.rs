//! The way to Redis: one connection that carries batches, one at a time, and one that hears news.

use std::time::Duration;

use futures_util::StreamExt;
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, RedisError, Script, TlsCertificates,
    aio::{MultiplexedConnection, PubSubStream},
};
use redrive_core::{Time, WebhookId};

use super::{Heard, Shared, Taken, wire::Answered};
use crate::settings::RedisSettings;

/// The rules, in the time of this text's first lines.
const RULES: &str = include_str!("gate.lua");
const CLOCK: &str = include_str!("clock.lua");

/// See the module.
pub(crate) struct Link {
    client: Client,
    script: Script,
    namespace: String,
    /// Who this is, by a name that nobody has used before.
    me: String,
    /// Batches have numbers, so that one that comes twice is known.
    number: u64,
    timeout: Duration,
    connection: Option<MultiplexedConnection>,
}

/// What another node tells everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Something is due.
    Work,
    /// Something has changed.
    Change,
    /// A circuit has moved.
    Circuit(WebhookId),
    /// So many nodes want slots of a webhook, and one of them has none.
    Slots(WebhookId, u32),
}

impl Link {
    /// Connects to nothing yet. An error tells what is wrong with the settings.
    pub(crate) fn new(settings: &RedisSettings, me: String) -> Result<Self, RedisError> {
        Self::with_clock(settings, me, CLOCK)
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
            script: Script::new(&format!("{clock}\n{RULES}")),
            namespace: format!("{}:", settings.namespace),
            me,
            number: 0,
            timeout: settings.timeout,
            connection: None,
        })
    }

    /// The server, without what is secret.
    pub(crate) fn server(&self) -> String {
        self.client.get_connection_info().addr().to_string()
    }

    /// Connects, and sees whether the script can be run: a replica for instance would not let it write.
    pub(crate) async fn connect(&mut self, now: Time) -> Result<(), RedisError> {
        self.reconnect().await?;
        self.number += 1;
        self.carry("{}", now).await.map(drop)
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

    /// Has a batch carried out, and hands its answer round. If the connection breaks meanwhile it is sent once more:
    /// nothing happens twice. Gives what was learnt beside, and when Redis began to remember; or the batch, unanswered.
    pub(crate) async fn send(
        &mut self,
        taken: Taken,
        shared: &Shared,
        now: Time,
    ) -> Result<(Vec<Heard>, Time), (RedisError, Taken)> {
        self.number += 1;
        let written = taken.written();
        let answer = match self.carry(&written, now).await {
            Err(_) => self.carry_again(&written, now).await,
            answer => answer,
        };
        match answer {
            Ok(answer) => Ok(taken.apply(&answer, &shared.slots, &shared.local)),
            // Whoever waits learns of it when everything is ready for that.
            Err(error) => Err((error, taken)),
        }
    }

    async fn carry_again(&mut self, written: &str, now: Time) -> Result<Answered, RedisError> {
        self.reconnect().await?;
        self.carry(written, now).await
    }

    async fn carry(&mut self, written: &str, now: Time) -> Result<Answered, RedisError> {
        let Some(connection) = &mut self.connection else {
            return Err((ErrorKind::Io, "there is no connection").into());
        };
        let mut call = self.script.key(&self.namespace);
        call.arg(&self.me).arg(self.number).arg(written).arg(now.millis());
        let answer: String = call.invoke_async(connection).await?;
        serde_json::from_str(&answer).map_err(|error| {
            RedisError::from((
                ErrorKind::UnexpectedReturnType,
                "not an answer of the script",
                error.to_string(),
            ))
        })
    }

    /// What hears the other nodes.
    pub(crate) fn ear(&self) -> Ear {
        Ear {
            client: self.client.clone(),
            channel: format!("{}news", self.namespace),
            me: self.me.clone(),
            timeout: self.timeout,
        }
    }
}

/// A connection of its own for news.
pub(crate) struct Ear {
    client: Client,
    channel: String,
    me: String,
    timeout: Duration,
}

impl Ear {
    /// What the other nodes tell from now on.
    pub(crate) async fn listen(&self) -> Result<Hearing, RedisError> {
        let subscribe = async {
            let mut pubsub = self.client.get_async_pubsub().await?;
            pubsub.subscribe(&self.channel).await?;
            Ok(Hearing { stream: pubsub.into_on_message(), me: self.me.clone() })
        };
        match tokio::time::timeout(self.timeout, subscribe).await {
            Ok(hearing) => hearing,
            Err(_) => Err((ErrorKind::Io, "there was no answer in time").into()),
        }
    }
}

/// News as they come in.
pub(crate) struct Hearing {
    stream: PubSubStream,
    me: String,
}

impl Hearing {
    /// The next one of another node; none when the connection is gone.
    pub(crate) async fn next(&mut self) -> Option<News> {
        loop {
            let message = self.stream.next().await?;
            let Ok(text) = message.get_payload::<String>() else { continue };
            if let Some(news) = read(&text, &self.me) {
                return Some(news);
            }
        }
    }
}

/// News of others than `me`, if it is any.
fn read(text: &str, me: &str) -> Option<News> {
    let mut words = text.split(' ');
    if words.next()? == me {
        return None;
    }
    match words.next()? {
        "work" => Some(News::Work),
        "change" => Some(News::Change),
        "circuit" => Some(News::Circuit(words.next()?.parse().ok()?)),
        "slots" => Some(News::Slots(words.next()?.parse().ok()?, words.next()?.parse().ok()?)),
        _ => None,
    }
}

/// What to do about an error, where that is known.
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
        "give the user the keys and channels that begin with redis.namespace; see docs/operations/redis.md"
    } else if has("READONLY") || has("ReadOnly") {
        "let redis.url lead to the primary, not to a replica"
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
    fn news_of_others_are_read_and_nonsense_is_not() {
        let id = WebhookId::new(Time::default(), &[1; 10]);
        assert_eq!(read("7 work", "8"), Some(News::Work));
        assert_eq!(read("7 work", "7"), None, "that was me");
        assert_eq!(read(&format!("7 circuit {id}"), "8"), Some(News::Circuit(id)));
        assert_eq!(read(&format!("7 slots {id} 3"), "8"), Some(News::Slots(id, 3)));
        for nonsense in ["", "7", "7 else", "7 circuit", "7 circuit x", &format!("7 slots {id}")] {
            assert_eq!(read(nonsense, "8"), None, "{nonsense}");
        }
    }
}
