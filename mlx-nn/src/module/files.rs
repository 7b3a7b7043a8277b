//! Saving a module's parameters, and loading them.

use std::collections::BTreeMap;
use std::path::Path as FilePath;

use mlx_core::files::Npz;
use mlx_core::{Error, ErrorKind, Result, Safetensors, Scheme, safetensors, savez};

use super::{Module, Path, Visit, parameters};
use crate::checkpoint::{Checkpoint, FillOptions, Target, fill_as};
use crate::names::Rules;
use crate::weight::Weight;

/// The formats in which the parameters of a module are saved.
enum Format {
    Safetensors,
    Npz,
}

impl Format {
    /// The format of a path, by the ending of its name.
    fn of(path: &FilePath) -> Result<Self> {
        match path.extension().and_then(|end| end.to_str()) {
            Some("safetensors") => Ok(Self::Safetensors),
            Some("npz") => Ok(Self::Npz),
            _ => {
                let message = format!(
                    "{}: the parameters of a module are in a .safetensors or .npz file",
                    path.display()
                );
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }
}

pub(super) fn save(module: &impl Module, path: &FilePath) -> Result<()> {
    let format = Format::of(path)?;
    let arrays = parameters::map(module, |_, array| Ok(array.clone()))?;
    let named = arrays.iter().map(|(name, array)| (name.as_str(), array));
    match format {
        Format::Safetensors => safetensors::save(path, named, &BTreeMap::new()),
        Format::Npz => savez(path, named),
    }
}

pub(super) fn load(module: &mut impl Module, path: &FilePath) -> Result<()> {
    let label = path.display().to_string();
    let checkpoint = match Format::of(path)? {
        Format::Safetensors => {
            Checkpoint::new(&label, vec![Safetensors::open(path)?], &Rules::none())?
        }
        Format::Npz => Checkpoint::of_arrays(&label, Npz::open(path)?.arrays()?)?,
    };
    let schemes = schemes(module)?;
    let scheme = |path: &str| match schemes.get(path) {
        Some(scheme) => Ok(Some(*scheme)),
        None => Err(Error::new(
            ErrorKind::Format,
            format!(
                "{label}: {path} is quantised, and the module's is dense: quantise the module before"
            ),
        )),
    };
    let mut options = FillOptions {
        dtype: None,
        scheme: &scheme,
        progress: &mut |_| {},
    };
    fill_as(module, &checkpoint, &mut options, Target::ModuleChecked)?;
    fill_as(module, &checkpoint, &mut options, Target::Module)
}

/// The schemes of the quantised matrices of a module, by their paths.
fn schemes(module: &impl Module) -> Result<BTreeMap<String, Scheme>> {
    struct Collect(BTreeMap<String, Scheme>);
    impl Visit for Collect {
        fn weight(&mut self, path: &Path, weight: &Weight) -> Result<()> {
            if let Weight::Quantized { scheme, .. } = weight {
                self.0.insert(path.as_str().to_owned(), *scheme);
            }
            Ok(())
        }
    }
    let mut visitor = Collect(BTreeMap::new());
    module.visit(&mut Path::default(), &mut visitor)?;
    Ok(visitor.0)
}
