//! Webhooks: making, changing, testing, rotating secrets, ending.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use redrive_core::{
    Invalid, TenantId, Time, WebhookId,
    delivery::lane::Priority,
    delivery::retry::RetryPolicy,
    event::event_type::Pattern,
    protection::breaker::BreakerPolicy,
    security::signature::{self, LiveSecret, Secret},
    time::Span,
    webhook::caps::EffectiveLimits,
    webhook::verification::Verification,
    webhook::{SuppliedCredentials, Webhook, WebhookSpec, WebhookState},
};
use redrive_engine::{Draft, Receipt, clock};
use redrive_store::PageRequest;

use super::{
    Actor, App, AppError, Caller, Capability, TenantView,
    audit::{self, Deed, Traces},
    confirmations::owner_email,
};

/// What the test event is called.
pub const TEST_EVENT: &str = "redrive.test";
/// How long the old secret still signs after a rotation.
pub const DEFAULT_OVERLAP: Span = Span::secs(24 * 3600);

impl App {
    /// Makes a webhook with the given secret or a new one.
    pub async fn create_webhook(
        &self,
        by: &Actor,
        tenant: impl Into<TenantView>,
        mut spec: WebhookSpec,
        secret: Option<Secret>,
        state: WebhookState,
    ) -> Result<Webhook, AppError> {
        let tenant = tenant.into().id;
        let now = self.engine.clock().now();
        if secret.is_some() {
            by.must_be_capable(Capability::Secrets)?;
        }
        self.require_verification(by, &mut spec, None);
        let secret = secret.unwrap_or_else(|| Secret::from_bytes(&clock::secret_bytes()));
        let mut webhook = Webhook {
            id: WebhookId::new(now, &clock::randomness()),
            tenant,
            spec,
            secrets: vec![LiveSecret { secret, created_at: now, expires_at: None }],
            state,
            created_at: now,
            updated_at: now,
        };
        webhook.verify_first(None, now);
        self.check(by, &webhook.spec, None)?;
        must_be_future(webhook.spec.expires_at, now)?;
        // One at a time, so that a quota holds.
        let _turn = self.changing_tenants.lock().await;
        self.check_webhook_quota(&webhook.tenant).await?;
        let (owner, object) = (webhook.tenant.clone(), Some(webhook.id.to_string()));
        let deed = Deed { action: "webhook.create", tenant: Some(&owner), object };
        let created = self.audited(by, deed, async {
            if !self.engine.create_webhook(webhook.clone()).await? {
                return Err(AppError::NotFound("tenant"));
            }
            let after = Some(audit::of_webhook(&webhook));
            Ok((webhook, Traces { after, ..Traces::default() }))
        });
        let created = created.await?;
        self.request_owner_confirmation(&created, None).await;
        Ok(created)
    }

    fn check(&self, by: &Caller, spec: &WebhookSpec, old: Option<&WebhookSpec>) -> Result<(), AppError> {
        match old.is_none_or(|old| old.url != spec.url) {
            true => spec.validate(&self.urls.read())?,
            false => spec.validate_all_but_url()?,
        }
        self.engine.registry().check(spec, old)?;
        match by.session {
            true => self.check_session(by, spec, old),
            false => Ok(()),
        }
    }

