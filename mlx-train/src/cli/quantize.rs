//! `mlx-train quantize`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use mlx_core::{Array, QuantMode, Scheme};
use mlx_infer::console;
use mlx_infer::convert::{NewCheckpoint, Recipe};
use mlx_models::Model;
use mlx_nn::{Visit, Weight};
use mlx_train::data::{self, DataFiles, DataOptions, Encoder};
use mlx_train::evaluate::evaluate;
use mlx_train::quantize::dwq::{Distillation, distill};
use mlx_train::quantize::{
    self, Matrices, Schemes, awq, dynamic, gptq, install, mean_bits, mean_divergence,
};
use mlx_train::{Error, ErrorKind, Example, Result, export};
use serde_json::json;

use super::source;

/// Without a file for validation, one example in so many is held out.
const HELD_OUT: usize = 10;

/// The model, the texts and the methods.
#[derive(Args)]
pub(super) struct Quantize {
    /// Checkpoint folder, or the name of a model on the hub [default: the built-in model]
    #[arg(long, value_name = "DIR|ORG/NAME[@REV]")]
    model: Option<PathBuf>,
    /// Text to learn from: JSONL file, text file (.txt), or a folder with train.jsonl and valid.jsonl
    #[arg(long, value_name = "PATH")]
    data: PathBuf,
    /// Text whose perplexity is measured [default: valid.jsonl of the folder, or a tenth of --data]
    #[arg(long, value_name = "FILE")]
    valid: Option<PathBuf>,
    /// Output folder
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// How weights are packed: one or several, applied in the order dynamic, awq, round, gptq, dwq
    #[arg(
        long,
        value_name = "METHOD,…",
        value_delimiter = ',',
        default_value = "dwq"
    )]
    method: Vec<Kind>,
    /// Bits of a weight; of the method dynamic, of the weights that matter less
    #[arg(long, value_name = "N", default_value_t = 4)]
    bits: i32,
    /// Weights that share a scale
    #[arg(long, value_name = "N", default_value_t = 64)]
    group_size: i32,
    /// Bits of the table of tokens, which is the head of many models, too [default: as other weights]
    #[arg(long, value_name = "N")]
    embedding_bits: Option<i32>,
    /// Bits of the weights that matter more, for the method dynamic
    #[arg(long, value_name = "N", default_value_t = 5)]
    high_bits: i32,
    /// Mean bits of a weight with scales and biases, for the method dynamic
    #[arg(long, value_name = "BITS", default_value_t = 5.0)]
    target_bits: f64,
    /// Steps of training, for the method dwq
    #[arg(long, value_name = "N", default_value_t = 200)]
    steps: u64,
    /// Relative learning rate: how far a scale moves in a step, as a fraction of its matrix's mean scale
    #[arg(long, value_name = "RATE", default_value_t = 2e-3)]
    learning_rate: f64,
    /// Examples of a step, and of other passes over the text
    #[arg(long, value_name = "N", default_value_t = 4)]
    batch_size: usize,
    /// Maximum length of an example; longer ones are truncated, and text files divided
    #[arg(long, value_name = "TOKENS", default_value_t = 512)]
    max_seq_length: usize,
    /// Seed of the order of the examples
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Convert floating-point weights: f32, bf16 or f16 [default: as stored]
    #[arg(long, value_name = "DTYPE")]
    dtype: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// In the order in which they are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Kind {
    /// More bits for the matrices that matter most
    Dynamic,
    /// Channels with large inputs are scaled up, and the ranges of groups cut
    Awq,
    /// The nearest codes
    Round,
    /// Codes that make up for the errors of the codes before them
    Gptq,
    /// Scales and biases are trained against the model itself
    Dwq,
}

/// The schemes that may be chosen.
struct Choice {
    low: Schemes,
    high: Schemes,
    sizes: BTreeMap<String, usize>,
}

