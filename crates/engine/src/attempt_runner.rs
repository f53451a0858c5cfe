//! One delivery from its admission to its record. Each pipeline stage is a module.

use std::{sync::Arc, time::Duration};

use redrive_core::{
    FailureCategory,
    delivery::{
        decide::{DecisionEffects, should_disable},
        response::{AttemptResponse, ResponseClass, SendFailure, classify},
    },
    protection::breaker::CallOutcome,
    webhook::WebhookState,
};
use tokio::runtime::Handle;

use crate::{
    clock::Clock,
    coordinate::{AttemptReport, Coordinator, EndpointResult, ReportEffects},
    dispatch::{
        Admission, DeliveryHandler, Dispatcher, EndWithoutAttempt, LeasedDelivery, REASON_GONE,
        UnsettledDelivery,
    },
    dns_suspects::DnsSuspects,
    metrics::Metrics,
    record::{
        Cancellation, DecidedAttempt, Probe, Recorder, WebhookRuntimeUpdater, attempt::failure_category,
    },
    rollup_buffer::RollupBuffer,
    routing::{ResolvedWebhook, Router},
    send::{AttemptResult, PreSendCheck, Sender},
    supervision::{FaultPoint, Faults},
};

/// Delay of a delivery that is released to the store because the connection limit of its address was reached.
const CONNECTION_LIMIT_DELAY: Duration = Duration::from_secs(1);

/// Takes deliveries through their attempts.
pub(crate) struct AttemptRunner {
    pub(crate) clock: Clock,
    pub(crate) router: Arc<Router>,
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) sender: Arc<Sender>,
    pub(crate) runtime_updater: Arc<WebhookRuntimeUpdater>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) rollups: Arc<RollupBuffer>,
    pub(crate) dns_suspects: Arc<DnsSuspects>,
    pub(crate) metrics: Arc<Metrics>,
    /// Time of uninterrupted failure after which a webhook is disabled; `None` for never.
    pub(crate) disable_after: Option<Duration>,
    pub(crate) faults: Faults,
    pub(crate) tokio: Handle,
}

/// An admission whose probe is a guard.
struct GuardedAdmission {
    admission: Admission,
    probe: Option<Probe>,
}

impl DeliveryHandler for AttemptRunner {
    fn start_attempt(self: Arc<Self>, delivery: UnsettledDelivery, admission: Admission) {
        let probe = admission.probe_id.map(|id| Probe::new(&self.runtime_updater, &admission.webhook, id));
        let tokio = self.tokio.clone();
        tokio.spawn(self.run(delivery, GuardedAdmission { admission, probe }));
    }

    fn end(&self, delivery: UnsettledDelivery, end: EndWithoutAttempt) {
        self.recorder.record_without_attempt(delivery, end);
    }
}

impl AttemptRunner {
    /// Takes one delivery from its admission to its record. If its task panics, the guards return what it occupies, and
    /// the delivery is released as crashed.
    async fn run(self: Arc<Self>, mut delivery: UnsettledDelivery, mut admitted: GuardedAdmission) {
        delivery.begin_task();
        self.faults.inject(FaultPoint::Check);
        let webhook = admitted.admission.webhook.clone();
        // 1. Check: what has changed since it was admitted?
        let result = match self.sender.pre_send_check(&delivery, &webhook).await {
            // 2. Send: render, sign, post through the guarded client.
            Ok(PreSendCheck::Send) => self.sender.send_request(&delivery, &webhook).await,
            Ok(PreSendCheck::Poison) => self.sender.failed_as_poison(&delivery),
            not_sent => return self.end_unsent(delivery, admitted, not_sent).await,
        };
        if let AttemptResponse::Failed(SendFailure::ConnectionLimit) = result.response() {
            return self.release_for_connection_limit(delivery, admitted).await;
        }
        // The request has ended, so its cluster-wide slot is free for another one.
        drop(admitted.admission.cluster_slot.take());
        // 3. Decide: what does the response mean for the delivery? Pure rules of core.
        let now = self.clock.now();
        let response_class = classify(&result.response(), &webhook.retry_policy, now);
        self.faults.inject(FaultPoint::Classify);
        let cancellation = self.cancellation(&delivery);
        let cancel_reason = cancellation.as_ref().map(|cancellation| cancellation.reason.as_str());
        let decided = self.recorder.decide(&delivery, &webhook, &response_class, cancel_reason);
        self.count_attempt(&webhook, &result, failure_category(&response_class));
        // 4. Report: what does it mean for the endpoint, on every node?
        let probe_id = admitted.probe.as_ref().map(Probe::id);
        let report = build_report(probe_id, &result, &response_class, &decided, cancellation.is_some());
        let report_effects = self.coordinator.report_attempt(&webhook, report).await;
        admitted.probe.take().into_iter().for_each(Probe::mark_reported);
        // 5. Apply, before the webhook's slot on this node is free: nothing behind it is sent to a webhook that is disabled, paused or blocked.
        let failed = failure_category(&response_class).is_some();
        let disable_reason = self.disable_reason(&decided, &report_effects, failed);
        self.runtime_updater.apply_report_effects(&webhook, &report_effects);
        // Queued deliveries return to the store and wait there until this outcome is recorded or refused. The webhook
        // counts as disabled only after the store has confirmed it.
        if disable_reason.is_some() {
            self.dispatcher.park(&webhook, None);
        }
        if decided.pause_until.is_some() {
            self.dispatcher.park(&webhook, decided.pause_until);
        }
        // 6. The slot of the webhook on this node is freed now, the slots of its tenant and the node after the commit.
        delivery.free_local_webhook_slot();
        // 7. Record the attempt, the outcome and what follows from it, in one transaction.
        let circuit = admitted.admission.circuit;
        self.recorder.record_attempt(
            delivery,
            DecidedAttempt {
                at: now,
                webhook,
                circuit,
                result,
                response_class,
                decided,
                cancellation,
                report_effects,
                disable_reason,
            },
        );
    }

