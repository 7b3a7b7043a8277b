//! The files that a conversion leaves unchanged, and the conversions that are refused.

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

    // An existing folder is kept unless it is to be replaced. Then none of the old checkpoint's files remain.
    let message = refused(&source, &out, &small, 1);
    assert!(message.contains("is not empty"), "{message}");
    // Only the checkpoint is replaced: shards and index of another writer are removed, and the
    // user's files stay.
    let stale = [
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
    ];
    let own = [
        "old.txt",
        "model-notes.safetensors",
        "my-adapter/adapters.safetensors",
        "additional_chat_templates/own.jinja",
        ".hidden",
    ];
    fs::create_dir(out.join("my-adapter")).unwrap();
    for name in stale.iter().chain(&own) {
        fs::write(out.join(name), "old").unwrap();
    }
    fs::write(out.join("LICENSE"), "other").unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink("nowhere", out.join("link")).unwrap();
    converted(&source, &out, &["--dtype", "f16", "--force"]);
    assert!(config(&out).get("quantization").is_none());
    for name in own {
        assert_eq!(fs::read_to_string(out.join(name)).unwrap(), "old", "{name}");
    }
    for name in stale {
        assert!(!out.join(name).exists(), "{name}");
    }
    assert_eq!(fs::read_to_string(out.join("LICENSE")).unwrap(), "free");
    #[cfg(unix)]
    assert_eq!(
        fs::read_link(out.join("link")).unwrap(),
        std::path::Path::new("nowhere")
    );
    // A folder in the place of an output file belongs to the user as well.
    fs::remove_file(out.join("LICENSE")).unwrap();
    fs::create_dir(out.join("LICENSE")).unwrap();
    let message = refused(&source, &out, &["--force"], 1);
    assert!(
        message.contains("LICENSE is a folder and cannot be replaced"),
        "{message}"
    );
    fs::remove_dir(out.join("LICENSE")).unwrap();
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

    // An error half-way: the end of the file is missing.
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
    // Integers in place of weights, and a text model that mlx-lm would not find.
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
    assert!(
        message.contains("known: ") && message.contains(" qwen3_5, qwen3_5_moe, gemma3,"),
        "{message}"
    );
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

/// The leftovers of a conversion that was killed at each possible place: the next conversion
/// finishes the work.
#[test]
fn leftovers_of_a_killed_conversion_are_cleaned_up() {
    let folder = tempfile::tempdir().unwrap();
    let (at, source) = (
        |name: &str| folder.path().join(name),
        testdata("models/llama_tied"),
    );
    let names = || {
        let mut names: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    converted(&source, &at("out"), &[]);
    fs::write(at("out").join("notes.txt"), "mine").unwrap();
    // Killed while the new folder was written.
    fs::create_dir(at(".out.mlx-new")).unwrap();
    fs::write(at(".out.mlx-new").join("model.safetensors"), "half").unwrap();
    fs::write(at(".out.mlx-lock"), "").unwrap();
    converted(&source, &at("out"), &["--force"]);
    assert_eq!(names(), ["out"]);
    // Killed between the two renames of a file system that cannot exchange folders: there is no `out`.
    fs::rename(at("out"), at(".out.mlx-old")).unwrap();
    fs::create_dir(at(".out.mlx-new")).unwrap();
    let message = refused(&source, &at("out"), &[], 1);
    assert!(message.contains("out is not empty"), "{message}");
    assert_eq!(names(), ["out"]);
    assert_eq!(
        fs::read_to_string(at("out").join("notes.txt")).unwrap(),
        "mine"
    );
    // Killed after the renames.
    fs::create_dir(at(".out.mlx-old")).unwrap();
    fs::write(at(".out.mlx-old").join("config.json"), "{}").unwrap();
    // And the leftovers of another output in the same folder.
    fs::create_dir(at(".other.mlx-new")).unwrap();
    fs::write(at(".other.mlx-lock"), "").unwrap();
    converted(&source, &at("out"), &["--force"]);
    assert_eq!(names(), ["out"]);
    // A named pipe with that name is not a lock.
    let mut mkfifo = std::process::Command::new("mkfifo");
    assert!(mkfifo.arg(at(".pipe.mlx-lock")).status().unwrap().success());
    converted(&source, &at("out"), &["--force"]);
    assert_eq!(names(), [".pipe.mlx-lock", "out"]);
}

#[test]
fn two_writers_of_one_output_exclude_each_other() {
    use mlx_infer::output::Claim;

    let folder = tempfile::tempdir().unwrap();
    let source = testdata("models/llama_tied");
    let out = folder.path().join("out");
    let claim = Claim::new(&out).unwrap();
    // The claim holds for every path to the folder.
    let other = folder.path().join("sub/../out");
    fs::create_dir(folder.path().join("sub")).unwrap();
    for out in [&out, &other] {
        let message = refused(&source, out, &["--force"], 1);
        assert!(
            message.contains("out is being written by another process"),
            "{message}"
        );
        assert_eq!(Claim::new(out).unwrap_err().kind(), ErrorKind::Busy);
    }
    // Another output is not locked.
    converted(&source, &folder.path().join("out2"), &[]);
    drop(claim);
    converted(&source, &out, &[]);
}
