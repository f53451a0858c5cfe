//! Rate and concurrency limits, all unlimited unless set. In production a webhook has a rate limit by default.

use redrive_core::{
    protection::limiter::{REQUESTS_PER_MINUTE_RANGE, RateLimit},
    webhook::caps::Caps,
};
use serde::{Deserialize, Serialize};

use super::{ConfigError, settings::section};

section! {
    /// Rate and concurrency limits.
    #[derive(Clone, Debug, Default, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Limits {
        /// Send rate to one webhook that sets no limit of its own.
        pub webhook: WebhookRate,
        /// Limits of a tenant that has none of its own.
        pub tenant: TenantLimits,
        /// Send rate of the whole cluster.
        pub global: ClusterRate,
        /// Rate of API calls by one key.
        pub api: ApiRate,
        /// Upper bounds on the settings of webhooks.
        pub caps: Caps,
    }
}

section! {
    /// Send rate of a webhook.
    #[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct WebhookRate {
        /// Rate limit of a webhook without its own, so that a backlog does not flood its endpoint. 1 to 6000000; 0 for
        /// unlimited, which is the default of `redrive dev` and `redrive demo`.
        pub requests_per_minute: Option<u32>,
        /// Requests of a webhook that may be sent together after idle time. 1 to 1000000.
        pub burst: Option<u32>,
    }
}

section! {
    /// Rate of API calls by one key.
    #[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct ApiRate {
        /// Rate limit of API calls per key on this node; more is a [429](api.md#rate-limits). 1 to 6000000.
        pub requests_per_minute: Option<u32>,
        /// API calls of a key that are allowed together after idle time. 1 to 1000000.
        ///
        /// Default: one second of the rate
        pub burst: Option<u32>,
    }
}

section! {
    /// Send rate of the cluster.
    #[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct ClusterRate {
        /// Send rate limit of the whole cluster, in requests per second, to protect the network around the server.
        /// Unlimited unless set. 1 to 100000.
        pub requests_per_second: Option<u32>,
        /// Requests of the cluster that may be sent together after idle time. 1 to 1000000.
        ///
        /// Default: one second of the rate
        pub burst: Option<u32>,
    }
}

section! {
    /// Limits of one tenant.
    #[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct TenantLimits {
        /// Rate limit of a tenant without its own, over all its webhooks. 1 to 6000000.
        pub requests_per_minute: Option<u32>,
        /// Requests of a tenant that may be sent together after idle time. 1 to 1000000.
        ///
        /// Default: one second of the rate
        pub burst: Option<u32>,
        /// Maximum concurrency of a tenant without its own. 1 to 1000000.
        pub max_in_flight: Option<usize>,
    }
}

/// Rate limit in production of a webhook without its own: ten requests per second.
const PRODUCTION_WEBHOOK_RATE: WebhookRate = WebhookRate { requests_per_minute: Some(600), burst: Some(100) };

impl Limits {
    /// Returns the default limits: in development nothing is limited.
    pub fn defaults(is_dev: bool) -> Self {
        let webhook = if is_dev { WebhookRate::default() } else { PRODUCTION_WEBHOOK_RATE };
        Self { webhook, ..Self::default() }
    }

    /// Returns the default send rate to one webhook.
    pub fn webhook_rate(&self) -> Result<Option<RateLimit>, ConfigError> {
        let WebhookRate { requests_per_minute, burst } = self.webhook;
        match requests_per_minute {
            // The burst may be the default one, so it is not an error here.
            Some(0) => Ok(None),
            _ => per_minute("limits.webhook", requests_per_minute, burst),
        }
    }

    /// Returns the default send rate of one tenant.
    pub fn tenant_rate(&self) -> Result<Option<RateLimit>, ConfigError> {
        per_minute("limits.tenant", self.tenant.requests_per_minute, self.tenant.burst)
    }

    /// Returns the send rate of the whole cluster.
    pub fn global_rate(&self) -> Result<Option<RateLimit>, ConfigError> {
        let ClusterRate { requests_per_second, burst } = self.global;
        let max = REQUESTS_PER_MINUTE_RANGE.end() / 60;
        if let Some(rate) = requests_per_second
            && !(1..=max).contains(&rate)
        {
            let reason = format!("is {rate}; it must be from 1 to {max}; omit it for no limit");
            return Err(invalid("limits.global.requests_per_second", reason));
        }
        let rate = requests_per_second.map(|rate| rate * 60);
        checked("limits.global", "requests_per_second", rate, burst)
    }

