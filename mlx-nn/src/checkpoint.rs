//! Filling a module from a checkpoint, strictly: every tensor is claimed, or one report says why not.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use mlx_core::ops::stack;
use mlx_core::{Array, DType, Error, ErrorKind, Result, Safetensors, Scheme};

use crate::module::{Module, Param, Path, VisitMut};
use crate::weight::Weight;

/// What an architecture does with a tensor's published name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rename {
    /// The tensor is this parameter.
    To(String),
    /// The tensor is item `index` of a stack, such as one expert of many.
    Item {
        /// The stacked parameter.
        name: String,
        /// Where along the new first axis.
        index: usize,
    },
    /// The tensor is none of the model's business.
    Drop,
}

impl Rename {
    /// The parameter that the tensor fills, at least in part.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::To(name) | Self::Item { name, .. } => Some(name),
            Self::Drop => None,
        }
    }
}

/// One tensor or several stacked ones.
enum Source {
    One(usize, String),
    Stack(BTreeMap<usize, (usize, String)>),
}

/// The tensors of a checkpoint under the names of our parameters.
pub struct Checkpoint {
    /// What error messages call it.
    label: String,
    files: Vec<Safetensors>,
    tensors: BTreeMap<String, Source>,
}

impl Checkpoint {
    /// Collects the tensors of `files`, renamed.
    ///
    /// # Errors
    /// Two tensors claim the same name.
    pub fn new(
        label: &str,
        files: Vec<Safetensors>,
        rename: impl Fn(&str) -> Rename,
    ) -> Result<Self> {
        let mut tensors = BTreeMap::new();
        let twice = |name: &str| {
            Error::new(
                ErrorKind::Format,
                format!("{label}: two tensors claim to be {name}"),
            )
        };
        for (file, safetensors) in files.iter().enumerate() {
            for published in safetensors.names() {
                let published = published.to_owned();
                match rename(&published) {
                    Rename::Drop => {}
                    Rename::To(name) => {
                        let source = Source::One(file, published);
                        if tensors.insert(name.clone(), source).is_some() {
                            return Err(twice(&name));
                        }
                    }
                    Rename::Item { name, index } => {
                        let entry = tensors.entry(name.clone());
                        let source = entry.or_insert_with(|| Source::Stack(BTreeMap::new()));
                        let Source::Stack(items) = source else {
                            return Err(twice(&name));
                        };
                        if items.insert(index, (file, published)).is_some() {
                            return Err(twice(&format!("{name}[{index}]")));
                        }
                    }
                }
            }
        }
        Ok(Self {
            label: label.to_owned(),
            files,
            tensors,
        })
    }

    /// What error messages call this checkpoint.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Whether a tensor of this (renamed) name exists.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The names, as the module calls them.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Shape and dtype of a tensor, without reading it.
    fn info(&self, source: &Source) -> Result<(DType, Vec<i32>)> {
        match source {
            Source::One(file, name) => self.files[*file]
                .info(name)
                .map(|(dtype, shape)| (dtype, shape.to_vec())),
            Source::Stack(items) => {
                let first = items.values().next().expect("a stack has an item");
                let (dtype, shape) = self.files[first.0].info(&first.1)?;
                for (position, (index, (file, name))) in items.iter().enumerate() {
                    let (other, found) = self.files[*file].info(name)?;
                    if *index != position || (other, found) != (dtype, shape) {
                        return Err(Error::new(
                            ErrorKind::Format,
                            format!(
                                "{}: {name} is {found:?} {other}; item {position} of its stack must be {shape:?} {dtype}",
                                self.label
                            ),
                        ));
                    }
                }
                Ok((dtype, [&[items.len() as i32], shape].concat()))
            }
        }
    }

    /// Reads what cannot be used where it is in the files, all at once.
    fn prepare(&self) -> Result<()> {
        let mut names = vec![Vec::new(); self.files.len()];
        for source in self.tensors.values() {
            match source {
                Source::One(file, name) => names[*file].push(name.as_str()),
                Source::Stack(items) => {
                    for (file, name) in items.values() {
                        names[*file].push(name);
                    }
                }
            }
        }
        for (file, names) in self.files.iter().zip(names) {
            file.prepare(names)?;
        }
        Ok(())
    }

    fn read(&self, source: &Source) -> Result<Array> {
        match source {
            Source::One(file, name) => self.files[*file].parameter(name),
            Source::Stack(items) => {
                let items: Result<Vec<_>> = items
                    .values()
                    .map(|(file, name)| self.files[*file].parameter(name))
                    .collect();
                stack(&items?, 0)
            }
        }
    }
}

/// How [`fill`] reads a checkpoint.
pub struct FillOptions<'a> {
    /// Floating-point parameters are converted to this, or stay as they are stored.
    pub dtype: Option<DType>,
    /// The quantisation that config.json gives for the weight at a path, if any.
    pub scheme: &'a dyn Fn(&str) -> Result<Option<Scheme>>,
    /// Called with the number of parameters filled so far.
    pub progress: &'a mut dyn FnMut(usize),
}

/// Gives every parameter of `module` its value from `checkpoint`.
///
/// A weight is quantised if the checkpoint has `path.scales`; its scheme comes from
/// [`FillOptions::scheme`] and must fit the packed shape.
///
/// # Errors
/// One report of all that is missing, unexpected or misshapen.
pub fn fill(
    module: &mut dyn Module,
    checkpoint: &Checkpoint,
    options: FillOptions<'_>,
) -> Result<()> {
    checkpoint.prepare()?;
    let mut filler = Filler {
        unclaimed: checkpoint.tensors.keys().map(String::as_str).collect(),
        checkpoint,
        options,
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
    Err(Error::new(
        ErrorKind::Format,
        format!(
            "the tensors of {} do not match its config.json:{report}",
            checkpoint.label
        ),
    ))
}

struct Filler<'a, 'o> {
    checkpoint: &'a Checkpoint,
    options: FillOptions<'o>,
    unclaimed: BTreeSet<&'a str>,
    filled: usize,
    missing: Vec<String>,
    misshapen: Vec<String>,
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
        *weight = Weight::quantized_like(&weight.shape(), scheme)
            .map_err(|error| error.context(path.as_str()))?;
        Ok(())
    }

    fn param(&mut self, path: &Path, param: &mut Param) -> Result<()> {
        let name = path.as_str();
        let Some((key, source)) = self.checkpoint.tensors.get_key_value(name) else {
            self.missing.push(format!("{name} {:?}", param.shape()));
            return Ok(());
        };
        self.unclaimed.remove(key.as_str());
        let (_, found) = self.checkpoint.info(source)?;
        if found != param.shape() {
            self.misshapen.push(format!(
                "{name}: expected {:?}, found {found:?}",
                param.shape()
            ));
            return Ok(());
        }
        let mut value = self.checkpoint.read(source)?;
        if let Some(dtype) = self.options.dtype
            && value.dtype().is_float()
        {
            value = value.astype(dtype)?;
        }
        param.set(value);
        self.filled += 1;
        (self.options.progress)(self.filled);
        Ok(())
    }
}
