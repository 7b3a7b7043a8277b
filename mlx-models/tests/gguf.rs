//! Models in GGUF: the files of llama.cpp's converter give the logits and tokens of transformers.

mod golden {
    #[expect(dead_code, reason = "the golden tests use all of it")]
    pub mod run;
}

#[path = "shared/checkpoints.rs"]
mod checkpoints;

use std::path::{Path, PathBuf};

use golden::run::{greedy, log_probs, prompt_logits};
use mlx_core::gguf::{Gguf, TensorType, Value, save, save_as};
use mlx_core::{Array, DType, Result, Safetensors, ops::quantize::dequantize_with};
use mlx_models::convert::{
    ConvertOptions, GgufType, convert, convert_to_gguf, save as save_checkpoint,
};
use mlx_models::{LoadOptions, Loaded, gguf_written_types, initialised, load, open_checkpoint};

/// The models of `testdata/gguf`, whether blocks are expanded, and the dtype.
const MODELS: [(&str, bool, DType); 7] = [
    ("llama", false, DType::F32),
    ("llama_q4_0", false, DType::F32),
    ("qwen3_legacy", false, DType::F32),
    ("qwen3_k", false, DType::F32),
    ("qwen3_expanded", true, DType::F32),
    ("qwen3_moe", false, DType::F32),
    ("gemma3", false, DType::BF16),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/gguf")
}

fn file(name: &str) -> PathBuf {
    folder().join(format!("{name}.gguf"))
}

fn loaded(path: &Path, dtype: Option<DType>, expand: bool) -> Result<Loaded> {
    let options = LoadOptions {
        dtype,
        expand,
        ..LoadOptions::default()
    };
    load(path, options)
}

fn refusal<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("it is accepted"),
        Err(error) => error.to_string(),
    }
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let off = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    off.fold(0.0, f32::max)
}

fn prompt(vocab: u32) -> Vec<u32> {
    (0..20).map(|i| (i * 7 + 3) % vocab).collect()
}

/// The distance of log probabilities from those of transformers, as part of the largest, and whether the greedy tokens
/// are the same.
fn compared(model: &Loaded, name: &str) -> Result<(f32, bool)> {
    let golden = Safetensors::open(folder().join(format!("{name}.safetensors")))?;
    let prompt = prompt(model.info.vocab as u32);
    let found = log_probs(&prompt_logits(model, &prompt)?)?;
    let expected = log_probs(&golden.array("logits")?)?;
    let largest = expected
        .iter()
        .fold(1.0, |largest: f32, value| largest.max(value.abs()));
    let off = difference(&found, &expected) / largest;
    let expected: Vec<i32> = golden.array("tokens")?.to_vec()?;
    let (tokens, _) = greedy(model, &prompt, expected.len())?;
    let same = tokens.iter().map(|&token| token as i32).eq(expected);
    Ok((off, same))
}

#[test]
fn models_equal_transformers() {
    for (name, expand, dtype) in MODELS {
        let model = loaded(&file(name), Some(DType::F32), expand).unwrap();
        let (off, same) = compared(&model, name).unwrap();
        assert!(
            off < 1e-5 && same,
            "{name}: off by {off}, same tokens: {same}"
        );
        assert!(
            model.info.unread_keys.is_empty(),
            "{name}: {:?}",
            model.info.unread_keys
        );
        assert!(
            model
                .info
                .stored
                .as_ref()
                .is_some_and(|stored| stored.starts_with("GGUF, "))
        );
        let own = loaded(&file(name), None, expand).unwrap();
        assert_eq!(own.info.dtype, dtype, "{name}");
    }
}

/// Matrices stay packed, in the scheme of their type.
#[test]
fn blocks_stay_packed() {
    let packed = |name: &str| loaded(&file(name), None, false).unwrap().info;
    let info = packed("llama_q4_0");
    let scheme = info.quantization.unwrap();
    assert_eq!((scheme.bits, scheme.group_size), (4, 32));
    // 4 bits and two F32 for 32 weights are 6 bits; the norms are F32.
    assert!(info.weight_bytes * 8 < info.n_parameters * 7, "{info:?}");
    assert_eq!(
        packed("qwen3_k").stored.unwrap(),
        "GGUF, Q5_K, Q4_K, Q8_0, Q3_K, IQ4_XS"
    );
}

