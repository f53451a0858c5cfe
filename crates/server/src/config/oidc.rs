//! Settings of the identity provider (OpenID Connect) that users log in with.

use std::path::PathBuf;

use redrive_core::{tenancy::user_role::RoleGroups, time::HumanDuration};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use url::{Host, Url};

use super::{ConfigError, Profile, SecretSetting, certificates::read_authorities, settings::section};

/// Maximum length of a name or identifier.
const MAX_TEXT_BYTES: usize = 256;
/// Maximum length of the provider's name on the login page.
const MAX_DISPLAY_NAME_CHARS: usize = 40;

section! {
    /// Settings of the identity provider that users log in with.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Oidc {
        /// Issuer URL of the identity provider with which [users log in](operations/oidc.md), such as
        /// `https://id.example.com/realms/staff`, exactly as the provider names itself. Needs `server.public_url`.
        pub issuer: Option<String>,
        /// Identifier of Redrive at the provider.
        pub client_id: Option<String>,
        /// Secret of Redrive at the provider; none for a public client.
        pub client_secret: Option<SecretSetting>,
        /// File with the client secret, for secret mounts.
        pub client_secret_file: Option<PathBuf>,
        /// Name of the provider on the button of the login page; at most 40 characters.
        pub display_name: String,
        /// Scopes that are requested; `openid` is required. Some providers send groups only with another one.
        pub scopes: Vec<String>,
        /// Claim with the groups of the user: its name, or its path with dots, such as `realm_access.roles`.
        pub groups_claim: String,
        /// Claim with the name of the user.
        ///
        /// Default: the first of `name`, `preferred_username` and `email` that the provider sends
        pub name_claim: Option<String>,
        /// Groups whose members may read everything of all tenants.
        pub viewer_groups: Vec<String>,
        /// Groups whose members may also change webhooks, deliveries and event types, and publish events.
        pub operator_groups: Vec<String>,
        /// Groups whose members may do everything. A user of several groups has the greatest role.
        pub admin_groups: Vec<String>,
        /// PEM file with a certificate authority of the provider, in addition to the usual ones.
        pub ca_file: Option<PathBuf>,
        /// Timeout of a request to the provider; `100ms` to `60s`.
        pub timeout: HumanDuration,
    }
}

impl Default for Oidc {
    fn default() -> Self {
        Self {
            issuer: None,
            client_id: None,
            client_secret: None,
            client_secret_file: None,
            display_name: "single sign-on".into(),
            scopes: ["openid", "profile", "email"].map(str::to_owned).to_vec(),
            groups_claim: "groups".into(),
            name_claim: None,
            viewer_groups: Vec::new(),
            operator_groups: Vec::new(),
            admin_groups: Vec::new(),
            ca_file: None,
            timeout: HumanDuration::secs(10),
        }
    }
}

fn refuse<T>(setting: &str, reason: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError::Invalid { setting: format!("oidc.{setting}"), reason: reason.into() })
}

impl Oidc {
    /// Returns the groups of each role.
    pub(crate) fn groups(&self) -> RoleGroups {
        RoleGroups {
            viewer: self.viewer_groups.clone(),
            operator: self.operator_groups.clone(),
            admin: self.admin_groups.clone(),
        }
    }

    /// Returns the issuer with its URL, and the client id. Returns `None` if users cannot log in.
    pub(crate) fn provider(&self) -> Result<Option<(&str, Url, &str)>, ConfigError> {
        let (issuer, client_id) = match (&self.issuer, &self.client_id) {
            (None, None) => return Ok(None),
            (None, Some(_)) => {
                return refuse("client_id", "needs oidc.issuer, the URL of the provider; set both");
            }
            (Some(issuer), client_id) => (issuer, client_id.as_deref()),
        };
        let url = issuer_url(issuer)?;
        let Some(client_id) = client_id else {
            return refuse(
                "issuer",
                "needs oidc.client_id, the identifier of Redrive at the provider; set both",
            );
        };
        if !is_identifier(client_id) {
            return refuse("client_id", "must be 1 to 256 characters without spaces");
        }
        Ok(Some((issuer, url, client_id)))
    }

