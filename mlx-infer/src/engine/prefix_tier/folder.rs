//! Segments in files of a folder: their names, sizes and ages, limited in bytes.
//!
//! Each model has a folder of its own, named after its fingerprint. A file's name has the key of
//! its tokens and the checksum of its bytes. Several processes may share a folder: files appear by
//! renaming, and a file that another process has removed is no error. Names of other forms are left
//! alone.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use mlx_core::Safetensors;

use super::segment;
use super::store::SegmentStore;

const ENDING: &str = ".safetensors";
/// The begin of the name of a file that is being written.
const UNFINISHED: &str = ".saving-";
/// After this time a file that is being written belongs to a process that was killed.
const STALE: Duration = Duration::from_secs(3600);

/// The name of a file: the key of its tokens, and the checksum of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FileName {
    pub(super) key: u64,
    pub(super) sum: u64,
}

impl FileName {
    pub(super) fn text(self) -> String {
        format!("{:016x}-{:016x}{ENDING}", self.key, self.sum)
    }

    pub(super) fn read(name: &str) -> Option<Self> {
        let (key, sum) = name.strip_suffix(ENDING)?.split_once('-')?;
        let (key, sum) = (hex(key)?, hex(sum)?);
        Some(Self { key, sum })
    }
}

/// 16 hexadecimal digits in lower case.
fn hex(text: &str) -> Option<u64> {
    let is_own = text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    is_own.then(|| u64::from_str_radix(text, 16).ok()).flatten()
}

/// The files of a model below a folder of all models.
pub(super) struct FileStore {
    root: PathBuf,
    /// The folder of this model, below `root`.
    folder: PathBuf,
    /// The most bytes of the files of all models.
    limit: u64,
}

impl FileStore {
    pub(super) fn new(root: &Path, fingerprint: u64, limit: u64) -> Self {
        Self {
            folder: of_model(root, fingerprint),
            root: root.to_owned(),
            limit,
        }
    }

    fn path(&self, name: FileName) -> PathBuf {
        self.folder.join(name.text())
    }
}

impl SegmentStore for FileStore {
    fn place(&self) -> String {
        self.root.display().to_string()
    }

    fn place_of(&self, name: FileName) -> String {
        self.path(name).display().to_string()
    }

    fn survives(&self) -> bool {
        true
    }

    /// Makes the folder, and tries to write to it.
    fn open(&self) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        sweep(&self.folder)?;
        let test = FileName { key: 0, sum: 0 };
        save(&self.folder, test, b"")?;
        fs::remove_file(self.path(test))?;
        make_room(&self.root, self.limit, 0).map(drop)
    }

    fn names(&self) -> io::Result<Vec<(FileName, u64)>> {
        names(&self.folder)
    }

    fn head(&self, name: FileName) -> mlx_core::Result<Safetensors> {
        Safetensors::open(self.path(name))
    }

    fn has(&self, name: FileName) -> bool {
        self.path(name).exists()
    }

    /// The bytes are read to where arrays can refer to them.
    fn read(&self, name: FileName, len: u64) -> io::Result<Arc<[u8]>> {
        let mut file = File::open(self.path(name))?;
        let found = file.metadata()?.len();
        let len = usize::try_from(len).ok().filter(|_| found == len);
        let len = len.ok_or_else(|| io::Error::other(format!("it now has {found} bytes")))?;
        let mut bytes = segment::zeros(len);
        let buffer = Arc::get_mut(&mut bytes).expect("nothing else refers to it yet");
        file.read_exact(buffer)?;
        Ok(bytes)
    }

    fn make_room(&self, needed: u64) -> io::Result<bool> {
        make_room(&self.root, self.limit, needed)
    }

    fn save(&self, name: FileName, bytes: Arc<[u8]>) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        save(&self.folder, name, &bytes)
    }

    fn touch(&self, names: &[FileName]) {
        let paths: Vec<PathBuf> = names.iter().map(|&name| self.path(name)).collect();
        touch(&paths);
    }
}

/// A file of any model.
struct Stored {
    path: PathBuf,
    bytes: u64,
    modified: SystemTime,
}

/// The name of a model's folder.
fn of_model(root: &Path, fingerprint: u64) -> PathBuf {
    root.join(format!("{fingerprint:016x}"))
}

/// The files of a model, with their sizes.
fn names(folder: &Path) -> io::Result<Vec<(FileName, u64)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if let Some(name) = name.to_str().and_then(FileName::read)
            && let Ok(info) = entry.metadata()
            && info.is_file()
        {
            found.push((name, info.len()));
        }
    }
    Ok(found)
}

