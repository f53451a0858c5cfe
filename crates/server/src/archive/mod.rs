//! The archive: objects with what is forgotten, each with a manifest that is written last. An object without its
//! manifest does not count; it is written again under the same name.
//!
//! The operator says where it is, so this is the one way out beside `egress` and the store's own.

mod archiver;
#[cfg(feature = "archive")]
mod client;
#[cfg_attr(not(feature = "archive"), path = "absent.rs")]
mod storage;

use redrive_store::{ArchiveObject, archive::checksum};
use serde::{Deserialize, Serialize};

use storage::Storage;

use crate::config::{self, ConfigError, Place};

const OBJECT: &str = "ndjson.zst";
const MANIFEST: &str = "json";

/// What an object is, written when all of it is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The form of all this.
    pub version: u32,
    /// What the object is called: the day of its events, and a name that nothing else has.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256 in hexadecimal digits.
    pub sha256: String,
    /// Events in it.
    pub events: usize,
    /// Deliveries in it.
    pub deliveries: usize,
    /// Attempts in it.
    pub attempts: usize,
}

impl Manifest {
    fn of(object: &ArchiveObject) -> Self {
        Self {
            version: 1,
            name: object.name.clone(),
            bytes: object.bytes.len() as u64,
            sha256: checksum(&object.bytes),
            events: object.holds.events,
            deliveries: object.holds.deliveries,
            attempts: object.holds.attempts,
        }
    }

    /// The day of its events, as 2026-11-15.
    pub fn day(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }
}

/// Why the archive cannot be used now.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The settings are wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its storage said so, or cannot be reached.
    #[error("the archive cannot be used: {0}")]
    Storage(String),
    /// What is in it is not what was put there.
    #[error("{name} is damaged: {reason}; restore it from a copy of the archive")]
    Damaged {
        /// The object.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// The archive.
pub struct Archive(Storage);

impl Archive {
    /// Opens the archive that the configuration names, to be read; none if none is named. One that is not there is
    /// not made.
    pub fn open_to_read(config: &config::Archive) -> Result<Option<Self>, ArchiveError> {
        if let Some(Place::Folder(folder)) = config.place()?
            && !folder.is_dir()
        {
            return Err(ArchiveError::Storage(format!("{}: there is no such folder", folder.display())));
        }
        Self::open(config)
    }

    /// Opens the archive that the configuration names; none if there is none.
    pub fn open(config: &config::Archive) -> Result<Option<Self>, ArchiveError> {
        let storage = config.place()?.map(|place| Storage::open(config, place)).transpose()?;
        Ok(storage.map(Self))
    }

    /// Stores an object, then its manifest. Doing it again changes nothing.
    pub async fn put(&self, object: ArchiveObject) -> Result<(), ArchiveError> {
        let manifest = Manifest::of(&object);
        let text = serde_json::to_vec(&manifest).map_err(|error| ArchiveError::Storage(error.to_string()))?;
        self.0.put(&format!("{}.{OBJECT}", object.name), object.bytes.into()).await?;
        self.0.put(&format!("{}.{MANIFEST}", object.name), text.into()).await
    }

    /// All objects by name, which begins with their day.
    pub async fn list(&self) -> Result<Vec<Manifest>, ArchiveError> {
        let mut all = Vec::new();
        for path in self.0.list().await?.into_iter().filter(|path| path.ends_with(&format!(".{MANIFEST}"))) {
            let bytes = self.0.get(&path).await?;
            let manifest: Manifest = serde_json::from_slice(&bytes)
                .map_err(|error| ArchiveError::Damaged { name: path.clone(), reason: error.to_string() })?;
            all.push(manifest);
        }
        all.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(all)
    }

    /// The bytes of an object, as they were put there.
    pub async fn read(&self, manifest: &Manifest) -> Result<bytes::Bytes, ArchiveError> {
        let bytes = self.0.get(&format!("{}.{OBJECT}", manifest.name)).await?;
        match checksum(&bytes) == manifest.sha256 {
            true => Ok(bytes),
            false => Err(ArchiveError::Damaged {
                name: manifest.name.clone(),
                reason: "its checksum is not the one in its manifest".into(),
            }),
        }
    }
}

#[cfg(feature = "archive")]
#[cfg(test)]
mod tests {
    use redrive_store::Left;

    use super::*;

    fn object(name: &str, text: &str) -> ArchiveObject {
        let holds = Left { events: 1, deliveries: 2, attempts: 3 };
        ArchiveObject { name: name.into(), holds, bytes: text.into() }
    }

    fn open(folder: &std::path::Path) -> Archive {
        let url = Some(folder.join("archive").display().to_string());
        Archive::open(&config::Archive { url, ..config::Archive::default() }).unwrap().unwrap()
    }

    #[tokio::test]
    async fn what_was_put_is_listed_by_day_and_read_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let archive = open(folder.path());
        for name in ["2026-11-15/0000000002-b", "2026-08-14/0000000001-a"] {
            archive.put(object(name, name)).await.unwrap();
            archive.put(object(name, name)).await.unwrap();
        }
        let all = archive.list().await.unwrap();
        assert_eq!(all.iter().map(Manifest::day).collect::<Vec<_>>(), ["2026-08-14", "2026-11-15"]);
        assert_eq!(archive.read(&all[1]).await.unwrap(), "2026-11-15/0000000002-b");
        assert_eq!((all[0].events, all[0].deliveries, all[0].attempts), (1, 2, 3));
    }

    #[tokio::test]
    async fn an_object_without_its_manifest_does_not_count_and_a_damaged_one_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let archive = open(folder.path());
        archive.put(object("2026-11-15/0000000002-b", "right")).await.unwrap();
        let files = folder.path().join("archive/2026-11-15");
        std::fs::write(files.join("0000000003-c.ndjson.zst"), "half of it").unwrap();
        let all = archive.list().await.unwrap();
        assert_eq!(all.len(), 1);
        std::fs::write(files.join("0000000002-b.ndjson.zst"), "wrong").unwrap();
        let damaged = archive.read(&all[0]).await.unwrap_err();
        assert!(matches!(damaged, ArchiveError::Damaged { .. }), "{damaged}");
    }
}
