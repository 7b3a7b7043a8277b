//! [`recomputed`]: a layer that is computed a second time for its derivatives, to save memory.

use mlx_core::{Array, Error, ErrorKind, Result, transforms};

use crate::grad::swap;
use crate::module::Module;
use crate::trainable::trainable;

/// `forward(layer, inputs)`, without its intermediate results for the backward pass, which computes them again. Gradients
/// flow to the trainable parameters of `layer` and to the inputs, as without it; a dropout draws the same numbers both times.
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
/// That of `forward`. A layer that changes a state in training, such as a batch norm, cannot be computed again.
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
        // Dropped at the end, with the placeholders of this trace.
        let mut layer = layer.clone();
        swap(&mut layer, params)?;
        Ok(vec![forward(&layer, inputs)?])
    })?;
    let output = function(&arrays)?.pop();
    output.ok_or_else(|| Error::new(ErrorKind::Mlx, "a checkpoint returned no array"))
}
