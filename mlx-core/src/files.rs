//! Arrays in files, and reading ordinary files up to a limit.
//!
//! [`load`] reads all formats that MLX reads. [`save`] writes npy files, [`savez`] and [`savez_compressed`] npz files;
//! [`safetensors`](crate::safetensors) and [`gguf`](crate::gguf) are modules of their own. Every length and offset of a
//! file is checked before it is used, and a file that is written appears whole or not at all.
//!
//! A checkpoint is a folder of files that others made. Opening a pipe would wait for a writer, and
//! a device such as `/dev/zero` has no end. Before they read, these functions refuse anything but
//! an ordinary file (a link to one is accepted), and a file that is larger than the limit for its
//! kind.
//!
//! ```
//! use mlx_core::files;
//!
//! # fn main() -> mlx_core::Result<()> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("config.json");
//! assert!(files::read_if_present(&path, files::JSON_LIMIT)?.is_none());
//! std::fs::write(&path, "{}")?;
//! assert_eq!(files::read(&path, files::JSON_LIMIT)?, b"{}");
//! let error = files::read(&path, 1).unwrap_err();
//! assert!(error.to_string().ends_with("config.json: 2 bytes; expected at most 1"));
//! # Ok(())
//! # }
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek};
#[cfg(unix)]
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::error::{Error, Result};

pub(crate) mod atomic;
mod load;
pub(crate) mod mapped;
pub(crate) mod moved;
pub(crate) mod named;
mod npy;
mod npz;
pub(crate) mod source;
mod zip;

pub use load::{Loaded, load};
pub use named::NamedArray;
pub use npy::save;
pub use npz::{Npz, savez, savez_compressed};

/// The largest JSON file of a checkpoint: configurations, indices, adapters. The index of a model with 90,000 tensors has
/// 9 MB.
pub const JSON_LIMIT: u64 = 64 << 20;

/// The longest pointer file that a repository holds in place of a large file. Git LFS allows less
/// than 1,024 bytes.
const POINTER_LIMIT: u64 = 1024;
/// How pointers begin, what they belong to, and the command that fetches the file.
const POINTERS: [(&[u8], &str, &str); 2] = [
    (
        b"version https://git-lfs.github.com/spec/",
        "Git LFS",
        "git lfs pull",
    ),
    (b"/annex/objects/", "git-annex", "git annex get"),
];

/// Opens a file to read it.
///
/// The limit is checked against the present length. A file may grow while it is read: [`read`] stops at the limit too.
///
/// ```
/// use mlx_core::files;
///
/// # fn main() -> mlx_core::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.txt");
/// std::fs::write(&path, "text")?;
/// assert_eq!(files::open(&path, 100)?.metadata()?.len(), 4);
/// assert!(files::open(folder.path(), 100).is_err()); // a folder
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The path is neither an ordinary file nor a link to one, the file has more than `limit` bytes, it
/// is a pointer of Git LFS or git-annex, or it cannot be opened.
pub fn open(path: impl AsRef<Path>, limit: u64) -> Result<File> {
    let path = path.as_ref();
    open_io(path, limit).map_err(|error| named(path, error))
}

/// The content of a file.
///
/// ```
/// use mlx_core::files;
///
/// # fn main() -> mlx_core::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.txt");
/// std::fs::write(&path, "text")?;
/// assert_eq!(files::read(&path, 4)?, b"text");
/// assert!(files::read(&path, 3).is_err());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`open`]; or it cannot be read, or there is no memory for it.
pub fn read(path: impl AsRef<Path>, limit: u64) -> Result<Vec<u8>> {
    let path = path.as_ref();
    read_io(path, limit).map_err(|error| named(path, error))
}

/// The content of a file, or `None` if no file has this name.
///
/// ```
/// use mlx_core::files;
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(files::read_if_present("missing.json", files::JSON_LIMIT)?, None);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`read`].
pub fn read_if_present(path: impl AsRef<Path>, limit: u64) -> Result<Option<Vec<u8>>> {
    let path = path.as_ref();
    match read_io(path, limit) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(named(path, error)),
    }
}

fn named(path: &Path, error: io::Error) -> Error {
    Error::from(error).context(path.display())
}

/// As [`open`], with an error that does not name the file.
pub(crate) fn open_io(path: &Path, limit: u64) -> io::Result<File> {
    // Checked before the file is opened, because opening some devices has effects.
    check(&std::fs::metadata(path)?, limit)?;
    let mut options = OpenOptions::new();
    options.read(true);
    // The path may name another file by now. Opening a pipe waits for a writer, but not with this flag.
    #[cfg(unix)]
    options.custom_flags(libc::O_NONBLOCK);
    let mut file = options.open(path)?;
    let found = file.metadata()?;
    check(&found, limit)?;
    if found.len() <= POINTER_LIMIT {
        check_pointer(&mut file)?;
    }
    Ok(file)
}

/// Refuses a pointer file, whose content is elsewhere. Any other file is left at its start.
fn check_pointer(file: &mut File) -> io::Result<()> {
    let mut start = Vec::new();
    file.by_ref().take(64).read_to_end(&mut start)?;
    file.rewind()?;
    match POINTERS.iter().find(|(head, ..)| start.starts_with(head)) {
        None => Ok(()),
        Some((_, owner, command)) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a pointer of {owner}, and not the file itself; fetch it with `{command}`"),
        )),
    }
}

fn read_io(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = open_io(path, limit)?;
    let mut bytes = Vec::new();
    let len = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    // One byte more, so that reading reaches the end without growing the buffer.
    crate::memory::reserve(&mut bytes, len.saturating_add(1))?;
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    // The file may have grown, and system files do not report their length.
    check_len(bytes.len() as u64, limit)?;
    Ok(bytes)
}

fn check(found: &std::fs::Metadata, limit: u64) -> io::Result<()> {
    if !found.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("not a file but a {}", kind_of(found)),
        ));
    }
    check_len(found.len(), limit)
}

fn check_len(len: u64, limit: u64) -> io::Result<()> {
    if len > limit {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{len} bytes; expected at most {limit}"),
        ));
    }
    Ok(())
}

fn kind_of(found: &std::fs::Metadata) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let kind = found.file_type();
        if kind.is_fifo() {
            return "pipe";
        }
        if kind.is_socket() {
            return "socket";
        }
        if kind.is_block_device() || kind.is_char_device() {
            return "device";
        }
    }
    if found.is_dir() {
        "folder"
    } else {
        "special file"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_told_from_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let lfs = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
        for (text, owner) in [
            (lfs, "Git LFS"),
            ("/annex/objects/SHA256E-s3--abc\n", "git-annex"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = read(&path, JSON_LIMIT).unwrap_err().to_string();
            let expected =
                format!("model.safetensors: a pointer of {owner}, and not the file itself");
            assert!(error.contains(&expected), "{error}");
            assert!(crate::safetensors::Safetensors::open(&path).is_err());
        }
        for text in ["", "{}", "version https://example.com"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read(&path, JSON_LIMIT).unwrap(), text.as_bytes());
        }
    }
}
