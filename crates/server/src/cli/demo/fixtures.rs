//! The tenants, event types and webhooks of a demo. What is there from an earlier start is kept, but for the URLs:
//! the receivers are at other ports each time.

use redrive_core::{
    TenantId,
    delivery::retry::RetryConfig,
    event::event_type::Pattern,
    protection::breaker::BreakerConfig,
    tenancy::TenantRules,
    time::Span,
    webhook::{Webhook, WebhookSpec, WebhookState},
};
use redrive_store::PageRequest;
use tokio_util::sync::CancellationToken;

use super::{
    receivers::{self, Manner},
    samples::ALL,
    tenant,
};
use crate::{
    app::{Actor, App, AppError},
    cli::CliError,
};

/// The note by which a webhook of the demo is found again.
const NOTE: &str = "demo";
/// Nothing waits for longer, so that a demo that runs for days stays small.
const GIVE_UP_AFTER: Span = Span::secs(600);

/// A webhook of the demo.
struct Plan {
    tenant: &'static str,
    /// The path of its URL, by which it is known too.
    path: &'static str,
    manner: Manner,
    description: &'static str,
    events: &'static [&'static str],
    /// The wait before each attempt, in milliseconds.
    schedule: &'static [u64],
    /// How many calls a circuit has to see before it opens.
    opens_after: u32,
    state: WebhookState,
}

/// A webhook that tries thrice and is not taken for broken too soon.
const USUAL: Plan = Plan {
    tenant: "default",
    path: "",
    manner: Manner::Healthy,
    description: "",
    events: &["*"],
    schedule: &[0, 1_000, 4_000],
    opens_after: 20,
    state: WebhookState::Active,
};

const PLANS: [Plan; 10] = [
    Plan {
        path: "order-service",
        description: "Order service. A healthy receiver: takes everything at once",
        events: &["order.*", "invoice.*"],
        ..USUAL
    },
    Plan {
        path: "analytics",
        manner: Manner::Slow,
        description: "Analytics. A slow receiver: takes seconds, and now and then too many",
        events: &["user.*", "invoice.paid"],
        ..USUAL
    },
    Plan {
        path: "crm",
        manner: Manner::Flaky,
        description: "CRM. A flaky receiver: fails every third time or so",
        events: &["user.*", "order.created"],
        schedule: &[0, 500, 2_000, 8_000],
        ..USUAL
    },
    Plan {
        path: "partner-api",
        manner: Manner::Limiting,
        description: "Partner API. A receiver with a rate limit: answers 429 with Retry-After",
        events: &["swap.*", "order.shipped"],
        ..USUAL
    },
    Plan {
        path: "legacy-erp",
        manner: Manner::Dead,
        description: "Legacy ERP. A dead receiver: closes every connection",
        events: &["order.*"],
        opens_after: 5,
        ..USUAL
    },
    Plan {
        path: "chat-bot",
        manner: Manner::Hostile,
        description: "Chat bot. A hostile receiver: answers with scripts and binary rubbish",
        events: &["user.signed_up", "swap.*"],
        schedule: &[0, 1_000],
        opens_after: 10_000,
        ..USUAL
    },
    Plan {
        tenant: "acme",
        path: "acme-erp",
        description: "Acme ERP. A healthy receiver: takes everything at once",
        ..USUAL
    },
    Plan {
        tenant: "acme",
        path: "acme-warehouse",
        manner: Manner::Outages,
        description: "Acme warehouse. A receiver with outages: down for 45 seconds, up for 105. Retry its dead letters \
                      when it is up",
        events: &["order.*"],
        schedule: &[0, 400, 800],
        opens_after: 60,
        ..USUAL
    },
    Plan {
        tenant: "acme",
        path: "acme-staging",
        description: "Acme staging. Paused: resume it, and what waits is sent",
        events: &["invoice.overdue"],
        state: WebhookState::Paused,
        ..USUAL
    },
    Plan {
        tenant: "globex",
        path: "globex-ledger",
        manner: Manner::Flaky,
        description: "Globex ledger. A flaky receiver: fails every third time or so",
        schedule: &[0, 500, 2_000, 8_000],
        ..USUAL
    },
];

