//! Losses of probabilities: of classes, and of two outcomes.

use mlx_core::{Array, Error, ErrorKind, Result, fast};

use super::options::{check_same, weighted};
use super::{BinaryCrossEntropy, CrossEntropy, KlDiv, Nll};

/// The negative log-probability of each target: `logits [.., V]`, `targets [..]` -> F32 `[..]`.
///
/// ```
/// use mlx_core::{Array, Result};
/// use mlx_nn::loss::{self, CrossEntropy, Reduction};
///
/// # fn main() -> Result<()> {
/// let logits = Array::from_slice(&[2.0f32, 0.0, 0.0, 2.0], &[2, 2])?;
/// let targets = Array::from_slice(&[0i32, 0], &[2])?;
/// assert_eq!(loss::cross_entropy(&logits, &targets)?.shape(), [2]);
/// let options = CrossEntropy { label_smoothing: 0.1, reduction: Reduction::Mean, ..Default::default() };
/// assert!(loss::cross_entropy_with(&logits, &targets, &options)?.item::<f32>()? > 0.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes do not fit.
pub fn cross_entropy(logits: &Array, targets: &Array) -> Result<Array> {
    fast::cross_entropy(logits, targets)
}

/// [`cross_entropy`] with settings. Targets are classes `[..]`, or the probabilities of all
/// classes, in the shape of the logits.
///
/// With a reduction to the mean, the sum of the weighted losses is divided by their number, not by
/// the sum of the weights.
///
/// # Errors
/// The shapes do not fit, the smoothing is not in [0, 1), or there are class weights and targets are probabilities.
pub fn cross_entropy_with(
    logits: &Array,
    targets: &Array,
    options: &CrossEntropy,
) -> Result<Array> {
    let CrossEntropy {
        axis,
        label_smoothing: smoothing,
        ..
    } = *options;
    if !(0.0..1.0).contains(&smoothing) {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("cross entropy: label_smoothing must be in [0, 1), given {smoothing}"),
        ));
    }
    let classes = logits.dim(axis)?;
    let probabilities = targets.ndim() == logits.ndim();
    let expected = match probabilities {
        true => logits.shape().to_vec(),
        false => without_axis(logits, axis),
    };
    if targets.shape() != expected {
        return Err(Error::new(
            ErrorKind::Shape,
            format!(
                "cross entropy: targets {:?} do not fit logits {:?}: expected {expected:?}",
                targets.shape(),
                logits.shape()
            ),
        ));
    }
    let is_last = axis == -1 || axis == logits.ndim() as i32 - 1;
    let mut losses = if !probabilities && smoothing == 0.0 && is_last {
        fast::cross_entropy(logits, targets)?
    } else {
        let logits = logits.subtract(logits.max(axis, true)?.stop_gradient()?)?;
        let mut score = match probabilities {
            true => logits.multiply(targets)?.sum(axis, false)?,
            false => picked(&logits, targets, axis)?,
        };
        if smoothing > 0.0 {
            let mean = logits.mean(axis, false)?.multiply(smoothing)?;
            score = score.multiply(1.0 - smoothing)?.add(mean)?;
        }
        logits.logsumexp(axis, false)?.subtract(score)?
    };
    if let Some(weights) = &options.class_weights {
        if probabilities || weights.shape() != [classes] {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "cross entropy: class weights must be [{classes}] and targets classes, found {:?} and targets {:?}",
                    weights.shape(),
                    targets.shape()
                ),
            ));
        }
        losses = losses.multiply(weights.take(targets, 0)?)?;
    }
    let losses = weighted("cross entropy", losses, options.weights.as_ref())?;
    options.reduction.of(losses)
}

/// The mean of `ln(1 + exp(x)) - x * target` for logits `x`: a scalar. Targets are probabilities.
///
/// ```
/// use mlx_core::{Result, array};
/// use mlx_nn::loss;
///
/// # fn main() -> Result<()> {
/// let loss = loss::binary_cross_entropy(&array![0.0, 0.0], &array![1.0, 0.0])?;
/// assert!((loss.item::<f32>()? - 2f32.ln()).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes differ.
pub fn binary_cross_entropy(inputs: &Array, targets: &Array) -> Result<Array> {
    binary_cross_entropy_with(inputs, targets, &BinaryCrossEntropy::default())
}

