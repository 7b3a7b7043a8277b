//! Few bits that are chosen and trained: closer to the model than rounding, the same for the same seed, and readable.
//!
//! The model is the built-in one, whose norms store their weight less 1.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};

use mlx_core::{Array, DType, QuantMode, Safetensors, Scheme};
use mlx_models::convert::{Recipe, schemes};
use mlx_models::{LoadOptions, Loaded, Model, load, load_from};
use mlx_nn::quantize::quantize;
use mlx_nn::{Param, Visit, Weight};
use mlx_train::evaluate::evaluate;
use mlx_train::loss::logits;
use mlx_train::quantize::dwq::{Distillation, distill};
use mlx_train::quantize::{
    self, Matrices, Schemes, awq, dynamic, gptq, install, mean_bits, mean_divergence, moments,
    round,
};
use mlx_train::{Batch, Example};
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

fn chosen(model: &Loaded, bits: i32) -> Schemes {
    let recipe = Recipe::uniform(scheme(bits));
    schemes(model.model.as_ref(), &model.info.model_type, recipe).unwrap()
}

/// The dense matrices of a model.
struct Weights(BTreeMap<String, Array>);

impl Weights {
    fn of(model: &dyn Model) -> BTreeMap<String, Array> {
        let mut weights = Self(BTreeMap::new());
        model
            .visit(&mut mlx_nn::Path::default(), &mut weights)
            .unwrap();
        weights.0
    }
}

impl Visit for Weights {
    fn weight(&mut self, path: &mlx_nn::Path, weight: &Weight) -> mlx_core::Result<()> {
        self.0.insert(path.as_str().to_owned(), weight.dense(None)?);
        Ok(())
    }
}

/// Stories of the kind that the model was trained on. The last four are not learnt from.
const STORIES: [&str; 16] = [
    "The red fox jumps over the old fence. At night it sleeps beside the bridge. At night it sleeps beside the tree.",
    "The old cat rests behind the wall. It sees a quiet prince near the tree. It eats a ripe cherry. At night it sleeps near the barn.",
    "The blue bird soars over the snowy garden. At night it sleeps near the wall.",
    "The queen sleeps beside the wall. At night she sleeps behind the tree. She sees a white whale near the tower.",
    "The green frog swims through the sunny lake. It eats a ripe cherry. It eats a ripe plum. It eats a ripe apple.",
    "The young girl sleeps beside the stream. She eats a ripe apple. She sees a tall tiger near the barn.",
    "A quiet prince runs through the forest. They eat a ripe apple. Then he jumps over the green bridge.",
    "The blue bird sings under the old tower. At night it sleeps under the house.",
    "The queen runs through the valley. She sees a brave goat near the stream. Then she walks around the village.",
    "The red fox rests beside the sunny stream.",
    "The blue bird sings behind the wall. It sees a sleepy sparrow near the barn. It sees a brown hedgehog near the wall.",
    "The young girl jumps over the old fence. At night she sleeps beside the bridge.",
    "The queen jumps over the hill. At night she sleeps near the wall. At night she sleeps under the barn.",
    "A quiet prince walks around the sunny lake.",
    "The blue bird soars around the wall. It sees a tall cat near the stream. At night it sleeps behind the house.",
    "The old cat sleeps beside the tree. They see a black eagle near the bridge.",
];

fn examples() -> (Vec<Example>, Vec<Example>) {
    let files = mlx_infer::default_model_files();
    let tokenizer = mlx_infer::Tokenizer::load(&files).unwrap();
    let example = |text: &&str| Example::new(tokenizer.encode(text, true).unwrap(), 0);
    let mut all: Vec<Example> = STORIES.iter().map(example).collect();
    let valid = all.split_off(12);
    (all, valid)
}

/// The mean loss on the examples.
fn loss(model: &dyn Model, examples: &[Example]) -> f64 {
    evaluate(model, examples, 4, None, None).unwrap().loss
}

/// The mean divergence of a model from the built-in one, in nats a token.
fn divergence(packed: &Loaded, examples: &[Example]) -> f32 {
    let batch = Batch::new(examples.iter().map(|example| [example])).unwrap();
    let logprobs = |loaded: &Loaded| {
        let logits = logits(loaded.model.as_ref(), &batch).unwrap();
        let sums = logits.logsumexp(-1, true).unwrap();
        logits.subtract(sums).unwrap()
    };
    let [exact, found] = [&model(), packed].map(logprobs);
    let each = exact.subtract(found).unwrap();
    let each = exact.exp().unwrap().multiply(each).unwrap();
    let each = each.sum(-1, false).unwrap();
    let sum = each.multiply(&batch.weights).unwrap().sum(.., false);
    sum.unwrap().item::<f32>().unwrap() / batch.weight as f32
}

