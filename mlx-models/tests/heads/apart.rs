//! Heads in folders of their own, for checkpoints without one.

use super::*;

/// The model in `dir` with the head in another folder.
fn with_head(dir: &Path, head: &Path) -> Result<Loaded> {
    let options = LoadOptions {
        head: Some(head),
        ..LoadOptions::default()
    };
    load(dir, options)
}

/// Repositories that hold a head alone, in the forms in which they are published, and a checkpoint with a head in its files.
#[test]
fn heads_come_from_folders_of_their_own() {
    let model = dense();
    let sizes = json!({"model_type": "qwen3_5_mtp", "hidden_size": HIDDEN, "block_size": 3});
    for (file, prefix, config) in [
        ("model.safetensors", "", Some(&sizes)),
        ("model.safetensors", "mtp.", Some(&sizes)),
        ("model.safetensors", "", None),
        ("mtp.safetensors", "mtp.", None),
        ("model-mtp.safetensors", "language_model.mtp.", None),
        ("mtp/weights.safetensors", "", None),
    ] {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join(file), &prefixed(prefix));
        if let Some(config) = config {
            std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        }
        let found = with_head(model.path(), dir.path()).unwrap();
        assert_head(&parameters(&found), &format!("{file}, {prefix:?}"));
        assert!(found.info.unread_keys.is_empty());
    }
    let whole = tempfile::tempdir().unwrap();
    let mut tensors = prefixed("mtp.");
    for name in ["lm_head.weight", "model.language_model.norm.weight", "bare"] {
        tensors.insert(name.to_owned(), head()["norm.weight"].clone());
    }
    write(&whole.path().join("model.safetensors"), &tensors);
    let found = with_head(model.path(), whole.path()).unwrap();
    assert_head(&parameters(&found), "a whole checkpoint");
}

/// A packed head has the schemes of its own config.json, beside a dense model and beside a model
/// with other schemes.
#[test]
fn a_packed_head_has_schemes_of_its_own() {
    let (plain, source) = (dense(), dense());
    write(&source.path().join("mtp.safetensors"), &prefixed("mtp."));
    let [packed, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let pack = |from: &Path, to: &Path, bits| {
        let scheme = Scheme::new(32, bits, QuantMode::Affine).unwrap();
        let packing = Packing::Quantize(Recipe::uniform(scheme));
        converted(from, to, packing).unwrap();
    };
    pack(source.path(), packed.path(), 4);
    pack(plain.path(), other.path(), 6);
    let expected = parameters(&loaded(packed.path()));
    for model in [plain.path(), other.path()] {
        let found = parameters(&with_head(model, packed.path()).unwrap());
        assert!(found.keys().eq(expected.keys()), "{:?}", found.keys());
        for (name, array) in &expected {
            assert!(same(&found[name], array), "{name}");
        }
    }
}

#[test]
fn heads_that_do_not_fit_are_refused_by_name() {
    let model = dense();
    let refused = |model: &Path, head: &Path| {
        let error = with_head(model, head).err().expect("loaded").to_string();
        assert!(error.contains(&head.display().to_string()), "{error}");
        error
    };
    let dir = tempfile::tempdir().unwrap();
    let error = refused(model.path(), dir.path());
    assert!(error.contains("no safetensors of a head"), "{error}");
    let file = dir.path().join("model.safetensors");
    std::fs::copy(testdata("llama_tied").join("model.safetensors"), &file).unwrap();
    let error = refused(model.path(), dir.path());
    assert!(
        error.contains("no tensor here belongs to a head"),
        "{error}"
    );

    write(&file, &prefixed("mtp."));
    let error = refused(&testdata("llama_tied"), dir.path());
    assert!(error.contains("\"llama\" take no head"), "{error}");
    let error = refused(&testdata("qwen3_5_text"), dir.path());
    assert!(
        error.contains("has a head for multi-token prediction of its own"),
        "{error}"
    );
    for (config, message) in [
        (
            json!({"model_type": "qwen3_next"}),
            "the head is for model_type \"qwen3_next\", the model's is \"qwen3_5\"",
        ),
        (
            json!({"text_config": {"hidden_size": 80}}),
            "the head is of another model: hidden_size is 80, the model's is 64",
        ),
        (
            json!({"rope_parameters": {"rope_theta": 7.0}}),
            "the head is of another model: rope_theta is 7.0",
        ),
        (
            json!({"vocab_size": 9}),
            "the head is of another model: vocab_size is 9",
        ),
    ] {
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        let error = refused(model.path(), dir.path());
        assert!(error.contains(message), "{error}");
    }
    std::fs::remove_file(dir.path().join("config.json")).unwrap();
    let mut other = prefixed("mtp.");
    other.remove("mtp.layers.0.self_attn.v_proj.weight");
    let fc = other.remove("mtp.norm.weight").unwrap();
    other.insert("mtp.fc.weight".to_owned(), fc);
    write(&file, &other);
    let error = refused(model.path(), dir.path());
    for part in [
        "2 missing: ",
        "mtp.layers.0.self_attn.v_proj.weight",
        "mtp.fc.weight: expected [64, 128], found [64]",
    ] {
        assert!(error.contains(part), "{error}");
    }
}

/// Writes a file as other programs do: 8-bit floats (E4M3), numbers of BF16 and of F32.
fn write_fp8(path: &Path, codes: &Tensors, others: &Tensors) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    let both = codes.iter().map(|(name, array)| ("F8_E4M3", name, array));
    let others = others.iter().map(|(name, array)| match array.dtype() {
        DType::F32 => ("F32", name, array),
        _ => ("BF16", name, array),
    });
    for (dtype, name, array) in both.chain(others) {
        let start = data.len();
        match dtype {
            "F8_E4M3" => data.extend(array.to_vec::<u8>().unwrap()),
            "F32" => data.extend(
                array
                    .to_vec::<f32>()
                    .unwrap()
                    .into_iter()
                    .flat_map(f32::to_le_bytes),
            ),
            _ => {
                let words = array.view(DType::U16).unwrap().to_vec::<u16>().unwrap();
                data.extend(words.into_iter().flat_map(u16::to_le_bytes));
            }
        }
        let offsets = [start, data.len()];
        header.insert(
            name.clone(),
            json!({"dtype": dtype, "shape": array.shape(), "data_offsets": offsets}),
        );
    }
    let header = Value::Object(header).to_string();
    let length = (header.len() as u64).to_le_bytes();
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, [&length[..], header.as_bytes(), &data].concat()).unwrap();
}

