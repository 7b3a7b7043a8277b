//! The arrays of a model in the form of its files.

use mlx_core::{Array, Error, ErrorKind, Result, Scheme};
use mlx_nn::names::Gather;
use mlx_nn::{Param, Visit, Weight};

use crate::checkpoint::stored::{GLOBAL_SCALE, LARGEST_NVFP4};
use crate::draft_heads::mtp;
use crate::model::Model;

/// Paths and row sizes of the dense matrices.
#[derive(Default)]
pub(super) struct Matrices(Vec<(String, i32)>);

impl Matrices {
    /// The dense matrices of `model`.
    ///
    /// # Errors
    /// One is not floating point.
    pub fn of(model: &dyn Model) -> Result<Vec<(String, i32)>> {
        let mut all = Self::default();
        model.visit(&mut mlx_nn::Path::default(), &mut all)?;
        Ok(all.0)
    }
}

impl Visit for Matrices {
    fn weight(&mut self, path: &mlx_nn::Path, weight: &Weight) -> Result<()> {
        let Weight::Dense(dense) = weight else {
            return Ok(());
        };
        let dtype = dense.value().dtype();
        if !dtype.is_float() {
            let message = format!("{}: a weight of {dtype} is not supported", path.as_str());
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let inputs = dense.shape().last().copied().unwrap_or(1);
        self.0.push((path.as_str().to_owned(), inputs));
        Ok(())
    }
}

/// Paths and schemes of the packed matrices.
#[derive(Default)]
pub(super) struct Schemes(Vec<(String, Scheme)>);

impl Schemes {
    /// The packed matrices of `model`.
    pub fn of(model: &dyn Model) -> Result<Vec<(String, Scheme)>> {
        let mut all = Self::default();
        model.visit(&mut mlx_nn::Path::default(), &mut all)?;
        Ok(all.0)
    }
}

impl Visit for Schemes {
    fn weight(&mut self, path: &mlx_nn::Path, weight: &Weight) -> Result<()> {
        if let Weight::Quantized { scheme, .. } = weight {
            self.0.push((path.as_str().to_owned(), *scheme));
        }
        Ok(())
    }
}

/// The arrays of a model under their names in files.
pub(super) struct WrittenTensors<'a> {
    pub prefix: &'a str,
    pub arrays: Vec<(String, Array)>,
    /// The tensors of a head for multi-token prediction, and the name of their file, if it is a
    /// separate one.
    pub head: Option<(&'static str, Vec<(String, Array)>)>,
    pub parameters: usize,
    pub packed: usize,
}

impl<'a> WrittenTensors<'a> {
    /// The arrays of `model` in the form of its files. The tensors of a head are separate if
    /// `head_file` names a file.
    pub fn of(model: &dyn Model, prefix: &'a str, head_file: Option<&'static str>) -> Result<Self> {
        let mut tensors = Self {
            prefix,
            arrays: Vec::new(),
            head: head_file.map(|file| (file, Vec::new())),
            parameters: 0,
            packed: 0,
        };
        model.visit(&mut mlx_nn::Path::default(), &mut tensors)?;
        let inverse = model.names().checkpoint();
        let mut written = Gather::default();
        for (name, array) in std::mem::take(&mut tensors.arrays) {
            written.add(inverse.pieces(&name).unwrap_or_default(), &array)?;
        }
        for name in written.names() {
            let shape = written.shape(name, |array| Ok((array.dtype(), array.shape().to_vec())))?;
            if let Some(Err(fault)) = shape {
                let message = format!("{name} cannot be written: {fault}");
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            let array = written.array(name, None, |array| Ok(array.clone()))?;
            let array = array.expect("it was added above");
            let has_biases = name
                .strip_suffix(".factor")
                .is_some_and(|path| written.contains(&format!("{path}.biases")));
            let (name, array) = match has_biases {
                true => (name.to_owned(), array),
                false => written_factor(name, array)?,
            };
            match &mut tensors.head {
                Some((_, head)) if name.starts_with(mtp::PREFIX) => {
                    head.push((name, array));
                }
                _ => tensors.arrays.push((format!("{prefix}{name}"), array)),
            }
        }
        tensors.head.take_if(|(_, head)| head.is_empty());
        Ok(tensors)
    }
}

/// The name and array in files for an array of a model. The factors of nvfp4 experts are written as MLX's
/// `global_scale`, if each expert has one number; other factors as they are.
fn written_factor(name: &str, array: Array) -> Result<(String, Array)> {
    let path = name.strip_suffix(".factor").filter(|_| array.ndim() == 2);
    if let Some(path) = path {
        let first = array.slice_axis(1, 0, 1)?;
        if array.equal(&first)?.all_all()?.item()? {
            let scales = first.squeeze(1)?.multiply(LARGEST_NVFP4)?;
            return Ok((format!("{path}.{GLOBAL_SCALE}"), scales));
        }
    }
    Ok((name.to_owned(), array))
}

impl Visit for WrittenTensors<'_> {
    fn weight(&mut self, _path: &mlx_nn::Path, weight: &Weight) -> Result<()> {
        if let Weight::Quantized {
            packed,
            scales,
            biases,
            factor,
            residues,
            ..
        } = weight
        {
            let parts = [
                Some(packed),
                Some(scales),
                biases.as_ref(),
                factor.as_deref(),
                residues.as_deref(),
            ];
            let stored: usize = parts
                .into_iter()
                .flatten()
                .map(|part| part.value().size())
                .sum();
            let dense: usize = weight.shape().iter().map(|&n| n as usize).product();
            // `param` adds the stored size.
            self.parameters = self.parameters + dense - stored;
            self.packed += 1;
        }
        Ok(())
    }

    fn param(&mut self, path: &mlx_nn::Path, param: &Param) -> Result<()> {
        self.parameters += param.value().size();
        let name = path.as_str().to_owned();
        self.arrays.push((name, param.value().clone()));
        Ok(())
    }
}
