//! Checks of an event before it is stored: the catalogue of its tenant, and the payload filters of webhooks.

use std::sync::Arc;

use redrive_core::{
    event::{Event, event_type},
    routing::filter::{Filter, Payload},
};
use redrive_store::PublishResult;

use super::{
    BatchState, PublishError, PublishOptions, PublishReceipt, Publisher, check_executor::COMPILE_COST_UNITS,
    stopped,
};
use crate::routing::{MatchedWebhooks, ResolvedWebhook, TypeStatus};

/// Number of times that an event is checked again because the cached catalogue was outdated.
const MAX_CATALOGUE_REFRESHES: usize = 3;

/// Result of the checks of an event.
pub(super) enum CheckResult {
    /// These webhooks receive it.
    Accepted(MatchedWebhooks),
    /// It repeats an event that was accepted before the catalogue changed.
    Duplicate(PublishReceipt),
}

impl Publisher {
    /// Finds the webhooks that receive an event, and checks it against the tenant's catalogue and their filters.
    pub(super) async fn check(
        self: &Arc<Self>,
        event: &Arc<Event>,
        options: &PublishOptions,
        batch: Option<&BatchState>,
    ) -> Result<CheckResult, PublishError> {
        for _ in 0..=MAX_CATALOGUE_REFRESHES {
            let subject = event.subject.as_deref();
            let matched = self
                .router
                .match_webhooks(&event.tenant_id, &event.event_type, subject, options.recipients())
                .await?;
            let Some(mut matched) = matched else { return Err(PublishError::NoTenant) };
            matched.webhooks.retain(|webhook| !webhook.has_expired(self.clock.confirmed_now()));
            self.apply_payload_filters(event, options, &mut matched.webhooks, batch).await?;
            // Redrive's own event types are in no catalogue.
            let is_redrive_event = options.is_test() || event_type::is_reserved(&event.event_type);
            let allowed = match is_redrive_event {
                true => Ok(()),
                false => self.check_event_type(event, &matched.type_status, batch).await,
            };
            let Err(refused) = allowed else { return Ok(CheckResult::Accepted(matched)) };
            if let Some(receipt) = self.recheck_catalogue(event, matched, refused, batch).await? {
                return Ok(CheckResult::Duplicate(receipt));
            }
        }
        Err(PublishError::ConfigKeepsChanging)
    }

    /// Handles an event that the cached catalogue rejects. Returns the receipt of the original if it repeats an event
    /// that was accepted before the catalogue changed. Returns `None` if the cached catalogue was outdated: check
    /// again.
    pub(super) async fn recheck_catalogue(
        self: &Arc<Self>,
        event: &Arc<Event>,
        matched: MatchedWebhooks,
        refused: PublishError,
        batch: Option<&BatchState>,
    ) -> Result<Option<PublishReceipt>, PublishError> {
        // The check was not executed, so its failure says nothing about the event.
        if matches!(refused, PublishError::Store(_) | PublishError::BatchTooCostly) {
            return Err(refused);
        }
        let version = matched.version;
        if event.idempotency_key.is_some() {
            // Version -1 never matches, so this only checks the idempotency key and stores nothing.
            let key_check_only = MatchedWebhooks { version: -1, webhooks: Vec::new(), ..matched };
            let epoch = self.membership.current_epoch();
            let reply = self.submit(&epoch, event, &PublishOptions::default(), key_check_only, None).await;
            if let PublishResult::Duplicate { event_id } = reply.unwrap_or_else(|_| Err(stopped()))? {
                return Ok(Some(self.duplicate_receipt(event_id)));
            }
        }
        // One refresh is enough for all rejected events of a batch.
        if batch.is_some_and(|batch| batch.is_current(version)) {
            return Err(refused);
        }
        // A rejected event is never committed, so no commit would detect an outdated catalogue.
        self.router.refresh(&event.tenant_id).await?;
        match self.router.version(&event.tenant_id) == Some(version) {
            true => {
                if let Some(batch) = batch {
                    batch.set_current(version);
                }
                Err(refused)
            }
            false => Ok(None),
        }
    }

    /// Removes the webhooks whose filter rejects the payload. Parses the payload only if a webhook has a filter.
    /// Redrive's own events, including test events, are not filtered, nor are events whose recipients are named.
    pub(super) async fn apply_payload_filters(
        &self,
        event: &Arc<Event>,
        options: &PublishOptions,
        webhooks: &mut Vec<Arc<ResolvedWebhook>>,
        batch: Option<&BatchState>,
    ) -> Result<(), PublishError> {
        let is_unfiltered = options.recipients().is_some() || event_type::is_reserved(&event.event_type);
        if is_unfiltered || !webhooks.iter().any(|webhook| webhook.has_filter()) {
            return Ok(());
        }
        let work = Filter::work(webhooks.iter().filter_map(|webhook| webhook.filter()), &event.data);
        let (event, mut candidates) = (event.clone(), std::mem::take(webhooks));
        let tenant_id = event.tenant_id.clone();
        let filter_webhooks = move || {
            let payload = Payload::new(&event.data);
            candidates.retain(|webhook| webhook.passes_filter(&payload));
            candidates
        };
        *webhooks = self.checker.run_batch_work(&tenant_id, work, batch, filter_webhooks).await?;
        Ok(())
    }

    /// Checks an event against the catalogue. Fails if its type or payload is not allowed.
    pub(super) async fn check_event_type(
        &self,
        event: &Event,
        status: &TypeStatus,
        batch: Option<&BatchState>,
    ) -> Result<(), PublishError> {
        let rule = match status {
            TypeStatus::Unrestricted => return Ok(()),
            TypeStatus::Unregistered => return Err(PublishError::Unregistered(event.event_type.clone())),
            TypeStatus::Registered(rule) if rule.is_archived() => {
                return Err(PublishError::Archived(event.event_type.clone()));
            }
            TypeStatus::Registered(rule) => rule,
        };
        if !rule.has_schema() {
            return Ok(());
        }
        if !rule.is_compiled() {
            let compiled = rule.clone();
            self.checker
                .run_batch_work(&event.tenant_id, COMPILE_COST_UNITS, batch, move || {
                    compiled.schema().is_some()
                })
                .await?;
        }
        let Some(schema) = rule.schema() else { return Ok(()) };
        let (rule, data) = (rule.clone(), event.data.clone());
        let work = schema.max_work(&data);
        self.checker
            .run_batch_work(&event.tenant_id, work, batch, move || rule.check(&data))
            .await?
            .map_err(|violation| PublishError::SchemaViolation(violation.into_field_error("data")))
    }
}
