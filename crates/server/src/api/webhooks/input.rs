//! What people write about a webhook, and how it is applied to one.

use std::collections::{BTreeMap, BTreeSet};

use redrive_core::{
    Invalid, Time,
    delivery::lane::Ordering,
    delivery::retry::RetryConfig,
    event::PayloadFormat,
    event::event_type::Pattern,
    protection::breaker::BreakerConfig,
    protection::limiter::RateLimit,
    routing::filter::Filter,
    security::signature::SignatureConfig,
    webhook::confidential::{EndpointAuth, Hidden},
    webhook::{ManagedBy, Owner, SuppliedCredentials, WebhookSpec, WebhookState},
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{filter::FilterExpression, view::REDACTED};
use crate::{
    api::extract::{nullable, nullable_object, object},
    app::{AppError, webhooks::disabled_by_request},
    config::Hidden as Unshown,
};

/// A webhook to make, or what to change about one. Whatever is left out keeps its default or its value.
#[derive(Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WebhookInput {
    /// Where events are sent.
    #[schema(example = "https://example.com/webhooks", format = "uri", max_length = 2048)]
    url: Option<String>,
    /// Which event types: `order.created`, `order.*` or `*`.
    #[schema(value_type = Option<Vec<String>>, min_items = 1, max_items = 100, example = json!(["order.*"]))]
    events: Option<Vec<Pattern>>,
    /// Only events about these subjects; all if empty.
    #[schema(max_items = 100)]
    subjects: Option<Vec<String>>,
    /// Only events whose `data` passes; null for all. See docs/filters.md.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<FilterExpression>)]
    filter: Option<Option<Box<RawValue>>>,
    /// What it is for.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<String>, max_length = 1024)]
    description: Option<Option<String>>,
    /// Who looks after it.
    #[serde(deserialize_with = "nullable_object")]
    #[schema(value_type = Option<Owner>)]
    owner: Option<Option<Owner>>,
    /// Short for `owner.id`.
    owner_id: Option<String>,
    /// What the request body looks like.
    payload_format: Option<PayloadFormat>,
    /// How requests are signed.
    #[serde(deserialize_with = "object")]
    signature: Option<SignatureConfig>,
    /// Your own signing secret, `whsec_…`; one is made if left out. Only when creating: see rotate-secret.
    #[schema(pattern = "^whsec_[A-Za-z0-9+/]{32,86}={0,2}$")]
    pub(super) secret: Option<String>,
    /// When to try again; null for the server's defaults.
    #[serde(deserialize_with = "nullable_object")]
    #[schema(value_type = Option<RetryConfig>)]
    retry_config: Option<Option<RetryConfig>>,
    /// When to stop calling an endpoint that fails; null for the server's defaults.
    #[serde(deserialize_with = "nullable_object")]
    #[schema(value_type = Option<BreakerConfig>)]
    circuit_breaker_config: Option<Option<BreakerConfig>>,
    /// How fast requests may go; null for the server's default.
    #[serde(deserialize_with = "nullable_object")]
    #[schema(value_type = Option<RateLimit>)]
    rate_limit: Option<Option<RateLimit>>,
    /// Which deliveries wait for one another. A change is for deliveries that are made later.
    ordering_guarantee: Option<Ordering>,
    /// Requests at once, 1 to 1000; null for the server's default.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    max_in_flight: Option<Option<u32>>,
    /// Headers sent along with every request.
    headers: Option<BTreeMap<String, String>>,
    /// How your endpoint wants to be convinced, beside the signature; null for nothing. Values that are shown
    /// redacted mean "as they were".
    #[serde(deserialize_with = "nullable_object")]
    #[schema(value_type = Option<AuthInput>)]
    auth: Option<Option<AuthInput>>,
    /// Whether your endpoint has to echo a challenge before it gets events, and again when the URL changes.
    verify_url: Option<bool>,
    /// Who manages it: with `operator`, portal sessions see nothing of it. `tenant` if left out. Not for sessions.
    managed_by: Option<ManagedBy>,
    /// Your own notes.
    metadata: Option<BTreeMap<String, String>>,
    /// When it is to be disabled, in the future; null for never.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Option<Time>>,
    /// `active`, `paused` or `disabled`.
    state: Option<InputState>,
    /// Short for `state`: `active`, or `disabled`.
    active: Option<bool>,
    /// The tenant to act for; admin keys only.
    pub(super) tenant_id: Option<String>,
}

/// How an endpoint wants to be convinced, sent as `Authorization`.
#[derive(Clone, Deserialize, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum AuthInput {
    /// HTTP basic authentication.
    Basic {
        /// The user's name, without a colon.
        username: String,
        /// The password.
        #[schema(value_type = String)]
        password: Unshown,
    },
    /// A bearer token.
    Bearer {
        /// The token.
        #[schema(value_type = String)]
        token: Unshown,
    },
}

