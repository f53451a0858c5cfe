//! Settings of the SMTP server for emails to owners. The operator chooses it, so egress rules do not apply.

use std::{net::IpAddr, path::PathBuf};

use lettre::message::Mailbox;
use redrive_core::{
    notification::{
        confirmation::MailPolicy,
        mail_limit::SendLimit,
        preferences::{Language, check_email},
    },
    time::HumanDuration,
};
use serde::{Deserialize, Serialize};

use super::{ConfigError, SecretSetting, secret::read_file, settings::section};

/// Encryption of the connection to the SMTP server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SmtpTls {
    /// Plain connection that must switch to TLS before anything else is sent.
    #[default]
    Starttls,
    /// TLS from the first byte.
    Tls,
    /// No encryption.
    None,
}

section! {
    /// Settings of the SMTP server.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Smtp {
        /// SMTP server for [notifications](notifications.md) to owners; without one no emails are sent.
        pub host: Option<String>,
        /// Port of the SMTP server: 587 for `starttls`, 465 for `tls`, 25 for `none`.
        ///
        /// Default: by `smtp.tls`
        pub port: Option<u16>,
        /// `starttls`, `tls` (from the first byte on), or `none`, which is refused for other machines unless allowed.
        pub tls: SmtpTls,
        /// Whether emails and the password may be sent to another machine unencrypted.
        pub allow_plaintext: bool,
        /// PEM file with the authority to trust instead of the public ones.
        pub ca_file: Option<PathBuf>,
        /// User name for the SMTP server; without one there is no authentication.
        pub username: Option<String>,
        /// Password for the SMTP server. Prefer a file or the environment.
        pub password: Option<SecretSetting>,
        /// File with the password, for secret mounts; not read if `smtp.password` is set.
        pub password_file: Option<PathBuf>,
        /// Sender of emails, such as `Redrive <redrive@example.com>`; required with `smtp.host`.
        pub from: Option<String>,
        /// Timeout of one step of the SMTP dialogue. 100 ms to 15 s.
        pub timeout: HumanDuration,
        /// Emails per minute that this node sends. 1 to 100000.
        pub max_per_minute: u32,
        /// `en` or `de`: the language of emails to tenants without a preference.
        pub language: Language,
        /// Whether an address receives notifications only after its holder has
        /// [confirmed](notifications.md#confirming-addresses) it; needs `server.public_url`.
        pub confirm_addresses: bool,
        /// Domains whose addresses need no confirmation, such as `["example.com"]`; subdomains are not included.
        pub trusted_domains: Vec<String>,
        /// Notification emails for one tenant in an hour, over all nodes; others are suppressed. 1 to 1000000.
        pub max_per_hour_per_tenant: u32,
        /// Notification emails for one tenant in a day, over all nodes; others are suppressed. 1 to 1000000.
        pub max_per_day_per_tenant: u32,
        /// Notification emails to one address in an hour, over all tenants and nodes; others are suppressed. 1 to
        /// 1000000.
        pub max_per_hour_per_address: u32,
        /// Notification emails to one address in a day, over all tenants and nodes; others are suppressed. 1 to
        /// 1000000.
        pub max_per_day_per_address: u32,
    }
}

impl Default for Smtp {
    fn default() -> Self {
        Self {
            host: None,
            port: None,
            tls: SmtpTls::default(),
            allow_plaintext: false,
            ca_file: None,
            username: None,
            password: None,
            password_file: None,
            from: None,
            timeout: HumanDuration::secs(10),
            max_per_minute: 60,
            language: Language::default(),
            confirm_addresses: true,
            trusted_domains: Vec::new(),
            max_per_hour_per_tenant: 60,
            max_per_day_per_tenant: 300,
            max_per_hour_per_address: 30,
            max_per_day_per_address: 100,
        }
    }
}

fn refused(setting: &str, reason: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { setting: format!("smtp.{setting}"), reason: reason.into() }
}

