//! Webhooks as they are stored: confidential fields are sealed before they are written, and unsealed after they
//! are read. Backends handle only the sealed bytes and cannot read them.

use redrive_core::{
    security::vault::{UnsealError, Vault},
    webhook::{Webhook, confidential},
};

use crate::{StoreError, Versioned};

/// Webhook whose confidential fields are sealed.
#[derive(Clone, Debug)]
pub(crate) struct SealedWebhook {
    /// Other fields.
    pub(crate) webhook: Webhook,
    /// Sealed fields.
    pub(crate) sealed: Vec<u8>,
}

/// Sealed webhook with the revision it was read at.
#[derive(Clone, Debug)]
pub(crate) struct SealedVersion {
    pub(crate) webhook: SealedWebhook,
    pub(crate) revision: i64,
}

/// Seals and unseals webhooks for a backend; fails without a master key.
#[derive(Clone, Debug, Default)]
pub(crate) struct WebhookSealer(pub(crate) Option<Vault>);

impl WebhookSealer {
    fn vault(&self) -> Result<&Vault, StoreError> {
        self.0
            .as_ref()
            .ok_or_else(|| StoreError::InvalidItem("webhooks need a master key, and there is none".into()))
    }

    /// Seals a webhook.
    pub(crate) fn seal(&self, webhook: Webhook) -> Result<SealedWebhook, StoreError> {
        let contents = confidential::to_plaintext(&webhook);
        let sealed = self.vault()?.seal(&webhook.tenant_id, webhook.id, &contents);
        Ok(SealedWebhook { webhook, sealed })
    }

    /// Unseals a webhook.
    pub(crate) fn open(&self, sealed: SealedWebhook) -> Result<Webhook, StoreError> {
        let SealedWebhook { mut webhook, sealed } = sealed;
        let refused =
            |closed: UnsealError| StoreError::InvalidItem(format!("the webhook {}: {closed}", webhook.id));
        let contents = self.vault()?.open(&webhook.tenant_id, webhook.id, &sealed).map_err(refused)?;
        match confidential::restore_plaintext(&mut webhook, &contents) {
            Some(()) => Ok(webhook),
            None => Err(StoreError::InvalidItem(format!("the stored webhook {} is invalid", webhook.id))),
        }
    }

    /// Unseals several webhooks.
    pub(crate) fn open_all(&self, sealed: Vec<SealedWebhook>) -> Result<Vec<Webhook>, StoreError> {
        sealed.into_iter().map(|sealed| self.open(sealed)).collect()
    }

    /// Unseals a webhook, if there is one.
    pub(crate) fn open_version(&self, found: Option<SealedVersion>) -> Result<Option<Versioned>, StoreError> {
        let open =
            |SealedVersion { webhook, revision }| Ok(Versioned { webhook: self.open(webhook)?, revision });
        found.map(open).transpose()
    }

    /// Seals a webhook with the current master key. Returns `None` if it is sealed with that key already.
    pub(crate) fn rewrap(&self, sealed: &SealedWebhook) -> Result<Option<Vec<u8>>, StoreError> {
        let SealedWebhook { webhook, sealed } = sealed;
        let rewrapped = self.vault()?.rewrap(&webhook.tenant_id, webhook.id, sealed);
        rewrapped.map_err(|closed| StoreError::InvalidItem(format!("the webhook {}: {closed}", webhook.id)))
    }
}
