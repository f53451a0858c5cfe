//! Where what is forgotten is kept: a folder, or storage that speaks S3.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{ConfigError, Hidden};

/// Where what is forgotten is kept.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Archive {
    /// A folder, or `s3://BUCKET/PREFIX`; none for no archive.
    pub url: Option<String>,
    /// Where the bucket is, if not at Amazon.
    pub endpoint: Option<String>,
    /// The bucket's region.
    pub region: Option<String>,
    /// The key that may write there; the machine's own role if there is none.
    pub access_key_id: Option<String>,
    /// The secret that goes with it.
    pub secret_access_key: Option<Hidden>,
    /// A file that holds the secret.
    pub secret_access_key_file: Option<PathBuf>,
}

/// Where an archive is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a folder.
    Folder(PathBuf),
    /// In a bucket, under a prefix that may be empty.
    Bucket {
        /// Its name.
        bucket: String,
        /// What the names of all objects begin with.
        prefix: String,
    },
}

impl Archive {
    /// Where it is; none if there is none.
    pub fn place(&self) -> Result<Option<Place>, ConfigError> {
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
                Some((setting, _)) => refuse(setting, "is of no use without archive.url"),
                None => Ok(None),
            };
        };
        let Some(rest) = url.strip_prefix("s3://") else {
            return match url {
                url if url.is_empty() => refuse("url", "must be a folder or s3://BUCKET/PREFIX"),
                url if url.contains("://") => {
                    refuse("url", "must be a folder or s3://BUCKET/PREFIX; nothing else is known")
                }
                url => Ok(Some(Place::Folder(url.into()))),
            };
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return refuse("url", "names no bucket; write it as s3://BUCKET/PREFIX");
        }
        if self.access_key_id.is_some() != self.secret_access_key.is_some() {
            let missing = if self.access_key_id.is_some() { "secret_access_key" } else { "access_key_id" };
            return refuse(missing, "is needed as well: a key and its secret go together");
        }
        let is_web = |url: &String| url.starts_with("https://") || url.starts_with("http://");
        if self.endpoint.as_ref().is_some_and(|endpoint| !is_web(endpoint)) {
            return refuse("endpoint", "must begin with https:// or http://");
        }
        let prefix = prefix.trim_matches('/').to_owned();
        Ok(Some(Place::Bucket { bucket: bucket.to_owned(), prefix }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(url: &str) -> Archive {
        Archive { url: Some(url.into()), ..Archive::default() }
    }

    #[test]
    fn an_archive_is_a_folder_or_a_bucket() {
        assert_eq!(Archive::default().place().unwrap(), None);
        let folder = at("/var/lib/redrive/archive").place().unwrap();
        assert_eq!(folder, Some(Place::Folder("/var/lib/redrive/archive".into())));
        for (url, bucket, prefix) in [
            ("s3://events", "events", ""),
            ("s3://events/", "events", ""),
            ("s3://events/redrive/prod/", "events", "redrive/prod"),
        ] {
            let expected = Place::Bucket { bucket: bucket.into(), prefix: prefix.into() };
            assert_eq!(at(url).place().unwrap(), Some(expected), "{url}");
        }
    }

    #[test]
    fn what_makes_no_sense_names_its_setting() {
        let said = |archive: Archive| archive.place().unwrap_err().to_string();
        assert!(said(at("")).starts_with("archive.url: "));
        assert!(said(at("gs://bucket")).starts_with("archive.url: "));
        assert!(said(at("s3:///x")).starts_with("archive.url: names no bucket"));
        let key = Archive { access_key_id: Some("AKIA".into()), ..at("s3://events") };
        assert!(said(key).starts_with("archive.secret_access_key: "));
        let endpoint = Archive { endpoint: Some("minio:9000".into()), ..at("s3://events") };
        assert!(said(endpoint).starts_with("archive.endpoint: "));
        let alone = Archive { region: Some("eu-central-1".into()), ..Archive::default() };
        assert!(said(alone).starts_with("archive.region: is of no use"));
    }

    #[test]
    fn the_secret_is_never_shown() {
        let archive = Archive { secret_access_key: Some(Hidden::new("hush-hush")), ..at("s3://events") };
        assert!(!format!("{archive:?}").contains("hush"));
        assert!(!serde_json::to_string(&archive).unwrap().contains("hush"));
    }
}
