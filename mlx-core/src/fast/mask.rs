//! Which keys a query sees: one type, from models to kernels.

use std::cell::RefCell;
use std::rc::Rc;

use mlx_c_sys as sys;

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::op;
use crate::ops::require;

/// Which stored tokens a query sees.
///
/// ```
/// use mlx_core::{Array, fast::Mask};
///
/// # fn main() -> mlx_core::Result<()> {
/// let seen = Mask::Causal.visible(2, 3)?;
/// assert_eq!(seen.to_vec::<bool>()?, [true, true, false, true, true, true]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub enum Mask {
    /// All of them.
    None,
    /// Query `l` of `L` sees stored tokens `0 ..= S - L + l`: the last query sees everything.
    Causal,
    /// Booleans (`true` is seen) or numbers to add to the scores, of a shape that broadcasts to
    /// `[B, H, L, S]`. A query from which booleans hide all keys gets the mean of the values.
    Array(Array),
    /// The stored tokens that the positions allow.
    Positions(Positions),
}

impl Mask {
    /// True where one of `queries` queries sees one of `slots` keys: Bool `[B or 1, 1, L, S]`, or the array of
    /// [`Mask::Array`].
    ///
    /// # Errors
    /// There are fewer keys than a causal mask has queries, or no memory.
    pub fn visible(&self, queries: i32, slots: i32) -> Result<Array> {
        match self {
            Self::None => crate::ops::create::ones(&[1, 1, queries, slots], DType::Bool),
            Self::Array(array) => Ok(array.clone()),
            Self::Positions(positions) => positions.dense(queries, slots),
            Self::Causal => {
                let first = Array::from_slice(&[slots - queries], &[1])?;
                Positions::new(&first, None, KeySlots::Straight).dense(queries, slots)
            }
        }
    }
}

/// A [`Mask`], or what Python takes in its place: an array, an `Option` of a reference to one, or `"causal"`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no mask",
    label = "not a mask",
    note = "a mask is `Mask::Causal` or `\"causal\"`, `Mask::None` or `None`, `&Array` of Bool or of numbers to add, or another `Mask`"
)]
pub trait IntoMask {
    /// The mask.
    ///
    /// # Errors
    /// A text is not "causal".
    fn into_mask(self) -> Result<Mask>;
}

impl IntoMask for Mask {
    fn into_mask(self) -> Result<Mask> {
        Ok(self)
    }
}

impl IntoMask for Array {
    fn into_mask(self) -> Result<Mask> {
        Ok(Mask::Array(self))
    }
}

impl IntoMask for &Array {
    fn into_mask(self) -> Result<Mask> {
        Ok(Mask::Array(self.clone()))
    }
}

impl IntoMask for Option<&Array> {
    fn into_mask(self) -> Result<Mask> {
        self.map_or(Ok(Mask::None), IntoMask::into_mask)
    }
}

impl IntoMask for &str {
    fn into_mask(self) -> Result<Mask> {
        require(
            self == "causal",
            "attention",
            "mask",
            "\"causal\" if it is a text",
            self,
        )?;
        Ok(Mask::Causal)
    }
}

/// The positions of queries and keys, in place of a mask array: a query sees keys at its own position and before it.
///
/// In [`Form::Cpu`](super::Form::Cpu) keys that no query sees cost nothing. The plain form makes a dense mask, once for
/// all clones: the layers of a step share clones of one value.
///
/// ```
/// use mlx_core::{Array, fast::{KeySlots, Mask, Positions}};
///
/// # fn main() -> mlx_core::Result<()> {
/// let offsets = Array::from_slice(&[2i32], &[1])?; // the position of the first query
/// let positions = Positions::new(&offsets, Some(2), KeySlots::Straight);
/// let seen = Mask::Positions(positions).visible(1, 4)?;
/// assert_eq!(seen.to_vec::<bool>()?, [false, true, true, false]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Positions {
    /// The position of each row's first query: I32 `[B]`, or `[1]` for all rows. The others follow.
    pub(super) offsets: Array,
    /// Only the last `window` positions are seen, including the query's own.
    window: Option<i32>,
    /// Where the keys are.
    pub(super) slots: KeySlots,
    /// The dense mask, once a caller has asked for it.
    dense: Rc<RefCell<Option<Dense>>>,
}

