//! One webhook in full: how it does, what holds it back, and what can be done about it.

use askama::Template;
use axum::extract::State;
use redrive_core::{
    Time,
    security::signature::{LiveSecret, Scheme, rotation_due},
    statistics::rollup::Rollup,
    statistics::traffic::Range,
    webhook::{Webhook, WebhookState},
};
use redrive_store::{DeliveryFilter, PageRequest};
use serde::Deserialize;

use super::{
    charts::{self, Drawn},
    settings_text,
    status_text::{self, Notice},
};
use crate::{
    api::AppState,
    app::{deliveries::Seen, health::Health},
    dashboard::{
        Shown,
        chart::Svg,
        format, overview,
        page::{Asked, Frame, Html},
        viewer::Looking,
    },
};

/// How many deliveries are shown.
const RECENT: u32 = 10;

/// How far back the charts reach.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ShowQuery {
    range: Option<String>,
}

impl ShowQuery {
    /// The range asked for; the last hour if there is no such range.
    fn range(&self) -> Range {
        let asked = self.range.as_deref().and_then(Range::parse).unwrap_or_default();
        if charts::RANGES.contains(&asked) { asked } else { Range::default() }
    }
}

/// A span of time with what came back in it.
struct Window<'a> {
    name: &'static str,
    rollup: &'a Rollup,
}

impl Window<'_> {
    /// The time within which so many percent of the attempts ended.
    fn percentile(&self, percent: f64) -> String {
        self.rollup.latencies.percentile(percent).map_or("–".to_owned(), format::millis)
    }

    /// How many attempts were made.
    fn attempts(&self) -> String {
        format::number(u64::from(self.rollup.attempts))
    }

    /// The share of attempts that succeeded.
    fn success_rate(&self) -> String {
        self.rollup.success_rate().map_or("–".to_owned(), format::percent)
    }

    /// In what way most of the others failed.
    fn mostly(&self) -> String {
        self.rollup.worst().map_or("–".to_owned(), |worst| {
            format!("{} ({})", format::category(worst), self.rollup.by_category[worst as usize])
        })
    }
}

#[derive(Template)]
#[template(path = "webhook.html")]
struct ShowPage {
    frame: Frame,
    asked: Asked<ShowQuery>,
    name: String,
    notices: Vec<Notice>,
    drawn: [Drawn; 2],
    circuit: Svg,
    breaker: String,
    retry: String,
    schedule: Svg,
    steps: Vec<charts::Step>,
    facts: Vec<(&'static str, String)>,
    filter: Option<String>,
    rotation_due: Option<Time>,
    recent: Vec<Seen>,
    health: Health,
    webhook: Webhook,
}

impl ShowPage {
    fn windows(&self) -> [Window<'_>; 3] {
        let health = &self.health;
        [
            Window { name: "Last 5 minutes", rollup: &health.last_5_minutes },
            Window { name: "Last hour", rollup: &health.last_hour },
            Window { name: "Last 24 hours", rollup: &health.last_24_hours },
        ]
    }

    fn hour(&self) -> Window<'_> {
        Window { name: "Last hour", rollup: &self.health.last_hour }
    }

    /// The ranges to choose from, with whether each is the one that is shown.
    fn ranges(&self) -> [(&'static str, bool); 3] {
        charts::RANGES.map(|range| (range.name(), range == self.asked.query.range()))
    }

    /// The colour of the share of successes.
    fn rate_tone(&self) -> &'static str {
        overview::rate_tone(self.health.last_hour.success_rate())
    }

    /// Where the API has it.
    fn api(&self) -> String {
        format!("/v1/webhooks/{}", self.webhook.id)
    }

    /// Where the dashboard has it.
    fn here(&self) -> String {
        format!("{}/webhooks/{}", self.frame.base(), self.webhook.id)
    }

    fn is_paused(&self) -> bool {
        self.webhook.state == WebhookState::Paused
    }

    fn is_active(&self) -> bool {
        self.webhook.state == WebhookState::Active
    }

    fn is_disabled(&self) -> bool {
        self.webhook.state.cancels_because().is_some()
    }

    /// The key that verifies what a secret signs, where there is one.
    fn public_key(&self, live: &LiveSecret) -> Option<String> {
        match self.webhook.spec.signature.scheme {
            Scheme::Standard => None,
            Scheme::StandardEd25519 => Some(live.secret.public_key()),
        }
    }
}

/// What a webhook is called on its page.
pub(super) fn name_of(webhook: &Webhook) -> String {
    let named = webhook.spec.description.as_deref().map(str::trim).filter(|text| !text.is_empty());
    format::shortened(named.unwrap_or(&webhook.spec.url), 80)
}

/// The page.
pub(in crate::dashboard) async fn show(
    State(app): State<AppState>,
    looking: Looking,
    asked: Asked<ShowQuery>,
) -> Shown {
    let webhook = app.webhook(looking.tenant.clone(), looking.id("webhook")?).await?;
    let health = app.health(looking.tenant.clone(), webhook.id).await?;
    let filter = DeliveryFilter { webhooks: vec![webhook.id], ..DeliveryFilter::default() };
    let newest = PageRequest { after: None, offset: 0, limit: RECENT };
    let recent = app.list_deliveries(looking.tenant.clone(), filter, newest).await?.found;
    let owner_email = webhook.spec.owner.as_ref().and_then(|owner| owner.email.as_deref());
    let owner = app.address_states(looking.tenant.id.clone(), owner_email).await?.pop();
    let (retry, breaker) = app.policies(&webhook.spec)?;
    let now = app.engine().clock().now();
    let filter = webhook.spec.filter.as_ref().and_then(|filter| {
        let value = serde_json::to_value(filter).ok()?;
        serde_json::to_string_pretty(&value).ok()
    });
    Html::of(&ShowPage {
        frame: looking.frame("webhooks"),
        name: name_of(&webhook),
        notices: status_text::notices(&webhook, &health, now),
        drawn: charts::traffic(&health.minutes, asked.query.range(), now),
        circuit: charts::open_times(&health.circuit.periods, now),
        breaker: status_text::breaker(&breaker),
        schedule: charts::schedule(&retry),
        steps: charts::steps(&retry),
        retry: status_text::retry(&retry),
        facts: settings_text::facts(&webhook.spec, owner.map(|owner| owner.status)),
        rotation_due: rotation_due(&webhook.secrets, now),
        filter,
        recent,
        health,
        webhook,
        asked,
    })
}
