//! Gemma 3 (arXiv:2503.19786): norms on q and k instead of soft caps, two ropes, five layers with
//! a window for each without. Also the text tower of the multimodal checkpoints.

use mlx_core::Result;

use crate::config::rope::{Dialect, RopeDefaults, context, rope_of_layer_type};
use crate::family;
use crate::gemma::{Gemma, GemmaConfig};
use crate::gemma2::{activation, causal, heads, softcap};
use crate::registry::Source;

pub(crate) fn load(source: &Source<'_>) -> Result<Gemma> {
    let c = source.config;
    causal(c)?;
    // transformers keeps these, and computes without them.
    c.ignore(&["attn_logit_softcapping", "_sliding_window_pattern"]);
    let n = family::n_layers(c, Some(26))?;
    let (heads, kv_heads, head_dim) = heads(c)?;
    let window = family::window(c, Some(4096))?;
    let max_positions = c.size("max_position_embeddings", Some(131_072))?;
    let pattern = c.size("sliding_window_pattern", Some(6))? as usize;
    let rope = |layer_type, key, scaled, base| {
        rope_of_layer_type(
            c,
            layer_type,
            key,
            scaled,
            RopeDefaults {
                base,
                head_dim,
                max_positions,
                dialect: Dialect::Plain,
            },
        )
    };
    let full = rope("full_attention", "rope_theta", true, 1_000_000.0)?;
    Gemma::new(&GemmaConfig {
        hidden: c.size("hidden_size", Some(2304))?,
        intermediate: c.size("intermediate_size", Some(9216))?,
        vocab: c.size("vocab_size", Some(262_208))?,
        heads,
        kv_heads,
        head_dim,
        query_pre_attn_scalar: c.positive("query_pre_attn_scalar", Some(256.0))?,
        layers: family::layer_kinds(c, n, window, |layer| (layer + 1) % pattern != 0)?,
        max_positions: context(&full, c.opt("max_position_embeddings")?),
        rope: full,
        local_rope: rope("sliding_attention", "rope_local_base_freq", false, 10_000.0)?,
        norm_eps: c.positive("rms_norm_eps", Some(1e-6))? as f32,
        activation: activation(c)?,
        attention_bias: c.or("attention_bias", false)?,
        qk_norm: true,
        attn_softcap: None,
        // Only the text model's own class has the cap in transformers.
        final_softcap: softcap(c, "final_logit_softcapping", None)?.filter(|_| !source.nested),
        tied: family::tied(c, true)?,
    })
}
