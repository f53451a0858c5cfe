//! The way to a RabbitMQ server that the operator configured: the URL, TLS, heartbeats, time limits. Whoever uses
//! one decides what goes over it, and comes back by [`redrive_core::backoff`] when it is lost.

mod transport;

use std::{fmt, io, os::fd::AsFd, sync::Arc, time::Duration};

use lapin::{
    AsyncTcpStream, Connection, ConnectionProperties,
    uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo},
};
use parking_lot::Mutex;
use tokio::{net::TcpStream, time::timeout};
use url::{Url, form_urlencoded};

use transport::{BrokerTls, broker_runtime};

/// How often each side shows that it is there; one that was silent for twice as long is gone.
const HEARTBEAT: u16 = 10;
/// How long the server may take to answer when a connection is made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A server's URL, taken apart: never shown with its password.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    encrypted: bool,
    host: String,
    port: u16,
    user: String,
    password: Option<String>,
    vhost: String,
    /// A file with the certificates that are trusted beside the usual ones.
    ca_file: Option<String>,
}

impl Address {
    /// Reads `amqp[s]://USER:PASSWORD@HOST:PORT/VHOST[?cacertfile=PATH]`. Errors repeat nothing of it.
    pub fn read(text: &str) -> Result<Self, String> {
        let spelling = "write what is special in it as % and two digits, such as %40 for @ and %2F for /, and the \
                        password best into a file";
        let unreadable = |reason: &str| format!("cannot be read ({reason}); {spelling}");
        let encrypted = match text.split_once("://") {
            Some(("amqp", _)) => false,
            Some(("amqps", _)) => true,
            _ => return Err("must be amqp://USER@HOST:PORT/VHOST, or amqps://… with TLS".into()),
        };
        let url = Url::parse(text).map_err(|error| unreadable(&error.to_string()))?;
        if url.fragment().is_some() {
            return Err(unreadable("there is a # in it"));
        }
        // With a / or a ? in the password, the rest of it would pass for the virtual host.
        if url.path().contains('@') || url.query().is_some_and(|query| query.contains('@')) {
            return Err(unreadable("there is an @ behind its host"));
        }
        let host = decoded(url.host_str().unwrap_or_default()).trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err("names no host; write amqp://USER@HOST:PORT/VHOST".into());
        }
        let mut ca_file = None;
        for (name, value) in url.query_pairs() {
            match &*name {
                "cacertfile" => ca_file = Some(value.into_owned()),
                _ => return Err("has a parameter after its ? that is not known; use only cacertfile".into()),
            }
        }
        let vhost = match url.path() {
            "" | "/" => "/".to_owned(),
            path => decoded(&path[1..]),
        };
        let user = if url.username().is_empty() { "guest".into() } else { decoded(url.username()) };
        let port = url.port().unwrap_or(if encrypted { 5671 } else { 5672 });
        let password = url.password().map(decoded);
        Ok(Self { encrypted, host, port, user, password, vhost, ca_file })
    }

    /// The same with this password.
    #[must_use]
    pub fn with_password(mut self, password: Option<String>) -> Self {
        self.password = password.or(self.password);
        self
    }
}

/// A part of a URL as it was before it was put into one.
fn decoded(part: &str) -> String {
    let pair = format!("part={}", part.replace('+', "%2B").replace('&', "%26"));
    form_urlencoded::parse(pair.as_bytes()).map(|(_, value)| value.into_owned()).collect()
}

