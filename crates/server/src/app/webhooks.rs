//! Webhooks: create, change, test, rotate secrets, delete.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use redrive_core::{
    FieldError, TenantId, Time, WebhookId,
    delivery::{lane::Priority, retry::RetryPolicy},
    event::event_type::Pattern,
    protection::breaker::{BreakerPolicy, CircuitState, CircuitView, Forced},
    security::signature::{self, LiveSecret, Secret},
    time::HumanDuration,
    webhook::{
        SuppliedCredentials, Webhook, WebhookSpec, WebhookState, caps::EffectiveLimits, uid::WebhookUid,
        verification::Verification,
    },
};
use redrive_engine::{CircuitAction, EventDraft, PublishReceipt, clock};
use redrive_store::{CreationKey, CreationResult, PageRequest};

use super::{
    Actor, App, AppError, Caller, Capability, ErrorCode, TenantSelection, TenantView,
    audit::{self, AuditChange, AuditedAction},
    confirmations::owner_email,
    creations::key_used,
};

/// Event type of the test event.
pub const TEST_EVENT: &str = "redrive.test";
/// Maximum time for which one request can force a circuit open.
pub const MAX_FORCE: Duration = Duration::from_secs(30 * 24 * 3600);
/// Default time for which the old secret still signs after a rotation.
pub const DEFAULT_OVERLAP: HumanDuration = HumanDuration::secs(24 * 3600);

impl App {
    /// Creates a webhook with the given secret or a generated one. With an idempotency key, it is created only if that key
    /// was not used before.
    pub async fn create_webhook(
        &self,
        actor: &Actor,
        tenant: impl Into<TenantView>,
        new: NewWebhook,
        key: Option<CreationKey>,
    ) -> Result<Webhook, AppError> {
        let NewWebhook { mut spec, secret, state, forced_until } = new;
        let tenant_id = tenant.into().id;
        let now = self.engine.clock().now();
        if secret.is_some() {
            actor.require_capability(Capability::Secrets)?;
        }
        self.require_verification(actor, &mut spec, None);
        let secret = secret.unwrap_or_else(|| Secret::from_bytes(&clock::secret_bytes()));
        let mut webhook = Webhook {
            id: WebhookId::new(now, &clock::random_id_bytes()),
            tenant_id,
            spec,
            secrets: vec![LiveSecret { secret, created_at: now, expires_at: None }],
            state,
            created_at: now,
            updated_at: now,
        };
        webhook.set_pending_verification(None, now);
        self.check(actor, &webhook.spec, None)?;
        require_future(webhook.spec.expires_at, now)?;
        let forced = forced_until.map(|until| forced_open(actor, until, now)).transpose()?;
        // Serialized, so that concurrent creations cannot exceed the quota.
        let _guard = self.changing_tenants.lock().await;
        self.check_webhook_quota(&webhook.tenant_id).await?;
        let (owner, object) = (webhook.tenant_id.clone(), Some(webhook.id.to_string()));
        let audited = AuditedAction { action: "webhook.create", tenant: Some(&owner), object };
        let created = self.with_audit(actor, audited, async {
            match self.engine.create_webhook(webhook.clone(), forced, key).await? {
                CreationResult::Created { .. } => {}
                CreationResult::KeyUsed(_) => return Err(key_used()),
                CreationResult::Exists => return Err(AppError::uid_taken()),
                CreationResult::NoTenant | CreationResult::LimitReached => {
                    return Err(AppError::NotFound("tenant"));
                }
            }
            let after = Some(audit::webhook_json(&webhook));
            Ok((webhook, AuditChange { after, ..AuditChange::default() }))
        });
        let created = created.await?;
        self.request_owner_confirmation(&created, None).await;
        Ok(created)
    }

