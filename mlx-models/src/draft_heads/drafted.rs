//! [`Drafted`]: a model with a drafter of another folder that reads the features of its layers, or their keys and values.

use std::ops::Range;

use mlx_core::ops::concat;
use mlx_core::{Array, Error, ErrorKind, Result};
use mlx_nn::{
    Head, KvShape, LayerKind, Module, Path, RecurrentShape, Residual, StatePart, Step, Visit,
    VisitMut,
};

use crate::checkpoint::Names;
use crate::model::{DraftHead, Drafting, Geometry, Model};

/// The name under which the parameters of a drafter come after those of its target.
pub(crate) const PREFIX: &str = "drafter";

/// A drafter that reads what another model, its target, has computed.
pub(crate) trait Reader: Module {
    /// A copy that shares the arrays.
    fn duplicate(&self) -> Box<dyn Reader>;

    /// The places in the target's residual stream that the drafter reads, as the number of layers before each. `None`: it
    /// reads the features after the final norm.
    fn reads(&self) -> Option<&[usize]>;

    /// The drafter's states, and the heads of those with keys and values.
    fn states(&self) -> (KvShape, Vec<LayerKind>);

    /// How the drafter drafts several tokens.
    fn manner(&self) -> Drafting;

    /// [`DraftHead::follow`]; `first` is the index of the drafter's first state.
    ///
    /// # Errors
    /// The shapes do not fit.
    fn follow(
        &self,
        target: &dyn Model,
        first: usize,
        tokens: &Array,
        features: Option<&Array>,
        step: &mut Step<'_>,
    ) -> Result<Array>;

    /// [`DraftHead::draft`]
    ///
    /// # Errors
    /// The shapes do not fit, or the drafter drafts in another way.
    fn draft(
        &self,
        target: &dyn Model,
        first: usize,
        tokens: &Array,
        before: &Array,
        step: &mut Step<'_>,
    ) -> Result<Array>;

    /// [`DraftHead::reads_pairs`]
    fn reads_pairs(&self) -> bool {
        false
    }

    /// [`DraftHead::features`]
    ///
    /// # Errors
    /// The shapes do not fit.
    fn features(&self, input: &Array) -> Result<Array> {
        Ok(input.clone())
    }

    /// [`DraftHead::predict`]
    ///
    /// # Errors
    /// The shapes do not fit, or the drafter reads no pairs.
    fn predict(
        &self,
        _target: &dyn Model,
        _first: usize,
        _next: &Array,
        _before: &Array,
        _step: &mut Step<'_>,
    ) -> Result<Array> {
        Err(other_manner())
    }

    /// [`DraftHead::block`]
    ///
    /// # Errors
    /// The shapes do not fit, or the drafter drafts in another way.
    fn block(
        &self,
        _target: &dyn Model,
        _first: usize,
        _last: &Array,
        _step: &mut Step<'_>,
    ) -> Result<Array> {
        Err(other_manner())
    }

    /// [`DraftHead::logits`]
    ///
    /// # Errors
    /// The shapes do not fit.
    fn logits(&self, target: &dyn Model, features: &Array, first: Option<i32>) -> Result<Array>;
}

pub(crate) fn other_manner() -> Error {
    Error::new(ErrorKind::Unsupported, "the drafter drafts in another way")
}

/// The state that holds the features of a row's last position, `[E]`.
pub(crate) fn last_features(features: i32) -> LayerKind {
    let shape = RecurrentShape::new(&[StatePart::Window {
        name: "hidden",
        len: 1,
        width: features,
    }]);
    LayerKind::Recurrent(shape.with_rerun())
}

/// A target with its drafter. The drafter's states follow those of the target's layers.
pub(crate) struct Drafted {
    target: Box<dyn Model>,
    reader: Box<dyn Reader>,
    geometry: Geometry,
    first: usize,
}

impl Drafted {
    /// The target with this drafter.
    ///
    /// # Errors
    /// The target drafts already, or the drafter reads places of the residual stream that the target does not have.
    pub(crate) fn new(target: Box<dyn Model>, reader: Box<dyn Reader>) -> Result<Self> {
        let unsupported = |message: String| Error::new(ErrorKind::Unsupported, message);
        if target.draft_head().is_some() {
            let message = "the model drafts with a head of its own; load it without that head";
            return Err(unsupported(message.to_owned()));
        }
        let mut geometry = target.geometry().clone();
        if let Some(places) = reader.reads() {
            let layers = geometry.layers().len();
            if let Some(place) = places.iter().find(|&&place| place > layers) {
                return Err(unsupported(format!(
                    "the drafter reads the output of layer {}, and the model has {layers} layers",
                    place - 1
                )));
            }
            let stream = target
                .embed(&Array::from_slice(&[0u32], &[1, 1])?)?
                .dim(2)?;
            if stream != geometry.hidden {
                return Err(unsupported(format!(
                    "the residual stream of the model has {stream} features a token, and drafters read streams of \
                     hidden_size, {}",
                    geometry.hidden
                )));
            }
        }
        let (kv, states) = reader.states();
        let first = geometry.beside(kv, &states);
        Ok(Self {
            target,
            reader,
            geometry,
            first,
        })
    }
}

