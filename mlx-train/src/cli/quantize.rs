//! `mlx-train quantize`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use mlx_core::{QuantMode, Scheme};
use mlx_infer::console;
use mlx_infer::convert::{NewCheckpoint, Recipe};
use mlx_models::Model;
use mlx_nn::{Visit, Weight};
use mlx_train::data::{self, DataFiles, DataOptions, Encoder};
use mlx_train::evaluate::evaluate;
use mlx_train::quantize::{Distillation, distill, mixed, sensitivities};
use mlx_train::{Error, ErrorKind, Example, Result, export};
use serde_json::json;

use super::source;

/// Without a file for validation, one example in so many is held out.
const HELD_OUT: usize = 10;

/// The model, the texts and the method.
#[derive(Args)]
pub(super) struct Quantize {
    /// Checkpoint folder, or the name of a model on the hub [default: the built-in model]
    #[arg(long, value_name = "DIR|ORG/NAME[@REV]")]
    model: Option<PathBuf>,
    /// JSONL file, text file (.txt), or a folder with train.jsonl and valid.jsonl
    #[arg(long, value_name = "PATH")]
    data: PathBuf,
    /// Output folder
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// How weights are packed
    #[arg(long, default_value = "dwq")]
    method: Kind,
    /// Bits of a weight; of --method dynamic, of the weights that matter less
    #[arg(long, value_name = "N", default_value_t = 4)]
    bits: i32,
    /// Weights that share a scale
    #[arg(long, value_name = "N", default_value_t = 64)]
    group_size: i32,
    /// Bits of the weights that matter more
    #[arg(long, value_name = "N", default_value_t = 5)]
    high_bits: i32,
    /// Mean bits of a weight with scales and biases, for --method dynamic and dynamic-dwq
    #[arg(long, value_name = "BITS", default_value_t = 5.0)]
    target_bits: f64,
    /// Steps of training
    #[arg(long, value_name = "N", default_value_t = 200)]
    steps: u64,
    /// Relative learning rate: how far a scale moves in a step, as a fraction of its matrix's mean scale
    #[arg(long, value_name = "RATE", default_value_t = 2e-3)]
    learning_rate: f64,
    /// Examples of a step, and of a gradient of --method dynamic
    #[arg(long, value_name = "N", default_value_t = 4)]
    batch_size: usize,
    /// Maximum length of an example; longer ones are truncated
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Scales and biases are trained against the model itself
    Dwq,
    /// More bits for the matrices that matter most
    Dynamic,
    /// Both, one after the other
    DynamicDwq,
}

