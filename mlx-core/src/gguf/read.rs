//! The part of a GGUF file before its tensors, checked against the format.

use std::collections::BTreeMap;

use super::value::{LIST, List, Value};
use super::{Tensor, TensorType};

pub(super) const MAGIC: &[u8] = b"GGUF";
/// The version that is written.
pub(super) const VERSION: u32 = 3;
/// The key that sets where tensors may begin.
pub(super) const ALIGNMENT_KEY: &str = "general.alignment";
pub(super) const ALIGNMENT: usize = 32;
/// More dimensions than this are refused, as in MLX.
pub(super) const MOST_DIMENSIONS: usize = 8;
/// Lists in lists that are deeper than this are refused.
pub(super) const MOST_DEPTH: usize = 4;

type Parts = (BTreeMap<String, Value>, BTreeMap<String, Tensor>);

/// Metadata and tensors of a whole file.
pub(super) fn parse(file: &[u8]) -> Result<Parts, String> {
    let mut rest = Rest { file, at: 0 };
    if rest.take(4)? != MAGIC {
        return Err("not a GGUF file: it does not begin with \"GGUF\"".into());
    }
    let version = rest.number::<u32>()?;
    if !(2..=VERSION).contains(&version) {
        if (2..=VERSION).contains(&version.swap_bytes()) {
            return Err("big-endian GGUF files are not supported".into());
        }
        return Err(format!(
            "version {version} of GGUF is not supported; supported: 2, {VERSION}"
        ));
    }
    let (tensor_count, key_count) = (rest.number::<u64>()?, rest.number::<u64>()?);

    let mut metadata = BTreeMap::new();
    for i in 0..key_count {
        let key = rest
            .text()
            .map_err(|what| format!("key {i} of {key_count}: {what}"))?;
        let value = rest
            .number()
            .and_then(|kind| rest.value(kind))
            .map_err(|what| format!("key {key:?}: {what}"))?;
        if metadata.contains_key(&key) {
            return Err(format!("key {key:?} is given twice"));
        }
        metadata.insert(key, value);
    }
    let alignment = alignment(&metadata)?;

    let mut infos = Vec::new();
    for i in 0..tensor_count {
        let name = rest
            .text()
            .map_err(|what| format!("tensor {i} of {tensor_count}: {what}"))?;
        let info = rest
            .info()
            .map_err(|what| format!("tensor {name:?}: {what}"))?;
        infos.push((name, info));
    }
    let begin = rest.at.next_multiple_of(alignment);
    let mut tensors = BTreeMap::new();
    for (name, info) in infos {
        let tensor = info
            .tensor(begin, alignment, file.len())
            .map_err(|what| format!("tensor {name:?}: {what}"))?;
        if tensors.contains_key(&name) {
            return Err(format!("tensor {name:?} is given twice"));
        }
        tensors.insert(name, tensor);
    }
    check_overlap(&tensors)?;
    Ok((metadata, tensors))
}

fn alignment(metadata: &BTreeMap<String, Value>) -> Result<usize, String> {
    match metadata.get(ALIGNMENT_KEY) {
        None => Ok(ALIGNMENT),
        Some(&Value::U32(bytes)) if bytes.is_power_of_two() && bytes <= 1 << 20 => {
            Ok(bytes as usize)
        }
        Some(other) => Err(format!(
            "key {ALIGNMENT_KEY:?} must be a power of two of type U32, found {other}"
        )),
    }
}

fn check_overlap(tensors: &BTreeMap<String, Tensor>) -> Result<(), String> {
    let mut order: Vec<(&String, &Tensor)> = tensors
        .iter()
        .filter(|(_, tensor)| !tensor.range.is_empty())
        .collect();
    order.sort_by_key(|(_, tensor)| tensor.range.start);
    for pair in order.windows(2) {
        let [(before, first), (name, second)] = [pair[0], pair[1]];
        if second.range.start < first.range.end {
            return Err(format!("tensor {name:?} overlaps tensor {before:?}"));
        }
    }
    Ok(())
}

/// A tensor, as the file describes it.
struct Info {
    kind: TensorType,
    /// The slowest axis first.
    shape: Vec<u64>,
    offset: u64,
}

impl Info {
    fn tensor(self, begin: usize, alignment: usize, end: usize) -> Result<Tensor, String> {
        let Self {
            kind,
            shape,
            offset,
        } = self;
        let too_large = || format!("shape {shape:?} is too large");
        let sizes: Result<Vec<i32>, _> = shape.iter().map(|&size| i32::try_from(size)).collect();
        let sizes = sizes.map_err(|_| too_large())?;
        let row = sizes.last().map_or(1, |&size| size as usize);
        if !row.is_multiple_of(kind.block()) {
            return Err(format!(
                "rows of {row} elements do not divide into the blocks of {kind}, which have {}",
                kind.block()
            ));
        }
        let elements = sizes
            .iter()
            .try_fold(1usize, |product, &size| product.checked_mul(size as usize));
        let bytes = elements
            .and_then(|elements| (elements / kind.block()).checked_mul(kind.block_bytes()))
            .ok_or_else(too_large)?;
        if offset % alignment as u64 != 0 {
            return Err(format!(
                "offset {offset} is not a multiple of the alignment, {alignment}"
            ));
        }
        let range = usize::try_from(offset)
            .ok()
            .and_then(|offset| begin.checked_add(offset))
            .and_then(|start| Some(start..start.checked_add(bytes)?))
            .filter(|range| range.end <= end);
        let range = range.ok_or_else(|| {
            let room = end.saturating_sub(begin);
            format!("{bytes} bytes at {offset} are outside the data of {room} bytes")
        })?;
        Ok(Tensor {
            kind,
            shape: sizes,
            range,
        })
    }
}

