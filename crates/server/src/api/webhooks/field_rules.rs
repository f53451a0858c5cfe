//! Rules for single fields of a webhook, applied to each field of a rejected body that can be parsed.

use std::collections::BTreeMap;

use redrive_core::{
    FieldError,
    delivery::retry::{RetryConfig, RetryPolicy},
    event::event_type::Pattern,
    metadata::Metadata,
    protection::{
        breaker::{BreakerConfig, BreakerPolicy},
        limiter::RateLimit,
    },
    security::signature::Secret,
    webhook::{Owner, WebhookSpec, confidential::SecretString, parse_url, uid::WebhookUid},
};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::input::AuthInput;

/// Returns an error for each field whose value violates a rule. Fields that cannot be parsed are left to the comparison
/// with the schema; rules that need the server's settings, stored values or the time are left to the use case.
pub(in crate::api) fn broken_rules(body: &[u8]) -> Vec<FieldError> {
    let Ok(fields) = serde_json::from_slice::<BTreeMap<String, &RawValue>>(body) else { return Vec::new() };
    let fields = Fields(fields);
    let headers: BTreeMap<String, String> = fields.parse("headers").unwrap_or_default();
    let spec = WebhookSpec {
        events: fields.parse("events").unwrap_or_else(|| vec![Pattern::All]),
        subjects: fields.parse("subjects").unwrap_or_default(),
        headers: headers.into_iter().map(|(name, value)| (name, SecretString::new(value))).collect(),
        auth: fields.parse::<AuthInput>("auth").and_then(|auth| auth.restore_redacted(None).ok()),
        description: fields.parse("description"),
        owner: fields.parse::<Owner>("owner"),
        rate_limit: fields.parse::<RateLimit>("rate_limit"),
        metadata: fields.parse::<Metadata>("metadata").unwrap_or_default(),
        ..WebhookSpec::default()
    };
    let url = fields.parse::<String>("url").and_then(|url| parse_url(&url, true).err());
    let uid = fields.parse::<String>("uid").and_then(|uid| WebhookUid::parse(&uid).err());
    let secret = fields.parse::<String>("secret").and_then(|secret| Secret::parse(&secret).err());
    let retry = fields.parse::<RetryConfig>("retry_config");
    let retry = retry.and_then(|retry| {
        retry.check_combination().and_then(|()| retry.resolve(&RetryPolicy::default()).map(drop)).err()
    });
    let breaker = fields.parse::<BreakerConfig>("circuit_breaker_config");
    let breaker = breaker.and_then(|config| config.resolve(&BreakerPolicy::default()).err());
    let others = [uid, secret, retry, breaker].into_iter().flatten();
    url.into_iter().chain(spec.invalid_fields()).chain(others).collect()
}

struct Fields<'a>(BTreeMap<String, &'a RawValue>);

impl Fields<'_> {
    fn parse<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_str(self.0.get(name)?.get()).ok()
    }
}
