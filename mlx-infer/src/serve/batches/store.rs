//! Files and batches in a folder. Each object is a JSON file that is replaced whole, so that a
//! crash leaves the old one or the new one.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::objects::{BatchObject, BatchState, FileObject};
use crate::error::{Error, ErrorKind, Result};
use crate::host::output::{Claim, sync_folder};
use crate::serve::state::now;

/// The folder of files and batches. One server at a time uses it.
pub(crate) struct Store {
    folder: PathBuf,
    objects: Mutex<Objects>,
    /// Counts the changes of batches.
    changes: watch::Sender<u64>,
    _claim: Claim,
}

#[derive(Default)]
struct Objects {
    files: BTreeMap<String, FileObject>,
    batches: BTreeMap<String, BatchObject>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Store").field(&self.folder).finish()
    }
}

impl Store {
    /// Opens a folder, which is made if it is not there, and removes what an upload left that was
    /// not finished.
    ///
    /// # Errors
    /// Another server uses it, or an object in it cannot be read.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let claim = Claim::new(folder)?;
        let open = || -> io::Result<Objects> {
            for part in ["files", "batches"] {
                fs::create_dir_all(folder.join(part))?;
            }
            for entry in fs::read_dir(folder.join("files"))? {
                let path = entry?.path();
                if path.extension().is_some_and(|end| end == "part") {
                    fs::remove_file(path)?;
                }
            }
            Ok(Objects {
                files: read_all(&folder.join("files"), |file: &FileObject| &file.id)?,
                batches: read_all(&folder.join("batches"), |batch: &BatchObject| &batch.id)?,
            })
        };
        let objects = open().map_err(|error| {
            let message = format!("cannot use {} for batches: {error}", folder.display());
            Error::new(ErrorKind::Io, message).with_source(error)
        })?;
        Ok(Self {
            folder: folder.to_owned(),
            objects: Mutex::new(objects),
            changes: watch::Sender::new(0),
            _claim: claim,
        })
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path of a file's content.
    pub(crate) fn content(&self, id: &str) -> PathBuf {
        self.folder.join("files").join(format!("{id}.jsonl"))
    }

    /// The path of a content that is not complete.
    pub(crate) fn partial(&self, id: &str) -> PathBuf {
        self.folder.join("files").join(format!("{id}.part"))
    }

    /// The path of the answers of a batch that is in progress; `kind` is `output` or `errors`.
    pub(crate) fn answers(&self, batch: &str, kind: &str) -> PathBuf {
        self.folder
            .join("batches")
            .join(format!("{batch}.{kind}.jsonl"))
    }

    /// A file.
    pub(crate) fn file(&self, id: &str) -> Option<FileObject> {
        self.objects().files.get(id).cloned()
    }

    /// All files, the oldest first.
    pub(crate) fn files(&self) -> Vec<FileObject> {
        self.objects().files.values().cloned().collect()
    }

