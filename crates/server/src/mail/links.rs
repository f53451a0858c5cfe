//! Links in mails that work without logging in: what they are about is sealed into them, so that nobody can make one up
//! or read whom it is about.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use redrive_core::{
    TenantId,
    notice::{Kind, preferences::Language},
    vault::Vault,
};

/// What the sealed words are good for.
const PURPOSE: &str = "redrive unsubscribe";
/// Longer ones are not looked at.
const MOST_BYTES: usize = 2048;

/// What a link ends: mails about one kind to one address. It works for ever, as long as the master key is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    /// Whose mails.
    pub(crate) tenant: TenantId,
    /// What they are about.
    pub(crate) kind: Kind,
    /// Who gets them.
    pub(crate) address: String,
    /// The language they are in.
    pub(crate) language: Language,
}

impl Ending {
    /// The token of the link.
    pub(crate) fn seal(&self, vault: &Vault) -> String {
        let parts = [self.tenant.as_str(), self.kind.name(), self.language.code(), &self.address];
        URL_SAFE_NO_PAD.encode(vault.seal_for(PURPOSE, parts.join("\n").as_bytes()))
    }

    /// What a token is about; none if it is none of ours.
    pub(crate) fn open(vault: &Vault, token: &str) -> Option<Self> {
        if token.len() > MOST_BYTES {
            return None;
        }
        let contents = vault.open_for(PURPOSE, &URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
        let mut parts = std::str::from_utf8(&contents).ok()?.splitn(4, '\n');
        let (tenant, kind) = (TenantId::parse(parts.next()?).ok()?, Kind::parse(parts.next()?)?);
        let language = Language::parse(parts.next()?)?;
        Some(Self { tenant, kind, language, address: parts.next()?.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use redrive_testkit::vault_of;

    use super::*;

    fn ending() -> Ending {
        Ending {
            tenant: TenantId::parse("acme").unwrap(),
            kind: Kind::DeliveryDead,
            address: "jane@example.com".into(),
            language: Language::De,
        }
    }

    #[test]
    fn a_token_is_read_by_whoever_has_the_key_now_or_later() {
        let token = ending().seal(&vault_of(1, &[]));
        assert_eq!(Ending::open(&vault_of(1, &[]), &token), Some(ending()));
        assert_eq!(Ending::open(&vault_of(2, &[1]), &token), Some(ending()));
        assert_eq!(Ending::open(&vault_of(2, &[]), &token), None);
        assert!(!token.contains("jane") && !token.contains('+') && !token.contains('/'));
    }

    #[test]
    fn what_was_changed_or_made_up_opens_nothing() {
        let vault = vault_of(1, &[]);
        let token = ending().seal(&vault);
        for bad in ["", "x", &token[1..], &token[..token.len() - 1], &format!("{token}A"), &"A".repeat(3000)]
        {
            assert_eq!(Ending::open(&vault, bad), None);
        }
        let other = URL_SAFE_NO_PAD.encode(vault.seal_for("redrive dashboard session", b"acme\nx\nen\na@b"));
        assert_eq!(Ending::open(&vault, &other), None);
    }
}
