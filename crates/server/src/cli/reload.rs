//! SIGHUP: the rules of the way out are read again and put in force, without a restart.
//!
//! Nothing else changes, and a configuration that cannot be used changes nothing at all.

use std::sync::Arc;

use redrive_egress::Client;
use tokio::signal::unix::{SignalKind, signal};

use super::CliError;
use crate::{
    app::App,
    config::{Config, ConfigError},
};

/// Reads the configuration as it was read at the start: the same file, environment and flags.
pub(super) type Reread = Box<dyn Fn() -> Result<Config, ConfigError> + Send>;

/// From now on a SIGHUP reads the rules again.
pub(super) fn on_hangup(reread: Reread, app: Arc<App>, egress: Client) -> Result<(), CliError> {
    let hangup = signal(SignalKind::hangup());
    let mut hangup = hangup.map_err(|error| CliError::said(format!("signals cannot be heard: {error}")))?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            match reread() {
                Ok(config) => {
                    // A running server is not stopped for them.
                    config.warn_of_exposed_files();
                    put_in_force(&config, &app, &egress);
                }
                Err(error) => {
                    tracing::error!(%error, "the egress rules stay as they were: the configuration cannot be used");
                }
            }
        }
    });
    Ok(())
}

fn put_in_force(config: &Config, app: &App, egress: &Client) {
    let public_url = config.server.public_base();
    app.set_urls(config.egress.urls(public_url));
    egress.set_rules(config.egress.reach(public_url));
    let rules = &config.egress;
    tracing::info!(
        allow_networks = rules.allow_networks.len(),
        deny_networks = rules.deny_networks.len(),
        allow_hosts = rules.allow_hosts.len(),
        deny_hosts = rules.deny_hosts.len(),
        ports = rules.ports.len(),
        "the egress rules were read again and are in force"
    );
}
