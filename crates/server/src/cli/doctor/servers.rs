//! Checks of the configured servers: the database, Redis, RabbitMQ, the SMTP server and the identity provider.

use std::time::Duration;

use redrive_core::maintenance::durability::Durability;
use redrive_engine::{check_redis, clock::Clock};
use redrive_store::{OpenError, Store, sqlite::Inspection};

use super::{CliError, Finding, MAX_CLOCK_DIFFERENCE_SECONDS};
use crate::{
    app::KeyCache,
    cli::run::no_admin_key,
    config::{Backend, Config, Profile},
    files::{check_folder, folder_of},
    mail,
    oidc::IdentityProvider,
    store, vault,
};

/// Time for RabbitMQ to close a connection that was only opened for a check.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// Result of the inspection of the database file. `None` with PostgreSQL.
pub(super) type InspectedFile = Option<Result<Option<Inspection>, CliError>>;

pub(super) async fn check(
    config: &Config,
    profile: Profile,
    file: InspectedFile,
) -> Result<Vec<Finding>, CliError> {
    let mut findings = check_database(config, profile, file).await?;
    if let Some(settings) = config.redis.settings()? {
        findings.push(match check_redis(&settings).await {
            Ok(()) => Finding::ok("redis", "reachable, and its scripts run"),
            Err(reason) => Finding::critical(
                "redis",
                format!("{reason}; check redis.url, the password and that it is no replica"),
            ),
        });
    }
    if let Some(tickets) = config.amqp.tickets(&config.node)? {
        findings.push(check_broker(&tickets.broker, "amqp.url").await);
    }
    for source in &config.sources {
        let address = source.address().map_err(|invalid| CliError::message(invalid.to_string()))?;
        let broker = redrive_engine::amqp::Broker::new(address, &config.node);
        findings.push(check_broker(&broker, &format!("the source {}", source.name)).await);
    }
    if let Some(provider) = IdentityProvider::from_settings(&config.oidc)? {
        findings.push(match provider.check().await {
            Ok(()) => {
                Finding::ok("oidc", format!("{} is reachable, and its keys can be read", provider.issuer()))
            }
            Err(error) => Finding::critical("oidc", format!("{error}; check oidc.issuer and oidc.ca_file")),
        });
    }
    match mail::check_connection(&config.smtp).await {
        Ok(true) => findings
            .push(Finding::ok("smtp", "reachable; send an email with: redrive test-email --to ADDRESS")),
        Ok(false) => {}
        Err(reason) => findings.push(Finding::critical("smtp", reason)),
    }
    Ok(findings)
}

async fn check_broker(broker: &redrive_engine::amqp::Broker, setting: &str) -> Finding {
    match broker.connect("doctor").await {
        Ok(connection) => {
            let closed = connection.close(200, "checked".into());
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, closed).await;
            Finding::ok("rabbitmq", format!("{} is reachable", broker.address()))
        }
        Err(error) => Finding::critical(
            "rabbitmq",
            format!("{}: {error}; check {setting}, the password and the virtual host", broker.address()),
        ),
    }
}

async fn check_database(
    config: &Config,
    profile: Profile,
    file: InspectedFile,
) -> Result<Vec<Finding>, CliError> {
    let mut backend = config.database.backend()?;
    if let (Backend::Sqlite(path), Some(inspected)) = (&backend, file) {
        return Ok(match inspected {
            // The check of the folder tells that it does not exist.
            Ok(None) => Vec::new(),
            Ok(Some(found)) => vec![Finding::ok(
                "database",
                format!("{} has schema version {}", path.display(), found.schema_version),
            )],
            // The check of the folder reports it.
            Err(_) if check_folder(folder_of(path)).is_err() => Vec::new(),
            Err(error) => vec![Finding::critical("database", error)],
        });
    }
    let vault = vault::open_existing(config, profile, &backend).ok().flatten();
    if let Backend::Postgres(options) = &mut backend {
        options.migrate = false;
    }
    let store = match store::open(&backend, vault.as_ref()).await {
        Ok(store) => store,
        Err(error @ OpenError::OlderSchema { .. }) if config.database.auto_migrate => {
            return Ok(vec![describe_older_schema(&backend, &error).await]);
        }
        Err(error) => return Ok(vec![Finding::critical("database", error)]),
    };
    let mut findings = describe(&*store).await;
    if let Some(vault) = &vault {
        findings.push(match vault::check(vault, &*store).await {
            Ok(()) => Finding::ok("master key", "all secrets in the database can be read"),
            Err(error) => Finding::critical("master key", error),
        });
    }
    if profile == Profile::Serve && config.role.serves_api() && config.auth.admin_key.is_none() {
        findings.push(match KeyCache::load(&*store, None).await {
            Ok(keys) if keys.has_admin() => Finding::ok("admin key", "the database has one"),
            Ok(_) => Finding::critical("admin key", no_admin_key()),
            Err(error) => Finding::critical("admin key", error),
        });
    }
    Ok(findings)
}

/// Describes a database that the next start migrates.
async fn describe_older_schema(backend: &Backend, error: &OpenError) -> Finding {
    if let Backend::Postgres(options) = backend
        && let Err(error) = options.check_durability().await
    {
        return Finding::critical("database", error);
    }
    match error {
        OpenError::OlderSchema { database, found: 0, .. } => Finding::ok(
            "database",
            format!("{database} is reachable and has no tables yet; the first start creates them"),
        ),
        error => Finding::warning(
            "database",
            format!("{error}, or start a node, which migrates it; make a backup first"),
        ),
    }
}

/// Checks an open PostgreSQL store: durability, and the difference between its clock and this machine's.
async fn describe(store: &dyn Store) -> Vec<Finding> {
    let mut findings = Vec::new();
    match store.durability().await {
        Ok(durability) => findings.push(describe_durability(durability.as_ref())),
        Err(error) => findings.push(Finding::critical("database", error)),
    }
    if let Ok(theirs) = store::now(store).await {
        let difference = (theirs.millis() - Clock::system().now().millis()) / 1_000;
        findings.push(match difference.abs() > MAX_CLOCK_DIFFERENCE_SECONDS {
            true => Finding::warning(
                "clock",
                format!(
                    "the database's clock differs by {difference} s from this machine's; nodes follow the database, so \
                     correct the wrong one (timedatectl shows whether it is synchronized)"
                ),
            ),
            false => Finding::ok("clock", format!("differs by {difference} s from the database's")),
        });
    }
    findings
}

fn describe_durability(durability: Option<&Durability>) -> Finding {
    match durability {
        None => Finding::ok("database", "reachable"),
        Some(durability) => match durability.risk() {
            Some(risk) => Finding::warning("database", risk),
            None => Finding::ok("database", "reachable, and its commits are durable"),
        },
    }
}
