//! Webhooks: the subscription of a URL to event types, with its settings and states.

pub mod caps;
pub mod confidential;
pub mod failures;
pub mod status;
pub mod uid;
pub mod verification;

use std::collections::{BTreeMap, BTreeSet};

use http::{HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use url::{Host, Url};

use crate::{
    delivery::{lane::Ordering, retry::RetryConfig},
    event::{PayloadFormat, event_type::Pattern},
    field_error::{FieldError, check_plain_text},
    id::WebhookId,
    metadata::{self, Metadata},
    notification::{
        NotificationKind,
        preferences::{check_email, check_muted_kinds},
    },
    protection::{breaker::BreakerConfig, limiter::RateLimit},
    routing::{filter::Filter, subscription::SubscriptionCriteria},
    security::{
        address::special_range,
        egress_rules::{EgressDenied, EgressRules},
        signature::{LiveSecret, SignatureConfig},
    },
    tenancy::TenantId,
    time::Time,
    webhook::{
        confidential::{EndpointAuth, SecretString},
        uid::WebhookUid,
        verification::Verification,
    },
};

/// Maximum length of a URL.
pub const MAX_URL: usize = 2048;
/// Maximum number of event patterns of one webhook.
pub const MAX_EVENT_PATTERNS: usize = 100;
/// Maximum number of subjects of one webhook.
pub const MAX_SUBJECTS: usize = 100;
/// Maximum number of custom headers of one webhook.
pub const MAX_HEADERS: usize = 20;
/// Maximum length of a custom header value.
pub const MAX_HEADER_VALUE: usize = 4096;
/// The range of `max_in_flight`.
pub const MAX_IN_FLIGHT_RANGE: std::ops::RangeInclusive<u32> = 1..=1000;

/// Headers owned by Redrive, HTTP framing or the connection; a webhook must not set them.
const RESERVED_HEADERS: [&str; 16] = [
    "host",
    "content-length",
    "content-type",
    "content-encoding",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "proxy-connection",
    "upgrade",
    "te",
    "trailer",
    "expect",
    "user-agent",
    "traceparent",
    "tracestate",
    "x-idempotency-key",
];
/// Prefixes of headers owned by Redrive.
const RESERVED_HEADER_PREFIXES: [&str; 5] = ["webhook-", "x-webhook-", "proxy-", "ce-", "redrive-"];

/// Contact responsible for the endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Owner {
    /// Id of the owner in the application.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Email address for notifications about problems.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// Kinds of notifications about this webhook that are not sent by any channel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 9))]
    pub muted_kinds: Vec<NotificationKind>,
}

/// Who manages a webhook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ManagedBy {
    /// The tenant's own users: portal sessions may see and change it.
    #[default]
    Tenant,
    /// The application that uses Redrive: hidden from portal sessions.
    Operator,
}

/// Owner's settings of a webhook. Stored as one document.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WebhookSpec {
    /// Id that the application gave to it, unique in the tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<WebhookUid>,
    /// URL that events are sent to.
    pub url: String,
    /// Description by the owner.
    pub description: Option<String>,
    /// Contact responsible for it.
    pub owner: Option<Owner>,
    /// Patterns of the event types it subscribes to.
    pub events: Vec<Pattern>,
    /// Subjects of which it receives events; empty for all.
    pub subjects: Vec<String>,
    /// Filter that payloads must pass; `None` for all.
    #[serde(default)]
    pub filter: Option<Filter>,
    /// Format of the request body.
    pub payload_format: PayloadFormat,
    /// How requests are signed.
    pub signature: SignatureConfig,
    /// Retry policy; omitted fields use the server's defaults.
    pub retry_config: RetryConfig,
    /// Circuit breaker policy; omitted fields use the server's defaults.
    #[serde(default)]
    pub circuit_breaker_config: BreakerConfig,
    /// Rate limit of requests; `None` for the server's default.
    #[serde(default)]
    pub rate_limit: Option<RateLimit>,
    /// Ordering guarantee: which of its deliveries wait for one another.
    #[serde(default)]
    pub ordering_guarantee: Ordering,
    /// Maximum number of requests in flight; `None` for the server's default.
    pub max_in_flight: Option<u32>,
    /// Headers sent with every request. Stored sealed, not in this document.
    #[serde(skip)]
    pub headers: BTreeMap<String, SecretString>,
    /// Authentication towards the endpoint, in addition to the signature. Stored sealed, not in this document.
    #[serde(skip)]
    pub auth: Option<EndpointAuth>,
    /// Metadata set by the owner.
    pub metadata: Metadata,
    /// Time at which it is disabled.
    #[serde(default)]
    pub expires_at: Option<Time>,
    /// Whether its endpoint has to echo a challenge before it receives events, and again when the URL changes.
    #[serde(default)]
    pub verify_url: bool,
    /// Last URL that echoed a challenge, if any.
    #[serde(default)]
    pub verified_url: Option<String>,
    /// Time of the last challenge sent to its endpoint, at any URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub challenged_at: Option<Time>,
    /// Who manages it.
    #[serde(default)]
    pub managed_by: ManagedBy,
}

