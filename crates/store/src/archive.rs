//! Format of the archive: one line of JSON for each event, delivery and attempt, compressed in frames.
//!
//! Frames of one day are concatenated into an object, which reads as one stream. An object never contains a
//! secret: request headers are left out.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Read},
};

use redrive_core::Time;
use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::{ArchiveObject, Delivery, PruneCounts, StoredAttempt, StoredEvent};

/// A zstd level that is fast and compresses well enough.
const COMPRESSION_LEVEL: i32 = 3;
/// Approximate uncompressed bytes in one step; the rest is left to the next step.
const MAX_STEP_BYTES: usize = 2 << 20;

#[derive(Serialize)]
struct EventLine<'a> {
    kind: &'static str,
    tenant_id: &'a str,
    id: String,
    event_type: &'a str,
    timestamp: Time,
    idempotency_key: String,
    source: Option<&'a str>,
    subject: Option<&'a str>,
    priority: &'static str,
    sequence_number: i64,
    erased_at: Option<Time>,
    trace_id: Option<String>,
    hops: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    edited_from: Option<String>,
    metadata: Option<Box<RawValue>>,
    data: Option<Box<RawValue>>,
}

#[derive(Serialize)]
struct DeliveryLine<'a> {
    kind: &'static str,
    tenant_id: &'a str,
    id: String,
    event_id: String,
    event_type: &'a str,
    webhook_id: String,
    round: u32,
    status: &'static str,
    attempt_count: u32,
    last_status_code: Option<u16>,
    failure_category: Option<&'static str>,
    last_error: Option<&'a str>,
    dead_reason: Option<&'static str>,
    cancel_reason: Option<&'a str>,
    priority: &'static str,
    created_at: Time,
    ended_at: Option<Time>,
    replay_of: Option<String>,
    redriven_as: Option<String>,
}

#[derive(Serialize)]
struct AttemptLine<'a> {
    kind: &'static str,
    tenant_id: &'a str,
    id: String,
    delivery_id: String,
    event_id: String,
    webhook_id: String,
    number: u32,
    status: &'static str,
    failure_category: Option<&'static str>,
    http_status_code: Option<u16>,
    error_message: Option<&'a str>,
    response_headers: Option<String>,
    response_body_sample: Option<String>,
    duration_ms: f64,
    scheduled_at: Time,
    executed_at: Time,
    next_retry_at: Option<Time>,
    circuit_state_at_attempt: &'static str,
    worker: &'a str,
}

