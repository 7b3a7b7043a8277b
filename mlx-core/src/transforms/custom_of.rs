//! Functions of some arguments with transforms that the caller defines, and functions whose
//! intermediate results are computed again.

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;

use mlx_c_sys as sys;

use super::custom::check_derivatives;
use super::function::{Differentiable, Function, Inputs, Run, Signature, Transformed};
use super::not_empty;
use super::tree::{Structure, Tree};
use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::closure::{Closure, CustomClosure, MapClosure, PushforwardClosure};

/// The function `f` with transforms of its own, which the methods of the result define: [`vjp`](Custom::vjp),
/// [`jvp`](Custom::jvp), [`vmap`](Custom::vmap). Those that are not defined are those of `f`.
///
/// What `f` captures is a constant.
///
/// ```
/// use mlx_core::transforms::custom_function;
/// use mlx_core::{Array, grad, vmap};
///
/// # fn main() -> mlx_core::Result<()> {
/// let f = custom_function(|x: &Array, y: &Array| x.sin()?.multiply(y))
///     .vjp(|x: &Array, y: &Array, dz: &Array| {
///         Ok((dz.multiply(&x.cos()?)?.multiply(y)?, dz.multiply(&x.sin()?)?))
///     })
///     .jvp(|x: &Array, y: &Array, dx: &Array, dy: &Array| {
///         let of_x = dx.multiply(&x.cos()?)?.multiply(y)?;
///         of_x.add(&dy.multiply(&x.sin()?)?)
///     });
/// let (x, y) = (Array::scalar(0.0f32)?, Array::scalar(3.0f32)?);
/// assert_eq!(grad(f)(&x, &y)?.item::<f32>()?, 3.0);
/// # Ok(())
/// # }
/// ```
pub fn custom_function<S, F>(f: F) -> Custom<S>
where
    S: Differentiable,
    F: Function<S> + 'static,
{
    Custom::new(Rules {
        function: Rc::new(move |inputs: &Inputs| f.run(inputs)),
        vjp: None,
        jvp: None,
        vmap: None,
    })
}

/// The function `f`, whose derivative is `vjp`: short for [`custom_function`]`(f).vjp(vjp)`.
///
/// `vjp` gets the arguments and the cotangent of the result, and returns the derivative of each
/// argument, of its shape: one array, or a tuple for several arguments. The `vjp` of
/// [`custom_vjp_with`](super::custom_vjp_with) also gets the result.
///
/// ```
/// use mlx_core::{Array, custom_vjp, grad};
///
/// # fn main() -> mlx_core::Result<()> {
/// // A step, through which gradients pass as if it were x.
/// let step = custom_vjp(|x: &Array| x.round(), |_x: &Array, dy: &Array| Ok(dy.clone()));
/// let x = Array::scalar(1.7f32)?;
/// assert_eq!(step(&x)?.item::<f32>()?, 2.0);
/// assert_eq!(grad(step)(&x)?.item::<f32>()?, 1.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The returned function fails where `f` does; its derivative fails where `vjp` does, or returns arrays of other shapes.
pub fn custom_vjp<S, F, V>(f: F, vjp: V) -> Custom<S>
where
    S: Differentiable,
    F: Function<S> + 'static,
    V: Function<S::Pullback> + 'static,
{
    custom_function(f).vjp(vjp)
}

/// The function `f`, which keeps no intermediate results for its derivative. The derivative
/// computes them again, to save memory.
///
/// Gradients flow to the arguments only: pass parameters as arguments, do not capture them. The gradient cannot be mapped
/// ([`vmap`](super::vmap())) over; the function itself can.
///
/// ```
/// use mlx_core::{Array, checkpoint, grad};
///
/// # fn main() -> mlx_core::Result<()> {
/// let f = checkpoint(|x: &Array| x.tanh()?.square()?.sum_all());
/// assert_eq!(grad(f)(&Array::scalar(0.0f32)?)?.item::<f32>()?, 0.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The returned function fails where `f` does.
pub fn checkpoint<S, F>(f: F) -> Transformed<'static, S>
where
    S: Signature,
    F: Function<S> + 'static,
{
    let function: Run<'static, S> = Rc::new(move |inputs: &Inputs| f.run(inputs));
    Transformed::new(move |inputs: &Inputs| {
        let (plain, results) = flat::<S>("checkpoint", function.clone(), inputs)?;
        // SAFETY: a live closure, a fresh out-handle; MLX keeps its own reference to `plain`.
        let closure = Closure::make(|res| unsafe { sys::mlx_checkpoint(res, plain.raw()) })?;
        let outputs = closure.call(&inputs.arrays)?;
        S::Output::build(&results.borrow().form, &mut outputs.into_iter())
    })
}

