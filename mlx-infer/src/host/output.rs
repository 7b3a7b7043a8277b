//! Outputs on disk: each has one writer at a time, and appears complete or not at all.
//!
//! A command that writes a folder or a file holds a [`Claim`] on it from its start to its end. Three
//! hidden names beside the output `NAME` belong to the claim:
//!
//! | name | what it is |
//! |---|---|
//! | `.NAME.mlx-lock` | the file that the claim locks (`flock`); the kernel frees the lock of a process that dies |
//! | `.NAME.mlx-new` | the folder in which the output is made |
//! | `.NAME.mlx-old` | the replaced folder, where the file system cannot exchange two folders in one call |
//!
//! A claim removes all three when it ends. Those of a process that was killed are removed by the next claim in the same
//! folder.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::ErrorKind as IoErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mlx_core::files;

use crate::error::{Error, ErrorKind, Result};

const LOCK: &str = ".mlx-lock";
const NEW: &str = ".mlx-new";
const OLD: &str = ".mlx-old";
/// How often locking is tried. A process that cleans up holds the lock of a killed process for a short time.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// The right to write one output. While it exists, every other process (and every other claim of this process) is
/// refused the same output.
#[derive(Debug)]
pub struct Claim {
    target: PathBuf,
    _lock: Lock,
}

impl Claim {
    /// Claims `output`, a file or folder that may not exist yet. Its parent folder is created.
    ///
    /// If the parent folder cannot be written and `output` is a folder, the lock is inside `output`. On a file system
    /// without locks there is no exclusion.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`]: another process writes `output`. Otherwise the lock cannot be made.
    pub fn new(output: &Path) -> Result<Self> {
        let target = resolved(output).map_err(|error| io("look up", output, error))?;
        let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
            let message = format!("{} is not a name for an output", output.display());
            return Err(Error::argument(message));
        };
        let inside = target.join(LOCK);
        let made =
            fs::create_dir_all(parent).and_then(|()| Lock::take(parent.join(hidden(name, LOCK))));
        let taken = match made {
            Err(error) if is_read_only(&error) && target.is_dir() => Lock::take(inside),
            made => made,
        };
        let lock = taken.map_err(|error| io("lock", output, error))?;
        let Some(lock) = lock else {
            let message = format!(
                "{} is being written by another process; wait for its end, or choose another output",
                output.display()
            );
            return Err(Error::new(ErrorKind::Busy, message));
        };
        let claim = Self {
            target,
            _lock: lock,
        };
        claim
            .recover()
            .map_err(|error| io("clean up beside", output, error))?;
        clean(claim.target.parent().unwrap_or(Path::new(".")));
        Ok(claim)
    }

    /// An empty folder beside the output, in which to make it.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn scratch(&self) -> Result<PathBuf> {
        let dir = self.beside(NEW);
        let make = || {
            remove(&dir)?;
            fs::create_dir(&dir)
        };
        make().map_err(|error| io("make", &dir, error))?;
        Ok(dir)
    }

    /// Renames `made`, a file or folder inside or equal to [`scratch`](Self::scratch), to the output. A folder replaces
    /// a folder in one step if the file system can exchange both.
    ///
    /// # Errors
    /// It cannot be renamed. The old output is then unchanged.
    pub fn publish(&self, made: &Path) -> Result<()> {
        let fail = |error| io("make", &self.target, error);
        if made.is_dir() {
            replace_folder(made, &self.target, &self.beside(OLD)).map_err(fail)?;
        } else {
            fs::rename(made, &self.target).map_err(fail)?;
        }
        let parent = self.target.parent().unwrap_or(Path::new("."));
        sync_folder(parent).map_err(|error| io("write", parent, error))
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let name = self.target.file_name().unwrap_or_default();
        self.target.with_file_name(hidden(name, suffix))
    }

    /// Cleans up after a killed process: restores a folder that was set aside, and removes the rest.
    fn recover(&self) -> std::io::Result<()> {
        let old = self.beside(OLD);
        if fs::symlink_metadata(&old).is_ok() && fs::symlink_metadata(&self.target).is_err() {
            fs::rename(&old, &self.target)?;
        }
        remove(&old)?;
        remove(&self.beside(NEW))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // The output is complete without these, and the next claim tries again.
        let _ = remove(&self.beside(NEW));
    }
}

/// A locked file, which is removed before the lock is released.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    /// None if the file system does not support locks.
    _file: Option<File>,
}

