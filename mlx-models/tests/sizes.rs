//! The sizes that a model reports equal those of its tensors.

#[path = "shared/checkpoints.rs"]
mod checkpoints;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use checkpoints::checkpoint;
use mlx_models::{LoadOptions, Loaded};
use mlx_nn::{LayerKind, Param, RecurrentShape, StatePart, Visit};
use serde_json::Value;

/// The shapes of a model's matrices.
#[derive(Default)]
struct Shapes(BTreeMap<String, Vec<i32>>);

impl Visit for Shapes {
    fn weight(&mut self, path: &mlx_nn::Path, weight: &mlx_nn::Weight) -> mlx_core::Result<()> {
        self.0.insert(path.as_str().to_owned(), weight.shape());
        Ok(())
    }
    fn param(&mut self, path: &mlx_nn::Path, param: &Param) -> mlx_core::Result<()> {
        self.0
            .insert(path.as_str().to_owned(), param.shape().to_vec());
        Ok(())
    }
}

/// Of every fixture, with every config: the sizes that a model reports equal those of its tensors and of its cache.
#[test]
fn sizes_are_those_of_the_tensors() {
    let mut cases = 0;
    for entry in
        fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models")).unwrap()
    {
        let entry = entry.unwrap();
        if !entry.path().is_dir() {
            continue;
        }
        let dir = checkpoint(&entry.file_name().into_string().unwrap());
        let names = fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name());
        let names = names.filter_map(|name| name.into_string().ok());
        for name in names.filter(|name| name.starts_with("config.")) {
            // Python writes bare infinities, which the library reads.
            let text = fs::read_to_string(dir.join(&name)).unwrap();
            let text = text.replace(" Infinity", " {\"__float__\": \"Infinity\"}");
            let config: Value = serde_json::from_str(&text).unwrap();
            let place = format!("{}/{name}", dir.display());
            let files = mlx_models::open_weights(&dir).unwrap();
            let found =
                mlx_models::load_from(&place, config, files, LoadOptions::default()).unwrap();
            agree(&place, &found);
            cases += 1;
        }
    }
    assert!(cases > 60, "{cases}");
}

/// Whether the windows of a state without a convolution first have the sizes of the tensors that they are named after.
fn agree_by_name(
    shapes: &BTreeMap<String, Vec<i32>>,
    layer: usize,
    state: &RecurrentShape,
    windows: &[(usize, i32)],
) -> bool {
    let of = |name: &str| &shapes[&format!("model.layers.{layer}.{name}")];
    let parts: Vec<(&str, i32, i32)> = state
        .parts()
        .map(|part| match *part {
            StatePart::Window { name, len, width } => (name, len, width),
            // A matrix for each head, of as many rows as columns.
            StatePart::Carry { name, shape, .. } => {
                assert_eq!(shape[1], shape[2], "{name}");
                (name, shape[0], shape[1])
            }
        })
        .collect();
    parts.iter().all(|&(name, len, width)| match name {
        "keys_values" => width == 2 * of("self_attn.k_proj")[0] && len == 1,
        "shift" => [width, len] == [of("attn.r_proj")[1], 1],
        "mlp_shift" => [width, len] == [of("ffn.up_proj")[1], 1],
        "memory" => *of("attn.r_k") == [len, width],
        // The convolution is dilated by the tokens of the longest n-gram.
        "ngrams" => {
            let filters = of("ple.conv1d.weight");
            let tokens = windows.last().map_or(0, |&(window, _)| window as i32);
            [filters[0], (filters[1] - 1) * tokens] == [width, len]
        }
        _ => false,
    })
}

/// The widths of the vectors that a layer keeps for its last positions: of attention over them, of the inputs of blocks and
/// of those of an indexer, and the bytes of tokens.
fn window_widths(shapes: &BTreeMap<String, Vec<i32>>, layer: usize) -> Vec<i32> {
    let rows = |name: &str| {
        let shape = shapes.get(&format!("model.layers.{layer}.{name}.weight"));
        shape.map(|shape| shape[0])
    };
    let near = rows("self_attn.kv_proj").filter(|_| rows("self_attn.kv_norm").is_some());
    let blocks = rows("self_attn.compressor.gate_proj").map(|width| 2 * width);
    let index = rows("self_attn.compressor.indexer.gate_proj").map(|width| 2 * width);
    let has_ngrams = rows("ple.key_proj").or(rows("engram.kv_proj")).is_some();
    let widths = [near, blocks, index, has_ngrams.then_some(3)];
    widths.into_iter().flatten().collect()
}