impl fmt::Display for Address {
    /// Where it is and as whom, without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let encoded = |part: &str| -> String {
            form_urlencoded::byte_serialize(part.as_bytes()).collect::<String>().replace('+', "%20")
        };
        let scheme = if self.encrypted { "amqps" } else { "amqp" };
        let hidden = if self.password.is_some() { ":[redacted]" } else { "" };
        let (user, vhost) = (encoded(&self.user), encoded(&self.vhost));
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        write!(f, "{scheme}://{user}{hidden}@{host}:{}/{vhost}", self.port)?;
        match &self.ca_file {
            Some(path) => write!(f, "?cacertfile={}", encoded(path)),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Why there is no connection.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BrokerError {
    /// The certificates that are to be trusted cannot be read.
    #[error("cacertfile={0}: {1}")]
    Certificates(String, String),
    /// There was one.
    #[error("the connection was closed")]
    Closed,
    /// It did not answer in time.
    #[error("it did not answer within {0:?}")]
    Silent(Duration),
    /// It said no, or nobody is there.
    #[error("{}", said(.0))]
    Failed(#[from] lapin::Error),
}

/// What went wrong, in one line that repeats no secret: the library never has the password in an error.
pub fn said(error: &lapin::Error) -> String {
    error.to_string().lines().collect::<Vec<_>>().join(" ")
}

/// A RabbitMQ server, as this node reaches it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Broker(Arc<Way>);

#[derive(Debug)]
struct Way {
    address: Address,
    /// What the connections are called in the server's listings.
    name: String,
    connect_timeout: Duration,
}

impl Broker {
    /// The server at this address; connections to it are called by this node's name.
    pub fn new(address: Address, node: &str) -> Self {
        let name = format!("redrive {node}");
        Self(Arc::new(Way { address, name, connect_timeout: CONNECT_TIMEOUT }))
    }

    /// Where it is, without secrets.
    pub fn address(&self) -> &Address {
        &self.0.address
    }

    /// Makes a connection for this purpose, which its name tells. It does not come back by itself once it is lost.
    pub async fn connect(&self, purpose: &str) -> Result<Connection, BrokerError> {
        let way = &self.0;
        let tls = way.tls()?;
        let properties = ConnectionProperties::default()
            .with_connection_name(format!("{}: {purpose}", way.name).into())
            .with_client_property("product".into(), "Redrive".into())
            .with_client_property("version".into(), env!("CARGO_PKG_VERSION").into());
        let socket: Arc<Mutex<Option<std::net::TcpStream>>> = Arc::default();
        let (kept, limit) = (socket.clone(), way.connect_timeout);
        let connect = async move |uri: AMQPUri, _| {
            let connecting = async {
                let stream = TcpStream::connect((uri.authority.host.as_str(), uri.authority.port)).await?;
                stream.set_nodelay(true)?;
                *kept.lock() = Some(stream.as_fd().try_clone_to_owned()?.into());
                transport::open(stream, tls.as_ref()).await
            };
            let late = |_| Err(io::Error::from(io::ErrorKind::TimedOut));
            let stream = timeout(limit, connecting).await.unwrap_or_else(late);
            stream.map(AsyncTcpStream::Plain).map_err(lapin::Error::from)
        };
        let connecting = Connection::connector(way.uri(), broker_runtime(), connect, properties);
        match timeout(limit, connecting).await {
            Ok(connected) => Ok(connected?),
            Err(_) => {
                // Whatever still waits for an answer has none to wait for.
                if let Some(socket) = socket.lock().take() {
                    let _ = socket.shutdown(std::net::Shutdown::Both);
                }
                Err(BrokerError::Silent(limit))
            }
        }
    }
}

impl Way {
    fn uri(&self) -> AMQPUri {
        let Address { encrypted, host, port, user, password, vhost, .. } = self.address.clone();
        AMQPUri {
            scheme: if encrypted { AMQPScheme::AMQPS } else { AMQPScheme::AMQP },
            authority: AMQPAuthority {
                userinfo: AMQPUserInfo {
                    username: user,
                    password: password.unwrap_or_else(|| "guest".into()),
                },
                host,
                port,
            },
            vhost,
            query: AMQPQueryString { heartbeat: Some(HEARTBEAT), ..AMQPQueryString::default() },
        }
    }

    /// The settings of TLS, if the URL asks for it. The file is read for each connection: it may have been replaced.
    fn tls(&self) -> Result<Option<BrokerTls>, BrokerError> {
        if !self.address.encrypted {
            return Ok(None);
        }
        let path = self.address.ca_file.as_deref();
        let bad = |error: io::Error| {
            BrokerError::Certificates(path.unwrap_or_default().to_owned(), error.to_string())
        };
        let authorities = path.map(std::fs::read).transpose().map_err(bad)?;
        BrokerTls::new(&self.address.host, authorities.as_deref()).map(Some).map_err(bad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_server_a_user_and_a_virtual_host() {
        for (url, shown) in [
            ("amqp://mq", "amqp://guest@mq:5672/%2F"),
            ("amqp://mq/", "amqp://guest@mq:5672/%2F"),
            ("amqp://127.0.0.1:1234/%2f", "amqp://guest@127.0.0.1:1234/%2F"),
            ("amqp://[::1]:1234/hooks", "amqp://guest@[::1]:1234/hooks"),
            ("amqps://me:hunter2@mq/hooks", "amqps://me:[redacted]@mq:5671/hooks"),
            ("amqps://me@mq/a%2Fb?cacertfile=/ca.pem", "amqps://me@mq:5671/a%2Fb?cacertfile=%2Fca.pem"),
        ] {
            let address = Address::read(url).unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(format!("{address:?}"), shown);
        }
        let address = Address::read("amqp://m%40e:h%2Bun+ter@mq/").unwrap();
        assert_eq!((&*address.user, address.password.as_deref()), ("m@e", Some("h+un+ter")));
        let address = address.with_password(None).with_password(Some("other".into()));
        assert_eq!(address.password.as_deref(), Some("other"));
    }

    #[test]
    fn what_cannot_be_says_what_to_write_and_tells_no_password() {
        for (url, mentions) in [
            ("redis://me:hunter2@mq", "must be amqp://"),
            ("me:hunter2@mq", "must be amqp://"),
            ("amqp://me:hun/ter2@mq/x", "%2F for /"),
            ("amqp://me:1/hunter2@mq/x", "an @ behind its host"),
            ("amqp://me:1#hunter2@mq/x", "a # in it"),
            ("amqp:///hunter2", "names no host"),
            ("amqp://me:hunter2@mq/x?heartbeat=hunter2", "use only cacertfile"),
        ] {
            let error = Address::read(url).unwrap_err();
            assert!(error.contains(mentions), "{url}: {error}");
            assert!(!error.contains("ter2"), "{error}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn nobody_there_and_nobody_answering_are_told_apart_in_time() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("amqp://me:hunter2@{}", listener.local_addr().unwrap());
        let mut broker = Broker::new(Address::read(&url).unwrap(), "test");
        Arc::get_mut(&mut broker.0).unwrap().connect_timeout = Duration::from_millis(200);
        assert!(matches!(broker.connect("testing").await, Err(BrokerError::Silent(_))));
        // The connection that nobody answered is over, not only given up on.
        let (mut accepted, _) = listener.accept().unwrap();
        let mut sent = Vec::new();
        io::Read::read_to_end(&mut accepted, &mut sent).unwrap();
        assert!(sent.starts_with(b"AMQP"), "{sent:?}");
        drop(listener);
        let refused = broker.connect("testing").await.unwrap_err();
        assert!(matches!(refused, BrokerError::Failed(_)), "{refused}");
        assert!(!refused.to_string().contains("hunter2"), "{refused}");
    }
}
