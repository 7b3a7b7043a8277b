//! `mlx-infer convert`.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use mlx_core::{QuantMode, Scheme};
use mlx_infer::console;
use mlx_infer::convert::{
    ConvertOptions, Converted, GgufType, Mixed, Packing, Recipe, Vanishing, convert,
    convert_adapter, convert_to_gguf,
};
use serde_json::{Value, json};

use super::{Failure, Result, args, interrupt, output};

/// The maximum number of weights that a message names.
const SHOWN: usize = 4;

#[derive(Args)]
pub(super) struct ConvertArgs {
    #[command(flatten)]
    source: args::SourceArgs,
    /// The new folder, or with --gguf the new file
    #[arg(long, value_name = "PATH")]
    out: PathBuf,
    /// Write one file in GGUF, llama.cpp's format, with matrices of this type
    #[arg(long, value_name = "TYPE", conflicts_with_all = ["quantize", "dequantize", "dtype", "expand"],
          value_parser = GgufType::ALL.map(GgufType::name))]
    gguf: Option<String>,
    /// Quantise
    #[arg(short, long)]
    quantize: bool,
    /// Bits of a weight [default: 4, or those of the mode]
    #[arg(long, value_name = "N", requires = "quantize")]
    bits: Option<i32>,
    /// Weights that share a scale [default: 64, or those of the mode]
    #[arg(long, value_name = "N", requires = "quantize")]
    group_size: Option<i32>,
    /// Form of packed weights
    #[arg(long, requires = "quantize")]
    mode: Option<Mode>,
    /// More bits for some weights
    #[arg(long, value_name = "RECIPE", requires = "quantize", conflicts_with = "bits",
          value_parser = Mixed::ALL.map(|mixed| mixed.name()))]
    predicate: Option<String>,
    /// Unpack a quantised model
    #[arg(short, long, conflicts_with = "quantize")]
    dequantize: bool,
    /// Type of weights that are not packed [default: config.json's torch_dtype, or as stored]
    #[arg(long, value_name = "DTYPE")]
    dtype: Option<args::Float>,
    /// Expand blocks of GGUF that have no exact packed form (Q2_K, Q6_K)
    #[arg(long)]
    expand: bool,
    /// Write this adapter of the model instead, in the other format: mlx-lm's becomes PEFT's, and PEFT's mlx-lm's
    #[arg(long, value_name = "DIR", conflicts_with_all = ["quantize", "dequantize", "dtype", "expand", "gguf"])]
    adapter: Option<PathBuf>,
    /// Replace the checkpoint in the output folder, or the output file
    #[arg(long)]
    force: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    Affine,
    Mxfp4,
    Mxfp8,
    Nvfp4,
}

impl From<Mode> for QuantMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Affine => Self::Affine,
            Mode::Mxfp4 => Self::Mxfp4,
            Mode::Mxfp8 => Self::Mxfp8,
            Mode::Nvfp4 => Self::Nvfp4,
        }
    }
}

impl ConvertArgs {
    fn packing(&self) -> Result<Packing> {
        let usage = |error: mlx_core::Error| Failure::Usage(error.to_string());
        if self.dequantize {
            return Ok(Packing::Dequantize);
        }
        if !self.quantize {
            return Ok(Packing::Keep);
        }
        let mode = self.mode.map_or(QuantMode::Affine, QuantMode::from);
        let usual = Scheme::default_of(mode);
        let group_size = self.group_size.unwrap_or(usual.group_size);
        let recipe = match &self.predicate {
            None => {
                let bits = self.bits.unwrap_or(usual.bits);
                Scheme::new(group_size, bits, mode).map(Recipe::uniform)
            }
            Some(_) if mode != QuantMode::Affine => {
                let message = format!("a predicate is for affine quantisation, given {mode}");
                return Err(Failure::Usage(message));
            }
            Some(name) => Mixed::parse(name).and_then(|mixed| Recipe::mixed(mixed, group_size)),
        };
        recipe.map(Packing::Quantize).map_err(usage)
    }

    fn gguf(&self) -> Option<GgufType> {
        let name = self.gguf.as_deref()?;
        GgufType::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub(super) fn run(self) -> Result {
        let options = ConvertOptions {
            packing: self.packing()?,
            dtype: self.dtype.map(args::Float::dtype),
            expand: self.expand,
            ..ConvertOptions::default()
        };
        let files = self.source.files()?;
        if let Some(adapter) = &self.adapter {
            let base = self.source.name();
            let format = convert_adapter(&files, adapter, base, &self.out, self.force)?;
            return match self.json {
                true => output::print_json(&json!({"out": self.out, "format": format.name()})),
                false => output::print(&format!(
                    "{}: an adapter in the format of {}\n",
                    self.out.display(),
                    format.name()
                )),
            };
        }
        let bar = if std::io::stderr().is_terminal() {
            let style = "converting {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
            let style = ProgressStyle::with_template(style).expect("a template of known keys");
            ProgressBar::new(0).with_style(style)
        } else {
            ProgressBar::hidden()
        };
        let cancel = interrupt::cancels()?;
        let running = interrupt::running();
        let mut progress = |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        };
        let (out, force) = (&self.out, self.force);
        let converted = match self.gguf() {
            Some(kind) => convert_to_gguf(&files, out, force, kind, &cancel, &mut progress),
            None => convert(&files, out, force, &options, &cancel, &mut progress),
        };
        drop(running);
        bar.finish_and_clear();
        let converted = converted?;
        for found in &converted.vanishing {
            console::note(&format!(
                "warning: {}: {} of {} weights that are not zero become zero in the new type",
                found.tensor, found.zeros, found.nonzero
            ));
        }
        if self.json {
            return output::print_json(&json!({
                "out": self.out,
                "files": converted.files,
                "bytes": converted.bytes,
                "parameters": converted.parameters,
                "bits_per_weight": bits_per_weight(&converted),
                "packed": converted.packed,
                "left_dense": converted.left_dense,
                "vanishing": converted.vanishing.iter().map(vanishing_json).collect::<Vec<_>>(),
                "non_finite": converted.non_finite.as_ref().map(output::non_finite_json),
            }));
        }
        output::print(&self.summary(&converted))
    }

    fn summary(&self, converted: &Converted) -> String {
        let mut text = format!(
            "{}: {} in {}, {:.2} bits a weight, {} matrices packed\n",
            self.out.display(),
            output::bytes(converted.bytes as usize),
            match converted.files.len() {
                1 => "one file".to_owned(),
                n => format!("{n} files"),
            },
            bits_per_weight(converted),
            converted.packed,
        );
        let dense = &converted.left_dense;
        if !dense.is_empty() {
            let shown = &dense[..dense.len().min(SHOWN)];
            let more = if dense.len() > SHOWN { ", …" } else { "" };
            text.push_str(&format!(
                "{} matrices stay dense, as their rows are no whole number of groups: {}{more}\n",
                dense.len(),
                shown.join(", ")
            ));
        }
        if let Some(found) = &converted.non_finite {
            text.push_str(&format!("warning: {}\n", output::non_finite(found)));
        }
        text
    }
}

fn vanishing_json(found: &Vanishing) -> Value {
    json!({"tensor": found.tensor, "nonzero": found.nonzero, "zeros": found.zeros})
}

fn bits_per_weight(converted: &Converted) -> f64 {
    converted.bytes as f64 * 8.0 / converted.parameters.max(1) as f64
}
