//! [`Param`]: an array with a name in the checkpoint.

use std::borrow::Cow;

use mlx_core::{Array, DType, Error, ErrorKind, Result};

use super::{Module, Path, Visit, VisitMut};
use crate::init::Initial;
use crate::shard::Cut;

/// An array with a name in the checkpoint. Gradients reach it only if it is `trainable`.
///
/// ```
/// use mlx_core::{Array, Result};
/// use mlx_nn::Param;
///
/// # fn main() -> Result<()> {
/// let bias = Param::new(Array::from_slice(&[0.5f32, -1.0], &[2])?);
/// assert!(bias.is_filled() && bias.trainable);
/// let missing = Param::empty(&[2])?.called("bias");
/// let error = missing.get().unwrap_err();
/// assert_eq!(error.to_string(), "bias [2] has no value: load it or initialise it");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Param {
    value: Array,
    shape: Vec<i32>,
    initial: Initial,
    never_narrowed: bool,
    is_state: bool,
    /// The name in errors; only a parameter without a value has one.
    vacant: Option<Cow<'static, str>>,
    /// The part of the whole array that this rank holds, if it does not hold all of it.
    cut: Option<Box<Cut>>,
    /// Whether training changes it.
    #[doc(alias = "trainable_parameter_filter")]
    pub trainable: bool,
}

impl Param {
    /// A parameter of `shape` without a value. A checkpoint sets the value, or [`initialise`](crate::init::initialise)
    /// sets it to zeros. It is not trainable.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(shape: &[i32]) -> Result<Self> {
        Self::starting(shape, Initial::Constant(0.0))
    }

    /// A parameter of `shape` without a value, and its initial value for when no checkpoint sets one. It is not
    /// trainable.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn starting(shape: &[i32], initial: Initial) -> Result<Self> {
        Ok(Self {
            initial,
            shape: shape.to_vec(),
            vacant: Some(Cow::Borrowed("a parameter")),
            ..Self::fixed(Array::from_slice::<f32>(&[], &[0])?)
        })
    }

    /// A parameter with a value. It is trainable if its numbers are floating point.
    pub fn new(value: Array) -> Self {
        Self {
            trainable: value.dtype().is_float(),
            ..Self::fixed(value)
        }
    }

    /// A parameter with a value, not trainable at first.
    pub fn fixed(value: Array) -> Self {
        Self {
            shape: value.shape().to_vec(),
            value,
            initial: Initial::Constant(0.0),
            never_narrowed: false,
            is_state: false,
            vacant: None,
            cut: None,
            trainable: false,
        }
    }

    /// A buffer as a parameter, for visitors: saved and loaded, and never trainable.
    pub fn state(value: Array) -> Self {
        Self {
            is_state: true,
            ..Self::fixed(value)
        }
    }

    /// Gives a parameter without a value its name for errors. A visitor that changes a module replaces it with the full
    /// name.
    #[must_use]
    pub fn called(mut self, name: &'static str) -> Self {
        if self.vacant.is_some() {
            self.vacant = Some(Cow::Borrowed(name));
        }
        self
    }

    /// Marks the parameter as one that keeps its stored dtype when a model is converted to 16 bits,
    /// because rounding would change the results.
    #[must_use]
    pub fn never_narrowed(mut self) -> Self {
        self.never_narrowed = true;
        self
    }

    /// The dtype of the parameter when the model is converted to `dtype`.
    pub fn dtype_in(&self, dtype: Option<DType>) -> Option<DType> {
        dtype.filter(|&dtype| !self.never_narrowed || dtype == DType::F32)
    }

    /// The array. A parameter without a value holds an empty one.
    pub fn value(&self) -> &Array {
        &self.value
    }

    /// The array, for a computation.
    ///
    /// # Errors
    /// No value was set; the message names the parameter.
    #[inline]
    pub fn get(&self) -> Result<&Array> {
        match &self.vacant {
            None => Ok(&self.value),
            Some(name) => Err(no_value(name, &self.shape)),
        }
    }

    /// The array, by value.
    pub fn into_value(self) -> Array {
        self.value
    }

    /// The shape that the module expects.
    pub fn shape(&self) -> &[i32] {
        &self.shape
    }

    /// The number of elements that the module expects.
    pub fn size(&self) -> usize {
        self.shape.iter().map(|&n| n as usize).product()
    }

    /// The initial value for when no checkpoint sets one.
    pub fn initial(&self) -> Initial {
        self.initial
    }

    /// Leaves only some of the array, of whose axis `cut.axis` it names ranges. A checkpoint has the whole array.
    pub(crate) fn cut(&mut self, cut: Cut) -> Result<()> {
        if self.is_filled() {
            self.value = cut.of(&self.value)?;
        }
        self.shape = cut.shape(&self.shape)?;
        self.cut = Some(Box::new(cut));
        Ok(())
    }

    /// The part of the whole array that this rank holds, if it does not hold all of it.
    pub(crate) fn held(&self) -> Option<&Cut> {
        self.cut.as_deref()
    }

    /// Sets the value, or this rank's part of it, from an array of the [whole shape](Self::whole_shape).
    ///
    /// # Errors
    /// The array has another shape.
    pub fn set_whole(&mut self, value: &Array) -> Result<()> {
        let value = match &self.cut {
            Some(cut) => cut.of(value)?,
            None => value.clone(),
        };
        self.set(value);
        Ok(())
    }

    /// The shape of the array in a checkpoint: [`shape`](Self::shape), unless this rank holds only a part of it.
    pub fn whole_shape(&self) -> Vec<i32> {
        match &self.cut {
            Some(cut) => cut.whole_shape(&self.shape),
            None => self.shape.clone(),
        }
    }

    /// Whether it is a buffer ([`state`](Self::state)).
    pub fn is_state(&self) -> bool {
        self.is_state
    }

    /// Whether a value was set.
    pub fn is_filled(&self) -> bool {
        self.vacant.is_none()
    }

    /// Replaces the value (with a loaded array, a cast array, a tracer).
    pub fn set(&mut self, value: Array) {
        if self.shape != value.shape() {
            self.shape = value.shape().to_vec();
        }
        self.value = value;
        self.vacant = None;
    }
}

#[cold]
fn no_value(name: &str, shape: &[i32]) -> Error {
    Error::new(
        ErrorKind::Invalid,
        format!("{name} {shape:?} has no value: load it or initialise it"),
    )
}

impl Module for Param {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        v.param(path, self)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        if self.vacant.is_some() && !path.as_str().is_empty() {
            self.vacant = Some(Cow::Owned(path.as_str().to_owned()));
        }
        v.param(path, self)
    }

    fn list<'a>(&'a self, _name: &str, _into: &mut Vec<(String, &'a dyn Module)>) {}
}