    /// Changes the webhook with this uid as [`App::update_webhook`] does, or creates it if the tenant has none. Returns
    /// whether it was created.
    pub async fn put_webhook(
        &self,
        actor: &Actor,
        tenant: &TenantView,
        uid: &WebhookUid,
        new: impl Fn() -> Result<NewWebhook, AppError>,
        mut change: impl FnMut(&mut Webhook) -> Result<SuppliedCredentials, AppError>,
        force_open_until: Option<Option<Time>>,
    ) -> Result<(Webhook, bool), AppError> {
        loop {
            if let Some(id) = self.find_webhook_by_uid(tenant, uid).await? {
                match self.update_webhook(actor, tenant, id, &mut change, force_open_until).await {
                    // It was deleted concurrently.
                    Err(AppError::NotFound("webhook")) => {}
                    changed => return Ok((changed?, false)),
                }
            }
            let mut new = new()?;
            new.spec.uid = Some(uid.clone());
            match self.create_webhook(actor, tenant.clone(), new, None).await {
                // It was created concurrently, unless this caller may not see it.
                Err(error) if error.code() == ErrorCode::WebhookExists => {
                    self.find_webhook_by_uid(tenant, uid).await?.ok_or(error)?;
                }
                created => return Ok((created?, true)),
            }
        }
    }

    fn check(&self, by: &Caller, spec: &WebhookSpec, old: Option<&WebhookSpec>) -> Result<(), AppError> {
        match old.is_none_or(|old| old.url != spec.url) {
            true => spec.validate(&self.urls.read())?,
            false => spec.validate_without_url()?,
        }
        self.engine.router().check(spec, old)?;
        match by.session {
            true => self.check_session(by, spec, old),
            false => Ok(()),
        }
    }

    /// Rejects changes that a portal session may not make: who manages the webhook, limits without the capability
    /// `limits`, and limits above both the server default and the webhook's current value.
    fn check_session(
        &self,
        by: &Caller,
        spec: &WebhookSpec,
        old: Option<&WebhookSpec>,
    ) -> Result<(), AppError> {
        let default = WebhookSpec::default();
        let old = old.unwrap_or(&default);
        let forbid =
            |field: &str, what: &str| Err(AppError::Forbidden(format!("{field}: a portal session {what}")));
        if spec.managed_by != old.managed_by {
            return forbid("managed_by", "may not change who manages a webhook");
        }
        // The application finds its webhooks by their uids.
        if spec.uid != old.uid {
            return forbid("uid", "may not set the uid of a webhook");
        }
        let changed = [
            ("max_in_flight", spec.max_in_flight != old.max_in_flight),
            ("rate_limit", spec.rate_limit != old.rate_limit),
            ("retry_config", spec.retry_config != old.retry_config),
            ("circuit_breaker_config", spec.circuit_breaker_config != old.circuit_breaker_config),
        ];
        let Some((field, _)) = changed.into_iter().find(|(_, is_changed)| *is_changed) else { return Ok(()) };
        if !by.is_capable(Capability::Limits) {
            return forbid(field, "needs the capability \"limits\" to change this");
        }
        let breaker = &spec.circuit_breaker_config;
        if *breaker != old.circuit_breaker_config && *breaker != default.circuit_breaker_config {
            return forbid("circuit_breaker_config", "may only set it back to the server's default");
        }
        let router = self.engine.router();
        let new = router.effective_limits(spec)?;
        // Stored limits that can no longer be resolved are not in effect: the server defaults are.
        let in_force = router.effective_limits(&default)?;
        let before = router.effective_limits(old).unwrap_or_else(|_| in_force.clone());
        match new.raised_above(&before, &in_force) {
            Some(field) => forbid(field, "may not raise this above the server's default; ask the operator"),
            None => Ok(()),
        }
    }

    /// Enables URL verification of a webhook if the operator requires it for this caller.
    fn require_verification(&self, by: &Caller, spec: &mut WebhookSpec, old: Option<&WebhookSpec>) {
        if self.rules.require_verification.applies_to(by.session) {
            spec.require_verification(old);
        }
    }