impl Smtp {
    /// Returns the configured port, or the default of the encryption mode.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(match self.tls {
            SmtpTls::Starttls => 587,
            SmtpTls::Tls => 465,
            SmtpTls::None => 25,
        })
    }

    /// Returns the sender of emails.
    pub fn sender(&self) -> Result<Mailbox, ConfigError> {
        let form = "write it as redrive@example.com or Redrive <redrive@example.com>";
        let Some(from) = &self.from else {
            return Err(refused("host", format!("requires smtp.from; {form}")));
        };
        if from.chars().any(char::is_control) {
            return Err(refused("from", format!("must be one line; {form}")));
        }
        from.parse().map_err(|_| refused("from", format!("is not a valid sender; {form}")))
    }

    /// Returns the CA certificate to trust instead of the default ones.
    pub fn ca(&self) -> Result<Option<String>, ConfigError> {
        self.ca_file.as_deref().map(|path| read_file("smtp.ca_file", path)).transpose()
    }

    /// Returns the policy for emails to addresses that tenants have entered.
    pub fn policy(&self) -> MailPolicy {
        let limit = |hour, day| SendLimit {
            max_per_hour: Some(hour),
            max_per_day: Some(day),
            ..SendLimit::default()
        };
        MailPolicy {
            confirm_addresses: self.confirm_addresses,
            trusted_domains: self.trusted_domains.clone(),
            per_tenant: limit(self.max_per_hour_per_tenant, self.max_per_day_per_tenant),
            per_mailbox: limit(self.max_per_hour_per_address, self.max_per_day_per_address),
        }
    }

    /// Checks the trusted domains and the limits of notification emails.
    fn validate_policy(&self) -> Result<(), ConfigError> {
        for domain in &self.trusted_domains {
            if check_email("domain", &format!("x@{domain}")).is_err() {
                let reason = format!("names {domain:?}, which is not a domain; write it as example.com");
                return Err(refused("trusted_domains", reason));
            }
        }
        for (setting, max) in [
            ("max_per_hour_per_tenant", self.max_per_hour_per_tenant),
            ("max_per_day_per_tenant", self.max_per_day_per_tenant),
            ("max_per_hour_per_address", self.max_per_hour_per_address),
            ("max_per_day_per_address", self.max_per_day_per_address),
        ] {
            if !(1..=1_000_000).contains(&max) {
                return Err(refused(setting, "must be from 1 to 1000000"));
            }
        }
        Ok(())
    }

    /// Checks constraints that the types do not express.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let Some(host) = &self.host else {
            let others = [
                ("port", self.port.is_some()),
                ("username", self.username.is_some()),
                ("password", self.password.is_some()),
                ("from", self.from.is_some()),
            ];
            return match others.iter().find(|(_, given)| *given) {
                Some((setting, _)) => Err(refused(setting, "has no effect without smtp.host; set both")),
                None => Ok(()),
            };
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_:".contains(c);
        if host.is_empty() || host.len() > 253 || !host.chars().all(plain) {
            return Err(refused(
                "host",
                "must be the name or address of an SMTP server, such as smtp.example.com",
            ));
        }
        if self.port == Some(0) {
            return Err(refused("port", "must be from 1 to 65535"));
        }
        if self.username.is_some() != self.password.is_some() {
            let missing = if self.username.is_some() { "password" } else { "username" };
            return Err(refused(missing, "is required together with the other: set user name and password"));
        }
        if self.tls == SmtpTls::None && !self.allow_plaintext && !is_loopback(host) {
            return Err(refused(
                "tls",
                "must be \"starttls\" or \"tls\" for another machine, because the connection would be unencrypted; \
                 set smtp.allow_plaintext = true if that is meant",
            ));
        }
        if !(100..=15_000).contains(&self.timeout.as_duration().as_millis()) {
            return Err(refused("timeout", "must be from 100ms to 15s"));
        }
        if !(1..=100_000).contains(&self.max_per_minute) {
            return Err(refused("max_per_minute", "must be from 1 to 100000"));
        }
        self.validate_policy()?;
        self.ca()?;
        self.sender().map(drop)
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str) -> Smtp {
        Smtp { host: Some(host.into()), from: Some("redrive@example.com".into()), ..Smtp::default() }
    }

    fn error_text(smtp: &Smtp) -> String {
        smtp.validate().unwrap_err().to_string()
    }

    #[test]
    fn email_is_disabled_without_host() {
        assert!(Smtp::default().validate().is_ok());
        assert!(at("smtp.example.com").validate().is_ok());
        let named = Smtp { from: Some("Redrive at Acme <redrive@example.com>".into()), ..at("::1") };
        assert!(named.validate().is_ok());
        let ports =
            [SmtpTls::Starttls, SmtpTls::Tls, SmtpTls::None].map(|tls| Smtp { tls, ..at("x") }.port());
        assert_eq!(ports, [587, 465, 25]);
    }

    #[test]
    fn invalid_value_error_names_the_setting() {
        let alone = Smtp { from: Some("redrive@example.com".into()), ..Smtp::default() };
        assert!(error_text(&alone).starts_with("smtp.from: has no effect"));
        assert!(error_text(&at("smtp.example.com:25 x")).starts_with("smtp.host: "));
        assert!(error_text(&Smtp { from: None, ..at("mx") }).starts_with("smtp.host: requires smtp.from"));
        for from in ["unknown", "a@b\r\nBcc: c@d.e", "a@b, c@d"] {
            assert!(
                error_text(&Smtp { from: Some(from.into()), ..at("mx") }).starts_with("smtp.from: "),
                "{from}"
            );
        }
        assert!(error_text(&Smtp { username: Some("me".into()), ..at("mx") }).starts_with("smtp.password: "));
        assert!(
            error_text(&Smtp { timeout: HumanDuration::secs(3600), ..at("mx") })
                .starts_with("smtp.timeout: ")
        );
        assert!(error_text(&Smtp { max_per_minute: 0, ..at("mx") }).starts_with("smtp.max_per_minute: "));
        assert!(error_text(&Smtp { ca_file: Some("/nowhere".into()), ..at("mx") }).contains("/nowhere"));
        let trusted = |domain: &str| Smtp { trusted_domains: vec![domain.into()], ..at("mx") };
        for domain in ["", "@example.com", "jane@example.com", "*", "*.example.com", "exa mple.com"] {
            assert!(error_text(&trusted(domain)).starts_with("smtp.trusted_domains: "), "{domain}");
        }
        assert!(trusted("Example.com").validate().is_ok());
        let none = Smtp { max_per_day_per_tenant: 0, ..at("mx") };
        assert!(error_text(&none).starts_with("smtp.max_per_day_per_tenant: "));
    }

    #[test]
    fn plaintext_to_another_machine_requires_opt_in() {
        let plain = |host| Smtp { tls: SmtpTls::None, ..at(host) };
        for here in ["localhost", "127.0.0.1", "::1"] {
            assert!(plain(here).validate().is_ok(), "{here}");
        }
        assert!(error_text(&plain("smtp.example.com")).contains("smtp.allow_plaintext = true"));
        assert!(Smtp { allow_plaintext: true, ..plain("smtp.example.com") }.validate().is_ok());
    }

    #[test]
    fn password_is_redacted() {
        let smtp = Smtp { password: Some(SecretSetting::new("hush-hush")), ..at("mx") };
        assert!(!format!("{smtp:?}").contains("hush"));
        assert!(!serde_json::to_string(&smtp).unwrap().contains("hush"));
    }
}
