//! Files for their owner's eyes alone.

use std::{io::Write, path::Path};

/// Writes a line to a new file that nobody else may read; one that is there already is left alone.
pub(crate) fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        make_private_folder(parent)?;
    }
    let mut file = options.open(path)?;
    writeln!(file, "{text}")?;
    // The database soon holds what only this key can read, so the key must survive a power cut as well.
    file.sync_all()?;
    sync_folder_of(path);
    Ok(())
}

/// Makes a new file's name durable. Not every file system can sync a folder, and the file itself is already written:
/// errors are ignored.
fn sync_folder_of(path: &Path) {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(parent).and_then(|folder| folder.sync_all()).ok();
}

/// Makes a folder that nobody else may look into; one that is there already is left alone.
pub(crate) fn make_private_folder(path: &Path) -> std::io::Result<()> {
    private_folder().recursive(true).create(path)
}

/// The same for one that must be new: where anybody may write, somebody could have put one there.
pub(crate) fn make_new_private_folder(path: &Path) -> std::io::Result<()> {
    private_folder().create(path)
}

fn private_folder() -> std::fs::DirBuilder {
    let mut folder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut folder, 0o700);
    folder
}
