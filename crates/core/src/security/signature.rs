//! Signing secrets, and the signatures that prove to an endpoint that a request comes from this server.
//!
//! A secret must never be printed by accident: it has no `Display`, and its `Debug` is redacted.

use std::{fmt, time::Duration};

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, STANDARD_PAD_INDIFFERENT},
};
use ed25519_dalek::{Signer, SigningKey};
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::{field_error::FieldError, time::Time};

const PREFIX: &str = "whsec_";
const PUBLIC_PREFIX: &str = "whpk_";
/// Length of a key in bytes. A generated key has 32.
const LENGTHS: std::ops::RangeInclusive<usize> = 16..=256;

/// A webhook's signing secret. Wiped from memory when dropped.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Parses a secret of 16 to 256 bytes: `whsec_` and the bytes in standard base64, with or without padding; or plain
    /// text, whose bytes are the key as they are.
    ///
    /// ```
    /// use redrive_core::security::signature::Secret;
    ///
    /// let plain = Secret::parse("correct horse battery").unwrap();
    /// assert_eq!(plain.key(), b"correct horse battery");
    /// assert_eq!(plain.reveal(), "whsec_Y29ycmVjdCBob3JzZSBiYXR0ZXJ5");
    /// assert_eq!(Secret::parse(&plain.reveal()), Ok(plain));
    /// ```
    pub fn parse(text: &str) -> Result<Self, FieldError> {
        // Wrapped before the length check, so that a refused secret is wiped from memory as well. The messages omit
        // the text: it may be a real secret with a typo.
        let (key, what) = match text.strip_prefix(PREFIX) {
            Some(encoded) => match STANDARD_PAD_INDIFFERENT.decode(encoded) {
                Ok(key) => (Zeroizing::new(key), "its base64 encodes"),
                Err(_) => {
                    let message = "begins with whsec_, but the rest is not base64; check it for a typo, or omit the \
                                   field to get a generated secret";
                    return Err(FieldError::new("secret", message));
                }
            },
            None => (Zeroizing::new(text.as_bytes().to_vec()), "it has"),
        };
        if LENGTHS.contains(&key.len()) {
            return Ok(Self(key));
        }
        let (min, max) = (LENGTHS.start(), LENGTHS.end());
        let message = format!(
            "must have {min} to {max} bytes, as plain text or as whsec_ and base64, but {what} {}; omit it to get a \
             generated secret",
            key.len()
        );
        Err(FieldError::new("secret", message))
    }

    /// Creates a secret from raw bytes.
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        Self(Zeroizing::new(bytes.to_vec()))
    }

    /// Returns the secret in plaintext, to be shown to its owner once.
    pub fn reveal(&self) -> String {
        // Allocate the full capacity up front: reallocation would leave copies of the secret in memory.
        let mut text = String::with_capacity(PREFIX.len() + self.0.len().div_ceil(3) * 4);
        text.push_str(PREFIX);
        STANDARD.encode_string(&*self.0, &mut text);
        text
    }

    /// Returns the bytes to sign with.
    pub fn key(&self) -> &[u8] {
        &self.0
    }

    /// Derives the Ed25519 key from the secret, so that one secret serves every scheme.
    fn signing_key(&self) -> SigningKey {
        let seed: Zeroizing<[u8; 32]> = Zeroizing::new(
            Sha256::new().chain_update(b"redrive ed25519\0").chain_update(&*self.0).finalize().into(),
        );
        SigningKey::from_bytes(&seed)
    }

    /// Returns the Ed25519 public key in the form given to receivers: `whpk_` and 32 bytes in base64.
    pub fn public_key(&self) -> String {
        format!("{PUBLIC_PREFIX}{}", STANDARD.encode(self.signing_key().verifying_key().as_bytes()))
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

/// One of a webhook's secrets, with its validity period.
///
/// Its serialised form contains the secret in plaintext. That form is for the store alone; it must never be used
/// for an API response, a log record or an audit entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LiveSecret {
    /// The secret.
    #[serde(with = "in_clear")]
    pub secret: Secret,
    /// Time from which it signs.
    pub created_at: Time,
    /// Time from which it no longer signs; `None` for the newest secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
}