impl WebhookSpec {
    /// Returns the host of its URL for display. The rest of a URL may be as sensitive as a password.
    pub fn host(&self) -> Option<String> {
        Url::parse(&self.url).ok()?.host_str().map(str::to_owned)
    }

    /// Returns the events it subscribes to.
    pub fn subscription_criteria(&self) -> SubscriptionCriteria<'_> {
        SubscriptionCriteria { events: &self.events, subjects: &self.subjects }
    }

    /// Validates everything except the retry and circuit breaker configuration, which need the server's defaults.
    pub fn validate(&self, urls: &UrlRules) -> Result<(), FieldError> {
        validate_url(&self.url, urls)?;
        self.validate_without_url()
    }

    /// Validates everything except the URL. A URL that was accepted once stays valid even if the operator's rules have
    /// changed: an owner must still be able to pause a webhook whose URL is no longer allowed.
    pub fn validate_without_url(&self) -> Result<(), FieldError> {
        self.invalid_fields().into_iter().next().map_or(Ok(()), Err)
    }

    /// Returns an error for every field that violates a rule, in a fixed order.
    pub fn invalid_fields(&self) -> Vec<FieldError> {
        let mut found = Vec::new();
        found.extend(validate_subscription(self).err());
        found.extend(invalid_headers(&self.headers));
        found.extend(self.validate_auth().err());
        if let Some(description) = &self.description {
            found.extend(check_plain_text("description", description, 1024).err());
        }
        if let Some(owner) = &self.owner {
            let id = owner.id.as_deref().unwrap_or_default();
            found.extend(check_plain_text("owner.id", id, 256).err());
            found.extend(owner.email.as_deref().and_then(|email| check_email("owner.email", email).err()));
            found.extend(check_muted_kinds("owner.muted_kinds", &owner.muted_kinds).err());
        }
        if self.max_in_flight.is_some_and(|n| !MAX_IN_FLIGHT_RANGE.contains(&n)) {
            let (min, max) = (MAX_IN_FLIGHT_RANGE.start(), MAX_IN_FLIGHT_RANGE.end());
            found.push(FieldError::new("max_in_flight", format!("must be from {min} to {max}")));
        }
        found.extend(self.rate_limit.as_ref().and_then(|limit| limit.validate("rate_limit").err()));
        found.extend(metadata::validate(&self.metadata).err());
        found
    }

    fn validate_auth(&self) -> Result<(), FieldError> {
        let Some(auth) = &self.auth else { return Ok(()) };
        auth.validate()?;
        if self.headers.keys().any(|name| name.eq_ignore_ascii_case("authorization")) {
            let message = "conflicts with the header authorization; set only one of them";
            return Err(FieldError::new("auth", message));
        }
        Ok(())
    }
}

impl WebhookSpec {
    /// Returns whether the operator manages it, which hides it from portal sessions.
    pub fn is_operator_managed(&self) -> bool {
        self.managed_by == ManagedBy::Operator
    }

    /// Requires verification if the webhook is new, its URL differs from `old`, or `old` required it.
    pub fn require_verification(&mut self, old: Option<&Self>) {
        self.verify_url |= old.is_none_or(|old| old.verify_url || old.url != self.url);
    }
}