    /// Refuses what a portal session may not decide about a webhook: who manages it, limits without the capability,
    /// and with it more than the server's default or what the webhook has already.
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
        let registry = self.engine.registry();
        let new = registry.effective_limits(spec)?;
        // Limits that are stored and cannot be resolved any more are not in force either.
        let in_force = registry.effective_limits(&default)?;
        let before = registry.effective_limits(old).unwrap_or_else(|_| in_force.clone());
        match new.raised_above(&before, &in_force) {
            Some(field) => forbid(field, "may not raise this above the server's default; ask the operator"),
            None => Ok(()),
        }
    }

    /// Makes a webhook be verified if the operator requires it of this caller's.
    fn require_verification(&self, by: &Caller, spec: &mut WebhookSpec, old: Option<&WebhookSpec>) {
        if self.rules.require_verification.applies_to(by.session) {
            spec.require_verification(old);
        }
    }

    /// The limits in force for a webhook, if they differ from what it asks for because of the operator's caps.
    pub fn capped_limits(&self, spec: &WebhookSpec) -> Option<EffectiveLimits> {
        let registry = self.engine.registry();
        registry.caps().check(spec, None).err()?;
        registry.effective_limits(spec).ok()
    }

    /// Says what is wrong with a webhook that somebody is writing: one to make, or what to change about one. Nothing
    /// is stored. What `write` leaves out of a new one is not missed yet.
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
                id: WebhookId::new(now, &clock::randomness()),
                tenant: tenant.id,
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
            must_supply_credentials(&old, &webhook.spec, &supplied)?;
        }
        match webhook.spec.expires_at == old.expires_at {
            true => Ok(()),
            false => must_be_future(webhook.spec.expires_at, now),
        }
    }

    /// How a webhook is retried, and when its circuit opens: what it says itself, and the defaults for the rest.
    pub fn policies(&self, spec: &WebhookSpec) -> Result<(RetryPolicy, BreakerPolicy), AppError> {
        Ok(self.engine.registry().policies(spec)?)
    }

    /// One webhook.
    pub async fn webhook(&self, tenant: impl Into<TenantView>, id: WebhookId) -> Result<Webhook, AppError> {
        let view = tenant.into();
        let found = self.store().webhook(view.id.clone(), id).await?;
        let found = found.filter(|found| view.sees(&found.webhook));
        Ok(self.current(found.ok_or(AppError::NotFound("webhook"))?.webhook))
    }

    /// Refuses a webhook that this tenant never had; one that was deleted still has its history.
    pub async fn had_webhook(&self, view: &TenantView, id: WebhookId) -> Result<(), AppError> {
        self.had_webhooks(view, &[id]).await
    }

    /// The same for several, with one read for all of them.
    pub(super) async fn had_webhooks(&self, view: &TenantView, ids: &[WebhookId]) -> Result<(), AppError> {
        if ids.is_empty() {
            return Ok(());
        }
        let found = self.store().tenant_webhooks_by_id(view.id.clone(), ids.to_vec()).await?;
        let is_own = |id: &WebhookId| found.iter().any(|one| one.id == *id && view.sees(one));
        match ids.iter().all(is_own) {
            true => Ok(()),
            false => Err(AppError::NotFound("webhook")),
        }
    }

    /// Refuses to send something again to a webhook that is disabled or gone: it would be called off at once.
    pub(super) async fn must_get_events(&self, tenant: &TenantId, id: WebhookId) -> Result<(), AppError> {
        let found = self.store().webhook(tenant.clone(), id).await?;
        gets_events(found.as_ref().map(|found| &found.webhook.state))
    }

    /// Refuses webhooks that this tenant has not, or that get no events, with one read for all of them.
    pub(super) async fn must_all_get_events(
        &self,
        view: &TenantView,
        ids: &[WebhookId],
    ) -> Result<(), AppError> {
        let found = self.store().tenant_webhooks_by_id(view.id.clone(), ids.to_vec()).await?;
        for id in ids {
            let own = |one: &&Webhook| one.id == *id && view.sees(one) && one.state != WebhookState::Deleted;
            let webhook = found.iter().find(own).ok_or(AppError::NotFound("webhook"))?;
            gets_events(Some(&webhook.state))?;
        }
        Ok(())
    }

    /// Webhooks, newest first.
    pub async fn list_webhooks(
        &self,
        tenant: impl Into<TenantView>,
        page: PageRequest<WebhookId>,
    ) -> Result<Vec<Webhook>, AppError> {
        let view = tenant.into();
        let visibility = view.visibility();
        let found = self.store().list_webhooks(view.id, visibility, page).await?;
        Ok(found.into_iter().map(|webhook| self.current(webhook)).collect())
    }

    /// A webhook without the secrets that have expired.
    fn current(&self, mut webhook: Webhook) -> Webhook {
        let now = self.engine.clock().confirmed_now();
        webhook.secrets.retain(|live| live.expires_at.is_none_or(|end| end > now));
        webhook
    }

    /// Changes a webhook. One whose time is over gets events again only with more time; one with a new URL that is
    /// to be verified waits until that is done.
    pub async fn change_webhook(
        &self,
        by: &Actor,
        what: &'static str,
        tenant: &TenantId,
        id: WebhookId,
        mut change: impl FnMut(&mut Webhook) -> Result<(), AppError>,
    ) -> Result<Webhook, AppError> {
        let change = |webhook: &mut Webhook| change(webhook).map(|()| SuppliedCredentials::default());
        self.apply_change(by, what, tenant, id, change).await
    }

    /// Changes what a webhook's owner decides about it. `change` returns the confidential values that it sets itself;
    /// those that it keeps are refused if requests go to another origin.
    pub async fn update_webhook(
        &self,
        by: &Actor,
        tenant: &TenantId,
        id: WebhookId,
        change: impl FnMut(&mut Webhook) -> Result<SuppliedCredentials, AppError>,
    ) -> Result<Webhook, AppError> {
        self.apply_change(by, "webhook.update", tenant, id, change).await
    }

    async fn apply_change(
        &self,
        by: &Actor,
        what: &'static str,
        tenant: &TenantId,
        id: WebhookId,
        mut change: impl FnMut(&mut Webhook) -> Result<SuppliedCredentials, AppError>,
    ) -> Result<Webhook, AppError> {
        let mut checked = |webhook: &mut Webhook| {
            let now = self.engine.clock().now();
            let old = webhook.clone();
            if !by.view_of(tenant.clone()).sees(webhook) {
                return Err(AppError::NotFound("webhook"));
            }
            let supplied = change(webhook)?;
            self.require_verification(by, &mut webhook.spec, Some(&old.spec));
            self.check(by, &webhook.spec, Some(&old.spec))?;
            must_supply_credentials(&old.spec, &webhook.spec, &supplied)?;
            if webhook.spec.expires_at != old.spec.expires_at {
                must_be_future(webhook.spec.expires_at, now)?;
            }
            if webhook.state.gets_events() && !old.state.gets_events() {
                must_not_be_over(webhook.spec.expires_at, now)?;
            }
            webhook.verify_first(Some(&old), now);
            Ok::<_, AppError>(old)
        };
        let deed = Deed { action: what, tenant: Some(tenant), object: Some(id.to_string()) };
        let changed = self.audited(by, deed, async {
            let (mut before, mut email) = (None, None);
            let change = |webhook: &mut Webhook| {
                let old = checked(webhook)?;
                email = owner_email(&old).map(str::to_owned);
                before = Some(audit::of_webhook(&old));
                Ok(())
            };
            let webhook = self.engine.change_webhook(tenant, id, change).await?;
            let after = Some(audit::of_webhook(&webhook));
            Ok(((webhook, email), Traces { before, after, object: None }))
        });
        let (changed, email) = changed.await?;
        self.request_owner_confirmation(&changed, email.as_deref()).await;
        Ok(self.current(changed))
    }

    /// Has the endpoint of a webhook asked once more to echo a challenge.
    pub async fn verify_webhook(
        &self,
        by: &Actor,
        tenant: &TenantId,
        id: WebhookId,
    ) -> Result<Webhook, AppError> {
        self.change_webhook(by, "webhook.verify", tenant, id, |webhook| {
            must_be_enabled(webhook)?;
            let now = self.engine.clock().now();
            must_be_ready_to_ask(webhook, now)?;
            let keeps_events = webhook.state.gets_events();
            webhook.spec.verify_url = true;
            webhook.spec.verified_url = None;
            webhook.state = WebhookState::PendingVerification(Verification::begin(now, keeps_events));
            Ok(())
        })
        .await
    }

    /// Holds a webhook's deliveries back until it is resumed; new ones are made as ever.
    pub async fn pause_webhook(
        &self,
        by: &Actor,
        tenant: &TenantId,
        id: WebhookId,
    ) -> Result<Webhook, AppError> {
        self.change_webhook(by, "webhook.pause", tenant, id, |webhook| {
            must_be_enabled(webhook)?;
            must_not_wait_for_its_echo(webhook)?;
            webhook.state = WebhookState::Paused;
            Ok(())
        })
        .await
    }

    /// Lets a paused webhook's deliveries go.
    pub async fn resume_webhook(
        &self,
        by: &Actor,
        tenant: &TenantId,
        id: WebhookId,
    ) -> Result<Webhook, AppError> {
        self.change_webhook(by, "webhook.resume", tenant, id, |webhook| {
            must_be_enabled(webhook)?;
            must_not_wait_for_its_echo(webhook)?;
            webhook.state = WebhookState::Active;
            Ok(())
        })
        .await
    }

    /// When a webhook last took a delivery.
    pub async fn last_success(&self, tenant: &TenantId, id: WebhookId) -> Result<Option<Time>, AppError> {
        Ok(self.engine.last_success(tenant, id).await?)
    }

    /// When each of these webhooks of a tenant last took a delivery, with one read for all of them.
    pub async fn last_successes(
        &self,
        tenant: &TenantId,
        ids: &[WebhookId],
    ) -> Result<HashMap<WebhookId, Time>, AppError> {
        Ok(self.engine.last_successes(tenant, ids).await?)
    }

    /// Ends a webhook: what is pending is cancelled, its history stays.
    pub async fn delete_webhook(&self, by: &Actor, tenant: &TenantId, id: WebhookId) -> Result<(), AppError> {
        let deed = Deed { action: "webhook.delete", tenant: Some(tenant), object: Some(id.to_string()) };
        self.audited(by, deed, async {
            let mut before = None;
            let delete = |webhook: &mut Webhook| {
                if !by.view_of(tenant.clone()).sees(webhook) {
                    return Err(AppError::NotFound("webhook"));
                }
                before = Some(audit::of_webhook(webhook));
                webhook.state = WebhookState::Deleted;
                Ok(())
            };
            self.engine.change_webhook(tenant, id, delete).await?;
            Ok(((), Traces { before, ..Traces::default() }))
        })
        .await
    }

    /// Makes a new secret. The old ones go on signing for `overlap`.
    pub async fn rotate_secret(
        &self,
        by: &Actor,
        tenant: &TenantId,
        id: WebhookId,
        secret: Option<Secret>,
        overlap: Duration,
    ) -> Result<Webhook, AppError> {
        let secret = secret.unwrap_or_else(|| Secret::from_bytes(&clock::secret_bytes()));
        let now = self.engine.clock().now();
        self.change_webhook(by, "webhook.rotate_secret", tenant, id, |webhook| {
            Ok(signature::rotate(&mut webhook.secrets, secret.clone(), now, overlap)?)
        })
        .await
    }

    /// Sends a test event through the real pipeline to this webhook alone.
    pub async fn test_webhook(
        &self,
        tenant: impl Into<TenantView>,
        id: WebhookId,
        data: Bytes,
    ) -> Result<Receipt, AppError> {
        let view = tenant.into();
        let webhook = self.webhook(&view, id).await?;
        // A test that waits tells nothing about the endpoint.
        if let Some(todo) = to_do(&webhook.state) {
            let state = webhook.state.name();
            return Err(AppError::conflict("webhook_not_active", format!("the webhook is {state}; {todo}")));
        }
        let draft = Draft {
            tenant: view.id,
            event_type: TEST_EVENT.into(),
            data,
            idempotency_key: None,
            source: None,
            subject: None,
            metadata: None,
            priority: Priority::default(),
            only: Some(id),
            trace: None,
            hops: 0,
        };
        self.publish(draft).await
    }
}

