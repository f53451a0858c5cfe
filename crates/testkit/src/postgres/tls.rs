//! Certificates for a server on this machine, from an authority made up on the spot.

use std::{fs, path::Path};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};

use super::programs::{Programs, Told};

/// Writes `ca.pem` into the folder, and what the server needs into its data; gives the server's settings.
pub(super) fn make_certificates(programs: &Programs, folder: &Path) -> [&'static str; 3] {
    let mut authority = CertificateParams::new(Vec::new()).expect("no names are fine names");
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
    fs::write(&path, authority.pem()).told(&path);
    for (name, text) in [("server.crt", server.pem()), ("server.key", key.serialize_pem())] {
        let path = folder.join("data").join(name);
        fs::write(&path, text).told(&path);
        programs.give(&path, 0o600);
    }
    // Where PostgreSQL looks by itself, said for the reader.
    ["ssl=on", "ssl_cert_file=server.crt", "ssl_key_file=server.key"]
}
