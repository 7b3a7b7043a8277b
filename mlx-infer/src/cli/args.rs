//! Flags that several commands share, and the options that they make.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use mlx_core::{DType, QuantMode, Scheme, fast};
use mlx_infer::input::{MAX_TEXT, read_text};
use mlx_infer::{
    BackEnd, Error, ErrorKind, Files, GenerateOptions, LoadOptions, LoadedModel, PrefixDirLimits,
    RanksOutline, RequestOptions, SamplingParams, Speculative, console, hub,
};
use serde_json::Value;

use super::drafters::Drafters;
use super::{Failure, Result, backend};

/// The location of the model.
#[derive(Args)]
pub(super) struct SourceArgs {
    /// Checkpoint folder, or the name of a model on the hub [default: the built-in model]
    #[arg(long, value_name = "DIR|ORG/NAME[@REV]")]
    model: Option<PathBuf>,
    /// The files that it names, looked up once.
    #[arg(skip)]
    found: OnceLock<Files>,
}

impl SourceArgs {
    /// The name as given.
    pub(super) fn name(&self) -> Option<&str> {
        self.model.as_deref().and_then(Path::to_str)
    }

    pub(super) fn files(&self) -> Result<Files> {
        if let Some(found) = self.found.get() {
            return Ok(found.clone());
        }
        let found = match &self.model {
            Some(model) => hub::open(model)?,
            None => mlx_infer::default_model_files(),
        };
        Ok(self.found.get_or_init(|| found).clone())
    }
}

/// The name of a model: the one on the hub, the folder's, or that of the built-in model.
#[cfg(feature = "serve")]
pub(super) fn name_of(model: Option<&Path>) -> String {
    let Some(model) = model else {
        return "built-in".to_owned();
    };
    if !model.is_dir() {
        let name = model.to_string_lossy();
        return name.split('@').next().unwrap_or_default().to_owned();
    }
    let folder = std::path::absolute(model).unwrap_or_else(|_| model.to_owned());
    let name = folder.file_name().map(|name| name.to_string_lossy());
    name.map_or_else(|| "default".to_owned(), std::borrow::Cow::into_owned)
}

/// The places of prefixes outside the pages of the rows.
#[derive(Args)]
pub(super) struct PrefixDirArgs {
    /// Most bytes of stored prefixes in the memory of the host, from which they come back after they were dropped from a GPU's memory
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub(super) prefix_host_bytes: usize,
    /// Folder in which stored prefixes are kept too, so that they survive a restart. Several servers may share it
    #[arg(long, value_name = "DIR")]
    prefix_dir: Option<PathBuf>,
    /// Most bytes of the files in --prefix-dir, of all models together; the least recently used files are removed
    #[arg(long, value_name = "BYTES", requires = "prefix_dir", default_value_t = 16 << 30)]
    prefix_dir_bytes: u64,
}

impl PrefixDirArgs {
    pub(super) fn limits(&self) -> Option<PrefixDirLimits> {
        let path = self.prefix_dir.clone()?;
        let bytes = self.prefix_dir_bytes;
        Some(PrefixDirLimits { path, bytes })
    }
}

/// Options for loading the model, and its adapter.
#[derive(Args)]
pub(super) struct LoadArgs {
    #[command(flatten)]
    base: Base,
    /// Adapter folder of mlx-train, mlx-lm or PEFT
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
}

/// The location of the model, and options for loading it.
#[derive(Args)]
pub(super) struct Base {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    flags: LoadFlags,
}

/// Options for loading the model.
#[derive(Args, Clone)]
pub(super) struct LoadFlags {
    /// Convert floating-point weights [default: as stored]
    #[arg(long, value_name = "DTYPE")]
    dtype: Option<Float>,
    /// Expand blocks of GGUF that have no exact packed form (Q2_K, Q6_K)
    #[arg(long)]
    expand: bool,
    /// Remember only this many of the last tokens
    #[arg(long, value_name = "N")]
    context_len: Option<usize>,
    /// Store keys and values in this many bits, 4 or 8 [default: as computed]
    #[arg(long, value_name = "BITS")]
    kv_bits: Option<i32>,
    /// Number of keys or values that share a scale, 32, 64 or 128 [default: 64]
    #[arg(long, value_name = "N", requires = "kv_bits")]
    kv_group_size: Option<i32>,
    /// Continue when the model computes NaN, and exclude such tokens [default: an error]
    #[arg(long)]
    allow_nan: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum Float {
    F32,
    Bf16,
    F16,
}

impl Float {
    pub(super) fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }
}

