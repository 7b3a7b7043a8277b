//! Losses of numbers and vectors: distances, rankings.

use std::f32::consts::LN_2;

use mlx_core::{Array, Error, ErrorKind, Result};

use super::options::check_same;
use super::{CosineSimilarity, GaussianNll, Huber, MarginRanking, Reduction, SmoothL1, Triplet};

/// `mean(|prediction - target|)`: a scalar.
///
/// ```
/// use mlx_core::{Result, array};
/// use mlx_nn::loss;
///
/// # fn main() -> Result<()> {
/// assert_eq!(loss::l1(&array![1.0, 2.0], &array![1.0, 5.0])?.item::<f32>()?, 1.5);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes differ.
#[doc(alias = "l1_loss")]
pub fn l1(prediction: &Array, target: &Array) -> Result<Array> {
    l1_with(prediction, target, Reduction::Mean)
}

/// `|prediction - target|`, reduced.
///
/// # Errors
/// The shapes differ.
pub fn l1_with(prediction: &Array, target: &Array, reduction: Reduction) -> Result<Array> {
    check_same("l1", &[("prediction", prediction), ("target", target)])?;
    reduction.of(prediction.subtract(target)?.abs()?)
}

/// `mean((prediction - target)^2)`: a scalar.
///
/// ```
/// use mlx_core::{Array, Result};
/// use mlx_nn::loss::{self, Reduction};
///
/// # fn main() -> Result<()> {
/// let (a, b) = (Array::from_slice(&[1.0f32, 2.0], &[2])?, Array::from_slice(&[1.0f32, 4.0], &[2])?);
/// assert_eq!(loss::mse(&a, &b)?.item::<f32>()?, 2.0);
/// assert_eq!(loss::mse_with(&a, &b, Reduction::Sum)?.item::<f32>()?, 4.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes differ.
#[doc(alias = "mse_loss")]
pub fn mse(prediction: &Array, target: &Array) -> Result<Array> {
    mse_with(prediction, target, Reduction::Mean)
}

/// `(prediction - target)^2`, reduced.
///
/// # Errors
/// The shapes differ.
pub fn mse_with(prediction: &Array, target: &Array, reduction: Reduction) -> Result<Array> {
    check_same("mse", &[("prediction", prediction), ("target", target)])?;
    reduction.of(prediction.subtract(target)?.square()?)
}

/// The mean of `(ln(variance) + (target - input)^2 / variance) / 2`: a scalar.
///
/// ```
/// use mlx_core::{Result, array};
/// use mlx_nn::loss;
///
/// # fn main() -> Result<()> {
/// let (inputs, targets, variances) = (array![1.0], array![3.0], array![1.0]);
/// assert_eq!(loss::gaussian_nll(&inputs, &targets, &variances)?.item::<f32>()?, 2.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes differ.
#[doc(alias = "gaussian_nll_loss")]
pub fn gaussian_nll(inputs: &Array, targets: &Array, variances: &Array) -> Result<Array> {
    gaussian_nll_with(inputs, targets, variances, &GaussianNll::default())
}

/// [`gaussian_nll`] with settings.
///
/// # Errors
/// The shapes differ.
pub fn gaussian_nll_with(
    inputs: &Array,
    targets: &Array,
    variances: &Array,
    options: &GaussianNll,
) -> Result<Array> {
    let arrays = [
        ("inputs", inputs),
        ("targets", targets),
        ("variances", variances),
    ];
    check_same("gaussian_nll", &arrays)?;
    let variances = variances.maximum(options.eps)?;
    let squares = targets.subtract(inputs)?.square()?.divide(&variances)?;
    let mut losses = variances.log()?.add(squares)?.multiply(0.5)?;
    if options.full {
        losses = losses.add(0.5 * std::f64::consts::TAU.ln())?;
    }
    options.reduction.of(losses)
}

/// The mean of `d^2 / 2` for distances `d` below 1, and of `d - 1/2` for others: a scalar.
///
/// ```
/// use mlx_core::{Result, array};
/// use mlx_nn::loss;
///
/// # fn main() -> Result<()> {
/// // 0.5 * 0.5 / 2, and 3 - 1/2.
/// let loss = loss::smooth_l1(&array![0.0, 0.0], &array![0.5, 3.0])?;
/// assert_eq!(loss.item::<f32>()?, (0.125 + 2.5) / 2.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes differ.
#[doc(alias = "smooth_l1_loss")]
pub fn smooth_l1(prediction: &Array, target: &Array) -> Result<Array> {
    smooth_l1_with(prediction, target, &SmoothL1::default())
}

