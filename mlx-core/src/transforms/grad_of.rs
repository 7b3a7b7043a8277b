//! Derivatives of functions of some arguments.

use std::cell::RefCell;
use std::ops::{Deref, RangeFull};
use std::rc::Rc;

use super::function::{Function, Inputs, Output, Run, Signature, Transformed, Uniform};
use super::grad::value_and_grad_with;
use super::tree::{Structure, Tree};
use crate::array::Array;
use crate::error::Result;

/// The function of the gradient of `f` with respect to its first argument. `f` returns a scalar.
///
/// [`argnums`](Grad::argnums) chooses other arguments. What `f` captures is a constant.
///
/// ```
/// use mlx_core::{Array, grad};
///
/// # fn main() -> mlx_core::Result<()> {
/// let v = Array::from_slice(&[1.0f32, 2.0], &[2])?;
/// let df = grad(|x: &Array| x.square()?.sum_all());
/// assert_eq!(df(&v)?.to_vec::<f32>()?, [2.0, 4.0]);
///
/// // Of the second argument, of all, and of a derivative.
/// let f = |x: &Array, y: &Array| x.multiply(y)?.sum_all();
/// let w = Array::from_slice(&[5.0f32, 7.0], &[2])?;
/// assert_eq!(grad(f).argnums(1)(&v, &w)?.to_vec::<f32>()?, [1.0, 2.0]);
/// let (dv, _dw) = grad(f).argnums(..)(&v, &w)?;
/// assert_eq!(dv.to_vec::<f32>()?, [5.0, 7.0]);
/// let cube = |x: &Array| x.power(3);
/// assert_eq!(grad(grad(cube))(&Array::scalar(2.0f32)?)?.item::<f32>()?, 12.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The returned function fails where `f` does, if the result is no scalar, or if an operation has no derivative.
pub fn grad<'f, S, F>(f: F) -> Grad<'f, S, First>
where
    S: Signature,
    F: Function<S> + 'f,
{
    Grad::new(Rc::new(move |inputs: &Inputs| f.run(inputs)), First)
}

/// The function of the result of `f` and its gradient, as [`grad`].
///
/// `f` returns a scalar, or a tuple, vector or map whose first array is one; the others are passed through.
///
/// ```
/// use mlx_core::{Array, value_and_grad};
///
/// # fn main() -> mlx_core::Result<()> {
/// let (x, y) = (Array::scalar(3.0f32)?, Array::scalar(4.0f32)?);
/// let vdf = value_and_grad(|x: &Array, y: &Array| x.multiply(y)?.sum_all());
/// let (v, dx) = vdf(&x, &y)?;
/// assert_eq!((v.item::<f32>()?, dx.item::<f32>()?), (12.0, 4.0));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of [`grad`].
pub fn value_and_grad<'f, S, F>(f: F) -> ValueAndGrad<'f, S, First>
where
    S: Signature,
    F: Function<S> + 'f,
{
    ValueAndGrad::new(Rc::new(move |inputs: &Inputs| f.run(inputs)), First)
}

/// The arguments that a gradient is taken of: a number, or an array or vector of numbers, where all arguments have the same
/// type; `..` for all arguments.
pub trait Argnums<S: Signature>: 'static {
    /// The gradients: of one argument, an array or vector of them, or a tuple of all.
    type Grads: Output;

    #[doc(hidden)]
    fn numbers(&self) -> Vec<usize>;

    #[doc(hidden)]
    fn form(&self, of: Vec<Structure>) -> Structure;
}

/// The first argument.
#[derive(Clone, Copy, Debug)]
pub struct First;

impl<S: Signature> Argnums<S> for First {
    type Grads = <S::First as Tree>::Owned;

    fn numbers(&self) -> Vec<usize> {
        vec![0]
    }

    fn form(&self, of: Vec<Structure>) -> Structure {
        one(of)
    }
}

impl<S: Uniform> Argnums<S> for usize {
    type Grads = <S::First as Tree>::Owned;

    fn numbers(&self) -> Vec<usize> {
        vec![*self]
    }

    fn form(&self, of: Vec<Structure>) -> Structure {
        one(of)
    }
}

impl<S: Uniform, const N: usize> Argnums<S> for [usize; N] {
    type Grads = [<S::First as Tree>::Owned; N];

