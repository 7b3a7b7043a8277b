//! The tensors of a model in GGUF as those of a checkpoint.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use mlx_core::gguf::{Gguf, TensorType};
use mlx_core::{Array, DType, Error, ErrorKind, QuantMode, Result, Scheme};
use mlx_nn::{Decoded, Made};
use serde_json::{Map, Value, json};

use super::architectures::{Architecture, LAYER, OUTSIDE};
use super::config::{HEADS, in_layer};

/// Tensors that [`Metadata`](super::config::Metadata) reads, or that have no effect.
const NOT_PARAMETERS: [&str; 4] = [
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
    // The inverse frequencies of older files.
    "attn_rot_embd",
];

/// More heads than any model has.
const MOST_HEADS: i32 = 1 << 20;

const EMBEDDING: &str = "model.embed_tokens.";

/// A tensor of a file, and the parameter that it becomes.
pub(super) struct Tensor {
    file: Rc<Gguf>,
    /// Its name in the file.
    name: String,
    /// The name of the parameter, with `.weight` or `.bias`.
    parameter: String,
    kind: TensorType,
    /// The shape in the file.
    shape: Vec<i32>,
    /// The rows that the parameter has; `None` for all.
    rows: Option<(i32, i32)>,
    change: Change,
}

/// What the converter of llama.cpp did to a tensor, and is undone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    /// The rows of this many heads are in the order of rope over neighbours.
    Rotated(i32),
    /// 1 was added.
    PlusOne,
    /// The matrix of one row became a vector.
    Row,
    /// An axis of length 1 before the last was removed.
    Axis,
}

/// The tensors of all files, under the names of parameters.
///
/// # Errors
/// A tensor is not one of the architecture's.
pub(super) fn named(
    files: &[Rc<Gguf>],
    architecture: &'static Architecture,
    config: &Map<String, Value>,
) -> Result<Vec<Tensor>> {
    let naming = Naming::of(files, architecture, config);
    let (mut tensors, mut known) = (Vec::new(), HashSet::new());
    for file in files {
        for name in file.names().filter(|name| naming.is_parameter(name)) {
            for tensor in naming.tensors(file, name)? {
                tensor.check()?;
                if !known.insert(tensor.parameter.clone()) {
                    let what = format!("{} is also in another file", tensor.parameter);
                    return Err(tensor.error(ErrorKind::Format, what));
                }
                tensors.push(tensor);
            }
        }
    }
    Ok(tensors)
}

/// How the tensors of a model become parameters.
struct Naming {
    architecture: &'static Architecture,
    /// Query heads and KV heads.
    queries: Option<i32>,
    keys: Option<i32>,
    /// The rows of q, k and v.
    rows: [i32; 3],
    /// The first layer that is a head for multi-token prediction, if there are any.
    first_head: Option<usize>,
    /// Whether layers have a second norm before attention.
    paired: bool,
}

impl Naming {
    fn of(
        files: &[Rc<Gguf>],
        architecture: &'static Architecture,
        config: &Map<String, Value>,
    ) -> Self {
        let number = |key: &str| {
            let number = config.get(key).and_then(Value::as_i64);
            number.and_then(|number| i32::try_from(number).ok())
        };
        let queries = number("num_attention_heads");
        let keys = number("num_key_value_heads").or(queries);
        let head_dim = number("head_dim").or(match (number("hidden_size"), queries) {
            (Some(hidden), Some(queries)) if queries > 0 => Some(hidden / queries),
            _ => None,
        });
        let rows = match (queries, keys, head_dim) {
            (Some(queries), Some(keys), Some(dim)) => {
                [queries, keys, keys].map(|heads| heads.saturating_mul(dim))
            }
            _ => [0; 3],
        };
        let first_head = number("num_hidden_layers").filter(|_| config.contains_key(HEADS));
        let mut files = files.iter();
        Self {
            architecture,
            queries,
            keys,
            rows,
            first_head: first_head.and_then(|layer| usize::try_from(layer).ok()),
            paired: files.any(|file| file.contains("blk.0.attn_norm_2.weight")),
        }
    }

    fn is_parameter(&self, name: &str) -> bool {
        let (layer, part) = match in_layer(name) {
            Some((layer, part)) => (Some(layer), part),
            None => (None, name),
        };
        let is_head = self.first_head.is_some() && layer >= self.first_head;
        !is_head && !NOT_PARAMETERS.iter().any(|other| part.starts_with(other))
    }

