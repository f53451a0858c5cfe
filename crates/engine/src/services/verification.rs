//! Endpoint verification: sends a challenge that the endpoint must echo before it receives events.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue, header};
use redrive_core::{
    EventId, TenantId, Time, WebhookId,
    delivery::response::SendFailure,
    security::signature,
    webhook::{
        Webhook, WebhookState,
        verification::{CHALLENGE_EVENT_TYPE, REASON_NOT_VERIFIED, challenge_body, is_echo},
    },
};
use redrive_egress::{Client, OutboundRequest, Target};
use redrive_store::StoreError;
use tokio::runtime::Handle;

use crate::{
    Settings,
    clock::{self, Clock},
    control::{ChangeError, Control},
    dispatch::{Dispatcher, HostSlot},
    metrics::Metrics,
    routing::Router,
    send::headers::{
        WEBHOOK_ID, WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP, X_WEBHOOK_EVENT, X_WEBHOOK_ID, X_WEBHOOK_SIGNATURE,
        header_from_str, header_from_string,
    },
    tenant_slots::{SlotLimits, TenantSlots},
    wakeups::Wakeups,
};

/// Delay of a challenge if the host of its URL has no free slot, or its address no free connection.
pub(super) const BLOCKED_CHALLENGE_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of concurrent challenges, and of those per tenant.
const MAX_CONCURRENT: usize = 32;
const MAX_CONCURRENT_PER_TENANT: usize = 8;
/// Timeout of a challenge.
const CHALLENGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Creates the slots for challenges. No request waits for a slot: a due webhook is retried when one is free.
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

/// Result of handling a due verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VerifyResult {
    /// The challenge is being sent, or the verification has timed out and the webhook was disabled.
    Done,
    /// The tenant has no free slot.
    NoSlot,
    /// The host of the URL has no free slot.
    NoHostSlot,
    /// No challenge is due, or not on this node.
    NotDue,
}

/// Reason why an endpoint did not echo.
#[derive(Clone, Debug, PartialEq, Eq)]
enum EchoError {
    /// No connection to its address was free; no request was sent.
    NotSent,
    /// Error text for the owner.
    Failed(String),
}

/// Sends challenges.
pub(crate) struct Verifier {
    pub(crate) egress: Client,
    pub(crate) clock: Clock,
    pub(crate) settings: Arc<Settings>,
    pub(crate) router: Arc<Router>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) control: Arc<Control>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) wakeups: Arc<Wakeups>,
    pub(crate) tokio: Handle,
    /// Slots for challenges.
    pub(crate) slots: TenantSlots,
}

impl Verifier {
    /// Sends the challenge of a webhook that awaits verification, if it is due and this node serves its tenant's pool.
    /// Of several nodes, the one that first stores the challenge sends it.
    pub(crate) async fn verify_if_due(
        self: &Arc<Self>,
        tenant_id: &TenantId,
        webhook_id: WebhookId,
        now: Time,
    ) -> Result<VerifyResult, StoreError> {
        self.router.load_tenant(tenant_id).await?;
        if !self.settings.role.sends() || !self.router.tenant_context(tenant_id).is_pool_served_here() {
            return Ok(VerifyResult::NotDue);
        }
        let resolved = self.router.webhook(webhook_id);
        if resolved.is_some_and(|resolved| !matches!(resolved.state, WebhookState::PendingVerification(_))) {
            return Ok(VerifyResult::NotDue);
        }
        let Some(slot) = self.slots.try_acquire(tenant_id) else { return Ok(VerifyResult::NoSlot) };
        let Some(host_slot) = self.take_host_slot(tenant_id, webhook_id) else {
            return Ok(VerifyResult::NoHostSlot);
        };
        let start_challenge = |webhook: &mut Webhook| {
            let WebhookState::PendingVerification(verification) = &webhook.state else { return Err(()) };
            if verification.next > now {
                return Err(());
            }
            webhook.state = match verification.after_challenge(now) {
                Some(request) => {
                    webhook.spec.challenged_at = Some(now);
                    WebhookState::PendingVerification(request)
                }
                None => WebhookState::Disabled(REASON_NOT_VERIFIED.into()),
            };
            Ok(())
        };
        let webhook =
            match self.control.change_webhook_automatically(tenant_id, webhook_id, start_challenge).await {
                Ok(webhook) => webhook,
                Err(ChangeError::NotFound | ChangeError::UidTaken | ChangeError::Rejected(())) => {
                    return Ok(VerifyResult::NotDue);
                }
                Err(ChangeError::Store(error)) => return Err(error),
            };
        if matches!(webhook.state, WebhookState::PendingVerification(_)) {
            let verifier = self.clone();
            self.tokio.spawn(async move {
                verifier.clone().verify(webhook).await;
                drop(slot);
                drop(host_slot);
                // Another due webhook may have been skipped for lack of a slot.
                verifier.wakeups.expiry.notify_one();
            });
        }
        Ok(VerifyResult::Done)
    }

