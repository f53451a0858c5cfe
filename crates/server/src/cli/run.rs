//! `redrive dev`, `redrive demo` and `redrive serve`: assemble the server, run it and shut it down cleanly.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use axum::Router;
use prometheus_client::{metrics::counter::Counter, registry::Registry};
use redrive_core::security::vault::Vault;
use redrive_egress::Client;
use redrive_engine::{
    Engine, EngineFailure, InternalError, MailerHandle, Service, ServiceKind, Settings, Tracing,
    clock::{self, Clock},
};
use redrive_store::Store;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;

use super::{
    CliError,
    check::check_loopback,
    creation::shown_path,
    demo::Demo,
    reload::{self, ConfigReader},
    systemd,
};
use crate::{
    api,
    app::{App, AppSettings, Identity, KeyCache, UserLogin, keys, metrics, session::Sessions},
    archive::Archive,
    config::{Backend, Config, HostPort, Profile, warn_if_exposed},
    dashboard,
    files::write_key_file,
    http::{self, CertificateWatcher, HttpServer, Tls},
    mail::MailSender,
    otlp::Exporter,
    sources::Sources,
    store, telemetry, vault,
};

/// Name of the file that holds the admin key created by `redrive dev`.
pub(super) const DEV_KEY: &str = "admin.key";

/// Time for requests in flight to finish after the engine failed.
const FAILURE_DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Input of `run`.
pub(super) struct Start {
    /// The settings.
    pub(super) config: Config,
    /// The profile whose defaults the settings are based on.
    pub(super) profile: Profile,
    /// Rereads the settings. `None` if there is nothing to reread.
    pub(super) reread: Option<ConfigReader>,
    /// The demo to run. `None` for a normal server.
    pub(super) demo: Option<Demo>,
}

/// Runs a server until it receives a stop signal.
pub(super) fn run(start: Start) -> Result<(), CliError> {
    let suppressed = telemetry::start(&start.config.log);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::message(format!("starting the runtime failed: {error}")))?;
    runtime.block_on(async {
        let stop = CancellationToken::new();
        let reporter = tokio::spawn(suppressed.report_suppressed(stop.clone()));
        let served = serve(start).await;
        stop.cancel();
        let _ = reporter.await;
        served
    })
}

async fn serve(start: Start) -> Result<(), CliError> {
    let Start { config, profile, reread, demo } = start;
    config.check_secret_files(profile)?;
    let backend = config.database.backend()?.with_lease(config.cluster.lease.as_duration());
    let vault = vault::open(&config, profile, &backend)?;
    if let Backend::Sqlite(path) = &backend
        && matches!(path.try_exists(), Ok(false))
    {
        tracing::info!(path = %shown_path(path), "creating a new database");
    }
    let store = store::open(&backend, Some(&vault)).await?;
    vault::check(&vault, &*store).await?;
    let admin_key = admin_key(&config, profile, &backend)?;
    let keys = load_keys(&config, &*store, admin_key.as_ref()).await?;
    let archive = Archive::open(&config.archive).map_err(|error| CliError::message(error.to_string()))?;
    let (tls, reload) = load_tls(&config)?.unzip();
    let only_loopback = profile == Profile::Dev && !demo.as_ref().is_some_and(Demo::allows_remote);
    let listener = listen(&config.server.listen, only_loopback).await?;
    let address = listener.local_addr().map_err(|error| CliError::message(error.to_string()))?;
    let egress = build_egress_client(&config, address)?;
    let kind = (profile, demo.is_some());
    let mut metrics = Registry::default();
    let (tracing, exporter) = Exporter::from_settings(&config.tracing, &config.node, &mut metrics)?.unzip();
    let exporting = exporter.map(Exporter::start);
    // Without a public URL, `redrive dev` uses its listen address in links.
    let listens = (profile == Profile::Dev).then(|| format!("{}://{address}", config.server.scheme()));
    let base = config.server.public_base().map(str::to_owned).or(listens);
    let user_login = UserLogin::from_settings(&config.oidc, base.as_deref())?.map(Arc::new);
    let parts = Parts { store, keys, vault, egress: egress.clone(), base, user_login, metrics, tracing };
    let app = assemble(&config, kind, parts).await?;
    // Only `redrive serve` reloads on SIGHUP: under `redrive dev` it means that the terminal was closed.
    if let Some(reread) = reread.filter(|_| profile == Profile::Serve) {
        reload::on_hangup(reread, app.clone(), egress)?;
    }
    let stop = stop_on_signal()?;
    if let Some(demo) = &demo {
        demo.set_up(&app, &stop).await?;
    }
    StartupBanner { config: &config, profile, backend: &backend, address, admin_key: admin_key.as_ref() }
        .print(demo.as_ref());
    let timeout = config.server.drain_timeout.as_duration();
    let sources = Sources::new(&config, &app).map_err(|invalid| CliError::message(invalid.to_string()))?;
    count_panics(app.engine().internal_error_counter(InternalError::Panic));
    let surface = HttpServer::new(
        routes(&app),
        &config.server,
        tls,
        app.engine().internal_error_counter(InternalError::Response),
    );
    let server = http::serve(listener, surface, stop.clone(), timeout);
    run_services(&app, archive, reload);
    systemd::notify_ready();
    let events = async {
        if let Some(demo) = &demo {
            demo.publish(&app, &stop).await;
        }
    };
    let sources = sources.run(&stop, timeout);
    // All of these run under one deadline, so a slow API client does not use up the time of requests in flight.
    let all = async { tokio::join!(server, drain(&app, &stop, timeout), sources, events) };
    tokio::select! {
        _ = all => {}
        failure = app.engine().failed() => return Err(exit_after_failure(&app, failure).await),
    }
    app.engine().stop().await;
    if let Some(exporting) = exporting {
        exporting.finish().await;
    }
    Ok(())
}

