//! Weights that are scaled by their inputs (AWQ, Lin et al., arXiv:2306.00978): a channel with large inputs is multiplied
//! by a factor before rounding, and what makes the inputs is divided by it; then the ranges of groups are cut where that
//! lowers the error.
//!
//! Errors are those of the outputs of matrices on the examples, which the moments of the inputs give. mlx-lm runs the
//! block in place of that, and takes the mean magnitude of inputs where this has their root mean square.

use std::collections::{BTreeMap, BTreeSet};

use mlx_core::ops::quantize::quantize_with;
use mlx_core::{Array, DType, Scheme};
use mlx_models::Model;
use mlx_nn::{Param, Path, Visit, VisitMut, Weight};

use super::{Dense, Matrices, Schemes, divergence, embeddings, log_probs, rounded, weight};
use crate::batch::{Batch, Example};
use crate::error::{Error, ErrorKind, Result};

/// The number of exponents that are tried, and of the parts of a range.
const GRID: u32 = 20;
/// The largest divergence, in nats a token, of a scaled model in F32 from the model.
const EXACT: f64 = 1e-5;
/// The same in 16 bits, to which scaled weights are rounded.
const EXACT_16: f64 = 0.01;

/// What makes the inputs of some matrices.
enum Source {
    /// The weight of a norm.
    Norm(String),
    /// The rows of a matrix.
    Rows(String),
}

/// Matrices with the same input.
struct Channels {
    source: Source,
    readers: Vec<String>,
}

/// Scales the channels of the attention's and the MLP's inputs, where a layer has the names of Llama: `input_layernorm`
/// before `self_attn.{q,k,v}_proj`, `post_attention_layernorm` or `pre_feedforward_layernorm` before `mlp.{gate,up}_proj`,
/// `mlp.up_proj` before `mlp.down_proj`. The model computes the same as before, which is checked on an example. Returns
/// the number of groups of matrices that were scaled, and what they were.
///
/// # Errors
/// No layer has these names, or the scaled model computes something else; then the model is unchanged.
pub fn scale(
    model: &mut dyn Model,
    schemes: &Schemes,
    moments: &BTreeMap<String, Array>,
    examples: &[Example],
) -> Result<(usize, Unscaled)> {
    let dense = Dense::of(model, schemes.keys())?;
    let groups = channels(model, &dense, moments)?;
    if groups.is_empty() {
        let message = "AWQ knows no layer of this model; known are layers with input_layernorm, self_attn.q_proj, \
                       k_proj and v_proj, post_attention_layernorm or pre_feedforward_layernorm, mlp.gate_proj, \
                       up_proj and down_proj";
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let factors: Vec<Array> = groups
        .iter()
        .map(|group| best(group, &dense, schemes, moments))
        .collect::<Result<_>>()?;
    let example = examples.iter().find(|example| example.learnt() > 0);
    let example = example.ok_or_else(|| {
        let message = "no example has anything to learn from";
        Error::new(ErrorKind::Argument, message)
    })?;
    let batch = Batch::new([[example]])?;
    let before = log_probs(model, &batch)?;
    before.eval()?;
    let mut kept = Unscaled(BTreeMap::new());
    model.visit(&mut Path::default(), &mut kept)?;
    // Some architectures store the weight of a norm less 1.
    let mut found = Vec::new();
    for offset in [0.0, 1.0] {
        model.visit_mut(
            &mut Path::default(),
            &mut Apply::new(&groups, &factors, offset),
        )?;
        let distance = divergence(model, &batch, &before)?.item::<f32>()?;
        found.push((f64::from(distance).abs() / batch.weight, offset));
        kept.restore(model)?;
    }
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (distance, offset) = found[0];
    let allowed = if kept.is_wide() { EXACT } else { EXACT_16 };
    if distance > allowed || distance.is_nan() {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "AWQ: this architecture uses its norms in another way than Llama's or Gemma's: the scaled model is \
                 {distance} nats a token from the model"
            ),
        ));
    }
    model.visit_mut(
        &mut Path::default(),
        &mut Apply::new(&groups, &factors, offset),
    )?;
    Ok((groups.len(), kept))
}

/// The matrices at the paths of `schemes`, with the ranges of their groups cut where that lowers the error. Queries, keys,
/// embeddings and matrices without [`moments`](super::moments) are rounded, as in mlx-lm. The model is unchanged.
///
/// # Errors
/// A path is no dense matrix of the model, or a scheme does not fit its shape.
pub fn pack(
    model: &dyn Model,
    schemes: &Schemes,
    moments: &BTreeMap<String, Array>,
) -> Result<Matrices> {
    let dense = Dense::of(model, schemes.keys())?;
    let tables = embeddings(model)?;
    let packed = dense.0.iter().map(|(path, array)| {
        let is_whole = tables.contains(path)
            || path.ends_with(".q_proj")
            || path.ends_with(".k_proj")
            || array.ndim() != 2;
        let scheme = schemes[path];
        let array = match moments.get(path).filter(|_| !is_whole) {
            Some(moments) => clipped(array, moments, scheme)?,
            None => array.clone(),
        };
        let parts = quantize_with(&array, scheme).map_err(|error| error.context(path))?;
        Ok((path.clone(), weight(parts, scheme)?))
    });
    packed.collect()
}

