//! The npz file format of NumPy: a zip archive of npy files.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use miniz_oxide::deflate::core as deflate;
use miniz_oxide::inflate::stream::{InflateState, inflate};
use miniz_oxide::{DataFormat, MZFlush, MZStatus};

use super::atomic::Unnamed;
use super::named::{NamedArray, named};
use super::npy;
use super::source::Source;
use super::zip::{self, Crc, Entry, Method};
use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};
use crate::memory;

/// The ending of an entry that holds an array.
const NPY: &str = ".npy";
/// The least that compressed entries may expand to.
const LEAST_LIMIT: u64 = 1 << 30;
/// How often its own size a larger archive may expand to.
const MOST_RATIO: u64 = 100;
/// The bytes that are inflated at a time.
const PART: usize = 1 << 16;

/// An open npz file: arrays with names, of NumPy's `savez` and `savez_compressed` or MLX's.
///
/// ```
/// use mlx_core::{DType, files::Npz, ones, savez};
///
/// # fn main() -> mlx_core::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.npz");
/// savez(&path, &[("a", ones(&[2], DType::F32)?)])?;
/// let file = Npz::open(&path)?;
/// assert_eq!(file.names().collect::<Vec<_>>(), ["a"]);
/// assert_eq!(file.array("a")?.to_vec::<f32>()?, [1.0, 1.0]);
/// # Ok(())
/// # }
/// ```
pub struct Npz {
    label: String,
    source: Arc<Source>,
    entries: BTreeMap<String, Entry>,
    limit: u64,
}

impl Npz {
    /// Maps an archive into memory and checks its directory.
    ///
    /// On the CPU back end arrays that are not compressed refer to the file, as those of
    /// [`Safetensors::open`](crate::Safetensors::open) do.
    ///
    /// # Errors
    /// It is no ordinary file, cannot be read or is not a valid archive of npy files. The message names file and entry:
    /// a name that is given twice or that is no relative path, entries that overlap or reach beyond the archive,
    /// encryption, another compression than deflate.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let (label, source) = Source::open(path.as_ref())?;
        Self::new(label, source)
    }

    /// Reads an archive that is in memory.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_bytes(bytes: impl Into<Arc<[u8]>>) -> Result<Self> {
        Self::new("npz in memory".into(), Source::Shared(bytes.into()))
    }

    fn new(label: String, source: Source) -> Result<Self> {
        let read = || {
            let mut entries = BTreeMap::new();
            for entry in zip::directory(source.bytes())? {
                let Some(name) = entry.name.strip_suffix(NPY) else {
                    return Err(format!(
                        "entry {:?}: its name does not end in {NPY}",
                        entry.name
                    ));
                };
                if entries.contains_key(name) {
                    return Err(format!("entry {:?} is given twice", entry.name));
                }
                entries.insert(name.to_owned(), entry);
            }
            Ok(entries)
        };
        let entries =
            read().map_err(|what| Error::new(ErrorKind::Format, format!("{label}: {what}")))?;
        let limit = (source.bytes().len() as u64).saturating_mul(MOST_RATIO);
        Ok(Self {
            label,
            source: Arc::new(source),
            entries,
            limit: limit.max(LEAST_LIMIT),
        })
    }

    /// Sets how many bytes compressed entries may expand to, each for [`array`](Self::array), together for
    /// [`arrays`](Self::arrays).
    ///
    /// The default is 1 GiB, or 100 times the size of the archive if that is more. Deflate can expand to 1,032 times
    /// its input, so that a small archive could fill the memory.
    #[must_use]
    pub fn with_limit(mut self, bytes: u64) -> Self {
        self.limit = bytes;
        self
    }

    /// The names of the arrays, in alphabetical order, without `.npy`.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Whether there is an array of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// An array.
    ///
    /// # Errors
    /// There is no such array, its entry is not a valid npy file, differs from its checksum or from its size, exceeds
    /// the limit, or has elements that MLX does not have: Python objects (which are pickles), texts, named fields,
    /// dates, complex128, float128.
    pub fn array(&self, name: &str) -> Result<Array> {
        let entry = self.entries.get(name).ok_or_else(|| {
            let message = format!("{}: no array {name:?}", self.label);
            Error::new(ErrorKind::Format, message)
        })?;
        self.read(entry)
            .map_err(|error| error.context(format!("{}: entry {:?}", self.label, entry.name)))
    }

    /// All arrays by their names.
    ///
    /// # Errors
    /// As [`array`](Self::array); or the compressed entries together exceed the limit.
    pub fn arrays(&self) -> Result<BTreeMap<String, Array>> {
        let packed = self.entries.values();
        let packed = packed.filter(|entry| entry.method == Method::Deflated);
        let bytes = packed.fold(0u64, |sum, entry| sum.saturating_add(entry.size as u64));
        self.check_limit(bytes)
            .map_err(|error| error.context(&self.label))?;
        self.names()
            .map(|name| Ok((name.to_owned(), self.array(name)?)))
            .collect()
    }

    fn check_limit(&self, bytes: u64) -> Result<()> {
        if bytes <= self.limit {
            return Ok(());
        }
        let (archive, limit) = (self.source.bytes().len(), self.limit);
        let message = format!(
            "{bytes} bytes when decompressed; an archive of {archive} bytes may expand to {limit} \
             (Npz::with_limit sets another limit)"
        );
        Err(Error::new(ErrorKind::Budget, message))
    }

    fn read(&self, entry: &Entry) -> Result<Array> {
        let packed = &self.source.bytes()[entry.packed.clone()];
        let (crc, array) = match entry.method {
            Method::Stored => {
                let mut crc = Crc::new();
                crc.add(packed);
                let array = npy::array(&self.source, entry.packed.start, packed.len());
                (crc, array)
            }
            Method::Deflated => {
                self.check_limit(entry.size as u64)?;
                let (content, crc) = inflated(packed, entry.size)?;
                let source = Arc::new(Source::Shared(content.into()));
                (crc, npy::array(&source, 0, entry.size))
            }
        };
        if crc.value() != entry.crc {
            let message = format!(
                "checksum {:08x}, expected {:08x}: its bytes are damaged",
                crc.value(),
                entry.crc
            );
            return Err(Error::new(ErrorKind::Format, message));
        }
        array
    }
}

