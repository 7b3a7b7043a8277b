//! The safetensors file format: reading without copies, writing without half-written files.
//!
//! A file is a length, a JSON header with the position of each tensor, and the tensors' bytes. When a file is opened,
//! the header is checked against the format, so that no tensor lies outside the file.
//!
//! ```
//! use mlx_core::{Safetensors, array, save_safetensors};
//!
//! # fn main() -> mlx_core::Result<()> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("model.safetensors");
//! save_safetensors(&path, [("w", array![1.0f32, 2.0])])?;
//! let file = Safetensors::open(&path)?;
//! for name in file.names() {
//!     println!("{name}: {:?}", file.info(name)?);
//! }
//! # Ok(())
//! # }
//! ```

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rayon::prelude::*;

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::files::moved::{self, Moved};
use crate::files::source::{Layout, Source, plain_memory};
use crate::linalg;
use crate::ops::create::zeros;
use crate::settings;

mod finite;
mod header;
mod write;

pub use finite::{NonFinite, Vanishing};
use header::{Header, Tensor};
pub use write::{Writer, save, save_safetensors};

/// The arrays of a safetensors file by their names. [`Safetensors`] reads single ones, and the metadata.
///
/// ```
/// use mlx_core::{DType, load_safetensors, ones, save_safetensors};
///
/// # fn main() -> mlx_core::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.safetensors");
/// save_safetensors(&path, &[("w", ones(&[2], DType::F32)?)])?;
/// assert_eq!(load_safetensors(&path)?["w"].shape(), [2]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of [`Safetensors::open`].
pub fn load_safetensors(path: impl AsRef<Path>) -> Result<BTreeMap<String, Array>> {
    Safetensors::open(path)?.arrays()
}

type Unfetched = HashMap<Range<usize>, (Arc<Moved>, usize)>;

/// An open safetensors file.
///
/// ```
/// # use std::collections::BTreeMap;
/// # use mlx_core::{Array, Result, safetensors::{save, Safetensors}};
/// # fn main() -> Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.safetensors");
/// let weight = Array::from_slice(&[1.0f32, 2.0], &[1, 2])?;
/// save(&path, [("weight", &weight)], &BTreeMap::new())?;
/// let file = Safetensors::open(&path)?;
/// assert_eq!(file.array("weight")?.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
pub struct Safetensors {
    label: String,
    source: Arc<Source>,
    header: Header,
    /// Tensors that [`prepare`](Self::prepare) has moved and [`array`](Self::array) has not returned yet: their range
    /// in the file (an empty tensor may begin where another does), and their memory and position in it.
    moved: Mutex<Unfetched>,
    /// [`taken`](Self::taken)
    taken: AtomicU64,
    /// Whether arrays are zeros, so that no data are read.
    is_blank: bool,
}