/// The groups of matrices of all layers with known names.
fn channels(
    model: &dyn Model,
    dense: &Dense,
    moments: &BTreeMap<String, Array>,
) -> Result<Vec<Channels>> {
    struct Names(BTreeSet<String>);
    impl Visit for Names {
        fn param(&mut self, path: &Path, _param: &Param) -> mlx_core::Result<()> {
            self.0.insert(path.as_str().to_owned());
            Ok(())
        }
    }
    let mut names = Names(BTreeSet::new());
    model.visit(&mut Path::default(), &mut names)?;
    let norm = |prefix: &str, known: &[&str]| {
        let mut paths = known.iter().map(|name| format!("{prefix}.{name}.weight"));
        paths.find(|path| names.0.contains(path))
    };
    let known = |paths: Vec<String>| {
        let is_known = |path: &String| {
            dense.0.get(path).is_some_and(|array| array.ndim() == 2) && moments.contains_key(path)
        };
        paths.iter().all(is_known).then_some(paths)
    };
    let mut all = Vec::new();
    for path in dense.0.keys() {
        let of = |prefix: &str, module: &str, ends: &[&str]| {
            let path = |end: &&str| format!("{prefix}.{module}.{end}_proj");
            known(ends.iter().map(path).collect())
        };
        if let Some(prefix) = path.strip_suffix(".self_attn.q_proj") {
            let norm = norm(prefix, &["input_layernorm"]);
            if let (Some(norm), Some(readers)) = (norm, of(prefix, "self_attn", &["q", "k", "v"])) {
                let source = Source::Norm(norm);
                all.push(Channels { source, readers });
            }
        } else if let Some(prefix) = path.strip_suffix(".mlp.down_proj") {
            let before = norm(
                prefix,
                &["pre_feedforward_layernorm", "post_attention_layernorm"],
            );
            let Some(readers) = of(prefix, "mlp", &["gate", "up"]) else {
                continue;
            };
            if let Some(norm) = before {
                let source = Source::Norm(norm);
                all.push(Channels { source, readers });
            }
            if let Some(readers) = of(prefix, "mlp", &["down"]) {
                let source = Source::Rows(format!("{prefix}.mlp.up_proj"));
                all.push(Channels { source, readers });
            }
        }
    }
    Ok(all)
}

/// The factors of the channels, F32 `[in]`, with which the outputs have the smallest error.
fn best(
    group: &Channels,
    dense: &Dense,
    schemes: &Schemes,
    moments: &BTreeMap<String, Array>,
) -> Result<Array> {
    let moments = &moments[&group.readers[0]];
    let mean = moments.diagonal()?.sqrt()?;
    let (mut lowest, mut chosen) = (f32::INFINITY, None);
    for step in 0..GRID {
        let factors = mean.power(step as f32 / GRID as f32)?.maximum(1e-4)?;
        let ends = factors.max_all()?.multiply(factors.min_all()?)?.sqrt()?;
        let factors = factors.divide(ends)?;
        let mut sum = 0.0;
        for path in &group.readers {
            let array = dense.0[path].astype(DType::F32)?;
            let rounded = rounded(&array.multiply(&factors)?, schemes[path], DType::F32)?;
            let off = rounded.divide(&factors)?.subtract(&array)?;
            let error = off.matmul(moments)?.multiply(&off)?.sum(.., false)?;
            sum += error.item::<f32>()?;
        }
        if sum < lowest {
            factors.eval()?;
            (lowest, chosen) = (sum, Some(factors));
        }
    }
    chosen.ok_or_else(|| {
        let path = &group.readers[0];
        let message = format!("{path}: its inputs are not finite numbers");
        Error::new(ErrorKind::Argument, message)
    })
}

