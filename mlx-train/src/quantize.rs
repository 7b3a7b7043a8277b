//! Few-bit weights that lose less than rounding does.
//!
//! Both methods compare the packed model with the model itself, on texts. [`distill`] is mlx-lm's DWQ: the codes are
//! those of rounding, and scales and biases are trained until the packed model's probabilities are close to the
//! model's. [`sensitivities`] is the measure of mlx-lm's `dynamic_quant`: how much each matrix moves the probabilities
//! when it has few bits, from one gradient. [`mixed`] gives more bits to the matrices that need them.

use std::collections::BTreeMap;

use mlx_core::ops::quantize::{Quantized, dequantize_with, quantize_with};
use mlx_core::transforms::value_and_grad_with;
use mlx_core::{Array, DType, QuantMode, Scheme, ones, zeros};
use mlx_models::Model;
use mlx_nn::{Module, Param, Path, Visit, VisitMut, Weight};

use crate::batch::{Batch, Example};
use crate::error::{Error, ErrorKind, Result, argument};
use crate::feed::{Feed, FeedOptions};
use crate::loss::logits;
use crate::optim::{Adam, Method, Optimizer};
use crate::schedule::Schedule;

/// The settings of [`distill`].
#[derive(Clone, Debug, PartialEq)]
pub struct Distillation {
    /// Steps of the optimiser, which is Adam.
    pub steps: u64,
    /// Examples of a step.
    pub batch_size: usize,
    /// The learning rate at the first step; it falls to zero along a cosine. It is relative: each scale and bias moves by
    /// about this fraction of its matrix's mean scale in a step.
    pub rate: f64,
    /// The seed of the order of the examples.
    pub seed: u64,
}

/// Packs the matrices at the paths of `schemes`, which are affine, and trains their scales and biases.
///
/// `observe` gets the number of each step, from 1, and the mean divergence (KL, in nats a token) of the packed model
/// before it. The model is as it was if an error is returned.
///
/// # Errors
/// A path is no dense matrix of the model, a scheme is not affine, there is nothing to learn from, the divergence is not
/// finite, or `observe` fails.
pub fn distill(
    model: &mut dyn Model,
    schemes: &BTreeMap<String, Scheme>,
    examples: &[Example],
    options: &Distillation,
    mut observe: impl FnMut(u64, f64) -> Result<()>,
) -> Result<()> {
    let dense = Dense::of(model, schemes.keys())?;
    let packed: Vec<Packed> = dense
        .0
        .iter()
        .map(|(path, array)| Packed::of(path, array, schemes[path]))
        .collect::<Result<_>>()?;
    let mut trained = Coefficients::of(&packed)?;
    let result = train(
        model,
        &dense,
        &packed,
        &mut trained,
        (examples, options),
        &mut observe,
    );
    dense.put(model)?;
    result?;
    let mut write = Write {
        schemes,
        trained: trained.values(&packed)?,
    };
    model.visit_mut(&mut Path::default(), &mut write)?;
    Ok(())
}

fn train(
    model: &mut dyn Model,
    dense: &Dense,
    packed: &[Packed],
    trained: &mut Coefficients,
    (examples, options): (&[Example], &Distillation),
    observe: &mut dyn FnMut(u64, f64) -> Result<()>,
) -> Result<()> {
    if options.steps == 0 || options.batch_size == 0 {
        return Err(argument("steps and batch_size must be at least 1, given 0"));
    }
    if examples.iter().all(|example| example.learnt() == 0) {
        return Err(argument("no example has anything to learn from"));
    }
    let mut optimizer = Optimizer::new(
        Method::Adam(Adam::default()),
        Schedule::Constant { rate: options.rate },
    )?;
    let mut feed = Feed::new(
        examples,
        FeedOptions {
            batch_size: options.batch_size,
            batch_tokens: None,
            pack: None,
            seed: options.seed,
        },
    );
    for step in 1..=options.steps {
        let rows = feed.next_batch();
        let rows = rows
            .iter()
            .map(|row| row.iter().map(|&index| &examples[index]));
        let batch = Batch::new(rows)?;
        dense.put(model)?;
        let teacher = log_probs(model, &batch)?;
        teacher.eval()?;
        let values = trained.arrays();
        let all: Vec<usize> = (0..values.len()).collect();
        let (sum, grads) = value_and_grad_with(
            |values| {
                let matrices = packed.iter().zip(values.chunks_exact(2));
                let matrices: mlx_core::Result<Vec<Array>> = matrices
                    .map(|(packed, parts)| packed.matrix(&parts[0], &parts[1]))
                    .collect();
                put(model, &dense.names(), &matrices?)?;
                Ok(vec![divergence(model, &batch, &teacher)?])
            },
            &values,
            &all,
        )?;
        mlx_core::eval(sum.iter().chain(&grads))?;
        let mut grads: BTreeMap<String, Array> = trained.0.keys().cloned().zip(grads).collect();
        for grad in grads.values_mut() {
            *grad = grad.divide(batch.weight as f32)?;
        }
        let progress = (step - 1) as f64 / options.steps as f64;
        let falling = 0.5 * (1.0 + (std::f64::consts::PI * progress).cos());
        optimizer.set_learning_rate(options.rate * falling);
        optimizer.update(trained, &grads)?;
        let found = f64::from(sum[0].item::<f32>()?) / batch.weight;
        if !found.is_finite() {
            let message = format!("step {step}: the divergence is {found}; a lower rate may help");
            return Err(Error::new(ErrorKind::Compute, message));
        }
        observe(step, found)?;
    }
    Ok(())
}

