//! [`Bits`]: weights that quantising treats differently.

/// A family's exception for quantising some of its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bits {
    /// They stay dense.
    Dense,
    /// 8 affine bits in groups of 64.
    Eight,
    /// 8 bits in a uniform recipe. A mixed recipe treats them like other weights, as mlx-lm does for routers.
    EightUnlessMixed,
}
