//! `#[derive(Module)]` for the trait `Module` of `mlx-nn`. That crate re-exports the macro.

#![forbid(unsafe_code)]

mod expand;
mod field;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Implements `mlx_nn::Module` for a struct or enum: the fields are its children, under the names
/// of the fields.
///
/// Fields can be parameters (`Param`), modules, and `Option`, `Box`, `Vec`, arrays, tuples, `HashMap<String, _>` and
/// `BTreeMap<String, _>` of them; type parameters get the bound `Module`. The elements of a container are numbered or
/// named by their keys, in order: `layers.0.weight`. The one unnamed field of a struct or of an enum's variant adds
/// nothing to a name. Fields of numbers, `bool`, `char`, strings and `PhantomData` are skipped.
///
/// ```
/// use mlx_core::{Array, Result};
/// use mlx_nn::{Linear, Module, Param};
///
/// #[derive(Module)]
/// enum Block { Dense(Linear), Scale { factor: Param } }
///
/// #[derive(Module)]
/// struct Net {
///     blocks: Vec<Block>,
///     out: Option<Linear>,
///     /// Numbers are skipped.
///     heads: i32,
///     /// Saved, not trained.
///     #[module(state)]
///     steps: Array,
///     /// Other types that hold no parameters are skipped on request.
///     #[module(skip)]
///     activation: fn(&Array) -> Result<Array>,
/// }
///
/// # fn main() -> Result<()> {
/// let scale = Block::Scale { factor: Param::new(Array::scalar(2.0f32)?) };
/// let net = Net {
///     blocks: vec![Block::Dense(Linear::new(2, 2, false)?), scale],
///     out: None,
///     heads: 1,
///     steps: Array::scalar(0i32)?,
///     activation: |x| x.square(),
/// };
/// assert!(net.parameters().keys().eq(["blocks.0.weight", "blocks.1.factor", "steps"]));
/// assert!(net.trainable_parameters().keys().eq(["blocks.0.weight", "blocks.1.factor"]));
/// # Ok(())
/// # }
/// ```
///
/// | attribute | of | meaning |
/// |---|---|---|
/// | `#[module(skip)]` | a field | it holds no parameters |
/// | `#[module(state)]` | a field of type `Array`, or an `Option`, `Vec` or array of it | it is saved and loaded, and not trained |
/// | `#[module(rename = "name")]` | a field | `name` replaces the field's name in the names of parameters |
/// | `#[module(flat)]` | a field | the names of its parameters do not begin with its name |
/// | `#[module(crate = path)]` | the type | the path of `mlx_nn`, if it is not `::mlx_nn` |
///
/// A field of another type is an error at the field:
///
/// ```compile_fail,E0277
/// use mlx_core::Array;
///
/// #[derive(mlx_nn::Module)]
/// struct Layer { weight: Array }
/// ```
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand::expand(&input)
        .unwrap_or_else(|error| error.to_compile_error())
        .into()
}
