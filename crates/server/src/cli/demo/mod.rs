//! `redrive demo`: a server with simulated receivers and traffic.
//!
//! It takes only settings from the environment that concern no real installation, and uses its own data folder; it must
//! never touch a real installation.

mod fixtures;
mod folder;
mod receivers;
mod samples;

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::{Args, value_parser};
use futures_util::{StreamExt, stream};
use redrive_core::{TenantId, delivery::lane::Priority};
use redrive_engine::{EventDraft, clock};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use self::{folder::Folder, samples::Sample};
use super::{
    CliError,
    run::{self, Start},
};
use crate::{
    app::{Actor, App, AppError, Caller},
    config::{self, Config, DemoEnvironment, HostPort, Profile},
};

/// Maximum concurrent publishes.
const MAX_CONCURRENT: usize = 32;
/// Events of each type published at the start, so that every page shows data.
const INITIAL_EVENTS_PER_TYPE: usize = 8;

#[derive(Args, Clone)]
pub(super) struct DemoArgs {
    /// Host and port to listen on, by default 127.0.0.1:8080; port 0 picks a free one. Loopback, unless --allow-remote is
    /// given.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<HostPort>,
    /// Listen on other addresses than loopback, as in a container. Every client that has the printed link can then let
    /// Redrive call services of this machine.
    #[arg(long)]
    allow_remote: bool,
    /// Folder for the data, kept for the next run; by default a temporary folder that is removed at exit.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Approximate number of events published per second, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u32).range(1..=1000))]
    rate: u32,
}

/// Runs the demo until it is stopped.
pub(super) fn run(args: &DemoArgs) -> Result<(), CliError> {
    let mut defaults = Config::defaults(Profile::Dev);
    // Circuits change state constantly here; at `info` the log would scroll the printed link out of view.
    defaults.log.level = "warn".into();
    let listen = defaults.server.listen.clone();
    let (mut config, environment) = config::load_demo(&defaults)?;
    let listen = std::mem::replace(&mut config.server.listen, listen);
    let listen = args.listen.clone().unwrap_or(listen);
    if !listen.is_loopback() && !args.allow_remote {
        return Err(CliError::message(
            "--listen: a demo listens on loopback only; use an address such as 127.0.0.1:8081, or add --allow-remote \
             where only trusted users can connect",
        ));
    }
    let folder = Folder::open(args.data.as_deref())?;
    config.database.url = folder.database()?.as_str().into();
    config.validate(Profile::Dev)?;
    // After the check, which refuses every other address.
    config.server.listen = listen;
    let demo =
        Demo { rate: args.rate, data: folder.describe(), allow_remote: args.allow_remote, environment };
    run::run(Start { config, profile: Profile::Dev, reread: None, demo: Some(demo) })
}

/// Settings of a server that runs as a demo.
pub(super) struct Demo {
    rate: u32,
    /// Description of the location of the data and whether it is kept.
    data: String,
    /// Whether it may listen on other addresses than loopback.
    allow_remote: bool,
    /// Environment variables that it uses and ignores.
    environment: DemoEnvironment,
}

impl Demo {
    /// Returns whether it may listen on other addresses than loopback.
    pub(super) fn allows_remote(&self) -> bool {
        self.allow_remote
    }

    /// Returns the banner printed at startup.
    pub(super) fn banner(&self) -> String {
        let mut banner = format!(
            "This is a demo with simulated receivers and {} simulated events per second.\n{}",
            self.rate, self.data
        );
        let DemoEnvironment { used, ignored } = &self.environment;
        for (title, names) in [("Settings from the environment", used), ("Ignored by the demo", ignored)] {
            if !names.is_empty() {
                banner += &format!("\n{title}: {}", names.join(", "));
            }
        }
        banner
    }

    /// Starts the receivers, and creates missing tenants, event types and webhooks.
    pub(super) async fn set_up(&self, app: &App, stop: &CancellationToken) -> Result<(), CliError> {
        fixtures::set_up(app, &actor(), stop).await
    }

    /// Publishes some events immediately, then more at the configured rate until it is stopped.
    pub(super) async fn publish(&self, app: &App, stop: &CancellationToken) {
        let mut pace = tokio::time::interval(Duration::from_secs(1) / self.rate);
        pace.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let opening = (0..INITIAL_EVENTS_PER_TYPE).flat_map(|_| &samples::ALL);
        let steady = stream::unfold(pace, async |mut pace| {
            pace.tick().await;
            Some((samples::pick_sample(clock::random_unit()), pace))
        });
        let all = stream::iter(opening).chain(steady).take_until(stop.cancelled());
        all.for_each_concurrent(MAX_CONCURRENT, async |sample| {
            // A demo event that cannot be published, for instance because the disk is full, is dropped.
            if let Err(error) = publish(app, sample).await {
                tracing::debug!(%error, event_type = sample.name, "publishing a sample event failed");
            }
        })
        .await;
    }
}

async fn publish(app: &App, sample: &Sample) -> Result<(), AppError> {
    let (subject, data) = sample.generate(clock::random_unit);
    let draft = EventDraft {
        tenant_id: tenant(sample.tenant)?,
        event_type: sample.name.into(),
        data: data.to_string().into(),
        idempotency_key: None,
        source: Some("redrive-demo".into()),
        subject: Some(subject.into()),
        metadata: None,
        priority: if sample.name.starts_with("invoice.") { Priority::High } else { Priority::Normal },
        only_webhook: None,
        edited: None,
        trace: None,
        hops: 0,
    };
    app.publish(draft).await.map(drop)
}

fn tenant(name: &str) -> Result<TenantId, AppError> {
    Ok(TenantId::parse(name)?)
}

/// Returns the actor for the audit log.
fn actor() -> Actor {
    Actor { caller: Arc::new(Caller::unlimited("redrive demo")), address: None }
}
