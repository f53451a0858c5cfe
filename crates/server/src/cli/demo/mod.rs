//! `redrive demo`: Redrive with receivers and events that are made up, so that there is something to look at.
//!
//! It reads no configuration and keeps its data apart: nothing of a real installation is ever touched by it.

mod fixtures;
mod folder;
mod receivers;
mod samples;

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use clap::{Args, value_parser};
use futures_util::{StreamExt, stream};
use redrive_core::{TenantId, delivery::lane::Priority};
use redrive_engine::{Draft, clock};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use self::{folder::Folder, samples::Sample};
use super::{
    CliError,
    run::{self, Start},
};
use crate::{
    app::{Actor, App, AppError, Caller, auth::Role},
    config::{Config, Profile},
};

/// Publishes under way at once; more wait for their turn.
const AT_ONCE: usize = 32;
/// How often each kind of event is published right at the start, so that everything has something to show.
const OPENING: usize = 8;

#[derive(Args, Clone)]
pub(super) struct DemoArgs {
    /// Address and port to listen on, on this machine only; port 0 picks a free one.
    #[arg(long, value_name = "ADDR:PORT", default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)))]
    listen: SocketAddr,
    /// Keep the data in this folder, and go on with it next time. Without it the data is in a temporary folder,
    /// which is removed at the end.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// About how many events are published each second, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u32).range(1..=1000))]
    rate: u32,
}

/// Runs the demo until it is told to stop.
pub(super) fn run(args: &DemoArgs) -> Result<(), CliError> {
    if !args.listen.ip().is_loopback() {
        return Err(CliError::said(
            "--listen: a demo is for this machine alone, so it listens on loopback only, such as 127.0.0.1:8081",
        ));
    }
    let folder = Folder::open(args.data.as_deref())?;
    let mut config = Config::defaults(Profile::Dev);
    config.server.listen = args.listen;
    config.database.url = folder.database()?.as_str().into();
    // Circuits move all the time here; the link at the end of what is printed should stay in sight.
    config.log.level = "warn".into();
    config.validate(Profile::Dev)?;
    let demo = Demo { rate: args.rate, data: folder.describe() };
    run::run(Start { config, profile: Profile::Dev, reread: None, demo: Some(demo) })
}

/// What makes a running server a demo.
pub(super) struct Demo {
    rate: u32,
    /// Where the data is and what becomes of it, in words.
    data: String,
}

impl Demo {
    /// What whoever starts it has to know before anything else.
    pub(super) fn words(&self) -> String {
        format!(
            "This is a demo: its receivers on this machine and its events, {} a second, are made up.\n{}",
            self.rate, self.data
        )
    }

    /// Starts the receivers, and makes the tenants, event types and webhooks that are not there yet.
    pub(super) async fn set_up(&self, app: &App, stop: &CancellationToken) -> Result<(), CliError> {
        fixtures::set_up(app, &actor(), stop).await
    }

    /// Publishes some events at once and more of them at its rate, until it is told to stop.
    pub(super) async fn publish(&self, app: &App, stop: &CancellationToken) {
        let mut pace = tokio::time::interval(Duration::from_secs(1) / self.rate);
        pace.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let opening = (0..OPENING).flat_map(|_| &samples::ALL);
        let steady = stream::unfold(pace, async |mut pace| {
            pace.tick().await;
            Some((samples::one_of_all(clock::roll()), pace))
        });
        let all = stream::iter(opening).chain(steady).take_until(stop.cancelled());
        all.for_each_concurrent(AT_ONCE, async |sample| {
            // What is refused for a moment, by a full disk for instance, is no loss here.
            if let Err(error) = publish(app, sample).await {
                tracing::debug!(%error, event_type = sample.name, "a sample event was not taken");
            }
        })
        .await;
    }
}

async fn publish(app: &App, sample: &Sample) -> Result<(), AppError> {
    let (subject, data) = sample.make(clock::roll);
    let draft = Draft {
        tenant: tenant(sample.tenant)?,
        event_type: sample.name.into(),
        data: data.to_string().into(),
        idempotency_key: None,
        source: Some("redrive-demo".into()),
        subject: Some(subject.into()),
        metadata: None,
        priority: if sample.name.starts_with("invoice.") { Priority::High } else { Priority::Normal },
        only: None,
        trace: None,
        hops: 0,
    };
    app.publish(draft).await.map(drop)
}

fn tenant(name: &str) -> Result<TenantId, AppError> {
    Ok(TenantId::parse(name)?)
}

/// Who the audit log names.
fn actor() -> Actor {
    let caller = Caller {
        key: None,
        name: "redrive demo".into(),
        role: Role::Admin,
        session: false,
        expires_at: None,
    };
    Actor { caller: Arc::new(caller), address: None }
}
