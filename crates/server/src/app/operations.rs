//! Bulk operations: retry, cancel, purge and backfill by filter, run in the background.

use std::time::Duration;

use redrive_core::{
    FieldError, OperationId, Time, WebhookId,
    delivery::bulk_operation::{
        OperationAction, OperationFilter, OperationKind, OperationState, OperationTarget,
    },
};
use redrive_engine::{OperationActionError, OperationStart};
use redrive_store::{CreationKey, ListingPage, Operation, OperationRequest, PageRequest};
use serde_json::json;

use super::{
    Actor, App, AppError, ErrorCode, TenantView,
    audit::{AuditChange, AuditedAction},
    creations::key_used,
    deliveries::DeliveryDetails,
    view::VisiblePage,
};

/// Time that a response waits for an operation that may finish quickly.
const COMPLETION_WAIT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Number of matches returned by a dry run.
const SAMPLE_SIZE: usize = 10;

/// Result of a dry run.
pub struct DryRun {
    /// Number of matches.
    pub total: u64,
    /// Number of matching deliveries that were delivered before, whether or not they are among the matches.
    pub already_delivered: u64,
    /// Whether all matches were counted.
    pub complete: bool,
    /// First matches.
    pub sample: Vec<DeliveryDetails>,
}

impl App {
    /// Rejects an operation with an invalid selection or with unknown webhooks.
    async fn check_operation_request(
        &self,
        tenant: &TenantView,
        order: &mut OperationRequest,
    ) -> Result<(), AppError> {
        order.selection.tenant_managed_only |= tenant.tenant_managed_only;
        let selection = &order.selection;
        selection.check()?;
        if order.among == OperationTarget::Dead && !selection.statuses.is_empty() {
            return Err(FieldError::new(
                "filter.statuses",
                "must be omitted for dead letters, which are all dead",
            )
            .into());
        }
        if order.among == OperationTarget::Deliveries && selection.is_unfiltered() {
            let what = "must have at least one condition; without one it would match every delivery";
            return Err(FieldError::new("filter", what).into());
        }
        self.require_known_webhooks(tenant, &selection.webhook_ids).await
    }

    /// Returns what an operation would select, without changing anything.
    pub async fn dry_run(
        &self,
        tenant: impl Into<TenantView>,
        mut order: OperationRequest,
    ) -> Result<DryRun, AppError> {
        let tenant = tenant.into();
        self.check_operation_request(&tenant, &mut order).await?;
        let survey = self.engine.count_candidates(&tenant, &order, SAMPLE_SIZE).await?;
        let sample = self.details_for_all(survey.sample).await?;
        Ok(DryRun {
            total: survey.total,
            already_delivered: survey.already_delivered,
            complete: survey.complete,
            sample,
        })
    }

    /// Starts an operation now or schedules it for later. With an idempotency key, it is created only if that key was not
    /// used before.
    pub async fn begin_operation(
        &self,
        actor: &Actor,
        tenant: impl Into<TenantView>,
        mut order: OperationRequest,
        start_at: Option<Time>,
        key: Option<CreationKey>,
    ) -> Result<Operation, AppError> {
        let view = tenant.into();
        self.check_operation_request(&view, &mut order).await?;
        let tenant_id = view.id;
        let action = match order.kind {
            OperationKind::Retry => "deliveries.retry_batch",
            OperationKind::Cancel => "deliveries.cancel_batch",
            OperationKind::Purge => "dlq.purge",
            OperationKind::Backfill => "webhook.backfill",
        };
        let audited = AuditedAction { action, tenant: Some(&tenant_id), object: None };
        self.with_audit(actor, audited, async {
            let request = json!({"request": order, "start_at": start_at});
            let by = actor.name.clone();
            let operation = match self.engine.begin_operation(tenant_id.clone(), order, start_at, by, key).await? {
                OperationStart::Started(operation) => *operation,
                OperationStart::KeyUsed => return Err(key_used()),
                OperationStart::TooMany => {
                    let detail =
                        "this tenant has too many running bulk operations; wait for one to end, or cancel one";
                    return Err(AppError::conflict(ErrorCode::TooManyOperations, detail));
                }
            };
            let change = AuditChange {
                object: Some(operation.id.to_string()),
                after: Some(request),
                ..AuditChange::default()
            };
            Ok((operation, change))
        })
        .await
    }