/// Starts the receivers and makes what is not there yet.
pub(super) async fn set_up(app: &App, by: &Actor, stop: &CancellationToken) -> Result<(), CliError> {
    for (id, name) in [("acme", "Acme Corporation"), ("globex", "Globex")] {
        match app.tenant(tenant(id)?).await {
            Err(AppError::NotFound(_)) => {
                app.create_tenant(by, id, Some(name.into()), TenantRules::default()).await?;
            }
            found => drop(found?),
        }
    }
    for sample in &ALL {
        let made = app.create_event_type(by, tenant(sample.tenant)?, sample.name.into(), |new| {
            new.description = Some(sample.description.into());
            new.schema = Some((sample.schema)().to_string());
            new.example = Some(sample.make(|| 0.3).1.to_string());
        });
        match made.await {
            Ok(_) | Err(AppError::Conflict { code: "event_type_exists", .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for plan in &PLANS {
        let address = receivers::start(plan.manner, stop.clone()).await;
        let address = address.map_err(|error| CliError::said(format!("no receiver can listen: {error}")))?;
        plan.put_up(app, by, format!("http://{address}/{}", plan.path)).await?;
    }
    Ok(())
}

impl Plan {
    /// Makes the webhook, or tells the one that is there where its receiver is now.
    async fn put_up(&self, app: &App, by: &Actor, url: String) -> Result<(), AppError> {
        let tenant = tenant(self.tenant)?;
        match self.find(app, &tenant).await? {
            Some(webhook) => {
                let change = |webhook: &mut Webhook| {
                    webhook.spec.url.clone_from(&url);
                    Ok(())
                };
                app.change_webhook(by, "webhook.update", &tenant, webhook.id, change).await?;
            }
            None => {
                app.create_webhook(by, tenant, self.spec(url)?, None, self.state.clone()).await?;
            }
        }
        Ok(())
    }

    async fn find(&self, app: &App, tenant: &TenantId) -> Result<Option<Webhook>, AppError> {
        // A demo has few; one that somebody has buried under hundreds of others is made anew.
        let page = PageRequest { after: None, offset: 0, limit: 500 };
        let found = app.list_webhooks(tenant.clone(), page).await?;
        let is_it = |webhook: &Webhook| webhook.spec.metadata.get(NOTE).is_some_and(|note| note == self.path);
        Ok(found.into_iter().find(is_it))
    }

    fn spec(&self, url: String) -> Result<WebhookSpec, AppError> {
        let events: Result<Vec<_>, _> = self.events.iter().map(|pattern| Pattern::parse(pattern)).collect();
        Ok(WebhookSpec {
            url,
            description: Some(self.description.into()),
            events: events?,
            retry_config: RetryConfig {
                schedule: Some(self.schedule.iter().copied().map(Span::millis).collect()),
                timeout_ms: Some(2_500),
                give_up_after: Some(GIVE_UP_AFTER),
                ..RetryConfig::default()
            },
            circuit_breaker_config: BreakerConfig {
                minimum_throughput: Some(self.opens_after),
                sleep_window_ms: Some(15_000),
                ..BreakerConfig::default()
            },
            metadata: [(NOTE.to_owned(), self.path.to_owned())].into(),
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
    fn every_plan_can_be_carried_out() {
        let urls = Config::defaults(Profile::Dev).egress.urls(None);
        for plan in &PLANS {
            let spec = plan.spec(format!("http://127.0.0.1:9000/{}", plan.path)).unwrap();
            spec.validate_all_but_url().unwrap();
            redrive_core::webhook::validate_url(&spec.url, &urls).unwrap();
            spec.retry_config.resolve(&RetryPolicy::default()).unwrap();
            spec.circuit_breaker_config.resolve(&BreakerPolicy::default()).unwrap();
            let wanted =
                |pattern: &Pattern| ALL.iter().any(|s| s.tenant == plan.tenant && pattern.matches(s.name));
            assert!(spec.events.iter().all(wanted), "{}", plan.path);
        }
        let paths: HashSet<_> = PLANS.iter().map(|plan| plan.path).collect();
        assert_eq!(paths.len(), PLANS.len(), "each is found again");
    }
}
