//! Login of users with the identity provider. What a login in progress needs is sealed into a cookie, so that any node
//! can finish it and nothing is stored before the user is known.

use std::{net::IpAddr, sync::Arc, time::Duration};

use redrive_core::{Time, tenancy::user_role::UserRole};
use redrive_store::{BrowserSession, SessionUser};
use serde_json::json;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::{
    Actor, App, AppError, Caller,
    audit::{AuditChange, AuditedAction},
    session::{MAX_SESSIONS_PER_KEY, SESSION_LIFETIME, with_timeout},
};
use crate::{
    config::{ConfigError, Oidc},
    oidc::{AuthorizationResponse, IdentityProvider, LoginError, PendingLogin},
};

/// Path to which the provider sends browsers back.
pub const CALLBACK_PATH: &str = "/dashboard/login/oidc/callback";
/// Time for which a login may take.
pub const LOGIN_LIFETIME: Duration = Duration::from_secs(600);
/// Purpose under which logins in progress are sealed.
const LOGIN_PURPOSE: &str = "redrive user login";
/// Purpose under which users are sealed who wait for the confirmation that they replace another session.
const OFFER_PURPOSE: &str = "redrive user login offer";
/// Lifetime of such an offer.
const OFFER_LIFETIME: Duration = Duration::from_secs(300);
/// Maximum length of the page to open after the login; a longer one is omitted.
const MAX_NEXT_BYTES: usize = 600;

/// Login of users with the configured identity provider.
#[derive(Debug)]
pub struct UserLogin {
    provider: IdentityProvider,
    /// URL to which the provider sends browsers back.
    redirect_uri: String,
}

impl UserLogin {
    /// Creates the configured login for a server with this base URL. Returns `None` if no provider is configured.
    pub(crate) fn from_settings(
        settings: &Oidc,
        base_url: Option<&str>,
    ) -> Result<Option<Self>, ConfigError> {
        let provider = IdentityProvider::from_settings(settings)?;
        let login = provider.zip(base_url).map(|(provider, base_url)| Self {
            provider,
            redirect_uri: format!("{base_url}{CALLBACK_PATH}"),
        });
        Ok(login)
    }
}

/// A login that has begun.
pub(crate) struct BegunLogin {
    /// URL at the provider.
    pub(crate) url: String,
    /// Value of the cookie that binds the login to the browser.
    pub(crate) cookie: String,
}

/// A user who has proved to be one, and may log in.
#[derive(Clone)]
pub(crate) struct VerifiedUser(SessionUser);

impl VerifiedUser {
    /// Returns the caller that a session of the user will have.
    pub(crate) fn caller(&self) -> Caller {
        Caller::from_user(user_hash(&self.0.issuer, &self.0.subject), &self.0)
    }
}

/// Returns the hash under which the sessions of a user are stored.
pub(super) fn user_hash(issuer: &str, subject: &str) -> [u8; 32] {
    let hash = Sha256::new().chain_update(b"redrive user\0").chain_update(issuer);
    // Neither a URL nor a subject has a control character.
    hash.chain_update(b"\0").chain_update(subject).finalize().into()
}

impl App {
    /// Returns the identity provider that users log in with. Returns `None` if only keys log in.
    pub(crate) fn identity_provider(&self) -> Option<&IdentityProvider> {
        self.rules.user_login.as_deref().map(|login| &login.provider)
    }

    /// Returns the URL that begins the login of a user. It is absolute, because the provider sends the browser back to the
    /// public URL, which needs the cookie.
    pub(crate) fn login_url(&self) -> Option<&str> {
        self.rules.user_login.as_deref()?.redirect_uri.strip_suffix("/callback")
    }

    fn user_login(&self) -> Result<&UserLogin, LoginError> {
        self.rules.user_login.as_deref().ok_or(LoginError::NotConfigured)
    }

    /// Begins the login of a user, who then continues at the page `next`.
    pub(crate) async fn begin_login(&self, next: &str) -> Result<BegunLogin, LoginError> {
        let UserLogin { provider, redirect_uri } = self.user_login()?;
        let login = PendingLogin::new(if next.len() <= MAX_NEXT_BYTES { next } else { "" });
        let url = provider.authorization_url(&login, redirect_uri).await?;
        let contents = Zeroizing::new(serde_json::to_vec(&login).unwrap_or_default());
        let cookie = self.sessions.seal(LOGIN_PURPOSE, &contents, self.engine.clock().now() + LOGIN_LIFETIME);
        Ok(BegunLogin { url: url.into(), cookie })
    }

