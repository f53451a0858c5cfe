//! Certificates for a local server, from a certificate authority generated on the fly.

use std::{fs, path::Path};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};

use super::{ErrorContext, User};

/// Writes `ca.pem` into the folder, and `server.crt` and `server.key` (for 127.0.0.1 and localhost) into `data`,
/// readable by the server's user.
pub(crate) fn make_certificates(user: User, folder: &Path, data: &Path) {
    let mut authority = CertificateParams::new(Vec::new()).expect("an empty list of names is valid");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    authority.distinguished_name.push(DnType::CommonName, "Redrive test authority");
    let key = KeyPair::generate().expect("no key for the authority");
    let authority = CertifiedIssuer::self_signed(authority, key).expect("no certificate for the authority");

    let names = ["localhost", "127.0.0.1"].map(str::to_owned);
    let mut server = CertificateParams::new(names).expect("these are well-formed names");
    server.distinguished_name.push(DnType::CommonName, "localhost");
    let key = KeyPair::generate().expect("no key for the server");
    let server = server.signed_by(&key, &authority).expect("no certificate for the server");

    let path = folder.join("ca.pem");
    fs::write(&path, authority.pem()).with_context(&path);
    for (name, text) in [("server.crt", server.pem()), ("server.key", key.serialize_pem())] {
        let path = data.join(name);
        fs::write(&path, text).with_context(&path);
        user.give(&path, 0o600);
    }
}