/// A vectorised form: inputs and their axes → outputs and theirs.
type Map = Rc<dyn Fn(&[Array], &[Option<i32>]) -> Result<(Vec<Array>, Vec<Option<i32>>)>>;

/// What a call of a function returned.
struct Results {
    form: Structure,
    shapes: Vec<Vec<i32>>,
}

/// `function` of a slice, for arguments of the forms of `inputs`.
fn flat<S: Signature>(
    what: &'static str,
    function: Run<'static, S>,
    inputs: &Inputs,
) -> Result<(Closure, Rc<RefCell<Results>>)> {
    let results = Rc::new(RefCell::new(Results {
        form: Structure::Array,
        shapes: Vec::new(),
    }));
    let (written, structures) = (results.clone(), inputs.structures.clone());
    let closure = Closure::keep(move |arrays| {
        let result = function(&Inputs::with(&structures, arrays))?;
        let mut outputs = Vec::new();
        result.flatten(&mut outputs);
        written.replace(Results {
            form: result.structure(),
            shapes: outputs
                .iter()
                .map(|output| output.shape().to_vec())
                .collect(),
        });
        not_empty(what, outputs)
    })?;
    Ok((closure, results))
}

/// A function and the transforms that its caller defined.
struct Rules<S: Differentiable> {
    function: Run<'static, S>,
    vjp: Option<Run<'static, S::Pullback>>,
    jvp: Option<Run<'static, S::Pushforward>>,
    vmap: Option<Map>,
}

impl<S: Differentiable> Clone for Rules<S> {
    fn clone(&self) -> Self {
        Self {
            function: self.function.clone(),
            vjp: self.vjp.clone(),
            jvp: self.jvp.clone(),
            vmap: self.vmap.clone(),
        }
    }
}

/// A function with transforms of its own: the result of [`custom_function`], called as a closure.
pub struct Custom<S: Differentiable> {
    rules: Rules<S>,
    made: Transformed<'static, S>,
}

impl<S: Differentiable> Custom<S> {
    fn new(rules: Rules<S>) -> Self {
        let inner = rules.clone();
        let made = Transformed::new(move |inputs: &Inputs| inner.call(inputs));
        Self { rules, made }
    }

    /// The derivative in reverse: `vjp` gets the arguments and the cotangent of the result, and returns the derivative of
    /// each argument, of its shape (an array, or a tuple for several arguments).
    pub fn vjp<V: Function<S::Pullback> + 'static>(self, vjp: V) -> Self {
        let vjp: Run<'static, S::Pullback> = Rc::new(move |inputs: &Inputs| vjp.run(inputs));
        Self::new(Rules {
            vjp: Some(vjp),
            ..self.rules
        })
    }

    /// The derivative forward: `jvp` gets the arguments and then a tangent for each, which is zero where there is none, and
    /// returns the tangent of the result.
    pub fn jvp<J: Function<S::Pushforward> + 'static>(self, jvp: J) -> Self {
        let jvp: Run<'static, S::Pushforward> = Rc::new(move |inputs: &Inputs| jvp.run(inputs));
        Self::new(Rules {
            jvp: Some(jvp),
            ..self.rules
        })
    }

    /// The vectorised form: `vmap` gets the arrays of all arguments with the mapped axis of each, and returns the arrays of
    /// the result with theirs. `None` is no axis.
    pub fn vmap<M>(self, vmap: M) -> Self
    where
        M: Fn(&[Array], &[Option<i32>]) -> Result<(Vec<Array>, Vec<Option<i32>>)> + 'static,
    {
        Self::new(Rules {
            vmap: Some(Rc::new(vmap)),
            ..self.rules
        })
    }
}