/// The values of every type are those of the package gguf, to the bit.
#[test]
fn values_are_exact() {
    let file = Gguf::open(file("blocks")).unwrap();
    let golden = Safetensors::open(folder().join("blocks.safetensors")).unwrap();
    let mut packed = 0;
    for name in file.names() {
        let expected = golden.array(name).unwrap();
        let same =
            |found: &Array| -> bool { found.array_equal(&expected).unwrap().item().unwrap() };
        let (kind, _) = file.info(name).unwrap();
        assert!(same(&file.expanded(name).unwrap()), "{name}");
        let Some(scheme) = kind.scheme() else {
            assert!(
                matches!(kind, TensorType::Q2_K | TensorType::Q6_K),
                "{name}"
            );
            assert!(refusal(file.repacked(name)).contains("those of F32"));
            continue;
        };
        let parts = file.repacked(name).unwrap();
        let found = dequantize_with(
            &parts.packed,
            &parts.scales,
            parts.biases.as_ref(),
            scheme,
            Some(DType::F32),
        );
        assert!(same(&found.unwrap()), "{name} packed");
        packed += 1;
    }
    assert_eq!(packed, 11);
}

/// The blocks that are written are those of the package gguf, to the bit.
#[test]
fn blocks_are_written_exactly() {
    let golden = Safetensors::open(folder().join("encoded.safetensors")).unwrap();
    let values = golden.array("values").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("b.gguf");
    let kinds = [TensorType::Q4_0, TensorType::Q8_0];
    let tensors = kinds.map(|kind| (kind.name().to_owned(), values.clone(), kind));
    save_as(
        &path,
        tensors.to_vec(),
        &Default::default(),
        &mut |_| Ok(()),
    )
    .unwrap();
    let file = Gguf::open(&path).unwrap();
    for kind in kinds {
        let name = kind.name();
        assert_eq!(file.info(name).unwrap(), (kind, values.shape()));
        let expected: Vec<u8> = golden.array(name).unwrap().to_vec().unwrap();
        assert!(file.bytes(name).unwrap() == expected, "{name}");
    }
    let one = |array: Array, kind| {
        let tensors = vec![("w".to_owned(), array, kind)];
        refusal(save_as(
            &path,
            tensors,
            &Default::default(),
            &mut |_| Ok(()),
        ))
    };
    let of = |value: f32| Array::from_slice(&[value; 32], &[1, 32]).unwrap();
    let before = std::fs::read(&path).unwrap();
    for (error, expected) in [
        (
            one(of(f32::NAN), TensorType::Q8_0),
            "has no scale for an element of NaN",
        ),
        (
            one(of(f32::INFINITY), TensorType::Q4_0),
            "has no scale for an element of inf",
        ),
        (
            one(of(1e30), TensorType::Q4_0),
            "has no scale for an element of 1000000",
        ),
        (
            one(of(7e4), TensorType::F16),
            "70000 is beyond the range of F16; use BF16 or F32",
        ),
        (
            one(of(1.0), TensorType::Q4_K),
            "type Q4_K cannot be written",
        ),
        (
            one(
                Array::from_slice(&[1f32; 40], &[1, 40]).unwrap(),
                TensorType::Q8_0,
            ),
            "rows of 40 elements are no whole number of Q8_0's blocks of 32",
        ),
    ] {
        assert!(error.contains(expected), "{expected:?} is not in {error:?}");
    }
    assert!(
        std::fs::read(&path).unwrap() == before,
        "a failed write changes nothing"
    );
}

