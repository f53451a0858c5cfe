//! Archive of pruned data: objects, each with a manifest that is written last. An object without a manifest does
//! not count; it is written again under the same name.
//!
//! Its location is set by the operator, so its connections do not go through `egress`.

mod archiver;
#[cfg(feature = "archive")]
mod client;
#[cfg_attr(not(feature = "archive"), path = "absent.rs")]
mod storage;

use redrive_store::{ArchiveObject, archive::checksum};
use serde::{Deserialize, Serialize};

use storage::Storage;

use crate::config::{self, ArchiveLocation, ConfigError};

const OBJECT: &str = "ndjson.zst";
const MANIFEST: &str = "json";

/// Manifest of an object, written after the object is complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the archive format.
    pub version: u32,
    /// Name of the object: the day of its events and a unique part.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
    /// Number of events.
    pub events: usize,
    /// Number of deliveries.
    pub deliveries: usize,
    /// Number of attempts.
    pub attempts: usize,
}

impl Manifest {
    fn new(object: &ArchiveObject) -> Self {
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

    /// Returns the day of the events, such as 2026-11-15.
    pub fn day(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }
}

/// Error of the archive.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The settings are invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The storage failed or is not reachable.
    #[error("archive unavailable: {0}")]
    Storage(String),
    /// An object or manifest is damaged.
    #[error("{name} is damaged: {reason}; restore it from a copy of the archive")]
    Damaged {
        /// Name of the object.
        name: String,
        /// Description of the damage.
        reason: String,
    },
}

/// Archive of pruned data.
pub struct Archive(Storage);

impl Archive {
    /// Opens the configured archive for reading. Returns `None` if none is configured. A missing folder is an error
    /// and is not created.
    pub fn open_to_read(config: &config::Archive) -> Result<Option<Self>, ArchiveError> {
        if let Some(ArchiveLocation::Folder(folder)) = config.location()?
            && !folder.is_dir()
        {
            return Err(ArchiveError::Storage(format!("{}: no such folder", folder.display())));
        }
        Self::open(config)
    }

    /// Opens the configured archive. Returns `None` if none is configured.
    pub fn open(config: &config::Archive) -> Result<Option<Self>, ArchiveError> {
        let storage = config.location()?.map(|position| Storage::open(config, position)).transpose()?;
        Ok(storage.map(Self))
    }

    /// Checks the settings like [`Self::open`], but creates no folder.
    pub fn check(config: &config::Archive) -> Result<(), ArchiveError> {
        match config.location()? {
            Some(ArchiveLocation::Folder(folder)) => crate::files::check_folder(&folder)
                .map_err(|error| ArchiveError::Storage(format!("{}: {error}", folder.display()))),
            _ => Self::open(config).map(drop),
        }
    }

    /// Stores an object, then its manifest. Idempotent.
    pub async fn put(&self, object: ArchiveObject) -> Result<(), ArchiveError> {
        let manifest = Manifest::new(&object);
        let text = serde_json::to_vec(&manifest).map_err(|error| ArchiveError::Storage(error.to_string()))?;
        self.0.put(&format!("{}.{OBJECT}", object.name), object.bytes.into()).await?;
        self.0.put(&format!("{}.{MANIFEST}", object.name), text.into()).await
    }

    /// Lists all objects by name, which starts with their day.
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

    /// Reads an object and verifies its checksum.
    pub async fn read(&self, manifest: &Manifest) -> Result<bytes::Bytes, ArchiveError> {
        let bytes = self.0.get(&format!("{}.{OBJECT}", manifest.name)).await?;
        match checksum(&bytes) == manifest.sha256 {
            true => Ok(bytes),
            false => Err(ArchiveError::Damaged {
                name: manifest.name.clone(),
                reason: "its checksum differs from its manifest".into(),
            }),
        }
    }
}

#[cfg(feature = "archive")]
#[cfg(test)]
mod tests {
    use redrive_store::PruneCounts;

    use super::*;

    fn object(name: &str, text: &str) -> ArchiveObject {
        let holds = PruneCounts { events: 1, deliveries: 2, attempts: 3 };
        ArchiveObject { name: name.into(), holds, bytes: text.into() }
    }

    fn open(folder: &std::path::Path) -> Archive {
        let url = Some(folder.join("archive").display().to_string());
        Archive::open(&config::Archive { url, ..config::Archive::default() }).unwrap().unwrap()
    }

    #[tokio::test]
    async fn stored_objects_are_listed_by_day_and_read_back() {
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
    async fn object_without_manifest_is_ignored_and_damage_is_reported() {
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