/// Returns the published JSON on one line: valid JSON has line breaks only between its tokens. Returns `None` if
/// it was erased.
fn one_line(json: &[u8]) -> serde_json::Result<Option<Box<RawValue>>> {
    if json.is_empty() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(json).replace(['\n', '\r'], " ");
    RawValue::from_string(text.clone()).or_else(|_| serde_json::value::to_raw_value(&text)).map(Some)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Lines of one day.
#[derive(Default)]
struct Lines {
    text: Vec<u8>,
    holds: PruneCounts,
}

impl Lines {
    fn add(&mut self, line: &impl Serialize) -> serde_json::Result<()> {
        serde_json::to_writer(&mut self.text, line)?;
        self.text.push(b'\n');
        Ok(())
    }
}

/// Collected lines by the day of their event or delivery.
#[derive(Default)]
pub(crate) struct FrameBuilder(BTreeMap<String, Lines>);

/// Compressed lines of one day.
pub(crate) struct Frame {
    pub(crate) day: String,
    pub(crate) holds: PruneCounts,
    pub(crate) bytes: Vec<u8>,
}

impl FrameBuilder {
    fn day_lines(&mut self, time: Time) -> &mut Lines {
        let day: String = time.to_string().chars().take(10).collect();
        self.0.entry(day).or_default()
    }

    /// Returns whether the collected lines have reached the size of one step.
    pub(crate) fn is_full(&self) -> bool {
        self.0.values().map(|lines| lines.text.len()).sum::<usize>() >= MAX_STEP_BYTES
    }

    pub(crate) fn event(&mut self, stored: &StoredEvent) -> serde_json::Result<()> {
        let event = &stored.event;
        let lines = self.day_lines(event.id.time());
        lines.holds.events += 1;
        lines.add(&EventLine {
            kind: "event",
            tenant_id: event.tenant_id.as_str(),
            id: event.id.to_string(),
            event_type: &event.event_type,
            timestamp: event.timestamp,
            idempotency_key: event.effective_key(),
            source: event.source.as_deref(),
            subject: event.subject.as_deref(),
            priority: event.priority.name(),
            sequence_number: stored.sequence_number,
            erased_at: stored.erased_at,
            trace_id: event.trace.as_ref().map(|trace| trace.id.to_string()),
            hops: event.hops,
            edited_from: stored.edited_from.map(|id| id.to_string()),
            metadata: event.metadata.as_deref().map_or(Ok(None), one_line)?,
            data: one_line(&event.data)?,
        })
    }

    pub(crate) fn delivery(
        &mut self,
        delivery: &Delivery,
        attempts: &[StoredAttempt],
    ) -> serde_json::Result<()> {
        let lines = self.day_lines(delivery.id.time());
        lines.holds.deliveries += 1;
        lines.holds.attempts += attempts.len();
        lines.add(&DeliveryLine {
            kind: "delivery",
            tenant_id: delivery.tenant_id.as_str(),
            id: delivery.id.to_string(),
            event_id: delivery.event_id.to_string(),
            event_type: &delivery.event_type,
            webhook_id: delivery.webhook_id.to_string(),
            round: delivery.round,
            status: delivery.status.name(),
            attempt_count: delivery.attempt_count,
            last_status_code: delivery.last_status_code,
            failure_category: delivery.failure_category.map(|category| category.name()),
            last_error: delivery.last_error.as_deref(),
            dead_reason: delivery.dead_reason.map(|reason| reason.name()),
            cancel_reason: delivery.cancel_reason.as_deref(),
            priority: delivery.priority.name(),
            created_at: delivery.created_at,
            ended_at: delivery.ended_at,
            replay_of: delivery.replay_of.map(|id| id.to_string()),
            redriven_as: delivery.redriven_as.map(|id| id.to_string()),
        })?;
        attempts.iter().try_for_each(|stored| lines.add(&attempt_line(delivery, stored)))
    }

    /// Compresses the collected lines into one frame per day.
    pub(crate) fn frames(self) -> io::Result<Vec<Frame>> {
        let frame = |(day, lines): (String, Lines)| {
            Ok(Frame {
                day,
                holds: lines.holds,
                bytes: zstd::encode_all(&lines.text[..], COMPRESSION_LEVEL)?,
            })
        };
        self.0.into_iter().map(frame).collect()
    }
}

fn attempt_line<'a>(delivery: &'a Delivery, stored: &'a StoredAttempt) -> AttemptLine<'a> {
    let attempt = &stored.attempt;
    AttemptLine {
        kind: "attempt",
        tenant_id: delivery.tenant_id.as_str(),
        id: attempt.id.to_string(),
        delivery_id: delivery.id.to_string(),
        event_id: delivery.event_id.to_string(),
        webhook_id: delivery.webhook_id.to_string(),
        number: attempt.number,
        status: attempt.status.name(),
        failure_category: attempt.failure_category.map(|category| category.name()),
        http_status_code: attempt.http_status_code,
        error_message: attempt.error_message.as_deref(),
        response_headers: attempt.response_headers.as_deref().map(text),
        response_body_sample: attempt.response_body_sample.as_deref().map(text),
        duration_ms: f64::from(attempt.timings.total) / 1000.0,
        scheduled_at: attempt.scheduled_at,
        executed_at: attempt.executed_at,
        next_retry_at: attempt.next_retry_at,
        circuit_state_at_attempt: attempt.circuit.name(),
        worker: &attempt.worker,
    }
}

/// Concatenates frames into an object. Its name contains a checksum of its contents, so different contents never
/// share a name, even if they come from different stores.
pub(crate) fn build_object(day: &str, number: i64, frames: &[Vec<u8>], holds: PruneCounts) -> ArchiveObject {
    let bytes = frames.concat();
    let short: String = checksum(&bytes).chars().take(12).collect();
    ArchiveObject { name: format!("{day}/{number:010}-{short}"), holds, bytes }
}

/// Returns the SHA-256 in hexadecimal digits.
pub fn checksum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the lines of an object.
pub fn lines(object: impl Read) -> io::Result<impl Iterator<Item = io::Result<String>>> {
    Ok(BufReader::new(zstd::Decoder::new(object)?).lines())
}
