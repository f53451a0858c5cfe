//! Where a request goes: a URL that was parsed and made canonical once, and is used for every attempt.
//! It says nothing about whether its address is allowed; that is asked when connecting.

use http::{HeaderValue, Uri};
use redrive_core::security::egress_rules::HostKey;
use url::{Position, Url};

use crate::error::BadTarget;

/// A URL made ready for sending. Every spelling of an IP address (`0x7f.1`, full-width digits) has become
/// the address itself. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Target {
    pub(crate) uri: Uri,
    pub(crate) host: HeaderValue,
    host_key: HostKey,
}

impl Target {
    /// Makes an absolute `http` or `https` URL ready.
    pub fn parse(url: &str) -> Result<Self, BadTarget> {
        let url = Url::parse(url).map_err(|_| BadTarget::NoUrl)?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(BadTarget::Scheme);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(BadTarget::UserInfo);
        }
        if url.fragment().is_some() {
            return Err(BadTarget::Fragment);
        }
        let uri = Uri::try_from(url.as_str()).map_err(|_| BadTarget::NoUrl)?;
        let host = &url[Position::BeforeHost..Position::AfterPort];
        let host = HeaderValue::from_str(host).map_err(|_| BadTarget::NoUrl)?;
        let host_key = HostKey::from_host(uri.host().unwrap_or_default());
        Ok(Self { uri, host, host_key })
    }

    /// The key of its host, the same for every URL to that host.
    pub fn host_key(&self) -> HostKey {
        self.host_key
    }

    /// The URL in its canonical form.
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
    fn every_spelling_of_an_address_becomes_the_address() {
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
    fn the_host_header_leaves_the_default_port_out() {
        assert_eq!(Target::parse("https://a.example:443/x").unwrap().host, "a.example");
        assert_eq!(Target::parse("http://[::1]:8080/x").unwrap().host, "[::1]:8080");
    }

    #[test]
    fn other_urls_are_refused() {
        for (url, why) in [
            ("/path", BadTarget::NoUrl),
            ("http://", BadTarget::NoUrl),
            ("http://1.2.3.4.5/", BadTarget::NoUrl),
            ("http://256.1.1.1/", BadTarget::NoUrl),
            ("http://[fe80::1%25eth0]/", BadTarget::NoUrl),
            ("http://a.example\r\nx: y/", BadTarget::NoUrl),
            ("ftp://a.example/", BadTarget::Scheme),
            ("file:///etc/passwd", BadTarget::Scheme),
            ("http://user@a.example/", BadTarget::UserInfo),
            ("http://a.example:80@127.0.0.1/", BadTarget::UserInfo),
            ("http://:secret@a.example/", BadTarget::UserInfo),
            ("http://a.example/#part", BadTarget::Fragment),
        ] {
            assert_eq!(Target::parse(url).unwrap_err(), why, "{url}");
        }
    }

    /// Hosts in every spelling, and what is nearly one.
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
        fn what_a_webhook_may_have_goes_where_it_says(
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
        fn no_text_breaks_it_and_what_is_canonical_stays_so(text in any::<String>(), host in any_host()) {
            for text in [text.clone(), format!("http://{host}{text}")] {
                if let Ok(target) = Target::parse(&text) {
                    let again = Target::parse(&target.uri.to_string()).unwrap();
                    prop_assert_eq!((&again.uri, &again.host), (&target.uri, &target.host));
                }
            }
        }
    }
}
