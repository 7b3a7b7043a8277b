//! From `config.json` and opened files to a model: the family is found, and its model is built and
//! filled.

use mlx_core::{Array, DType, Error, ErrorKind, Result};
use mlx_nn::shard::{Ranks, Sharded};
use mlx_nn::{Checkpoint, FillOptions, Path, Visit, fill_lazily};
use serde_json::Value;

use crate::checkpoint::Weights;
use crate::checkpoint::names::{Names, are_bare, prefixes};
use crate::checkpoint::stored::{self, Format, Reading, StoredTensors};
use crate::checkpoint::ternary::{self, Ternary};
use crate::checkpoint::tied_head::HeadTensors;
use crate::config::keys::{TIED, has_mlx_convolutions};
use crate::config::quantization::Quantization;
use crate::config::text::rename_text;
use crate::config::{Config, Source};
use crate::draft_heads::head_folder::HeadFolder;
use crate::draft_heads::{drafted, mtp};
use crate::families::Family;
use crate::model::{HeadInfo, Model, ModelInfo, ModelTask};
use crate::registry::{LoadOptions, Loaded, Registry, encoder_types};

/// A model whose parameters are set but not evaluated: on the CPU their data are still in the
/// files.
pub(crate) struct Assembled {
    pub model: Box<dyn Model>,
    pub model_type: &'static str,
    pub family: Family,
    /// The config of the text model.
    pub config: Config,
    /// Whether the text model's config is inside that of a multimodal checkpoint.
    pub nested: bool,
    pub quantization: Quantization,
    /// The format in which another program stored the weights, if one did.
    pub stored: Option<Format>,
    /// The types of the weights, if they come from a model in GGUF.
    pub gguf: Option<String>,
    /// How the model was divided among ranks.
    pub sharded: Sharded,
}

/// The model of a config. Its parameters have no values.
pub(crate) fn empty(registry: &Registry, label: &str, config: Value) -> Result<Assembled> {
    let reading = Reading {
        dtype: None,
        dense: false,
        expand: false,
    };
    let made = assemble(registry, label, config, Vec::new().into(), None, reading);
    made.map(|(assembled, _)| assembled)
}

/// The model of a config, filled from files, and its tensors in the files.
pub(crate) fn filled(
    registry: &Registry,
    label: &str,
    config: Value,
    weights: Weights,
    options: &mut LoadOptions<'_>,
) -> Result<(Assembled, Checkpoint)> {
    let mut folder = options.head.map(HeadFolder::open).transpose()?;
    if let Some(tensors) = &weights.gguf {
        options.dtype = options.dtype.or(Some(tensors.dtype()));
    }
    let reading = Reading {
        dtype: options.dtype,
        dense: options.unpack,
        expand: options.expand,
    };
    let (mut assembled, checkpoint) =
        assemble(registry, label, config, weights, folder.as_mut(), reading)?;
    assembled.shard(label, options.ranks)?;
    let total = checkpoint.names().count();
    let quantization = &assembled.quantization;
    let filled = fill_lazily(
        assembled.model.as_mut(),
        &checkpoint,
        FillOptions {
            dtype: options.dtype,
            scheme: &|path| Ok(quantization.scheme(path)),
            progress: &mut |done| {
                if let Some(progress) = &mut options.progress {
                    progress(done, total);
                }
            },
        },
    );
    filled.map_err(|error| match &folder {
        Some(folder) => folder.context(error),
        None => error,
    })?;
    Ok((assembled, checkpoint))
}

