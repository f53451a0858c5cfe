//! Storage of the archive's objects: a folder, or an S3-compatible bucket.

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::{
    ObjectStore, ObjectStoreExt, PutPayload, aws::AmazonS3Builder, local::LocalFileSystem, path::Path,
    prefix::PrefixStore,
};

use super::{ArchiveError, client::BucketConnector};
use crate::config::{self, ArchiveLocation, SecretSetting};

impl From<object_store::Error> for ArchiveError {
    fn from(error: object_store::Error) -> Self {
        Self::Storage(error.to_string())
    }
}

/// Storage of an archive.
pub(super) struct Storage(Box<dyn ObjectStore>);

impl Storage {
    /// Opens the storage at the configured location.
    pub(super) fn open(config: &config::Archive, position: ArchiveLocation) -> Result<Self, ArchiveError> {
        Ok(match position {
            ArchiveLocation::Folder(folder) => {
                crate::files::make_private_folder(&folder)
                    .map_err(|error| ArchiveError::Storage(format!("{}: {error}", folder.display())))?;
                // Files are synced, because the store deletes its copy once an object is stored: by then the object must
                // survive a power failure.
                Self(Box::new(LocalFileSystem::new_with_prefix(folder)?.with_fsync(true)))
            }
            ArchiveLocation::Bucket { bucket, prefix } => {
                let storage = bucket_of(config, &bucket).build()?;
                Self(Box::new(PrefixStore::new(storage, prefix)))
            }
        })
    }

    /// Stores bytes under a path.
    pub(super) async fn put(&self, path: &str, bytes: Bytes) -> Result<(), ArchiveError> {
        self.0.put(&Path::from(path), PutPayload::from(bytes)).await?;
        Ok(())
    }

    /// Lists the paths of all objects.
    pub(super) async fn list(&self) -> Result<Vec<String>, ArchiveError> {
        let found: Vec<_> = self.0.list(None).try_collect().await?;
        Ok(found.into_iter().map(|meta| meta.location.to_string()).collect())
    }

    /// Reads the bytes under a path.
    pub(super) async fn get(&self, path: &str) -> Result<Bytes, ArchiveError> {
        Ok(self.0.get(&Path::from(path)).await?.bytes().await?)
    }
}

fn bucket_of(config: &config::Archive, bucket: &str) -> AmazonS3Builder {
    let mut builder = AmazonS3Builder::new().with_bucket_name(bucket).with_http_connector(BucketConnector);
    if let Some(region) = &config.region {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = &config.endpoint {
        builder = builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
    }
    if let (Some(key), Some(secret)) = (&config.access_key_id, &config.secret_access_key) {
        builder = builder.with_access_key_id(key).with_secret_access_key(SecretSetting::reveal(secret));
    }
    builder
}
