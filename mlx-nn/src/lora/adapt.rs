//! Visitors that attach adapters to the layers of a module, detach them, and fuse them into the matrices.

use mlx_core::ops::create::zeros;
use mlx_core::ops::quantize::quantize_with;
use mlx_core::{DType, Error, ErrorKind, Result, random};

use super::{Adaptable, Layout, Lora, row_lengths};
use crate::module::{Module, Param, Path, VisitMut};
use crate::weight::Weight;

/// The settings of new adapters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoraConfig {
    /// The number of columns of A and of rows of B.
    pub rank: i32,
    /// The factor of the product A B: alpha / rank.
    pub scale: f32,
    /// The fraction of the inputs that training drops, below 1.
    pub dropout: f32,
    /// The dtype of A and B.
    pub dtype: DType,
    /// Whether each row has a learned magnitude: DoRA.
    pub dora: bool,
}

impl Default for LoraConfig {
    /// mlx-lm's: rank 8, scale 20, no dropout, F32, no magnitudes.
    fn default() -> Self {
        Self {
            rank: 8,
            scale: 20.0,
            dropout: 0.0,
            dtype: DType::F32,
            dora: false,
        }
    }
}

impl LoraConfig {
    fn check(&self) -> Result<()> {
        let wrong = |message: String| Err(Error::new(ErrorKind::Invalid, message));
        if self.rank < 1 {
            return wrong(format!("rank must be at least 1, given {}", self.rank));
        }
        if !self.scale.is_finite() {
            return wrong(format!("scale must be finite, given {}", self.scale));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            let given = self.dropout;
            return wrong(format!("dropout must be in [0, 1), given {given}"));
        }
        if !matches!(self.dtype, DType::F32 | DType::BF16 | DType::F16) {
            let given = self.dtype;
            return wrong(format!(
                "the dtype of adapters must be F32, BF16 or F16, given {given}"
            ));
        }
        Ok(())
    }
}

