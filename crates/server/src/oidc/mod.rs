//! Login of users with an OpenID Connect provider: authorization code with PKCE. The operator configures the provider,
//! so its connections bypass the `egress` guard. No token is ever stored, logged or shown.

mod cache;
mod claims;
mod error;
mod http;
pub(crate) mod id_token;
pub(crate) mod signature;

use std::{fmt, sync::Arc};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::jwk::JwkSet;
use redrive_core::{Time, tenancy::user_role::RoleGroups};
use redrive_engine::clock;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;
use url::Url;
use zeroize::{Zeroize, ZeroizeOnDrop};

use self::{cache::DocumentCache, http::HttpClient, id_token::Expected};
use crate::config::{ConfigError, Oidc, SecretSetting};

pub(crate) use self::{
    claims::Identity,
    error::{LoginError, TokenError},
};

/// Maximum number of concurrent logins that wait for the provider on this node.
const MAX_CONCURRENT_LOGINS: usize = 32;
/// Maximum length of a code or state in the provider's response.
const MAX_PARAMETER_BYTES: usize = 2048;

/// Document in which a provider describes itself.
#[derive(Debug, Deserialize)]
struct Metadata {
    issuer: String,
    authorization_endpoint: Endpoint,
    token_endpoint: Endpoint,
    jwks_uri: Endpoint,
    userinfo_endpoint: Option<Endpoint>,
    #[serde(default = "default_auth_methods")]
    token_endpoint_auth_methods_supported: Vec<String>,
}

/// URL of an endpoint.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Endpoint(Url);

impl TryFrom<String> for Endpoint {
    type Error = url::ParseError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Url::parse(&text).map(Self)
    }
}

/// Returns the methods of a provider that names none.
fn default_auth_methods() -> Vec<String> {
    vec!["client_secret_basic".into()]
}

/// Response of the token endpoint.
#[derive(Deserialize, Zeroize, ZeroizeOnDrop)]
struct Tokens {
    id_token: Option<String>,
    access_token: Option<String>,
}

/// Secrets of a login in progress. They are kept in a sealed cookie of the browser that started it, so any node can
/// finish it.
#[derive(Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub(crate) struct PendingLogin {
    state: String,
    nonce: String,
    verifier: String,
    /// Page to open afterwards.
    pub(crate) next: String,
}

impl PendingLogin {
    /// Creates the secrets of a new login.
    pub(crate) fn new(next: &str) -> Self {
        let secret = || URL_SAFE_NO_PAD.encode(clock::secret_bytes());
        Self { state: secret(), nonce: secret(), verifier: secret(), next: next.to_owned() }
    }

    /// Returns the hash that identifies the login, so that it starts at most one session.
    pub(crate) fn hash(&self) -> [u8; 32] {
        Sha256::new().chain_update(b"redrive login\0").chain_update(&self.state).finalize().into()
    }

    fn has_state(&self, state: &str) -> bool {
        self.state.as_bytes().ct_eq(state.as_bytes()).into()
    }

    fn challenge(&self) -> String {
        URL_SAFE_NO_PAD.encode(Sha256::digest(&self.verifier))
    }
}

/// Parameters with which the provider sends the browser back.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct AuthorizationResponse {
    #[serde(default)]
    code: String,
    #[serde(default)]
    state: String,
    /// Issuer of the response (RFC 9207).
    iss: Option<String>,
    error: Option<String>,
    error_description: Option<String>,
}

/// The configured identity provider.
pub(crate) struct IdentityProvider {
    issuer: String,
    issuer_url: Url,
    client_id: String,
    client_secret: Option<SecretSetting>,
    display_name: String,
    scope: String,
    groups_claim: String,
    name_claim: Option<String>,
    groups: RoleGroups,
    http: HttpClient,
    metadata: DocumentCache<Metadata>,
    keys: DocumentCache<JwkSet>,
    logins: Semaphore,
}

impl fmt::Debug for IdentityProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentityProvider").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