    /// Returns the certificate authorities to trust in addition to the usual ones.
    pub(crate) fn authorities(&self) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
        read_authorities("oidc.ca_file", self.ca_file.as_deref())
    }

    pub(super) fn validate(&self, profile: Profile, public_url: Option<&str>) -> Result<(), ConfigError> {
        let is_configured = self.provider()?.is_some();
        self.authorities()?;
        // `redrive dev` uses its listen address instead.
        if is_configured && public_url.is_none() && profile == Profile::Serve {
            return refuse(
                "issuer",
                "needs server.public_url, to which the provider sends users back; set both",
            );
        }
        let all_groups = [
            ("viewer_groups", &self.viewer_groups),
            ("operator_groups", &self.operator_groups),
            ("admin_groups", &self.admin_groups),
        ];
        if is_configured && all_groups.iter().all(|(_, groups)| groups.is_empty()) {
            return refuse(
                "admin_groups",
                "must name a group, or no user may log in; set the groups of a role",
            );
        }
        for (setting, groups) in all_groups {
            if groups.iter().any(String::is_empty) {
                return refuse(setting, "must not contain an empty text");
            }
        }
        if !self.scopes.iter().any(|scope| scope == "openid") {
            return refuse("scopes", "must contain \"openid\"");
        }
        if !self.scopes.iter().all(|scope| is_identifier(scope)) {
            return refuse("scopes", "must each be 1 to 256 characters without spaces");
        }
        for (setting, claim) in
            [("groups_claim", Some(&self.groups_claim)), ("name_claim", self.name_claim.as_ref())]
        {
            if claim.is_some_and(|claim| !is_identifier(claim)) {
                return refuse(setting, "must be 1 to 256 characters without spaces");
            }
        }
        if self.client_secret.as_ref().is_some_and(|secret| secret.reveal().is_empty()) {
            return refuse("client_secret", "must not be empty; omit it for a public client");
        }
        let display_name = self.display_name.trim();
        if display_name.is_empty() || display_name.chars().count() > MAX_DISPLAY_NAME_CHARS {
            return refuse("display_name", format!("must be 1 to {MAX_DISPLAY_NAME_CHARS} characters"));
        }
        if !(HumanDuration::millis(100)..=HumanDuration::secs(60)).contains(&self.timeout) {
            return refuse("timeout", "must be from 100ms to 60s");
        }
        Ok(())
    }
}

fn is_identifier(text: &str) -> bool {
    (1..=MAX_TEXT_BYTES).contains(&text.len())
        && !text.contains(|c: char| c.is_whitespace() || c.is_control())
}

/// Parses an issuer. Without TLS, tokens and the client secret could be read on the way, so `http` is limited to this
/// machine.
fn issuer_url(text: &str) -> Result<Url, ConfigError> {
    const SETTING: &str = "issuer";
    let form = "write https://HOST/PATH, as in the provider's discovery document";
    let Ok(url) = Url::parse(text) else { return refuse(SETTING, form) };
    let is_local = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    match url.scheme() {
        "https" if url.host().is_some() => {}
        "http" if is_local => {}
        "http" => {
            return refuse(SETTING, format!("must begin with https:// unless it is on this machine; {form}"));
        }
        _ => return refuse(SETTING, form),
    }
    let has_more = !url.username().is_empty() || url.password().is_some() || url.query().is_some();
    if has_more || url.fragment().is_some() || text.len() > MAX_TEXT_BYTES {
        return refuse(
            SETTING,
            format!("must have no user name, query or fragment, and 256 characters; {form}"),
        );
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configured() -> Oidc {
        Oidc {
            issuer: Some("https://id.example.com/realms/staff".into()),
            client_id: Some("redrive".into()),
            admin_groups: vec!["platform".into()],
            ..Oidc::default()
        }
    }

    #[test]
    fn provider_needs_issuer_client_groups_and_public_url() {
        let check = |oidc: &Oidc, public_url| oidc.validate(Profile::Serve, public_url);
        let public_url = Some("https://hooks.example.com");
        assert!(check(&Oidc::default(), None).is_ok() && Oidc::default().provider().unwrap().is_none());
        assert!(check(&configured(), public_url).is_ok());
        assert!(configured().validate(Profile::Dev, None).is_ok());
        let without_public_url = check(&configured(), None).unwrap_err().to_string();
        assert!(without_public_url.contains("server.public_url"), "{without_public_url}");
        for (setting, oidc) in [
            ("client_id", Oidc { issuer: None, ..configured() }),
            ("issuer", Oidc { client_id: None, ..configured() }),
            ("client_id", Oidc { client_id: Some("a b".into()), ..configured() }),
            ("client_secret", Oidc { client_secret: Some(SecretSetting::new("")), ..configured() }),
            ("admin_groups", Oidc { admin_groups: Vec::new(), ..configured() }),
            ("viewer_groups", Oidc { viewer_groups: vec![String::new()], ..configured() }),
            ("scopes", Oidc { scopes: vec!["profile".into()], ..configured() }),
            ("scopes", Oidc { scopes: vec!["openid".into(), "a b".into()], ..configured() }),
            ("groups_claim", Oidc { groups_claim: String::new(), ..configured() }),
            ("name_claim", Oidc { name_claim: Some(" ".into()), ..configured() }),
            ("display_name", Oidc { display_name: "x".repeat(41), ..configured() }),
            ("timeout", Oidc { timeout: HumanDuration::secs(61), ..configured() }),
            ("ca_file", Oidc { ca_file: Some("/nowhere".into()), ..configured() }),
        ] {
            let message = check(&oidc, public_url).unwrap_err().to_string();
            assert!(message.starts_with(&format!("oidc.{setting}: ")), "{setting}: {message}");
        }
    }

    #[test]
    fn issuer_is_https_or_on_this_machine() {
        for good in
            ["https://id.example.com", "http://localhost:9000/a", "http://127.0.0.1:1", "http://[::1]:1/"]
        {
            assert!(issuer_url(good).is_ok(), "{good}");
        }
        for bad in [
            "id.example.com",
            "http://id.example.com",
            "http://127.0.0.1.example.com",
            "ftp://localhost",
            "https://me:hush@id.example.com",
            "https://id.example.com/?hush",
            "https://id.example.com/#hush",
        ] {
            let message = issuer_url(bad).unwrap_err().to_string();
            assert!(message.starts_with("oidc.issuer: ") && !message.contains("hush"), "{message}");
        }
    }
}