/// The state of a webhook that its owner has switched off.
pub fn disabled_by_request() -> WebhookState {
    WebhookState::Disabled("disabled by request".into())
}

/// Refuses to send stored credentials to another origin than the one they were given for.
fn must_supply_credentials(
    old: &WebhookSpec,
    new: &WebhookSpec,
    supplied: &SuppliedCredentials,
) -> Result<(), AppError> {
    let missing = new.missing_credentials(old, supplied);
    let Some(first) = missing.first() else { return Ok(()) };
    let fields = missing.join(", ");
    Err(AppError::Unprocessable {
        code: "credentials_required",
        field: Some(first.clone()),
        detail: format!(
            "the new url has another scheme, host or port, and stored credentials are not sent there; send {fields} \
             again in the same request, or remove them with null or {{}}"
        ),
    })
}

fn must_be_enabled(webhook: &Webhook) -> Result<(), AppError> {
    match webhook.state.cancels_because() {
        None => Ok(()),
        Some(reason) => Err(AppError::conflict(
            "webhook_disabled",
            format!(
                "the webhook is disabled ({reason}); enable it with POST /v1/webhooks/{}/enable",
                webhook.id
            ),
        )),
    }
}

fn must_be_ready_to_ask(webhook: &Webhook, now: Time) -> Result<(), AppError> {
    match &webhook.state {
        WebhookState::Paused => {
            Err(AppError::conflict("webhook_paused", "the webhook is paused; resume it first"))
        }
        WebhookState::PendingVerification(verification) if !verification.may_begin_anew(now) => {
            Err(AppError::conflict(
                "verified_recently",
                "the endpoint was asked a moment ago; wait half a minute",
            ))
        }
        _ => Ok(()),
    }
}

