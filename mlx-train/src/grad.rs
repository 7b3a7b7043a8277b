//! Losses of modules, differentiated with respect to their trainable parameters.

use std::collections::BTreeMap;

use mlx_core::transforms;
use mlx_core::{Array, Error, ErrorKind, Result};
use mlx_nn::{Module, Param, Path, VisitMut};

/// Gradients by the names of their parameters.
pub type Gradients = BTreeMap<String, Array>;

/// The outputs of `loss`, and the gradients of the first one, a scalar, with respect to every
/// trainable parameter of `module`: same shapes, same dtypes.
///
/// While `loss` runs, the parameters hold placeholders, so it must not evaluate or read arrays. When this function
/// returns, also with an error, they hold their old values again.
///
/// ```
/// use mlx_core::{Array, Result};
/// use mlx_nn::{Module, Param, module, trainable::set_trainable};
/// use mlx_train::grad::value_and_grad;
///
/// struct Square { w: Param }
/// module!(Square { w });
///
/// # fn main() -> Result<()> {
/// let mut module = Square { w: Param::new(Array::scalar(3.0f32)?) };
/// set_trainable(&mut module, |_| true)?;
/// let (values, grads) = value_and_grad(&mut module, |m| Ok(vec![m.w.value().square()?]))?;
/// assert_eq!(values[0].item::<f32>()?, 9.0);
/// assert_eq!(grads["w"].item::<f32>()?, 6.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Nothing is trainable, `loss` fails or its first output is no scalar, or an operation has no
/// derivative.
pub fn value_and_grad<M: Module + ?Sized>(
    module: &mut M,
    mut loss: impl FnMut(&M) -> Result<Vec<Array>>,
) -> Result<(Vec<Array>, Gradients)> {
    let (names, values) = Names::of(module)?;
    if names.is_empty() {
        return Err(Error::new(
            ErrorKind::Invalid,
            "no parameter is trainable, so that there is no gradient to take",
        ));
    }
    let argnums: Vec<usize> = (0..values.len()).collect();
    let lent = Lent {
        module,
        values: values.clone(),
    };
    let (outputs, grads) = transforms::value_and_grad_with(
        |tracers| {
            swap(lent.module, tracers)?;
            loss(lent.module)
        },
        &values,
        &argnums,
    )?;
    Ok((outputs, names.into_iter().zip(grads).collect()))
}

/// The outputs of `f`, which reads `x`, and the cotangents pulled back to `x` (first) and to the trainable parameters
/// whose names `choose` accepts. The others are constants.
///
/// # Errors
/// As [`value_and_grad`], except that nothing need be trainable.
pub(crate) fn pull_back<M: Module + ?Sized>(
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
    let (mut outputs, derivatives) = transforms::vjp(
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

/// A module whose parameters get their values back when this is dropped: after success, an error, or a panic.
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
fn swap<M: Module + ?Sized>(module: &mut M, values: &[Array]) -> Result<()> {
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
/// A gradient has another shape than the one before.
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
