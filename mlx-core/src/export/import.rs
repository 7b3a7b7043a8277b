//! Functions from files.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::read::{self, File, Stated, StoredFunction, StoredNode};
use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};
use crate::files::named::{NamedArray, named};
use crate::files::source::{Layout, Source};

/// A function from a file: see [`import_function`].
///
/// ```
/// use mlx_core::{Array, DType, export, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("f.mlxfn");
/// # let x = [ones(&[2], DType::F32)?];
/// # export::export_function(&path, |x: &[Array]| Ok(vec![x[0].exp()?]), &x)?;
/// let f = export::import_function(&path)?;
/// assert!(format!("{f:?}").ends_with("([2] F32))"));
/// # Ok(())
/// # }
/// ```
pub struct ImportedFunction {
    label: String,
    source: Arc<Source>,
    file: File,
}

/// Reads a function that [`export_function`](super::export_function) or Python's `mx.export_function` wrote.
///
/// The whole file is checked here; see [the module](super) for what that means. On the CPU back end constants refer to
/// the mapped file, as in [`Safetensors::open`](crate::Safetensors::open).
///
/// ```
/// use mlx_core::{Array, DType, export, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("f.mlxfn");
/// # let x = [ones(&[2], DType::F32)?];
/// # export::export_function(&path, |x: &[Array]| Ok(vec![x[0].exp()?]), &x)?;
/// let f = export::import_function(&path)?; // Python: mx.export_function("f.mlxfn", mx.exp, x)
/// let y = f.call(&[ones(&[2], DType::F32)?])?;
/// assert_eq!(y.len(), 1);
/// assert!(f.call(&[ones(&[3], DType::F32)?]).unwrap_err().to_string().ends_with("the file has ([2] F32)"));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The path is no ordinary file, or the file cannot be read, is not an exported function, or has an
/// operation that is not supported. The message names the file, the node and the operation.
pub fn import_function(path: impl AsRef<Path>) -> Result<ImportedFunction> {
    let (label, source) = Source::open(path.as_ref())?;
    let file = read::parse(source.bytes())
        .map_err(|what| Error::new(ErrorKind::Format, format!("{label}: {what}")))?;
    Ok(ImportedFunction {
        label,
        source: Arc::new(source),
        file,
    })
}

impl ImportedFunction {
    /// Calls the function of the file whose inputs have the shapes and dtypes of `inputs`.
    ///
    /// # Errors
    /// The file has no function for these shapes and dtypes (the message lists those that it has),
    /// an operation fails, or a result has another shape or dtype than the file states.
    pub fn call(&self, inputs: &[Array]) -> Result<Vec<Array>> {
        self.call_named(inputs, [] as [(&str, Array); 0])
    }

    /// As [`call`](Self::call), with further inputs by names, which functions from Python may have.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_named<N: NamedArray>(
        &self,
        inputs: &[Array],
        names: impl IntoIterator<Item = N>,
    ) -> Result<Vec<Array>> {
        let names: Vec<N> = names.into_iter().collect();
        let names: BTreeMap<&str, &Array> = named(&names).into_iter().collect();
        let all: Vec<&Array> = inputs.iter().chain(names.values().copied()).collect();
        let names: Vec<&str> = names.into_keys().collect();
        let function = self.file.functions.iter().find(|function| {
            function.names == names
                && function.inputs.len() == all.len()
                && function
                    .inputs
                    .iter()
                    .zip(&all)
                    .all(|(stated, input)| self.accepts(stated, input))
        });
        let function = function.ok_or_else(|| self.unknown(&all, &names))?;
        self.run(function, all)
            .map_err(|error| error.context(&self.label))
    }

    /// The text that was exported beside the function; mostly empty.
    pub fn metadata(&self) -> &str {
        &self.file.metadata
    }

    fn accepts(&self, stated: &Stated, input: &Array) -> bool {
        stated.dtype == input.dtype()
            && stated.shape.len() == input.ndim()
            && (self.file.shapeless || stated.shape == input.shape())
    }

    fn unknown(&self, inputs: &[&Array], names: &[&str]) -> Error {
        let known: Vec<String> = self.file.functions.iter().map(signature).collect();
        let message = format!(
            "{}: no function for {inputs:?} with the names {names:?}; the file has {}",
            self.label,
            known.join(", ")
        );
        Error::new(ErrorKind::Invalid, message)
    }

    fn run(&self, function: &StoredFunction, inputs: Vec<&Array>) -> Result<Vec<Array>> {
        let mut values: Vec<Array> = inputs.into_iter().cloned().collect();
        for (i, node) in function.nodes.iter().enumerate() {
            match node {
                StoredNode::Constant(stated, at) => {
                    let layout = Layout {
                        dtype: stated.dtype,
                        shape: &stated.shape,
                    };
                    values.push(layout.of_source(&self.source, *at)?);
                }
                StoredNode::Operation {
                    name,
                    run,
                    inputs,
                    outputs,
                } => {
                    let at = |error: Error| error.context(format!("node {i} ({name})"));
                    let inputs: Vec<&Array> = inputs.iter().map(|&place| &values[place]).collect();
                    let results = run(&inputs, &outputs[0]).map_err(at)?;
                    self.check(&results, outputs).map_err(at)?;
                    values.extend(results);
                }
            }
        }
        let outputs = function.outputs.iter();
        Ok(outputs.map(|&place| values[place].clone()).collect())
    }

    /// Refuses results whose shape or dtype is not the one that the file states, because later
    /// nodes depend on them.
    fn check(&self, results: &[Array], stated: &[Stated]) -> Result<()> {
        let mut pairs = results.iter().zip(stated);
        if results.len() == stated.len()
            && pairs.all(|(result, stated)| self.accepts(stated, result))
        {
            return Ok(());
        }
        let message = format!("gives {results:?}, but the file states {stated:?}");
        Err(Error::new(ErrorKind::Format, message))
    }
}

fn signature(function: &StoredFunction) -> String {
    let positional = function.inputs.len() - function.names.len();
    let inputs = function.inputs.iter().enumerate();
    let inputs: Vec<String> = inputs
        .map(|(i, input)| {
            let name = i.checked_sub(positional).map(|i| &function.names[i]);
            let name = name.map_or(String::new(), |name| format!("{name}: "));
            format!("{name}{:?} {}", input.shape, input.dtype)
        })
        .collect();
    format!("({})", inputs.join(", "))
}

impl fmt::Debug for ImportedFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: Vec<String> = self.file.functions.iter().map(signature).collect();
        write!(f, "ImportedFunction({}, {})", self.label, known.join(", "))
    }
}
