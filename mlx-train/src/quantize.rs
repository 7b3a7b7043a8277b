//! Few-bit weights that lose less than rounding does.
//!
//! All methods compare the packed model with the model itself, on texts. Each is a step on its own:
//!
//! | step | does | source |
//! |---|---|---|
//! | [`awq::scale`] | moves factors between norms and matrices, so that large inputs meet small errors | arXiv:2306.00978 |
//! | [`dynamic::sensitivities`], [`dynamic::mixed`] | gives more bits to the matrices that need them | mlx-lm's `dynamic_quant` |
//! | [`round`] | the nearest codes | MLX |
//! | [`gptq::pack`] | codes that make up for the errors of the codes before them | arXiv:2210.17323 |
//! | [`dwq::distill`] | trains scales and biases, the codes fixed | mlx-lm's DWQ |
//!
//! The model stays dense until [`install`].

use std::collections::{BTreeMap, BTreeSet};

use mlx_core::ops::quantize::{Quantized, dequantize_with, quantize_with};
use mlx_core::{Array, DType, Scheme};
use mlx_models::Model;
use mlx_nn::lora::{AdaptableLayer, Layout};
use mlx_nn::observe::second_moments;
use mlx_nn::{Param, Path, Visit, VisitMut, Weight};

use crate::batch::{Batch, Example};
use crate::error::{Result, argument};
use crate::feed::Feed;
use crate::loss::logits;

pub mod awq;
pub mod dwq;
pub mod dynamic;
pub mod gptq;

/// Schemes by the paths of matrices.
pub type Schemes = BTreeMap<String, Scheme>;

/// Packed matrices by path.
pub type Matrices = BTreeMap<String, Weight>;

/// The matrices at the paths of `schemes`, each code the nearest. The model is unchanged.
///
/// # Errors
/// A path is no dense matrix of the model, or a scheme does not fit its shape.
pub fn round(model: &dyn Model, schemes: &Schemes) -> Result<Matrices> {
    let dense = Dense::of(model, schemes.keys())?;
    let packed = dense.0.iter().map(|(path, array)| {
        let parts = quantize_with(array, schemes[path]).map_err(|error| error.context(path))?;
        Ok((path.clone(), weight(parts, schemes[path])?))
    });
    packed.collect()
}

/// Puts packed matrices in the places of those of the model, and returns the previous ones.
///
/// # Errors
/// The model has no matrix of a path.
pub fn install(model: &mut dyn Model, matrices: Matrices) -> Result<Matrices> {
    struct Install(Matrices, Matrices);
    impl VisitMut for Install {
        fn weight(&mut self, path: &Path, weight: &mut Weight) -> mlx_core::Result<()> {
            if let Some(new) = self.0.remove(path.as_str()) {
                let old = std::mem::replace(weight, new);
                self.1.insert(path.as_str().to_owned(), old);
            }
            Ok(())
        }
    }
    let mut install = Install(matrices, BTreeMap::new());
    model.visit_mut(&mut Path::default(), &mut install)?;
    match install.0.keys().next() {
        Some(path) => Err(argument(format!("{path} is no matrix of the model"))),
        None => Ok(install.1),
    }
}

/// Bits of an element with its part of a scale and a bias of 16 bits.
pub fn stored_bits(scheme: Scheme) -> f64 {
    f64::from(scheme.bits) + 32.0 / f64::from(scheme.group_size)
}

/// The mean of [`stored_bits`] over the elements of matrices. `sizes` are their numbers.
pub fn mean_bits(schemes: &Schemes, sizes: &BTreeMap<String, usize>) -> f64 {
    let (mut bits, mut elements) = (0.0, 0.0);
    for (path, &scheme) in schemes {
        let size = sizes.get(path).copied().unwrap_or(0) as f64;
        bits += size * stored_bits(scheme);
        elements += size;
    }
    bits / elements
}

/// The second moments of the inputs of the model's matrices on the examples, F32 `[in, in]` by path: see
/// [`second_moments`].
///
/// # Errors
/// There is no example of two tokens, or the model refuses one.
pub fn moments(
    model: &dyn Model,
    examples: &[Example],
    batch_size: usize,
) -> Result<BTreeMap<String, Array>> {
    check(batch_size)?;
    let mut all: BTreeMap<String, Array> = BTreeMap::new();
    for rows in Feed::in_order(examples, batch_size) {
        let rows = rows.iter().map(|&index| &examples[index]);
        let rows: Vec<&Example> = rows.filter(|example| example.tokens.len() > 1).collect();
        if rows.is_empty() {
            continue;
        }
        let batch = Batch::new(rows.into_iter().map(|example| [example]))?;
        let (_, found) = second_moments(model, || logits(model, &batch))?;
        for (path, own) in found {
            let sum = match all.get(&path) {
                Some(sum) => sum.add(own)?,
                None => own,
            };
            all.insert(path, sum);
        }
        mlx_core::eval(all.values())?;
    }
    match all.is_empty() {
        true => Err(argument("no example has two tokens")),
        false => Ok(all),
    }
}

