//! Page of a webhook: its health, what blocks it, and the available actions.

use std::time::Duration;

use askama::Template;
use axum::extract::State;
use redrive_core::{
    DeliveryStatus, Time, WebhookId,
    dispatch::gate::WaitingOn,
    security::signature::{HeaderForm, LiveSecret, Scheme, rotation_due_since},
    statistics::{rollup::Rollup, traffic::Range},
    webhook::{Webhook, WebhookState},
};
use redrive_store::{DeliveryFilter, PageRequest};
use serde::Deserialize;

use super::{
    charts::{self, ChartWithLegend},
    responses::{MAX_COUNTED, Responses, describe_range},
    settings_text, status_badge,
    status_text::{self, StatusMessage},
};
use crate::{
    api::AppState,
    app::{
        AppError, TenantView, deliveries::DeliveryDetails, health::Health,
        recoverable_counts::RecoverableCount,
    },
    dashboard::{
        PageResult,
        chart::Svg,
        format, outcome_text, overview,
        page::{FormQuery, Html, PageContext, PageQuery},
        viewer::TenantViewer,
    },
};

/// Number of recent deliveries shown.
const MAX_RECENT: u32 = 10;
/// Window of *Recover failed* for a webhook that is not failing.
const DEFAULT_WINDOW: Duration = Duration::from_secs(24 * 3_600);

/// Query of the page: the range of the charts.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ShowQuery {
    range: Option<String>,
}

impl PageQuery for ShowQuery {}

impl ShowQuery {
    /// Returns the requested range, or the last hour if it is missing or unknown.
    fn range(&self) -> Range {
        let requested = self.range.as_deref().and_then(Range::parse).unwrap_or_default();
        if charts::RANGES.contains(&requested) { requested } else { Range::default() }
    }
}

/// Attempt statistics of a time window.
struct Window<'a> {
    name: &'static str,
    rollup: &'a Rollup,
}

impl Window<'_> {
    /// Returns a percentile of the attempts' duration.
    fn percentile(&self, percent: f64) -> String {
        self.rollup.latencies.percentile(percent).map_or("–".to_owned(), format::millis)
    }

    /// Returns the number of attempts.
    fn attempts(&self) -> String {
        format::number(u64::from(self.rollup.attempts))
    }

    /// Returns the share of attempts that succeeded.
    fn success_rate(&self) -> String {
        self.rollup.success_rate().map_or("–".to_owned(), format::percent)
    }

    /// Returns the most frequent failure category with its count.
    fn most_frequent_failure(&self) -> String {
        self.rollup.most_frequent().map_or("–".to_owned(), |worst| {
            format!("{} ({})", format::category(worst), self.rollup.by_category[worst as usize])
        })
    }
}

/// Deliveries that failed since the trouble of the endpoint began.
struct FailedSummary {
    count: u64,
    is_complete: bool,
    since: Time,
    /// What happened at that time.
    cause: String,
}

impl FailedSummary {
    /// Counts what failed since the current series of failures began; without one, since the circuit last opened, or in
    /// the last day.
    async fn load(
        app: &AppState,
        tenant: &TenantView,
        webhook_id: WebhookId,
        health: &Health,
    ) -> Result<Self, AppError> {
        let opened_at = health.circuit.periods.iter().map(|period| period.opened_at).max();
        let (since, cause) = match (health.failing_since, opened_at) {
            // The first failure may have been recorded with a slightly earlier time.
            (Some(since), _) => (since.saturating_sub(Duration::from_secs(1)), "the failures began"),
            (None, Some(opened_at)) => (opened_at, "the circuit opened"),
            (None, None) => {
                // The last full minute, so that a page that nothing changed stays equal.
                let now = app.engine().clock().now().millis();
                let day_ago = Time::from_millis(now - now.rem_euclid(60_000)).saturating_sub(DEFAULT_WINDOW);
                (day_ago, "24 hours ago")
            }
        };
        let RecoverableCount { count, is_complete } =
            app.count_recoverable(tenant, webhook_id, since).await?;
        let cause = format!("{cause}, {}", format::format_time(since));
        Ok(Self { count, is_complete, since, cause })
    }
}

#[derive(Template)]
#[template(path = "webhook.html")]
struct ShowPage {
    layout: PageContext,
    query: FormQuery<ShowQuery>,
    name: String,
    status_messages: Vec<StatusMessage>,
    traffic_charts: [ChartWithLegend; 2],
    responses: Responses,
    circuit: Svg,
    breaker_text: String,
    retry_text: String,
    schedule: Svg,
    steps: Vec<charts::Step>,
    setting_rows: Vec<(&'static str, String)>,
    filter: Option<String>,
    rotation_due: Option<Time>,
    recent: Vec<DeliveryDetails>,
    /// What *Recover failed* would resend; `None` if the viewer may not resend, or the webhook receives no events.
    failed: Option<FailedSummary>,
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

    /// Returns the selectable ranges, each with whether it is the current one.
    fn ranges(&self) -> [(&'static str, bool); 3] {
        charts::RANGES.map(|range| (range.name(), range == self.query.query.range()))
    }

    /// Describes the time range of the charts.
    fn range_text(&self) -> &'static str {
        describe_range(self.query.query.range())
    }

    /// Returns the color of the success rate.
    fn rate_tone(&self) -> &'static str {
        overview::rate_tone(self.health.last_hour.success_rate())
    }

