//! [`StoredTensors`]: the tensors of files by their published names, and shapes that a format asks
//! for.

use std::collections::{BTreeSet, HashMap};

use mlx_core::{Array, DType, Result, Safetensors};

use crate::config::Config;

/// The tensors of files, by their published names.
pub(crate) struct StoredTensors<'c> {
    files: HashMap<&'c str, &'c Safetensors>,
}

impl<'c> StoredTensors<'c> {
    /// All tensors of these files.
    pub(crate) fn of(files: impl Iterator<Item = &'c Safetensors>) -> Self {
        let files = files.flat_map(|file| file.names().map(move |name| (name, file)));
        Self {
            files: files.collect(),
        }
    }

    /// Removes the tensors for whose names `fits` is false.
    pub(crate) fn only(mut self, fits: impl Fn(&str) -> bool) -> Self {
        self.files.retain(|name, _| fits(name));
        self
    }

    /// The tensors without those of these names.
    pub(super) fn without(&self, names: &BTreeSet<String>) -> Self {
        let files = self
            .files
            .iter()
            .filter(|(name, _)| !names.contains(**name));
        Self {
            files: files.map(|(name, file)| (*name, *file)).collect(),
        }
    }

    pub(super) fn have_fp8(&self) -> Result<bool> {
        for (name, file) in &self.files {
            if file.stored_dtype(name)? == "F8_E4M3" {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether there are no tensors, as for a config without files.
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The names, in order.
    pub(super) fn names(&self) -> Vec<&'c str> {
        let mut names: Vec<&str> = self.files.keys().copied().collect();
        names.sort_unstable();
        names
    }

    /// The paths of the modules that have a tensor of this name (`path.name`), in order.
    pub(super) fn modules(&self, name: &str) -> Vec<&'c str> {
        let path = |full: &'c str| full.strip_suffix(name)?.strip_suffix('.');
        self.names().into_iter().filter_map(path).collect()
    }

    /// The dtype, as the file names it, and the shape of a tensor. `None` if the files have no such
    /// tensor.
    pub(super) fn info(&self, name: &str) -> Result<Option<(&'static str, &'c [i32])>> {
        let Some(file) = self.files.get(name) else {
            return Ok(None);
        };
        Ok(Some((file.stored_dtype(name)?, file.info(name)?.1)))
    }

    /// Whether there is a tensor of this name.
    pub(super) fn have(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    pub(super) fn array(&self, name: &str) -> Result<Array> {
        self.files[name].array(name)
    }

    /// The text of a key in the files' metadata.
    pub(super) fn metadata(&self, name: &str) -> Option<&'c str> {
        let mut files = self.files.values();
        files.find_map(|file| file.metadata().get(name).map(String::as_str))
    }

    /// The dtype and the shape of a tensor of `axes` axes whose dtype is one of `dtypes`.
    ///
    /// # Errors
    /// There is no such tensor, or it has another dtype or number of axes.
    pub(super) fn tensor(
        &self,
        entry: &Config,
        name: &str,
        dtypes: &[&str],
        axes: usize,
    ) -> Result<(&'static str, &'c [i32])> {
        let wanted = dtypes.join(" or ");
        match self.info(name)? {
            None => Err(entry.error(format!("tensor {name:?} is missing: {wanted}, {axes} axes"))),
            Some((dtype, shape)) if dtypes.contains(&dtype) && shape.len() == axes => {
                Ok((dtype, shape))
            }
            Some((dtype, shape)) => Err(entry.error(format!(
                "tensor {name:?} is {dtype} {shape:?}, expected {wanted} with {axes} axes"
            ))),
        }
    }

    /// The dtype of the tensors that are not part of a format: that of the norms or the embedding,
    /// or BF16.
    pub(super) fn dense_dtype(&self) -> Result<DType> {
        let names = self.names();
        let plain = |part: &str| {
            names
                .iter()
                .find(|name| name.ends_with("weight") && name.contains(part))
        };
        let found = ["embed", "wte", "norm"].iter().find_map(|part| plain(part));
        match found {
            Some(name) => Ok(float(self.files[name].stored_dtype(name)?).unwrap_or(DType::BF16)),
            None => Ok(DType::BF16),
        }
    }
}

/// The number of elements.
pub(super) fn count(shape: &[i32]) -> i64 {
    let sizes = shape.iter().map(|&size| i64::from(size));
    sizes.fold(1, i64::saturating_mul)
}

/// The names of floating-point dtypes in files.
pub(super) const FLOATS: [&str; 3] = ["F32", "F16", "BF16"];

/// The dtype of a name in [`FLOATS`].
pub(super) fn float(name: &str) -> Option<DType> {
    match name {
        "F32" => Some(DType::F32),
        "F16" => Some(DType::F16),
        "BF16" => Some(DType::BF16),
        _ => None,
    }
}
