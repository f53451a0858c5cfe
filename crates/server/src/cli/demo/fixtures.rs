//! Tenants, event types and webhooks of a demo. Those from an earlier run are kept, except for the webhook URLs:
//! the receivers listen on other ports each time.

use redrive_core::{
    TenantId,
    delivery::retry::RetryConfig,
    event::event_type::Pattern,
    protection::breaker::BreakerConfig,
    time::HumanDuration,
    webhook::{Webhook, WebhookSpec, WebhookState},
};
use redrive_store::{EventType, PageRequest, Tenant};
use tokio_util::sync::CancellationToken;

use super::{
    receivers::{self, Behavior},
    samples::ALL,
    tenant,
};
use crate::{
    app::{Actor, App, AppError, ErrorCode, webhooks::NewWebhook},
    cli::CliError,
};

/// Metadata key that identifies a webhook of the demo.
const DEMO_MARKER: &str = "demo";
/// Time after which deliveries are dead, so that a demo that runs for days stays small.
const GIVE_UP_AFTER: HumanDuration = HumanDuration::secs(600);

/// Webhook of the demo.
struct DemoWebhook {
    tenant: &'static str,
    /// Path of its URL, which also identifies it.
    path: &'static str,
    manner: Behavior,
    description: &'static str,
    events: &'static [&'static str],
    /// Delay before each attempt, in milliseconds.
    schedule: &'static [u64],
    /// Minimum number of calls before the circuit can open.
    opens_after: u32,
    state: WebhookState,
}

/// Default webhook, with three attempts and a circuit that opens after 20 calls at the earliest.
const DEFAULT_WEBHOOK: DemoWebhook = DemoWebhook {
    tenant: "default",
    path: "",
    manner: Behavior::Healthy,
    description: "",
    events: &["*"],
    schedule: &[0, 1_000, 4_000],
    opens_after: 20,
    state: WebhookState::Active,
};

const DEMO_WEBHOOKS: [DemoWebhook; 10] = [
    DemoWebhook {
        path: "order-service",
        description: "Order service. A healthy receiver: responds immediately",
        events: &["order.*", "invoice.*"],
        ..DEFAULT_WEBHOOK
    },
    DemoWebhook {
        path: "analytics",
        manner: Behavior::Slow,
        description: "Analytics. A slow receiver: responds after seconds, sometimes after the timeout",
        events: &["user.*", "invoice.paid"],
        ..DEFAULT_WEBHOOK
    },
    DemoWebhook {
        path: "crm",
        manner: Behavior::Flaky,
        description: "CRM. A flaky receiver: fails about every third request",
        events: &["user.*", "order.created"],
        schedule: &[0, 500, 2_000, 8_000],
        ..DEFAULT_WEBHOOK
    },
    DemoWebhook {
        path: "partner-api",
        manner: Behavior::Limiting,
        description: "Partner API. A receiver with a rate limit: returns 429 with Retry-After",
        events: &["swap.*", "order.shipped"],
        ..DEFAULT_WEBHOOK
    },
    DemoWebhook {
        path: "legacy-erp",
        manner: Behavior::Dead,
        description: "Legacy ERP. A dead receiver: closes every connection",
        events: &["order.*"],
        opens_after: 5,
        ..DEFAULT_WEBHOOK
    },
    DemoWebhook {
        path: "chat-bot",
        manner: Behavior::Hostile,
        description: "Chat bot. A hostile receiver: returns scripts and binary data",
        events: &["user.signed_up", "swap.*"],
        schedule: &[0, 1_000],
        opens_after: 10_000,
        ..DEFAULT_WEBHOOK
    },
    DemoWebhook {
        tenant: "acme",
        path: "acme-erp",
        description: "Acme ERP. A healthy receiver: responds immediately",
        ..DEFAULT_WEBHOOK
    },
    DemoWebhook {
        tenant: "acme",
        path: "acme-warehouse",
        manner: Behavior::Outages,
        description: "Acme warehouse. A receiver with outages: down for 45 seconds, up for 105. Retry its dead letters \
                      when it is up",
        events: &["order.*"],
        schedule: &[0, 400, 800],
        opens_after: 60,
        ..DEFAULT_WEBHOOK
    },
    DemoWebhook {
        tenant: "acme",
        path: "acme-staging",
        description: "Acme staging. Paused: resume it to send the waiting deliveries",
        events: &["invoice.overdue"],
        state: WebhookState::Paused,
        ..DEFAULT_WEBHOOK
    },
    DemoWebhook {
        tenant: "globex",
        path: "globex-ledger",
        manner: Behavior::Flaky,
        description: "Globex ledger. A flaky receiver: fails about every third request",
        schedule: &[0, 500, 2_000, 8_000],
        ..DEFAULT_WEBHOOK
    },
];

