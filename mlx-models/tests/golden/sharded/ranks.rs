//! The programs of a rank.

use std::collections::BTreeMap;

use mlx_core::distributed::{Backend, init};
use mlx_core::{Array, DType, ErrorKind, Result, Safetensors, random, safetensors};
use mlx_models::adapter::{self, AdapterConfig, AdapterKind};
use mlx_models::convert::save;
use mlx_models::{LoadOptions, Loaded, Model, ModelTask};
use mlx_nn::LoraConfig;
use mlx_nn::lora::attach;
use mlx_nn::shard::{Ranks, join};
use serde_json::json;

use crate::golden::case::Case;
use crate::golden::renamed::tensors;
use crate::golden::run::{greedy, log_probs, prompt_logits};

/// The largest difference between ranks and one process, in units of the largest log probability. Sums have another
/// order.
const NOISE: f32 = 1e-5;

/// The greedy tokens that are compared.
const TOKENS: usize = 8;

pub fn run(program: &str) -> Result<()> {
    let ranks = join(init(true, Backend::Ring)?);
    match program {
        "families" => families(ranks),
        "redrawn" => redrawn(ranks),
        "adapters" => adapters(ranks),
        "headless" => headless(ranks),
        "survivor" => survivor(ranks),
        other => panic!("no program {other}"),
    }
}

fn load(case: &Case, config: &str, ranks: Ranks) -> Result<Loaded> {
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ranks,
        ..LoadOptions::default()
    };
    mlx_models::load_from(&case.name, case.config(config), case.files(), options)
}

/// The largest difference of log probabilities of a prompt and of the tokens after it, in units of the largest.
fn off(case: &Case, alone: &Loaded, shared: &Loaded) -> Result<Result<f32, String>> {
    let (mut worst, mut largest) = (0.0f32, 1.0f32);
    // Every collective waits for all processes, which takes long on a machine with other work: one prompt is enough.
    for (index, prompt) in case.prompts.iter().enumerate().take(1) {
        let golden = case.golden(index);
        let n = golden.tokens.len().min(TOKENS);
        let found = (prompt_logits(shared, prompt)?, greedy(shared, prompt, n)?);
        let expected = (prompt_logits(alone, prompt)?, greedy(alone, prompt, n)?);
        if found.1.0 != golden.tokens[..n] {
            return Ok(Err(format!("prompt {index}: other greedy tokens")));
        }
        for (found, expected) in [(&found.0, &expected.0), (&found.1.1, &expected.1.1)] {
            let pairs = log_probs(found)?.into_iter().zip(log_probs(expected)?);
            // A token without a logit has an infinite log probability.
            for (found, expected) in pairs.filter(|(found, expected)| found != expected) {
                worst = worst.max((found - expected).abs());
                largest = largest.max(expected.abs());
            }
        }
    }
    Ok(Ok(worst / largest))
}