/// How much the divergence falls when a matrix has the scheme of `high` instead of that of `low`, to first order: nats a
/// token, for every path of `low`. The other matrices have few bits. The model is unchanged.
///
/// # Errors
/// As those of [`distill`]; a path of `low` is not one of `high`.
pub fn sensitivities(
    model: &mut dyn Model,
    low: &BTreeMap<String, Scheme>,
    high: &BTreeMap<String, Scheme>,
    examples: &[Example],
    batch_size: usize,
) -> Result<BTreeMap<String, f64>> {
    let dense = Dense::of(model, low.keys())?;
    let rounded = |schemes: &BTreeMap<String, Scheme>| -> Result<Vec<Array>> {
        let matrices = dense.0.iter().map(|(path, array)| {
            let scheme = schemes.get(path).copied();
            let scheme = scheme.ok_or_else(|| argument(format!("{path} has no second scheme")))?;
            let values = rounded(array, scheme)?;
            values.eval()?;
            Ok(values)
        });
        matrices.collect()
    };
    let (low, high) = (rounded(low)?, rounded(high)?);
    let mut sums = vec![0.0; low.len()];
    let result = measure(
        model,
        &dense,
        (&low, &high),
        (examples, batch_size),
        &mut sums,
    );
    dense.put(model)?;
    let weight = result?;
    let names = dense.0.keys().cloned();
    Ok(names
        .zip(sums.into_iter().map(|sum| sum / weight))
        .collect())
}

fn measure(
    model: &mut dyn Model,
    dense: &Dense,
    (low, high): (&[Array], &[Array]),
    (examples, batch_size): (&[Example], usize),
    sums: &mut [f64],
) -> Result<f64> {
    if batch_size == 0 {
        return Err(argument("batch_size must be at least 1, given 0"));
    }
    let all: Vec<usize> = (0..low.len()).collect();
    let mut weight = 0.0;
    for rows in Feed::in_order(examples, batch_size) {
        let batch = Batch::new(rows.iter().map(|&index| [&examples[index]]))?;
        if batch.learnt == 0 {
            continue;
        }
        dense.put(model)?;
        let teacher = log_probs(model, &batch)?;
        teacher.eval()?;
        let (_, grads) = value_and_grad_with(
            |values| {
                put(model, &dense.names(), values)?;
                Ok(vec![divergence(model, &batch, &teacher)?])
            },
            low,
            &all,
        )?;
        for ((sum, grad), (low, high)) in sums.iter_mut().zip(&grads).zip(low.iter().zip(high)) {
            let move_ = low.subtract(high)?.astype(DType::F32)?;
            let fall = grad.astype(DType::F32)?.multiply(move_)?.sum(.., false)?;
            *sum += f64::from(fall.item::<f32>()?);
        }
        weight += batch.weight;
    }
    match weight > 0.0 {
        true => Ok(weight),
        false => Err(argument("no example has anything to learn from")),
    }
}

/// Gives the schemes of `high` to the matrices that gain the most for each bit, up to a mean of `bits` a weight, scales
/// and biases included; all others have the schemes of `low`. `sizes` are the numbers of elements.
///
/// # Errors
/// The mean is below that of `low`.
pub fn mixed(
    gains: &BTreeMap<String, f64>,
    sizes: &BTreeMap<String, usize>,
    low: &BTreeMap<String, Scheme>,
    high: &BTreeMap<String, Scheme>,
    bits: f64,
) -> Result<BTreeMap<String, Scheme>> {
    let cost = |path: &String, scheme: &Scheme| sizes[path] as f64 * stored_bits(*scheme);
    let elements: usize = low.keys().map(|path| sizes[path]).sum();
    let mut used: f64 = low.iter().map(|(path, scheme)| cost(path, scheme)).sum();
    let budget = bits * elements as f64;
    if used > budget {
        return Err(argument(format!(
            "{bits} bits a weight are fewer than the {:.2} of all weights in few bits",
            used / elements as f64
        )));
    }
    let extra = |path: &String| cost(path, &high[path]) - cost(path, &low[path]);
    let mut order: Vec<&String> = low.keys().filter(|path| extra(path) > 0.0).collect();
    order.sort_by(|a, b| (gains[*b] / extra(b)).total_cmp(&(gains[*a] / extra(a))));
    let mut schemes = low.clone();
    for path in order {
        if gains[path] > 0.0 && used + extra(path) <= budget {
            used += extra(path);
            schemes.insert(path.clone(), high[path]);
        }
    }
    Ok(schemes)
}

