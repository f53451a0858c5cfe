//! A webhook: the subscription of a URL to event types, and how it is to be treated.

pub mod caps;
pub mod confidential;
pub mod verification;

use std::collections::{BTreeMap, BTreeSet};

use http::{HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use url::{Host, Url};

use crate::{
    delivery::lane::Ordering,
    delivery::retry::RetryConfig,
    event::PayloadFormat,
    event::event_type::Pattern,
    field_error::{Invalid, plain_text},
    id::WebhookId,
    notification::{
        Kind,
        preferences::{check_email, check_mute},
    },
    protection::breaker::BreakerConfig,
    protection::limiter::RateLimit,
    routing::filter::Filter,
    routing::subscription::Interest,
    security::address::special_range,
    security::egress_rules::{ReachRules, Unreachable},
    security::signature::{LiveSecret, SignatureConfig},
    tenancy::TenantId,
    time::Time,
    webhook::confidential::{EndpointAuth, Hidden},
    webhook::verification::Verification,
};

/// The longest URL.
pub const MAX_URL: usize = 2048;
/// The most event patterns, subjects and custom headers of one webhook.
pub const MAX_EVENTS: usize = 100;
/// The most subjects of one webhook.
pub const MAX_SUBJECTS: usize = 100;
/// The most custom headers of one webhook.
pub const MAX_HEADERS: usize = 20;
/// The longest custom header value.
pub const MAX_HEADER_VALUE: usize = 4096;
/// The range of `max_in_flight`.
pub const IN_FLIGHT: std::ops::RangeInclusive<u32> = 1..=1000;

/// Headers that Redrive, HTTP framing or the connection own; nobody may set them.
const OWN_HEADERS: [&str; 16] = [
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
/// Families of headers that Redrive owns.
const OWN_PREFIXES: [&str; 5] = ["webhook-", "x-webhook-", "proxy-", "ce-", "redrive-"];

/// Who looks after the endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Owner {
    /// The owner's id in the application's own terms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Where to tell the owner about trouble.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// Kinds that nobody is told about where this webhook is concerned, by any channel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 7))]
    pub mute: Vec<Kind>,
}

/// Who manages a webhook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ManagedBy {
    /// The tenant's own users: portal sessions see it and may change it.
    #[default]
    Tenant,
    /// The application that uses Redrive: portal sessions see nothing of it.
    Operator,
}

/// What a webhook's owner decides about it. Stored as one document.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WebhookSpec {
    /// Where events are sent.
    pub url: String,
    /// What it is for, in the owner's words.
    pub description: Option<String>,
    /// Who looks after it.
    pub owner: Option<Owner>,
    /// Which event types it wants.
    pub events: Vec<Pattern>,
    /// Only events about these subjects; empty for all.
    pub subjects: Vec<String>,
    /// Only events whose payload passes; none for all.
    #[serde(default)]
    pub filter: Option<Filter>,
    /// What the request body looks like.
    pub payload_format: PayloadFormat,
    /// How requests are signed.
    pub signature: SignatureConfig,
    /// When to try again; what is left out follows the server's defaults.
    pub retry_config: RetryConfig,
    /// When to stop calling an endpoint that fails; what is left out follows the server's defaults.
    #[serde(default)]
    pub circuit_breaker_config: BreakerConfig,
    /// How fast requests may go; none for the server's default.
    #[serde(default)]
    pub rate_limit: Option<RateLimit>,
    /// Which of its deliveries wait for one another.
    #[serde(default)]
    pub ordering_guarantee: Ordering,
    /// At most this many requests at once; none for the server's default.
    pub max_in_flight: Option<u32>,
    /// Headers sent along with every request. Stored sealed, not in this document.
    #[serde(skip)]
    pub headers: BTreeMap<String, Hidden>,
    /// How the endpoint is convinced, beside the signature. Stored sealed, not in this document.
    #[serde(skip)]
    pub auth: Option<EndpointAuth>,
    /// The owner's own notes.
    pub metadata: BTreeMap<String, String>,
    /// When it is to be disabled.
    #[serde(default)]
    pub expires_at: Option<Time>,
    /// Whether its endpoint has to echo a challenge before it gets events, and again when the URL changes.
    #[serde(default)]
    pub verify_url: bool,
    /// The URL that has echoed a challenge, if one has.
    #[serde(default)]
    pub verified_url: Option<String>,
    /// When its endpoint was last sent a challenge, at whichever URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub challenged_at: Option<Time>,
    /// Who manages it.
    #[serde(default)]
    pub managed_by: ManagedBy,
}

