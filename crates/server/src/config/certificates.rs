//! Certificate authorities that are trusted in addition to the usual ones.

use std::path::Path;

use rustls::pki_types::{CertificateDer, pem::PemObject};

use super::ConfigError;

/// Reads the certificates of the file in a setting; none if it is not set.
pub(super) fn read_authorities(
    setting: &str,
    path: Option<&Path>,
) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let Some(path) = path else { return Ok(Vec::new()) };
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let reason = match read {
        Ok(found) if !found.is_empty() => return Ok(found),
        Ok(_) => format!("{} contains no PEM certificate", path.display()),
        Err(error) => format!("{} cannot be read: {error}", path.display()),
    };
    Err(ConfigError::Invalid { setting: setting.to_owned(), reason })
}
