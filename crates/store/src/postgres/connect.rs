//! Connections to the server: URL, TLS, pools.

use std::{
    pin::Pin,
    str::FromStr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime, Timeouts};
use futures_util::{Stream, stream};
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use tokio_postgres::{
    AsyncMessage, Client, Config, NoTls,
    config::{Host, SslMode},
};
use tokio_postgres_rustls::MakeRustlsConnect;
use url::form_urlencoded;

use super::{Options, durability};
use crate::error::OpenError;

/// Planner settings that give the same plan for empty and full tables: index scans in index order, nested loops.
/// Estimated table sizes, which may never have been analysed, then make no difference.
const PLANNER_SETTINGS: &str = "-c jit=off -c plan_cache_mode=force_generic_plan -c enable_seqscan=off \
    -c enable_hashjoin=off -c enable_mergejoin=off -c enable_bitmapscan=off -c enable_sort=off -c enable_memoize=off";

/// Asynchronous messages of a connection. Polling the stream drives the connection.
pub(super) type Messages = Pin<Box<dyn Stream<Item = Result<AsyncMessage, tokio_postgres::Error>> + Send>>;

/// Connection settings of the server.
#[derive(Clone)]
pub(super) struct ServerConfig {
    config: Config,
    /// `None` if nothing is encrypted, for example on a Unix socket.
    tls: Option<MakeRustlsConnect>,
    /// Hosts, ports and database name, without secrets.
    pub(super) displayed_address: String,
    /// See [`Options::lease`].
    lease: Duration,
}

impl ServerConfig {
    pub(super) fn parse(options: &Options) -> Result<Self, OpenError> {
        let bad = |reason: String| OpenError::BadUrl(reason);
        // Parameters that the driver does not know are removed before it parses the URL.
        let (mut mode, mut root, mut rest) = (String::from("prefer"), None, Vec::new());
        let (base, query) = options.url.split_once('?').unwrap_or((&options.url, ""));
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "sslmode" => mode = value.into_owned(),
                "sslrootcert" => root = Some(value.into_owned()),
                _ => rest.push((name.into_owned(), value.into_owned())),
            }
        }
        let url = with_query(base, &rest);
        let mut config =
            Config::from_str(&url).map_err(|error| bad(super::session::describe_error(&error)))?;
        let (ssl, check) = match &*mode {
            "disable" => (SslMode::Disable, CertificateCheck::Nothing),
            "prefer" => (SslMode::Prefer, CertificateCheck::Nothing),
            "require" => (SslMode::Require, CertificateCheck::Nothing),
            "verify-ca" => (SslMode::Require, CertificateCheck::Issuer),
            "verify-full" => (SslMode::Require, CertificateCheck::IssuerAndName),
            other => {
                return Err(bad(format!(
                    "sslmode={other}: use disable, prefer, require, verify-ca or verify-full"
                )));
            }
        };
        config.ssl_mode(ssl);
        if let Some(password) = &options.password {
            config.password(password);
        }
        config.connect_timeout(options.connect_timeout);
        set_client_keepalives(&mut config, options);
        if config.get_application_name().is_none() {
            config.application_name("redrive");
        }
        let database = place(&config);
        let is_local = config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)));
        let tls = match ssl == SslMode::Disable || is_local {
            true => None,
            false => Some(tls(check, root.as_deref())?),
        };
        if tls.is_none() {
            config.ssl_mode(SslMode::Disable);
        }
        Ok(Self { config, tls, displayed_address: database, lease: options.lease })
    }

    /// Returns the URL with the planner settings in its options.
    #[cfg(feature = "conformance")]
    pub(super) fn planning_url(options: &Options) -> String {
        let (base, query) = options.url.split_once('?').unwrap_or((&options.url, ""));
        let own = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "options");
        let own = own.map_or(String::new(), |(_, own)| own.into_owned());
        with_query(base, &[("options".into(), format!("{PLANNER_SETTINGS} {own}"))])
    }

    /// Creates a pool of at most `size` connections, whose sessions have these limits.
    pub(super) fn pool(&self, size: usize, options: &Options, limits: SessionLimits) -> Pool {
        let mut config = self.config.clone();
        let own = config.get_options().unwrap_or_default().to_owned();
        config.options(session_options(self.lease, Some(limits), &own));
        let recycled = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = match &self.tls {
            Some(tls) => Manager::from_config(config, tls.clone(), recycled),
            None => Manager::from_config(config, NoTls, recycled),
        };
        let timeouts = Timeouts {
            wait: Some(limits.pool_timeout.unwrap_or(options.statement_timeout)),
            // Each host of the URL has its own connect timeout.
            create: Some(options.connect_timeout * self.config.get_hosts().len().max(1) as u32),
            recycle: Some(options.connect_timeout),
        };
        let pool = Pool::builder(manager)
            .max_size(size)
            .timeouts(timeouts)
            .runtime(Runtime::Tokio1)
            .post_create(durability::check_new_connections(options))
            .build();
        pool.expect("a pool with timeouts has a runtime")
    }

    /// Opens a connection outside the pools. The returned stream must be polled to drive it.
    pub(super) async fn connect(&self) -> Result<(Client, Messages), tokio_postgres::Error> {
        let mut config = self.config.clone();
        let own = config.get_options().unwrap_or_default().to_owned();
        config.options(session_options(self.lease, None, &own));
        Ok(match &self.tls {
            Some(tls) => {
                let (client, mut connection) = config.connect(tls.clone()).await?;
                (client, messages(move |context| connection.poll_message(context)))
            }
            None => {
                let (client, mut connection) = config.connect(NoTls).await?;
                (client, messages(move |context| connection.poll_message(context)))
            }
        })
    }
}

