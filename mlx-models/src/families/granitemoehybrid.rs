//! Granite 4: Mamba 2 layers and a few attention layers, Granite's multipliers, experts beside a shared MLP.

use mlx_core::Result;
use mlx_nn::{LayerKind, MambaConfig, MambaNorm, RecurrenceConfig, Rule, Rules};

use crate::config::keys::{self, Defaults};
use crate::config::plan::DecoderConfig;
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;
use crate::families::{granite, granitemoe, mamba2};

/// Keys of published files that transformers ignores, because the family has only one form.
const IGNORED: &[&str] = &[
    "init_method",
    "mamba_chunk_size",
    "mlp_bias",
    "normalization_function",
];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    c.ignore(IGNORED);
    let has_rope = c.opt::<String>("position_embedding_type")?.as_deref() == Some("rope");
    let mut config = match has_rope {
        true => keys::decoder(c, &Defaults::LLAMA)?,
        false => {
            c.ignore(&["rope_parameters", "rope_scaling", "rope_theta"]);
            c.ignore(&["original_max_position_embeddings", "partial_rotary_factor"]);
            let defaults = Defaults {
                rope: None,
                ..Defaults::LLAMA
            };
            keys::decoder(c, &defaults)?
        }
    };
    keys::attention_bias(c, &mut config)?;
    granite::multipliers(c, &mut config)?;
    let expand = c.size("mamba_expand", Some(2))?;
    let mamba = mamba(c, &config, i64::from(expand) * i64::from(config.hidden))?;
    config.recurrence = Some(RecurrenceConfig::Mamba(mamba));
    config.layers = layers(c, config.layers.len(), mamba.kind())?;
    let shared = c.size("shared_intermediate_size", Some(1024))?;
    if !has_experts(c)? {
        keys::set_intermediate(&mut config, shared);
        return Decoder::new(&config);
    }
    granitemoe::add_experts(c, &mut config, shared)?;
    Decoder::new(&config)
}

fn has_experts(c: &Config) -> Result<bool> {
    c.ignore(&["num_experts_per_tok"]);
    Ok(c.or("num_local_experts", 8)? > 0)
}

/// The kind of each layer's state. Published files have older names of the types.
fn layers(c: &Config, n: usize, scan: LayerKind) -> Result<Vec<LayerKind>> {
    const FULL: LayerKind = LayerKind::Full;
    let known = [
        ("linear_attention", scan),
        ("full_attention", FULL),
        ("mamba", scan),
        ("attention", FULL),
    ];
    let key = match c.value("layers_block_type") {
        Some(_) => "layers_block_type",
        None => "layer_types",
    };
    keys::types_of(c, key, n, known, |_| scan)
}

/// The scan of recurrent layers, over `inner` features.
pub(crate) fn mamba(c: &Config, config: &DecoderConfig, inner: i64) -> Result<MambaConfig> {
    let heads = c.size("mamba_n_heads", Some(128))?;
    let head_dim = match c.value("mamba_d_head") {
        None => (inner / i64::from(heads)).clamp(1, 1 << 24) as i32,
        Some(auto) if auto == "auto" => (inner / i64::from(heads)).clamp(1, 1 << 24) as i32,
        Some(_) => c.size("mamba_d_head", None)?,
    };
    let bias = c.or("mamba_proj_bias", false)?;
    let mamba = MambaConfig {
        hidden: config.hidden,
        heads,
        head_dim,
        groups: c.size("mamba_n_groups", Some(1))?,
        state: c.size("mamba_d_state", Some(256))?,
        taps: keys::taps(c, "mamba_d_conv", 4)?,
        in_bias: bias,
        out_bias: bias,
        conv_bias: c.or("mamba_conv_bias", true)?,
        activation: keys::activation(c, "hidden_act", "silu")?,
        norm: Some(MambaNorm {
            eps: config.norm.eps,
            before_gate: false,
        }),
        limits: keys::time_steps(c, "time_step_limit")?,
        multipliers: None,
    };
    mamba2::check(c, &mamba, inner)?;
    Ok(mamba)
}

/// The names of Granite with experts. The MLP beside experts has gate and up as one tensor in all
/// files. In a model without experts, files of MLX have two tensors.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let conv = keys::convolutions(source.tensors, ".conv1d.weight")?;
    let scans = Rule::rename("*.mamba.*", "*.linear_attn.*").written();
    let scans = Rules::from(conv.into_iter().chain([scans]));
    Ok(match has_experts(source.config)? {
        // A file is written by the rules from bottom to top: the MLP's names before those of the experts around it.
        true => scans
            .and(&granitemoe::names(source)?)
            .and(&granitemoe::shared_names("mlp.shared_expert", true)),
        false => scans.and(&granitemoe::shared_names("mlp", false)),
    })
}
