//! Webhooks, their runtime state, and what is due for them.

use redrive_core::{
    TenantId, Time, WebhookId, notification::Occurrence, protection::breaker::SavedCircuit,
    security::vault::MasterKeyId, tenancy::TenantRules, webhook::Webhook, webhook::failures::FailingRule,
    webhook::uid::WebhookUid,
};

use crate::{
    Backlog, BackloggedWebhooks, BatchProgress, CircuitPeriod, ConfigChanges, Incident, PageRequest,
    RewrapProgress, StoreFuture, UpdateResult, Versioned, Visibility, WebhookLabel, WebhookRuntime,
    WebhooksWithDueAction,
};

/// Webhooks, and the version that fan-out is checked against.
pub trait Webhooks: Send + Sync {
    /// Stores a new webhook.
    fn create_webhook(&self, webhook: Webhook) -> StoreFuture<'_, UpdateResult>;
    /// Replaces a webhook that has not changed since `revision`. If it is disabled or deleted now, its waiting
    /// deliveries are cancelled from then on. An occurrence is recorded with the change.
    fn change_webhook(
        &self,
        webhook: Webhook,
        revision: i64,
        occurrence: Option<Occurrence>,
    ) -> StoreFuture<'_, UpdateResult>;
    /// Stores a new webhook (`revision` is `None`), or replaces one that has not changed since then, together with its
    /// circuit. Nothing is stored if the webhook has changed or a newer circuit is stored.
    fn store_webhook_with_circuit(
        &self,
        webhook: Webhook,
        revision: Option<i64>,
        circuit: SavedCircuit,
    ) -> StoreFuture<'_, UpdateResult>;
    /// Returns the ids of the webhooks of a tenant with these uids. Uids that no webhook has are left out.
    fn webhooks_by_uid(
        &self,
        tenant_id: TenantId,
        uids: Vec<WebhookUid>,
    ) -> StoreFuture<'_, Vec<(WebhookUid, WebhookId)>>;
    /// Returns a webhook unless it was deleted.
    fn webhook(&self, tenant_id: TenantId, id: WebhookId) -> StoreFuture<'_, Option<Versioned>>;
    /// Returns webhooks of a tenant by id, including deleted ones: for the tenant's own users.
    fn tenant_webhooks_by_id(
        &self,
        tenant_id: TenantId,
        ids: Vec<WebhookId>,
    ) -> StoreFuture<'_, Vec<Webhook>>;
    /// Lists a tenant's webhooks, newest first.
    fn list_webhooks(
        &self,
        tenant_id: TenantId,
        visibility: Visibility,
        page: PageRequest<WebhookId>,
    ) -> StoreFuture<'_, Vec<Webhook>>;
    /// Lists what names a tenant's webhooks, newest first, without their other and confidential fields.
    fn list_webhook_labels(
        &self,
        tenant_id: TenantId,
        visibility: Visibility,
        page: PageRequest<WebhookId>,
    ) -> StoreFuture<'_, Vec<WebhookLabel>>;
}

/// The webhooks that nodes keep in memory.
pub trait Config: Send + Sync {
    /// Returns webhooks of any tenant by id, including deleted ones: for claimed deliveries.
    fn webhooks_by_id(&self, ids: Vec<WebhookId>) -> StoreFuture<'_, Vec<Webhook>>;
    /// Returns the rules of these tenants, without those that do not exist.
    fn rules_of_tenants(&self, ids: Vec<TenantId>) -> StoreFuture<'_, Vec<(TenantId, TenantRules)>>;
    /// Returns the first `limit` changes after `version`; after version 0, everything that is not deleted. Returns
    /// `None` if there is no such tenant.
    fn config_changes(
        &self,
        tenant_id: TenantId,
        version: i64,
        limit: usize,
    ) -> StoreFuture<'_, Option<ConfigChanges>>;
}