fn options(steps: u64) -> Distillation {
    Distillation {
        steps,
        batch_size: 4,
        rate: 5e-3,
        seed: 1,
    }
}

/// The model with these matrices in place of its own.
fn with(mut model: Loaded, matrices: Matrices) -> Loaded {
    install(model.model.as_mut(), matrices).unwrap();
    model
}

fn distilled(steps: u64) -> (Loaded, Vec<f64>) {
    let mut loaded = model();
    let schemes = chosen(&loaded, 3);
    let mut found = Vec::new();
    let start = round(loaded.model.as_ref(), &schemes).unwrap();
    let train = examples().0;
    let matrices = distill(
        loaded.model.as_mut(),
        start,
        &train,
        &options(steps),
        |_, nats| {
            found.push(nats);
            Ok(())
        },
    );
    (with(loaded, matrices.unwrap()), found)
}

#[test]
fn distillation_is_closer_than_rounding_and_repeatable() {
    let (train, _) = examples();
    let mut rounded = model();
    let schemes = chosen(&rounded, 3);
    quantize(rounded.model.as_mut(), |path, _| schemes.get(path).copied()).unwrap();
    let (packed, nats) = distilled(30);
    assert!(nats[29] < 0.7 * nats[0], "{} -> {}", nats[0], nats[29]);
    let [plain, trained] = [&rounded, &packed].map(|loaded| divergence(loaded, &train));
    assert!(
        (f64::from(plain) - nats[0]).abs() < 0.3 * nats[0],
        "{plain} {nats:?}"
    );
    assert!(trained < 0.7 * plain, "{trained} {plain}");
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
    let packed = |mode| {
        let usual: Schemes = match mode {
            QuantMode::Affine => schemes.clone(),
            mode => schemes
                .keys()
                .map(|path| (path.clone(), Scheme::default_of(mode)))
                .collect(),
        };
        round(model().model.as_ref(), &usual).unwrap()
    };
    let stop = || mlx_train::Error::new(mlx_train::ErrorKind::Argument, "stop");
    let result = distill(
        loaded.model.as_mut(),
        packed(QuantMode::Affine),
        &train,
        &options(3),
        |_, _| Err(stop()),
    );
    assert_eq!(result.unwrap_err().to_string(), "stop");
    assert_eq!(loss(loaded.model.as_ref(), &valid).to_bits(), before);
    for (matrices, examples, steps, expected) in [
        (
            packed(QuantMode::Affine),
            &train[..],
            0,
            "steps must be at least 1",
        ),
        (
            packed(QuantMode::Affine),
            &[][..],
            1,
            "no example has anything to learn from",
        ),
        (Matrices::new(), &train[..], 1, "there is no matrix to pack"),
        (
            packed(QuantMode::Mxfp4),
            &train[..],
            1,
            "only affine schemes are trained",
        ),
    ] {
        let result = distill(
            loaded.model.as_mut(),
            matrices,
            examples,
            &options(steps),
            |_, _| Ok(()),
        );
        let error = result.unwrap_err().to_string();
        assert!(error.contains(expected), "{expected:?} is not in {error:?}");
    }
    let unknown = Schemes::from([("x".to_owned(), scheme(4))]);
    let error = round(loaded.model.as_ref(), &unknown).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("x is no dense matrix of the model"),
        "{error}"
    );
    assert_eq!(loss(loaded.model.as_ref(), &valid).to_bits(), before);
}

