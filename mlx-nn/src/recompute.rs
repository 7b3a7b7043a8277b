//! [`recomputed`]: a layer that is computed a second time for its derivatives, to save memory.

use mlx_core::{Array, Error, ErrorKind, Result, transforms};

use crate::grad::swap;
use crate::module::Module;
use crate::trainable::trainable;

/// `forward(layer, inputs)`, whose intermediate results are not kept for the backward pass but
/// computed again in it. Gradients flow to the trainable parameters of `layer` and to the inputs,
/// as in a plain call. A dropout draws the same numbers both times.
///
/// ```
/// use mlx_core::{DType, Result, ops::create::ones};
/// use mlx_nn::{Linear, recompute::recomputed, value_and_grad};
///
/// # fn main() -> Result<()> {
/// let mut layer = Linear::new(2, 3, true)?;
/// let x = ones(&[1, 2], DType::F32)?;
/// let (_, grads) = value_and_grad(&mut layer, |layer| {
///     recomputed(layer, &[&x], |layer, x| layer.forward(&x[0]))?.sum(.., false)
/// })?;
/// assert_eq!(grads["bias"].to_vec::<f32>()?, [1.0; 3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The error of `forward`, or a layer changes a state in training, as a batch norm does, and cannot
/// be computed again.
#[doc(alias = "checkpoint")]
pub fn recomputed<M: Module + Clone + 'static>(
    layer: &M,
    inputs: &[&Array],
    forward: impl Fn(&M, &[Array]) -> Result<Array> + 'static,
) -> Result<Array> {
    let mut arrays: Vec<Array> = trainable(layer)?
        .into_iter()
        .map(|(_, value)| value)
        .collect();
    let params = arrays.len();
    arrays.extend(inputs.iter().map(|&input| input.clone()));
    let layer = layer.clone();
    let function = transforms::checkpoint_with(move |arrays: &[Array]| {
        let (params, inputs) = arrays.split_at(params);
        // The copy holds the placeholders of this trace, and is dropped at its end.
        let mut layer = layer.clone();
        swap(&mut layer, params)?;
        Ok(vec![forward(&layer, inputs)?])
    })?;
    let output = function(&arrays)?.pop();
    output.ok_or_else(|| Error::new(ErrorKind::Mlx, "a checkpoint returned no array"))
}
