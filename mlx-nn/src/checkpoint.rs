//! Filling a module from a checkpoint, strictly: one report names every tensor that is missing, unexpected or
//! misshapen.

use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;

use mlx_core::safetensors::Vanishing;
use mlx_core::{Array, DType, Error, ErrorKind, Result, Safetensors, Scheme};

use crate::module::{Module, Param, Path, Visit, VisitMut};
use crate::names::{Gather, Rules};
use crate::shard::Cut;
use crate::weight::{Stored, Weight};

mod decoded;

pub use decoded::{Decoded, Made, Make};

/// The tensors of a checkpoint, under the names of a module's parameters.
pub struct Checkpoint {
    /// The name of the checkpoint in error messages.
    label: String,
    files: Vec<(Safetensors, Rules)>,
    decoded: Decoded,
    /// Each tensor is made from tensors of files, or from tensors that were decoded.
    tensors: Gather<Source>,
    rules: Rules,
}

/// A tensor of a checkpoint, under its published name or with its number in [`Decoded`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Source {
    File(usize, String),
    Made(usize),
}

impl Checkpoint {
    /// Collects the tensors of `files`, renamed and changed by `rules`.
    ///
    /// # Errors
    /// Two tensors claim the same name.
    pub fn new(label: &str, files: Vec<Safetensors>, rules: &Rules) -> Result<Self> {
        let files = files.into_iter().map(|file| (file, Rules::none()));
        Self::gather(label, files.collect(), Decoded::default(), rules)
    }

    /// Takes arrays that are read already, under the names of a module's parameters.
    pub(crate) fn of_arrays(label: &str, arrays: BTreeMap<String, Array>) -> Result<Self> {
        let made = arrays.into_iter().map(|(name, array)| Made {
            name,
            of: Vec::new(),
            dtype: array.dtype(),
            shape: array.shape().to_vec(),
            keeps: false,
            make: Box::new(move |_| Ok(array.clone())),
        });
        let decoded = Decoded {
            made: made.collect(),
            hidden: BTreeSet::new(),
        };
        Self::gather(label, Vec::new(), decoded, &Rules::none())
    }

    fn gather(
        label: &str,
        files: Vec<(Safetensors, Rules)>,
        decoded: Decoded,
        rules: &Rules,
    ) -> Result<Self> {
        let mut tensors = Gather::default();
        let mut add = |own: &Rules, name: &str, source: Source| match own.and(rules).pieces(name) {
            Ok(pieces) => tensors
                .add(pieces, &source)
                .map_err(|error| error.context(label)),
            Err(_) => Ok(()),
        };
        for (file, (safetensors, own)) in files.iter().enumerate() {
            for published in safetensors.names().filter(|name| !decoded.hides(name)) {
                add(own, published, Source::File(file, published.to_owned()))?;
            }
        }
        for (at, made) in decoded.made.iter().enumerate() {
            let first = made.of.first();
            let own = first.and_then(|first| files.iter().find(|(file, _)| file.contains(first)));
            let none = Rules::none();
            add(
                own.map_or(&none, |(_, own)| own),
                &made.name,
                Source::Made(at),
            )?;
        }
        Ok(Self {
            label: label.to_owned(),
            files,
            decoded,
            tensors,
            rules: rules.clone(),
        })
    }

    /// The checkpoint with the tensors of `decoded` in place of the tensors of its files that they
    /// are computed from.
    ///
    /// # Errors
    /// Two tensors claim the same name.
    pub fn with_decoded(mut self, decoded: Decoded) -> Result<Self> {
        self.decoded.made.extend(decoded.made);
        self.decoded.hidden.extend(decoded.hidden);
        Self::gather(&self.label, self.files, self.decoded, &self.rules)
    }

    /// The files, in order.
    pub fn files(&self) -> impl Iterator<Item = &Safetensors> {
        self.files.iter().map(|(file, _)| file)
    }

    /// Gives each file rules of its own. The common rules are applied after them.
    ///
    /// # Errors
    /// Two tensors claim the same name.
    pub fn with_own_rules(self, own: Vec<Rules>) -> Result<Self> {
        let files = self.files.into_iter().map(|(file, _)| file).zip(own);
        Self::gather(&self.label, files.collect(), self.decoded, &self.rules)
    }

    /// Adds a file, with rules of its own that are applied before the common rules.
    ///
    /// # Errors
    /// Two tensors claim the same name.
    pub fn beside(mut self, file: Safetensors, own: Rules) -> Result<Self> {
        self.files.push((file, own));
        Self::gather(&self.label, self.files, self.decoded, &self.rules)
    }

