//! Reading configs and files: recurrent layers and their convolutions.

use mlx_core::Result;
use mlx_nn::{Checkpoint, Rule};
use serde_json::Value;

use crate::config::Config;

/// Whether convolutions with one filter for each channel have the axes of published files,
/// `[channels, 1, taps]`. Files of MLX have `[channels, taps, 1]`.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn has_published_convolutions(tensors: &Checkpoint, suffix: &str) -> Result<bool> {
    let mut names = tensors.names();
    match names.find(|name| name.ends_with(suffix)) {
        Some(name) => Ok(tensors
            .shape(name)?
            .is_some_and(|shape| shape.last() != Some(&1))),
        None => Ok(false),
    }
}

/// Whether the files have convolutions named `conv1d` with the axes of MLX's files.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn has_mlx_convolutions(tensors: &Checkpoint) -> Result<bool> {
    const SUFFIX: &str = ".conv1d.weight";
    let any = tensors.names().any(|name| name.ends_with(SUFFIX));
    Ok(any && !has_published_convolutions(tensors, SUFFIX)?)
}

/// The rule that changes the axes of published convolutions to those of MLX. `None` if the files
/// have none to change.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn convolutions(tensors: &Checkpoint, suffix: &str) -> Result<Option<Rule>> {
    let published = has_published_convolutions(tensors, suffix)?;
    Ok(published.then(|| Rule::transpose(&format!("*{suffix}"), &[0, 2, 1])))
}

/// The smallest and the largest time step: two numbers, of which the second may be infinite.
///
/// # Errors
/// The value is not a pair of such numbers.
pub(crate) fn time_steps(c: &Config, key: &str) -> Result<(f32, f32)> {
    let Some(value) = c.value(key) else {
        return Ok((0.0, f32::INFINITY));
    };
    let number = |value: &Value| match value.get("__float__") {
        Some(name) if name == "Infinity" => Some(f32::INFINITY),
        _ => value.as_f64().map(|number| number as f32),
    };
    let numbers = value.as_array().map(|all| all.iter().map(number));
    let numbers: Option<Vec<f32>> = numbers.and_then(|all| all.collect());
    match numbers.as_deref() {
        Some(&[least, most]) if 0.0 <= least && least <= most => Ok((least, most)),
        _ => Err(c.error(format!(
            "{key} must be two numbers, 0 <= least <= most, found {value}"
        ))),
    }
}

/// The number of taps of a convolution.
///
/// # Errors
/// The number is too small or too large.
pub(crate) fn taps(c: &Config, key: &str, default: i32) -> Result<i32> {
    let taps = c.size(key, Some(default))?;
    if !(2..=64).contains(&taps) {
        return Err(c.unsupported(format!("{key} must be in 2..=64, found {taps}")));
    }
    Ok(taps)
}