/// The files of all models.
fn all(root: &Path) -> io::Result<Vec<Stored>> {
    let mut found = Vec::new();
    for model in fs::read_dir(root)? {
        let model = model?;
        let is_own = model
            .file_name()
            .to_str()
            .is_some_and(|name| hex(name).is_some());
        // Another process may remove a file at any time.
        let Some(files) = is_own.then(|| fs::read_dir(model.path()).ok()).flatten() else {
            continue;
        };
        for entry in files.flatten() {
            let name = entry.file_name();
            let is_own = name.to_str().and_then(FileName::read).is_some();
            if is_own
                && let Ok(info) = entry.metadata()
                && info.is_file()
            {
                found.push(Stored {
                    path: entry.path(),
                    bytes: info.len(),
                    modified: info.modified()?,
                });
            }
        }
    }
    Ok(found)
}

/// Removes the files that were used least recently, of any model, until the others and `needed`
/// more bytes are at most `limit` bytes. Returns whether there is room.
fn make_room(root: &Path, limit: u64, needed: u64) -> io::Result<bool> {
    if needed > limit {
        return Ok(false);
    }
    let mut files = all(root)?;
    files.sort_by_key(|file| file.modified);
    let mut bytes: u64 = files.iter().map(|file| file.bytes).sum();
    for file in files {
        if bytes + needed <= limit {
            break;
        }
        match fs::remove_file(&file.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => bytes -= file.bytes,
        }
    }
    Ok(bytes + needed <= limit)
}

/// Writes a file, which appears whole or not at all. It is not flushed to disk: what a power failure
/// leaves of it does not have its checksum.
fn save(folder: &Path, name: FileName, bytes: &[u8]) -> io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let unfinished = folder.join(format!("{UNFINISHED}{}-{number}", std::process::id()));
    let write = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&unfinished)?;
        file.write_all(bytes)?;
        drop(file);
        fs::rename(&unfinished, folder.join(name.text()))
    };
    let written = write();
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Marks files as used now, the last one first: of files that need each other, those that are
/// needed come first and are removed last.
fn touch(paths: &[PathBuf]) {
    let now = SystemTime::now();
    for (age, path) in paths.iter().rev().enumerate() {
        // Another process may have removed it.
        if let Ok(file) = File::options().append(true).open(path) {
            let _ = file.set_modified(now + Duration::from_millis(age as u64));
        }
    }
}

/// Removes what processes that were killed have left.
fn sweep(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)?.flatten() {
        let is_unfinished =
            (entry.file_name().to_str()).is_some_and(|name| name.starts_with(UNFINISHED));
        let age = entry.metadata().and_then(|info| info.modified()).ok();
        let age = age.and_then(|modified| modified.elapsed().ok());
        if is_unfinished && age.is_some_and(|age| age > STALE) {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(key: u64) -> FileName {
        FileName { key, sum: 7 }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        let name = FileName {
            key: 0xfeed,
            sum: u64::MAX,
        };
        assert_eq!(name.text(), "000000000000feed-ffffffffffffffff.safetensors");
        assert_eq!(FileName::read(&name.text()), Some(name));
        for other in [
            "model.safetensors",
            "000000000000FEED-ffffffffffffffff.safetensors",
            "feed-ff.safetensors",
            "000000000000feed-ffffffffffffffff.txt",
            "+00000000000feed-ffffffffffffffff.safetensors",
        ] {
            assert_eq!(FileName::read(other), None, "{other}");
        }
    }

    #[test]
    fn the_least_recently_used_files_of_all_models_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let models = [1, 2].map(|model| of_model(root.path(), model));
        models
            .iter()
            .for_each(|folder| fs::create_dir(folder).unwrap());
        for key in 0..6 {
            save(&models[key as usize % 2], name(key), &[0; 100]).unwrap();
            let path = models[key as usize % 2].join(name(key).text());
            let then = SystemTime::now() - Duration::from_secs(1000 - key);
            File::options()
                .append(true)
                .open(path)
                .unwrap()
                .set_modified(then)
                .unwrap();
        }
        // Files of others stay, wherever they are.
        let others = [root.path().join("mine.bin"), models[0].join("notes.txt")];
        others
            .iter()
            .for_each(|path| fs::write(path, [0; 500]).unwrap());
        touch(&[models[0].join(name(0).text())]);
        assert!(make_room(root.path(), 450, 100).unwrap());
        let keys = |folder: &Path| {
            let mut keys: Vec<u64> = names(folder)
                .unwrap()
                .iter()
                .map(|(name, _)| name.key)
                .collect();
            keys.sort_unstable();
            keys
        };
        assert_eq!([keys(&models[0]), keys(&models[1])], [vec![0, 4], vec![5]]);
        assert!(others.iter().all(|path| path.exists()));
        assert!(!make_room(root.path(), 450, 451).unwrap());
        assert_eq!(keys(&models[0]), [0, 4]);
    }

    #[test]
    fn what_others_need_is_removed_last() {
        let folder = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = (0..3)
            .map(|key| folder.path().join(name(key).text()))
            .collect();
        for key in 0..3 {
            save(folder.path(), name(key), b"x").unwrap();
        }
        touch(&paths);
        let times = paths
            .iter()
            .map(|path| fs::metadata(path).unwrap().modified().unwrap());
        assert!(times.rev().is_sorted_by(|a, b| a < b));
    }
}
