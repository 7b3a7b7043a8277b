//! Trained scales and biases, as mlx-lm's DWQ (distilled weight quantisation): the codes stay, and scales and biases are
//! trained until the packed model's probabilities are close to the model's.

use std::collections::BTreeMap;

use mlx_core::ops::quantize::dequantize_with;
use mlx_core::transforms::value_and_grad_with;
use mlx_core::{Array, DType, QuantMode, Scheme, ones, zeros};
use mlx_models::Model;
use mlx_nn::{Module, Param, Path, Visit, VisitMut, Weight};

use super::{Dense, Matrices, check, divergence, log_probs, put};
use crate::batch::{Batch, Example};
use crate::error::{Error, ErrorKind, Result, argument};
use crate::feed::{Feed, FeedOptions};
use crate::optim::{Adam, Method, Optimizer};
use crate::schedule::Schedule;

/// By what logits are divided, as in mlx-lm: tokens that are not likely count more, which says more of the model than the
/// few likely ones.
const TEMPERATURE: f32 = 2.0;

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

/// Trains scales and biases of `packed`, affine matrices that take the place of the model's dense ones.
///
/// `observe` gets the number of each step, from 1, and the mean divergence (KL, in nats a token, of logits
/// divided by 2) of the packed model before it. The model is unchanged.
///
/// # Errors
/// A path is no dense matrix of the model, a matrix is not affine, there is nothing to learn from, the divergence is not
/// finite, or `observe` fails.
pub fn distill(
    model: &mut dyn Model,
    packed: Matrices,
    examples: &[Example],
    options: &Distillation,
    mut observe: impl FnMut(u64, f64) -> Result<()>,
) -> Result<Matrices> {
    let dense = Dense::of(model, packed.keys())?;
    let codes: Vec<Codes> = packed
        .iter()
        .map(|(path, weight)| Codes::of(path, weight, &dense.0[path]))
        .collect::<Result<_>>()?;
    let mut trained = Coefficients::of(&codes)?;
    let result = train(
        model,
        &dense,
        &codes,
        &mut trained,
        (examples, options),
        &mut observe,
    );
    dense.put(model)?;
    result?;
    let mut packed = packed;
    for (one, [new_scales, new_biases]) in codes.iter().zip(trained.values(&codes)?) {
        if let Some(Weight::Quantized { scales, biases, .. }) = packed.get_mut(&one.path) {
            *scales = Param::fixed(new_scales);
            *biases = Some(Param::fixed(new_biases));
        }
    }
    Ok(packed)
}

fn train(
    model: &mut dyn Model,
    dense: &Dense,
    codes: &[Codes],
    trained: &mut Coefficients,
    (examples, options): (&[Example], &Distillation),
    observe: &mut dyn FnMut(u64, f64) -> Result<()>,
) -> Result<()> {
    check(options.batch_size)?;
    if options.steps == 0 {
        return Err(argument("steps must be at least 1, given 0"));
    }
    if examples.iter().all(|example| example.learnt() == 0) {
        return Err(argument("no example has anything to learn from"));
    }
    let mut optimizer = Optimizer::new(
        Method::Adam(Adam::default()),
        Schedule::Constant { rate: options.rate },
    )?;
    let learnt = examples.iter().filter(|example| example.learnt() > 0);
    let examples: Vec<Example> = learnt.cloned().collect();
    let mut feed = Feed::new(
        &examples,
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
        let soft = |model: &dyn Model| log_probs(model, &batch, TEMPERATURE);
        let teacher = soft(&*model)?;
        teacher.eval()?;
        let values = trained.arrays();
        let all: Vec<usize> = (0..values.len()).collect();
        let (sum, grads) = value_and_grad_with(
            |values| {
                let matrices = codes.iter().zip(values.chunks_exact(2));
                let matrices: mlx_core::Result<Vec<Array>> = matrices
                    .map(|(one, parts)| one.matrix(&parts[0], &parts[1]))
                    .collect();
                put(model, &dense.names(), &matrices?)?;
                Ok(vec![divergence(&soft(&*model)?, &batch, &teacher)?])
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

/// A matrix whose codes are fixed.
struct Codes {
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

impl Codes {
    fn of(path: &str, weight: &Weight, dense: &Array) -> Result<Self> {
        let Weight::Quantized {
            packed,
            scales,
            biases: Some(biases),
            factor: None,
            residues: None,
            scheme,
        } = weight
        else {
            let scheme: String = match weight {
                Weight::Quantized { scheme, .. } => scheme.to_string(),
                Weight::Dense(_) => "a dense matrix".to_owned(),
            };
            return Err(argument(format!(
                "{path}: {scheme} has no scales and biases of groups; only {} schemes are trained",
                QuantMode::Affine
            )));
        };
        let (scales, biases) = (scales.value().clone(), biases.value().clone());
        let codes = codes(packed.value(), &scales, *scheme)?;
        let unit = scales.astype(DType::F32)?.abs()?.mean(.., false)?;
        let unit = unit.item::<f32>()?;
        mlx_core::eval([&codes])?;
        Ok(Self {
            path: path.to_owned(),
            codes,
            scales,
            biases,
            shape: dense.shape().to_vec(),
            dtype: dense.dtype(),
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
/// The trained numbers, F32, in units.
struct Coefficients(BTreeMap<String, Param>);

impl Coefficients {
    fn of(codes: &[Codes]) -> Result<Self> {
        let mut all = BTreeMap::new();
        for one in codes {
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
    fn values(&self, codes: &[Codes]) -> Result<Vec<[Array; 2]>> {
        let arrays = self.arrays();
        let all = codes.iter().zip(arrays.chunks_exact(2));
        let all = all.map(|(one, parts)| {
            let stored = |array: &Array| array.multiply(one.unit)?.astype(one.scales.dtype());
            let parts = [stored(&parts[0])?, stored(&parts[1])?];
            mlx_core::eval(&parts)?;
            Ok(parts)
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

/// The codes of a packed matrix, U8 `[.., out, in / group_size, group_size]`.
fn codes(packed: &Array, scales: &Array, scheme: Scheme) -> Result<Array> {
    // The codes are the values for scales of 1 and biases of 0.
    let parts = scales.shape();
    let (ones, zeros) = (ones(parts, DType::F32)?, zeros(parts, DType::F32)?);
    let codes = dequantize_with(packed, &ones, Some(&zeros), scheme, Some(DType::F32))?;
    Ok(codes
        .astype(DType::U8)?
        .unflatten(-1, &[-1, scheme.group_size])?)
}