/// Starts the background services of the server.
fn run_services(app: &Arc<App>, archive: Option<Archive>, reload: Option<CertificateWatcher>) {
    let (engine, stop) = (app.engine(), app.engine().stop_token());
    app.start_key_reload();
    app.start_key_maintenance();
    if app.rules().role.serves_api() {
        app.start_tenant_health();
    }
    if let Some(archive) = archive {
        let (archive, stop, used) = (Arc::new(archive), stop.clone(), engine.clone());
        engine.run_service(Service::new("archiver", ServiceKind::Auxiliary, move || {
            archive.clone().run_archiver(used.clone(), stop.clone())
        }));
    }
    if let Some(reload) = reload {
        engine.run_service(Service::new("certificate_reload", ServiceKind::Auxiliary, move || {
            watch_certificates(reload.clone(), stop.clone())
        }));
    }
}

/// Loads the certificate of the server. Returns `None` if it does not terminate TLS itself.
pub(super) fn load_tls(config: &Config) -> Result<Option<(Arc<Tls>, CertificateWatcher)>, CliError> {
    let loaded = config.server.tls().map(|(cert, key)| Tls::load(cert, key)).transpose();
    loaded.map_err(|error| CliError::message(error.to_string()))
}

/// Finishes what can be finished after the engine failed. Returns the error that ends the process.
async fn exit_after_failure(app: &App, failure: EngineFailure) -> CliError {
    tracing::error!(reason = failure.reason, "this node cannot go on; exiting");
    app.start_draining();
    if failure.can_drain {
        // Ending the epoch lets another node take over immediately, instead of after a lease.
        let end = async {
            app.engine().drain(FAILURE_DRAIN_TIMEOUT).await;
            app.engine().stop().await;
        };
        let _ = tokio::time::timeout(3 * FAILURE_DRAIN_TIMEOUT, end).await;
    }
    CliError::Failed(format!(
        "{}; deliveries in progress are taken over at the next start or by another node",
        failure.reason
    ))
}

/// Installs a panic handler that counts panics and then calls the previous handler.
fn count_panics(panics: Counter) {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panicked| {
        panics.inc();
        before(panicked);
    }));
}

/// Returns the routes of the API and, if the role serves the API, of the dashboard.
fn routes(app: &Arc<App>) -> Router {
    match app.rules().role.serves_api() {
        true => dashboard::router(app.clone()).merge(api::router(app.clone())),
        false => api::router(app.clone()),
    }
}

/// Waits for the stop signal, then drains the engine.
async fn drain(app: &App, stop: &CancellationToken, timeout: Duration) {
    stop.cancelled().await;
    systemd::notify_stopping();
    tracing::info!("shutting down: waiting for requests in flight");
    app.start_draining();
    app.engine().drain(timeout).await;
}

/// Loads the API keys. Fails if this node serves the API and there is no admin key.
async fn load_keys(
    config: &Config,
    store: &dyn Store,
    admin_key: Option<&(String, KeySource)>,
) -> Result<KeyCache, CliError> {
    let keys = KeyCache::load(store, admin_key.map(|(key, _)| key.as_str())).await?;
    if config.role.serves_api() && !keys.has_admin() {
        return Err(no_admin_key());
    }
    Ok(keys)
}

