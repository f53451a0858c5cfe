//! TLS to a server whose certificate is pinned by a file: exactly this certificate is accepted, regardless of its
//! names and issuer. Only for an operator's own server on the same machine.

use std::{net::IpAddr, path::Path, sync::Arc};

use rustls::{
    ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

/// Establishes TLS with the server that has the certificate in this file.
pub(super) async fn connect(
    stream: TcpStream,
    address: IpAddr,
    file: &Path,
) -> Result<TlsStream<TcpStream>, String> {
    let certificate = CertificateDer::from_pem_file(file)
        .map_err(|error| format!("server.tls_cert: {} cannot be read: {error}", file.display()))?;
    let provider = Arc::new(ring::default_provider());
    let pinned = Arc::new(Pinned { certificate, provider: provider.clone() });
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(pinned)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(ServerName::from(address), stream).await.map_err(|error| error.to_string())
}

#[derive(Debug)]
struct Pinned {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        presented: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match *presented == self.certificate {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(Error::General(
                "its certificate is not the one in server.tls_cert; if that was renewed just now, try again in some \
                 seconds"
                    .into(),
            )),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