    /// The parameters of a tensor: one, or q, k and v.
    fn tensors(&self, file: &Rc<Gguf>, name: &str) -> Result<Vec<Tensor>> {
        let (kind, shape) = file.info(name)?;
        let part = in_layer(name).map_or(name, |(_, part)| part);
        let tensor = |of: &str, rows| -> Result<Tensor> {
            let parameter = parameter(of, self.architecture, self.paired).ok_or_else(|| {
                let message = format!(
                    "{}: tensor {name:?} is not known in a model of architecture {}",
                    file.label(),
                    self.architecture.name
                );
                Error::new(ErrorKind::Unsupported, message)
            })?;
            Ok(Tensor {
                file: Rc::clone(file),
                name: name.to_owned(),
                parameter,
                kind,
                shape: shape.to_vec(),
                rows,
                change: self.change(part, shape),
            })
        };
        if !(self.architecture.splits_qkv && part.starts_with("attn_qkv.")) {
            return Ok(vec![tensor(name, None)?]);
        }
        let (mut start, mut tensors) = (0i32, Vec::new());
        for (rows, to) in self.rows.into_iter().zip(["attn_q.", "attn_k.", "attn_v."]) {
            let stop = start.saturating_add(rows);
            tensors.push(tensor(&name.replace("attn_qkv.", to), Some((start, stop)))?);
            start = stop;
        }
        if shape.first() != Some(&start) {
            let what = format!("{shape:?} rows of q, k and v, expected {start}");
            return Err(tensors[0].error(ErrorKind::Format, what));
        }
        Ok(tensors)
    }

    /// What the converter of llama.cpp has done to a tensor.
    fn change(&self, part: &str, shape: &[i32]) -> Change {
        let row = self.architecture;
        match (part.split('.').next(), self.queries, self.keys) {
            (Some("attn_q"), Some(heads), _) if row.rotated => Change::Rotated(heads),
            (Some("attn_k"), _, Some(heads)) if row.rotated => Change::Rotated(heads),
            (Some("ffn_gate_inp_shexp"), ..) if shape.len() == 1 => Change::Row,
            _ if part == "shortconv.conv.weight" => Change::Axis,
            _ if row.unit_norms && part.ends_with("norm.weight") => Change::PlusOne,
            _ => Change::None,
        }
    }
}

/// The parameter of a tensor. `paired` tells that layers have a second norm before attention.
fn parameter(name: &str, architecture: &Architecture, paired: bool) -> Option<String> {
    let find = |part: &str, table: &'static [(&'static str, &'static str)]| {
        let mut rows = architecture.names.iter().chain(table);
        rows.find(|(from, _)| *from == part).map(|(_, to)| *to)
    };
    let Some((layer, part)) = in_layer(name) else {
        let (stem, ending) = name.rsplit_once('.')?;
        return Some(format!("{}.{ending}", find(stem, OUTSIDE)?));
    };
    // A parameter with a name of its own.
    if let Some(own) = find(part, &[]) {
        return Some(format!("model.layers.{layer}.{own}"));
    }
    let (stem, ending) = part.rsplit_once('.')?;
    let to = match paired
        .then(|| find(&format!("{stem} beside {stem}_2"), LAYER))
        .flatten()
    {
        Some(to) => to,
        None => find(stem, LAYER)?,
    };
    // Biases of routers have no module.
    let ending = match to.ends_with("_bias") {
        true => String::new(),
        false => format!(".{ending}"),
    };
    Some(format!("model.layers.{layer}.{to}{ending}"))
}

impl Tensor {
    /// The scheme in which it stays packed.
    fn scheme(&self) -> Option<Scheme> {
        let scheme = self.kind.scheme();
        // Rows of other modes are BF16, and would make the model's dtype BF16.
        let is_embedding = self.parameter.starts_with(EMBEDDING);
        scheme.filter(|scheme| scheme.mode == QuantMode::Affine || !is_embedding)
    }

    /// The name of the module, for a matrix.
    fn module(&self) -> &str {
        self.parameter
            .strip_suffix(".weight")
            .unwrap_or(&self.parameter)
    }

    fn elements(&self) -> u64 {
        self.shape.iter().map(|&size| size as u64).product()
    }

