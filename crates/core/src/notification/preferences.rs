//! Who is told: addresses, kinds that nobody wants to hear of, and the language.
//!
//! What is muted is told by no channel. Unsubscribing is one address's own doing, and concerns no other.

use std::collections::BTreeSet;

use email_address::EmailAddress;
use serde::{Deserialize, Serialize};

use super::Kind;
use crate::{
    field_error::{Invalid, plain_text},
    webhook::Owner,
};

/// The most addresses of a tenant.
pub const MOST_EMAILS: usize = 10;
/// The longest address.
const MAX_EMAIL: usize = 254;

/// A language that owners are written in.
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

    /// Its short name.
    pub fn code(self) -> &'static str {
        match self {
            Self::En => "en",
            Self::De => "de",
        }
    }

    /// The language of this short name.
    pub fn parse(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|language| language.code() == code)
    }
}

/// What a tenant wants to hear of, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Notifications {
    /// Addresses that are told about all of the tenant's webhooks, beside each webhook's owner.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 10))]
    pub emails: Vec<String>,
    /// Kinds that nobody of the tenant is told about, by any channel.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 7))]
    pub mute: Vec<Kind>,
    /// The language of mails; the server's if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<Language>,
}

impl Notifications {
    /// The preferences for notifications about a webhook that the operator manages. Portal sessions can change the
    /// tenant's addresses and muted kinds and must not see that webhook, so neither applies to it.
    pub fn for_operator_webhook(&self) -> Self {
        Self { language: self.language, ..Self::default() }
    }

    /// Whether nothing of it was decided.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks it.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.emails.len() > MOST_EMAILS {
            return Err(Invalid::new("notifications.emails", format!("must be at most {MOST_EMAILS}")));
        }
        self.emails.iter().try_for_each(|email| check_email("notifications.emails", email))?;
        check_mute("notifications.mute", &self.mute)
    }
}

/// Refuses a list that names a kind twice.
pub fn check_mute(field: &'static str, mute: &[Kind]) -> Result<(), Invalid> {
    let twice = mute.iter().enumerate().find(|(index, kind)| mute[..*index].contains(kind));
    match twice {
        Some((_, kind)) => Err(Invalid::new(field, format!("names {} twice", kind.name()))),
        None => Ok(()),
    }
}

/// Checks an address: one that mail servers take as it is, without quotes and names beside it.
pub fn check_email(field: &'static str, email: &str) -> Result<(), Invalid> {
    plain_text(field, email, MAX_EMAIL)?;
    let refuse = || Err(Invalid::new(field, "is no e-mail address; write it as name@example.com"));
    // Quoted names may hold anything, and no mailbox in use has one.
    if email.chars().any(|c| c.is_whitespace() || "<>()[]\\,;:\"".contains(c)) {
        return refuse();
    }
    match email.rsplit_once('@') {
        Some((name, domain))
            if EmailAddress::is_valid_local_part(name)
                && EmailAddress::is_valid_domain(domain)
                && !name.contains('@') =>
        {
            Ok(())
        }
        _ => refuse(),
    }
}

/// The form in which two spellings of one address are equal. By the book the name before the @ may mean something else
/// in capitals; no server that people use makes that difference, and nobody wants two mails.
pub fn same_address(email: &str) -> String {
    email.to_ascii_lowercase()
}

/// What is known of the wishes of those who may be told about something.
#[derive(Clone, Copy, Debug)]
pub struct Wishes<'a> {
    /// The tenant's.
    pub tenant: &'a Notifications,
    /// Those of whoever looks after the webhook; none if it is about the tenant, or nobody does.
    pub owner: Option<&'a Owner>,
}

