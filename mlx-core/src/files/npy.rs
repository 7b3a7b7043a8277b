//! The npy file format of NumPy: a header, which is a Python dictionary, and the elements of one array.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use super::atomic::Unnamed;
use super::source::{Layout, Source};
use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::memory;

const MAGIC: &[u8] = b"\x93NUMPY";
/// The largest header of version 1 of the format. Those of later versions may be larger only for structured arrays.
const MOST_HEADER: usize = 1 << 16;
/// More dimensions than this are refused.
const MOST_DIMENSIONS: usize = 32;
/// Data begins at a multiple of this, as in files of NumPy.
const ALIGN: usize = 64;

/// The types of elements, as npy files name them without their byte order. NumPy has no bf16: MLX stores it as the
/// bytes that NumPy calls `V2`.
const TYPES: [(&str, DType); 14] = [
    ("b1", DType::Bool),
    ("u1", DType::U8),
    ("u2", DType::U16),
    ("u4", DType::U32),
    ("u8", DType::U64),
    ("i1", DType::I8),
    ("i2", DType::I16),
    ("i4", DType::I32),
    ("i8", DType::I64),
    ("f2", DType::F16),
    ("f4", DType::F32),
    ("f8", DType::F64),
    ("V2", DType::BF16),
    ("c8", DType::C64),
];

/// Writes an array to an npy file, which NumPy and MLX read. Evaluates the array.
///
/// The file appears whole or not at all, under exactly this name: no ending is added to it.
///
/// ```
/// use mlx_core::{DType, arange, load, save};
///
/// # fn main() -> mlx_core::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.npy");
/// let a = arange(0.0, 6.0, 1.0, DType::I32)?.reshape(&[2, 3])?;
/// save(&path, &a)?;
/// assert_eq!(load(&path)?.into_array()?.shape(), [2, 3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The evaluation fails, or the file cannot be written. `path` is then as it was.
pub fn save(path: impl AsRef<Path>, array: &Array) -> Result<()> {
    let path = path.as_ref();
    let write = || {
        let mut unnamed = Unnamed::new(path)?;
        let file = unnamed.file();
        file.write_all(&header(array)?)?;
        array.with_bytes(|bytes| file.write_all(bytes))??;
        Ok(unnamed.finish()?)
    };
    write().map_err(|error: Error| error.context(path.display()))
}

/// The bytes before the elements.
pub(crate) fn header(array: &Array) -> Result<Vec<u8>> {
    let (word, _) = TYPES
        .iter()
        .find(|(_, dtype)| *dtype == array.dtype())
        .expect("every dtype has a name");
    let order = if array.dtype().size() == 1 { '|' } else { '<' };
    let mut shape: String = array.shape().iter().map(|n| format!("{n}, ")).collect();
    // Python writes one element as `(3,)`, and several without a comma at the end.
    let end = if array.ndim() == 1 { 1 } else { 2 };
    shape.truncate(shape.len().saturating_sub(end));
    let mut text =
        format!("{{'descr': '{order}{word}', 'fortran_order': False, 'shape': ({shape}), }}");
    let before = MAGIC.len() + 4;
    let len = (before + text.len() + 1).next_multiple_of(ALIGN) - before;
    text.extend(std::iter::repeat_n(' ', len - text.len() - 1));
    text.push('\n');
    let len = u16::try_from(len).map_err(|_| {
        let message = format!("an npy file cannot hold {} dimensions", array.ndim());
        Error::new(ErrorKind::Unsupported, message)
    })?;
    Ok([MAGIC, &[1, 0], &len.to_le_bytes(), text.as_bytes()].concat())
}

/// A header whose shape and dtype MLX can hold.
pub(crate) struct NpyHeader {
    dtype: DType,
    big_endian: bool,
    fortran: bool,
    shape: Vec<i32>,
    /// Where the elements begin.
    begin: usize,
    /// Bytes of all elements.
    nbytes: usize,
}

