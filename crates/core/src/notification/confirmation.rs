//! Decides whether an address may receive notifications: only after its holder has confirmed it, unless the
//! operator trusts its domain.

use std::time::Duration;

use super::{mail_limit::SendLimit, preferences::normalize_address};

/// How long the link in a confirmation email is valid.
pub const CONFIRMATION_LINK_TTL: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long an unconfirmed address is kept after the last confirmation email.
pub const UNCONFIRMED_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long sending a confirmation email is retried.
pub const CONFIRMATION_SEND_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Who confirmed an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfirmedBy {
    /// Its holder, by the link in the confirmation email.
    Holder,
    /// The operator, with an admin key.
    Operator,
}

impl ConfirmedBy {
    /// Returns the canonical name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Holder => "holder",
            Self::Operator => "operator",
        }
    }
}

/// The operator's rules for emails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailPolicy {
    /// Whether addresses must be confirmed.
    pub confirm_addresses: bool,
    /// Domains whose addresses need no confirmation.
    pub trusted_domains: Vec<String>,
    /// Limit of notifications for one tenant.
    pub per_tenant: SendLimit,
    /// Limit of notifications to one mailbox, over all tenants.
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
    /// Returns whether an address must be confirmed before it receives notifications.
    pub fn needs_confirmation(&self, address: &str) -> bool {
        let domain = address.rsplit_once('@').map_or("", |(_, domain)| domain);
        let is_trusted = self.trusted_domains.iter().any(|trusted| trusted.eq_ignore_ascii_case(domain));
        self.confirm_addresses && !is_trusted
    }
}

/// Returns the mailbox that an address most likely belongs to, for limits only: many providers ignore the part
/// after a `+` in the local part, so `jane+1@…` and `jane+2@…` must share their limits.
pub fn mailbox_of(address: &str) -> String {
    let address = normalize_address(address);
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
