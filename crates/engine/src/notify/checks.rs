//! What nobody notices but who looks: names that cannot be looked up, secrets that are old.

use std::{sync::Arc, time::Duration};

use redrive_core::{
    TenantId, Time, WebhookId,
    delivery::response::FailureCategory,
    notification::{
        Facts, Kind,
        checks::{DNS_WINDOW, dns_fails, dns_failures, secret_is_due},
    },
    statistics::rollup::Rollup,
    webhook::Webhook,
};
use redrive_store::{PageRequest, StoreError, Visibility};

use super::occurrences::cause;
use crate::{Engine, Inner, ids::ById};

/// How often suspects are looked at, by the engine's clock, and never more often than this.
const EVERY: Duration = Duration::from_secs(60);
const AT_MOST_EVERY: Duration = Duration::from_secs(1);
/// After how many looks secrets are looked at: about once an hour, and soon after a start.
const SECRETS: usize = 60;
/// Suspects that are remembered; another one is when there is room again.
const SUSPECTS: usize = 10_000;
/// Webhooks, or tenants, looked at in one step.
const STEP: usize = 200;
/// How long to wait between two steps.
const PAUSE: Duration = Duration::from_millis(20);

impl Inner {
    /// Remembers a webhook whose host's name could not be looked up.
    pub(crate) fn suspect(&self, webhook: WebhookId, tenant: &TenantId) {
        let mut suspects = self.notifying.suspects.lock();
        if suspects.len() < SUSPECTS {
            suspects.entry(webhook).or_insert_with(|| tenant.clone());
        }
    }

    /// Looks for what is to be told without anything happening, for as long as the engine runs.
    pub(crate) async fn keep_watching(self: Arc<Self>) {
        for round in 1.. {
            let next = self.clock.now() + EVERY;
            tokio::select! {
                () = async { tokio::join!(self.clock.sleep_until(next), tokio::time::sleep(AT_MOST_EVERY)); } => {}
                () = self.stop.cancelled() => return,
            }
            if let Err(error) = self.look_at_names().await {
                tracing::debug!(%error, "names that are not found are told later");
            }
            if round % SECRETS == 1
                && self.fleet.is_first()
                && let Err(error) = self.look_at_secrets().await
            {
                tracing::debug!(%error, "secrets that are due are told later");
            }
        }
    }

    async fn look_at_names(self: &Arc<Self>) -> Result<(), StoreError> {
        let suspects: Vec<_> = self.notifying.suspects.lock().clone().into_iter().collect();
        let now = self.clock.now();
        for part in suspects.chunks(STEP) {
            let ids = part.iter().map(|(webhook, _)| *webhook).collect();
            let mut windows = ById::<WebhookId, Rollup>::default();
            for minute in Engine(self.clone()).rollups(None, ids, now.back(DNS_WINDOW)).await? {
                windows.entry(minute.webhook).or_default().merge(&minute.rollup);
            }
            let mut causes = Vec::new();
            for (webhook, tenant) in part {
                let window = windows.remove(webhook).unwrap_or_default();
                if dns_failures(&window) == 0 {
                    self.notifying.suspects.lock().remove(webhook);
                } else if dns_fails(&window) {
                    causes.push(cause(tenant, Some(*webhook), Kind::DnsFailing, now, names_failed(&window)));
                }
            }
            if !causes.is_empty() {
                self.store.note(causes).await?;
                self.notifying.ring();
            }
        }
        Ok(())
    }

    /// Looks at every webhook that gets events, tenant by tenant.
    async fn look_at_secrets(&self) -> Result<(), StoreError> {
        let Some(rotate_after) = self.settings.rotate_after else { return Ok(()) };
        let mut after = None;
        loop {
            let tenants = self.store.retained(after, STEP).await?;
            for (tenant, _) in &tenants {
                match self.look_at_secrets_of(tenant, rotate_after).await {
                    Err(StoreError::Refused(error)) => {
                        tracing::warn!(%tenant, error, "the age of a tenant's secrets cannot be told");
                    }
                    looked => looked?,
                }
                if self.stop.is_cancelled() {
                    return Ok(());
                }
            }
            match tenants.into_iter().next_back() {
                Some((last, _)) => after = Some(last),
                None => return Ok(()),
            }
        }
    }

    async fn look_at_secrets_of(&self, tenant: &TenantId, rotate_after: Duration) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let page = PageRequest { after, offset: 0, limit: STEP as u32 };
            let webhooks = self.store.list_webhooks(tenant.clone(), Visibility::All, page).await?;
            let now = self.clock.now();
            let due = |webhook: &&Webhook| {
                webhook.state.gets_events() && secret_is_due(&webhook.secrets, rotate_after, now)
            };
            let told = |webhook: &Webhook| {
                let facts = secret_facts(webhook, now);
                cause(tenant, Some(webhook.id), Kind::SecretDue, now, facts)
            };
            let causes: Vec<_> = webhooks.iter().filter(due).map(told).collect();
            if !causes.is_empty() {
                self.store.note(causes).await?;
                self.notifying.ring();
            }
            match webhooks.last() {
                Some(last) if webhooks.len() == STEP => after = Some(last.id),
                _ => return Ok(()),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn names_failed(window: &Rollup) -> Facts {
    let message = format!(
        "the host's name could not be looked up for {} of the last {} attempts",
        dns_failures(window),
        window.attempts
    );
    Facts { reason: Some(FailureCategory::Dns.name().into()), message: Some(message), ..Facts::default() }
}

fn secret_facts(webhook: &Webhook, now: Time) -> Facts {
    let age = webhook.secrets.first().map_or(0, |newest| now.since(newest.created_at).as_secs() / 86_400);
    let message = format!(
        "the secret is {age} days old; change it with POST /v1/webhooks/{}/rotate-secret",
        webhook.id
    );
    Facts { reason: Some("age".into()), message: Some(message), ..Facts::default() }
}
