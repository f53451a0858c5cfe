//! Status of webhooks, computed for one page of a listing at a time.

use std::collections::HashMap;

use redrive_core::{
    Time, WebhookId,
    statistics::rollup::Rollup,
    webhook::{
        Webhook,
        failures::FailingRule,
        status::{StatusInput, WebhookStatus},
    },
};
use redrive_engine::GateStatus;

use super::{App, AppError, TenantSelection};

/// What is known about a webhook besides its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebhookFacts {
    /// Its status.
    pub status: WebhookStatus,
    /// Time until which its circuit is forced open; `None` if it is not, or has no end.
    pub forced_open_until: Option<Time>,
}

impl Default for WebhookFacts {
    /// Returns the facts of a webhook that was deleted since it was read.
    fn default() -> Self {
        Self { status: WebhookStatus::Disabled, forced_open_until: None }
    }
}

/// Returns the status of a webhook. One without a gate status was deleted since it was read.
pub(super) fn status_of(
    webhook: &Webhook,
    gate: Option<&GateStatus>,
    last_hour: &Rollup,
    failing_rule: &FailingRule,
    now: Time,
) -> WebhookStatus {
    let Some(gate) = gate else { return WebhookStatus::Disabled };
    let input = StatusInput {
        state: &webhook.state,
        circuit: &gate.circuit,
        paused_by_429_until: gate.paused_by_429_until,
        failures: gate.failures.as_ref(),
        failing_rule,
        last_hour,
    };
    WebhookStatus::from_input(&input, now)
}

impl App {
    /// Returns the facts of those of these webhooks, of a tenant or of any, that have the wanted status; of all without
    /// one. Results of the last hour are read only where they decide.
    pub async fn webhook_facts_of(
        &self,
        tenants: impl Into<TenantSelection>,
        webhooks: &[Webhook],
        wanted: Option<WebhookStatus>,
    ) -> Result<HashMap<WebhookId, WebhookFacts>, AppError> {
        let tenants = tenants.into();
        let tenant_id = tenants.tenant_id();
        let (now, rule) = (self.engine.clock().now(), self.engine.failing_rule());
        let ids: Vec<_> = webhooks.iter().map(|webhook| webhook.id).collect();
        let gates = self.engine.gate_statuses(tenant_id, &ids).await?;
        let status =
            |webhook: &Webhook, hour: &Rollup| status_of(webhook, gates.get(&webhook.id), hour, &rule, now);
        let no_attempts = Rollup::default();
        let facts = |webhook: &Webhook| {
            let forced = gates.get(&webhook.id).and_then(|gate| gate.circuit.forced.as_ref());
            let until = forced.filter(|forced| forced.open).and_then(|forced| forced.until);
            WebhookFacts {
                status: status(webhook, &no_attempts),
                forced_open_until: until.filter(|until| *until > now),
            }
        };
        let mut known: HashMap<_, _> = webhooks.iter().map(|webhook| (webhook.id, facts(webhook))).collect();
        // Failed attempts of the last hour make a webhook degraded that would be healthy without them.
        if [None, Some(WebhookStatus::Healthy), Some(WebhookStatus::Degraded)].contains(&wanted) {
            let is_healthy = |webhook: &&Webhook| {
                known.get(&webhook.id).is_some_and(|facts| facts.status == WebhookStatus::Healthy)
            };
            let undecided: Vec<_> = webhooks.iter().filter(is_healthy).collect();
            let ids = undecided.iter().map(|webhook| webhook.id).collect();
            let hours = self.last_hours(tenant_id, ids, now).await?;
            for webhook in undecided {
                let hour = hours.get(&webhook.id).map_or(&no_attempts, |hour| &hour.sum);
                if let Some(facts) = known.get_mut(&webhook.id) {
                    facts.status = status(webhook, hour);
                }
            }
        }
        known.retain(|_, facts| wanted.is_none_or(|wanted| facts.status == wanted));
        Ok(known)
    }

    /// Returns the facts of one webhook.
    pub async fn webhook_facts(&self, webhook: &Webhook) -> Result<WebhookFacts, AppError> {
        let one = std::slice::from_ref(webhook);
        let facts = self.webhook_facts_of(&webhook.tenant_id, one, None).await?;
        Ok(facts.get(&webhook.id).copied().unwrap_or_default())
    }
}