/// Confidential fields whose values are part of the request that changes a webhook.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SuppliedCredentials {
    /// Names of the supplied headers.
    pub headers: BTreeSet<String>,
    /// Whether `auth` was supplied.
    pub auth: bool,
}

impl WebhookSpec {
    /// Returns the confidential fields that the request changing `old` to this must supply but did not. If the origin
    /// (scheme, host, port) changes, it must supply all that are sent; otherwise a caller who may change the URL could
    /// read write-only values. The signing secret is never sent, so it is kept.
    pub fn missing_credentials(&self, old: &Self, supplied: &SuppliedCredentials) -> Vec<String> {
        if has_same_origin(&old.url, &self.url) {
            return Vec::new();
        }
        let is_missing = |name: &&String| !supplied.headers.contains(*name);
        let mut missing: Vec<_> =
            self.headers.keys().filter(is_missing).map(|name| format!("headers.{name}")).collect();
        if self.auth.is_some() && !supplied.auth {
            missing.push("auth".to_owned());
        }
        missing
    }
}

/// Returns whether two URLs have the same scheme, host and port. Hosts with and without a trailing dot differ:
/// they may be different servers. Texts that are not URLs match only if they are equal.
pub fn has_same_origin(one: &str, other: &str) -> bool {
    let origin = |text: &str| Url::parse(text).map(|url| url.origin());
    match (origin(one), origin(other)) {
        (Ok(one), Ok(other)) => one.is_tuple() && one == other,
        _ => one == other,
    }
}

/// State of a webhook: whether it receives events, and why not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WebhookState {
    /// Events are sent.
    Active,
    /// Deliveries are created as usual and wait until the webhook is resumed.
    Paused,
    /// Nothing is sent until its endpoint has echoed a challenge.
    PendingVerification(Verification),
    /// No new deliveries are created; pending ones are cancelled with this reason.
    Disabled(String),
    /// Deleted for its owner; kept for the history of its deliveries.
    Deleted,
}

impl WebhookState {
    /// Returns the name of the state in the API.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Paused => "paused",
            Self::PendingVerification(_) => "pending_verification",
            Self::Disabled(_) => "disabled",
            Self::Deleted => "deleted",
        }
    }

    /// Returns whether new events become deliveries to it.
    pub fn receives_events(&self) -> bool {
        match self {
            Self::Active | Self::Paused => true,
            Self::PendingVerification(verification) => verification.keeps_events,
            Self::Disabled(_) | Self::Deleted => false,
        }
    }

    /// Returns whether pending deliveries are parked until the state changes.
    pub fn parks_deliveries(&self) -> bool {
        matches!(self, Self::Paused | Self::PendingVerification(_))
    }

    /// Returns whether pending deliveries are cancelled. Those of a webhook that is pending verification are not: they are
    /// parked, whether or not it receives events.
    pub fn cancels_deliveries(&self) -> bool {
        self.cancel_reason().is_some()
    }

    /// Returns whether the outcome of an attempt may disable it. One that is pending verification stays so: the attempt
    /// is older than the verification, which decides about the endpoint, and its deliveries stay parked.
    pub fn may_be_disabled_by_outcome(&self) -> bool {
        matches!(self, Self::Active | Self::Paused)
    }

    /// Returns whether a change from `old` ends its series of failures: they were failures of a webhook that was sent to,
    /// and a webhook that was paused, disabled or verified since starts again without them.
    pub fn ends_failures_of(&self, old: &Self) -> bool {
        std::mem::discriminant(self) != std::mem::discriminant(old)
    }

    /// Returns the reason for which its deliveries are cancelled, or `None` if they are not.
    pub fn cancel_reason(&self) -> Option<&str> {
        match self {
            Self::Active | Self::Paused | Self::PendingVerification(_) => None,
            Self::Disabled(reason) => Some(reason),
            Self::Deleted => Some("the webhook was deleted"),
        }
    }
}

/// A webhook as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Webhook {
    /// Id.
    pub id: WebhookId,
    /// Tenant that it belongs to.
    pub tenant_id: TenantId,
    /// Owner's settings.
    pub spec: WebhookSpec,
    /// The secrets that sign its requests, newest first.
    pub secrets: Vec<LiveSecret>,
    /// State.
    pub state: WebhookState,
    /// Time of creation.
    pub created_at: Time,
    /// Time of the last change.
    pub updated_at: Time,
}

