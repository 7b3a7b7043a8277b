//! Latent attention: the result does not depend on the options of the cache or on the order of
//! computation.

use mlx_core::{Array, DType, Result, random};
use mlx_nn::init::initialise;
use mlx_nn::lora::{LoraConfig, attach};
use mlx_nn::{
    CacheOptions, KvShape, LatentAttention, LatentConfig, LayerKind, ModelCache, Module, Param,
    Path, RopeConfig, RopeScaling, Visit, VisitMut,
};

/// DeepSeek's sizes in the cache: keys of 576, values of 512.
const CONFIG: LatentConfig = LatentConfig {
    hidden: 24,
    heads: 3,
    query_rank: Some(10),
    rank: 512,
    plain_dim: 6,
    rope_dim: 64,
    value_dim: 5,
    scale: 0.4,
    eps: 1e-6,
    bias: false,
    latent_scale: None,
    gate: None,
    growth: None,
    split: false,
    sinks: false,
    index: None,
};

fn attention(config: LatentConfig) -> Result<LatentAttention> {
    let rope = RopeConfig {
        base: 100.0,
        dims: config.rope_dim,
        interleaved: true,
        reversed: false,
        scaling: RopeScaling::Default,
    };
    let mut attention = LatentAttention::empty(config, Some(&rope))?;
    initialise(&mut attention, 7, 0.02)?;
    Ok(attention)
}

fn inputs(tokens: i32) -> Result<Array> {
    let key = random::Key::new(3)?;
    random::normal(&key, &[1, tokens, CONFIG.hidden], DType::F32)
}

/// All tokens, in steps of `chunk`: `[1, L, E]`.
fn run(attention: &LatentAttention, options: CacheOptions, x: &Array, chunk: i32) -> Vec<f32> {
    let mut cache = ModelCache::new(&[LayerKind::Latent], 1, options);
    let n = x.dim(1).unwrap();
    let mut all = Vec::new();
    for from in (0..n).step_by(chunk as usize) {
        let part = x.slice_axis(1, from, n.min(from + chunk)).unwrap();
        let mut step = cache.begin(&[part.dim(1).unwrap() as usize]).unwrap();
        let y = attention.forward(&part, 0, &mut step).unwrap();
        step.commit_all().unwrap();
        all.extend(y.to_vec::<f32>().unwrap());
    }
    all
}