impl NpyHeader {
    /// Reads the header at the beginning of a file, of which `bytes` may be a part: `Ok(None)` asks for more bytes.
    ///
    /// # Errors
    /// A text that says what is wrong with the header.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Self>, String> {
        let shorter = bytes.len().min(MAGIC.len());
        if bytes[..shorter] != MAGIC[..shorter] {
            return Err("not an npy file: it does not begin with \\x93NUMPY".into());
        }
        let Some(&major) = bytes.get(6) else {
            return Ok(None);
        };
        let (text_at, len) = match (major, bytes.get(8..10), bytes.get(8..12)) {
            (1, Some(len), _) => (10, usize::from(u16::from_le_bytes([len[0], len[1]]))),
            (2 | 3, _, Some(len)) => {
                let len = u32::from_le_bytes([len[0], len[1], len[2], len[3]]);
                (12, usize::try_from(len).unwrap_or(usize::MAX))
            }
            (1..=3, ..) => return Ok(None),
            _ => {
                return Err(format!(
                    "version {major} of the npy format is not supported; supported: 1, 2, 3"
                ));
            }
        };
        if len > MOST_HEADER {
            return Err(format!(
                "header of {len} bytes exceeds the limit of {MOST_HEADER}"
            ));
        }
        let Some(text) = bytes.get(text_at..text_at + len) else {
            return Ok(None);
        };
        let fields = Fields::parse(text).map_err(|what| format!("header: {what}"))?;
        let (dtype, big_endian) = element(&fields.descr)?;
        let shape = &fields.shape;
        let nbytes = shape
            .iter()
            .try_fold(dtype.size(), |bytes, &size| bytes.checked_mul(size));
        let dims: Result<Vec<i32>, _> = shape.iter().map(|&size| i32::try_from(size)).collect();
        let (Some(nbytes), Ok(dims)) = (nbytes, dims) else {
            return Err(format!("shape {shape:?} is too large"));
        };
        Ok(Some(Self {
            dtype,
            big_endian,
            fortran: fields.fortran,
            shape: dims,
            begin: text_at + len,
            nbytes,
        }))
    }

    /// Bytes of header and elements.
    pub(crate) fn file_len(&self) -> Option<usize> {
        self.begin.checked_add(self.nbytes)
    }

    /// Refuses a file that is shorter or longer than header and elements.
    pub(crate) fn check_len(&self, len: usize) -> Result<(), String> {
        if self.file_len() == Some(len) {
            return Ok(());
        }
        Err(format!(
            "{} of shape {:?} takes {} bytes, but {} follow the header",
            self.dtype,
            self.shape,
            self.nbytes,
            len - self.begin
        ))
    }

    /// Whether MLX may make an array of this shape.
    pub(crate) fn check_size(&self) -> Result<()> {
        memory::check_shape(&self.shape, self.dtype).map(drop)
    }

    /// The array, of an npy file that begins at `start` of the source.
    fn array(&self, source: &Arc<Source>, start: usize) -> Result<Array> {
        self.check_size()?;
        let reversed: Vec<i32> = self.shape.iter().rev().copied().collect();
        let layout = Layout {
            dtype: self.dtype,
            shape: if self.fortran { &reversed } else { &self.shape },
        };
        let at = start + self.begin;
        let array = if self.big_endian && self.dtype.size() > 1 {
            let swapped = swapped(&source.bytes()[at..at + self.nbytes], self.dtype)?;
            layout.of_source(&Arc::new(Source::Shared(swapped)), 0)?
        } else {
            layout.of_source(source, at)?
        };
        if self.fortran && array.ndim() > 1 {
            let axes: Vec<i32> = (0..array.ndim() as i32).rev().collect();
            return array.transpose(&axes);
        }
        Ok(array)
    }
}

/// The array of an npy file that fills `len` bytes of the source from `start`.
///
/// # Errors
/// The bytes do not follow the format, or MLX cannot hold the array.
pub(crate) fn array(source: &Arc<Source>, start: usize, len: usize) -> Result<Array> {
    let format = |what: String| Error::new(ErrorKind::Format, what);
    let bytes = &source.bytes()[start..start + len];
    let header = NpyHeader::parse(bytes)
        .map_err(format)?
        .ok_or_else(|| format(ends(len)))?;
    header.check_len(len).map_err(format)?;
    header.array(source, start)
}

/// The error for a file that ends within its header.
pub(crate) fn ends(len: usize) -> String {
    format!("the file ends within its header, after {len} bytes")
}

/// Little-endian elements of big-endian ones.
fn swapped(bytes: &[u8], dtype: DType) -> io::Result<Arc<[u8]>> {
    let mut copy = Vec::new();
    memory::reserve(&mut copy, bytes.len())?;
    copy.extend_from_slice(bytes);
    // A complex number is two F32.
    let size = if dtype == DType::C64 { 4 } else { dtype.size() };
    for element in copy.chunks_exact_mut(size) {
        element.reverse();
    }
    Ok(copy.into())
}