    fn numbers(&self) -> Vec<usize> {
        self.to_vec()
    }

    fn form(&self, of: Vec<Structure>) -> Structure {
        Structure::List(of)
    }
}

impl<S: Uniform> Argnums<S> for Vec<usize> {
    type Grads = Vec<<S::First as Tree>::Owned>;

    fn numbers(&self) -> Vec<usize> {
        self.clone()
    }

    fn form(&self, of: Vec<Structure>) -> Structure {
        Structure::List(of)
    }
}

impl<S: Signature> Argnums<S> for RangeFull {
    type Grads = S::Owned;

    fn numbers(&self) -> Vec<usize> {
        (0..S::ARITY).collect()
    }

    fn form(&self, of: Vec<Structure>) -> Structure {
        match S::ARITY {
            1 => one(of),
            _ => Structure::List(of),
        }
    }
}

/// The only form in a list.
fn one(of: Vec<Structure>) -> Structure {
    of.into_iter().next().unwrap_or(Structure::Array)
}

/// The result of `function` and the gradients of the chosen arguments.
fn derive<S: Signature, N: Argnums<S>>(
    function: &Run<'_, S>,
    argnums: &N,
    inputs: &Inputs,
) -> Result<(S::Output, N::Grads)> {
    let numbers = argnums.numbers();
    let arity = inputs.structures.len();
    if let Some(&number) = numbers.iter().find(|&&number| number >= arity) {
        let message = format!("argument number {number} is out of range for {arity} arguments");
        return Err(crate::Error::new(crate::ErrorKind::Invalid, message));
    }
    let wanted: Vec<usize> = numbers
        .iter()
        .flat_map(|&number| inputs.range(number))
        .collect();
    let form = RefCell::new(Structure::Array);
    let flat = |arrays: &[Array]| {
        let result = function(&Inputs::with(&inputs.structures, arrays))?;
        form.replace(result.structure());
        let mut outputs = Vec::new();
        result.flatten(&mut outputs);
        Ok(outputs)
    };
    let (values, grads) = value_and_grad_with(flat, &inputs.arrays, &wanted)?;
    let value = S::Output::build(&form.borrow(), &mut values.into_iter())?;
    let forms = numbers
        .iter()
        .map(|&number| inputs.structures[number].clone());
    let form = argnums.form(forms.collect());
    let grads = N::Grads::build(&form, &mut grads.into_iter())?;
    Ok((value, grads))
}

macro_rules! builders {
    ($($(#[$doc:meta])* $name:ident, $result:ty, $pick:expr;)*) => { $(
        $(#[$doc])*
        pub struct $name<'f, S: Signature, N: Argnums<S>> {
            function: Run<'f, S>,
            made: Transformed<'f, S::Returning<$result>>,
        }

        impl<'f, S: Signature, N: Argnums<S>> $name<'f, S, N> {
            fn new(function: Run<'f, S>, argnums: N) -> Self {
                let inner = function.clone();
                let made = Transformed::new(move |inputs: &Inputs| {
                    let pick: fn((S::Output, N::Grads)) -> $result = $pick;
                    derive::<S, N>(&inner, &argnums, inputs).map(pick)
                });
                Self { function, made }
            }

            /// With respect to other arguments, by their numbers; `..` for all.
            ///
            /// # Errors
            /// The function fails if there is no such argument, or one is given twice.
            pub fn argnums<M: Argnums<S>>(self, argnums: M) -> $name<'f, S, M> {
                $name::new(self.function, argnums)
            }
        }

        impl<'f, S: Signature, N: Argnums<S>> Deref for $name<'f, S, N> {
            type Target = <S::Returning<$result> as Signature>::Call<'f>;

            fn deref(&self) -> &Self::Target {
                &self.made
            }
        }

        impl<S: Signature, N: Argnums<S>> Function<S::Returning<$result>> for $name<'_, S, N> {
            fn run(&self, inputs: &Inputs) -> Result<$result> {
                self.made.run(inputs)
            }
        }
    )* };
}

builders! {
    /// A gradient: the result of [`grad`], called as a closure.
    Grad, N::Grads, |(_, grads)| grads;
    /// A result and a gradient: what [`value_and_grad`] gives, called as a closure.
    ValueAndGrad, (S::Output, N::Grads), |both| both;
}