    /// Returns the effective limits of a webhook. Returns `None` unless the operator's caps lower its settings.
    pub fn capped_limits(&self, spec: &WebhookSpec) -> Option<EffectiveLimits> {
        let router = self.engine.router();
        router.caps().check(spec, None).err()?;
        router.effective_limits(spec).ok()
    }

    /// Validates a webhook that is being edited: a new one, or changes to one. Nothing is stored. Fields of a new one
    /// that `write` does not set are not reported as missing.
    pub async fn check_webhook(
        &self,
        by: &Caller,
        tenant: impl Into<TenantView>,
        id: Option<WebhookId>,
        write: impl FnOnce(&mut WebhookSpec) -> Result<SuppliedCredentials, AppError>,
    ) -> Result<(), AppError> {
        let tenant = tenant.into();
        let now = self.engine.clock().now();
        let mut webhook = match id {
            Some(id) => self.webhook(&tenant, id).await?,
            None => Webhook {
                id: WebhookId::new(now, &clock::random_id_bytes()),
                tenant_id: tenant.id,
                spec: WebhookSpec { events: vec![Pattern::All], ..WebhookSpec::default() },
                secrets: Vec::new(),
                state: WebhookState::Active,
                created_at: now,
                updated_at: now,
            },
        };
        let old = webhook.spec.clone();
        let supplied = write(&mut webhook.spec)?;
        self.check(by, &webhook.spec, Some(&old))?;
        if id.is_some() {
            require_credentials(&old, &webhook.spec, &supplied)?;
        }
        match webhook.spec.expires_at == old.expires_at {
            true => Ok(()),
            false => require_future(webhook.spec.expires_at, now),
        }
    }

    /// Returns the retry and circuit breaker policies of a webhook: its own settings, completed by the defaults.
    pub fn policies(&self, spec: &WebhookSpec) -> Result<(RetryPolicy, BreakerPolicy), AppError> {
        Ok(self.engine.router().policies(spec)?)
    }

    /// Returns one webhook.
    pub async fn webhook(&self, tenant: impl Into<TenantView>, id: WebhookId) -> Result<Webhook, AppError> {
        let view = tenant.into();
        let found = self.store().webhook(view.id.clone(), id).await?;
        let found = found.filter(|found| view.can_see(&found.webhook));
        Ok(self.current(found.ok_or(AppError::NotFound("webhook"))?.webhook))
    }

    /// Rejects a webhook that this tenant never had. A deleted one is accepted, because its history is kept.
    pub async fn require_known_webhook(&self, view: &TenantView, id: WebhookId) -> Result<(), AppError> {
        self.require_known_webhooks(view, &[id]).await
    }

    /// Rejects webhooks that this tenant never had, with one read for all of them.
    pub(super) async fn require_known_webhooks(
        &self,
        view: &TenantView,
        ids: &[WebhookId],
    ) -> Result<(), AppError> {
        if ids.is_empty() {
            return Ok(());
        }
        let found = self.store().tenant_webhooks_by_id(view.id.clone(), ids.to_vec()).await?;
        let is_own = |id: &WebhookId| found.iter().any(|one| one.id == *id && view.can_see(one));
        match ids.iter().all(is_own) {
            true => Ok(()),
            false => Err(AppError::NotFound("webhook")),
        }
    }

    /// Rejects a resend to a webhook that is disabled or deleted: the delivery would be cancelled immediately.
    pub(super) async fn require_receiving(
        &self,
        tenant_id: &TenantId,
        id: WebhookId,
    ) -> Result<(), AppError> {
        let found = self.store().webhook(tenant_id.clone(), id).await?;
        check_receiving(found.as_ref().map(|found| &found.webhook.state))
    }

    /// Rejects webhooks that the tenant does not have or that receive no events, with one read for all of them.
    pub(super) async fn require_all_receiving(
        &self,
        view: &TenantView,
        ids: &[WebhookId],
    ) -> Result<(), AppError> {
        let found = self.store().tenant_webhooks_by_id(view.id.clone(), ids.to_vec()).await?;
        for id in ids {
            let own =
                |one: &&Webhook| one.id == *id && view.can_see(one) && one.state != WebhookState::Deleted;
            let webhook = found.iter().find(own).ok_or(AppError::NotFound("webhook"))?;
            check_receiving(Some(&webhook.state))?;
        }
        Ok(())
    }

