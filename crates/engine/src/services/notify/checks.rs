//! Periodic checks for conditions that no event reports: DNS failures and secrets due for rotation.

use std::{sync::Arc, time::Duration};

use redrive_core::{
    TenantId, Time, WebhookId,
    delivery::response::FailureCategory,
    notification::{
        NotificationKind, OccurrenceDetails,
        checks::{DNS_WINDOW, dns_failures, is_dns_failing, is_rotation_due},
    },
    statistics::rollup::Rollup,
    webhook::{Webhook, failures::FailureSeries},
};
use redrive_store::{Notifications, PageRequest, Prune, RuntimeState, StoreError, Visibility, Webhooks};
use tokio_util::sync::CancellationToken;

use crate::{
    Settings, clock::Clock, cluster::membership::Membership, coordinate::Coordinator,
    dns_suspects::DnsSuspects, ids::ById, occurrences::occurrence, record::WebhookRuntimeUpdater,
    services::statistics::StatisticsService, wakeups::Wakeups,
};

/// Interval between checks by the engine's clock, and the minimum interval by real time.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
const MIN_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Number of checks between two checks of secrets: about one hour; the first check after a start includes them.
const SECRET_CHECK_EVERY: usize = 60;
/// Webhooks reported as failing per check, each by a store call.
const MAX_REPORTS: usize = 1_000;
/// Webhooks, or tenants, read per store call.
const PAGE_SIZE: usize = 200;
/// Pause between two pages.
const PAGE_DELAY: Duration = Duration::from_millis(20);

/// Checks webhooks for conditions that no event reports.
pub(crate) struct WebhookChecks {
    pub(crate) notifications: Arc<dyn Notifications>,
    pub(crate) prune: Arc<dyn Prune>,
    pub(crate) webhooks: Arc<dyn Webhooks>,
    pub(crate) clock: Clock,
    pub(crate) settings: Arc<Settings>,
    pub(crate) membership: Arc<Membership>,
    pub(crate) runtime_state: Arc<dyn RuntimeState>,
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) runtime_updater: Arc<WebhookRuntimeUpdater>,
    pub(crate) statistics: Arc<StatisticsService>,
    pub(crate) dns_suspects: Arc<DnsSuspects>,
    pub(crate) wakeups: Arc<Wakeups>,
    pub(crate) stop: CancellationToken,
}

impl WebhookChecks {
    /// Runs the periodic checks until the engine stops.
    pub(crate) async fn run(self: Arc<Self>) {
        for round in 1.. {
            let next = self.clock.now() + CHECK_INTERVAL;
            tokio::select! {
                () = async { tokio::join!(self.clock.sleep_until(next), tokio::time::sleep(MIN_CHECK_INTERVAL)); } => {}
                () = self.stop.cancelled() => return,
            }
            if let Err(error) = self.report_failing_webhooks().await {
                tracing::debug!(%error, "reporting failing webhooks failed; will retry");
            }
            if let Err(error) = self.check_dns_failures().await {
                tracing::debug!(%error, "checking for DNS failures failed; will retry");
            }
            if round % SECRET_CHECK_EVERY == 1
                && self.membership.is_leader()
                && let Err(error) = self.check_secret_ages().await
            {
                tracing::debug!(%error, "checking for secrets due for rotation failed; will retry");
            }
        }
    }

    /// Reports webhooks that have been failing for long enough, although no further attempt was made. Any node may do
    /// it: the store reports a series of failures once.
    async fn report_failing_webhooks(&self) -> Result<(), StoreError> {
        let (rule, now) = (self.settings.failing_rule, self.clock.now());
        for (webhook_id, tenant_id) in self.coordinator.local.webhooks_to_report(now, MAX_REPORTS) {
            if self.runtime_state.report_failing(tenant_id, webhook_id, rule, now).await? {
                self.wakeups.notifier.notify_one();
                self.coordinator.local.mark_reported(webhook_id);
            } else {
                // The stored series differs: it was reported by another node, has ended, or started later.
                self.runtime_updater.refresh_runtime_state([webhook_id].into()).await?;
            }
        }
        Ok(())
    }

