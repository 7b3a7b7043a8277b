//! Weights that are scaled by their inputs (AWQ, Lin et al., arXiv:2306.00978): a channel with large inputs is multiplied
//! by a factor before rounding, and what makes the inputs is divided by it; then the ranges of groups are cut where that
//! lowers the error.
//!
//! Factors are compared by the residual stream after the layer, with the matrices of the layer rounded; mlx-lm compares
//! the output of the attention or of the MLP alone. The size of a channel is the mean magnitude of its inputs,
//! as in mlx-lm. Ranges are compared by the outputs of the matrix, which the moments of its inputs give.

use std::collections::{BTreeMap, BTreeSet};

use mlx_core::ops::quantize::quantize_with;
use mlx_core::{Array, DType, Scheme};
use mlx_models::Model;
use mlx_nn::observe::magnitudes;
use mlx_nn::{ModelCache, Param, Path, Visit, VisitMut, Weight};

use super::{Dense, Matrices, Schemes, divergence, embeddings, log_probs, put, rounded, weight};
use crate::batch::{Batch, Example};
use crate::error::{Error, ErrorKind, Result};
use crate::loss::ONE_STEP;
use crate::recompute::layer_of;

/// The number of exponents that are tried, and of the parts of a range.
const GRID: u32 = 20;
/// The number of tokens on which scales are compared.
const TOKENS: usize = 2048;
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
    let factors = search(model, &groups, (&dense, schemes), examples);
    dense.put(model)?;
    let factors = factors?;
    let example = examples.iter().find(|example| example.learnt() > 0);
    let example = example.ok_or_else(|| {
        let message = "no example has anything to learn from";
        Error::new(ErrorKind::Argument, message)
    })?;
    let batch = Batch::new([[example]])?;
    let before = log_probs(model, &batch, 1.0)?;
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
        let after = log_probs(model, &batch, 1.0)?;
        let distance = divergence(&after, &batch, &before)?.item::<f32>()?;
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
    for path in dense.0.keys().filter(|path| layer_of(path).is_some()) {
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
            let Some(both) = of(prefix, "mlp", &["gate", "up"]) else {
                continue;
            };
            // Before the group of `up_proj`, whose rows it divides.
            if let Some(readers) = of(prefix, "mlp", &["down"]) {
                let source = Source::Rows(format!("{prefix}.mlp.up_proj"));
                all.push(Channels { source, readers });
            }
            if let Some(norm) = before {
                let source = Source::Norm(norm);
                let readers = both;
                all.push(Channels { source, readers });
            }
        }
    }
    Ok(all)
}

