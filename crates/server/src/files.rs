//! Creates files and folders that only their owner may access.

use std::{
    io::{ErrorKind, Write},
    path::Path,
};

use rustix::fs::{Access, access};

/// Writes a key as a line to a new private file, in a folder that is created if it does not exist.
pub(crate) fn write_key_file(path: &Path, key: &str) -> std::io::Result<()> {
    make_private_folder(folder_of(path))?;
    write_private(path, &format!("{key}\n"))
}

/// Writes text to a new file that only the owner may read and write, and syncs it to the disk. Fails if the file exists,
/// or its folder does not.
pub(crate) fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(text.as_bytes())?;
    // The database will hold data that only this key can decrypt, so the key must survive a power failure too.
    file.sync_all()?;
    sync_folder_of(path);
    Ok(())
}

/// Makes a new file's name durable. Errors are ignored: not every file system can sync a folder, and the file
/// itself is already written.
fn sync_folder_of(path: &Path) {
    std::fs::File::open(folder_of(path)).and_then(|folder| folder.sync_all()).ok();
}

/// Creates a folder that only the owner may access. An existing folder is left unchanged.
pub(crate) fn make_private_folder(path: &Path) -> std::io::Result<()> {
    private_folder().recursive(true).create(path)
}

/// Checks that this process may create files in a folder, or the folder itself if it does not exist. Creates nothing.
pub(crate) fn check_folder(folder: &Path) -> std::io::Result<()> {
    let existing = nearest_existing(folder);
    if !existing.is_dir() {
        return Err(ErrorKind::NotADirectory.into());
    }
    access(existing, Access::WRITE_OK | Access::EXEC_OK)?;
    Ok(())
}

/// Returns the folder, or the nearest one above it that exists.
pub(crate) fn nearest_existing(folder: &Path) -> &Path {
    let here = Path::new(".");
    let above = folder.ancestors().map(|folder| if folder.as_os_str().is_empty() { here } else { folder });
    above.into_iter().find(|folder| folder.symlink_metadata().is_ok()).unwrap_or(here)
}

/// Returns the folder of a file; `.` for a name without a folder.
pub(crate) fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
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