impl Quantize {
    pub(super) fn run(self) -> Result<()> {
        let files = source::files(self.model.as_deref())?;
        let new = NewCheckpoint::begin(&files, &self.out, false)?;
        let scheme = |bits| Scheme::new(self.group_size, bits, QuantMode::Affine);
        let usage = |error: mlx_core::Error| Error::new(ErrorKind::Argument, error.to_string());
        let (low, high) = (
            scheme(self.bits).map_err(usage)?,
            scheme(self.high_bits).map_err(usage)?,
        );
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
        let schemes = |model: &dyn Model, scheme| {
            mlx_models::convert::schemes(model, &model_type, Recipe::uniform(scheme))
        };
        let mut chosen = schemes(model, low)?;
        let perplexity = |model: &dyn Model| -> Result<f64> {
            Ok(evaluate(model, &valid, self.batch_size, None, None)?.perplexity)
        };
        let original = perplexity(model)?;
        let sizes = Sizes::of(model)?;
        let dynamic = self.method != Kind::Dwq;
        if dynamic {
            let high = schemes(model, high)?;
            console::note(&format!("measuring {} matrices", chosen.len()));
            let gains = sensitivities(model, &chosen, &high, &train, self.batch_size)?;
            chosen = mixed(&gains, &sizes, &chosen, &high, self.target_bits)?;
        }
        let rounded = rounded(model, &chosen, perplexity)?;
        match self.method {
            Kind::Dynamic => {
                mlx_nn::quantize::quantize(model, |path, _| chosen.get(path).copied())?;
            }
            Kind::Dwq | Kind::DynamicDwq => {
                let options = Distillation {
                    steps: self.steps,
                    batch_size: self.batch_size,
                    rate: self.learning_rate,
                    seed: self.seed,
                };
                distill(model, &chosen, &train, &options, |step, found| {
                    if step == 1 || step.is_multiple_of(10) || step == self.steps {
                        console::note(&format!("step {step}: {found:.5} nats a token"));
                    }
                    Ok(())
                })?;
            }
        }
        let packed = perplexity(model)?;
        let elements: usize = chosen.keys().map(|path| sizes[path]).sum();
        let bits = chosen.iter().map(|(path, scheme)| {
            let of_group = 32.0 / f64::from(scheme.group_size);
            sizes[path] as f64 * (f64::from(scheme.bits) + of_group)
        });
        let bits = bits.sum::<f64>() / elements as f64;
        export::model(new, &files, model, false)?;
        if self.json {
            let document = json!({
                "out": self.out, "bits_per_weight": bits, "matrices": chosen.len(),
                "perplexity": {"model": original, "rounded": rounded, "packed": packed},
                "valid_tokens": valid.iter().map(Example::learnt).sum::<usize>(),
            });
            return console::print(&format!("{document}\n"));
        }
        console::print(&format!(
            "{}: {} matrices, {bits:.2} bits a weight\n\
             perplexity       {original:.4} before, {rounded:.4} rounded to these bits, {packed:.4} now\n",
            self.out.display(),
            chosen.len(),
        ))
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
        if let Some(valid) = found.valid.or(found.test) {
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

/// What `measure` finds when the matrices are rounded to these schemes. The model is unchanged.
fn rounded(
    model: &mut dyn Model,
    schemes: &BTreeMap<String, Scheme>,
    measure: impl Fn(&dyn Model) -> Result<f64>,
) -> Result<f64> {
    let kept = Kept::of(model)?;
    mlx_nn::quantize::quantize(model, |path, _| schemes.get(path).copied())?;
    let found = measure(model);
    kept.restore(model)?;
    found
}

/// All matrices of a model.
#[derive(Default)]
struct Kept(BTreeMap<String, Weight>);

impl Kept {
    fn of(model: &dyn Model) -> Result<Self> {
        let mut kept = Self::default();
        model.visit(&mut mlx_nn::Path::default(), &mut kept)?;
        Ok(kept)
    }

    fn restore(self, model: &mut dyn Model) -> Result<()> {
        struct Restore(BTreeMap<String, Weight>);
        impl mlx_nn::VisitMut for Restore {
            fn weight(&mut self, path: &mlx_nn::Path, weight: &mut Weight) -> mlx_core::Result<()> {
                if let Some(kept) = self.0.remove(path.as_str()) {
                    *weight = kept;
                }
                Ok(())
            }
        }
        model.visit_mut(&mut mlx_nn::Path::default(), &mut Restore(self.0))?;
        Ok(())
    }
}

impl Visit for Kept {
    fn weight(&mut self, path: &mlx_nn::Path, weight: &Weight) -> mlx_core::Result<()> {
        self.0.insert(path.as_str().to_owned(), weight.clone());
        Ok(())
    }
}

/// The numbers of elements of the matrices.
#[derive(Default)]
struct Sizes(BTreeMap<String, usize>);

impl Sizes {
    fn of(model: &dyn Model) -> Result<BTreeMap<String, usize>> {
        let mut sizes = Self::default();
        model.visit(&mut mlx_nn::Path::default(), &mut sizes)?;
        Ok(sizes.0)
    }
}

impl Visit for Sizes {
    fn weight(&mut self, path: &mlx_nn::Path, weight: &Weight) -> mlx_core::Result<()> {
        let elements = weight.shape().iter().map(|&size| size as usize).product();
        self.0.insert(path.as_str().to_owned(), elements);
        Ok(())
    }
}
