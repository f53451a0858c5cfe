//! The fields of the form, filled from a webhook. What is confidential is never among them.

use redrive_core::{
    Time,
    delivery::lane::Ordering,
    delivery::retry::RetryOn,
    event::PayloadFormat,
    notification::Kind,
    security::signature::{HeaderForm, Scheme},
    time::Span,
    webhook::WebhookSpec,
    webhook::confidential::EndpointAuth,
};
use serde::Serialize;

use super::settings_text;

/// What may be chosen from a list: its value, and what people read.
pub(super) type Choices = Vec<(String, &'static str)>;

/// The name that the API has for a value.
fn name_of(value: impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

fn text<T: ToString>(value: &Option<T>) -> String {
    value.as_ref().map(T::to_string).unwrap_or_default()
}

/// A span as people write it: in the largest unit that says it exactly.
fn span(span: &Span) -> String {
    let millis = span.get().as_millis();
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];
    match units.into_iter().find(|(size, _)| millis > 0 && millis.is_multiple_of(*size)) {
        Some((size, unit)) => format!("{}{unit}", millis / size),
        None => "0s".to_owned(),
    }
}

fn lines<T: ToString>(values: &[T]) -> String {
    values.iter().map(T::to_string).collect::<Vec<_>>().join("\n")
}

/// The fields, as they are shown.
pub(super) struct Fields {
    pub(super) url: String,
    pub(super) description: String,
    pub(super) events: Vec<String>,
    pub(super) subjects: String,
    pub(super) filter: String,
    pub(super) payload_format: String,
    pub(super) ordering: String,
    pub(super) scheme: String,
    pub(super) header_form: String,
    pub(super) headers: Vec<String>,
    pub(super) metadata: Vec<(String, String)>,
    pub(super) auth: String,
    pub(super) auth_username: String,
    pub(super) retry_mode: String,
    pub(super) retry: RetryFields,
    pub(super) breaker: BreakerFields,
    pub(super) requests_per_minute: String,
    pub(super) burst: String,
    pub(super) max_in_flight: String,
    pub(super) owner_id: String,
    pub(super) owner_email: String,
    pub(super) owner_mute: Vec<Kind>,
    pub(super) verify_url: bool,
    pub(super) expires_at: Option<Time>,
}

/// What is said about retries.
pub(super) struct RetryFields {
    pub(super) schedule: String,
    pub(super) base_delay_ms: String,
    pub(super) backoff_multiplier: String,
    pub(super) max_attempts: String,
    pub(super) max_delay_ms: String,
    pub(super) jitter: String,
    pub(super) timeout_ms: String,
    pub(super) timeout_growth_factor: String,
    pub(super) retry_on: String,
    pub(super) permanent_status_codes: String,
    pub(super) give_up_after: String,
}

/// What is said about the circuit.
pub(super) struct BreakerFields {
    pub(super) enabled: String,
    pub(super) window_size_ms: String,
    pub(super) minimum_throughput: String,
    pub(super) error_threshold_percentage: String,
    pub(super) sleep_window_ms: String,
    pub(super) half_open_max_calls: String,
    pub(super) half_open_success_threshold: String,
}

impl RetryFields {
    fn of(spec: &WebhookSpec) -> Self {
        let retry = &spec.retry_config;
        let spans = |spans: &Vec<Span>| spans.iter().map(span).collect::<Vec<_>>().join(", ");
        let codes = |codes: &Vec<u16>| codes.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
        Self {
            schedule: retry.schedule.as_ref().map(spans).unwrap_or_default(),
            base_delay_ms: text(&retry.base_delay_ms),
            backoff_multiplier: text(&retry.backoff_multiplier),
            max_attempts: text(&retry.max_attempts),
            max_delay_ms: text(&retry.max_delay_ms),
            jitter: text(&retry.jitter),
            timeout_ms: text(&retry.timeout_ms),
            timeout_growth_factor: text(&retry.timeout_growth_factor),
            retry_on: retry.retry_on.map(name_of).unwrap_or_default(),
            permanent_status_codes: retry.permanent_status_codes.as_ref().map(codes).unwrap_or_default(),
            give_up_after: retry.give_up_after.as_ref().map(span).unwrap_or_default(),
        }
    }
}

impl BreakerFields {
    fn of(spec: &WebhookSpec) -> Self {
        let breaker = &spec.circuit_breaker_config;
        Self {
            enabled: text(&breaker.enabled),
            window_size_ms: text(&breaker.window_size_ms),
            minimum_throughput: text(&breaker.minimum_throughput),
            error_threshold_percentage: text(&breaker.error_threshold_percentage),
            sleep_window_ms: text(&breaker.sleep_window_ms),
            half_open_max_calls: text(&breaker.half_open_max_calls),
            half_open_success_threshold: text(&breaker.half_open_success_threshold),
        }
    }
}

impl Fields {
    /// The fields of a webhook.
    pub(super) fn of(spec: &WebhookSpec) -> Self {
        let owner = spec.owner.as_ref();
        let filter = spec.filter.as_ref().and_then(|filter| {
            let value = serde_json::to_value(filter).ok()?;
            serde_json::to_string_pretty(&value).ok()
        });
        let retry = &spec.retry_config;
        let is_exponential = retry.base_delay_ms.is_some()
            || retry.backoff_multiplier.is_some()
            || retry.max_attempts.is_some();
        Self {
            url: spec.url.clone(),
            description: text(&spec.description),
            events: spec.events.iter().map(ToString::to_string).collect(),
            subjects: lines(&spec.subjects),
            filter: filter.unwrap_or_default(),
            payload_format: name_of(spec.payload_format),
            ordering: name_of(spec.ordering_guarantee),
            scheme: name_of(spec.signature.scheme),
            header_form: name_of(spec.signature.header_form),
            headers: spec.headers.keys().cloned().collect(),
            metadata: spec.metadata.clone().into_iter().collect(),
            auth: text(&spec.auth.as_ref().map(EndpointAuth::kind)),
            auth_username: match &spec.auth {
                Some(EndpointAuth::Basic { username, .. }) => username.clone(),
                _ => String::new(),
            },
            retry_mode: match () {
                () if retry.schedule.is_some() => "schedule".into(),
                () if is_exponential => "exponential".into(),
                () => String::new(),
            },
            retry: RetryFields::of(spec),
            breaker: BreakerFields::of(spec),
            requests_per_minute: text(&spec.rate_limit.map(|limit| limit.requests_per_minute)),
            burst: text(&spec.rate_limit.and_then(|limit| limit.burst)),
            max_in_flight: text(&spec.max_in_flight),
            owner_id: text(&owner.and_then(|owner| owner.id.clone())),
            owner_email: text(&owner.and_then(|owner| owner.email.clone())),
            owner_mute: owner.map(|owner| owner.mute.clone()).unwrap_or_default(),
            verify_url: spec.verify_url,
            expires_at: spec.expires_at,
        }
    }

    /// What a body may look like.
    pub(super) fn formats(&self) -> Choices {
        let all = [
            PayloadFormat::Envelope,
            PayloadFormat::Data,
            PayloadFormat::Cloudevents,
            PayloadFormat::CloudeventsBinary,
        ];
        all.into_iter().map(|format| (name_of(format), settings_text::format(format))).collect()
    }

    /// Which deliveries may wait for one another.
    pub(super) fn orderings(&self) -> Choices {
        let all = [Ordering::None, Ordering::PerEventType, Ordering::Strict];
        all.into_iter().map(|ordering| (name_of(ordering), settings_text::ordering(ordering))).collect()
    }

    /// How requests may be signed.
    pub(super) fn schemes(&self) -> Choices {
        let all = [Scheme::Standard, Scheme::StandardEd25519];
        all.into_iter().map(|scheme| (name_of(scheme), settings_text::scheme(scheme))).collect()
    }

    /// The forms of the second signature.
    pub(super) fn header_forms(&self) -> Choices {
        let all = [HeaderForm::Timestamped, HeaderForm::Sha256];
        all.into_iter().map(|form| (name_of(form), settings_text::header_form(form))).collect()
    }

    /// How an endpoint may want to be convinced.
    pub(super) fn auths(&self) -> Choices {
        vec![
            (String::new(), "None"),
            ("basic".into(), "User name and password"),
            ("bearer".into(), "Bearer token"),
        ]
    }

    /// How the times of retries may be said.
    pub(super) fn retry_modes(&self) -> Choices {
        vec![
            (String::new(), "As the server has it"),
            ("schedule".into(), "At these times"),
            ("exponential".into(), "Longer and longer"),
        ]
    }

    /// Which failures may be retried.
    pub(super) fn retries(&self) -> Choices {
        vec![
            (String::new(), "As the server has it"),
            (name_of(RetryOn::Default), "All but permanent answers"),
            (name_of(RetryOn::All), "Every failure"),
        ]
    }

    /// Whether a circuit may open.
    pub(super) fn switches(&self) -> Choices {
        vec![
            (String::new(), "As the server has it"),
            ("true".into(), "On"),
            ("false".into(), "Off: it never opens"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use redrive_core::webhook::confidential::Hidden;

    use super::*;

    #[test]
    fn spans_are_written_as_they_are_read() {
        for (written, shown) in
            [("90s", "90s"), ("60s", "1m"), ("250ms", "250ms"), ("0s", "0s"), ("24h", "1d")]
        {
            assert_eq!(span(&Span::parse(written).unwrap()), shown);
            assert_eq!(Span::parse(shown), Span::parse(written));
        }
    }

    #[test]
    fn names_are_those_of_the_api() {
        let fields = Fields::of(&WebhookSpec::default());
        assert_eq!((&*fields.payload_format, &*fields.ordering), ("envelope", "none"));
        assert_eq!((&*fields.scheme, &*fields.header_form), ("standard", "timestamped"));
        assert_eq!((&*fields.retry_mode, &*fields.auth), ("", ""));
        assert!(fields.formats().iter().any(|(name, _)| name == "cloudevents_binary"));
    }

    #[test]
    fn what_is_confidential_is_in_no_field() {
        let mut spec = WebhookSpec::default();
        spec.headers.insert("x-api-key".into(), Hidden::new("hush"));
        spec.auth = Some(EndpointAuth::Basic { username: "me".into(), password: Hidden::new("hush") });
        let fields = Fields::of(&spec);
        assert_eq!(fields.headers, ["x-api-key"]);
        assert_eq!((&*fields.auth, &*fields.auth_username), ("basic", "me"));
    }
}
