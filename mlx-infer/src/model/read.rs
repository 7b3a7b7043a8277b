//! Reading a checkpoint, and a head for multi-token prediction that has a folder of its own.

use std::cell::{Cell, OnceCell};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use mlx_core::{Device, DeviceKind, Safetensors};
use mlx_models::{Loaded, Registry};

use super::draft::DraftRoom;
use super::{LoadOptions, LoadedModel, cache_options, check_caches, next_serial};
use crate::error::{Error, ErrorKind, Result};
use crate::model::frontend::{Frontend, read_tokenizer};
use crate::text::files::Files;

/// The sources of a model.
pub(super) struct ModelParts<'a> {
    registry: &'a Registry,
    files: Files,
    /// The folder of a head for multi-token prediction, for a checkpoint without one.
    head: Option<&'a Path>,
    /// Whether the head for multi-token prediction drafts.
    head_drafts: bool,
}

impl<'a> ModelParts<'a> {
    /// The sources of a checkpoint with the head in it.
    pub(super) fn of(registry: &'a Registry, files: Files, options: &LoadOptions) -> Self {
        Self {
            registry,
            files,
            head: None,
            head_drafts: options.max_draft > 0 && options.context_len.is_none() && !options.no_head,
        }
    }

    /// The sources of a checkpoint whose head, if it has one, drafts nothing.
    pub(super) fn without_head(registry: &'a Registry, files: Files) -> Self {
        Self {
            registry,
            files,
            head: None,
            head_drafts: false,
        }
    }
}

impl LoadedModel {
    /// Like [`load_files`](Self::load_files), with a drafting head for multi-token prediction from
    /// a separate folder. The folder has `mtp.*` in safetensors files, which may be those of
    /// another checkpoint of the same model, and a `config.json` if the head is quantised.
    ///
    /// # Errors
    /// As [`load`](Self::load); the folder has no head, or one of another model; the checkpoint has a head already, or is of a family
    /// without heads; or `options` leave no room for drafts.
    pub fn load_with_head(
        files: Files,
        head: impl AsRef<Path>,
        options: LoadOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        let registry = Registry::default();
        let parts = ModelParts {
            head: Some(head.as_ref()),
            ..ModelParts::of(&registry, files, &options)
        };
        if !parts.head_drafts {
            return Err(Error::argument(format!(
                "a head for multi-token prediction needs max_draft of at least 1 and no context_len, given {} and {:?}",
                options.max_draft, options.context_len
            )));
        }
        Self::read(&parts, options, progress)
    }

    pub(super) fn read(
        parts: &ModelParts<'_>,
        options: LoadOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        let started = Instant::now();
        options.check()?;
        super::memory::bound()?;
        let files = &parts.files;
        // The small files come first, so that their faults are found before the weights are read.
        let (tokenizer, eos_ids) = read_tokenizer(files)?;
        let model_options = mlx_models::LoadOptions {
            dtype: options.dtype,
            drafts: parts.head_drafts,
            head: parts.head,
            progress: Some(progress),
            unpack: false,
        };
        let Loaded { model, info } = match files {
            Files::Directory(dir) => parts.registry.load(dir, model_options)?,
            embedded => load_embedded(parts.registry, embedded, model_options)?,
        };
        check_caches(&info, &cache_options(&options))?;
        let frontend = Frontend::new(info, files.clone(), tokenizer, eos_ids);
        let frontend = frontend.drafting(DraftRoom::new(model.as_ref(), &options));
        Ok(Self {
            model,
            frontend: Arc::new(frontend),
            options,
            draft: None,
            load_time: started.elapsed(),
            metrics: Cell::default(),
            engine_state: Cell::default(),
            nan_weight: OnceCell::new(),
            serial: next_serial(),
        })
    }
}

fn load_embedded(
    registry: &Registry,
    files: &Files,
    options: mlx_models::LoadOptions<'_>,
) -> Result<Loaded> {
    let missing = |name: &str| {
        Error::new(
            ErrorKind::Missing,
            format!("{} has no {name} in this build", files.describe()),
        )
    };
    let config = files
        .json("config.json")?
        .ok_or_else(|| missing("config.json"))?;
    let weights = match files {
        Files::Embedded { files, .. } => {
            files.iter().find(|(name, _)| *name == "model.safetensors")
        }
        Files::Directory(_) => None,
    };
    let (_, bytes) = weights.ok_or_else(|| missing("model.safetensors"))?;
    let weights = Safetensors::from_static(bytes)?;
    // The model is stored in bf16 but was measured in f32, and MLX computes bf16 slowly on a CPU.
    let on_cpu = Device::default_device()?.kind == DeviceKind::Cpu;
    let dtype = options.dtype.or(on_cpu.then_some(mlx_core::DType::F32));
    let options = mlx_models::LoadOptions { dtype, ..options };
    Ok(registry.load_from(&files.describe(), config, vec![weights], options)?)
}
