//! Compilation of functions of some arguments.

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;

use super::compile::Compiled;
use super::function::{Function, Inputs, Run, Signature, Transformed};
use super::tree::{Structure, Tree};
use crate::array::Array;
use crate::dtype::DType;
use crate::error::Result;

/// The function `f`, compiled: **on CPUs this does nothing unless [`set_enabled`](super::compile::set_enabled) switches
/// compilation on**, because MLX would run a C++ compiler and load what it writes from a folder of predictable name. On GPUs
/// compilation is on.
///
/// `f` is traced once for each combination of shapes and dtypes of its arguments, and its graph is used again. Arrays that
/// it captures become constants, and it cannot read values; see [`Compiled`], which does the same for a function of a slice.
/// [`shapeless`](Compile::shapeless) uses one graph for all shapes.
///
/// ```
/// use mlx_core::{Array, compile};
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = Array::from_slice(&[-1.0f32, 2.0], &[2])?;
/// let f = compile(|x: &Array| x.maximum(0)?.multiply(3));
/// assert_eq!(f(&x)?.to_vec::<f32>()?, [0.0, 6.0]);
/// let g = compile(Array::gelu);
/// assert_eq!(g(&x)?.shape(), [2]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The returned function fails where `f` does, or if it evaluates or reads an array.
pub fn compile<S, F>(f: F) -> Compile<S>
where
    S: Signature,
    F: Function<S> + 'static,
{
    Compile::new(Rc::new(move |inputs: &Inputs| f.run(inputs)), false)
}

/// A compiled function: the result of [`compile`], called as a closure.
pub struct Compile<S: Signature> {
    function: Run<'static, S>,
    made: Transformed<'static, S>,
}

/// Shapes and dtypes.
type Shapes = Vec<(Vec<i32>, DType)>;

/// The programs of a function for one form of its arguments.
struct Program {
    arguments: Vec<Structure>,
    compiled: Compiled,
    /// The form of the results that was traced last.
    traced: Rc<RefCell<Option<Structure>>>,
    /// The forms of the results by the shapes and dtypes of the arguments.
    results: RefCell<Vec<(Shapes, Structure)>>,
}

impl<S: Signature> Compile<S> {
    fn new(function: Run<'static, S>, shapeless: bool) -> Self {
        let (inner, programs) = (function.clone(), RefCell::new(Vec::<Rc<Program>>::new()));
        let made = Transformed::new(move |inputs: &Inputs| {
            let known = programs
                .borrow()
                .iter()
                .find(|program| program.arguments == inputs.structures)
                .cloned();
            let program = known.unwrap_or_else(|| {
                let program = Rc::new(Program::new::<S>(inner.clone(), inputs, shapeless));
                programs.borrow_mut().push(program.clone());
                program
            });
            program.call::<S>(inputs)
        });
        Self { function, made }
    }

    /// Uses one graph for all shapes with the same pattern: right for elementwise functions only.
    /// For each new shape the function builds its own graph once, so that its errors are found.
    /// Operations that cannot follow a new shape are an error, but shapes that the function worked
    /// out itself stay those of the first call.
    pub fn shapeless(self) -> Self {
        Self::new(self.function, true)
    }
}

impl Program {
    fn new<S: Signature>(function: Run<'static, S>, inputs: &Inputs, shapeless: bool) -> Self {
        let traced = Rc::new(RefCell::new(None));
        let (arguments, form) = (inputs.structures.clone(), traced.clone());
        let flat = move |arrays: &[Array]| {
            let result = function(&Inputs::with(&arguments, arrays))?;
            form.replace(Some(result.structure()));
            let mut outputs = Vec::new();
            result.flatten(&mut outputs);
            Ok(outputs)
        };
        Self {
            arguments: inputs.structures.clone(),
            compiled: Compiled::new(flat, shapeless),
            traced,
            results: RefCell::new(Vec::new()),
        }
    }

    fn call<S: Signature>(&self, inputs: &Inputs) -> Result<S::Output> {
        self.traced.replace(None);
        let outputs = self.compiled.call(&inputs.arrays)?;
        let mut outputs = outputs.into_iter();
        if let Some(form) = S::Output::fixed() {
            return S::Output::build(&form, &mut outputs);
        }
        let shapes = inputs
            .arrays
            .iter()
            .map(|array| (array.shape().to_vec(), array.dtype()));
        let shapes: Shapes = shapes.collect();
        let mut results = self.results.borrow_mut();
        if let Some(form) = self.traced.take() {
            let form_of_result = form.clone();
            results.retain(|(known, _)| *known != shapes);
            results.push((shapes, form));
            return S::Output::build(&form_of_result, &mut outputs);
        }
        // Nothing was traced: there was a trace with these shapes, or, shapeless, with any.
        let known = results.iter().find(|(known, _)| *known == shapes);
        let form = known.or(results.first()).map(|(_, form)| form);
        S::Output::build(form.unwrap_or(&Structure::Array), &mut outputs)
    }
}

impl<S: Signature> Deref for Compile<S> {
    type Target = S::Call<'static>;

    fn deref(&self) -> &Self::Target {
        &self.made
    }
}

impl<S: Signature> Function<S> for Compile<S> {
    fn run(&self, inputs: &Inputs) -> Result<S::Output> {
        self.made.run(inputs)
    }
}
