//! Placeholder storage for builds without the feature `archive`.

use bytes::Bytes;

use super::ArchiveError;
use crate::config::{self, ArchiveLocation};

/// Uninhabited type: no storage can be opened.
pub(super) enum Storage {}

impl Storage {
    pub(super) fn open(_: &config::Archive, _: ArchiveLocation) -> Result<Self, ArchiveError> {
        let advice = "this build of Redrive has no archive; build it with the feature `archive`, or remove archive.url";
        Err(ArchiveError::Storage(advice.into()))
    }

    pub(super) async fn put(&self, _: &str, _: Bytes) -> Result<(), ArchiveError> {
        match *self {}
    }

    pub(super) async fn list(&self) -> Result<Vec<String>, ArchiveError> {
        match *self {}
    }

    pub(super) async fn get(&self, _: &str) -> Result<Bytes, ArchiveError> {
        match *self {}
    }
}