/// The dtype of `descr`, and whether its bytes are big-endian.
fn element(descr: &str) -> Result<(DType, bool), String> {
    let (order, word) = match descr.chars().next() {
        Some(order @ ('<' | '>' | '|' | '=')) => (order, &descr[1..]),
        _ => ('=', descr),
    };
    if word.starts_with('O') {
        return Err(
            "an array of Python objects is a pickle, which could run code: not read".into(),
        );
    }
    match TYPES.iter().find(|(known, _)| *known == word) {
        Some((_, dtype)) => Ok((*dtype, order == '>')),
        None => {
            let known: Vec<&str> = TYPES.iter().map(|(word, _)| *word).collect();
            Err(format!(
                "dtype {descr:?} is not supported; supported: {}",
                known.join(", ")
            ))
        }
    }
}

/// The dictionary of a header.
struct Fields {
    descr: String,
    fortran: bool,
    shape: Vec<usize>,
}

impl Fields {
    fn parse(text: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(text).map_err(|error| error.to_string())?;
        let mut words = Words(text);
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        words.expect("{")?;
        while !words.take("}") {
            let key = words.quoted()?;
            words.expect(":")?;
            let again = match key {
                "descr" => descr.replace(words.descr()?.to_owned()).is_some(),
                "fortran_order" => fortran.replace(words.boolean()?).is_some(),
                "shape" => shape.replace(words.tuple()?).is_some(),
                _ => return Err(format!("unknown key {key:?}")),
            };
            if again {
                return Err(format!("key {key:?} is given twice"));
            }
            if !words.take(",") {
                words.expect("}")?;
                break;
            }
        }
        if !words.0.trim().is_empty() {
            return Err(format!("{:?} follows the dictionary", words.start()));
        }
        match (descr, fortran, shape) {
            (Some(descr), Some(fortran), Some(shape)) => Ok(Self {
                descr,
                fortran,
                shape,
            }),
            (None, ..) => Err("key \"descr\" is missing".into()),
            (_, None, _) => Err("key \"fortran_order\" is missing".into()),
            (.., None) => Err("key \"shape\" is missing".into()),
        }
    }
}

/// The rest of a Python literal.
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    fn take(&mut self, word: &str) -> bool {
        self.0 = self.0.trim_start();
        match self.0.strip_prefix(word) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, word: &str) -> Result<(), String> {
        if self.take(word) {
            return Ok(());
        }
        Err(format!("expected {word:?}, found {:?}", self.start()))
    }

    /// The next characters, for a message.
    fn start(&self) -> String {
        self.0.trim().chars().take(20).collect()
    }

    fn quoted(&mut self) -> Result<&'a str, String> {
        for quote in ["'", "\""] {
            if self.take(quote) {
                let (text, rest) = self.0.split_once(quote).ok_or("a text does not end")?;
                self.0 = rest;
                return Ok(text);
            }
        }
        Err(format!("expected a text, found {:?}", self.start()))
    }

    fn descr(&mut self) -> Result<&'a str, String> {
        if self.0.trim_start().starts_with(['[', '(']) {
            return Err("structured arrays (with named fields) are not supported".into());
        }
        self.quoted()
    }

    fn boolean(&mut self) -> Result<bool, String> {
        if self.take("True") {
            return Ok(true);
        }
        if self.take("False") {
            return Ok(false);
        }
        Err(format!("expected True or False, found {:?}", self.start()))
    }

    fn tuple(&mut self) -> Result<Vec<usize>, String> {
        let mut sizes = Vec::new();
        self.expect("(")?;
        while !self.take(")") {
            if sizes.len() == MOST_DIMENSIONS {
                return Err(format!(
                    "at most {MOST_DIMENSIONS} dimensions are supported"
                ));
            }
            let rest = self.0.trim_start();
            let end = rest.find(|c: char| !c.is_ascii_digit());
            let (digits, rest) = rest.split_at(end.unwrap_or(rest.len()));
            let size = digits
                .parse()
                .map_err(|_| format!("expected a size, found {:?}", self.start()))?;
            self.0 = rest;
            sizes.push(size);
            if !self.take(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(sizes)
    }
}