/// Timeouts of a session: for statements, locks, idle transactions and the pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionLimits {
    pub(super) statement_timeout: Duration,
    /// `None` if a statement may wait for locks until the statement timeout.
    pub(super) lock_timeout: Option<Duration>,
    /// Longest idle time inside a transaction, at most half a lease. `None` means half a lease.
    pub(super) idle_timeout: Option<Duration>,
    /// Longest wait for a connection of the pool. `None` means `Options::statement_timeout`.
    pub(super) pool_timeout: Option<Duration>,
}

impl SessionLimits {
    pub(super) fn new(statement_timeout: Duration) -> Self {
        Self { statement_timeout, lock_timeout: None, idle_timeout: None, pool_timeout: None }
    }
}

/// Returns the settings that every session has on the server. A client that is frozen or cut off leaves its
/// sessions open there; the server ends them after half a lease inside a transaction, and after about one lease
/// otherwise. `own` are the options of the URL. They come last, so they override these. A session without limits
/// is not pooled: it is used to listen, migrate or copy.
fn session_options(lease: Duration, limits: Option<SessionLimits>, own: &str) -> String {
    let lease_secs = lease.as_secs().max(1);
    let mut settings = vec![
        ("tcp_user_timeout", lease.as_millis()),
        ("tcp_keepalives_idle", u128::from(lease_secs.div_ceil(2))),
        ("tcp_keepalives_interval", u128::from(lease_secs.div_ceil(5))),
        ("tcp_keepalives_count", 3),
    ];
    if let Some(limits) = limits {
        let idle_timeout = limits.idle_timeout.unwrap_or(lease).min(lease / 2);
        settings.extend([
            ("statement_timeout", limits.statement_timeout.as_millis()),
            ("lock_timeout", limits.lock_timeout.map_or(0, |timeout| timeout.as_millis())),
            ("idle_in_transaction_session_timeout", idle_timeout.as_millis()),
        ]);
    }
    let settings: String = settings.iter().map(|(name, value)| format!("-c {name}={value} ")).collect();
    match limits {
        Some(_) => format!("{PLANNER_SETTINGS} {settings}{own}"),
        None => format!("{settings}{own}"),
    }
}

/// Sets the keepalives of the client: a connection to a server that does not acknowledge packets ends after one
/// lease.
fn set_client_keepalives(config: &mut Config, options: &Options) {
    config.tcp_user_timeout(options.lease.min(options.statement_timeout));
    config.keepalives_idle((options.lease / 2).max(Duration::from_secs(1)));
    config.keepalives_interval((options.lease / 5).max(Duration::from_secs(1)));
    config.keepalives_retries(3);
}

/// Returns the messages of a connection. The stream ends after the first error, which the driver would repeat
/// forever.
fn messages(
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<Option<Result<AsyncMessage, tokio_postgres::Error>>>
    + Send
    + 'static,
) -> Messages {
    let mut over = false;
    Box::pin(stream::poll_fn(move |context| {
        if over {
            return Poll::Ready(None);
        }
        let message = poll(context);
        over = matches!(message, Poll::Ready(Some(Err(_)) | None));
        message
    }))
}

/// Builds a URL with these parameters. The driver does not decode a plus sign, so a space is encoded as `%20`.
fn with_query(base: &str, parameters: &[(String, String)]) -> String {
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
    format!("{base}?{}", query.replace('+', "%20"))
}

