//! A segment as the bytes of a safetensors file, and a chain of segments as those of a whole prefix.
//!
//! Tensors are those of a [prompt cache](crate::engine::prompt_cache), except that keys and values
//! of layers that keep all positions have those from `start` on. `tokens` has the whole prefix. The
//! metadata name the model, and the parent by its key. All is done on bytes, so that no thread but
//! the engine's has arrays of the model.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::folder::FileName;
use super::index::Segment;
use crate::engine::prompt_cache::file::{BEYOND_SWITCH, RECORDED, TOKENS, WRITTEN, lengths};

const FORMAT: &str = "mlx-infer prefix";
const VERSION: &str = "1";
/// The dtypes of layer states.
const SIZES: [(&str, usize); 4] = [("F32", 4), ("U32", 4), ("BF16", 2), ("F16", 2)];

/// A tensor. Where it grows, axis 2 of its four counts positions, and all of them are there.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tensor<'a> {
    pub(super) dtype: String,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Cow<'a, [u8]>,
}

/// A tensor whose bytes are in several places.
struct Pieces<'a> {
    dtype: &'a str,
    shape: Vec<usize>,
    bytes: Vec<&'a [u8]>,
}

impl Pieces<'_> {
    fn len(&self) -> usize {
        self.bytes.iter().map(|part| part.len()).sum()
    }
}

type Tensors<'a> = BTreeMap<String, Tensor<'a>>;
type Metadata = BTreeMap<String, String>;

impl Tensor<'_> {
    /// Bytes of one position of one head.
    fn width(&self) -> Option<usize> {
        let [1, heads, slots, _] = self.shape[..] else {
            return None;
        };
        let parts = heads.checked_mul(slots)?;
        (parts > 0 && self.bytes.len().is_multiple_of(parts)).then(|| self.bytes.len() / parts)
    }

    /// The positions from `start` on.
    pub(super) fn positions_from(&self, start: usize) -> Option<Tensor<'static>> {
        let (width, slots) = (self.width()?, self.shape[2]);
        if start >= slots {
            return None;
        }
        let mut bytes = Vec::with_capacity(self.bytes.len() / slots * (slots - start));
        for head in self.bytes.chunks_exact(width * slots) {
            bytes.extend_from_slice(&head[width * start..]);
        }
        let mut shape = self.shape.clone();
        shape[2] = slots - start;
        Some(Tensor {
            dtype: self.dtype.clone(),
            shape,
            bytes: bytes.into(),
        })
    }

    /// All of it.
    fn pieces(&self) -> Pieces<'_> {
        Pieces {
            dtype: &self.dtype,
            shape: self.shape.clone(),
            bytes: vec![&self.bytes],
        }
    }

    /// The positions of all parts, one after the other.
    fn joined<'t>(parts: &[&'t Tensor<'_>]) -> Option<Pieces<'t>> {
        let (first, rest) = parts.split_first()?;
        let width = first.width()?;
        let fits = |part: &&Tensor<'_>| {
            part.dtype == first.dtype
                && part.width() == Some(width)
                && part.shape[1] == first.shape[1]
                && part.shape[3] == first.shape[3]
        };
        if !rest.iter().all(fits) {
            return None;
        }
        let mut bytes = Vec::with_capacity(first.shape[1] * parts.len());
        for head in 0..first.shape[1] {
            for part in parts {
                let len = width * part.shape[2];
                bytes.push(&part.bytes[head * len..][..len]);
            }
        }
        let mut shape = first.shape.clone();
        shape[2] = parts.iter().map(|part| part.shape[2]).sum();
        Some(Pieces {
            dtype: &first.dtype,
            shape,
            bytes,
        })
    }

    fn of_tokens(ids: &[u32]) -> Tensor<'static> {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        Tensor {
            dtype: "U32".to_owned(),
            shape: vec![ids.len()],
            bytes: bytes.into(),
        }
    }
}

/// The description of a prefix.
pub(super) struct Facts<'a> {
    pub(super) model: u64,
    pub(super) ids: &'a [u32],
    pub(super) start: usize,
    pub(super) parent: Option<u64>,
    pub(super) is_long: bool,
    pub(super) written: usize,
    pub(super) recorded: &'a [usize],
}