/// Attaches a new adapter to every linear layer, embedding and stack of experts whose path `select` accepts. Returns
/// their paths. A tied head shares the embedding's adapter.
///
/// A is uniform in ±1/√in, for an embedding in ±1/√V (mlx-lm's choices), and B is zero, so the module computes the same
/// as before. Only the arrays of adapters are trainable.
///
/// ```
/// use mlx_core::{Result, random};
/// use mlx_nn::{Linear, LoraConfig, Module, lora::attach};
///
/// # fn main() -> Result<()> {
/// #[derive(Module)]
/// struct Mlp { l1: Linear, l2: Linear }
/// let mut mlp = Mlp { l1: Linear::new(16, 16, true)?, l2: Linear::new(16, 4, true)? };
/// let taken = attach(&mut mlp, &LoraConfig::default(), &random::Key::new(7)?, |path| path == "l2")?;
/// assert_eq!(taken, ["l2"]);
/// assert!(mlp.trainable_parameters().keys().all(|name| name.contains("lora")));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The configuration is out of range, or `select` accepts no layer; then the message lists the layers.
pub fn attach(
    module: &mut dyn Module,
    config: &LoraConfig,
    key: &random::Key,
    select: impl Fn(&str) -> bool,
) -> Result<Vec<String>> {
    struct Attach<'a, F> {
        config: &'a LoraConfig,
        key: random::Key,
        select: F,
        taken: Vec<String>,
        passed: Vec<String>,
    }
    impl<F: Fn(&str) -> bool> VisitMut for Attach<'_, F> {
        fn adaptable(&mut self, path: &Path, layer: Adaptable<'_>) -> Result<()> {
            let name = path.as_str().to_owned();
            if !(self.select)(&name) {
                self.passed.push(name);
                return Ok(());
            }
            let [now, later] = self.key.split()?;
            self.key = later;
            let lora = new_lora(layer.layout, layer.weight, self.config, &now)
                .map_err(|error| error.context(&name))?;
            *layer.lora = Some(Box::new(lora));
            self.taken.push(name);
            Ok(())
        }

        fn param(&mut self, path: &Path, param: &mut Param) -> Result<()> {
            let name = path.as_str();
            let owner = name.rsplit_once('.').map(|(owner, _)| owner);
            // The layer's adapter is visited right after the layer.
            param.trainable = is_adapter(name)
                && owner.is_some_and(|owner| self.taken.iter().any(|name| name == owner));
            Ok(())
        }
    }
    config.check()?;
    let mut visitor = Attach {
        config,
        key: key.clone(),
        select,
        taken: Vec::new(),
        passed: Vec::new(),
    };
    module.visit_mut(&mut Path::default(), &mut visitor)?;
    if visitor.taken.is_empty() {
        let known: Vec<&str> = visitor.passed.iter().take(8).map(String::as_str).collect();
        let message = format!(
            "no layer is chosen for an adapter; the module has {}: {}{}",
            visitor.passed.len(),
            known.join(", "),
            if visitor.passed.len() > 8 {
                ", …"
            } else {
                ""
            },
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(visitor.taken)
}

/// Whether a parameter of this name belongs to an adapter.
pub fn is_adapter(name: &str) -> bool {
    matches!(name.rsplit('.').next(), Some("lora_a" | "lora_b" | "m"))
}

fn new_lora(
    layout: Layout,
    weight: &Weight,
    config: &LoraConfig,
    key: &random::Key,
) -> Result<Lora> {
    let shape = weight.shape();
    let Some([of_a, of_b, _]) = layout.shapes(&shape, config.rank) else {
        let message = format!("an adapter needs a matrix, found {shape:?}");
        return Err(Error::new(ErrorKind::Shape, message));
    };
    let spread = (layout.inputs(&shape) as f32).sqrt().recip();
    let a = random::uniform(key, -spread, spread, &of_a, DType::F32)?;
    let mut lora = Lora {
        layout,
        lora_a: Param::fixed(a.astype(config.dtype)?),
        lora_b: Param::fixed(zeros(&of_b, config.dtype)?),
        m: None,
        scale: config.scale,
        dropout: config.dropout,
        key: None,
    };
    if config.dora {
        // The layer divides by the same expression, so the quotient of a new adapter is exactly 1.
        lora.m = Some(Param::fixed(row_lengths(&lora.adapted(weight)?)?));
    }
    Ok(lora)
}

/// Detaches every adapter. Returns the adapters with the paths of their layers.
///
/// # Errors
/// An array that the module derives from its parameters cannot be made.
pub fn detach(module: &mut dyn Module) -> Result<Vec<(String, Lora)>> {
    struct Detach(Vec<(String, Lora)>);
    impl VisitMut for Detach {
        fn adaptable(&mut self, path: &Path, layer: Adaptable<'_>) -> Result<()> {
            if let Some(lora) = layer.lora.take() {
                self.0.push((path.as_str().to_owned(), *lora));
            }
            Ok(())
        }
    }
    let mut visitor = Detach(Vec::new());
    module.visit_mut(&mut Path::default(), &mut visitor)?;
    Ok(visitor.0)
}

/// Adds every adapter to its layer's matrix. Returns the number of layers.
///
/// The sum is computed in F32. A dense matrix keeps its dtype. A quantised one is packed again in its scheme, which
/// rounds; with `dequantize` it stays dense, in the dtype of its scales (BF16 if these are not floating point).
///
/// # Errors
/// An adapter does not fit its layer.
pub fn fuse(module: &mut dyn Module, dequantize: bool) -> Result<usize> {
    struct Fuse {
        dequantize: bool,
        layers: usize,
    }
    impl VisitMut for Fuse {
        fn adaptable(&mut self, path: &Path, layer: Adaptable<'_>) -> Result<()> {
            let Some(lora) = layer.lora.take() else {
                return Ok(());
            };
            if layer.rounds.is_some_and(|rounds| *rounds) {
                let message = format!(
                    "{}: an adapter cannot be fused into a layer that rounds its inputs",
                    path.as_str()
                );
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            *layer.weight = fused(&lora, layer.weight, self.dequantize)
                .map_err(|error| error.context(path.as_str()))?;
            self.layers += 1;
            Ok(())
        }
    }
    let mut visitor = Fuse {
        dequantize,
        layers: 0,
    };
    module.visit_mut(&mut Path::default(), &mut visitor)?;
    Ok(visitor.layers)
}

/// The largest number of an nvfp4 matrix without a factor: the largest scale times the largest code.
const LARGEST_NVFP4: f32 = 448.0 * 6.0;

fn fused(lora: &Lora, weight: &Weight, dequantize: bool) -> Result<Weight> {
    let sum = lora.fused(weight)?;
    match weight {
        Weight::Dense(dense) => {
            let sum = sum.astype(dense.value().dtype())?;
            Ok(Weight::Dense(Param::fixed(sum)))
        }
        Weight::Quantized {
            scales,
            factor,
            scheme,
            ..
        } => {
            let stored = scales.value().dtype();
            let dtype = if stored.is_float() {
                stored
            } else {
                DType::BF16
            };
            let sum = sum.astype(dtype)?;
            if dequantize {
                return Ok(Weight::Dense(Param::fixed(sum)));
            }
            // The factor keeps the scales of nvfp4 in the range of 8 bits. Affine scales need none.
            let factor = factor.as_ref().filter(|_| !scheme.mode.has_biases());
            let factor = factor.map(|factor| {
                let largest = sum.astype(DType::F32)?.abs()?.max(-1, false)?;
                largest.divide(LARGEST_NVFP4)?.maximum(factor.value())
            });
            let factor = factor.transpose()?;
            let rows = match &factor {
                Some(factor) => sum.divide(factor.expand_dims(-1)?)?,
                None => sum,
            };
            let packed = quantize_with(&rows, *scheme)?;
            Ok(Weight::Quantized {
                packed: Param::fixed(packed.packed),
                scales: Param::fixed(packed.scales),
                biases: packed.biases.map(Param::fixed),
                factor: factor.map(|factor| Box::new(Param::fixed(factor).never_narrowed())),
                residues: None,
                scheme: *scheme,
            })
        }
    }
}

/// Gives every adapter a dropout key of its own; `None` ends dropout.
///
/// # Errors
/// No memory for a handle.
pub fn set_dropout_key(module: &mut dyn Module, key: Option<&random::Key>) -> Result<()> {
    struct DropoutKeys(Option<random::Key>);
    impl VisitMut for DropoutKeys {
        fn adaptable(&mut self, _path: &Path, layer: Adaptable<'_>) -> Result<()> {
            let Some(lora) = layer.lora else {
                return Ok(());
            };
            lora.key = None;
            if let Some(key) = self.0.as_ref().filter(|_| lora.dropout > 0.0) {
                let [now, later] = key.split()?;
                lora.key = Some(now);
                self.0 = Some(later);
            }
            Ok(())
        }
    }
    module.visit_mut(&mut Path::default(), &mut DropoutKeys(key.cloned()))
}
