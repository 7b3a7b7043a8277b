//! The safetensors file format: reading without copies, writing without half-written files.
//!
//! A file is a length, a JSON header that says where each tensor's bytes are, and the bytes. The
//! header is held to the letter of the format when a file is opened, so that reading a tensor later
//! cannot reach outside the file, whatever the file says.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mlx_c_sys as sys;
use rayon::prelude::*;

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi;
use crate::memory;
use crate::stream::Device;

mod header;
mod moved;
mod write;

use header::{Header, Tensor};
use moved::Moved;
pub use write::{Writer, save};

/// The bytes of a file.
enum Source {
    Mapped(File, memmap2::Mmap),
    Static(&'static [u8]),
    Shared(Arc<[u8]>),
}

impl Source {
    fn bytes(&self) -> &[u8] {
        match self {
            Source::Mapped(_, map) => map,
            Source::Static(bytes) => bytes,
            Source::Shared(bytes) => bytes,
        }
    }
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
    /// What [`prepare`](Self::prepare) has moved and nobody has fetched: by its place in the file (an empty tensor may
    /// begin where another does), the memory and where in that.
    moved: Mutex<Unfetched>,
}

impl Safetensors {
    /// Maps a file into memory and checks its header.
    ///
    /// On the CPU back end arrays refer to the mapped file: nothing is read before it is used, and
    /// processes share it. **The file must stay as it is while its arrays are in use.** Replacing it
    /// (as [`save`] does) is harmless; should somebody truncate it, using an array ends the process.
    ///
    /// # Errors
    /// The file cannot be read or is not a valid safetensors file; the message names the file and
    /// the tensor.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let label = path.display().to_string();
        let io = |error: std::io::Error| Error::from(error).context(&label);
        let file = File::open(path).map_err(io)?;
        if !file.metadata().map_err(io)?.is_file() {
            return Err(Error::new(ErrorKind::Io, format!("{label}: not a file")));
        }
        // SAFETY: the map is read-only and private to this value. That nobody shortens the file
        // meanwhile is what `open` asks of its caller, as every reader of mapped files must.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
        Self::new(label, Source::Mapped(file, map))
    }

    /// Reads a file that is part of the program, such as one of `include_bytes!`.
    ///
    /// # Errors
    /// It is not a valid safetensors file.
    pub fn from_static(bytes: &'static [u8]) -> Result<Self> {
        Self::new("embedded safetensors".into(), Source::Static(bytes))
    }

    /// Reads a file that is in memory.
    ///
    /// # Errors
    /// It is not a valid safetensors file.
    pub fn from_bytes(bytes: impl Into<Arc<[u8]>>) -> Result<Self> {
        Self::new("safetensors in memory".into(), Source::Shared(bytes.into()))
    }

    fn new(label: String, source: Source) -> Result<Self> {
        let header = Header::parse(source.bytes())
            .map_err(|what| Error::new(ErrorKind::Io, format!("{label}: {what}")))?;
        Ok(Self {
            label,
            source: Arc::new(source),
            header,
            moved: Mutex::default(),
        })
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

    /// A tensor's dtype in the file's own words, such as `F8_E4M3`.
    ///
    /// # Errors
    /// There is no such tensor.
    pub fn stored_dtype(&self, name: &str) -> Result<&'static str> {
        self.tensor(name).map(|tensor| tensor.stored)
    }

    /// What the file says of itself: the texts of `__metadata__`.
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
    /// There is no such tensor, it exceeds [`memory::set_array_limit`], or its BOOL bytes are
    /// neither 0 nor 1.
    pub fn array(&self, name: &str) -> Result<Array> {
        let tensor = self.tensor(name)?;
        self.load(tensor)
            .map_err(|error| error.context(format!("{}: tensor {name:?}", self.label)))
    }

    /// Reads those of the named tensors that cannot be used where they are, as in files that MLX wrote, by all threads
    /// at once; [`array`](Self::array) then has them. So are packed weights (U32) that do not begin with a cache line,
    /// which would be used slowly. If they are most bytes of all named, the others are read with
    /// them. Worth while before many are used: one after the other they keep one thread busy. What is never fetched
    /// stays in memory as long as this value.
    ///
    /// # Errors
    /// There is no such tensor, or the file cannot be read.
    pub fn prepare<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<()> {
        if !plain_memory()? {
            return Ok(());
        }
        let named: Result<Vec<&Tensor>> = names.into_iter().map(|name| self.tensor(name)).collect();
        let (usable, mut moving): (Vec<_>, Vec<_>) = named?
            .into_iter()
            .partition(|tensor| self.is_aligned(tensor, preferred(tensor.dtype)));
        let bytes = |tensors: &[&Tensor]| tensors.iter().map(|t| t.end - t.start).sum::<usize>();
        // Whoever reads a mapped tensor has the pages around it mapped too: scales between codes that were moved cost
        // 230 MB of resident memory where they are 37 (Qwen3-0.6B in 8 bits).
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
        let blocks: std::io::Result<Vec<_>> = blocks.collect();
        let blocks = blocks.map_err(|error| Error::from(error).context(&self.label))?;
        self.unfetched().extend(blocks.into_iter().flatten());
        Ok(())
    }

