//! SIGHUP: reloads the egress rules without a restart.
//!
//! No other setting is reloaded, and an invalid configuration changes nothing.

use std::sync::Arc;

use redrive_egress::Client;
use tokio::signal::unix::{SignalKind, signal};

use super::{CliError, systemd};
use crate::{
    app::App,
    config::{Config, ConfigError},
};

/// Reads the configuration again from the same file, environment and flags as at startup.
pub(super) type ConfigReader = Box<dyn Fn() -> Result<Config, ConfigError> + Send>;

/// Installs the SIGHUP handler that reloads the egress rules.
pub(super) fn on_hangup(reread: ConfigReader, app: Arc<App>, egress: Client) -> Result<(), CliError> {
    let hangup = signal(SignalKind::hangup());
    let mut hangup = hangup
        .map_err(|error| CliError::message(format!("installing the signal handler failed: {error}")))?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            systemd::notify_reloading();
            match reread() {
                Ok(config) => {
                    // Exposed secret files are only logged here; they do not stop a running server.
                    config.warn_of_exposed_files();
                    apply_rules(&config, &app, &egress);
                }
                Err(error) => {
                    tracing::error!(%error, "reload failed: invalid configuration; egress rules unchanged");
                }
            }
            systemd::notify_reloaded();
        }
    });
    Ok(())
}

fn apply_rules(config: &Config, app: &App, egress: &Client) {
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
        "egress rules reloaded"
    );
}
