//! [`LayerKind`]: the kind of a layer's state, the arrays that hold it, and their bytes.

use std::fmt;

use mlx_core::{DType, Error, ErrorKind, Result, fast};

use super::CacheOptions;

/// The kind of state that a layer of a model keeps between steps.
///
/// A [`ModelCache`](super::ModelCache) has one state for each kind it is given. A layer with attention and a
/// recurrence side by side takes two, and a layer that keeps nothing takes none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Keys and values of every position.
    Full,
    /// Keys and values of the last `window` positions, including the query's own.
    Window(usize),
    /// One vector for each position. It is the key of all heads, and its first features are the value of all heads
    /// (multi-head latent attention).
    Latent,
    /// One vector of `width` numbers, in the dtype of the activations, for each of the last `window` positions
    /// ([`Step::last_vectors`](crate::Step::last_vectors)).
    LatentWindow {
        /// Positions, including the token's own.
        window: usize,
        /// Numbers of a vector.
        width: i32,
    },
    /// Arrays of a fixed size for each row, whatever its length.
    Recurrent(RecurrentShape),
}

/// The most arrays of one recurrent layer.
const MAX_PARTS: usize = 4;

/// The arrays of a recurrent layer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentShape {
    parts: [Option<StatePart>; MAX_PARTS],
    can_rerun: bool,
    has_slots: bool,
}

/// One array of a recurrent state, for one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatePart {
    /// The last `len` inputs of a causal convolution of `len + 1` taps: `[len, width]`, in the dtype of the
    /// activations.
    Window {
        /// The name of the array in files and messages.
        name: &'static str,
        /// Inputs that are kept.
        len: i32,
        /// Numbers of an input.
        width: i32,
    },
    /// A state that each token changes.
    Carry {
        /// The name of the array in files and messages.
        name: &'static str,
        /// `[heads, rows, columns]`
        shape: [i32; 3],
        /// The dtype in which the recurrence runs.
        dtype: DType,
    },
}

impl StatePart {
    /// The name of the array in files and messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Window { name, .. } | Self::Carry { name, .. } => name,
        }
    }

    /// The array's shape for `rows` rows.
    pub(crate) fn shape(&self, rows: usize) -> Vec<i32> {
        let rows = rows as i32;
        match *self {
            Self::Window { len, width, .. } => vec![rows, len, width],
            Self::Carry {
                shape: [heads, m, n],
                ..
            } => vec![rows, heads, m, n],
        }
    }

    fn dtype(&self, activations: DType) -> DType {
        match *self {
            Self::Window { .. } => activations,
            Self::Carry { dtype, .. } => dtype,
        }
    }
}

impl RecurrentShape {
    /// A state of these arrays.
    ///
    /// # Panics
    /// There are none, or more than four.
    pub const fn new(parts: &[StatePart]) -> Self {
        assert!(
            !parts.is_empty() && parts.len() <= MAX_PARTS,
            "a recurrent state has one to four arrays"
        );
        let mut shape = Self {
            parts: [None; MAX_PARTS],
            can_rerun: false,
            has_slots: false,
        };
        let mut part = 0;
        while part < parts.len() {
            shape.parts[part] = Some(parts[part]);
            part += 1;
        }
        shape
    }

    /// Declares that the layer always sets its state by [`Step::scan`](crate::Step::scan) or
    /// [`Step::gated_delta`](crate::Step::gated_delta), which can run again. Rows can then keep any
    /// number of a step's tokens, whatever the [slack](CacheOptions::slack).
    #[must_use]
    pub const fn with_rerun(mut self) -> Self {
        self.can_rerun = true;
        self
    }

    /// [`with_rerun`](Self::with_rerun) for layers that set windows by
    /// [`Step::convolve`](crate::Step::convolve), and whose operations can store the state after each token
    /// ([`Step::keep_any`](crate::Step::keep_any)).
    #[must_use]
    pub const fn with_slots(mut self) -> Self {
        self.has_slots = true;
        self.with_rerun()
    }

    /// Whether the layer can store the state [after each token](Self::with_slots).
    pub fn has_slots(&self) -> bool {
        self.has_slots
    }

    /// Whether the layer [computes its state again](Self::with_rerun) when a row keeps a part of a step.
    pub fn can_rerun(&self) -> bool {
        self.can_rerun
    }

    /// The arrays, in order.
    pub fn parts(&self) -> impl Iterator<Item = &StatePart> {
        self.parts.iter().flatten()
    }
}

impl fmt::Display for LayerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("full"),
            Self::Window(window) => write!(f, "window {window}"),
            Self::Latent => f.write_str("latent"),
            Self::LatentWindow { window, width } => {
                write!(f, "latents of {width}, window {window}")
            }
            Self::Recurrent(shape) => {
                f.write_str("recurrent")?;
                for part in shape.parts() {
                    write!(f, " {} {:?}", part.name(), &part.shape(1)[1..])?;
                }
                Ok(())
            }
        }
    }
}

/// Heads of a layer's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Key and value heads.
    pub heads: i32,
    /// Features of a key.
    pub key_dim: i32,
    /// Features of a value.
    pub value_dim: i32,
}

/// One array of one row's state in one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowPart {
    /// The name of the array within its layer.
    pub name: &'static str,
    /// Its element type.
    pub dtype: DType,
    /// Its shape for one row and, where it [grows](Self::grows), one position.
    pub shape: Vec<i32>,
    /// Whether axis 2 counts positions.
    pub grows: bool,
}