    /// Lists webhooks, newest first.
    pub async fn list_webhooks(
        &self,
        tenants: impl Into<TenantSelection>,
        page: PageRequest<WebhookId>,
    ) -> Result<Vec<Webhook>, AppError> {
        let found = match tenants.into() {
            TenantSelection::One(view) => {
                let visibility = view.visibility();
                self.store().list_webhooks(view.id, visibility, page).await?
            }
            TenantSelection::All(all) => self.read_all_webhooks(all, page).await?,
        };
        Ok(found.into_iter().map(|webhook| self.current(webhook)).collect())
    }

    /// Removes expired secrets from a webhook.
    fn current(&self, mut webhook: Webhook) -> Webhook {
        let now = self.engine.clock().confirmed_now();
        webhook.secrets.retain(|live| live.expires_at.is_none_or(|end| end > now));
        webhook
    }

    /// Changes a webhook. An expired one can be enabled only with a later expiration time; one with a new URL that
    /// must be verified waits for the verification.
    pub async fn change_webhook(
        &self,
        actor: &Actor,
        what: &'static str,
        tenant_id: &TenantId,
        id: WebhookId,
        mut change: impl FnMut(&mut Webhook) -> Result<(), AppError>,
    ) -> Result<Webhook, AppError> {
        let change = |webhook: &mut Webhook| change(webhook).map(|()| SuppliedCredentials::default());
        self.apply_change(actor, what, tenant_id, id, change, None).await
    }

    /// Updates the settings of a webhook. `change` returns which confidential values it sets; if the URL has a new
    /// origin, stored values that are only kept are rejected. `force_open_until` forces the circuit open until a time, or
    /// ends such a state, in the same transaction.
    pub async fn update_webhook(
        &self,
        actor: &Actor,
        tenant_id: &TenantId,
        id: WebhookId,
        mut change: impl FnMut(&mut Webhook) -> Result<SuppliedCredentials, AppError>,
        force_open_until: Option<Option<Time>>,
    ) -> Result<Webhook, AppError> {
        let mut has_new_url = false;
        let change = |webhook: &mut Webhook| {
            let url = webhook.spec.url.clone();
            let supplied = change(webhook);
            has_new_url = webhook.spec.url != url;
            supplied
        };
        let changed =
            self.apply_change(actor, "webhook.update", tenant_id, id, change, force_open_until).await?;
        if has_new_url && force_open_until.is_none() {
            self.end_open_circuit(tenant_id, id).await?;
        }
        Ok(changed)
    }

    /// Closes the circuit of a webhook whose endpoint was replaced: it opened for the old one. A forced state stays.
    async fn end_open_circuit(&self, tenant_id: &TenantId, id: WebhookId) -> Result<(), AppError> {
        let Some(gate) = self.engine.gate_status(id).await? else { return Ok(()) };
        if gate.circuit.state != CircuitState::Closed && gate.circuit.forced.is_none() {
            self.engine.control_circuit(tenant_id, id, CircuitAction::Reset).await?;
        }
        Ok(())
    }

