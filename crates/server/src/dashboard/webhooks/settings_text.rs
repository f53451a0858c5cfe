//! Settings of a webhook as text.

use redrive_core::{
    delivery::lane::Ordering,
    event::PayloadFormat,
    metadata::MetadataValue,
    security::signature::{HeaderForm, Scheme},
    webhook::WebhookSpec,
};

use crate::{app::confirmations::AddressStatus, dashboard::format};

/// Describes a payload format.
pub(super) fn format(format: PayloadFormat) -> &'static str {
    match format {
        PayloadFormat::Envelope => "Envelope: id, type, time and data",
        PayloadFormat::Data => "Payload only",
        PayloadFormat::Cloudevents => "CloudEvent, structured mode",
        PayloadFormat::CloudeventsBinary => "CloudEvent, binary mode",
    }
}

/// Describes an ordering guarantee.
pub(super) fn ordering(ordering: Ordering) -> &'static str {
    match ordering {
        Ordering::None => "Unordered",
        Ordering::PerEventType => "Ordered per event type",
        Ordering::Strict => "Strictly ordered",
    }
}

/// Describes a signature scheme.
pub(super) fn scheme(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::Standard => "v1: HMAC-SHA256 with a shared secret",
        Scheme::StandardEd25519 => "v1a: Ed25519 with a public key",
    }
}

/// Describes the format of the `X-Webhook-Signature` header.
pub(super) fn header_format(form: HeaderForm) -> &'static str {
    match form {
        HeaderForm::Timestamped => "t=…,v1=… over timestamp and body",
        HeaderForm::Sha256 => "sha256=… over the body, as GitHub signs",
    }
}

/// Returns the settings of a webhook with their names.
pub(super) fn setting_rows(
    spec: &WebhookSpec,
    owner_status: Option<AddressStatus>,
) -> Vec<(&'static str, String)> {
    let list = |texts: &[String]| texts.join(", ");
    let events: Vec<String> = spec.events.iter().map(ToString::to_string).collect();
    let mut rows = vec![
        ("Event types", list(&events)),
        ("Payload format", format(spec.payload_format).to_owned()),
        ("webhook-signature", scheme(spec.signature.scheme).to_owned()),
        ("X-Webhook-Signature", header_format(spec.signature.header_format).to_owned()),
        ("Ordering", ordering(spec.ordering_guarantee).to_owned()),
        ("Max concurrency", spec.max_in_flight.map_or("Default".into(), |max| max.to_string())),
    ];
    let mut add = |name, text: Option<String>| rows.extend(text.map(|text| (name, text)));
    add(
        "Rate limit",
        spec.rate_limit.map(|limit| {
            let (rate, burst) = (format::number(u64::from(limit.requests_per_minute)), limit.burst());
            format!("{rate} per minute, burst {burst}")
        }),
    );
    add("Subjects", (!spec.subjects.is_empty()).then(|| list(&spec.subjects)));
    add(
        "Headers",
        (!spec.headers.is_empty()).then(|| {
            let names: Vec<String> = spec.headers.keys().cloned().collect();
            format!("{} (values are not shown)", list(&names))
        }),
    );
    add("Authentication", spec.auth.as_ref().map(|auth| format!("{} (not shown)", auth.kind())));
    add("URL verification", spec.verify_url.then(|| "the endpoint must echo a challenge".to_owned()));
    let owner = spec.owner.as_ref().map(|owner| {
        let parts: Vec<String> = [owner.id.clone(), owner.email.clone()].into_iter().flatten().collect();
        let is_unconfirmed = owner_status == Some(AddressStatus::Unconfirmed);
        list(&parts) + if is_unconfirmed { " (waiting for confirmation)" } else { "" }
    });
    add("Owner", owner.filter(|text| !text.is_empty()));
    add(
        "Metadata",
        (!spec.metadata.is_empty()).then(|| {
            let shown = |value: &MetadataValue| match value.as_text() {
                Some(text) => text.into_owned(),
                None => value.as_json().to_owned(),
            };
            let pairs: Vec<String> =
                spec.metadata.iter().map(|(name, value)| format!("{name}: {}", shown(value))).collect();
            list(&pairs)
        }),
    );
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_rows_contain_no_secret() {
        let mut spec = WebhookSpec::default();
        spec.headers
            .insert("x-api-key".into(), redrive_core::webhook::confidential::SecretString::new("hush"));
        let rows = setting_rows(&spec, None);
        assert!(rows.iter().any(|(name, text)| *name == "Headers" && text.starts_with("x-api-key")));
        assert!(!format!("{rows:?}").contains("hush"));
    }
}