impl fmt::Debug for Npz {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Npz({}, {} arrays)", self.label, self.entries.len())
    }
}

/// The content of a deflated entry, which must have `size` bytes, and its checksum. The header at its beginning is
/// checked before there is memory for the rest.
fn inflated(packed: &[u8], size: usize) -> Result<(Vec<u8>, Crc)> {
    let format = |what: String| Error::new(ErrorKind::Format, what);
    let mut state = InflateState::new_boxed(DataFormat::Raw);
    let (mut content, mut crc) = (Vec::new(), Crc::new());
    let mut part = vec![0; PART];
    let mut rest = packed;
    let mut header = None;
    loop {
        let step = inflate(&mut state, rest, &mut part, MZFlush::None);
        rest = &rest[step.bytes_consumed..];
        let bytes = &part[..step.bytes_written];
        if content.len() + bytes.len() > size {
            return Err(format(format!("more content than its {size} bytes")));
        }
        memory::reserve(&mut content, bytes.len())?;
        content.extend_from_slice(bytes);
        crc.add(bytes);
        if header.is_none()
            && let Some(found) = npy::NpyHeader::parse(&content).map_err(format)?
        {
            found.check_len(size).map_err(format)?;
            found.check_size()?;
            let more = size - content.len();
            memory::reserve(&mut content, more)?;
            header = Some(found);
        }
        match step.status {
            Ok(MZStatus::StreamEnd) if !rest.is_empty() => {
                let left = rest.len();
                return Err(format(format!(
                    "{left} bytes follow its compressed content"
                )));
            }
            Ok(MZStatus::StreamEnd) if content.len() == size => return Ok((content, crc)),
            Ok(MZStatus::StreamEnd) => {
                let found = content.len();
                return Err(format(format!("{found} bytes of content, expected {size}")));
            }
            Ok(_) if step.bytes_consumed + step.bytes_written > 0 => {}
            Ok(_) | Err(miniz_oxide::MZError::Buf) => {
                return Err(format("its compressed content is cut off".into()));
            }
            Err(_) => return Err(format("its compressed content is not deflate".into())),
        }
    }
}

/// Writes arrays to an npz file, which NumPy and MLX read, without compression. Evaluates the arrays one after the
/// other.
///
/// The file appears whole or not at all, under exactly this name: no ending is added to it. An array is named by the
/// entry `NAME.npy`. Its elements begin at a multiple of 64 bytes, so that [`Npz`] reads them in place.
///
/// ```
/// use mlx_core::{DType, load, ones, savez, zeros};
///
/// # fn main() -> mlx_core::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.npz");
/// let (a, b) = (ones(&[2], DType::F32)?, zeros(&[3], DType::I32)?);
/// savez(&path, &[("a", &a), ("b", &b)])?;
/// assert_eq!(load(&path)?.get("b")?.shape(), [3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// A name is given twice or is no relative path of plain names, an evaluation fails, or the file cannot be written.
/// `path` is then as it was.
pub fn savez<N: NamedArray>(
    path: impl AsRef<Path>,
    arrays: impl IntoIterator<Item = N>,
) -> Result<()> {
    write(path.as_ref(), arrays, Method::Stored)
}