/// The head with matrices of 8-bit floats, under names with this prefix: its codes, its other
/// tensors, and the dense tensors that they represent. With `powers` the scales are rounded up to
/// powers of two.
fn fp8_head(prefix: &str, powers: bool) -> [Tensors; 3] {
    let [mut codes, mut others, mut means] = [(); 3].map(|()| Tensors::new());
    for (name, array) in head() {
        if array.ndim() != 2 {
            others.insert(format!("{prefix}{name}"), array);
            continue;
        }
        let wide = array.astype(DType::F32).unwrap();
        let most: f32 = wide.abs().unwrap().max(.., false).unwrap().item().unwrap();
        let scale = match powers {
            true => (most / 448.0).log2().ceil().exp2(),
            false => most / 448.0,
        };
        let code = wide.divide(scale).unwrap().to_fp8().unwrap();
        let meant = code.from_fp8(DType::F32).unwrap().multiply(scale).unwrap();
        means.insert(name.clone(), meant.astype(DType::BF16).unwrap());
        codes.insert(format!("{prefix}{name}"), code);
        let scale = Array::from_slice(&[scale], &[1, 1]).unwrap();
        others.insert(format!("{prefix}{name}_scale_inv"), scale);
    }
    [codes, others, means]
}

fn assert_fp8_head(model: &Loaded, means: &Tensors, place: &str) {
    let found = parameters(model);
    assert!(
        found.keys().eq(head().keys()),
        "{place}: {:?}",
        found.keys()
    );
    for (name, meant) in means {
        assert!(same(&found[name], meant), "{place}: {name}");
    }
}

/// Heads of 8-bit floats equal the products of their codes and scales. They are recognised by a
/// config.json or by their scales alone, in a file beside a model, and in the files of a whole
/// checkpoint, of which nothing else is read.
#[test]
fn heads_of_8_bit_floats_are_read() {
    let model = dense();
    let settings = json!({
        "model_type": "qwen3_5_mtp",
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    });
    for (prefix, config) in [
        ("mtp.", Some(&settings)),
        ("", Some(&settings)),
        ("mtp.", None),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let [codes, others, means] = fp8_head(prefix, false);
        write_fp8(&dir.path().join("model.safetensors"), &codes, &others);
        if let Some(config) = config {
            std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        }
        let found = with_head(model.path(), dir.path()).unwrap();
        assert_fp8_head(&found, &means, &format!("{prefix:?}, {config:?}"));
    }

    let whole = tempfile::tempdir().unwrap();
    let [mut codes, mut others, means] = fp8_head("mtp.", false);
    let shared = Safetensors::open(model.path().join("model.safetensors")).unwrap();
    let shared = shared.names().find(|name| name.ends_with("q_proj.weight"));
    let shared = shared.unwrap().to_owned();
    codes.insert(shared.clone(), codes["mtp.fc.weight"].clone());
    let scale = others["mtp.fc.weight_scale_inv"].clone();
    others.insert(format!("{shared}_scale_inv"), scale);
    write_fp8(&whole.path().join("model.safetensors"), &codes, &others);
    std::fs::write(whole.path().join("config.json"), settings.to_string()).unwrap();
    let found = with_head(model.path(), whole.path()).unwrap();
    assert_fp8_head(&found, &means, "a whole checkpoint");
    let (plain, found) = (loaded(model.path()), shared::parameters(&found));
    for (name, array) in shared::parameters(&plain) {
        assert!(same(&found[&name], &array), "{name}");
    }

    let beside = dense();
    let [codes, others, means] = fp8_head("mtp.", false);
    write_fp8(&beside.path().join("mtp.safetensors"), &codes, &others);
    assert_fp8_head(&loaded(beside.path()), &means, "beside the model");

    // Scales that are powers of two stay packed, in as many bytes as the file has.
    let dir = tempfile::tempdir().unwrap();
    let [codes, others, _] = fp8_head("mtp.", true);
    write_fp8(&dir.path().join("mtp.safetensors"), &codes, &others);
    let found = parameters(&with_head(model.path(), dir.path()).unwrap());
    assert_eq!(found["fc.scales"].shape(), [HIDDEN, 2 * HIDDEN / 32]);
    let mut others = others;
    others.remove("mtp.fc.weight_scale_inv");
    write_fp8(&dir.path().join("mtp.safetensors"), &codes, &others);
    let error = with_head(model.path(), dir.path())
        .err()
        .expect("loaded")
        .to_string();
    let message = "tensor \"mtp.fc.weight\" is F8_E4M3 and has no scales";
    assert!(error.contains(message), "{error}");
    assert!(error.contains(&dir.path().display().to_string()), "{error}");
}