/// Codes that make up for errors, and ranges that are cut, have smaller errors of outputs than the nearest codes: in every
/// matrix, and in the loss.
#[test]
fn codes_that_see_the_inputs_are_better_than_the_nearest() {
    let (train, _) = examples();
    let loaded = model();
    let schemes = chosen(&loaded, 3);
    let dense = loaded.model.as_ref();
    let moments = moments(dense, &train, 4).unwrap();
    let (gptq, rounded) = gptq::pack(dense, &schemes, &moments).unwrap();
    assert_eq!(rounded, [] as [&str; 0]);
    let awq = awq::pack(dense, &schemes, &moments).unwrap();
    let plain = round(dense, &schemes).unwrap();
    let tables = quantize::embeddings(dense).unwrap();
    let (mut lower, mut errors) = (0, [0.0; 3]);
    for (path, array) in Weights::of(dense) {
        let Some(moments) = moments.get(&path).filter(|_| !tables.contains(&path)) else {
            continue;
        };
        // trace(D H D^T)
        let error = |matrices: &Matrices| -> f32 {
            let off = matrices[&path].dense(Some(DType::F32)).unwrap();
            let off = off.subtract(&array).unwrap();
            let product = off.matmul(moments).unwrap().multiply(&off).unwrap();
            product.sum(.., false).unwrap().item().unwrap()
        };
        let found = [&plain, &gptq, &awq].map(error);
        assert!(found[2] <= found[0] * 1.0001, "{path}: {found:?}");
        lower += usize::from(found[1] < found[0]);
        for (sum, found) in errors.iter_mut().zip(found) {
            *sum += found;
        }
    }
    assert!(lower > 20, "{lower}");
    assert!(errors[1] < 0.6 * errors[0], "{errors:?}");
    assert!(errors[2] < 0.98 * errors[0], "{errors:?}");
    let [plain, gptq, awq] =
        [plain, gptq, awq].map(|matrices| divergence(&with(model(), matrices), &train));
    assert!(gptq < plain && awq < plain, "{plain} {gptq} {awq}");
}

/// A code of every width is the one that MLX would store.
#[test]
fn codes_are_packed_as_mlx_packs_them() {
    let mut loaded = model();
    let path = chosen(&loaded, 4)
        .into_keys()
        .find(|path| path.ends_with(".down_proj"))
        .unwrap();
    // With inputs that do not depend on each other, and weights that are codes already, GPTQ is rounding.
    let shape = Weights::of(loaded.model.as_ref())[&path].shape().to_vec();
    let size = shape[1];
    let identity = mlx_core::eye(size, DType::F32).unwrap();
    let moments = BTreeMap::from([(path.clone(), identity)]);
    for bits in [2, 3, 4, 5, 6, 8] {
        let schemes = Schemes::from([(path.clone(), scheme(bits))]);
        // Each group has the lowest and the highest code.
        let code = |at: i32| match at % 64 {
            0 => 0,
            1 => (1 << bits) - 1,
            _ => at.wrapping_mul(2_654_435_761u32 as i32) >> 9 & ((1 << bits) - 1),
        };
        let codes: Vec<f32> = (0..shape[0] * size)
            .map(|at| (code(at) - (1 << (bits - 1))) as f32 / 64.0)
            .collect();
        let codes = Array::from_slice(&codes, &shape).unwrap();
        let codes = Weight::Dense(Param::fixed(codes));
        let codes = Matrices::from([(path.clone(), codes)]);
        let before = install(loaded.model.as_mut(), codes).unwrap();
        let dense = loaded.model.as_ref();
        let plain = round(dense, &schemes).unwrap();
        let (gptq, _) = gptq::pack(dense, &schemes, &moments).unwrap();
        install(loaded.model.as_mut(), before).unwrap();
        let [plain, gptq] = [plain, gptq].map(|of| of[&path].dense(None).unwrap());
        let off = plain.subtract(&gptq).unwrap().abs().unwrap();
        let most = off.max_all().unwrap().item::<f32>().unwrap();
        let count = off.greater(1e-6).unwrap().sum(.., false).unwrap();
        // A number in the middle between two codes may be rounded to either.
        let count: u32 = count.astype(DType::U32).unwrap().item().unwrap();
        assert!(
            count < 10 && most < 0.2,
            "{bits} bits: {count} differ, by {most}"
        );
    }
}

/// A scaled model computes the same, with a norm that stores its weight less 1, and is rounded with smaller errors.
#[test]
fn scaled_channels_change_nothing_until_they_are_rounded() {
    let (train, valid) = examples();
    let mut loaded = model();
    let schemes = chosen(&loaded, 3);
    let before = loss(loaded.model.as_ref(), &valid);
    let plain = round(loaded.model.as_ref(), &schemes).unwrap();
    let plain = divergence(&with(model(), plain), &train);
    let found = moments(loaded.model.as_ref(), &train, 4).unwrap();
    let (groups, unscaled) = awq::scale(loaded.model.as_mut(), &schemes, &found, &train).unwrap();
    assert!(groups > 8, "{groups}");
    let after = loss(loaded.model.as_ref(), &valid);
    assert!((before - after).abs() < 1e-4, "{before} {after}");
    let found = moments(loaded.model.as_ref(), &train, 4).unwrap();
    let packed = awq::pack(loaded.model.as_ref(), &schemes, &found).unwrap();
    let own = mean_divergence(loaded.model.as_mut(), &packed, &train, 4).unwrap();
    let mut other = model();
    awq::scale(other.model.as_mut(), &schemes, &found, &train).unwrap();
    unscaled.restore(other.model.as_mut()).unwrap();
    let restored = loss(other.model.as_ref(), &valid);
    assert_eq!(restored.to_bits(), before.to_bits());
    let scaled = divergence(&with(loaded, packed), &train);
    assert!(scaled < 0.97 * plain, "{scaled} {plain}");
    assert!(
        (own - f64::from(scaled)).abs() < 0.01 * own,
        "{own} {scaled}"
    );
}