    async fn apply_change(
        &self,
        actor: &Actor,
        what: &'static str,
        tenant_id: &TenantId,
        id: WebhookId,
        mut change: impl FnMut(&mut Webhook) -> Result<SuppliedCredentials, AppError>,
        force_open_until: Option<Option<Time>>,
    ) -> Result<Webhook, AppError> {
        let mut checked = |webhook: &mut Webhook| {
            let now = self.engine.clock().now();
            let old = webhook.clone();
            if !actor.view_of(tenant_id.clone()).can_see(webhook) {
                return Err(AppError::NotFound("webhook"));
            }
            let supplied = change(webhook)?;
            self.require_verification(actor, &mut webhook.spec, Some(&old.spec));
            self.check(actor, &webhook.spec, Some(&old.spec))?;
            require_credentials(&old.spec, &webhook.spec, &supplied)?;
            if webhook.spec.expires_at != old.spec.expires_at {
                require_future(webhook.spec.expires_at, now)?;
            }
            if webhook.state.receives_events() && !old.state.receives_events() {
                require_unexpired(webhook.spec.expires_at, now)?;
            }
            if let Some(Some(until)) = force_open_until {
                forced_open(actor, until, now)?;
            }
            webhook.set_pending_verification(Some(&old), now);
            Ok::<_, AppError>(old)
        };
        let audited = AuditedAction { action: what, tenant: Some(tenant_id), object: Some(id.to_string()) };
        let changed = self.with_audit(actor, audited, async {
            let (mut before, mut email) = (None, None);
            let change = |webhook: &mut Webhook| {
                let old = checked(webhook)?;
                email = owner_email(&old).map(str::to_owned);
                before = Some(audit::webhook_json(&old));
                Ok(())
            };
            let webhook = match force_open_until {
                None => self.engine.change_webhook(tenant_id, id, change).await?,
                Some(until) => {
                    let action = |circuit: &CircuitView| circuit_action(actor, until, circuit);
                    self.engine.change_webhook_and_circuit(tenant_id, id, change, action).await?
                }
            };
            let after = Some(audit::webhook_json(&webhook));
            Ok(((webhook, email), AuditChange { before, after, object: None }))
        });
        let (changed, email) = changed.await?;
        self.request_owner_confirmation(&changed, email.as_deref()).await;
        Ok(self.current(changed))
    }

    /// Starts a new verification of a webhook's URL, by a challenge to its endpoint.
    pub async fn verify_webhook(
        &self,
        actor: &Actor,
        tenant_id: &TenantId,
        id: WebhookId,
    ) -> Result<Webhook, AppError> {
        self.change_webhook(actor, "webhook.verify", tenant_id, id, |webhook| {
            require_enabled(webhook)?;
            let now = self.engine.clock().now();
            require_verifiable(webhook, now)?;
            let keeps_events = webhook.state.receives_events();
            webhook.spec.verify_url = true;
            webhook.spec.verified_url = None;
            webhook.state = WebhookState::PendingVerification(Verification::begin(now, keeps_events));
            Ok(())
        })
        .await
    }

    /// Pauses a webhook: its deliveries wait until it is resumed; new ones are still created.
    pub async fn pause_webhook(
        &self,
        actor: &Actor,
        tenant_id: &TenantId,
        id: WebhookId,
    ) -> Result<Webhook, AppError> {
        self.change_webhook(actor, "webhook.pause", tenant_id, id, |webhook| {
            require_enabled(webhook)?;
            require_verified(webhook)?;
            webhook.state = WebhookState::Paused;
            Ok(())
        })
        .await
    }

    /// Resumes a paused webhook, so that its deliveries are sent.
    pub async fn resume_webhook(
        &self,
        actor: &Actor,
        tenant_id: &TenantId,
        id: WebhookId,
    ) -> Result<Webhook, AppError> {
        self.change_webhook(actor, "webhook.resume", tenant_id, id, |webhook| {
            require_enabled(webhook)?;
            require_verified(webhook)?;
            webhook.state = WebhookState::Active;
            Ok(())
        })
        .await
    }

    /// Returns the time of a webhook's last successful attempt.
    pub async fn last_success(&self, tenant_id: &TenantId, id: WebhookId) -> Result<Option<Time>, AppError> {
        Ok(self.engine.last_success(tenant_id, id).await?)
    }

    /// Returns the time of the last successful attempt of each of these webhooks, with one read for all of them.
    pub async fn last_successes(
        &self,
        tenants: &TenantSelection,
        ids: &[WebhookId],
    ) -> Result<HashMap<WebhookId, Time>, AppError> {
        Ok(self.engine.last_successes(tenants.tenant_id(), ids).await?)
    }