    /// The same files with names by other rules.
    ///
    /// # Errors
    /// Two tensors claim the same name.
    pub fn with_rules(self, rules: &Rules) -> Result<Self> {
        Self::gather(&self.label, self.files, self.decoded, rules)
    }

    /// The name of this checkpoint in error messages.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Whether a tensor of this (new) name exists.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains(name)
    }

    /// The names of the tensors after the rules, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.names()
    }

    /// The shape of a tensor, without reading it. `None` if the tensor does not exist or its parts do not fit each
    /// other.
    ///
    /// # Errors
    /// This function does not fail, because the headers of the files were read when the files were
    /// opened.
    pub fn shape(&self, name: &str) -> Result<Option<Vec<i32>>> {
        Ok(self.shape_or_fault(name)?.and_then(Result::ok))
    }

    /// A tensor, if there is one.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn array(&self, name: &str) -> Result<Option<Array>> {
        match self.shape_or_fault(name)? {
            Some(Ok(_)) => self.tensors.array(name, None, |of| self.source(of)),
            _ => Ok(None),
        }
    }

    fn shape_or_fault(&self, name: &str) -> Result<Option<Result<Vec<i32>, String>>> {
        self.tensors.shape(name, |source| match source {
            Source::File(file, name) => {
                let (dtype, shape) = self.files[*file].0.info(name)?;
                Ok((dtype, shape.to_vec()))
            }
            Source::Made(at) => {
                let made = &self.decoded.made[*at];
                Ok((made.dtype, made.shape.clone()))
            }
        })
    }

    /// The tensors of the files in which nonzero elements become zero when they are converted to
    /// the dtypes of the parameters of `module`. The module was [filled](fill_lazily) from this
    /// checkpoint and has not been changed since. Tensors that were [decoded](Self::with_decoded)
    /// are left out.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn vanishing(&self, module: &dyn Module) -> Result<Vec<Vanishing>> {
        let mut casts = Casts {
            tensors: &self.tensors,
            files: vec![BTreeMap::new(); self.files.len()],
        };
        module.visit(&mut Path::default(), &mut casts)?;
        let mut all = Vec::new();
        for ((file, _), tensors) in self.files.iter().zip(casts.files) {
            all.extend(file.vanishing(tensors)?);
        }
        Ok(all)
    }

    /// Whether a tensor was [decoded](Self::with_decoded) to a dtype that it keeps.
    fn keeps(&self, name: &str) -> bool {
        self.tensors.sources_of(name).any(|source| match source {
            Source::File(..) => false,
            Source::Made(at) => self.decoded.made[*at].keeps,
        })
    }

    /// Reads all tensors that cannot be used in place, at once, except those of which `parts` are read.
    fn prepare(&self, parts: &BTreeSet<String>) -> Result<()> {
        let mut names = vec![BTreeSet::new(); self.files.len()];
        let whole = self.tensors.names().filter(|name| {
            let owner = name.rsplit_once('.').map_or("", |(owner, _)| owner);
            !parts.contains(*name) && !parts.contains(owner)
        });
        for source in whole.flat_map(|name| self.tensors.sources_of(name)) {
            match source {
                Source::File(file, name) => drop(names[*file].insert(name.as_str())),
                Source::Made(at) => {
                    for name in &self.decoded.made[*at].of {
                        names[self.holder(name)?].insert(name.as_str());
                    }
                }
            }
        }
        for ((file, _), names) in self.files.iter().zip(names) {
            file.prepare(names)?;
        }
        Ok(())
    }

    fn source(&self, source: &Source) -> Result<Array> {
        match source {
            Source::File(file, name) => self.files[*file].0.parameter(name),
            Source::Made(at) => {
                let made = &self.decoded.made[*at];
                let parts = made
                    .of
                    .iter()
                    .map(|name| self.files[self.holder(name)?].0.array(name));
                (made.make)(&parts.collect::<Result<Vec<_>>>()?)
            }
        }
    }

    /// The file that has a tensor.
    fn holder(&self, name: &str) -> Result<usize> {
        let file = self.files.iter().position(|(file, _)| file.contains(name));
        file.ok_or_else(|| {
            Error::new(
                ErrorKind::Format,
                format!("{}: no tensor {name:?}", self.label),
            )
        })
    }
}