    /// Returns the rate at which one key may call the API.
    pub fn api_rate(&self) -> Result<Option<RateLimit>, ConfigError> {
        per_minute("limits.api", self.api.requests_per_minute, self.api.burst)
    }

    /// Checks every limit.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        self.webhook_rate()?;
        self.tenant_rate()?;
        self.global_rate()?;
        self.api_rate()?;
        self.caps.validate().map_err(|refused| invalid(refused.field, refused.message))?;
        if self.tenant.max_in_flight.is_some_and(|max| !(1..=1_000_000).contains(&max)) {
            let reason = "must be from 1 to 1000000; omit it for no limit";
            return Err(invalid("limits.tenant.max_in_flight", reason));
        }
        Ok(())
    }
}

fn per_minute(
    section: &str,
    requests_per_minute: Option<u32>,
    burst: Option<u32>,
) -> Result<Option<RateLimit>, ConfigError> {
    checked(section, "requests_per_minute", requests_per_minute, burst)
}

fn checked(
    section: &str,
    rate_name: &str,
    requests_per_minute: Option<u32>,
    burst: Option<u32>,
) -> Result<Option<RateLimit>, ConfigError> {
    let Some(requests_per_minute) = requests_per_minute else {
        return match burst {
            None => Ok(None),
            Some(_) => {
                let reason = format!("has no effect without {section}.{rate_name}; set both");
                Err(invalid(format!("{section}.burst"), reason))
            }
        };
    };
    let limit = RateLimit { requests_per_minute, burst };
    limit.validate(section).map_err(|refused| invalid(refused.field, refused.message))?;
    Ok(Some(limit))
}

fn invalid(setting: impl Into<String>, reason: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { setting: setting.into(), reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_webhooks_in_production_are_limited_by_default() {
        for is_dev in [true, false] {
            let limits = Limits::defaults(is_dev);
            limits.validate().unwrap();
            for rate in [limits.tenant_rate(), limits.global_rate(), limits.api_rate()] {
                assert_eq!(rate.unwrap(), None);
            }
            let expected = RateLimit { requests_per_minute: 600, burst: Some(100) };
            assert_eq!(limits.webhook_rate().unwrap(), (!is_dev).then_some(expected));
        }
    }

    #[test]
    fn webhook_rate_of_zero_is_unlimited() {
        let mut limits = Limits::defaults(false);
        limits.webhook.requests_per_minute = Some(0);
        limits.validate().unwrap();
        assert_eq!(limits.webhook_rate().unwrap(), None);
    }

    #[test]
    fn rate_per_second_is_converted_to_per_minute() {
        let global = ClusterRate { requests_per_second: Some(1_000), burst: None };
        let limit = Limits { global, ..Limits::default() }.global_rate().unwrap().unwrap();
        assert_eq!((limit.requests_per_minute, limit.burst()), (60_000, 1_000));
    }

    #[test]
    fn invalid_limit_error_names_the_setting() {
        let message = |limits: Limits| limits.validate().unwrap_err().to_string();
        let webhook = |requests_per_minute, burst| {
            message(Limits { webhook: WebhookRate { requests_per_minute, burst }, ..Limits::default() })
        };
        assert!(webhook(Some(6_000_001), None).starts_with("limits.webhook.requests_per_minute: is 6000001"));
        assert!(webhook(Some(60), Some(0)).starts_with("limits.webhook.burst: is 0"));
        assert_eq!(
            webhook(None, Some(5)),
            "limits.webhook.burst: has no effect without limits.webhook.requests_per_minute; set both"
        );
        let global = |requests_per_second, burst| {
            message(Limits { global: ClusterRate { requests_per_second, burst }, ..Limits::default() })
        };
        assert!(global(Some(0), None).starts_with("limits.global.requests_per_second: is 0"));
        assert!(global(Some(u32::MAX), None).contains("from 1 to 100000"));
        assert!(global(None, Some(1)).contains("limits.global.requests_per_second"));
        let tenant = TenantLimits { max_in_flight: Some(0), ..TenantLimits::default() };
        assert!(message(Limits { tenant, ..Limits::default() }).starts_with("limits.tenant.max_in_flight: "));
    }
}
