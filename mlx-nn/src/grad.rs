//! Losses of modules, differentiated with respect to their trainable parameters.

use std::collections::BTreeMap;

use mlx_core::transforms;
use mlx_core::{Array, Error, ErrorKind, Result};

use crate::module::{Module, Param, Path, VisitMut};
use crate::training::{Scope, Updates};

/// Gradients by the names of their parameters.
pub type Gradients = BTreeMap<String, Array>;

/// What a differentiated function returns: the loss, a scalar, followed by any arrays that are only
/// passed on.
pub trait Outputs: Sized {
    /// The arrays in order. The loss is the first.
    fn into_arrays(self) -> Vec<Array>;
    /// The same outputs with other arrays, as many as [`into_arrays`](Self::into_arrays) gave.
    ///
    /// # Errors
    /// There are more or fewer arrays.
    fn from_arrays(arrays: Vec<Array>) -> Result<Self>;
}

impl Outputs for Array {
    fn into_arrays(self) -> Vec<Array> {
        vec![self]
    }

    fn from_arrays(arrays: Vec<Array>) -> Result<Self> {
        let [array] = Outputs::from_arrays(arrays)?;
        Ok(array)
    }
}

impl Outputs for Vec<Array> {
    fn into_arrays(self) -> Vec<Array> {
        self
    }

    fn from_arrays(arrays: Vec<Array>) -> Result<Self> {
        Ok(arrays)
    }
}

impl<const N: usize> Outputs for [Array; N] {
    fn into_arrays(self) -> Vec<Array> {
        self.into()
    }

    fn from_arrays(arrays: Vec<Array>) -> Result<Self> {
        arrays.try_into().map_err(|arrays: Vec<Array>| {
            let message = format!("{} outputs instead of {N}", arrays.len());
            Error::new(ErrorKind::Mlx, message)
        })
    }
}

impl Outputs for (Array, Array) {
    fn into_arrays(self) -> Vec<Array> {
        vec![self.0, self.1]
    }

    fn from_arrays(arrays: Vec<Array>) -> Result<Self> {
        <[Array; 2]>::from_arrays(arrays).map(Into::into)
    }
}

impl Outputs for (Array, Array, Array) {
    fn into_arrays(self) -> Vec<Array> {
        vec![self.0, self.1, self.2]
    }

    fn from_arrays(arrays: Vec<Array>) -> Result<Self> {
        <[Array; 3]>::from_arrays(arrays).map(Into::into)
    }
}

/// The outputs of `loss` (an array, or several of which the first is the loss), and the gradients of the first one, a
/// scalar, with respect to every trainable parameter of `module`: same shapes, same dtypes.
///
/// The states that layers change in training mode ([`training`](crate::training)), such as the
/// statistics of a batch norm, are outputs of the differentiated function too, and are written into
/// `module` at the end. They are not evaluated.
///
/// While `loss` runs, the parameters hold placeholders, so it must not evaluate or read arrays.
/// When this function returns, with or without an error, they hold their old values again.
///
/// ```
/// use mlx_core::{Array, Result};
/// use mlx_nn::{Module, Param, value_and_grad};
///
/// #[derive(Module)]
/// struct Square { w: Param }
///
/// # fn main() -> Result<()> {
/// let mut module = Square { w: Param::new(Array::scalar(3.0f32)?) };
/// let (value, grads) = value_and_grad(&mut module, |m| m.w.value().square())?;
/// assert_eq!(value.item::<f32>()?, 9.0);
/// assert_eq!(grads["w"].item::<f32>()?, 6.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Nothing is trainable, `loss` fails or its first output is no scalar, an operation has no
/// derivative, or a layer outside of `module` changes its state. After an error the states are
/// unchanged.
pub fn value_and_grad<M: Module + ?Sized, O: Outputs>(
    module: &mut M,
    mut loss: impl FnMut(&M) -> Result<O>,
) -> Result<(O, Gradients)> {
    let (names, values) = Names::of(module)?;
    if names.is_empty() {
        return Err(Error::new(
            ErrorKind::Invalid,
            "no parameter is trainable, so that there is no gradient to take",
        ));
    }
    let argnums: Vec<usize> = (0..values.len()).collect();
    let scope = Scope::enter();
    let mut places = Vec::new();
    let lent = Lent {
        module: &mut *module,
        values: values.clone(),
    };
    let (mut outputs, grads) = transforms::value_and_grad_with(
        |tracers| {
            swap(lent.module, tracers)?;
            let mut outputs = loss(lent.module)?.into_arrays();
            let states = scope.end();
            places = states.places;
            outputs.extend(states.values);
            Ok(outputs)
        },
        &values,
        &argnums,
    )?;
    drop(lent);
    drop(scope);
    let values = outputs.split_off(outputs.len() - places.len());
    let outputs = O::from_arrays(outputs)?;
    Updates { places, values }.write(module)?;
    Ok((outputs, names.into_iter().zip(grads).collect()))
}

