//! The GGUF file format of llama.cpp: metadata with types, and tensors, many of them in blocks of a few bits.
//!
//! A file is opened and checked as a whole: every count, length and offset is inside it, before anything is allocated
//! for it. [`Gguf::value`] reads metadata, [`Gguf::array`] tensors of plain elements, [`Gguf::packed`] those that are
//! MLX's affine quantisation in another order (Q4_0, Q4_1, Q8_0), as MLX's `load` gives them. [`Gguf::repacked`] gives
//! every type that has a scheme of MLX with the same values, [`Gguf::expanded`] the values themselves, and
//! [`Gguf::bytes`] the blocks of any tensor as they are. [`save`] writes plain elements, [`save_as`] also Q4_0 and Q8_0.
//!
//! ```
//! use std::collections::BTreeMap;
//! use mlx_core::gguf::{Gguf, Value, save};
//! use mlx_core::{DType, ones};
//!
//! # fn main() -> mlx_core::Result<()> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("a.gguf");
//! let metadata = BTreeMap::from([
//!     ("general.architecture".to_owned(), Value::from("llama")),
//!     ("llama.block_count".to_owned(), Value::from(2u32)),
//! ]);
//! save(&path, &[("token_embd.weight", ones(&[4, 8], DType::F16)?)], &metadata)?;
//! let file = Gguf::open(&path)?;
//! assert_eq!(file.value::<&str>("general.architecture")?, "llama");
//! assert_eq!(file.value::<u32>("llama.block_count")?, 2);
//! assert_eq!(file.find::<f32>("llama.rope.freq_base")?, None);
//! assert_eq!(file.array("token_embd.weight")?.shape(), [4, 8]);
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};
use crate::files::source::{Layout, Source};
use crate::ops::quantize::{Quantized, Scheme};

mod affine;
mod blocks;
mod encode;
mod find;
mod read;
mod types;
mod value;
mod write;

pub use find::find;
pub use types::TensorType;
pub use value::{FromValue, List, Value};
pub use write::{save, save_as, save_gguf};

/// An open GGUF file.
///
/// ```
/// use mlx_core::{DType, gguf::Gguf, ones, save_gguf};
///
/// # fn main() -> mlx_core::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.gguf");
/// save_gguf(&path, [("blk.0.attn_q.weight", ones(&[4, 8], DType::F16)?)])?;
/// let file = Gguf::open(&path)?;
/// for name in file.names() {
///     let (kind, shape) = file.info(name)?;
///     println!("{name}: {kind} {shape:?}, {} bytes", file.bytes(name)?.len());
/// }
/// # Ok(())
/// # }
/// ```
pub struct Gguf {
    label: String,
    source: Arc<Source>,
    metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, Tensor>,
}

/// Type, shape and position of a tensor.
struct Tensor {
    kind: TensorType,
    /// The slowest axis first, as everywhere in this crate; the file has the fastest first.
    shape: Vec<i32>,
    /// The range of its bytes, from the start of the file.
    range: Range<usize>,
}