/// Bits of an element with its part of a scale and a bias of 16 bits.
fn stored_bits(scheme: Scheme) -> f64 {
    f64::from(scheme.bits) + 32.0 / f64::from(scheme.group_size)
}

/// The log probabilities of all tokens at each place, F32.
fn log_probs(model: &dyn Model, batch: &Batch) -> mlx_core::Result<Array> {
    let logits = logits(model, batch)?.astype(DType::F32)?;
    logits.subtract(logits.logsumexp(-1, true)?)
}

/// The sum over the learnt places of KL(teacher | model), times the weights.
fn divergence(model: &dyn Model, batch: &Batch, teacher: &Array) -> mlx_core::Result<Array> {
    let student = log_probs(model, batch)?;
    let each = teacher
        .exp()?
        .multiply(teacher.subtract(student)?)?
        .sum(-1, false)?;
    each.multiply(&batch.weights)?.sum(.., false)
}

/// The values of a matrix in a scheme, in its dtype.
fn rounded(array: &Array, scheme: Scheme) -> Result<Array> {
    let Quantized {
        packed,
        scales,
        biases,
    } = quantize_with(array, scheme)?;
    Ok(dequantize_with(
        &packed,
        &scales,
        biases.as_ref(),
        scheme,
        Some(array.dtype()),
    )?)
}

/// The dense matrices at some paths, by name.
struct Dense(BTreeMap<String, Array>);

impl Dense {
    fn of<'a>(model: &dyn Model, paths: impl Iterator<Item = &'a String>) -> Result<Self> {
        struct Find(BTreeMap<String, Option<Array>>);
        impl Visit for Find {
            fn weight(&mut self, path: &Path, weight: &Weight) -> mlx_core::Result<()> {
                if let (Some(found), Weight::Dense(dense)) = (self.0.get_mut(path.as_str()), weight)
                {
                    *found = Some(dense.value().clone());
                }
                Ok(())
            }
        }
        let mut find = Find(paths.map(|path| (path.clone(), None)).collect());
        model.visit(&mut Path::default(), &mut find)?;
        let found = find.0.into_iter().map(|(path, array)| match array {
            Some(array) => Ok((path, array)),
            None => Err(argument(format!("{path} is no dense matrix of the model"))),
        });
        let found: BTreeMap<String, Array> = found.collect::<Result<_>>()?;
        match found.is_empty() {
            true => Err(argument("there is no matrix to pack")),
            false => Ok(Self(found)),
        }
    }

    fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }

    fn put(&self, model: &mut dyn Model) -> Result<()> {
        let arrays: Vec<Array> = self.0.values().cloned().collect();
        Ok(put(model, &self.names(), &arrays)?)
    }
}

/// Sets the dense matrices at these paths.
fn put(model: &mut dyn Model, names: &[&str], arrays: &[Array]) -> mlx_core::Result<()> {
    struct Put<'a>(BTreeMap<&'a str, &'a Array>);
    impl VisitMut for Put<'_> {
        fn weight(&mut self, path: &Path, weight: &mut Weight) -> mlx_core::Result<()> {
            if let (Some(array), Weight::Dense(dense)) = (self.0.get(path.as_str()), weight) {
                dense.set((*array).clone());
            }
            Ok(())
        }
    }
    let mut put = Put(names.iter().copied().zip(arrays).collect());
    model.visit_mut(&mut Path::default(), &mut put)
}

/// A matrix whose codes are fixed.
struct Packed {
    path: String,
    /// `[.., out, in / group_size, group_size]`, U8.
    codes: Array,
    scales: Array,
    biases: Array,
    shape: Vec<i32>,
    dtype: DType,
    /// The mean magnitude of the scales, by which all coefficients are divided in training.
    unit: f32,
}

