//! Vectorisation of functions of some arguments.

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;

use super::function::{Function, Inputs, Run, Signature, Transformed};
use super::tree::{Structure, Tree};
use super::vmap::mapped;
use crate::error::{Error, ErrorKind, Result};

/// The function that applies `f` to every slice of its arguments along their first axes, in one graph. The results are
/// joined along a new first axis.
///
/// [`in_axes`](Vmap::in_axes) and [`out_axes`](Vmap::out_axes) choose other axes, and arguments that every call sees whole.
///
/// ```
/// use mlx_core::{Array, vmap};
///
/// # fn main() -> mlx_core::Result<()> {
/// let rows = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// let dot = vmap(|a: &Array, b: &Array| a.multiply(b)?.sum_all());
/// assert_eq!(dot(&rows, &rows)?.to_vec::<f32>()?, [5.0, 25.0]);
///
/// let v = Array::from_slice(&[1.0f32, 10.0], &[2])?;
/// let by_one = dot.in_axes([Some(1), None]);
/// assert_eq!(by_one(&rows, &v)?.to_vec::<f32>()?, [31.0, 42.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The returned function fails where `f` does or reads an array; axes are out of range, of different sizes, of size 0, or
/// all `None`; or an operation has no vectorised form.
pub fn vmap<'f, S, F>(f: F) -> Vmap<'f, S>
where
    S: Signature,
    F: Function<S> + 'f,
{
    let function: Run<'f, S> = Rc::new(move |inputs: &Inputs| f.run(inputs));
    Vmap::new(function, Mapped::All(Some(0)), Mapped::All(Some(0)))
}

/// The mapped axis of each argument or result: one for all, or a list. `None` is mapped over no axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mapped {
    /// The same for all.
    All(Option<i32>),
    /// One each.
    Each(Vec<Option<i32>>),
}

impl From<i32> for Mapped {
    fn from(axis: i32) -> Self {
        Mapped::All(Some(axis))
    }
}

impl<const N: usize> From<[i32; N]> for Mapped {
    fn from(axes: [i32; N]) -> Self {
        Mapped::Each(axes.into_iter().map(Some).collect())
    }
}

impl<const N: usize> From<[Option<i32>; N]> for Mapped {
    fn from(axes: [Option<i32>; N]) -> Self {
        Mapped::Each(axes.to_vec())
    }
}

impl From<Vec<Option<i32>>> for Mapped {
    fn from(axes: Vec<Option<i32>>) -> Self {
        Mapped::Each(axes)
    }
}

impl Mapped {
    /// The axis of each of `count` arguments or results.
    fn list(&self, what: &str, of: &str, count: usize) -> Result<Vec<Option<i32>>> {
        match self {
            Mapped::All(axis) => Ok(vec![*axis; count]),
            Mapped::Each(axes) if axes.len() == count => Ok(axes.clone()),
            Mapped::Each(axes) => {
                let message = format!("vmap got {} {what} for {count} {of}", axes.len());
                Err(Error::new(ErrorKind::Invalid, message))
            }
        }
    }
}

/// A vectorised function: the result of [`vmap`], called as a closure.
pub struct Vmap<'f, S: Signature> {
    function: Run<'f, S>,
    in_axes: Mapped,
    out_axes: Mapped,
    made: Transformed<'f, S>,
}

impl<'f, S: Signature> Vmap<'f, S> {
    fn new(function: Run<'f, S>, in_axes: Mapped, out_axes: Mapped) -> Self {
        let (inner, ins, outs) = (function.clone(), in_axes.clone(), out_axes.clone());
        let made = Transformed::new(move |inputs: &Inputs| map::<S>(&inner, &ins, &outs, inputs));
        Self {
            function,
            in_axes,
            out_axes,
            made,
        }
    }

    /// The axis of each argument, for all arrays in it: a number for all arguments, or a list.
    pub fn in_axes(self, axes: impl Into<Mapped>) -> Self {
        Self::new(self.function, axes.into(), self.out_axes)
    }

    /// Where the mapped axis goes: a number for all arrays of the result, or a list with one for each of them. `None` is for
    /// an array that depends on no mapped argument.
    pub fn out_axes(self, axes: impl Into<Mapped>) -> Self {
        Self::new(self.function, self.in_axes, axes.into())
    }
}

fn map<S: Signature>(
    function: &Run<'_, S>,
    in_axes: &Mapped,
    out_axes: &Mapped,
    inputs: &Inputs,
) -> Result<S::Output> {
    let of_arguments = in_axes.list("in_axes", "arguments", inputs.structures.len())?;
    let of_arrays: Vec<Option<i32>> = of_arguments
        .iter()
        .zip(&inputs.structures)
        .flat_map(|(&axis, structure)| vec![axis; structure.count()])
        .collect();
    let form = RefCell::new(Structure::Array);
    let results = RefCell::new(Vec::new());
    let flat = |arrays: &[crate::Array]| {
        let result = function(&Inputs::with(&inputs.structures, arrays))?;
        let structure = result.structure();
        results.replace(out_axes.list("out_axes", "outputs", structure.count())?);
        form.replace(structure);
        let mut outputs = Vec::new();
        result.flatten(&mut outputs);
        Ok(outputs)
    };
    let outputs = mapped(flat, &inputs.arrays, &of_arrays, |_| {
        results.borrow().clone()
    })?;
    S::Output::build(&form.borrow(), &mut outputs.into_iter())
}

impl<'f, S: Signature> Deref for Vmap<'f, S> {
    type Target = S::Call<'f>;

    fn deref(&self) -> &Self::Target {
        &self.made
    }
}

impl<S: Signature> Function<S> for Vmap<'_, S> {
    fn run(&self, inputs: &Inputs) -> Result<S::Output> {
        self.made.run(inputs)
    }
}