impl<S: Differentiable> Rules<S> {
    fn call(&self, inputs: &Inputs) -> Result<S::Output> {
        let (plain, results) = flat::<S>("a custom function", self.function.clone(), inputs)?;
        let vjp = match &self.vjp {
            Some(vjp) => Some(pullback::<S>(vjp.clone(), inputs, results.clone())?),
            None => None,
        };
        let jvp = match &self.jvp {
            Some(jvp) => pushforward::<S>(jvp.clone(), inputs, results.clone())?,
            None => PushforwardClosure::none(),
        };
        let vmap = match &self.vmap {
            Some(vmap) => map(vmap.clone(), results.clone())?,
            None => MapClosure::none(),
        };
        let none = sys::mlx_closure_custom {
            ctx: std::ptr::null_mut(),
        };
        let closure = Closure::make(|res| {
            let vjp = vjp.as_ref().map_or(none, CustomClosure::raw);
            // SAFETY: live closures or null ones, which stand for none; a fresh out-handle; MLX keeps its own references.
            unsafe { sys::mlx_custom_function(res, plain.raw(), vjp, jvp.raw(), vmap.raw()) }
        })?;
        let outputs = closure.call(&inputs.arrays)?;
        S::Output::build(&results.borrow().form, &mut outputs.into_iter())
    }
}

fn pullback<S: Differentiable>(
    vjp: Run<'static, S::Pullback>,
    inputs: &Inputs,
    results: Rc<RefCell<Results>>,
) -> Result<CustomClosure> {
    let structures = inputs.structures.clone();
    CustomClosure::keep(move |primals, cotangents, _| {
        let mut structures = structures.clone();
        structures.push(results.borrow().form.clone());
        let arrays = [primals, cotangents].concat();
        let found = vjp(&Inputs { structures, arrays })?;
        let mut derivatives = Vec::new();
        found.flatten(&mut derivatives);
        check_derivatives("a custom function", primals, &derivatives)?;
        Ok(derivatives)
    })
}

fn pushforward<S: Differentiable>(
    jvp: Run<'static, S::Pushforward>,
    inputs: &Inputs,
    results: Rc<RefCell<Results>>,
) -> Result<PushforwardClosure> {
    let structures = [&inputs.structures[..], &inputs.structures[..]].concat();
    PushforwardClosure::keep(move |primals, tangents, numbers| {
        let mut arrays = primals.to_vec();
        for (index, primal) in (0..).zip(primals) {
            arrays.push(match numbers.iter().position(|&number| number == index) {
                Some(place) => tangents.get(place).cloned().ok_or_else(no_tangent)?,
                None => primal.zeros_like()?,
            });
        }
        let structures = structures.clone();
        let found = jvp(&Inputs { structures, arrays })?;
        let mut outputs = Vec::new();
        found.flatten(&mut outputs);
        let shapes: Vec<_> = outputs
            .iter()
            .map(|output| output.shape().to_vec())
            .collect();
        let wanted = &results.borrow().shapes;
        if shapes != *wanted {
            let message = format!(
                "the jvp of a custom function must return tangents of shapes {wanted:?}, found {shapes:?}"
            );
            return Err(Error::new(ErrorKind::Shape, message));
        }
        Ok(outputs)
    })
}

fn no_tangent() -> Error {
    Error::new(
        ErrorKind::Mlx,
        "mlx gave fewer tangents than argument numbers",
    )
}

fn map(vmap: Map, results: Rc<RefCell<Results>>) -> Result<MapClosure> {
    MapClosure::keep(move |inputs, axes| {
        let in_axes: Vec<_> = axes
            .iter()
            .map(|&axis| Some(axis).filter(|&axis| axis >= 0))
            .collect();
        let (outputs, out_axes) = vmap(inputs, &in_axes)?;
        let expected = results.borrow().shapes.len();
        if outputs.len() != expected || out_axes.len() != expected {
            let message = format!(
                "the vmap of a custom function must return {expected} outputs and axes, found {} and {}",
                outputs.len(),
                out_axes.len()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        for (index, (output, axis)) in outputs.iter().zip(&out_axes).enumerate() {
            if axis.is_some_and(|axis| axis < 0 || axis as usize >= output.ndim()) {
                let shape = output.shape();
                let message = format!(
                    "the vmap of a custom function returned axis {axis:?} for output {index} of shape {shape:?}"
                );
                return Err(Error::new(ErrorKind::Invalid, message));
            }
        }
        *axes = out_axes.iter().map(|axis| axis.unwrap_or(-1)).collect();
        Ok(outputs)
    })
}

impl<S: Differentiable> Deref for Custom<S> {
    type Target = S::Call<'static>;

    fn deref(&self) -> &Self::Target {
        &self.made
    }
}

impl<S: Differentiable> Function<S> for Custom<S> {
    fn run(&self, inputs: &Inputs) -> Result<S::Output> {
        self.made.run(inputs)
    }
}
