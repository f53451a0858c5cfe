//! Confirmation of email addresses: requests to their holders, their status, and the confirmation link.

use std::{collections::BTreeSet, net::IpAddr};

use redrive_core::{
    TenantId, Time,
    notification::{
        confirmation::{ConfirmedBy, MailPolicy},
        preferences::normalize_address,
    },
    webhook::Webhook,
};
use redrive_store::{ConfirmationRequestResult, EmailAddress, EmailScope};
use serde_json::json;

use super::{
    Actor, App, AppError, ErrorCode,
    audit::{AuditChange, AuditedAction},
    preferences::holder_of,
};
use crate::mail::links::Confirmation;

/// Confirmation status of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressStatus {
    /// The address was confirmed.
    Confirmed,
    /// The address receives nothing until it is confirmed.
    Unconfirmed,
    /// The operator trusts the address without a confirmation.
    NotRequired,
}

impl AddressStatus {
    /// Returns the name used in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::Unconfirmed => "unconfirmed",
            Self::NotRequired => "not_required",
        }
    }
}

/// Address with its confirmation status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressState {
    /// Normalized address.
    pub address: String,
    /// Confirmation status.
    pub status: AddressStatus,
    /// Stored record, if there is one.
    pub record: Option<EmailAddress>,
}

impl App {
    fn mail_policy(&self) -> MailPolicy {
        self.engine.mail_policy().cloned().unwrap_or_default()
    }

