//! Asking endpoints to echo a challenge, so that nobody is sent events who did not want any.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue, header};
use redrive_core::{
    EventId, TenantId, Time, WebhookId,
    delivery::response::SendFailure,
    security::egress_rules::HostKey,
    security::signature,
    webhook::verification::{CHALLENGE, NOT_VERIFIED, challenge_body, is_echo},
    webhook::{Webhook, WebhookState},
};
use redrive_egress::{Outbound, Target};
use redrive_store::StoreError;

use crate::{
    ChangeError, Engine, Inner,
    attempt::{
        WEBHOOK_ID, WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP, X_WEBHOOK_EVENT, X_WEBHOOK_ID, X_WEBHOOK_SIGNATURE,
        owned, text,
    },
    clock,
    expiry::HOST_BUSY_RETRY_DELAY,
    tenant_slots::{SlotLimits, TenantSlots},
};

/// How many endpoints are asked concurrently, and how many of one tenant.
const MAX_CONCURRENT: usize = 32;
const MAX_CONCURRENT_PER_TENANT: usize = 8;
/// How long an endpoint may take to echo.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A slot of a destination host, held by a challenge until dropped.
struct HostSlot {
    inner: Arc<Inner>,
    tenant: TenantId,
    host: HostKey,
}

impl Drop for HostSlot {
    fn drop(&mut self) {
        let moves = self.inner.dispatch.free_host(&self.tenant, self.host);
        self.inner.carry_out(moves);
    }
}

/// The slots for asking endpoints. A due webhook without a slot is found again when one is free, so none waits here.
pub(crate) fn verification_slots() -> TenantSlots {
    TenantSlots::new(SlotLimits {
        total: MAX_CONCURRENT,
        per_tenant: MAX_CONCURRENT_PER_TENANT,
        factor: 1,
        waiting_per_tenant: 0,
        waiting: 0,
        timeout: Duration::ZERO,
    })
}

/// What was done about a due verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VerifyResult {
    /// The endpoint is being asked, or its time is over.
    Done,
    /// All slots that the tenant may have are in use.
    NoSlot,
    /// The host of its URL has as many requests in flight as it may have.
    HostBusy,
    /// There is nothing to do here and now.
    NotDue,
}

/// Why an endpoint did not echo.
#[derive(Clone, Debug, PartialEq, Eq)]
enum EchoError {
    /// No connection to its address was free. The endpoint got no request.
    NotAsked,
    /// What happened, in words for the owner.
    Failed(String),
}

impl Inner {
    /// Asks the endpoint of a webhook that waits for its echo, if it is time to and this node sends for its tenant.
    /// Of several nodes, the one that first notes that it asks does.
    pub(crate) async fn verify_if_due(
        self: &Arc<Self>,
        tenant: &TenantId,
        webhook: WebhookId,
        now: Time,
    ) -> Result<VerifyResult, StoreError> {
        self.registry.learn(&*self.store, tenant).await?;
        if !self.settings.role.sends() || !self.registry.tenancy(tenant).is_of_our_pools() {
            return Ok(VerifyResult::NotDue);
        }
        let hook = self.registry.hook(webhook);
        if hook.is_some_and(|hook| !matches!(hook.state, WebhookState::PendingVerification(_))) {
            return Ok(VerifyResult::NotDue);
        }
        let Some(slot) = self.verifying.try_acquire(tenant) else { return Ok(VerifyResult::NoSlot) };
        let Some(host_slot) = self.take_host_slot(tenant, webhook) else { return Ok(VerifyResult::HostBusy) };
        let asks = |webhook: &mut Webhook| {
            let WebhookState::PendingVerification(verification) = &webhook.state else { return Err(()) };
            if verification.next > now {
                return Err(());
            }
            webhook.state = match verification.asked(now) {
                Some(asked) => {
                    webhook.spec.challenged_at = Some(now);
                    WebhookState::PendingVerification(asked)
                }
                None => WebhookState::Disabled(NOT_VERIFIED.into()),
            };
            Ok(())
        };
        let webhook = match Engine(self.clone()).change_webhook_ourselves(tenant, webhook, asks).await {
            Ok(webhook) => webhook,
            Err(ChangeError::Missing | ChangeError::Refused(())) => return Ok(VerifyResult::NotDue),
            Err(ChangeError::Store(error)) => return Err(error),
        };
        if matches!(webhook.state, WebhookState::PendingVerification(_)) {
            let inner = self.clone();
            self.runtime.spawn(async move {
                inner.clone().verify(webhook).await;
                drop(slot);
                drop(host_slot);
                // A due webhook may have found no slot.
                inner.expiry_alarm.notify_one();
            });
        }
        Ok(VerifyResult::Done)
    }