    /// Adds a file whose complete content is at `made`.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn add_file(&self, file: FileObject, made: &Path) -> io::Result<()> {
        File::open(made)?.sync_all()?;
        fs::rename(made, self.content(&file.id))?;
        self.write("files", &file.id, &file)?;
        self.objects().files.insert(file.id.clone(), file);
        Ok(())
    }

    /// Makes a file of the answers at `made`, if there are any. Returns whether the file is there.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn adopt(&self, id: &str, made: &Path, filename: String) -> io::Result<bool> {
        if self.file(id).is_some() {
            return Ok(true);
        }
        let content = self.content(id);
        // After a crash the content may have its name already.
        let path = if made.exists() {
            made
        } else {
            content.as_path()
        };
        let bytes = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            found => found?.len(),
        };
        if bytes == 0 {
            fs::remove_file(path)?;
            return Ok(false);
        }
        let file = FileObject::new(id, filename, "batch_output", bytes, now());
        self.add_file(file, path)?;
        Ok(true)
    }

    /// Removes a file. Returns whether it was there.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(crate) fn remove_file(&self, id: &str) -> io::Result<bool> {
        let mut objects = self.objects();
        if !objects.files.contains_key(id) {
            return Ok(false);
        }
        fs::remove_file(self.folder.join("files").join(format!("{id}.json")))?;
        fs::remove_file(self.content(id))?;
        objects.files.remove(id);
        Ok(true)
    }

    /// A batch.
    pub(crate) fn batch(&self, id: &str) -> Option<BatchObject> {
        self.objects().batches.get(id).cloned()
    }

    /// All batches, the oldest first.
    pub(crate) fn batches(&self) -> Vec<BatchObject> {
        self.objects().batches.values().cloned().collect()
    }

    /// Writes a new batch.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn add_batch(&self, batch: BatchObject) -> io::Result<()> {
        self.write("batches", &batch.id, &batch)?;
        self.objects().batches.insert(batch.id.clone(), batch);
        self.changes.send_modify(|n| *n += 1);
        Ok(())
    }

    /// Changes a batch, and writes it.
    ///
    /// # Errors
    /// There is none of that id, or it cannot be written.
    pub(crate) fn change(
        &self,
        id: &str,
        change: impl FnOnce(&mut BatchObject),
    ) -> io::Result<BatchObject> {
        let mut objects = self.objects();
        let batch = objects.batches.get_mut(id).ok_or(io::ErrorKind::NotFound)?;
        let mut changed = batch.clone();
        change(&mut changed);
        self.write("batches", id, &changed)?;
        *batch = changed.clone();
        drop(objects);
        self.changes.send_modify(|n| *n += 1);
        Ok(changed)
    }

    /// Shows counts of a batch without writing them: the answers are on disk.
    pub(crate) fn count(&self, id: &str, completed: usize, failed: usize) {
        if let Some(batch) = self.objects().batches.get_mut(id) {
            let counts = &mut batch.request_counts;
            (counts.completed, counts.failed) = (completed, failed);
        }
    }

    /// Waits until a batch satisfies a condition.
    pub(crate) async fn until(&self, id: &str, is_so: impl Fn(&BatchObject) -> bool) {
        let mut changes = self.changes.subscribe();
        let holds = |_: &u64| self.batch(id).is_some_and(|batch| is_so(&batch));
        // The sender is a field of `self`, so the wait cannot fail.
        let _ = changes.wait_for(holds).await;
    }

    /// Waits until all earlier batches have ended.
    pub(crate) async fn until_first(&self, id: &str) {
        let mut changes = self.changes.subscribe();
        let is_first = |_: &u64| {
            let objects = self.objects();
            let mut earlier = objects.batches.range(..id.to_owned());
            earlier.all(|(_, batch)| batch.status.is_final())
        };
        let _ = changes.wait_for(is_first).await;
    }

    /// Shows a batch as failed whose files cannot be written. On disk it stays as it is.
    pub(crate) fn give_up(&self, id: &str) {
        if let Some(batch) = self.objects().batches.get_mut(id) {
            batch.enter(BatchState::Failed, now());
        }
        self.changes.send_modify(|n| *n += 1);
    }

    fn write(&self, part: &str, id: &str, object: &impl Serialize) -> io::Result<()> {
        let folder = self.folder.join(part);
        let new = folder.join(format!("{id}.new"));
        let mut file = File::create(&new)?;
        file.write_all(&serde_json::to_vec(object)?)?;
        file.sync_all()?;
        fs::rename(&new, folder.join(format!("{id}.json")))?;
        sync_folder(&folder)
    }
}

/// The objects in the JSON files of a folder.
fn read_all<T: DeserializeOwned>(
    folder: &Path,
    id: impl Fn(&T) -> &String,
) -> io::Result<BTreeMap<String, T>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "json") {
            let object = serde_json::from_slice(&fs::read(&path)?).map_err(|error| {
                let message = format!("{}: {error}", path.display());
                io::Error::new(io::ErrorKind::InvalidData, message)
            })?;
            all.insert(id(&object).clone(), object);
        }
    }
    Ok(all)
}
