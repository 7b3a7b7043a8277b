//! [`Bits`]: weights that quantising treats differently.

/// A family's exception for quantising some of its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bits {
    /// The weights stay dense.
    Dense,
    /// The affine scheme with 8 bits and groups of 64.
    Eight,
    /// 8 bits, as [`Eight`](Self::Eight), in a uniform recipe. A mixed recipe treats these weights
    /// like others, as mlx-lm does for routers.
    EightUnlessMixed,
}
