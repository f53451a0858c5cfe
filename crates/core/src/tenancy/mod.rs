//! Tenants, the unit of isolation, with their rules and quotas. The application chooses the id of a tenant.

pub mod api_key;
pub mod quota;
pub mod user_role;

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    external_id::{EXTERNAL_ID_RULE, is_external_id},
    field_error::FieldError,
    notification::preferences::TenantPreferences,
    protection::limiter::RateLimit,
};

/// A tenant's id, see [`crate::external_id`]. Upper and lower case differ. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TenantId(Arc<str>);

impl TenantId {
    /// The id of the tenant that always exists.
    pub const DEFAULT: &'static str = "default";

    /// Parses a tenant id.
    pub fn parse(text: &str) -> Result<Self, FieldError> {
        match is_external_id(text) {
            true => Ok(Self(text.into())),
            false => Err(FieldError::new("tenant_id", EXTERNAL_ID_RULE)),
        }
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Operator's settings for a tenant. Omitted fields use the server's defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TenantRules {
    /// Pool of workers that sends its deliveries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Rate limit of its deliveries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
    /// Maximum number of its requests in flight on one node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<u32>,
    /// Quotas.
    #[serde(skip_serializing_if = "TenantQuotas::is_empty")]
    pub quotas: TenantQuotas,
    /// Whether publishing is limited to event types that the tenant has registered.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub strict_event_types: bool,
    /// Notifications that its owners receive, and where they are sent.
    #[serde(skip_serializing_if = "TenantPreferences::is_empty")]
    pub notifications: TenantPreferences,
}

/// Quotas of a tenant. An omitted quota means no limit of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TenantQuotas {
    /// Maximum number of webhooks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_webhooks: Option<u32>,
    /// Maximum number of events published per UTC day. Resent deliveries count as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_events_per_day: Option<u32>,
    /// Maximum payload size, if lower than the server's limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_payload_bytes: Option<u32>,
    /// Days for which events are kept, with their deliveries and attempts; 0 means forever. Defaults to the server's
    /// setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 36500))]
    pub retention_days: Option<u32>,
    /// Days for which dead letters are kept, but no longer than their event; 0 means forever. Defaults to the server's
    /// setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 36500))]
    pub dead_retention_days: Option<u32>,
}

/// Maximum retention in days, other than forever.
pub const MAX_RETENTION_DAYS: u32 = 36_500;

impl TenantQuotas {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn validate(&self) -> Result<(), FieldError> {
        if self.max_payload_bytes == Some(0) {
            return Err(FieldError::new("quotas.max_payload_bytes", "must be at least 1"));
        }
        let days = [
            ("quotas.retention_days", self.retention_days),
            ("quotas.dead_retention_days", self.dead_retention_days),
        ];
        match days.into_iter().find(|(_, days)| days.is_some_and(|days| days > MAX_RETENTION_DAYS)) {
            Some((field, _)) => Err(FieldError::new(
                field,
                format!("must be at most {MAX_RETENTION_DAYS} days, or 0 for unlimited"),
            )),
            None => Ok(()),
        }
    }
}

/// Pool that sends for tenants without a pool of their own.
pub const DEFAULT_POOL: &str = "default";

impl TenantRules {
    /// Returns the pool that sends for this tenant.
    pub fn pool(&self) -> &str {
        self.pool.as_deref().unwrap_or(DEFAULT_POOL)
    }

    /// Validates every rule.
    pub fn validate(&self) -> Result<(), FieldError> {
        if let Some(pool) = &self.pool {
            check_pool(pool)?;
        }
        if let Some(limit) = &self.rate_limit {
            limit.validate("rate_limit")?;
        }
        if self.max_in_flight == Some(0) {
            return Err(FieldError::new("max_in_flight", "must be at least 1"));
        }
        self.notifications.validate()?;
        self.quotas.validate()
    }
}

/// Validates the name of a pool.
pub fn check_pool(name: &str) -> Result<(), FieldError> {
    let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_' || c == b'-';
    if name.is_empty() || name.len() > 64 || !name.bytes().all(allowed) {
        return Err(FieldError::new("pool", "must be 1 to 64 characters of a-z, 0-9, _ and -"));
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
    type Error = FieldError;

    fn try_from(text: String) -> Result<Self, FieldError> {
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
    fn invalid_tenant_ids_are_refused() {
        for good in ["default", "acme-2", "a", "0_x", "org_01EHZNVPK3SFK441A1RGBFSHRT", "auth0:1.2"] {
            assert_eq!(TenantId::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", "-a", "*", "..", "a b", "a/b", "ä", &"x".repeat(129)] {
            assert_eq!(TenantId::parse(bad).unwrap_err().field, "tenant_id", "{bad}");
        }
        assert_ne!(TenantId::parse("Acme"), TenantId::parse("acme"));
        assert!(TenantId::parse("Z").unwrap() < TenantId::parse("a").unwrap(), "ids are sorted by bytes");
    }

    #[test]
    fn retention_above_maximum_is_refused() {
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
        fn any_text_parses_safely_and_ids_are_kept_as_written(
            text in prop_oneof!["[a-zA-Z0-9._:-]{0,140}", "[a-z0-9_-]{1,60}\\PC?", any::<String>()],
        ) {
            let id = TenantId::parse(&text);
            prop_assert_eq!(id.is_ok(), is_external_id(&text));
            if let Ok(id) = id {
                prop_assert_eq!(id.as_str(), text.as_str());
                prop_assert_eq!(String::from(id), text);
            }
        }
    }
}
