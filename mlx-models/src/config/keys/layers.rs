//! Reading configs: the number of layers, and the kind, window and rope of each.

use mlx_core::Result;
use mlx_nn::{LayerKind, RopeConfig};

use crate::config::Config;
use crate::config::plan::DecoderConfig;
use crate::config::rope::{Dialect, RopeDefaults, context, rope_of_entry, rope_of_layer_type};

/// The most layers that a config may have: more than any published model, and few enough to build.
const MAX_LAYERS: i32 = 1024;

/// The number of layers.
///
/// # Errors
/// The number is missing, less than 1 or too large.
pub(crate) fn n_layers(c: &Config, default: Option<i32>) -> Result<usize> {
    let n = c.size("num_hidden_layers", default)?;
    if n > MAX_LAYERS {
        return Err(c.error(format!(
            "num_hidden_layers must be at most {MAX_LAYERS}, found {n}"
        )));
    }
    Ok(n as usize)
}

/// The kind of each layer: `layer_types` if the config has them, else `fallback`.
///
/// # Errors
/// A type is unknown, the list has another length than the number of layers, or the config has no
/// window for a layer that needs one.
pub(crate) fn layer_kinds(
    c: &Config,
    n: usize,
    window: Option<i32>,
    fallback: impl Fn(usize) -> bool,
) -> Result<Vec<LayerKind>> {
    const KNOWN: [(&str, bool); 2] = [("full_attention", false), ("sliding_attention", true)];
    layer_types(c, n, KNOWN, fallback)?
        .into_iter()
        .map(|sliding| match (sliding, window) {
            (false, _) => Ok(LayerKind::Full),
            (true, Some(_)) => Ok(kind(window)),
            (true, None) => Err(c.error(
                "layers have sliding_attention, but sliding_window is null or switched off",
            )),
        })
        .collect()
}

/// The entry of `layer_types` for each layer, if the config has them, else `fallback`.
///
/// # Errors
/// A type is not `known`, or the list has another length than the number of layers.
pub(crate) fn layer_types<T: Copy, const N: usize>(
    c: &Config,
    n: usize,
    known: [(&str, T); N],
    fallback: impl Fn(usize) -> T,
) -> Result<Vec<T>> {
    types_of(c, "layer_types", n, known, fallback)
}

/// The entry of the list `key` for each layer, if the config has one, else `fallback`.
///
/// # Errors
/// The same as those of [`layer_types`].
pub(crate) fn types_of<T: Copy, const N: usize>(
    c: &Config,
    key: &str,
    n: usize,
    known: [(&str, T); N],
    fallback: impl Fn(usize) -> T,
) -> Result<Vec<T>> {
    let Some(types) = c.opt::<Vec<String>>(key)? else {
        return Ok((0..n).map(fallback).collect());
    };
    if types.len() != n {
        let found = types.len();
        return Err(c.error(format!("{key} has {found} entries for {n} layers")));
    }
    let kind = |name: &String| {
        let found = known.iter().find(|(known, _)| known == name);
        found.map(|&(_, kind)| kind).ok_or_else(|| {
            let known = known.map(|(name, _)| name).join(", ");
            c.unsupported(format!("layer type {name:?} is unknown; known: {known}"))
        })
    };
    types.iter().map(kind).collect()
}

/// The kind of a layer with this window. Without a window the layer keeps all positions.
pub(crate) fn kind(window: Option<i32>) -> LayerKind {
    window.map_or(LayerKind::Full, |window| LayerKind::Window(window as usize))
}

/// The value of `sliding_window`. Null means no window, and an absent key means `default`.
///
/// # Errors
/// The value is not a size.
pub(crate) fn window(c: &Config, default: Option<i32>) -> Result<Option<i32>> {
    if c.is_null("sliding_window") {
        c.ignore(&["sliding_window"]);
        return Ok(None);
    }
    match (c.value("sliding_window"), default) {
        (None, None) => Ok(None),
        (_, default) => c.size("sliding_window", default).map(Some),
    }
}

/// Reads the ropes of a family that has one rope for full layers and another for layers with a
/// window. `full` and `windows` are the keys of their bases in the older dialect, and the defaults.
/// In that dialect `rope_scaling` applies to the full layers only.
///
/// # Errors
/// The same as those of [`rope_of_layer_type`].
pub(crate) fn ropes_by_kind(
    c: &Config,
    config: &mut DecoderConfig,
    max_positions: i32,
    full: (&str, f64),
    windows: (&str, f64),
) -> Result<()> {
    let rope = |layer_type, (key, base), scaled| {
        let defaults = RopeDefaults {
            base,
            head_dim: config.attention.head_dim,
            max_positions: c.size("max_position_embeddings", Some(max_positions))?,
            dialect: Dialect::Plain,
            interleaved: false,
        };
        rope_of_layer_type(c, layer_type, key, scaled, defaults)
    };
    let full = rope("full_attention", full, true)?;
    let windows = rope("sliding_attention", windows, false)?;
    set_ropes(c, config, &full, &windows)
}

