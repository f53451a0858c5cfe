//! Tracing settings: the collector that spans are sent to, and the sample ratio.

use std::path::PathBuf;

use axum::http::{HeaderName, HeaderValue};
use redrive_core::time::HumanDuration;
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use url::Url;

use super::{ConfigError, SecretSetting, certificates::read_authorities, settings::section};

section! {
    /// Tracing settings.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Tracing {
        /// Collector for [traces](operations/tracing.md) that accepts OTLP over HTTP, such as `http://127.0.0.1:4318`;
        /// spans are posted to `/v1/traces` there. Without it no spans are recorded.
        pub otlp_endpoint: Option<String>,
        /// Headers for the collector, as `authorization=Bearer TOKEN,x-team=hooks`.
        pub otlp_headers: Option<SecretSetting>,
        /// File with the headers for the collector, for secret mounts.
        pub otlp_headers_file: Option<PathBuf>,
        /// PEM file with a certificate to trust for `https`, in addition to the usual authorities.
        pub ca_file: Option<PathBuf>,
        /// Share of events that start a trace, from 0 to 1. A publisher that sends a `traceparent` decides for itself.
        pub sample_ratio: f64,
        /// Name of this installation in traces.
        pub service_name: String,
        /// Timeout of the collector for one batch; `100ms` to `60s`.
        pub timeout: HumanDuration,
    }
}

impl Default for Tracing {
    fn default() -> Self {
        Self {
            otlp_endpoint: None,
            otlp_headers: None,
            otlp_headers_file: None,
            ca_file: None,
            sample_ratio: 0.1,
            service_name: "redrive".into(),
            timeout: HumanDuration::secs(10),
        }
    }
}

fn refuse<T>(setting: &str, reason: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError::Invalid { setting: format!("tracing.{setting}"), reason: reason.into() })
}

impl Tracing {
    /// Returns the URL that spans are posted to, or `None` if tracing is off.
    pub(crate) fn url(&self) -> Result<Option<Url>, ConfigError> {
        const SETTING: &str = "otlp_endpoint";
        let Some(text) = &self.otlp_endpoint else { return Ok(None) };
        let form = "write http://HOST:4318, or https://…, of an OTLP/HTTP collector";
        // Errors do not quote the URL, which may contain a password.
        let Ok(mut url) = Url::parse(text) else { return refuse(SETTING, form) };
        if !["http", "https"].contains(&url.scheme()) || url.host_str().is_none_or(str::is_empty) {
            return refuse(SETTING, form);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return refuse(SETTING, "must not contain a password; use tracing.otlp_headers_file");
        }
        if url.query().is_some() || url.fragment().is_some() {
            return refuse(SETTING, format!("has unexpected text after the path; {form}"));
        }
        if !url.path().ends_with("/v1/traces") {
            url.set_path(&format!("{}/v1/traces", url.path().trim_end_matches('/')));
        }
        Ok(Some(url))
    }

    /// Returns the headers that are sent with every batch.
    pub(crate) fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, ConfigError> {
        let text = self.otlp_headers.as_ref().map(SecretSetting::reveal).unwrap_or_default();
        let header = |pair: &str| {
            let (name, value) = pair.split_once('=')?;
            let mut value = HeaderValue::from_str(value.trim()).ok()?;
            value.set_sensitive(true);
            Some((HeaderName::try_from(name.trim()).ok()?, value))
        };
        let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
        match pairs.map(header).collect() {
            Some(headers) => Ok(headers),
            None => refuse("otlp_headers", "must be headers such as authorization=Bearer TOKEN,x-team=hooks"),
        }
    }

    /// Returns the CA certificates to trust in addition to the default ones.
    pub(crate) fn authorities(&self) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
        read_authorities("tracing.ca_file", self.ca_file.as_deref())
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        self.url()?;
        self.headers()?;
        self.authorities()?;
        if !(0.0..=1.0).contains(&self.sample_ratio) {
            return refuse("sample_ratio", "must be from 0 to 1");
        }
        if self.service_name.is_empty() || self.service_name.len() > 255 {
            return refuse("service_name", "must have 1 to 255 characters");
        }
        if !(HumanDuration::millis(100)..=HumanDuration::secs(60)).contains(&self.timeout) {
            return refuse("timeout", "must be from 100ms to 60s");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(endpoint: &str) -> Tracing {
        Tracing { otlp_endpoint: Some(endpoint.into()), ..Tracing::default() }
    }

    #[test]
    fn traces_path_is_appended_to_endpoint() {
        let url = |text: &str| at(text).url().unwrap().unwrap().to_string();
        assert!(Tracing::default().url().unwrap().is_none());
        assert_eq!(url("http://collector:4318"), "http://collector:4318/v1/traces");
        assert_eq!(url("https://otlp.example.com/team/"), "https://otlp.example.com/team/v1/traces");
        assert_eq!(url("https://otlp.example.com/v1/traces"), "https://otlp.example.com/v1/traces");
    }

    #[test]
    fn headers_are_parsed_as_pairs() {
        let with =
            |text: &str| Tracing { otlp_headers: Some(SecretSetting::new(text)), ..Tracing::default() };
        let headers = with("authorization=Bearer a=b, x-team=hooks,").headers().unwrap();
        let headers: Vec<_> =
            headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(headers, [("authorization", "Bearer a=b"), ("x-team", "hooks")]);
        let message = with("authorization: hush").validate().unwrap_err().to_string();
        assert!(message.starts_with("tracing.otlp_headers: ") && !message.contains("hush"), "{message}");
    }

    #[test]
    fn invalid_settings_error_names_setting_and_hides_password() {
        for url in
            ["collector:4318", "grpc://collector", "http://me:hush@collector", "http://c/?key=hush", "hush"]
        {
            let message = at(url).validate().unwrap_err().to_string();
            assert!(message.starts_with("tracing.otlp_endpoint: ") && !message.contains("hush"), "{message}");
        }
        for (setting, tracing) in [
            ("sample_ratio", Tracing { sample_ratio: 1.5, ..Tracing::default() }),
            ("sample_ratio", Tracing { sample_ratio: f64::NAN, ..Tracing::default() }),
            ("service_name", Tracing { service_name: String::new(), ..Tracing::default() }),
            ("timeout", Tracing { timeout: HumanDuration::millis(1), ..Tracing::default() }),
            ("ca_file", Tracing { ca_file: Some("/nowhere".into()), ..Tracing::default() }),
        ] {
            let message = tracing.validate().unwrap_err().to_string();
            assert!(message.starts_with(&format!("tracing.{setting}: ")), "{message}");
        }
    }
}
