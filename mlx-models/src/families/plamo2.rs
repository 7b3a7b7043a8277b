//! PLaMo 2: a scan of Mamba 2, whose steps, keys and queries are projected from its values, in every second layer, and attention
//! with norms on q and k in the others; PLaMo 3's norms.

use mlx_core::Result;
use mlx_nn::{
    LayerKind, NormKind, ProjectedScanConfig, QkKind, QkNorm, RecurrenceConfig, Rule, Rules,
};

use crate::config::keys::{self, Defaults};
use crate::config::plan::DecoderConfig;
use crate::config::{Config, Source};
use crate::decoders::pre_and_post_norm::PreAndPostNorm;
use crate::families::plamo3;

/// mlx-lm's defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    intermediate: 13_312,
    kv_heads: Some(4),
    ..Defaults::LLAMA
};

/// The epsilon of the norms of q and k. No config has a key for it.
const QK_EPS: f32 = 1e-6;

/// The bounds of a time step. No config has a key for them.
const LIMITS: (f32, f32) = (0.001, 100.0);

/// Keys without an effect: the size of chunks, which changes no result; and those of a window, which mlx-lm does not read.
const IGNORED: &[&str] = &[
    "attention_window_size",
    "eval_attention_n_bit",
    "eval_mlp_n_bit",
    "fp8_accum_dtype",
    "full_attention_idx",
    "mamba_chunk_size",
    "use_cache",
    "use_fp8_attention",
];

pub(crate) fn load(source: &Source<'_>) -> Result<PreAndPostNorm> {
    source.config.ignore(IGNORED);
    PreAndPostNorm::new(&config(source.config)?)
}

fn config(c: &Config) -> Result<DecoderConfig> {
    let head_dim = c.size("hidden_size_per_head", Some(128))?;
    let mut config = keys::decoder(
        c,
        &Defaults {
            head_dim: Some(head_dim),
            ..DEFAULTS
        },
    )?;
    config.norm.kind = NormKind::Rms(1.0);
    config.norm.after_offsets = Some(plamo3::offsets());
    config.attention.qk_norm = Some(QkNorm {
        kind: QkKind::RmsByHead,
        ..QkNorm::heads(QK_EPS, 0.0)
    });
    let heads = c.size("mamba_num_heads", Some(64))?;
    keys::check_heads(c, heads, 1, head_dim)?;
    let scan = ProjectedScanConfig {
        hidden: config.hidden,
        heads,
        head_dim,
        state: c.size("mamba_d_state", Some(64))?,
        rank: (config.hidden / 16).max(64),
        taps: keys::taps(c, "mamba_d_conv", 4)?,
        norm_eps: config.norm.eps,
        limits: LIMITS,
    };
    let step = c.size("mamba_step", Some(2))? as usize;
    if c.or("mamba_enabled", true)? {
        let n = config.layers.len();
        if step < 2 {
            return Err(c.error(format!("mamba_step must be at least 2, found {step}")));
        }
        for (layer, kind) in config.layers.iter_mut().enumerate() {
            let attends = match n <= step / 2 {
                true => layer + 1 == n,
                false => layer % step == step / 2,
            };
            if !attends {
                *kind = scan.kind();
            }
        }
    }
    config.recurrence = Some(RecurrenceConfig::Projected(scan));
    Ok(config)
}

/// The names of published files. MLX's differ in the axes of convolutions. The rows of a scan's first matrix are the gates
/// and the values of each head.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let config = config(source.config)?;
    let mut rules = Vec::new();
    rules.extend(keys::convolutions(source.tensors, ".conv1d.weight")?);
    for (layer, kind) in config.layers.iter().enumerate() {
        let LayerKind::Recurrent(_) = kind else {
            continue;
        };
        let name = |name: &str| format!("model.layers.layers.{layer}.mixer.{name}");
        let own = |name: &str| format!("model.layers.layers.{layer}.linear_attn.{name}");
        let rename = |from: &str, to: &str| Rule::rename(from, to).written();
        rules.push(rename(&name("*"), &own("*")));
        for part in ["B", "C", "dt"] {
            let to = format!("{}_norm.weight", part.to_lowercase());
            rules.push(rename(&own(&format!("{part}_norm_weight")), &own(&to)));
        }
        let [z, x] = ["z_proj.*", "x_proj.*"].map(own);
        let head_dim = config.attention.head_dim;
        let heads = source.config.size("mamba_num_heads", Some(64))?;
        let parts = [(&*z, head_dim), (&*x, head_dim)];
        rules.push(Rule::split(&own("in_proj.*"), heads, parts).written());
    }
    let norms = ["q", "k"].map(|part| {
        let [from, to] =
            ["weight", "norm.weight"].map(|end| format!("model.layers.#.self_attn.{part}_{end}"));
        Rule::rename(&from, &to).written()
    });
    let rules = Rules::from(rules).and(&plamo3::names_of(&config)?);
    Ok(rules.and(&Rules::from(norms)))
}
