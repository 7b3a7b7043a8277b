//! Packing the weights of a module, and unpacking them.

use mlx_core::ops::quantize::quantize_with as pack;
use mlx_core::{Array, DType, Result, Scheme};

use crate::lora::Adaptable;
use crate::module::{Module, Param, Path, VisitMut};
use crate::weight::Weight;

/// Packs every dense weight to which `rule` gives a scheme. `rule` gets the path and the shape.
///
/// ```
/// use mlx_core::{DType, QuantMode, Result, Scheme, ones};
/// use mlx_nn::{Linear, quantize::quantize};
///
/// # fn main() -> Result<()> {
/// let mut layer = Linear::new(64, 8, true)?;
/// let x = ones([1, 64], DType::F32)?;
/// let dense = layer.forward(&x)?;
/// let scheme = Scheme::new(64, 8, QuantMode::Affine)?;
/// quantize(&mut layer, |_path, shape| (shape[1] % 64 == 0).then_some(scheme))?;
/// assert!((layer.forward(&x)? - dense)?.abs()?.max_all()?.item::<f32>()? < 0.05);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The length of a row is not a multiple of the group size.
pub fn quantize(
    module: &mut dyn Module,
    rule: impl Fn(&str, &[i32]) -> Option<Scheme>,
) -> Result<()> {
    struct Pack<F>(F);
    impl<F: Fn(&str, &[i32]) -> Option<Scheme>> VisitMut for Pack<F> {
        fn weight(&mut self, path: &Path, weight: &mut Weight) -> Result<()> {
            let Weight::Dense(dense) = weight else {
                return Ok(());
            };
            let Some(scheme) = (self.0)(path.as_str(), dense.shape()) else {
                return Ok(());
            };
            let packed =
                pack(dense.value(), scheme).map_err(|error| error.context(path.as_str()))?;
            *weight = Weight::Quantized {
                packed: Param::fixed(packed.packed),
                scales: Param::fixed(packed.scales),
                biases: packed.biases.map(Param::fixed),
                factor: None,
                residues: None,
                scheme,
            };
            Ok(())
        }
    }
    module.visit_mut(&mut Path::default(), &mut Pack(rule))
}

/// Unpacks every quantised weight, into `dtype` or the dtype of its scales (BF16 if the scales are
/// not floating point). As in MLX, affine weights are computed in the dtype of their scales.
///
/// # Errors
/// The arrays of a weight do not fit each other.
pub fn dequantize(module: &mut dyn Module, dtype: Option<DType>) -> Result<()> {
    unpack(module, |weight| weight.dense(dtype))
}

/// [`dequantize`], computed in F32 and rounded once.
///
/// # Errors
/// The arrays of a weight do not fit each other.
pub fn dequantize_in_f32(module: &mut dyn Module, dtype: Option<DType>) -> Result<()> {
    unpack(module, |weight| {
        let own = weight.dtype().unwrap_or(DType::BF16);
        weight.dense_in_f32()?.astype(dtype.unwrap_or(own))
    })
}

/// Gives affine weights the parts that MLX's files have: scales and biases are multiplied by the
/// factors of the rows, and residues are added to biases. The results are F32. A product is rounded
/// to F32.
///
/// # Errors
/// The arrays of a weight do not fit each other.
pub fn fold(module: &mut dyn Module) -> Result<()> {
    struct Fold;
    impl VisitMut for Fold {
        fn weight(&mut self, _path: &Path, weight: &mut Weight) -> Result<()> {
            let Weight::Quantized {
                scales,
                biases: Some(biases),
                factor,
                residues,
                ..
            } = weight
            else {
                return Ok(());
            };
            if factor.is_none() && residues.is_none() {
                return Ok(());
            }
            let mut wide = biases.get()?.astype(DType::F32)?;
            if let Some(residues) = residues.take() {
                wide = wide.add(residues.get()?)?;
            }
            let mut parts = [scales.get()?.astype(DType::F32)?, wide];
            if let Some(factor) = factor.take() {
                let factor = factor.get()?.expand_dims(-1)?;
                for part in &mut parts {
                    *part = part.multiply(&factor)?;
                }
            }
            let parts = parts.map(|part| Param::fixed(part).never_narrowed());
            [*scales, *biases] = parts;
            Ok(())
        }
    }
    module.visit_mut(&mut Path::default(), &mut Fold)
}

fn unpack(module: &mut dyn Module, dense: impl Fn(&Weight) -> Result<Array>) -> Result<()> {
    struct Unpack<F>(F);
    impl<F: Fn(&Weight) -> Result<Array>> VisitMut for Unpack<F> {
        fn weight(&mut self, path: &Path, weight: &mut Weight) -> Result<()> {
            if let Weight::Quantized { .. } = weight {
                let dense = (self.0)(weight).map_err(|error| error.context(path.as_str()))?;
                *weight = Weight::Dense(Param::fixed(dense));
            }
            Ok(())
        }
    }
    module.visit_mut(&mut Path::default(), &mut Unpack(dense))
}

/// Makes the linear layers whose paths `select` accepts round their inputs to 8 bits, as BitNet
/// b1.58 does (arXiv:2402.17764): the numbers of a token become multiples of `m / 127`, where `m`
/// is the largest of their absolute values. Returns the paths of the layers.
///
/// # Errors
/// An array that the module derives from its parameters cannot be made.
pub fn round_inputs(module: &mut dyn Module, select: impl Fn(&str) -> bool) -> Result<Vec<String>> {
    struct Round<F>(F, Vec<String>);
    impl<F: Fn(&str) -> bool> VisitMut for Round<F> {
        fn adaptable(&mut self, path: &Path, layer: Adaptable<'_>) -> Result<()> {
            if let (Some(rounds), true) = (layer.rounds, (self.0)(path.as_str())) {
                *rounds = true;
                self.1.push(path.as_str().to_owned());
            }
            Ok(())
        }
    }
    let mut visitor = Round(select, Vec::new());
    module.visit_mut(&mut Path::default(), &mut visitor)?;
    Ok(visitor.1)
}
