//! An OpenID Connect provider that misbehaves on request: it creates the tokens that a real provider never creates, with
//! real signatures. Its login page accepts everyone immediately.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::STANDARD, engine::general_purpose::URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use ring::{
    hmac,
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use url::{Url, form_urlencoded};

use crate::{ReceivedRequest, Receiver, Reply};

/// Client id and secret of Redrive at the provider. The characters need encoding in the `Authorization` header.
const CLIENT_ID: &str = "redrive:tests";
const CLIENT_SECRET: &str = "s3cr%t +/=";

/// What is wrong with the provider's next responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// The ID token names another issuer.
    WrongIssuer,
    /// The ID token is for another client.
    WrongAudience,
    /// The ID token is for this and another client, and was issued to the other one.
    OtherParty,
    /// The ID token has the nonce of another login.
    WrongNonce,
    /// The ID token has no nonce.
    MissingNonce,
    /// The ID token has expired.
    Expired,
    /// The ID token has no expiry.
    MissingExpiry,
    /// The expiry is a text.
    TextualExpiry,
    /// The ID token was issued in an hour.
    IssuedInFuture,
    /// The claims were changed after signing.
    TamperedClaims,
    /// The ID token is not signed (`alg: none`).
    Unsigned,
    /// The ID token is signed with the client secret (`HS256`).
    SignedWithClientSecret,
    /// The ID token is signed with the public key as a shared secret (`HS256`).
    SignedWithPublicKey,
    /// The ID token is signed with a key that the provider does not publish.
    UnpublishedKey,
    /// There is no ID token.
    MissingIdToken,
    /// The subject is missing.
    MissingSubject,
    /// The userinfo endpoint describes another user.
    OtherUserinfo,
    /// The response of the authorization endpoint names another issuer.
    ResponseOfOtherIssuer,
    /// The login is refused with an error and a description that has markup.
    Refuses,
    /// The discovery document names another issuer.
    DiscoveryOfOtherIssuer,
    /// The token endpoint responds with more bytes than any client should read.
    EndlessTokenResponse,
    /// The token endpoint responds with HTML.
    HtmlTokenResponse,
    /// The token endpoint accepts a code more than once.
    AcceptsCodeTwice,
}

enum Key {
    Ed25519(Ed25519KeyPair),
    P256(EcdsaKeyPair),
}

impl Key {
    fn sign(&self, message: &str) -> Vec<u8> {
        match self {
            Self::Ed25519(key) => key.sign(message.as_bytes()).as_ref().to_vec(),
            Self::P256(key) => key.sign(&SystemRandom::new(), message.as_bytes()).unwrap().as_ref().to_vec(),
        }
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Self::Ed25519(_) => "EdDSA",
            Self::P256(_) => "ES256",
        }
    }

    fn jwk(&self, id: &str) -> Value {
        let common = |jwk: &mut Value| {
            (jwk["kid"], jwk["use"], jwk["alg"]) = (json!(id), json!("sig"), json!(self.algorithm()));
        };
        let mut jwk = match self {
            Self::Ed25519(key) => {
                json!({"kty": "OKP", "crv": "Ed25519", "x": encode(key.public_key().as_ref())})
            }
            Self::P256(key) => {
                let (x, y) = key.public_key().as_ref()[1..].split_at(32);
                json!({"kty": "EC", "crv": "P-256", "x": encode(x), "y": encode(y)})
            }
        };
        common(&mut jwk);
        jwk
    }

    fn public_bytes(&self) -> &[u8] {
        match self {
            Self::Ed25519(key) => key.public_key().as_ref(),
            Self::P256(key) => key.public_key().as_ref(),
        }
    }
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn new_ed25519() -> Key {
    let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    Key::Ed25519(Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap())
}

