//! Constructed heads for multi-token prediction, whose drafts are always right or always wrong.
//!
//! The model predicts token `p(t)` after token `t`: its embedding is the identity, its layers add nothing, and the rows
//! of its output head are in the order of `p`, which is one cycle. Features are known exactly, so a head can be
//! constructed that uses only the embedding of the token, or only the features before it. If the engine is off by one
//! position, no draft is accepted.

use std::collections::BTreeMap;
use std::path::Path;

use mlx_core::random::{self, Key};
use mlx_core::{Array, DType, Safetensors, safetensors};
use mlx_infer::{
    BatchResult, Engine, EngineOptions, Files, GenerateOptions, Limits, LoadOptions, LoadedModel,
    Request, Speculative,
};
use serde_json::json;

use crate::independence::{alone, greedy, sampled};

const V: usize = 64;

/// The token after `token`: one cycle through all tokens.
fn next(token: usize) -> usize {
    (token * 5 + 7) % V
}

/// The input from which the head drafts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Head {
    /// The token's embedding.
    Embedding,
    /// The features of the token before.
    Features,
    /// The features only, taken before the model's final norm.
    Before,
    /// The embedding, from which it drafts a wrong token.
    Wrong,
}

type Tensors = BTreeMap<String, Array>;

fn matrix(rows: usize, columns: usize, ones: impl Fn(usize) -> Option<usize>) -> Array {
    let mut values = vec![0.0f32; rows * columns];
    for row in 0..rows {
        if let Some(column) = ones(row) {
            values[row * columns + column] = 1.0;
        }
    }
    Array::from_slice(&values, &[rows as i32, columns as i32]).unwrap()
}

fn zeros(shape: &[i32]) -> Array {
    let n = shape.iter().product::<i32>() as usize;
    Array::from_slice(&vec![0.0f32; n], shape).unwrap()
}

fn ones(n: i32) -> Array {
    Array::from_slice(&vec![1.0f32; n as usize], &[n]).unwrap()
}

/// An attention layer that adds nothing.
fn attention(tensors: &mut Tensors, layer: &str) {
    let h = V as i32;
    for (name, rows) in [("q_proj", 64), ("k_proj", 16), ("v_proj", 16)] {
        tensors.insert(
            format!("{layer}.self_attn.{name}.weight"),
            zeros(&[rows, h]),
        );
    }
    tensors.insert(format!("{layer}.self_attn.o_proj.weight"), zeros(&[h, 32]));
    for name in ["q_norm", "k_norm"] {
        tensors.insert(format!("{layer}.self_attn.{name}.weight"), ones(16));
    }
    around(tensors, layer);
}

fn around(tensors: &mut Tensors, layer: &str) {
    let h = V as i32;
    for name in ["gate_proj", "up_proj"] {
        tensors.insert(format!("{layer}.mlp.{name}.weight"), zeros(&[8, h]));
    }
    tensors.insert(format!("{layer}.mlp.down_proj.weight"), zeros(&[h, 8]));
    for name in ["input_layernorm", "post_attention_layernorm"] {
        tensors.insert(format!("{layer}.{name}.weight"), ones(h));
    }
}

