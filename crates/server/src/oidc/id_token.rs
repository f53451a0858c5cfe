//! Verification of ID tokens: signature, issuer, audience, times and nonce.

use std::collections::HashSet;

use jsonwebtoken::{
    Algorithm, DecodingKey, Validation, decode, decode_header,
    errors::{Error, ErrorKind},
    jwk::{Jwk, JwkSet, PublicKeyUse},
};
use redrive_core::Time;
use serde_json::{Map, Value};
use subtle::ConstantTimeEq;

use super::{error::TokenError, signature::ACCEPTED};

/// Accepted difference between the clocks of this server and of the provider, in seconds.
const CLOCK_TOLERANCE_SECONDS: f64 = 60.0;
/// Maximum number of keys that are tried for a token that names none.
const MAX_TRIED_KEYS: usize = 10;

/// What a valid token contains.
pub(crate) struct Expected<'a> {
    pub(crate) issuer: &'a str,
    pub(crate) client_id: &'a str,
    pub(crate) nonce: &'a str,
    pub(crate) now: Time,
}

/// Parses a set of keys. Keys of unknown kinds are omitted. Returns `None` if it is no set of keys.
pub(crate) fn parse_keys(set: &Value) -> Option<JwkSet> {
    let keys = set["keys"].as_array()?;
    let keys = keys.iter().filter_map(|key| serde_json::from_value(key.clone()).ok()).collect();
    Some(JwkSet { keys })
}

/// Verifies a token with the keys of the provider and returns its claims.
pub(crate) fn verify(
    token: &str,
    keys: &JwkSet,
    expected: &Expected<'_>,
) -> Result<Map<String, Value>, TokenError> {
    // The library has no name for the algorithm "none", so a token without a signature ends here.
    let header = decode_header(token).map_err(|_| TokenError::UnsupportedAlgorithm)?;
    if !ACCEPTED.contains(&header.alg) {
        return Err(TokenError::UnsupportedAlgorithm);
    }
    let candidates = keys.keys.iter().filter(|key| may_sign(key, header.alg, header.kid.as_deref()));
    let mut result = Err(TokenError::UnknownKey);
    for key in candidates.take(MAX_TRIED_KEYS) {
        result = verify_with(token, key, header.alg, expected);
        if !matches!(result, Err(TokenError::BadSignature)) {
            break;
        }
    }
    let claims = result?;
    check_times(&claims, expected.now)?;
    check_party(&claims, expected.client_id)?;
    let nonce = claims.get("nonce").and_then(Value::as_str).unwrap_or_default();
    match bool::from(nonce.as_bytes().ct_eq(expected.nonce.as_bytes())) {
        true => Ok(claims),
        false => Err(TokenError::WrongNonce),
    }
}

/// Returns whether a key may have signed a token with this algorithm and key id.
fn may_sign(key: &Jwk, algorithm: Algorithm, key_id: Option<&str>) -> bool {
    let common = &key.common;
    let is_named = key_id.is_none_or(|id| common.key_id.as_deref() == Some(id));
    let is_for_signatures =
        common.public_key_use.as_ref().is_none_or(|used| *used == PublicKeyUse::Signature);
    let is_for_algorithm = common
        .key_algorithm
        .as_ref()
        .is_none_or(|own| serde_json::to_value(own).ok() == serde_json::to_value(algorithm).ok());
    let has_family = DecodingKey::from_jwk(key).is_ok_and(|key| key.family() == algorithm.family());
    is_named && is_for_signatures && is_for_algorithm && has_family
}

fn verify_with(
    token: &str,
    key: &Jwk,
    algorithm: Algorithm,
    expected: &Expected<'_>,
) -> Result<Map<String, Value>, TokenError> {
    let key = DecodingKey::from_jwk(key).map_err(|_| TokenError::UnknownKey)?;
    let mut validation = Validation::new(algorithm);
    validation.set_issuer(&[expected.issuer]);
    validation.set_audience(&[expected.client_id]);
    validation.required_spec_claims = HashSet::from(["exp", "iss", "aud", "sub"].map(str::to_owned));
    // The library reads the system clock; `check_times` uses the server's.
    validation.validate_exp = false;
    decode(token, &key, &validation).map(|token| token.claims).map_err(|error| token_error(&error))
}

fn token_error(error: &Error) -> TokenError {
    match error.kind() {
        ErrorKind::InvalidSignature => TokenError::BadSignature,
        ErrorKind::InvalidIssuer => TokenError::WrongIssuer,
        ErrorKind::InvalidAudience => TokenError::WrongAudience,
        ErrorKind::InvalidAlgorithm | ErrorKind::UnsupportedAlgorithm => TokenError::UnsupportedAlgorithm,
        ErrorKind::InvalidKeyFormat => TokenError::UnknownKey,
        _ => TokenError::Malformed,
    }
}

fn check_times(claims: &Map<String, Value>, now: Time) -> Result<(), TokenError> {
    let now = now.millis() as f64 / 1_000.0;
    let time = |name: &str| match claims.get(name) {
        None => Ok(None),
        Some(value) => value.as_f64().map(Some).ok_or(TokenError::Malformed),
    };
    let expires_at = time("exp")?.ok_or(TokenError::Malformed)?;
    if now >= expires_at + CLOCK_TOLERANCE_SECONDS {
        return Err(TokenError::Expired);
    }
    let begins_at = time("nbf")?.into_iter().chain(time("iat")?).fold(f64::MIN, f64::max);
    match begins_at > now + CLOCK_TOLERANCE_SECONDS {
        true => Err(TokenError::NotYetValid),
        false => Ok(()),
    }
}

/// Checks that a token for several clients was issued to this one.
fn check_party(claims: &Map<String, Value>, client_id: &str) -> Result<(), TokenError> {
    let is_for_several = claims.get("aud").and_then(Value::as_array).is_some_and(|all| all.len() > 1);
    match claims.get("azp") {
        Some(party) if party != client_id => Err(TokenError::WrongAudience),
        None if is_for_several => Err(TokenError::WrongAudience),
        _ => Ok(()),
    }
}
