//! Few bits that are chosen and trained: closer to the model than rounding, the same for the same seed, and readable.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use mlx_core::{DType, QuantMode, Safetensors, Scheme};
use mlx_models::convert::{Recipe, schemes};
use mlx_models::{LoadOptions, Loaded, Model, load, load_from};
use mlx_nn::quantize::quantize;
use mlx_train::evaluate::evaluate;
use mlx_train::quantize::{Distillation, distill, mixed, sensitivities};
use mlx_train::{Example, Result};
use serde_json::{Value, json};

/// The built-in model.
fn model() -> Loaded {
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    let files = mlx_infer::default_model_files();
    let config = files.json("config.json").unwrap().unwrap();
    let bytes = files.read("model.safetensors").unwrap().unwrap();
    let weights = Safetensors::from_cow(bytes).unwrap();
    load_from("built-in", config, vec![weights], options).unwrap()
}

fn scheme(bits: i32) -> Scheme {
    Scheme::new(64, bits, QuantMode::Affine).unwrap()
}

fn chosen(model: &Loaded, bits: i32) -> BTreeMap<String, Scheme> {
    let recipe = Recipe::uniform(scheme(bits));
    schemes(model.model.as_ref(), &model.info.model_type, recipe).unwrap()
}

/// Sentences that the model continues, with its own likeliest tokens.
fn examples() -> (Vec<Example>, Vec<Example>) {
    let files = mlx_infer::default_model_files();
    let tokenizer = mlx_infer::Tokenizer::load(&files).unwrap();
    let texts = [
        "The red fox jumps over the hill. It eats a ripe berry. The blue bird sings.",
        "47 + 38 = 85",
        "20 + 22 = 42",
        "12 + 5 = 17",
        "The old cat sleeps. It is hungry.",
        "The small dog runs to the river. It drinks.",
        "31 + 14 = 45",
        "The red fox is hungry.",
        "The green frog jumps. It eats a fly.",
        "60 + 19 = 79",
    ];
    let example = |text: &&str| Example::new(tokenizer.encode(text, true).unwrap(), 0);
    let all: Vec<Example> = texts.iter().map(example).collect();
    (all[..7].to_vec(), all[7..].to_vec())
}

/// The mean loss on the examples.
fn loss(model: &dyn Model, examples: &[Example]) -> f64 {
    evaluate(model, examples, 4, None, None).unwrap().loss
}

fn options(steps: u64) -> Distillation {
    Distillation {
        steps,
        batch_size: 4,
        rate: 5e-3,
        seed: 1,
    }
}

fn distilled(steps: u64) -> (Loaded, Vec<f64>) {
    let mut loaded = model();
    let schemes = chosen(&loaded, 3);
    let mut found = Vec::new();
    distill(
        loaded.model.as_mut(),
        &schemes,
        &examples().0,
        &options(steps),
        |_, nats| {
            found.push(nats);
            Ok(())
        },
    )
    .unwrap();
    (loaded, found)
}

#[test]
fn distillation_is_closer_than_rounding_and_repeatable() {
    let (train, _) = examples();
    let mut rounded = model();
    let schemes = chosen(&rounded, 3);
    quantize(rounded.model.as_mut(), |path, _| schemes.get(path).copied()).unwrap();
    let (packed, nats) = distilled(30);
    assert!(nats[29] < 0.7 * nats[0], "{} -> {}", nats[0], nats[29]);
    let original = loss(model().model.as_ref(), &train);
    let [plain, trained] = [&rounded, &packed].map(|loaded| loss(loaded.model.as_ref(), &train));
    assert!(
        original < trained && trained < plain,
        "{original} {trained} {plain}"
    );
    let (again, other) = distilled(30);
    assert_eq!(nats, other);
    let examples = examples().1;
    let losses = [&packed, &again].map(|loaded| loss(loaded.model.as_ref(), &examples).to_bits());
    assert_eq!(losses[0], losses[1]);
}

#[test]
fn a_failure_leaves_the_model_dense() {
    let mut loaded = model();
    let (train, valid) = examples();
    let before = loss(loaded.model.as_ref(), &valid).to_bits();
    let schemes = chosen(&loaded, 3);
    let stop = || mlx_train::Error::new(mlx_train::ErrorKind::Argument, "stop");
    let result: Result<()> = distill(
        loaded.model.as_mut(),
        &schemes,
        &train,
        &options(3),
        |_, _| Err(stop()),
    );
    assert_eq!(result.unwrap_err().to_string(), "stop");
    assert_eq!(loss(loaded.model.as_ref(), &valid).to_bits(), before);
    for (schemes, examples, steps, expected) in [
        (
            &schemes,
            &train[..],
            0,
            "steps and batch_size must be at least 1",
        ),
        (
            &schemes,
            &[][..],
            1,
            "no example has anything to learn from",
        ),
        (
            &BTreeMap::new(),
            &train[..],
            1,
            "there is no matrix to pack",
        ),
        (
            &BTreeMap::from([("x".to_owned(), scheme(4))]),
            &train[..],
            1,
            "x is no dense matrix of the model",
        ),
        (
            &schemes
                .keys()
                .map(|path| (path.clone(), Scheme::default_of(QuantMode::Mxfp4)))
                .collect(),
            &train[..],
            1,
            "only affine schemes are trained",
        ),
    ] {
        let result = distill(
            loaded.model.as_mut(),
            schemes,
            examples,
            &options(steps),
            |_, _| Ok(()),
        );
        let error = result.unwrap_err().to_string();
        assert!(error.contains(expected), "{expected:?} is not in {error:?}");
    }
    assert_eq!(loss(loaded.model.as_ref(), &valid).to_bits(), before);
}