/// Runtime state that blocks webhooks: stored once per webhook, never on its deliveries.
pub trait RuntimeState: Send + Sync {
    /// Returns every webhook that has an unclosed circuit, a pause after a 429 or a series of failures.
    fn list_runtime(&self) -> StoreFuture<'_, Vec<WebhookRuntime>>;
    /// Returns the state of these webhooks only, including webhooks whose circuit has closed, because the generation of
    /// the closed circuit is needed to compare versions.
    fn get_runtime(&self, webhooks: Vec<WebhookId>) -> StoreFuture<'_, Vec<WebhookRuntime>>;
    /// Stores a circuit after a transition. Returns `false` if a newer generation is stored, which is kept. An
    /// occurrence is recorded with it if the stored circuit makes that transition
    /// (`core::notification::for_transition`).
    fn set_circuit(
        &self,
        tenant_id: TenantId,
        webhook_id: WebhookId,
        circuit: SavedCircuit,
        occurrence: Option<Occurrence>,
    ) -> StoreFuture<'_, bool>;
    /// Reports a webhook as failing if its series of failures is by now (`core::webhook::failures`), with an occurrence.
    /// Returns `false` if it is not, or was reported before.
    fn report_failing(
        &self,
        tenant_id: TenantId,
        webhook_id: WebhookId,
        rule: FailingRule,
        now: Time,
    ) -> StoreFuture<'_, bool>;
}

/// What is due by time: deliveries that expire, and webhooks that are to be disabled or verified.
pub trait WebhookTimers: Send + Sync {
    /// Returns the webhooks after this one that have waiting deliveries, each with the creation time of the oldest.
    fn oldest_waiting(
        &self,
        after: Option<WebhookId>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<(WebhookId, Time)>>;
    /// Ends up to `limit` waiting deliveries of a webhook that were created before a time as expired. An occurrence is
    /// recorded with their number and the last of them; deliveries of Redrive's own events do not count.
    fn expire_deliveries(
        &self,
        webhook_id: WebhookId,
        created_before: Time,
        now: Time,
        limit: usize,
        occurrence: Option<Occurrence>,
    ) -> StoreFuture<'_, BatchProgress>;
    /// Returns the webhooks that are due to be disabled or verified, the longest due first. Verifications of the
    /// tenants in `except` are left out.
    fn webhooks_with_due_action(
        &self,
        now: Time,
        limit: usize,
        except: Vec<TenantId>,
    ) -> StoreFuture<'_, WebhooksWithDueAction>;
}

/// What people are shown of circuits and backlogs.
pub trait WebhookHistory: Send + Sync {
    /// Returns the periods in which the circuit of a tenant's webhook was open and that had not ended at `from`,
    /// oldest first.
    fn circuit_periods(
        &self,
        tenant_id: TenantId,
        webhook_id: WebhookId,
        from: Time,
        limit: usize,
    ) -> StoreFuture<'_, Vec<CircuitPeriod>>;
    /// Returns the incidents of a tenant, last opened first.
    fn incidents(
        &self,
        tenant_id: TenantId,
        visibility: Visibility,
        limit: usize,
    ) -> StoreFuture<'_, Vec<Incident>>;
    /// Returns up to `limit` of a tenant's webhooks whose circuits are not closed, or were set manually.
    fn circuits(
        &self,
        tenant_id: TenantId,
        visibility: Visibility,
        limit: usize,
    ) -> StoreFuture<'_, Vec<WebhookRuntime>>;
    /// Returns the open periods of the circuits of several webhooks of a tenant in one read; webhooks without any are
    /// left out.
    fn circuit_periods_of(
        &self,
        tenant_id: TenantId,
        webhooks: Vec<WebhookId>,
        from: Time,
        limit: usize,
    ) -> StoreFuture<'_, Vec<(WebhookId, Vec<CircuitPeriod>)>>;
    /// Returns the backlog of each of these webhooks; counts at most `max` of each kind. `for_tenant` is the tenant
    /// that asked; `None` for the engine itself.
    fn backlogs(
        &self,
        for_tenant: Option<TenantId>,
        webhooks: Vec<WebhookId>,
        now: Time,
        max: usize,
    ) -> StoreFuture<'_, Vec<(WebhookId, Backlog)>>;
    /// Returns the webhooks of a tenant that have a backlog. Scans at most `max_scanned` webhooks.
    fn backlogged(&self, tenant_id: TenantId, max_scanned: usize) -> StoreFuture<'_, BackloggedWebhooks>;
}

/// Encrypted fields of webhooks, and their master keys.
pub trait Secrets: Send + Sync {
    /// Returns the master keys that webhooks are encrypted with.
    fn encryption_keys(&self) -> StoreFuture<'_, Vec<MasterKeyId>>;
    /// Re-encrypts those of the next `limit` webhooks after this one that do not use the current master key.
    fn rewrap(&self, after: Option<WebhookId>, limit: usize) -> StoreFuture<'_, RewrapProgress>;
}
