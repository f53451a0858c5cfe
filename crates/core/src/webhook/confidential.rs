//! Confidential fields of a webhook (secrets, custom headers, credentials): stored encrypted, never returned after
//! creation.

use std::{collections::BTreeMap, fmt};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::HeaderValue;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::{
    field_error::FieldError,
    security::signature::LiveSecret,
    webhook::{MAX_HEADER_VALUE, Webhook},
};

/// A secret text, redacted in debug output and wiped from memory when dropped.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretString(Zeroizing<String>);

impl SecretString {
    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// Returns the plain text.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// Credentials for an endpoint, in addition to the signature. Sent as `Authorization`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointAuth {
    /// HTTP basic authentication.
    Basic {
        /// The user name, without a colon.
        username: String,
        /// The password.
        password: SecretString,
    },
    /// A bearer token.
    Bearer {
        /// The token.
        token: SecretString,
    },
}

impl EndpointAuth {
    /// Returns the kind, as named in the API.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Basic { .. } => "basic",
            Self::Bearer { .. } => "bearer",
        }
    }

    /// Returns an error if the credentials cannot be sent in a header.
    pub fn validate(&self) -> Result<(), FieldError> {
        match self {
            Self::Basic { username, password } => {
                let fits = |text: &str| text.len() <= 1024 && !text.chars().any(char::is_control);
                if username.contains(':') || !fits(username) {
                    return Err(FieldError::new(
                        "auth.username",
                        "must have no colon and no control characters, and at most 1024 bytes",
                    ));
                }
                if !fits(password.reveal()) {
                    return Err(FieldError::new(
                        "auth.password",
                        "must have no control characters, and at most 1024 bytes",
                    ));
                }
            }
            Self::Bearer { token } => {
                let token = token.reveal();
                let visible = token.bytes().all(|byte| byte.is_ascii_graphic());
                if token.is_empty() || token.len() > MAX_HEADER_VALUE || !visible {
                    return Err(FieldError::new(
                        "auth.token",
                        format!("must be 1 to {MAX_HEADER_VALUE} visible ASCII characters without spaces"),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Returns the value of the `Authorization` header.
    pub fn header(&self) -> Option<HeaderValue> {
        let value = match self {
            Self::Basic { username, password } => {
                let pair = Zeroizing::new(format!("{username}:{}", password.reveal()));
                format!("Basic {}", STANDARD.encode(&*pair))
            }
            Self::Bearer { token } => format!("Bearer {}", token.reveal()),
        };
        let mut value = HeaderValue::try_from(value).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

/// The plaintext form of all confidential fields. Must be used for sealing and unsealing only.
#[derive(Serialize, Deserialize)]
struct Plaintext {
    secrets: Vec<LiveSecret>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    auth: Option<PlaintextAuth>,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum PlaintextAuth {
    Basic { username: String, password: String },
    Bearer { token: String },
}

/// Returns the confidential fields of a webhook as plaintext, to be sealed.
pub fn to_plaintext(webhook: &Webhook) -> Zeroizing<Vec<u8>> {
    let reveal = |hidden: &SecretString| hidden.reveal().to_owned();
    let auth = webhook.spec.auth.as_ref().map(|auth| match auth {
        EndpointAuth::Basic { username, password } => {
            PlaintextAuth::Basic { username: username.clone(), password: reveal(password) }
        }
        EndpointAuth::Bearer { token } => PlaintextAuth::Bearer { token: reveal(token) },
    });
    let headers = webhook.spec.headers.iter().map(|(name, value)| (name.clone(), reveal(value))).collect();
    let in_clear = Plaintext { secrets: webhook.secrets.clone(), headers, auth };
    Zeroizing::new(serde_json::to_vec(&in_clear).expect("texts and times can be written as JSON"))
}

/// Restores the confidential fields from unsealed plaintext. Returns `None` if it cannot be parsed.
pub fn restore_plaintext(webhook: &mut Webhook, contents: &[u8]) -> Option<()> {
    let Plaintext { secrets, headers, auth } = serde_json::from_slice(contents).ok()?;
    webhook.secrets = secrets;
    webhook.spec.headers =
        headers.into_iter().map(|(name, value)| (name, SecretString::new(value))).collect();
    webhook.spec.auth = auth.map(|auth| match auth {
        PlaintextAuth::Basic { username, password } => {
            EndpointAuth::Basic { username, password: SecretString::new(password) }
        }
        PlaintextAuth::Bearer { token } => EndpointAuth::Bearer { token: SecretString::new(token) },
    });
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        id::WebhookId,
        security::signature::Secret,
        tenancy::TenantId,
        time::Time,
        webhook::{WebhookSpec, WebhookState},
    };

    fn webhook() -> Webhook {
        let spec = WebhookSpec {
            headers: [("x-key".to_owned(), SecretString::new("planted-header"))].into(),
            auth: Some(EndpointAuth::Basic {
                username: "me".into(),
                password: SecretString::new("planted-password"),
            }),
            ..WebhookSpec::default()
        };
        let secret = Secret::from_bytes(&[7; 32]);
        Webhook {
            id: WebhookId::new(Time::default(), &[1; 10]),
            tenant_id: TenantId::default(),
            spec,
            secrets: vec![LiveSecret { secret, created_at: Time::default(), expires_at: None }],
            state: WebhookState::Active,
            created_at: Time::default(),
            updated_at: Time::default(),
        }
    }

    #[test]
    fn confidential_fields_round_trip() {
        let webhook = webhook();
        let contents = to_plaintext(&webhook);
        let mut bare = Webhook { secrets: Vec::new(), ..webhook.clone() };
        bare.spec = serde_json::from_str(&serde_json::to_string(&webhook.spec).unwrap()).unwrap();
        assert!(
            bare.spec.headers.is_empty() && bare.spec.auth.is_none(),
            "confidential fields are not in the plain part"
        );
        restore_plaintext(&mut bare, &contents).unwrap();
        assert_eq!(bare, webhook);
        assert!(restore_plaintext(&mut bare, b"{}").is_none());
    }

    #[test]
    fn debug_output_is_redacted() {
        let webhook = webhook();
        let shown = format!("{webhook:?} {}", serde_json::to_string(&webhook.spec).unwrap());
        for planted in ["planted", &webhook.secrets[0].secret.reveal()] {
            assert!(!shown.contains(planted), "{shown}");
        }
    }

    #[test]
    fn authorization_header_follows_the_standards() {
        let basic = |username: &str, password: &str| EndpointAuth::Basic {
            username: username.into(),
            password: SecretString::new(password),
        };
        let bearer = |token: &str| EndpointAuth::Bearer { token: SecretString::new(token) };
        // Example from RFC 7617.
        assert_eq!(basic("Aladdin", "open sesame").header().unwrap(), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert_eq!(bearer("abc").header().unwrap(), "Bearer abc");
        assert!(bearer("abc").header().unwrap().is_sensitive());
        for good in [basic("", ""), basic("me", "pass:word"), bearer("a.b-c_d~e+f/g=")] {
            assert_eq!(good.validate(), Ok(()));
        }
        for bad in [basic("a:b", ""), basic("a", "b\n"), bearer(""), bearer("a b"), bearer("a\r\nx: y")] {
            assert!(bad.validate().is_err());
        }
    }
}
