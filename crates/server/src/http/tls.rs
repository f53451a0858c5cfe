//! TLS of the HTTP server: the certificate and its key, reloaded when the files change. If the new pair is
//! unusable, the previous one stays in use.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::RwLock;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use sha2::{Digest, Sha256};
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    signal::unix::{SignalKind, signal},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;

use crate::config::fix_for;

/// Interval at which the files are checked for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The first byte of every TLS handshake.
const HANDSHAKE: u8 = 22;

/// Response to a client that does not use TLS.
const SPEAK_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\
    content-length: 52\r\n\r\nthis server speaks TLS; begin the URL with https://\n";

/// Reason why a certificate and its key are unusable.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// A file cannot be read.
    #[error("{setting}: {path} cannot be read: {reason}; check the path and its permissions")]
    File { setting: &'static str, path: PathBuf, reason: io::Error },
    /// A file does not hold what it should.
    #[error("{setting}: {path} contains no {what} in PEM format{reason}")]
    Content { setting: &'static str, path: PathBuf, what: &'static str, reason: String },
    /// The key does not match the certificate, or its type is not supported.
    #[error("server.tls_cert and server.tls_key cannot be used together: {0}")]
    Pair(rustls::Error),
}

/// TLS acceptor of this server.
pub(crate) struct Tls {
    acceptor: TlsAcceptor,
    pair: Arc<CertificatePair>,
}

/// The files, and the certificate last read from them.
struct CertificatePair {
    cert: PathBuf,
    key: PathBuf,
    current: RwLock<Arc<CertifiedKey>>,
}

impl fmt::Debug for CertificatePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.cert.display())
    }
}

impl ResolvesServerCert for CertificatePair {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.read().clone())
    }
}

/// Hash of the files' contents, to detect changes.
type Fingerprint = [u8; 32];

struct Files {
    cert: Vec<u8>,
    key: zeroize::Zeroizing<Vec<u8>>,
}

impl Files {
    fn read(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let read = |setting, path: &Path| {
            std::fs::read(path).map_err(|reason| TlsError::File { setting, path: path.into(), reason })
        };
        Ok(Self { cert: read("server.tls_cert", cert)?, key: read("server.tls_key", key)?.into() })
    }

    fn fingerprint(&self) -> Fingerprint {
        Sha256::new().chain_update(Sha256::digest(&self.cert)).chain_update(&*self.key).finalize().into()
    }
}

fn certified(files: &Files, cert: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
    let content = |setting, path: &Path, what, reason: String| TlsError::Content {
        setting,
        path: path.into(),
        what,
        reason,
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&files.cert).collect();
    let chain =
        chain.map_err(|error| content("server.tls_cert", cert, "certificate", format!(": {error}")))?;
    if chain.is_empty() {
        return Err(content("server.tls_cert", cert, "certificate", String::new()));
    }
    // The parser's error is dropped, because it may quote parts of the key.
    let private = PrivateKeyDer::from_pem_slice(&files.key)
        .map_err(|_| content("server.tls_key", key, "unencrypted private key", String::new()))?;
    CertifiedKey::from_der(chain, private, &ring::default_provider()).map_err(TlsError::Pair)
}

impl Tls {
    /// Reads a certificate and its key.
    pub(crate) fn load(cert: &Path, key: &Path) -> Result<(Arc<Self>, CertificateWatcher), TlsError> {
        let files = Files::read(cert, key)?;
        let current = RwLock::new(Arc::new(certified(&files, cert, key)?));
        let pair = Arc::new(CertificatePair { cert: cert.into(), key: key.into(), current });
        // The provider is set explicitly, because the process-wide default may be missing or a different one.
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Pair)?
            .with_no_client_auth()
            .with_cert_resolver(pair.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let tls = Arc::new(Self { acceptor: TlsAcceptor::from(Arc::new(config)), pair });
        let reload = CertificateWatcher { pair: tls.pair.clone(), last_modified: files.fingerprint() };
        Ok((tls, reload))
    }

    /// Performs the handshake. A client that speaks plain HTTP gets an error response.
    pub(super) async fn accept(&self, mut stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let mut first = [HANDSHAKE];
        stream.peek(&mut first).await?;
        if first[0].is_ascii_uppercase() {
            stream.write_all(SPEAK_TLS).await?;
            stream.shutdown().await?;
            // Reads the request first; closing with unread data would reset the connection and lose the response.
            let _ = stream.readable().await;
            let _ = stream.try_read(&mut [0; 4096]);
            return Err(io::Error::other("the client speaks plain HTTP"));
        }
        self.acceptor.accept(stream).await
    }
}

/// Watches the files for changes.
#[derive(Clone)]
pub(crate) struct CertificateWatcher {
    pair: Arc<CertificatePair>,
    last_modified: Fingerprint,
}

impl CertificateWatcher {
    /// Checks the files for changes every few seconds, and immediately on `SIGHUP`, until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> io::Result<()> {
        let mut hangup = signal(SignalKind::hangup())?;
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                _ = hangup.recv() => {}
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
            }
            let checked = tokio::task::spawn_blocking(move || {
                self.check();
                self
            });
            self = checked.await.map_err(io::Error::other)?;
        }
    }

    fn check(&mut self) {
        let (cert, key) = (&self.pair.cert, &self.pair.key);
        let read = Files::read(cert, key);
        // All unreadable states have the same fingerprint, so the error is logged once.
        let fingerprint = read.as_ref().map_or([0; 32], Files::fingerprint);
        if fingerprint == self.last_modified {
            return;
        }
        self.last_modified = fingerprint;
        match read.and_then(|files| certified(&files, cert, key)) {
            Ok(certified) => {
                *self.pair.current.write() = Arc::new(certified);
                warn_if_open(key);
                tracing::info!(cert = %cert.display(), "TLS certificate reloaded");
            }
            Err(error) => {
                tracing::error!(%error, "loading the new TLS certificate failed; the previous one stays in use");
            }
        }
    }
}

/// Warns if other users may read the new key. Such a key is rejected at startup, but does not stop a running
/// server.
fn warn_if_open(key: &Path) {
    if let Some(fix) = fix_for(key) {
        let path = key.display();
        tracing::warn!(%path, fix, "TLS private key file is accessible to other users");
    }
}
