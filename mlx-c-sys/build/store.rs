//! Folders that are either finished or absent. A folder is made under a lock, beside its final place; its marker is
//! written last, and then it is renamed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::report::{Failure, Result};

/// The file, written last, that marks a folder as finished and records its inputs.
pub const MARKER: &str = "complete";

/// A folder of the build.
pub struct Entry {
    /// The final place of the folder.
    pub dir: PathBuf,
    /// The inputs of the folder. If they differ from the recorded ones, the folder is made again.
    pub facts: BTreeMap<String, String>,
    /// The files, relative to `dir`, that must exist in a finished folder.
    pub files: Vec<PathBuf>,
}

impl Entry {
    /// An entry for `dir` with the inputs `facts`; a finished folder contains `files`.
    pub fn new<const F: usize, const N: usize>(
        dir: PathBuf,
        facts: [(&str, &str); F],
        files: [PathBuf; N],
    ) -> Self {
        let facts = facts.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Self {
            dir,
            facts: BTreeMap::from(facts),
            files: files.into(),
        }
    }

    /// The reason why the folder cannot be used as it is, if there is one.
    pub fn unfinished(&self) -> Option<String> {
        let marker = self.dir.join(MARKER);
        let Ok(text) = fs::read_to_string(&marker) else {
            return Some(format!(
                "{} does not exist: never built, or not to the end",
                marker.display()
            ));
        };
        let told: BTreeMap<&str, &str> = text
            .lines()
            .filter_map(|line| line.split_once('='))
            .collect();
        for (key, value) in &self.facts {
            match told.get(key.as_str()) {
                Some(old) if old == value => {}
                old => {
                    return Some(format!(
                        "made with {key} {}, wanted {value}",
                        old.unwrap_or(&"(unsaid)")
                    ));
                }
            }
        }
        for file in &self.files {
            let size = told
                .get(size_key(file).as_str())
                .copied()
                .unwrap_or("(unsaid)");
            match fs::metadata(self.dir.join(file)) {
                Ok(meta) if meta.len().to_string() == size => match digest(&self.dir.join(file)) {
                    Ok(digest) if told.get(digest_key(file).as_str()) == Some(&&*digest) => {}
                    Ok(_) => {
                        return Some(format!("{} is not the file that was made", file.display()));
                    }
                    Err(error) => return Some(format!("{}: {error}", file.display())),
                },
                Ok(meta) => {
                    return Some(format!(
                        "{} has {} bytes, was made with {size}",
                        file.display(),
                        meta.len()
                    ));
                }
                Err(error) => return Some(format!("{}: {error}", file.display())),
            }
        }
        None
    }

    /// Makes the folder unless it is finished. `make` fills an empty folder, which becomes `dir`; other processes wait
    /// meanwhile. A process that is killed leaves nothing that counts as finished.
    pub fn ensure(&self, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        if self.unfinished().is_none() {
            return Ok(());
        }
        let parent = self.dir.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(parent).map_err(|e| Failure::io("create", parent, &e))?;
        let lock_path = sibling(&self.dir, "lock");
        let lock = File::create(&lock_path).map_err(|e| Failure::io("create", &lock_path, &e))?;
        lock.lock()
            .map_err(|e| Failure::io("lock", &lock_path, &e))?;
        // Another process may have made it while this one waited.
        if self.unfinished().is_none() {
            return Ok(());
        }
        let partial = sibling(&self.dir, "partial");
        remove(&partial)?;
        fs::create_dir(&partial).map_err(|e| Failure::io("create", &partial, &e))?;
        make(&partial)?;
        self.mark(&partial)?;
        let old = sibling(&self.dir, "old");
        remove(&old)?;
        if self.dir.exists() {
            fs::rename(&self.dir, &old).map_err(|e| Failure::io("move away", &self.dir, &e))?;
        }
        fs::rename(&partial, &self.dir)
            .map_err(|e| Failure::io("move into place", &partial, &e))?;
        remove(&old)
    }

    fn mark(&self, partial: &Path) -> Result<()> {
        let mut text = String::new();
        for (key, value) in &self.facts {
            text += &format!("{key}={value}\n");
        }
        for file in &self.files {
            let path = partial.join(file);
            let size = fs::metadata(&path)
                .map_err(|e| Failure::io("find what should have been made,", &path, &e))?
                .len();
            text += &format!("{}={size}\n", size_key(file));
            let digest = digest(&path).map_err(|e| Failure::io("read", &path, &e))?;
            text += &format!("{}={digest}\n", digest_key(file));
        }
        let marker = partial.join(MARKER);
        fs::write(&marker, text).map_err(|e| Failure::io("write", &marker, &e))
    }
}

/// FNV-1a over the words of 8 bytes of a file: fast also in a build script without optimisation.
fn digest(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut block = vec![0; 1 << 20];
    loop {
        let mut filled = 0;
        while filled < block.len() {
            match file.read(&mut block[filled..])? {
                0 => break,
                n => filled += n,
            }
        }
        if filled == 0 {
            return Ok(format!("{hash:016x}"));
        }
        block[filled..].fill(0);
        let (words, _) = block[..filled.next_multiple_of(8)].as_chunks::<8>();
        for word in words {
            hash = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

fn digest_key(file: &Path) -> String {
    format!("digest {}", file.display())
}

fn size_key(file: &Path) -> String {
    format!("size {}", file.display())
}

/// `dir` with `.ending` after its name.
pub fn sibling(dir: &Path, ending: &str) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_os_string();
    name.push(".");
    name.push(ending);
    dir.with_file_name(name)
}

/// Removes a folder that may not exist.
pub fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Failure::io("remove", dir, &e)),
        _ => Ok(()),
    }
}
