//! Links in emails that work without login. Their content is encrypted and authenticated, so it can be neither
//! forged nor read.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use redrive_core::{
    TenantId, Time,
    notification::{NotificationKind, preferences::Language},
    security::vault::Vault,
};

/// Encryption purpose of unsubscribe tokens.
const PURPOSE: &str = "redrive unsubscribe";
/// Encryption purpose of confirmation tokens, so that one kind is not accepted as the other.
const CONFIRM_PURPOSE: &str = "redrive confirm address";
/// Maximum length of a token; longer ones are rejected.
const MAX_TOKEN_BYTES: usize = 2048;

/// Content of an unsubscribe link: one kind of notification to one address. It never expires while the master key
/// is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnsubscribeToken {
    /// Tenant of the notifications.
    pub(crate) tenant_id: TenantId,
    /// Kind of notification.
    pub(crate) kind: NotificationKind,
    /// Address of the recipient.
    pub(crate) address: String,
    /// Language of the email.
    pub(crate) language: Language,
}

impl UnsubscribeToken {
    /// Returns the token of the link.
    pub(crate) fn seal(&self, vault: &Vault) -> String {
        let parts = [self.tenant_id.as_str(), self.kind.name(), self.language.code(), &self.address];
        URL_SAFE_NO_PAD.encode(vault.seal_for(PURPOSE, parts.join("\n").as_bytes()))
    }

    /// Decrypts a token. Returns `None` if it was not issued here.
    pub(crate) fn open(vault: &Vault, token: &str) -> Option<Self> {
        if token.len() > MAX_TOKEN_BYTES {
            return None;
        }
        let contents = vault.open_for(PURPOSE, &URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
        let mut parts = std::str::from_utf8(&contents).ok()?.splitn(4, '\n');
        let (tenant_id, kind) =
            (TenantId::parse(parts.next()?).ok()?, NotificationKind::parse(parts.next()?)?);
        let language = Language::parse(parts.next()?)?;
        Some(Self { tenant_id, kind, language, address: parts.next()?.to_owned() })
    }
}

/// Content of a confirmation link: the holder of an address agrees to receive notifications of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Confirmation {
    /// Tenant of the notifications.
    pub(crate) tenant_id: TenantId,
    /// The address.
    pub(crate) address: String,
    /// Language of the email.
    pub(crate) language: Language,
    /// Expiry of the link.
    pub(crate) expires_at: Time,
}

impl Confirmation {
    /// Returns the token of the link.
    pub(crate) fn seal(&self, vault: &Vault) -> String {
        let expires_at = self.expires_at.millis().to_string();
        let parts = [self.tenant_id.as_str(), &expires_at, self.language.code(), &self.address];
        URL_SAFE_NO_PAD.encode(vault.seal_for(CONFIRM_PURPOSE, parts.join("\n").as_bytes()))
    }

    /// Decrypts a token. Returns `None` if it was not issued here or has expired.
    pub(crate) fn open(vault: &Vault, token: &str, now: Time) -> Option<Self> {
        if token.len() > MAX_TOKEN_BYTES {
            return None;
        }
        let contents = vault.open_for(CONFIRM_PURPOSE, &URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
        let mut parts = std::str::from_utf8(&contents).ok()?.splitn(4, '\n');
        let tenant_id = TenantId::parse(parts.next()?).ok()?;
        let expires_at = Time::from_millis(parts.next()?.parse().ok()?);
        let language = Language::parse(parts.next()?)?;
        let opened = Self { tenant_id, language, expires_at, address: parts.next()?.to_owned() };
        Some(opened).filter(|opened| now < opened.expires_at)
    }
}

#[cfg(test)]
mod tests {
    use redrive_testkit::vault_of;

    use super::*;

    fn token_content() -> UnsubscribeToken {
        UnsubscribeToken {
            tenant_id: TenantId::parse("acme").unwrap(),
            kind: NotificationKind::DeliveryDead,
            address: "jane@example.com".into(),
            language: Language::De,
        }
    }

    #[test]
    fn unsubscribe_token_opens_with_current_or_additional_key() {
        let token = token_content().seal(&vault_of(1, &[]));
        assert_eq!(UnsubscribeToken::open(&vault_of(1, &[]), &token), Some(token_content()));
        assert_eq!(UnsubscribeToken::open(&vault_of(2, &[1]), &token), Some(token_content()));
        assert_eq!(UnsubscribeToken::open(&vault_of(2, &[]), &token), None);
        assert!(!token.contains("jane") && !token.contains('+') && !token.contains('/'));
    }

    #[test]
    fn confirmation_token_opens_only_for_its_purpose_until_expiry() {
        let vault = vault_of(1, &[]);
        let at = Time::from_millis;
        let confirmation = Confirmation {
            tenant_id: TenantId::parse("acme").unwrap(),
            address: "jane@example.com".into(),
            language: Language::De,
            expires_at: at(1_000),
        };
        let token = confirmation.seal(&vault);
        assert_eq!(Confirmation::open(&vault, &token, at(999)), Some(confirmation));
        assert_eq!(Confirmation::open(&vault, &token, at(1_000)), None);
        assert_eq!(UnsubscribeToken::open(&vault, &token), None);
        assert_eq!(Confirmation::open(&vault, &token_content().seal(&vault), at(0)), None);
        assert_eq!(Confirmation::open(&vault_of(2, &[]), &token, at(0)), None);
        for bad in ["", "x", &token[1..], &format!("{token}A"), &"A".repeat(3000)] {
            assert_eq!(Confirmation::open(&vault, bad, at(0)), None);
        }
    }

    #[test]
    fn tampered_or_foreign_token_is_rejected() {
        let vault = vault_of(1, &[]);
        let token = token_content().seal(&vault);
        for bad in ["", "x", &token[1..], &token[..token.len() - 1], &format!("{token}A"), &"A".repeat(3000)]
        {
            assert_eq!(UnsubscribeToken::open(&vault, bad), None);
        }
        let other = URL_SAFE_NO_PAD.encode(vault.seal_for("redrive dashboard session", b"acme\nx\nen\na@b"));
        assert_eq!(UnsubscribeToken::open(&vault, &other), None);
    }
}
