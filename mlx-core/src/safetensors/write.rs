//! Writing safetensors files.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use super::header::MAX_BYTES;
use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};

/// Writes `arrays` and `metadata` to a safetensors file, evaluating the arrays one after the other.
///
/// The file appears whole or not at all: it is written beside `path` under another name, flushed to
/// disk and renamed. The bytes depend on names and contents only, not on the order of `arrays`:
/// larger elements come first, then names in order, so that everything is aligned.
///
/// # Errors
/// A name is given twice or is `__metadata__`, an evaluation fails, or the file cannot be written.
/// `path` is then as it was.
pub fn save<'a>(
    path: impl AsRef<Path>,
    arrays: impl IntoIterator<Item = (&'a str, &'a Array)>,
    metadata: &BTreeMap<String, String>,
) -> Result<()> {
    let path = path.as_ref();
    let mut arrays: Vec<(&str, &Array)> = arrays.into_iter().collect();
    arrays.sort_by_key(|(name, array)| (Reverse(array.dtype().size()), *name));
    write(path, &arrays, metadata).map_err(|error| error.context(path.display()))
}

fn write(
    path: &Path,
    arrays: &[(&str, &Array)],
    metadata: &BTreeMap<String, String>,
) -> Result<()> {
    let header = header(arrays, metadata)?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".saving-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The permissions of any new file, which the process's mask then narrows.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let mut file = builder.tempfile_in(folder)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    for (name, array) in arrays {
        array
            .with_bytes(|bytes| file.write_all(bytes))
            .map_err(|error| error.context(format!("tensor {name:?}")))??;
    }
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    sync_folder(folder)?;
    Ok(())
}

fn header(arrays: &[(&str, &Array)], metadata: &BTreeMap<String, String>) -> Result<Vec<u8>> {
    let mut header = serde_json::Map::new();
    if !metadata.is_empty() {
        header.insert("__metadata__".into(), serde_json::json!(metadata));
    }
    let mut offset = 0;
    for (name, array) in arrays {
        let end = offset + array.nbytes();
        let entry = serde_json::json!({
            "dtype": array.dtype().name(),
            "shape": array.shape(),
            "data_offsets": [offset, end],
        });
        let reserved = *name == "__metadata__";
        if reserved || header.insert((*name).into(), entry).is_some() {
            let why = if reserved {
                "is reserved"
            } else {
                "is given twice"
            };
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("tensor name {name:?} {why}"),
            ));
        }
        offset = end;
    }
    let mut header = serde_json::to_vec(&header).map_err(io::Error::from)?;
    // The data begins at a multiple of eight bytes, so that it can be used where it is.
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() > MAX_BYTES {
        let message = format!(
            "header of {} bytes exceeds the limit of {MAX_BYTES}",
            header.len()
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(header)
}

/// The new name is on disk only when the folder is.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) {
        File::open(folder)?.sync_all()
    } else {
        Ok(())
    }
}
