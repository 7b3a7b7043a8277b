//! A head for multi-token prediction in a folder of its own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use mlx_core::{Error, ErrorKind, Result, Safetensors};
use mlx_nn::{Checkpoint, Rule, Rules};
use serde_json::{Value, json};

use super::mtp::{HIDDEN, NORM_OFFSET, PREFIX, renames};
use crate::checkpoint::stored::{self, Format, Reading, StoredTensors};
use crate::checkpoint::weights;
use crate::config::Config;
use crate::config::quantization::Quantization;

/// The config keys whose values must be the same for a head and its model. The head's own
/// config.json may hold them.
const SHARED: [&str; 8] = [
    "hidden_size",
    "vocab_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "rope_theta",
    "partial_rotary_factor",
];

/// The config.json and the files of a head. Each file has the rules that rename its tensors to
/// `mtp.*`.
pub(crate) struct HeadFolder {
    dir: PathBuf,
    config: Option<Config>,
    files: Vec<(Safetensors, Rules)>,
    /// The rules of the first file.
    rules: Rules,
    /// The format in which another program stored the head's weights, if one did.
    stored: Option<Format>,
}

impl HeadFolder {
    /// Opens the head in a folder: a repository that holds nothing else, or a checkpoint with a head.
    ///
    /// # Errors
    /// The folder has no safetensors file with a tensor of a head, or config.json is malformed.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let config = match dir.join("config.json").exists() {
            true => {
                let place = format!("{}: config.json", dir.display());
                Some(Config::new(
                    &place,
                    weights::read_json(dir, "config.json")?,
                )?)
            }
            false => None,
        };
        let mut files = Vec::new();
        for file in weights::open_head(dir)? {
            if let Some(rules) = of_head(&file)? {
                files.push((file, rules));
            }
        }
        let Some((_, rules)) = files.first() else {
            return Err(Error::new(
                ErrorKind::Format,
                format!(
                    "{}: no tensor here belongs to a head for multi-token prediction (mtp.*)",
                    dir.display()
                ),
            ));
        };
        Ok(Self {
            dir: dir.to_owned(),
            config,
            rules: rules.clone(),
            files,
            stored: None,
        })
    }

    /// Adds the tensors of this head to those of a checkpoint without a head. `config` is the
    /// config of the text model.
    ///
    /// # Errors
    /// The model's family has no heads, the checkpoint already has one, or the head belongs to
    /// another model.
    pub(crate) fn join(
        &mut self,
        mut checkpoint: Checkpoint,
        (model_type, takes_heads): (&str, bool),
        config: &mut Config,
        reading: Reading,
    ) -> Result<Checkpoint> {
        if !takes_heads {
            return Err(self.unsupported(format!(
                "models of model_type {model_type:?} take no head for multi-token prediction"
            )));
        }
        if checkpoint.names().any(|name| name.starts_with(PREFIX)) {
            return Err(self.unsupported(format!(
                "{} has a head for multi-token prediction of its own",
                checkpoint.label()
            )));
        }
        if let Some(own) = self.text_config()? {
            let (of_head, of_model) = (own.raw("model_type"), Value::from(model_type));
            if let Some(of_head) = of_head
                && base(of_head) != base(&of_model)
            {
                return Err(self.unsupported(format!(
                    "the head is for model_type {of_head}, the model's is {of_model}"
                )));
            }
            for key in SHARED {
                if let (Some(of_head), Some(of_model)) = (shared(&own, key), shared(config, key))
                    && !is_equal(of_head, of_model)
                {
                    return Err(self.unsupported(format!(
                        "the head is of another model: {key} is {of_head}, the model's is {of_model}"
                    )));
                }
            }
        }
        // The model's config.json describes another head than this one.
        for key in [NORM_OFFSET, HIDDEN] {
            let own = self.text_config()?.and_then(|own| own.raw(key).cloned());
            config.set(key, own.unwrap_or_default());
        }
        // The folder may hold a whole checkpoint, whose other tensors have the same names as the
        // model's.
        let is_of_head = |name: &str| {
            let rules = self.files.iter().map(|(_, rules)| rules);
            let pieces = rules.map(|rules| rules.pieces(name).unwrap_or_default());
            pieces
                .flatten()
                .any(|piece| piece.name().starts_with(PREFIX))
        };
        let tensors = StoredTensors::of(self.files.iter().map(|(file, _)| file)).only(is_of_head);
        let none = Config::new(&self.dir.display().to_string(), json!({}))?;
        let own = self.config.as_ref().unwrap_or(&none);
        let found = stored::decode_head(&tensors, own, reading)?;
        for (file, rules) in self.files.drain(..) {
            checkpoint = checkpoint.beside(file, rules)?;
        }
        match found {
            None => Ok(checkpoint),
            Some((decoded, format)) => {
                self.stored = Some(format);
                checkpoint.with_decoded(decoded)
            }
        }
    }

    /// The schemes of the head's weights. `rules` are those for all tensors.
    ///
    /// # Errors
    /// The entry of the head's config.json is malformed.
    pub(crate) fn quantization(&self, rules: &Rules) -> Result<Quantization> {
        match (&self.stored, &self.config) {
            (Some(format), _) => format.quantization(&self.rules.and(rules)),
            (None, Some(config)) => Quantization::read(config, &self.rules.and(rules)),
            (None, None) => Ok(Quantization::default()),
        }
    }

    /// The error with the folder in front.
    pub(crate) fn context(&self, error: Error) -> Error {
        error.context(format!("with the head in {}", self.dir.display()))
    }

    fn text_config(&self) -> Result<Option<Config>> {
        let Some(config) = &self.config else {
            return Ok(None);
        };
        Ok(Some(
            config
                .object("text_config")?
                .unwrap_or_else(|| config.clone()),
        ))
    }

    fn unsupported(&self, message: String) -> Error {
        let message = format!("{}: {message}", self.dir.display());
        Error::new(ErrorKind::Unsupported, message)
    }
}

/// The rules that rename the tensors of a head to `mtp.*` and drop all other tensors of the file.
/// `None` if the file has no tensor of a head.
fn of_head(file: &Safetensors) -> Result<Option<Rules>> {
    let rules = renames(file)?;
    let mut others = BTreeSet::new();
    let mut is_there = false;
    for name in file.names() {
        for piece in rules.pieces(name).unwrap_or_default() {
            let name = piece.name();
            match name.starts_with(PREFIX) {
                true => is_there = true,
                // Names of other modules differ from the head's in their first part.
                false => {
                    let first = name.split_once('.');
                    others.insert(first.map_or(name.to_owned(), |(first, _)| format!("{first}.*")));
                }
            }
        }
    }
    let others = others
        .iter()
        .map(|name| Rule::drop(name, "not of the head"));
    Ok(is_there.then(|| rules.and(&Rules::from(others))))
}

/// The value of a key, which may be inside `rope_parameters`.
fn shared<'c>(config: &'c Config, key: &str) -> Option<&'c Value> {
    let inside = config.raw("rope_parameters");
    config.raw(key).or(inside.and_then(|rope| rope.get(key)))
}

fn is_equal(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

/// A `model_type` without the suffixes that mark text models, models with experts, and heads.
fn base(model_type: &Value) -> &str {
    let mut name = model_type.as_str().unwrap_or_default();
    while let Some(rest) = ["_mtp", "_text", "_moe"]
        .iter()
        .find_map(|end| name.strip_suffix(end))
    {
        name = rest;
    }
    name
}