    /// Deletes a webhook: pending deliveries are cancelled, the history is kept.
    pub async fn delete_webhook(
        &self,
        actor: &Actor,
        tenant_id: &TenantId,
        id: WebhookId,
    ) -> Result<(), AppError> {
        let audited =
            AuditedAction { action: "webhook.delete", tenant: Some(tenant_id), object: Some(id.to_string()) };
        self.with_audit(actor, audited, async {
            let mut before = None;
            let delete = |webhook: &mut Webhook| {
                if !actor.view_of(tenant_id.clone()).can_see(webhook) {
                    return Err(AppError::NotFound("webhook"));
                }
                before = Some(audit::webhook_json(webhook));
                webhook.state = WebhookState::Deleted;
                Ok(())
            };
            self.engine.change_webhook(tenant_id, id, delete).await?;
            Ok(((), AuditChange { before, ..AuditChange::default() }))
        })
        .await
    }

    /// Sets a new secret. The old ones still sign for `overlap`.
    pub async fn rotate_secret(
        &self,
        actor: &Actor,
        tenant_id: &TenantId,
        id: WebhookId,
        secret: Option<Secret>,
        overlap: Duration,
    ) -> Result<Webhook, AppError> {
        let secret = secret.unwrap_or_else(|| Secret::from_bytes(&clock::secret_bytes()));
        let now = self.engine.clock().now();
        self.change_webhook(actor, "webhook.rotate_secret", tenant_id, id, |webhook| {
            Ok(signature::rotate(&mut webhook.secrets, secret.clone(), now, overlap)?)
        })
        .await
    }

    /// Publishes a test event to this webhook only, through the normal pipeline.
    pub async fn test_webhook(
        &self,
        tenant: impl Into<TenantView>,
        id: WebhookId,
        data: Bytes,
        idempotency_key: Option<Box<str>>,
    ) -> Result<PublishReceipt, AppError> {
        let view = tenant.into();
        let webhook = self.webhook(&view, id).await?;
        // A test that has to wait says nothing about the endpoint, so it is rejected.
        if let Some(todo) = blocking_action(&webhook.state) {
            let state = webhook.state.name();
            return Err(AppError::conflict(
                ErrorCode::WebhookNotActive,
                format!("the webhook is {state}; {todo}"),
            ));
        }
        let draft = EventDraft {
            tenant_id: view.id,
            event_type: TEST_EVENT.into(),
            data,
            idempotency_key,
            source: None,
            subject: None,
            metadata: None,
            priority: Priority::default(),
            only_webhook: Some(id),
            edited: None,
            trace: None,
            hops: 0,
        };
        self.publish(draft).await
    }
}

/// Webhook to create.
pub struct NewWebhook {
    /// Its settings.
    pub spec: WebhookSpec,
    /// Its secret; generated if omitted.
    pub secret: Option<Secret>,
    /// Its state.
    pub state: WebhookState,
    /// Time until which its circuit is forced open; `None` for a closed circuit.
    pub forced_until: Option<Time>,
}

/// Returns the forced state of a circuit that is open until this time.
fn forced_open(by: &Caller, until: Time, now: Time) -> Result<Forced, FieldError> {
    let refuse = |message: String| Err(FieldError::new("circuit_breaker_config.force_open_until", message));
    if until <= now {
        return refuse(format!("must be in the future; the time is {now}. Send null to end a forced state"));
    }
    if until > now + MAX_FORCE {
        return refuse("must be within the next 30 days".into());
    }
    Ok(Forced { open: true, until: Some(until), by: by.name.clone() })
}

/// Returns the action that leads to the requested forced state, or `None` if the circuit has it.
fn circuit_action(by: &Caller, until: Option<Time>, circuit: &CircuitView) -> Option<CircuitAction> {
    let forced = circuit.forced.as_ref().filter(|forced| forced.open && forced.until.is_some());
    match until {
        Some(until) if forced.and_then(|forced| forced.until) == Some(until) => None,
        Some(until) => {
            Some(CircuitAction::Force(Forced { open: true, until: Some(until), by: by.name.clone() }))
        }
        None => forced.map(|_| CircuitAction::Reset),
    }
}