/// The stored form of a secret. Not implemented on [`Secret`] itself, so that nothing else can serialise one.
mod in_clear {
    use serde::{Deserialize, Deserializer, Serializer, de};
    use zeroize::Zeroizing;

    use super::Secret;

    pub(super) fn serialize<S: Serializer>(secret: &Secret, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&Zeroizing::new(secret.reveal()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
        let text = Zeroizing::new(String::deserialize(deserializer)?);
        Secret::parse(&text).map_err(de::Error::custom)
    }
}

/// Returns the secrets that sign at this time, newest first (the stored order).
pub fn live_secrets(secrets: &[LiveSecret], now: Time) -> impl Iterator<Item = &Secret> {
    let signs = move |secret: &&LiveSecret| secret.expires_at.is_none_or(|end| now < end);
    secrets.iter().filter(signs).map(|secret| &secret.secret)
}

/// The scheme of `webhook-signature`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Scheme {
    /// Standard Webhooks `v1`: HMAC-SHA256 over id, time and body.
    #[default]
    Standard,
    /// Standard Webhooks `v1a`: Ed25519 over the same. A verifier needs only the public key.
    StandardEd25519,
}

/// The form of `X-Webhook-Signature`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum HeaderForm {
    /// `t=<unix>,v1=<hex>` over `<unix>.<body>`, with one `v1` per live secret.
    #[default]
    Timestamped,
    /// `sha256=<hex>` over the body, by the newest secret.
    Sha256,
}

/// How the requests to a webhook are signed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SignatureConfig {
    /// The scheme of `webhook-signature`.
    pub scheme: Scheme,
    /// The form of `X-Webhook-Signature`.
    pub header_format: HeaderForm,
}

/// The signature headers of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signatures {
    /// The value of `webhook-signature`.
    pub webhook_signature: String,
    /// The value of `X-Webhook-Signature`.
    pub x_webhook_signature: String,
}

/// Signs a request with every given secret. `secrets` is the result of [`live_secrets`], newest first.
///
/// ```
/// use std::time::Duration;
///
/// use redrive_core::{
///     Time,
///     security::signature::{LiveSecret, Secret, SignatureConfig, live_secrets, rotate, sign},
/// };
///
/// let (now, hour) = (Time::from_secs(1_700_000_000), Duration::from_secs(3600));
/// let mut secrets = vec![LiveSecret { secret: Secret::from_bytes(&[1; 32]), created_at: now, expires_at: None }];
/// rotate(&mut secrets, Secret::from_bytes(&[2; 32]), now, hour).unwrap();
/// let count = |at| {
///     let live: Vec<&Secret> = live_secrets(&secrets, at).collect();
///     sign(SignatureConfig::default(), &live, "evt_1", at, b"{}").webhook_signature.split(' ').count()
/// };
/// // During a rotation requests are signed with both secrets, so that an endpoint may verify with either.
/// assert_eq!((count(now), count(now + hour)), (2, 1));
/// ```
pub fn sign(
    config: SignatureConfig,
    secrets: &[&Secret],
    message_id: &str,
    at: Time,
    body: &[u8],
) -> Signatures {
    let unix = at.secs().to_string();
    // Keying the MAC is the expensive part of signing a short body, so both headers share it.
    let keyed: Vec<HmacSha256> = secrets.iter().map(|secret| new_mac(secret)).collect();
    let webhook_signature = match config.scheme {
        Scheme::Standard => standard(&keyed, message_id, &unix, body),
        Scheme::StandardEd25519 => ed25519(secrets, message_id, &unix, body),
    };
    let x_webhook_signature = match config.header_format {
        HeaderForm::Timestamped => timestamped(&keyed, &unix, body),
        HeaderForm::Sha256 => keyed.first().map_or_else(String::new, |newest| sha256(newest, body)),
    };
    Signatures { webhook_signature, x_webhook_signature }
}

