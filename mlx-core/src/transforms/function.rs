//! Functions of one to eight arguments, and what a transform makes of them.

use std::borrow::Borrow;
use std::ops::Deref;
use std::rc::Rc;

use super::tree::{Structure, Tree};
use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};

/// The arguments of a call: their forms, and the arrays in all of them, in order.
#[derive(Clone, Debug)]
pub struct Inputs {
    pub(super) structures: Vec<Structure>,
    pub(super) arrays: Vec<Array>,
}

impl Inputs {
    /// The same arguments with other arrays.
    pub(super) fn with(structures: &[Structure], arrays: &[Array]) -> Self {
        Self {
            structures: structures.to_vec(),
            arrays: arrays.to_vec(),
        }
    }

    /// The numbers of the arrays in argument `index`.
    pub(super) fn range(&self, index: usize) -> std::ops::Range<usize> {
        let mut counts = self.structures.iter().map(Structure::count);
        let start = counts.by_ref().take(index).sum();
        start..start + counts.next().unwrap_or_default()
    }

    pub(super) fn push(&mut self, tree: &(impl Tree + ?Sized)) {
        self.structures.push(tree.structure());
        tree.flatten(&mut self.arrays);
    }
}

/// A function of a [`Signature`] with its arguments as one list.
pub type Run<'f, S> = Rc<dyn Fn(&Inputs) -> Result<<S as Signature>::Output> + 'f>;

/// A result: a tree that owns its arrays.
pub trait Output: Tree<Owned = Self> + Sized + 'static {}
impl<T: Tree<Owned = T> + 'static> Output for T {}

/// The arguments and the result of a function, as the type of a function pointer: `fn(&Array, &[Array]) -> Array`. The
/// function itself returns `Result` of that.
pub trait Signature: Sized + 'static {
    /// What the function returns.
    type Output: Output;
    /// The type of the first argument.
    type First: Tree + ?Sized;
    /// The arguments with arrays of their own; a single argument is not in a tuple.
    type Owned: Output;
    /// The same arguments, and another result.
    type Returning<R: Output>: Signature<Output = R, First = Self::First, Owned = Self::Owned>;
    /// A function that can be called.
    type Call<'f>: ?Sized;
    /// The number of arguments.
    const ARITY: usize;

    #[doc(hidden)]
    fn callable<'f>(run: Run<'f, Self>) -> Box<Self::Call<'f>>;
}

/// Signatures of one to four arguments, which can have a derivative of their own.
pub trait Differentiable: Signature {
    /// The arguments, then one of the result's type; the result is one derivative for each argument.
    type Pullback: Signature<Output = Self::Owned>;
    /// The arguments, then one tangent of the type of each; the result is the tangent of the result.
    type Pushforward: Signature<Output = Self::Output>;
}

/// Signatures whose arguments have the same type.
pub trait Uniform: Signature {}

/// A function that transforms take: a closure or function of one to eight references to [`Tree`]s that returns `Result` of a
/// [`Tree`], or what a transform made. The types of a closure's arguments must be written: `|x: &Array| …`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no function that can be transformed",
    note = "write the types of the arguments, which are references: `|x: &Array, y: &Array| (x * y)?.sum_all()`",
    note = "the function returns `Result` of an `Array`, or of a vector, tuple or map of arrays, and takes one to eight arguments",
    note = "a function of a slice that returns a vector, with its arguments: `grad_with(|x| …, &[x, y], &[0])`"
)]
pub trait Function<S: Signature> {
    #[doc(hidden)]
    fn run(&self, inputs: &Inputs) -> Result<S::Output>;
}

