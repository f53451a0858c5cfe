//! A quiet tenant beside a noisy one, whose endpoints accept every request and never respond.

use std::{error::Error, time::Duration};

use clap::Args;
use serde_json::{Value, json};

use super::ScenarioContext;
use crate::{
    await_arrivals,
    ledger::ReceiverBehavior,
    options::Sender,
    publisher::Stop,
    report::{self, StreamResult},
    run_log::RunLog,
    settle,
    setup::{Api, WebhookRequest, fields},
    stream::{Stream, numbered_type},
};

const QUIET: &str = "quiet";
const NOISY: &str = "noisy";

/// Measures a tenant at a fixed rate, alone and beside another tenant whose endpoints hang.
#[derive(Args)]
pub(crate) struct Neighbour {
    /// Events per second of the quiet tenant.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// Seconds of each of the two measurements: alone, and beside the noisy tenant.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Webhooks of the noisy tenant; each of its events goes to one of them, in turn.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(2..=1000))]
    webhooks: u32,
    /// Events that the noisy tenant publishes just before the second measurement.
    #[arg(long, default_value_t = 10_000)]
    backlog: u32,
    /// Events per second that the noisy tenant publishes during the second measurement.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    noise: u32,
    /// JSON object merged into the body that creates each webhook of the noisy tenant, instead of --webhook-extra.
    #[arg(long, default_value = "{}")]
    noisy_extra: String,
}

impl Neighbour {
    pub(crate) async fn run(&self, sender: &Sender, books: &RunLog) -> Result<Value, Box<dyn Error>> {
        self.set_up(sender).await?;
        settle().await;
        let context = ScenarioContext { sender, books };
        let stop = Stop::default();
        let drain = Duration::from_secs(sender.drain);

        let alone = context.run_stream(self.quiet(), context.accepting(self.measured()), &stop).await?;
        await_arrivals(&[&alone.ledger], drain).await;

        let hanging = |events: u32| books.add_stream(events as usize, 1, ReceiverBehavior::Hang);
        let backlog = context.run_stream(self.noisy(0), hanging(self.backlog), &stop).await?;
        let noise = context.run_stream(self.noisy(self.noise), hanging(self.noise * self.seconds), &stop);
        let beside = async {
            let beside = context.run_stream(self.quiet(), context.accepting(self.measured()), &stop).await?;
            await_arrivals(&[&beside.ledger], drain).await;
            Ok(beside)
        };
        let (noise, beside) = tokio::try_join!(noise, beside)?;
        self.line(books, &[&alone, &beside], &[&backlog, &noise])
    }

    async fn set_up(&self, sender: &Sender) -> Result<(), Box<dyn Error>> {
        let extra = fields(&self.noisy_extra)?;
        let mut api = Api::connect(sender).await?;
        api.create_tenant(QUIET).await?;
        api.create_tenant(NOISY).await?;
        let quiet = WebhookRequest {
            tenant: Some(QUIET),
            path: "/quiet/0".into(),
            events: &["bench.quiet"],
            extra: fields(&sender.webhook_extra)?,
        };
        api.create_webhook(quiet).await?;
        for webhook in 0..self.webhooks as usize {
            let event_type = numbered_type("bench.noisy", webhook);
            let path = format!("/noisy/{webhook}/0");
            let events: &[&str] = &[&event_type];
            api.create_webhook(WebhookRequest { tenant: Some(NOISY), path, events, extra: extra.clone() })
                .await?;
        }
        Ok(())
    }

    fn measured(&self) -> usize {
        self.rate as usize * self.seconds as usize
    }

    fn quiet(&self) -> Stream<'static> {
        Stream { tenant: Some(QUIET), ..Stream::new("bench.quiet", self.rate) }
    }

    fn noisy(&self, rate: u32) -> Stream<'static> {
        let types = self.webhooks as usize;
        Stream { tenant: Some(NOISY), types, ..Stream::new("bench.noisy", rate) }
    }

    /// Returns the report line. Only the quiet tenant's events can count as missing: the noisy tenant's endpoints
    /// never respond, so its deliveries are left out of the delivery guarantees.
    fn line(
        &self,
        books: &RunLog,
        quiet: &[&StreamResult; 2],
        noisy: &[&StreamResult],
    ) -> Result<Value, Box<dyn Error>> {
        let sum = |value: fn(&StreamResult) -> usize| noisy.iter().map(|played| value(played)).sum::<usize>();
        let mut line = json!({
            "scenario": "neighbour",
            "rate": self.rate,
            "seconds": self.seconds,
            "alone": observed(quiet[0])?,
            "beside": observed(quiet[1])?,
            "noisy": {
                "webhooks": self.webhooks,
                "acked": sum(|played| played.stats.acknowledged),
                "errors": sum(|played| played.stats.errors()),
                "hanging": sum(|played| played.ledger.summarize(.., |_| ()).arrivals as usize),
            },
        });
        report::merge(&mut line, report::delivery_guarantees(books, quiet));
        Ok(line)
    }
}

fn observed(played: &StreamResult) -> Result<Value, Box<dyn Error>> {
    Ok(json!({"arrival_ms": played.late_ms(..)?, "ack_ms": report::percentiles(&played.stats.ack_us)}))
}
