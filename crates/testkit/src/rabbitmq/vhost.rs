//! A virtual host for one test in the RabbitMQ server that all tests share.

use std::{
    fs::File,
    net::SocketAddr,
    path::Path,
    process::Stdio,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use lapin::BasicProperties;

use super::{
    evaluate,
    messages::{Message, Session},
    messages_in,
    node::Node,
};
use crate::{
    Proxy,
    service::{Server, SharedService, acquire_shared, blocking},
};

struct Shared;

impl SharedService for Shared {
    const NAME: &'static str = "rabbitmq";

    fn prepare(folder: &Path, _alive: Stdio) -> Server {
        Node::new(folder, false).server()
    }

    fn is_ready(folder: &Path) -> bool {
        Node::in_folder(folder).is_some_and(|node| node.is_ready())
    }
}

/// Returns the shared server, which keeps running while this process lives. Blocks while it starts.
fn shared() -> Node {
    static SHARED: OnceLock<(Node, File)> = OnceLock::new();
    let find = || {
        let (folder, users) = acquire_shared::<Shared>();
        (Node::in_folder(&folder).expect("a server that is ready has its ports"), users)
    };
    SHARED.get_or_init(find).0.clone()
}

/// A private virtual host in the shared server. It is deleted, with everything in it, when this value is dropped.
///
/// Queues, exchanges and messages are private. Server-wide state is not: alarms, limits, and
/// `close_all_connections` without a virtual host.
pub struct Vhost {
    node: Node,
    name: String,
}

impl Vhost {
    pub(super) async fn create() -> Self {
        static COUNTER: AtomicUsize = AtomicUsize::new(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_micros();
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("t-{}-{number}-{now}", std::process::id());
        let node = blocking(shared).await;
        let all = "<<\".*\">>, <<\".*\">>, <<\".*\">>";
        let expression = format!(
            "rabbit_vhost:add(<<\"{name}\">>, <<\"test\">>), rabbit_auth_backend_internal:set_permissions(\
             <<\"guest\">>, <<\"{name}\">>, {all}, <<\"test\">>)."
        );
        assert_eq!(evaluate(&node, &expression).await, "ok");
        Self { node, name }
    }

    /// Returns the URL.
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// Returns the URL through a proxy in front of [`address`](Self::address).
    pub fn url_through(&self, proxy: &Proxy) -> String {
        self.url_at(proxy.address())
    }

    /// Returns the address of the server.
    pub fn address(&self) -> SocketAddr {
        self.node.address()
    }

    /// Returns the name of the virtual host.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs a `rabbitmqctl` command for this virtual host, which takes about a second, and returns its output. Panics
    /// if it fails.
    pub async fn ctl(&self, words: &[&str]) -> String {
        let (command, rest) = words.split_first().expect("a command has a name");
        let words = [&[*command, "-p", &self.name], rest].concat();
        let words: Vec<_> = words.into_iter().map(str::to_owned).collect();
        let node = self.node.clone();
        blocking(move || node.ctl(&words.iter().map(String::as_str).collect::<Vec<_>>())).await
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
        messages_in(&self.node, &self.name, queue).await
    }

    fn url_at(&self, address: SocketAddr) -> String {
        format!("amqp://guest:guest@{address}/{}", self.name)
    }

    fn session(&self) -> Session {
        Session { url: self.url() }
    }
}

impl Drop for Vhost {
    fn drop(&mut self) {
        // A virtual host that is left behind does no harm, and a panic here would hide the test's own panic.
        let gone = format!("rabbit_vhost:delete(<<\"{}\">>, <<\"test\">>).", self.name);
        self.node.evaluate(&gone).ok();
    }
}