/// The factors of the channels of each group, F32 `[in]`, with which the residual stream after its layer has the smallest
/// error. The error of a token is divided by the size of its features, because the next norm divides them by it. Leaves
/// other matrices in the model.
fn search(
    model: &mut dyn Model,
    groups: &[Channels],
    (dense, schemes): (&Dense, &Schemes),
    examples: &[Example],
) -> Result<Vec<Array>> {
    let batch = Batch::new(sample(examples).iter().map(|example| [example]))?;
    let rows = batch.rows()?;
    let mut cache = ModelCache::new(model.states(), rows.len(), ONE_STEP);
    let mut step = cache.begin(&rows)?;
    let is_token = batch.weights.reshape(&[1, -1, 1])?;
    let mut found = vec![None; groups.len()];
    // The factors by which rows of matrices will be divided, `[out, 1]`.
    let mut divisors: BTreeMap<&str, Array> = BTreeMap::new();
    let mut x = model.embed(&batch.inputs.reshape(&[1, -1])?)?;
    for layer in 0..model.geometry().layers().len() {
        // A later layer may read what the last run of this one leaves in the step.
        let mut run = |model: &dyn Model| model.layer(layer, x.clone().into(), &mut step)?.sum();
        let (exact, magnitudes) = magnitudes(&*model, || run(&*model))?;
        let exact = exact.astype(DType::F32)?;
        let size = exact.square()?.mean(-1, true)?;
        let weight = is_token.divide(size.maximum(f32::MIN_POSITIVE)?)?;
        mlx_core::eval(magnitudes.values().chain([&exact, &weight]))?;
        for (group, found) in groups.iter().zip(&mut found) {
            if layer_of(&group.readers[0]) != Some(layer) {
                continue;
            }
            let names: Vec<&str> = group.readers.iter().map(String::as_str).collect();
            let (mut lowest, mut kept) = (f32::INFINITY, Vec::new());
            for factors in candidates(&magnitudes[names[0]])? {
                let matrices = names.iter().map(|&name| {
                    let (array, rows) = (&dense.0[name], divisors.get(name));
                    scaled_and_rounded(array, &factors, rows, schemes[name])
                });
                let matrices: Vec<Array> = matrices.collect::<Result<_>>()?;
                put(model, &names, &matrices)?;
                let off = run(model)?.astype(DType::F32)?.subtract(&exact)?;
                let error = off.square()?.multiply(&weight)?.sum(.., false)?;
                let error = error.item::<f32>()?;
                if error < lowest {
                    (lowest, kept, *found) = (error, matrices, Some(factors));
                }
            }
            let Some(factors) = found else {
                let message = format!("{}: its inputs are not finite numbers", names[0]);
                return Err(Error::new(ErrorKind::Argument, message));
            };
            put(model, &names, &kept)?;
            if let Source::Rows(path) = &group.source {
                divisors.insert(path, factors.expand_dims(-1)?);
            }
        }
        dense.put(model)?;
        x = run(model)?;
        x.eval()?;
    }
    Ok(found.into_iter().flatten().collect())
}

/// Powers of the mean magnitude of each channel's inputs, from 1 on.
fn candidates(magnitudes: &Array) -> Result<Vec<Array>> {
    let sizes = magnitudes.divide(magnitudes.max_all()?)?;
    let factors = (0..GRID).map(|part| {
        let factors = sizes.power(part as f32 / GRID as f32)?.maximum(1e-4)?;
        let ends = factors.max_all()?.multiply(factors.min_all()?)?.sqrt()?;
        let factors = factors.divide(ends)?;
        factors.eval()?;
        Ok(factors)
    });
    factors.collect()
}

/// A matrix whose columns were multiplied by factors and whose rows were divided by others while it was rounded.
fn scaled_and_rounded(
    array: &Array,
    columns: &Array,
    rows: Option<&Array>,
    scheme: Scheme,
) -> Result<Array> {
    let mut factors = columns.clone();
    if let Some(rows) = rows {
        factors = factors.divide(rows)?;
    }
    let scaled = array.astype(DType::F32)?.multiply(&factors)?;
    let rounded = rounded(&scaled, scheme, DType::F32)?;
    Ok(rounded.divide(&factors)?.astype(array.dtype())?)
}

/// Examples of about [`TOKENS`] tokens, evenly from all; each token counts.
fn sample(examples: &[Example]) -> Vec<Example> {
    let usable: Vec<&Example> = examples.iter().filter(|one| one.tokens.len() > 1).collect();
    let tokens: usize = usable.iter().map(|one| one.tokens.len()).sum();
    let every = tokens.div_ceil(TOKENS).max(1);
    let chosen = usable.into_iter().step_by(every);
    chosen
        .map(|one| Example::new(one.tokens.clone(), 0))
        .collect()
}

/// The matrix `[out, in]` with the range of each group cut to the part that gives its outputs the smallest error: to parts
/// of the largest magnitude on both sides of zero, as mlx-lm does, or to parts of the lowest and of the highest weight.
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
    let ranges = [
        [largest.negative()?, largest],
        [groups.min(-1, true)?, groups.max(-1, true)?],
    ];
    for step in 0..GRID {
        let [low, high] = &ranges[step as usize % 2];
        let part = 1.0 - (step / 2) as f32 / GRID as f32;
        let cut = groups.maximum(low.multiply(part)?)?;
        let cut = cut.minimum(high.multiply(part)?)?;
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
