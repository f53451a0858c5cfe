//! Dead letters page: counts by cause, webhook and event type, the filtered list, and resending.

use std::time::Duration;

use askama::Template;
use axum::extract::State;
use redrive_core::{DeadReason, DeliveryStatus, FailureCategory, Time};
use redrive_store::DeliveryFilter;

use super::{
    PageResult,
    bulk::Bulk,
    format, outcome_text,
    page::{FormQuery, Html, PageContext},
    viewer::TenantViewer,
    webhook_names::{Choices, Names},
};
use crate::{
    api::{AppState, DeliveryQuery, cursor_of},
    app::{
        dead_letters::{DeadStats, TopCounts},
        deliveries::DeliveryDetails,
    },
};

/// Rows on one page.
const PAGE_SIZE: u32 = 25;
/// Maximum number of groups shown per breakdown.
const MAX_GROUPS: usize = 8;

/// Dead letters with the same cause, webhook or event type.
struct Group {
    name: String,
    title: String,
    count: u64,
    /// Link to the page filtered by this group.
    link: String,
    /// Length of its bar, in percent.
    width: u64,
}

#[derive(Template)]
#[template(path = "dead_letters.html")]
struct DeadPage {
    layout: PageContext,
    query: FormQuery<DeliveryQuery>,
    choices: Choices,
    names: Names,
    rows: Vec<DeliveryDetails>,
    next: Option<String>,
    bulk: Bulk,
    stats: DeadStats,
    by_age: Vec<Group>,
    by_cause: Vec<Group>,
    by_webhook: Vec<Group>,
    by_type: Vec<Group>,
    /// API call that purges what the filter selects.
    purge: String,
}

impl DeadPage {
    /// Returns the number of dead letters whose last failure was temporary.
    fn temporary(&self) -> u64 {
        self.stats.by_recoverability[0]
    }

    /// Returns the share of dead deliveries among those that ended in the last hour or day.
    fn rate(&self, which: usize) -> Option<String> {
        let ended = self.stats.ended[which];
        let all = ended.all();
        (all > 0).then(|| format::percent(ended.dead as f64 / all as f64))
    }
}

/// Reduces a filter to the fields that the counts support; the listing supports more.
fn filter_for_counts(filter: DeliveryFilter) -> DeliveryFilter {
    DeliveryFilter {
        event_id: None,
        idempotency_key: None,
        subject: None,
        status: None,
        status_code: None,
        ..filter
    }
}

/// Renders the page.
pub(super) async fn list(
    State(app): State<AppState>,
    viewer: TenantViewer,
    query: FormQuery<DeliveryQuery>,
) -> PageResult {
    let paging = query.query.paging().or_limit(PAGE_SIZE);
    let tenant = viewer.tenant.clone();
    // A status filter is ignored: every dead letter has the same status.
    let filter = DeliveryFilter { status: None, ..query.query.filter(&app, &tenant).await? };
    let bulk = Bulk::for_filter(&filter);
    let stats = app.dead_stats(tenant.clone(), filter_for_counts(filter.clone())).await?;
    let found = app.list_dead(tenant.clone(), filter, paging.request()?).await?;
    let page = paging.page_of(found, cursor_of, |details| details);
    let next = page.next_cursor.map(|cursor| query.with("cursor", &cursor));
    let shown = page.data.iter().map(|details| details.delivery.webhook_id);
    let counted = stats.by_webhook.top.iter().take(MAX_GROUPS).map(|(id, _)| *id);
    let names = Names::load(&app, &tenant, shown.chain(counted)).await?;
    let choices = Choices::load(&app, &tenant, query.value("webhook_id")).await?;
    let now = app.engine().clock().now();
    Html::render(&DeadPage {
        by_age: by_age(&stats, &query, now),
        by_cause: by_cause(&stats, &query),
        by_webhook: by_webhook(&stats, &names, &query),
        by_type: by_type(&stats, &query),
        purge: format!("DELETE /v1/dlq?{}", query.filter_query()),
        layout: viewer.layout("dead"),
        query,
        choices,
        names,
        rows: page.data,
        next,
        bulk,
        stats,
    })
}

/// Returns the largest groups, and one without a link for all others.
fn groups<K>(
    counts: &TopCounts<K>,
    total: u64,
    describe: impl Fn(&K) -> (String, String, String),
) -> Vec<Group> {
    let width = |count: u64| (count * 100).div_ceil(total.max(1)).min(100);
    let largest = counts.top.iter().take(MAX_GROUPS).map(|(key, count)| {
        let (name, title, link) = describe(key);
        Group { name, title, link, count: *count, width: width(*count) }
    });
    let mut groups: Vec<_> = largest.collect();
    let others = counts.others + counts.top.iter().skip(MAX_GROUPS).map(|(_, count)| count).sum::<u64>();
    if others > 0 {
        let (name, title, link) = ("others".to_owned(), String::new(), String::new());
        groups.push(Group { name, title, link, count: others, width: width(others) });
    }
    groups
}

/// Returns the dead letters by the time since they died. The links name the times of the last full minute, so that a page
/// that nothing changed stays equal.
fn by_age(stats: &DeadStats, query: &FormQuery<DeliveryQuery>, now: Time) -> Vec<Group> {
    let minute = Time::from_millis(now.millis() - now.millis().rem_euclid(60_000));
    let before = |hours: u64| minute.saturating_sub(Duration::from_secs(hours * 3_600)).to_string();
    let (hour, day) = (before(1), before(24));
    let ages = [("under 1 h", &*hour, ""), ("1 to 24 h", &*day, &*hour), ("over 24 h", "", &*day)];
    let groups = ages.into_iter().zip(stats.by_age).map(|((name, from, to), count)| Group {
        name: name.to_owned(),
        title: format!("Dead letters that failed {name} ago"),
        count,
        link: query.with_all(&[("failed_from", from), ("failed_to", to)]),
        width: (count * 100).div_ceil(stats.size.max(1)).min(100),
    });
    groups.collect()
}

fn by_cause(stats: &DeadStats, query: &FormQuery<DeliveryQuery>) -> Vec<Group> {
    groups(&stats.by_category, stats.size, |category| match category {
        Some(category) => {
            (format::category(category), String::new(), query.with("failure_category", category.name()))
        }
        // No filter selects deliveries without a failure, but only expired ones can be dead without an attempt.
        None => {
            let link = query.with("dead_reason", DeadReason::Expired.name());
            ("expired, never attempted".to_owned(), String::new(), link)
        }
    })
}

fn by_webhook(stats: &DeadStats, names: &Names, query: &FormQuery<DeliveryQuery>) -> Vec<Group> {
    groups(&stats.by_webhook, stats.size, |id| {
        (names.short(id), names.long(id), query.with("webhook_id", &id.to_string()))
    })
}

fn by_type(stats: &DeadStats, query: &FormQuery<DeliveryQuery>) -> Vec<Group> {
    groups(&stats.by_event_type, stats.size, |name| {
        (name.clone(), String::new(), query.with("event_type", name))
    })
}