impl IdentityProvider {
    /// Creates the configured provider without connecting to it. Returns `None` if none is configured.
    pub(crate) fn from_settings(settings: &Oidc) -> Result<Option<Self>, ConfigError> {
        let Some((issuer, issuer_url, client_id)) = settings.provider()? else { return Ok(None) };
        let http = HttpClient::new(settings.authorities()?, settings.timeout.as_duration());
        let http = http.map_err(|error| ConfigError::Invalid {
            setting: "oidc.ca_file".into(),
            reason: error.to_string(),
        })?;
        signature::install();
        Ok(Some(Self {
            issuer: issuer.to_owned(),
            issuer_url,
            client_id: client_id.to_owned(),
            client_secret: settings.client_secret.clone(),
            display_name: settings.display_name.trim().to_owned(),
            scope: settings.scopes.join(" "),
            groups_claim: settings.groups_claim.clone(),
            name_claim: settings.name_claim.clone(),
            groups: settings.groups(),
            http,
            metadata: DocumentCache::default(),
            keys: DocumentCache::default(),
            logins: Semaphore::new(MAX_CONCURRENT_LOGINS),
        }))
    }

    /// Returns the issuer, which identifies the provider.
    pub(crate) fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Returns the name of the provider on the login page.
    pub(crate) fn display_name(&self) -> &str {
        &self.display_name
    }

    /// Returns the groups of each role.
    pub(crate) fn groups(&self) -> &RoleGroups {
        &self.groups
    }

    /// Fetches the description and the keys of the provider, for `redrive doctor`.
    pub(crate) async fn check(&self) -> Result<(), LoginError> {
        let metadata = self.metadata().await?;
        self.keys(&metadata, false).await.map(drop)
    }

