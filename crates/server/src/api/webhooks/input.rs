//! Input for creating and changing a webhook, and how it is applied to the stored one.

use std::collections::{BTreeMap, BTreeSet};

use redrive_core::{
    FieldError, Time,
    delivery::{lane::Ordering, retry::RetryConfig},
    event::{PayloadFormat, event_type::Pattern},
    metadata::Metadata,
    protection::{breaker::BreakerConfig, limiter::RateLimit},
    routing::filter::Filter,
    security::signature::SignatureConfig,
    webhook::{
        ManagedBy, Owner, SuppliedCredentials, WebhookSpec, WebhookState,
        confidential::{EndpointAuth, SecretString},
        uid::WebhookUid,
    },
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{filter::FilterExpression, view::REDACTED};
use crate::{
    api::scope::tenant_parameter,
    app::{
        AppError,
        parse::json::{nullable, nullable_object, object},
        webhooks::disabled_by_request,
    },
    config::SecretSetting as Unshown,
};

/// Webhook to create, or changes to one. Missing fields keep their default or current value.
#[derive(Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WebhookInput {
    /// Your own id of the webhook, unique in the tenant and usable wherever its id is: 1 to 128 of A-Z, a-z, 0-9, '.', '_',
    /// '-' and ':', beginning with a letter or digit, but not with `wh_`; null for none.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<String>, example = "crm-sync", pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]
    uid: Option<Option<String>>,
    /// URL that events are sent to.
    #[schema(example = "https://example.com/webhooks", format = "uri", max_length = 2048)]
    url: Option<String>,
    /// Event types to subscribe to: `order.created`, `order.*` or `*`.
    #[schema(value_type = Option<Vec<EventTypePattern>>, min_items = 1, max_items = 100, example = json!(["order.*"]))]
    events: Option<Vec<Pattern>>,
    /// Deliver only events with these subjects; all if empty.
    #[schema(max_items = 100)]
    subjects: Option<Vec<String>>,
    /// Deliver only events whose `data` passes this filter; null for all. See docs/filters.md.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<FilterExpression>)]
    filter: Option<Option<Box<RawValue>>>,
    /// Description of the webhook.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<String>, max_length = 1024)]
    description: Option<Option<String>>,
    /// Owner of the webhook.
    #[serde(deserialize_with = "nullable_object")]
    #[schema(value_type = Option<Owner>)]
    owner: Option<Option<Owner>>,
    /// Shorthand for `owner.id`.
    owner_id: Option<String>,
    /// Format of the request body.
    payload_format: Option<PayloadFormat>,
    /// Signature settings.
    #[serde(deserialize_with = "object")]
    signature: Option<SignatureConfig>,
    /// Signing secret of 16 to 256 bytes: plain text, or `whsec_` and base64; generated if omitted. Only on creation;
    /// use rotate-secret later.
    #[schema(min_length = 16, max_length = 350)]
    pub(super) secret: Option<String>,
    /// Retry settings; null for the server defaults.
    #[serde(deserialize_with = "nullable_object")]
    #[schema(value_type = Option<RetryConfig>)]
    retry_config: Option<Option<RetryConfig>>,
    /// Circuit breaker settings; null for the server defaults.
    #[serde(deserialize_with = "nullable_object")]
    #[schema(value_type = Option<BreakerInput>)]
    circuit_breaker_config: Option<Option<BreakerInput>>,
    /// Rate limit; null for the server default.
    #[serde(deserialize_with = "nullable_object")]
    #[schema(value_type = Option<RateLimit>)]
    rate_limit: Option<Option<RateLimit>>,
    /// Ordering of deliveries. A change applies only to deliveries created later.
    ordering_guarantee: Option<Ordering>,
    /// Maximum concurrent requests, 1 to 1000; null for the server default.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    max_in_flight: Option<Option<u32>>,
    /// Custom headers sent with every request.
    headers: Option<BTreeMap<String, String>>,
    /// Authentication that the endpoint requires in addition to the signature; null for none. Redacted values are left
    /// unchanged.
    #[serde(deserialize_with = "nullable_object")]
    #[schema(value_type = Option<AuthInput>)]
    auth: Option<Option<AuthInput>>,
    /// Whether the endpoint must echo a challenge before it receives events, and again after a change of the URL.
    verify_url: Option<bool>,
    /// `tenant` (default) or `operator`: portal sessions cannot see webhooks of the operator, nor set this field.
    managed_by: Option<ManagedBy>,
    /// Your own metadata: any JSON values by name, up to 8,192 bytes in total and nested up to 20 levels deep. Kept as
    /// sent.
    #[schema(value_type = Option<BTreeMap<String, serde_json::Value>>)]
    metadata: Option<Metadata>,
    /// Time in the future at which the webhook is disabled; null for never.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Option<Time>>,
    /// `active`, `paused` or `disabled`.
    state: Option<InputState>,
    /// Shorthand for `state`: `true` for `active`, `false` for `disabled`.
    active: Option<bool>,
    /// Tenant to act for; admin keys only.
    pub(super) tenant_id: Option<String>,
}