impl AuthInput {
    /// Whether its secret part is written out, rather than shown redacted.
    fn is_supplied(&self) -> bool {
        match self {
            Self::Basic { password: secret, .. } | Self::Bearer { token: secret } => {
                secret.reveal() != REDACTED
            }
        }
    }

    /// The same with what was shown redacted put back.
    fn unredacted(&self, known: Option<&EndpointAuth>) -> Result<EndpointAuth, Invalid> {
        let value =
            |field: &'static str, given: &Unshown, known: Option<&Hidden>| match (given.reveal(), known) {
                (REDACTED, Some(known)) => Ok(known.clone()),
                (REDACTED, None) => Err(Invalid::new(field, "has no value yet")),
                (given, _) => Ok(Hidden::new(given)),
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

/// The states that a webhook can be put in.
#[derive(Clone, Copy, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InputState {
    Active,
    Paused,
    Disabled,
}

impl InputState {
    /// Puts a webhook in this state. One that is disabled already keeps its reason.
    pub(super) fn apply_to(self, state: &mut WebhookState) {
        match self {
            Self::Active => *state = WebhookState::Active,
            Self::Paused => *state = WebhookState::Paused,
            Self::Disabled if state.cancels_because().is_none() => *state = disabled_by_request(),
            Self::Disabled => {}
        }
    }
}

impl WebhookInput {
    /// The state it is to be in, as far as it says.
    pub(super) fn wants_state(&self) -> Result<Option<InputState>, AppError> {
        match (self.state, self.active) {
            (Some(state), Some(active)) if active != (state == InputState::Active) => {
                Err(Invalid::new("active", "contradicts state; give one of them").into())
            }
            (Some(state), _) => Ok(Some(state)),
            (None, Some(true)) => Ok(Some(InputState::Active)),
            (None, Some(false)) => Ok(Some(InputState::Disabled)),
            (None, None) => Ok(None),
        }
    }

    fn owner(&self) -> Result<Option<Option<Owner>>, AppError> {
        match (&self.owner, &self.owner_id) {
            (Some(_), Some(_)) => {
                Err(Invalid::new("owner_id", "is short for owner.id; give one of them").into())
            }
            (None, Some(id)) => Ok(Some(Some(Owner { id: Some(id.clone()), ..Owner::default() }))),
            (owner, None) => Ok(owner.clone()),
        }
    }

    pub(crate) fn new_spec(&self) -> Result<WebhookSpec, AppError> {
        let Some(url) = self.url.clone() else {
            return Err(Invalid::new("url", "is missing; say where events are to be sent").into());
        };
        let Some(events) = self.events.clone() else {
            return Err(Invalid::new("events", "is missing; list event types, such as [\"order.*\"]").into());
        };
        let mut spec = WebhookSpec { url, events, ..WebhookSpec::default() };
        self.apply_to(&mut spec)?;
        Ok(spec)
    }

    /// Applies what is written to a webhook. Returns which confidential values came along, rather than being kept.
    pub(super) fn apply_to(&self, spec: &mut WebhookSpec) -> Result<SuppliedCredentials, AppError> {
        fn put<T: Clone>(to: &mut T, from: &Option<T>) {
            if let Some(value) = from {
                to.clone_from(value);
            }
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
        put(&mut spec.retry_config, &self.retry_config.clone().map(Option::unwrap_or_default));
        put(
            &mut spec.circuit_breaker_config,
            &self.circuit_breaker_config.clone().map(Option::unwrap_or_default),
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
            spec.headers = unredacted(headers, &spec.headers)?;
        }
        if let Some(auth) = &self.auth {
            let known = spec.auth.as_ref();
            spec.auth = auth.as_ref().map(|auth| auth.unredacted(known)).transpose()?;
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

/// Headers with the values that were shown redacted put back.
fn unredacted(
    given: &BTreeMap<String, String>,
    known: &BTreeMap<String, Hidden>,
) -> Result<BTreeMap<String, Hidden>, AppError> {
    // Header names mean the same in any case. A name given twice, once with a value and once redacted, would count as
    // supplied and restore the stored value.
    let mut seen = BTreeSet::new();
    if let Some(twice) = given.keys().find(|name| !seen.insert(name.to_ascii_lowercase())) {
        let field = format!("headers.{}", twice.escape_debug());
        return Err(Invalid::new(field, "is given twice; header names mean the same in any case").into());
    }
    let lower = |(name, value): (&String, &String)| (name.to_ascii_lowercase(), value.clone());
    let value = |(name, value): (String, String)| match (value.as_str(), known.get(&name)) {
        (REDACTED, Some(known)) => Ok((name, known.clone())),
        (REDACTED, None) => {
            Err(Invalid::new(format!("headers.{}", name.escape_debug()), "has no value yet").into())
        }
        _ => Ok((name, Hidden::new(value))),
    };
    given.iter().map(lower).map(value).collect()
}
