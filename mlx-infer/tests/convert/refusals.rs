//! What a conversion leaves alone, and what it refuses.

use std::collections::BTreeMap;
use std::fs;

use mlx_core::{DType, safetensors};
use mlx_infer::convert::convert;
use mlx_infer::{CancelToken, ErrorKind, Files};

use crate::{config, converted, four_bits, refused, tensors, testdata};

#[test]
fn other_files_come_along_and_failures_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    let out = folder.path().join("out");
    fs::create_dir_all(source.join("additional_chat_templates")).unwrap();
    for name in ["config.json", "model.safetensors", "generation_config.json"] {
        fs::copy(testdata("models/llama_tied").join(name), source.join(name)).unwrap();
    }
    for (name, text) in [
        ("tokenizer_config.json", "{}"),
        ("additional_chat_templates/rag.jinja", "x"),
        ("LICENSE", "free"),
        (".secret.json", "{}"),
        ("optimizer.bin", "0"),
    ] {
        fs::write(source.join(name), text).unwrap();
    }
    let small = ["-q", "--group-size", "32"];
    converted(&source, &out, &small);
    let files = Files::directory(&out).unwrap().list().unwrap();
    let expected = [
        "LICENSE",
        "additional_chat_templates/rag.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer_config.json",
    ];
    assert_eq!(files, expected);

    // What is there stays, unless it is to be replaced; nothing of the old remains then.
    let message = refused(&source, &out, &small, 1);
    assert!(message.contains("is not empty"), "{message}");
    fs::write(out.join("old.txt"), "old").unwrap();
    converted(&source, &out, &["--dtype", "f16", "--force"]);
    assert!(!out.join("old.txt").exists() && config(&out).get("quantization").is_none());
    let letters = folder.path().join("letters");
    fs::create_dir(&letters).unwrap();
    fs::write(letters.join("letter.txt"), "dear").unwrap();
    let message = refused(&source, &letters, &["--force"], 1);
    assert!(
        message.contains("only a checkpoint is replaced"),
        "{message}"
    );
    for out in [&source, folder.path()] {
        let itself = refused(&source, out, &["--force"], 1);
        assert!(
            itself.contains("is or holds the model's folder"),
            "{itself}"
        );
    }

    // A fault in the middle: the end of the file is missing.
    let bytes = fs::read(source.join("model.safetensors")).unwrap();
    fs::write(source.join("model.safetensors"), &bytes[..bytes.len() - 64]).unwrap();
    let before = fs::read(out.join("model.safetensors")).unwrap();
    refused(&source, &out, &["-q", "--group-size", "32", "--force"], 1);
    assert_eq!(fs::read(out.join("model.safetensors")).unwrap(), before);
    refused(&source, &folder.path().join("none"), &small, 1);
    let mut left: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["letters", "out", "source"]);
}

#[test]
fn what_cannot_be_converted_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let dense = testdata("models/llama_tied");
    let packed = testdata("models/q_llama_b4_g64");
    for (source, flags, status, expected) in [
        (
            &packed,
            vec!["-q"],
            1,
            "already quantised (affine, 4 bits in groups of 64)",
        ),
        (&dense, vec!["-d"], 1, "not quantised"),
        (&dense, vec!["-q"], 1, "choose a smaller group size"),
        (
            &dense,
            vec!["-q", "--bits", "7"],
            2,
            "bits [1, 2, 3, 4, 5, 6, 8], given 7",
        ),
        (
            &dense,
            vec!["-q", "--mode", "mxfp4", "--group-size", "64"],
            2,
            "group sizes [32]",
        ),
        (
            &dense,
            vec!["-q", "--mode", "mxfp4", "--predicate", "mixed_3_6"],
            2,
            "given mxfp4",
        ),
        (
            &dense,
            vec!["-q", "--predicate", "mixed_5_6"],
            2,
            "mixed_2_6",
        ),
        (&dense, vec!["-q", "-d"], 2, "cannot be used with"),
        (&dense, vec!["--bits", "4"], 2, "--quantize"),
        (&folder.path().join("none"), vec!["-q"], 1, "does not exist"),
        (
            &folder.path().to_owned(),
            vec!["-q"],
            1,
            "has no config.json",
        ),
    ] {
        let message = refused(source, &out, &flags, status);
        assert!(message.contains(expected), "{flags:?}: {message}");
        assert!(!out.exists(), "{flags:?}");
    }
    // Integers where weights should be, and a text model that mlx-lm would not find.
    let source = folder.path().join("source");
    fs::create_dir(&source).unwrap();
    let mut all = tensors(&dense);
    let name = "model.layers.0.self_attn.q_proj.weight";
    let bytes = all[name].astype(DType::U8).unwrap();
    all.insert(name.to_owned(), bytes);
    let pairs = all.iter().map(|(name, array)| (name.as_str(), array));
    safetensors::save(source.join("model.safetensors"), pairs, &BTreeMap::new()).unwrap();
    fs::copy(dense.join("config.json"), source.join("config.json")).unwrap();
    let message = refused(&source, &out, &["--dtype", "f16"], 1);
    assert!(message.contains("q_proj: a weight of U8"), "{message}");
    let mut nested = config(&dense);
    nested["text_config"] = config(&dense);
    fs::write(source.join("config.json"), nested.to_string()).unwrap();
    let message = refused(&source, &out, &["--dtype", "f16"], 1);
    assert!(message.contains("known: gemma3"), "{message}");
}

#[test]
fn cancelling_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let files = mlx_infer::default_model_files();
    let cancel = CancelToken::new();
    let error = convert(
        &files,
        &out,
        false,
        &four_bits(),
        &cancel,
        &mut |done, _| {
            if done > 100_000 {
                cancel.cancel();
            }
        },
    )
    .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