impl Webhook {
    /// Puts the webhook into pending verification if its URL must be verified and is not, so that the endpoint
    /// receives only challenges. If `old` received events, new events still become deliveries, which wait for the
    /// verification.
    pub fn set_pending_verification(&mut self, old: Option<&Self>, now: Time) {
        let keeps_events = old.is_some_and(|old| old.state.receives_events());
        let changed = old.is_some_and(|old| old.spec.url != self.spec.url);
        if changed && matches!(self.state, WebhookState::PendingVerification(_)) {
            // The pending verification was for the previous URL.
            self.state = WebhookState::Active;
        }
        let spec = &self.spec;
        let is_verified = !spec.verify_url || spec.verified_url.as_ref() == Some(&spec.url);
        let pending = old.map(|old| &old.state).filter(|_| !changed);
        match self.state {
            // Enabling a webhook with a pending verification must not send another challenge: that would bypass the
            // minimum interval between two challenges.
            WebhookState::Active
                if !is_verified && matches!(pending, Some(WebhookState::PendingVerification(_))) =>
            {
                self.state = pending.cloned().unwrap_or(WebhookState::Active);
            }
            WebhookState::Active if !is_verified => {
                // A changed URL is a different endpoint. The same endpoint is not challenged again before the minimum
                // interval has passed; otherwise each disabling and enabling of the webhook would send a challenge.
                let challenged_at = spec.challenged_at.filter(|_| !changed);
                let verification = Verification::begin_after(challenged_at, now, keeps_events);
                self.state = WebhookState::PendingVerification(verification);
            }
            // The change turned verification off.
            WebhookState::PendingVerification(_) if !spec.verify_url => self.state = WebhookState::Active,
            _ => {}
        }
    }

    /// Returns whether pending deliveries to it may be cancelled: it is disabled, deleted or expired.
    pub fn is_inactive(&self, at: Time) -> bool {
        self.state.cancels_deliveries() || self.spec.expires_at.is_some_and(|end| end <= at)
    }

    /// Returns when the next action is due: sending a challenge, or disabling the webhook.
    pub fn next_action_at(&self) -> Option<Time> {
        match &self.state {
            WebhookState::Active | WebhookState::Paused => self.spec.expires_at,
            WebhookState::PendingVerification(verification) => Some(verification.next),
            WebhookState::Disabled(_) | WebhookState::Deleted => None,
        }
    }
}

/// Operator's rules for URLs. An IP address in the URL itself is checked here as well; the addresses of a host
/// name are checked only on connecting, since they may change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UrlRules {
    /// Whether plain `http` is allowed.
    pub allow_http: bool,
    /// Allowed hosts and ports.
    pub egress: EgressRules,
}

/// Validates a webhook's URL.
pub fn validate_url(text: &str, rules: &UrlRules) -> Result<(), FieldError> {
    let url = parse_url(text, rules.allow_http)?;
    validate_egress(&url, &rules.egress)
}

/// Parses a webhook's URL, of any host and port.
pub fn parse_url(text: &str, allow_http: bool) -> Result<Url, FieldError> {
    let refuse = |message: &str| Err(FieldError::new("url", message));
    if text.len() > MAX_URL {
        return refuse("must be at most 2048 characters long");
    }
    // URL parsers drop or fold these characters; the stored URL must be the one that is called.
    if text.chars().any(|c| c.is_control() || c.is_whitespace() || c == '\\') {
        return refuse("must not contain spaces, control characters or backslashes");
    }
    let Ok(url) = Url::parse(text) else {
        return refuse("is not a URL; use the full form, such as https://example.com/webhooks");
    };
    match url.scheme() {
        "https" => {}
        "http" if allow_http => {}
        "http" => {
            return refuse("must begin with https:// (the operator can allow http with egress.allow_http)");
        }
        _ if allow_http => return refuse("must begin with https:// or http://"),
        _ => return refuse("must begin with https://"),
    }
    if !url.username().is_empty()
        || url.password().is_some()
        || text.contains('@') && authority(text).contains('@')
    {
        return refuse("must not contain a user name or password");
    }
    if url.fragment().is_some() {
        return refuse("must not contain a fragment (#...)");
    }
    if url.host_str().is_none_or(str::is_empty) || url.port() == Some(0) {
        return refuse("needs a host, and a port other than 0 if it names one");
    }
    if let Some(Host::Domain(name)) = url.host()
        && !name.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(&c))
    {
        return refuse("names a host with a character that is not valid in a host name");
    }
    Ok(url)
}