/// The outputs of `f`, which reads `x`, and the cotangents pulled back to `x` (first) and to the trainable parameters
/// whose names `choose` accepts. The others are constants.
///
/// # Errors
/// The errors of [`value_and_grad`], except that no parameter has to be trainable.
pub fn pull_back<M: Module + ?Sized>(
    module: &mut M,
    x: &Array,
    cotangent: &Array,
    choose: impl Fn(&str) -> bool,
    mut f: impl FnMut(&M, &Array) -> Result<Array>,
) -> Result<(Array, Array, Gradients)> {
    let (names, values) = Names::of(module)?;
    let chosen: Vec<bool> = names.iter().map(|name| choose(name)).collect();
    let pick = |all: &[Array]| -> Vec<Array> {
        let all = all.iter().zip(&chosen).filter(|(_, chosen)| **chosen);
        all.map(|(array, _)| array.clone()).collect()
    };
    let primals = [vec![x.clone()], pick(&values)].concat();
    let lent = Lent {
        module,
        values: values.clone(),
    };
    let (mut outputs, derivatives) = transforms::vjp_with(
        |tracers| {
            let mut new = tracers[1..].iter();
            let all: Vec<Array> = values
                .iter()
                .zip(&chosen)
                .map(|(value, &chosen)| {
                    if chosen { new.next() } else { None }
                        .unwrap_or(value)
                        .clone()
                })
                .collect();
            swap(lent.module, &all)?;
            Ok(vec![f(lent.module, &tracers[0])?])
        },
        &primals,
        std::slice::from_ref(cotangent),
    )?;
    drop(lent);
    let mut derivatives = derivatives.into_iter();
    let (Some(output), Some(dx)) = (outputs.pop(), derivatives.next()) else {
        return Err(Error::new(ErrorKind::Mlx, "vjp returned no arrays"));
    };
    let names = names
        .into_iter()
        .zip(&chosen)
        .filter(|(_, chosen)| **chosen);
    let grads = names.map(|(name, _)| name).zip(derivatives).collect();
    Ok((output, dx, grads))
}

/// A module whose parameters hold placeholders. Dropping this sets their values again: after
/// success, an error or a panic.
struct Lent<'m, M: Module + ?Sized> {
    module: &'m mut M,
    values: Vec<Array>,
}

impl<M: Module + ?Sized> Drop for Lent<'_, M> {
    fn drop(&mut self) {
        // Setting values fails only if visiting the module fails, and it has been visited before.
        let _ = swap(self.module, &self.values);
    }
}

/// Collects the trainable parameters in order.
#[derive(Default)]
struct Names(Vec<String>, Vec<Array>);

impl Names {
    fn of<M: Module + ?Sized>(module: &mut M) -> Result<(Vec<String>, Vec<Array>)> {
        let mut names = Self::default();
        module.visit_mut(&mut Path::default(), &mut names)?;
        Ok((names.0, names.1))
    }
}

impl VisitMut for Names {
    fn param(&mut self, path: &Path, param: &mut Param) -> Result<()> {
        if param.trainable {
            self.0.push(path.as_str().to_owned());
            self.1.push(param.value().clone());
        }
        Ok(())
    }
}

/// Sets the trainable parameters of `module`, in order, to `values`.
pub(crate) fn swap<M: Module + ?Sized>(module: &mut M, values: &[Array]) -> Result<()> {
    struct Swap<'a>(std::slice::Iter<'a, Array>);
    impl VisitMut for Swap<'_> {
        fn param(&mut self, _path: &Path, param: &mut Param) -> Result<()> {
            if param.trainable
                && let Some(value) = self.0.next()
            {
                param.set(value.clone());
            }
            Ok(())
        }
    }
    module.visit_mut(&mut Path::default(), &mut Swap(values.iter()))
}

/// `total + grads`, name by name. Sums are kept in F32.
///
/// # Errors
/// A gradient has another shape than the sum of the same name.
pub fn accumulate(total: &mut Gradients, grads: Gradients) -> Result<()> {
    for (name, grad) in grads {
        let grad = grad.astype(mlx_core::DType::F32)?;
        let sum = match total.get(&name) {
            Some(total) => total.add(&grad).map_err(|error| error.context(&name))?,
            None => grad,
        };
        total.insert(name, sum);
    }
    Ok(())
}