    /// Ends or releases a delivery that is not sent.
    async fn end_unsent(
        &self,
        mut delivery: UnsettledDelivery,
        admitted: GuardedAdmission,
        check: Result<PreSendCheck, redrive_store::StoreError>,
    ) {
        self.return_admission(&mut delivery, admitted).await;
        match check {
            Ok(PreSendCheck::End(end)) => self.recorder.record_without_attempt(delivery, end),
            Ok(PreSendCheck::LeaseLost) => self.recorder.drop_lost_lease(delivery, false),
            Ok(PreSendCheck::LeaseUncertain | PreSendCheck::Send | PreSendCheck::Poison) => {
                delivery.release()
            }
            Err(error) => {
                tracing::warn!(
                    delivery_id = %delivery.id, webhook_id = %delivery.webhook_id,
                    tenant_id = %delivery.event.tenant_id, %error, "store access failed; delivery released"
                );
                delivery.release();
            }
        }
    }

    /// Releases a delivery to the store because the connection limit of its address was reached. No request was sent,
    /// so this is not an attempt and says nothing about the endpoint.
    async fn release_for_connection_limit(
        &self,
        mut delivery: UnsettledDelivery,
        admitted: GuardedAdmission,
    ) {
        self.metrics.connection_limit.inc();
        self.return_admission(&mut delivery, admitted).await;
        delivery.delay_until(self.clock.now() + CONNECTION_LIMIT_DELAY);
        delivery.release();
    }

    /// Frees the slots and hands back the probe of a delivery that is not sent.
    async fn return_admission(&self, delivery: &mut UnsettledDelivery, mut admitted: GuardedAdmission) {
        drop(admitted.admission.cluster_slot.take());
        if let Some(probe) = admitted.probe.take() {
            probe.return_unused().await;
        }
        delivery.free_local_webhook_slot();
    }

    /// Returns why the delivery is cancelled unless it was delivered.
    fn cancellation(&self, delivery: &LeasedDelivery) -> Option<Cancellation> {
        if let Some(reason) = self.dispatcher.queues.cancel_reason(delivery.id) {
            return Some(Cancellation { reason, by_request: true });
        }
        // The webhook was cached when the delivery was admitted, so one that is missing now was deleted since.
        let webhook = self.router.webhook(delivery.webhook_id);
        let state = webhook.as_ref().map_or(&WebhookState::Deleted, |webhook| &webhook.state);
        state.cancel_reason().map(|reason| Cancellation { reason: reason.to_owned(), by_request: false })
    }

    /// Counts the attempt in the statistics of its webhook.
    fn count_attempt(
        &self,
        webhook: &ResolvedWebhook,
        result: &AttemptResult,
        category: Option<FailureCategory>,
    ) {
        self.rollups.record_attempt(webhook, result.exchange.timings.total, category, self.clock.now());
        if category == Some(FailureCategory::Dns) {
            self.dns_suspects.add(webhook.id, &webhook.tenant.id);
        }
    }

    /// Returns the reason to disable the webhook, if there is one.
    fn disable_reason(
        &self,
        decided: &DecisionEffects,
        report_effects: &ReportEffects,
        failed: bool,
    ) -> Option<String> {
        if decided.disable_webhook {
            return Some(REASON_GONE.to_owned());
        }
        let confirmed_now = self.clock.confirmed_now();
        if !failed || !should_disable(report_effects.failing_since, self.disable_after, confirmed_now) {
            return None;
        }
        let length = match self.disable_after.unwrap_or_default().as_secs() {
            1 => "1 second".to_owned(),
            86_400 => "1 day".to_owned(),
            secs if secs % 86_400 == 0 => format!("{} days", secs / 86_400),
            secs => format!("{secs} seconds"),
        };
        Some(format!("no delivery succeeded for {length}"))
    }
}

/// Returns the report of an attempt for the circuit of its webhook.
fn build_report(
    probe: Option<u64>,
    result: &AttemptResult,
    response_class: &ResponseClass,
    decided: &DecisionEffects,
    cancelled: bool,
) -> AttemptReport {
    let category = failure_category(response_class);
    // A request that was cut by the drain deadline, or failed after its cancellation, says nothing about the
    // endpoint.
    let cut_by_drain =
        matches!(&result.exchange.result, Err(failed) if failed.failure == SendFailure::DrainDeadline);
    let is_inconclusive = category.is_some() && (cancelled || cut_by_drain);
    AttemptReport {
        circuit_outcome: if is_inconclusive {
            CallOutcome::Ignored
        } else {
            CallOutcome::from_category(category)
        },
        probe,
        endpoint: match category {
            _ if is_inconclusive => EndpointResult::Inconclusive,
            Some(category) => EndpointResult::Failed(category),
            None => EndpointResult::Accepted,
        },
        pause_until: decided.pause_until,
    }
}
