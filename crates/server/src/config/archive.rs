//! Archive settings: a folder or S3-compatible storage for data that is pruned.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{ConfigError, SecretSetting, settings::section};

section! {
    /// Archive for pruned data.
    #[derive(Clone, Debug, Default, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Archive {
        /// A folder, or `s3://BUCKET/PREFIX`: pruned data is [archived there](operations/retention.md#archive) first.
        pub url: Option<String>,
        /// Endpoint of the bucket, such as `https://minio.example.com`.
        ///
        /// Default: Amazon's
        pub endpoint: Option<String>,
        /// Region of the bucket.
        ///
        /// Default: `us-east-1`
        pub region: Option<String>,
        /// Access key with write permission; the machine's own role if none is set.
        pub access_key_id: Option<String>,
        /// Secret of the access key.
        pub secret_access_key: Option<SecretSetting>,
        /// File with the secret of the access key, for secret mounts.
        pub secret_access_key_file: Option<PathBuf>,
    }
}

/// Location of the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchiveLocation {
    /// A folder.
    Folder(PathBuf),
    /// A bucket, with a prefix that may be empty.
    Bucket {
        /// Name of the bucket.
        bucket: String,
        /// Prefix of the names of all objects.
        prefix: String,
    },
}

impl Archive {
    /// Returns the location of the archive, or `None` if no archive is configured.
    pub fn location(&self) -> Result<Option<ArchiveLocation>, ConfigError> {
        let refuse = |setting: &str, reason: &str| {
            Err(ConfigError::Invalid { setting: format!("archive.{setting}"), reason: reason.into() })
        };
        let Some(url) = &self.url else {
            let others = [
                ("endpoint", self.endpoint.is_some()),
                ("region", self.region.is_some()),
                ("access_key_id", self.access_key_id.is_some()),
                ("secret_access_key", self.secret_access_key.is_some()),
            ];
            return match others.iter().find(|(_, given)| *given) {
                Some((setting, _)) => refuse(setting, "has no effect without archive.url; set both"),
                None => Ok(None),
            };
        };
        let Some(rest) = url.strip_prefix("s3://") else {
            return match url {
                url if url.is_empty() => refuse("url", "must be a folder or s3://BUCKET/PREFIX"),
                url if url.contains("://") => {
                    refuse("url", "must be a folder or s3://BUCKET/PREFIX; other schemes are not supported")
                }
                url => Ok(Some(ArchiveLocation::Folder(url.into()))),
            };
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return refuse("url", "names no bucket; write it as s3://BUCKET/PREFIX");
        }
        if self.access_key_id.is_some() != self.secret_access_key.is_some() {
            let missing = if self.access_key_id.is_some() { "secret_access_key" } else { "access_key_id" };
            return refuse(missing, "is required together with the other part of the key");
        }
        let is_web = |url: &String| url.starts_with("https://") || url.starts_with("http://");
        if self.endpoint.as_ref().is_some_and(|endpoint| !is_web(endpoint)) {
            return refuse("endpoint", "must begin with https:// or http://");
        }
        let prefix = prefix.trim_matches('/').to_owned();
        Ok(Some(ArchiveLocation::Bucket { bucket: bucket.to_owned(), prefix }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(url: &str) -> Archive {
        Archive { url: Some(url.into()), ..Archive::default() }
    }

    #[test]
    fn archive_url_is_folder_or_bucket() {
        assert_eq!(Archive::default().location().unwrap(), None);
        let folder = at("/var/lib/redrive/archive").location().unwrap();
        assert_eq!(folder, Some(ArchiveLocation::Folder("/var/lib/redrive/archive".into())));
        for (url, bucket, prefix) in [
            ("s3://events", "events", ""),
            ("s3://events/", "events", ""),
            ("s3://events/redrive/prod/", "events", "redrive/prod"),
        ] {
            let expected = ArchiveLocation::Bucket { bucket: bucket.into(), prefix: prefix.into() };
            assert_eq!(at(url).location().unwrap(), Some(expected), "{url}");
        }
    }

    #[test]
    fn invalid_value_error_names_the_setting() {
        let message = |archive: Archive| archive.location().unwrap_err().to_string();
        assert!(message(at("")).starts_with("archive.url: "));
        assert!(message(at("gs://bucket")).starts_with("archive.url: "));
        assert!(message(at("s3:///x")).starts_with("archive.url: names no bucket"));
        let key = Archive { access_key_id: Some("AKIA".into()), ..at("s3://events") };
        assert!(message(key).starts_with("archive.secret_access_key: "));
        let endpoint = Archive { endpoint: Some("minio:9000".into()), ..at("s3://events") };
        assert!(message(endpoint).starts_with("archive.endpoint: "));
        let alone = Archive { region: Some("eu-central-1".into()), ..Archive::default() };
        assert!(message(alone).starts_with("archive.region: has no effect"));
    }

    #[test]
    fn secret_access_key_is_redacted() {
        let archive =
            Archive { secret_access_key: Some(SecretSetting::new("hush-hush")), ..at("s3://events") };
        assert!(!format!("{archive:?}").contains("hush"));
        assert!(!serde_json::to_string(&archive).unwrap().contains("hush"));
    }
}