type HmacSha256 = Hmac<Sha256>;
type Tag = [u8; 32];

fn new_mac(secret: &Secret) -> HmacSha256 {
    HmacSha256::new_from_slice(secret.key()).expect("HMAC takes keys of any length")
}

/// Computes the MAC over the concatenated pieces.
fn compute_mac(keyed: &HmacSha256, pieces: &[&[u8]]) -> Tag {
    let mut mac = keyed.clone();
    pieces.iter().for_each(|piece| mac.update(piece));
    mac.finalize().into_bytes().into()
}

fn standard(keyed: &[HmacSha256], message_id: &str, unix: &str, body: &[u8]) -> String {
    const BYTES_PER_SIGNATURE: usize = " v1,".len() + 44;
    let mut out = String::with_capacity(keyed.len() * BYTES_PER_SIGNATURE);
    for key in keyed {
        out.push_str(if out.is_empty() { "v1," } else { " v1," });
        let tag = compute_mac(key, &[message_id.as_bytes(), b".", unix.as_bytes(), b".", body]);
        STANDARD.encode_string(tag, &mut out);
    }
    out
}

fn ed25519(secrets: &[&Secret], message_id: &str, unix: &str, body: &[u8]) -> String {
    const BYTES_PER_SIGNATURE: usize = " v1a,".len() + 88;
    let message = [message_id.as_bytes(), b".", unix.as_bytes(), b".", body].concat();
    let mut out = String::with_capacity(secrets.len() * BYTES_PER_SIGNATURE);
    for secret in secrets {
        out.push_str(if out.is_empty() { "v1a," } else { " v1a," });
        STANDARD.encode_string(secret.signing_key().sign(&message).to_bytes(), &mut out);
    }
    out
}

fn timestamped(keyed: &[HmacSha256], unix: &str, body: &[u8]) -> String {
    const BYTES_PER_SIGNATURE: usize = ",v1=".len() + 64;
    let mut out = String::with_capacity("t=".len() + unix.len() + keyed.len() * BYTES_PER_SIGNATURE);
    out.push_str("t=");
    out.push_str(unix);
    for key in keyed {
        out.push_str(",v1=");
        push_hex(&mut out, &compute_mac(key, &[unix.as_bytes(), b".", body]));
    }
    out
}

fn sha256(newest: &HmacSha256, body: &[u8]) -> String {
    let mut out = String::with_capacity("sha256=".len() + 64);
    out.push_str("sha256=");
    push_hex(&mut out, &compute_mac(newest, &[body]));
    out
}

fn push_hex(out: &mut String, tag: &Tag) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in tag {
        out.push(char::from(DIGITS[usize::from(byte >> 4)]));
        out.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}

/// Age of a secret at which its owner is notified to rotate it.
pub const ROTATION_DUE_AFTER: Duration = Duration::from_secs(90 * 24 * 3600);

/// Returns the time since which rotation of the newest secret is due, or `None` if it is not due.
pub fn rotation_due_since(secrets: &[LiveSecret], now: Time) -> Option<Time> {
    let due = secrets.first()?.created_at + ROTATION_DUE_AFTER;
    (due <= now).then_some(due)
}

/// Maximum number of secrets that sign concurrently.
const MAX_LIVE_SECRETS: usize = 5;