/// The bytes of a segment with these tensors.
pub(super) fn file(facts: &Facts<'_>, mut tensors: Tensors<'_>) -> Arc<[u8]> {
    let mut metadata = state_metadata(facts.is_long, facts.written, facts.recorded);
    let own = [
        ("format", FORMAT.to_owned()),
        ("format_version", VERSION.to_owned()),
        ("model", format!("{:016x}", facts.model)),
        ("start", facts.start.to_string()),
    ];
    metadata.extend(own.map(|(key, value)| (key.to_owned(), value)));
    if let Some(parent) = facts.parent {
        metadata.insert("parent".to_owned(), format!("{parent:016x}"));
    }
    tensors.insert(TOKENS.to_owned(), Tensor::of_tokens(facts.ids));
    let tensors = tensors.iter();
    let tensors = tensors.map(|(name, tensor)| (name.as_str(), tensor.pieces()));
    image(tensors.collect(), &metadata)
}

/// The metadata that a prompt cache has too.
fn state_metadata(is_long: bool, written: usize, recorded: &[usize]) -> Metadata {
    let mut metadata = Metadata::from([
        (BEYOND_SWITCH.to_owned(), is_long.to_string()),
        (WRITTEN.to_owned(), written.to_string()),
    ]);
    if !recorded.is_empty() {
        let recorded: Vec<String> = recorded.iter().map(usize::to_string).collect();
        metadata.insert(RECORDED.to_owned(), recorded.join(" "));
    }
    metadata
}

/// The segment that the head of a file describes, without its arrays.
///
/// # Errors
/// It is no segment of this model.
pub(super) fn describe(
    name: FileName,
    bytes: u64,
    model: u64,
    metadata: &Metadata,
    ids: Vec<u32>,
) -> Result<Segment, String> {
    let given = |key: &str| metadata.get(key).map(String::as_str);
    let wrong = |key: &str| format!("metadata: {key} is {:?}", given(key).unwrap_or("missing"));
    let same = |key: &str, own: &str| match given(key) {
        Some(found) if found == own => Ok(()),
        _ => Err(wrong(key)),
    };
    same("format", FORMAT)?;
    same("format_version", VERSION)?;
    same("model", &format!("{model:016x}"))?;
    let number = |key: &str| -> Result<usize, String> {
        let number = given(key).and_then(|text| text.parse().ok());
        number.ok_or_else(|| wrong(key))
    };
    let parent = match given("parent") {
        Some(text) => Some(u64::from_str_radix(text, 16).map_err(|_| wrong("parent"))?),
        None => None,
    };
    let is_long = match given(BEYOND_SWITCH) {
        Some("true") => true,
        Some("false") => false,
        _ => return Err(wrong(BEYOND_SWITCH)),
    };
    let recorded =
        lengths(given(RECORDED).unwrap_or_default()).map_err(|error| error.to_string())?;
    let segment = Segment {
        name,
        bytes,
        start: number("start")?,
        parent,
        is_long,
        written: number(WRITTEN)?,
        recorded,
        ids,
    };
    if (segment.start == 0) != segment.parent.is_none() || segment.start >= segment.ids.len() {
        return Err(wrong("start"));
    }
    if super::index::key(&segment.ids, is_long) != name.key {
        return Err("the name is that of other tokens".to_owned());
    }
    Ok(segment)
}

