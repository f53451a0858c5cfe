//! Webhooks as they are stored: whatever is confidential about them is sealed on the way in, and opened on the way
//! out. In between, backends carry it along without being able to read it.

use redrive_core::{
    security::vault::{Closed, Vault},
    webhook::Webhook,
    webhook::confidential,
};

use crate::{StoreError, Versioned};

/// A webhook whose confidential part is sealed.
#[derive(Clone, Debug)]
pub(crate) struct Sealed {
    /// The rest of it.
    pub(crate) webhook: Webhook,
    /// The sealed part.
    pub(crate) sealed: Vec<u8>,
}

/// The same with the version it was read at.
#[derive(Clone, Debug)]
pub(crate) struct SealedVersion {
    pub(crate) webhook: Sealed,
    pub(crate) revision: i64,
}

/// Opens and seals for a backend; without a master key it refuses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seals(pub(crate) Option<Vault>);

impl Seals {
    fn vault(&self) -> Result<&Vault, StoreError> {
        self.0
            .as_ref()
            .ok_or_else(|| StoreError::Refused("webhooks need a master key, and there is none".into()))
    }

    /// Seals a webhook.
    pub(crate) fn seal(&self, webhook: Webhook) -> Result<Sealed, StoreError> {
        let contents = confidential::contents_of(&webhook);
        let sealed = self.vault()?.seal(&webhook.tenant, webhook.id, &contents);
        Ok(Sealed { webhook, sealed })
    }

    /// Opens a webhook.
    pub(crate) fn open(&self, sealed: Sealed) -> Result<Webhook, StoreError> {
        let Sealed { mut webhook, sealed } = sealed;
        let refused = |closed: Closed| StoreError::Refused(format!("the webhook {}: {closed}", webhook.id));
        let contents = self.vault()?.open(&webhook.tenant, webhook.id, &sealed).map_err(refused)?;
        match confidential::put_back(&mut webhook, &contents) {
            Some(()) => Ok(webhook),
            None => Err(StoreError::Refused(format!("the webhook {} makes no sense", webhook.id))),
        }
    }

    /// Opens several.
    pub(crate) fn open_all(&self, sealed: Vec<Sealed>) -> Result<Vec<Webhook>, StoreError> {
        sealed.into_iter().map(|sealed| self.open(sealed)).collect()
    }

    /// Opens one, if there is one.
    pub(crate) fn open_version(&self, found: Option<SealedVersion>) -> Result<Option<Versioned>, StoreError> {
        let open =
            |SealedVersion { webhook, revision }| Ok(Versioned { webhook: self.open(webhook)?, revision });
        found.map(open).transpose()
    }

    /// The same webhook sealed with the current master key. None: it is already.
    pub(crate) fn rewrap(&self, sealed: &Sealed) -> Result<Option<Vec<u8>>, StoreError> {
        let Sealed { webhook, sealed } = sealed;
        let anew = self.vault()?.rewrap(&webhook.tenant, webhook.id, sealed);
        anew.map_err(|closed| StoreError::Refused(format!("the webhook {}: {closed}", webhook.id)))
    }
}
