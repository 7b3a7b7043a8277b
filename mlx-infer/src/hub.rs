//! Models by name (feature `hub`): `org/name` or `org/name@revision`, downloaded from a hub and kept in a cache.
//!
//! The cache has the layout of Python's `huggingface_hub`, and both use each other's files and locks:
//!
//! ```text
//! models--org--name/blobs/ETAG               the bytes of a file; ETAG.incomplete while they are fetched
//! models--org--name/snapshots/COMMIT/FILE    a link to its blob
//! models--org--name/refs/REVISION            the commit that a branch or tag was last seen at
//! .locks/models--org--name/ETAG.lock         locked (flock) by the process that fetches the blob
//! ```
//!
//! | variable | meaning |
//! |---|---|
//! | `HF_HUB_CACHE`, else `HF_HOME/hub`, else `XDG_CACHE_HOME/huggingface/hub` | the cache |
//! | `HF_ENDPOINT` | the hub |
//! | `HF_TOKEN`, else the file `HF_TOKEN_PATH`, else `HF_HOME/token` | the access token |
//! | `HF_HUB_OFFLINE` | no network: only the cache is used |
//! | `HF_HUB_DOWNLOAD_TIMEOUT` | seconds without a byte after which a request is tried again |
//! | `SSL_CERT_FILE` | certificates to trust, in place of the built-in ones |
//!
//! Weights are downloaded in safetensors and GGUF only (`org/name:Q4_K_M` names a quantisation). A file gets its name in the cache only
//! after its size and checksum (SHA-256, or git's SHA-1) were verified.
//!
//! ```no_run
//! # fn main() -> mlx_infer::Result<()> {
//! use mlx_infer::hub::{Hub, Name};
//! use mlx_infer::{LoadOptions, LoadedModel};
//! let hub = Hub::from_env()?;
//! let snapshot = hub.get(&Name::parse("org/name")?, &mut |_| ())?;
//! let model = LoadedModel::load(snapshot.path(), LoadOptions::default())?;
//! # Ok(())
//! # }
//! ```

mod address;
#[cfg(feature = "cli")]
mod bar;
mod cache;
mod download;
mod fault;
mod files;
mod gguf;
mod http;
mod list;
mod name;
mod proxy;
mod settings;

use std::path::{Path, PathBuf};

#[cfg(feature = "cli")]
pub use self::bar::Bar;
pub use self::list::Cached;
pub use self::name::Name;
pub use self::settings::HubBuilder;

use self::cache::Repo;
use self::files::Weights;
use self::http::{Client, Remote};
use crate::error::{Error, ErrorKind, Result};
#[cfg(feature = "cli")]
use crate::text::files::Files;

/// The largest file that the hub serves by plain HTTP.
const MAX_FILE_BYTES: u64 = 50_000_000_000;
/// The largest file without weights.
const MAX_SMALL_BYTES: u64 = 256 << 20;

/// Progress of a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// Information for the user.
    Note(&'a str),
    /// The download of a file has started. `done` bytes are already present.
    File {
        /// Its name in the model's folder.
        name: &'a str,
        /// Its size.
        bytes: u64,
        /// Bytes from an earlier attempt.
        done: u64,
    },
    /// This many bytes of the file are present.
    Bytes(u64),
    /// The file is complete in the cache.
    Done,
}

/// Called with progress.
pub type OnProgress<'a> = dyn FnMut(Progress<'_>) + 'a;

/// A hub, and the cache for its models.
#[derive(Debug)]
pub struct Hub {
    client: Client,
    cache: PathBuf,
    offline: bool,
}

/// The files of a model at one commit, in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    path: PathBuf,
    commit: String,
    fetched_bytes: u64,
}

impl Snapshot {
    /// The folder; of a model in GGUF its first file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The commit, 40 hexadecimal digits.
    pub fn commit(&self) -> &str {
        &self.commit
    }

    /// Bytes that were fetched for this call; 0 if all were in the cache.
    pub fn fetched_bytes(&self) -> u64 {
        self.fetched_bytes
    }
}

/// The files of `--model`: an existing folder, else a model on the hub of the environment. Notes and a progress bar go
/// to stderr. Needs the feature `cli`.
///
/// # Errors
/// It is neither, or the hub refuses it.
#[cfg(feature = "cli")]
pub fn open(model: &Path) -> Result<Files> {
    if model.exists() {
        return Files::directory(model);
    }
    let shown = model.display();
    let name = match model.to_str().map(Name::parse) {
        Some(Ok(name)) => name,
        _ => {
            let message = format!(
                "{shown} does not exist as a folder, and is no name of a model (org/name, org/name@revision or org/name:quantisation)"
            );
            return Err(Error::new(ErrorKind::Missing, message));
        }
    };
    let mut bar = Bar::default();
    let found = Hub::from_env()?.get(&name, &mut |progress| bar.show(progress));
    drop(bar);
    let snapshot = found.map_err(|error| match error.kind() {
        ErrorKind::Missing | ErrorKind::Network => {
            let message = format!("{shown} does not exist as a folder; as a model's name: {error}");
            Error::new(error.kind(), message)
        }
        _ => error,
    })?;
    Files::directory(snapshot.path)
}

impl Hub {
    /// The hub that the environment names.
    ///
    /// # Errors
    /// A variable has a value that cannot be used.
    pub fn from_env() -> Result<Self> {
        HubBuilder::from_env().build()
    }

    /// A hub with other settings. Those that are not set come from the environment.
    pub fn builder() -> HubBuilder {
        HubBuilder::from_env()
    }

