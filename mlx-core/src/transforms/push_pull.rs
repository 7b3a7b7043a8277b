//! Tangents pushed forward through functions, and cotangents pulled back.

use std::cell::RefCell;

use super::function::{Function, Inputs, Signature};
use super::grad::{jvp_with, vjp_with};
use super::tree::{Structure, Tree};
use crate::array::Array;
use crate::error::Result;

/// The result of `f` at `primals`, and `cotangents`, which have the result's form and shapes, pulled back to each argument.
///
/// One argument is given alone, and several as a tuple that owns them. What `f` captures is a constant.
///
/// ```
/// use mlx_core::{Array, array, vjp};
///
/// # fn main() -> mlx_core::Result<()> {
/// let (x, dy) = (array![1.0f32, 2.0], array![1.0f32, 10.0]);
/// let (y, dx) = vjp(|x: &Array| x.square(), &x, &dy)?;
/// assert_eq!(y.to_vec::<f32>()?, [1.0, 4.0]);
/// assert_eq!(dx.to_vec::<f32>()?, [2.0, 40.0]);
///
/// let product = |x: &Array, y: &Array| x.multiply(y);
/// let (_, (dx, dy)) = vjp(product, &(x.clone(), y), &dy)?;
/// assert_eq!(dx.to_vec::<f32>()?, [1.0, 40.0]);
/// assert_eq!(dy.to_vec::<f32>()?, [1.0, 20.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `f` fails, the cotangents do not fit the result, or an operation has no derivative.
pub fn vjp<S, F>(f: F, primals: &S::Owned, cotangents: &S::Output) -> Result<(S::Output, S::Owned)>
where
    S: Signature,
    F: Function<S>,
{
    let form = RefCell::new(Structure::Array);
    let (values, derivatives) = vjp_with(
        |arrays| flat(&f, primals, arrays, &form),
        &flattened(primals),
        &flattened(cotangents),
    )?;
    let value = S::Output::build(&form.borrow(), &mut values.into_iter())?;
    let pulled = S::Owned::build(&primals.structure(), &mut derivatives.into_iter())?;
    Ok((value, pulled))
}

/// The result of `f` at `primals`, and `tangents`, which have the form and shapes of the arguments, pushed forward to it.
///
/// One argument is given alone, and several as a tuple that owns them. What `f` captures is a constant.
///
/// ```
/// use mlx_core::{Array, array, jvp};
///
/// # fn main() -> mlx_core::Result<()> {
/// let (x, dx) = (array![1.0f32, 2.0], array![1.0f32, 10.0]);
/// let (y, dy) = jvp(|x: &Array| x.square(), &x, &dx)?;
/// assert_eq!(y.to_vec::<f32>()?, [1.0, 4.0]);
/// assert_eq!(dy.to_vec::<f32>()?, [2.0, 40.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `f` fails, the tangents do not fit the arguments, or an operation has no derivative.
pub fn jvp<S, F>(f: F, primals: &S::Owned, tangents: &S::Owned) -> Result<(S::Output, S::Output)>
where
    S: Signature,
    F: Function<S>,
{
    let form = RefCell::new(Structure::Array);
    let (values, derivatives) = jvp_with(
        |arrays| flat(&f, primals, arrays, &form),
        &flattened(primals),
        &flattened(tangents),
    )?;
    let form = form.borrow();
    let value = S::Output::build(&form, &mut values.into_iter())?;
    let pushed = S::Output::build(&form, &mut derivatives.into_iter())?;
    Ok((value, pushed))
}

/// The arrays of the result of `f` for other arrays in the form of `primals`. `form` becomes that of the result.
fn flat<S: Signature>(
    f: &impl Function<S>,
    primals: &S::Owned,
    arrays: &[Array],
    form: &RefCell<Structure>,
) -> Result<Vec<Array>> {
    let structures = match primals.structure() {
        // The elements of a tuple are the arguments.
        Structure::List(items) if S::ARITY > 1 => items,
        one => vec![one],
    };
    let result = f.run(&Inputs::with(&structures, arrays))?;
    form.replace(result.structure());
    Ok(flattened(&result))
}

fn flattened(tree: &impl Tree) -> Vec<Array> {
    let mut arrays = Vec::new();
    tree.flatten(&mut arrays);
    arrays
}