pub fn write(dir: &Path, head: Head) {
    let h = V as i32;
    let mut tensors = Tensors::new();
    tensors.insert("model.embed_tokens.weight".to_owned(), matrix(V, V, Some));
    // The weights of the final norm are signs, which the head undoes. Features before the norm
    // would be another vector.
    let signs: Vec<f32> = (0..V)
        .map(|at| if at % 3 == 0 { -1.0 } else { 1.0 })
        .collect();
    let signs = Array::from_slice(&signs, &[h]).unwrap();
    tensors.insert("model.norm.weight".to_owned(), signs.clone());
    let before = |token: usize| (0..V).find(|&from| next(from) == token);
    let says = matrix(V, V, before).multiply(&signs).unwrap();
    tensors.insert("lm_head.weight".to_owned(), says);
    let recurrent = "model.layers.0.linear_attn";
    for (name, rows) in [
        ("in_proj_qkv", 64),
        ("in_proj_z", 32),
        ("in_proj_a", 4),
        ("in_proj_b", 4),
    ] {
        tensors.insert(format!("{recurrent}.{name}.weight"), zeros(&[rows, h]));
    }
    tensors.insert(format!("{recurrent}.conv1d.weight"), zeros(&[64, 4, 1]));
    tensors.insert(format!("{recurrent}.A_log"), zeros(&[4]));
    tensors.insert(format!("{recurrent}.dt_bias"), zeros(&[4]));
    tensors.insert(format!("{recurrent}.norm.weight"), ones(8));
    tensors.insert(format!("{recurrent}.out_proj.weight"), zeros(&[h, 32]));
    around(&mut tensors, "model.layers.0");
    attention(&mut tensors, "model.layers.1");

    attention(&mut tensors, "mtp.layers.0");
    for name in ["norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"] {
        tensors.insert(format!("mtp.{name}.weight"), ones(h));
    }
    tensors.insert("mtp.norm.weight".to_owned(), signs.clone());
    // Columns: the embedding first, then the features.
    let fc = match head {
        Head::Embedding => matrix(V, 2 * V, Some),
        Head::Features => {
            let fc = matrix(V, 2 * V, |token| before(token).map(|from| V + from));
            let twice = Array::from_slice(
                &[signs.to_vec::<f32>().unwrap(), signs.to_vec().unwrap()].concat(),
                &[2 * h],
            );
            fc.multiply(twice.unwrap()).unwrap()
        }
        Head::Before => matrix(V, 2 * V, |token| before(token).map(|from| V + from)),
        Head::Wrong => matrix(V, 2 * V, |token| Some((token + 1) % V)),
    };
    tensors.insert("mtp.fc.weight".to_owned(), fc);
    let config = json!({
        "model_type": "qwen3_5_text", "vocab_size": V, "hidden_size": V, "intermediate_size": 8, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "full_attention_interval": 2, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 512, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "rope_theta": 1000.0, "mtp_norm_offset": 0,
        "mtp_hidden": if head == Head::Before { "pre_norm" } else { "post_norm" },
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let arrays = tensors.iter().map(|(name, array)| (name.as_str(), array));
    safetensors::save(dir.join("model.safetensors"), arrays, &BTreeMap::new()).unwrap();
}

pub fn load(head: Head, max_draft: usize) -> LoadedModel {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), head);
    let options = LoadOptions {
        max_draft,
        ..LoadOptions::default()
    };
    LoadedModel::load(dir.path(), options).unwrap()
}

fn speculating(tokens: usize, options: GenerateOptions) -> GenerateOptions {
    GenerateOptions {
        speculative: match tokens {
            0 => Speculative::Off,
            tokens => Speculative::Tokens(tokens),
        },
        ..options
    }
}

/// The tokens of rows, and how many of their drafts were accepted.
fn run(
    model: &LoadedModel,
    requests: &[(Vec<u32>, GenerateOptions)],
) -> Vec<(Vec<u32>, [usize; 2])> {
    let batch = requests
        .iter()
        .map(|(prompt, options)| Request::new(prompt.clone(), options.clone()))
        .collect();
    let results = model.batch_generate(batch, &Limits::default()).unwrap();
    let found = |result: BatchResult| {
        assert!(result.error.is_none(), "{:?}", result.error);
        let ids = result.tokens.iter().map(|choice| choice.id).collect();
        let metrics = result.metrics;
        (ids, [metrics.drafted_tokens, metrics.accepted_draft_tokens])
    };
    results.into_iter().map(found).collect()
}

