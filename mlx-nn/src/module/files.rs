//! Saving a module's parameters, and loading them.

use std::collections::BTreeMap;
use std::path::Path as FilePath;

use mlx_core::{Error, ErrorKind, Result, Safetensors, Scheme, safetensors};

use super::{Module, Path, Visit, parameters};
use crate::checkpoint::{Checkpoint, FillOptions, Target, fill_as};
use crate::names::Rules;
use crate::weight::Weight;

/// Refuses a path that does not end in `.safetensors`.
fn check_name(path: &FilePath) -> Result<()> {
    if path.extension().is_some_and(|end| end == "safetensors") {
        return Ok(());
    }
    let message = format!(
        "{}: the parameters of a module are in a .safetensors file",
        path.display()
    );
    Err(Error::new(ErrorKind::Unsupported, message))
}

pub(super) fn save(module: &impl Module, path: &FilePath) -> Result<()> {
    check_name(path)?;
    let arrays = parameters::map(module, |_, array| Ok(array.clone()))?;
    let arrays = arrays.iter().map(|(name, array)| (name.as_str(), array));
    safetensors::save(path, arrays, &BTreeMap::new())
}

pub(super) fn load(module: &mut impl Module, path: &FilePath) -> Result<()> {
    check_name(path)?;
    let label = path.display().to_string();
    let checkpoint = Checkpoint::new(&label, vec![Safetensors::open(path)?], &Rules::none())?;
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