    /// Rejects a backfill to a webhook that does not exist or receives no events.
    pub async fn check_backfill(&self, tenant: &TenantView, webhook_id: WebhookId) -> Result<(), AppError> {
        self.webhook(tenant, webhook_id).await?;
        self.require_receiving(tenant, webhook_id).await
    }

    /// Waits up to `COMPLETION_WAIT` for the operation to complete, and returns its state then.
    pub async fn wait_briefly(&self, operation: Operation) -> Result<Operation, AppError> {
        let (tenant_id, id) = (operation.tenant_id.clone(), operation.id);
        let over = async {
            loop {
                tokio::time::sleep(POLL_INTERVAL).await;
                let found = self.operation(tenant_id.clone(), id).await?;
                if found.state == OperationState::Completed {
                    return Ok(found);
                }
            }
        };
        match tokio::time::timeout(COMPLETION_WAIT, over).await {
            Ok(found) => found,
            Err(_) => self.operation(tenant_id.clone(), id).await,
        }
    }

    /// Returns one operation.
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

    /// Removes operations on webhooks that the caller may not see.
    async fn visible_operations(
        &self,
        view: &TenantView,
        mut operations: Vec<Operation>,
    ) -> Result<Vec<Operation>, AppError> {
        if view.tenant_managed_only {
            let named = operations.iter().flat_map(|one| one.order.selection.webhook_ids.iter().copied());
            let visible = self.webhook_names(view, named.collect()).await?;
            // An operation that names no webhook also affects webhooks that the caller may not see, unless it was started
            // with this restriction.
            operations.retain(|one| {
                let selection = &one.order.selection;
                let ids = &selection.webhook_ids;
                selection.tenant_managed_only
                    || !ids.is_empty() && ids.iter().all(|id| visible.contains_key(id))
            });
        }
        Ok(operations)
    }

    /// Lists a tenant's operations, newest first.
    pub async fn list_operations(
        &self,
        tenant: impl Into<TenantView>,
        page: PageRequest<OperationId>,
    ) -> Result<ListingPage<Operation, OperationId>, AppError> {
        let view = tenant.into();
        if !view.tenant_managed_only {
            let found = self.store().list_operations(view.id, page).await?;
            return Ok(ListingPage { found, stopped: None });
        }
        let mut visible = VisiblePage::new(page);
        while let Some(round) = visible.next_round() {
            let found = self.store().list_operations(view.id.clone(), round).await?;
            let (count, last) = (found.len(), found.last().map(|one| one.id));
            visible.add(count, last, self.visible_operations(&view, found).await?);
        }
        Ok(visible.finish()?)
    }

    /// Pauses, resumes or cancels an operation.
    pub async fn control_operation(
        &self,
        actor: &Actor,
        tenant: impl Into<TenantView>,
        id: OperationId,
        turn: OperationAction,
    ) -> Result<Operation, AppError> {
        let view = tenant.into();
        if view.tenant_managed_only {
            self.operation(&view, id).await?;
        }
        let tenant_id = view.id;
        let action = match turn {
            OperationAction::Pause => "operation.pause",
            OperationAction::Resume => "operation.resume",
            OperationAction::Cancel => "operation.cancel",
        };
        let audited = AuditedAction { action, tenant: Some(&tenant_id), object: Some(id.to_string()) };
        self.with_audit(actor, audited, async {
            let turned = self.engine.control_operation(tenant_id.clone(), id, turn).await?;
            let after = Some(json!({"status": turned.state}));
            Ok((turned, AuditChange { after, ..AuditChange::default() }))
        })
        .await
    }
}

impl From<OperationActionError> for AppError {
    fn from(error: OperationActionError) -> Self {
        match error {
            OperationActionError::NotFound => Self::NotFound("operation"),
            OperationActionError::InvalidState(why) => Self::conflict(
                ErrorCode::OperationAlreadyEnded,
                format!("the operation cannot be changed: {why}"),
            ),
            OperationActionError::Store(error) => error.into(),
        }
    }
}

/// Builds the selection of past events for a webhook in a time range.
pub fn backfill_selection(
    webhook_id: WebhookId,
    event_types: Vec<String>,
    from: Option<Time>,
    to: Option<Time>,
) -> OperationFilter {
    OperationFilter { webhook_ids: vec![webhook_id], event_types, from, to, ..OperationFilter::default() }
}