/// The parameters, and the paths of the matrices, of which this rank holds a part.
fn names_of_parts(module: &dyn Module) -> Result<BTreeSet<String>> {
    struct Parts(BTreeSet<String>);
    impl Visit for Parts {
        fn weight(&mut self, path: &Path, weight: &Weight) -> Result<()> {
            if weight.held()?.is_some() {
                self.0.insert(path.as_str().to_owned());
            }
            Ok(())
        }
        fn param(&mut self, path: &Path, param: &Param) -> Result<()> {
            if param.held().is_some() {
                self.0.insert(path.as_str().to_owned());
            }
            Ok(())
        }
    }
    let mut parts = Parts(BTreeSet::new());
    module.visit(&mut Path::default(), &mut parts)?;
    Ok(parts.0)
}

/// The dtypes to which tensors of files are converted.
struct Casts<'a> {
    tensors: &'a Gather<Source>,
    /// For each file, its tensors and the dtype of the parameters that are made of them.
    files: Vec<BTreeMap<&'a str, DType>>,
}

impl Visit for Casts<'_> {
    fn param(&mut self, path: &Path, param: &Param) -> Result<()> {
        for source in self.tensors.sources_of(path.as_str()) {
            if let Source::File(file, name) = source {
                self.files[*file].insert(name, param.value().dtype());
            }
        }
        Ok(())
    }
}

/// How [`fill_lazily`] reads a checkpoint.
pub struct FillOptions<'a> {
    /// The dtype to which floating-point parameters are converted. `None`: they keep their stored
    /// dtypes.
    pub dtype: Option<DType>,
    /// The quantisation that config.json gives for the weight at a path, if any.
    pub scheme: &'a dyn Fn(&str) -> Result<Option<Scheme>>,
    /// Called with the number of parameters filled so far.
    pub progress: &'a mut dyn FnMut(usize),
}

/// Gives every parameter of `module` its value from `checkpoint`. Nothing is evaluated: on the CPU the values refer to
/// the files, and conversions are done when they are needed.
///
/// A weight is quantised if the checkpoint has `path.scales`; its scheme comes from
/// [`FillOptions::scheme`] and must fit the packed shape.
///
/// # Errors
/// Tensors are missing, unexpected or misshapen; one report names them all.
pub fn fill_lazily(
    module: &mut dyn Module,
    checkpoint: &Checkpoint,
    mut options: FillOptions<'_>,
) -> Result<()> {
    fill_as(module, checkpoint, &mut options, Target::Model)
}

/// The kind of module that is filled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// A model, which follows from a config.json.
    Model,
    /// A module that a program has built, whose matrices are packed already.
    Module,
    /// A module that a program has built. Only names and shapes are compared, and nothing is
    /// changed.
    ModuleChecked,
}

/// [`fill_lazily`] for a target, which also determines the words of the error.
pub(crate) fn fill_as(
    module: &mut dyn Module,
    checkpoint: &Checkpoint,
    options: &mut FillOptions<'_>,
    target: Target,
) -> Result<()> {
    if target != Target::ModuleChecked {
        checkpoint.prepare(&names_of_parts(module)?)?;
    }
    let mut filler = Filler {
        unclaimed: checkpoint.names().collect(),
        checkpoint,
        options,
        target,
        sources: RefCell::default(),
        filled: 0,
        missing: Vec::new(),
        misshapen: Vec::new(),
    };
    module.visit_mut(&mut Path::default(), &mut filler)?;
    let Filler {
        unclaimed,
        missing,
        misshapen,
        ..
    } = filler;
    let mut report = String::new();
    let unexpected: Vec<String> = unclaimed.into_iter().map(str::to_owned).collect();
    for (kind, names) in [
        ("missing", missing),
        ("unexpected", unexpected),
        ("misshapen", misshapen),
    ] {
        if names.is_empty() {
            continue;
        }
        let shown = names.iter().take(8).cloned().collect::<Vec<_>>().join("; ");
        let more = names.len().saturating_sub(8);
        let tail = if more > 0 {
            format!("; and {more} more")
        } else {
            String::new()
        };
        let _ = write!(report, "\n  {} {kind}: {shown}{tail}", names.len());
    }
    if report.is_empty() {
        return Ok(());
    }
    let whose = match target {
        Target::Model => "its config.json",
        Target::Module | Target::ModuleChecked => "the module",
    };
    Err(Error::new(
        ErrorKind::Format,
        format!(
            "the tensors of {} do not match {whose}:{report}",
            checkpoint.label
        ),
    ))
}