    /// Returns the URL at which the user logs in.
    pub(crate) async fn authorization_url(
        &self,
        login: &PendingLogin,
        redirect_uri: &str,
    ) -> Result<Url, LoginError> {
        let mut url = self.metadata().await?.authorization_endpoint.0.clone();
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.client_id)
            .append_pair("redirect_uri", redirect_uri)
            .append_pair("scope", &self.scope)
            .append_pair("state", &login.state)
            .append_pair("nonce", &login.nonce)
            .append_pair("code_challenge", &login.challenge())
            .append_pair("code_challenge_method", "S256");
        Ok(url)
    }

    /// Verifies the provider's response to a login, and returns the user.
    pub(crate) async fn identify(
        &self,
        login: &PendingLogin,
        response: &AuthorizationResponse,
        redirect_uri: &str,
        now: Time,
    ) -> Result<Identity, LoginError> {
        if !login.has_state(&response.state) {
            return Err(LoginError::StateMismatch);
        }
        if response.iss.as_ref().is_some_and(|issuer| *issuer != self.issuer) {
            return Err(LoginError::Token(TokenError::WrongIssuer));
        }
        if let Some(code) = &response.error {
            let description = response.error_description.as_deref().unwrap_or_default();
            return Err(LoginError::refused(code, description));
        }
        if response.code.is_empty() || response.code.len() > MAX_PARAMETER_BYTES {
            return Err(LoginError::StateMismatch);
        }
        let Ok(_permit) = self.logins.try_acquire() else {
            return Err(LoginError::Unavailable("too many logins are in progress".into()));
        };
        let metadata = self.metadata().await?;
        let tokens = self.exchange_code(&metadata, login, &response.code, redirect_uri).await?;
        let mut claims = self.verify(&metadata, login, &tokens, now).await?;
        if claims::at(&claims, &self.groups_claim).is_none() {
            self.add_userinfo(&metadata, &tokens, &mut claims).await?;
        }
        Ok(Identity::from_claims(&claims, &self.groups_claim, self.name_claim.as_deref())?)
    }

    async fn metadata(&self) -> Result<Arc<Metadata>, LoginError> {
        self.metadata.get(async || self.fetch_metadata().await).await
    }

    async fn fetch_metadata(&self) -> Result<Metadata, LoginError> {
        let mut url = self.issuer_url.clone();
        url.set_path(&format!("{}/.well-known/openid-configuration", url.path().trim_end_matches('/')));
        let metadata: Metadata = self.http.get_json(&url, None).await?;
        if metadata.issuer != self.issuer {
            let named: String = metadata.issuer.chars().take(200).collect();
            return Err(LoginError::InvalidResponse(format!(
                "it names itself {named:?}; set oidc.issuer to exactly this"
            )));
        }
        let endpoints = [&metadata.authorization_endpoint, &metadata.token_endpoint, &metadata.jwks_uri];
        for Endpoint(url) in endpoints.into_iter().chain(&metadata.userinfo_endpoint) {
            let is_safe = url.scheme() == "https" || url.scheme() == self.issuer_url.scheme();
            if !is_safe || url.host_str().is_none() {
                return Err(LoginError::InvalidResponse("its endpoints do not use https".into()));
            }
        }
        Ok(metadata)
    }

    /// Returns the keys of the provider; newer ones if `refresh` is set, because a token names an unknown one.
    async fn keys(&self, metadata: &Metadata, refresh: bool) -> Result<Arc<JwkSet>, LoginError> {
        let fetch = async || {
            let set: Value = self.http.get_json(&metadata.jwks_uri.0, None).await?;
            let keys = id_token::parse_keys(&set);
            keys.ok_or_else(|| LoginError::InvalidResponse("its key set has no \"keys\"".into()))
        };
        match refresh {
            true => self.keys.refresh(fetch).await,
            false => self.keys.get(fetch).await,
        }
    }

    /// Exchanges a code for tokens.
    async fn exchange_code(
        &self,
        metadata: &Metadata,
        login: &PendingLogin,
        code: &str,
        redirect_uri: &str,
    ) -> Result<Tokens, LoginError> {
        let mut fields = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", redirect_uri),
            ("client_id", &self.client_id),
            ("code_verifier", &login.verifier),
        ];
        let methods = &metadata.token_endpoint_auth_methods_supported;
        let has_basic = methods.iter().any(|method| method == "client_secret_basic");
        let secret = self.client_secret.as_ref().map(SecretSetting::reveal);
        let basic = secret.filter(|_| has_basic).map(|secret| (self.client_id.as_str(), secret));
        fields.extend(secret.filter(|_| !has_basic).map(|secret| ("client_secret", secret)));
        self.http.post_form(&metadata.token_endpoint.0, &fields, basic).await
    }

    /// Verifies the ID token and returns its claims.
    async fn verify(
        &self,
        metadata: &Metadata,
        login: &PendingLogin,
        tokens: &Tokens,
        now: Time,
    ) -> Result<Map<String, Value>, LoginError> {
        let Some(token) = &tokens.id_token else {
            return Err(LoginError::InvalidResponse("it returned no ID token".into()));
        };
        let expected =
            Expected { issuer: &self.issuer, client_id: &self.client_id, nonce: &login.nonce, now };
        match id_token::verify(token, &*self.keys(metadata, false).await?, &expected) {
            // The provider may have new keys.
            Err(TokenError::UnknownKey) => {
                Ok(id_token::verify(token, &*self.keys(metadata, true).await?, &expected)?)
            }
            verified => Ok(verified?),
        }
    }

    /// Adds the claims that the provider returns only at its userinfo endpoint.
    async fn add_userinfo(
        &self,
        metadata: &Metadata,
        tokens: &Tokens,
        claims: &mut Map<String, Value>,
    ) -> Result<(), LoginError> {
        let (Some(Endpoint(url)), Some(token)) = (&metadata.userinfo_endpoint, &tokens.access_token) else {
            return Ok(());
        };
        let more: Map<String, Value> = self.http.get_json(url, Some(token)).await?;
        if more.get("sub") != claims.get("sub") {
            return Err(LoginError::Token(TokenError::WrongSubject));
        }
        for (name, value) in more {
            claims.entry(name).or_insert(value);
        }
        Ok(())
    }
}
