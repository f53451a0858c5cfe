//! A webhook: the subscription of a URL to event types, and how it is to be treated.

use std::collections::BTreeMap;

use http::{HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use url::{Host, Url};

use crate::{
    breaker::BreakerConfig,
    event::PayloadFormat,
    event_type::Pattern,
    id::WebhookId,
    invalid::{Invalid, plain_text},
    lane::Ordering,
    limiter::RateLimit,
    retry::RetryConfig,
    signature::{LiveSecret, SignatureConfig},
    subscription::Interest,
    tenant::TenantId,
    time::Time,
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
const OWN_PREFIXES: [&str; 3] = ["webhook-", "x-webhook-", "proxy-"];

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
    /// Headers sent along with every request.
    pub headers: BTreeMap<String, String>,
    /// The owner's own notes.
    pub metadata: BTreeMap<String, String>,
    /// When it is to be disabled.
    #[serde(default)]
    pub expires_at: Option<Time>,
}

impl WebhookSpec {
    /// What it wants to hear about.
    pub fn interest(&self) -> Interest<'_> {
        Interest { events: &self.events, subjects: &self.subjects }
    }

    /// Checks everything but the configurations of retries and of the circuit breaker, which need the
    /// server's defaults.
    pub fn validate(&self, urls: UrlRules) -> Result<(), Invalid> {
        validate_url(&self.url, urls)?;
        validate_interest(self)?;
        validate_headers(&self.headers)?;
        if let Some(description) = &self.description {
            plain_text("description", description, 1024)?;
        }
        if let Some(owner) = &self.owner {
            plain_text("owner.id", owner.id.as_deref().unwrap_or_default(), 256)?;
            validate_email(owner.email.as_deref())?;
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

/// Whether a webhook gets events, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WebhookState {
    /// Events are sent.
    Active,
    /// Deliveries are made as ever, and wait until somebody resumes it.
    Paused,
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
            Self::Disabled(_) => "disabled",
            Self::Deleted => "deleted",
        }
    }

    /// Whether new events become deliveries to it.
    pub fn gets_events(&self) -> bool {
        matches!(self, Self::Active | Self::Paused)
    }

    /// Why deliveries are to be called off, if they are.
    pub fn cancels_because(&self) -> Option<&str> {
        match self {
            Self::Active | Self::Paused => None,
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

/// Which URLs the operator allows at all. Addresses are judged when connecting, not here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UrlRules {
    /// Whether plain `http` is allowed.
    pub allow_http: bool,
}

/// Checks a webhook's URL.
pub fn validate_url(text: &str, rules: UrlRules) -> Result<(), Invalid> {
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
    Ok(())
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

fn validate_headers(headers: &BTreeMap<String, String>) -> Result<(), Invalid> {
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
        if value.len() > MAX_HEADER_VALUE || HeaderValue::from_str(value).is_err() {
            return Err(Invalid::new(
                field(),
                format!("must be visible characters in one line, at most {MAX_HEADER_VALUE} bytes"),
            ));
        }
    }
    Ok(())
}

fn validate_email(email: Option<&str>) -> Result<(), Invalid> {
    let Some(email) = email else { return Ok(()) };
    plain_text("owner.email", email, 254)?;
    match email.split_once('@') {
        Some((name, host)) if !name.is_empty() && !host.is_empty() && !email.contains(' ') => Ok(()),
        _ => Err(Invalid::new("owner.email", "is no e-mail address")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HTTPS: UrlRules = UrlRules { allow_http: false };
    const HTTP: UrlRules = UrlRules { allow_http: true };

    #[test]
    fn urls_are_checked() {
        for good in ["https://example.com", "https://example.com:8443/a/b?c=d%20e", "https://[2001:db8::1]/x"]
        {
            assert_eq!(validate_url(good, HTTPS), Ok(()), "{good}");
        }
        for bad in [
            "",
            "example.com/x",
            "ftp://example.com",
            "http://example.com",
            "https://",
            "https://user@example.com",
            "https://user:pass@example.com",
            "https://@example.com",
            "https://example.com/#top",
            "https://example.com/a b",
            "https://exa\tmple.com",
            "https://example.com\\@evil.example",
            "https://exam{ple.com/",
            "https://example.com:0/",
            "https://example.com:99999/",
            "file:///etc/passwd",
            "javascript:alert(1)",
        ] {
            assert!(validate_url(bad, HTTPS).is_err(), "{bad:?}");
        }
        assert!(validate_url(&format!("https://example.com/{}", "x".repeat(2048)), HTTPS).is_err());
        assert_eq!(validate_url("http://127.0.0.1:9000/hook", HTTP), Ok(()));
        assert_eq!(validate_url("https://example.com/a@b", HTTPS), Ok(()));
    }

    #[test]
    fn headers_that_matter_cannot_be_overridden() {
        let refused = |name: &str, value: &str| {
            validate_headers(&BTreeMap::from([(name.to_owned(), value.to_owned())])).is_err()
        };
        for name in
            ["Host", "webhook-id", "Webhook-Signature", "X-Webhook-Event", "Content-Length", "a b", "", "x:y"]
        {
            assert!(refused(name, "v"), "{name}");
        }
        for value in ["a\r\nb: c", "a\nb", "a\0b", &"x".repeat(4097)] {
            assert!(refused("x-own", value), "{value:?}");
        }
        assert!(!refused("Authorization", "Bearer abc"));
    }

    fn spec() -> WebhookSpec {
        let url = "https://example.com/hook".to_owned();
        WebhookSpec { url, events: vec![Pattern::All], ..WebhookSpec::default() }
    }

    #[test]
    fn a_rate_limit_is_checked() {
        let limited = |requests_per_minute, burst| {
            let rate_limit = Some(RateLimit { requests_per_minute, burst });
            WebhookSpec { rate_limit, ..spec() }.validate(HTTPS).map_err(|invalid| invalid.field)
        };
        assert_eq!(spec().validate(HTTPS), Ok(()));
        assert_eq!(limited(600, None), Ok(()));
        assert_eq!(limited(0, None), Err("rate_limit.requests_per_minute".into()));
        assert_eq!(limited(600, Some(0)), Err("rate_limit.burst".into()));
    }

    #[test]
    fn what_was_stored_before_a_setting_existed_is_read_as_its_default() {
        let mut old = serde_json::to_value(spec()).unwrap();
        for added in ["circuit_breaker_config", "rate_limit", "ordering_guarantee", "expires_at"] {
            assert!(old.as_object_mut().unwrap().remove(added).is_some(), "{added}");
        }
        assert_eq!(serde_json::from_value::<WebhookSpec>(old).unwrap(), spec());
    }

    #[test]
    fn only_the_active_and_the_paused_get_events() {
        let disabled = WebhookState::Disabled("gone".into());
        for (state, name, gets) in [
            (WebhookState::Active, "active", true),
            (WebhookState::Paused, "paused", true),
            (disabled, "disabled", false),
            (WebhookState::Deleted, "deleted", false),
        ] {
            assert_eq!((state.name(), state.gets_events()), (name, gets));
            assert_eq!(state.cancels_because().is_none(), gets, "{name}");
        }
    }

    /// Texts that are nearly URLs.
    fn any_url() -> impl Strategy<Value = String> {
        let scheme = "(https?|HTTPS|ftp)?:?[/\\\\]{0,3}";
        let user = "([a-z0-9._~%:@\\[\\]-]{0,12}[@:.])?";
        let host = "\\[?[0-9a-fx:.]{1,16}\\]?|[a-z0-9.-]{1,16}|\\PC{1,6}";
        let rest = "(:[0-9]{0,6})?([/?#]\\PC{0,12}){0,2}";
        let near =
            (scheme, user, host, rest).prop_map(|(scheme, user, host, rest)| scheme + &user + &host + &rest);
        prop_oneof![3 => near, 1 => "(https?://)?\\PC{0,60}", 1 => any::<String>()]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn no_text_breaks_the_url_check_and_what_passes_has_a_plain_host(text in any_url()) {
            if validate_url(&text, HTTP).is_ok() {
                let url = Url::parse(&text).unwrap();
                prop_assert!(url.host_str().is_some_and(|host| !host.is_empty()), "{}", url);
                prop_assert!(url.username().is_empty() && url.password().is_none(), "{}", url);
                prop_assert!(url.fragment().is_none() && url.port() != Some(0), "{}", url);
                prop_assert_eq!(validate_url(&text, HTTPS).is_ok(), url.scheme() == "https");
                // Its canonical form is as good, unless spelling it out made it too long.
                prop_assert!(url.as_str().len() > MAX_URL || validate_url(url.as_str(), HTTP).is_ok(), "{}", url);
            }
        }

        #[test]
        fn headers_that_pass_can_be_sent(name in "[a-zA-Z:_ -]{0,20}|\\PC{0,5}", value in "[ -~]{0,20}|.{0,10}") {
            if validate_headers(&BTreeMap::from([(name.clone(), value.clone())])).is_ok() {
                let sent = HeaderName::try_from(&name).unwrap();
                prop_assert!(!OWN_HEADERS.contains(&sent.as_str()), "{}", sent);
                prop_assert!(!HeaderValue::try_from(&value).unwrap().as_bytes().contains(&b'\n'));
            }
        }
    }
}
