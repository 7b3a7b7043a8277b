//! Writing GGUF files.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::TensorType;
use super::encode::encode;
use super::read::{ALIGNMENT, ALIGNMENT_KEY, MAGIC, MOST_DIMENSIONS, VERSION};
use super::value::{List, Value};
use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};
use crate::files::atomic::Unnamed;
use crate::files::named::{NamedArray, named};

/// [`save`] without metadata.
///
/// ```
/// use mlx_core::{DType, load, ones, save_gguf};
///
/// # fn main() -> mlx_core::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.gguf");
/// save_gguf(&path, &[("a", ones(&[2, 3], DType::F32)?)])?;
/// assert_eq!(load(&path)?.get("a")?.shape(), [2, 3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`save`].
pub fn save_gguf<N: NamedArray>(
    path: impl AsRef<Path>,
    arrays: impl IntoIterator<Item = N>,
) -> Result<()> {
    save(path, arrays, &BTreeMap::new())
}

/// Writes arrays and metadata to a GGUF file, evaluating the arrays one after the other.
///
/// The file appears whole or not at all, under exactly this name: no ending is added to it. Arrays are F16, BF16, F32,
/// F64, or I8 to I64 (MLX's own writer has F16, F32, and I8 to I32).
///
/// ```
/// use mlx_core::{DType, gguf::{self, Gguf, Value}, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// use std::collections::BTreeMap;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.gguf");
/// let metadata = BTreeMap::from([("tokens".to_owned(), Value::from(vec!["a".to_owned(), "b".to_owned()]))]);
/// gguf::save(&path, [("w", ones(&[2], DType::F32)?)], &metadata)?;
/// assert_eq!(Gguf::open(&path)?.value::<&[String]>("tokens")?, ["a", "b"]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// A name is given twice, an array has another dtype or more than 8 dimensions, the metadata has the key
/// `general.alignment` (which the writer decides) or lists that are nested more than four deep, an evaluation fails, or
/// the file cannot be written. `path` is then as it was.
pub fn save<N: NamedArray>(
    path: impl AsRef<Path>,
    arrays: impl IntoIterator<Item = N>,
    metadata: &BTreeMap<String, Value>,
) -> Result<()> {
    let arrays: Vec<N> = arrays.into_iter().collect();
    let mut tensors = Vec::with_capacity(arrays.len());
    for (name, array) in named(&arrays) {
        let kind = TensorType::of(array.dtype()).ok_or_else(|| {
            let message = format!(
                "{}: tensor {name:?}: dtype {} is not supported; supported: F16, BF16, F32, F64, I8, I16, I32, I64",
                path.as_ref().display(),
                array.dtype()
            );
            Error::new(ErrorKind::Invalid, message)
        })?;
        tensors.push((name.to_owned(), array.clone(), kind));
    }
    save_as(path, tensors, metadata, &mut |_| Ok(()))
}

/// [`save`] with a type for each tensor, to which its elements are rounded. Each array is evaluated, written and freed
/// before the next. `progress` gets the bytes of tensors written so far; an error that it returns stops the writer.
///
/// Blocks are those of llama.cpp's reference implementation. Rows are a whole number of blocks.
///
/// ```
/// use mlx_core::{DType, gguf::{self, Gguf, TensorType}, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.gguf");
/// let tensors = vec![("w".to_owned(), ones(&[4, 64], DType::BF16)?, TensorType::Q8_0)];
/// gguf::save_as(&path, tensors, &Default::default(), &mut |_| Ok(()))?;
/// let file = Gguf::open(&path)?;
/// assert_eq!(file.info("w")?, (TensorType::Q8_0, &[4, 64][..]));
/// assert_eq!(file.bytes("w")?.len(), 4 * 2 * 34);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`save`]; or a type is not [encoded](TensorType::is_encoded), a row is no whole number of its blocks, an element
/// is too large for F16, or an element of a block is not finite.
pub fn save_as(
    path: impl AsRef<Path>,
    tensors: Vec<(String, Array, TensorType)>,
    metadata: &BTreeMap<String, Value>,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let path = path.as_ref();
    write(path, tensors, metadata, progress).map_err(|error| error.context(path.display()))
}