/// Starts the receivers and creates missing objects.
pub(super) async fn set_up(app: &App, actor: &Actor, stop: &CancellationToken) -> Result<(), CliError> {
    for (id, name) in [("acme", "Acme Corporation"), ("globex", "Globex")] {
        match app.tenant(tenant(id)?).await {
            Err(AppError::NotFound(_)) => {
                let new = Tenant { name: Some(name.into()), ..app.new_tenant(id)? };
                app.create_tenant(actor, new, None).await?;
            }
            found => drop(found?),
        }
    }
    for sample in &ALL {
        let fill = |new: &mut EventType| {
            new.description = Some(sample.description.into());
            new.schema = Some((sample.schema)().to_string());
            new.example = Some(sample.generate(|| 0.3).1.to_string());
        };
        let created = app.create_event_type(actor, tenant(sample.tenant)?, sample.name.into(), fill, None);
        match created.await {
            Ok(_) | Err(AppError::Conflict { code: ErrorCode::EventTypeExists, .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for plan in &DEMO_WEBHOOKS {
        let address = receivers::start(plan.manner, stop.clone()).await;
        let address =
            address.map_err(|error| CliError::message(format!("no receiver can listen: {error}")))?;
        plan.create_or_update(app, actor, format!("http://{address}/{}", plan.path)).await?;
    }
    Ok(())
}

impl DemoWebhook {
    /// Creates the webhook, or updates the URL of the existing one to its receiver's new port.
    async fn create_or_update(&self, app: &App, actor: &Actor, url: String) -> Result<(), AppError> {
        let tenant_id = tenant(self.tenant)?;
        match self.find(app, &tenant_id).await? {
            Some(webhook) => {
                let change = |webhook: &mut Webhook| {
                    webhook.spec.url.clone_from(&url);
                    Ok(())
                };
                app.change_webhook(actor, "webhook.update", &tenant_id, webhook.id, change).await?;
            }
            None => {
                let (spec, state) = (self.spec(url)?, self.state.clone());
                let new = NewWebhook { spec, secret: None, state, forced_until: None };
                app.create_webhook(actor, tenant_id, new, None).await?;
            }
        }
        Ok(())
    }

    async fn find(&self, app: &App, tenant_id: &TenantId) -> Result<Option<Webhook>, AppError> {
        // Only the newest 500 webhooks are searched; a demo webhook that is older than those is created again.
        let page = PageRequest { after: None, offset: 0, limit: 500 };
        let found = app.list_webhooks(tenant_id.clone(), page).await?;
        let is_it = |webhook: &Webhook| {
            webhook.spec.metadata.get(DEMO_MARKER).is_some_and(|note| *note == self.path.into())
        };
        Ok(found.into_iter().find(is_it))
    }

    fn spec(&self, url: String) -> Result<WebhookSpec, AppError> {
        let events: Result<Vec<_>, _> = self.events.iter().map(|pattern| Pattern::parse(pattern)).collect();
        Ok(WebhookSpec {
            url,
            description: Some(self.description.into()),
            events: events?,
            retry_config: RetryConfig {
                schedule: Some(self.schedule.iter().copied().map(HumanDuration::millis).collect()),
                timeout_ms: Some(2_500),
                give_up_after: Some(GIVE_UP_AFTER),
                ..RetryConfig::default()
            },
            circuit_breaker_config: BreakerConfig {
                minimum_throughput: Some(self.opens_after),
                sleep_window_ms: Some(15_000),
                ..BreakerConfig::default()
            },
            metadata: [(DEMO_MARKER.to_owned(), self.path.into())].into(),
            ..WebhookSpec::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use redrive_core::{delivery::retry::RetryPolicy, protection::breaker::BreakerPolicy};

    use super::*;
    use crate::config::{Config, Profile};

    #[test]
    fn demo_webhooks_are_valid_and_distinct() {
        let urls = Config::defaults(Profile::Dev).egress.urls(None);
        for plan in &DEMO_WEBHOOKS {
            let spec = plan.spec(format!("http://127.0.0.1:9000/{}", plan.path)).unwrap();
            spec.validate_without_url().unwrap();
            redrive_core::webhook::validate_url(&spec.url, &urls).unwrap();
            spec.retry_config.resolve(&RetryPolicy::default()).unwrap();
            spec.circuit_breaker_config.resolve(&BreakerPolicy::default()).unwrap();
            let wanted =
                |pattern: &Pattern| ALL.iter().any(|s| s.tenant == plan.tenant && pattern.matches(s.name));
            assert!(spec.events.iter().all(wanted), "{}", plan.path);
        }
        let paths: HashSet<_> = DEMO_WEBHOOKS.iter().map(|plan| plan.path).collect();
        assert_eq!(paths.len(), DEMO_WEBHOOKS.len(), "each is found again");
    }
}