/// `d^2 / (2 * beta)` for distances `d` below `beta`, and `d - beta / 2` for others, reduced.
///
/// # Errors
/// The shapes differ, or beta is not above 0.
pub fn smooth_l1_with(prediction: &Array, target: &Array, options: &SmoothL1) -> Result<Array> {
    check_same(
        "smooth_l1",
        &[("prediction", prediction), ("target", target)],
    )?;
    let beta = options.beta;
    check_above_zero("smooth_l1", "beta", beta)?;
    let distance = prediction.subtract(target)?.abs()?;
    let square = distance.square()?.multiply(0.5)?.divide(beta)?;
    let line = distance.subtract(0.5 * beta)?;
    options
        .reduction
        .of(distance.less(beta)?.select(&square, &line)?)
}

/// `d^2 / 2` for distances `d` up to 1, and `d - 1/2` for others.
///
/// ```
/// use mlx_core::{Result, array};
/// use mlx_nn::loss;
///
/// # fn main() -> Result<()> {
/// let losses = loss::huber(&array![0.0, 0.0], &array![0.5, 3.0])?;
/// assert_eq!(losses.to_vec::<f32>()?, [0.125, 2.5]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes do not broadcast.
#[doc(alias = "huber_loss")]
pub fn huber(inputs: &Array, targets: &Array) -> Result<Array> {
    huber_with(inputs, targets, &Huber::default())
}

/// `d^2 / 2` for distances `d` up to `delta`, and `delta * (d - delta / 2)` for others, reduced.
///
/// # Errors
/// The shapes do not broadcast.
pub fn huber_with(inputs: &Array, targets: &Array, options: &Huber) -> Result<Array> {
    let distance = inputs.subtract(targets)?.abs()?;
    let quadratic = distance.minimum(options.delta)?;
    let linear = distance.subtract(&quadratic)?.multiply(options.delta)?;
    let losses = quadratic.square()?.multiply(0.5)?.add(linear)?;
    options.reduction.of(losses)
}

/// `ln(cosh(input - target))`
///
/// ```
/// use mlx_core::{Result, array};
/// use mlx_nn::loss;
///
/// # fn main() -> Result<()> {
/// let losses = loss::log_cosh(&array![0.0, 2.0], &array![0.0, 0.0])?.to_vec::<f32>()?;
/// assert!(losses[0].abs() < 1e-6 && (losses[1] - 2f32.cosh().ln()).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes do not broadcast.
#[doc(alias = "log_cosh_loss")]
pub fn log_cosh(inputs: &Array, targets: &Array) -> Result<Array> {
    log_cosh_with(inputs, targets, Reduction::None)
}

/// [`log_cosh`], reduced.
///
/// # Errors
/// The shapes do not broadcast.
pub fn log_cosh_with(inputs: &Array, targets: &Array, reduction: Reduction) -> Result<Array> {
    let errors = inputs.subtract(targets)?;
    reduction.of(errors.logaddexp(errors.negative()?)?.subtract(LN_2)?)
}

/// `max(1 - input * target, 0)`, for targets of 1 and -1.
///
/// ```
/// use mlx_core::{Result, array};
/// use mlx_nn::loss;
///
/// # fn main() -> Result<()> {
/// let losses = loss::hinge(&array![2.0, 0.5, 0.5], &array![1.0, 1.0, -1.0])?;
/// assert_eq!(losses.to_vec::<f32>()?, [0.0, 0.5, 1.5]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes do not broadcast.
#[doc(alias = "hinge_loss")]
pub fn hinge(inputs: &Array, targets: &Array) -> Result<Array> {
    hinge_with(inputs, targets, Reduction::None)
}

/// [`hinge`], reduced.
///
/// # Errors
/// The shapes do not broadcast.
pub fn hinge_with(inputs: &Array, targets: &Array, reduction: Reduction) -> Result<Array> {
    let agreement = inputs.multiply(targets)?.negative()?.add(1.0)?;
    reduction.of(agreement.maximum(0.0)?)
}