fn new_p256() -> Key {
    let (algorithm, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
    let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
    Key::P256(EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap())
}

/// A code that was not exchanged yet.
struct Grant {
    nonce: String,
    challenge: String,
    redirect_uri: String,
}

struct State {
    issuer: String,
    key: Key,
    key_number: u32,
    claims: Value,
    /// Claims that only the userinfo endpoint returns.
    userinfo: Option<Value>,
    fault: Fault,
    grants: HashMap<String, Grant>,
}

/// The provider. It stops when it is dropped.
pub struct IdentityProvider {
    receiver: Receiver,
    state: Arc<Mutex<State>>,
}

impl IdentityProvider {
    /// Starts a provider whose user is in no group.
    pub async fn start() -> Self {
        let state = State {
            issuer: String::new(),
            key: new_ed25519(),
            key_number: 1,
            claims: json!({"sub": "u-0"}),
            userinfo: None,
            fault: Fault::None,
            grants: HashMap::new(),
        };
        let state = Arc::new(Mutex::new(state));
        let shared = state.clone();
        let receiver = Receiver::with(move |request| shared.lock().respond(request)).await;
        state.lock().issuer = receiver.url_at("/realms/staff");
        Self { receiver, state }
    }

    /// Returns the settings of a server whose users log in here.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("REDRIVE_OIDC_ISSUER", self.state.lock().issuer.clone()),
            ("REDRIVE_OIDC_CLIENT_ID", CLIENT_ID.into()),
            ("REDRIVE_OIDC_CLIENT_SECRET", CLIENT_SECRET.into()),
            ("REDRIVE_OIDC_VIEWER_GROUPS", r#"["readers"]"#.into()),
            ("REDRIVE_OIDC_OPERATOR_GROUPS", r#"["support"]"#.into()),
            ("REDRIVE_OIDC_ADMIN_GROUPS", r#"["platform"]"#.into()),
        ]
    }

    /// Sets the user who logs in next.
    pub fn set_user(&self, subject: &str, name: &str, groups: &[&str]) {
        let mut state = self.state.lock();
        state.claims = json!({"sub": subject, "name": name, "groups": groups});
        state.userinfo = None;
    }

    /// Returns the groups only at the userinfo endpoint.
    pub fn move_groups_to_userinfo(&self) {
        let mut state = self.state.lock();
        let groups = state.claims.as_object_mut().and_then(|claims| claims.remove("groups"));
        state.userinfo = Some(json!({"sub": state.claims["sub"], "groups": groups}));
    }

    /// Sets what is wrong with the next responses.
    pub fn set_fault(&self, fault: Fault) {
        self.state.lock().fault = fault;
    }

    /// Replaces the signing key by one with another algorithm.
    pub fn rotate_key(&self) {
        let mut state = self.state.lock();
        state.key = match state.key {
            Key::Ed25519(_) => new_p256(),
            Key::P256(_) => new_ed25519(),
        };
        state.key_number += 1;
    }

    /// Returns how many requests a path below the issuer got, such as `/jwks`.
    pub fn count(&self, path: &str) -> usize {
        let path = format!("/realms/staff{path}");
        let arrivals = self.receiver.arrivals();
        arrivals.iter().filter(|one| one.path.split('?').next() == Some(path.as_str())).count()
    }
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64
}

fn json_reply(status: u16, body: &Value) -> Reply {
    Reply::status(status).header("content-type", "application/json").body(body.to_string())
}

fn oauth_error(status: u16, code: &str) -> Reply {
    json_reply(status, &json!({"error": code, "error_description": "as the test expects"}))
}

impl State {
    fn respond(&mut self, request: &ReceivedRequest) -> Reply {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        match path.strip_prefix("/realms/staff").unwrap_or(path) {
            "/.well-known/openid-configuration" => json_reply(200, &self.discovery()),
            "/jwks" => {
                let id = format!("key-{}", self.key_number);
                // A key of an unknown kind must not make the others useless.
                json_reply(200, &json!({"keys": [{"kty": "future", "kid": "x"}, self.key.jwk(&id)]}))
            }
            "/authorize" => self.authorize(query),
            "/token" => self.token(request),
            "/userinfo" => self.userinfo(request),
            _ => Reply::status(404),
        }
    }

    fn discovery(&self) -> Value {
        let issuer = &self.issuer;
        let named = match self.fault {
            Fault::DiscoveryOfOtherIssuer => "https://other.example.com",
            _ => issuer,
        };
        json!({
            "issuer": named,
            "authorization_endpoint": format!("{issuer}/authorize"),
            "token_endpoint": format!("{issuer}/token"),
            "jwks_uri": format!("{issuer}/jwks"),
            "userinfo_endpoint": format!("{issuer}/userinfo"),
            "response_types_supported": ["code"],
        })
    }

    /// Logs the user in and sends the browser back.
    fn authorize(&mut self, query: &str) -> Reply {
        let parameters: HashMap<_, _> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let get = |name: &str| parameters.get(name).cloned().unwrap_or_default();
        let is_valid = get("response_type") == "code"
            && get("client_id") == CLIENT_ID
            && get("code_challenge_method") == "S256"
            && get("scope").split(' ').any(|scope| scope == "openid");
        if !is_valid {
            return Reply::status(400).body(format!("bad request: {query}"));
        }
        let redirect_uri = get("redirect_uri");
        let mut back = Url::parse(&redirect_uri).unwrap();
        let issuer = match self.fault {
            Fault::ResponseOfOtherIssuer => "https://other.example.com",
            _ => &self.issuer,
        };
        back.query_pairs_mut().append_pair("state", &get("state")).append_pair("iss", issuer);
        if self.fault == Fault::Refuses {
            back.query_pairs_mut()
                .append_pair("error", "access_denied")
                .append_pair("error_description", "<b>no\u{202e}</b>");
        } else {
            let code = format!("code-{}-{}", self.grants.len(), get("nonce"));
            back.query_pairs_mut().append_pair("code", &code);
            let grant = Grant { nonce: get("nonce"), challenge: get("code_challenge"), redirect_uri };
            self.grants.insert(code, grant);
        }
        Reply::status(302).header("location", back.as_str())
    }

    /// Exchanges a code for tokens.
    fn token(&mut self, request: &ReceivedRequest) -> Reply {
        let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
        let credentials = STANDARD.encode(format!("{}:{}", encoded(CLIENT_ID), encoded(CLIENT_SECRET)));
        if request.header("authorization") != Some(&format!("Basic {credentials}")) {
            return oauth_error(401, "invalid_client");
        }
        let form: HashMap<_, _> = form_urlencoded::parse(&request.body).into_owned().collect();
        let get = |name: &str| form.get(name).map(String::as_str).unwrap_or_default();
        let Some(grant) = self.grants.get(get("code")) else { return oauth_error(400, "invalid_grant") };
        let is_proved = encode(Sha256::digest(get("code_verifier"))) == grant.challenge;
        if !is_proved || get("redirect_uri") != grant.redirect_uri {
            return oauth_error(400, "invalid_grant");
        }
        match self.fault {
            Fault::HtmlTokenResponse => return Reply::status(200).body("<html>"),
            Fault::EndlessTokenResponse => return Reply::status(200).body(vec![b' '; 2 << 20]),
            _ => {}
        }
        let mut tokens = json!({"token_type": "Bearer", "access_token": "access-1", "expires_in": 60});
        if self.fault != Fault::MissingIdToken {
            tokens["id_token"] = self.id_token(&grant.nonce).into();
        }
        if self.fault != Fault::AcceptsCodeTwice {
            self.grants.remove(get("code"));
        }
        json_reply(200, &tokens)
    }

    fn claims(&self, nonce: &str) -> Value {
        let mut claims = self.claims.clone();
        claims["iss"] = self.issuer.clone().into();
        claims["aud"] = CLIENT_ID.into();
        claims["nonce"] = nonce.into();
        claims["iat"] = now().into();
        claims["exp"] = (now() + 60).into();
        match self.fault {
            Fault::WrongIssuer => claims["iss"] = "https://other.example.com".into(),
            Fault::WrongAudience => claims["aud"] = "other".into(),
            Fault::OtherParty => {
                claims["aud"] = json!([CLIENT_ID, "other"]);
                claims["azp"] = "other".into();
            }
            Fault::WrongNonce => claims["nonce"] = "nonce-of-another-login".into(),
            Fault::Expired => {
                claims["iat"] = (now() - 7_200).into();
                claims["exp"] = (now() - 3_600).into();
            }
            Fault::TextualExpiry => claims["exp"] = "never".into(),
            Fault::IssuedInFuture => claims["iat"] = (now() + 3_600).into(),
            _ => {}
        }
        let removed = match self.fault {
            Fault::MissingNonce => "nonce",
            Fault::MissingExpiry => "exp",
            Fault::MissingSubject => "sub",
            _ => "",
        };
        claims.as_object_mut().unwrap().remove(removed);
        claims
    }

    fn id_token(&self, nonce: &str) -> String {
        let claims = self.claims(nonce);
        let id = match self.fault {
            Fault::UnpublishedKey => "unpublished".to_owned(),
            _ => format!("key-{}", self.key_number),
        };
        let part = |value: &Value| encode(value.to_string());
        let joined = |algorithm: &str, claims: &Value| {
            format!("{}.{}", part(&json!({"alg": algorithm, "typ": "JWT", "kid": id})), part(claims))
        };
        let shared = |secret: &[u8]| {
            let message = joined("HS256", &claims);
            let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message.as_bytes());
            format!("{message}.{}", encode(tag))
        };
        let message = joined(self.key.algorithm(), &claims);
        match self.fault {
            Fault::Unsigned => format!("{}.", joined("none", &claims)),
            Fault::SignedWithClientSecret => shared(CLIENT_SECRET.as_bytes()),
            Fault::SignedWithPublicKey => shared(self.key.public_bytes()),
            Fault::UnpublishedKey => format!("{message}.{}", encode(new_ed25519().sign(&message))),
            Fault::TamperedClaims => {
                let mut tampered = claims.clone();
                tampered["groups"] = json!(["platform"]);
                tampered["sub"] = "u-root".into();
                let signature = encode(self.key.sign(&message));
                format!("{}.{signature}", joined(self.key.algorithm(), &tampered))
            }
            _ => format!("{message}.{}", encode(self.key.sign(&message))),
        }
    }

    fn userinfo(&self, request: &ReceivedRequest) -> Reply {
        if request.header("authorization") != Some("Bearer access-1") {
            return Reply::status(401);
        }
        let mut userinfo = self.userinfo.clone().unwrap_or_else(|| json!({"sub": self.claims["sub"]}));
        if self.fault == Fault::OtherUserinfo {
            userinfo["sub"] = "u-other".into();
        }
        json_reply(200, &userinfo)
    }
}