pub(super) fn no_admin_key() -> CliError {
    CliError::message(
        "no key can administer this server: set REDRIVE_ADMIN_KEY (generate one with: openssl rand -hex 32), \
         or create a key first with: redrive keys create --admin",
    )
}

/// Reloads the TLS certificate whenever it is renewed.
async fn watch_certificates(reload: CertificateWatcher, stop: CancellationToken) {
    if let Err(error) = reload.run(stop).await {
        tracing::error!(%error, "watching the TLS certificate failed; will retry");
    }
}

/// Builds the egress client, which never calls the address that this server listens on.
fn build_egress_client(config: &Config, address: SocketAddr) -> Result<Client, CliError> {
    let servers: Vec<_> =
        config.egress.dns_servers.iter().map(resolve_dns_server).collect::<Result<_, _>>()?;
    let egress = Client::new(redrive_egress::Config {
        rules: config.egress.reach(config.server.public_base()),
        dns_servers: servers.concat(),
        connect_timeout: config.egress.connect_timeout.as_duration(),
        dns_timeout: config.egress.dns_timeout.as_duration(),
        max_response_bytes: config.egress.max_response_bytes,
        idle_per_host: 256,
        max_connections_per_address: Some(config.egress.max_connections_per_address).filter(|max| *max > 0),
        own_listeners: vec![address],
        ..redrive_egress::Config::new(clock::monotonic_now)
    });
    egress.map_err(|error| CliError::message(error.to_string()))
}

/// Components that the application is assembled from.
struct Parts {
    store: Arc<dyn Store>,
    keys: KeyCache,
    vault: Vault,
    egress: Client,
    /// Base URL of links in emails. `None` if it is not known.
    base: Option<String>,
    /// Login of users. `None` if only keys log in.
    user_login: Option<Arc<UserLogin>>,
    /// Metrics registry.
    metrics: Registry,
    /// Span exporter. Without it no spans are created.
    tracing: Option<Tracing>,
}

async fn assemble(
    config: &Config,
    (profile, demo): (Profile, bool),
    parts: Parts,
) -> Result<Arc<App>, CliError> {
    let Parts { store, keys, vault, egress, base, user_login, mut metrics, tracing } = parts;
    // With a shared store, the engine synchronizes this clock before its first use.
    let clock = Clock::new(config.dev.clock_speed, config.dev.clock_skew.millis());
    let mailer = MailSender::new(&config.smtp, base, store.clone(), vault.clone(), clock.clone())?;
    let post = mailer.map(|mailer| MailerHandle(Arc::new(mailer)));
    let settings = Settings { mailer: post, tracing, ..config.engine_settings()? };
    let engine = Engine::start(store, egress, clock, settings, &mut metrics).await?;
    metrics::register_build_info(
        &mut metrics,
        &config.node,
        &config.role.to_string(),
        if engine.store().is_shared() { "postgres" } else { "sqlite" },
    );
    let identity = Identity {
        node: config.node.clone(),
        store: config.database.backend()?.to_string(),
        started_at: engine.clock().now(),
        settings: config.effective_settings(profile),
    };
    let rules = AppSettings {
        identity,
        role: config.role,
        urls: config.egress.urls(config.server.public_base()),
        max_payload_bytes: config.events.max_payload_bytes,
        max_hops: config.events.max_hops,
        require_verification: config.webhooks.require_verification,
        audit_retention: config.audit.retention.as_duration(),
        api_rate: config.limits.api_rate()?,
        pools: if config.role.sends() { config.pools.clone() } else { Vec::new() },
        tenant_metrics: config.metrics.tenants,
        max_named_values: config.metrics.max_named,
        retry: config.retry_policy()?,
        public_url: config.server.public_base().map(str::to_owned),
        create_tenants: config.server.create_tenants,
        user_login,
        demo,
    };
    Ok(App::new(engine, keys, Sessions::new(vault), rules, metrics))
}

pub(super) fn resolve_dns_server(server: &HostPort) -> Result<Vec<SocketAddr>, CliError> {
    server.resolve_blocking().map_err(|error| {
        CliError::message(format!("egress.dns_servers: {server} cannot be resolved: {error}"))
    })
}

/// Returns the socket that systemd passed, or else a new one at the configured address. With `only_loopback`, fails if the
/// address resolves to another than a loopback address.
async fn listen(address: &HostPort, only_loopback: bool) -> Result<TcpListener, CliError> {
    let failed = |error: std::io::Error| cannot_listen(address, &error);
    let passed = systemd::take_listener().map_err(|error| {
        CliError::message(format!("the socket passed by systemd cannot be used: {error}"))
    })?;
    if let Some(listener) = passed {
        return TcpListener::from_std(listener).map_err(failed);
    }
    let addresses = address.resolve().await.map_err(failed)?;
    if only_loopback {
        check_loopback(&addresses).map_err(failed)?;
    }
    TcpListener::bind(&addresses[..]).await.map_err(failed)
}

