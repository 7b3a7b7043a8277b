//! GPT-J: attention and MLP in parallel after one layer norm, a rope on the first features of each
//! head, which pairs neighbouring features, biases in the MLP and on the head.

use mlx_core::Result;
use mlx_nn::{NormKind, RopeConfig, RopeScaling, Rule, Rules};

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::decoders::parallel_residual::ParallelResidual;
use crate::families::gpt2;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 50_400,
    layers: 28,
    heads: 16,
    hidden: 4096,
    max_positions: 2048,
    rope: None,
    ..gpt2::DEFAULTS
};

pub(crate) fn load(source: &Source<'_>) -> Result<ParallelResidual> {
    let c = &gpt2::renamed(source.config);
    c.ignore(gpt2::IGNORED);
    // transformers' class has one fixed rope, so these keys have no effect.
    c.ignore(&["rope_parameters", "rope_scaling", "rope_theta"]);
    c.ignore(&["original_max_position_embeddings", "partial_rotary_factor"]);
    let mut config = keys::decoder(c, &DEFAULTS)?;
    let head_dim = config.attention.head_dim;
    let rotated = match c.is_null("rotary_dim") {
        true => head_dim,
        false => c.size("rotary_dim", Some(64))?,
    };
    if rotated > head_dim || rotated % 2 != 0 {
        return Err(c.error(format!(
            "rotary_dim must be even and at most the {head_dim} features of a head, found {rotated}"
        )));
    }
    config.ropes.fill(Some(RopeConfig {
        base: DEFAULTS.theta,
        dims: rotated,
        interleaved: true,
        reversed: false,
        scaling: RopeScaling::Default,
    }));
    let inner = gpt2::inner(c, config.hidden)?;
    keys::set_intermediate(&mut config, inner);
    keys::ungated(&mut config);
    keys::set_mlp_bias(&mut config, true);
    config.norm.kind = NormKind::layer(true);
    config.head.bias = true;
    ParallelResidual::new(&config)
}

/// Published names.
pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    let layer = "model.layers.#";
    let of_layer = [
        ("ln_1", "input_layernorm"),
        ("attn.q_proj", "self_attn.q_proj"),
        ("attn.k_proj", "self_attn.k_proj"),
        ("attn.v_proj", "self_attn.v_proj"),
        ("attn.out_proj", "self_attn.o_proj"),
        ("mlp.fc_in", "mlp.up_proj"),
        ("mlp.fc_out", "mlp.down_proj"),
    ];
    let of_layer = of_layer.into_iter().map(|(from, to)| {
        Rule::rename(
            &format!("transformer.h.#.{from}.*"),
            &format!("{layer}.{to}.*"),
        )
        .written()
    });
    let around = [
        Rule::drop("*.attn.bias", "the causal mask"),
        Rule::drop("*.attn.masked_bias", "the causal mask"),
        Rule::rename("transformer.wte.*", "model.embed_tokens.*").written(),
        Rule::rename("transformer.ln_f.*", "model.norm.*").written(),
    ];
    Ok(Rules::from(around.into_iter().chain(of_layer)))
}
