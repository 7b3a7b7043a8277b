//! Downloads the bytes of one file from a hub into the cache.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};

use sha1::Sha1;
use sha2::{Digest, Sha256};
use ureq::http::StatusCode;

use super::cache::Repo;
use super::fault::{Answer, passing};
use super::http::{Client, Remote, fill};
use super::{OnProgress, Progress};
use crate::error::{Error, ErrorKind, Result};
use crate::host::output::io;

/// Bytes that are read and written at a time.
const CHUNK: usize = 1 << 20;

/// The checksum in a tag.
enum Checksum {
    /// 64 digits: SHA-256 of the bytes.
    Sha256(Sha256),
    /// 40 digits: SHA-1 of git's header and the bytes.
    Git(Sha1),
    /// Other tags, which are not checksums.
    None,
}

impl Checksum {
    fn new(remote: &Remote) -> Self {
        let is_hex = remote.etag.bytes().all(|b| b.is_ascii_hexdigit());
        match remote.etag.len() {
            64 if is_hex => Self::Sha256(Sha256::new()),
            40 if is_hex => {
                let header = format!("blob {}\0", remote.bytes);
                Self::Git(Sha1::new_with_prefix(header))
            }
            _ => Self::None,
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Git(hash) => hash.update(bytes),
            Self::None => {}
        }
    }

    /// Name and digits.
    fn finish(self) -> Option<(&'static str, String)> {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        match self {
            Self::Sha256(hash) => Some(("SHA-256", hex(&hash.finalize()))),
            Self::Git(hash) => Some(("git's SHA-1", hex(&hash.finalize()))),
            Self::None => None,
        }
    }
}

/// A file that is partly present.
struct Partial {
    file: File,
    checksum: Checksum,
    done: u64,
}

impl Partial {
    fn restart(&mut self, remote: &Remote) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.checksum = Checksum::new(remote);
        self.done = 0;
        Ok(())
    }
}

/// Downloads a file into its blob if the blob does not exist. Only one process downloads it at a
/// time, and it continues where an earlier one stopped.
pub(super) fn blob(
    client: &Client,
    repo: &Repo,
    remote: &Remote,
    on_progress: &mut OnProgress<'_>,
) -> Result<()> {
    if repo.has_blob(remote) {
        return Ok(());
    }
    let _lock = repo.lock(&remote.etag, client, on_progress)?;
    if repo.has_blob(remote) {
        return Ok(());
    }
    let path = repo.incomplete(&remote.etag);
    let fail = |error| io("write", &path, error);
    let mut partial = open(repo, remote)?;
    let mut kept = partial.done;
    loop {
        transfer(client, remote, &mut partial, on_progress)?;
        partial.file.sync_data().map_err(fail)?;
        let checksum = std::mem::replace(&mut partial.checksum, Checksum::None);
        let (name, found) = match checksum.finish() {
            Some((name, found)) if !found.eq_ignore_ascii_case(&remote.etag) => (name, found),
            Some(_) => break,
            None => {
                on_progress(Progress::Note(&format!(
                    "warning: {}: the hub gives no checksum (tag {:?}); only the size was checked",
                    remote.name, remote.etag
                )));
                break;
            }
        };
        partial.restart(remote).map_err(fail)?;
        // The bytes of an earlier attempt may be wrong.
        if std::mem::take(&mut kept) == 0 {
            drop(partial);
            fs::remove_file(&path).map_err(fail)?;
            let message = format!(
                "{}: {name} of what {} sent is {found}, expected {}; it was removed",
                remote.url, remote.name, remote.etag
            );
            return Err(Error::new(ErrorKind::Network, message));
        }
        on_progress(Progress::Note(&format!(
            "{}: wrong checksum after going on with an earlier part; fetching the whole file",
            remote.name
        )));
    }
    drop(partial);
    // A blob that is a link into a shared store is replaced. The store's file is never written.
    fs::rename(&path, repo.blob(&remote.etag)).map_err(fail)?;
    on_progress(Progress::Done);
    Ok(())
}

/// Opens the unfinished file, and computes the checksum of its bytes.
fn open(repo: &Repo, remote: &Remote) -> Result<Partial> {
    let path = repo.incomplete(&remote.etag);
    let open = || {
        if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_file()) {
            fs::remove_file(&path)?;
        }
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)?;
        let mut partial = Partial {
            checksum: Checksum::new(remote),
            done: file.metadata()?.len(),
            file: file.try_clone()?,
        };
        if partial.done > remote.bytes {
            partial.restart(remote)?;
            return Ok(partial);
        }
        let mut buffer = vec![0; CHUNK];
        loop {
            match fill(&mut file, &mut buffer)? {
                0 => return Ok(partial),
                n => partial.checksum.update(&buffer[..n]),
            }
        }
    };
    open().map_err(|error| io("write", &path, error))
}

/// Downloads the missing bytes.
fn transfer(
    client: &Client,
    remote: &Remote,
    partial: &mut Partial,
    on_progress: &mut OnProgress<'_>,
) -> Result<()> {
    on_progress(Progress::File {
        name: &remote.name,
        bytes: remote.bytes,
        done: partial.done,
    });
    let mut retries = client.retries();
    while partial.done < remote.bytes {
        let before = partial.done;
        let Err(fault) = receive(client, remote, partial, on_progress) else {
            continue;
        };
        if partial.done > before {
            retries.reset();
        }
        retries.after(fault, on_progress)?;
    }
    Ok(())
}

/// One request, and its body.
fn receive(
    client: &Client,
    remote: &Remote,
    partial: &mut Partial,
    on_progress: &mut OnProgress<'_>,
) -> Answer<()> {
    let (response, headers) = client.bytes(remote, partial.done)?;
    let get = |key: &str| headers.get(key).and_then(|value| value.to_str().ok());
    let fail = |error| io("write", std::path::Path::new(&remote.name), error);
    if response.status() == StatusCode::PARTIAL_CONTENT {
        let range = get("content-range").unwrap_or_default();
        let expected = format!(
            "bytes {}-{}/{}",
            partial.done,
            remote.bytes - 1,
            remote.bytes
        );
        if range != expected {
            let message = format!("{}: asked for {expected}, got {range:?}", remote.name);
            return Err(Error::new(ErrorKind::Network, message).into());
        }
    } else if partial.done > 0 {
        partial.restart(remote).map_err(fail)?;
    }
    let mut body = response.into_body().into_reader();
    let mut buffer = vec![0; CHUNK];
    loop {
        client.check_cancelled()?;
        let n = match fill(&mut body, &mut buffer) {
            Ok(n) => n,
            Err(error) => return Err(client.unreachable(&remote.url, &error)),
        };
        let size = format!("of its {} bytes", remote.bytes);
        if n == 0 {
            return match partial.done == remote.bytes {
                true => Ok(()),
                false => Err(passing(format!(
                    "{}: the connection ended after {} {size}",
                    remote.name, partial.done
                ))),
            };
        }
        if partial.done + n as u64 > remote.bytes {
            partial.restart(remote).map_err(fail)?;
            let message = format!(
                "{}: the server sends more than the last {size}",
                remote.name
            );
            return Err(Error::new(ErrorKind::Network, message).into());
        }
        partial.file.write_all(&buffer[..n]).map_err(fail)?;
        partial.checksum.update(&buffer[..n]);
        partial.done += n as u64;
        on_progress(Progress::Bytes(partial.done));
    }
}
