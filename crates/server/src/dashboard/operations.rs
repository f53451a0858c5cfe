//! Bulk operations: those there are, and one of them on its way.

use askama::Template;
use axum::extract::State;
use redrive_core::{
    OperationId,
    delivery::bulk_operation::{Among, OperationKind, OperationState, Selection},
};
use redrive_store::Operation;

use super::{
    Shown, format, outcome_text,
    page::{Asked, Frame, Html},
    viewer::Looking,
    webhook_names::Names,
};
use crate::api::{AppState, OperationView, Paging};

/// Rows on one page.
const ROWS: u32 = 25;
/// The width of a whole progress bar, in its own units.
const WIDTH: u64 = 1_000;
/// The most webhooks of a filter that are told by name.
const NAMED: usize = 5;

/// What an operation does, in words.
fn title(operation: &Operation) -> &'static str {
    match (operation.order.kind, operation.order.among) {
        (OperationKind::Retry, Among::Dead) => "Retry of dead letters",
        (OperationKind::Retry, _) => "Retry of deliveries",
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
    fn of(operation: Operation, app: &AppState) -> Self {
        Self { view: OperationView::new(operation.clone(), app.engine().clock().now()), operation }
    }

    fn title(&self) -> &'static str {
        title(&self.operation)
    }

    /// How far it is, of a hundred; none while that is not known.
    fn percent(&self) -> Option<u64> {
        let progress = &self.view.progress;
        let looked_at = progress.done + progress.skipped;
        match (self.operation.state, progress.total) {
            (OperationState::Completed | OperationState::Delivering, _) => Some(100),
            (_, Some(0)) => Some(100),
            (_, Some(total)) => Some((looked_at * 100 / total).min(100)),
            (_, None) => None,
        }
    }
}

#[derive(Template)]
#[template(path = "operations.html")]
struct ListPage {
    frame: Frame,
    asked: Asked<Paging>,
    rows: Vec<Row>,
    next: Option<String>,
}

/// The list.
pub(super) async fn list(State(app): State<AppState>, looking: Looking, asked: Asked<Paging>) -> Shown {
    let paging = asked.query.clone().or_limit(ROWS);
    let found = app.list_operations(looking.tenant.clone(), paging.request()?).await?;
    let page = paging.page_of(found, |one| one.id, |one| Row::of(one, &app));
    let next = page.next_cursor.map(|cursor| asked.with("cursor", &cursor));
    Html::of(&ListPage { frame: looking.frame("operations"), asked, rows: page.data, next })
}

/// A part of a progress bar.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    class: &'static str,
    name: &'static str,
    count: u64,
    x: u64,
    width: u64,
}

/// How far an operation is: what arrived, what failed again, what is on its way, what needed nothing. The rest of the
/// line is what is left.
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
    frame: Frame,
    row: Row,
    parts: Vec<Part>,
    /// What it was asked for, each with its name.
    asked_for: Vec<(&'static str, String)>,
    /// The listing of what it works on.
    link: Option<String>,
}

impl DetailPage {
    fn is_running(&self) -> bool {
        matches!(self.row.operation.state, OperationState::Running | OperationState::Scheduled)
    }

    fn is_paused(&self) -> bool {
        self.row.operation.state == OperationState::Paused
    }
}

/// One of them.
pub(super) async fn detail(State(app): State<AppState>, looking: Looking) -> Shown {
    let id: OperationId = looking.id("operation")?;
    let operation = app.operation(looking.tenant.clone(), id).await?;
    let selection = &operation.order.selection;
    let named = selection.webhook_ids.iter().take(NAMED).copied();
    let names = Names::of(&app, &looking.tenant, named).await?;
    let asked_for = told(selection, &names);
    let frame = looking.frame("operations");
    let link = (operation.order.among == Among::Dead).then(|| format!("{}/dead", frame.base()));
    let row = Row::of(operation, &app);
    let progress = &row.view.progress;
    let sends = progress.queued.is_some();
    let ended = progress.delivered + progress.failed_again + progress.cancelled;
    let counts = match sends {
        true => [
            ("good", "delivered", progress.delivered),
            ("bad", "failed again", progress.failed_again),
            ("off", "cancelled", progress.cancelled),
            ("busy", "on their way", progress.done.saturating_sub(ended)),
            ("off", "skipped", progress.skipped),
        ],
        false => [
            ("good", "done", progress.done),
            ("bad", "failed again", 0),
            ("off", "cancelled", 0),
            ("busy", "on their way", 0),
            ("off", "skipped", progress.skipped),
        ],
    };
    let parts = parts(counts, progress.total.unwrap_or(0));
    Html::of(&DetailPage { frame, row, parts, asked_for, link })
}

/// What an operation was asked for, in words.
fn told(selection: &Selection, names: &Names) -> Vec<(&'static str, String)> {
    let mut told = Vec::new();
    let mut tell = |name, values: Vec<String>| {
        if !values.is_empty() {
            told.push((name, values.join(", ")));
        }
    };
    let mut webhooks: Vec<_> = selection.webhook_ids.iter().take(NAMED).map(|id| names.long(id)).collect();
    if selection.webhook_ids.len() > NAMED {
        webhooks.push(format!("and {} more", selection.webhook_ids.len() - NAMED));
    }
    tell("Webhooks", webhooks);
    tell("Event types", selection.event_types.clone());
    tell("Failures", selection.failure_categories.iter().map(format::category).collect());
    tell("Status", selection.statuses.iter().map(|status| format::plain(status.name())).collect());
    tell("Died because", selection.dead_reasons.iter().map(|reason| format::plain(reason.name())).collect());
    let likely =
        |likely: bool| if likely { "likely to succeed now" } else { "unlikely to succeed as they are" };
    tell("Recovery", selection.recoverable.map(likely).map(str::to_owned).into_iter().collect());
    tell("Events from", selection.from.map(format::stamp).into_iter().collect());
    tell("Events before", selection.to.map(format::stamp).into_iter().collect());
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_what_is_done() {
        let counts = |delivered, on_their_way| {
            [
                ("good", "delivered", delivered),
                ("bad", "failed again", 1),
                ("off", "cancelled", 0),
                ("busy", "on their way", on_their_way),
                ("off", "skipped", 0),
            ]
        };
        let drawn = parts(counts(4, 5), 20);
        let drawn: Vec<_> = drawn.iter().map(|part| (part.name, part.x, part.width)).collect();
        assert_eq!(drawn, [("delivered", 0, 200), ("failed again", 200, 50), ("on their way", 250, 250)]);
        // What was counted before it began may be fewer than there are.
        assert_eq!(parts(counts(40, 9), 20).iter().map(|part| part.x + part.width).max(), Some(WIDTH));
        assert_eq!(parts(counts(0, 0), 0).len(), 1);
    }
}
