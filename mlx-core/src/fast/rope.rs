//! Rotary position embedding.

use mlx_c_sys as sys;

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{Arg, Opt, op};
use crate::ops::Operand;
use crate::poison;

/// Options of rotary position embedding that do not change between calls.
#[derive(Clone, Copy, Debug)]
pub struct Rope<'a> {
    /// How many of the first features are rotated; even, at most the last axis of the input.
    pub dims: i32,
    /// Rotates the pairs (2i, 2i + 1) as the paper does, else (i, i + dims / 2) as most
    /// checkpoints do.
    pub traditional: bool,
    /// Pair `i` turns by `position · scale · base^(-2i / dims)`. Exactly one of `base` and `freqs`
    /// is given.
    pub base: Option<f32>,
    /// Multiplies positions.
    pub scale: f32,
    /// Periods in place of `base`, `[dims / 2]`: pair `i` turns by `position · scale / freqs[i]`.
    pub freqs: Option<&'a Array>,
}

/// Rotates the first `dims` features of `x`, of shape `[B, …, L, D]`, by its positions: token `l` has position `offset + l`,
/// and pair `i` turns by `position · scale · base^(-2i / dims)`. `offset` is an integer, or an integer array `[B]`.
///
/// `traditional` rotates the pairs (2i, 2i + 1), else (i, i + dims / 2). [`rope_with`] takes periods in place of `base`.
///
/// # Errors
/// Shapes do not fit, or `dims` is odd or too large.
pub fn rope(
    x: &Array,
    dims: i32,
    traditional: bool,
    base: f32,
    scale: f32,
    offset: impl Operand,
) -> Result<Array> {
    let how = Rope {
        dims,
        traditional,
        base: Some(base),
        scale,
        freqs: None,
    };
    rope_with(x, &how, &*offset.to_array(DType::I32)?)
}

/// Rotates `x`, of shape `[B, …, L, D]`, by its positions: token `l` of row `b` has position `offsets[b] + l`.
///
/// `offsets` is an integer array `[B]`, or `[1]` or a scalar for all rows. With two axes, `[B, L]`, it has the position
/// of each token instead. Source: Su et al. 2021, "RoFormer".
///
/// # Errors
/// Shapes do not fit, `dims` is odd or too large, or not exactly one of `base` and `freqs` is given.
pub fn rope_with(x: &Array, rope: &Rope<'_>, offsets: &Array) -> Result<Array> {
    let options = sys::mlxrs_rope_options {
        dims: rope.dims,
        traditional: rope.traditional,
        base: Opt(rope.base).c(),
        scale: rope.scale,
    };
    check_positions("rope", offsets, x.shape())?;
    op!(mlxrs_fast_rope(x, offsets, rope.freqs, options))
}

/// Checks positions `[B, L]` of tokens `[B, …, L, D]`. Other offsets are checked by MLX.
fn check_positions(name: &str, offsets: &Array, shape: &[i32]) -> Result<()> {
    let found = offsets.shape();
    let [b, .., l, _] = *shape else { return Ok(()) };
    if found.len() != 2 || found == [b, l] {
        return Ok(());
    }
    let message =
        format!("{name}: positions of {b} rows of {l} tokens are [{b}, {l}], found {found:?}");
    Err(Error::new(ErrorKind::Shape, message))
}

/// A projection that becomes rotated heads of queries or keys.
///
/// [`heads`] computes it, or [`store_heads`](super::store_heads) while it writes keys into a cache.
#[derive(Clone, Copy, Debug)]
pub struct Projection<'a> {
    /// `[B, L, H · D]`
    pub x: &'a Array,
    /// `D`
    pub head_dim: i32,
    /// Weight `[D]` and epsilon of the [`rms_norm`](super::rms_norm) that each head goes through.
    pub norm: Option<(&'a Array, f32)>,
    /// How many of the first features of a head are rotated.
    pub dims: i32,
    /// Periods, `[dims / 2]`, as [`Rope::freqs`].
    pub freqs: &'a Array,
    /// The position of each row's first token, or of each token, as in [`rope_with`].
    pub offsets: &'a Array,
}

impl Projection<'_> {
    /// `[B, H, L, D]`
    pub(super) fn heads_shape(&self) -> Result<[i32; 4]> {
        let [b, l, width] = self.x.dims()?;
        let d = self.head_dim;
        Ok([b, if d < 1 { 0 } else { width / d }, l, d])
    }
}

impl Arg for Projection<'_> {
    type C = sys::mlxrs_projection;
    fn c(&self) -> Self::C {
        sys::mlxrs_projection {
            x: self.x.c(),
            weight: self.norm.map(|(weight, _)| weight).c(),
            freqs: self.freqs.c(),
            offsets: self.offsets.c(),
            head_dim: self.head_dim,
            dims: self.dims,
            eps: self.norm.map_or(0.0, |(_, eps)| eps),
        }
    }
    fn check(&self) -> Result<()> {
        let weight = self.norm.map(|(weight, _)| weight);
        let all = [self.x, self.freqs, self.offsets];
        all.into_iter().chain(weight).try_for_each(poison::check)?;
        let (head_dim, dims, shape) = (self.head_dim, self.dims, self.x.shape());
        if let [b, l, _] = *shape {
            check_positions("heads", self.offsets, &[b, 1, l, head_dim])?;
        }
        let fault = match *shape {
            [_, _, width] if head_dim < 1 || width < 1 || width % head_dim != 0 => {
                format!("an axis of {width} does not divide into heads of {head_dim}")
            }
            [_, _, _] if dims < 0 || dims > head_dim || dims % 2 != 0 => {
                format!("an even number of at most {head_dim} features is rotated, given {dims}")
            }
            [_, _, _] => return Ok(()),
            _ => format!("a projection has three axes, found {shape:?}"),
        };
        Err(Error::new(ErrorKind::Shape, format!("heads: {fault}")))
    }
}

impl Arg for sys::mlxrs_rope_options {
    type C = Self;
    fn c(&self) -> Self {
        *self
    }
}

/// The heads of a projection, each normed and rotated: `[B, L, H · D]` -> `[B, H, L, D]`.
///
/// # Errors
/// `head_dim` does not divide the last axis, or as [`rms_norm`](super::rms_norm) and [`rope`].
pub fn heads(of: &Projection<'_>) -> Result<Array> {
    op!(mlxrs_fast_heads(of))
}
