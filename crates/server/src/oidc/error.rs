//! Reasons for which a login fails, in words for the user who sees them. They contain no token and no secret.

use redrive_core::security::visible_text::escape_deceptive;

/// Maximum length of a text of the provider that is shown.
const MAX_SHOWN_CHARS: usize = 200;

/// Reason for which a login of a user fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LoginError {
    /// No provider is configured.
    #[error("users cannot log in: no identity provider is configured")]
    NotConfigured,
    /// The browser has no login in progress.
    #[error("this browser has no login in progress, or the login took longer than 10 minutes")]
    NoPendingLogin,
    /// The response belongs to another login, or is incomplete.
    #[error(
        "the response of the identity provider does not belong to the login that this browser started last"
    )]
    StateMismatch,
    /// The login has started a session already.
    #[error("this login was already used to start a session")]
    AlreadyUsed,
    /// The provider refused the login.
    #[error("the identity provider refused the login: {0}")]
    Refused(String),
    /// The provider refused the code.
    #[error(
        "the identity provider did not accept the code of this login; a code is valid once and for a short time"
    )]
    CodeRejected,
    /// The provider refused Redrive itself.
    #[error("the identity provider does not accept this server as a client")]
    ClientRejected,
    /// The ID token is not valid.
    #[error("the identity provider sent an ID token that is not valid: {0}")]
    Token(#[from] TokenError),
    /// The user is in no group that has a role.
    #[error("the account {name} is in no group that may use this server")]
    NoRole {
        /// Name of the user.
        name: String,
    },
    /// The provider did not respond.
    #[error("the identity provider is not available: {0}")]
    Unavailable(String),
    /// The response is not one of an OpenID Connect provider.
    #[error("the identity provider returned an invalid response: {0}")]
    InvalidResponse(String),
}

impl LoginError {
    /// Creates the error for a login that the provider refused, with the provider's own words. They arrive in a URL, so
    /// they are shortened, and characters that hide others are escaped.
    pub(super) fn refused(code: &str, description: &str) -> Self {
        let text = match description {
            "" => code.to_owned(),
            description => format!("{code} ({description})"),
        };
        Self::Refused(escape_deceptive(&text).chars().take(MAX_SHOWN_CHARS).collect())
    }

    /// Returns what the user can do.
    pub(crate) fn advice(&self) -> &'static str {
        match self {
            Self::NotConfigured => "Log in with an API key.",
            Self::NoPendingLogin | Self::StateMismatch | Self::AlreadyUsed | Self::CodeRejected => {
                "Log in again, in one tab only. If it fails again, allow cookies of this site."
            }
            Self::Refused(_) => "Log in again, and accept the request of the identity provider.",
            Self::Token(TokenError::Expired | TokenError::NotYetValid) => {
                "Log in again. If it fails again, ask an administrator to compare the clocks of this server and of the \
                 identity provider."
            }
            Self::Token(_) => {
                "Log in again. If it fails again, ask an administrator to run redrive doctor and to compare oidc.issuer and \
                 oidc.client_id with the settings of the identity provider."
            }
            Self::ClientRejected => {
                "Ask an administrator to compare oidc.client_id and oidc.client_secret with the settings of the identity \
                 provider."
            }
            Self::NoRole { .. } => {
                "Ask an administrator to add you to one of the groups that oidc.viewer_groups, oidc.operator_groups or \
                 oidc.admin_groups name, then log in again."
            }
            Self::Unavailable(_) => {
                "Try again in a minute. Sessions that have started are not affected, and API keys still log in."
            }
            Self::InvalidResponse(_) => {
                "Ask an administrator to run redrive doctor and to check oidc.issuer. API keys still log in."
            }
        }
    }
}

/// Reason for which an ID token is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenError {
    /// It is no signed token with the required claims.
    #[error("it is malformed")]
    Malformed,
    /// It is not signed, or with an algorithm that is not accepted.
    #[error("it is not signed with an accepted algorithm")]
    UnsupportedAlgorithm,
    /// The provider has no such key.
    #[error("its key is unknown")]
    UnknownKey,
    /// The signature does not match.
    #[error("its signature does not match")]
    BadSignature,
    /// Another provider issued it.
    #[error("another issuer created it")]
    WrongIssuer,
    /// It was issued for another client.
    #[error("it is for another client")]
    WrongAudience,
    /// It belongs to another login.
    #[error("it is for another login (wrong nonce)")]
    WrongNonce,
    /// The userinfo endpoint described another user.
    #[error("it is for another user than the provider describes")]
    WrongSubject,
    /// It has expired.
    #[error("it has expired")]
    Expired,
    /// It was issued in the future.
    #[error("it was issued in the future")]
    NotYetValid,
}
