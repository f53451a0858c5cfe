//! Confirming addresses: asking their holders, what is known of them, and the link by which a holder confirms.

use std::{collections::BTreeSet, net::IpAddr};

use redrive_core::{
    TenantId, Time,
    notification::{
        confirmation::{ConfirmedBy, MailPolicy},
        preferences::same_address,
    },
    webhook::Webhook,
};
use redrive_store::{ConfirmationRequestResult, MailAddress, MailScope};
use serde_json::json;

use super::{
    Actor, App, AppError,
    audit::{Deed, Traces},
    preferences::holder_of,
};
use crate::mail::links::Confirmation;

/// Whether an address receives notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressStatus {
    /// It was confirmed.
    Confirmed,
    /// It receives nothing until it is confirmed.
    Unconfirmed,
    /// The operator trusts it without a confirmation.
    NotRequired,
}

impl AddressStatus {
    /// The name used everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::Unconfirmed => "unconfirmed",
            Self::NotRequired => "not_required",
        }
    }
}

/// What is known of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressState {
    /// The address, normalized.
    pub address: String,
    /// Whether it receives notifications.
    pub status: AddressStatus,
    /// What is stored of it, if anything is.
    pub record: Option<MailAddress>,
}

impl App {
    fn mail_policy(&self) -> MailPolicy {
        self.engine.mail_policy().cloned().unwrap_or_default()
    }

    /// What is known of these addresses of a tenant, each once, in the order of the addresses.
    pub async fn address_states<'a>(
        &self,
        tenant: TenantId,
        addresses: impl IntoIterator<Item = &'a str>,
    ) -> Result<Vec<AddressState>, AppError> {
        let addresses: BTreeSet<String> = addresses.into_iter().map(same_address).collect();
        if addresses.is_empty() {
            return Ok(Vec::new());
        }
        let policy = self.mail_policy();
        let mut known = self.store().mail_addresses(tenant, addresses.iter().cloned().collect()).await?;
        let state = |address: String| {
            let place = known.iter().position(|known| known.address == address);
            let record = place.map(|place| known.swap_remove(place));
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

    /// Asks the holders of addresses that a change has named. What cannot be asked now stays unconfirmed, and can be
    /// asked later; the change itself is done.
    pub(super) async fn request_confirmations(&self, tenant: &TenantId, named: &[String]) {
        let Some(policy) = self.engine.mail_policy() else { return };
        let asked: BTreeSet<String> = named
            .iter()
            .map(|address| same_address(address))
            .filter(|address| policy.needs_confirmation(address))
            .collect();
        for address in asked {
            if let Err(error) = self.engine.request_confirmation(tenant.clone(), &address).await {
                tracing::warn!(%tenant, %error, "confirmation e-mail not requested: the store failed");
            }
        }
    }

    /// Asks the owner of a webhook if a change has named another address.
    pub(super) async fn request_owner_confirmation(&self, webhook: &Webhook, before: Option<&str>) {
        if let Some(email) = owner_email(webhook).filter(|email| Some(*email) != before) {
            self.request_confirmations(&webhook.tenant, &[email.to_owned()]).await;
        }
    }

    /// Sends the confirmation e-mail for an address again, within the limits.
    pub async fn resend_confirmation(
        &self,
        by: &Actor,
        tenant: TenantId,
        address: &str,
    ) -> Result<AddressState, AppError> {
        let address = same_address(address);
        let Some(policy) = self.engine.mail_policy() else {
            return Err(AppError::conflict("mail_off", "this server sends no e-mails; set smtp.host"));
        };
        if policy.needs_confirmation(&address) {
            let deed = Deed {
                action: "notifications.request_confirmation",
                tenant: Some(&tenant),
                object: Some(address.clone()),
            };
            self.audited(by, deed, async {
                let result = self.engine.request_confirmation(tenant.clone(), &address).await?;
                self.check_request(result)?;
                Ok(((), Traces::default()))
            })
            .await?;
        }
        self.address_state(tenant, address).await
    }

    fn check_request(&self, result: ConfirmationRequestResult) -> Result<(), AppError> {
        match result {
            ConfirmationRequestResult::Requested | ConfirmationRequestResult::AlreadyConfirmed => Ok(()),
            ConfirmationRequestResult::NotFound => Err(AppError::NotFound("tenant")),
            ConfirmationRequestResult::LimitReached(scope, until) => {
                let what = match scope {
                    MailScope::Tenant => "this tenant has requested 20 confirmation e-mails in a day",
                    MailScope::Mailbox => {
                        "this address gets a confirmation e-mail once in an hour and 3 times in 30 days at most"
                    }
                };
                let detail = format!("{what}; the next one can be sent at {until}");
                let retry_after = until.since(self.engine.clock().now()).as_secs() + 1;
                Err(AppError::OverQuota { detail, retry_after })
            }
        }
    }

    /// Marks an address as confirmed, by the operator.
    pub async fn confirm_as_operator(
        &self,
        by: &Actor,
        tenant: TenantId,
        address: &str,
    ) -> Result<AddressState, AppError> {
        let address = same_address(address);
        self.store_confirmation(by, &tenant, &address, ConfirmedBy::Operator).await?;
        self.address_state(tenant, address).await
    }

    async fn address_state(&self, tenant: TenantId, address: String) -> Result<AddressState, AppError> {
        let found = self.address_states(tenant, [address.as_str()]).await?.pop();
        found.ok_or(AppError::NotFound("address"))
    }

    async fn store_confirmation(
        &self,
        by: &Actor,
        tenant: &TenantId,
        address: &str,
        confirmed_by: ConfirmedBy,
    ) -> Result<(), AppError> {
        let known = self.store().mail_addresses(tenant.clone(), vec![address.to_owned()]).await?;
        if known.iter().any(|known| known.confirmed.is_some()) {
            return Ok(());
        }
        let deed =
            Deed { action: "notifications.confirm", tenant: Some(tenant), object: Some(address.to_owned()) };
        self.audited(by, deed, async {
            let now = self.engine.clock().now();
            self.store().confirm_address(tenant.clone(), address.to_owned(), confirmed_by, now).await?;
            let after = Some(json!({"confirmed_by": confirmed_by.name()}));
            Ok(((), Traces { after, ..Traces::default() }))
        })
        .await
    }

    /// What the token of a confirmation link is about, and what people call the tenant. Returns `None` if the token was
    /// not issued here, has expired, or its tenant is gone.
    pub(crate) async fn confirmation(&self, token: &str) -> Result<Option<(Confirmation, String)>, AppError> {
        let now: Time = self.engine.clock().now();
        let Some(confirmation) = Confirmation::open(self.sessions.vault(), token, now) else {
            return Ok(None);
        };
        let tenant = self.store().tenant(confirmation.tenant.clone()).await?;
        Ok(tenant.map(|tenant| (confirmation, tenant.id.to_string())))
    }

    /// Confirms an address by the link that its holder got.
    pub(crate) async fn confirm(
        &self,
        confirmation: &Confirmation,
        from: Option<IpAddr>,
    ) -> Result<(), AppError> {
        let Confirmation { tenant, address, .. } = confirmation;
        let by = holder_of(tenant, address, from);
        self.store_confirmation(&by, tenant, address, ConfirmedBy::Holder).await
    }
}

/// The address of a webhook's owner.
pub(super) fn owner_email(webhook: &Webhook) -> Option<&str> {
    webhook.spec.owner.as_ref()?.email.as_deref()
}