impl WebhookSpec {
    /// Where its URL leads to, for people to read. The rest of a URL may be as good as a password.
    pub fn host(&self) -> Option<String> {
        Url::parse(&self.url).ok()?.host_str().map(str::to_owned)
    }

    /// What it wants to hear about.
    pub fn interest(&self) -> Interest<'_> {
        Interest { events: &self.events, subjects: &self.subjects }
    }

    /// Checks everything but the configurations of retries and of the circuit breaker, which need the
    /// server's defaults.
    pub fn validate(&self, urls: &UrlRules) -> Result<(), Invalid> {
        validate_url(&self.url, urls)?;
        self.validate_all_but_url()
    }

    /// Checks the same but the URL. One that was taken once stays, whatever the operator allows by now: who
    /// has a webhook that is not called any more must still be able to pause it.
    pub fn validate_all_but_url(&self) -> Result<(), Invalid> {
        validate_interest(self)?;
        validate_headers(&self.headers)?;
        if let Some(auth) = &self.auth {
            auth.validate()?;
            if self.headers.keys().any(|name| name.eq_ignore_ascii_case("authorization")) {
                return Err(Invalid::new("auth", "contradicts the header authorization; give one of them"));
            }
        }
        if let Some(description) = &self.description {
            plain_text("description", description, 1024)?;
        }
        if let Some(owner) = &self.owner {
            plain_text("owner.id", owner.id.as_deref().unwrap_or_default(), 256)?;
            owner.email.as_deref().map_or(Ok(()), |email| check_email("owner.email", email))?;
            check_mute("owner.mute", &owner.mute)?;
        }
        if self.max_in_flight.is_some_and(|n| !IN_FLIGHT.contains(&n)) {
            let (least, most) = (IN_FLIGHT.start(), IN_FLIGHT.end());
            return Err(Invalid::new("max_in_flight", format!("must be from {least} to {most}")));
        }
        if let Some(limit) = &self.rate_limit {
            limit.validate("rate_limit")?;
        }
        let notes: usize = self.metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
        if notes > 8192 {
            return Err(Invalid::new("metadata", "must be at most 8192 bytes in all"));
        }
        Ok(())
    }
}

impl WebhookSpec {
    /// Whether the operator manages it, so that portal sessions see nothing of it.
    pub fn is_operator_managed(&self) -> bool {
        self.managed_by == ManagedBy::Operator
    }

    /// Makes it be verified: a new one, one with another URL than `old`, and one that was to be verified before.
    pub fn require_verification(&mut self, old: Option<&Self>) {
        self.verify_url |= old.is_none_or(|old| old.verify_url || old.url != self.url);
    }
}

/// The confidential fields whose values came with the request that changes a webhook.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SuppliedCredentials {
    /// The headers, by name.
    pub headers: BTreeSet<String>,
    /// Whether `auth` came along.
    pub auth: bool,
}

impl WebhookSpec {
    /// The confidential fields that must come with the request which changes `old` to this: all that are sent, if
    /// requests go to another origin (scheme, host, port) than before. Values that are write-only could be read
    /// otherwise by a caller who may change the URL. The signing secret is not sent and stays.
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

/// Whether two URLs have the same scheme, host and port. Hosts with and without a dot at the end differ: they may
/// be different servers. Texts that are no URLs are the same only if they are equal.
pub fn has_same_origin(one: &str, other: &str) -> bool {
    let origin = |text: &str| Url::parse(text).map(|url| url.origin());
    match (origin(one), origin(other)) {
        (Ok(one), Ok(other)) => one.is_tuple() && one == other,
        _ => one == other,
    }
}

/// Whether a webhook gets events, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WebhookState {
    /// Events are sent.
    Active,
    /// Deliveries are made as ever, and wait until somebody resumes it.
    Paused,
    /// Nothing is sent until its endpoint has echoed a challenge.
    PendingVerification(Verification),
    /// No new deliveries are made; what was pending is cancelled with this reason.
    Disabled(String),
    /// Gone for its owner; kept for the history of its deliveries.
    Deleted,
}