    /// Finishes the login of a user. Returns the user and the page to open.
    pub(crate) async fn finish_login(
        &self,
        cookie: Option<&str>,
        response: &AuthorizationResponse,
    ) -> Result<(VerifiedUser, String), LoginError> {
        let UserLogin { provider, redirect_uri } = self.user_login()?;
        let now = self.engine.clock().now();
        let login = cookie.and_then(|cookie| self.sessions.open(LOGIN_PURPOSE, cookie, now));
        let login: Option<PendingLogin> = login.and_then(|contents| serde_json::from_slice(&contents).ok());
        let login = login.ok_or(LoginError::NoPendingLogin)?;
        let identity = provider.identify(&login, response, redirect_uri, now).await?;
        let Some(role) = provider.groups().role_of(&identity.groups) else {
            return Err(LoginError::NoRole { name: identity.name });
        };
        let user = SessionUser {
            issuer: provider.issuer().to_owned(),
            subject: identity.subject,
            name: identity.name,
            role,
            login_hash: login.hash(),
        };
        Ok((VerifiedUser(user), login.next.clone()))
    }

    /// Starts a session for a user and returns its cookie. Returns `Forbidden` if the login has started one already.
    pub(crate) async fn begin_user_session(
        &self,
        VerifiedUser(user): VerifiedUser,
        from: Option<IpAddr>,
    ) -> Result<String, AppError> {
        let key_hash = user_hash(&user.issuer, &user.subject);
        let actor = Actor { caller: Arc::new(Caller::from_user(key_hash, &user)), address: from };
        let object = actor.user.as_ref().map(super::auth::User::audit_subject);
        let audited = AuditedAction { action: "user.log_in", tenant: None, object };
        let after = Some(json!({"name": user.name, "role": user.role.name()}));
        self.with_audit(&actor, audited, async {
            let (session, cookie) = self.new_session(key_hash, Some(user));
            let create = self.store().create_browser_session(session, MAX_SESSIONS_PER_KEY);
            match with_timeout(create).await? {
                true => Ok((cookie, AuditChange { after, ..AuditChange::default() })),
                false => Err(AppError::Forbidden(LoginError::AlreadyUsed.to_string())),
            }
        })
        .await
    }

    /// Returns a new session, and the cookie that opens it.
    pub(super) fn new_session(
        &self,
        key_hash: [u8; 32],
        user: Option<SessionUser>,
    ) -> (BrowserSession, String) {
        let (created_at, secret) = self.session_secret();
        let expires_at = created_at + SESSION_LIFETIME;
        let id = Sha256::digest(secret.as_slice()).into();
        let session = BrowserSession { id, key_hash, user, created_at, expires_at };
        (session, self.sessions.seal_cookie(&secret, expires_at))
    }

    /// Returns the caller of a user's session. Returns `None` if users of its provider may not log in any more.
    pub(super) fn user_caller(&self, session: &BrowserSession, user: &SessionUser) -> Option<Arc<Caller>> {
        let provider = self.identity_provider().filter(|provider| provider.issuer() == user.issuer)?;
        let is_granted = match user.role {
            UserRole::Viewer => &provider.groups().viewer,
            UserRole::Operator => &provider.groups().operator,
            UserRole::Admin => &provider.groups().admin,
        };
        (!is_granted.is_empty()).then(|| Arc::new(Caller::from_user(session.key_hash, user)))
    }

    /// Seals a user, for the page that asks whether the login may replace the current session.
    pub(crate) fn offer_user(&self, VerifiedUser(user): &VerifiedUser) -> String {
        let fields = (&user.subject, &user.name, user.role.name(), user.login_hash);
        let contents = serde_json::to_vec(&fields).unwrap_or_default();
        self.sessions.seal(OFFER_PURPOSE, &contents, self.engine.clock().now() + OFFER_LIFETIME)
    }

    /// Returns the user of such an offer. Returns `None` if it was not issued here or has expired.
    pub(crate) fn offered_user(&self, offer: &str) -> Option<VerifiedUser> {
        let contents = self.sessions.open(OFFER_PURPOSE, offer, self.engine.clock().now())?;
        let (subject, name, role, login_hash): (String, String, String, [u8; 32]) =
            serde_json::from_slice(&contents).ok()?;
        let issuer = self.identity_provider()?.issuer().to_owned();
        let role = UserRole::ALL.into_iter().find(|known| known.name() == role)?;
        Some(VerifiedUser(SessionUser { issuer, subject, name, role, login_hash }))
    }

    fn session_secret(&self) -> (Time, Zeroizing<[u8; 32]>) {
        (self.engine.clock().now(), Zeroizing::new(redrive_engine::clock::secret_bytes()))
    }
}