/// The part of a file that is not read yet.
struct Rest<'a> {
    file: &'a [u8],
    at: usize,
}

/// A number of fixed size.
trait Number: Sized {
    const SIZE: usize;
    fn of(bytes: &[u8]) -> Self;
}

macro_rules! numbers {
    ($($ty:ty),*) => { $( impl Number for $ty {
        const SIZE: usize = size_of::<$ty>();
        fn of(bytes: &[u8]) -> Self {
            let mut array = [0; size_of::<$ty>()];
            array.copy_from_slice(bytes);
            <$ty>::from_le_bytes(array)
        }
    } )* };
}
numbers!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

impl<'a> Rest<'a> {
    fn left(&self) -> usize {
        self.file.len() - self.at
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let (at, left) = (self.at, self.left());
        if len > left {
            return Err(format!(
                "{len} bytes at {at} reach beyond the file of {} bytes",
                self.file.len()
            ));
        }
        self.at += len;
        Ok(&self.file[at..at + len])
    }

    fn number<T: Number>(&mut self) -> Result<T, String> {
        self.take(T::SIZE).map(T::of)
    }

    /// Reads the number of elements that follow, of at least `size` bytes each. Fails if the rest
    /// of the file is too short for them.
    fn count(&mut self, size: usize) -> Result<usize, String> {
        let count = self.number::<u64>()?;
        let most = self.left() / size;
        match usize::try_from(count) {
            Ok(count) if count <= most => Ok(count),
            _ => Err(format!(
                "{count} elements of at least {size} bytes exceed the {} bytes that follow",
                self.left()
            )),
        }
    }

    fn text(&mut self) -> Result<String, String> {
        let len = self.count(1)?;
        let bytes = self.take(len)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => {
                let start = &bytes[..len.min(40)];
                Err(format!("text \"{}\" is not UTF-8", start.escape_ascii()))
            }
        }
    }

    fn boolean(&mut self) -> Result<bool, String> {
        match self.number::<u8>()? {
            0 => Ok(false),
            1 => Ok(true),
            byte => Err(format!("byte {byte} where Bool has 0 and 1")),
        }
    }

    fn value(&mut self, kind: u32) -> Result<Value, String> {
        Ok(match kind {
            0 => Value::U8(self.number()?),
            1 => Value::I8(self.number()?),
            2 => Value::U16(self.number()?),
            3 => Value::I16(self.number()?),
            4 => Value::U32(self.number()?),
            5 => Value::I32(self.number()?),
            6 => Value::F32(self.number()?),
            7 => Value::Bool(self.boolean()?),
            8 => Value::Text(self.text()?),
            LIST => Value::List(self.list(1)?),
            10 => Value::U64(self.number()?),
            11 => Value::I64(self.number()?),
            12 => Value::F64(self.number()?),
            _ => return Err(unknown(kind)),
        })
    }

    fn list(&mut self, depth: usize) -> Result<List, String> {
        let kind = self.number::<u32>()?;
        Ok(match kind {
            0 => List::U8(self.numbers()?),
            1 => List::I8(self.numbers()?),
            2 => List::U16(self.numbers()?),
            3 => List::I16(self.numbers()?),
            4 => List::U32(self.numbers()?),
            5 => List::I32(self.numbers()?),
            6 => List::F32(self.numbers()?),
            7 => List::Bool(self.repeat(1, Self::boolean)?),
            8 => List::Text(self.repeat(8, Self::text)?),
            LIST if depth == MOST_DEPTH => {
                return Err(format!("lists are nested deeper than {MOST_DEPTH}"));
            }
            LIST => List::Lists(self.repeat(12, |rest| rest.list(depth + 1))?),
            10 => List::U64(self.numbers()?),
            11 => List::I64(self.numbers()?),
            12 => List::F64(self.numbers()?),
            _ => return Err(unknown(kind)),
        })
    }

    fn numbers<T: Number>(&mut self) -> Result<Vec<T>, String> {
        let count = self.count(T::SIZE)?;
        let bytes = self.take(count * T::SIZE)?;
        Ok(bytes.chunks_exact(T::SIZE).map(T::of).collect())
    }

    /// Reads a count and as many elements, of at least `size` bytes each.
    fn repeat<T>(
        &mut self,
        size: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        let count = self.count(size)?;
        (0..count)
            .map(|i| read(self).map_err(|what| format!("element {i}: {what}")))
            .collect()
    }

    fn info(&mut self) -> Result<Info, String> {
        let ndim = self.number::<u32>()? as usize;
        if ndim > MOST_DIMENSIONS {
            return Err(format!(
                "{ndim} dimensions, at most {MOST_DIMENSIONS} are supported"
            ));
        }
        let mut shape = (0..ndim)
            .map(|_| self.number())
            .collect::<Result<Vec<u64>, _>>()?;
        shape.reverse();
        let number = self.number::<u32>()?;
        let kind = TensorType::from_number(number).ok_or_else(|| {
            let known: Vec<&str> = TensorType::ALL.iter().map(|kind| kind.name()).collect();
            let known = known.join(", ");
            format!("type {number} is not supported; known: {known}")
        })?;
        Ok(Info {
            kind,
            shape,
            offset: self.number()?,
        })
    }
}

fn unknown(kind: u32) -> String {
    format!("a value of type {kind}; GGUF has the types 0 to 12")
}