/// The matrix `[out, in]` with the range of each group cut to the part that gives its outputs the smallest error.
fn clipped(array: &Array, moments: &Array, scheme: Scheme) -> Result<Array> {
    let [rows, inputs] = array.dims()?;
    let group = scheme.group_size;
    let count = inputs / group;
    // The moments of each group: [count, group, group].
    let blocks: Vec<Array> = (0..count)
        .map(|at| {
            let rows = moments.slice_axis(0, at * group, (at + 1) * group)?;
            rows.slice_axis(1, at * group, (at + 1) * group)
        })
        .collect::<mlx_core::Result<_>>()?;
    let blocks = mlx_core::ops::stack(&blocks, 0)?;
    let wide = array.astype(DType::F32)?;
    let groups = wide.reshape(&[rows, count, group])?;
    let largest = groups.abs()?.max(-1, true)?;
    let (mut lowest, mut found) = (None::<Array>, groups.clone());
    for step in 0..GRID / 2 {
        let limit = largest.multiply(1.0 - step as f32 / GRID as f32)?;
        let cut = groups.minimum(&limit)?.maximum(limit.negative()?)?;
        let rounded = rounded(&cut.reshape(&[rows, inputs])?, scheme, DType::F32)?;
        let off = rounded.reshape(&[rows, count, group])?.subtract(&groups)?;
        let off = off.swapaxes(0, 1)?;
        let error = off.matmul(&blocks)?.multiply(&off)?.sum(-1, false)?;
        let error = error.t()?.expand_dims(-1)?; // [rows, count, 1]
        (lowest, found) = match lowest {
            None => (Some(error), cut),
            Some(lowest) => {
                let is_better = error.less(&lowest)?;
                let found = is_better.select(&cut, &found)?;
                (Some(is_better.select(&error, &lowest)?), found)
            }
        };
        mlx_core::eval(lowest.iter().chain([&found]))?;
    }
    Ok(found.reshape(&[rows, inputs])?.astype(array.dtype())?)
}

/// Multiplies the columns of readers by factors, and divides what makes their inputs.
struct Apply<'a> {
    columns: BTreeMap<&'a str, &'a Array>,
    rows: BTreeMap<&'a str, &'a Array>,
    norms: BTreeMap<&'a str, &'a Array>,
    offset: f32,
}

impl<'a> Apply<'a> {
    fn new(groups: &'a [Channels], factors: &'a [Array], offset: f32) -> Self {
        let mut apply = Self {
            columns: BTreeMap::new(),
            rows: BTreeMap::new(),
            norms: BTreeMap::new(),
            offset,
        };
        for (group, factors) in groups.iter().zip(factors) {
            for path in &group.readers {
                apply.columns.insert(path, factors);
            }
            match &group.source {
                Source::Norm(path) => apply.norms.insert(path, factors),
                Source::Rows(path) => apply.rows.insert(path, factors),
            };
        }
        apply
    }
}

impl VisitMut for Apply<'_> {
    fn weight(&mut self, path: &Path, weight: &mut Weight) -> mlx_core::Result<()> {
        let Weight::Dense(dense) = weight else {
            return Ok(());
        };
        let mut array = dense.value().astype(DType::F32)?;
        let (columns, rows) = (
            self.columns.get(path.as_str()),
            self.rows.get(path.as_str()),
        );
        if columns.is_none() && rows.is_none() {
            return Ok(());
        }
        if let Some(factors) = columns {
            array = array.multiply(*factors)?;
        }
        if let Some(factors) = rows {
            array = array.divide(factors.expand_dims(-1)?)?;
        }
        let array = array.astype(dense.value().dtype())?;
        array.eval()?;
        dense.set(array);
        Ok(())
    }

    fn param(&mut self, path: &Path, param: &mut Param) -> mlx_core::Result<()> {
        // A bias of `up_proj` is divided as its rows are.
        let row = path.as_str().strip_suffix(".bias");
        let row = row.and_then(|path| self.rows.get(path));
        let norm = self.norms.get(path.as_str());
        let (factors, offset) = match (norm, row) {
            (Some(factors), _) => (factors, self.offset),
            (None, Some(factors)) => (factors, 0.0),
            (None, None) => return Ok(()),
        };
        let wide = param.value().astype(DType::F32)?.add(offset)?;
        let new = wide.divide(*factors)?.subtract(offset)?;
        let new = new.astype(param.value().dtype())?;
        new.eval()?;
        param.set(new);
        Ok(())
    }
}

/// The parameters of a model before its channels were scaled.
pub struct Unscaled(BTreeMap<String, Array>);

impl Unscaled {
    /// Gives the model, which is dense, its parameters back.
    ///
    /// # Errors
    /// An array that the model derives from its parameters cannot be made.
    pub fn restore(&self, model: &mut dyn Model) -> Result<()> {
        Ok(model.visit_mut(&mut Path::default(), &mut Restore(&self.0))?)
    }

    fn is_wide(&self) -> bool {
        let is_narrow = |array: &Array| matches!(array.dtype(), DType::F16 | DType::BF16);
        !self.0.values().any(is_narrow)
    }
}

impl Visit for Unscaled {
    fn param(&mut self, path: &Path, param: &Param) -> mlx_core::Result<()> {
        let value = param.value().clone();
        self.0.insert(path.as_str().to_owned(), value);
        Ok(())
    }
}

struct Restore<'a>(&'a BTreeMap<String, Array>);

impl VisitMut for Restore<'_> {
    fn param(&mut self, path: &Path, param: &mut Param) -> mlx_core::Result<()> {
        if let Some(value) = self.0.get(path.as_str()) {
            param.set(value.clone());
        }
        Ok(())
    }
}