impl Wishes<'_> {
    /// Whether anybody is to be told of a kind, by whatever channel.
    pub fn tells(&self, kind: Kind) -> bool {
        !self.tenant.mute.contains(&kind) && !self.owner.is_some_and(|owner| owner.mute.contains(&kind))
    }

    /// Who is told of a kind by mail, each address once and in the order they were given, the webhook's own first.
    /// `unsubscribed` are those that do not want to hear of this kind any more.
    pub fn recipients(&self, kind: Kind, unsubscribed: &[String]) -> Vec<String> {
        if !self.tells(kind) {
            return Vec::new();
        }
        let owner = self.owner.and_then(|owner| owner.email.as_ref());
        let mut seen: BTreeSet<String> = unsubscribed.iter().map(|email| same_address(email)).collect();
        let all = owner.into_iter().chain(&self.tenant.emails).map(|email| same_address(email));
        all.filter(|email| seen.insert(email.clone())).collect()
    }

    /// The language of mails.
    pub fn language(&self, usual: Language) -> Language {
        self.tenant.language.unwrap_or(usual)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn owner(email: Option<&str>, mute: &[Kind]) -> Owner {
        Owner { id: None, email: email.map(str::to_owned), mute: mute.to_vec() }
    }

    fn tenant(emails: &[&str], mute: &[Kind]) -> Notifications {
        Notifications {
            emails: emails.iter().map(|email| (*email).to_owned()).collect(),
            mute: mute.to_vec(),
            language: None,
        }
    }

    #[test]
    fn addresses_are_checked() {
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
    fn lists_have_bounds_and_name_nothing_twice() {
        let many: Vec<String> = (0..=MOST_EMAILS).map(|n| format!("{n}@example.com")).collect();
        let of = |emails: &[String]| Notifications { emails: emails.to_vec(), ..Notifications::default() };
        assert_eq!(of(&many[1..]).validate(), Ok(()));
        assert_eq!(of(&many).validate().unwrap_err().field, "notifications.emails");
        assert_eq!(of(&["nobody".into()]).validate().unwrap_err().field, "notifications.emails");
        let twice = tenant(&[], &[Kind::SecretDue, Kind::SecretDue]).validate().unwrap_err();
        assert_eq!(twice.to_string(), "notifications.mute: names secret.due twice");
    }

    #[test]
    fn each_address_is_told_once_the_owners_first() {
        let owner = owner(Some("Jane@Example.com"), &[]);
        let tenant =
            tenant(&["ops@example.com", "Jane@example.COM", "jane@example.com", "ops@EXAMPLE.com"], &[]);
        let wishes = Wishes { tenant: &tenant, owner: Some(&owner) };
        let told = wishes.recipients(Kind::DeliveryDead, &[]);
        assert_eq!(told, ["jane@example.com", "ops@example.com"]);
        let told = wishes.recipients(Kind::DeliveryDead, &["ops@Example.com".into()]);
        assert_eq!(told, ["jane@example.com"]);
        assert_eq!(
            Wishes { tenant: &Notifications::default(), owner: None }.recipients(Kind::DeliveryDead, &[]),
            [""; 0]
        );
    }

    #[test]
    fn what_is_muted_is_told_to_nobody() {
        let by_owner = owner(Some("jane@example.com"), &[Kind::DeliveryDead]);
        let by_tenant = tenant(&["ops@example.com"], &[Kind::SecretDue]);
        let wishes = Wishes { tenant: &by_tenant, owner: Some(&by_owner) };
        for kind in Kind::ALL {
            let told = !matches!(kind, Kind::DeliveryDead | Kind::SecretDue);
            assert_eq!(wishes.tells(kind), told, "{kind:?}");
            assert_eq!(wishes.recipients(kind, &[]).len(), if told { 2 } else { 0 }, "{kind:?}");
        }
        let other = Wishes { tenant: &by_tenant, owner: None };
        assert!(other.tells(Kind::DeliveryDead), "another webhook is not muted");
    }

    #[test]
    fn languages_are_known_by_their_codes() {
        for language in Language::ALL {
            assert_eq!(Language::parse(language.code()), Some(language));
            assert_eq!(serde_json::to_value(language).unwrap(), language.code());
        }
        let none = Notifications::default();
        assert_eq!(Wishes { tenant: &none, owner: None }.language(Language::De), Language::De);
        let english = Notifications { language: Some(Language::En), ..Notifications::default() };
        assert_eq!(Wishes { tenant: &english, owner: None }.language(Language::De), Language::En);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3_000))]

        #[test]
        fn no_address_that_passes_can_end_a_line_or_a_mailbox(
            text in prop_oneof!["[a-z.+@\"<> ]{0,20}@[a-zA-Z.-]{1,20}", "\\PC{0,40}@\\PC{0,20}", any::<String>()],
        ) {
            if check_email("e", &text).is_ok() {
                prop_assert!(!text.chars().any(|c| c.is_control() || c.is_whitespace() || "<>\",;".contains(c)));
                prop_assert_eq!(text.matches('@').count(), 1);
                prop_assert!(check_email("e", &same_address(&text)).is_ok());
                prop_assert_eq!(same_address(&same_address(&text)), same_address(&text));
            }
        }

        #[test]
        fn nobody_is_told_twice_nor_after_unsubscribing(
            emails in proptest::collection::vec("[ab]@(x|X)\\.(de|DE)", 0..10),
            own in proptest::option::of("[ab]@(x|X)\\.de"),
            gone in proptest::collection::vec("[ab]@x\\.(de|DE)", 0..3),
            muted in proptest::collection::vec(0..Kind::ALL.len(), 0..3),
        ) {
            let mute: Vec<Kind> = muted.into_iter().map(|index| Kind::ALL[index]).collect();
            let tenant = Notifications { emails: emails.clone(), mute: mute.clone(), language: None };
            let owner = owner(own.as_deref(), &[]);
            let wishes = Wishes { tenant: &tenant, owner: Some(&owner) };
            for kind in Kind::ALL {
                let told = wishes.recipients(kind, &gone);
                let unique: BTreeSet<_> = told.iter().cloned().collect();
                prop_assert_eq!(unique.len(), told.len());
                prop_assert!(!gone.iter().any(|gone| unique.contains(&same_address(gone))));
                let wanted: BTreeSet<_> = emails.iter().chain(&own).map(|email| same_address(email))
                    .filter(|email| !gone.iter().any(|gone| same_address(gone) == *email)).collect();
                prop_assert_eq!(unique, if mute.contains(&kind) { BTreeSet::new() } else { wanted });
            }
        }
    }
}