    fn check(&self) -> Result<()> {
        if let Change::Rotated(heads) = self.change {
            let rows = self.shape.first().copied().unwrap_or(0);
            if !(1..=MOST_HEADS).contains(&heads) || rows % (2 * heads) != 0 {
                return Err(self.error(
                    ErrorKind::Format,
                    format!("{rows} rows are not those of {heads} heads"),
                ));
            }
        }
        if self.kind.dtype().is_none() && !self.kind.is_decoded() {
            let known = TensorType::ALL.iter().filter(|kind| kind.is_decoded());
            let known: Vec<&str> = known.map(|kind| kind.name()).collect();
            return Err(self.error(
                ErrorKind::Unsupported,
                format!(
                    "type {} is not supported; supported: {}",
                    self.kind,
                    known.join(", ")
                ),
            ));
        }
        if self.kind.dtype().is_some_and(|dtype| !dtype.is_float()) {
            return Err(self.error(
                ErrorKind::Unsupported,
                format!("weights of type {} are not supported", self.kind),
            ));
        }
        Ok(())
    }

    fn error(&self, kind: ErrorKind, what: String) -> Error {
        let message = format!("{}: tensor {:?}: {what}", self.file.label(), self.name);
        Error::new(kind, message)
    }

    /// The shape of the parameter whose last axis has `columns`.
    fn shape_with(&self, columns: i32) -> Vec<i32> {
        let mut shape = self.shape.clone();
        if let (Some((start, stop)), Some(rows)) = (self.rows, shape.first_mut()) {
            *rows = stop - start;
        }
        if let (Some(last), true) = (
            shape.last_mut(),
            self.shape.len() > 1 || self.rows.is_none(),
        ) {
            *last = columns;
        }
        match self.change {
            Change::Row => vec![1, columns],
            Change::Axis => {
                shape.insert(shape.len() - 1, 1);
                shape
            }
            _ => shape,
        }
    }

    /// The array with the converter's change undone.
    fn undone(&self, array: Array) -> Result<Array> {
        let array = match self.rows {
            Some((start, stop)) => array.slice_axis(0, start, stop)?.contiguous()?,
            None => array,
        };
        let shape = array.shape().to_vec();
        match self.change {
            Change::None => Ok(array),
            Change::PlusOne => array.astype(DType::F32)?.subtract(1.0f32),
            Change::Row => array.reshape(&[1, shape[0]]),
            Change::Axis => array.expand_dims(-2),
            Change::Rotated(heads) => {
                let parts = [&[heads, shape[0] / heads / 2, 2], &shape[1..]].concat();
                array.reshape(&parts)?.swapaxes(1, 2)?.reshape(&shape)
            }
        }
    }

    /// The arrays of the parameter.
    fn made(self: Rc<Self>, model: DType, made: &mut Vec<Made>) {
        let columns = self.shape.last().copied().unwrap_or(1);
        let Some(scheme) = self.scheme() else {
            let tensor = Rc::clone(&self);
            let dtype = match self.kind.dtype() {
                Some(dtype) if self.change != Change::PlusOne => dtype,
                Some(_) => DType::F32,
                None => model,
            };
            made.push(Made {
                name: self.parameter.clone(),
                of: Vec::new(),
                dtype,
                shape: self.shape_with(columns),
                keeps: false,
                make: Box::new(move |_| {
                    let values = tensor.undone(tensor.file.expanded(&tensor.name)?)?;
                    if tensor.kind.dtype().is_some() || dtype == DType::F32 {
                        return Ok(values);
                    }
                    // The F32 values of one tensor at a time.
                    let values = values.astype(dtype)?;
                    values.eval()?;
                    Ok(values)
                }),
            });
            return;
        };
        let stem = self.module().to_owned();
        let cache: Rc<RefCell<Vec<Option<Array>>>> = Rc::default();
        let groups = columns / scheme.group_size;
        let (scales, has_biases) = match scheme.mode {
            QuantMode::Affine => (DType::F32, true),
            _ => (DType::U8, false),
        };
        let parts = [
            (
                self.parameter.clone(),
                DType::U32,
                (i64::from(columns) * i64::from(scheme.bits) / 32) as i32,
            ),
            (format!("{stem}.scales"), scales, groups),
            (format!("{stem}.biases"), scales, groups),
        ];
        for (at, (name, dtype, columns)) in parts.into_iter().enumerate() {
            if at == 2 && !has_biases {
                continue;
            }
            let (tensor, cache) = (Rc::clone(&self), Rc::clone(&cache));
            made.push(Made {
                name,
                of: Vec::new(),
                dtype,
                shape: self.shape_with(columns),
                keeps: false,
                make: Box::new(move |_| tensor.part(&cache, at)),
            });
        }
    }