    /// A slot of a webhook's host for a challenge. Returns `None` while the host has no slot.
    fn take_host_slot(self: &Arc<Self>, tenant: &TenantId, webhook: WebhookId) -> Option<HostSlot> {
        let host = self.registry.hook(webhook).map(|hook| hook.host()).unwrap_or_default();
        let slot = || HostSlot { inner: self.clone(), tenant: tenant.clone(), host };
        self.dispatch.take_host(tenant, host).then(slot)
    }

    async fn verify(self: Arc<Self>, webhook: Webhook) {
        let (tenant, id, url) = (&webhook.tenant, webhook.id, &webhook.spec.url);
        let echoed = self.ask_for_echo(&webhook).await;
        let retry_at = self.clock.now() + HOST_BUSY_RETRY_DELAY;
        let note = |webhook: &mut Webhook| {
            // Another URL has to be asked itself.
            let WebhookState::PendingVerification(verification) = &mut webhook.state else { return Err(()) };
            if webhook.spec.url != *url {
                return Err(());
            }
            match &echoed {
                Ok(()) => {
                    webhook.spec.verified_url = Some(url.clone());
                    webhook.state = WebhookState::Active;
                }
                Err(EchoError::NotAsked) => *verification = verification.not_asked(retry_at),
                Err(EchoError::Failed(why)) => verification.last_error = Some(why.clone()),
            }
            Ok(())
        };
        match Engine(self.clone()).change_webhook(tenant, id, note).await {
            Ok(_) if echoed.is_ok() => {
                tracing::info!(webhook_id = %id, "the endpoint echoed the challenge; the webhook is active");
            }
            Ok(_) | Err(ChangeError::Missing | ChangeError::Refused(())) => {}
            // It is asked again.
            Err(ChangeError::Store(error)) => {
                tracing::warn!(webhook_id = %id, %error, "what came of a challenge cannot be stored yet");
            }
        }
    }

    /// Has the endpoint send a challenge back, or tells its owner why that did not work.
    async fn ask_for_echo(&self, webhook: &Webhook) -> Result<(), EchoError> {
        let unusable = |_| EchoError::Failed("the webhook's URL cannot be used".to_owned());
        let target = Target::parse(&webhook.spec.url).map_err(unusable)?;
        let challenge = clock::secret_hex();
        let body = challenge_body(&challenge);
        let headers = self.challenge_headers(webhook, &body);
        let owner = self.registry.tenancy(&webhook.tenant).key;
        let exchange = self.egress.post(Outbound { target, headers, body, timeout: TIMEOUT, owner }).await;
        if exchange.result.is_err() {
            self.metrics.set_egress_refused(self.egress.refusals());
        }
        let answer = exchange.result.map_err(|failed| match failed.failure {
            SendFailure::HostBusy => EchoError::NotAsked,
            _ => EchoError::Failed(failed.message),
        })?;
        match is_echo(&challenge, answer.status, &answer.body_sample) {
            true => Ok(()),
            false => {
                let why =
                    format!("the endpoint answered {} and did not send the challenge back", answer.status);
                Err(EchoError::Failed(why))
            }
        }
    }

    /// Signed like any other request, so that receivers can tell who asks. Credentials are kept for a URL that is
    /// known to be the right one.
    fn challenge_headers(&self, webhook: &Webhook, body: &[u8]) -> HeaderMap {
        let now = self.clock.now();
        let id = EventId::new(now, &clock::randomness()).to_string();
        let secrets: Vec<_> = signature::live(&webhook.secrets, self.clock.confirmed_now()).collect();
        let signed = signature::sign(webhook.spec.signature, &secrets, &id, now, body);
        [
            (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (header::USER_AGENT, text(&self.settings.user_agent)),
            (WEBHOOK_ID, text(&id)),
            (WEBHOOK_TIMESTAMP, HeaderValue::from(now.secs())),
            (WEBHOOK_SIGNATURE, owned(signed.webhook_signature)),
            (X_WEBHOOK_SIGNATURE, owned(signed.x_webhook_signature)),
            (X_WEBHOOK_ID, owned(webhook.id.to_string())),
            (X_WEBHOOK_EVENT, HeaderValue::from_static(CHALLENGE)),
        ]
        .into_iter()
        .collect()
    }
}
