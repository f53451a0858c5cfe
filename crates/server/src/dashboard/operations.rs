//! Bulk operation pages: the list, and the progress of one operation.

use askama::Template;
use axum::extract::State;
use redrive_core::{
    OperationId, WebhookId,
    delivery::bulk_operation::{OperationFilter, OperationKind, OperationState, OperationTarget},
    protection::breaker::CircuitState,
};
use redrive_store::Operation;

use super::{
    PageResult, format, outcome_text,
    page::{FormQuery, Html, PageContext},
    viewer::TenantViewer,
    webhook_names::Names,
};
use crate::{
    api::{AppState, OperationView, Paging},
    app::{AppError, TenantView},
};

/// Rows on one page.
const PAGE_SIZE: u32 = 25;
/// Width of a progress bar, in its own units.
const WIDTH: u64 = 1_000;
/// Maximum number of webhooks of a filter that are shown by name.
const MAX_NAMED_WEBHOOKS: usize = 5;

/// Returns the title of an operation.
fn title(operation: &Operation) -> &'static str {
    match (operation.order.kind, operation.order.among) {
        (OperationKind::Retry, OperationTarget::Dead) => "Resend of dead letters",
        (OperationKind::Retry, _) => "Resend of deliveries",
        (OperationKind::Cancel, _) => "Cancellation of deliveries",
        (OperationKind::Purge, _) => "Purge of dead letters",
        (OperationKind::Backfill, _) => "Backfill of a webhook",
    }
}

/// An operation in a list.
struct Row {
    operation: Operation,
    view: OperationView,
}

impl Row {
    fn new(operation: Operation, app: &AppState) -> Self {
        Self { view: OperationView::new(operation.clone(), app.engine().clock().now()), operation }
    }

    fn title(&self) -> &'static str {
        title(&self.operation)
    }

    /// Returns the progress in percent, or `None` while the total is not known.
    fn percent(&self) -> Option<u64> {
        let progress = &self.view.progress;
        let processed = progress.done + progress.skipped;
        match (self.operation.state, progress.total) {
            (OperationState::Completed | OperationState::Delivering, _) => Some(100),
            (_, Some(0)) => Some(100),
            (_, Some(total)) => Some((processed * 100 / total).min(100)),
            (_, None) => None,
        }
    }
}

#[derive(Template)]
#[template(path = "operations.html")]
struct ListPage {
    layout: PageContext,
    query: FormQuery<Paging>,
    rows: Vec<Row>,
    next: Option<String>,
}

/// Renders the list.
pub(super) async fn list(
    State(app): State<AppState>,
    viewer: TenantViewer,
    query: FormQuery<Paging>,
) -> PageResult {
    let paging = query.query.clone().or_limit(PAGE_SIZE);
    let found = app.list_operations(viewer.tenant.clone(), paging.request()?).await?;
    let page = paging.page_of(found, |one| one.id, |one| Row::new(one, &app));
    let next = page.next_cursor.map(|cursor| query.with("cursor", &cursor));
    Html::render(&ListPage { layout: viewer.layout("operations"), query, rows: page.data, next })
}

/// Returns the webhooks, among the first that an active resend names, whose circuit is open.
async fn blocked_webhooks(
    app: &AppState,
    tenant: &TenantView,
    operation: &Operation,
) -> Result<Vec<WebhookId>, AppError> {
    let is_resend = matches!(operation.order.kind, OperationKind::Retry | OperationKind::Backfill);
    let is_waiting = matches!(operation.state, OperationState::Running | OperationState::Delivering);
    if !(is_resend && is_waiting) {
        return Ok(Vec::new());
    }
    let named = &operation.order.selection.webhook_ids;
    let named = &named[..named.len().min(MAX_NAMED_WEBHOOKS)];
    let states = app.circuit_states(&tenant.into(), named).await?;
    Ok(named.iter().copied().filter(|id| states.get(id) == Some(&CircuitState::Open)).collect())
}

/// A segment of a progress bar.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    class: &'static str,
    name: &'static str,
    count: u64,
    x: u64,
    width: u64,
}

/// Returns the segments of a progress bar, one per count that is not zero. The rest of the bar is what remains.
fn parts(counts: [(&'static str, &'static str, u64); 5], total: u64) -> Vec<Part> {
    let all = counts.iter().map(|(.., count)| count).sum::<u64>().max(total).max(1);
    let mut begin = 0;
    let mut parts = Vec::new();
    for (class, name, count) in counts {
        let (x, end) = (begin * WIDTH / all, (begin + count) * WIDTH / all);
        begin += count;
        if count > 0 {
            parts.push(Part { class, name, count, x, width: (end - x).max(1) });
        }
    }
    parts
}

#[derive(Template)]
#[template(path = "operation.html")]
struct DetailPage {
    layout: PageContext,
    row: Row,
    parts: Vec<Part>,
    /// Fields of the request with their values.
    request_fields: Vec<(&'static str, String)>,
    /// Link to the list that the operation works on.
    link: Option<String>,
    /// Webhooks whose open circuit delays the operation.
    blocked_by: Vec<WebhookId>,
}

impl DetailPage {
    fn is_running(&self) -> bool {
        matches!(self.row.operation.state, OperationState::Running | OperationState::Scheduled)
    }

