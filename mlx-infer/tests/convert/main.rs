//! `convert`: its files equal those of `mlx_lm.convert` to the bit; its refusals.
#![cfg(feature = "cli")]

mod refusals;

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use mlx_core::{Array, DType, QuantMode, Safetensors, Scheme, memory, random, safetensors};
use mlx_infer::convert::{ConvertOptions, Packing, Recipe, convert};
use mlx_infer::{CancelToken, Files, GenerateOptions, LoadOptions, LoadedModel, Prompt};
use serde_json::{Value, json};

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata")
        .join(name)
}

fn command(source: &Path, out: &Path, flags: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mlx-infer"))
        .args([Path::new("convert"), Path::new("--model"), source])
        .args([Path::new("--out"), out])
        .args(flags)
        .output()
        .unwrap()
}

/// Runs a conversion that must succeed, and returns the document that it prints.
fn converted(source: &Path, out: &Path, flags: &[&str]) -> Value {
    let output = command(source, out, &[flags, &["--json"]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{flags:?}: {stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs a conversion that must fail with this exit status, and returns its message.
fn refused(source: &Path, out: &Path, flags: &[&str], status: i32) -> String {
    let output = command(source, out, flags);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{flags:?}: {stderr}");
    stderr
}

fn config(dir: &Path) -> Value {
    serde_json::from_slice(&fs::read(dir.join("config.json")).unwrap()).unwrap()
}

/// FNV-1a of the bytes, as in the goldens.
fn digest(array: &Array) -> String {
    let bytes = array.view(DType::U8).unwrap().to_vec::<u8>().unwrap();
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

fn tensors(dir: &Path) -> BTreeMap<String, Array> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with("model") && name.ends_with(".safetensors") {
            let file = Safetensors::open(&path).unwrap();
            for name in file.names() {
                found.insert(name.to_owned(), file.array(name).unwrap());
            }
        }
    }
    found
}

fn greedy(dir: &Path, prompt: &[u32], n: usize) -> Vec<u32> {
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    let model = LoadedModel::load(dir, options).unwrap();
    let options = GenerateOptions {
        max_tokens: n,
        ignore_eos: true,
        ..GenerateOptions::default()
    };
    let generation = model.generate(Prompt::Tokens(prompt.to_vec()), &options);
    let answer = generation.unwrap().run(|_| ControlFlow::Continue(()));
    answer
        .unwrap()
        .tokens
        .iter()
        .map(|choice| choice.id)
        .collect()
}

#[test]
fn conversions_equal_those_of_mlx_lm() {
    let golden = fs::read(testdata("convert/golden.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() >= 15, "only {} cases", cases.len());
    for case in cases {
        let name = case["case"].as_str().unwrap();
        let source = case["source"].as_str().unwrap();
        let flags: Vec<String> = serde_json::from_value(case["flags"].clone()).unwrap();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let out = folder.path().join(name);
        let earlier = folder.path().join(source);
        let source = match earlier.exists() {
            true => earlier,
            false => testdata("models").join(source),
        };
        converted(&source, &out, &flags);
        let found = tensors(&out);
        let expected: BTreeMap<String, String> =
            serde_json::from_value(case["tensors"].clone()).unwrap();
        assert_eq!(
            found.keys().collect::<Vec<_>>(),
            expected.keys().collect::<Vec<_>>(),
            "{name}"
        );
        for (key, array) in &found {
            let told =
                |array: &Array| format!("{} {:?} {}", array.dtype(), array.shape(), digest(array));
            let expected = &expected[key];
            // mlx-lm unpacks modes without floating-point scales into BF16, for any dtype in the config.
            let narrow = expected.starts_with("BF16") && array.dtype() == DType::F32;
            let array = match narrow {
                true => array.astype(DType::BF16).unwrap(),
                false => array.clone(),
            };
            assert_eq!(told(&array), *expected, "{name}: {key}");
        }
        let config = config(&out);
        assert_eq!(config["quantization"], config["quantization_config"]);
        for (path, expected) in case["schemes"].as_object().unwrap() {
            let all = &config["quantization"];
            let one = all.get(path).unwrap_or(all);
            let (mode, bits) = (one["mode"].as_str().unwrap(), &one["bits"]);
            let told = format!("{mode}, {bits} bits in groups of {}", one["group_size"]);
            assert_eq!(told, expected.as_str().unwrap(), "{name}: {path}");
        }
        let prompt: Vec<u32> = serde_json::from_value(case["prompt"].clone()).unwrap();
        // If mlx-lm computes other tokens than transformers, the tokens of the unconverted source
        // are expected.
        let expected: Vec<u32> = match case.get("tokens") {
            Some(tokens) => serde_json::from_value(tokens.clone()).unwrap(),
            None => greedy(&source, &prompt, 12),
        };
        assert_eq!(greedy(&out, &prompt, expected.len()), expected, "{name}");
    }
}

/// A llama with this many layers and random weights, in f32 and two files.
fn random_llama(dir: &Path, layers: usize) {
    let mut key = random::Key::new(7).unwrap();
    let mut normal = |shape: &[i32]| {
        let [now, later] = key.split().unwrap();
        key = later;
        random::normal_with(&now, shape, DType::F32, 0.0, 0.05).unwrap()
    };
    let mut all: BTreeMap<String, Array> = BTreeMap::new();
    let (vocab, hidden, inner) = (256, 256, 512);
    all.insert("model.embed_tokens.weight".into(), normal(&[vocab, hidden]));
    all.insert("model.norm.weight".into(), normal(&[hidden]));
    for layer in 0..layers {
        for (name, shape) in [
            ("self_attn.q_proj", [hidden, hidden]),
            ("self_attn.k_proj", [hidden, hidden]),
            ("self_attn.v_proj", [hidden, hidden]),
            ("self_attn.o_proj", [hidden, hidden]),
            ("mlp.gate_proj", [inner, hidden]),
            ("mlp.up_proj", [inner, hidden]),
            ("mlp.down_proj", [hidden, inner]),
        ] {
            all.insert(
                format!("model.layers.{layer}.{name}.weight"),
                normal(&shape),
            );
        }
        for name in ["input_layernorm", "post_attention_layernorm"] {
            all.insert(
                format!("model.layers.{layer}.{name}.weight"),
                normal(&[hidden]),
            );
        }
    }
    let pairs = all.iter().map(|(name, array)| (name.as_str(), array));
    safetensors::save(dir.join("model.safetensors"), pairs, &BTreeMap::new()).unwrap();
    let config = json!({
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner,
        "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": layers,
        "vocab_size": vocab, "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
    });
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
}

fn four_bits() -> ConvertOptions {
    let scheme = Scheme::new(64, 4, QuantMode::Affine).unwrap();
    ConvertOptions {
        packing: Packing::Quantize(Recipe::uniform(scheme)),
        ..ConvertOptions::default()
    }
}

/// ModelOpt describes packed weights in a file beside config.json. The new folder has other weights.
#[test]
fn descriptions_of_the_old_weights_are_not_copied() {
    let source = testdata("stored/modelopt_qwen3_moe");
    assert!(source.join("hf_quant_config.json").is_file());
    let folder = tempfile::tempdir().unwrap();
    for (flag, mode) in [
        ("--dequantize", Value::Null),
        ("--dtype=bf16", json!("nvfp4")),
    ] {
        let out = folder.path().join(flag);
        converted(&source, &out, &[flag]);
        let names = fs::read_dir(&out).unwrap();
        let names: Vec<String> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert!(
            names.iter().all(|name| !name.contains("quant")),
            "{names:?}"
        );
        assert_eq!(config(&out)["quantization"]["mode"], mode);
        assert!(
            mlx_models::load(&out, mlx_models::LoadOptions::default()).is_ok(),
            "{flag}"
        );
    }
}

#[test]
fn shards_are_written_one_tensor_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let (source, whole, parts) = (
        folder.path().join("source"),
        folder.path().join("whole"),
        folder.path().join("parts"),
    );
    fs::create_dir(&source).unwrap();
    random_llama(&source, 6);
    let files = Files::directory(&source).unwrap();
    let cancel = CancelToken::new();
    memory::reset_peak().unwrap();
    let before = memory::active().unwrap();
    let one = convert(&files, &whole, false, &four_bits(), &cancel, &mut |_, _| ()).unwrap();
    let peak = memory::peak().unwrap() - before;
    // One matrix of 512 KB, its packed form, and intermediate results.
    assert!(peak < 2 << 20, "{peak} bytes for {} written", one.bytes);
    assert_eq!(one.files, ["model.safetensors"]);
    assert_eq!(one.packed, 1 + 6 * 7);
    let options = ConvertOptions {
        shard_bytes: 400_000,
        ..four_bits()
    };
    let mut told = Vec::new();
    let many = convert(
        &files,
        &parts,
        false,
        &options,
        &cancel,
        &mut |done, total| {
            told.push((done, total));
        },
    )
    .unwrap();
    assert!(told.is_sorted() && told.last() == Some(&(many.bytes, many.bytes)));
    assert!(many.files.len() > 2, "{:?}", many.files);
    let count = many.files.len();
    assert_eq!(
        many.files[0],
        format!("model-00001-of-{count:05}.safetensors")
    );
    let index = fs::read(parts.join("model.safetensors.index.json")).unwrap();
    let index: Value = serde_json::from_slice(&index).unwrap();
    assert_eq!(index["metadata"]["total_size"], many.bytes);
    assert_eq!(index["metadata"]["total_parameters"], many.parameters);
    let (a, b) = (tensors(&whole), tensors(&parts));
    assert_eq!(index["weight_map"].as_object().unwrap().len(), a.len());
    assert!(a.keys().eq(b.keys()));
    for (name, array) in &a {
        assert_eq!(digest(array), digest(&b[name]), "{name}");
    }
    assert_eq!(greedy(&whole, &[5, 9, 2], 8), greedy(&parts, &[5, 9, 2], 8));
}

#[test]
fn unpacked_says_what_packed_says() {
    let folder = tempfile::tempdir().unwrap();
    let (packed, dense) = (folder.path().join("packed"), folder.path().join("dense"));
    let source = testdata("models/qwen3");
    let document = converted(
        &source,
        &packed,
        &["-q", "--bits", "3", "--group-size", "32"],
    );
    assert!(document["packed"].as_u64().unwrap() > 5);
    let written = converted(&packed, &dense, &["--dequantize", "--dtype", "f32"]);
    assert_eq!(written["parameters"], document["parameters"]);
    assert_eq!(written["packed"], 0);
    assert!(config(&dense).get("quantization").is_none());
    assert_eq!(config(&dense)["torch_dtype"], "float32");
    let nll = |dir: &Path| {
        let options = LoadOptions {
            dtype: Some(DType::F32),
            ..LoadOptions::default()
        };
        let model = LoadedModel::load(dir, options).unwrap();
        let score = model.score(vec![5, 9, 2, 17, 33, 8, 21, 40], &Default::default());
        score.unwrap().logprobs
    };
    for (a, b) in nll(&packed).into_iter().zip(nll(&dense)) {
        let off = (a.unwrap_or(0.0) - b.unwrap_or(0.0)).abs();
        assert!(off < 1e-4, "off by {off}");
    }
}

/// Weights below half of the smallest number of float16 become zero. A tensor in which that is more than 1 % of them is named.
#[test]
fn weights_that_become_zero_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    fs::create_dir(&source).unwrap();
    random_llama(&source, 1);
    let mut all = tensors(&source);
    let small = "model.layers.0.self_attn.q_proj.weight";
    let most = all[small].multiply(1e-6f32).unwrap();
    all.insert(small.into(), most);
    // 2 of 255 nonzero weights are less than 1 %; 3 are more.
    let mut norm = vec![1.0f32; 256];
    norm[..3].copy_from_slice(&[0.0, 1e-9, -1e-30]);
    let few = Array::from_slice(&norm, &[256]).unwrap();
    norm[3] = 2.0f32.powi(-25);
    // Slightly more than half of the smallest number is not rounded to zero.
    norm[4] = 2.0f32.powi(-25) * (1.0 + f32::EPSILON);
    let enough = Array::from_slice(&norm, &[256]).unwrap();
    let named = "model.layers.0.input_layernorm.weight";
    all.insert("model.norm.weight".into(), few);
    all.insert(named.into(), enough);
    let pairs = all.iter().map(|(name, array)| (name.as_str(), array));
    safetensors::save(source.join("model.safetensors"), pairs, &BTreeMap::new()).unwrap();

    let cast = folder.path().join("cast");
    let told = converted(&source, &cast, &["--dtype", "f16"]);
    let nonzero = |array: &Array| {
        let numbers = array.astype(DType::F32).unwrap().to_vec::<f32>().unwrap();
        numbers.iter().filter(|&&number| number != 0.0).count()
    };
    let (before, after) = (nonzero(&all[small]), nonzero(&tensors(&cast)[small]));
    assert!(after > 0 && before - after > before / 100);
    let expected = json!([
        {"tensor": named, "nonzero": 255, "zeros": 3},
        {"tensor": small, "nonzero": before, "zeros": before - after},
    ]);
    assert_eq!(told["vanishing"], expected);

    // Packed weights are unpacked first.
    for (out, flags) in [
        ("again", &["--dtype", "f16"][..]),
        ("packed", &["-q", "--dtype", "f16"]),
    ] {
        let output = command(&source, &folder.path().join(out), flags);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{stderr}");
        let warnings: Vec<&str> = stderr
            .lines()
            .filter(|line| line.contains("become zero"))
            .collect();
        let line = |name: &str, zeros: usize, nonzero: usize| {
            format!(
                "warning: {name}: {zeros} of {nonzero} weights that are not zero become zero in the new type"
            )
        };
        let expected = [line(named, 3, 255), line(small, before - after, before)];
        assert_eq!(warnings, expected);
    }
    for (out, flags) in [
        ("same", &[][..]),
        ("wide", &["--dtype", "bf16"]),
        ("words", &["-q"]),
    ] {
        let told = converted(&source, &folder.path().join(out), flags);
        assert_eq!(told["vanishing"], json!([]), "{out}");
    }
}