/// Builds the model, and maps the tensors of its files to the names of its parameters.
fn assemble(
    registry: &Registry,
    label: &str,
    config: Value,
    weights: Weights,
    mut folder: Option<&mut HeadFolder>,
    reading: Reading,
) -> Result<(Assembled, Checkpoint)> {
    let mut config = config;
    if let Value::Object(config) = &mut config {
        rename_text(config);
    }
    let mut outer = Config::new(&format!("{label}: config.json"), config)?;
    if let Some(beside) = weights.quantization {
        stored::add_settings(&mut outer, beside)?;
    }
    // Multimodal checkpoints describe their text model in `text_config`; some keys stay outside.
    let text = outer.object("text_config")?;
    let nested = text.is_some();
    let bare = are_bare(weights.model.iter().flat_map(|file| file.names()));
    let prefixes = prefixes(nested, bare);
    let mut published = Checkpoint::new(label, weights.model, &prefixes)?;
    let mut gguf = None;
    if let Some(tensors) = weights.gguf {
        gguf = Some(tensors.described().to_owned());
        published = published.with_decoded(tensors.decoded(label, reading)?)?;
    }
    let (mut published, stored) = stored::decoded(published, &outer, reading)?;
    let (model_type, family) = registry.find(&outer, &published)?;
    let head_beside = folder.is_some() || family.head_file.is_some() && !weights.head.is_empty();
    let mut head_stored = None;
    if family.head_file.is_some() {
        let rules = published.files().map(mtp::renames);
        let rules = rules.collect::<Result<Vec<_>>>()?;
        published = published.with_own_rules(rules)?;
        let tensors = StoredTensors::of(weights.head.iter());
        let found = stored::decode_head(&tensors, &outer, reading)?;
        for file in weights.head {
            let rules = mtp::renames(&file)?;
            published = published.beside(file, rules)?;
        }
        if let Some((decoded, format)) = found {
            published = published.with_decoded(decoded)?;
            head_stored = Some(format);
        }
    }
    let (mut tied, mut tied_inside) = (None, false);
    for key in family.tied_keys {
        tied = tied.or(outer.opt(key)?);
        if let Some(text) = &text {
            tied_inside |= text.opt(key)? == Some(true);
        }
    }
    let tied = tied.unwrap_or(family.tied);
    let whole = Config::clone(&outer);
    // `tie_word_embeddings` may be outside or inside `text_config`, or in both places.
    let tied = tied || tied_inside;
    let mut config = text.unwrap_or(outer);
    if !config.or("is_causal", true)? && !encoder_types().contains(&model_type) {
        return Err(config.unsupported(
            "is_causal false is not supported in a decoder: its tokens see those before them",
        ));
    }
    if let Some(folder) = folder.as_deref_mut() {
        published = folder.join(
            published,
            (model_type, family.head_file.is_some()),
            &mut config,
            reading,
        )?;
    }
    let mlx_convolutions = has_mlx_convolutions(&published)?;
    let ternary = Ternary::find(&whole, &published)?;
    let rules = (family.names)(&Source {
        config: &config,
        outer: &whole,
        nested,
        head_beside,
        tensors: &published,
        mlx_convolutions,
    })?;
    let rules = match &ternary {
        Some(ternary) => ternary.rules().and(&rules),
        None => rules,
    };
    let mut names = Names::new(prefixes, rules);
    let mut rules = names.published();
    let mut tensors = published.with_rules(&rules)?;
    let head = match tied {
        true => HeadTensors::find(&tensors)?,
        // A checkpoint with several towers is not saved as a bare decoder.
        false => HeadTensors::find_untied(&tensors, bare && !nested),
    };
    if head != HeadTensors::Own {
        rules = rules.and(&head.rules());
        tensors = tensors.with_rules(&rules)?;
    }
    if head == HeadTensors::Absent {
        names = names.without_prefix();
    }
    config.set(TIED, head.is_tied().into());
    let mut quantization = match &stored {
        Some(format) => format
            .quantization(&rules)
            .map_err(|error| error.context(label))?,
        None => Quantization::read(&whole, &rules)?,
    };
    if let Some(folder) = folder {
        quantization = quantization.with_head(mtp::PREFIX, folder.quantization(&rules)?);
    } else if let Some(format) = head_stored {
        let head = format.quantization(&rules)?;
        quantization = quantization.with_head(mtp::PREFIX, head);
    }
    let mut model = (family.build)(&Source {
        config: &config,
        outer: &whole,
        nested,
        head_beside,
        tensors: &tensors,
        mlx_convolutions,
    })?;
    if head == HeadTensors::Absent {
        model.remove_head().map_err(|error| error.context(label))?;
    }
    if let Some(ternary) = ternary {
        let schemes = ternary.schemes(&rules)?;
        ternary::round_inputs(label, model.as_mut(), &schemes)?;
        quantization = quantization.with_ternary(schemes);
    }
    model.set_names(names);
    let assembled = Assembled {
        model,
        model_type,
        family: *family,
        nested,
        config,
        quantization,
        stored,
        gguf,
        sharded: Sharded::default(),
    };
    Ok((assembled, tensors))
}

impl Assembled {
    /// Leaves the part of the model that this rank holds, before its parameters have values.
    fn shard(&mut self, label: &str, ranks: Ranks) -> Result<()> {
        let context = |error: Error| error.context(format!("{label} ({})", self.model_type));
        if ranks.size() > 1 && self.model.geometry_mut().is_none() {
            let message = "models of this type cannot be divided among ranks";
            return Err(context(Error::new(ErrorKind::Unsupported, message)));
        }
        let unit = self.quantization.largest_group();
        self.sharded = mlx_nn::shard::shard(self.model.as_mut(), ranks, unit).map_err(context)?;
        Ok(())
    }