tenant_parameter!(WebhookInput);

/// Event type (`order.created`), a prefix of event types (`order.*`), or `*` for all.
#[derive(ToSchema)]
#[schema(value_type = String, format = "event-type-pattern", example = "order.*")]
#[allow(dead_code, reason = "it is there to be documented")]
struct EventTypePattern(String);
/// Circuit breaker settings; omitted ones use the server's defaults.
#[derive(Clone, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BreakerInput {
    /// Whether the circuit opens by itself when the endpoint fails.
    enabled: Option<bool>,
    /// Length of the rolling window of calls, in milliseconds.
    #[schema(minimum = 1000, maximum = 3600000)]
    window_size_ms: Option<u64>,
    /// Minimum number of calls in the window for the circuit to open.
    #[schema(minimum = 1, maximum = 10000)]
    minimum_throughput: Option<u32>,
    /// The circuit opens when at least this percentage of the calls in the window failed.
    #[schema(minimum = 1.0, maximum = 100.0)]
    error_threshold_percentage: Option<f64>,
    /// How long the circuit stays open, in milliseconds; doubled at each failed recovery, up to 24 hours.
    #[schema(minimum = 1000, maximum = 86400000)]
    sleep_window_ms: Option<u64>,
    /// Number of probes that a half-open circuit lets through.
    #[schema(minimum = 1, maximum = 100)]
    half_open_max_calls: Option<u32>,
    /// Share of probes that must succeed for the circuit to close, such as 0.6.
    #[schema(exclusive_minimum = 0.0, maximum = 1.0)]
    half_open_success_threshold: Option<f64>,
    /// Forces the circuit open until this time, at most 30 days from now; null ends such a forced state. Without it the
    /// circuit keeps its state; alone, it leaves the other settings as they are.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<String>, format = DateTime)]
    force_open_until: Option<Option<Time>>,
}

impl BreakerInput {
    /// Returns whether it only forces the circuit or ends its forced state, and leaves the other settings as they are.
    fn is_forced_state_only(&self) -> bool {
        self.force_open_until.is_some() && self.config() == BreakerConfig::default()
    }

    fn config(&self) -> BreakerConfig {
        BreakerConfig {
            enabled: self.enabled,
            window_size_ms: self.window_size_ms,
            minimum_throughput: self.minimum_throughput,
            error_threshold_percentage: self.error_threshold_percentage,
            sleep_window_ms: self.sleep_window_ms,
            half_open_max_calls: self.half_open_max_calls,
            half_open_success_threshold: self.half_open_success_threshold,
        }
    }
}

/// Authentication at the endpoint, sent as the header `Authorization`.
#[derive(Clone, Deserialize, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum AuthInput {
    /// HTTP basic authentication.
    Basic {
        /// User name, without a colon.
        username: String,
        /// Password.
        #[schema(value_type = String)]
        password: Unshown,
    },
    /// Bearer token.
    Bearer {
        /// Token.
        #[schema(value_type = String)]
        token: Unshown,
    },
}

