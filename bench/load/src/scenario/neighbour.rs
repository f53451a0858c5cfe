//! A quiet tenant beside a noisy one, whose endpoints take every request and never answer.

use std::{error::Error, time::Duration};

use clap::Args;
use serde_json::{Value, json};

use super::Stage;
use crate::{
    await_arrivals,
    ledger::Manner,
    options::Sender,
    publisher::Stop,
    report::{self, Played},
    run_log::Books,
    settle,
    setup::{Api, Hook, fields},
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
    /// Seconds that it is measured, alone and again beside the other.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Webhooks of the noisy tenant; its events go to one each, in turn.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(2..=1000))]
    webhooks: u32,
    /// Events that the noisy tenant publishes just before the second measurement.
    #[arg(long, default_value_t = 10_000)]
    backlog: u32,
    /// Events per second that it goes on with meanwhile.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    noise: u32,
    /// JSON object merged into the body that creates each of its webhooks, instead of --webhook-extra.
    #[arg(long, default_value = "{}")]
    noisy_extra: String,
}

impl Neighbour {
    pub(crate) async fn run(&self, sender: &Sender, books: &Books) -> Result<Value, Box<dyn Error>> {
        self.set_up(sender).await?;
        settle().await;
        let stage = Stage { sender, books };
        let stop = Stop::default();
        let drain = Duration::from_secs(sender.drain);

        let alone = stage.play(self.quiet(), stage.accepting(self.measured()), &stop).await?;
        await_arrivals(&[&alone.ledger], drain).await;

        let hanging = |events: u32| books.open(events as usize, 1, Manner::Hang);
        let backlog = stage.play(self.noisy(0), hanging(self.backlog), &stop).await?;
        let noise = stage.play(self.noisy(self.noise), hanging(self.noise * self.seconds), &stop);
        let beside = async {
            let beside = stage.play(self.quiet(), stage.accepting(self.measured()), &stop).await?;
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
        let quiet = Hook {
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
            api.create_webhook(Hook { tenant: Some(NOISY), path, events, extra: extra.clone() }).await?;
        }
        Ok(())
    }

    fn measured(&self) -> usize {
        self.rate as usize * self.seconds as usize
    }

    fn quiet(&self) -> Stream<'static> {
        Stream { tenant: Some(QUIET), ..Stream::of("bench.quiet", self.rate) }
    }

    fn noisy(&self, rate: u32) -> Stream<'static> {
        let types = self.webhooks as usize;
        Stream { tenant: Some(NOISY), types, ..Stream::of("bench.noisy", rate) }
    }

    /// Nothing is owed to the noisy tenant, so that only the quiet one's events can be missing.
    fn line(&self, books: &Books, quiet: &[&Played; 2], noisy: &[&Played]) -> Result<Value, Box<dyn Error>> {
        let sum = |value: fn(&Played) -> usize| noisy.iter().map(|played| value(played)).sum::<usize>();
        let mut line = json!({
            "scenario": "neighbour",
            "rate": self.rate,
            "seconds": self.seconds,
            "alone": seen(quiet[0])?,
            "beside": seen(quiet[1])?,
            "noisy": {
                "webhooks": self.webhooks,
                "acked": sum(|played| played.tally.acknowledged),
                "errors": sum(|played| played.tally.errors()),
                "hanging": sum(|played| played.ledger.sum_up(.., |_| ()).arrivals as usize),
            },
        });
        report::merge(&mut line, report::promises(books, quiet));
        Ok(line)
    }
}

fn seen(played: &Played) -> Result<Value, Box<dyn Error>> {
    Ok(json!({"arrival_ms": played.late_ms(..)?, "ack_ms": report::percentiles(&played.tally.ack_us)}))
}
