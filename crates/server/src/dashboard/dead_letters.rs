//! Dead letters: how many, why and where; those that a filter wants; and sending them again.

use askama::Template;
use axum::extract::State;
use redrive_core::{DeadReason, FailureCategory};
use redrive_store::DeliveryFilter;

use super::{
    Shown,
    bulk::Bulk,
    format, outcome_text,
    page::{Asked, Frame, Html},
    viewer::Looking,
    webhook_names::{Choices, Names},
};
use crate::{
    api::{AppState, DeliveryQuery, cursor_of},
    app::{
        dead_letters::{DeadStats, Tally},
        deliveries::Seen,
    },
};

/// Rows on one page.
const ROWS: u32 = 25;
/// The most groups of a kind that are shown.
const GROUPS: usize = 8;

/// Letters that have something in common.
struct Group {
    name: String,
    title: String,
    count: u64,
    /// The page with only these.
    link: String,
    /// How long its bar is, of a hundred.
    width: u64,
}

#[derive(Template)]
#[template(path = "dead_letters.html")]
struct DeadPage {
    frame: Frame,
    asked: Asked<DeliveryQuery>,
    choices: Choices,
    names: Names,
    rows: Vec<Seen>,
    next: Option<String>,
    bulk: Bulk,
    stats: DeadStats,
    by_cause: Vec<Group>,
    by_webhook: Vec<Group>,
    by_type: Vec<Group>,
    /// The call that takes off the list what the filter wants.
    purge: String,
}

impl DeadPage {
    /// How many may well succeed when they are sent again as they are.
    fn likely(&self) -> u64 {
        self.stats.by_recoverability[0]
    }

    /// The share of deliveries that died, of those that ended in the last hour or day.
    fn rate(&self, which: usize) -> Option<String> {
        let ended = self.stats.ended[which];
        let all = ended.all();
        (all > 0).then(|| format::percent(ended.dead as f64 / all as f64))
    }
}

/// What can be counted by; a listing can be asked for more.
fn countable(filter: DeliveryFilter) -> DeliveryFilter {
    DeliveryFilter {
        event: None,
        idempotency_key: None,
        subject: None,
        status: None,
        status_code: None,
        ..filter
    }
}

/// The page.
pub(super) async fn list(
    State(app): State<AppState>,
    looking: Looking,
    asked: Asked<DeliveryQuery>,
) -> Shown {
    let paging = asked.query.paging().or_limit(ROWS);
    let tenant = looking.tenant.clone();
    // They are all dead.
    let filter = DeliveryFilter { status: None, ..asked.query.filter()? };
    let bulk = Bulk::of(&filter);
    let stats = app.dead_stats(tenant.clone(), countable(filter.clone())).await?;
    let found = app.list_dead(tenant.clone(), filter, paging.request()?).await?;
    let page = paging.page_of(found, cursor_of, |seen| seen);
    let next = page.next_cursor.map(|cursor| asked.with("cursor", &cursor));
    let shown = page.data.iter().map(|seen| seen.delivery.webhook);
    let counted = stats.by_webhook.top.iter().take(GROUPS).map(|(id, _)| *id);
    let names = Names::of(&app, &tenant, shown.chain(counted)).await?;
    let choices = Choices::of(&app, &tenant, asked.value("webhook_id")).await?;
    Html::of(&DeadPage {
        by_cause: by_cause(&stats, &asked),
        by_webhook: by_webhook(&stats, &names, &asked),
        by_type: by_type(&stats, &asked),
        purge: format!("DELETE /v1/dlq?{}", asked.filter_query()),
        frame: looking.frame("dead"),
        asked,
        choices,
        names,
        rows: page.data,
        next,
        bulk,
        stats,
    })
}

/// The largest groups, and all others together. What is not to be chosen by has no link.
fn groups<K>(tally: &Tally<K>, of: u64, told: impl Fn(&K) -> (String, String, String)) -> Vec<Group> {
    let width = |count: u64| (count * 100).div_ceil(of.max(1)).min(100);
    let largest = tally.top.iter().take(GROUPS).map(|(key, count)| {
        let (name, title, link) = told(key);
        Group { name, title, link, count: *count, width: width(*count) }
    });
    let mut groups: Vec<_> = largest.collect();
    let others = tally.others + tally.top.iter().skip(GROUPS).map(|(_, count)| count).sum::<u64>();
    if others > 0 {
        let (name, title, link) = ("others".to_owned(), String::new(), String::new());
        groups.push(Group { name, title, link, count: others, width: width(others) });
    }
    groups
}

fn by_cause(stats: &DeadStats, asked: &Asked<DeliveryQuery>) -> Vec<Group> {
    groups(&stats.by_category, stats.size, |category| match category {
        Some(category) => {
            (format::category(category), String::new(), asked.with("failure_category", category.name()))
        }
        // No filter names those that never failed, but only what expired may not have.
        None => {
            let link = asked.with("dead_reason", DeadReason::Expired.name());
            ("expired, never tried".to_owned(), String::new(), link)
        }
    })
}

fn by_webhook(stats: &DeadStats, names: &Names, asked: &Asked<DeliveryQuery>) -> Vec<Group> {
    groups(&stats.by_webhook, stats.size, |id| {
        (names.short(id), names.long(id), asked.with("webhook_id", &id.to_string()))
    })
}

fn by_type(stats: &DeadStats, asked: &Asked<DeliveryQuery>) -> Vec<Group> {
    groups(&stats.by_event_type, stats.size, |name| {
        (name.clone(), String::new(), asked.with("event_type", name))
    })
}
