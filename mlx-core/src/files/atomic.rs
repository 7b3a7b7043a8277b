//! Files that appear whole or not at all.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// A file that is written beside its final name, flushed to disk and renamed. Dropping it leaves nothing behind.
pub(crate) struct Unnamed {
    path: PathBuf,
    folder: PathBuf,
    file: NamedTempFile,
}

impl Unnamed {
    /// An empty file in the folder of `path`.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        builder.prefix(".saving-");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // The permissions of a new file, before the process's umask.
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        Ok(Self {
            path: path.to_owned(),
            folder: folder.to_owned(),
            file: builder.tempfile_in(folder)?,
        })
    }

    /// The name that the file will have.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The name that the file has until it is finished.
    pub(crate) fn present_path(&self) -> &Path {
        self.file.path()
    }

    pub(crate) fn file(&mut self) -> &mut File {
        self.file.as_file_mut()
    }

    /// Flushes the file and renames it to its final name.
    pub(crate) fn finish(self) -> io::Result<()> {
        self.file.as_file().sync_all()?;
        self.file.persist(&self.path).map_err(|error| error.error)?;
        sync_folder(&self.folder)
    }
}

/// Flushes the folder: only then is the new name on disk.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) {
        File::open(folder)?.sync_all()
    } else {
        Ok(())
    }
}
