//! Choosing which parameters training changes.

use mlx_core::{Array, Error, ErrorKind, Result};

use crate::module::{Module, Param, Path, Visit, VisitMut};
use crate::weight::Weight;

/// Names in which `*` stands for any run of characters: `model.layers.*.mlp.*`.
///
/// ```
/// use mlx_nn::Patterns;
/// let patterns = Patterns::new(["*.self_attn.q_proj", "lm_head"]);
/// assert!(patterns.matches("model.layers.3.self_attn.q_proj"));
/// assert!(!patterns.matches("model.layers.3.self_attn.k_proj"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patterns(Vec<String>);

impl Patterns {
    /// Patterns that match a name if one of these texts matches it.
    pub fn new<S: Into<String>>(patterns: impl IntoIterator<Item = S>) -> Self {
        Self(patterns.into_iter().map(Into::into).collect())
    }

    /// Whether one of the patterns matches the whole of `name`.
    pub fn matches(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| matches(pattern, name))
    }

    /// The patterns that match none of `names`.
    pub fn unused<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Vec<&str> {
        let mut unused: Vec<&str> = self.0.iter().map(String::as_str).collect();
        for name in names {
            unused.retain(|pattern| !matches(pattern, name));
        }
        unused
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    // Each middle part is matched at its first occurrence, which leaves the most text for the parts
    // after it.
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// The matrix that a visitor has seen last, if it is quantised. Its arrays have no gradients.
#[derive(Default)]
pub(crate) struct Packed(Option<String>);

impl Packed {
    /// Stores the matrix at `path`, whose arrays the visitor gets next.
    pub(crate) fn enter(&mut self, path: &Path, weight: &Weight) {
        self.0 = match weight {
            Weight::Dense(_) => None,
            Weight::Quantized { .. } => Some(path.as_str().to_owned()),
        };
    }

    /// Whether the parameter is an array of the quantised matrix.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.as_ref().is_some_and(|weight| {
            let array = match weight.as_str() {
                "" => Some(name),
                weight => name
                    .strip_prefix(weight)
                    .and_then(|array| array.strip_prefix('.')),
            };
            array.is_some_and(|array| {
                matches!(
                    array,
                    "weight" | "scales" | "biases" | "factor" | "residues"
                )
            })
        })
    }
}

/// Makes exactly those parameters trainable whose names `rule` accepts; buffers never are. Returns
/// the number of their elements.
///
/// ```
/// use mlx_core::Result;
/// use mlx_nn::{Linear, Module, trainable::set_trainable};
///
/// # fn main() -> Result<()> {
/// let mut layer = Linear::new(4, 2, true)?;
/// assert_eq!(set_trainable(&mut layer, |name| name == "bias")?, 2);
/// assert!(layer.trainable_parameters().keys().eq(["bias"]));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The rule accepts no parameter, or one without a gradient: a packed weight, its scales, integers. After an error some
/// parameters may already be changed.
pub fn set_trainable(module: &mut dyn Module, rule: impl Fn(&str) -> bool) -> Result<usize> {
    struct Choose<F> {
        rule: F,
        packed: Packed,
        numbers: usize,
    }
    impl<F: Fn(&str) -> bool> VisitMut for Choose<F> {
        fn weight(&mut self, path: &Path, weight: &mut Weight) -> Result<()> {
            self.packed.enter(path, weight);
            Ok(())
        }

        fn state(&mut self, _path: &Path, _state: &mut Array) -> Result<()> {
            Ok(())
        }

        fn param(&mut self, path: &Path, param: &mut Param) -> Result<()> {
            let name = path.as_str();
            param.trainable = (self.rule)(name);
            if !param.trainable {
                return Ok(());
            }
            let packed = self.packed.has(name);
            if packed || !param.value().dtype().is_float() {
                let what = if packed { "quantised" } else { "an integer" };
                let message = format!(
                    "{name} is {what} and cannot be trained; an adapter or a dequantised model can"
                );
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            self.numbers += param.size();
            Ok(())
        }
    }
    let mut visitor = Choose {
        rule,
        packed: Packed::default(),
        numbers: 0,
    };
    module.visit_mut(&mut Path::default(), &mut visitor)?;
    if visitor.numbers == 0 {
        return Err(Error::new(
            ErrorKind::Invalid,
            "nothing is chosen to be trained",
        ));
    }
    Ok(visitor.numbers)
}

/// Names and values of the trainable parameters, in the module's order.
///
/// # Errors
/// No memory for a handle.
pub fn trainable(module: &dyn Module) -> Result<Vec<(String, Array)>> {
    struct Collect(Vec<(String, Array)>);
    impl Visit for Collect {
        fn param(&mut self, path: &Path, param: &Param) -> Result<()> {
            if param.trainable {
                self.0
                    .push((path.as_str().to_owned(), param.value().clone()));
            }
            Ok(())
        }
    }
    let mut visitor = Collect(Vec::new());
    module.visit(&mut Path::default(), &mut visitor)?;
    Ok(visitor.0)
}

/// The arrays that a step of training changes: the trainable parameters, and the buffers.
pub(crate) fn changing(module: &dyn Module) -> Result<Vec<Array>> {
    struct Collect(Vec<Array>);
    impl Visit for Collect {
        fn param(&mut self, _path: &Path, param: &Param) -> Result<()> {
            if param.trainable || param.is_state() {
                self.0.push(param.value().clone());
            }
            Ok(())
        }
    }
    let mut visitor = Collect(Vec::new());
    module.visit(&mut Path::default(), &mut visitor)?;
    Ok(visitor.0)
}
