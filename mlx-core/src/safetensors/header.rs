//! The header of a safetensors file, checked against the format.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use crate::dtype::DType;

/// The limit of the reference implementation.
pub(super) const MAX_BYTES: usize = 100_000_000;
/// More dimensions than this are refused.
const MAX_NDIM: usize = 32;

/// Position, dtype and shape of a tensor.
pub(super) struct Tensor {
    pub(super) dtype: DType,
    /// The name of the dtype in the file.
    pub(super) stored: &'static str,
    pub(super) shape: Vec<i32>,
    /// The range of its bytes, from the start of the file.
    pub(super) start: usize,
    pub(super) end: usize,
}

/// A valid header: every tensor's range is inside the file and as large as its shape says.
pub(super) struct Header {
    pub(super) tensors: BTreeMap<String, Tensor>,
    pub(super) metadata: BTreeMap<String, String>,
}

/// The dtypes of the format, and the dtypes that hold them here. Types of fewer than eight bits, which
/// pack several elements into a byte, are not supported.
const DTYPES: [(&str, DType); 19] = [
    ("BOOL", DType::Bool),
    ("U8", DType::U8),
    ("I8", DType::I8),
    ("F8_E4M3", DType::U8),
    ("F8_E5M2", DType::U8),
    ("F8_E8M0", DType::U8),
    ("F8_E4M3FNUZ", DType::U8),
    ("F8_E5M2FNUZ", DType::U8),
    ("U16", DType::U16),
    ("I16", DType::I16),
    ("F16", DType::F16),
    ("BF16", DType::BF16),
    ("U32", DType::U32),
    ("I32", DType::I32),
    ("F32", DType::F32),
    ("U64", DType::U64),
    ("I64", DType::I64),
    ("F64", DType::F64),
    ("C64", DType::C64),
];

#[derive(Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The JSON object with its repeated keys.
#[derive(Default)]
struct Raw {
    tensors: Vec<(String, RawTensor)>,
    metadata: Option<Vec<(String, String)>>,
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Raw;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
                let mut raw = Raw::default();
                while let Some(key) = map.next_key::<String>()? {
                    let inside = |error: A::Error| A::Error::custom(format!("{key:?}: {error}"));
                    if key != "__metadata__" {
                        let tensor = map.next_value().map_err(inside)?;
                        raw.tensors.push((key, tensor));
                    } else if raw.metadata.is_none() {
                        // MLX's own writer puts null if there is no metadata.
                        let pairs: Option<Pairs> = map.next_value().map_err(inside)?;
                        raw.metadata = Some(pairs.map_or_else(Vec::new, |Pairs(pairs)| pairs));
                    } else {
                        return Err(A::Error::custom("__metadata__ is given twice"));
                    }
                }
                Ok(raw)
            }
        }

        deserializer.deserialize_map(Object)
    }
}

/// A JSON object of texts with its repeated keys.
struct Pairs(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_map(Object)
    }
}

impl Header {
    /// Reads the header of a whole file.
    pub(super) fn parse(file: &[u8]) -> Result<Self, String> {
        let Some((length, rest)) = file.split_first_chunk::<8>() else {
            return Err(format!(
                "{} bytes are too few for a safetensors file",
                file.len()
            ));
        };
        let length = u64::from_le_bytes(*length);
        let json = match usize::try_from(length) {
            Ok(length) if length > MAX_BYTES => {
                return Err(format!(
                    "header of {length} bytes exceeds the limit of {MAX_BYTES}"
                ));
            }
            Ok(length) => rest.get(..length),
            Err(_) => None,
        };
        let Some(json) = json else {
            return Err(format!(
                "header of {length} bytes exceeds the file of {} bytes",
                file.len()
            ));
        };
        if json.first() != Some(&b'{') {
            return Err("header does not begin with '{'".into());
        }
        let raw: Raw = serde_json::from_slice(json).map_err(|error| format!("header: {error}"))?;

        let begin = 8 + json.len();
        let mut metadata = BTreeMap::new();
        for (key, value) in raw.metadata.unwrap_or_default() {
            if let Some((key, _)) = metadata.get_key_value(&key) {
                return Err(format!("metadata {key:?} is given twice"));
            }
            metadata.insert(key, value);
        }
        let mut tensors = BTreeMap::new();
        for (name, raw) in raw.tensors {
            let tensor = check(&raw, begin, file.len())
                .map_err(|what| format!("tensor {name:?}: {what}"))?;
            if tensors.contains_key(&name) {
                return Err(format!("tensor {name:?} is given twice"));
            }
            tensors.insert(name, tensor);
        }
        check_cover(&tensors, begin, file.len())?;
        Ok(Self { tensors, metadata })
    }
}

fn check(raw: &RawTensor, begin: usize, end: usize) -> Result<Tensor, String> {
    let Some(&(stored, dtype)) = DTYPES.iter().find(|(name, _)| *name == raw.dtype) else {
        let known: Vec<&str> = DTYPES.iter().map(|(name, _)| *name).collect();
        return Err(format!(
            "dtype {:?} is not supported; supported: {}",
            raw.dtype,
            known.join(", ")
        ));
    };
    if raw.shape.len() > MAX_NDIM {
        return Err(format!(
            "{} dimensions, at most {MAX_NDIM} are supported",
            raw.shape.len()
        ));
    }
    let too_large = || format!("shape {:?} is too large", raw.shape);
    let shape = raw
        .shape
        .iter()
        .map(|&size| i32::try_from(size))
        .collect::<Result<Vec<_>, _>>();
    let shape = shape.map_err(|_| too_large())?;
    let bytes = raw
        .shape
        .iter()
        .try_fold(dtype.size() as u64, |bytes, &size| bytes.checked_mul(size))
        .ok_or_else(too_large)?;

    let (first, last) = raw.data_offsets;
    let room = (end - begin) as u64;
    if first > last || last > room {
        return Err(format!(
            "data_offsets [{first}, {last}] are outside the data of {room} bytes"
        ));
    }
    if last - first != bytes {
        let (dtype, shape, found) = (stored, &raw.shape, last - first);
        return Err(format!(
            "{dtype} of shape {shape:?} takes {bytes} bytes, data_offsets give {found}"
        ));
    }
    // Both fit a usize: they are at most the length of the file, which is in memory.
    let (start, end) = (begin + first as usize, begin + last as usize);
    Ok(Tensor {
        dtype,
        stored,
        shape,
        start,
        end,
    })
}

/// The format requires that the tensors cover the data exactly: no hole, no overlap, nothing after the end.
fn check_cover(tensors: &BTreeMap<String, Tensor>, begin: usize, end: usize) -> Result<(), String> {
    let mut order: Vec<(&String, &Tensor)> = tensors.iter().collect();
    order.sort_by_key(|(_, tensor)| (tensor.start, tensor.end));
    let mut next = begin;
    for (name, tensor) in order {
        if tensor.start != next {
            let what = if tensor.start < next {
                "overlaps the tensor before it"
            } else {
                "leaves a hole before it"
            };
            let (found, expected) = (tensor.start - begin, next - begin);
            return Err(format!(
                "tensor {name:?} {what}: begins at {found}, expected {expected}"
            ));
        }
        next = tensor.end;
    }
    if next != end {
        let (found, expected) = (next - begin, end - begin);
        return Err(format!(
            "tensors end at {found}, but there are {expected} bytes of data"
        ));
    }
    Ok(())
}