/// As [`savez`], with deflate.
///
/// ```
/// use mlx_core::{DType, load, savez_compressed, zeros};
///
/// # fn main() -> mlx_core::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.npz");
/// savez_compressed(&path, [("a", zeros(&[100_000], DType::F32)?)])?;
/// assert!(std::fs::metadata(&path)?.len() < 1000);
/// assert_eq!(load(&path)?.get("a")?.shape(), [100_000]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`savez`].
pub fn savez_compressed<N: NamedArray>(
    path: impl AsRef<Path>,
    arrays: impl IntoIterator<Item = N>,
) -> Result<()> {
    write(path.as_ref(), arrays, Method::Deflated)
}

fn write<N: NamedArray>(
    path: &Path,
    arrays: impl IntoIterator<Item = N>,
    method: Method,
) -> Result<()> {
    let arrays: Vec<N> = arrays.into_iter().collect();
    let arrays = named(&arrays);
    let all = || {
        let mut names = std::collections::HashSet::new();
        let mut unnamed = Unnamed::new(path)?;
        let mut archive = Archive {
            file: io::BufWriter::new(unnamed.file()),
            written: Vec::new(),
        };
        for (name, array) in arrays {
            let refuse = |what: String| {
                let message = format!("array {name:?}: {what}");
                Error::new(ErrorKind::Invalid, message)
            };
            zip::check_name(name).map_err(refuse)?;
            if name.len() + NPY.len() > usize::from(u16::MAX) {
                return Err(refuse(format!(
                    "a name of {} bytes is too long",
                    name.len()
                )));
            }
            if !names.insert(name) {
                return Err(refuse("its name is given twice".into()));
            }
            archive
                .add(name, array, method)
                .map_err(|error| error.context(format!("array {name:?}")))?;
        }
        archive.end()?;
        Ok(unnamed.finish()?)
    };
    all().map_err(|error: Error| error.context(path.display()))
}

/// An archive that is being written.
struct Archive<W: Write + Seek> {
    file: W,
    written: Vec<Written>,
}

/// An entry, as the directory lists it.
struct Written {
    name: String,
    method: Method,
    crc: u32,
    packed: u64,
    size: u64,
    offset: u64,
    /// Whether a number of the entry needs 64 bits.
    wide: bool,
}

impl Written {
    /// The fields that both headers have, from the version that is needed to the sizes.
    fn shared(&self) -> Vec<u8> {
        let version: u16 = if self.wide { 45 } else { 20 };
        let utf8: u16 = if self.name.is_ascii() { 0 } else { 1 << 11 };
        let method: u16 = if self.method == Method::Stored { 0 } else { 8 };
        // The first date that the format can hold, so that the bytes depend on the arrays only.
        let (time, date) = (0u16, 1 << 5 | 1u16);
        let mut bytes = Vec::new();
        for word in [version, utf8, method, time, date] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.crc.to_le_bytes());
        for size in [self.packed, self.size] {
            let size = if self.wide { u32::MAX } else { size as u32 };
            bytes.extend(size.to_le_bytes());
        }
        bytes.extend((self.name.len() as u16).to_le_bytes());
        bytes
    }

    fn local(&self) -> Vec<u8> {
        let mut extra = Vec::new();
        if self.wide {
            extra.extend(zip::WIDE.to_le_bytes());
            extra.extend(16u16.to_le_bytes());
            extra.extend(self.size.to_le_bytes());
            extra.extend(self.packed.to_le_bytes());
        }
        // A field for alignment (Android's zipalign has it): its own six bytes, and zeros up to a multiple of 64.
        let before = self.offset as usize + 30 + self.name.len() + extra.len() + 6;
        let zeros = before.next_multiple_of(64) - before;
        extra.extend(0xd935u16.to_le_bytes());
        extra.extend((zeros as u16 + 2).to_le_bytes());
        extra.extend(64u16.to_le_bytes());
        extra.resize(extra.len() + zeros, 0);
        let mut bytes = zip::LOCAL.to_le_bytes().to_vec();
        bytes.extend(self.shared());
        bytes.extend((extra.len() as u16).to_le_bytes());
        bytes.extend(self.name.as_bytes());
        bytes.extend(extra);
        bytes
    }

    fn central(&self) -> Vec<u8> {
        let mut extra = Vec::new();
        if self.wide {
            extra.extend(zip::WIDE.to_le_bytes());
            extra.extend(24u16.to_le_bytes());
            for number in [self.size, self.packed, self.offset] {
                extra.extend(number.to_le_bytes());
            }
        }
        let mut bytes = zip::CENTRAL.to_le_bytes().to_vec();
        // Made by version 4.5 of the format, on MS-DOS: no attributes.
        bytes.extend(45u16.to_le_bytes());
        bytes.extend(self.shared());
        bytes.extend((extra.len() as u16).to_le_bytes());
        // Length of the comment, disk, and attributes.
        bytes.extend([0; 10]);
        let offset = if self.wide {
            u32::MAX
        } else {
            self.offset as u32
        };
        bytes.extend(offset.to_le_bytes());
        bytes.extend(self.name.as_bytes());
        bytes.extend(extra);
        bytes
    }
}

