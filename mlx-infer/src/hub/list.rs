//! The models in the cache.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind as IoErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::files;
use super::gguf;
use super::name::is_commit;
use crate::error::Result;
use crate::host::output::io;

/// How deep the folders of a snapshot are searched.
const MAX_DEPTH: usize = 8;

/// A model in the cache, at one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cached {
    /// `org/name`.
    pub name: String,
    /// The commit.
    pub commit: String,
    /// The branches and tags that pointed to it when they were last looked up.
    pub revisions: Vec<String>,
    /// The folder of its files.
    pub path: PathBuf,
    /// Their size.
    pub bytes: u64,
    /// The time of the last read of one of them, if the file system records it.
    pub last_used: Option<SystemTime>,
    /// Files that are needed for loading and are not there.
    pub missing: Vec<String>,
}

/// The models in a cache.
pub(super) fn cached(cache: &Path) -> Result<Vec<Cached>> {
    let entries = match fs::read_dir(cache) {
        Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| io("read", cache, error))?,
    };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let file_name = entry.file_name();
        let name = file_name
            .to_str()
            .and_then(|name| name.strip_prefix("models--"));
        let Some(name) = name else {
            continue;
        };
        let revisions = revisions(&entry.path().join("refs"));
        for (commit, path) in folders(&entry.path().join("snapshots")) {
            if !is_commit(&commit) {
                continue;
            }
            let mut files = Files::default();
            files.add(&path, 0);
            found.push(Cached {
                name: name.replace("--", "/"),
                revisions: revisions.get(&commit).cloned().unwrap_or_default(),
                commit,
                missing: match gguf::has_model(&path) {
                    true => Vec::new(),
                    false => files::missing(&path),
                },
                path,
                bytes: files.bytes,
                last_used: files.last_used,
            });
        }
    }
    found.sort_by(|a, b| (&a.name, &a.commit).cmp(&(&b.name, &b.commit)));
    Ok(found)
}

/// The files of a snapshot. Each blob counts once.
#[derive(Default)]
struct Files {
    seen: BTreeSet<PathBuf>,
    bytes: u64,
    last_used: Option<SystemTime>,
}

impl Files {
    fn add(&mut self, dir: &Path, depth: usize) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if depth < MAX_DEPTH {
                    self.add(&path, depth + 1);
                }
                continue;
            }
            let (Ok(found), Ok(blob)) = (fs::metadata(&path), path.canonicalize()) else {
                continue;
            };
            if found.is_file() && self.seen.insert(blob) {
                self.bytes += found.len();
                let used = found.accessed().or_else(|_| found.modified()).ok();
                self.last_used = self.last_used.max(used);
            }
        }
    }
}

/// Branches and tags by commit.
fn revisions(refs: &Path) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut open = vec![(refs.to_owned(), String::new())];
    while let Some((dir, prefix)) = open.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let revision = format!("{prefix}{name}");
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if prefix.matches('/').count() < MAX_DEPTH {
                    open.push((entry.path(), revision + "/"));
                }
            } else if let Ok(commit) = fs::read_to_string(entry.path())
                && is_commit(commit.trim())
            {
                found
                    .entry(commit.trim().to_owned())
                    .or_default()
                    .push(revision);
            }
        }
    }
    for revisions in found.values_mut() {
        revisions.sort();
    }
    found
}

fn folders(dir: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .collect()
}