impl Module for Drafted {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        self.target.visit(path, v)?;
        path.scoped(PREFIX, |path| self.reader.visit(path, v))
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        v.module(path, self)?;
        self.target.visit_mut(path, v)?;
        path.scoped(PREFIX, |path| self.reader.visit_mut(path, v))
    }

    fn children(&self) -> Vec<(String, &dyn Module)> {
        let mut children = self.target.children();
        children.push((PREFIX.to_owned(), self.reader.as_ref()));
        children
    }
}

impl Model for Drafted {
    fn embed(&self, tokens: &Array) -> Result<Array> {
        self.target.embed(tokens)
    }

    fn embeddings(&self, tokens: &Array) -> Result<Array> {
        self.target.embeddings(tokens)
    }

    fn layer(&self, index: usize, x: Residual, step: &mut Step<'_>) -> Result<Residual> {
        self.target.layer(index, x, step)
    }

    fn norm(&self, x: Residual) -> Result<[Array; 2]> {
        self.target.norm(x)
    }

    /// The features before the final norm are those that the drafter reads, `[1, T, n E]` of n places, if it reads the
    /// residual stream.
    fn run(&self, tokens: &Array, step: &mut Step<'_>) -> Result<[Array; 2]> {
        let mut x = Residual::from(self.embed(tokens)?);
        let layers = self.geometry.layers().len();
        let places = self.reader.reads().unwrap_or_default();
        let mut read: Vec<Option<Array>> = vec![None; places.len()];
        for index in 0..=layers {
            if places.contains(&index) {
                let sum = x.sum()?;
                let here = places.iter().zip(&mut read).filter(|(at, _)| **at == index);
                here.for_each(|(_, read)| *read = Some(sum.clone()));
                x = sum.into();
            }
            if index < layers {
                x = self.layer(index, x, step)?;
                step.start(&x, layers - index - 1)?;
            }
        }
        let [x, hidden] = self.norm(x)?;
        let read: Vec<Array> = read.into_iter().flatten().collect();
        match read.is_empty() {
            true => Ok([x, hidden]),
            false => Ok([concat(&read, -1)?, hidden]),
        }
    }

    fn draft_head(&self) -> Option<&dyn DraftHead> {
        Some(self)
    }

    fn duplicate(&self) -> Result<Box<dyn Model>> {
        Ok(Box::new(Self {
            target: self.target.duplicate()?,
            reader: self.reader.duplicate(),
            geometry: self.geometry.clone(),
            first: self.first,
        }))
    }

    fn head(&self) -> Head<'_> {
        self.target.head()
    }

    fn logits(&self, hidden: &Array) -> Result<Array> {
        self.target.logits(hidden)
    }

    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn names(&self) -> &Names {
        self.target.names()
    }

    fn set_names(&mut self, names: Names) {
        self.target.set_names(names);
    }
}

impl DraftHead for Drafted {
    fn states(&self) -> Range<usize> {
        self.first..self.geometry.states().len()
    }

    fn input(&self, [read, hidden]: [&Array; 2]) -> Result<Array> {
        Ok(self.reader.reads().map_or(hidden, |_| read).clone())
    }

    fn follow(
        &self,
        tokens: &Array,
        features: Option<&Array>,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        let target = self.target.as_ref();
        self.reader
            .follow(target, self.first, tokens, features, step)
    }

    fn draft(&self, tokens: &Array, before: &Array, step: &mut Step<'_>) -> Result<Array> {
        let target = self.target.as_ref();
        self.reader.draft(target, self.first, tokens, before, step)
    }

    fn manner(&self) -> Drafting {
        self.reader.manner()
    }

    fn reads_pairs(&self) -> bool {
        self.reader.reads_pairs()
    }

    fn features(&self, input: &Array) -> Result<Array> {
        self.reader.features(input)
    }

    fn predict(&self, next: &Array, before: &Array, step: &mut Step<'_>) -> Result<Array> {
        let target = self.target.as_ref();
        self.reader.predict(target, self.first, next, before, step)
    }

    fn block(&self, last: &Array, step: &mut Step<'_>) -> Result<Array> {
        let target = self.target.as_ref();
        self.reader.block(target, self.first, last, step)
    }

    fn logits(&self, features: &Array, first: Option<i32>) -> Result<Array> {
        self.reader.logits(self.target.as_ref(), features, first)
    }
}
