//! Heads for multi-token prediction in separate files: the forms that are read, and the form that is written.

#[path = "heads/apart.rs"]
mod apart;
#[path = "shared/parameters.rs"]
mod shared;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mlx_core::{Array, DType, QuantMode, Result, Safetensors, Scheme, random, safetensors};
use mlx_models::convert::{ConvertOptions, Converted, Packing, Recipe, convert, save};
use mlx_models::{LoadOptions, Loaded, load, open_weights};
use serde_json::{Value, json};

use shared::{Tensors, same};

const HIDDEN: i32 = 64;

fn testdata(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata/models")
        .join(case)
}

fn config(dir: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap()
}

fn write(path: &Path, tensors: &Tensors) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let arrays = tensors.iter().map(|(name, array)| (name.as_str(), array));
    safetensors::save(path, arrays, &BTreeMap::new()).unwrap();
}

/// The tensors of a head for `q_qwen3_5_mixed`, without a prefix. Norms are stored as `weight - 1`.
fn head() -> Tensors {
    let layer = "layers.0.";
    let matrices = [
        ("fc", [HIDDEN, 2 * HIDDEN]),
        ("self_attn.q_proj", [128, HIDDEN]),
        ("self_attn.k_proj", [32, HIDDEN]),
        ("self_attn.v_proj", [32, HIDDEN]),
        ("self_attn.o_proj", [HIDDEN, 64]),
        ("mlp.gate_proj", [64, HIDDEN]),
        ("mlp.up_proj", [64, HIDDEN]),
        ("mlp.down_proj", [HIDDEN, 64]),
    ];
    let norms = [
        ("norm", HIDDEN),
        ("pre_fc_norm_embedding", HIDDEN),
        ("pre_fc_norm_hidden", HIDDEN),
        ("input_layernorm", HIDDEN),
        ("post_attention_layernorm", HIDDEN),
        ("self_attn.q_norm", 32),
        ("self_attn.k_norm", 32),
    ];
    let matrices = matrices.iter().map(|&(name, shape)| (name, shape.to_vec()));
    let norms = norms.iter().map(|&(name, size)| (name, vec![size]));
    let mut tensors = Tensors::new();
    for (seed, (name, shape)) in matrices.chain(norms).enumerate() {
        let key = random::Key::new(seed as u64).unwrap();
        let array = random::normal_with(&key, &shape, DType::BF16, 0.0, 0.1).unwrap();
        let inside = name.contains('.') || name.ends_with("layernorm");
        let prefix = if inside { layer } else { "" };
        tensors.insert(format!("{prefix}{name}.weight"), array);
    }
    tensors
}

fn prefixed(prefix: &str) -> Tensors {
    let named = |(name, array)| (format!("{prefix}{name}"), array);
    head().into_iter().map(named).collect()
}

fn converted(from: &Path, to: &Path, packing: Packing) -> Result<Converted> {
    let options = ConvertOptions {
        packing,
        dtype: Some(DType::BF16),
        ..ConvertOptions::default()
    };
    convert(
        "here",
        config(from),
        open_weights(from)?,
        to,
        &options,
        &mut |_, _| Ok(()),
    )
}

/// A dense model in MLX's form, without a head.
fn dense() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    converted(
        &testdata("q_qwen3_5_mixed"),
        dir.path(),
        Packing::Dequantize,
    )
    .unwrap();
    dir
}

fn loaded(dir: &Path) -> Loaded {
    load(dir, LoadOptions::default()).unwrap()
}

fn refused(dir: &Path) -> String {
    load(dir, LoadOptions::default())
        .err()
        .expect("loaded")
        .to_string()
}

/// The parameters of the head.
fn parameters(model: &Loaded) -> Tensors {
    let all = shared::parameters(model).into_iter();
    let of_head =
        |(name, array): (String, Array)| Some((name.strip_prefix("mtp.")?.to_owned(), array));
    all.filter_map(of_head).collect()
}

fn assert_head(found: &Tensors, place: &str) {
    let expected = head();
    assert!(
        found.keys().eq(expected.keys()),
        "{place}: {:?}",
        found.keys()
    );
    for (name, expected) in &expected {
        let expected = match name.contains("norm") {
            true => expected
                .astype(DType::F32)
                .unwrap()
                .add(1.0)
                .unwrap()
                .astype(DType::BF16)
                .unwrap(),
            false => expected.clone(),
        };
        assert!(same(&found[name], &expected), "{place}: {name}");
    }
}

#[test]
fn heads_are_found_beside_their_models() {
    for (file, prefix) in [
        ("mtp.safetensors", "mtp."),
        ("model-mtp.safetensors", "language_model.mtp."),
        ("mtp/weights.safetensors", ""),
        ("mtp/weights.safetensors", "model."),
        ("mtp.safetensors", "model.language_model.mtp."),
    ] {
        let dir = dense();
        assert!(parameters(&loaded(dir.path())).is_empty());
        write(&dir.path().join(file), &prefixed(prefix));
        assert_head(
            &parameters(&loaded(dir.path())),
            &format!("{file}, {prefix:?}"),
        );
    }
}