/// The matrices of a written file are the blocks of the source's, and the head of a Q4_0 file has 8 bits.
#[test]
fn written_matrices_have_their_types() {
    let dir = tempfile::tempdir().unwrap();
    for (kind, matrix, head) in [
        (GgufType::F16, TensorType::F16, TensorType::F16),
        (GgufType::Q8_0, TensorType::Q8_0, TensorType::Q8_0),
        (GgufType::Q4_0, TensorType::Q4_0, TensorType::Q8_0),
    ] {
        let path = dir.path().join(format!("{}.gguf", kind.name()));
        written(&file("llama"), &path, kind).unwrap();
        let (found, source) = (
            Gguf::open(&path).unwrap(),
            Gguf::open(file("llama")).unwrap(),
        );
        for name in source.names() {
            let shape = source.info(name).unwrap().1;
            let expected = match shape.len() {
                1 => TensorType::F32,
                _ if name == "output.weight" => head,
                _ => matrix,
            };
            assert_eq!(found.info(name).unwrap(), (expected, shape), "{name}");
        }
        let model = loaded(&path, Some(DType::F32), false).unwrap();
        let (off, _) = compared(&model, "llama").unwrap();
        let most = match kind {
            GgufType::F16 => 1e-3,
            GgufType::Q8_0 => 2e-2,
            _ => 0.5,
        };
        assert!(off < most, "{}: {off}", kind.name());
        if let Some(scheme) = matrix.scheme() {
            assert_eq!(model.info.quantization, Some(scheme));
            let error = refusal(written(&path, &dir.path().join("x.gguf"), kind));
            assert!(error.contains("already quantised"), "{error}");
        }
    }
}

