//! One attempt: builds and signs the request, and sends it through the egress client.

pub(crate) mod headers;
mod pre_send_check;

use std::{sync::Arc, time::Duration};

use http::header;
use redrive_core::{
    AttemptId, Time,
    delivery::response::{AttemptResponse, SendFailure},
};
use redrive_egress::{Client, EgressFailure, Exchange, OutboundRequest, Timings};
use redrive_store::Leases;
use tokio_util::sync::CancellationToken;

pub(crate) use self::pre_send_check::PreSendCheck;
use crate::{
    clock::{self, Clock, monotonic_now},
    cluster::membership::Membership,
    dispatch::{Dispatcher, LeasedDelivery},
    metrics::Metrics,
    routing::ResolvedWebhook,
    supervision::{FaultPoint, Faults},
    trace::Tracer,
};

/// An attempt and its result.
pub(crate) struct AttemptResult {
    pub(crate) id: AttemptId,
    pub(crate) executed_at: Time,
    pub(crate) exchange: Exchange,
    /// Start time in nanoseconds, if the trace is sampled.
    pub(crate) started_nanos: Option<u64>,
}

impl AttemptResult {
    /// Returns the response in the form that the decision rules take.
    pub(crate) fn response(&self) -> AttemptResponse<'_> {
        match &self.exchange.result {
            Ok(response) => AttemptResponse::Status {
                code: response.status,
                retry_after: response.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()),
            },
            Err(failed) => AttemptResponse::Failed(failed.failure),
        }
    }
}

/// Sends requests to endpoints.
pub(crate) struct Sender {
    pub(crate) store: Arc<dyn Leases>,
    pub(crate) egress: Client,
    pub(crate) clock: Clock,
    /// `User-Agent` of requests.
    pub(crate) user_agent: String,
    pub(crate) membership: Arc<Membership>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tracer: Arc<Tracer>,
    pub(crate) faults: Faults,
    /// Cuts requests in flight at the drain deadline.
    pub(crate) cut_requests: CancellationToken,
}

impl Sender {
    /// Sends the request of one attempt, and returns its result.
    pub(crate) async fn send_request(
        &self,
        delivery: &LeasedDelivery,
        webhook: &ResolvedWebhook,
    ) -> AttemptResult {
        let executed_at = self.clock.now();
        let started_nanos = self.tracer.nanos_if_sampled(&delivery.event);
        let id = AttemptId::for_delivery(executed_at, delivery.id, &clock::random_id_bytes());
        if let Some(started) = delivery.publish_started_at {
            self.dispatcher.on_fresh_sent(started);
        }
        self.metrics.dispatch_latency.observe(executed_at.duration_since(delivery.due).as_secs_f64());
        let Some(target) = webhook.target().cloned() else {
            return self.failed_without_request(
                delivery,
                SendFailure::Protocol,
                "the webhook's URL cannot be used",
            );
        };
        let body = delivery.format.render(&delivery.event);
        let request = OutboundRequest {
            headers: self.build_headers(delivery, webhook, id, executed_at, &body),
            target,
            body,
            timeout: webhook.retry_policy.timeout(delivery.attempt),
            tenant_key: webhook.tenant.key,
        };
        self.faults.inject(FaultPoint::Send);
        let started = monotonic_now();
        let exchange = tokio::select! {
            exchange = self.egress.post(request) => exchange,
            () = self.cut_requests.cancelled() => drain_failure(started),
        };
        self.metrics.record_exchange(&exchange.timings);
        if exchange.result.is_err() {
            self.metrics.set_egress_refused(self.egress.refusals());
        }
        AttemptResult { id, executed_at, exchange, started_nanos }
    }

    /// Creates the result of an attempt for a poison delivery: it counts as failed without a request.
    pub(crate) fn failed_as_poison(&self, delivery: &LeasedDelivery) -> AttemptResult {
        let message = "Redrive failed internally three times while sending this delivery; no request was sent in this attempt";
        self.failed_without_request(delivery, SendFailure::Crashed, message)
    }

    /// Creates the result of an attempt that failed before a request was sent.
    fn failed_without_request(
        &self,
        delivery: &LeasedDelivery,
        failure: SendFailure,
        message: &str,
    ) -> AttemptResult {
        let executed_at = self.clock.now();
        let failed = EgressFailure { failure, message: message.into(), status: None };
        AttemptResult {
            id: AttemptId::for_delivery(executed_at, delivery.id, &clock::random_id_bytes()),
            executed_at,
            exchange: Exchange { result: Err(failed), timings: Timings::default() },
            started_nanos: self.tracer.nanos_if_sampled(&delivery.event),
        }
    }
}

fn drain_failure(started: Duration) -> Exchange {
    let failed = EgressFailure {
        failure: SendFailure::DrainDeadline,
        message: "the request was cut off because the server was shutting down".into(),
        status: None,
    };
    let timings = Timings { total: monotonic_now().saturating_sub(started), ..Timings::default() };
    Exchange { result: Err(failed), timings }
}