impl RowPart {
    /// Whether an array of this dtype and shape is such a part. A part that grows may have any number of positions.
    pub fn fits(&self, dtype: DType, shape: &[i32]) -> bool {
        let same = |(axis, (n, own)): (usize, (&i32, &i32))| n == own || (self.grows && axis == 2);
        dtype == self.dtype
            && shape.len() == self.shape.len()
            && shape.iter().zip(&self.shape).enumerate().all(same)
    }

    /// Bytes of the array; where it grows, of one position.
    pub fn nbytes(&self) -> usize {
        self.shape.iter().map(|&n| n as usize).product::<usize>() * self.dtype.size()
    }
}

impl fmt::Display for RowPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [", self.dtype)?;
        for (axis, n) in self.shape.iter().enumerate() {
            let separator = if axis == 0 { "" } else { ", " };
            match self.grows && axis == 2 {
                true => write!(f, "{separator}slots")?,
                false => write!(f, "{separator}{n}")?,
            }
        }
        f.write_str("]")
    }
}

/// Bytes that the state of one layer takes between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateCost {
    /// Bytes of a row, whatever its length.
    pub row_bytes: usize,
    /// Bytes of each position of a row.
    pub position_bytes: usize,
    /// The most positions that are kept.
    pub limit: Option<usize>,
}

impl StateCost {
    /// Bytes of a row of `positions` positions, in whole pages of [`PAGE`](super::PAGE) positions.
    pub fn bytes(&self, positions: usize) -> usize {
        self.bytes_in_pages(positions, super::PAGE)
    }

    /// The same for pages of `page` positions. A row that has more positions than the layer keeps also holds the page
    /// that it leaves and the page that it enters.
    pub fn bytes_in_pages(&self, positions: usize, page: usize) -> usize {
        let kept = self
            .limit
            .map_or(positions, |limit| positions.min(limit + page));
        self.row_bytes + kept.div_ceil(page) * page * self.position_bytes
    }
}

impl LayerKind {
    /// How many positions a layer with keys and values keeps; `None` means all of them.
    pub fn window(&self, options: &CacheOptions) -> Option<usize> {
        let own = match *self {
            Self::Full | Self::Latent => None,
            Self::Window(window) => Some(window),
            Self::LatentWindow { window, .. } => return Some(window),
            Self::Recurrent(_) => return None,
        };
        let least = own.into_iter().chain(options.max_context).min();
        least.map(|window| window.max(1))
    }

    /// The names of the arrays of a row's state, in the order of
    /// [`ModelCache::arrays`](super::ModelCache::arrays).
    pub fn part_names(&self) -> Vec<&'static str> {
        match self {
            Self::Full | Self::Window(_) => vec!["keys", "values"],
            Self::Latent | Self::LatentWindow { .. } => vec!["latents"],
            Self::Recurrent(shape) => shape.parts().map(StatePart::name).collect(),
        }
    }

    /// The arrays of a row's state, in the order of [`part_names`](Self::part_names). `kv` gives the sizes of keys and
    /// values, if the layer has some and its kind does not give them; `activations` is their dtype.
    ///
    /// # Errors
    /// Keys or values of these sizes cannot be packed in the scheme of the options, or keys and
    /// values are one vector.
    pub fn row_parts(
        &self,
        kv: KvShape,
        activations: DType,
        options: &CacheOptions,
    ) -> Result<Vec<RowPart>> {
        if let Self::Recurrent(shape) = self {
            let part = |part: &StatePart| RowPart {
                name: part.name(),
                dtype: part.dtype(activations),
                shape: part.shape(1),
                grows: false,
            };
            return Ok(shape.parts().map(part).collect());
        }
        if let (Self::Latent | Self::LatentWindow { .. }, Some(_)) = (self, options.quantized) {
            let message = "keys and values are one compressed vector, which is not quantised";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let (heads, dims) = match *self {
            Self::LatentWindow { width, .. } => (1, [width; 2]),
            _ => (kv.heads, [kv.key_dim, kv.value_dim]),
        };
        let part = |(name, dim)| {
            let (width, dtype) = match options.quantized {
                Some(scheme) => (fast::packed_words(dim, activations, scheme)?, DType::U32),
                None => (dim, activations),
            };
            Ok(RowPart {
                name,
                dtype,
                shape: vec![1, heads, 1, width],
                grows: true,
            })
        };
        self.part_names().into_iter().zip(dims).map(part).collect()
    }

    /// The bytes of the layer's state. The arguments are those of [`row_parts`](Self::row_parts).
    ///
    /// # Errors
    /// The errors of [`row_parts`](Self::row_parts).
    pub fn cost(
        &self,
        kv: KvShape,
        activations: DType,
        options: &CacheOptions,
    ) -> Result<StateCost> {
        let parts = self.row_parts(kv, activations, options)?;
        let sum = |grows: bool| {
            let parts = parts.iter().filter(|part| part.grows == grows);
            parts.map(RowPart::nbytes).sum()
        };
        let window = self.window(options);
        Ok(StateCost {
            row_bytes: sum(false),
            position_bytes: sum(true),
            limit: window.map(|window| window + options.slack),
        })
    }
}