/// Returns the state of a webhook that was disabled manually.
pub fn disabled_by_request() -> WebhookState {
    WebhookState::Disabled("disabled by request".into())
}

/// Rejects a change that would send stored credentials to another origin than the one they were set for.
fn require_credentials(
    old: &WebhookSpec,
    new: &WebhookSpec,
    supplied: &SuppliedCredentials,
) -> Result<(), AppError> {
    let missing = new.missing_credentials(old, supplied);
    let Some(first) = missing.first() else { return Ok(()) };
    let fields = missing.join(", ");
    Err(AppError::Unprocessable {
        code: ErrorCode::CredentialsRequired,
        field: Some(first.clone()),
        detail: format!(
            "the new url has another scheme, host or port, and stored credentials are not sent there; send {fields} \
             again in the same request, or remove them with null or {{}}"
        ),
    })
}

fn require_enabled(webhook: &Webhook) -> Result<(), AppError> {
    match webhook.state.cancel_reason() {
        None => Ok(()),
        Some(reason) => Err(AppError::conflict(
            ErrorCode::WebhookDisabled,
            format!(
                "the webhook is disabled ({reason}); enable it with POST /v1/webhooks/{}/enable",
                webhook.id
            ),
        )),
    }
}

fn require_verifiable(webhook: &Webhook, now: Time) -> Result<(), AppError> {
    match &webhook.state {
        WebhookState::Paused => {
            Err(AppError::conflict(ErrorCode::WebhookPaused, "the webhook is paused; resume it first"))
        }
        WebhookState::PendingVerification(verification) if !verification.may_restart(now) => {
            Err(AppError::conflict(
                ErrorCode::VerificationTooFrequent,
                "a challenge was sent less than 30 seconds ago; retry later",
            ))
        }
        _ => Ok(()),
    }
}

fn require_verified(webhook: &Webhook) -> Result<(), AppError> {
    match webhook.state {
        WebhookState::PendingVerification(_) => Err(AppError::conflict(
            ErrorCode::PendingVerification,
            "the webhook's endpoint has not echoed its challenge yet; nothing is sent until it has",
        )),
        _ => Ok(()),
    }
}

fn require_future(expires_at: Option<Time>, now: Time) -> Result<(), AppError> {
    match expires_at {
        Some(at) if at <= now => {
            Err(FieldError::new("expires_at", format!("must be in the future; the time is {now}")).into())
        }
        _ => Ok(()),
    }
}

fn require_unexpired(expires_at: Option<Time>, now: Time) -> Result<(), AppError> {
    match expires_at {
        Some(at) if at <= now => Err(AppError::conflict(
            ErrorCode::WebhookExpired,
            format!(
                "the webhook expired at {at}; PATCH it with \"active\": true and a later expires_at, or null"
            ),
        )),
        _ => Ok(()),
    }
}

/// Rejects a webhook in a state in which it receives no events; `None` stands for a deleted one.
pub(super) fn check_receiving(state: Option<&WebhookState>) -> Result<(), AppError> {
    let what = match state {
        Some(state) if state.receives_events() => return Ok(()),
        Some(state) => {
            format!("is {}; {}", state.name(), blocking_action(state).unwrap_or("enable it first"))
        }
        None => "was deleted; replay the event to another one".to_owned(),
    };
    Err(AppError::conflict(ErrorCode::WebhookNotActive, format!("the webhook {what}")))
}

/// Returns what must be done before events are sent to a webhook. Returns `None` if it is active.
fn blocking_action(state: &WebhookState) -> Option<&'static str> {
    match state {
        WebhookState::Active => None,
        WebhookState::Paused => Some("resume it first"),
        WebhookState::PendingVerification(_) => Some("its endpoint has to echo the challenge first"),
        WebhookState::Disabled(_) | WebhookState::Deleted => Some("enable it first"),
    }
}
