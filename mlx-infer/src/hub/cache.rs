//! The folders of one model in the cache.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::ErrorKind as IoErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::http::{Client, Remote};
use super::name::is_commit;
use super::{Name, OnProgress, Progress};
use crate::error::{Error, ErrorKind, Result};
use crate::host::output::{io, is_named};

/// The pause between two attempts to lock a file.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) struct Repo {
    cache: PathBuf,
    dir: PathBuf,
    locks: PathBuf,
}

impl Repo {
    pub(super) fn new(cache: &Path, name: &Name) -> Self {
        Self {
            cache: cache.to_owned(),
            dir: cache.join(name.folder()),
            locks: cache.join(".locks").join(name.folder()),
        }
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.dir.join("snapshots").join(commit)
    }

    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.dir.join("blobs").join(etag)
    }

    /// The path of a blob while it is downloaded.
    pub(super) fn incomplete(&self, etag: &str) -> PathBuf {
        self.dir.join("blobs").join(format!("{etag}.incomplete"))
    }

    /// The commit that a revision was last seen at.
    pub(super) fn commit_of(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let commit = fs::read_to_string(self.dir.join("refs").join(revision)).ok()?;
        let commit = commit.trim();
        is_commit(commit).then(|| commit.to_owned())
    }

    /// Stores the commit of a branch or tag. A cache that cannot be written is left unchanged; its files can still be
    /// read.
    pub(super) fn write_ref(&self, revision: &str, commit: &str) {
        if is_commit(revision) || self.commit_of(revision).as_deref() == Some(commit) {
            return;
        }
        let path = self.dir.join("refs").join(revision);
        if self
            .check_folders(path.parent().unwrap_or(&self.dir))
            .is_err()
        {
            return;
        }
        let mut new = path.clone().into_os_string();
        new.push(format!(".{}.tmp", std::process::id()));
        let write = || {
            fs::create_dir_all(path.parent().unwrap_or(&self.dir))?;
            fs::write(&new, commit)?;
            fs::rename(&new, &path)
        };
        if write().is_err() {
            let _ = fs::remove_file(&new);
        }
    }

    /// Whether a blob, which may be a link into a shared store, exists with all of its bytes.
    pub(super) fn has_blob(&self, remote: &Remote) -> bool {
        let found = fs::metadata(self.blob(&remote.etag));
        found.is_ok_and(|found| found.is_file() && found.len() == remote.bytes)
    }

    /// The bytes of a blob that have to be downloaded.
    pub(super) fn absent_bytes(&self, remote: &Remote) -> u64 {
        if self.has_blob(remote) {
            return 0;
        }
        let kept = fs::symlink_metadata(self.incomplete(&remote.etag));
        let kept = kept.map_or(0, |found| if found.is_file() { found.len() } else { 0 });
        if kept > remote.bytes {
            remote.bytes
        } else {
            remote.bytes - kept
        }
    }

    /// Refuses a symbolic link among the model's folders on the way to `dir`: files written through
    /// it would be outside the cache, where the relative links of a snapshot do not resolve. The
    /// cache itself, the model's own folder and its blobs may be links.
    ///
    /// # Errors
    /// There is such a link; the message names it.
    fn check_folders(&self, dir: &Path) -> Result<()> {
        let mut path = self.dir.clone();
        for part in dir.strip_prefix(&self.dir).into_iter().flatten() {
            path.push(part);
            match fs::symlink_metadata(&path) {
                Ok(found) if !found.is_dir() => return Err(not_ours(&path, "a folder")),
                Ok(_) => {}
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    /// # Errors
    /// The disk does not have this many free bytes.
    pub(super) fn check_space(&self, bytes: u64) -> Result<()> {
        let dir = self.dir.join("blobs");
        fs::create_dir_all(&dir).map_err(|error| io("make", &dir, error))?;
        match free_bytes(&dir) {
            Some(free) if free < bytes => {
                let message = format!(
                    "the disk of the cache {} has {free} bytes left, and {bytes} more are to be fetched; \
                     make room, or set HF_HUB_CACHE",
                    self.cache.display()
                );
                Err(Error::new(ErrorKind::Io, message))
            }
            _ => Ok(()),
        }
    }

    /// Locks a blob's file against other processes, including Python's. Waits for the lock. On a file system without
    /// locks there is no exclusion.
    pub(super) fn lock(
        &self,
        etag: &str,
        client: &Client,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<Option<File>> {
        let path = self.locks.join(format!("{etag}.lock"));
        let fail = |error| io("lock", &path, error);
        fs::create_dir_all(&self.locks).map_err(fail)?;
        let mut told = false;
        loop {
            // Programs make locks as ordinary files. Opening a link would create its target.
            if let Ok(found) = fs::symlink_metadata(&path)
                && !found.is_file()
            {
                return Err(not_ours(&path, "an ordinary file"));
            }
            let mut options = OpenOptions::new();
            let file = options
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .map_err(fail)?;
            match file.try_lock() {
                // The previous holder may have removed the file, so a lock only counts if the file still has this name.
                Ok(()) if is_named(&file, &path) => return Ok(Some(file)),
                Ok(()) => {}
                Err(TryLockError::Error(error)) if error.kind() == IoErrorKind::Unsupported => {
                    return Ok(None);
                }
                Err(TryLockError::Error(error)) => return Err(fail(error)),
                Err(TryLockError::WouldBlock) => {
                    if !std::mem::replace(&mut told, true) {
                        on_progress(Progress::Note(
                            "waiting for another process that fetches the same file",
                        ));
                    }
                    client.wait(PAUSE)?;
                }
            }
        }
    }

    /// Makes a file of a snapshot, which is a link to its blob.
    pub(super) fn link(&self, commit: &str, file: &str, etag: &str) -> Result<()> {
        let path = self.snapshot(commit).join(file);
        self.check_folders(path.parent().unwrap_or(&self.dir))?;
        let up = "../".repeat(2 + file.matches('/').count());
        let make = || {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            // The old link may point to a blob that was removed.
            if fs::symlink_metadata(&path).is_ok() && !path.exists() {
                fs::remove_file(&path)?;
            }
            match link(&self.blob(etag), &format!("{up}blobs/{etag}"), &path) {
                Err(error) if error.kind() == IoErrorKind::AlreadyExists => Ok(()),
                made => made,
            }
        };
        make().map_err(|error| io("make", &path, error))
    }
}

fn not_ours(path: &Path, expected: &str) -> Error {
    let kind = match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => "a link",
        _ => "something else",
    };
    Error::new(
        ErrorKind::Io,
        format!(
            "{} is {kind}; expected {expected}, as every program makes it in this cache; remove it",
            path.display()
        ),
    )
}

#[cfg(unix)]
fn link(_blob: &Path, relative: &str, path: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(relative, path)
}

/// Makes a copy. Where links need a privilege, huggingface_hub copies too.
#[cfg(not(unix))]
fn link(blob: &Path, _relative: &str, path: &Path) -> std::io::Result<()> {
    fs::copy(blob, path).map(|_| ())
}

#[cfg(any(target_os = "linux", target_os = "macos"))]
fn free_bytes(dir: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(dir).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn free_bytes(_dir: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    fn a_disk_without_room_is_told_before() {
        let cache = tempfile::tempdir().unwrap();
        let repo = Repo::new(cache.path(), &Name::parse("org/name").unwrap());
        repo.check_space(1).unwrap();
        let error = repo.check_space(u64::MAX).unwrap_err().to_string();
        assert!(
            error.contains("18446744073709551615 more are to be fetched"),
            "{error}"
        );
    }
}
