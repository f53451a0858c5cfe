//! Connections to a RabbitMQ server for the AMQP library: plain TCP, or TLS with the same TLS library and roots as
//! the rest of Redrive. The AMQP library's own TLS would add a second TLS client and a key store parser.

use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use async_rs::{Runtime, Tokio, traits::Reactor, util::RuntimeParts};
use futures_util::{
    Stream,
    io::{AsyncRead, AsyncWrite},
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};

/// A byte stream to the server: a socket, or TLS over one.
pub(super) trait Transport: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}

impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Transport for T {}

/// A transport with the I/O traits that the AMQP library uses.
pub(super) type BrokerStream = Compat<Box<dyn Transport>>;

fn stream(transport: impl Transport + 'static) -> BrokerStream {
    let transport: Box<dyn Transport> = Box::new(transport);
    transport.compat()
}

/// Tokio's reactor, with streams that may be encrypted.
#[derive(Clone, Debug)]
pub(super) struct BrokerReactor(Tokio);

impl Reactor for BrokerReactor {
    type TcpStream = BrokerStream;
    type Sleep = <Tokio as Reactor>::Sleep;

    /// Unsupported: the AMQP library registers no sockets, it uses the streams that [`open`] creates.
    fn register<H: io::Read + io::Write + Send + 'static>(
        &self,
        _: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        Err::<BrokerStream, _>(io::ErrorKind::Unsupported.into())
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }

    fn interval(&self, duration: Duration) -> impl Stream<Item = std::time::Instant> + Send + 'static {
        self.0.interval(duration)
    }

    #[allow(clippy::manual_async_fn, reason = "the future must not borrow the reactor")]
    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        async move { Ok(stream(TcpStream::connect(address).await?)) }
    }
}

/// Returns the runtime for connections to the server: the current one.
pub(super) fn broker_runtime() -> Runtime<RuntimeParts<Tokio, BrokerReactor>> {
    let tokio = Tokio::current();
    Runtime::new(RuntimeParts::new(tokio.clone(), BrokerReactor(tokio)))
}

/// TLS settings for connections to one server.
#[derive(Clone)]
pub(super) struct BrokerTls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl fmt::Debug for BrokerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TLS to {}", self.name.to_str())
    }
}

impl BrokerTls {
    /// Creates the settings for a host, whose certificate must be signed by a public authority or one in `authorities`
    /// (PEM).
    pub(super) fn new(host: &str, authorities: Option<&[u8]>) -> io::Result<Self> {
        let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        if let Some(pem) = authorities {
            let known = roots.len();
            for certificate in CertificateDer::pem_slice_iter(pem) {
                roots.add(certificate.map_err(io::Error::other)?).map_err(io::Error::other)?;
            }
            if roots.len() == known {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the file contains no certificate"));
            }
        }
        // The provider is explicit because a process-wide default may be missing.
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), name })
    }
}

/// Wraps the socket in TLS if settings are given.
pub(super) async fn open(socket: TcpStream, tls: Option<&BrokerTls>) -> io::Result<BrokerStream> {
    match tls {
        Some(tls) => Ok(stream(tls.connector.connect(tls.name.clone(), socket).await?)),
        None => Ok(stream(socket)),
    }
}