fn must_not_wait_for_its_echo(webhook: &Webhook) -> Result<(), AppError> {
    match webhook.state {
        WebhookState::PendingVerification(_) => Err(AppError::conflict(
            "pending_verification",
            "the webhook's endpoint has not echoed its challenge yet; nothing is sent until it has",
        )),
        _ => Ok(()),
    }
}

fn must_be_future(expires_at: Option<Time>, now: Time) -> Result<(), AppError> {
    match expires_at {
        Some(at) if at <= now => {
            Err(Invalid::new("expires_at", format!("must lie in the future; it is {now} now")).into())
        }
        _ => Ok(()),
    }
}

fn must_not_be_over(expires_at: Option<Time>, now: Time) -> Result<(), AppError> {
    match expires_at {
        Some(at) if at <= now => Err(AppError::conflict(
            "webhook_expired",
            format!(
                "the webhook expired at {at}; PATCH it with \"active\": true and a later expires_at, or null"
            ),
        )),
        _ => Ok(()),
    }
}

/// Refuses a webhook in a state in which it gets no events; none stands for one that was deleted.
fn gets_events(state: Option<&WebhookState>) -> Result<(), AppError> {
    let what = match state {
        Some(state) if state.gets_events() => return Ok(()),
        Some(state) => format!("is {}; {}", state.name(), to_do(state).unwrap_or("enable it first")),
        None => "was deleted; replay the event to another one".to_owned(),
    };
    Err(AppError::conflict("webhook_not_active", format!("the webhook {what}")))
}

/// What has to be done before a webhook is sent anything at once; none if nothing.
fn to_do(state: &WebhookState) -> Option<&'static str> {
    match state {
        WebhookState::Active => None,
        WebhookState::Paused => Some("resume it first"),
        WebhookState::PendingVerification(_) => Some("its endpoint has to echo the challenge first"),
        WebhookState::Disabled(_) | WebhookState::Deleted => Some("enable it first"),
    }
}
