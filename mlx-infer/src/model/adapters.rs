//! Adapters by request: those that a model has beside its own parameters, and which of them rows hold.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use mlx_core::Array;
use mlx_models::adapter::{self, AdapterKind, LayerLoras};
use mlx_nn::lora::{RowAdapter, TokenAdapters, set_row_adapters};
use mlx_nn::{Lora, ModelCache};

use super::{LoadedModel, next_serial};
use crate::error::{Error, ErrorKind, Result};

/// The most adapters that a model has at a time.
pub const MAX_ADAPTERS: usize = 64;
/// The largest rank of an adapter that requests may choose.
pub const MAX_ADAPTER_RANK: usize = 512;

/// An adapter that rows may have.
#[derive(Debug)]
pub(crate) struct LoadedAdapter {
    /// Its index in the stacks of layers.
    number: usize,
    /// Another one for each adapter that was loaded.
    serial: u64,
    kind: AdapterKind,
}

/// An adapter with its scale, as a row holds it. It is not unloaded as long as a row holds it.
#[derive(Clone, Debug)]
pub(crate) struct HeldAdapter {
    adapter: Arc<LoadedAdapter>,
    scale: f32,
}

/// Everything of a [`HeldAdapter`] on which layer states depend, as numbers that are no token's.
pub(crate) type AdapterKey = [u32; 4];

impl HeldAdapter {
    /// `adapter` with a scale; `None` with scale 0, which is the model without an adapter.
    ///
    /// # Errors
    /// The scale is not finite, or the adapter supports 1 alone.
    pub(crate) fn new(adapter: Arc<LoadedAdapter>, scale: f32) -> Result<Option<Self>> {
        check_scale(scale)?;
        if scale == 0.0 {
            return Ok(None);
        }
        if scale != 1.0 && adapter.kind == AdapterKind::Dora {
            return Err(Error::argument(format!(
                "the scale of a DoRA adapter must be 1 or 0, because its magnitudes were trained with 1; given {scale}"
            )));
        }
        Ok(Some(Self { adapter, scale }))
    }

    /// The adapter as the layers know it.
    pub(crate) fn row(&self) -> RowAdapter {
        RowAdapter {
            number: self.adapter.number,
            scale: self.scale,
        }
    }

    /// The key of its layer states. No adapter that is loaded later has the same.
    pub(crate) fn key(&self) -> AdapterKey {
        let serial = self.adapter.serial;
        // Vocabularies are smaller than this first number.
        [
            u32::MAX,
            (serial >> 32) as u32,
            serial as u32,
            self.scale.to_bits(),
        ]
    }
}

/// # Errors
/// The scale is not finite.
pub(crate) fn check_scale(scale: f32) -> Result<()> {
    match scale.is_finite() {
        true => Ok(()),
        false => Err(Error::argument(format!(
            "the scale of an adapter must be finite, given {scale}"
        ))),
    }
}

/// The adapters of a model.
#[derive(Default)]
pub(crate) struct AdapterTable {
    entries: Vec<Option<TableEntry>>,
}

struct TableEntry {
    layers: BTreeMap<String, Lora>,
    adapter: Arc<LoadedAdapter>,
}

