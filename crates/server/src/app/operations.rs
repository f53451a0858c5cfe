//! Bulk operations: retrying, calling off, purging and backfilling by filter, under way for as long as it takes.

use std::time::Duration;

use redrive_core::{
    Invalid, OperationId, Time, WebhookId,
    delivery::bulk_operation::{Among, OperationKind, OperationState, Selection, Turn},
};
use redrive_engine::TurnError;
use redrive_store::{Listed, Operation, OperationOrder, PageRequest};
use serde_json::json;

use super::{
    Actor, App, AppError, TenantView,
    audit::{Deed, Traces},
    deliveries::Seen,
    view::VisiblePage,
};

/// How long an answer waits for an operation that may well be over at once.
const SOON: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(20);
/// How many of those that a dry run has found are shown.
const SAMPLE: usize = 10;

/// What an operation would do.
pub struct DryRun {
    /// How many it would take on.
    pub total: u64,
    /// Whether all were counted.
    pub complete: bool,
    /// The first of them.
    pub sample: Vec<Seen>,
}

impl App {
    /// Refuses an operation that makes no sense, or names webhooks that are not there.
    async fn check_order(&self, tenant: &TenantView, order: &mut OperationOrder) -> Result<(), AppError> {
        order.selection.tenant_managed_only |= tenant.tenant_managed_only;
        let selection = &order.selection;
        selection.check()?;
        if order.among == Among::Dead && !selection.statuses.is_empty() {
            return Err(Invalid::new("filter.statuses", "dead letters are all dead; leave it out").into());
        }
        if order.among == Among::Deliveries && selection.is_all() {
            let what = "name at least one condition: this would be every delivery there ever was";
            return Err(Invalid::new("filter", what).into());
        }
        self.had_webhooks(tenant, &selection.webhook_ids).await
    }

    /// Tells what an operation would do, and does nothing.
    pub async fn dry_run(
        &self,
        tenant: impl Into<TenantView>,
        mut order: OperationOrder,
    ) -> Result<DryRun, AppError> {
        let tenant = tenant.into();
        self.check_order(&tenant, &mut order).await?;
        let survey = self.engine.survey(&tenant, &order, SAMPLE).await?;
        let sample = self.see_all(survey.sample).await?;
        Ok(DryRun { total: survey.total, complete: survey.complete, sample })
    }

    /// Begins an operation, now or at a later time.
    pub async fn begin_operation(
        &self,
        by: &Actor,
        tenant: impl Into<TenantView>,
        mut order: OperationOrder,
        start_at: Option<Time>,
    ) -> Result<Operation, AppError> {
        let view = tenant.into();
        self.check_order(&view, &mut order).await?;
        let tenant = view.id;
        let action = match order.kind {
            OperationKind::Retry => "deliveries.retry_batch",
            OperationKind::Cancel => "deliveries.cancel_batch",
            OperationKind::Purge => "dlq.purge",
            OperationKind::Backfill => "webhook.backfill",
        };
        let deed = Deed { action, tenant: Some(&tenant), object: None };
        self.audited(by, deed, async {
            let asked = json!({"asked": order, "start_at": start_at});
            let begun = self.engine.begin_operation(tenant.clone(), order, start_at, by.name.clone()).await?;
            let Some(operation) = begun else {
                let detail = "too many bulk operations of this tenant are under way; wait for one of them, or cancel it";
                return Err(AppError::conflict("too_many_operations", detail));
            };
            let traces =
                Traces { object: Some(operation.id.to_string()), after: Some(asked), ..Traces::default() };
            Ok((operation, traces))
        })
        .await
    }

    /// Refuses to send past events to a webhook that gets none, or is not there.
    pub async fn may_backfill(&self, tenant: &TenantView, webhook: WebhookId) -> Result<(), AppError> {
        self.webhook(tenant, webhook).await?;
        self.must_get_events(tenant, webhook).await
    }