fn agree(place: &str, found: &Loaded) {
    let model = found.model.as_ref();
    let mut shapes = Shapes::default();
    model
        .visit(&mut mlx_nn::Path::default(), &mut shapes)
        .unwrap();
    let shapes = shapes.0;
    let sizes = model.geometry();
    let rows = |name: &str| shapes.get(name).map(|shape| shape[0]);
    assert_eq!(
        shapes["model.embed_tokens"],
        [sizes.vocab, sizes.hidden],
        "{place}"
    );
    // In gated attention beside delta rules, the queries' projection contains gates too.
    let is_gated = shapes
        .keys()
        .any(|name| name.ends_with(".linear_attn.in_proj_qkv"));
    let gates = if is_gated { 2 } else { 1 };
    for (index, layer) in sizes.layers().iter().enumerate() {
        // In layers with a single mixer, attention is named `mixer`. The first of two attentions has a number.
        let attention = ["self_attn.0", "self_attn", "mixer"]
            .map(|name| format!("model.layers.{index}.{name}"));
        let has = |name: &&String| {
            shapes
                .keys()
                .any(|key| key.starts_with(&format!("{name}.")))
        };
        let attention = attention.iter().find(has).cloned().unwrap_or_default();
        let windows = layer.states.iter().filter_map(|state| match *state {
            LayerKind::LatentWindow { window, width } => Some((window, width)),
            _ => None,
        });
        let windows: Vec<(usize, i32)> = windows.collect();
        let widths: Vec<i32> = windows.iter().map(|&(_, width)| width).collect();
        assert_eq!(
            widths,
            window_widths(&shapes, index),
            "{place}, layer {index}"
        );
        for state in &layer.states {
            let LayerKind::Recurrent(shape) = state else {
                continue;
            };
            if let Some(StatePart::Carry { shape, .. }) = shape.parts().next() {
                // A mixer without a convolution: values, keys and queries of its heads are one matrix.
                let inner = rows(&format!("model.layers.{index}.linear_attn.in_proj"));
                let [heads, values, keys] = shape;
                assert_eq!(Some(heads * (values + 2 * keys)), inner, "{place}");
                continue;
            }
            if let Some(StatePart::Window { name, .. }) = shape.parts().next()
                && *name != "conv"
            {
                assert!(
                    agree_by_name(&shapes, index, shape, &windows),
                    "{place}: {shape:?}"
                );
                continue;
            }
            // The causal convolution has one filter for each channel.
            let prefix = format!("model.layers.{index}.");
            let filters = shapes.iter().filter(|(name, _)| {
                let own = name.strip_prefix(&prefix);
                own.is_some_and(|own| {
                    let is_filter = own.ends_with("conv.weight") || own.ends_with("conv1d.weight");
                    is_filter && !own.starts_with("ple.")
                })
            });
            let filters: Vec<_> = filters.map(|(_, shape)| shape).collect();
            assert!(!filters.is_empty(), "{place}: layer {index} has no filter");
            let window = StatePart::Window {
                name: "conv",
                len: filters[0][1] - 1,
                width: filters.iter().map(|shape| shape[0]).sum(),
            };
            assert_eq!(shape.parts().next(), Some(&window), "{place}");
        }
        let Some(kv) = layer.kv else {
            continue;
        };
        if layer.states.is_empty() {
            // This layer reads the keys and values of another layer.
            continue;
        }
        let norm_of = |name: &str| shapes.get(&format!("{attention}.{name}.weight"));
        if let (Some(kept), Some(norm)) =
            (rows(&format!("{attention}.kv_proj")), norm_of("kv_norm"))
        {
            // One vector is key and value, also of blocks.
            let sizes = (kv.heads, kv.key_dim, kv.value_dim);
            assert_eq!(
                (sizes, &norm[..]),
                ((1, kept, kept), &[kept][..]),
                "{place}"
            );
            let index = norm_of("compressor.indexer.kv_norm").or_else(|| norm_of("indexer.k_norm"));
            let index = index.map(|norm| norm[0]);
            assert_eq!(layer.index_dim, index, "{place}");
            continue;
        }
        if layer.states.first() == Some(&LayerKind::Latent) {
            let kept = rows(&format!("{attention}.kv_a_proj_with_mqa"));
            assert_eq!((kv.heads, Some(kv.key_dim)), (1, kept), "{place}");
            let norm = &shapes[&format!("{attention}.kv_a_layernorm.weight")];
            assert_eq!(norm, &[kv.value_dim], "{place}");
            // Keys of pools are kept with the numbers that weight them.
            let key = rows(&format!("{attention}.indexer.wk"));
            let weights = rows(&format!("{attention}.indexer.pool.gate")).unwrap_or(0);
            assert_eq!(layer.index_dim, key.map(|key| key + weights), "{place}");
            continue;
        }
        let index = norm_of("indexer.k_layernorm").or_else(|| norm_of("chooser.k_norm"));
        let index = index.map(|norm| norm[0]);
        assert_eq!(layer.index_dim, index, "{place}");
        let (q, k, v) = (
            layer.heads * kv.key_dim * gates,
            kv.heads * kv.key_dim,
            kv.heads * kv.value_dim,
        );
        match rows(&format!("{attention}.qkv_proj")) {
            Some(all) => assert_eq!(all, q + k + v, "{place}"),
            None => {
                assert_eq!(rows(&format!("{attention}.q_proj")), Some(q), "{place}");
                assert_eq!(rows(&format!("{attention}.k_proj")), Some(k), "{place}");
                // Values may be the keys.
                let values = rows(&format!("{attention}.v_proj")).unwrap_or(k);
                assert_eq!(values, v, "{place}");
            }
        }
    }
    let has_layer = |index: usize| {
        let prefix = format!("model.layers.{index}.");
        shapes.keys().any(|name| name.starts_with(&prefix))
    };
    let layers = sizes.layers().len();
    assert!(has_layer(layers - 1) && !has_layer(layers));
    let info = &found.info;
    let states: usize = sizes.layers().iter().map(|layer| layer.states.len()).sum();
    assert_eq!(
        (info.vocab, info.hidden, &info.geometry, info.layers.len()),
        (sizes.vocab, sizes.hidden, sizes, states),
        "{place}"
    );
}