/// Refuses a URL that the egress rules would always deny. The message says whether the port or the host is the
/// problem, but not which of the operator's rules denied it.
fn validate_egress(url: &Url, rules: &EgressRules) -> Result<(), FieldError> {
    let port = url.port_or_known_default().unwrap_or_default();
    let by_name = rules.check_name(url.host_str().unwrap_or_default(), port);
    let message = match by_name.and_then(|()| url.host().map_or(Ok(()), |host| rules.check_literal(&host))) {
        Ok(()) => return Ok(()),
        Err(EgressDenied::OwnHost) => {
            "names the public host of this Redrive installation; events sent there would be published again in a loop"
                .to_owned()
        }
        Err(EgressDenied::Localhost) => {
            "names localhost, which is blocked; use a host that is reachable from the internet".to_owned()
        }
        // Only built-in special ranges are named; the operator's own networks are not disclosed.
        Err(EgressDenied::Address(refused)) if special_range(refused.address) == Some(refused.range) => format!(
            "names the address {} ({}), which is blocked; use a public address, or ask the operator to allow its \
             network",
            refused.address, refused.range
        ),
        Err(EgressDenied::PortNotListed(port) | EgressDenied::PortNotHttp(port)) => {
            format!("must not use port {port}, which is blocked; use 443, or ask the operator to allow it")
        }
        Err(_) => "names a host that is blocked; ask the operator to allow it".to_owned(),
    };
    Err(FieldError::new("url", message))
}

fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

fn validate_subscription(spec: &WebhookSpec) -> Result<(), FieldError> {
    if spec.events.is_empty() || spec.events.len() > MAX_EVENT_PATTERNS {
        return Err(FieldError::new(
            "events",
            format!("must list 1 to {MAX_EVENT_PATTERNS} patterns, such as [\"order.*\"]"),
        ));
    }
    if spec.subjects.len() > MAX_SUBJECTS {
        return Err(FieldError::new("subjects", format!("must list at most {MAX_SUBJECTS} subjects")));
    }
    for subject in &spec.subjects {
        if subject.is_empty() {
            return Err(FieldError::new("subjects", "must not contain an empty subject"));
        }
        check_plain_text("subjects", subject, crate::event::MAX_SUBJECT_BYTES)?;
    }
    Ok(())
}

fn invalid_headers(headers: &BTreeMap<String, SecretString>) -> Vec<FieldError> {
    let invalid = |(name, value): (&String, &SecretString)| {
        let message = invalid_header(name, value.reveal())?;
        Some(FieldError::new(format!("headers.{}", name.escape_debug()), message))
    };
    let too_many = (headers.len() > MAX_HEADERS)
        .then(|| FieldError::new("headers", format!("must be at most {MAX_HEADERS} headers")));
    too_many.into_iter().chain(headers.iter().take(MAX_HEADERS).filter_map(invalid)).collect()
}

/// Returns what is wrong with a custom header.
fn invalid_header(name: &str, value: &str) -> Option<String> {
    let Ok(parsed) = HeaderName::try_from(name) else {
        return Some("is not a valid HTTP header name".to_owned());
    };
    let lower = parsed.as_str();
    if RESERVED_HEADERS.contains(&lower)
        || RESERVED_HEADER_PREFIXES.iter().any(|prefix| lower.starts_with(prefix))
    {
        return Some("is set by Redrive and cannot be overridden".to_owned());
    }
    (value.len() > MAX_HEADER_VALUE || HeaderValue::from_str(value).is_err())
        .then(|| format!("must be visible characters in one line, at most {MAX_HEADER_VALUE} bytes"))
}

#[cfg(test)]
mod tests;
