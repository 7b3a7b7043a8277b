//! Files that appear whole or not at all.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A file that is written beside its final name, flushed to disk and renamed. Dropping it leaves nothing behind.
pub(crate) struct Unnamed {
    path: PathBuf,
    present: PathBuf,
    file: File,
    is_finished: bool,
}

impl Unnamed {
    /// An empty file in the folder of `path`.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        let folder = folder_of(path);
        loop {
            let present = folder.join(next_name());
            let mut options = File::options();
            match options
                .read(true)
                .write(true)
                .create_new(true)
                .open(&present)
            {
                Ok(file) => {
                    return Ok(Self {
                        path: path.to_owned(),
                        present,
                        file,
                        is_finished: false,
                    });
                }
                // A process of this number was killed while it wrote, or another machine writes here.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The name that the file will have.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The name that the file has until it is finished.
    pub(crate) fn present_path(&self) -> &Path {
        &self.present
    }

    pub(crate) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Flushes the file and renames it to its final name.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.present, &self.path)?;
        self.is_finished = true;
        sync_folder(folder_of(&self.path))
    }
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        if !self.is_finished {
            // The error that is on its way says more than this one would.
            let _ = fs::remove_file(&self.present);
        }
    }
}

/// A name that no other file of this process has.
fn next_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!(".saving-{}-{next}", std::process::id())
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[test]
    fn a_name_that_is_taken_is_passed_over_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        let present = Unnamed::new(&path).unwrap().present_path().to_owned();
        let (head, last) = present.to_str().unwrap().rsplit_once('-').unwrap();
        let last: u64 = last.parse().unwrap();
        let taken: Vec<String> = (1..=20)
            .map(|ahead| format!("{head}-{}", last + ahead))
            .collect();
        taken
            .iter()
            .for_each(|name| fs::write(name, "old").unwrap());
        Unnamed::new(&path).unwrap().finish().unwrap();
        assert!(taken.iter().all(|name| fs::read(name).unwrap() == b"old"));
        assert_eq!(fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn a_dropped_file_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        fs::write(&path, "old").unwrap();
        drop(Unnamed::new(&path).unwrap());
        assert_eq!(names(folder.path()), ["a.bin"]);
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }
}