impl AuthInput {
    /// Returns whether the secret part is a new value, not the redaction placeholder.
    fn is_supplied(&self) -> bool {
        match self {
            Self::Basic { password: secret, .. } | Self::Bearer { token: secret } => {
                secret.reveal() != REDACTED
            }
        }
    }

    /// Returns the authentication with redacted values replaced by the stored ones.
    pub(super) fn restore_redacted(&self, known: Option<&EndpointAuth>) -> Result<EndpointAuth, FieldError> {
        let value = |field: &'static str, given: &Unshown, known: Option<&SecretString>| match (
            given.reveal(),
            known,
        ) {
            (REDACTED, Some(known)) => Ok(known.clone()),
            (REDACTED, None) => {
                Err(FieldError::new(field, "is redacted, but no value is stored; send the value"))
            }
            (given, _) => Ok(SecretString::new(given)),
        };
        match self {
            Self::Basic { username, password } => {
                let known = match known {
                    Some(EndpointAuth::Basic { password, .. }) => Some(password),
                    _ => None,
                };
                let password = value("auth.password", password, known)?;
                Ok(EndpointAuth::Basic { username: username.clone(), password })
            }
            Self::Bearer { token } => {
                let known = match known {
                    Some(EndpointAuth::Bearer { token }) => Some(token),
                    _ => None,
                };
                Ok(EndpointAuth::Bearer { token: value("auth.token", token, known)? })
            }
        }
    }
}

/// State to set.
#[derive(Clone, Copy, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InputState {
    Active,
    Paused,
    Disabled,
}

impl InputState {
    /// Sets the state of a webhook. A webhook that is already disabled keeps its reason.
    pub(super) fn apply_to(self, state: &mut WebhookState) {
        match self {
            Self::Active => *state = WebhookState::Active,
            Self::Paused => *state = WebhookState::Paused,
            Self::Disabled if !state.cancels_deliveries() => *state = disabled_by_request(),
            Self::Disabled => {}
        }
    }
}

impl WebhookInput {
    /// Returns the requested state. Returns `None` if the input has neither `state` nor `active`.
    pub(super) fn requested_state(&self) -> Result<Option<InputState>, AppError> {
        match (self.state, self.active) {
            (Some(state), Some(active)) if active != (state == InputState::Active) => {
                Err(FieldError::new("active", "contradicts state; send only one of them").into())
            }
            (Some(state), _) => Ok(Some(state)),
            (None, Some(true)) => Ok(Some(InputState::Active)),
            (None, Some(false)) => Ok(Some(InputState::Disabled)),
            (None, None) => Ok(None),
        }
    }

    /// Returns what is requested for the forced state of the circuit; `None` leaves the circuit as it is.
    pub(super) fn force_open_until(&self) -> Option<Option<Time>> {
        self.circuit_breaker_config.as_ref()?.as_ref()?.force_open_until
    }

    fn owner(&self) -> Result<Option<Option<Owner>>, AppError> {
        match (&self.owner, &self.owner_id) {
            (Some(_), Some(_)) => {
                Err(FieldError::new("owner_id", "is a shorthand for owner.id; send only one of them").into())
            }
            (None, Some(id)) => Ok(Some(Some(Owner { id: Some(id.clone()), ..Owner::default() }))),
            (owner, None) => Ok(owner.clone()),
        }
    }

    /// Returns whether the input sets another uid, or removes it.
    pub(super) fn names_other_uid(&self, uid: &WebhookUid) -> bool {
        self.uid.as_ref().is_some_and(|named| named.as_deref() != Some(uid.as_str()))
    }

    pub(crate) fn new_spec(&self) -> Result<WebhookSpec, AppError> {
        let Some(url) = self.url.clone() else {
            return Err(FieldError::new("url", "is missing; set the URL that events are sent to").into());
        };
        let Some(events) = self.events.clone() else {
            return Err(
                FieldError::new("events", "is missing; list event types, such as [\"order.*\"]").into()
            );
        };
        let mut spec = WebhookSpec { url, events, ..WebhookSpec::default() };
        self.apply_to(&mut spec)?;
        Ok(spec)
    }