/// `max(|anchor - positive| - |anchor - negative| + 1, 0)`, with norms along the last axis.
///
/// ```
/// use mlx_core::{Result, array};
/// use mlx_nn::loss;
///
/// # fn main() -> Result<()> {
/// let (anchor, near, far) = (array![[0.0, 0.0]], array![[0.0, 1.0]], array![[1.5, 0.0]]);
/// let loss = loss::triplet(&anchor, &near, &far)?.to_vec::<f32>()?;
/// assert!((loss[0] - 0.5).abs() < 1e-5);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes do not broadcast.
#[doc(alias = "triplet_loss")]
pub fn triplet(anchors: &Array, positives: &Array, negatives: &Array) -> Result<Array> {
    triplet_with(anchors, positives, negatives, &Triplet::default())
}

/// [`triplet`] with settings.
///
/// # Errors
/// The shapes do not broadcast, there is no such axis, or `p` is not above 0.
pub fn triplet_with(
    anchors: &Array,
    positives: &Array,
    negatives: &Array,
    options: &Triplet,
) -> Result<Array> {
    check_above_zero("triplet", "p", options.p)?;
    let distance = |others: &Array| {
        let powers = anchors.subtract(others)?.abs()?.power(options.p)?;
        let sum = powers.sum(options.axis, false)?.add(options.eps)?;
        sum.power(1.0 / options.p)
    };
    let losses = distance(positives)?
        .subtract(distance(negatives)?)?
        .add(options.margin)?
        .maximum(0.0)?;
    options.reduction.of(losses)
}

/// The cosine of the angle between `x1` and `x2` along axis 1.
///
/// ```
/// use mlx_core::{Result, array};
/// use mlx_nn::loss;
///
/// # fn main() -> Result<()> {
/// let (x, y) = (array![[1.0, 0.0], [1.0, 1.0]], array![[0.0, 2.0], [2.0, 2.0]]);
/// let found = loss::cosine_similarity(&x, &y)?.to_vec::<f32>()?;
/// assert!(found[0].abs() < 1e-6 && (found[1] - 1.0).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes do not broadcast, or there is no axis 1.
#[doc(alias = "cosine_similarity_loss")]
pub fn cosine_similarity(x1: &Array, x2: &Array) -> Result<Array> {
    cosine_similarity_with(x1, x2, &CosineSimilarity::default())
}

/// [`cosine_similarity`] with settings.
///
/// # Errors
/// The shapes do not broadcast, or there is no such axis.
pub fn cosine_similarity_with(x1: &Array, x2: &Array, options: &CosineSimilarity) -> Result<Array> {
    let axis = options.axis;
    let norm = |x: &Array| x.square()?.sum(axis, false)?.sqrt();
    let norms = norm(x1)?.multiply(norm(x2)?)?.maximum(options.eps)?;
    let products = x1.multiply(x2)?.sum(axis, false)?;
    options.reduction.of(products.divide(norms)?)
}

/// `max(-target * (input1 - input2), 0)`: with a target of 1 the first input should be the larger
/// one, with -1 the second.
///
/// ```
/// use mlx_core::{Result, array};
/// use mlx_nn::loss;
///
/// # fn main() -> Result<()> {
/// let (better, worse) = (array![2.0, 1.0], array![1.0, 3.0]);
/// let losses = loss::margin_ranking(&better, &worse, &array![1.0, 1.0])?;
/// assert_eq!(losses.to_vec::<f32>()?, [0.0, 2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes differ.
#[doc(alias = "margin_ranking_loss")]
pub fn margin_ranking(inputs1: &Array, inputs2: &Array, targets: &Array) -> Result<Array> {
    margin_ranking_with(inputs1, inputs2, targets, &MarginRanking::default())
}

/// [`margin_ranking`] with settings.
///
/// # Errors
/// The shapes differ.
pub fn margin_ranking_with(
    inputs1: &Array,
    inputs2: &Array,
    targets: &Array,
    options: &MarginRanking,
) -> Result<Array> {
    let arrays = [
        ("inputs1", inputs1),
        ("inputs2", inputs2),
        ("targets", targets),
    ];
    check_same("margin_ranking", &arrays)?;
    let difference = inputs1.subtract(inputs2)?;
    let losses = targets
        .multiply(difference)?
        .negative()?
        .add(options.margin)?;
    options.reduction.of(losses.maximum(0.0)?)
}

fn check_above_zero(loss: &str, name: &str, value: f32) -> Result<()> {
    if value > 0.0 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Invalid,
        format!("{loss}: {name} must be above 0, given {value}"),
    ))
}