    /// Takes a slot of a webhook's host for a challenge. Returns `None` if the host has no free slot.
    fn take_host_slot(&self, tenant_id: &TenantId, webhook_id: WebhookId) -> Option<HostSlot> {
        let host = self.router.webhook(webhook_id).map(|webhook| webhook.host()).unwrap_or_default();
        self.dispatcher.take_host_slot(tenant_id, host)
    }

    async fn verify(self: Arc<Self>, webhook: Webhook) {
        let (tenant_id, id, url) = (&webhook.tenant_id, webhook.id, &webhook.spec.url);
        let echoed = self.send_challenge(&webhook).await;
        let retry_at = self.clock.now() + BLOCKED_CHALLENGE_DELAY;
        let note = |webhook: &mut Webhook| {
            // If the URL has changed, the new one needs its own challenge.
            let WebhookState::PendingVerification(verification) = &mut webhook.state else { return Err(()) };
            if webhook.spec.url != *url {
                return Err(());
            }
            match &echoed {
                Ok(()) => {
                    webhook.spec.verified_url = Some(url.clone());
                    webhook.state = WebhookState::Active;
                }
                Err(EchoError::NotSent) => *verification = verification.with_unsent_challenge(retry_at),
                Err(EchoError::Failed(why)) => verification.last_error = Some(why.clone()),
            }
            Ok(())
        };
        match self.control.change_webhook(tenant_id, id, note).await {
            Ok(_) if echoed.is_ok() => {
                tracing::info!(webhook_id = %id, "endpoint echoed the challenge; webhook is active");
            }
            Ok(_) | Err(ChangeError::NotFound | ChangeError::UidTaken | ChangeError::Rejected(())) => {}
            // The challenge is sent again later.
            Err(ChangeError::Store(error)) => {
                tracing::warn!(webhook_id = %id, %error, "storing the result of a challenge failed; will retry");
            }
        }
    }

    /// Sends a challenge and checks the echo. Returns the error for the owner if it fails.
    async fn send_challenge(&self, webhook: &Webhook) -> Result<(), EchoError> {
        let unusable = |_| EchoError::Failed("the webhook's URL cannot be used".to_owned());
        let target = Target::parse(&webhook.spec.url).map_err(unusable)?;
        let challenge = clock::secret_hex();
        let body = challenge_body(&challenge);
        let headers = self.challenge_headers(webhook, &body);
        let tenant_key = self.router.tenant_context(&webhook.tenant_id).key;
        let exchange = self
            .egress
            .post(OutboundRequest { target, headers, body, timeout: CHALLENGE_TIMEOUT, tenant_key })
            .await;
        if exchange.result.is_err() {
            self.metrics.set_egress_refused(self.egress.refusals());
        }
        let response = exchange.result.map_err(|failed| match failed.failure {
            SendFailure::ConnectionLimit => EchoError::NotSent,
            _ => EchoError::Failed(failed.message),
        })?;
        match is_echo(&challenge, response.status, &response.body_sample) {
            true => Ok(()),
            false => {
                let why = format!("the endpoint returned {} and did not echo the challenge", response.status);
                Err(EchoError::Failed(why))
            }
        }
    }

    /// Returns the headers of a challenge. It is signed like any other request, so that receivers can authenticate it.
    /// Credentials and custom headers are not sent to an unverified URL.
    fn challenge_headers(&self, webhook: &Webhook, body: &[u8]) -> HeaderMap {
        let now = self.clock.now();
        let id = EventId::new(now, &clock::random_id_bytes()).to_string();
        let secrets: Vec<_> = signature::live_secrets(&webhook.secrets, self.clock.confirmed_now()).collect();
        let signed = signature::sign(webhook.spec.signature, &secrets, &id, now, body);
        [
            (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (header::USER_AGENT, header_from_str(&self.settings.user_agent)),
            (WEBHOOK_ID, header_from_str(&id)),
            (WEBHOOK_TIMESTAMP, HeaderValue::from(now.secs())),
            (WEBHOOK_SIGNATURE, header_from_string(signed.webhook_signature)),
            (X_WEBHOOK_SIGNATURE, header_from_string(signed.x_webhook_signature)),
            (X_WEBHOOK_ID, header_from_string(webhook.id.to_string())),
            (X_WEBHOOK_EVENT, HeaderValue::from_static(CHALLENGE_EVENT_TYPE)),
        ]
        .into_iter()
        .collect()
    }
}
