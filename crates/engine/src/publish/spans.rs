//! Trace spans of a publish and its commit.

use std::sync::Arc;

use redrive_core::event::Event;
use redrive_store::{PublishResult, StoreError};

use super::{PublishError, PublishReceipt, Publisher};
use crate::{
    spans::{SpanKind, Value},
    trace::{COMMIT, Tracer, nanos, number, text},
};

/// Span of a publish in progress; emitted on drop, even if the publish is abandoned.
pub(super) struct PublishSpan {
    tracer: Arc<Tracer>,
    event: Arc<Event>,
    result: Option<Result<PublishReceipt, String>>,
}

impl PublishSpan {
    /// Ends the span with the result of the publish.
    pub(crate) fn set_result(mut self, result: &Result<PublishReceipt, PublishError>) {
        self.result = Some(result.clone().map_err(|error| error.to_string()));
    }
}

impl Drop for PublishSpan {
    fn drop(&mut self) {
        let Some(recording) = self.tracer.recording(&self.event) else { return };
        let event = &self.event;
        let (start, end) = (nanos(event.timestamp), self.tracer.now_nanos());
        let mut span = recording.span("publish", recording.publish_id(), recording.trace.parent, start, end);
        span.kind = SpanKind::Server;
        let id = match &self.result {
            Some(Ok(receipt)) => receipt.event_id,
            _ => event.id,
        };
        span.attributes = vec![
            ("redrive.tenant", text(&event.tenant_id)),
            ("redrive.event_id", text(id)),
            ("redrive.event_type", text(&event.event_type)),
        ];
        match self.result.take() {
            Some(Ok(receipt)) => {
                span.attributes.push(("redrive.duplicate", Value::Flag(receipt.duplicate)));
                span.attributes.extend(receipt.deliveries.map(|count| ("redrive.deliveries", number(count))));
            }
            Some(Err(error)) => span.error = Some(error),
            None => span.error = Some("the publisher disconnected before the response".into()),
        }
        recording.emit(span);
    }
}

impl Publisher {
    /// Starts the span of a publish.
    pub(super) fn trace_publish(&self, event: &Arc<Event>) -> Option<PublishSpan> {
        self.tracer.recording(event)?;
        Some(PublishSpan { tracer: self.tracer.clone(), event: event.clone(), result: None })
    }

    /// Emits the span of a commit that was submitted to the store at `started`.
    pub(super) fn trace_commit(
        &self,
        event: &Event,
        started: Option<u64>,
        result: &Result<PublishResult, StoreError>,
    ) {
        // The commit is retried, and the retry gets the span.
        let is_repeated = matches!(
            result,
            Ok(PublishResult::ConfigChanged | PublishResult::Fenced) | Err(StoreError::PrecedingEventFailed)
        );
        if is_repeated {
            return;
        }
        let (Some(recording), Some(started)) = (self.tracer.recording(event), started) else { return };
        let publish = recording.publish_id();
        let mut span =
            recording.span("commit", publish.child(COMMIT), Some(publish), started, self.tracer.now_nanos());
        span.attributes = vec![("redrive.event_id", text(event.id))];
        span.error = result.as_ref().err().map(ToString::to_string);
        recording.emit(span);
    }
}
