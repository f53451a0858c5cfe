//! The unit of isolation. A tenant's id is a short name that its operator chose.

pub mod api_key;
pub mod quota;

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{field_error::Invalid, notification::preferences::Notifications, protection::limiter::RateLimit};

/// A tenant's name: 1 to 64 of `a-z 0-9 _ -`, beginning with a letter or digit. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TenantId(Arc<str>);

impl TenantId {
    /// The name of the tenant that always exists.
    pub const DEFAULT: &'static str = "default";

    /// Checks a name.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_' || c == b'-';
        let starts_well = text.bytes().next().is_some_and(|c| c.is_ascii_alphanumeric());
        if text.len() > 64 || !starts_well || !text.bytes().all(allowed) {
            return Err(Invalid::new(
                "tenant_id",
                "must be 1 to 64 characters of a-z, 0-9, _ and -, and begin with a letter or digit",
            ));
        }
        Ok(Self(text.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What the operator decides about a tenant as a whole. What is left out follows the server's defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TenantRules {
    /// The pool of nodes that sends for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// How many deliveries are sent for it over time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
    /// How many requests one node has under way for it at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<u32>,
    /// How much it may have and do.
    #[serde(skip_serializing_if = "TenantQuotas::is_empty")]
    pub quotas: TenantQuotas,
    /// Whether only event types that it has registered may be published.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub strict_event_types: bool,
    /// What its owners want to hear of, and where.
    #[serde(skip_serializing_if = "Notifications::is_empty")]
    pub notifications: Notifications,
}

/// How much a tenant may have and do. What is left out has no limit of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TenantQuotas {
    /// Webhooks that it may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_webhooks: Option<u32>,
    /// Events that it may publish on one day, by UTC. Deliveries that are sent again count as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_events_per_day: Option<u32>,
    /// The largest payload, if that is less than the server allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_payload_bytes: Option<u32>,
    /// For how many days its events are kept, with their deliveries and attempts; 0 for ever. The server's setting if
    /// left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 36500))]
    pub retention_days: Option<u32>,
    /// For how many days its dead letters are kept, which go with their event at the latest; 0 for ever. The server's
    /// setting if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 36500))]
    pub dead_retention_days: Option<u32>,
}

/// The most days that something is kept for, unless it is for ever.
pub const MOST_DAYS: u32 = 36_500;

impl TenantQuotas {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn validate(&self) -> Result<(), Invalid> {
        if self.max_payload_bytes == Some(0) {
            return Err(Invalid::new("quotas.max_payload_bytes", "must be at least 1"));
        }
        let days = [
            ("quotas.retention_days", self.retention_days),
            ("quotas.dead_retention_days", self.dead_retention_days),
        ];
        match days.into_iter().find(|(_, days)| days.is_some_and(|days| days > MOST_DAYS)) {
            Some((field, _)) => {
                Err(Invalid::new(field, format!("must be at most {MOST_DAYS} days, or 0 for ever")))
            }
            None => Ok(()),
        }
    }
}

/// The pool that sends for tenants that were given none.
pub const DEFAULT_POOL: &str = "default";

impl TenantRules {
    /// The pool that sends for it.
    pub fn pool(&self) -> &str {
        self.pool.as_deref().unwrap_or(DEFAULT_POOL)
    }

    /// Checks every rule.
    pub fn validate(&self) -> Result<(), Invalid> {
        if let Some(pool) = &self.pool {
            check_pool(pool)?;
        }
        if let Some(limit) = &self.rate_limit {
            limit.validate("rate_limit")?;
        }
        if self.max_in_flight == Some(0) {
            return Err(Invalid::new("max_in_flight", "must be at least 1"));
        }
        self.notifications.validate()?;
        self.quotas.validate()
    }
}

/// Checks the name of a pool.
pub fn check_pool(name: &str) -> Result<(), Invalid> {
    let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_' || c == b'-';
    if name.is_empty() || name.len() > 64 || !name.bytes().all(allowed) {
        return Err(Invalid::new("pool", "must be 1 to 64 characters of a-z, 0-9, _ and -"));
    }
    Ok(())
}

impl Default for TenantId {
    fn default() -> Self {
        Self(Self::DEFAULT.into())
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for TenantId {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Self, Invalid> {
        Self::parse(&text)
    }
}

impl From<TenantId> for String {
    fn from(id: TenantId) -> String {
        id.0.as_ref().into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_checked() {
        for good in ["default", "acme-2", "a", "0_x"] {
            assert!(TenantId::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "Acme", "a b", "a/b", "ä", &"x".repeat(65)] {
            assert!(TenantId::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn retention_has_bounds() {
        let rules = |retention_days, dead_retention_days| TenantRules {
            quotas: TenantQuotas { retention_days, dead_retention_days, ..TenantQuotas::default() },
            ..TenantRules::default()
        };
        for good in [rules(None, None), rules(Some(0), Some(1)), rules(Some(36_500), Some(36_500))] {
            assert_eq!(good.validate(), Ok(()));
        }
        let field = |rules: TenantRules| rules.validate().unwrap_err().field;
        assert_eq!(field(rules(Some(36_501), None)), "quotas.retention_days");
        assert_eq!(field(rules(None, Some(u32::MAX))), "quotas.dead_retention_days");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn no_text_breaks_a_name_and_what_passes_needs_no_quoting(
            text in prop_oneof!["[a-zA-Z0-9_-]{0,70}", "[a-z0-9_-]{1,60}\\PC?", any::<String>()],
        ) {
            if let Ok(id) = TenantId::parse(&text) {
                prop_assert_eq!(id.as_str(), text.as_str());
                prop_assert!((1..=64).contains(&text.len()));
                prop_assert!(text.bytes().all(|c| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-')));
                prop_assert!(check_pool(&text).is_ok(), "what names a tenant may name a pool");
            }
        }
    }
}
