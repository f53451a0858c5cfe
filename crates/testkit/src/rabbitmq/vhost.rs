//! A place for one test in the server that all tests share.

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
    service::{Server, Sharing, blocking, share},
};

struct Shared;

impl Sharing for Shared {
    const NAME: &'static str = "rabbitmq";

    fn prepare(folder: &Path, _alive: Stdio) -> Server {
        Node::make(folder, false).server()
    }

    fn is_ready(folder: &Path) -> bool {
        Node::in_folder(folder).is_some_and(|node| node.is_ready())
    }
}

/// The shared server, which stays for as long as this process lives. Blocks while it starts.
fn shared() -> Node {
    static SHARED: OnceLock<(Node, File)> = OnceLock::new();
    let find = || {
        let (folder, users) = share::<Shared>();
        (Node::in_folder(&folder).expect("a server that is ready has its ports"), users)
    };
    SHARED.get_or_init(find).0.clone()
}

/// A virtual host of one's own in the server that all tests share, deleted with everything in it when this is
/// dropped.
///
/// Queues, exchanges and messages are one's own. What belongs to the whole server is not: alarms, limits, and
/// `close_all_connections` without a virtual host.
pub struct Vhost {
    node: Node,
    name: String,
}

impl Vhost {
    pub(super) async fn make() -> Self {
        static COUNTER: AtomicUsize = AtomicUsize::new(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_micros();
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("t-{}-{number}-{now}", std::process::id());
        let node = blocking(shared).await;
        let all = "<<\".*\">>, <<\".*\">>, <<\".*\">>";
        let make = format!(
            "rabbit_vhost:add(<<\"{name}\">>, <<\"test\">>), rabbit_auth_backend_internal:set_permissions(\
             <<\"guest\">>, <<\"{name}\">>, {all}, <<\"test\">>)."
        );
        assert_eq!(evaluate(&node, &make).await, "ok");
        Self { node, name }
    }

    /// How to connect.
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// How to connect through a proxy that stands before [`address`](Self::address).
    pub fn url_through(&self, proxy: &Proxy) -> String {
        self.url_at(proxy.address())
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.node.address()
    }

    /// The name of the virtual host.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs a command of `rabbitmqctl` for this virtual host, which takes a second; gives what it prints. Panics when
    /// it fails.
    pub async fn ctl(&self, words: &[&str]) -> String {
        let (command, rest) = words.split_first().expect("a command has a name");
        let words = [&[*command, "-p", &self.name], rest].concat();
        let words: Vec<_> = words.into_iter().map(str::to_owned).collect();
        let node = self.node.clone();
        blocking(move || node.ctl(&words.iter().map(String::as_str).collect::<Vec<_>>())).await
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
        // One that stays does no harm, and a panic here would hide the first one.
        let gone = format!("rabbit_vhost:delete(<<\"{}\">>, <<\"test\">>).", self.name);
        self.node.evaluate(&gone).ok();
    }
}