pub(super) fn cannot_listen(address: &HostPort, error: &std::io::Error) -> CliError {
    CliError::message(format!("cannot listen on {address}: {error}; choose another with --listen HOST:PORT"))
}

/// Origin of the admin key.
pub(super) enum KeySource {
    Configured,
    File(PathBuf),
}

/// Returns the configured admin key. For `redrive dev` without one, creates a key once in a file next to the data.
pub(super) fn admin_key(
    config: &Config,
    profile: Profile,
    backend: &Backend,
) -> Result<Option<(String, KeySource)>, CliError> {
    if let Some(key) = &config.auth.admin_key {
        return Ok(Some((key.reveal().to_owned(), KeySource::Configured)));
    }
    if profile == Profile::Serve || !config.role.serves_api() {
        return Ok(None);
    }
    let path = backend.sibling_path(DEV_KEY);
    match write_key_file(&path, &keys::new_key()) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(CliError::message(format!("{}: {error}", path.display()))),
    }
    warn_if_exposed(&path);
    let key = std::fs::read_to_string(&path).unwrap_or_default().trim().to_owned();
    if key.len() < 32 {
        let path = path.display();
        return Err(CliError::message(format!(
            "{path} contains no valid key; delete it to create a new one"
        )));
    }
    Ok(Some((key, KeySource::File(path))))
}

/// Text that is printed when a server starts.
struct StartupBanner<'a> {
    config: &'a Config,
    profile: Profile,
    backend: &'a Backend,
    address: SocketAddr,
    admin_key: Option<&'a (String, KeySource)>,
}

#[expect(clippy::print_stdout, reason = "it is there to be printed")]
impl StartupBanner<'_> {
    fn print(&self, demo: Option<&Demo>) {
        let Config { node, role, .. } = self.config;
        let url = format!("{}://{}", self.config.server.scheme(), self.address);
        println!("Redrive {} is listening on {url}", env!("CARGO_PKG_VERSION"));
        if self.profile == Profile::Serve || !role.serves_api() {
            return println!("This is node {node} with role {role} on {}.", self.backend);
        }
        if let Some(demo) = demo {
            println!("{}", demo.banner());
        }
        // A link to 0.0.0.0 does not work in every browser.
        let local = HostPort::from(self.address).for_local_client();
        let url = format!("{}://{local}", self.config.server.scheme());
        // A configured admin key is not printed.
        let key = match self.admin_key {
            Some((key, KeySource::File(path))) => {
                println!("Admin key: {key} (stored in {})", path.display());
                Some(key.as_str())
            }
            _ => None,
        };
        println!("API documentation: {url}/docs");
        if demo.is_none() {
            print_example(&url, key.unwrap_or("$REDRIVE_ADMIN_KEY"));
        }
        // The key goes into the URL fragment, which browsers do not send to the server.
        let fragment = key.map(|key| format!("#{key}")).unwrap_or_default();
        println!("Dashboard: {url}/dashboard/login{fragment}");
    }
}

#[expect(clippy::print_stdout, reason = "these are lines to type")]
fn print_example(url: &str, key: &str) {
    println!(
        r#"
Try it. Create a webhook (any HTTP server on port 9000), publish an event, list its deliveries:

  curl -s {url}/v1/webhooks -H "Authorization: Bearer {key}" -H "Content-Type: application/json" -d '{{"url": "http://127.0.0.1:9000/", "events": ["order.*"]}}'

  curl -s {url}/v1/events -H "Authorization: Bearer {key}" -H "Content-Type: application/json" -d '{{"event_type": "order.created", "data": {{"order": 42}}}}'

  curl -s {url}/v1/deliveries -H "Authorization: Bearer {key}"
"#
    );
}

/// Returns a token that the first signal cancels. A second signal exits immediately.
fn stop_on_signal() -> Result<CancellationToken, CliError> {
    let failed =
        |error: std::io::Error| CliError::message(format!("installing the signal handlers failed: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        for heard in 0.. {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if heard > 0 {
                tracing::warn!("second signal: exiting immediately; requests in flight will be sent again");
                std::process::exit(130);
            }
            token.cancel();
        }
    });
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panicking_thread_is_counted() {
        let panics: Counter = Counter::default();
        count_panics(panics.clone());
        assert!(std::thread::spawn(|| panic!("on purpose")).join().is_err());
        assert!(panics.get() >= 1);
    }
}