    async fn check_dns_failures(&self) -> Result<(), StoreError> {
        let suspects = self.dns_suspects.list();
        let now = self.clock.now();
        for part in suspects.chunks(PAGE_SIZE) {
            let ids = part.iter().map(|(webhook_id, _)| *webhook_id).collect();
            let mut windows = ById::<WebhookId, Rollup>::default();
            for minute in self.statistics.rollups(None, ids, now.saturating_sub(DNS_WINDOW)).await? {
                windows.entry(minute.webhook_id).or_default().merge(&minute.rollup);
            }
            let mut occurrences = Vec::new();
            for (webhook_id, suspect) in part {
                let window = windows.remove(webhook_id).unwrap_or_default();
                if dns_failures(&window) == 0 {
                    self.dns_suspects.remove(*webhook_id, suspect.failures);
                    continue;
                }
                let failures = self.coordinator.local.failures(*webhook_id);
                if is_dns_failing(&window, failures.as_ref()) {
                    let details = dns_details(&window, failures.as_ref());
                    let kind = NotificationKind::DnsFailing;
                    occurrences.push(occurrence(&suspect.tenant_id, Some(*webhook_id), kind, now, details));
                }
            }
            if !occurrences.is_empty() {
                self.notifications.record_occurrences(occurrences).await?;
                self.wakeups.notifier.notify_one();
            }
        }
        Ok(())
    }

    /// Checks the secrets of every webhook that receives events, tenant by tenant.
    async fn check_secret_ages(&self) -> Result<(), StoreError> {
        let Some(rotate_after) = self.settings.rotate_after else { return Ok(()) };
        let mut after = None;
        loop {
            let tenants = self.prune.retention_by_tenant(after, PAGE_SIZE).await?;
            for (tenant_id, _) in &tenants {
                match self.check_tenant_secrets(tenant_id, rotate_after).await {
                    Err(StoreError::InvalidItem(error)) => {
                        tracing::warn!(%tenant_id, error, "reading the age of a tenant's secrets failed");
                    }
                    result => result?,
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

    async fn check_tenant_secrets(
        &self,
        tenant_id: &TenantId,
        rotate_after: Duration,
    ) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let page = PageRequest { after, offset: 0, limit: PAGE_SIZE as u32 };
            let webhooks = self.webhooks.list_webhooks(tenant_id.clone(), Visibility::All, page).await?;
            let now = self.clock.now();
            let due = |webhook: &&Webhook| {
                webhook.state.receives_events() && is_rotation_due(&webhook.secrets, rotate_after, now)
            };
            let reported = |webhook: &Webhook| {
                let details = secret_details(webhook, now);
                occurrence(tenant_id, Some(webhook.id), NotificationKind::SecretRotationDue, now, details)
            };
            let occurrences: Vec<_> = webhooks.iter().filter(due).map(reported).collect();
            if !occurrences.is_empty() {
                self.notifications.record_occurrences(occurrences).await?;
                self.wakeups.notifier.notify_one();
            }
            match webhooks.last() {
                Some(last) if webhooks.len() == PAGE_SIZE => after = Some(last.id),
                _ => return Ok(()),
            }
            tokio::time::sleep(PAGE_DELAY).await;
        }
    }
}

fn dns_details(window: &Rollup, failures: Option<&FailureSeries>) -> OccurrenceDetails {
    let only_dns = failures.filter(|failures| failures.is_only(FailureCategory::Dns));
    let (failed, attempts) = match only_dns {
        Some(failures) if failures.counts.failed > window.attempts => {
            (failures.counts.failed, failures.counts.failed)
        }
        _ => (dns_failures(window), window.attempts),
    };
    let message = format!("the host name could not be resolved for {failed} of the last {attempts} attempts");
    OccurrenceDetails {
        reason: Some(FailureCategory::Dns.name().into()),
        message: Some(message),
        since: failures.map(|failures| failures.since),
        ..OccurrenceDetails::default()
    }
}

fn secret_details(webhook: &Webhook, now: Time) -> OccurrenceDetails {
    let age =
        webhook.secrets.first().map_or(0, |newest| now.duration_since(newest.created_at).as_secs() / 86_400);
    let message = format!(
        "the secret is {age} days old; change it with POST /v1/webhooks/{}/rotate-secret",
        webhook.id
    );
    OccurrenceDetails { reason: Some("age".into()), message: Some(message), ..OccurrenceDetails::default() }
}