#[test]
fn a_head_is_whole_and_there_once() {
    let dir = dense();
    let mut partial = prefixed("mtp.");
    partial.remove("mtp.layers.0.self_attn.v_proj.weight");
    write(&dir.path().join("mtp.safetensors"), &partial);
    let error = refused(dir.path());
    assert!(
        error.contains("1 missing: mtp.layers.0.self_attn.v_proj.weight"),
        "{error}"
    );
    write(&dir.path().join("mtp.safetensors"), &prefixed("mtp."));
    write(&dir.path().join("mtp/weights.safetensors"), &prefixed(""));
    let error = refused(dir.path());
    assert!(error.contains("two tensors claim to be mtp."), "{error}");
    let dir = dense();
    write(&dir.path().join("mtp.safetensors"), &prefixed("*.mtp."));
    let error = refused(dir.path());
    assert!(error.contains("\"*.\" is no prefix of tensors"), "{error}");
    // A family without heads ignores the file of a head.
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(testdata("llama_tied").join(file), dir.path().join(file)).unwrap();
    }
    write(&dir.path().join("mtp.safetensors"), &prefixed("mtp."));
    loaded(dir.path());
}

/// The projection and norms are unchanged, and the layer gets 8 bits; other programs ignore the file.
#[test]
fn a_conversion_keeps_the_head() {
    let source = dense();
    let scheme = Scheme::new(32, 4, QuantMode::Affine).unwrap();
    write(
        &source.path().join("model-mtp.safetensors"),
        &prefixed("language_model.mtp."),
    );
    let [packed, again, back] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let recipe = Packing::Quantize(Recipe::uniform(scheme));
    let done = converted(source.path(), packed.path(), recipe).unwrap();
    assert_eq!(done.files, ["model.safetensors", "mtp.safetensors"]);
    let file = Safetensors::open(packed.path().join("model.safetensors")).unwrap();
    assert!(file.names().all(|name| !name.contains("mtp.")));
    let file = Safetensors::open(packed.path().join("mtp.safetensors")).unwrap();
    let dtypes: BTreeMap<&str, DType> = file
        .names()
        .map(|name| (name, file.info(name).unwrap().0))
        .collect();
    assert_eq!(dtypes["mtp.fc.weight"], DType::BF16);
    assert_eq!(dtypes["mtp.layers.0.self_attn.q_norm.weight"], DType::BF16);
    assert_eq!(
        dtypes
            .values()
            .filter(|&&dtype| dtype == DType::U32)
            .count(),
        7
    );
    let described = config(packed.path());
    assert_eq!(described["text_config"]["mtp_norm_offset"], json!(0));
    let entry = &described["quantization"]["language_model.mtp.layers.0.mlp.down_proj"];
    assert_eq!(
        (&entry["bits"], &entry["group_size"]),
        (&json!(8), &json!(64))
    );
    assert!(described["quantization"]["language_model.mtp.fc"].is_null());

    let expected = parameters(&loaded(packed.path()));
    assert_eq!(expected.len(), 15 + 2 * 7);
    converted(packed.path(), again.path(), Packing::Keep).unwrap();
    let found = parameters(&loaded(again.path()));
    assert!(found.keys().eq(expected.keys()));
    assert!(
        found
            .iter()
            .all(|(name, array)| same(array, &expected[name]))
    );

    let model = loaded(source.path());
    let Value::Object(object) = config(source.path()) else {
        panic!("an object");
    };
    let saved = save(model.model.as_ref(), &object, back.path()).unwrap();
    assert_eq!(saved.files, ["model.safetensors", "mtp.safetensors"]);
    assert_head(&parameters(&loaded(back.path())), "saved");
}

/// DeepSeek and GLM publish heads as layers after the model's last one. They are converted with the
/// model: dense ones keep their numbers, and quantised ones get more bits.
#[test]
fn layers_behind_the_last_are_kept() {
    for case in ["deepseek_v3", "glm4_moe_lite", "glm4_moe"] {
        let from = testdata(case);
        let source = shared::parameters(&loaded(&from));
        let heads: Vec<&String> = source
            .keys()
            .filter(|name| name.starts_with("mtp."))
            .collect();
        for part in [
            "eh_proj",
            "enorm",
            "shared_head.head",
            "self_attn.o_proj",
            "mlp.switch_mlp.up_proj",
        ] {
            let name = format!("mtp.layers.0.{part}.weight");
            assert!(source.contains_key(&name), "{case}: {name}");
        }
        let dir = tempfile::tempdir().unwrap();
        converted(&from, dir.path(), Packing::Keep).unwrap();
        let file = Safetensors::open(dir.path().join("mtp.safetensors")).unwrap();
        assert_eq!(file.names().count(), heads.len(), "{case}");
        let kept = shared::parameters(&loaded(dir.path()));
        assert!(source.keys().eq(kept.keys()), "{case}");
        for (name, array) in &source {
            assert!(same(array, &kept[name]), "{case}: {name}");
        }

        let four = Scheme::new(32, 4, QuantMode::Affine).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let packing = Packing::Quantize(Recipe::uniform(four));
        converted(&from, dir.path(), packing).unwrap();
        let again = loaded(dir.path());
        let found = shared::parameters(&again);
        for name in heads {
            assert!(found.contains_key(name), "{case}: {name}");
        }
        assert!(again.info.unread_keys.is_empty());
    }
}
