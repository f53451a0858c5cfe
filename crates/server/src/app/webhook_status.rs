//! Status of webhooks, computed for one page of a listing at a time.

use std::collections::HashMap;

use redrive_core::{
    TenantId, Time, WebhookId,
    statistics::rollup::Rollup,
    webhook::{
        Webhook,
        failures::FailingRule,
        status::{StatusInput, WebhookStatus},
    },
};
use redrive_engine::GateStatus;

use super::{App, AppError};

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
    /// Returns the status of each of these webhooks of a tenant.
    pub async fn webhook_statuses(
        &self,
        tenant_id: &TenantId,
        webhooks: &[Webhook],
    ) -> Result<HashMap<WebhookId, WebhookStatus>, AppError> {
        self.statuses_wanted(tenant_id, webhooks, None).await
    }

    /// Returns the status of those of these webhooks that have the wanted status; of all without one. Results of the
    /// last hour are read only where they decide.
    pub async fn statuses_wanted(
        &self,
        tenant_id: &TenantId,
        webhooks: &[Webhook],
        wanted: Option<WebhookStatus>,
    ) -> Result<HashMap<WebhookId, WebhookStatus>, AppError> {
        let (now, rule) = (self.engine.clock().now(), self.engine.failing_rule());
        let ids: Vec<_> = webhooks.iter().map(|webhook| webhook.id).collect();
        let gates = self.engine.gate_statuses(tenant_id, &ids).await?;
        let status =
            |webhook: &Webhook, hour: &Rollup| status_of(webhook, gates.get(&webhook.id), hour, &rule, now);
        let no_attempts = Rollup::default();
        let mut statuses: HashMap<_, _> =
            webhooks.iter().map(|webhook| (webhook.id, status(webhook, &no_attempts))).collect();
        // Failed attempts of the last hour make a webhook degraded that would be healthy without them.
        let depends_on_hour =
            [None, Some(WebhookStatus::Healthy), Some(WebhookStatus::Degraded)].contains(&wanted);
        if depends_on_hour {
            let healthy = |webhook: &&Webhook| statuses.get(&webhook.id) == Some(&WebhookStatus::Healthy);
            let undecided: Vec<_> = webhooks.iter().filter(healthy).collect();
            let ids = undecided.iter().map(|webhook| webhook.id).collect();
            let hours = self.last_hours(tenant_id, ids, now).await?;
            for webhook in undecided {
                let hour = hours.get(&webhook.id).map_or(&no_attempts, |hour| &hour.sum);
                statuses.insert(webhook.id, status(webhook, hour));
            }
        }
        statuses.retain(|_, status| wanted.is_none_or(|wanted| *status == wanted));
        Ok(statuses)
    }

    /// Returns the status of one webhook.
    pub async fn webhook_status(&self, webhook: &Webhook) -> Result<WebhookStatus, AppError> {
        let statuses = self.webhook_statuses(&webhook.tenant_id, std::slice::from_ref(webhook)).await?;
        Ok(statuses.get(&webhook.id).copied().unwrap_or(WebhookStatus::Disabled))
    }
}
