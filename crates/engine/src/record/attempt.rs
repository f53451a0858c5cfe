//! The attempt as it is recorded: its timings, its response and the request headers that are worth keeping.

use std::time::Duration;

use bytes::Bytes;
use redrive_core::{
    AttemptId, FailureCategory,
    delivery::{outcome::Outcome, response::ResponseClass},
    event::PayloadFormat,
    protection::breaker::CircuitState,
};
use redrive_egress::Timings;
use redrive_store::{Attempt, PhaseTimings};

use super::Recorder;
use crate::{
    dispatch::LeasedDelivery,
    routing::ResolvedWebhook,
    send::{AttemptResult, headers::header_lines},
};

pub(crate) fn failure_category(response_class: &ResponseClass) -> Option<FailureCategory> {
    match response_class {
        ResponseClass::Success => None,
        ResponseClass::Failed(failure) => Some(failure.category),
    }
}

fn to_phase_timings(timings: &Timings) -> PhaseTimings {
    let micros = |duration: Duration| u32::try_from(duration.as_micros()).unwrap_or(u32::MAX);
    PhaseTimings {
        dns: timings.dns.map(micros),
        connect: timings.connect.map(micros),
        tls: timings.tls.map(micros),
        ttfb: timings.ttfb.map(micros),
        total: micros(timings.total),
    }
}

impl Recorder {
    pub(super) fn build_attempt(
        &self,
        delivery: &LeasedDelivery,
        webhook: &ResolvedWebhook,
        circuit: CircuitState,
        result: AttemptResult,
        category: Option<FailureCategory>,
        outcome: &Outcome,
    ) -> Attempt {
        let mut attempt = Attempt {
            id: result.id,
            number: delivery.attempt,
            status: outcome.attempt_status(),
            failure_category: category,
            http_status_code: None,
            error_message: None,
            custom_headers: self.recorded_request_headers(delivery, webhook, result.id),
            response_headers: None,
            response_body_sample: None,
            timings: to_phase_timings(&result.exchange.timings),
            scheduled_at: delivery.due,
            executed_at: result.executed_at,
            next_retry_at: outcome.next_attempt_at(),
            circuit,
            worker: delivery.epoch.worker.clone(),
        };
        match result.exchange.result {
            Ok(response) => {
                attempt.http_status_code = Some(response.status);
                attempt.error_message =
                    category.map(|_| format!("the endpoint returned {}", response.status));
                attempt.response_headers = Some(header_lines(&response).into());
                attempt.response_body_sample =
                    (!response.body_sample.is_empty()).then_some(response.body_sample);
            }
            Err(failed) => {
                attempt.http_status_code = failed.status;
                attempt.error_message = Some(failed.message);
            }
        }
        attempt
    }

    /// Returns the headers that not every request has: those of the format and the trace, and the names of the
    /// webhook's custom headers. Their values may be credentials and are not stored.
    fn recorded_request_headers(
        &self,
        delivery: &LeasedDelivery,
        webhook: &ResolvedWebhook,
        attempt: AttemptId,
    ) -> Option<Bytes> {
        let mut lines = String::new();
        if delivery.format == PayloadFormat::Cloudevents {
            lines = format!("content-type: {}\n", delivery.format.content_type());
        }
        for (name, value) in delivery.format.headers(&delivery.event) {
            lines += &format!("{name}: {value}\n");
        }
        if let Some(traceparent) = self.tracer.traceparent(&delivery.event, attempt) {
            lines += &format!("traceparent: {traceparent}\n");
        }
        if let Some(state) = delivery.event.trace.as_ref().and_then(|trace| trace.state()) {
            lines += &format!("tracestate: {state}\n");
        }
        for name in webhook.headers.iter().flat_map(|headers| headers.keys()) {
            lines += &format!("{name}: [redacted]\n");
        }
        (!lines.is_empty()).then(|| lines.into())
    }
}
