//! Sections of the configuration that have few settings and no rules of their own, or few.

use std::path::PathBuf;

use redrive_core::{
    maintenance::retention::Retention as RetentionPeriods, time::HumanDuration,
    webhook::verification::RequireVerification,
};
use serde::{Deserialize, Serialize};

use super::{ConfigError, SecretSetting, settings::section};
use crate::telemetry::LogFormat;

section! {
    /// Membership of this node in the cluster on the same database.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Cluster {
        /// Time without heartbeats after which a node is declared dead and the others take over its leases. Longer than
        /// a short network interruption; the same on all nodes. `1s` to `5m`.
        pub lease: HumanDuration,
    }
}

section! {
    /// Authentication.
    #[derive(Clone, Debug, Default, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Auth {
        /// Key with full access; at least 32 characters. Create one with `openssl rand -hex 32`.
        pub admin_key: Option<SecretSetting>,
        /// File with the admin key, for secret mounts; not read if `auth.admin_key` is set.
        pub admin_key_file: Option<PathBuf>,
    }
}

section! {
    /// The audit log.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Audit {
        /// Retention of the [audit log](api.md#audit-log); at least `1d`.
        pub retention: HumanDuration,
    }
}

section! {
    /// Concurrency and memory limits of deliveries.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Delivery {
        /// Requests in flight over all webhooks; a request counts until its outcome is stored. 1 to 1000000.
        pub max_in_flight: usize,
        /// Maximum concurrency of a webhook without its own; low enough for small servers. 1 to 1000.
        pub webhook_max_in_flight: u32,
        /// Deliveries in memory; more wait in the store. 1 to 1000000.
        pub max_deliveries_in_memory: usize,
        /// Payload bytes in memory; at least four times `events.max_payload_bytes`.
        pub max_payload_bytes_in_memory: usize,
        /// Deliveries in memory for one lane of a webhook, so that no webhook takes all the capacity. 1 to 1000000.
        pub max_deliveries_per_lane: usize,
    }
}

section! {
    /// Limits of published events.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Events {
        /// The largest `data`; larger is rejected with 413. 1024 to 16777216.
        pub max_payload_bytes: usize,
        /// Time for which a repeated idempotency key returns the first event.
        pub idempotency_window: HumanDuration,
        /// Number of Redrive deliveries that an event may have come through when it is published; more are a loop and
        /// rejected with 422. 1 to 100.
        pub max_hops: u8,
    }
}

section! {
    /// Retention of ended data; 0 keeps it forever.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Retention {
        /// [Retention](operations/retention.md) of events with their deliveries and attempts, unless one of them is
        /// pending; 1d to 365d, or 0 for unlimited. A tenant may have its own.
        pub events: HumanDuration,
        /// Retention of dead letters with their attempts; their events stay. 1d to 365d, or 0 for the retention of
        /// their events.
        pub dead_letters: HumanDuration,
    }
}

impl Retention {
    pub(super) fn periods(&self) -> RetentionPeriods {
        let period = |span: HumanDuration| Some(span.as_duration()).filter(|period| !period.is_zero());
        RetentionPeriods { events: period(self.events), dead_letters: period(self.dead_letters) }
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let a_day = HumanDuration::secs(24 * 3600);
        for (setting, span) in
            [("retention.events", self.events), ("retention.dead_letters", self.dead_letters)]
        {
            if span < a_day && !span.as_duration().is_zero() {
                let reason = "must be at least 1d, or 0 for ever".into();
                return Err(ConfigError::Invalid { setting: setting.into(), reason });
            }
        }
        Ok(())
    }
}

section! {
    /// Settings that apply to all webhooks.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Webhooks {
        /// A webhook that has only failed for this time is disabled, since it appears to be abandoned; `0` for never.
        pub disable_after: HumanDuration,
        /// Which webhooks need a [verified](receiving.md#the-challenge) URL: `always`, `portal` (those that portal
        /// sessions create, or whose URL they change) or `never` (only those with `verify_url`).
        pub require_verification: RequireVerification,
    }
}

section! {
    /// Log level and format.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Log {
        /// Minimum level of log records on standard error: `error`, `warn`, `info`, `debug`, or a filter such as
        /// `info,redrive_engine=debug`.
        pub level: String,
        /// Format of the [log](operations/logging.md): `text` for people, `json` for machines.
        pub format: LogFormat,
    }
}

section! {
    /// Additional metric breakdowns.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Metrics {
        /// Whether `/metrics` counts deliveries for each tenant; all readers of the metrics see their names.
        pub by_tenant: bool,
        /// Whether `/metrics` counts deliveries for each webhook. Off by default, as there may be very many.
        pub by_webhook: bool,
        /// Whether `/metrics` counts deliveries for each event type. Off by default, as tenants choose the names.
        pub by_event_type: bool,
        /// Number of tenants, webhooks and event types, each, with their own series, from 1 to 10000; the rest is
        /// counted as `other`.
        pub max_values: usize,
        /// Who may read [`/metrics/tenants`](operations/metrics.md#alerts-that-name-the-tenant), which names tenants and
        /// webhooks: `key` (callers with an admin key), `open` (every caller, like `/metrics`) or `off`.
        pub tenants: TenantMetricsAccess,
        /// Number of tenants and of webhooks that each metric of `/metrics/tenants` names, the worst first, from 1 to
        /// 500; the rest is summed as `other`.
        pub max_named: usize,
    }
}

/// Who may read the metrics that name tenants and webhooks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TenantMetricsAccess {
    /// They are not served.
    Off,
    /// Callers with an admin key.
    #[default]
    Key,
    /// Every caller.
    Open,
}
