//! The way to the server: the URL, TLS, pools.

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

/// A plan that is good for an empty table and for a full one alike: by index, in its order, row by row. What the planner
/// believes about sizes, which nobody has analysed, then makes no difference.
const PLANS: &str = "-c jit=off -c plan_cache_mode=force_generic_plan -c enable_seqscan=off \
    -c enable_hashjoin=off -c enable_mergejoin=off -c enable_bitmapscan=off -c enable_sort=off -c enable_memoize=off";

/// What a connection brings beside answers. It is driven by being read.
pub(super) type Messages = Pin<Box<dyn Stream<Item = Result<AsyncMessage, tokio_postgres::Error>> + Send>>;

/// How to reach the server.
#[derive(Clone)]
pub(super) struct Way {
    config: Config,
    /// None where there is nothing to be encrypted, such as a Unix socket.
    tls: Option<MakeRustlsConnect>,
    /// Where it is, without secrets.
    pub(super) place: String,
    /// See [`Options::lease`].
    lease: Duration,
}

impl Way {
    pub(super) fn parse(options: &Options) -> Result<Self, OpenError> {
        let bad = |reason: String| OpenError::BadUrl(reason);
        // What the driver does not know is taken out before it reads the rest.
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
        let mut config = Config::from_str(&url).map_err(|error| bad(super::session::said(&error)))?;
        let (ssl, check) = match &*mode {
            "disable" => (SslMode::Disable, Check::Nothing),
            "prefer" => (SslMode::Prefer, Check::Nothing),
            "require" => (SslMode::Require, Check::Nothing),
            "verify-ca" => (SslMode::Require, Check::Issuer),
            "verify-full" => (SslMode::Require, Check::IssuerAndName),
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
        let place = place(&config);
        let is_local = config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)));
        let tls = match ssl == SslMode::Disable || is_local {
            true => None,
            false => Some(tls(check, root.as_deref())?),
        };
        if tls.is_none() {
            config.ssl_mode(SslMode::Disable);
        }
        Ok(Self { config, tls, place, lease: options.lease })
    }

    /// The URL with the planner's settings in its options.
    #[cfg(feature = "conformance")]
    pub(super) fn planning_url(options: &Options) -> String {
        let (base, query) = options.url.split_once('?').unwrap_or((&options.url, ""));
        let own = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "options");
        let own = own.map_or(String::new(), |(_, own)| own.into_owned());
        with_query(base, &[("options".into(), format!("{PLANS} {own}"))])
    }

    /// A pool of at most `size` connections, whose sessions have these limits.
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

    /// A connection of one's own, and what drives it.
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

/// How long the server lets statements of a session run and wait for locks.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionLimits {
    pub(super) statement_timeout: Duration,
    /// `None`: a statement waits for locks until its own timeout.
    pub(super) lock_timeout: Option<Duration>,
    /// How long a session may be idle inside a transaction. `None`, or more than half a lease: half a lease.
    pub(super) idle_timeout: Option<Duration>,
    /// How long a caller waits for a connection of the pool. `None`: as long as for a statement that writes.
    pub(super) pool_timeout: Option<Duration>,
}

impl SessionLimits {
    pub(super) fn new(statement_timeout: Duration) -> Self {
        Self { statement_timeout, lock_timeout: None, idle_timeout: None, pool_timeout: None }
    }
}

/// The settings that every session has on the server. A client that is frozen or cut off leaves its sessions open
/// there; the server ends them after half a lease inside a transaction, and after about one lease otherwise. `own` are
/// the options of the URL. They come last, so they override these. A session without limits is not pooled: it listens,
/// migrates or copies.
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
        Some(_) => format!("{PLANS} {settings}{own}"),
        None => format!("{settings}{own}"),
    }
}

/// The same for the client's side: a connection to a server that does not acknowledge packets ends after one lease.
fn set_client_keepalives(config: &mut Config, options: &Options) {
    config.tcp_user_timeout(options.lease.min(options.statement_timeout));
    config.keepalives_idle((options.lease / 2).max(Duration::from_secs(1)));
    config.keepalives_interval((options.lease / 5).max(Duration::from_secs(1)));
    config.keepalives_retries(3);
}

/// The messages of a connection, which end with the first error: it would be told without end.
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

/// A URL with these parameters. The driver takes a plus sign as it is, so a blank must not become one.
fn with_query(base: &str, parameters: &[(String, String)]) -> String {
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
    format!("{base}?{}", query.replace('+', "%20"))
}

/// Where a server is, in words that may be shown.
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

/// What is asked of the server's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    Nothing,
    Issuer,
    IssuerAndName,
}

fn tls(check: Check, root: Option<&str>) -> Result<MakeRustlsConnect, OpenError> {
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
        Check::IssuerAndName => builder.with_root_certificates(roots).with_no_client_auth(),
        Check::Issuer | Check::Nothing => {
            let issuers = match check {
                Check::Issuer => Some(
                    rustls::client::WebPkiServerVerifier::builder_with_provider(
                        Arc::new(roots),
                        provider.clone(),
                    )
                    .build()
                    .map_err(|error| bad(error.to_string()))?,
                ),
                _ => None,
            };
            let verifier = Arc::new(Lenient { issuers, provider });
            builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
        }
    };
    Ok(MakeRustlsConnect::new(config))
}

/// Takes a certificate for any name, or, as `require` and `prefer` mean it, any certificate.
#[derive(Debug)]
struct Lenient {
    issuers: Option<Arc<rustls::client::WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
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

    fn place_of(url: &str) -> Result<String, OpenError> {
        Way::parse(&Options::at(url)).map(|way| way.place)
    }

    #[test]
    fn urls_name_one_server_or_several() {
        assert_eq!(place_of("postgres://me@db/redrive").unwrap(), "db:5432/redrive");
        assert_eq!(
            place_of("postgres://me@a:1,b:2/redrive?target_session_attrs=read-write").unwrap(),
            "a:1,b:2/redrive"
        );
        let local = Way::parse(&Options::at("postgresql://me@%2Frun%2Fpostgresql/redrive")).unwrap();
        assert_eq!(local.place, "/run/postgresql/redrive");
        assert!(local.tls.is_none(), "there is nothing to be encrypted");
    }

    #[test]
    fn sessions_end_before_their_lease_does() {
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
    fn options_reach_the_server_as_they_were_written() {
        let way =
            Way::parse(&Options::at("postgres://me@db/r?options=-csearch_path%3Dmine%20-cwork_mem%3D8MB"));
        assert_eq!(way.unwrap().config.get_options(), Some("-csearch_path=mine -cwork_mem=8MB"));
        let way = Way::parse(&Options::at("postgres://a+b:c+d@db/r")).unwrap();
        assert_eq!((way.config.get_user(), way.config.get_password()), (Some("a+b"), Some(&b"c+d"[..])));
    }
}
