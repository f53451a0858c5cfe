//! Data folder of a demo. It must never contain data of a real installation.

use std::{
    fs,
    path::{Path, PathBuf},
};

use redrive_engine::clock;

use crate::{
    cli::CliError,
    files::{make_new_private_folder, make_private_folder},
};

/// Database file of a demo. Its name identifies a folder as that of a demo.
const DATABASE: &str = "redrive-demo.db";

/// Data folder of a demo. A temporary one is removed on drop.
pub(super) struct Folder {
    path: PathBuf,
    temporary: bool,
}

impl Folder {
    /// Opens the given folder, or creates a temporary one.
    pub(super) fn open(named: Option<&Path>) -> Result<Self, CliError> {
        match named {
            Some(path) => Self::named(path),
            None => Self::temporary(),
        }
    }

    /// Opens a folder that is new, empty, or from an earlier demo.
    fn named(path: &Path) -> Result<Self, CliError> {
        let failed =
            |error: std::io::Error| CliError::message(format!("--data: {}: {error}", path.display()));
        let path = std::path::absolute(path).map_err(failed)?;
        make_private_folder(&path).map_err(failed)?;
        let is_empty = fs::read_dir(&path).map_err(failed)?.next().is_none();
        if !is_empty && !path.join(DATABASE).exists() {
            let path = path.display();
            return Err(CliError::message(format!(
                "--data: {path} contains other data than a demo's; name a new folder"
            )));
        }
        Ok(Self { path, temporary: false })
    }

    fn temporary() -> Result<Self, CliError> {
        let name = format!("redrive-demo-{}", &clock::secret_hex()[..12]);
        let path = std::env::temp_dir().join(name);
        make_new_private_folder(&path).map_err(|error| {
            CliError::message(format!("{}: {error}; name another folder with --data DIR", path.display()))
        })?;
        Ok(Self { path, temporary: true })
    }

    /// Returns the URL of the database in the folder.
    pub(super) fn database(&self) -> Result<String, CliError> {
        let path = self.path.join(DATABASE);
        let text = path.to_str().ok_or_else(|| CliError::message("--data: must be valid UTF-8"))?;
        Ok(format!("sqlite:{text}"))
    }

    /// Describes the location of the folder and whether it is kept.
    pub(super) fn describe(&self) -> String {
        let path = self.path.display();
        match self.temporary {
            true => format!("Data folder: {path}, deleted at exit. Use --data DIR to keep it."),
            false => format!("Data folder: {path}, kept for the next demo with --data."),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.temporary
            && let Err(error) = fs::remove_dir_all(&self.path)
        {
            tracing::warn!(%error, folder = %self.path.display(), "removing the demo's data folder failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn temporary_folder_is_private_and_removed_on_drop() {
        let (one, other) = (Folder::open(None).unwrap(), Folder::open(None).unwrap());
        assert_ne!(one.path, other.path);
        let mode = fs::metadata(&one.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        fs::write(one.path.join(DATABASE), "x").unwrap();
        let path = one.path.clone();
        drop(one);
        assert!(!path.exists());
    }

    #[test]
    fn named_folder_is_kept_and_rejected_with_foreign_data() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("kept");
        let folder = Folder::open(Some(&path)).unwrap();
        fs::write(path.join(DATABASE), "x").unwrap();
        drop(folder);
        assert!(path.join(DATABASE).exists());
        assert!(Folder::open(Some(&path)).is_ok(), "again");

        let others = home.path().join("others");
        fs::create_dir(&others).unwrap();
        assert!(Folder::open(Some(&others)).is_ok(), "empty");
        fs::write(others.join("redrive.db"), "x").unwrap();
        let refused = Folder::open(Some(&others)).err().unwrap().to_string();
        assert!(refused.starts_with("--data: ") && refused.contains("name a new folder"), "{refused}");
    }
}