/// The head of a file: its metadata, and the names, shapes and offsets of its tensors.
fn head(
    tensors: &[(String, Array, TensorType)],
    metadata: &BTreeMap<String, Value>,
) -> Result<Vec<u8>> {
    let invalid = |message: String| Error::new(ErrorKind::Invalid, message);
    if metadata.contains_key(ALIGNMENT_KEY) {
        let message = format!("key {ALIGNMENT_KEY:?} is decided by the writer");
        return Err(invalid(message));
    }
    let mut head = MAGIC.to_vec();
    head.extend(VERSION.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        put_text(&mut head, key);
        head.extend(value.number().to_le_bytes());
        put_value(&mut head, value).map_err(|what| invalid(format!("key {key:?}: {what}")))?;
    }
    let mut names = std::collections::HashSet::new();
    let mut offset = 0usize;
    for (name, array, kind) in tensors {
        let refuse = |what: String| invalid(format!("tensor {name:?}: {what}"));
        if !names.insert(name) {
            return Err(refuse("its name is given twice".into()));
        }
        if array.ndim() > MOST_DIMENSIONS {
            let ndim = array.ndim();
            return Err(refuse(format!(
                "{ndim} dimensions, at most {MOST_DIMENSIONS} are supported"
            )));
        }
        if !kind.is_encoded() {
            return Err(refuse(format!(
                "type {kind} cannot be written; types that can: plain elements, Q4_0, Q8_0"
            )));
        }
        let shape = array.shape();
        let bytes = kind.bytes_of(shape).ok_or_else(|| {
            let row = shape.last().copied().unwrap_or(1);
            refuse(format!(
                "rows of {row} elements are no whole number of {kind}'s blocks of {}",
                kind.block()
            ))
        })?;
        put_text(&mut head, name);
        head.extend((array.ndim() as u32).to_le_bytes());
        for &size in shape.iter().rev() {
            head.extend((size as u64).to_le_bytes());
        }
        head.extend(kind.number().to_le_bytes());
        head.extend((offset as u64).to_le_bytes());
        offset = (offset + bytes).next_multiple_of(ALIGNMENT);
    }
    Ok(head)
}

fn write(
    path: &Path,
    tensors: Vec<(String, Array, TensorType)>,
    metadata: &BTreeMap<String, Value>,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let head = head(&tensors, metadata)?;
    let mut unnamed = Unnamed::new(path)?;
    let mut file = BufWriter::new(unnamed.file());
    file.write_all(&head)?;
    put_padding(&mut file, head.len())?;
    let mut done = 0;
    for (name, array, kind) in tensors {
        progress(done)?;
        let mut written = 0;
        let mut put = |bytes: &[u8]| {
            written += bytes.len();
            Ok(file.write_all(bytes)?)
        };
        encode(&array, kind, &mut put)
            .map_err(|error| error.context(format!("tensor {name:?}")))?;
        put_padding(&mut file, written)?;
        done += written as u64;
    }
    progress(done)?;
    file.flush()?;
    drop(file);
    Ok(unnamed.finish()?)
}

/// Zeros behind `len` bytes, up to where a tensor may begin.
fn put_padding(file: &mut impl Write, len: usize) -> io::Result<()> {
    let zeros = len.next_multiple_of(ALIGNMENT) - len;
    file.write_all(&[0; ALIGNMENT][..zeros])
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

fn put_value(bytes: &mut Vec<u8>, value: &Value) -> Result<(), &'static str> {
    match value {
        Value::U8(value) => bytes.extend(value.to_le_bytes()),
        Value::I8(value) => bytes.extend(value.to_le_bytes()),
        Value::U16(value) => bytes.extend(value.to_le_bytes()),
        Value::I16(value) => bytes.extend(value.to_le_bytes()),
        Value::U32(value) => bytes.extend(value.to_le_bytes()),
        Value::I32(value) => bytes.extend(value.to_le_bytes()),
        Value::F32(value) => bytes.extend(value.to_le_bytes()),
        Value::Bool(value) => bytes.push((*value).into()),
        Value::Text(text) => put_text(bytes, text),
        Value::U64(value) => bytes.extend(value.to_le_bytes()),
        Value::I64(value) => bytes.extend(value.to_le_bytes()),
        Value::F64(value) => bytes.extend(value.to_le_bytes()),
        Value::List(list) => put_list(bytes, list, 1)?,
    }
    Ok(())
}

fn put_list(bytes: &mut Vec<u8>, list: &List, depth: usize) -> Result<(), &'static str> {
    macro_rules! numbers {
        ($list:expr) => {
            $list
                .iter()
                .for_each(|value| bytes.extend(value.to_le_bytes()))
        };
    }
    bytes.extend(list.number().to_le_bytes());
    bytes.extend((list.len() as u64).to_le_bytes());
    match list {
        List::U8(list) => bytes.extend(list),
        List::I8(list) => numbers!(list),
        List::U16(list) => numbers!(list),
        List::I16(list) => numbers!(list),
        List::U32(list) => numbers!(list),
        List::I32(list) => numbers!(list),
        List::F32(list) => numbers!(list),
        List::Bool(list) => bytes.extend(list.iter().map(|&value| u8::from(value))),
        List::Text(list) => list.iter().for_each(|text| put_text(bytes, text)),
        List::U64(list) => numbers!(list),
        List::I64(list) => numbers!(list),
        List::F64(list) => numbers!(list),
        List::Lists(_) if depth == super::read::MOST_DEPTH => {
            return Err("lists are nested more than four deep");
        }
        List::Lists(lists) => {
            for list in lists {
                put_list(bytes, list, depth + 1)?;
            }
        }
    }
    Ok(())
}