    /// Returns the webhook's API path.
    fn api(&self) -> String {
        format!("/v1/webhooks/{}", self.webhook.id)
    }

    /// Returns the webhook's dashboard path.
    fn path(&self) -> String {
        format!("{}/webhooks/{}", self.layout.base(), self.webhook.id)
    }

    /// Describes the pending deliveries that wait for a cause, given its API name. The cause of a paused state is known
    /// here.
    fn wait_text(&self, name: &str) -> String {
        match self.webhook.state {
            WebhookState::Paused if name == WaitingOn::Paused.name() => "waiting: webhook paused".to_owned(),
            WebhookState::PendingVerification(_) if name == WaitingOn::Paused.name() => {
                "waiting: URL not verified".to_owned()
            }
            _ => format::wait_text(name),
        }
    }

    fn is_paused(&self) -> bool {
        self.webhook.state == WebhookState::Paused
    }

    fn is_active(&self) -> bool {
        self.webhook.state == WebhookState::Active
    }

    fn is_disabled(&self) -> bool {
        self.webhook.state.cancels_deliveries()
    }

    /// Returns whether `X-Webhook-Signature` has the format `sha256`, which carries no signature of a previous secret.
    fn has_sha256_header(&self) -> bool {
        self.webhook.spec.signature.header_format == HeaderForm::Sha256
    }

    /// Returns the public key that verifies signatures of a secret, or `None` if the scheme has none.
    fn public_key(&self, live: &LiveSecret) -> Option<String> {
        match self.webhook.spec.signature.scheme {
            Scheme::Standard => None,
            Scheme::StandardEd25519 => Some(live.secret.public_key()),
        }
    }
}

/// Returns the displayed name of a webhook: its description, or else its URL.
pub(in crate::dashboard) fn name_of(webhook: &Webhook) -> String {
    let named = webhook.spec.description.as_deref().map(str::trim).filter(|text| !text.is_empty());
    format::shortened(named.unwrap_or(&webhook.spec.url), 80)
}

/// Renders the page.
pub(in crate::dashboard) async fn show(
    State(app): State<AppState>,
    viewer: TenantViewer,
    query: FormQuery<ShowQuery>,
) -> PageResult {
    let webhook = app.webhook(viewer.tenant.clone(), viewer.id("webhook")?).await?;
    let health = app.health(viewer.tenant.clone(), webhook.id).await?;
    let filter = DeliveryFilter { webhooks: vec![webhook.id], ..DeliveryFilter::default() };
    let newest = PageRequest { after: None, offset: 0, limit: MAX_RECENT };
    let recent = app.list_deliveries(viewer.tenant.clone(), filter, newest).await?.found;
    let layout = viewer.layout("webhooks");
    let failed = match layout.may_resend && webhook.state.receives_events() {
        true => Some(FailedSummary::load(&app, &viewer.tenant, webhook.id, &health).await?),
        false => None,
    };
    let owner_email = webhook.spec.owner.as_ref().and_then(|owner| owner.email.as_deref());
    let owner = app.address_states(viewer.tenant.id.clone(), owner_email).await?.pop();
    let (retry, breaker) = app.policies(&webhook.spec)?;
    let now = app.engine().clock().now();
    let axis = query.query.range().axis(now);
    let mut totals = Rollup::default();
    for minute in health.minutes.iter().filter(|minute| axis.index_of(minute.minute).is_some()) {
        totals.merge(&minute.rollup);
    }
    let indexed = app.attempts_by_result(&viewer.tenant, webhook.id, axis.begin(), MAX_COUNTED).await?;
    let filter = webhook.spec.filter.as_ref().and_then(|filter| {
        let value = serde_json::to_value(filter).ok()?;
        serde_json::to_string_pretty(&value).ok()
    });
    Html::render(&ShowPage {
        layout,
        name: name_of(&webhook),
        status_messages: status_text::status_messages(&webhook, &health, now),
        responses: Responses::new(&totals, &indexed, axis.begin()),
        traffic_charts: charts::traffic_charts(&health.minutes, query.query.range(), now),
        circuit: charts::circuit_timeline(&health.circuit.periods, now),
        breaker_text: status_text::describe_breaker(&breaker),
        schedule: charts::schedule_chart(&retry),
        steps: charts::schedule_steps(&retry),
        retry_text: status_text::describe_retry(&retry),
        setting_rows: settings_text::setting_rows(&webhook.spec, owner.map(|owner| owner.status)),
        rotation_due: rotation_due_since(&webhook.secrets, now),
        filter,
        failed,
        recent,
        health,
        webhook,
        query,
    })
}
