//! The header of a safetensors file, checked against the format.
//!
//! The crate `safetensors` keeps the last of several entries with one name and forgets the order.
//! Only a test uses it, as the reference, so programs need three fewer crates.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

use crate::dtype::DType;

/// The limit of the reference implementation.
const MAX_BYTES: usize = 100_000_000;
/// The key that is not a tensor.
const METADATA: &str = "__metadata__";
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

/// A valid header: every tensor's range is inside the file and has the size that its shape gives.
pub(super) struct Header {
    pub(super) tensors: BTreeMap<String, Tensor>,
    pub(super) metadata: BTreeMap<String, String>,
}

/// The dtypes of the format, their names, and the dtypes that hold them here. Types of fewer than eight bits, which
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

fn unsupported(dtype: &str) -> String {
    let known: Vec<&str> = DTYPES.iter().map(|(name, _)| *name).collect();
    format!(
        "dtype {dtype:?} is not supported; supported: {}",
        known.join(", ")
    )
}

/// The entry of a tensor.
#[derive(Serialize, Deserialize)]
struct TensorInfo {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

/// The JSON object with its repeated keys.
#[derive(Default)]
struct RawHeader {
    tensors: Vec<(String, TensorInfo)>,
    metadata: Option<Vec<(String, String)>>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut raw = RawHeader::default();
                while let Some(key) = map.next_key::<String>()? {
                    let inside = |error: A::Error| A::Error::custom(format!("{key:?}: {error}"));
                    if key != METADATA {
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
        let raw: RawHeader =
            serde_json::from_slice(json).map_err(|error| format!("header: {error}"))?;

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

fn check(raw: &TensorInfo, begin: usize, end: usize) -> Result<Tensor, String> {
    let Some(&(stored, dtype)) = DTYPES.iter().find(|(known, _)| *known == raw.dtype) else {
        return Err(unsupported(&raw.dtype));
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
        .try_fold(dtype.size(), |bytes, &size| bytes.checked_mul(size))
        .ok_or_else(too_large)?;

    let (first, last) = raw.data_offsets;
    let room = end - begin;
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
    Ok(Tensor {
        dtype,
        stored,
        shape,
        start: begin + first,
        end: begin + last,
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

/// Name, dtype and shape of a tensor to be written.
pub(super) type TensorSpec<'a> = (&'a str, DType, &'a [i32]);

/// Bytes of a tensor.
pub(super) fn nbytes(dtype: DType, shape: &[i32]) -> usize {
    shape.iter().map(|&n| n as usize).product::<usize>() * dtype.size()
}

/// The entries to write, in their order.
struct Listing<'a> {
    metadata: &'a BTreeMap<String, String>,
    tensors: Vec<(&'a str, TensorInfo)>,
}

impl Serialize for Listing<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.metadata.is_empty() {
            map.serialize_entry(METADATA, self.metadata)?;
        }
        for (name, tensor) in &self.tensors {
            map.serialize_entry(name, tensor)?;
        }
        map.end()
    }
}

/// The header of a file with these tensors, one after the other, padded to a multiple of eight bytes, so that the data
/// can be used in place.
///
/// # Errors
/// A name is given twice or reserved, or the header is larger than the format allows.
pub(super) fn write(
    tensors: &[TensorSpec<'_>],
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>, String> {
    let mut names = HashSet::new();
    let mut listing = Listing {
        metadata,
        tensors: Vec::with_capacity(tensors.len()),
    };
    let mut offset = 0;
    for &(name, dtype, shape) in tensors {
        if name == METADATA {
            return Err(format!("tensor name {name:?} is reserved"));
        }
        if !names.insert(name) {
            return Err(format!("tensor name {name:?} is given twice"));
        }
        let end = offset + nbytes(dtype, shape);
        let info = TensorInfo {
            dtype: dtype.name().to_owned(),
            shape: shape.iter().map(|&size| size as usize).collect(),
            data_offsets: (offset, end),
        };
        listing.tensors.push((name, info));
        offset = end;
    }
    let mut header = serde_json::to_vec(&listing).map_err(|error| error.to_string())?;
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() > MAX_BYTES {
        return Err(format!(
            "header of {} bytes exceeds the limit of {MAX_BYTES}",
            header.len()
        ));
    }
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dtypes_have_the_names_of_the_format() {
        use safetensors::Dtype;

        for (name, held) in DTYPES {
            let dtype: Dtype = serde_json::from_value(name.into()).unwrap();
            assert_eq!(dtype.bitsize(), 8 * held.size(), "{name}");
        }
        for dtype in DType::ALL {
            assert!(DTYPES.contains(&(dtype.name(), dtype)));
        }
    }
}
