//! Connections to the configured RabbitMQ server: URL, TLS, heartbeats and timeouts. Callers decide what is sent
//! over a connection, and reconnect with [`redrive_core::maintenance::backoff`] when it is lost.

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

/// Heartbeat interval in seconds; a peer that is silent for twice as long is considered gone.
const HEARTBEAT: u16 = 10;
/// Timeout of opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Parsed URL of a server; never displayed with its password.
#[derive(Clone, PartialEq, Eq)]
pub struct BrokerUrl {
    encrypted: bool,
    host: String,
    port: u16,
    user: String,
    password: Option<String>,
    vhost: String,
    /// File with certificates that are trusted in addition to the public authorities.
    ca_file: Option<String>,
}

impl BrokerUrl {
    /// Parses `amqp[s]://USER:PASSWORD@HOST:PORT/VHOST[?cacertfile=PATH]`. Error messages never quote the URL.
    pub fn read(text: &str) -> Result<Self, String> {
        let spelling =
            "percent-encode special characters, such as %40 for @ and %2F for /, and prefer a password file";
        let unreadable = |reason: &str| format!("cannot be parsed ({reason}); {spelling}");
        let encrypted = match text.split_once("://") {
            Some(("amqp", _)) => false,
            Some(("amqps", _)) => true,
            _ => return Err("must be amqp://USER@HOST:PORT/VHOST, or amqps://… with TLS".into()),
        };
        let url = Url::parse(text).map_err(|error| unreadable(&error.to_string()))?;
        if url.fragment().is_some() {
            return Err(unreadable("it contains a #"));
        }
        // With an unescaped / or ? in the password, its rest would be parsed as the virtual host.
        if url.path().contains('@') || url.query().is_some_and(|query| query.contains('@')) {
            return Err(unreadable("it contains an @ after its host"));
        }
        let host = decoded(url.host_str().unwrap_or_default()).trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err("has no host; use amqp://USER@HOST:PORT/VHOST".into());
        }
        let mut ca_file = None;
        for (name, value) in url.query_pairs() {
            match &*name {
                "cacertfile" => ca_file = Some(value.into_owned()),
                _ => return Err("has an unknown query parameter; use only cacertfile".into()),
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

    /// Returns the URL with this password.
    #[must_use]
    pub fn with_password(mut self, password: Option<String>) -> Self {
        self.password = password.or(self.password);
        self
    }
}

/// Percent-decodes a part of a URL.
fn decoded(part: &str) -> String {
    let pair = format!("part={}", part.replace('+', "%2B").replace('&', "%26"));
    form_urlencoded::parse(pair.as_bytes()).map(|(_, value)| value.into_owned()).collect()
}

impl fmt::Display for BrokerUrl {
    /// Formats host, user and virtual host without the password.
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

impl fmt::Debug for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Reason why there is no connection.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BrokerError {
    /// The certificates to trust cannot be read.
    #[error("cacertfile={0}: {1}")]
    Certificates(String, String),
    /// The connection was closed.
    #[error("the connection was closed")]
    Closed,
    /// The server did not respond within the timeout.
    #[error("no response within {0:?}")]
    Timeout(Duration),
    /// The server refused the connection or is unavailable.
    #[error("{}", describe_error(.0))]
    Failed(#[from] lapin::Error),
}

/// Formats an error on one line. It contains no secrets: the library never puts the password into an error.
pub fn describe_error(error: &lapin::Error) -> String {
    error.to_string().lines().collect::<Vec<_>>().join(" ")
}

/// A RabbitMQ server and the settings for connecting to it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Broker(Arc<BrokerSettings>);

#[derive(Debug)]
struct BrokerSettings {
    address: BrokerUrl,
    /// Name of the connections in the server's listings.
    name: String,
    connect_timeout: Duration,
}

impl Broker {
    /// Creates the settings for the server at this address; connections to it are named after this node.
    pub fn new(address: BrokerUrl, node: &str) -> Self {
        let name = format!("redrive {node}");
        Self(Arc::new(BrokerSettings { address, name, connect_timeout: CONNECT_TIMEOUT }))
    }

    /// Returns the address; its display form contains no secrets.
    pub fn address(&self) -> &BrokerUrl {
        &self.0.address
    }

    /// Opens a connection, whose name contains its purpose. It does not reconnect when it is lost.
    pub async fn connect(&self, purpose: &str) -> Result<Connection, BrokerError> {
        let settings = &self.0;
        let tls = settings.tls()?;
        let properties = ConnectionProperties::default()
            .with_connection_name(format!("{}: {purpose}", settings.name).into())
            .with_client_property("product".into(), "Redrive".into())
            .with_client_property("version".into(), env!("CARGO_PKG_VERSION").into());
        let socket: Arc<Mutex<Option<std::net::TcpStream>>> = Arc::default();
        let (kept, limit) = (socket.clone(), settings.connect_timeout);
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
        let connecting = Connection::connector(settings.uri(), broker_runtime(), connect, properties);
        match timeout(limit, connecting).await {
            Ok(connected) => Ok(connected?),
            Err(_) => {
                // Closes the socket, so that the library's tasks stop waiting for a reply.
                if let Some(socket) = socket.lock().take() {
                    let _ = socket.shutdown(std::net::Shutdown::Both);
                }
                Err(BrokerError::Timeout(limit))
            }
        }
    }
}

impl BrokerSettings {
    fn uri(&self) -> AMQPUri {
        let BrokerUrl { encrypted, host, port, user, password, vhost, .. } = self.address.clone();
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

    /// Returns the TLS settings if the URL requires TLS. Reads the file for each connection, since it may be replaced.
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
    fn url_is_parsed_and_displayed_without_password() {
        for (url, shown) in [
            ("amqp://mq", "amqp://guest@mq:5672/%2F"),
            ("amqp://mq/", "amqp://guest@mq:5672/%2F"),
            ("amqp://127.0.0.1:1234/%2f", "amqp://guest@127.0.0.1:1234/%2F"),
            ("amqp://[::1]:1234/hooks", "amqp://guest@[::1]:1234/hooks"),
            ("amqps://me:hunter2@mq/hooks", "amqps://me:[redacted]@mq:5671/hooks"),
            ("amqps://me@mq/a%2Fb?cacertfile=/ca.pem", "amqps://me@mq:5671/a%2Fb?cacertfile=%2Fca.pem"),
        ] {
            let address = BrokerUrl::read(url).unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(format!("{address:?}"), shown);
        }
        let address = BrokerUrl::read("amqp://m%40e:h%2Bun+ter@mq/").unwrap();
        assert_eq!((&*address.user, address.password.as_deref()), ("m@e", Some("h+un+ter")));
        let address = address.with_password(None).with_password(Some("other".into()));
        assert_eq!(address.password.as_deref(), Some("other"));
    }

    #[test]
    fn invalid_url_error_has_hint_and_no_password() {
        for (url, mentions) in [
            ("redis://me:hunter2@mq", "must be amqp://"),
            ("me:hunter2@mq", "must be amqp://"),
            ("amqp://me:hun/ter2@mq/x", "%2F for /"),
            ("amqp://me:1/hunter2@mq/x", "an @ after its host"),
            ("amqp://me:1#hunter2@mq/x", "contains a #"),
            ("amqp:///hunter2", "has no host"),
            ("amqp://me:hunter2@mq/x?heartbeat=hunter2", "use only cacertfile"),
        ] {
            let error = BrokerUrl::read(url).unwrap_err();
            assert!(error.contains(mentions), "{url}: {error}");
            assert!(!error.contains("ter2"), "{error}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn unresponsive_and_unavailable_servers_are_distinguished() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("amqp://me:hunter2@{}", listener.local_addr().unwrap());
        let mut broker = Broker::new(BrokerUrl::read(&url).unwrap(), "test");
        Arc::get_mut(&mut broker.0).unwrap().connect_timeout = Duration::from_millis(200);
        assert!(matches!(broker.connect("testing").await, Err(BrokerError::Timeout(_))));
        // The connection that timed out is closed, not only abandoned.
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