impl Quantize {
    pub(super) fn run(mut self) -> Result<()> {
        self.check()?;
        let files = source::files(self.model.as_deref())?;
        let new = NewCheckpoint::begin(&files, &self.out, false)?;
        let encoder = Encoder::load(&files)?;
        let mut loaded = source::load(&files, self.dtype.as_deref(), false)?;
        if let Some(scheme) = loaded.info.quantization {
            let message = format!(
                "{} is already quantised ({scheme}), and packing it again would round twice",
                files.describe()
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let (train, valid) = self.examples(&encoder, loaded.info.vocab as u32)?;
        let model_type = loaded.info.model_type.clone();
        let model = loaded.model.as_mut();
        let choice = self.choice(model, &model_type)?;
        let perplexity = |model: &dyn Model| -> Result<f64> {
            Ok(evaluate(model, &valid, self.batch_size, None, None)?.perplexity)
        };
        let original = perplexity(model)?;
        let chosen = self.schemes(model, &choice, &train)?;
        // Perplexity, and the divergence from the model.
        let measured = |model: &mut dyn Model, matrices: &Matrices| -> Result<[f64; 2]> {
            let distance = mean_divergence(model, matrices, &valid, self.batch_size)?;
            let dense = install(model, matrices.clone())?;
            let found = perplexity(model);
            install(model, dense)?;
            Ok([found?, distance])
        };
        let nearest = quantize::round(model, &chosen)?;
        let rounded = measured(model, &nearest)?;
        let (matrices, applied) = self.packed(model, &chosen, nearest, &train)?;
        let packed = measured(model, &matrices)?;
        install(model, matrices)?;
        let bits = mean_bits(&chosen, &choice.sizes);
        export::model(new, &files, model, false)?;
        let tokens: usize = valid.iter().map(Example::learnt).sum();
        let names: Vec<String> = applied.iter().map(Kind::name).collect();
        if self.json {
            let document = json!({
                "out": self.out, "methods": names, "bits_per_weight": bits, "matrices": chosen.len(),
                "perplexity": {"model": original, "rounded": rounded[0], "packed": packed[0]},
                "divergence": {"rounded": rounded[1], "packed": packed[1]},
                "valid_tokens": tokens,
            });
            return console::print(&format!("{document}\n"));
        }
        let row = |name: &str, [perplexity, distance]: [f64; 2]| {
            format!("{name:<24}{perplexity:>10.4}{distance:>20.5}\n")
        };
        console::print(&format!(
            "{}: {} matrices, {bits:.2} bits a weight\n{:<24}{:>10}{:>20}\n{}{}{}",
            self.out.display(),
            chosen.len(),
            format!("{tokens} tokens"),
            "perplexity",
            "nats from the model",
            row("the model", [original, 0.0]),
            row("rounded to these bits", rounded),
            row(&names.join(", "), packed),
        ))
    }

    /// Sorts the methods, and refuses those that do not fit together.
    fn check(&mut self) -> Result<()> {
        let refuse = |message: String| Err(Error::new(ErrorKind::Argument, message));
        self.method.sort();
        if let Some(pair) = self.method.windows(2).find(|pair| pair[0] == pair[1]) {
            return refuse(format!("--method has {} twice", pair[0].name()));
        }
        let has = |kind| self.method.contains(&kind);
        if has(Kind::Round) && (has(Kind::Gptq) || has(Kind::Awq)) {
            return refuse("--method round chooses other codes than gptq or awq; name one".into());
        }
        if self.batch_size == 0 {
            return refuse("--batch-size must be at least 1, given 0".into());
        }
        if has(Kind::Dwq) && self.steps == 0 {
            return refuse("--steps must be at least 1, given 0".into());
        }
        if has(Kind::Dwq) && !(self.learning_rate > 0.0 && self.learning_rate.is_finite()) {
            let rate = self.learning_rate;
            return refuse(format!("--learning-rate must be above 0, given {rate}"));
        }
        if has(Kind::Dynamic) && self.high_bits <= self.bits {
            return refuse(format!(
                "--high-bits must be above --bits, given {} and {}",
                self.high_bits, self.bits
            ));
        }
        Ok(())
    }

    fn choice(&self, model: &dyn Model, model_type: &str) -> Result<Choice> {
        let scheme = |flag: &str, bits| {
            let scheme = Scheme::new(self.group_size, bits, QuantMode::Affine);
            scheme.map_err(|error| Error::new(ErrorKind::Argument, format!("{flag}: {error}")))
        };
        let (low, high) = (
            scheme("--bits", self.bits)?,
            scheme("--high-bits", self.high_bits)?,
        );
        let of = |scheme| mlx_models::convert::schemes(model, model_type, Recipe::uniform(scheme));
        let (mut low, mut high) = (of(low)?, of(high)?);
        if let Some(bits) = self.embedding_bits {
            let scheme = scheme("--embedding-bits", bits)?;
            for path in quantize::embeddings(model)? {
                for schemes in [&mut low, &mut high] {
                    schemes.entry(path.clone()).and_modify(|own| *own = scheme);
                }
            }
        }
        let mut sizes = Sizes::default();
        model.visit(&mut mlx_nn::Path::default(), &mut sizes)?;
        Ok(Choice {
            low,
            high,
            sizes: sizes.0,
        })
    }

    /// The scheme of each matrix.
    fn schemes(
        &self,
        model: &mut dyn Model,
        choice: &Choice,
        train: &[Example],
    ) -> Result<Schemes> {
        if !self.method.contains(&Kind::Dynamic) {
            return Ok(choice.low.clone());
        }
        let Choice { low, high, sizes } = choice;
        console::note(&format!("dynamic: measuring {} matrices", low.len()));
        let gains = dynamic::sensitivities(model, low, high, train, self.batch_size)?;
        let chosen = dynamic::mixed(&gains, sizes, low, high, self.target_bits)?;
        let more = chosen
            .iter()
            .filter(|(path, scheme)| low[*path] != **scheme);
        let count = more.count();
        console::note(&format!(
            "dynamic: {count} matrices have {} bits",
            self.high_bits
        ));
        Ok(chosen)
    }

    /// The packed matrices, and the methods that were applied. The model computes the same as before.
    fn packed(
        &self,
        model: &mut dyn Model,
        chosen: &Schemes,
        nearest: Matrices,
        train: &[Example],
    ) -> Result<(Matrices, Vec<Kind>)> {
        let has = |kind| self.method.contains(&kind);
        let mut applied = self.method.clone();
        let mut matrices = nearest;
        let mut moments = BTreeMap::new();
        if has(Kind::Awq) || has(Kind::Gptq) {
            moments = self.moments(model, train)?;
        }
        if has(Kind::Gptq) {
            matrices = by_gptq(model, chosen, &moments)?;
        }
        if has(Kind::Awq) {
            let distance = |model: &mut dyn Model, matrices: &Matrices| {
                mean_divergence(model, matrices, train, self.batch_size)
            };
            let before = distance(model, &matrices)?;
            let mut best = before;
            // GPTQ cuts ranges itself.
            if !has(Kind::Gptq) {
                let cut = awq::pack(model, chosen, &moments)?;
                let found = distance(model, &cut)?;
                if found < best {
                    (matrices, best) = (cut, found);
                }
            }
            let (groups, unscaled) = awq::scale(model, chosen, &moments, train)?;
            let moments = self.moments(model, train)?;
            let scaled = match has(Kind::Gptq) {
                true => by_gptq(model, chosen, &moments)?,
                false => awq::pack(model, chosen, &moments)?,
            };
            let after = distance(model, &scaled)?;
            let nats = format!("{after:.5} nats from the model on --data, {best:.5} without");
            if after < best {
                console::note(&format!(
                    "awq: the inputs of {groups} groups of matrices are scaled: {nats}"
                ));
                matrices = scaled;
            } else {
                console::note(&format!(
                    "awq: no inputs are scaled, because it does not help: {nats}"
                ));
                unscaled.restore(model)?;
                if best == before {
                    applied.retain(|&kind| kind != Kind::Awq);
                }
            }
        }
        if has(Kind::Dwq) {
            matrices = self.distilled(model, matrices, train)?;
        }
        if applied.is_empty() {
            applied.push(Kind::Round);
        }
        Ok((matrices, applied))
    }

    fn moments(&self, model: &dyn Model, train: &[Example]) -> Result<BTreeMap<String, Array>> {
        console::note("measuring the inputs of matrices");
        quantize::moments(model, train, self.batch_size)
    }

    fn distilled(
        &self,
        model: &mut dyn Model,
        matrices: Matrices,
        train: &[Example],
    ) -> Result<Matrices> {
        let options = Distillation {
            steps: self.steps,
            batch_size: self.batch_size,
            rate: self.learning_rate,
            seed: self.seed,
        };
        distill(model, matrices, train, &options, |step, found| {
            if step == 1 || step.is_multiple_of(10) || step == self.steps {
                console::note(&format!("dwq: step {step}: {found:.5} nats a token"));
            }
            Ok(())
        })
    }

    /// The examples to learn from, and those that are measured.
    fn examples(&self, encoder: &Encoder, vocab: u32) -> Result<(Vec<Example>, Vec<Example>)> {
        let options = DataOptions {
            max_tokens: self.max_seq_length,
            mask_prompt: false,
            vocab,
        };
        let read = |path: &PathBuf| -> Result<Vec<Example>> {
            match path.extension().is_some_and(|end| end == "txt") {
                true => data::read_text(path, encoder, &options),
                false => Ok(data::read(path, encoder, &options)?.examples),
            }
        };
        let found = DataFiles::find(&self.data)?;
        let missing = || {
            let message = format!("{}: no train.jsonl", self.data.display());
            Error::new(ErrorKind::Argument, message)
        };
        let train = read(&found.train.ok_or_else(missing)?)?;
        if let Some(valid) = self.valid.clone().or(found.valid).or(found.test) {
            return Ok((train, read(&valid)?));
        }
        if train.len() < 2 {
            let message = format!(
                "{}: one example of up to {} tokens cannot be learnt from and measured; more text or a smaller \
                 --max-seq-length is needed",
                self.data.display(),
                self.max_seq_length
            );
            return Err(Error::new(ErrorKind::Argument, message));
        }
        let mut parts = (Vec::new(), Vec::new());
        for (at, example) in train.into_iter().enumerate() {
            // The second is the first that is held out, so that two examples are enough.
            match at % HELD_OUT == 1 {
                true => parts.1.push(example),
                false => parts.0.push(example),
            }
        }
        Ok(parts)
    }
}

fn by_gptq(
    model: &dyn Model,
    chosen: &Schemes,
    moments: &BTreeMap<String, Array>,
) -> Result<Matrices> {
    let (matrices, rounded) = gptq::pack(model, chosen, moments)?;
    if let Some(first) = rounded.first() {
        console::note(&format!(
            "gptq: the inputs of {} matrices are not known, so they are rounded: {first}, …",
            rounded.len()
        ));
    }
    Ok(matrices)
}

impl Kind {
    fn name(&self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The numbers of elements of the matrices.
#[derive(Default)]
struct Sizes(BTreeMap<String, usize>);

impl Visit for Sizes {
    fn weight(&mut self, path: &mlx_nn::Path, weight: &Weight) -> mlx_core::Result<()> {
        let elements = weight.shape().iter().map(|&size| size as usize).product();
        self.0.insert(path.as_str().to_owned(), elements);
        Ok(())
    }
}