fn off(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().zip(b);
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

const WHOLE: CacheOptions = CacheOptions {
    slack: 0,
    max_context: None,
    store: false,
    quantized: None,
};

const KEPT: CacheOptions = CacheOptions {
    store: true,
    ..WHOLE
};

#[test]
fn the_absorbed_form_equals_the_expanded_one() -> Result<()> {
    for query_rank in [Some(10), None] {
        let attention = attention(LatentConfig {
            query_rank,
            ..CONFIG
        })?;
        let x = inputs(21)?;
        let expanded = run(&attention, WHOLE, &x, 21);
        assert!(expanded.iter().any(|y| y.abs() > 0.1));
        for chunk in [1, 5, 21] {
            let off = off(&expanded, &run(&attention, KEPT, &x, chunk));
            assert!(off < 2e-5, "chunks of {chunk}: off by {off}");
        }
    }
    Ok(())
}

#[test]
fn a_window_bounds_what_is_kept() -> Result<()> {
    let attention = attention(CONFIG)?;
    let x = inputs(40)?;
    let window = |options| CacheOptions {
        max_context: Some(9),
        ..options
    };
    let expected = run(&attention, window(WHOLE), &x, 40);
    assert!(off(&expected, &run(&attention, WHOLE, &x, 40)) > 1e-3);
    for (chunk, slack) in [(1, 0), (3, 4), (11, 0), (40, 2)] {
        let options = CacheOptions {
            slack,
            ..window(KEPT)
        };
        let off = off(&expected, &run(&attention, options, &x, chunk));
        assert!(off < 2e-5, "chunks of {chunk}, slack {slack}: off by {off}");
    }
    Ok(())
}

/// Adapters, also with magnitudes, are included in the matrices of the absorbed form.
#[test]
fn adapters_reach_the_absorbed_form() -> Result<()> {
    struct Draw(random::Key);
    impl VisitMut for Draw {
        fn param(&mut self, path: &Path, param: &mut Param) -> Result<()> {
            if path.as_str().ends_with("lora_b") {
                let b = random::normal_with(&self.0, param.shape(), DType::F32, 0.0, 0.3)?;
                param.set(b);
            }
            Ok(())
        }
    }
    let x = inputs(9)?;
    for dora in [false, true] {
        let mut attention = attention(CONFIG)?;
        let plain = run(&attention, KEPT, &x, 9);
        let config = LoraConfig {
            rank: 2,
            scale: 1.0,
            dora,
            ..LoraConfig::default()
        };
        let key = random::Key::new(5)?;
        attach(&mut attention, &config, &key, |path| path == "kv_b_proj")?;
        attention.visit_mut(&mut Path::default(), &mut Draw(key))?;
        let expanded = run(&attention, WHOLE, &x, 9);
        assert!(off(&plain, &expanded) > 1e-2);
        let off = off(&expanded, &run(&attention, KEPT, &x, 2));
        assert!(off < 2e-5, "dora {dora}: off by {off}");
    }
    Ok(())
}

/// The projection as two stacks of matrices, as in files of mlx-lm.
#[test]
fn two_stacks_equal_one_matrix() -> Result<()> {
    struct Find(Option<Array>);
    impl Visit for Find {
        fn param(&mut self, path: &Path, param: &Param) -> Result<()> {
            if path.as_str() == "kv_b_proj.weight" {
                self.0 = Some(param.value().clone());
            }
            Ok(())
        }
    }
    /// Copies the parameters of one form to the other.
    struct Give(Vec<(String, Array)>);
    impl VisitMut for Give {
        fn param(&mut self, path: &Path, param: &mut Param) -> Result<()> {
            if let Some((_, value)) = self.0.iter().find(|(name, _)| name == path.as_str()) {
                assert_eq!(param.shape(), value.shape(), "{}", path.as_str());
                param.set(value.clone());
            }
            Ok(())
        }
    }
    struct All(Vec<(String, Array)>);
    impl Visit for All {
        fn param(&mut self, path: &Path, param: &Param) -> Result<()> {
            self.0
                .push((path.as_str().to_owned(), param.value().clone()));
            Ok(())
        }
    }
    let joint = attention(CONFIG)?;
    let mut split = attention(LatentConfig {
        split: true,
        ..CONFIG
    })?;
    let mut found = Find(None);
    joint.visit(&mut Path::default(), &mut found)?;
    let LatentConfig {
        heads,
        rank,
        plain_dim,
        value_dim,
        ..
    } = CONFIG;
    let matrix = found.0.expect("the matrix is there");
    let matrix = matrix.reshape(&[heads, plain_dim + value_dim, rank])?;
    let keys = matrix.slice_axis(1, 0, plain_dim)?.swapaxes(1, 2)?;
    let values = matrix.slice_axis(1, plain_dim, plain_dim + value_dim)?;
    let mut all = All(Vec::new());
    joint.visit(&mut Path::default(), &mut all)?;
    all.0.push(("embed_q.weight".to_owned(), keys));
    all.0.push(("unembed_out.weight".to_owned(), values));
    split.visit_mut(&mut Path::default(), &mut Give(all.0))?;
    let x = inputs(9)?;
    let expected = run(&joint, KEPT, &x, 4);
    for options in [KEPT, WHOLE] {
        let chunk = if options.store { 4 } else { 9 };
        let off = off(&expected, &run(&split, options, &x, chunk));
        assert!(off < 2e-5, "off by {off}");
    }
    Ok(())
}

#[test]
fn one_compressed_vector_a_position_is_kept() -> Result<()> {
    let kv = KvShape {
        heads: 1,
        key_dim: CONFIG.kept_dim(),
        value_dim: CONFIG.rank,
    };
    let cost = LayerKind::Latent.cost(kv, DType::BF16, &CacheOptions::default())?;
    assert_eq!((cost.row_bytes, cost.position_bytes), (0, 2 * 576));
    let packed = CacheOptions {
        quantized: Some(mlx_core::Scheme::new(64, 8, mlx_core::QuantMode::Affine)?),
        ..CacheOptions::default()
    };
    let refused = LayerKind::Latent
        .cost(kv, DType::BF16, &packed)
        .unwrap_err();
    assert!(refused.to_string().contains("one compressed vector"));
    Ok(())
}
