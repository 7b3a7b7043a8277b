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

/// A packed head is read by its own config.json, beside a dense model and beside one that is packed otherwise.
#[test]
fn a_packed_head_has_schemes_of_its_own() {
    let (plain, source) = (dense(), dense());
    write(&source.path().join("mtp.safetensors"), &prefixed("mtp."));
    let [packed, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let pack = |from: &Path, to: &Path, bits| {
        let scheme = Scheme::new(QuantMode::Affine, bits, 32).unwrap();
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