/// A rope of [`ropes_by_entry`].
pub(crate) struct RopeEntry {
    /// The base, if the entry has none.
    pub base: f64,
    /// The rotated fraction of the head, if the config has no `rope_parameters`.
    pub partial: f64,
    /// `rope_type`, if the config has no `rope_parameters`.
    pub kind: &'static str,
}

/// Reads the ropes of a family whose `rope_parameters` have an entry for each kind of layer, and
/// that has no older dialect. In an entry, `partial` is the default of `partial_rotary_factor`.
///
/// # Errors
/// The same as those of [`rope_of_layer_type`].
pub(crate) fn ropes_by_entry(
    c: &Config,
    config: &mut DecoderConfig,
    max_positions: i32,
    partial: f64,
    [full, windows]: [RopeEntry; 2],
) -> Result<()> {
    let given = c.object("rope_parameters")?;
    let rope = |layer_type, of: &RopeEntry| {
        let own = match &given {
            Some(given) => given.object(layer_type)?,
            None => Some(c.part(
                layer_type,
                [
                    ("rope_type", of.kind.into()),
                    ("partial_rotary_factor", of.partial.into()),
                ],
            )),
        };
        let defaults = RopeDefaults {
            base: of.base,
            head_dim: config.attention.head_dim,
            max_positions: c.size("max_position_embeddings", Some(max_positions))?,
            dialect: Dialect::Entry(partial),
            interleaved: false,
        };
        match own {
            Some(entry) => rope_of_entry(c, entry, None, defaults),
            None => rope_of_layer_type(c, layer_type, "", false, defaults),
        }
    };
    let full = rope("full_attention", &full)?;
    let windows = rope("sliding_attention", &windows)?;
    set_ropes(c, config, &full, &windows)
}

/// Gives full layers and layers with a window their ropes.
fn set_ropes(
    c: &Config,
    config: &mut DecoderConfig,
    full: &RopeConfig,
    windows: &RopeConfig,
) -> Result<()> {
    config.max_positions = context(full, c.opt("max_position_embeddings")?);
    let ropes = config.layers.iter().map(|kind| match kind {
        LayerKind::Full => Some(full.clone()),
        _ => Some(windows.clone()),
    });
    config.ropes = ropes.collect();
    Ok(())
}

/// Reads `layer_rope_theta`: the base of each layer's rope, 0 for a layer without one. Without the list all layers have
/// the same base.
///
/// # Errors
/// The list has another length than the number of layers, or an entry below 0.
pub(crate) fn rope_bases(c: &Config, config: &mut DecoderConfig) -> Result<()> {
    const KEY: &str = "layer_rope_theta";
    let Some(bases) = c.opt::<Vec<f64>>(KEY)? else {
        return Ok(());
    };
    let n = config.ropes.len();
    if bases.len() != n || bases.iter().any(|base| !(base.is_finite() && *base >= 0.0)) {
        return Err(c.error(format!(
            "{KEY} must be {n} numbers from 0 on, found {bases:?}"
        )));
    }
    for (rope, base) in config.ropes.iter_mut().zip(bases) {
        *rope = rope.take().filter(|_| base > 0.0);
        if let Some(rope) = rope {
            rope.base = base;
        }
    }
    Ok(())
}

/// Removes the rope of layers without a window.
pub(crate) fn rope_on_windows(config: &mut DecoderConfig) {
    for (rope, kind) in config.ropes.iter_mut().zip(&config.layers) {
        *rope = rope.take().filter(|_| *kind != LayerKind::Full);
    }
}

/// Whether each layer has a rope. In `no_rope_layers` a 1 means a rope, in spite of the key's name.
/// Without the list, all layers but every `no_rope_layer_interval`th have one. With `empty_is_none`
/// an empty list counts as absent.
///
/// # Errors
/// The list has fewer entries than the number of layers.
pub(crate) fn has_rope(c: &Config, n: usize, empty_is_none: bool) -> Result<Vec<bool>> {
    let every = c.size("no_rope_layer_interval", Some(4))? as usize;
    let layers = c.opt::<Vec<i32>>("no_rope_layers")?;
    match layers.filter(|layers| !(empty_is_none && layers.is_empty())) {
        Some(layers) if layers.len() >= n => Ok(layers.iter().map(|&rope| rope != 0).collect()),
        Some(layers) => Err(c.error(format!(
            "no_rope_layers has {} entries for {n} layers",
            layers.len()
        ))),
        None => Ok((1..=n).map(|layer| layer % every != 0).collect()),
    }
}