/// The bytes of a file with the whole prefix of a chain, as a prompt cache has it. `files` has the
/// content of each segment's file, and `grows` tells which tensors are divided among segments.
///
/// # Errors
/// The files do not continue each other.
pub(super) fn whole(
    chain: &[Segment],
    files: &[impl AsRef<[u8]>],
    grows: impl Fn(&str) -> bool,
) -> Result<Arc<[u8]>, String> {
    let last = chain.last().ok_or("no segment")?;
    let parts = files
        .iter()
        .map(|bytes| parse(bytes.as_ref()).map(|(tensors, _)| tensors));
    let parts: Vec<Tensors<'_>> = parts.collect::<Result<_, _>>()?;
    let own = parts.last().ok_or("no file")?;
    let mut tensors = Vec::with_capacity(own.len());
    for (name, tensor) in own {
        let tensor = match grows(name) {
            true => {
                let parts: Option<Vec<&Tensor<'_>>> =
                    parts.iter().map(|part| part.get(name)).collect();
                let joined = parts.and_then(|parts| Tensor::joined(&parts));
                joined.ok_or_else(|| format!("tensor {name:?} does not continue"))?
            }
            false => tensor.pieces(),
        };
        tensors.push((name.as_str(), tensor));
    }
    let metadata = state_metadata(last.is_long, last.written, &last.recorded);
    Ok(image(tensors, &metadata))
}

/// A safetensors file in memory. Tensors with large elements come first, so that all are aligned.
fn image(mut tensors: Vec<(&str, Pieces<'_>)>, metadata: &Metadata) -> Arc<[u8]> {
    let size = |dtype: &str| {
        let known = SIZES.iter().find(|(name, _)| *name == dtype);
        known.map_or(1, |&(_, size)| size)
    };
    tensors.sort_by_key(|(name, tensor)| (std::cmp::Reverse(size(tensor.dtype)), *name));
    let (mut header, mut end) = (Map::new(), 0);
    header.insert("__metadata__".to_owned(), json!(metadata));
    for (name, tensor) in &tensors {
        let start = end;
        end += tensor.len();
        let (dtype, shape) = (tensor.dtype, &tensor.shape);
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]});
        header.insert((*name).to_owned(), entry);
    }
    let mut text = Value::from(header).to_string();
    while !text.len().is_multiple_of(8) {
        text.push(' ');
    }
    // Written where arrays can refer to it.
    let mut image = zeros(8 + text.len() + end);
    let mut left = Arc::get_mut(&mut image).expect("nothing else refers to it yet");
    let mut put = |bytes: &[u8]| {
        let (own, rest) = std::mem::take(&mut left).split_at_mut(bytes.len());
        own.copy_from_slice(bytes);
        left = rest;
    };
    put(&(text.len() as u64).to_le_bytes());
    put(text.as_bytes());
    for (_, tensor) in &tensors {
        tensor.bytes.iter().for_each(|part| put(part));
    }
    image
}

/// So many bytes, for arrays. The zeros of the vector take no memory: the system makes its pages when
/// they are written.
pub(super) fn zeros(len: usize) -> Arc<[u8]> {
    vec![0; len].into()
}

