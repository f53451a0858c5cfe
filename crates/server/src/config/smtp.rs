//! The mail server that owners are written through. It is the operator's own choice, like the database.

use std::{net::IpAddr, path::PathBuf};

use lettre::message::Mailbox;
use redrive_core::{
    notification::{
        confirmation::MailPolicy,
        mail_limit::SendLimit,
        preferences::{Language, check_email},
    },
    time::Span,
};
use serde::{Deserialize, Serialize};

use super::{ConfigError, Hidden, secret::read_file};

/// How the way to the mail server is protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SmtpTls {
    /// It begins in clear and must turn to TLS before anything is said.
    #[default]
    Starttls,
    /// TLS from the first byte on.
    Tls,
    /// Not at all.
    None,
}

/// The mail server.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Smtp {
    /// Its name or address. None: no mails are sent.
    pub host: Option<String>,
    /// Its port; 587, 465 or 25 by `tls` if left out.
    pub port: Option<u16>,
    /// How the way to it is protected.
    pub tls: SmtpTls,
    /// Whether mails, and the password, may go to another machine in clear.
    pub allow_plaintext: bool,
    /// A file with the certificate of the authority to trust, instead of the usual ones.
    pub ca_file: Option<PathBuf>,
    /// Who logs in; nobody if left out.
    pub username: Option<String>,
    /// The password.
    pub password: Option<Hidden>,
    /// A file that holds the password.
    pub password_file: Option<PathBuf>,
    /// Who mails are from: `Redrive <redrive@example.com>`.
    pub from: Option<String>,
    /// How long the server may take for one step.
    pub timeout: Span,
    /// How many mails a minute this node sends.
    pub max_per_minute: u32,
    /// The language of mails to tenants that chose none.
    pub language: Language,
    /// Whether an address receives notifications only after its holder has confirmed it.
    pub confirm_addresses: bool,
    /// Domains whose addresses need no confirmation.
    pub trusted_domains: Vec<String>,
    /// Notification e-mails for one tenant in an hour.
    pub max_per_hour_per_tenant: u32,
    /// Notification e-mails for one tenant in a day.
    pub max_per_day_per_tenant: u32,
    /// Notification e-mails to one address in an hour, over all tenants.
    pub max_per_hour_per_address: u32,
    /// Notification e-mails to one address in a day, over all tenants.
    pub max_per_day_per_address: u32,
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
            timeout: Span::secs(10),
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
    /// The port that is used.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(match self.tls {
            SmtpTls::Starttls => 587,
            SmtpTls::Tls => 465,
            SmtpTls::None => 25,
        })
    }

    /// Who mails are from.
    pub fn sender(&self) -> Result<Mailbox, ConfigError> {
        let form = "write it as redrive@example.com or Redrive <redrive@example.com>";
        let Some(from) = &self.from else {
            return Err(refused("host", format!("needs smtp.from as well; {form}")));
        };
        if from.chars().any(char::is_control) {
            return Err(refused("from", format!("must be one line; {form}")));
        }
        from.parse().map_err(|_| refused("from", format!("is no sender; {form}")))
    }

    /// The certificate to trust instead of the usual ones.
    pub fn ca(&self) -> Result<Option<String>, ConfigError> {
        self.ca_file.as_deref().map(|path| read_file("smtp.ca_file", path)).transpose()
    }

    /// What holds for e-mails to addresses that tenants named.
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

    /// Checks the domains and the limits of notification e-mails.
    fn validate_policy(&self) -> Result<(), ConfigError> {
        for domain in &self.trusted_domains {
            if check_email("domain", &format!("x@{domain}")).is_err() {
                let reason = format!("names {domain:?}, which is no domain; write it as example.com");
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

    /// Checks what a type alone cannot.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let Some(host) = &self.host else {
            let others = [
                ("port", self.port.is_some()),
                ("username", self.username.is_some()),
                ("password", self.password.is_some()),
                ("from", self.from.is_some()),
            ];
            return match others.iter().find(|(_, given)| *given) {
                Some((setting, _)) => Err(refused(setting, "is of no use without smtp.host")),
                None => Ok(()),
            };
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_:".contains(c);
        if host.is_empty() || host.len() > 253 || !host.chars().all(plain) {
            return Err(refused(
                "host",
                "must be the name or address of a mail server, such as smtp.example.com",
            ));
        }
        if self.port == Some(0) {
            return Err(refused("port", "must be from 1 to 65535"));
        }
        if self.username.is_some() != self.password.is_some() {
            let missing = if self.username.is_some() { "password" } else { "username" };
            return Err(refused(missing, "is needed as well: a user and a password go together"));
        }
        if self.tls == SmtpTls::None && !self.allow_plaintext && !is_loopback(host) {
            return Err(refused(
                "tls",
                "must be \"starttls\" or \"tls\" to reach another machine, or everybody on the way can read along; \
                 set smtp.allow_plaintext = true if that is meant",
            ));
        }
        if !(100..=15_000).contains(&self.timeout.get().as_millis()) {
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

    fn said(smtp: &Smtp) -> String {
        smtp.validate().unwrap_err().to_string()
    }

    #[test]
    fn it_is_off_unless_a_host_is_given() {
        assert!(Smtp::default().validate().is_ok());
        assert!(at("smtp.example.com").validate().is_ok());
        let named = Smtp { from: Some("Redrive at Acme <redrive@example.com>".into()), ..at("::1") };
        assert!(named.validate().is_ok());
        let ports =
            [SmtpTls::Starttls, SmtpTls::Tls, SmtpTls::None].map(|tls| Smtp { tls, ..at("x") }.port());
        assert_eq!(ports, [587, 465, 25]);
    }

    #[test]
    fn what_makes_no_sense_names_its_setting() {
        let alone = Smtp { from: Some("redrive@example.com".into()), ..Smtp::default() };
        assert!(said(&alone).starts_with("smtp.from: is of no use"));
        assert!(said(&at("smtp.example.com:25 x")).starts_with("smtp.host: "));
        assert!(said(&Smtp { from: None, ..at("mx") }).starts_with("smtp.host: needs smtp.from"));
        for from in ["nobody", "a@b\r\nBcc: c@d.e", "a@b, c@d"] {
            assert!(said(&Smtp { from: Some(from.into()), ..at("mx") }).starts_with("smtp.from: "), "{from}");
        }
        assert!(said(&Smtp { username: Some("me".into()), ..at("mx") }).starts_with("smtp.password: "));
        assert!(said(&Smtp { timeout: Span::secs(3600), ..at("mx") }).starts_with("smtp.timeout: "));
        assert!(said(&Smtp { max_per_minute: 0, ..at("mx") }).starts_with("smtp.max_per_minute: "));
        assert!(said(&Smtp { ca_file: Some("/nowhere".into()), ..at("mx") }).contains("/nowhere"));
        let trusted = |domain: &str| Smtp { trusted_domains: vec![domain.into()], ..at("mx") };
        for domain in ["", "@example.com", "jane@example.com", "*", "*.example.com", "exa mple.com"] {
            assert!(said(&trusted(domain)).starts_with("smtp.trusted_domains: "), "{domain}");
        }
        assert!(trusted("Example.com").validate().is_ok());
        let none = Smtp { max_per_day_per_tenant: 0, ..at("mx") };
        assert!(said(&none).starts_with("smtp.max_per_day_per_tenant: "));
    }

    #[test]
    fn nothing_leaves_the_machine_in_clear_by_accident() {
        let plain = |host| Smtp { tls: SmtpTls::None, ..at(host) };
        for here in ["localhost", "127.0.0.1", "::1"] {
            assert!(plain(here).validate().is_ok(), "{here}");
        }
        assert!(said(&plain("smtp.example.com")).contains("smtp.allow_plaintext = true"));
        assert!(Smtp { allow_plaintext: true, ..plain("smtp.example.com") }.validate().is_ok());
    }

    #[test]
    fn the_password_is_never_shown() {
        let smtp = Smtp { password: Some(Hidden::new("hush-hush")), ..at("mx") };
        assert!(!format!("{smtp:?}").contains("hush"));
        assert!(!serde_json::to_string(&smtp).unwrap().contains("hush"));
    }
}