/// Where no layer with the names of Llama's is to be packed, nothing is scaled.
#[test]
fn a_model_without_known_layers_is_refused() {
    let mut loaded = model();
    let (train, valid) = examples();
    let model = loaded.model.as_mut();
    let before = loss(model, &valid);
    let tables = quantize::embeddings(model).unwrap().into_iter();
    let schemes: Schemes = tables.map(|path| (path, scheme(4))).collect();
    let found = moments(model, &train, 4).unwrap();
    let error = awq::scale(model, &schemes, &found, &train).err().unwrap();
    let message = error.to_string();
    assert!(
        message.contains("AWQ knows no layer of this model"),
        "{message}"
    );
    assert_eq!(loss(model, &valid).to_bits(), before.to_bits());
}

/// The matrices that get more bits are those that help, and the mean is kept.
#[test]
fn bits_go_where_they_help() {
    let mut loaded = model();
    let (train, _) = examples();
    let (low, high) = (chosen(&loaded, 2), chosen(&loaded, 6));
    let model = loaded.model.as_mut();
    let gains = dynamic::sensitivities(model, &low, &high, &train, 4).unwrap();
    assert!(
        gains.keys().eq(low.keys()) && gains.values().any(|&gain| gain > 0.0),
        "{gains:?}"
    );
    let sizes: BTreeMap<String, usize> = low.keys().map(|path| (path.clone(), 64)).collect();
    let best = dynamic::mixed(&gains, &sizes, &low, &high, 4.5).unwrap();
    assert!(mean_bits(&best, &sizes) <= 4.5);
    // As many of those that help least.
    let reversed = gains
        .iter()
        .map(|(path, gain)| (path.clone(), 1e3 - gain))
        .collect();
    let worst = dynamic::mixed(&reversed, &sizes, &low, &high, 4.5).unwrap();
    assert_ne!(best, worst);
    let with = |schemes: &Schemes| {
        let mut loaded = self::model();
        quantize(loaded.model.as_mut(), |path, _| schemes.get(path).copied()).unwrap();
        divergence(&loaded, &train)
    };
    assert!(
        with(&best) < with(&worst),
        "{} {}",
        with(&best),
        with(&worst)
    );
    // Together they are what all matrices gain. The gradient at few bits would give about twice that.
    let (all, sum) = (with(&low) - with(&high), gains.values().sum::<f64>());
    let part = sum / f64::from(all);
    assert!((0.7..1.4).contains(&part), "{sum} of {all}");
    let error = dynamic::mixed(&gains, &sizes, &low, &high, 2.4)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("2.4 bits a weight are fewer than the 2.50"),
        "{error}"
    );
}

/// The command on the stories, with outputs in a folder.
#[cfg(feature = "cli")]
struct Runs(tempfile::TempDir);

#[cfg(feature = "cli")]
impl Runs {
    fn new() -> Self {
        let lines = STORIES.map(|text| json!({"text": text}).to_string());
        let runs = Self(tempfile::tempdir().unwrap());
        std::fs::write(runs.path("stories.jsonl"), lines.join("\n")).unwrap();
        runs
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, name: &str, flags: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_mlx-train"))
            .args(["quantize", "--json", "--data"])
            .arg(self.path("stories.jsonl"))
            .arg("--out")
            .arg(self.path(name))
            .args(flags)
            .output()
            .unwrap()
    }