    fn is_paused(&self) -> bool {
        self.row.operation.state == OperationState::Paused
    }
}

/// Renders an operation.
pub(super) async fn detail(State(app): State<AppState>, viewer: TenantViewer) -> PageResult {
    let id: OperationId = viewer.id("operation")?;
    let operation = app.operation(viewer.tenant.clone(), id).await?;
    let selection = &operation.order.selection;
    let named = selection.webhook_ids.iter().take(MAX_NAMED_WEBHOOKS).copied();
    let names = Names::load(&app, &viewer.tenant, named).await?;
    let request_fields = describe_request(selection, &names);
    let blocked_by = blocked_webhooks(&app, &viewer.tenant, &operation).await?;
    let layout = viewer.layout("operations");
    let link = (operation.order.among == OperationTarget::Dead).then(|| format!("{}/dead", layout.base()));
    let row = Row::new(operation, &app);
    let progress = &row.view.progress;
    let is_resend = progress.queued.is_some();
    let ended = progress.delivered + progress.dead_again + progress.cancelled;
    let counts = match is_resend {
        true => [
            ("good", "delivered", progress.delivered),
            ("bad", "dead again", progress.dead_again),
            ("off", "cancelled", progress.cancelled),
            ("busy", "in flight", progress.done.saturating_sub(ended)),
            ("off", "skipped", progress.skipped),
        ],
        false => [
            ("good", "done", progress.done),
            ("bad", "dead again", 0),
            ("off", "cancelled", 0),
            ("busy", "in flight", 0),
            ("off", "skipped", progress.skipped),
        ],
    };
    let parts = parts(counts, progress.total.unwrap_or(0));
    Html::render(&DetailPage { blocked_by, layout, row, parts, request_fields, link })
}

/// Returns the fields of an operation's selection as text.
fn describe_request(selection: &OperationFilter, names: &Names) -> Vec<(&'static str, String)> {
    let mut fields = Vec::new();
    let mut add = |name, values: Vec<String>| {
        if !values.is_empty() {
            fields.push((name, values.join(", ")));
        }
    };
    let mut webhooks: Vec<_> =
        selection.webhook_ids.iter().take(MAX_NAMED_WEBHOOKS).map(|id| names.long(id)).collect();
    if selection.webhook_ids.len() > MAX_NAMED_WEBHOOKS {
        webhooks.push(format!("and {} more", selection.webhook_ids.len() - MAX_NAMED_WEBHOOKS));
    }
    add("Webhooks", webhooks);
    add("Event types", selection.event_types.clone());
    add("Events", selection.event_ids.iter().map(ToString::to_string).collect());
    add("Idempotency keys", selection.idempotency_keys.clone());
    add("Subjects", selection.subjects.clone());
    add("Status codes", selection.status_codes.iter().map(ToString::to_string).collect());
    add("Deliveries", selection.failed.then(|| "failed, not delivered".to_owned()).into_iter().collect());
    add("Failures", selection.failure_categories.iter().map(format::category).collect());
    add("Status", selection.statuses.iter().map(|status| format::humanize(status.name())).collect());
    add(
        "Failure reason",
        selection.dead_reasons.iter().map(|reason| format::humanize(reason.name())).collect(),
    );
    let likely = |likely: bool| if likely { "temporary" } else { "requires a change" };
    add("Last failure", selection.recoverable.map(likely).map(str::to_owned).into_iter().collect());
    add("Events from", selection.from.map(format::format_time).into_iter().collect());
    add("Events before", selection.to.map(format::format_time).into_iter().collect());
    add("Failed from", selection.failed_from.map(format::format_time).into_iter().collect());
    add("Failed before", selection.failed_to.map(format::format_time).into_iter().collect());
    let selected = |ids: &Vec<_>| format!("{} selected by ID", format::number(ids.len()));
    add("Selection", selection.delivery_ids.as_ref().map(selected).into_iter().collect());
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_bar_segments_match_counts() {
        let counts = |delivered, in_flight| {
            [
                ("good", "delivered", delivered),
                ("bad", "dead again", 1),
                ("off", "cancelled", 0),
                ("busy", "in flight", in_flight),
                ("off", "skipped", 0),
            ]
        };
        let drawn = parts(counts(4, 5), 20);
        let drawn: Vec<_> = drawn.iter().map(|part| (part.name, part.x, part.width)).collect();
        assert_eq!(drawn, [("delivered", 0, 200), ("dead again", 200, 50), ("in flight", 250, 250)]);
        // The total counted at the start may be lower than the number processed.
        assert_eq!(parts(counts(40, 9), 20).iter().map(|part| part.x + part.width).max(), Some(WIDTH));
        assert_eq!(parts(counts(0, 0), 0).len(), 1);
    }
}
