//! Notification preferences: recipients, muted kinds, and the language.
//!
//! A muted kind is sent over no channel. Unsubscribing affects one address only.

use std::collections::BTreeSet;

use email_address::EmailAddress;
use serde::{Deserialize, Serialize};

use super::NotificationKind;
use crate::{
    field_error::{FieldError, check_plain_text},
    webhook::Owner,
};

/// Maximum number of addresses of a tenant.
pub const MAX_EMAILS: usize = 10;
/// Maximum length of an address.
const MAX_EMAIL_BYTES: usize = 254;

/// Language of notifications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Language {
    /// English.
    #[default]
    En,
    /// German.
    De,
}

impl Language {
    /// Every language.
    pub const ALL: [Self; 2] = [Self::En, Self::De];

    /// Returns the language code.
    pub fn code(self) -> &'static str {
        match self {
            Self::En => "en",
            Self::De => "de",
        }
    }

    /// Returns the language with this code.
    pub fn parse(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|language| language.code() == code)
    }
}

/// Notification preferences of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TenantPreferences {
    /// Addresses that are notified about all webhooks of the tenant, in addition to each webhook's owner.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 10))]
    pub emails: Vec<String>,
    /// Kinds that are muted for the whole tenant, on every channel.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 9))]
    pub muted_kinds: Vec<NotificationKind>,
    /// Language of emails; the server's default if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<Language>,
}

impl TenantPreferences {
    /// Returns the preferences for notifications about a webhook that the operator manages. Portal sessions can change
    /// the tenant's addresses and muted kinds and must not see that webhook, so neither applies to it.
    pub fn for_operator_webhook(&self) -> Self {
        Self { language: self.language, ..Self::default() }
    }

    /// Returns whether no preference is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Validates addresses and muted kinds.
    pub fn validate(&self) -> Result<(), FieldError> {
        if self.emails.len() > MAX_EMAILS {
            return Err(FieldError::new(
                "notifications.emails",
                format!("must list at most {MAX_EMAILS} addresses"),
            ));
        }
        self.emails.iter().try_for_each(|email| check_email("notifications.emails", email))?;
        check_muted_kinds("notifications.muted_kinds", &self.muted_kinds)
    }
}

/// Returns an error for a list that names a kind twice.
pub fn check_muted_kinds(field: &'static str, muted_kinds: &[NotificationKind]) -> Result<(), FieldError> {
    let twice = muted_kinds.iter().enumerate().find(|(index, kind)| muted_kinds[..*index].contains(kind));
    match twice {
        Some((_, kind)) => Err(FieldError::new(field, format!("names {} twice", kind.name()))),
        None => Ok(()),
    }
}

/// Validates an address: mail servers must accept it as it is, without quotes and without a display name.
pub fn check_email(field: &'static str, email: &str) -> Result<(), FieldError> {
    check_plain_text(field, email, MAX_EMAIL_BYTES)?;
    let rejected = || Err(FieldError::new(field, "is not an email address; use the form name@example.com"));
    // Quoted local parts may contain anything, and no mailbox in use has one.
    if email.chars().any(|c| c.is_whitespace() || "<>()[]\\,;:\"".contains(c)) {
        return rejected();
    }
    match email.rsplit_once('@') {
        Some((name, domain))
            if EmailAddress::is_valid_local_part(name)
                && EmailAddress::is_valid_domain(domain)
                && !name.contains('@') =>
        {
            Ok(())
        }
        _ => rejected(),
    }
}

/// Returns the form in which two spellings of one address are equal. The standard makes the local part
/// case-sensitive; no mail server in use does, and a recipient must not get two emails.
pub fn normalize_address(email: &str) -> String {
    email.to_ascii_lowercase()
}

/// The preferences that apply to a notification.
#[derive(Clone, Copy, Debug)]
pub struct EffectivePreferences<'a> {
    /// Preferences of the tenant.
    pub tenant: &'a TenantPreferences,
    /// Owner of the webhook; `None` if the notification is about the tenant or the webhook has no owner.
    pub owner: Option<&'a Owner>,
}

