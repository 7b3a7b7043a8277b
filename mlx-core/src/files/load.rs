//! A function that reads all formats.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use super::npy;
use super::npz::Npz;
use super::source::Source;
use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};
use crate::gguf::{Gguf, Value};
use crate::safetensors::Safetensors;

/// What [`load`] found in a file.
///
/// ```
/// use mlx_core::{DType, files::Loaded, load, ones, save};
///
/// # fn main() -> mlx_core::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.npy");
/// save(&path, &ones(&[2], DType::F32)?)?;
/// match load(&path)? {
///     Loaded::Array(array) => assert_eq!(array.shape(), [2]),
///     Loaded::Arrays(arrays, _) => println!("{} arrays", arrays.len()),
///     _ => unreachable!("an npy file holds an array"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Loaded {
    /// The array of an npy file.
    Array(Array),
    /// The arrays of another file, by their names, and its metadata: texts for safetensors, values of all kinds for
    /// GGUF, nothing for npz.
    Arrays(BTreeMap<String, Array>, BTreeMap<String, Value>),
}

impl Loaded {
    /// The array of an npy file.
    ///
    /// # Errors
    /// The file holds arrays by names.
    pub fn into_array(self) -> Result<Array> {
        match self {
            Self::Array(array) => Ok(array),
            Self::Arrays(arrays, _) => {
                let names: Vec<&String> = arrays.keys().take(5).collect();
                let message = format!(
                    "the file holds {} arrays with names, among them {names:?}: into_arrays or get",
                    arrays.len()
                );
                Err(Error::new(ErrorKind::Invalid, message))
            }
        }
    }

    /// The arrays by their names.
    ///
    /// # Errors
    /// The file is an npy file, which holds one array without a name.
    pub fn into_arrays(self) -> Result<BTreeMap<String, Array>> {
        match self {
            Self::Array(_) => Err(unnamed()),
            Self::Arrays(arrays, _) => Ok(arrays),
        }
    }

    /// An array by its name.
    ///
    /// # Errors
    /// There is no array of this name, or the file is an npy file.
    pub fn get(&self, name: &str) -> Result<&Array> {
        match self {
            Self::Array(_) => Err(unnamed()),
            Self::Arrays(arrays, _) => arrays.get(name).ok_or_else(|| {
                Error::new(
                    ErrorKind::Invalid,
                    format!("the file has no array {name:?}"),
                )
            }),
        }
    }

    /// A value of the metadata. `None` if there is no such key.
    pub fn metadata(&self, key: &str) -> Option<&Value> {
        match self {
            Self::Array(_) => None,
            Self::Arrays(_, metadata) => metadata.get(key),
        }
    }
}

fn unnamed() -> Error {
    Error::new(
        ErrorKind::Invalid,
        "an npy file holds one array without a name: into_array",
    )
}

/// Reads a file of any format that MLX loads: npy, npz, safetensors or GGUF. The format is decided by the ending of the
/// name, and by the first bytes if the ending is another.
///
/// On the CPU back end plain arrays refer to the mapped file: see [`Safetensors::open`](crate::Safetensors::open).
/// [`Npz`], [`Safetensors`] and [`Gguf`] read single arrays of a file.
///
/// ```
/// use mlx_core::{DType, arange, load, save, save_safetensors};
///
/// # fn main() -> mlx_core::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = |name: &str| folder.path().join(name);
/// let a = arange(0.0, 4.0, 1.0, DType::I32)?;
/// save(path("a.npy"), &a)?;
/// assert_eq!(load(path("a.npy"))?.into_array()?.to_vec::<i32>()?, [0, 1, 2, 3]);
/// save_safetensors(path("w.safetensors"), &[("a", &a)])?;
/// let file = load(path("w.safetensors"))?;
/// assert_eq!(file.get("a")?.shape(), [4]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The path is no ordinary file, it cannot be read, is of none of the formats, or does not follow
/// its format; or MLX does not have the type of its elements. The message names the file, and the
/// array.
pub fn load(path: impl AsRef<Path>) -> Result<Loaded> {
    let path = path.as_ref();
    let ending = path.extension().and_then(|ending| ending.to_str());
    let format = match ending.and_then(Format::of_ending) {
        Some(format) => format,
        None => Format::of_start(path)?,
    };
    let text = |(key, text): (&String, &String)| (key.clone(), Value::Text(text.clone()));
    Ok(match format {
        Format::Npy => {
            let (label, source) = Source::open(path)?;
            let source = Arc::new(source);
            let array = npy::array(&source, 0, source.bytes().len());
            Loaded::Array(array.map_err(|error| error.context(label))?)
        }
        Format::Npz => Loaded::Arrays(Npz::open(path)?.arrays()?, BTreeMap::new()),
        Format::Safetensors => {
            let file = Safetensors::open(path)?;
            Loaded::Arrays(file.arrays()?, file.metadata().iter().map(text).collect())
        }
        Format::Gguf => {
            let file = Gguf::open(path)?;
            Loaded::Arrays(file.arrays()?, file.metadata().clone())
        }
    })
}

#[derive(Clone, Copy)]
enum Format {
    Npy,
    Npz,
    Safetensors,
    Gguf,
}

impl Format {
    fn of_ending(ending: &str) -> Option<Self> {
        Some(match ending {
            "npy" => Self::Npy,
            "npz" => Self::Npz,
            "safetensors" => Self::Safetensors,
            "gguf" => Self::Gguf,
            _ => return None,
        })
    }

    /// The format by the first bytes of a file.
    fn of_start(path: &Path) -> Result<Self> {
        let read = || {
            let mut start = Vec::new();
            let file = super::open_io(path, u64::MAX)?;
            file.take(9).read_to_end(&mut start)?;
            Ok(start)
        };
        let start =
            read().map_err(|error: std::io::Error| Error::from(error).context(path.display()))?;
        match &start[..] {
            [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => Ok(Self::Npy),
            [b'P', b'K', 3 | 5, 4 | 6, ..] => Ok(Self::Npz),
            [b'G', b'G', b'U', b'F', ..] => Ok(Self::Gguf),
            // The length of a header comes before it.
            [.., b'{'] if start.len() == 9 => Ok(Self::Safetensors),
            _ => {
                let message = format!(
                    "{}: its name and its first bytes are of no format that is read: npy, npz, safetensors, gguf",
                    path.display()
                );
                Err(Error::new(ErrorKind::Format, message))
            }
        }
    }
}