/// Puts a new secret first. The previous secrets keep signing for `overlap`, but not beyond their earlier expiry.
pub fn rotate(
    secrets: &mut Vec<LiveSecret>,
    new: Secret,
    now: Time,
    overlap: Duration,
) -> Result<(), FieldError> {
    if secrets.iter().any(|old| old.secret == new) {
        return Err(FieldError::new("secret", "is in use already; rotate to a new secret"));
    }
    let until = now + overlap;
    for old in secrets.iter_mut() {
        old.expires_at = Some(old.expires_at.map_or(until, |end| end.min(until)));
    }
    secrets.retain(|old| old.expires_at.is_some_and(|end| end > now));
    secrets.insert(0, LiveSecret { secret: new, created_at: now, expires_at: None });
    secrets.truncate(MAX_LIVE_SECRETS);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use ed25519_dalek::VerifyingKey;
    use http::HeaderMap;
    use proptest::prelude::*;
    use standardwebhooks::Webhook;

    use super::*;

    const BODY: &[u8] = br#"{"hello":"world"}"#;
    const STANDARD_CONFIG: SignatureConfig =
        SignatureConfig { scheme: Scheme::Standard, header_format: HeaderForm::Timestamped };
    const ED25519_CONFIG: SignatureConfig =
        SignatureConfig { scheme: Scheme::StandardEd25519, header_format: HeaderForm::Timestamped };
    const SHA256_CONFIG: SignatureConfig =
        SignatureConfig { scheme: Scheme::Standard, header_format: HeaderForm::Sha256 };

    fn at() -> Time {
        Time::from_millis(1_700_000_000_999)
    }

    fn counting() -> Secret {
        Secret::from_bytes(&std::array::from_fn(|index| index as u8))
    }

    fn older() -> Secret {
        Secret::parse("whsec_q6urq6urq6urq6urq6urq6urq6urq6ur").unwrap()
    }

    /// Returns the system time: the official library checks timestamps against it and accepts no other clock.
    #[expect(clippy::disallowed_methods, reason = "the official verifier asks the system clock")]
    fn real_time() -> Time {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Time::default() + since_epoch
    }

    /// Returns whether the official library accepts the request with this secret.
    fn accepted(secret: &Secret, id: &str, at: Time, signature: &str, body: &[u8]) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert("webhook-id", id.parse().unwrap());
        headers.insert("webhook-timestamp", at.secs().to_string().parse().unwrap());
        headers.insert("webhook-signature", signature.parse().unwrap());
        Webhook::new(&secret.reveal()).unwrap().verify(body, &headers).is_ok()
    }

    // The expected values in the next two tests were computed with Python's hmac module.
    #[test]
    fn signatures_with_two_live_secrets_match_known_values() {
        let (new, old) = (counting(), older());
        let signed = sign(STANDARD_CONFIG, &[&new, &old], "evt_1", at(), BODY);
        assert_eq!(
            signed.webhook_signature,
            "v1,mgnHsXBhCwOBP5l1CWw9NLqDebRVyQulyT6msKe/X94= v1,rSflOQshlBeU/YqnfBE3HRDXT1QqvOPmRc9L8yZaIN8="
        );
        assert_eq!(
            signed.x_webhook_signature,
            "t=1700000000,v1=bfc10356abf3009a3601dc94c8a529c5faef3c467fca687387d6ff311adeb525,\
             v1=fe75fd90aa44b3a8fb0f30e0e5e0266664a237d9dc592f18c38e3e838cfac467"
        );
    }

    #[test]
    fn sha256_form_uses_newest_secret_only() {
        let signed = sign(SHA256_CONFIG, &[&counting(), &older()], "evt_1", at(), BODY);
        assert_eq!(
            signed.x_webhook_signature,
            "sha256=192dedf08fc2a7879c0173c4b478c9942626e73e74488cba2296a3e1ca3a044f"
        );
    }

    #[test]
    fn secrets_round_trip_and_invalid_ones_are_refused() {
        let secret = counting();
        assert_eq!(secret.reveal(), "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
        assert_eq!(secret.key().len(), 32);
        assert_eq!(Secret::parse(&secret.reveal()).as_ref(), Ok(&secret));
        assert_eq!(Secret::parse(secret.reveal().trim_end_matches('=')).as_ref(), Ok(&secret));
        assert_ne!(secret, older());
        let of_length = |length: usize| Secret::parse(&format!("whsec_{}", STANDARD.encode(vec![1; length])));
        assert!(of_length(16).is_ok() && of_length(256).is_ok());
        assert!(of_length(15).is_err() && of_length(257).is_err());
        for bad in ["", "whsec_", "whsec_not base64 at all, sadly"] {
            assert_eq!(Secret::parse(bad).unwrap_err().field, "secret", "{bad}");
        }
    }

    #[test]
    fn plain_text_is_the_key_as_it_is() {
        for text in [
            "0123456789abcdef",
            " padded with spaces ",
            "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
            "ünïcödé secrët",
        ] {
            let secret = Secret::parse(text).unwrap();
            assert_eq!(secret.key(), text.as_bytes());
            assert_eq!(secret.reveal(), format!("whsec_{}", STANDARD.encode(text)));
        }
        assert!(Secret::parse(&"x".repeat(256)).is_ok());
        let message = |text: &str| Secret::parse(text).unwrap_err().to_string();
        assert!(message("fifteen bytes!!").contains("must have 16 to 256 bytes"));
        assert!(message("fifteen bytes!!").contains("but it has 15"));
        assert!(message(&"x".repeat(257)).contains("but it has 257"));
        assert!(message("whsec_dG9vIHNob3J0").contains("but its base64 encodes 9"));
        assert!(message("whsec_not base64 at all, sadly").contains("is not base64"));
    }

    #[test]
    fn plain_text_secret_signs_like_plain_hmac() {
        let secret = Secret::parse("a plain text secret").unwrap();
        let signed = sign(SHA256_CONFIG, &[&secret], "evt_1", at(), BODY);
        let mut mac = HmacSha256::new_from_slice(b"a plain text secret").unwrap();
        mac.update(BODY);
        let mut expected = "sha256=".to_owned();
        push_hex(&mut expected, &mac.finalize().into_bytes().into());
        assert_eq!(signed.x_webhook_signature, expected);
        let official = Webhook::new(&STANDARD.encode("a plain text secret")).unwrap();
        assert_eq!(official.sign("evt_1", at().secs(), BODY).unwrap(), signed.webhook_signature);
    }

    #[test]
    fn debug_output_and_errors_are_redacted() {
        let live = LiveSecret { secret: counting(), created_at: at(), expires_at: None };
        assert_eq!(format!("{:?}", live.secret), "Secret(redacted)");
        assert!(!format!("{live:#?}").contains("AAEC"));
        let mistyped = format!("{}!", counting().reveal());
        assert!(!Secret::parse(&mistyped).unwrap_err().to_string().contains("AAEC"));
    }

    #[test]
    fn secrets_sign_until_they_expire() {
        let end = at();
        let newest = LiveSecret { secret: counting(), created_at: at(), expires_at: None };
        let retiring = LiveSecret { secret: older(), created_at: Time::default(), expires_at: Some(end) };
        let secrets = [newest, retiring];
        let before = Time::from_millis(end.millis() - 1);
        assert_eq!(live_secrets(&secrets, before).collect::<Vec<_>>(), [&counting(), &older()]);
        assert_eq!(live_secrets(&secrets, end).collect::<Vec<_>>(), [&counting()]);
        let stored = serde_json::to_string(&secrets).unwrap();
        assert_eq!(serde_json::from_str::<Vec<LiveSecret>>(&stored).unwrap(), secrets);
    }

    #[test]
    fn config_has_defaults_and_rejects_unknown_fields() {
        let read = |json: &str| serde_json::from_str::<SignatureConfig>(json).ok();
        assert_eq!(read("{}"), Some(STANDARD_CONFIG));
        assert_eq!(read(r#"{"scheme": "standard", "header_format": "sha256"}"#), Some(SHA256_CONFIG));
        assert_eq!(read(r#"{"header_format": "timestamped"}"#), Some(STANDARD_CONFIG));
        assert_eq!(read(r#"{"form": "sha256"}"#), None);
        assert_eq!(read(r#"{"scheme": "none"}"#), None);
    }

    #[test]
    fn official_library_rejects_every_changed_byte() {
        let (secret, now) = (counting(), real_time());
        let signature = sign(STANDARD_CONFIG, &[&secret], "evt_1", now, BODY).webhook_signature;
        assert!(accepted(&secret, "evt_1", now, &signature, BODY));
        for index in 0..BODY.len() {
            for change in 1..=127u8 {
                let mut body = BODY.to_vec();
                body[index] ^= change;
                assert!(!accepted(&secret, "evt_1", now, &signature, &body), "byte {index} by {change}");
            }
        }
        assert!(!accepted(&secret, "evt_2", now, &signature, BODY));
        assert!(!accepted(&secret, "evt_1", now + Duration::from_secs(1), &signature, BODY));
        assert!(!accepted(&older(), "evt_1", now, &signature, BODY));
    }

    /// Returns whether a `v1a` signature verifies with a public key, as a receiver without the secret checks it.
    fn verified(public_key: &str, id: &str, at: Time, signature: &str, body: &[u8]) -> bool {
        let key = STANDARD.decode(public_key.strip_prefix("whpk_").unwrap()).unwrap();
        let key = VerifyingKey::from_bytes(&key.try_into().unwrap()).unwrap();
        let message = [id.as_bytes(), b".", at.secs().to_string().as_bytes(), b".", body].concat();
        let good = |one: &str| {
            let bytes = STANDARD.decode(one.strip_prefix("v1a,").unwrap()).unwrap();
            key.verify_strict(&message, &ed25519_dalek::Signature::from_slice(&bytes).unwrap()).is_ok()
        };
        signature.split(' ').any(good)
    }

    #[test]
    fn public_key_verifies_and_rejects_every_changed_byte() {
        let (new, old) = (counting(), older());
        let signed = sign(ED25519_CONFIG, &[&new, &old], "evt_1", at(), BODY);
        for secret in [&new, &old] {
            assert!(verified(&secret.public_key(), "evt_1", at(), &signed.webhook_signature, BODY));
        }
        for index in 0..BODY.len() {
            let mut body = BODY.to_vec();
            body[index] ^= 1;
            assert!(!verified(&new.public_key(), "evt_1", at(), &signed.webhook_signature, &body));
        }
        assert!(!verified(&new.public_key(), "evt_2", at(), &signed.webhook_signature, BODY));
        assert_eq!(
            signed.x_webhook_signature,
            sign(STANDARD_CONFIG, &[&new, &old], "evt_1", at(), BODY).x_webhook_signature
        );
        let other_key = Secret::from_bytes(&[9; 32]).public_key();
        assert!(!verified(&other_key, "evt_1", at(), &signed.webhook_signature, BODY));
        assert_eq!(new.public_key().len(), "whpk_".len() + 44);
    }

    #[test]
    fn rotation_is_due_after_ninety_days() {
        let created_at = Time::from_secs(1_000_000);
        let mut secrets = vec![LiveSecret { secret: counting(), created_at, expires_at: None }];
        let due = created_at + ROTATION_DUE_AFTER;
        assert_eq!(rotation_due_since(&secrets, Time::from_millis(due.millis() - 1)), None);
        assert_eq!(rotation_due_since(&secrets, due), Some(due));
        rotate(&mut secrets, older(), due, Duration::from_secs(60)).unwrap();
        assert_eq!(rotation_due_since(&secrets, due), None);
        assert_eq!(rotation_due_since(&[], due), None);
    }

    mod slow {
        use super::*;

        proptest! {
            #![proptest_config(ProptestConfig::with_cases(10_000))]

            #[test]
            fn signatures_match_official_library(
                id in "[a-zA-Z0-9_]{1,40}", body in "\\PC{0,300}", millis in 0i64..4_000_000_000_000,
                keys in proptest::collection::vec(any::<[u8; 32]>(), 1..4),
            ) {
                let at = Time::from_millis(millis);
                let secrets: Vec<Secret> = keys.iter().map(Secret::from_bytes).collect();
                let signed = sign(STANDARD_CONFIG, &secrets.iter().collect::<Vec<_>>(), &id, at, body.as_bytes());
                let signatures: Vec<&str> = signed.webhook_signature.split(' ').collect();
                prop_assert_eq!(signatures.len(), secrets.len());
                for (secret, signature) in secrets.iter().zip(signatures) {
                    let official = Webhook::new(&secret.reveal()).unwrap();
                    prop_assert_eq!(official.sign(&id, at.secs(), body.as_bytes()).unwrap(), signature);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn both_secrets_verify_during_rotation(body in "\\PC{0,100}", new: [u8; 32], old: [u8; 32]) {
            let (new, old, now) = (Secret::from_bytes(&new), Secret::from_bytes(&old), real_time());
            let signature = sign(SHA256_CONFIG, &[&new, &old], "evt_1", now, body.as_bytes()).webhook_signature;
            prop_assert!(accepted(&new, "evt_1", now, &signature, body.as_bytes()));
            prop_assert!(accepted(&old, "evt_1", now, &signature, body.as_bytes()));
            prop_assert!(!accepted(&counting(), "evt_1", now, &signature, body.as_bytes()));
        }

        #[test]
        fn any_bytes_can_be_signed(body: Vec<u8>, key in proptest::collection::vec(any::<u8>(), 16..=256)) {
            let secret = Secret::parse(&format!("whsec_{}", STANDARD.encode(&key))).unwrap();
            prop_assert_eq!(secret.key(), key);
            let signed = sign(STANDARD_CONFIG, &[&secret], "evt_1", at(), &body);
            prop_assert_eq!(signed.webhook_signature.len(), 47);
            prop_assert_eq!(signed.x_webhook_signature.len(), 80);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn parsed_secrets_round_trip_and_errors_omit_input(
            text in prop_oneof!["(whsec_)?[A-Za-z0-9+/]{10,400}={0,3}", "\\PC{8,300}", any::<String>()],
        ) {
            match Secret::parse(&text) {
                Ok(secret) => {
                    prop_assert!(LENGTHS.contains(&secret.key().len()));
                    prop_assert_eq!(Secret::parse(&secret.reveal()), Ok(secret));
                }
                Err(refused) => {
                    prop_assert!(text.len() < 8 || !refused.to_string().contains(&text));
                }
            }
        }
    }

    #[test]
    fn rotation_keeps_old_secrets_for_overlap_only() {
        let (now, hour) = (Time::from_secs(1_000_000), Duration::from_secs(3600));
        let secret = |n: u8| Secret::from_bytes(&[n; 32]);
        let mut secrets = vec![LiveSecret { secret: secret(1), created_at: now, expires_at: None }];
        rotate(&mut secrets, secret(2), now, hour).unwrap();
        assert_eq!(live_secrets(&secrets, now).count(), 2);
        assert_eq!(live_secrets(&secrets, now + hour).collect::<Vec<_>>(), [&secret(2)]);
        assert!(rotate(&mut secrets, secret(1), now, hour).is_err(), "an old secret cannot be used again");
        // A longer overlap in a later rotation does not extend the expiry of the oldest secret.
        rotate(&mut secrets, secret(3), now, hour * 5).unwrap();
        assert_eq!(secrets[2].expires_at, Some(now + hour));
        rotate(&mut secrets, secret(4), now, Duration::ZERO).unwrap();
        assert_eq!(live_secrets(&secrets, now).collect::<Vec<_>>(), [&secret(4)]);
        for n in 5..20 {
            rotate(&mut secrets, secret(n), now, hour).unwrap();
        }
        assert_eq!(secrets.len(), MAX_LIVE_SECRETS);
    }
}