    fn unfetched(&self) -> MutexGuard<'_, Unfetched> {
        // Whoever panicked left a whole table behind.
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_aligned(&self, tensor: &Tensor, to: usize) -> bool {
        let begin = self.source.bytes()[tensor.start..].as_ptr();
        begin.addr().is_multiple_of(to)
    }

    fn tensor(&self, name: &str) -> Result<&Tensor> {
        self.header
            .tensors
            .get(name)
            .ok_or_else(|| Error::new(ErrorKind::Io, format!("{}: no tensor {name:?}", self.label)))
    }

    fn load(&self, tensor: &Tensor) -> Result<Array> {
        memory::check_shape(&tensor.shape, tensor.dtype)?;
        let bytes = &self.source.bytes()[tensor.start..tensor.end];
        if tensor.dtype == DType::Bool
            && let Some(byte) = bytes.iter().find(|&&byte| byte > 1)
        {
            return Err(Error::new(
                ErrorKind::Io,
                format!("byte {byte} where BOOL has 0 and 1"),
            ));
        }
        let plain = plain_memory()?;
        let range = tensor.start..tensor.end;
        let prepared = self.unfetched().remove(&range);
        let (moved, begin) = match prepared {
            Some(prepared) => prepared,
            None if self.is_aligned(tensor, tensor.dtype.size()) => {
                return if plain {
                    lend(tensor, bytes.as_ptr(), self.source.clone())
                } else {
                    copy(tensor, bytes.as_ptr())
                };
            }
            None => {
                let (moved, begins) = Moved::new(&self.source, &[range])?;
                (Arc::new(moved), begins[0])
            }
        };
        let data = moved.from(begin).as_ptr();
        if plain {
            lend(tensor, data, moved)
        } else {
            copy(tensor, data)
        }
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

/// What the address of a tensor should be a multiple of. A step of eight rows of Gemma3-1B in 4 bits took 42 ms with codes
/// that begin 24 bytes behind a cache line, 37 with such that begin with one, and 35 with moved ones (Zen 5).
fn preferred(dtype: DType) -> usize {
    match dtype {
        DType::U32 => moved::ALIGN,
        other => other.size(),
    }
}

/// Whether MLX's buffers are plain memory of the process: so it is where there is no GPU back end.
fn plain_memory() -> Result<bool> {
    Device::GPU.is_available().map(|gpu| !gpu)
}

/// An array over bytes that `owner` keeps alive and where they are.
fn lend<T: Send + Sync>(tensor: &Tensor, data: *const u8, owner: Arc<T>) -> Result<Array> {
    unsafe extern "C" fn release<T>(payload: *mut std::ffi::c_void) {
        // SAFETY: the reference that `lend` gave away, returned once. Freeing bytes cannot panic.
        drop(unsafe { Arc::from_raw(payload.cast::<T>()) });
    }

    let payload = Arc::into_raw(owner).cast_mut().cast();
    ffi::array(|res| {
        // SAFETY: the bytes are as many as shape and dtype say (checked by the header), aligned,
        // preceded by eight of the same allocation (in a file its length, else those that `Moved`
        // leaves), and live as long as their owner, of which the array gets a reference. MLX
        // never writes into foreign memory.
        unsafe {
            sys::mlxrs_array_from_foreign(
                res,
                data.cast(),
                tensor.shape.as_ptr(),
                tensor.shape.len(),
                tensor.dtype.raw(),
                payload,
                Some(release::<T>),
            )
        }
    })
    .map(Array::data)
}

/// An array of MLX's own memory. `data` is aligned, and as long as shape and dtype say (checked by the header).
fn copy(tensor: &Tensor, data: *const u8) -> Result<Array> {
    let (shape, ndim) = (tensor.shape.as_ptr(), tensor.shape.len() as i32);
    // SAFETY: what this function asks for; MLX copies it.
    let raw = unsafe { sys::mlx_array_new_data(data.cast(), shape, ndim, tensor.dtype.raw()) };
    // SAFETY: freshly allocated for us.
    unsafe { Array::from_raw(raw) }.map(Array::data)
}