impl LoadArgs {
    pub(super) fn files(&self) -> Result<Files> {
        self.base.files()
    }

    /// Loads the model with the back end of `choice`, with room for the drafts of `speculative`,
    /// and loads its drafters.
    pub(super) fn load_in(
        &self,
        choice: &backend::BackendArgs,
        drafters: &Drafters,
        speculative: Speculative,
    ) -> Result<BackEnd> {
        drafters.check(choice, speculative)?;
        choice.load(&self.base, self.adapter.clone(), || {
            self.load_to_draft(Some(drafters), speculative, false)
        })
    }

    /// Like [`load_in`](Self::load_in), for requests or lines that may speculate from their own
    /// texts where `speculative` is off.
    pub(super) fn load_for_requests(
        &self,
        choice: &backend::BackendArgs,
        drafters: &Drafters,
        speculative: Speculative,
    ) -> Result<BackEnd> {
        drafters.check(choice, speculative)?;
        choice.load(&self.base, self.adapter.clone(), || {
            self.load_to_draft(Some(drafters), speculative, true)
        })
    }

    /// A name for the model.
    #[cfg(feature = "serve")]
    pub(super) fn name(&self) -> String {
        name_of(self.base.source.model.as_deref())
    }

    /// Loads the model, with a progress bar on a terminal.
    pub(super) fn load(&self) -> Result<LoadedModel> {
        self.load_to_draft(None, Speculative::Off, false)
    }

    /// What each of so many ranks would hold of the model.
    pub(super) fn outline(&self, ranks: usize) -> Result<RanksOutline> {
        let options = self.base.options(Speculative::Off, false)?;
        Ok(RanksOutline::of(&self.files()?, options, ranks)?)
    }

    /// Whether an adapter is given.
    pub(super) fn has_adapter(&self) -> bool {
        self.adapter.is_some()
    }

    /// Loads the model with room for the drafts of `speculative`.
    fn load_to_draft(
        &self,
        drafters: Option<&Drafters>,
        speculative: Speculative,
        for_requests: bool,
    ) -> Result<LoadedModel> {
        let mut model =
            self.base
                .load_to_draft(drafters, speculative, for_requests, &mut |_, _| ())?;
        if let Some(dir) = &self.adapter {
            model.load_adapter(dir)?;
        }
        Ok(model)
    }
}

impl Base {
    pub(super) fn files(&self) -> Result<Files> {
        self.source.files()
    }

    /// The type that weights are converted to.
    pub(super) fn dtype(&self) -> Option<DType> {
        self.flags.dtype.map(Float::dtype)
    }

