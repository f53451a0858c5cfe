//! TLS towards endpoints: trusted roots, and messages for failed handshakes.
//! Certificates are always verified; there must never be a setting that turns this off.

use std::sync::Arc;

use rustls::{CertificateError, ClientConfig, Error, RootCertStore, crypto::ring};

use crate::{Roots, error::SetupError};

/// Builds the TLS configuration of all connections.
pub(crate) fn client_config(roots: Roots) -> Result<Arc<ClientConfig>, SetupError> {
    let mut store = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Roots::WebPkiPlus(own) = roots {
        for root in own {
            store.add(root).map_err(SetupError::Root)?;
        }
    }
    // The provider is explicit because a process-wide default may be missing or differ.
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(SetupError::Tls)?
        .with_root_certificates(store)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Returns the message for a tenant whose endpoint failed the handshake.
pub(crate) fn explain(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(fault) => {
            format!("the endpoint's certificate {}", explain_certificate(fault))
        }
        Error::NoCertificatesPresented => "the endpoint presented no certificate".into(),
        Error::AlertReceived(alert) => format!("the endpoint refused the TLS handshake ({alert:?})"),
        Error::PeerIncompatible(_) => {
            "the endpoint shares no TLS version or cipher with Redrive; it must support TLS 1.2 or 1.3".into()
        }
        Error::InvalidMessage(_) => "the endpoint does not speak TLS on this port".into(),
        _ => "the TLS connection to the endpoint failed".into(),
    }
}

fn explain_certificate(fault: &CertificateError) -> &'static str {
    use CertificateError as C;
    match fault {
        C::Expired | C::ExpiredContext { .. } => "has expired",
        C::NotValidYet | C::NotValidYetContext { .. } => "is not valid yet",
        C::NotValidForName | C::NotValidForNameContext { .. } => "is not valid for the URL's host name",
        C::UnknownIssuer => {
            "is not signed by a known authority (it is self-signed, or an intermediate certificate is missing)"
        }
        C::Revoked => "has been revoked",
        _ => "cannot be verified",
    }
}