/// The tensors and metadata of a file that [`image`] wrote.
fn parse(file: &[u8]) -> Result<(Tensors<'_>, Metadata), String> {
    let malformed = || "the header is malformed".to_owned();
    let (len, rest) = file.split_first_chunk::<8>().ok_or_else(malformed)?;
    let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| malformed())?;
    let (header, data) = rest.split_at_checked(len).ok_or_else(malformed)?;
    let header: Map<String, Value> = serde_json::from_slice(header).map_err(|_| malformed())?;
    let (mut tensors, mut metadata) = (Tensors::new(), Metadata::new());
    for (name, mut entry) in header {
        if name == "__metadata__" {
            metadata = serde_json::from_value(entry).map_err(|_| malformed())?;
            continue;
        }
        let read = |value: Value| serde_json::from_value(value).map_err(|_| malformed());
        let dtype = entry["dtype"].as_str().ok_or_else(malformed)?.to_owned();
        let shape: Vec<usize> = read(entry["shape"].take())?;
        let offsets: Vec<usize> = read(entry["data_offsets"].take())?;
        let [start, end] = offsets[..] else {
            return Err(malformed());
        };
        let bytes = data.get(start..end).ok_or_else(malformed)?.into();
        tensors.insert(
            name,
            Tensor {
                dtype,
                shape,
                bytes,
            },
        );
    }
    Ok((tensors, metadata))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys of `heads` heads: each byte tells its head, position and feature.
    fn keys(heads: usize, from: usize, to: usize) -> Tensor<'static> {
        let bytes = (0..heads).flat_map(|head| {
            (from..to).flat_map(move |at| (0..4).map(move |d| (head * 64 + at * 4 + d) as u8))
        });
        Tensor {
            dtype: "BF16".to_owned(),
            shape: vec![1, heads, to - from, 2],
            bytes: bytes.collect::<Vec<u8>>().into(),
        }
    }

    #[test]
    fn positions_are_divided_and_joined() {
        let whole = keys(3, 0, 10);
        assert_eq!(whole.positions_from(4), Some(keys(3, 4, 10)));
        assert_eq!(whole.positions_from(10), None);
        let parts = [keys(3, 0, 4), keys(3, 4, 5), keys(3, 5, 10)];
        let parts: Vec<&Tensor<'_>> = parts.iter().collect();
        let joined = Tensor::joined(&parts).unwrap();
        assert_eq!((joined.dtype, joined.len()), ("BF16", whole.bytes.len()));
        assert_eq!(
            (joined.shape, joined.bytes.concat()),
            (whole.shape.clone(), whole.bytes.to_vec())
        );
        assert!(Tensor::joined(&[&whole, &keys(2, 0, 4)]).is_none());
        let mut other = keys(3, 0, 4);
        other.dtype = "F16".to_owned();
        assert!(Tensor::joined(&[&whole, &other]).is_none());
    }

    #[test]
    fn a_chain_of_files_is_one_prefix() {
        let ids: Vec<u32> = (0..10).collect();
        let state = Tensor {
            dtype: "F32".to_owned(),
            shape: vec![1, 2],
            bytes: vec![1; 8].into(),
        };
        let facts = |start, len: usize, parent| Facts {
            model: 5,
            ids: &ids[..len],
            start,
            parent,
            is_long: false,
            written: len,
            recorded: &[3],
        };
        let first = super::super::index::key(&ids[..4], false);
        let write = |facts: &Facts<'_>| {
            let mut tensors = Tensors::new();
            tensors.insert("k".to_owned(), keys(2, facts.start, facts.ids.len()));
            tensors.insert("state".to_owned(), state.clone());
            file(facts, tensors)
        };
        let files = [write(&facts(0, 4, None)), write(&facts(4, 10, Some(first)))];
        let segment = |bytes: &[u8], len: usize| {
            let (_, metadata) = parse(bytes).unwrap();
            let key = super::super::index::key(&ids[..len], false);
            let name = FileName { key, sum: 0 };
            describe(name, 0, 5, &metadata, ids[..len].to_vec())
        };
        let chain = [
            segment(&files[0], 4).unwrap(),
            segment(&files[1], 10).unwrap(),
        ];
        assert_eq!((chain[1].start, chain[1].parent), (4, Some(first)));
        let image = whole(&chain, &files, |name| name == "k").unwrap();
        let (tensors, metadata) = parse(&image).unwrap();
        assert_eq!(tensors["k"], keys(2, 0, 10));
        assert_eq!(tensors["state"], state);
        assert_eq!(tensors[TOKENS], Tensor::of_tokens(&ids));
        assert_eq!((&*metadata[WRITTEN], &*metadata[RECORDED]), ("10", "3"));

        // A head that does not fit is refused.
        let (_, good) = parse(&files[1]).unwrap();
        for (key, value) in [
            ("format", "other"),
            ("format_version", "9"),
            ("model", "0000000000000006"),
            ("start", "0"),
            ("start", "10"),
            ("start", "-1"),
            ("written", ""),
            ("recorded", "3 2"),
            ("beyond_switch", "maybe"),
            ("parent", "x"),
        ] {
            let mut metadata = good.clone();
            metadata.insert(key.to_owned(), value.to_owned());
            let name = chain[1].name;
            let found = describe(name, 0, 5, &metadata, ids.clone());
            assert!(found.is_err(), "{key} {value}");
        }
        assert!(describe(chain[0].name, 0, 5, &good, ids.clone()).is_err());
        for len in [0, 7, 12, files[0].len() - 1] {
            assert!(parse(&files[0][..len]).is_err(), "{len}");
        }
    }
}