impl Packed {
    fn of(path: &str, array: &Array, scheme: Scheme) -> Result<Self> {
        let Quantized {
            packed,
            scales,
            biases: Some(biases),
        } = quantize_with(array, scheme)?
        else {
            return Err(argument(format!(
                "{path}: {scheme} has no biases; only {} schemes are trained",
                QuantMode::Affine
            )));
        };
        // The codes are the values for scales of 1 and biases of 0.
        let parts = scales.shape().to_vec();
        let ones = ones(&parts, DType::F32)?;
        let zeros = zeros(&parts, DType::F32)?;
        let codes = dequantize_with(&packed, &ones, Some(&zeros), scheme, Some(DType::F32))?;
        let codes = codes
            .astype(DType::U8)?
            .unflatten(-1, &[-1, scheme.group_size])?;
        let unit = scales
            .astype(DType::F32)?
            .abs()?
            .mean(.., false)?
            .item::<f32>()?;
        mlx_core::eval([&codes, &scales, &biases])?;
        Ok(Self {
            path: path.to_owned(),
            codes,
            scales,
            biases,
            shape: array.shape().to_vec(),
            dtype: array.dtype(),
            unit: if unit > 0.0 { unit } else { 1.0 },
        })
    }

    /// The matrix of these coefficients, which are in units. They are rounded to the dtype in which they are stored, and
    /// the rounding has the derivative 1.
    fn matrix(&self, scales: &Array, biases: &Array) -> mlx_core::Result<Array> {
        let part = |array: &Array| {
            let exact = array.multiply(self.unit)?;
            let stored = exact.astype(self.scales.dtype())?.astype(DType::F32)?;
            let off = stored.subtract(&exact)?.stop_gradient()?;
            exact.add(off)?.expand_dims(-1)
        };
        let codes = self.codes.astype(DType::F32)?;
        let matrix = codes.multiply(part(scales)?)?.add(part(biases)?)?;
        matrix.reshape(&self.shape)?.astype(self.dtype)
    }
}

/// The trained numbers, F32, in units: `PATH.biases` and `PATH.scales`.
struct Coefficients(BTreeMap<String, Param>);

impl Coefficients {
    fn of(packed: &[Packed]) -> Result<Self> {
        let mut all = BTreeMap::new();
        for one in packed {
            // `scales` before `biases`: see `names`.
            for (at, array) in [&one.scales, &one.biases].into_iter().enumerate() {
                let value = array.astype(DType::F32)?.divide(one.unit)?;
                value.eval()?;
                all.insert(name(&one.path, at), Param::new(value));
            }
        }
        Ok(Self(all))
    }

    /// Scales and biases of each matrix, in the order of the paths.
    fn arrays(&self) -> Vec<Array> {
        self.0.values().map(|param| param.value().clone()).collect()
    }

    /// Scales and biases in the dtype in which they are stored.
    fn values(&self, packed: &[Packed]) -> Result<BTreeMap<String, (Array, Array)>> {
        let all = packed.iter().zip(
            self.arrays()
                .chunks_exact(2)
                .map(<[_]>::to_vec)
                .collect::<Vec<_>>(),
        );
        let all = all.map(|(one, parts)| {
            let stored = |array: &Array| array.multiply(one.unit)?.astype(one.scales.dtype());
            let (scales, biases) = (stored(&parts[0])?, stored(&parts[1])?);
            mlx_core::eval([&scales, &biases])?;
            Ok((one.path.clone(), (scales, biases)))
        });
        all.collect()
    }
}

/// A name whose order is that of the paths, scales first. A space is in no path.
fn name(path: &str, at: usize) -> String {
    format!("{path} {at}")
}

impl Module for Coefficients {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> mlx_core::Result<()> {
        for (name, param) in &self.0 {
            path.scoped(name, |path| v.param(path, param))?;
        }
        Ok(())
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> mlx_core::Result<()> {
        for (name, param) in &mut self.0 {
            path.scoped(name, |path| v.param(path, param))?;
        }
        Ok(())
    }
}

/// Packs the matrices and gives them the trained scales and biases.
struct Write<'a> {
    schemes: &'a BTreeMap<String, Scheme>,
    trained: BTreeMap<String, (Array, Array)>,
}

impl VisitMut for Write<'_> {
    fn weight(&mut self, path: &Path, weight: &mut Weight) -> mlx_core::Result<()> {
        let (Some(&scheme), Some((scales, biases)), Weight::Dense(dense)) = (
            self.schemes.get(path.as_str()),
            self.trained.remove(path.as_str()),
            &*weight,
        ) else {
            return Ok(());
        };
        let packed = quantize_with(dense.value(), scheme)?;
        *weight = Weight::Quantized {
            packed: Param::fixed(packed.packed),
            scales: Param::fixed(scales),
            biases: Some(Param::fixed(biases)),
            factor: None,
            residues: None,
            scheme,
        };
        Ok(())
    }
}