/// The number of queries and slots, and their mask.
type Dense = ([i32; 2], Array);

/// The position of the key in slot `j` of `S`.
///
/// ```
/// use mlx_core::{Array, fast::{KeySlots, Mask, Positions}};
///
/// # fn main() -> mlx_core::Result<()> {
/// // A ring of four slots, of which position 5 has the second.
/// let offsets = Array::from_slice(&[5i32], &[1])?;
/// let ring = Positions::new(&offsets, Some(2), KeySlots::Ring);
/// let seen = Mask::Positions(ring).visible(1, 4)?;
/// assert_eq!(seen.to_vec::<bool>()?, [true, true, false, false]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeySlots {
    /// Position `j`. Slots behind the last query's position may hold anything finite.
    Straight,
    /// The last position congruent to `j` modulo `S`, the queries' own included: a ring.
    Ring,
    /// Position `offset - (S - L) + j`: the latest `S` positions, the `L` new tokens among them, in order.
    Latest,
}

impl KeySlots {
    pub(super) fn raw(self) -> sys::mlxrs_slots {
        match self {
            Self::Straight => sys::MLXRS_SLOTS_STRAIGHT,
            Self::Ring => sys::MLXRS_SLOTS_RING,
            Self::Latest => sys::MLXRS_SLOTS_BEHIND,
        }
    }
}

impl Positions {
    /// `offsets`: the position of each row's first query, I32 `[B]`, or `[1]` for all rows; the other queries follow.
    /// With a window, only the last `window` positions are seen, including the query's own.
    pub fn new(offsets: &Array, window: Option<i32>, slots: KeySlots) -> Self {
        Self {
            offsets: offsets.clone(),
            window,
            slots,
            dense: Rc::default(),
        }
    }

    /// The window, if there is one.
    pub fn window(&self) -> Option<i32> {
        self.window
    }

    pub(super) fn raw_window(&self) -> i32 {
        self.window.unwrap_or(0)
    }

    /// True where a query sees a key: `[B or 1, 1, L, S]`.
    pub(super) fn dense(&self, queries: i32, slots: i32) -> Result<Array> {
        let sizes = [queries, slots];
        if let Some((made, mask)) = &*self.dense.borrow()
            && *made == sizes
        {
            return Ok(mask.clone());
        }
        let (offsets, window) = (&self.offsets, self.raw_window());
        let kind = self.slots.raw();
        let mask = op!(mlxrs_fast_dense_mask(offsets, queries, slots, kind, window))?;
        *self.dense.borrow_mut() = Some((sizes, mask.clone()));
        Ok(mask)
    }

    pub(super) fn check(&self, q: &Array, k: &Array) -> Result<()> {
        let ([rows, _, queries, _], [_, _, slots, _]) = (q.dims::<4>()?, k.dims::<4>()?);
        let fault = if self.offsets.dtype() != DType::I32
            || !(self.offsets.size() == 1 || self.offsets.shape() == [rows])
        {
            let (dtype, shape) = (self.offsets.dtype(), self.offsets.shape());
            format!("offsets must be I32 of one number or {rows}, found {dtype} {shape:?}")
        } else if self.window.is_some_and(|window| window < 1) {
            format!("a window must be at least 1, given {:?}", self.window)
        } else if slots < queries {
            format!("{slots} slots cannot hold {queries} queries' own keys")
        } else {
            return Ok(());
        };
        Err(Error::new(
            ErrorKind::Shape,
            format!("attention by positions: {fault}"),
        ))
    }
}