/// Two rows with drafts and two without, with prompts of different lengths: 36 tokens, each of
/// which occurs once.
#[test]
fn drafts_are_all_right_or_all_wrong() {
    for (head, most) in [
        (Head::Embedding, 1),
        (Head::Embedding, 3),
        (Head::Features, 1),
        (Head::Features, 3),
        // The features after a draft are those after the head's norm.
        (Head::Before, 1),
        (Head::Wrong, 2),
    ] {
        let model = load(head, 4);
        let requests: Vec<_> = [(1, most), (3, 0), (17, most), (9, 0)]
            .into_iter()
            .map(|(n, drafts)| {
                let mut prompt = vec![n as u32];
                while prompt.len() < n {
                    let last = *prompt.last().unwrap() as usize;
                    prompt.push(next(last) as u32);
                }
                (prompt, speculating(drafts, greedy(36)))
            })
            .collect();
        let results = run(&model, &requests);
        for ((prompt, options), (ids, [drafted, accepted])) in requests.iter().zip(results) {
            let mut token = *prompt.last().unwrap() as usize;
            for &id in &ids {
                token = next(token);
                assert_eq!(id as usize, token, "{head:?}, {most}");
            }
            assert_eq!(ids.len(), 36);
            let expected = match (options.speculative, head) {
                (Speculative::Off, _) => drafted == 0,
                (_, Head::Wrong) => drafted > 60 && accepted == 0,
                // 35 tokens follow the first one; of each step's tokens, `most` are drafts.
                _ => drafted == accepted && accepted == 35 - 35usize.div_ceil(most + 1),
            };
            assert!(expected, "{head:?}, {most}: {accepted} of {drafted}");
        }
    }
}

/// A draft is drawn with the noise of its position, so a head with the model's own distribution is
/// also right for sampled tokens.
#[test]
fn sampled_drafts_are_drawn_as_the_tokens_are() {
    let model = load(Head::Embedding, 4);
    let requests: Vec<_> = (0..4)
        .map(|row| {
            (
                vec![row * 3 + 1],
                speculating(2, sampled(40, u64::from(row))),
            )
        })
        .collect();
    for ((prompt, options), (ids, [drafted, accepted])) in
        requests.iter().zip(run(&model, &requests))
    {
        let plain = alone(&model, prompt, &speculating(0, options.clone()));
        let expected: Vec<u32> = plain.iter().map(|choice| choice.id).collect();
        assert_eq!(ids, expected);
        // Drafts of prompt lookup may be wrong; those of the head are not.
        assert!(accepted * 10 > drafted * 7, "{accepted} of {drafted}");
    }
}

/// An adapter changes the model's tokens, so the head's drafts are right for some tokens only. The
/// tokens are those without drafts.
#[test]
fn a_row_with_an_adapter_takes_drafts_of_the_head() {
    let [dir, adapter] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    write(dir.path(), Head::Embedding);
    let noise = |seed: u64, shape: &[i32]| {
        random::normal_with(&Key::new(seed).unwrap(), shape, DType::F32, 0.0f32, 0.7f32).unwrap()
    };
    let mut tensors = Tensors::new();
    let (h, inner) = (V as i32, 8);
    for (seed, (name, inputs, outputs)) in (1..).zip([
        ("gate_proj", h, inner),
        ("up_proj", h, inner),
        ("down_proj", inner, h),
    ]) {
        let module = format!("model.layers.1.mlp.{name}");
        tensors.insert(format!("{module}.lora_a"), noise(seed, &[inputs, 2]));
        tensors.insert(format!("{module}.lora_b"), noise(seed + 10, &[2, outputs]));
    }
    let arrays = tensors.iter().map(|(name, array)| (name.as_str(), array));
    let file = adapter.path().join("adapters.safetensors");
    safetensors::save(file, arrays, &BTreeMap::new()).unwrap();
    let keys = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];
    let lora = json!({"rank": 2, "scale": 1.0, "dropout": 0.0, "keys": keys});
    let config = json!({"fine_tune_type": "lora", "num_layers": 1, "lora_parameters": lora});
    std::fs::write(
        adapter.path().join("adapter_config.json"),
        config.to_string(),
    )
    .unwrap();

    let options = LoadOptions {
        max_draft: 3,
        ..LoadOptions::default()
    };
    let base = LoadedModel::load(dir.path(), options).unwrap();
    let adapted = base.with_adapter(adapter.path()).unwrap();
    let requests: Vec<_> = (0..6)
        .map(|row| {
            let options = if row < 3 {
                greedy(40)
            } else {
                sampled(40, u64::from(row))
            };
            (vec![row * 7 + 2], speculating(3, options))
        })
        .collect();
    let (mut all, mut kept, mut changed) = (0, 0, false);
    for ((prompt, options), (ids, [drafted, accepted])) in
        requests.iter().zip(run(&adapted, &requests))
    {
        let off = speculating(0, options.clone());
        let of = |model| -> Vec<u32> {
            let choices = alone(model, prompt, &off);
            choices.iter().map(|choice| choice.id).collect()
        };
        assert_eq!(ids, of(&adapted));
        changed |= ids != of(&base);
        all += drafted;
        kept += accepted;
    }
    assert!(
        changed && 0 < kept && kept < all,
        "{changed}, {kept} of {all}"
    );

    // The same in one batch with rows that have no adapter.
    let folder = dir.path().to_owned();
    let engine_options = EngineOptions {
        adapters: vec![("one".to_owned(), adapter.path().to_owned())],
        ..Default::default()
    };
    let engine = Engine::start(move || LoadedModel::load(folder, options), engine_options).unwrap();
    let handles: Vec<_> = requests
        .iter()
        .enumerate()
        .map(|(row, (prompt, options))| {
            let request = Request::new(prompt.clone(), options.clone());
            let request = match row % 2 {
                0 => request.with_adapter("one"),
                _ => request,
            };
            engine.submit(request).unwrap()
        })
        .collect();
    let mut kept = 0;
    for (row, (handle, (prompt, options))) in handles.into_iter().zip(&requests).enumerate() {
        let result = handle.wait();
        assert!(result.error.is_none(), "{:?}", result.error);
        let ids = |choices: &[mlx_infer::Choice]| -> Vec<u32> {
            choices.iter().map(|choice| choice.id).collect()
        };
        let model = if row % 2 == 0 { &adapted } else { &base };
        let expected = alone(model, prompt, &speculating(0, options.clone()));
        assert_eq!(ids(&result.tokens), ids(&expected), "row {row}");
        kept += result.metrics.accepted_draft_tokens;
    }
    assert!(kept > 0);
    engine.finish().unwrap();
}