impl<W: Write + Seek> Archive<W> {
    fn add(&mut self, name: &str, array: &Array, method: Method) -> Result<()> {
        let header = npy::header(array)?;
        let size = (header.len() + array.nbytes()) as u64;
        let offset = self.file.stream_position()?;
        // Deflate expands what it cannot compress by less than a sixty-fourth.
        let most = (size + size / 64 + 1024).max(offset);
        let mut entry = Written {
            name: format!("{name}{NPY}"),
            method,
            crc: 0,
            packed: 0,
            size,
            offset,
            wide: most >= u64::from(u32::MAX),
        };
        let head = entry.local();
        self.file.write_all(&head)?;
        let begin = entry.offset + head.len() as u64;
        let mut crc = Crc::new();
        let file = &mut self.file;
        array.with_bytes(|bytes| {
            crc.add(&header);
            crc.add(bytes);
            match method {
                Method::Stored => file.write_all(&header).and_then(|()| file.write_all(bytes)),
                Method::Deflated => deflated(&[&header, bytes], file),
            }
        })??;
        let end = self.file.stream_position()?;
        entry.crc = crc.value();
        entry.packed = end - begin;
        self.file.seek(SeekFrom::Start(entry.offset))?;
        self.file.write_all(&entry.local())?;
        self.file.seek(SeekFrom::Start(end))?;
        self.written.push(entry);
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        let start = self.file.stream_position()?;
        for entry in &self.written {
            self.file.write_all(&entry.central())?;
        }
        let end = self.file.stream_position()?;
        let count = self.written.len() as u64;
        let (size, most) = (end - start, u64::from(u32::MAX));
        if count >= u64::from(u16::MAX) || size >= most || start >= most {
            let mut bytes = zip::WIDE_END.to_le_bytes().to_vec();
            bytes.extend(44u64.to_le_bytes());
            bytes.extend([45, 0, 45, 0]);
            bytes.extend([0; 8]);
            for number in [count, count, size, start] {
                bytes.extend(number.to_le_bytes());
            }
            bytes.extend(zip::WIDE_PLACE.to_le_bytes());
            bytes.extend([0; 4]);
            bytes.extend(end.to_le_bytes());
            bytes.extend(1u32.to_le_bytes());
            self.file.write_all(&bytes)?;
        }
        let mut bytes = zip::END.to_le_bytes().to_vec();
        bytes.extend([0; 4]);
        let count = count.min(u16::MAX.into()) as u16;
        bytes.extend(count.to_le_bytes());
        bytes.extend(count.to_le_bytes());
        bytes.extend((size.min(most) as u32).to_le_bytes());
        bytes.extend((start.min(most) as u32).to_le_bytes());
        bytes.extend([0; 2]);
        self.file.write_all(&bytes)?;
        Ok(self.file.flush()?)
    }
}

/// Writes the parts one after the other, compressed as zlib does at its level 6.
fn deflated(parts: &[&[u8]], file: &mut impl Write) -> io::Result<()> {
    let flags = deflate::create_comp_flags_from_zip_params(6, -15, 0);
    let mut state = deflate::CompressorOxide::new(flags);
    let mut failed = None;
    for (i, part) in parts.iter().enumerate() {
        let flush = if i + 1 == parts.len() {
            deflate::TDEFLFlush::Finish
        } else {
            deflate::TDEFLFlush::None
        };
        deflate::compress_to_output(&mut state, part, flush, |bytes| {
            match file.write_all(bytes) {
                Ok(()) => true,
                Err(error) => {
                    failed = Some(error);
                    false
                }
            }
        });
        if let Some(error) = failed.take() {
            return Err(error);
        }
    }
    Ok(())
}
