//! Creates files and folders that only their owner may access.

use std::{io::Write, path::Path};

/// Writes a line to a new file that only the owner may read. Fails if the file exists.
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
    // The database will hold data that only this key can decrypt, so the key must survive a power failure too.
    file.sync_all()?;
    sync_folder_of(path);
    Ok(())
}

/// Makes a new file's name durable. Errors are ignored: not every file system can sync a folder, and the file
/// itself is already written.
fn sync_folder_of(path: &Path) {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(parent).and_then(|folder| folder.sync_all()).ok();
}

/// Creates a folder that only the owner may access. An existing folder is left unchanged.
pub(crate) fn make_private_folder(path: &Path) -> std::io::Result<()> {
    private_folder().recursive(true).create(path)
}

/// Creates a folder that only the owner may access. Fails if it exists: where any user may write, another user
/// could have created it.
pub(crate) fn make_new_private_folder(path: &Path) -> std::io::Result<()> {
    private_folder().create(path)
}

fn private_folder() -> std::fs::DirBuilder {
    let mut folder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut folder, 0o700);
    folder
}