fn check(batch_size: usize) -> Result<()> {
    match batch_size {
        0 => Err(argument("batch_size must be at least 1, given 0")),
        _ => Ok(()),
    }
}

/// A matrix of these parts, evaluated.
fn weight(parts: Quantized, scheme: Scheme) -> Result<Weight> {
    let arrays = [
        Some(&parts.packed),
        Some(&parts.scales),
        parts.biases.as_ref(),
    ];
    mlx_core::eval(arrays.into_iter().flatten())?;
    Ok(Weight::Quantized {
        packed: Param::fixed(parts.packed),
        scales: Param::fixed(parts.scales),
        biases: parts.biases.map(Param::fixed),
        factor: None,
        residues: None,
        scheme,
    })
}

/// The log probabilities of all tokens at each place, F32, with the logits divided by a temperature.
fn log_probs(model: &dyn Model, batch: &Batch, temperature: f32) -> mlx_core::Result<Array> {
    let logits = logits(model, batch)?.astype(DType::F32)?;
    let logits = logits.divide(temperature)?;
    logits.subtract(logits.logsumexp(-1, true)?)
}

/// The sum over the learnt places of KL(teacher | student), times the weights, of log probabilities.
fn divergence(student: &Array, batch: &Batch, teacher: &Array) -> mlx_core::Result<Array> {
    let each = teacher
        .exp()?
        .multiply(teacher.subtract(student)?)?
        .sum(-1, false)?;
    each.multiply(&batch.weights)?.sum(.., false)
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

/// The mean divergence KL(model | packed), in nats a token, over the learnt tokens of the examples, where `packed` is the
/// dense model with these matrices in place of its own. The model is unchanged.
///
/// # Errors
/// The model has no matrix of a path, or there is nothing to learn from.
pub fn mean_divergence(
    model: &mut dyn Model,
    matrices: &Matrices,
    examples: &[Example],
    batch_size: usize,
) -> Result<f64> {
    check(batch_size)?;
    let (mut sum, mut weight) = (0.0, 0.0);
    for rows in Feed::in_order(examples, batch_size) {
        let rows = rows.iter().map(|&index| &examples[index]);
        let rows: Vec<&Example> = rows.filter(|example| example.learnt() > 0).collect();
        if rows.is_empty() {
            continue;
        }
        let batch = Batch::new(rows.into_iter().map(|example| [example]))?;
        let teacher = log_probs(model, &batch, 1.0)?;
        teacher.eval()?;
        let dense = install(model, matrices.clone())?;
        let student = log_probs(model, &batch, 1.0);
        let found =
            student.and_then(|student| divergence(&student, &batch, &teacher)?.item::<f32>());
        install(model, dense)?;
        sum += f64::from(found?);
        weight += batch.weight;
    }
    match weight > 0.0 {
        true => Ok(sum / weight),
        false => Err(argument("no example has anything to learn from")),
    }
}

/// The paths of the tables that tokens are looked up in.
///
/// # Errors
/// None of its own.
pub fn embeddings(model: &dyn Model) -> Result<BTreeSet<String>> {
    struct Find(BTreeSet<String>);
    impl Visit for Find {
        fn adaptable(&mut self, path: &Path, layer: AdaptableLayer<'_>) -> mlx_core::Result<()> {
            if layer.layout == Layout::Embedding {
                self.0.insert(path.as_str().to_owned());
            }
            Ok(())
        }
    }
    let mut find = Find(BTreeSet::new());
    model.visit(&mut Path::default(), &mut find)?;
    Ok(find.0)
}

/// The values that a matrix has after it was packed in a scheme.
fn rounded(array: &Array, scheme: Scheme, dtype: DType) -> Result<Array> {
    let Quantized {
        packed,
        scales,
        biases,
    } = quantize_with(array, scheme)?;
    let values = dequantize_with(&packed, &scales, biases.as_ref(), scheme, Some(dtype));
    Ok(values?)
}
