//! The server's own TLS with real handshakes: protocol versions, refusals, and certificate reload.

use std::{
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Output},
    sync::Arc,
    time::Duration,
};

use redrive_testkit::{Redrive, Setup, WAIT_TIMEOUT};
use rustls::{
    ClientConfig, ProtocolVersion, RootCertStore, SupportedProtocolVersion,
    crypto::ring,
    pki_types::{CertificateDer, ServerName},
    version::{TLS12, TLS13},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// A folder with a certificate and its key.
struct Pair {
    folder: TempDir,
}

impl Pair {
    fn new() -> Self {
        let pair = Self { folder: tempfile::tempdir().unwrap() };
        pair.renew();
        pair
    }

    fn cert(&self) -> PathBuf {
        self.folder.path().join("cert.pem")
    }

    fn key(&self) -> PathBuf {
        self.folder.path().join("key.pem")
    }

    /// Writes a new pair and returns its certificate.
    fn renew(&self) -> CertificateDer<'static> {
        let created = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(self.key(), created.signing_key.serialize_pem()).unwrap();
        std::fs::set_permissions(self.key(), std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(self.cert(), created.cert.pem()).unwrap();
        created.cert.der().clone()
    }

    fn setup(&self) -> Setup {
        let path = |path: PathBuf| path.display().to_string();
        Setup::new()
            .env("REDRIVE_SERVER_TLS_CERT", path(self.cert()))
            .env("REDRIVE_SERVER_TLS_KEY", path(self.key()))
    }
}

async fn connect(
    redrive: &Redrive,
    trusted: &CertificateDer<'static>,
    versions: &[&'static SupportedProtocolVersion],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let stream = TcpStream::connect(redrive.address()).await?;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

async fn get(stream: &mut TlsStream<TcpStream>, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    timeout(WAIT_TIMEOUT, stream.read_to_end(&mut response)).await.expect("no response").unwrap();
    String::from_utf8_lossy(&response).into_owned()
}

/// Returns whether the server presents this certificate.
async fn presents(redrive: &Redrive, certificate: &CertificateDer<'static>) -> bool {
    connect(redrive, certificate, &[&TLS13]).await.is_ok()
}

#[tokio::test]
async fn tls_1_2_and_1_3_are_served_with_hsts() {
    let pair = Pair::new();
    let certificate = pair.renew();
    let redrive = Redrive::start_with(pair.setup()).await;
    assert!(redrive.output().contains("listening on https://127.0.0.1:"), "{}", redrive.output());
    for (version, expected) in [(&TLS12, ProtocolVersion::TLSv1_2), (&TLS13, ProtocolVersion::TLSv1_3)] {
        let mut stream = connect(&redrive, &certificate, &[version]).await.unwrap();
        assert_eq!(stream.get_ref().1.protocol_version(), Some(expected));
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        let response = get(&mut stream, "/healthz").await;
        assert!(response.starts_with("HTTP/1.1 200 ") && response.ends_with("ok\n"), "{response}");
        assert!(response.contains("strict-transport-security: max-age=31536000\r\n"), "{response}");
        // A large response arrives completely.
        let mut stream = connect(&redrive, &certificate, &[version]).await.unwrap();
        let script = get(&mut stream, "/docs/swagger-ui-bundle.js").await;
        assert!(script.starts_with("HTTP/1.1 200 ") && script.len() > 300_000, "{}", script.len());
    }
    assert!(!redrive.output().contains("accessible to other users"));
}

#[tokio::test]
async fn plaintext_client_gets_400_or_is_disconnected() {
    let pair = Pair::new();
    let redrive = Redrive::start_with(pair.setup().env("REDRIVE_SERVER_HEADER_TIMEOUT", "400ms")).await;
    let response = async |request: &[u8]| {
        let mut stream = TcpStream::connect(redrive.address()).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut response = Vec::new();
        let _ =
            timeout(WAIT_TIMEOUT, stream.read_to_end(&mut response)).await.expect("the server still waits");
        String::from_utf8_lossy(&response).into_owned()
    };
    let reported = response(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(
        reported.starts_with("HTTP/1.1 400 ") && reported.ends_with("begin the URL with https://\n"),
        "{reported}"
    );
    assert_eq!(response(b"").await, "");
    // The start of a handshake that is never completed.
    assert_eq!(response(b"\x16\x03\x01\x02\x00\x01").await, "");
}

#[tokio::test]
async fn new_certificate_is_loaded_without_restart() {
    let pair = Pair::new();
    let first = pair.renew();
    let redrive = Redrive::start_with(pair.setup()).await;
    assert!(presents(&redrive, &first).await);
    let mut open = connect(&redrive, &first, &[&TLS13]).await.unwrap();

    let second = pair.renew();
    redrive.signal("HUP");
    redrive.wait_output("TLS certificate reloaded").await;
    assert!(presents(&redrive, &second).await && !presents(&redrive, &first).await);
    assert!(get(&mut open, "/healthz").await.ends_with("ok\n"), "open connections continue");

    std::fs::write(pair.cert(), "no certificate").unwrap();
    redrive.signal("HUP");
    redrive.wait_output("the previous one stays in use").await;
    assert!(redrive.output().contains("contains no certificate in PEM format"), "{}", redrive.output());
    assert!(presents(&redrive, &second).await);

    // Without a signal the periodic check finds the new certificate.
    let third = pair.renew();
    let reloaded = async {
        while !presents(&redrive, &third).await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(WAIT_TIMEOUT, reloaded).await.expect("the certificate was not reloaded");
}

#[tokio::test]
async fn invalid_certificate_pair_fails_startup() {
    let message = async |pair: &Pair| {
        let ended = pair.setup().run_to_end().await;
        assert_eq!(ended.status.code(), Some(1));
        String::from_utf8_lossy(&ended.stderr).into_owned()
    };
    let pair = Pair::new();
    let other = Pair::new();
    std::fs::copy(other.key(), pair.key()).unwrap();
    let mismatch = message(&pair).await;
    assert!(mismatch.contains("server.tls_cert and server.tls_key cannot be used together"), "{mismatch}");
    std::fs::write(pair.key(), "-----BEGIN NONSENSE-----\n").unwrap();
    let nonsense = message(&pair).await;
    assert!(
        nonsense.contains("server.tls_key: ") && nonsense.contains("contains no unencrypted private key"),
        "{nonsense}"
    );
    std::fs::remove_file(pair.cert()).unwrap();
    let missing = message(&pair).await;
    assert!(missing.contains("server.tls_cert: ") && missing.contains("check the path"), "{missing}");
}

#[tokio::test]
async fn world_readable_key_logs_a_warning() {
    let pair = Pair::new();
    std::fs::set_permissions(pair.key(), std::fs::Permissions::from_mode(0o644)).unwrap();
    let redrive = Redrive::start_with(pair.setup()).await;
    redrive.wait_output("secret file is accessible to other users").await;
    redrive.wait_output(&format!("chmod 600 {}", pair.key().display())).await;
}

fn keys(redrive: &Redrive, pair: Option<&Pair>) -> Output {
    let database = format!("sqlite:{}", redrive.data_dir().join("redrive.db").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    command
        .args(["keys", "create", "--name", "cli", "--database-url", &database])
        .args(["--listen", &redrive.address().to_string()])
        .env("REDRIVE_ADMIN_KEY", redrive.key());
    if let Some(pair) = pair {
        command.env("REDRIVE_SERVER_TLS_CERT", pair.cert()).env("REDRIVE_SERVER_TLS_KEY", pair.key());
    }
    command.output().unwrap()
}

#[tokio::test]
async fn command_line_accepts_only_its_own_server_certificate() {
    let (pair, other) = (Pair::new(), Pair::new());
    let redrive = Redrive::start_with(pair.setup()).await;
    let output = keys(&redrive, Some(&pair));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("rdk_"));
    let refused = keys(&redrive, Some(&other));
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && words.contains("not the one in server.tls_cert"), "{words}");
    let refused = keys(&redrive, None);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && words.contains("the server speaks TLS; give this command"),
        "{words}"
    );
}