    /// Part `at` of the packed matrix: codes, scales or biases. All parts are made at the first call, and each is given
    /// once; a later call makes them again.
    fn part(&self, cache: &RefCell<Vec<Option<Array>>>, at: usize) -> Result<Array> {
        let mut cache = cache.borrow_mut();
        if let Some(found) = cache.get_mut(at).and_then(Option::take) {
            return Ok(found);
        }
        let repacked = self.file.repacked(&self.name)?;
        *cache = vec![
            Some(self.undone(repacked.packed)?),
            Some(self.undone(repacked.scales)?),
            repacked
                .biases
                .map(|biases| self.undone(biases))
                .transpose()?,
        ];
        cache
            .get_mut(at)
            .and_then(Option::take)
            .ok_or_else(|| self.error(ErrorKind::Format, "its scheme has no such part".to_owned()))
    }
}

/// The scheme of most packed weights, and the entry of config.json with all schemes.
pub(super) fn quantization(tensors: &[Tensor]) -> Option<Value> {
    let mut counts: BTreeMap<(i32, i32, bool), (u64, Scheme)> = BTreeMap::new();
    for tensor in tensors {
        if let Some(scheme) = tensor.scheme() {
            let key = (
                scheme.bits,
                scheme.group_size,
                scheme.mode == QuantMode::Affine,
            );
            counts.entry(key).or_insert((0, scheme)).0 += tensor.elements();
        }
    }
    let &(_, usual) = counts.values().max_by_key(|(elements, _)| *elements)?;
    let entry = |scheme: Scheme| json!({"group_size": scheme.group_size, "bits": scheme.bits, "mode": scheme.mode.name()});
    let mut all = entry(usual);
    for tensor in tensors {
        if let Some(scheme) = tensor.scheme().filter(|&scheme| scheme != usual) {
            all[tensor.module()] = entry(scheme);
        }
    }
    Some(all)
}

/// The dtype that a model has unless another is asked for: BF16 if its matrices are BF16, else F32.
///
/// Scales of K-quants have no shorter exact form, and F16 activations overflow in Gemma.
pub(super) fn dtype(tensors: &[Tensor]) -> DType {
    let matrices = tensors.iter().filter(|tensor| tensor.shape.len() > 1);
    let mut kinds = matrices
        .map(|tensor| tensor.kind)
        .filter(|&kind| kind != TensorType::F32);
    match (kinds.next(), kinds.all(|kind| kind == TensorType::BF16)) {
        (Some(TensorType::BF16), true) => DType::BF16,
        _ => DType::F32,
    }
}

/// The types of all matrices, for users: `Q4_K, Q6_K`.
pub(super) fn described(tensors: &[Tensor]) -> String {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for tensor in tensors.iter().filter(|tensor| tensor.shape.len() > 1) {
        *counts.entry(tensor.kind.name()).or_default() += tensor.elements();
    }
    let mut kinds: Vec<_> = counts.into_iter().collect();
    kinds.sort_by_key(|&(_, elements)| std::cmp::Reverse(elements));
    let kinds: Vec<&str> = kinds.into_iter().map(|(kind, _)| kind).collect();
    format!("GGUF, {}", kinds.join(", "))
}

/// The tensors as parameters of a checkpoint of this dtype.
///
/// # Errors
/// Blocks of a type have no packed form, and `expand` is false.
pub(super) fn decoded(
    tensors: Vec<Tensor>,
    label: &str,
    dtype: DType,
    expand: bool,
) -> Result<Decoded> {
    let is_wide = |tensor: &&Tensor| tensor.kind.dtype().is_none() && tensor.scheme().is_none();
    let wide: Vec<&Tensor> = tensors.iter().filter(is_wide).collect();
    if !wide.is_empty() && !expand {
        let mut kinds: Vec<&str> = wide.iter().map(|tensor| tensor.kind.name()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let elements: u64 = wide.iter().map(|tensor| tensor.elements()).sum();
        let stored: u64 = wide.iter().map(|tensor| tensor.bytes()).sum();
        let packed = TensorType::ALL
            .iter()
            .filter(|kind| kind.scheme().is_some());
        let packed: Vec<&str> = packed.map(|kind| kind.name()).collect();
        let message = format!(
            "{label}: {} of {} tensors are {}, which no packed form of MLX holds exactly; as dense {} they have {} bytes \
             instead of {stored}: ask for it (--expand), or use a file whose types are {}",
            wide.len(),
            tensors.len(),
            kinds.join(", "),
            dtype,
            elements * dtype.size() as u64,
            packed.join(", "),
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let mut made = Vec::new();
    for tensor in tensors {
        Rc::new(tensor).made(dtype, &mut made);
    }
    Ok(Decoded {
        made,
        ..Decoded::default()
    })
}

impl Tensor {
    /// The bytes in the file.
    fn bytes(&self) -> u64 {
        self.elements() / self.kind.block() as u64 * self.kind.block_bytes() as u64
    }
}