impl EffectivePreferences<'_> {
    /// Returns whether a kind is sent at all, on any channel.
    pub fn wants(&self, kind: NotificationKind) -> bool {
        !self.tenant.muted_kinds.contains(&kind)
            && !self.owner.is_some_and(|owner| owner.muted_kinds.contains(&kind))
    }

    /// Returns the email recipients of a kind, each address once and in the given order, the webhook's owner first.
    /// Addresses in `unsubscribed` are left out.
    pub fn recipients(&self, kind: NotificationKind, unsubscribed: &[String]) -> Vec<String> {
        if !self.wants(kind) {
            return Vec::new();
        }
        let owner = self.owner.and_then(|owner| owner.email.as_ref());
        let mut seen: BTreeSet<String> = unsubscribed.iter().map(|email| normalize_address(email)).collect();
        let all = owner.into_iter().chain(&self.tenant.emails).map(|email| normalize_address(email));
        all.filter(|email| seen.insert(email.clone())).collect()
    }

    /// Returns the language of emails.
    pub fn language(&self, usual: Language) -> Language {
        self.tenant.language.unwrap_or(usual)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn owner(email: Option<&str>, mute: &[NotificationKind]) -> Owner {
        Owner { id: None, email: email.map(str::to_owned), muted_kinds: mute.to_vec() }
    }

    fn tenant(emails: &[&str], mute: &[NotificationKind]) -> TenantPreferences {
        TenantPreferences {
            emails: emails.iter().map(|email| (*email).to_owned()).collect(),
            muted_kinds: mute.to_vec(),
            language: None,
        }
    }

    #[test]
    fn addresses_are_validated() {
        for good in
            ["ops@example.com", "a.b+c@sub.example.org", "o'neil@example.com", "x@localhost", "1@1.de"]
        {
            assert_eq!(check_email("e", good), Ok(()), "{good}");
        }
        let long = format!("{}@example.com", "a".repeat(65));
        for bad in [
            "",
            "ops",
            "@example.com",
            "ops@",
            "a b@example.com",
            "a@b@c.com",
            "\"a b\"@example.com",
            "Ops <ops@example.com>",
            "ops@example.com,x@example.com",
            "ops@example.com\r\nBcc: x@y.z",
            "ops@[127.0.0.1]",
            "a..b@example.com",
            ".a@example.com",
            "ops@-example.com",
            &long,
        ] {
            assert_eq!(check_email("e", bad).unwrap_err().field, "e", "{bad}");
        }
    }

    #[test]
    fn lists_are_bounded_and_without_duplicates() {
        let many: Vec<String> = (0..=MAX_EMAILS).map(|n| format!("{n}@example.com")).collect();
        let of =
            |emails: &[String]| TenantPreferences { emails: emails.to_vec(), ..TenantPreferences::default() };
        assert_eq!(of(&many[1..]).validate(), Ok(()));
        assert_eq!(of(&many).validate().unwrap_err().field, "notifications.emails");
        assert_eq!(of(&["ops".into()]).validate().unwrap_err().field, "notifications.emails");
        let twice = tenant(&[], &[NotificationKind::SecretRotationDue, NotificationKind::SecretRotationDue])
            .validate()
            .unwrap_err();
        assert_eq!(twice.to_string(), "notifications.muted_kinds: names secret.rotation_due twice");
    }

    #[test]
    fn recipients_are_unique_with_owner_first() {
        let owner = owner(Some("Jane@Example.com"), &[]);
        let tenant =
            tenant(&["ops@example.com", "Jane@example.COM", "jane@example.com", "ops@EXAMPLE.com"], &[]);
        let preferences = EffectivePreferences { tenant: &tenant, owner: Some(&owner) };
        let messages = preferences.recipients(NotificationKind::DeliveryDead, &[]);
        assert_eq!(messages, ["jane@example.com", "ops@example.com"]);
        let messages = preferences.recipients(NotificationKind::DeliveryDead, &["ops@Example.com".into()]);
        assert_eq!(messages, ["jane@example.com"]);
        assert_eq!(
            EffectivePreferences { tenant: &TenantPreferences::default(), owner: None }
                .recipients(NotificationKind::DeliveryDead, &[]),
            [""; 0]
        );
    }

    #[test]
    fn muted_kind_has_no_recipients() {
        let by_owner = owner(Some("jane@example.com"), &[NotificationKind::DeliveryDead]);
        let by_tenant = tenant(&["ops@example.com"], &[NotificationKind::SecretRotationDue]);
        let preferences = EffectivePreferences { tenant: &by_tenant, owner: Some(&by_owner) };
        for kind in NotificationKind::ALL {
            let reported =
                !matches!(kind, NotificationKind::DeliveryDead | NotificationKind::SecretRotationDue);
            assert_eq!(preferences.wants(kind), reported, "{kind:?}");
            assert_eq!(preferences.recipients(kind, &[]).len(), if reported { 2 } else { 0 }, "{kind:?}");
        }
        let other = EffectivePreferences { tenant: &by_tenant, owner: None };
        assert!(other.wants(NotificationKind::DeliveryDead), "another webhook is not muted");
    }

    #[test]
    fn language_code_round_trips_and_tenant_overrides_default() {
        for language in Language::ALL {
            assert_eq!(Language::parse(language.code()), Some(language));
            assert_eq!(serde_json::to_value(language).unwrap(), language.code());
        }
        let none = TenantPreferences::default();
        assert_eq!(EffectivePreferences { tenant: &none, owner: None }.language(Language::De), Language::De);
        let english = TenantPreferences { language: Some(Language::En), ..TenantPreferences::default() };
        assert_eq!(
            EffectivePreferences { tenant: &english, owner: None }.language(Language::De),
            Language::En
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3_000))]

        #[test]
        fn valid_address_contains_no_line_break_or_separator(
            text in prop_oneof!["[a-z.+@\"<> ]{0,20}@[a-zA-Z.-]{1,20}", "\\PC{0,40}@\\PC{0,20}", any::<String>()],
        ) {
            if check_email("e", &text).is_ok() {
                prop_assert!(!text.chars().any(|c| c.is_control() || c.is_whitespace() || "<>\",;".contains(c)));
                prop_assert_eq!(text.matches('@').count(), 1);
                prop_assert!(check_email("e", &normalize_address(&text)).is_ok());
                prop_assert_eq!(normalize_address(&normalize_address(&text)), normalize_address(&text));
            }
        }

        #[test]
        fn recipients_are_unique_and_exclude_unsubscribed(
            emails in proptest::collection::vec("[ab]@(x|X)\\.(de|DE)", 0..10),
            own in proptest::option::of("[ab]@(x|X)\\.de"),
            gone in proptest::collection::vec("[ab]@x\\.(de|DE)", 0..3),
            muted in proptest::collection::vec(0..NotificationKind::ALL.len(), 0..3),
        ) {
            let mute: Vec<NotificationKind> = muted.into_iter().map(|index| NotificationKind::ALL[index]).collect();
            let tenant = TenantPreferences { emails: emails.clone(), muted_kinds: mute.clone(), language: None };
            let owner = owner(own.as_deref(), &[]);
            let preferences = EffectivePreferences { tenant: &tenant, owner: Some(&owner) };
            for kind in NotificationKind::ALL {
                let messages = preferences.recipients(kind, &gone);
                let unique: BTreeSet<_> = messages.iter().cloned().collect();
                prop_assert_eq!(unique.len(), messages.len());
                prop_assert!(!gone.iter().any(|gone| unique.contains(&normalize_address(gone))));
                let wanted: BTreeSet<_> = emails.iter().chain(&own).map(|email| normalize_address(email))
                    .filter(|email| !gone.iter().any(|gone| normalize_address(gone) == *email)).collect();
                prop_assert_eq!(unique, if mute.contains(&kind) { BTreeSet::new() } else { wanted });
            }
        }
    }
}