impl Lock {
    /// Takes the lock; `None` if another process holds it.
    fn take(path: PathBuf) -> std::io::Result<Option<Self>> {
        for _ in 0..TRIES {
            let file = open(&path)?;
            match file.try_lock() {
                // The previous holder removes the file, so a lock only counts if the file still has this name.
                Ok(()) if is_named(&file, &path) => {
                    let _file = Some(file);
                    return Ok(Some(Self { path, _file }));
                }
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
                Err(TryLockError::Error(error)) if error.kind() == IoErrorKind::Unsupported => {
                    return Ok(Some(Self { path, _file: None }));
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Ok(None)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path)
}

/// Whether a path still names this file.
#[cfg(unix)]
pub(crate) fn is_named(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id =
        |found: std::io::Result<fs::Metadata>| found.map(|found| (found.dev(), found.ino())).ok();
    fs::symlink_metadata(path).is_ok() && id(file.metadata()) == id(fs::symlink_metadata(path))
}

/// Whether a path still names this file.
#[cfg(not(unix))]
pub(crate) fn is_named(_file: &File, path: &Path) -> bool {
    path.exists()
}

/// Removes the leftovers of killed processes in a folder. Those that cannot be removed are left to the next claim.
fn clean(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let file_name = entry.file_name();
        let name = file_name.to_str().and_then(|name| name.strip_prefix('.'));
        let Some(name) = name.and_then(|name| name.strip_suffix(LOCK)) else {
            continue;
        };
        // A lock is an ordinary file. Opening a pipe would wait for its other end.
        if let Ok(file) = files::open(entry.path(), u64::MAX)
            && file.try_lock().is_ok()
            && is_named(&file, &entry.path())
        {
            let claim = Claim {
                target: parent.join(name),
                _lock: Lock {
                    path: entry.path(),
                    _file: Some(file),
                },
            };
            let _ = claim.recover();
        }
    }
}

/// Replaces the folder `old`, if it exists, by the folder `new`, and removes the content of `old`. If the file system
/// cannot exchange two folders in one step, `old` is moved to `aside` meanwhile.
///
/// # Errors
/// A rename fails. `old` is then unchanged, or at `aside`.
pub fn replace_folder(new: &Path, old: &Path, aside: &Path) -> std::io::Result<()> {
    match fs::symlink_metadata(old) {
        Err(error) if error.kind() == IoErrorKind::NotFound => return fs::rename(new, old),
        Err(error) => return Err(error),
        Ok(_) => {}
    }
    if exchange(new, old)? {
        return remove(new);
    }
    fs::rename(old, aside)?;
    if let Err(error) = fs::rename(new, old) {
        fs::rename(aside, old)?;
        return Err(error);
    }
    remove(aside)
}

/// Exchanges two folders in one step. Returns `false` if the system or file system cannot.
#[cfg(any(target_os = "linux", target_os = "macos"))]
fn exchange(a: &Path, b: &Path) -> std::io::Result<bool> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;
    match renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn exchange(_a: &Path, _b: &Path) -> std::io::Result<bool> {
    Ok(false)
}

/// Removes a folder with its content, if it is there.
///
/// # Errors
/// It cannot be removed.
pub fn remove(dir: &Path) -> std::io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != IoErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Flushes a folder: a new name is on disk only after its folder was flushed.
///
/// # Errors
/// It cannot be flushed.
pub fn sync_folder(folder: &Path) -> std::io::Result<()> {
    if cfg!(unix) {
        File::open(folder)?.sync_all()
    } else {
        Ok(())
    }
}

/// The absolute path of a file whose last path components may not exist yet.
pub(crate) fn resolved(path: &Path) -> std::io::Result<PathBuf> {
    let mut missing = Vec::new();
    let mut at = std::path::absolute(path)?;
    loop {
        match at.canonicalize() {
            Ok(found) => return Ok(missing.iter().rev().fold(found, |at, part| at.join(part))),
            Err(error) => match (at.parent(), at.file_name()) {
                (Some(parent), Some(name)) => {
                    missing.push(name.to_owned());
                    at = parent.to_owned();
                }
                _ => return Err(error),
            },
        }
    }
}

fn hidden(name: &OsStr, suffix: &str) -> OsString {
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(suffix);
    hidden
}

fn is_read_only(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        IoErrorKind::PermissionDenied | IoErrorKind::ReadOnlyFilesystem
    )
}

/// The error of a file operation, with the path.
pub(crate) fn io(what: &str, path: &Path, error: std::io::Error) -> Error {
    let message = format!("cannot {what} {}: {error}", path.display());
    Error::new(ErrorKind::Io, message).with_source(error)
}