    /// Gives the model's geometry the states that this rank holds.
    pub(crate) fn divide_states(&mut self, ranks: Ranks) {
        if let (true, Some(geometry)) = (ranks.size() > 1, self.model.geometry_mut()) {
            geometry.divide(ranks, &self.sharded.states);
        }
    }

    /// Evaluates the parameters, and collects the model's [`ModelInfo`].
    pub(crate) fn finish(self, label: &str) -> Result<Loaded> {
        let loaded = self.described(true)?;
        for key in &loaded.info.unread_keys {
            tracing::warn!(
                "{label}: config.json: {key} is not known to this version and has no effect"
            );
        }
        Ok(loaded)
    }

    /// The model with its [`ModelInfo`]. Unless its parameters are evaluated, their data may still be in the files.
    pub(crate) fn described(self, is_evaluated: bool) -> Result<Loaded> {
        let Self {
            model,
            model_type,
            config,
            quantization,
            stored,
            gguf,
            ..
        } = self;
        let info = ModelInfo {
            quantization: quantization.default_scheme(),
            stored: stored.map(|format| format.described).or(gguf),
            unread_keys: config.unread(),
            ..info(model_type, model.as_ref(), is_evaluated)?
        };
        Ok(Loaded { model, info })
    }
}

/// Collects the [`ModelInfo`] of a model, whose parameters are evaluated if `is_evaluated`.
pub(crate) fn info(model_type: &str, model: &dyn Model, is_evaluated: bool) -> Result<ModelInfo> {
    let mut weigh = Weigh::default();
    model.visit(&mut Path::default(), &mut weigh)?;
    if is_evaluated {
        mlx_core::eval(&weigh.arrays)?;
    }
    let geometry = model.geometry();
    Ok(ModelInfo {
        model_type: model_type.to_owned(),
        task: ModelTask::of(model),
        vocab: geometry.vocab,
        max_positions: geometry.max_positions,
        layers: geometry.states().to_vec(),
        hidden: geometry.hidden,
        geometry: geometry.clone(),
        n_parameters: weigh.n_parameters,
        weight_bytes: weigh.bytes,
        quantization: None,
        stored: None,
        head: weigh.head,
        dtype: weigh.dtype.unwrap_or(DType::F32),
        unread_keys: Vec::new(),
    })
}

/// Counts parameters and bytes, and collects the arrays.
#[derive(Default)]
struct Weigh {
    arrays: Vec<Array>,
    n_parameters: usize,
    bytes: usize,
    head: Option<HeadInfo>,
    dtype: Option<DType>,
}

impl Weigh {
    fn add(&mut self, path: &Path, parameters: usize, bytes: usize) {
        self.n_parameters += parameters;
        self.bytes += bytes;
        let is_drafter = path.as_str().starts_with(drafted::PREFIX);
        if is_drafter || path.as_str().starts_with(mtp::PREFIX) {
            let head = self.head.get_or_insert_default();
            head.n_parameters += parameters;
            head.bytes += bytes;
        }
    }
}

impl Visit for Weigh {
    fn weight(&mut self, path: &Path, weight: &mlx_nn::Weight) -> Result<()> {
        let elements = |shape: &[i32]| shape.iter().map(|&n| n as usize).product::<usize>();
        if let mlx_nn::Weight::Quantized { packed, scheme, .. } = weight {
            // `param` counts the packed words; here the rest of the matrix is added.
            let rest = elements(&weight.shape()) - elements(packed.shape());
            self.add(path, rest, 0);
            if let Some(head) = &mut self.head {
                head.quantization = head.quantization.or(Some(*scheme));
            }
        }
        Ok(())
    }

    fn param(&mut self, path: &Path, param: &mlx_nn::Param) -> Result<()> {
        let name = path.as_str();
        let value = param.get().map_err(|error| error.context(name))?;
        let parts = [".scales", ".biases", ".factor", ".residues"];
        let counts = !parts.iter().any(|part| name.ends_with(part));
        let parameters = if counts { value.size() } else { 0 };
        self.add(path, parameters, value.nbytes());
        if value.dtype().is_float() {
            self.dtype = self.dtype.or(Some(value.dtype()));
        }
        self.arrays.push(value.clone());
        Ok(())
    }

    fn derived(&mut self, array: &Array) -> Result<()> {
        self.arrays.push(array.clone());
        Ok(())
    }
}