/// A head from a folder of its own drafts for a checkpoint without one.
#[test]
fn a_head_from_elsewhere_drafts() {
    let [whole, model, head] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    write(whole.path(), Head::Features);
    let file = Safetensors::open(whole.path().join("model.safetensors")).unwrap();
    let part = |dir: &Path, is_head: bool| {
        let tensors: Tensors = (file.names())
            .filter(|name| name.starts_with("mtp.") == is_head)
            .map(|name| {
                let short = name.strip_prefix("mtp.").unwrap_or(name);
                (short.to_owned(), file.array(name).unwrap())
            })
            .collect();
        let arrays = tensors.iter().map(|(name, array)| (name.as_str(), array));
        safetensors::save(dir.join("model.safetensors"), arrays, &BTreeMap::new()).unwrap();
    };
    part(model.path(), false);
    part(head.path(), true);
    let config = std::fs::read_to_string(whole.path().join("config.json")).unwrap();
    let config = config.replace(",\"mtp_norm_offset\":0", "");
    std::fs::write(model.path().join("config.json"), config).unwrap();
    let config = json!({"model_type": "qwen3_5_mtp", "hidden_size": V, "mtp_norm_offset": 0});
    std::fs::write(head.path().join("config.json"), config.to_string()).unwrap();

    let options = LoadOptions {
        max_draft: 3,
        ..LoadOptions::default()
    };
    let files = || Files::directory(model.path()).unwrap();
    let load = |options| LoadedModel::load_with_head(files(), head.path(), options, &mut |_, _| ());
    let row = (vec![5], speculating(3, greedy(36)));
    let (ids, [drafted, accepted]) = run(&load(options).unwrap(), &[row]).remove(0);
    let mut token = 5;
    for id in ids {
        token = next(token);
        assert_eq!(id as usize, token);
    }
    assert_eq!((drafted, accepted), (26, 26));
    let error = load(LoadOptions::default()).err().expect("loaded");
    assert!(error.to_string().contains("needs max_draft"), "{error}");

    let command = |model: &Path, more: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_mlx-infer"))
            .args([
                "generate",
                "--json",
                "--tokens",
                "5",
                "--max-tokens",
                "36",
                "--ignore-eos",
            ])
            .arg("--model")
            .arg(model)
            .args(more)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        json
    };
    let head = head.path().to_str().unwrap();
    let expected = command(model.path(), &[]);
    let found = command(model.path(), &["--mtp", head, "--speculative", "3"]);
    assert_eq!(found["tokens"], expected["tokens"]);
    assert_eq!(found["usage"]["accepted_draft_tokens"], 26);
}