    /// The folder of the cache.
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    /// The files of a model. Files in the cache are used if the hub has no newer ones, if it cannot be reached (a note
    /// says so), or if the name is a commit that is complete.
    ///
    /// # Errors
    /// The hub refuses or cannot be reached and the cache has no complete copy, or the cache cannot be written.
    pub fn get(&self, name: &Name, on_progress: &mut OnProgress<'_>) -> Result<Snapshot> {
        let repo = Repo::new(&self.cache, name);
        let kept = repo.commit_of(name.revision());
        let kept = kept.filter(|commit| kept_path(&repo.snapshot(commit), name).is_some());
        let here = |commit: String| {
            let folder = repo.snapshot(&commit);
            Snapshot {
                path: kept_path(&folder, name).unwrap_or(folder),
                commit,
                fetched_bytes: 0,
            }
        };
        if self.offline {
            return kept.map(here).ok_or_else(|| self.not_kept(&repo, name));
        }
        if name.is_commit()
            && let Some(commit) = &kept
            && (files::has_tokenizer(&repo.snapshot(commit))
                || gguf::kept(&repo.snapshot(commit), name).is_some())
        {
            return Ok(here(commit.clone()));
        }
        match (
            self.client.revision(name, kept.is_none(), on_progress),
            kept,
        ) {
            (Err(fault), Some(commit)) if fault.is_passing => {
                let error = Error::from(fault);
                on_progress(Progress::Note(&format!(
                    "warning: {error}; using the copy of {name} in the cache, commit {commit}"
                )));
                Ok(here(commit))
            }
            (answer, _) => self.fetch(&repo, name, &answer?, on_progress),
        }
    }

    /// Downloads the files that the hub has now and the cache does not have.
    ///
    /// # Errors
    /// As [`get`](Self::get), and an error if the hub cannot be reached, whatever the cache has.
    pub fn pull(&self, name: &Name, on_progress: &mut OnProgress<'_>) -> Result<Snapshot> {
        if self.offline {
            return self.get(name, on_progress);
        }
        let revision = self.client.revision(name, true, on_progress)?;
        self.fetch(&Repo::new(&self.cache, name), name, &revision, on_progress)
    }

    /// The models in the cache, in the order of their names.
    ///
    /// # Errors
    /// The cache cannot be read.
    pub fn cached(&self) -> Result<Vec<Cached>> {
        list::cached(&self.cache)
    }

    fn not_kept(&self, repo: &Repo, name: &Name) -> Error {
        let cache = self.cache.display();
        let message = match repo.commit_of(name.revision()) {
            Some(commit) if name.variant().is_none() && repo.snapshot(&commit).is_dir() => format!(
                "{name} is not complete in the cache {cache} (missing: {}), and HF_HUB_OFFLINE forbids to fetch it",
                files::missing(&repo.snapshot(&commit)).join(", ")
            ),
            _ => format!(
                "{name} is not in the cache {cache}, and HF_HUB_OFFLINE forbids to fetch it"
            ),
        };
        Error::new(ErrorKind::Missing, message)
    }

    fn fetch(
        &self,
        repo: &Repo,
        name: &Name,
        revision: &http::Revision,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<Snapshot> {
        let commit = &revision.commit;
        let path = repo.snapshot(commit);
        let chosen = files::choose(name, &revision.files)?;
        let mut fetched_bytes = 0;
        let small = chosen.small.iter().map(String::as_str);
        fetched_bytes += self.fetch_all(repo, name, commit, small, MAX_SMALL_BYTES, on_progress)?;
        let weights = match chosen.weights {
            Weights::Files(files) => files,
            Weights::Index => files::shards(&path, &revision.files)?,
        };
        let weights = weights.iter().map(String::as_str);
        fetched_bytes +=
            self.fetch_all(repo, name, commit, weights, MAX_FILE_BYTES, on_progress)?;
        // Written last: until here the revision points to the previous snapshot, which is complete.
        repo.write_ref(name.revision(), commit);
        Ok(Snapshot {
            path: kept_path(&path, name).unwrap_or(path),
            commit: commit.clone(),
            fetched_bytes,
        })
    }

    /// Downloads those of the files that the snapshot does not have. Returns their bytes.
    fn fetch_all<'a>(
        &self,
        repo: &Repo,
        name: &Name,
        commit: &str,
        files: impl Iterator<Item = &'a str>,
        limit: u64,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<u64> {
        let mut wanted: Vec<Remote> = Vec::new();
        for file in files.filter(|file| !repo.snapshot(commit).join(file).exists()) {
            let remote = self.client.file(name, commit, file, on_progress)?;
            if remote.bytes > limit {
                return Err(too_large(name, &remote, limit));
            }
            wanted.push(remote);
        }
        let absent: u64 = wanted.iter().map(|remote| repo.absent_bytes(remote)).sum();
        if absent > 0 {
            repo.check_space(absent)?;
        }
        for remote in &wanted {
            download::blob(&self.client, repo, remote, on_progress)?;
            repo.link(commit, &remote.name, &remote.etag)?;
        }
        Ok(absent)
    }
}

/// What is loaded of a snapshot that is complete: the folder, or the first file of a model in GGUF.
fn kept_path(folder: &Path, name: &Name) -> Option<PathBuf> {
    if name.variant().is_none() && files::missing(folder).is_empty() {
        return Some(folder.to_owned());
    }
    gguf::kept(folder, name)
}

fn too_large(name: &Name, remote: &Remote, limit: u64) -> Error {
    let (file, gb) = (&remote.name, remote.bytes as f64 / 1e9);
    Error::unsupported(match limit {
        MAX_FILE_BYTES => format!(
            "{name}: {file} has {gb:.1} GB, and a hub serves files over 50 GB by another protocol than HTTP only; \
             fetch the model with Python's huggingface_hub, into the same cache"
        ),
        _ => format!(
            "{name}: {file} has {} bytes; expected at most {limit}",
            remote.bytes
        ),
    })
}
