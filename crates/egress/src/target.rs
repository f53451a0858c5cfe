//! Request target: a URL parsed and canonicalised once, and used for every attempt.
//! It does not say whether its address is allowed; that is checked on connecting.

use http::{HeaderValue, Uri};
use redrive_core::security::egress_rules::HostKey;
use url::{Position, Url};

use crate::error::InvalidTarget;

/// A URL prepared for sending. Every spelling of an IP address (`0x7f.1`, full-width digits) is replaced by the
/// address itself. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Target {
    pub(crate) uri: Uri,
    pub(crate) host: HeaderValue,
    host_key: HostKey,
}

impl Target {
    /// Parses an absolute `http` or `https` URL.
    pub fn parse(url: &str) -> Result<Self, InvalidTarget> {
        let url = Url::parse(url).map_err(|_| InvalidTarget::Unparsable)?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(InvalidTarget::Scheme);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(InvalidTarget::UserInfo);
        }
        if url.fragment().is_some() {
            return Err(InvalidTarget::Fragment);
        }
        let uri = Uri::try_from(url.as_str()).map_err(|_| InvalidTarget::Unparsable)?;
        let host = &url[Position::BeforeHost..Position::AfterPort];
        let host = HeaderValue::from_str(host).map_err(|_| InvalidTarget::Unparsable)?;
        let host_key = HostKey::from_host(uri.host().unwrap_or_default());
        Ok(Self { uri, host, host_key })
    }

    /// Returns the key of its host, equal for all URLs of that host.
    pub fn host_key(&self) -> HostKey {
        self.host_key
    }

    /// Returns the URL in canonical form.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use redrive_core::webhook::{UrlRules, validate_url};

    use super::*;

    fn canonical(url: &str) -> String {
        Target::parse(url).unwrap().uri().to_string()
    }

    #[test]
    fn every_spelling_of_an_address_is_canonicalised() {
        let spellings = [
            "127.0.0.1",
            "2130706433",
            "0x7f.1",
            "0177.0.0.1",
            "127.1",
            "127.0.0.1.",
            "\u{ff11}\u{ff12}\u{ff17}.0.0.1",
            "127。0。0。1",
            "%31%32%37.0.0.1",
        ];
        for spelling in spellings {
            assert_eq!(canonical(&format!("http://{spelling}:8080/a?b")), "http://127.0.0.1:8080/a?b");
        }
        assert_eq!(canonical("https://[::FFFF:127.0.0.1]/"), "https://[::ffff:7f00:1]/");
        assert_eq!(canonical("https://Bücher.example:443"), "https://xn--bcher-kva.example/");
        assert_eq!(canonical("http:\\\\127.1\\x\t"), "http://127.0.0.1/x");
    }

    #[test]
    fn host_header_omits_default_port() {
        assert_eq!(Target::parse("https://a.example:443/x").unwrap().host, "a.example");
        assert_eq!(Target::parse("http://[::1]:8080/x").unwrap().host, "[::1]:8080");
    }

    #[test]
    fn invalid_urls_are_refused() {
        for (url, why) in [
            ("/path", InvalidTarget::Unparsable),
            ("http://", InvalidTarget::Unparsable),
            ("http://1.2.3.4.5/", InvalidTarget::Unparsable),
            ("http://256.1.1.1/", InvalidTarget::Unparsable),
            ("http://[fe80::1%25eth0]/", InvalidTarget::Unparsable),
            ("http://a.example\r\nx: y/", InvalidTarget::Unparsable),
            ("ftp://a.example/", InvalidTarget::Scheme),
            ("file:///etc/passwd", InvalidTarget::Scheme),
            ("http://user@a.example/", InvalidTarget::UserInfo),
            ("http://a.example:80@127.0.0.1/", InvalidTarget::UserInfo),
            ("http://:secret@a.example/", InvalidTarget::UserInfo),
            ("http://a.example/#part", InvalidTarget::Fragment),
        ] {
            assert_eq!(Target::parse(url).unwrap_err(), why, "{url}");
        }
    }

    /// Generates hosts in various spellings, valid and nearly valid.
    fn any_host() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a-z0-9-]{1,10}(\\.[a-z0-9-]{1,10}){0,2}\\.?",
            "[0-9a-fx.]{1,20}",
            "\\[[0-9a-f:.]{2,30}\\]",
            "[0-9\u{ff10}-\u{ff19}。.%]{1,12}",
            "\\PC{1,10}",
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn every_valid_webhook_url_becomes_the_same_target(
            scheme in "https?|HTTP", host in any_host(), port in "(:[0-9]{0,5})?", rest in "([/?]\\PC{0,20}){0,2}",
        ) {
            let text = format!("{scheme}://{host}{port}{rest}");
            if validate_url(&text, &UrlRules { allow_http: true, ..UrlRules::default() }).is_ok() {
                let url = Url::parse(&text).unwrap();
                let target = Target::parse(&text);
                prop_assert!(target.is_ok(), "it was accepted and cannot be sent to: {}", url);
                let uri = target.unwrap().uri;
                prop_assert_eq!(uri.host(), url.host_str());
                let default = if url.scheme() == "https" { 443 } else { 80 };
                prop_assert_eq!(uri.port_u16().unwrap_or(default), url.port_or_known_default().unwrap());
                prop_assert_eq!(uri.scheme_str(), Some(url.scheme()));
                prop_assert_eq!(uri.path(), url.path());
                prop_assert_eq!(uri.query(), url.query());
                prop_assert!(!uri.authority().unwrap().as_str().contains('@'));
            }
        }

        #[test]
        fn canonical_form_is_stable_for_arbitrary_text(text in any::<String>(), host in any_host()) {
            for text in [text.clone(), format!("http://{host}{text}")] {
                if let Ok(target) = Target::parse(&text) {
                    let again = Target::parse(&target.uri.to_string()).unwrap();
                    prop_assert_eq!((&again.uri, &again.host), (&target.uri, &target.host));
                }
            }
        }
    }
}