impl AdapterTable {
    /// Reads the adapter in `dir`, and stacks it with the others.
    ///
    /// # Errors
    /// The folder has no adapter, or one of another model, of full parameters, or of too large a rank; there are as many
    /// adapters as there may be; or the model computes a layer in a form that has no adapters by request. The others
    /// stay.
    pub(crate) fn load(&mut self, model: &LoadedModel, dir: &Path) -> Result<Arc<LoadedAdapter>> {
        let label = dir.display();
        let unsupported = |message: String| Error::new(ErrorKind::Unsupported, message);
        if self.entries.iter().flatten().count() >= MAX_ADAPTERS {
            return Err(unsupported(format!(
                "{label}: the model has {MAX_ADAPTERS} adapters, as many as it may have"
            )));
        }
        let LayerLoras { kind, layers, .. } = {
            let read = adapter::read(dir, model.model())?;
            let rank = read.rank();
            if rank as usize > MAX_ADAPTER_RANK {
                return Err(unsupported(format!(
                    "{label}: the adapter has rank {rank}; for requests it may be at most {MAX_ADAPTER_RANK}"
                )));
            }
            read
        };
        let free = self.entries.iter().position(Option::is_none);
        let number = free.unwrap_or(self.entries.len());
        if number == self.entries.len() {
            self.entries.push(None);
        }
        let adapter = Arc::new(LoadedAdapter {
            number,
            serial: next_serial(),
            kind,
        });
        self.entries[number] = Some(TableEntry {
            layers,
            adapter: adapter.clone(),
        });
        let done = self.stack(model).and_then(|()| probe(model, number));
        if let Err(error) = done {
            self.entries[number] = None;
            // The stacks of the others were there before.
            self.stack(model)?;
            return Err(Error::new(error.kind(), format!("{label}: {error}")));
        }
        Ok(adapter)
    }

    /// Whether no row holds the adapter with this index.
    pub(crate) fn is_free(&self, number: usize) -> bool {
        // The table holds it once.
        let entry = self.entries.get(number).and_then(Option::as_ref);
        entry.is_none_or(|entry| Arc::strong_count(&entry.adapter) <= 1)
    }

    /// The adapter with this index and a scale, as [`HeldAdapter::new`] returns it.
    ///
    /// # Errors
    /// There is none, or it does not support the scale.
    pub(crate) fn held(&self, number: usize, scale: f32) -> Result<Option<HeldAdapter>> {
        let entry = self.entries.get(number).and_then(Option::as_ref);
        let entry = entry.ok_or_else(|| {
            let message = format!("this rank has no adapter {number}");
            Error::new(ErrorKind::Compute, message)
        })?;
        HeldAdapter::new(entry.adapter.clone(), scale)
    }

    /// Removes the adapter with this index.
    pub(crate) fn remove(&mut self, model: &LoadedModel, number: usize) {
        let Some(place) = self.entries.get_mut(number) else {
            return;
        };
        *place = None;
        if let Err(error) = self.stack(model) {
            tracing::warn!("the memory of an adapter that was unloaded is not free: {error}");
        }
    }

    fn stack(&self, model: &LoadedModel) -> Result<()> {
        let entries = self.entries.iter();
        let all: Vec<_> = entries
            .map(|entry| entry.as_ref().map(|entry| &entry.layers))
            .collect();
        Ok(set_row_adapters(model.model(), &all)?)
    }
}

impl LoadedAdapter {
    /// Its index.
    pub(crate) fn number(&self) -> usize {
        self.number
    }
}

/// Builds a step of two rows of which one has the adapter, and computes nothing of it.
///
/// # Errors
/// A layer cannot tell the rows apart, or is not computed by its own product.
fn probe(model: &LoadedModel, number: usize) -> Result<()> {
    let row = RowAdapter { number, scale: 1.0 };
    let mut cache: ModelCache = model.new_cache(2);
    let mut step = cache.begin(&[2, 1])?;
    step.read_last();
    let Some(tokens) = TokenAdapters::of_step(&step, &[Some(row), None])? else {
        return Ok(());
    };
    let tokens = tokens.recording();
    let input = Array::from_slice(&[0u32; 3], &[1, 3])?;
    tokens.scope(|| {
        let hidden = model.model().hidden(&input, &mut step)?;
        match model.model().head().is_absent() {
            true => Ok(hidden),
            false => model.model().logits(&hidden.squeeze(0)?),
        }
    })?;
    drop(step);
    let mut missed = tokens.missed(model.model())?;
    // The head for multi-token prediction runs in other steps, or not at all.
    missed.retain(|path| !path.starts_with("mtp."));
    match &missed[..] {
        [] => Ok(()),
        [first, ..] => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{first}: models of this family compute {} of the adapted layers in a form that has no adapters by request",
                missed.len()
            ),
        )),
    }
}