    /// Applies the input to a webhook. Returns which confidential values were newly supplied rather than kept.
    pub(super) fn apply_to(&self, spec: &mut WebhookSpec) -> Result<SuppliedCredentials, AppError> {
        fn put<T: Clone>(to: &mut T, from: &Option<T>) {
            if let Some(value) = from {
                to.clone_from(value);
            }
        }
        if let Some(uid) = &self.uid {
            spec.uid = uid.as_deref().map(WebhookUid::parse).transpose()?;
        }
        put(&mut spec.url, &self.url);
        put(&mut spec.events, &self.events);
        put(&mut spec.subjects, &self.subjects);
        if let Some(filter) = &self.filter {
            spec.filter = filter.as_ref().map(|raw| Filter::parse(raw.get())).transpose()?;
        }
        put(&mut spec.description, &self.description);
        put(&mut spec.payload_format, &self.payload_format);
        put(&mut spec.signature, &self.signature);
        if let Some(Some(retry)) = &self.retry_config {
            retry.check_combination()?;
        }
        put(&mut spec.retry_config, &self.retry_config.clone().map(Option::unwrap_or_default));
        let changes_breaker =
            |config: &&Option<BreakerInput>| !config.as_ref().is_some_and(BreakerInput::is_forced_state_only);
        let breaker = self.circuit_breaker_config.as_ref().filter(changes_breaker);
        put(
            &mut spec.circuit_breaker_config,
            &breaker.map(|config| config.as_ref().map(BreakerInput::config).unwrap_or_default()),
        );
        put(&mut spec.rate_limit, &self.rate_limit);
        put(&mut spec.ordering_guarantee, &self.ordering_guarantee);
        put(&mut spec.expires_at, &self.expires_at);
        put(&mut spec.max_in_flight, &self.max_in_flight);
        put(&mut spec.metadata, &self.metadata);
        put(&mut spec.owner, &self.owner()?);
        put(&mut spec.verify_url, &self.verify_url);
        put(&mut spec.managed_by, &self.managed_by);
        if let Some(headers) = &self.headers {
            spec.headers = restore_redacted(headers, &spec.headers)?;
        }
        if let Some(auth) = &self.auth {
            let known = spec.auth.as_ref();
            spec.auth = auth.as_ref().map(|auth| auth.restore_redacted(known)).transpose()?;
        }
        Ok(self.supplied_credentials())
    }

    fn supplied_credentials(&self) -> SuppliedCredentials {
        let is_new = |(_, value): &(&String, &String)| value.as_str() != REDACTED;
        let headers = self.headers.iter().flatten().filter(is_new);
        SuppliedCredentials {
            headers: headers.map(|(name, _)| name.to_ascii_lowercase()).collect(),
            auth: self.auth.as_ref().is_some_and(|auth| auth.as_ref().is_some_and(AuthInput::is_supplied)),
        }
    }
}

/// Returns the headers with redacted values replaced by the stored ones.
fn restore_redacted(
    given: &BTreeMap<String, String>,
    known: &BTreeMap<String, SecretString>,
) -> Result<BTreeMap<String, SecretString>, AppError> {
    // Header names are case-insensitive. A name given twice, once with a value and once redacted, would count as
    // supplied and restore the stored value.
    let mut names = BTreeSet::new();
    if let Some(twice) = given.keys().find(|name| !names.insert(name.to_ascii_lowercase())) {
        let field = format!("headers.{}", twice.escape_debug());
        return Err(FieldError::new(field, "is given twice; header names are case-insensitive").into());
    }
    let lower = |(name, value): (&String, &String)| (name.to_ascii_lowercase(), value.clone());
    let value = |(name, value): (String, String)| match (value.as_str(), known.get(&name)) {
        (REDACTED, Some(known)) => Ok((name, known.clone())),
        (REDACTED, None) => Err(FieldError::new(
            format!("headers.{}", name.escape_debug()),
            "is redacted, but no value is stored; send the value",
        )
        .into()),
        _ => Ok((name, SecretString::new(value))),
    };
    given.iter().map(lower).map(value).collect()
}
