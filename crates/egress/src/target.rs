//! Where a request goes: a URL that was parsed and made canonical once, and is used for every attempt.
//! It says nothing about whether its address is allowed; that is asked when connecting.

use http::{HeaderValue, Uri};
use url::{Position, Url};

use crate::error::BadTarget;

/// A URL made ready for sending. Every spelling of an IP address (`0x7f.1`, full-width digits) has become
/// the address itself. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Target {
    pub(crate) uri: Uri,
    pub(crate) host: HeaderValue,
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
        Ok(Self { uri, host })
    }

    /// The URL in its canonical form.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }
}

#[cfg(test)]
mod tests {
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
}