    /// The operation as it is now, or as it is a moment later if it is over by then.
    pub async fn finished_soon(&self, operation: Operation) -> Result<Operation, AppError> {
        let (tenant, id) = (operation.tenant.clone(), operation.id);
        let over = async {
            loop {
                tokio::time::sleep(LOOK).await;
                let found = self.operation(tenant.clone(), id).await?;
                if found.state == OperationState::Completed {
                    return Ok(found);
                }
            }
        };
        match tokio::time::timeout(SOON, over).await {
            Ok(found) => found,
            Err(_) => self.operation(tenant.clone(), id).await,
        }
    }

    /// One operation.
    pub async fn operation(
        &self,
        tenant: impl Into<TenantView>,
        id: OperationId,
    ) -> Result<Operation, AppError> {
        let view = tenant.into();
        let missing = || AppError::NotFound("operation");
        let found = self.store().operation(view.id.clone(), id).await?.ok_or_else(missing)?;
        self.visible_operations(&view, vec![found]).await?.pop().ok_or_else(missing)
    }

    /// Leaves out operations on webhooks that the caller does not see.
    async fn visible_operations(
        &self,
        view: &TenantView,
        mut operations: Vec<Operation>,
    ) -> Result<Vec<Operation>, AppError> {
        if view.tenant_managed_only {
            let named = operations.iter().flat_map(|one| one.order.selection.webhook_ids.iter().copied());
            let seen = self.names(view, named.collect()).await?;
            // An operation that names no webhook works on those that the caller does not see as well, unless it was
            // started with this restriction.
            operations.retain(|one| {
                let selection = &one.order.selection;
                let ids = &selection.webhook_ids;
                selection.tenant_managed_only || !ids.is_empty() && ids.iter().all(|id| seen.contains_key(id))
            });
        }
        Ok(operations)
    }

    /// A tenant's operations, newest first.
    pub async fn list_operations(
        &self,
        tenant: impl Into<TenantView>,
        page: PageRequest<OperationId>,
    ) -> Result<Listed<Operation, OperationId>, AppError> {
        let view = tenant.into();
        if !view.tenant_managed_only {
            let found = self.store().list_operations(view.id, page).await?;
            return Ok(Listed { found, stopped: None });
        }
        let mut visible = VisiblePage::new(page);
        while let Some(round) = visible.next_round() {
            let found = self.store().list_operations(view.id.clone(), round).await?;
            let (count, last) = (found.len(), found.last().map(|one| one.id));
            visible.add(count, last, self.visible_operations(&view, found).await?);
        }
        Ok(visible.finish()?)
    }

    /// Holds an operation, lets it go on, or ends it.
    pub async fn turn_operation(
        &self,
        by: &Actor,
        tenant: impl Into<TenantView>,
        id: OperationId,
        turn: Turn,
    ) -> Result<Operation, AppError> {
        let view = tenant.into();
        if view.tenant_managed_only {
            self.operation(&view, id).await?;
        }
        let tenant = view.id;
        let action = match turn {
            Turn::Pause => "operation.pause",
            Turn::Resume => "operation.resume",
            Turn::Cancel => "operation.cancel",
        };
        let deed = Deed { action, tenant: Some(&tenant), object: Some(id.to_string()) };
        self.audited(by, deed, async {
            let turned = self.engine.turn_operation(tenant.clone(), id, turn).await?;
            let after = Some(json!({"status": turned.state}));
            Ok((turned, Traces { after, ..Traces::default() }))
        })
        .await
    }
}

impl From<TurnError> for AppError {
    fn from(error: TurnError) -> Self {
        match error {
            TurnError::Missing => Self::NotFound("operation"),
            TurnError::NotNow(why) => {
                Self::conflict("operation_over", format!("the operation cannot be changed: {why}"))
            }
            TurnError::Store(error) => error.into(),
        }
    }
}

/// A selection of one webhook's events between two times.
pub fn events_for(
    webhook: WebhookId,
    event_types: Vec<String>,
    from: Option<Time>,
    to: Option<Time>,
) -> Selection {
    Selection { webhook_ids: vec![webhook], event_types, from, to, ..Selection::default() }
}