impl Gguf {
    /// Maps a file into memory and checks all of it but the tensors' elements.
    ///
    /// On the CPU back end arrays of plain elements refer to the file, as those of
    /// [`Safetensors::open`](crate::Safetensors::open) do.
    ///
    /// # Errors
    /// It is no ordinary file, cannot be read or is not a valid GGUF file of version 2 or 3, little-endian. The message
    /// names the file, and the key or tensor: one that is given twice, a text that is not UTF-8, a type that GGUF does
    /// not have, a count or offset beyond the end, tensors that overlap.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let (label, source) = Source::open(path.as_ref())?;
        Self::new(label, source)
    }

    /// Reads a file that is in memory.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_bytes(bytes: impl Into<Arc<[u8]>>) -> Result<Self> {
        Self::new("gguf in memory".into(), Source::Shared(bytes.into()))
    }

    fn new(label: String, source: Source) -> Result<Self> {
        let (metadata, tensors) = read::parse(source.bytes())
            .map_err(|what| Error::new(ErrorKind::Format, format!("{label}: {what}")))?;
        Ok(Self {
            label,
            source: Arc::new(source),
            metadata,
            tensors,
        })
    }

    /// All metadata, by keys such as `general.architecture`.
    pub fn metadata(&self) -> &BTreeMap<String, Value> {
        &self.metadata
    }

    /// The value of a key of the metadata as a Rust type: a number of any type that can hold it, `bool`, `&str`, or a
    /// list (`&[String]`, `&[f32]`, `&[i32]`, ...).
    ///
    /// # Errors
    /// There is no such key, or its value has another type or does not fit.
    pub fn value<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T> {
        self.find(key)?.ok_or_else(|| {
            let message = format!("{}: no key {key:?}", self.label);
            Error::new(ErrorKind::Format, message)
        })
    }

    /// As [`value`](Self::value), but `None` if there is no such key.
    ///
    /// # Errors
    /// The key's value has another type or does not fit.
    pub fn find<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>> {
        let Some(value) = self.metadata.get(key) else {
            return Ok(None);
        };
        T::from_value(value).map(Some).ok_or_else(|| {
            let (found, expected) = (value.kind(), T::EXPECTED);
            let message = format!(
                "{}: key {key:?} is {found}; expected {expected}",
                self.label
            );
            Error::new(ErrorKind::Format, message)
        })
    }

    /// The names of the tensors, in alphabetical order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The type of a tensor, and its shape in elements.
    ///
    /// # Errors
    /// There is no such tensor.
    pub fn info(&self, name: &str) -> Result<(TensorType, &[i32])> {
        self.tensor(name)
            .map(|tensor| (tensor.kind, &tensor.shape[..]))
    }

    /// The bytes of a tensor: elements, or blocks in the layout of its type, row after row.
    ///
    /// # Errors
    /// There is no such tensor.
    pub fn bytes(&self, name: &str) -> Result<&[u8]> {
        self.tensor(name)
            .map(|tensor| &self.source.bytes()[tensor.range.clone()])
    }

    /// A tensor of plain elements: F16, BF16, F32, F64 or I8 to I64.
    ///
    /// # Errors
    /// There is no such tensor, it exceeds [`memory::set_array_limit`](crate::memory::set_array_limit), or it is in
    /// blocks.
    pub fn array(&self, name: &str) -> Result<Array> {
        let tensor = self.tensor(name)?;
        self.plain(tensor)
            .map_err(|error| error.context(self.place(name)))
    }

    /// A tensor in blocks as MLX's affine quantisation, with the same values, or `None` if it has plain elements.
    ///
    /// Groups have 32 elements; Q4_0 and Q4_1 have 4 bits, Q8_0 has 8. Scales and biases are F16. A bias is minus 8
    /// (Q4_0) or minus 128 (Q8_0) times the scale.
    ///
    /// # Errors
    /// There is no such tensor, it exceeds the limit of an array, or it has another type of blocks.
    pub fn packed(&self, name: &str) -> Result<Option<(Quantized, Scheme)>> {
        let tensor = self.tensor(name)?;
        if tensor.kind.dtype().is_some() {
            return Ok(None);
        }
        affine::repacked(tensor.kind, &tensor.shape, self.bytes(name)?)
            .map(Some)
            .map_err(|error| error.context(self.place(name)))
    }

    /// A tensor in blocks in the [scheme](TensorType::scheme) that keeps the values of its type. Scales and biases of
    /// affine schemes are F32, which has the products of scales that K-quants store.
    ///
    /// [`packed`](Self::packed) has fewer types, with scales in F16 as MLX's `load` gives them.
    ///
    /// # Errors
    /// There is no such tensor, its type has no such scheme, or memory is short.
    pub fn repacked(&self, name: &str) -> Result<Quantized> {
        let tensor = self.tensor(name)?;
        blocks::repacked(tensor.kind, &tensor.shape, self.bytes(name)?)
            .map_err(|error| error.context(self.place(name)))
    }

    /// The values of a tensor: plain elements as [`array`](Self::array) gives them, blocks in F32.
    ///
    /// # Errors
    /// There is no such tensor, its type is not [decoded](TensorType::is_decoded), or it exceeds the limit of an array.
    pub fn expanded(&self, name: &str) -> Result<Array> {
        let tensor = self.tensor(name)?;
        match tensor.kind.dtype() {
            Some(_) => self.plain(tensor),
            None => blocks::expanded(tensor.kind, &tensor.shape, self.bytes(name)?),
        }
        .map_err(|error| error.context(self.place(name)))
    }

    /// The name of the file, for messages.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// All tensors as arrays, as MLX's `load` names them: a tensor `x.weight` in blocks becomes `x.weight`, `x.scales`
    /// and `x.biases`.
    ///
    /// # Errors
    /// As [`array`](Self::array) and [`packed`](Self::packed); or two arrays would have one name.
    pub fn arrays(&self) -> Result<BTreeMap<String, Array>> {
        let mut arrays = BTreeMap::new();
        let mut add = |name: String, array: Array| match arrays.insert(name, array) {
            None => Ok(()),
            Some(_) => Err("its scales or biases have the name of another tensor"),
        };
        for name in self.names() {
            let added = match self.packed(name)? {
                None => add(name.to_owned(), self.array(name)?),
                Some((packed, _)) => {
                    let stem = name.strip_suffix(".weight").unwrap_or(name);
                    add(name.to_owned(), packed.packed)
                        .and_then(|()| add(format!("{stem}.scales"), packed.scales))
                        .and_then(|()| match packed.biases {
                            Some(biases) => add(format!("{stem}.biases"), biases),
                            None => Ok(()),
                        })
                }
            };
            added.map_err(|what| {
                Error::new(ErrorKind::Format, format!("{}: {what}", self.place(name)))
            })?;
        }
        Ok(arrays)
    }

    fn tensor(&self, name: &str) -> Result<&Tensor> {
        self.tensors.get(name).ok_or_else(|| {
            let message = format!("{}: no tensor {name:?}", self.label);
            Error::new(ErrorKind::Format, message)
        })
    }

    fn place(&self, name: &str) -> String {
        format!("{}: tensor {name:?}", self.label)
    }

    fn plain(&self, tensor: &Tensor) -> Result<Array> {
        let Some(dtype) = tensor.kind.dtype() else {
            let message = format!("{} is stored in blocks, not as plain elements", tensor.kind);
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        let layout = Layout {
            dtype,
            shape: &tensor.shape,
        };
        layout.of_source(&self.source, tensor.range.start)
    }
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (keys, tensors) = (self.metadata.len(), self.tensors.len());
        write!(f, "Gguf({}, {keys} keys, {tensors} tensors)", self.label)
    }
}