    /// Flags that only the native back end supports, and whether they are given.
    pub(super) fn native_only(&self) -> [(&'static str, bool); 4] {
        let flags = &self.flags;
        [
            ("expand", flags.expand),
            ("context-len", flags.context_len.is_some()),
            ("kv-bits", flags.kv_bits.is_some()),
            ("allow-nan", flags.allow_nan),
        ]
    }

    /// A model that is not that of `--model`; `None` is the built-in one.
    #[cfg(feature = "serve")]
    pub(super) fn of(model: Option<PathBuf>, flags: LoadFlags) -> Self {
        let found = OnceLock::new();
        Self {
            source: SourceArgs { model, found },
            flags,
        }
    }

    /// Loads the model with the back end of `choice`, with room for the drafts of `speculative`, or
    /// of requests that speculate where it is off. Loads the drafters too.
    #[cfg(feature = "serve")]
    pub(super) fn load_for_requests(
        &self,
        choice: &backend::BackendArgs,
        drafters: &Drafters,
        speculative: Speculative,
        on_progress: &mut dyn FnMut(usize, usize),
    ) -> Result<BackEnd> {
        choice.load(self, None, || {
            self.load_to_draft(Some(drafters), speculative, true, on_progress)
        })
    }

    /// Checks that the weights, and the bytes that were asked for by name, fit the memory that is
    /// free.
    ///
    /// # Errors
    /// They do not, or the model is not there.
    #[cfg(feature = "serve")]
    pub(super) fn check_fit(&self, asked: &[(&str, Option<usize>)]) -> Result {
        let is_converted = self.dtype().is_some() || self.flags.expand;
        Ok(super::fit::check(&self.files()?, is_converted, asked)?)
    }

    /// The options of loading, with room for the drafts of `speculative`, or of any request.
    fn options(&self, speculative: Speculative, for_requests: bool) -> Result<LoadOptions> {
        let flags = &self.flags;
        if flags.context_len == Some(0) {
            return Err(Failure::Usage(
                "context-len must be at least 1, given 0".to_owned(),
            ));
        }
        let kv_quantization = flags.kv_bits.map(|bits| {
            let group_size = flags.kv_group_size.unwrap_or(64);
            let scheme = Scheme::new(group_size, bits, QuantMode::Affine)?;
            fast::check_packing(scheme).map(|()| scheme)
        });
        let kv_quantization = kv_quantization
            .transpose()
            .map_err(|error| Failure::Usage(format!("kv-bits and kv-group-size: {error}")))?;
        Ok(LoadOptions {
            kv_quantization,
            context_len: flags.context_len,
            dtype: self.dtype(),
            allow_nan: flags.allow_nan,
            expand: flags.expand,
            max_draft: match speculative {
                Speculative::Off if for_requests => Speculative::Auto.most(),
                speculative => speculative.most(),
            },
            no_head: speculative == Speculative::Off,
            ..LoadOptions::default()
        })
    }

    /// Loads the model, with a progress bar on a terminal. It gets room for the drafts of
    /// `speculative`, or of any request.
    fn load_to_draft(
        &self,
        drafters: Option<&Drafters>,
        speculative: Speculative,
        for_requests: bool,
        on_progress: &mut dyn FnMut(usize, usize),
    ) -> Result<LoadedModel> {
        let options = self.options(speculative, for_requests)?;
        let files = self.files()?;
        let options = LoadOptions {
            ranks: super::ranks::join(&files)?,
            ..options
        };
        let bar = std::io::stderr()
            .is_terminal()
            .then(|| ProgressBar::new(0).with_message("loading"));
        let mut progress = |done, total| {
            if let Some(bar) = &bar {
                bar.set_length(total as u64);
                bar.set_position(done as u64);
            }
            on_progress(done, total);
        };
        let loaded = match drafters {
            Some(drafters) => drafters.load(files, options, &mut progress),
            None => LoadedModel::load_files(files, options, &mut progress).map_err(Failure::from),
        };
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        let model = loaded?;
        let unread = &model.info().unread_keys;
        if !unread.is_empty() {
            console::note(&format!(
                "warning: config.json: not known to this version and without effect: {}",
                unread.join(", ")
            ));
        }
        Ok(model)
    }
}

/// The choice of tokens, and when to stop.
#[derive(Args)]
pub(super) struct GenerationArgs {
    /// Maximum number of tokens to generate
    #[arg(long, value_name = "N", default_value_t = GenerateOptions::default().max_tokens)]
    max_tokens: usize,
    /// Divisor of the logits before the draw; 0 takes the likeliest token
    #[arg(long, value_name = "T", default_value_t = SamplingParams::default().temperature)]
    temperature: f32,
    /// Draw from the likeliest tokens whose probabilities reach this sum
    #[arg(long, value_name = "P", default_value_t = SamplingParams::default().top_p)]
    top_p: f32,
    /// Draw from this many of the likeliest tokens; 0 from all
    #[arg(long, value_name = "K", default_value_t = SamplingParams::default().top_k)]
    top_k: usize,
    /// Draw from tokens whose probability is at least this share of the likeliest one's
    #[arg(long, value_name = "P", default_value_t = SamplingParams::default().min_p)]
    min_p: f32,
    /// Penalty on recent tokens; 1 has no effect
    #[arg(long, value_name = "X", default_value_t = SamplingParams::default().repeat_penalty)]
    repeat_penalty: f32,
    /// Number of last tokens that --repeat-penalty applies to
    #[arg(long, value_name = "N", default_value_t = SamplingParams::default().repeat_context)]
    repeat_context: usize,
    /// Subtracted from the logits of tokens that were generated before
    #[arg(
        long,
        value_name = "X",
        default_value_t = SamplingParams::default().presence_penalty,
        allow_negative_numbers = true
    )]
    presence_penalty: f32,
    /// Subtracted from a token's logit once for each time it was generated
    #[arg(
        long,
        value_name = "X",
        default_value_t = SamplingParams::default().frequency_penalty,
        allow_negative_numbers = true
    )]
    frequency_penalty: f32,
    /// Add X to the logit of token ID; may be given several times
    #[arg(long, value_name = "ID=X", value_parser = id_and_number, allow_hyphen_values = true)]
    logit_bias: Vec<(u32, f32)>,
    /// Seed of the draws [default: another one each time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Stop before this text; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Draft next tokens and compute several at a time: off, auto, or a maximum of 1 to 8. The tokens stay the same
    #[arg(long, value_name = "MODE", default_value_t = Speculative::Off)]
    speculative: Speculative,
    /// The text must be JSON that the schema in this file describes; - is stdin
    #[arg(long, value_name = "FILE", group = "constraint")]
    json_schema: Option<PathBuf>,
    /// The text must match this regular expression from its beginning to its end
    #[arg(
        long,
        value_name = "REGEX",
        group = "constraint",
        allow_hyphen_values = true
    )]
    regex: Option<String>,
    /// The text must be this one, or another one given this way; may be given several times
    #[arg(
        long,
        value_name = "TEXT",
        group = "constraint",
        allow_hyphen_values = true
    )]
    choice: Vec<String>,
    /// The text must match the grammar in this file, written in Lark or GBNF; - is stdin
    #[arg(long, value_name = "FILE", group = "constraint")]
    grammar: Option<PathBuf>,
    /// Apply the grammar only after this mark, such as </think>; the text before it is free
    #[arg(
        long,
        value_name = "MARK",
        requires = "constraint",
        allow_hyphen_values = true
    )]
    grammar_after: Option<String>,
    /// The text may begin with this mark, such as <think>; only then is it free up to the mark of --grammar-after
    #[arg(
        long,
        value_name = "MARK",
        requires = "grammar_after",
        allow_hyphen_values = true
    )]
    grammar_opener: Option<String>,
    /// Do not stop at the model's end tokens
    #[arg(long)]
    ignore_eos: bool,
    /// Do not stop at end tokens and stop texts among this many first tokens
    #[arg(long, value_name = "N", default_value_t = GenerateOptions::default().min_tokens)]
    min_tokens: usize,
}

