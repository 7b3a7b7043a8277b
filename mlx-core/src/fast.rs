//! Operations of language models that are one kernel if the back end has it.
//!
//! | module | operations |
//! |---|---|
//! | attention | [`attention()`], [`packed_attention`], [`scaled_dot_product_attention`] |
//! | products | [`linear()`], [`quantized_linear`], [`linear_many`], [`rows`] |
//! | products of norms | [`norm_linear()`], [`norm_gated_linear`] |
//! | MLPs | [`gated_linear`], [`gated()`], [`swiglu`], [`geglu`], [`gelu()`], [`soft_cap`] |
//! | experts | [`route()`], [`experts_linear`], [`gated_experts`], [`weighted_sum`] |
//! | norms | [`rms_norm`], [`layer_norm`], [`layer_norm_rounded_once`], [`gated_norm`], [`add`], [`norm_add`], [`add_norm`] |
//! | positions | [`rope()`], [`rope_with`], [`heads`] |
//! | caches | [`store()`], [`store_heads`], [`heads_and_store`], [`pack`], [`unpack`], [`blank`] |
//! | flat steps | [`paged_attention`], [`paged_latents`], [`ragged_attention`], [`ragged_latents`], [`paged_store`], [`paged_store_heads`], [`paged_heads_and_store`], [`paged_keep`] |
//! | sampling | [`draw()`], [`Draws`], [`allow()`], [`argmax`], [`top`], [`nucleus`], [`logsumexp`] |
//! | recurrent layers | [`causal_conv`], [`gated_delta`], [`scan`] |
//! | recurrent layers over ragged rows | [`ragged_conv`], [`ragged_delta`], [`ragged_scan`] |
//! | training | [`cross_entropy`] |
//!
//! Each has a plain form: a graph of MLX's own operations. The plain form defines what is computed,
//! and tests compare the kernels with it. Transformations and back ends without a kernel run the
//! plain form. [`form()`] returns the form that runs, and [`plainly`] selects the plain form.
//!
//! Axes: `B` rows, `H` query heads, `K` KV heads, `L` new tokens, `S` stored tokens,
//! `D` head dimension.
//!
//! ```
//! use mlx_core::{DType, fast, ones};
//!
//! # fn main() -> mlx_core::Result<()> {
//! let x = ones([1, 4], DType::F32)?;
//! let weight = ones([4], DType::F32)?;
//! let normed = fast::rms_norm(&x, &weight, 1e-5)?;
//! assert_eq!(fast::linear(&normed, &ones([2, 4], DType::F32)?)?.shape(), [1, 2]);
//! # Ok(())
//! # }
//! ```

mod allow;
mod attention;
mod choose;
mod draw;
mod flat;
mod form;
mod gated;
mod gelu;
mod linear;
mod loss;
mod mask;
mod norm;
mod norm_linear;
mod packed;
mod ragged;
mod recurrent;
mod rope;
mod route;
mod row_norm;
mod store;

pub use allow::allow;
pub use attention::{Attention, attention, packed_attention, scaled_dot_product_attention};
pub use choose::{argmax, logsumexp, nucleus, top};
pub use draw::{Draw, Drawn, Draws, NO_TOKEN, draw, gumbel};
pub use flat::{
    FlatAttention, PAGE, PagedStore, Pages, Pools, Seen, paged_attention, paged_heads_and_store,
    paged_keep, paged_latents, paged_store, paged_store_heads, ragged_attention, ragged_latents,
};
pub use form::{Form, Op, form, plainly};
pub use gated::{Gate, gated, gated_experts, gated_linear, geglu, soft_cap, swiglu};
pub use gelu::gelu;
pub use linear::{
    Matrix, experts_linear, linear, linear_many, quantized_experts_linear, quantized_linear,
    quantized_rows, rows,
};
pub use loss::cross_entropy;
pub use mask::{IntoMask, KeySlots, Mask, Positions};
pub use norm::{
    add, add_norm, gated_norm, layer_norm, layer_norm_rounded_once, norm_add, rms_norm,
};
pub use norm_linear::{NormOf, NormProducts, norm_gated_linear, norm_linear};
pub use packed::{check_packing, pack, packed_words, unpack};
pub use ragged::{
    RaggedDelta, RaggedRows, RaggedScan, SlotsAfter, StatePool, StateSlots, ragged_conv,
    ragged_delta, ragged_scan,
};
pub use recurrent::{GatedDelta, Scan, causal_conv, gated_delta, scan};
pub use rope::{Projection, Rope, heads, rope, rope_with};
pub use route::{Route, RouteGroups, route, weighted_sum};
pub use store::{Buffers, Slots, blank, heads_and_store, store, store_heads};