    fn made(&self, name: &str, flags: &[&str]) -> Value {
        let usual = ["--max-seq-length", "32", "--batch-size", "2"];
        let output = self.run(name, &[&usual, flags].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{flags:?}: {stderr}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

#[cfg(feature = "cli")]
#[test]
fn the_command_writes_a_checkpoint_and_tells_the_perplexities() {
    let runs = Runs::new();
    let made = |name: &str, flags: &[&str]| runs.made(name, flags);
    let read = |name: &str| load(runs.path(name), LoadOptions::default()).unwrap();
    let all = STORIES.map(|text| {
        let tokenizer = mlx_infer::Tokenizer::load(&mlx_infer::default_model_files()).unwrap();
        Example::new(tokenizer.encode(text, true).unwrap(), 0)
    });
    // What is written is closer to the model than the nearest codes are.
    let better = |name: &str, bits: &str, flags: &[&str]| -> Value {
        let usual = format!("{name} rounded");
        let rounded = made(&usual, &["--method", "round", "--bits", bits]);
        let document = made(name, &[&["--bits", bits], flags].concat());
        let models = [&rounded, &document].map(|of| of["perplexity"]["model"].clone());
        assert_eq!(models[0], models[1]);
        let [found, plain] = [name, &usual].map(|name| divergence(&read(name), &all));
        assert!(found < plain, "{name}: {found} {plain}");
        document
    };
    let weights = |name: &str| std::fs::read(runs.path(name).join("model.safetensors")).unwrap();
    let dwq = better("dwq", "2", &["--steps", "12"]);
    assert_eq!(dwq["bits_per_weight"], json!(2.5));
    assert_eq!(read("dwq").info.quantization, Some(scheme(2)));
    made("again", &["--bits", "2", "--steps", "12"]);
    assert!(weights("dwq") == weights("again"));
    better("gptq", "2", &["--embedding-bits", "6", "--method", "gptq"]);
    // It is left out if it does not help on the examples that are learnt from.
    let awq = made("awq", &["--bits", "3", "--method", "awq"]);
    assert!(
        awq["methods"] == json!(["awq"]) || awq["methods"] == json!(["round"]),
        "{awq}"
    );
    let several = ["--method", "dwq,gptq,dynamic", "--steps", "4"];
    let budget = ["--high-bits", "6", "--target-bits", "3.5"];
    let mixed = better("all", "2", &[several, budget].concat());
    let bits = mixed["bits_per_weight"].as_f64().unwrap();
    assert!(bits > 2.5 && bits <= 3.5, "{mixed}");
    for name in ["gptq", "awq", "all"] {
        // What is read is what was measured.
        let loaded = read(name);
        let found = Widths::of(loaded.model.as_ref());
        assert_eq!(
            found.len(),
            if name == "awq" { 1 } else { 2 },
            "{name}: {found:?}"
        );
    }
    // A text file is divided into examples.
    let text = runs.path("stories.txt");
    std::fs::write(&text, STORIES.join("\n")).unwrap();
    let flags = ["--method", "round", "--valid", text.to_str().unwrap()];
    let document = made("text", &flags);
    let perplexity = &document["perplexity"];
    assert_eq!(perplexity["rounded"], perplexity["packed"], "{document}");
    let tokens = document["valid_tokens"].as_u64().unwrap();
    assert!(tokens > 300, "{document}");
}

#[cfg(feature = "cli")]
#[test]
fn bad_options_are_refused_by_name() {
    let runs = Runs::new();
    runs.made("packed", &["--method", "round"]);
    let packed = runs.path("packed");
    let packed = ["--model", packed.to_str().unwrap()];
    for (flags, expected) in [
        (&packed[..], "already quantised"),
        (&["--bits", "7"], "--bits: "),
        (&["--embedding-bits", "7"], "--embedding-bits: "),
        (&["--max-seq-length", "1"], "no line has anything to learn"),
        (&["--target-bits", "2", "--method", "dynamic"], "fewer than"),
        (
            &["--method", "dynamic", "--high-bits", "4"],
            "--high-bits must be above --bits",
        ),
        (&["--method", "gptq,gptq"], "gptq twice"),
        (&["--method", "round,awq"], "--method round"),
        (
            &["--method", "best"],
            "possible values: dynamic, awq, round, gptq, dwq",
        ),
        (&["--steps", "0"], "--steps must be at least 1"),
        (&["--learning-rate", "0"], "--learning-rate must be above 0"),
        (&["--batch-size", "0"], "--batch-size must be at least 1"),
    ] {
        let output = runs.run("refused", flags);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && error.contains(expected),
            "{flags:?}: {error}"
        );
        assert!(!runs.path("refused").exists());
    }
}

/// The bits that matrices have.
#[cfg(feature = "cli")]
struct Widths(std::collections::BTreeSet<i32>);

#[cfg(feature = "cli")]
impl Widths {
    fn of(model: &dyn Model) -> std::collections::BTreeSet<i32> {
        let mut widths = Self(Default::default());
        model
            .visit(&mut mlx_nn::Path::default(), &mut widths)
            .unwrap();
        widths.0
    }
}

#[cfg(feature = "cli")]
impl Visit for Widths {
    fn weight(&mut self, _path: &mlx_nn::Path, weight: &Weight) -> mlx_core::Result<()> {
        if let Weight::Quantized { scheme, .. } = weight {
            self.0.insert(scheme.bits);
        }
        Ok(())
    }
}
