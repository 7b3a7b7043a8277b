//! The format of MLX's exported functions.
//!
//! Numbers are little-endian; a list is its length in 64 bits and its elements. A file is a version, the number of
//! functions, whether they hold for all shapes, a text, and the functions. A function is the names of its named inputs,
//! the ids, shapes and dtypes of all inputs, the ids of its outputs, and its nodes. A node is an operation with its
//! inputs and state, a constant, or an input.

use std::collections::HashMap;

use super::operations::{self, Operation};
use crate::dtype::DType;

/// More dimensions than this are refused.
const MOST_DIMENSIONS: usize = 32;

/// A whole file.
pub(super) struct File {
    pub(super) shapeless: bool,
    pub(super) metadata: String,
    pub(super) functions: Vec<StoredFunction>,
}

/// A function for inputs of some shapes and dtypes.
pub(super) struct StoredFunction {
    /// The names of the last inputs, in order.
    pub(super) names: Vec<String>,
    pub(super) inputs: Vec<Stated>,
    /// The places of the outputs among the values.
    pub(super) outputs: Vec<usize>,
    /// The values are the inputs, and the results of the nodes in order.
    pub(super) nodes: Vec<StoredNode>,
}

/// The shape and dtype that a file states.
#[derive(Clone, Debug)]
pub(super) struct Stated {
    pub(super) shape: Vec<i32>,
    pub(super) dtype: DType,
}

pub(super) enum StoredNode {
    /// A constant, and the position of its bytes in the file.
    Constant(Stated, usize),
    Operation {
        name: String,
        run: Operation,
        inputs: Vec<usize>,
        outputs: Vec<Stated>,
    },
}

/// The part of a file that is not read yet.
pub(super) struct Rest<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Reads a file. Every length is inside it, and every id is that of an earlier value.
pub(super) fn parse(bytes: &[u8]) -> Result<File, String> {
    let mut rest = Rest { bytes, at: 0 };
    let version = rest
        .text()
        .ok()
        .filter(|version| version.starts_with(|c: char| c.is_ascii_digit()))
        .ok_or("not an exported function: it does not begin with a version of MLX")?;
    let count = rest.i32()?;
    let shapeless = rest.boolean()?;
    let metadata = rest.text()?;
    let count = usize::try_from(count).map_err(|_| format!("{count} functions"))?;
    let mut functions = Vec::new();
    let mut constants = HashMap::new();
    for i in 0..count {
        let function = function(&mut rest, &mut constants).map_err(|what| {
            format!("function {i} of {count} (written by MLX {version}): {what}")
        })?;
        functions.push(function);
    }
    if rest.at != bytes.len() {
        let left = bytes.len() - rest.at;
        return Err(format!("{left} bytes follow the last function"));
    }
    Ok(File {
        shapeless,
        metadata,
        functions,
    })
}

type Constants = HashMap<u64, (Stated, usize)>;

fn function(rest: &mut Rest<'_>, constants: &mut Constants) -> Result<StoredFunction, String> {
    let names = rest.list(8, Rest::text)?;
    let ids = rest.list(8, Rest::u64)?;
    let inputs = rest.list(8, Rest::stated)?;
    if ids.len() != inputs.len() || names.len() > inputs.len() {
        return Err(format!(
            "{} inputs have {} ids and {} names",
            inputs.len(),
            ids.len(),
            names.len()
        ));
    }
    let output_ids = rest.list(8, Rest::u64)?;
    let mut places: HashMap<u64, usize> = HashMap::new();
    for (place, &id) in ids.iter().enumerate() {
        if places.insert(id, place).is_some() {
            return Err(format!("two inputs have the id {id}"));
        }
    }
    let mut values = inputs.len();
    let mut nodes = Vec::new();
    let count = rest.count(9)?;
    for i in 0..count {
        let at = |what: String| format!("node {i} of {count}: {what}");
        let (node, ids) = node(rest, &places, constants).map_err(at)?;
        let Some(node) = node else {
            continue;
        };
        for id in ids {
            if places.insert(id, values).is_some() {
                return Err(at(format!("two values have the id {id}")));
            }
            values += 1;
        }
        nodes.push(node);
    }
    let place = |id: &u64| places.get(id).copied().ok_or(format!("no output {id}"));
    let outputs = output_ids.iter().map(place).collect::<Result<_, _>>()?;
    Ok(StoredFunction {
        names,
        inputs,
        outputs,
        nodes,
    })
}