impl GenerationArgs {
    pub(super) fn options(&self) -> Result<GenerateOptions> {
        let options = self.given()?.over(&GenerateOptions::default());
        options
            .check()
            .map_err(|error| Failure::Usage(error.to_string()))?;
        Ok(options)
    }

    /// The same as options of a request.
    pub(super) fn given(&self) -> Result<RequestOptions> {
        let bias = self.logit_bias.iter().copied();
        Ok(RequestOptions {
            temperature: Some(self.temperature),
            top_p: Some(self.top_p),
            top_k: Some(self.top_k),
            min_p: Some(self.min_p),
            repeat_penalty: Some(self.repeat_penalty),
            repeat_context: Some(self.repeat_context),
            presence_penalty: Some(self.presence_penalty),
            frequency_penalty: Some(self.frequency_penalty),
            logit_bias: Some(bias.collect()),
            seed: self.seed,
            max_tokens: Some(self.max_tokens),
            stop: Some(self.stop.clone()),
            ignore_eos: Some(self.ignore_eos),
            min_tokens: Some(self.min_tokens),
            speculative: Some(self.speculative),
            json_schema: self.json_schema.as_deref().map(json).transpose()?,
            regex: self.regex.clone(),
            choice: (!self.choice.is_empty()).then(|| self.choice.clone()),
            grammar: (self.grammar.as_deref())
                .map(|path| read_text(path, MAX_TEXT))
                .transpose()?,
            grammar_after: self.grammar_after.clone(),
            grammar_opener: self.grammar_opener.clone(),
            ..Default::default()
        })
    }
}

/// The value in a JSON file.
fn json(path: &Path) -> Result<Value> {
    let text = read_text(path, MAX_TEXT)?;
    let value = serde_json::from_str(&text).map_err(|error| {
        let message = format!("{}: not valid json: {error}", path.display());
        Error::new(ErrorKind::Format, message)
    });
    Ok(value?)
}

/// An id of a list; spaces around it are ignored.
pub(super) fn token_id(text: &str) -> std::result::Result<u32, std::num::ParseIntError> {
    text.trim().parse()
}

fn id_and_number(text: &str) -> std::result::Result<(u32, f32), String> {
    let parsed = text
        .split_once('=')
        .and_then(|(id, number)| Some((id.parse().ok()?, number.parse().ok()?)));
    parsed.ok_or_else(|| "expected an id and a number, as in 42=-1.5".to_owned())
}
