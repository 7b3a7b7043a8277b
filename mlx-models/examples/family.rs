//! A family of a program's own: a decoder whose attention and MLP run side by side, and whose files have names of their
//! own. Everything else (caches, batches, quantisation, adapters, text by `mlx-infer`) comes with it.

use std::collections::BTreeMap;

use mlx_models::causal::{CausalLm, DecoderLayer, Surroundings};
use mlx_models::mlx_core::{Array, Result, save_safetensors};
use mlx_models::mlx_nn::{
    Activation, Attention, AttentionConfig, LayerKind, Module, NormConfig, PlainMlp, Residual,
    RmsNorm, Rope, RopeConfig, RopeScaling, Rule, Rules, Step,
};
use mlx_models::{Family, Geometry, LayerGeometry, LoadOptions, Model, Registry, Source, kv_heads};
use serde_json::json;

const EPS: f32 = 1e-5;

#[derive(Clone, Module)]
struct SideBySide {
    norm: RmsNorm,
    self_attn: Attention,
    mlp: PlainMlp,
}

impl DecoderLayer for SideBySide {
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        let x = x.sum()?;
        let y = self.norm.forward(&x)?;
        let mixed = self.self_attn.forward(&y, state, step)?;
        Ok(Residual::new((&x + mixed)?, self.mlp.forward(&y)?))
    }
}

/// The names in files, and what they are here.
fn names(_source: &Source<'_>) -> Result<Rules> {
    Ok(Rules::from(vec![
        Rule::rename("tokens.weight", "model.embed_tokens.weight"),
        Rule::rename("end.*", "model.norm.*"),
        Rule::rename("blocks.#.attention.*", "model.layers.#.self_attn.*"),
        Rule::rename("blocks.#.*", "model.layers.#.*"),
    ]))
}

/// The model of a config, without values. A key that is missing or wrong is an error that names it.
fn build(source: &Source<'_>) -> Result<Box<dyn Model>> {
    let config = source.config;
    let (vocab, width) = (config.size("vocab", None)?, config.size("width", None)?);
    let (depth, heads) = (config.size("depth", None)?, config.size("heads", None)?);
    if width % heads != 0 {
        return Err(config.unsupported(format!("width {width} in {heads} heads")));
    }
    let head_dim = width / heads;
    let rope = RopeConfig {
        base: 10_000.0,
        dims: head_dim,
        interleaved: false,
        reversed: false,
        scaling: RopeScaling::Default,
    };
    let layer = |_| {
        let attention = AttentionConfig::plain(width, heads, heads, head_dim);
        Ok(SideBySide {
            norm: RmsNorm::empty(width, EPS)?,
            self_attn: Attention::empty(&attention, Rope::new(&rope, head_dim)?)?,
            mlp: PlainMlp::empty(width, 4 * width, true, Activation::Gelu)?,
        })
    };
    let layers: Vec<SideBySide> = (0..depth).map(layer).collect::<Result<_>>()?;
    let kept = LayerGeometry::attention(heads, kv_heads(heads, head_dim), LayerKind::Full);
    let around = Surroundings {
        geometry: Geometry::new(vocab, width, vec![kept; layers.len()]),
        norm: NormConfig::rms(EPS),
        tied: true,
        head_bias: false,
        embed_scale: None,
        logit_scale: None,
        softcap: None,
    };
    Ok(Box::new(CausalLm::<_>::around(layers, around)?))
}

fn main() -> Result<()> {
    let family = Family {
        names,
        tied: true,
        ..Family::new(&["side_by_side"], build)
    };
    let registry = Registry::default().with(family);
    let config =
        json!({"model_type": "side_by_side", "vocab": 60, "width": 32, "depth": 2, "heads": 4});
    let drawn = registry.initialised("drawn", config.clone(), 7)?.model;

    // A checkpoint by the names of its files.
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("config.json"), config.to_string())?;
    let published = |name: &str| {
        let name = name
            .replace("model.embed_tokens", "tokens")
            .replace("model.norm", "end");
        name.replace("model.layers", "blocks")
            .replace("self_attn", "attention")
    };
    let parameters = drawn.parameters();
    let tensors: BTreeMap<String, &Array> = parameters
        .iter()
        .map(|(name, array)| (published(name), array))
        .collect();
    save_safetensors(folder.path().join("model.safetensors"), tensors)?;

    let loaded = registry.load(folder.path(), LoadOptions::default())?;
    let (model, info) = (loaded.model, loaded.info);
    println!("{}: {} parameters", info.model_type, model.num_parameters());
    let tokens = Array::try_from(vec![vec![3u32, 1, 4, 1, 5]])?;
    let expected = drawn.forward(&tokens, &mut drawn.new_cache(1))?;
    let found = model.forward(&tokens, &mut model.new_cache(1))?;
    let same: bool = found.array_equal(&expected)?.item()?;
    println!(
        "logits {:?}, those of the drawn model: {same}",
        found.shape()
    );

    // What does not fit is named.
    let config = json!({"model_type": "side_by_side", "vocab": 60, "width": 32, "heads": 4});
    let error = registry
        .initialised("without depth", config, 7)
        .map(|_| ())
        .unwrap_err();
    println!("refused: {error}");
    Ok(())
}
