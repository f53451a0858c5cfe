//! Throwaway RabbitMQ servers, from the programs that the distribution's package brings.
//!
//! One takes seconds to start, so most tests have a [`Vhost`] in the one that all tests share: [`RabbitMq::shared`].
//! A test that stops and kills its server starts one of its own: [`RabbitMq::start`]. Servers listen on free ports of
//! 127.0.0.1, with the user `guest`, and have Erlang's directory of nodes to themselves; no other server of this
//! machine is ever touched.

mod messages;
mod node;
mod vhost;

use std::{net::SocketAddr, path::PathBuf};

use lapin::BasicProperties;
use tempfile::TempDir;

pub use self::{messages::Message, vhost::Vhost};
use self::{messages::Session, node::Node};
use crate::{
    Proxy,
    service::{Keeper, blocking},
};

/// A server of one's own, to stop, kill, freeze and start again. Killed and removed when dropped, and soon after
/// the test's process is gone, however it went. Its messages are in the virtual host `/`.
pub struct RabbitMq {
    /// While it runs.
    keeper: Option<Keeper>,
    node: Node,
    /// The log, the data and certificates.
    folder: TempDir,
}

impl RabbitMq {
    /// A virtual host of one's own in the server that all test processes share, which is started when there is none
    /// and goes when nobody has used it for a few seconds.
    pub async fn shared() -> Vhost {
        Vhost::make().await
    }

    /// A fresh server of one's own.
    pub async fn start() -> Self {
        Self::make(false).await
    }

    /// A fresh server that speaks TLS too, with a certificate for 127.0.0.1 and localhost of an authority of its own.
    pub async fn start_with_tls() -> Self {
        Self::make(true).await
    }

    /// How to connect, over TLS if the server speaks it.
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// How to connect through a proxy that stands before [`address`](Self::address).
    pub fn url_through(&self, proxy: &Proxy) -> String {
        self.url_at(proxy.address())
    }

    /// Where it listens, over all restarts.
    pub fn address(&self) -> SocketAddr {
        self.node.address()
    }

    /// The certificate of the authority to trust; panics for a server without TLS.
    pub fn ca_path(&self) -> PathBuf {
        let tls = self.node.scheme() == "amqps";
        assert!(tls, "this server has no certificate; start it with RabbitMq::start_with_tls");
        self.folder.path().join("ca.pem")
    }

    /// Runs `rabbitmqctl`, which takes a second; gives what it prints. Panics when it fails.
    pub async fn ctl(&self, words: &[&str]) -> String {
        let (node, words) =
            (self.node.clone(), words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        blocking(move || node.ctl(&words.iter().map(String::as_str).collect::<Vec<_>>())).await
    }

    /// Evaluates an Erlang expression, which ends with a full stop, in the server: what `ctl` can do, in milliseconds.
    pub async fn evaluate(&self, expression: &str) -> String {
        evaluate(&self.node, expression).await
    }

    /// Makes a durable queue unless it is there.
    pub async fn declare(&self, queue: &str) {
        self.session().declare(queue).await;
    }

    /// Puts a message on a queue and waits until the server has it for sure. Panics when there is no such queue.
    pub async fn publish(&self, queue: &str, properties: BasicProperties, body: &[u8]) {
        self.publish_all(queue, vec![(properties, body.to_vec())]).await;
    }

    /// Puts many messages on a queue, in this order, and waits until the server has them all for sure.
    pub async fn publish_all(&self, queue: &str, messages: Vec<(BasicProperties, Vec<u8>)>) {
        self.session().publish_all(queue, messages).await;
    }

    /// Takes the next message off a queue, if there is one.
    pub async fn get(&self, queue: &str) -> Option<Message> {
        self.session().get(queue).await
    }

    /// How many messages of a queue wait for a consumer; those that one has are not among them.
    pub async fn depth(&self, queue: &str) -> u32 {
        self.session().depth(queue).await
    }

    /// How many messages a queue has, those included that a consumer has and has not acknowledged.
    pub async fn messages(&self, queue: &str) -> u32 {
        messages_in(&self.node, "/", queue).await
    }

    /// Stops it in good order, and waits until it is gone.
    pub async fn stop(&mut self) {
        self.end("TERM").await;
    }

    /// Ends it as a crash would, and waits until it is gone.
    pub async fn kill(&mut self) {
        self.end("KILL").await;
    }

    /// Starts it again on the same data and port, ready for connections; panics when it still runs.
    pub async fn start_again(&mut self) {
        let ended = self.keeper.as_mut().is_none_or(Keeper::has_ended);
        assert!(ended, "the server still runs; stop or kill it first");
        assert!(self.launch().await, "the server did not start again");
    }

    /// Kills it if it runs, and starts it again without its queues and messages.
    pub async fn restart_empty(&mut self) {
        self.kill().await;
        let node = self.node.clone();
        blocking(move || node.forget()).await;
        self.start_again().await;
    }

    /// Stops it in its tracks: its connections stay open, and nothing is answered until [`thaw`](Self::thaw).
    pub fn freeze(&mut self) {
        self.keeper.as_mut().expect("the server runs").freeze(true);
    }

    /// Lets it go on, with all that it was sent meanwhile.
    pub fn thaw(&mut self) {
        self.keeper.as_mut().expect("the server runs").freeze(false);
    }

    async fn make(tls: bool) -> Self {
        // Somebody else may take a port before the server does.
        for _ in 0..3 {
            let mut rabbitmq = blocking(move || {
                let folder = TempDir::with_prefix("redrive-test-rabbitmq-").expect("no temporary directory");
                Self { keeper: None, node: Node::make(folder.path(), tls), folder }
            })
            .await;
            if rabbitmq.launch().await {
                return rabbitmq;
            }
        }
        panic!("the server did not start");
    }

    /// Starts it and waits until it takes connections; false when it has ended instead.
    async fn launch(&mut self) -> bool {
        let keeper = self.keeper.insert(Keeper::start(&self.node.server()));
        let node = &self.node;
        let ready = || {
            let node = node.clone();
            blocking(move || node.is_ready())
        };
        keeper.is_ready(ready).await
    }

    async fn end(&mut self, signal: &str) {
        if let Some(keeper) = self.keeper.take() {
            keeper.end(signal).await;
        }
    }

    fn url_at(&self, address: SocketAddr) -> String {
        format!("{}://guest:guest@{address}/%2f", self.node.scheme())
    }

    fn session(&self) -> Session {
        Session { url: format!("amqp://guest:guest@{}/%2f", self.node.plain_address()) }
    }
}

async fn evaluate(node: &Node, expression: &str) -> String {
    let (node, asked) = (node.clone(), expression.to_owned());
    let answer = blocking(move || node.evaluate(&asked)).await;
    answer.unwrap_or_else(|error| panic!("{expression} failed: {error}"))
}

async fn messages_in(node: &Node, vhost: &str, queue: &str) -> u32 {
    let expression = format!(
        "{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"{vhost}\">>, queue, <<\"{queue}\">>)), \
         [{{messages, N}}] = rabbit_amqqueue:info(Q, [messages]), N."
    );
    let answer = evaluate(node, &expression).await;
    answer.parse().unwrap_or_else(|_| panic!("{answer} is no number of messages"))
}