/// [`binary_cross_entropy`] with settings. Logarithms of probabilities are at least -100.
///
/// # Errors
/// The shapes differ.
pub fn binary_cross_entropy_with(
    inputs: &Array,
    targets: &Array,
    options: &BinaryCrossEntropy,
) -> Result<Array> {
    check_same(
        "binary cross entropy",
        &[("inputs", inputs), ("targets", targets)],
    )?;
    let losses = if options.with_logits {
        inputs.logaddexp(0.0)?.subtract(inputs.multiply(targets)?)?
    } else {
        let log = |p: &Array| p.log()?.maximum(-100.0);
        let one_minus = |p: &Array| p.negative()?.add(1.0);
        let yes = targets.multiply(log(inputs)?)?;
        let no = one_minus(targets)?.multiply(log(&one_minus(inputs)?)?)?;
        yes.add(no)?.negative()?
    };
    let losses = weighted("binary cross entropy", losses, options.weights.as_ref())?;
    options.reduction.of(losses)
}

/// The negative log-probability of each target: log-probabilities `inputs [.., V]`, `targets [..]`
/// -> `[..]`.
///
/// ```
/// use mlx_core::{Result, array};
/// use mlx_nn::loss;
///
/// # fn main() -> Result<()> {
/// let logs = array![[0.25, 0.75], [0.5, 0.5]].log()?;
/// let losses = loss::nll(&logs, &array![1, 0])?.to_vec::<f32>()?;
/// assert!((losses[0] + 0.75f32.ln()).abs() < 1e-6 && (losses[1] - 2f32.ln()).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes do not fit.
#[doc(alias = "nll_loss")]
pub fn nll(inputs: &Array, targets: &Array) -> Result<Array> {
    nll_with(inputs, targets, &Nll::default())
}

/// [`nll`] with settings.
///
/// # Errors
/// The shapes do not fit.
pub fn nll_with(inputs: &Array, targets: &Array, options: &Nll) -> Result<Array> {
    inputs.dim(options.axis)?;
    let expected = without_axis(inputs, options.axis);
    if targets.shape() != expected {
        return Err(Error::new(
            ErrorKind::Shape,
            format!(
                "nll: targets {:?} do not fit inputs {:?}: expected {expected:?}",
                targets.shape(),
                inputs.shape()
            ),
        ));
    }
    let losses = picked(inputs, targets, options.axis)?.negative()?;
    options.reduction.of(losses)
}

/// The Kullback-Leibler divergence of `exp(targets)` from `exp(inputs)`:
/// `sum(exp(targets) * (targets - inputs))` along the last axis. Inputs and targets are
/// log-probabilities: `[.., V] -> [..]`.
///
/// ```
/// use mlx_core::{Result, array};
/// use mlx_nn::loss;
///
/// # fn main() -> Result<()> {
/// let (p, q) = (array![[0.5, 0.5]].log()?, array![[0.25, 0.75]].log()?);
/// assert!(loss::kl_div(&p, &q)?.to_vec::<f32>()?[0] > 0.0);
/// assert_eq!(loss::kl_div(&p, &p)?.to_vec::<f32>()?, [0.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes do not broadcast.
#[doc(alias = "kl_div_loss")]
pub fn kl_div(inputs: &Array, targets: &Array) -> Result<Array> {
    kl_div_with(inputs, targets, &KlDiv::default())
}

/// [`kl_div`] with settings.
///
/// # Errors
/// The shapes do not broadcast, or there is no such axis.
pub fn kl_div_with(inputs: &Array, targets: &Array, options: &KlDiv) -> Result<Array> {
    let parts = targets.exp()?.multiply(targets.subtract(inputs)?)?;
    options.reduction.of(parts.sum(options.axis, false)?)
}

/// The element along `axis` whose index is the target.
fn picked(array: &Array, targets: &Array, axis: i32) -> Result<Array> {
    let indices = targets.expand_dims(axis)?;
    array.take_along_axis(&indices, axis)?.squeeze(axis)
}

/// The shape without `axis`, which must exist.
fn without_axis(array: &Array, axis: i32) -> Vec<i32> {
    let mut shape = array.shape().to_vec();
    let at = if axis < 0 {
        axis + shape.len() as i32
    } else {
        axis
    };
    shape.remove(at as usize);
    shape
}
