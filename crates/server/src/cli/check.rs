//! Checks of everything that a start checks, without connecting to another server and without changing anything.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    path::Path,
};

use prometheus_client::registry::Registry;
use redrive_store::{
    OpenError,
    sqlite::{self, Inspection},
};
use rustix::{
    fs::{Access, access},
    io::Errno,
};

use super::{
    CliError,
    run::{DEV_KEY, admin_key, cannot_listen, load_tls, no_admin_key, resolve_dns_server},
};
use crate::{
    archive::Archive,
    config::{Backend, Config, Profile},
    files::{check_folder, folder_of},
    mail,
    oidc::IdentityProvider,
    otlp::Exporter,
    vault,
};

/// Checks the settings, the database file and the listen address. Returns notes about what it could not check.
pub(super) fn check(config: &Config, profile: Profile) -> Result<Vec<String>, CliError> {
    let mut notes = Vec::new();
    let database = match config.database.backend()? {
        Backend::Sqlite(path) => Some(inspect(&path)?.unwrap_or_default()),
        Backend::Postgres(_) => {
            notes.push("the database was not contacted; check it with: redrive doctor".into());
            None
        }
    };
    check_settings(config, profile, database.as_ref())?;
    notes.extend(check_listen_address(config, profile)?);
    Ok(notes)
}

/// Checks the settings and the files that they name. `database` is what was found in the database file; without it, the
/// database is assumed to have an admin key and to be readable with the master key.
pub(super) fn check_settings(
    config: &Config,
    profile: Profile,
    database: Option<&Inspection>,
) -> Result<(), CliError> {
    config.check_secret_files(profile)?;
    let backend = config.database.backend()?;
    let vault = vault::open_existing(config, profile, &backend)?;
    if let Backend::Postgres(options) = &backend {
        options.check()?;
    }
    if let (Some(vault), Some(found)) = (&vault, database) {
        vault::check_keys(vault, &found.encryption_keys)?;
    }
    let has_stored_admin_key = database.is_none_or(|found| found.has_admin_key);
    let is_created = profile == Profile::Dev && !backend.sibling_path(DEV_KEY).exists();
    let has_admin_key = has_stored_admin_key || is_created || admin_key(config, profile, &backend)?.is_some();
    if config.role.serves_api() && !has_admin_key {
        return Err(no_admin_key());
    }
    Archive::check(&config.archive).map_err(|error| CliError::message(error.to_string()))?;
    load_tls(config)?;
    for server in &config.egress.dns_servers {
        resolve_dns_server(server)?;
    }
    Exporter::from_settings(&config.tracing, &config.node, &mut Registry::default())?;
    IdentityProvider::from_settings(&config.oidc)?;
    let has_links = profile == Profile::Dev || config.server.public_base().is_some();
    mail::check_settings(&config.smtp, has_links)?;
    if let Some(redis) = &config.engine_settings()?.redis {
        redrive_engine::check_redis_settings(redis)
            .map_err(|error| CliError::message(format!("redis.url cannot be used: {error}")))?;
    }
    Ok(())
}

/// Inspects a database file. If there is none, checks that it can be created, and returns `None`.
pub(super) fn inspect(path: &Path) -> Result<Option<Inspection>, CliError> {
    let unusable = |error: io::Error| OpenError::Unusable {
        path: path.display().to_string(),
        reason: error.to_string(),
    };
    check_folder(folder_of(path)).map_err(unusable)?;
    if path.is_dir() {
        return Err(unusable(Errno::ISDIR.into()).into());
    }
    if path.exists() {
        access(path, Access::READ_OK | Access::WRITE_OK).map_err(|error| unusable(error.into()))?;
    }
    Ok(sqlite::inspect(path)?)
}

/// Checks that this machine has the address and may listen on the port. Returns a note if the port is in use, for
/// instance by the running server itself.
fn check_listen_address(config: &Config, profile: Profile) -> Result<Option<String>, CliError> {
    let address = &config.server.listen;
    match try_listen(config, profile) {
        Ok(()) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            Ok(Some(format!("{address} is in use at the moment; a second server cannot listen on it")))
        }
        Err(error) => Err(cannot_listen(address, &error)),
    }
}

/// Listens on the configured address for a moment.
pub(super) fn try_listen(config: &Config, profile: Profile) -> io::Result<()> {
    let addresses = config.server.listen.resolve_blocking()?;
    if profile == Profile::Dev {
        check_loopback(&addresses)?;
    }
    TcpListener::bind(&addresses[..]).map(drop)
}

/// Fails if one of the addresses is no loopback address: a system may resolve even `localhost` to another one.
pub(super) fn check_loopback(addresses: &[SocketAddr]) -> io::Result<()> {
    match addresses.iter().find(|address| !address.ip().is_loopback()) {
        None => Ok(()),
        Some(address) => {
            let ip = address.ip();
            Err(io::Error::other(format!(
                "it is resolved to {ip}, which is no loopback address of this machine"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resolved_address_must_be_loopback() {
        let at = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
        assert!(check_loopback(&at(&["127.0.0.1:80", "[::1]:80"])).is_ok());
        let error = check_loopback(&at(&["127.0.0.1:80", "10.0.0.1:80"])).unwrap_err();
        assert!(error.to_string().contains("10.0.0.1"), "{error}");
    }
}
