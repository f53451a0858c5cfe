//! Whether an address may receive notifications: only after its holder has confirmed it, unless the operator trusts
//! its domain.

use std::time::Duration;

use super::{mail_limit::SendLimit, preferences::same_address};

/// How long the link in a confirmation e-mail works.
pub const CONFIRMATION_LINK_TTL: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long an address that its holder does not confirm is kept after the last confirmation e-mail.
pub const UNCONFIRMED_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long it is tried to send a confirmation e-mail.
pub const CONFIRMATION_SEND_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Who confirmed an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfirmedBy {
    /// Its holder, by the link in the confirmation e-mail.
    Holder,
    /// The operator, with an admin key.
    Operator,
}

impl ConfirmedBy {
    /// The name used everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::Holder => "holder",
            Self::Operator => "operator",
        }
    }
}

/// What the operator decides about e-mails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailPolicy {
    /// Whether addresses need a confirmation.
    pub confirm_addresses: bool,
    /// Domains whose addresses need none.
    pub trusted_domains: Vec<String>,
    /// Notifications for one tenant.
    pub per_tenant: SendLimit,
    /// Notifications to one mailbox, over all tenants.
    pub per_mailbox: SendLimit,
}

impl Default for MailPolicy {
    fn default() -> Self {
        let limit = |hour, day| SendLimit {
            max_per_hour: Some(hour),
            max_per_day: Some(day),
            ..SendLimit::default()
        };
        Self {
            confirm_addresses: true,
            trusted_domains: Vec::new(),
            per_tenant: limit(60, 300),
            per_mailbox: limit(30, 100),
        }
    }
}

impl MailPolicy {
    /// Whether an address receives notifications only after a confirmation.
    pub fn needs_confirmation(&self, address: &str) -> bool {
        let domain = address.rsplit_once('@').map_or("", |(_, domain)| domain);
        let is_trusted = self.trusted_domains.iter().any(|trusted| trusted.eq_ignore_ascii_case(domain));
        self.confirm_addresses && !is_trusted
    }
}

/// The mailbox that an address most likely belongs to, for limits only: many providers ignore what follows a `+` in
/// the local part, so that `jane+1@…` and `jane+2@…` would each have limits of their own.
pub fn mailbox_of(address: &str) -> String {
    let address = same_address(address);
    match address.rsplit_once('@') {
        Some((name, domain)) => {
            let base = name.split('+').next().filter(|base| !base.is_empty()).unwrap_or(name);
            format!("{base}@{domain}")
        }
        None => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_needs_confirmation_unless_its_whole_domain_is_trusted() {
        let policy = MailPolicy { trusted_domains: vec!["Example.com".into()], ..MailPolicy::default() };
        for trusted in ["jane@example.com", "JANE@EXAMPLE.COM"] {
            assert!(!policy.needs_confirmation(trusted), "{trusted}");
        }
        for other in
            ["jane@sub.example.com", "jane@notexample.com", "example.com@evil.example", "example.com", ""]
        {
            assert!(policy.needs_confirmation(other), "{other}");
        }
        let off = MailPolicy { confirm_addresses: false, ..MailPolicy::default() };
        assert!(!off.needs_confirmation("jane@anywhere.example"));
    }

    #[test]
    fn tags_of_one_mailbox_share_its_limits() {
        assert_eq!(mailbox_of("Jane+a@Example.com"), "jane@example.com");
        assert_eq!(mailbox_of("jane+a+b@example.com"), mailbox_of("JANE@example.com"));
        assert_eq!(mailbox_of("+@example.com"), "+@example.com");
        assert_eq!(mailbox_of("x"), "x");
    }
}