struct Filler<'a, 'o> {
    checkpoint: &'a Checkpoint,
    options: &'a mut FillOptions<'o>,
    target: Target,
    /// The tensors that were read. They are kept because several parameters may be rows of one tensor.
    sources: RefCell<HashMap<Source, Array>>,
    unclaimed: BTreeSet<&'a str>,
    filled: usize,
    missing: Vec<String>,
    misshapen: Vec<String>,
}

impl Filler<'_, '_> {
    /// A tensor, as a whole.
    fn whole(&self, name: &str, dtype: Option<DType>) -> Result<Option<Array>> {
        let checkpoint = self.checkpoint;
        checkpoint.tensors.array(name, dtype, |of| {
            match self.sources.borrow_mut().entry(of.clone()) {
                Entry::Occupied(entry) => Ok(entry.get().clone()),
                Entry::Vacant(entry) => Ok(entry.insert(checkpoint.source(of)?).clone()),
            }
        })
    }

    /// A rank's part of a tensor. Where it follows from parts of the files, only these are read.
    fn part(&self, name: &str, dtype: Option<DType>, cut: &Cut) -> Result<Option<Array>> {
        let checkpoint = self.checkpoint;
        let part = |source: &Source, axis: Option<usize>| match (source, axis) {
            (Source::File(file, name), Some(axis)) => {
                let file = &checkpoint.files[*file].0;
                file.part_of_parameter(name, axis, &cut.ranges).map(Some)
            }
            (source, None) => checkpoint.source(source).map(Some),
            (Source::Made(_), Some(_)) => Ok(None),
        };
        if let Some(array) = checkpoint.tensors.part(name, dtype, cut, part)? {
            return Ok(Some(array));
        }
        let whole = self.whole(name, dtype)?;
        whole.map(|whole| cut.of(&whole)).transpose()
    }
}

impl VisitMut for Filler<'_, '_> {
    fn weight(&mut self, path: &Path, weight: &mut Weight) -> Result<()> {
        let quantized = self.checkpoint.contains(&path.join("scales"));
        if !quantized {
            return Ok(());
        }
        let scheme = (self.options.scheme)(path.as_str())?.ok_or_else(|| {
            Error::new(
                ErrorKind::Format,
                format!(
                    "{}: {} is quantised, but config.json has no quantization for it",
                    self.checkpoint.label,
                    path.as_str()
                ),
            )
        })?;
        // A quantised matrix of a program's module is packed by the same scheme already.
        if self.target == Target::Model {
            let has = |part: &str| self.checkpoint.contains(&path.join(part));
            let stored = Stored {
                factor: has("factor"),
                residues: has("residues"),
                wide: self.checkpoint.keeps(&path.join("scales")),
            };
            let context = |error: Error| error.context(path.as_str());
            let held = weight.held()?;
            let shape = match &held {
                Some(cut) => cut.whole_shape(&weight.shape()),
                None => weight.shape(),
            };
            *weight = Weight::stored_like(&shape, scheme, stored).map_err(context)?;
            if let Some(cut) = held {
                let whose = |error: Error| context(error).context(&self.checkpoint.label);
                weight.cut(&cut).map_err(whose)?;
            }
        }
        Ok(())
    }

    fn param(&mut self, path: &Path, param: &mut Param) -> Result<()> {
        let name = path.as_str();
        let Some(found) = self.checkpoint.shape_or_fault(name)? else {
            self.missing
                .push(format!("{name} {:?}", param.whole_shape()));
            return Ok(());
        };
        self.unclaimed.remove(name);
        let whole = param.whole_shape();
        let fault = match found {
            Ok(found) if found == whole => None,
            Ok(found) => Some(format!("expected {whole:?}, found {found:?}")),
            Err(fault) => Some(fault),
        };
        if let Some(fault) = fault {
            self.misshapen.push(format!("{name}: {fault}"));
            return Ok(());
        }
        if self.target == Target::ModuleChecked {
            return Ok(());
        }
        let dtype = param.dtype_in(self.options.dtype);
        let value = match param.held() {
            Some(cut) => self.part(name, dtype, cut)?,
            None => self.whole(name, dtype)?,
        };
        let Some(value) = value else {
            return Ok(());
        };
        param.set(value);
        self.filled += 1;
        (self.options.progress)(self.filled);
        Ok(())
    }
}
