//! Key and value heads of each layer, and their size.

use mlx_core::Result;
use mlx_nn::LayerKind;

use crate::config::Config;
use crate::decoder::DecoderConfig;
use crate::family;

/// Of each layer, key and value heads and the head size. `per_layer_config` goes before `global_head_dim` and
/// `num_global_key_value_heads`, which are those of layers without a window.
///
/// # Errors
/// A size is none, or an entry says more than sizes of heads.
pub(super) fn heads(c: &Config, config: &DecoderConfig) -> Result<Vec<(i32, i32)>> {
    let n = config.layers.len();
    let mut sizes = vec![(config.kv_heads, config.head_dim); n];
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
        family::check_heads(c, config.heads, kv_heads, head_dim)?;
    }
    Ok(sizes)
}

/// Key and value heads of layers without a window, where they are others, and the head size.
fn global(c: &Config) -> Result<(Option<i32>, i32)> {
    let head_dim = c.size("global_head_dim", Some(512))?;
    c.ignore(&["num_global_key_value_heads"]);
    let counts =
        c.or("attention_k_eq_v", false)? && c.value("num_global_key_value_heads").is_some();
    let kv_heads = counts.then(|| c.size("num_global_key_value_heads", None));
    Ok((kv_heads.transpose()?, head_dim))
}