    /// Returns the status of these addresses of a tenant, without duplicates, sorted by address.
    pub async fn address_states<'a>(
        &self,
        tenant_id: TenantId,
        addresses: impl IntoIterator<Item = &'a str>,
    ) -> Result<Vec<AddressState>, AppError> {
        let addresses: BTreeSet<String> = addresses.into_iter().map(normalize_address).collect();
        if addresses.is_empty() {
            return Ok(Vec::new());
        }
        let policy = self.mail_policy();
        let mut known = self.store().email_addresses(tenant_id, addresses.iter().cloned().collect()).await?;
        let state = |address: String| {
            let position = known.iter().position(|known| known.address == address);
            let record = position.map(|index| known.swap_remove(index));
            let is_confirmed = record.as_ref().is_some_and(|record| record.confirmed.is_some());
            let status = match (is_confirmed, policy.needs_confirmation(&address)) {
                (true, _) => AddressStatus::Confirmed,
                (false, true) => AddressStatus::Unconfirmed,
                (false, false) => AddressStatus::NotRequired,
            };
            AddressState { address, status, record }
        };
        Ok(addresses.into_iter().map(state).collect())
    }

    /// Requests confirmation emails for the addresses in a change. If a request fails, the address stays unconfirmed
    /// and can be requested later; the change itself is not affected.
    pub(super) async fn request_confirmations(&self, tenant_id: &TenantId, named: &[String]) {
        let Some(policy) = self.engine.mail_policy() else { return };
        let request: BTreeSet<String> = named
            .iter()
            .map(|address| normalize_address(address))
            .filter(|address| policy.needs_confirmation(address))
            .collect();
        for address in request {
            if let Err(error) = self.engine.request_confirmation(tenant_id.clone(), &address).await {
                tracing::warn!(%tenant_id, %error, "requesting a confirmation email failed: store unavailable");
            }
        }
    }

    /// Requests a confirmation email for a webhook's owner if a change has set another address.
    pub(super) async fn request_owner_confirmation(&self, webhook: &Webhook, before: Option<&str>) {
        if let Some(email) = owner_email(webhook).filter(|email| Some(*email) != before) {
            self.request_confirmations(&webhook.tenant_id, &[email.to_owned()]).await;
        }
    }

    /// Resends the confirmation email for an address, within the limits.
    pub async fn resend_confirmation(
        &self,
        actor: &Actor,
        tenant_id: TenantId,
        address: &str,
    ) -> Result<AddressState, AppError> {
        let address = normalize_address(address);
        let Some(policy) = self.engine.mail_policy() else {
            return Err(AppError::conflict(
                ErrorCode::EmailNotConfigured,
                "email is not configured on this server; set smtp.host",
            ));
        };
        if policy.needs_confirmation(&address) {
            let audited = AuditedAction {
                action: "notifications.request_confirmation",
                tenant: Some(&tenant_id),
                object: Some(address.clone()),
            };
            self.with_audit(actor, audited, async {
                let result = self.engine.request_confirmation(tenant_id.clone(), &address).await?;
                self.check_request(result)?;
                Ok(((), AuditChange::default()))
            })
            .await?;
        }
        self.address_state(tenant_id, address).await
    }

    fn check_request(&self, result: ConfirmationRequestResult) -> Result<(), AppError> {
        match result {
            ConfirmationRequestResult::Requested | ConfirmationRequestResult::AlreadyConfirmed => Ok(()),
            ConfirmationRequestResult::NotFound => Err(AppError::NotFound("tenant")),
            ConfirmationRequestResult::LimitReached(scope, until) => {
                let what = match scope {
                    EmailScope::Tenant => "this tenant has requested 20 confirmation emails in one day",
                    EmailScope::Mailbox => {
                        "an address receives at most one confirmation email per hour and 3 in 30 days"
                    }
                };
                let detail = format!("{what}; the next one can be sent at {until}");
                let retry_after = until.duration_since(self.engine.clock().now()).as_secs() + 1;
                Err(AppError::OverQuota { detail, retry_after })
            }
        }
    }

    /// Marks an address as confirmed by the operator.
    pub async fn confirm_as_operator(
        &self,
        actor: &Actor,
        tenant_id: TenantId,
        address: &str,
    ) -> Result<AddressState, AppError> {
        let address = normalize_address(address);
        self.store_confirmation(actor, &tenant_id, &address, ConfirmedBy::Operator).await?;
        self.address_state(tenant_id, address).await
    }

    async fn address_state(&self, tenant_id: TenantId, address: String) -> Result<AddressState, AppError> {
        let found = self.address_states(tenant_id, [address.as_str()]).await?.pop();
        found.ok_or(AppError::NotFound("address"))
    }

    async fn store_confirmation(
        &self,
        actor: &Actor,
        tenant_id: &TenantId,
        address: &str,
        confirmed_by: ConfirmedBy,
    ) -> Result<(), AppError> {
        let known = self.store().email_addresses(tenant_id.clone(), vec![address.to_owned()]).await?;
        if known.iter().any(|known| known.confirmed.is_some()) {
            return Ok(());
        }
        let audited = AuditedAction {
            action: "notifications.confirm",
            tenant: Some(tenant_id),
            object: Some(address.to_owned()),
        };
        self.with_audit(actor, audited, async {
            let now = self.engine.clock().now();
            self.store().confirm_address(tenant_id.clone(), address.to_owned(), confirmed_by, now).await?;
            let after = Some(json!({"confirmed_by": confirmed_by.name()}));
            Ok(((), AuditChange { after, ..AuditChange::default() }))
        })
        .await
    }

    /// Returns the content of a confirmation link's token and the id of its tenant. Returns `None` if the token was
    /// not issued here, has expired, or its tenant was deleted.
    pub(crate) async fn confirmation(&self, token: &str) -> Result<Option<(Confirmation, String)>, AppError> {
        let now: Time = self.engine.clock().now();
        let Some(confirmation) = Confirmation::open(self.sessions.vault(), token, now) else {
            return Ok(None);
        };
        let tenant = self.store().tenant(confirmation.tenant_id.clone()).await?;
        Ok(tenant.map(|tenant| (confirmation, tenant.id.to_string())))
    }

    /// Confirms an address with the link that its holder received.
    pub(crate) async fn confirm(
        &self,
        confirmation: &Confirmation,
        from: Option<IpAddr>,
    ) -> Result<(), AppError> {
        let Confirmation { tenant_id, address, .. } = confirmation;
        let actor = holder_of(tenant_id, address, from);
        self.store_confirmation(&actor, tenant_id, address, ConfirmedBy::Holder).await
    }
}

/// Returns the email address of a webhook's owner.
pub(super) fn owner_email(webhook: &Webhook) -> Option<&str> {
    webhook.spec.owner.as_ref()?.email.as_deref()
}