macro_rules! arities {
    ($($count:literal: $owned:ty, $([$name:ident $var:ident])+;)*) => { $(
        impl<$($name: Tree + ?Sized + 'static,)+ R: Output> Signature for fn($(&$name),+) -> R {
            type Output = R;
            type First = arities!(@first $($name)+);
            type Owned = $owned;
            type Returning<Q: Output> = fn($(&$name),+) -> Q;
            type Call<'f> = dyn Fn($(&$name),+) -> Result<R> + 'f;
            const ARITY: usize = $count;

            fn callable<'f>(run: Run<'f, Self>) -> Box<Self::Call<'f>> {
                Box::new(move |$($var: &$name),+| {
                    let mut inputs = Inputs { structures: Vec::new(), arrays: Vec::new() };
                    $( inputs.push($var); )+
                    run(&inputs)
                })
            }
        }

        impl<Func, $($name: Tree + ?Sized + 'static,)+ R: Output> Function<fn($(&$name),+) -> R> for Func
        where
            Func: Fn($(&$name),+) -> Result<R>,
        {
            fn run(&self, inputs: &Inputs) -> Result<R> {
                let mut arrays = inputs.arrays.iter().cloned();
                let mut structures = inputs.structures.iter();
                $( let $var = $name::build(structures.next().ok_or_else(missing)?, &mut arrays)?; )+
                self($($var.borrow()),+)
            }
        }
    )* };
    (@first $first:ident $($rest:ident)*) => { $first };
}
arities! {
    1: A::Owned, [A a];
    2: (A::Owned, B::Owned), [A a] [B b];
    3: (A::Owned, B::Owned, C::Owned), [A a] [B b] [C c];
    4: (A::Owned, B::Owned, C::Owned, D::Owned), [A a] [B b] [C c] [D d];
    5: (A::Owned, B::Owned, C::Owned, D::Owned, E::Owned), [A a] [B b] [C c] [D d] [E e];
    6: (A::Owned, B::Owned, C::Owned, D::Owned, E::Owned, F::Owned), [A a] [B b] [C c] [D d] [E e] [F f];
    7: (A::Owned, B::Owned, C::Owned, D::Owned, E::Owned, F::Owned, G::Owned),
        [A a] [B b] [C c] [D d] [E e] [F f] [G g];
    8: (A::Owned, B::Owned, C::Owned, D::Owned, E::Owned, F::Owned, G::Owned, H::Owned),
        [A a] [B b] [C c] [D d] [E e] [F f] [G g] [H h];
}

macro_rules! differentiable {
    ($($($name:ident)+;)*) => { $(
        impl<$($name: Tree + ?Sized + 'static,)+ R: Output> Differentiable for fn($(&$name),+) -> R {
            type Pullback = fn($(&$name,)+ &R) -> Self::Owned;
            type Pushforward = fn($(&$name,)+ $(&$name),+) -> R;
        }
    )* };
}
differentiable! { A; A B; A B C; A B C D; }

macro_rules! uniform {
    ($($($name:ident)+;)*) => { $(
        impl<A: Tree + ?Sized + 'static, R: Output> Uniform for fn($(&$name),+) -> R
        where
            Self: Signature,
        {}
    )* };
}
uniform! { A; A A; A A A; A A A A; A A A A A; A A A A A A; A A A A A A A; A A A A A A A A; }

fn missing() -> Error {
    Error::new(
        ErrorKind::Closure,
        "a transformed function got too few arguments",
    )
}

/// A function that a transform made. It is called like a closure, and can be transformed again.
pub struct Transformed<'f, S: Signature> {
    run: Run<'f, S>,
    call: Box<S::Call<'f>>,
}

impl<'f, S: Signature> Transformed<'f, S> {
    pub(super) fn new(run: impl Fn(&Inputs) -> Result<S::Output> + 'f) -> Self {
        let run: Run<'f, S> = Rc::new(run);
        Self {
            call: S::callable(run.clone()),
            run,
        }
    }
}

impl<'f, S: Signature> Deref for Transformed<'f, S> {
    type Target = S::Call<'f>;

    fn deref(&self) -> &Self::Target {
        &self.call
    }
}

impl<S: Signature> Function<S> for Transformed<'_, S> {
    fn run(&self, inputs: &Inputs) -> Result<S::Output> {
        (self.run)(inputs)
    }
}
