//! Form fields filled from a webhook. They never contain confidential values.

use redrive_core::{
    Time,
    delivery::{lane::Ordering, retry::RetryOn},
    event::PayloadFormat,
    metadata::MetadataValue,
    notification::NotificationKind,
    security::signature::{HeaderForm, Scheme},
    time::HumanDuration,
    webhook::{WebhookSpec, confidential::EndpointAuth},
};
use serde::Serialize;

use super::settings_text;

/// Options of a list: value and label.
pub(super) type Choices = Vec<(String, &'static str)>;

/// Returns the API name of a value.
fn name_of(value: impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

fn text<T: ToString>(value: &Option<T>) -> String {
    value.as_ref().map(T::to_string).unwrap_or_default()
}

/// Formats a duration in the largest unit that represents it exactly.
fn span(span: &HumanDuration) -> String {
    let millis = span.as_duration().as_millis();
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];
    match units.into_iter().find(|(size, _)| millis > 0 && millis.is_multiple_of(*size)) {
        Some((size, unit)) => format!("{}{unit}", millis / size),
        None => "0s".to_owned(),
    }
}

fn lines<T: ToString>(values: &[T]) -> String {
    values.iter().map(T::to_string).collect::<Vec<_>>().join("\n")
}

/// Values of all form fields.
pub(super) struct Fields {
    pub(super) uid: String,
    pub(super) url: String,
    pub(super) description: String,
    pub(super) events: Vec<String>,
    pub(super) subjects: String,
    pub(super) filter: String,
    pub(super) payload_format: String,
    pub(super) ordering: String,
    pub(super) scheme: String,
    pub(super) header_format: String,
    pub(super) headers: Vec<String>,
    pub(super) metadata: Vec<MetadataField>,
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
    pub(super) owner_muted_kinds: Vec<NotificationKind>,
    pub(super) verify_url: bool,
    pub(super) expires_at: Option<Time>,
}

/// A metadata entry. A text is edited as it is, and another value as JSON.
pub(super) struct MetadataField {
    pub(super) name: String,
    pub(super) value: String,
    pub(super) is_json: bool,
}

impl MetadataField {
    fn new(name: &str, value: &MetadataValue) -> Self {
        let text = value.as_text();
        Self {
            name: name.to_owned(),
            is_json: text.is_none(),
            value: text.map_or_else(|| value.as_json().to_owned(), Into::into),
        }
    }
}

/// Values of the retry fields.
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

/// Values of the circuit breaker fields.
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
    fn from_spec(spec: &WebhookSpec) -> Self {
        let retry = &spec.retry_config;
        let spans = |spans: &Vec<HumanDuration>| spans.iter().map(span).collect::<Vec<_>>().join(", ");
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
    fn from_spec(spec: &WebhookSpec) -> Self {
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
    /// Fills the fields from a webhook.
    pub(super) fn from_spec(spec: &WebhookSpec) -> Self {
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
            uid: text(&spec.uid),
            url: spec.url.clone(),
            description: text(&spec.description),
            events: spec.events.iter().map(ToString::to_string).collect(),
            subjects: lines(&spec.subjects),
            filter: filter.unwrap_or_default(),
            payload_format: name_of(spec.payload_format),
            ordering: name_of(spec.ordering_guarantee),
            scheme: name_of(spec.signature.scheme),
            header_format: name_of(spec.signature.header_format),
            headers: spec.headers.keys().cloned().collect(),
            metadata: spec.metadata.iter().map(|(name, value)| MetadataField::new(name, value)).collect(),
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
            retry: RetryFields::from_spec(spec),
            breaker: BreakerFields::from_spec(spec),
            requests_per_minute: text(&spec.rate_limit.map(|limit| limit.requests_per_minute)),
            burst: text(&spec.rate_limit.and_then(|limit| limit.burst)),
            max_in_flight: text(&spec.max_in_flight),
            owner_id: text(&owner.and_then(|owner| owner.id.clone())),
            owner_email: text(&owner.and_then(|owner| owner.email.clone())),
            owner_muted_kinds: owner.map(|owner| owner.muted_kinds.clone()).unwrap_or_default(),
            verify_url: spec.verify_url,
            expires_at: spec.expires_at,
        }
    }

    /// Returns the payload formats.
    pub(super) fn formats(&self) -> Choices {
        let all = [
            PayloadFormat::Envelope,
            PayloadFormat::Data,
            PayloadFormat::Cloudevents,
            PayloadFormat::CloudeventsBinary,
        ];
        all.into_iter().map(|format| (name_of(format), settings_text::format(format))).collect()
    }

    /// Returns the ordering guarantees.
    pub(super) fn orderings(&self) -> Choices {
        let all = [Ordering::None, Ordering::PerEventType, Ordering::Strict];
        all.into_iter().map(|ordering| (name_of(ordering), settings_text::ordering(ordering))).collect()
    }

    /// Returns the signature schemes.
    pub(super) fn schemes(&self) -> Choices {
        let all = [Scheme::Standard, Scheme::StandardEd25519];
        all.into_iter().map(|scheme| (name_of(scheme), settings_text::scheme(scheme))).collect()
    }

    /// Returns the formats of the `X-Webhook-Signature` header.
    pub(super) fn header_formats(&self) -> Choices {
        let all = [HeaderForm::Timestamped, HeaderForm::Sha256];
        all.into_iter().map(|form| (name_of(form), settings_text::header_format(form))).collect()
    }

    /// Returns the authentication methods.
    pub(super) fn auth_methods(&self) -> Choices {
        vec![
            (String::new(), "None"),
            ("basic".into(), "User name and password"),
            ("bearer".into(), "Bearer token"),
        ]
    }

    /// Returns the kinds of retry schedule.
    pub(super) fn retry_modes(&self) -> Choices {
        vec![
            (String::new(), "Default"),
            ("schedule".into(), "Fixed delays"),
            ("exponential".into(), "Exponential backoff"),
        ]
    }

    /// Returns the choices of failures that are retried.
    pub(super) fn retry_conditions(&self) -> Choices {
        vec![
            (String::new(), "Default"),
            (name_of(RetryOn::Default), "All except permanent status codes"),
            (name_of(RetryOn::All), "Every failure"),
        ]
    }

    /// Returns the choices for enabling the circuit breaker.
    pub(super) fn breaker_modes(&self) -> Choices {
        vec![(String::new(), "Default"), ("true".into(), "On"), ("false".into(), "Off")]
    }
}

#[cfg(test)]
mod tests {
    use redrive_core::webhook::confidential::SecretString;

    use super::*;

    #[test]
    fn formatted_durations_parse_to_same_value() {
        for (written, shown) in
            [("90s", "90s"), ("60s", "1m"), ("250ms", "250ms"), ("0s", "0s"), ("24h", "1d")]
        {
            assert_eq!(span(&HumanDuration::parse(written).unwrap()), shown);
            assert_eq!(HumanDuration::parse(shown), HumanDuration::parse(written));
        }
    }

    #[test]
    fn option_values_are_api_names() {
        let fields = Fields::from_spec(&WebhookSpec::default());
        assert_eq!((&*fields.payload_format, &*fields.ordering), ("envelope", "none"));
        assert_eq!((&*fields.scheme, &*fields.header_format), ("standard", "timestamped"));
        assert_eq!((&*fields.retry_mode, &*fields.auth), ("", ""));
        assert!(fields.formats().iter().any(|(name, _)| name == "cloudevents_binary"));
    }

    #[test]
    fn metadata_field_is_a_text_or_json() {
        let metadata = serde_json::from_str(r#"{"a": "5", "b": 5.0, "c": ["x"]}"#).unwrap();
        let spec = WebhookSpec { metadata, ..WebhookSpec::default() };
        let fields = Fields::from_spec(&spec).metadata;
        let shown: Vec<_> = fields.iter().map(|field| (&*field.name, &*field.value, field.is_json)).collect();
        assert_eq!(shown, [("a", "5", false), ("b", "5.0", true), ("c", r#"["x"]"#, true)]);
    }

    #[test]
    fn fields_contain_no_confidential_values() {
        let mut spec = WebhookSpec::default();
        spec.headers.insert("x-api-key".into(), SecretString::new("hush"));
        spec.auth = Some(EndpointAuth::Basic { username: "me".into(), password: SecretString::new("hush") });
        let fields = Fields::from_spec(&spec);
        assert_eq!(fields.headers, ["x-api-key"]);
        assert_eq!((&*fields.auth, &*fields.auth_username), ("basic", "me"));
    }
}
