//! Throwaway RabbitMQ servers, from the programs of the distribution's package.
//!
//! Starting one takes seconds, so most tests use a [`Vhost`] in the shared server: [`RabbitMq::shared`]. A test
//! that stops and kills its server starts its own: [`RabbitMq::start`]. Servers listen on free ports of 127.0.0.1,
//! with the user `guest`, and have their own Erlang port mapper (epmd); no other server of this machine is ever
//! touched.

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
    service::{ProcessGuard, blocking},
};

/// A private server to stop, kill, freeze and start again. Killed and removed when dropped, and shortly after the
/// test process ends for any reason. Its queues are in the virtual host `/`.
pub struct RabbitMq {
    /// `None` while the server is stopped.
    keeper: Option<ProcessGuard>,
    node: Node,
    /// The log, the data and certificates.
    folder: TempDir,
}

impl RabbitMq {
    /// Returns a private virtual host in the server that all test processes share. The server is started if it does
    /// not run, and stops after a few seconds without use.
    pub async fn shared() -> Vhost {
        Vhost::create().await
    }

    /// Starts a new private server.
    pub async fn start() -> Self {
        Self::start_server(false).await
    }

    /// Starts a new server that also supports TLS, with a certificate for 127.0.0.1 and localhost from its own
    /// certificate authority.
    pub async fn start_with_tls() -> Self {
        Self::start_server(true).await
    }

    /// Returns the URL, with TLS if the server supports it.
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// Returns the URL through a proxy in front of [`address`](Self::address).
    pub fn url_through(&self, proxy: &Proxy) -> String {
        self.url_at(proxy.address())
    }

    /// Returns the address, which does not change across restarts.
    pub fn address(&self) -> SocketAddr {
        self.node.address()
    }

    /// Returns the path of the CA certificate to trust; panics for a server without TLS.
    pub fn ca_path(&self) -> PathBuf {
        let tls = self.node.scheme() == "amqps";
        assert!(tls, "this server has no certificate; start it with RabbitMq::start_with_tls");
        self.folder.path().join("ca.pem")
    }

    /// Runs `rabbitmqctl`, which takes about a second, and returns its output. Panics if it fails.
    pub async fn ctl(&self, words: &[&str]) -> String {
        let (node, words) =
            (self.node.clone(), words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        blocking(move || node.ctl(&words.iter().map(String::as_str).collect::<Vec<_>>())).await
    }

    /// Evaluates an Erlang expression (ending with a full stop) in the server: does what `ctl` can do, in
    /// milliseconds.
    pub async fn evaluate(&self, expression: &str) -> String {
        evaluate(&self.node, expression).await
    }

    /// Declares a durable queue.
    pub async fn declare(&self, queue: &str) {
        self.session().declare(queue).await;
    }

    /// Publishes a message to a queue and waits for the confirmation. Panics if the queue does not exist.
    pub async fn publish(&self, queue: &str, properties: BasicProperties, body: &[u8]) {
        self.publish_all(queue, vec![(properties, body.to_vec())]).await;
    }

    /// Publishes many messages to a queue, in this order, and waits for all confirmations.
    pub async fn publish_all(&self, queue: &str, messages: Vec<(BasicProperties, Vec<u8>)>) {
        self.session().publish_all(queue, messages).await;
    }

    /// Removes the next message from a queue, if there is one.
    pub async fn get(&self, queue: &str) -> Option<Message> {
        self.session().get(queue).await
    }

    /// Returns the number of messages of a queue that are ready for a consumer, without unacknowledged ones.
    pub async fn depth(&self, queue: &str) -> u32 {
        self.session().depth(queue).await
    }

    /// Returns the number of messages of a queue, including unacknowledged ones.
    pub async fn messages(&self, queue: &str) -> u32 {
        messages_in(&self.node, "/", queue).await
    }

    /// Shuts the server down cleanly, and waits until it has ended.
    pub async fn stop(&mut self) {
        self.end("TERM").await;
    }

    /// Ends the server as a crash would, and waits until it has ended.
    pub async fn kill(&mut self) {
        self.end("KILL").await;
    }

    /// Starts it again on the same data and port, and waits until it accepts connections; panics if it still runs.
    pub async fn start_again(&mut self) {
        let ended = self.keeper.as_mut().is_none_or(ProcessGuard::has_ended);
        assert!(ended, "the server still runs; stop or kill it first");
        assert!(self.launch().await, "the server did not start again");
    }

    /// Kills it if it runs, and starts it again without its queues and messages.
    pub async fn restart_empty(&mut self) {
        self.kill().await;
        let node = self.node.clone();
        blocking(move || node.reset()).await;
        self.start_again().await;
    }

    /// Suspends the process: its connections stay open, and it sends no replies until [`thaw`](Self::thaw).
    pub fn freeze(&mut self) {
        self.keeper.as_mut().expect("the server runs").freeze(true);
    }

    /// Resumes the process, which then handles everything it was sent while frozen.
    pub fn thaw(&mut self) {
        self.keeper.as_mut().expect("the server runs").freeze(false);
    }

    async fn start_server(tls: bool) -> Self {
        // Another process may take a port before the server does.
        for _ in 0..3 {
            let mut rabbitmq = blocking(move || {
                let folder = TempDir::with_prefix("redrive-test-rabbitmq-").expect("no temporary directory");
                Self { keeper: None, node: Node::new(folder.path(), tls), folder }
            })
            .await;
            if rabbitmq.launch().await {
                return rabbitmq;
            }
        }
        panic!("the server did not start");
    }

    /// Starts it and waits until it accepts connections. Returns `false` if it has ended instead.
    async fn launch(&mut self) -> bool {
        let keeper = self.keeper.insert(ProcessGuard::start(&self.node.server()));
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
    let (node, request) = (node.clone(), expression.to_owned());
    let response = blocking(move || node.evaluate(&request)).await;
    response.unwrap_or_else(|error| panic!("{expression} failed: {error}"))
}

async fn messages_in(node: &Node, vhost: &str, queue: &str) -> u32 {
    let expression = format!(
        "{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"{vhost}\">>, queue, <<\"{queue}\">>)), \
         [{{messages, N}}] = rabbit_amqqueue:info(Q, [messages]), N."
    );
    let response = evaluate(node, &expression).await;
    response.parse().unwrap_or_else(|_| panic!("{response} is not a number of messages"))
}