fn families(ranks: Ranks) -> Result<()> {
    let only = std::env::var("MLX_TEST_CASE").ok();
    let (mut shared, mut refused, mut faults) = (0, Vec::new(), Vec::new());
    for case in Case::all() {
        if only
            .as_ref()
            .is_some_and(|only| !case.name.contains(only.as_str()))
        {
            continue;
        }
        if let Some(config) = case.configs.first() {
            let place = format!("{} with {config}", case.name);
            match load(&case, config, ranks) {
                Ok(model) => {
                    let found = off(&case, &load(&case, config, Ranks::ALONE)?, &model);
                    println!("{place}: {found:?}");
                    match found {
                        Ok(Ok(worst)) if worst < NOISE => {}
                        found => faults.push(format!("{place}: {found:?}")),
                    }
                    shared += 1;
                }
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    println!("{error}");
                    refused.push(error.to_string());
                }
                Err(error) => faults.push(format!("{place}: {error}")),
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    println!(
        "{shared} cases on {} ranks, {} refused",
        ranks.size(),
        refused.len()
    );
    let reasons = [
        "ranks cannot share",
        "groups of packed weights",
        "no layer that ranks can share",
    ];
    for refused in &refused {
        assert!(
            reasons.iter().any(|reason| refused.contains(reason)),
            "{refused}"
        );
    }
    // Most fixtures have four heads, which two ranks can share and three cannot.
    let is_whole = only.is_none();
    assert!(
        !is_whole || shared > if ranks.size() == 2 { 150 } else { 1 },
        "only {shared} cases"
    );
    Ok(())
}

/// Families with other numbers of heads and drawn values, because those of their cases do not divide.
fn redrawn(ranks: Ranks) -> Result<()> {
    let on_two = vec![
        (
            "bailing_moe_linear",
            json!({"num_attention_heads": 4, "group_norm_size": 2}),
        ),
        ("deepseek_v41_ngrams", json!({"moe_intermediate_size": 64})),
        ("falcon_h1", json!({"mamba_n_heads": 4, "mamba_d_ssm": 64})),
        (
            "kimi_linear",
            json!({"linear_attn_config": {"num_heads": 4}}),
        ),
    ];
    let six = json!({"num_attention_heads": 6, "num_key_value_heads": 3});
    let on_three = vec![
        ("bailing_moe_linear", json!({"num_key_value_heads": 3})),
        ("qwen3", six.clone()),
        (
            "phi3",
            json!({"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3}),
        ),
        ("gemma3n_text", six.clone()),
        ("gpt_oss", six),
    ];
    let changed = match ranks.size() {
        2 => on_two,
        _ => on_three,
    };
    for (name, changes) in changed {
        let case = Case::all().into_iter().find(|case| case.name == name);
        let case = case.unwrap_or_else(|| panic!("no case {name}"));
        let mut config = case.config("config.json");
        for (key, value) in changes.as_object().into_iter().flatten() {
            match (config[key].as_object_mut(), value.as_object()) {
                (Some(inner), Some(changes)) => inner.extend(changes.clone()),
                _ => config[key] = value.clone(),
            }
        }
        let drawn = mlx_models::initialised(name, config.clone(), 3)?;
        let folder = tempfile::tempdir()?;
        let settings = config.as_object().expect("a config is an object");
        save(drawn.model.as_ref(), settings, folder.path())?;
        let load = |ranks: Ranks| {
            let options = LoadOptions {
                dtype: Some(DType::F32),
                ranks,
                ..LoadOptions::default()
            };
            mlx_models::load(folder.path(), options)
        };
        let (alone, shared) = (load(Ranks::ALONE)?, load(ranks)?);
        let prompt = &case.prompts[0];
        let expected = greedy(&alone, prompt, TOKENS)?;
        let found = greedy(&shared, prompt, TOKENS)?;
        assert_eq!(found.0, expected.0, "{name}");
        let pairs = [
            (found.1, expected.1),
            (
                prompt_logits(&shared, prompt)?,
                prompt_logits(&alone, prompt)?,
            ),
        ];
        for (found, expected) in &pairs {
            let size = expected.abs()?.max_all()?.item::<f32>()?;
            let spread = expected.var_all()?.item::<f32>()?;
            let off = found.subtract(expected)?.abs()?.max_all()?.item::<f32>()?;
            println!("{name}: logits up to {size} with variance {spread}, off by {off:.1e}");
            assert!(
                spread > 1e-4 && off < NOISE * size.max(1.0),
                "{name}: {off}"
            );
        }
    }
    Ok(())
}

/// The features of a model whose files have no output head.
fn headless(ranks: Ranks) -> Result<()> {
    let case = Case::all().into_iter().find(|case| case.name == "qwen3");
    let case = case.expect("the case of qwen3");
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.safetensors");
    let tensors = tensors(&case);
    let bare = tensors.iter().filter_map(|(name, array)| {
        let name = name.strip_prefix("model.")?;
        Some((name, array))
    });
    safetensors::save(&path, bare, &BTreeMap::new())?;
    let features = |ranks: Ranks| -> Result<Array> {
        let options = LoadOptions {
            dtype: Some(DType::F32),
            ranks,
            ..LoadOptions::default()
        };
        let files = vec![Safetensors::open(&path)?];
        let loaded = mlx_models::load_from("bare", case.config("config.json"), files, options)?;
        assert_eq!(loaded.info.task, ModelTask::Headless);
        let (model, prompt) = (loaded.model, &case.prompts[0]);
        let mut cache = model.new_cache(1);
        let mut step = cache.begin(&[prompt.len()])?;
        let tokens = Array::from_slice(prompt, &[1, prompt.len() as i32])?;
        model.hidden(&tokens, &mut step)
    };
    let (alone, shared) = (features(Ranks::ALONE)?, features(ranks)?);
    let size = alone.abs()?.max_all()?.item::<f32>()?;
    let off = shared.subtract(&alone)?.abs()?.max_all()?.item::<f32>()?;
    assert!(off < NOISE * size.max(1.0), "{off} of {size}");
    Ok(())
}

/// Computes until the other rank is dead.
fn survivor(ranks: Ranks) -> Result<()> {
    let cases = Case::all();
    let case = cases.iter().find(|case| case.name == "qwen3");
    let case = case.expect("the case of qwen3");
    let model = load(case, "config.json", ranks)?;
    prompt_logits(&model, &case.prompts[0])?;
    println!("ready");
    for _ in 0..1_000_000 {
        if let Err(error) = prompt_logits(&model, &case.prompts[0]) {
            assert!(error.to_string().contains("rank 1"), "{error}");
            return Ok(());
        }
    }
    panic!("the other rank has not died");
}

/// Adapters with values in every matrix, on every kind of layer.
fn adapters(ranks: Ranks) -> Result<()> {
    let folder = tempfile::tempdir()?;
    for (index, name) in [
        "qwen3",
        "llama_tied",
        "mixtral",
        "deepseek_v3",
        "qwen3_next",
    ]
    .into_iter()
    .enumerate()
    {
        let case = Case::all().into_iter().find(|case| case.name == name);
        let case = case.unwrap_or_else(|| panic!("no case {name}"));
        let mut alone = load(&case, "config.json", Ranks::ALONE)?;
        let dir = folder.path().join(index.to_string());
        write_adapter(alone.model.as_mut(), &dir)?;
        let mut shared = load(&case, "config.json", ranks)?;
        let plain = prompt_logits(&shared, &case.prompts[0])?;
        let found = adapter::load(&dir, shared.model.as_mut())?;
        assert!(found.names.len() > 4, "{name}: {:?}", found.names);
        let adapted = prompt_logits(&shared, &case.prompts[0])?;
        let expected = prompt_logits(&alone, &case.prompts[0])?;
        let differ = |a: &Array, b: &Array| -> Result<f32> {
            a.subtract(b)?.abs()?.max_all()?.item::<f32>()
        };
        let (change, off) = (differ(&adapted, &plain)?, differ(&adapted, &expected)?);
        println!("{name}: the adapter changes {change:.1e}, off by {off:.1e}");
        assert!(change > 0.01 && off < 1e-4, "{name}: {change} {off}");
    }
    Ok(())
}

/// Attaches an adapter to every layer, and writes it.
fn write_adapter(model: &mut dyn Model, dir: &std::path::Path) -> Result<()> {
    let config = LoraConfig {
        rank: 2,
        scale: 2.0,
        ..LoraConfig::default()
    };
    attach(model, &config, &random::Key::new(3)?, |_| true)?;
    struct Draw(random::Key);
    impl mlx_nn::VisitMut for Draw {
        fn param(&mut self, path: &mlx_nn::Path, param: &mut mlx_nn::Param) -> Result<()> {
            if path.as_str().ends_with("lora_b") {
                let [now, later] = self.0.split()?;
                self.0 = later;
                param.set(random::normal_with(
                    &now,
                    param.shape(),
                    DType::F32,
                    0.0,
                    0.1,
                )?);
            }
            Ok(())
        }
    }
    model.visit_mut(
        &mut mlx_nn::Path::default(),
        &mut Draw(random::Key::new(4)?),
    )?;
    let mut arrays = Vec::new();
    struct Take<'a>(&'a mut Vec<(String, Array)>);
    impl mlx_nn::Visit for Take<'_> {
        fn param(&mut self, path: &mlx_nn::Path, param: &mlx_nn::Param) -> Result<()> {
            if mlx_nn::lora::adapt::is_adapter(path.as_str()) {
                self.0
                    .push((path.as_str().to_owned(), param.value().clone()));
            }
            Ok(())
        }
    }
    model.visit(&mut mlx_nn::Path::default(), &mut Take(&mut arrays))?;
    let config = AdapterConfig {
        kind: AdapterKind::Lora,
        rank: 2,
        scale: 2.0,
        dropout: 0.0,
        num_layers: -1,
        keys: Vec::new(),
        facts: Default::default(),
    };
    adapter::write(
        dir,
        &config,
        arrays.iter().map(|(name, array)| (name.as_str(), array)),
    )
}
