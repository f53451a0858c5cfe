//! What people write about a webhook, and how it is applied to one.

use std::collections::BTreeMap;

use redrive_core::{
    Invalid,
    event::PayloadFormat,
    event_type::Pattern,
    retry::RetryConfig,
    signature::SignatureConfig,
    webhook::{Owner, WebhookSpec},
};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::view::REDACTED;
use crate::app::AppError;

/// Tells a field that is null (clear it) from one that is not there (leave it).
fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(value: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(value).map(Some)
}

/// A webhook to make, or what to change about one. Whatever is left out keeps its default or its value.
#[derive(Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WebhookInput {
    /// Where events are sent.
    #[schema(example = "https://example.com/webhooks")]
    url: Option<String>,
    /// Which event types: `order.created`, `order.*` or `*`.
    #[schema(value_type = Option<Vec<String>>, example = json!(["order.*"]))]
    events: Option<Vec<Pattern>>,
    /// Only events about these subjects; all if empty.
    subjects: Option<Vec<String>>,
    /// What it is for.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<String>)]
    description: Option<Option<String>>,
    /// Who looks after it.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<Owner>)]
    owner: Option<Option<Owner>>,
    /// Short for `owner.id`.
    owner_id: Option<String>,
    /// What the request body looks like.
    payload_format: Option<PayloadFormat>,
    /// How requests are signed.
    signature: Option<SignatureConfig>,
    /// Your own signing secret, `whsec_…`; one is made if left out. Only when creating: see rotate-secret.
    pub(super) secret: Option<String>,
    /// When to try again.
    retry_config: Option<RetryConfig>,
    /// Requests at once, 1 to 1000; null for the server's default.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<u32>)]
    max_in_flight: Option<Option<u32>>,
    /// Headers sent along with every request.
    headers: Option<BTreeMap<String, String>>,
    /// Your own notes.
    metadata: Option<BTreeMap<String, String>>,
    /// `active` or `disabled`.
    state: Option<InputState>,
    /// Short for `state`.
    active: Option<bool>,
    /// The tenant to act for; admin keys only.
    pub(super) tenant_id: Option<String>,
}

/// The states that a webhook can be put in.
#[derive(Clone, Copy, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InputState {
    Active,
    Disabled,
}

impl WebhookInput {
    /// Switches a webhook on or off, and nothing else.
    pub(super) fn switching(active: bool) -> Self {
        Self { active: Some(active), ..Self::default() }
    }

    /// Whether it is to be active, as far as it says.
    pub(super) fn wants_active(&self) -> Result<Option<bool>, AppError> {
        let by_state = self.state.map(|state| state == InputState::Active);
        match (by_state, self.active) {
            (Some(state), Some(active)) if state != active => {
                Err(Invalid::new("active", "contradicts state; give one of them").into())
            }
            (state, active) => Ok(state.or(active)),
        }
    }

    fn owner(&self) -> Result<Option<Option<Owner>>, AppError> {
        match (&self.owner, &self.owner_id) {
            (Some(_), Some(_)) => {
                Err(Invalid::new("owner_id", "is short for owner.id; give one of them").into())
            }
            (None, Some(id)) => Ok(Some(Some(Owner { id: Some(id.clone()), email: None }))),
            (owner, None) => Ok(owner.clone()),
        }
    }

    pub(super) fn new_spec(&self) -> Result<WebhookSpec, AppError> {
        let Some(url) = self.url.clone() else {
            return Err(Invalid::new("url", "is missing; say where events are to be sent").into());
        };
        let Some(events) = self.events.clone() else {
            return Err(Invalid::new("events", "is missing; list event types, such as [\"order.*\"]").into());
        };
        let mut spec = WebhookSpec {
            url,
            events,
            description: None,
            owner: None,
            subjects: Vec::new(),
            payload_format: PayloadFormat::default(),
            signature: SignatureConfig::default(),
            retry_config: RetryConfig::default(),
            max_in_flight: None,
            headers: BTreeMap::new(),
            metadata: BTreeMap::new(),
        };
        self.apply_to(&mut spec)?;
        Ok(spec)
    }

    pub(super) fn apply_to(&self, spec: &mut WebhookSpec) -> Result<(), AppError> {
        fn put<T: Clone>(to: &mut T, from: &Option<T>) {
            if let Some(value) = from {
                to.clone_from(value);
            }
        }
        put(&mut spec.url, &self.url);
        put(&mut spec.events, &self.events);
        put(&mut spec.subjects, &self.subjects);
        put(&mut spec.description, &self.description);
        put(&mut spec.payload_format, &self.payload_format);
        put(&mut spec.signature, &self.signature);
        put(&mut spec.retry_config, &self.retry_config);
        put(&mut spec.max_in_flight, &self.max_in_flight);
        put(&mut spec.metadata, &self.metadata);
        put(&mut spec.owner, &self.owner()?);
        if let Some(headers) = &self.headers {
            spec.headers = unredacted(headers, &spec.headers)?;
        }
        Ok(())
    }
}

/// Headers with the values that were shown redacted put back.
fn unredacted(
    given: &BTreeMap<String, String>,
    known: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, AppError> {
    // Header names mean the same in any case.
    let lower = |(name, value): (&String, &String)| (name.to_ascii_lowercase(), value.clone());
    let value = |(name, value): (String, String)| match (value.as_str(), known.get(&name)) {
        (REDACTED, Some(known)) => Ok((name, known.clone())),
        (REDACTED, None) => {
            Err(Invalid::new(format!("headers.{}", name.escape_debug()), "has no value yet").into())
        }
        _ => Ok((name, value)),
    };
    given.iter().map(lower).map(value).collect()
}
