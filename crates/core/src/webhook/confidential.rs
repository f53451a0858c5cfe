//! What of a webhook is nobody's business but its own: it is stored sealed, and shown to nobody once it was given.

use std::{collections::BTreeMap, fmt};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::HeaderValue;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::{
    field_error::Invalid,
    security::signature::LiveSecret,
    webhook::{MAX_HEADER_VALUE, Webhook},
};

/// A text that must not be shown. Wiped from memory when dropped.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Hidden(Zeroizing<String>);

impl Hidden {
    /// Hides a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// The text, for the one who has to use it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// How an endpoint wants to be convinced, beside the signature. Sent as `Authorization`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointAuth {
    /// HTTP basic authentication.
    Basic {
        /// The user's name, which has no colon.
        username: String,
        /// The password.
        password: Hidden,
    },
    /// A bearer token.
    Bearer {
        /// The token.
        token: Hidden,
    },
}

impl EndpointAuth {
    /// The kind, as the API calls it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Basic { .. } => "basic",
            Self::Bearer { .. } => "bearer",
        }
    }

    /// Checks that it can be sent.
    pub fn validate(&self) -> Result<(), Invalid> {
        match self {
            Self::Basic { username, password } => {
                let fits = |text: &str| text.len() <= 1024 && !text.chars().any(char::is_control);
                if username.contains(':') || !fits(username) {
                    return Err(Invalid::new(
                        "auth.username",
                        "must have no colon and no control characters, and at most 1024 bytes",
                    ));
                }
                if !fits(password.reveal()) {
                    return Err(Invalid::new(
                        "auth.password",
                        "must have no control characters, and at most 1024 bytes",
                    ));
                }
            }
            Self::Bearer { token } => {
                let token = token.reveal();
                let visible = token.bytes().all(|byte| byte.is_ascii_graphic());
                if token.is_empty() || token.len() > MAX_HEADER_VALUE || !visible {
                    return Err(Invalid::new(
                        "auth.token",
                        format!("must be 1 to {MAX_HEADER_VALUE} visible ASCII characters without spaces"),
                    ));
                }
            }
        }
        Ok(())
    }

    /// The value of the header.
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

/// The form in which it all is sealed. It holds everything in clear, and is for sealing alone.
#[derive(Serialize, Deserialize)]
struct InClear {
    secrets: Vec<LiveSecret>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    auth: Option<AuthInClear>,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum AuthInClear {
    Basic { username: String, password: String },
    Bearer { token: String },
}

/// What is to be sealed of a webhook.
pub fn contents_of(webhook: &Webhook) -> Zeroizing<Vec<u8>> {
    let reveal = |hidden: &Hidden| hidden.reveal().to_owned();
    let auth = webhook.spec.auth.as_ref().map(|auth| match auth {
        EndpointAuth::Basic { username, password } => {
            AuthInClear::Basic { username: username.clone(), password: reveal(password) }
        }
        EndpointAuth::Bearer { token } => AuthInClear::Bearer { token: reveal(token) },
    });
    let headers = webhook.spec.headers.iter().map(|(name, value)| (name.clone(), reveal(value))).collect();
    let in_clear = InClear { secrets: webhook.secrets.clone(), headers, auth };
    Zeroizing::new(serde_json::to_vec(&in_clear).expect("texts and times can be written as JSON"))
}

/// Puts back what was sealed. None: it makes no sense.
pub fn put_back(webhook: &mut Webhook, contents: &[u8]) -> Option<()> {
    let InClear { secrets, headers, auth } = serde_json::from_slice(contents).ok()?;
    webhook.secrets = secrets;
    webhook.spec.headers = headers.into_iter().map(|(name, value)| (name, Hidden::new(value))).collect();
    webhook.spec.auth = auth.map(|auth| match auth {
        AuthInClear::Basic { username, password } => {
            EndpointAuth::Basic { username, password: Hidden::new(password) }
        }
        AuthInClear::Bearer { token } => EndpointAuth::Bearer { token: Hidden::new(token) },
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
            headers: [("x-key".to_owned(), Hidden::new("planted-header"))].into(),
            auth: Some(EndpointAuth::Basic {
                username: "me".into(),
                password: Hidden::new("planted-password"),
            }),
            ..WebhookSpec::default()
        };
        let secret = Secret::from_bytes(&[7; 32]);
        Webhook {
            id: WebhookId::new(Time::default(), &[1; 10]),
            tenant: TenantId::default(),
            spec,
            secrets: vec![LiveSecret { secret, created_at: Time::default(), expires_at: None }],
            state: WebhookState::Active,
            created_at: Time::default(),
            updated_at: Time::default(),
        }
    }

    #[test]
    fn what_is_sealed_comes_back() {
        let webhook = webhook();
        let contents = contents_of(&webhook);
        let mut bare = Webhook { secrets: Vec::new(), ..webhook.clone() };
        bare.spec = serde_json::from_str(&serde_json::to_string(&webhook.spec).unwrap()).unwrap();
        assert!(bare.spec.headers.is_empty() && bare.spec.auth.is_none(), "not in the open part");
        put_back(&mut bare, &contents).unwrap();
        assert_eq!(bare, webhook);
        assert!(put_back(&mut bare, b"{}").is_none());
    }

    #[test]
    fn nothing_shows_itself() {
        let webhook = webhook();
        let shown = format!("{webhook:?} {}", serde_json::to_string(&webhook.spec).unwrap());
        for planted in ["planted", &webhook.secrets[0].secret.reveal()] {
            assert!(!shown.contains(planted), "{shown}");
        }
    }

    #[test]
    fn headers_are_as_the_standards_say() {
        let basic = |username: &str, password: &str| EndpointAuth::Basic {
            username: username.into(),
            password: Hidden::new(password),
        };
        let bearer = |token: &str| EndpointAuth::Bearer { token: Hidden::new(token) };
        // The example of RFC 7617.
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