/// A node and the ids of its results. `None` for an input.
fn node(
    rest: &mut Rest<'_>,
    places: &HashMap<u64, usize>,
    constants: &mut Constants,
) -> Result<(Option<StoredNode>, Vec<u64>), String> {
    let id = rest.u64()?;
    if !rest.boolean()? {
        if !rest.boolean()? {
            return match places.contains_key(&id) {
                true => Ok((None, Vec::new())),
                false => Err(format!("no input has the id {id}")),
            };
        }
        let (stated, at) = match constants.get(&id) {
            Some(known) => known.clone(),
            None => {
                let stated = rest.stated()?;
                let size = stated.nbytes()?;
                let at = rest.at;
                rest.take(size)?;
                constants.insert(id, (stated.clone(), at));
                (stated, at)
            }
        };
        return Ok((Some(StoredNode::Constant(stated, at)), vec![id]));
    }
    let inputs = rest.list(8, Rest::u64)?;
    let inputs = inputs.iter().map(|id| {
        let place = places.get(id).copied();
        place.ok_or(format!("its input {id} is no earlier value"))
    });
    let inputs: Vec<usize> = inputs.collect::<Result<_, _>>()?;
    // The stream's number, kind of device and number of device: calls use the current stream.
    for _ in 0..3 {
        rest.i32()?;
    }
    let name = rest.text()?;
    let run = operations::read(&name, rest).map_err(|what| format!("{name}: {what}"))?;
    let (ids, outputs) = match rest.u64()? {
        0 => (vec![id], vec![rest.stated()?]),
        _ => {
            let ids = rest.list(8, Rest::u64)?;
            let shapes = rest.list(8, Rest::shape)?;
            let dtypes = rest.list(5, Rest::dtype)?;
            if ids.len() != shapes.len() || ids.len() != dtypes.len() || !ids.contains(&id) {
                return Err(format!("{name}: its outputs do not fit together"));
            }
            let stated = shapes.into_iter().zip(dtypes);
            let stated = stated.map(|(shape, dtype)| Stated { shape, dtype });
            (ids, stated.collect())
        }
    };
    let node = StoredNode::Operation {
        name,
        run,
        inputs,
        outputs,
    };
    Ok((Some(node), ids))
}

impl Stated {
    fn nbytes(&self) -> Result<usize, String> {
        let sizes = self.shape.iter().map(|&size| size as usize);
        let mut sizes = sizes.chain([self.dtype.size()]);
        sizes
            .try_fold(1usize, usize::checked_mul)
            .ok_or_else(|| format!("shape {:?} is too large", self.shape))
    }
}

impl<'a> Rest<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(len);
        let found = end.and_then(|end| self.bytes.get(self.at..end));
        let found = found.ok_or_else(|| {
            let (at, all) = (self.at, self.bytes.len());
            format!("{len} bytes at {at} reach beyond the file of {all} bytes")
        })?;
        self.at += len;
        Ok(found)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let bytes = self.take(N)?;
        Ok(std::array::from_fn(|i| bytes[i]))
    }

    pub(super) fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn i64(&mut self) -> Result<i64, String> {
        self.array().map(i64::from_le_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32, String> {
        self.array().map(i32::from_le_bytes)
    }

    pub(super) fn f32(&mut self) -> Result<f32, String> {
        self.array().map(f32::from_le_bytes)
    }

    pub(super) fn f64(&mut self) -> Result<f64, String> {
        self.array().map(f64::from_le_bytes)
    }

    pub(super) fn boolean(&mut self) -> Result<bool, String> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [byte] => Err(format!("byte {byte} where a truth value has 0 and 1")),
        }
    }

    /// One of several names, by its number.
    pub(super) fn choice<T: Copy>(&mut self, of: &[T]) -> Result<T, String> {
        let number = self.i32()?;
        let found = usize::try_from(number).ok().and_then(|i| of.get(i));
        found.copied().ok_or_else(|| {
            let count = of.len();
            format!("kind {number}, of kinds 0 to {}", count - 1)
        })
    }

    /// Reads the number of elements that follow, of at least `size` bytes each. Fails if the rest
    /// of the file is too short for them.
    fn count(&mut self, size: usize) -> Result<usize, String> {
        let count = self.u64()?;
        let left = self.bytes.len() - self.at;
        match usize::try_from(count) {
            Ok(count) if count <= left / size => Ok(count),
            _ => Err(format!(
                "{count} elements of at least {size} bytes exceed the {left} bytes that follow"
            )),
        }
    }

    pub(super) fn list<T>(
        &mut self,
        size: usize,
        read: impl Fn(&mut Self) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        let count = self.count(size)?;
        (0..count).map(|_| read(self)).collect()
    }

    pub(super) fn ints(&mut self) -> Result<Vec<i32>, String> {
        self.list(4, Self::i32)
    }

    pub(super) fn longs(&mut self) -> Result<Vec<i64>, String> {
        self.list(8, Self::i64)
    }

    fn text(&mut self) -> Result<String, String> {
        let len = self.count(1)?;
        let bytes = self.take(len)?;
        let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
        Ok(text.to_owned())
    }

    pub(super) fn shape(&mut self) -> Result<Vec<i32>, String> {
        let shape = self.ints()?;
        if shape.len() > MOST_DIMENSIONS || shape.iter().any(|&size| size < 0) {
            let start = &shape[..shape.len().min(8)];
            return Err(format!("{} dimensions {start:?} are no shape", shape.len()));
        }
        Ok(shape)
    }

    pub(super) fn dtype(&mut self) -> Result<DType, String> {
        let number = self.i32()?;
        let [size] = self.array()?;
        let found = usize::try_from(number).ok().and_then(|i| DType::ALL.get(i));
        match found {
            Some(dtype) if dtype.size() == usize::from(size) => Ok(*dtype),
            _ => Err(format!("no dtype has the number {number} and {size} bytes")),
        }
    }

    pub(super) fn stated(&mut self) -> Result<Stated, String> {
        let stated = Stated {
            shape: self.shape()?,
            dtype: self.dtype()?,
        };
        stated.nbytes()?;
        Ok(stated)
    }
}
