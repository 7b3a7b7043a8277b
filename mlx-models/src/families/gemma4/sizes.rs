//! The number and size of each layer's KV heads, and the rope of each kind of layer.

use mlx_core::Result;
use mlx_nn::{LayerKind, RopeConfig, RopeScaling};

use crate::config::plan::DecoderConfig;
use crate::config::rope::{Dialect, RopeDefaults, rope_of_layer_type};
use crate::config::{Config, keys};

/// The number of KV heads and the head size of each layer. `global_head_dim` and
/// `num_global_key_value_heads` are those of layers without a window. `per_layer_config` takes
/// precedence over both.
///
/// # Errors
/// A size is invalid, or an entry has keys other than sizes of heads.
pub(super) fn heads(c: &Config, config: &DecoderConfig) -> Result<Vec<(i32, i32)>> {
    let n = config.layers.len();
    let mut sizes = vec![(config.attention.kv_heads, config.attention.head_dim); n];
    let global = global(c)?;
    match c.object("per_layer_config")? {
        Some(layers) => {
            for key in layers.unread() {
                let layer = key.parse().ok().filter(|&layer: &usize| layer < n);
                let (Some(layer), Some(entry)) = (layer, layers.object(&key)?) else {
                    return Err(layers.error(format!("{key:?} is none of the {n} layers")));
                };
                let (kv_heads, head_dim) = sizes[layer];
                sizes[layer] = (
                    entry.size("num_key_value_heads", Some(kv_heads))?,
                    entry.size("head_dim", Some(head_dim))?,
                );
                if let Some(key) = entry.unread().first() {
                    return Err(entry.unsupported(format!(
                        "{key} of a single layer is not supported; known: head_dim, num_key_value_heads"
                    )));
                }
            }
        }
        None => {
            for (size, kind) in sizes.iter_mut().zip(&config.layers) {
                if *kind == LayerKind::Full {
                    *size = (global.0.unwrap_or(size.0), global.1);
                }
            }
        }
    }
    for &(kv_heads, head_dim) in &sizes {
        keys::check_heads(c, config.attention.heads, kv_heads, head_dim)?;
    }
    Ok(sizes)
}

/// The number of KV heads of layers without a window, if it differs from that of the others, and
/// their head size.
fn global(c: &Config) -> Result<(Option<i32>, i32)> {
    let head_dim = c.size("global_head_dim", Some(512))?;
    c.ignore(&["num_global_key_value_heads"]);
    let counts =
        c.or("attention_k_eq_v", false)? && c.value("num_global_key_value_heads").is_some();
    let kv_heads = counts.then(|| c.size("num_global_key_value_heads", None));
    Ok((kv_heads.transpose()?, head_dim))
}

/// The rope of layers of a kind.
///
/// # Errors
/// The same as those of [`rope_of_layer_type`].
pub(super) fn rope(
    c: &Config,
    config: &DecoderConfig,
    kind: LayerKind,
    head_dim: i32,
) -> Result<RopeConfig> {
    let (layer_type, base) = match kind {
        LayerKind::Full => ("full_attention", 1_000_000.0),
        _ => ("sliding_attention", 10_000.0),
    };
    if c.value("rope_parameters").is_none() {
        c.ignore(&["rope_theta", "partial_rotary_factor"]);
        return Ok(RopeConfig {
            base,
            dims: head_dim,
            interleaved: false,
            reversed: false,
            scaling: match kind {
                LayerKind::Full => RopeScaling::Proportional {
                    partial: 0.25,
                    factor: 1.0,
                },
                _ => RopeScaling::Default,
            },
        });
    }
    let max_positions = config.max_positions.map_or(0, |n| n as i32);
    let defaults = RopeDefaults {
        base,
        head_dim,
        max_positions: c.size("max_position_embeddings", Some(max_positions.max(1)))?,
        dialect: Dialect::Plain,
        interleaved: false,
    };
    rope_of_layer_type(c, layer_type, "rope_theta", false, defaults)
}