/// The matrices that get more bits are those that help, and the mean is kept.
#[test]
fn bits_go_where_they_help() {
    let mut loaded = model();
    let (train, _) = examples();
    let (low, high) = (chosen(&loaded, 2), chosen(&loaded, 6));
    let model = loaded.model.as_mut();
    let gains = sensitivities(model, &low, &high, &train, 4).unwrap();
    assert!(
        gains.keys().eq(low.keys()) && gains.values().any(|&gain| gain > 0.0),
        "{gains:?}"
    );
    let sizes: BTreeMap<String, usize> = low.keys().map(|path| (path.clone(), 64)).collect();
    let best = mixed(&gains, &sizes, &low, &high, 4.5).unwrap();
    let bits: i32 = best.values().map(|scheme| scheme.bits).sum();
    assert!(f64::from(bits) / best.len() as f64 + 0.5 <= 4.5);
    // As many of those that help least.
    let reversed = gains
        .iter()
        .map(|(path, gain)| (path.clone(), 1e3 - gain))
        .collect();
    let worst = mixed(&reversed, &sizes, &low, &high, 4.5).unwrap();
    assert_ne!(best, worst);
    let with = |schemes: &BTreeMap<String, Scheme>| {
        let mut loaded = self::model();
        quantize(loaded.model.as_mut(), |path, _| schemes.get(path).copied()).unwrap();
        loss(loaded.model.as_ref(), &train)
    };
    assert!(
        with(&best) < with(&worst),
        "{} {}",
        with(&best),
        with(&worst)
    );
    let error = mixed(&gains, &sizes, &low, &high, 2.4)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("2.4 bits a weight are fewer than the 2.50"),
        "{error}"
    );
}

#[cfg(feature = "cli")]
#[test]
fn the_command_writes_a_checkpoint_and_tells_the_perplexities() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("text.txt");
    std::fs::write(
        &data,
        "The red fox jumps over the hill. It eats a ripe berry. ".repeat(20),
    )
    .unwrap();
    let run = |out: &Path, flags: &[&str]| -> Output {
        Command::new(env!("CARGO_BIN_EXE_mlx-train"))
            .args([
                "quantize",
                "--max-seq-length",
                "32",
                "--batch-size",
                "2",
                "--json",
                "--data",
            ])
            .args([&data, Path::new("--out"), out])
            .args(flags)
            .output()
            .unwrap()
    };
    let made = |name: &str, flags: &[&str]| -> Value {
        let output = run(&dir.path().join(name), flags);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{flags:?}: {stderr}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let dwq = made("dwq", &["--bits", "3", "--steps", "12"]);
    let perplexity = &dwq["perplexity"];
    assert!(
        perplexity["packed"].as_f64() < perplexity["rounded"].as_f64(),
        "{dwq}"
    );
    assert_eq!(dwq["bits_per_weight"], json!(3.5));
    let loaded = load(dir.path().join("dwq"), LoadOptions::default()).unwrap();
    assert_eq!(loaded.info.quantization, Some(scheme(3)));
    let dynamic = made(
        "dynamic",
        &[
            "--method",
            "dynamic",
            "--bits",
            "3",
            "--high-bits",
            "6",
            "--target-bits",
            "4.5",
        ],
    );
    let bits = dynamic["bits_per_weight"].as_f64().unwrap();
    assert!(bits > 3.5 && bits <= 4.5, "{dynamic}");
    load(dir.path().join("dynamic"), LoadOptions::default()).unwrap();
    let again = run(&dir.path().join("again"), &["--bits", "3", "--steps", "12"]);
    assert!(again.status.success());
    let weights =
        |name: &str| std::fs::read(dir.path().join(name).join("model.safetensors")).unwrap();
    assert!(weights("dwq") == weights("again"));
    for (flags, expected) in [
        (&["--bits", "7"][..], "bits"),
        (&["--max-seq-length", "1"], "an example needs 2 tokens"),
        (&["--target-bits", "2", "--method", "dynamic"], "fewer than"),
    ] {
        let out = dir.path().join("refused");
        let output = Command::new(env!("CARGO_BIN_EXE_mlx-train"))
            .args(["quantize", "--data"])
            .args([&data, Path::new("--out"), &out])
            .args(flags)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && error.contains(expected),
            "{flags:?}: {error}"
        );
        assert!(!out.exists());
    }
}
