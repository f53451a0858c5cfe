//! Links in mails that work without logging in: what they are about is sealed into them, so that nobody can make one up
//! or read whom it is about.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use redrive_core::{
    TenantId, Time,
    notification::{Kind, preferences::Language},
    security::vault::Vault,
};

/// What the sealed words are good for.
const PURPOSE: &str = "redrive unsubscribe";
/// The same for links that confirm an address: neither kind passes for the other.
const CONFIRM_PURPOSE: &str = "redrive confirm address";
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

/// What a link confirms: that the holder of an address wants the notifications of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Confirmation {
    /// Whose notifications.
    pub(crate) tenant: TenantId,
    /// The address.
    pub(crate) address: String,
    /// The language of the e-mail.
    pub(crate) language: Language,
    /// Until when the link works.
    pub(crate) expires_at: Time,
}

impl Confirmation {
    /// The token of the link.
    pub(crate) fn seal(&self, vault: &Vault) -> String {
        let expires_at = self.expires_at.millis().to_string();
        let parts = [self.tenant.as_str(), &expires_at, self.language.code(), &self.address];
        URL_SAFE_NO_PAD.encode(vault.seal_for(CONFIRM_PURPOSE, parts.join("\n").as_bytes()))
    }

    /// Reads a token. Returns `None` if it was not issued here, or has expired.
    pub(crate) fn open(vault: &Vault, token: &str, now: Time) -> Option<Self> {
        if token.len() > MOST_BYTES {
            return None;
        }
        let contents = vault.open_for(CONFIRM_PURPOSE, &URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
        let mut parts = std::str::from_utf8(&contents).ok()?.splitn(4, '\n');
        let tenant = TenantId::parse(parts.next()?).ok()?;
        let expires_at = Time::from_millis(parts.next()?.parse().ok()?);
        let language = Language::parse(parts.next()?)?;
        let opened = Self { tenant, language, expires_at, address: parts.next()?.to_owned() };
        Some(opened).filter(|opened| now < opened.expires_at)
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
    fn confirmation_token_opens_until_it_expires_and_for_nothing_else() {
        let vault = vault_of(1, &[]);
        let at = Time::from_millis;
        let confirmation = Confirmation {
            tenant: TenantId::parse("acme").unwrap(),
            address: "jane@example.com".into(),
            language: Language::De,
            expires_at: at(1_000),
        };
        let token = confirmation.seal(&vault);
        assert_eq!(Confirmation::open(&vault, &token, at(999)), Some(confirmation));
        assert_eq!(Confirmation::open(&vault, &token, at(1_000)), None);
        assert_eq!(Ending::open(&vault, &token), None);
        assert_eq!(Confirmation::open(&vault, &ending().seal(&vault), at(0)), None);
        assert_eq!(Confirmation::open(&vault_of(2, &[]), &token, at(0)), None);
        for bad in ["", "x", &token[1..], &format!("{token}A"), &"A".repeat(3000)] {
            assert_eq!(Confirmation::open(&vault, bad, at(0)), None);
        }
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