impl WebhookState {
    /// The state's name, as the API shows it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Paused => "paused",
            Self::PendingVerification(_) => "pending_verification",
            Self::Disabled(_) => "disabled",
            Self::Deleted => "deleted",
        }
    }

    /// Whether new events become deliveries to it.
    pub fn gets_events(&self) -> bool {
        match self {
            Self::Active | Self::Paused => true,
            Self::PendingVerification(verification) => verification.keeps_events,
            Self::Disabled(_) | Self::Deleted => false,
        }
    }

    /// Whether what is pending has to wait.
    pub fn holds_back(&self) -> bool {
        matches!(self, Self::Paused | Self::PendingVerification(_))
    }

    /// Why deliveries are to be called off, if they are.
    pub fn cancels_because(&self) -> Option<&str> {
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
    /// Its id.
    pub id: WebhookId,
    /// Whose it is.
    pub tenant: TenantId,
    /// What its owner decided.
    pub spec: WebhookSpec,
    /// The secrets that sign its requests, newest first.
    pub secrets: Vec<LiveSecret>,
    /// Whether it gets events.
    pub state: WebhookState,
    /// When it was made.
    pub created_at: Time,
    /// When it was last changed.
    pub updated_at: Time,
}

impl Webhook {
    /// Sees to it that a URL which is to be verified gets nothing but a challenge until it is. One that got events
    /// before, as `old` tells, goes on getting them; they wait for it.
    pub fn verify_first(&mut self, old: Option<&Self>, now: Time) {
        let keeps_events = old.is_some_and(|old| old.state.gets_events());
        let moved = old.is_some_and(|old| old.spec.url != self.spec.url);
        if moved && matches!(self.state, WebhookState::PendingVerification(_)) {
            // What was waited for is another one's echo.
            self.state = WebhookState::Active;
        }
        let spec = &self.spec;
        let is_verified = !spec.verify_url || spec.verified_url.as_ref() == Some(&spec.url);
        let pending = old.map(|old| &old.state).filter(|_| !moved);
        match self.state {
            // Enabling a webhook that waits for its echo must not send another challenge: the pause between two
            // challenges would not hold.
            WebhookState::Active
                if !is_verified && matches!(pending, Some(WebhookState::PendingVerification(_))) =>
            {
                self.state = pending.cloned().unwrap_or(WebhookState::Active);
            }
            WebhookState::Active if !is_verified => {
                // Another URL is another endpoint. The same one is not asked again before the pause between two
                // challenges is over, or disabling and enabling the webhook would send one each time.
                let challenged_at = spec.challenged_at.filter(|_| !moved);
                let verification = Verification::begin_after(challenged_at, now, keeps_events);
                self.state = WebhookState::PendingVerification(verification);
            }
            // Whoever gives the check up decides so.
            WebhookState::PendingVerification(_) if !spec.verify_url => self.state = WebhookState::Active,
            _ => {}
        }
    }

    /// Whether pending deliveries to it may be cancelled: it is disabled or deleted, or its expiry time has passed.
    pub fn has_ended(&self, at: Time) -> bool {
        self.state.cancels_because().is_some() || self.spec.expires_at.is_some_and(|end| end <= at)
    }

    /// When something is to be done about it: to ask its endpoint once more, or to disable it.
    pub fn due_at(&self) -> Option<Time> {
        match &self.state {
            WebhookState::Active | WebhookState::Paused => self.spec.expires_at,
            WebhookState::PendingVerification(verification) => Some(verification.next),
            WebhookState::Disabled(_) | WebhookState::Deleted => None,
        }
    }
}

/// Which URLs the operator allows at all. An address that stands in the URL itself is judged here as well; the
/// addresses of a name only when connecting, since they may have changed by then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UrlRules {
    /// Whether plain `http` is allowed.
    pub allow_http: bool,
    /// Which hosts and ports may be called.
    pub reach: ReachRules,
}