/// Returns hosts, ports and database name for messages, without secrets.
fn place(config: &Config) -> String {
    let hosts = config.get_hosts().iter().zip(config.get_ports().iter().chain(std::iter::repeat(&5432)));
    let hosts: Vec<_> = hosts
        .map(|(host, port)| match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            Host::Unix(path) => path.display().to_string(),
        })
        .collect();
    format!("{}/{}", hosts.join(","), config.get_dbname().unwrap_or_default())
}

/// Checks made on the server's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CertificateCheck {
    Nothing,
    Issuer,
    IssuerAndName,
}

fn tls(check: CertificateCheck, root: Option<&str>) -> Result<MakeRustlsConnect, OpenError> {
    let bad = |reason: String| OpenError::BadUrl(reason);
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| bad(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    match root {
        Some(path) => {
            let certificates = CertificateDer::pem_file_iter(path)
                .and_then(|found| found.collect::<Result<Vec<_>, _>>())
                .map_err(|error| bad(format!("sslrootcert={path}: {error}")))?;
            for certificate in certificates {
                roots.add(certificate).map_err(|error| bad(format!("sslrootcert={path}: {error}")))?;
            }
        }
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
    }
    let config = match check {
        CertificateCheck::IssuerAndName => builder.with_root_certificates(roots).with_no_client_auth(),
        CertificateCheck::Issuer | CertificateCheck::Nothing => {
            let issuers = match check {
                CertificateCheck::Issuer => Some(
                    rustls::client::WebPkiServerVerifier::builder_with_provider(
                        Arc::new(roots),
                        provider.clone(),
                    )
                    .build()
                    .map_err(|error| bad(error.to_string()))?,
                ),
                _ => None,
            };
            let verifier = Arc::new(LenientVerifier { issuers, provider });
            builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
        }
    };
    Ok(MakeRustlsConnect::new(config))
}

/// Accepts a certificate for any host name or, without `issuers` (`require` and `prefer`), any certificate.
#[derive(Debug)]
struct LenientVerifier {
    issuers: Option<Arc<rustls::client::WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for LenientVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use rustls::{CertificateError, Error};
        let Some(issuers) = &self.issuers else { return Ok(ServerCertVerified::assertion()) };
        match issuers.verify_server_cert(end_entity, intermediates, server_name, ocsp, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn displayed_address(url: &str) -> Result<String, OpenError> {
        ServerConfig::parse(&Options::at(url)).map(|server| server.displayed_address)
    }

    #[test]
    fn url_may_name_one_or_several_servers() {
        assert_eq!(displayed_address("postgres://me@db/redrive").unwrap(), "db:5432/redrive");
        assert_eq!(
            displayed_address("postgres://me@a:1,b:2/redrive?target_session_attrs=read-write").unwrap(),
            "a:1,b:2/redrive"
        );
        let local = ServerConfig::parse(&Options::at("postgresql://me@%2Frun%2Fpostgresql/redrive")).unwrap();
        assert_eq!(local.displayed_address, "/run/postgresql/redrive");
        assert!(local.tls.is_none(), "a Unix socket is not encrypted");
    }

    #[test]
    fn session_timeouts_follow_the_lease() {
        let limits = SessionLimits {
            lock_timeout: Some(Duration::from_millis(250)),
            ..SessionLimits::new(Duration::from_secs(10))
        };
        let settings = session_options(Duration::from_secs(5), Some(limits), "-c search_path=mine");
        for setting in [
            "-c statement_timeout=10000 ",
            "-c lock_timeout=250 ",
            "-c idle_in_transaction_session_timeout=2500 ",
            "-c tcp_user_timeout=5000 ",
            "-c tcp_keepalives_idle=3 ",
            "-c tcp_keepalives_interval=1 ",
            "-c tcp_keepalives_count=3 ",
        ] {
            assert!(settings.contains(setting), "{setting} is not in {settings}");
        }
        assert!(settings.ends_with("-c search_path=mine"), "the URL's options come last: {settings}");
    }

    #[test]
    fn url_options_are_passed_to_server_unchanged() {
        let server = ServerConfig::parse(&Options::at(
            "postgres://me@db/r?options=-csearch_path%3Dmine%20-cwork_mem%3D8MB",
        ));
        assert_eq!(server.unwrap().config.get_options(), Some("-csearch_path=mine -cwork_mem=8MB"));
        let server = ServerConfig::parse(&Options::at("postgres://a+b:c+d@db/r")).unwrap();
        assert_eq!(
            (server.config.get_user(), server.config.get_password()),
            (Some("a+b"), Some(&b"c+d"[..]))
        );
    }
}