impl Safetensors {
    /// Maps a file into memory and checks its header.
    ///
    /// On the CPU back end arrays refer to the mapped file: a part of it is read when it is used,
    /// and processes share the memory. The file must not be changed while its arrays are in use.
    /// Replacing it, as [`save`] does, is harmless. If it is truncated, evaluations fail: the first
    /// file that is opened installs a handler of SIGBUS, which supplies zeros for the lost part of
    /// the file and passes every other SIGBUS to the handler before it. If the file is overwritten
    /// in place, arrays see the new content.
    ///
    /// # Errors
    /// The path is no ordinary file, or the file cannot be read or is not a valid safetensors file.
    /// The message names the file and the tensor.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let (label, source) = Source::open(path.as_ref())?;
        Self::new(label, source)
    }

    /// Reads a file that is part of the program, such as one of `include_bytes!`.
    ///
    /// # Errors
    /// The bytes are not a valid safetensors file.
    pub fn from_static(bytes: &'static [u8]) -> Result<Self> {
        Self::new("embedded safetensors".into(), Source::Static(bytes))
    }

    /// Reads a file that is in memory.
    ///
    /// # Errors
    /// The bytes are not a valid safetensors file.
    pub fn from_bytes(bytes: impl Into<Arc<[u8]>>) -> Result<Self> {
        Self::new("safetensors in memory".into(), Source::Shared(bytes.into()))
    }

    /// Reads a file that is part of the program ([`from_static`](Self::from_static)) or in memory
    /// ([`from_bytes`](Self::from_bytes)).
    ///
    /// # Errors
    /// The bytes are not a valid safetensors file.
    pub fn from_cow(bytes: Cow<'static, [u8]>) -> Result<Self> {
        match bytes {
            Cow::Borrowed(bytes) => Self::from_static(bytes),
            Cow::Owned(bytes) => Self::from_bytes(bytes),
        }
    }

    fn new(label: String, source: Source) -> Result<Self> {
        let header = Header::parse(source.bytes())
            .map_err(|what| Error::new(ErrorKind::Format, format!("{label}: {what}")))?;
        Ok(Self {
            label,
            source: Arc::new(source),
            header,
            moved: Mutex::default(),
            taken: AtomicU64::new(0),
            is_blank: false,
        })
    }

    /// The same file whose arrays are zeros from now on: for the sizes of what is made from it, without reading its data.
    /// The zeros take no memory until they are evaluated.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// # use mlx_core::{Array, Result, safetensors::{save, Safetensors}};
    /// # fn main() -> Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("model.safetensors");
    /// # save(&path, [("weight", &Array::from_slice(&[1.0f32, 2.0], &[1, 2])?)], &BTreeMap::new())?;
    /// let file = Safetensors::open(&path)?.without_data();
    /// assert_eq!(file.array("weight")?.shape(), [1, 2]);
    /// assert_eq!(file.part("weight", 1, &[0..1])?.nbytes(), 4);
    /// assert_eq!(file.taken(), 0);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn without_data(mut self) -> Self {
        self.is_blank = true;
        self
    }

    /// All arrays by their names.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn arrays(&self) -> Result<BTreeMap<String, Array>> {
        self.prepare(self.names())?;
        self.names()
            .map(|name| Ok((name.to_owned(), self.array(name)?)))
            .collect()
    }

    /// The names of the tensors, in alphabetical order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.header.tensors.keys().map(String::as_str)
    }

    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.header.tensors.contains_key(name)
    }

    /// Dtype and shape of a tensor. The 8-bit floats, which MLX does not have, are U8: see
    /// [`stored_dtype`](Self::stored_dtype).
    ///
    /// # Errors
    /// There is no such tensor.
    pub fn info(&self, name: &str) -> Result<(DType, &[i32])> {
        self.tensor(name)
            .map(|tensor| (tensor.dtype, &tensor.shape[..]))
    }

    /// A tensor's dtype as the file names it, such as `F8_E4M3`.
    ///
    /// # Errors
    /// There is no such tensor.
    pub fn stored_dtype(&self, name: &str) -> Result<&'static str> {
        self.tensor(name).map(|tensor| tensor.stored)
    }

    /// The texts of the file's `__metadata__`.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.header.metadata
    }

    /// Bytes of all tensors.
    pub fn nbytes(&self) -> usize {
        self.header
            .tensors
            .values()
            .map(|tensor| tensor.end - tensor.start)
            .sum()
    }

    /// A tensor as an array.
    ///
    /// On the CPU back end this copies nothing (unless the bytes are not aligned to their elements):
    /// the array refers to the file and keeps it open. On CUDA and Metal the bytes are copied.
    ///
    /// # Errors
    /// There is no such tensor, it exceeds [`memory::set_array_limit`](crate::memory::set_array_limit), or its BOOL bytes are
    /// neither 0 nor 1.
    pub fn array(&self, name: &str) -> Result<Array> {
        let tensor = self.tensor(name)?;
        if self.is_blank {
            return zeros(&tensor.shape, tensor.dtype);
        }
        self.load(tensor)
            .map_err(|error| error.context(format!("{}: tensor {name:?}", self.label)))
    }

    /// Ranges of a tensor along axis `axis`, one after the other, as an array. Only their bytes are read.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// # use mlx_core::{Array, Result, safetensors::{save, Safetensors}};
    /// # fn main() -> Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("model.safetensors");
    /// let weight = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
    /// save(&path, [("weight", &weight)], &BTreeMap::new())?;
    /// let file = Safetensors::open(&path)?;
    /// let ends = file.part("weight", 1, &[0..1, 2..3])?;
    /// assert_eq!(ends.shape(), [2, 2]);
    /// assert_eq!(ends.to_vec::<f32>()?, [1.0, 3.0, 4.0, 6.0]);
    /// assert_eq!(file.taken(), 16);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// There is no such tensor, it has no such axis, a range is empty or outside of it, or the file cannot be read.
    pub fn part(&self, name: &str, axis: usize, ranges: &[Range<i32>]) -> Result<Array> {
        let tensor = self.tensor(name)?;
        let context = |error: Error| error.context(format!("{}: tensor {name:?}", self.label));
        let whole = tensor.shape.get(axis).copied().unwrap_or(0);
        let is_inside =
            |range: &Range<i32>| 0 <= range.start && range.start < range.end && range.end <= whole;
        if ranges.is_empty() || !ranges.iter().all(is_inside) {
            let shape = &tensor.shape;
            let message =
                format!("ranges {ranges:?} of axis {axis} are not inside the shape {shape:?}");
            return Err(context(Error::new(ErrorKind::Shape, message)));
        }
        let sizes = |of: &[i32]| of.iter().map(|&n| n as usize).product::<usize>();
        let (before, row) = tensor.shape.split_at(axis);
        let unit = sizes(&row[1..]) * tensor.dtype.size();
        let row = unit * whole as usize;
        let runs = (0..sizes(before)).flat_map(|at| {
            let begin = tensor.start + at * row;
            let run = move |range: &Range<i32>| {
                begin + range.start as usize * unit..begin + range.end as usize * unit
            };
            ranges.iter().map(run)
        });
        let runs: Vec<Range<usize>> = runs.collect();
        let mut shape = tensor.shape.clone();
        shape[axis] = ranges.iter().map(|range| range.end - range.start).sum();
        if self.is_blank {
            return zeros(&shape, tensor.dtype);
        }
        let (moved, begin) =
            Moved::joined(&self.source, &runs).map_err(|error| context(error.into()))?;
        let bytes: usize = runs.iter().map(Range::len).sum();
        self.taken.fetch_add(bytes as u64, Ordering::Relaxed);
        let layout = Layout {
            dtype: tensor.dtype,
            shape: &shape,
        };
        layout.of_moved(Arc::new(moved), begin).map_err(context)
    }

    /// [`part`](Self::part) of a model's [`parameter`](Self::parameter).
    ///
    /// # Errors
    /// As [`part`](Self::part).
    pub fn part_of_parameter(
        &self,
        name: &str,
        axis: usize,
        ranges: &[Range<i32>],
    ) -> Result<Array> {
        widest(self.part(name, axis, ranges)?)
    }

    /// The bytes of all arrays that were returned so far. An array that refers to the mapped file counts as a whole,
    /// although the system reads only the pages that are used.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// A tensor as a model's parameter: as [`array`](Self::array), but F64 becomes F32, which is what models compute in.
    ///
    /// # Errors
    /// As [`array`](Self::array).
    pub fn parameter(&self, name: &str) -> Result<Array> {
        widest(self.array(name)?)
    }

    /// Reads those of the named tensors that cannot be used in place into memory, on all threads.
    /// [`array`](Self::array) then returns them.
    ///
    /// These are tensors that are not aligned to their elements, as in files that MLX wrote, and packed weights (U32)
    /// that do not begin on a cache line, which are slow to use. If they make up most bytes of all named tensors, the
    /// others are read too. Without this call, [`array`](Self::array) reads each on one thread. A tensor that `array`
    /// never returns stays in memory as long as this value.
    ///
    /// # Errors
    /// There is no such tensor, or the file cannot be read.
    pub fn prepare<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<()> {
        if self.is_blank || !plain_memory()? {
            return Ok(());
        }
        let named: Result<Vec<&Tensor>> = names.into_iter().map(|name| self.tensor(name)).collect();
        let (usable, mut moving): (Vec<_>, Vec<_>) = named?
            .into_iter()
            .partition(|tensor| self.is_aligned(tensor, preferred(tensor.dtype)));
        let bytes = |tensors: &[&Tensor]| tensors.iter().map(|t| t.end - t.start).sum::<usize>();
        // The system also maps the pages around a mapped tensor: scales that stayed mapped between moved codes took 230
        // MB of resident memory, although the scales have 37 MB (Qwen3-0.6B in 8 bits).
        if bytes(&moving) > bytes(&usable) {
            moving.extend(usable);
        }
        let ranges = moving.iter().map(|tensor| tensor.start..tensor.end);
        let blocks = moved::blocks(ranges.collect());
        let blocks = blocks.into_par_iter().map(|ranges| {
            let (moved, begins) = Moved::new(&self.source, &ranges)?;
            let moved = Arc::new(moved);
            let places = ranges.into_iter().zip(begins);
            Ok(places
                .map(|(range, begin)| (range, (moved.clone(), begin)))
                .collect::<Vec<_>>())
        });
        let blocks: std::io::Result<Vec<_>> = settings::readers()?.install(|| blocks.collect());
        let blocks = blocks.map_err(|error| Error::from(error).context(&self.label))?;
        self.unfetched().extend(blocks.into_iter().flatten());
        Ok(())
    }

    fn unfetched(&self) -> MutexGuard<'_, Unfetched> {
        // A panic cannot leave the table half-changed.
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_aligned(&self, tensor: &Tensor, to: usize) -> bool {
        self.source.is_aligned(tensor.start, to)
    }

    fn tensor(&self, name: &str) -> Result<&Tensor> {
        self.header.tensors.get(name).ok_or_else(|| {
            Error::new(
                ErrorKind::Format,
                format!("{}: no tensor {name:?}", self.label),
            )
        })
    }

    fn load(&self, tensor: &Tensor) -> Result<Array> {
        let bytes = (tensor.end - tensor.start) as u64;
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        let layout = Layout {
            dtype: tensor.dtype,
            shape: &tensor.shape,
        };
        let prepared = self.unfetched().remove(&(tensor.start..tensor.end));
        match prepared {
            Some((moved, begin)) => layout.of_moved(moved, begin),
            None => layout.of_source(&self.source, tensor.start),
        }
    }
}

/// The array as models compute with it: F64 becomes F32.
fn widest(array: Array) -> Result<Array> {
    match array.dtype() {
        DType::F64 => linalg::on_cpu(|| array.astype(DType::F32)),
        _ => Ok(array),
    }
}

impl fmt::Debug for Safetensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Safetensors({}, {} tensors)",
            self.label,
            self.header.tensors.len()
        )
    }
}

/// The alignment that a tensor should have. A decode step of eight rows of Gemma3-1B in 4 bits took 42 ms with codes
/// that begin 24 bytes after a cache line, 37 ms with codes that begin on one, and 35 ms with moved codes (Zen 5).
fn preferred(dtype: DType) -> usize {
    match dtype {
        DType::U32 => moved::ALIGN,
        other => other.size(),
    }
}
