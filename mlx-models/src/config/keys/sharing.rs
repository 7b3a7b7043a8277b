//! Layers that read the keys and values of earlier ones.

use mlx_core::Result;
use mlx_nn::{AttentionConfig, KvSource, LayerKind, Rule};

use crate::config::Config;

/// For each layer, the earlier layer whose keys and values it reads, if it has none of its own.
/// Each of the last `num_kv_shared_layers` layers reads those of the last layer of its kind that
/// has its own.
///
/// # Errors
/// A layer has no such earlier layer, or all layers would read those of others.
pub(crate) fn shared_layers(
    c: &Config,
    kinds: &[LayerKind],
    default: usize,
) -> Result<Vec<Option<usize>>> {
    let first = kinds.len().checked_sub(n_shared(c, default)?);
    let source = |(layer, kind): (usize, &LayerKind)| -> Result<Option<usize>> {
        let first = first.filter(|&first| first > 0).ok_or_else(|| {
            c.error(format!(
                "num_kv_shared_layers must be less than the {} layers",
                kinds.len()
            ))
        })?;
        if layer < first {
            return Ok(None);
        }
        let source = kinds[..first].iter().rposition(|own| own == kind);
        source.map(Some).ok_or_else(|| {
            c.error(format!(
                "layer {layer} ({kind}) has no earlier layer of its kind whose keys and values it can read"
            ))
        })
    };
    kinds.iter().enumerate().map(source).collect()
}

fn n_shared(c: &Config, default: usize) -> Result<usize> {
    c.or("num_kv_shared_layers", default)
}

/// The attention of a layer. `shares` has, for each layer, the earlier layer whose keys and values
/// it reads.
pub(crate) fn with_sharing(
    config: AttentionConfig,
    layer: usize,
    shares: &[Option<usize>],
) -> AttentionConfig {
    AttentionConfig {
        source: match shares[layer] {
            Some(_) => KvSource::Earlier,
            None => config.source,
        },
        shared: shares.contains(&Some(layer)),
        ..config
    }
}

/// The rules that drop the projections of keys and values from layers that do not use them.
/// Published files have such tensors.
///
/// # Errors
/// The number of layers is invalid, or `num_kv_shared_layers` is not a number.
pub(crate) fn unused_projections(c: &Config, layers: i32, default: usize) -> Result<Vec<Rule>> {
    let n = super::n_layers(c, Some(layers))?;
    let first = n.saturating_sub(n_shared(c, default)?);
    let each = (first..n).flat_map(|layer| {
        ["k_proj", "v_proj", "k_norm", "v_norm"].map(|name| {
            let tensors = format!("model.layers.{layer}.self_attn.{name}.*");
            Rule::drop(
                &tensors,
                "the layer reads keys and values of an earlier one",
            )
        })
    });
    Ok(each.collect())
}
