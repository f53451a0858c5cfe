//! Targets that parse what an identity provider returns, or what someone else returns in its place.

use redrive_core::Time;
use redrive_server::fuzzing::{self, ExpectedToken};

use super::{halves, text};
use crate::Target;

/// What the valid tokens in the corpus contain.
const EXPECTED: ExpectedToken<'_> = ExpectedToken {
    issuer: "https://id.example.com/realms/staff",
    client_id: "redrive",
    nonce: "n-0S6_WzA2Mj",
    now: Time::from_secs(1_700_000_000),
};

pub(crate) const ID_TOKEN: Target = Target {
    name: "id_token",
    run: id_token,
    tokens: &[
        "\0",
        ".",
        "eyJ",
        "{\"keys\":[",
        "\"kty\":\"OKP\"",
        "\"kty\":\"RSA\"",
        "\"kty\":\"oct\"",
        "\"crv\":\"P-256\"",
        "\"alg\":\"none\"",
        "\"alg\":\"HS256\"",
        "\"use\":\"enc\"",
        "\"kid\":\"1\"",
        "\"x\":\"\"",
        "\"n\":\"AQAB\"",
        "=",
        "_",
    ],
    weight: 4,
};

/// Verifies a token with a key set, which come before and after the first zero byte. An accepted one contains what is
/// expected, and is signed: without its signature it is rejected.
fn id_token(input: &[u8]) {
    let (key_set, token) = halves(input);
    let token = text(token);
    let Some(claims) = fuzzing::id_token(key_set, &token, EXPECTED) else { return };
    assert!(claims["iss"] == EXPECTED.issuer && claims["nonce"] == EXPECTED.nonce, "{claims}");
    let audience = &claims["aud"];
    let is_listed = audience.as_array().is_some_and(|all| all.iter().any(|one| one == EXPECTED.client_id));
    assert!(audience == EXPECTED.client_id || is_listed, "for another client: {audience}");
    assert!(claims["exp"].as_f64().is_some_and(|at| at > EXPECTED.now.secs() as f64 - 61.0), "expired");
    let (signed, _) = token.rsplit_once('.').expect("an accepted token has three parts");
    for unsigned in [format!("{signed}."), format!("{signed}.AAAA"), signed.to_owned()] {
        assert!(fuzzing::id_token(key_set, &unsigned, EXPECTED).is_none(), "accepted without its signature");
    }
}

pub(crate) const CLAIMS: Target = Target {
    name: "claims",
    run: claims,
    tokens: &[
        "\0",
        ".",
        "\"sub\":",
        "\"name\":",
        "\"preferred_username\":",
        "\"groups\":",
        "\"realm_access\":{\"roles\":[",
        "\u{202e}",
        "\u{200b}",
        "\\u202e",
        "\\n",
        "null",
        "[",
        "{",
    ],
    weight: 10,
};

/// Reads the user from claims, with the path of its groups after the first zero byte. What is shown has no hidden
/// characters and is short.
fn claims(input: &[u8]) {
    let (document, path) = halves(input);
    let path = text(path);
    for name_claim in [None, Some(&*path)] {
        let Some(user) = fuzzing::user_of_claims(document, &path, name_claim) else { continue };
        let is_hidden = |shown: &str| shown.chars().any(|char| char.is_control() || char == '\u{202e}');
        assert!(!user.subject.is_empty() && user.subject.len() <= 255 && !is_hidden(&user.subject));
        let is_short = user.name.chars().count() <= 100 || user.name == user.subject;
        assert!(!user.name.is_empty() && is_short && !is_hidden(&user.name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corpus_contains_tokens_of_every_kind_of_key_that_are_accepted() {
        let seeds = ID_TOKEN.seeds();
        let accepted = seeds.iter().filter(|seed| {
            let (key_set, token) = halves(seed);
            fuzzing::id_token(key_set, &text(token), EXPECTED).is_some()
        });
        assert_eq!(accepted.count(), 3, "Ed25519, P-256 and RSA");
    }
}