#[test]
fn the_guide_lists_every_written_type() {
    let guide = std::fs::read_to_string(folder().join("../../docs/guide/models.md")).unwrap();
    let written = guide.split("convert_to_gguf").nth(1).unwrap();
    for name in gguf_written_types() {
        assert!(written.contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn a_folder_and_parts_are_the_same_model() {
    let dir = tempfile::tempdir().unwrap();
    let source = Gguf::open(file("llama")).unwrap();
    let names: Vec<&str> = source.names().collect();
    let (first, second) = names.split_at(4);
    for (at, names) in [(1, first), (2, second)] {
        let arrays: Vec<_> = names
            .iter()
            .map(|&name| (name, source.array(name).unwrap()))
            .collect();
        let mut metadata = source.metadata().clone();
        metadata.remove("general.alignment");
        if at == 2 {
            metadata.clear();
        }
        let path = dir.path().join(format!("m-0000{at}-of-00002.gguf"));
        save(path, &arrays, &metadata).unwrap();
    }
    // The embedding is in the second part.
    let model = loaded(dir.path(), None, false).unwrap();
    assert!(compared(&model, "llama").unwrap().1);
    let part = dir.path().join("m-00002-of-00002.gguf");
    assert!(loaded(&part, None, false).is_ok());
    std::fs::copy(file("llama"), dir.path().join("other.gguf")).unwrap();
    assert!(refusal(loaded(dir.path(), None, false)).contains("several models in GGUF"));
    std::fs::remove_file(part).unwrap();
    let first = dir.path().join("m-00001-of-00002.gguf");
    assert!(refusal(loaded(&first, None, false)).contains("m-00002-of-00002.gguf does not exist"));
}

/// A conversion writes MLX's form of the same values.
#[test]
fn conversions_keep_the_values() {
    for (name, expand, _) in MODELS {
        let dir = tempfile::tempdir().unwrap();
        let (config, weights) = open_checkpoint(&file(name)).unwrap();
        let options = ConvertOptions {
            expand,
            dtype: Some(DType::F32),
            ..ConvertOptions::default()
        };
        convert(name, config, weights, dir.path(), &options, &mut |_, _| {
            Ok(())
        })
        .unwrap();
        let (off, same) = compared(&loaded(dir.path(), None, false).unwrap(), name).unwrap();
        assert!(
            off < 1e-5 && same,
            "{name}: off by {off}, same tokens: {same}"
        );
    }
}

/// Checkpoints of `testdata/models` with a setting that llama.cpp has no key for, and the reason that the error names.
const REFUSED: [(&str, &str); 24] = [
    // The scale of queries.
    ("gemma2", "logits up to"),
    // Windows on two of three layers.
    (
        "gemma3",
        "layer 2 would have the state Some([Window(8)]) instead of [Full]",
    ),
    ("gemma3_text", "layer 2 would have the state"),
    ("gemma3_text_v5", "layer 0 would have the state"),
    ("gemma3_v5", "layer 2 would have the state"),
    // Biases of convolutions.
    ("lfm2", "linear_attn.conv.bias would be no parameter"),
    // GELU.
    ("llama_bias", "logits up to"),
    (
        "llama_dynamic",
        "a rope of type \"dynamic\" cannot be written",
    ),
    (
        "llama_proportional",
        "a rope of type \"proportional\" cannot be written",
    ),
    (
        "llama_ternary",
        "already quantised (affine, 2 bits in groups of 32)",
    ),
    (
        "mistral",
        "layers have a window of 8 positions, for which architecture llama has no key",
    ),
    ("mixtral", "layers have a window of 8 positions"),
    (
        "olmo",
        "model.layers.0.self_attn.k_proj.bias would be no parameter",
    ),
    // The probabilities of the chosen experts are made to add up to 1.
    ("olmoe", "logits up to"),
    // Layers without experts.
    (
        "qwen2_moe",
        "model.layers.1.mlp.gate.weight [4, 32] would be a parameter",
    ),
    ("qwen2_moe_window", "layers have a window of 8 positions"),
    ("qwen2_window", "layers have a window of 8 positions"),
    (
        "qwen3_moe",
        "model.layers.1.mlp.gate.weight [4, 32] would be a parameter",
    ),
    ("qwen3_moe_step", "layers have a window of 8 positions"),
    ("qwen3_tied", "layers have a window of 8 positions"),
    // No rope on every second layer.
    ("smollm3", "logits up to"),
    ("smollm3_window", "layers have a window of 8 positions"),
    (
        "stablelm_norms",
        "self_attn.q_layernorm.norms.0.weight has no counterpart in GGUF",
    ),
    ("starcoder2", "layers have a window of 8 positions"),
];

/// Configs of types whose checkpoints above are refused, with settings of published models.
fn usual(model_type: &str) -> serde_json::Value {
    let mut config = serde_json::json!({
        "model_type": model_type, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 64,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "norm_epsilon": 1e-5, "initializer_range": 0.2,
        "rope_theta": 50000.0, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
        "num_experts": 4, "num_experts_per_tok": 2,
    });
    let own = match model_type {
        "gemma2" => serde_json::json!({
            "query_pre_attn_scalar": 16, "sliding_window": 8, "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        }),
        "gemma3_text" => serde_json::json!({
            "query_pre_attn_scalar": 16, "sliding_window": 8, "rope_local_base_freq": 10000.0, "rope_theta": 1e6,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        }),
        "mixtral" => serde_json::json!({"num_local_experts": 4}),
        "qwen3_moe" => serde_json::json!({"norm_topk_prob": true}),
        "olmo" => serde_json::json!({"clip_qkv": 8.0, "num_key_value_heads": 4}),
        "starcoder2" => serde_json::json!({"use_bias": true, "sliding_window": null}),
        "stablelm" => serde_json::json!({"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25}),
        _ => serde_json::json!({"sliding_window": null}),
    };
    for (key, value) in own.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

/// Writes a checkpoint in GGUF, without a tokenizer.
fn written(source: &Path, path: &Path, kind: GgufType) -> Result<()> {
    let (config, weights) = open_checkpoint(source)?;
    let text = |_| Ok(Default::default());
    convert_to_gguf("m", config, weights, path, kind, text, &mut |_, _| Ok(())).map(|_| ())
}

/// Files of every type that is written are the source's model.
#[test]
fn written_files_are_the_source() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let (mut wrong, mut types) = (Vec::new(), std::collections::BTreeSet::new());
    let entries = std::fs::read_dir(folder().join("../models")).unwrap();
    let entries = entries.map(|entry| entry.unwrap().path());
    let entries = entries.filter(|path| path.join("config.json").exists());
    let mut sources: Vec<(String, PathBuf)> = entries
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .map(|name| (name.clone(), checkpoints::checkpoint(&name)))
        .collect();
    sources.sort();
    for model_type in [
        "gemma2",
        "gemma3_text",
        "mistral",
        "mixtral",
        "olmo",
        "olmoe",
        "qwen2_moe",
        "qwen3_moe",
        "smollm3",
        "starcoder2",
        "stablelm",
    ] {
        let name = format!("usual {model_type}");
        let source = dir.path().join(&name);
        std::fs::create_dir(&source).unwrap();
        let config = usual(model_type);
        let model = initialised(&name, config.clone(), 3).unwrap().model;
        save_checkpoint(model.as_ref(), config.as_object().unwrap(), &source).unwrap();
        sources.push((name, source));
    }
    for (name, source) in sources {
        let (config, _) = open_checkpoint(&source).unwrap();
        let model_type = config["model_type"].as_str().unwrap();
        if !gguf_written_types().contains(&model_type) || config.get("quantization").is_some() {
            continue;
        }
        let result = written(&source, &path, GgufType::F32);
        match (REFUSED.iter().find(|(refused, _)| *refused == name), result) {
            (Some((_, reason)), Err(error)) if error.to_string().contains(reason) => continue,
            (None, Ok(())) => {}
            (_, result) => {
                wrong.push(format!(
                    "{name}: {:?}",
                    result.err().map(|error| error.to_string())
                ));
                continue;
            }
        }
        types.insert(model_type.to_owned());
        let found = loaded(&path, Some(DType::F32), false).unwrap();
        let expected = loaded(&source, Some(DType::F32), false).unwrap();
        let prompt = prompt(found.info.vocab as u32);
        let rows = |model: &Loaded| log_probs(&prompt_logits(model, &prompt).unwrap()).unwrap();
        let off = difference(&rows(&found), &rows(&expected));
        let tokens = |model: &Loaded| greedy(model, &prompt, 12).unwrap().0;
        let same = tokens(&found) == tokens(&expected);
        if off > 1e-4 || !same {
            wrong.push(format!("{name}: off by {off}, same tokens: {same}"));
        }
    }
    let missing = gguf_written_types().into_iter();
    let missing = missing.filter(|name| *name != "gemma3" && !types.contains(*name));
    wrong.extend(missing.map(|name| format!("{name}: no model of this type is written")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A copy of a model with other metadata or tensors.
fn changed(
    change: impl FnOnce(&mut std::collections::BTreeMap<String, Value>, &mut Vec<(String, Array)>),
) -> String {
    let dir = tempfile::tempdir().unwrap();
    let source = Gguf::open(file("llama")).unwrap();
    let mut metadata = source.metadata().clone();
    metadata.remove("general.alignment");
    let names = source.names().map(str::to_owned);
    let mut arrays: Vec<_> = names
        .map(|name| {
            let array = source.array(&name).unwrap();
            (name, array)
        })
        .collect();
    change(&mut metadata, &mut arrays);
    let path = dir.path().join("m.gguf");
    save(&path, &arrays, &metadata).unwrap();
    refusal(loaded(&path, None, false))
}

#[test]
fn what_is_refused_is_named() {
    let set = |key: &'static str, value: Value| {
        changed(|metadata, _| drop(metadata.insert(key.to_owned(), value)))
    };
    let cases = [
        (
            set("general.architecture", "rwkv9".into()),
            "general.architecture \"rwkv9\" is not supported; supported: llama, mistral3",
        ),
        (
            changed(|metadata, _| drop(metadata.remove("llama.block_count"))),
            "no key \"llama.block_count\"",
        ),
        (
            set("llama.rope.scaling.type", "spiral".into()),
            "\"llama.rope.scaling.type\" is \"spiral\"; supported: none, linear, yarn",
        ),
        (set("llama.rope.freq_base", "x".into()), "rope_theta"),
        (
            set("llama.attention.head_count", 3u32.into()),
            "32 rows are not those of 3 heads",
        ),
        (
            set("llama.attention.head_count", 0u32.into()),
            "32 rows are not those of 0 heads",
        ),
        (
            set("llama.block_count", u32::MAX.into()),
            "num_hidden_layers",
        ),
        (set("llama.embedding_length", 64u32.into()), "misshapen"),
        (
            changed(|_, arrays| arrays[0].0 = "blk.0.attn_strange.weight".into()),
            "tensor \"blk.0.attn_strange.weight\" is not known in a model of architecture llama",
        ),
        (
            changed(|_, arrays| arrays.retain(|(name, _)| name != "token_embd.weight")),
            "no tensor \"token_embd.weight\"",
        ),
        (
            changed(|_, arrays| arrays[0].1 = arrays[0].1.astype(DType::I32).unwrap()),
            "weights of type I32 are not supported",
        ),
    ];
    for (error, expected) in cases {
        assert!(error.contains(expected), "{expected:?} is not in {error:?}");
    }
    let error = refusal(loaded(&file("qwen3_expanded"), None, false));
    assert!(
        error.contains("tensors are Q2_K, Q6_K, which no packed form of MLX holds exactly"),
        "{error}"
    );
    assert!(
        error.contains("as dense F32 they have") && error.contains("--expand"),
        "{error}"
    );
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    std::fs::write(&path, b"GGUX").unwrap();
    assert!(refusal(loaded(&path, None, false)).contains("not a GGUF file"));
    std::fs::rename(path, dir.path().join("x.bin")).unwrap();
    assert!(
        refusal(loaded(&dir.path().join("x.bin"), None, false)).contains("does not end in .gguf")
    );
}

#[test]
fn the_guide_lists_every_architecture() {
    let guide = folder().join("../../docs/guide/models.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    for name in mlx_models::gguf_architectures() {
        assert!(guide.contains(&format!("`{name}`")), "{name}");
    }
}

/// Bytes at every place of the head changed, and the file cut: an error or another model, never a panic.
#[test]
fn damaged_files_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let whole = std::fs::read(file("llama_q4_0")).unwrap();
    let mut refused = 0;
    for at in (0..2400).step_by(7) {
        let mut bytes = whole.clone();
        bytes[at] = bytes[at].wrapping_add(1 << (at % 8));
        std::fs::write(&path, &bytes).unwrap();
        refused += usize::from(loaded(&path, None, false).is_err());
    }
    assert!(refused > 100, "{refused}");
    for len in (0..whole.len()).step_by(997) {
        std::fs::write(&path, &whole[..len]).unwrap();
        assert!(loaded(&path, None, false).is_err(), "{len} bytes");
    }
}

/// `MLX_GGUF_FILES` names a folder with files `NAME.gguf` that llama.cpp's converter made from the folders `NAME`
/// beside them.
#[test]
fn files_of_a_folder() {
    let Some(folder) = std::env::var_os("MLX_GGUF_FILES") else {
        return;
    };
    let mut wrong = Vec::new();
    let entries = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "gguf"));
    files.sort();
    for file in files {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let found = loaded(&file, Some(DType::F32), false).and_then(|found| {
            let expected = loaded(&file.with_extension(""), Some(DType::F32), false)?;
            let prompt = prompt(found.info.vocab as u32);
            let rows = |model: &Loaded| log_probs(&prompt_logits(model, &prompt)?);
            let same = greedy(&found, &prompt, 24)?.0 == greedy(&expected, &prompt, 24)?.0;
            Ok((difference(&rows(&found)?, &rows(&expected)?), same))
        });
        match found {
            Ok((off, true)) if off < 1e-4 => println!("{name}: {off:.1e}"),
            Ok((off, same)) => wrong.push(format!("{name}: off by {off}, same tokens: {same}")),
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
