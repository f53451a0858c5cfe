//! HTTP connections to servers configured by the operator: the trace collector and the archive's bucket. Their
//! addresses come from the settings and contain no tenant input, so they bypass the `egress` guard.

use std::{io, sync::Arc};

use hyper::{body::Body, client::conn::http1};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

/// Returns a TLS connector that trusts the public CAs and these.
pub(crate) fn tls_connector(
    authorities: Vec<CertificateDer<'static>>,
) -> Result<TlsConnector, rustls::Error> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    for authority in authorities {
        roots.add(authority)?;
    }
    // The provider is set explicitly, because the process-wide default may be missing or a different one.
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Opens an HTTP/1.1 connection to a host name or an address in brackets, over TLS if a connector is given.
pub(crate) async fn connect<B>(
    host: &str,
    port: u16,
    tls: Option<&TlsConnector>,
) -> io::Result<http1::SendRequest<B>>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let host = host.trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, port)).await?;
    let Some(tls) = tls else { return handshake(stream).await };
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    handshake(tls.connect(name, stream).await?).await
}

async fn handshake<S, B>(stream: S) -> io::Result<http1::SendRequest<B>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    tokio::spawn(connection);
    Ok(sender)
}