/// Checks a webhook's URL.
pub fn validate_url(text: &str, rules: &UrlRules) -> Result<(), Invalid> {
    let refuse = |message: &str| Err(Invalid::new("url", message));
    if text.len() > MAX_URL {
        return refuse("must be at most 2048 characters long");
    }
    // URL parsers drop or fold these; what is stored must be what is dialled.
    if text.chars().any(|c| c.is_control() || c.is_whitespace() || c == '\\') {
        return refuse("must not contain spaces, control characters or backslashes");
    }
    let Ok(url) = Url::parse(text) else {
        return refuse("is not a URL; write it in full, such as https://example.com/webhooks");
    };
    match url.scheme() {
        "https" => {}
        "http" if rules.allow_http => {}
        "http" => {
            return refuse("must begin with https:// (the operator can allow http with egress.allow_http)");
        }
        _ if rules.allow_http => return refuse("must begin with https:// or http://"),
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
        return refuse("names a host with a character that no host name can have");
    }
    validate_reach(&url, &rules.reach)
}

/// Refuses what could never be called, as far as the URL itself says. Why is the operator's business; that it
/// is the port rather than the host is the writer's.
fn validate_reach(url: &Url, rules: &ReachRules) -> Result<(), Invalid> {
    let port = url.port_or_known_default().unwrap_or_default();
    let by_name = rules.check_name(url.host_str().unwrap_or_default(), port);
    let message = match by_name.and_then(|()| url.host().map_or(Ok(()), |host| rules.check_literal(&host))) {
        Ok(()) => return Ok(()),
        Err(Unreachable::OwnHost) => {
            "names the public host of this Redrive installation; events sent there would be published again without end"
                .to_owned()
        }
        Err(Unreachable::Localhost) => {
            "names localhost, which is not called from here; use a host that is reachable from the internet".to_owned()
        }
        // Which of the operator's networks refuses it is not shown.
        Err(Unreachable::Address(refused)) if special_range(refused.address) == Some(refused.range) => format!(
            "names the address {} ({}), which is not called from here; use a public one, or ask the operator to \
             allow its network",
            refused.address, refused.range
        ),
        Err(Unreachable::PortNotListed(port) | Unreachable::PortNotHttp(port)) => {
            format!("must not use port {port}, which is not called from here; ask the operator, or use 443")
        }
        Err(_) => "names a host that is not called from here; ask the operator".to_owned(),
    };
    Err(Invalid::new("url", message))
}

fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

fn validate_interest(spec: &WebhookSpec) -> Result<(), Invalid> {
    if spec.events.is_empty() || spec.events.len() > MAX_EVENTS {
        return Err(Invalid::new(
            "events",
            format!("must list 1 to {MAX_EVENTS} patterns, such as [\"order.*\"]"),
        ));
    }
    if spec.subjects.len() > MAX_SUBJECTS {
        return Err(Invalid::new("subjects", format!("must list at most {MAX_SUBJECTS} subjects")));
    }
    for subject in &spec.subjects {
        if subject.is_empty() {
            return Err(Invalid::new("subjects", "must not contain an empty subject"));
        }
        plain_text("subjects", subject, crate::event::MAX_NAME)?;
    }
    Ok(())
}

fn validate_headers(headers: &BTreeMap<String, Hidden>) -> Result<(), Invalid> {
    if headers.len() > MAX_HEADERS {
        return Err(Invalid::new("headers", format!("must be at most {MAX_HEADERS}")));
    }
    for (name, value) in headers {
        let field = || format!("headers.{}", name.escape_debug());
        let Ok(parsed) = HeaderName::try_from(name.as_str()) else {
            return Err(Invalid::new(field(), "is no valid HTTP header name"));
        };
        let lower = parsed.as_str();
        if OWN_HEADERS.contains(&lower) || OWN_PREFIXES.iter().any(|prefix| lower.starts_with(prefix)) {
            return Err(Invalid::new(field(), "is set by Redrive and cannot be overridden"));
        }
        let value = value.reveal();
        if value.len() > MAX_HEADER_VALUE || HeaderValue::from_str(value).is_err() {
            return Err(Invalid::new(
                field(),
                format!("must be visible characters in one line, at most {MAX_HEADER_VALUE} bytes"),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
