//! The visitors of [`Module`]'s own methods.

use std::collections::BTreeMap;

use mlx_core::{Array, DType, Error, ErrorKind, Result};

use super::{Module, Param, Parameters, Path, Visit, VisitMut};
use crate::trainable::{Packed, Patterns};
use crate::training::Mode;
use crate::weight::Weight;

/// Lets a visitor that cannot fail read a module.
fn read<M: Module + ?Sized>(module: &M, v: &mut dyn Visit) {
    let read = module.visit(&mut Path::default(), v);
    read.expect("visiting a module fails only if the visitor fails");
}

fn change<M: Module + ?Sized>(module: &mut M, v: &mut dyn VisitMut) -> Result<()> {
    module.visit_mut(&mut Path::default(), v)
}

/// The parameters that `choose` accepts and that have a value.
pub(super) fn named<M: Module + ?Sized>(module: &M, choose: fn(&Param) -> bool) -> Parameters {
    struct Collect(fn(&Param) -> bool, Parameters);
    impl Visit for Collect {
        fn param(&mut self, path: &Path, param: &Param) -> Result<()> {
            if param.is_filled() && (self.0)(param) {
                self.1
                    .insert(path.as_str().to_owned(), param.value().clone());
            }
            Ok(())
        }
    }
    let mut visitor = Collect(choose, Parameters::new());
    read(module, &mut visitor);
    visitor.1
}

pub(super) fn count<M: Module + ?Sized>(module: &M) -> usize {
    #[derive(Default)]
    struct Count {
        packed: Packed,
        numbers: usize,
    }
    impl Visit for Count {
        fn weight(&mut self, path: &Path, weight: &Weight) -> Result<()> {
            self.packed.enter(path, weight);
            if let Weight::Quantized { .. } = weight {
                self.numbers += weight
                    .shape()
                    .iter()
                    .map(|&n| n as usize)
                    .product::<usize>();
            }
            Ok(())
        }

        fn param(&mut self, path: &Path, param: &Param) -> Result<()> {
            if !self.packed.has(path.as_str()) {
                self.numbers += param.size();
            }
            Ok(())
        }
    }
    let mut visitor = Count::default();
    read(module, &mut visitor);
    visitor.numbers
}

pub(super) fn named_modules<M: Module>(module: &M) -> Vec<(String, &dyn Module)> {
    fn walk<'a>(name: String, module: &'a dyn Module, into: &mut Vec<(String, &'a dyn Module)>) {
        let path = Path::new(&name);
        into.push((name, module));
        for (child, module) in module.children() {
            walk(path.join(&child), module, into);
        }
    }
    let mut all = Vec::new();
    walk(String::new(), module, &mut all);
    all
}

pub(super) fn apply<M: Module + ?Sized>(
    module: &mut M,
    f: impl FnMut(&Array) -> Result<Array>,
) -> Result<()> {
    struct Apply<F>(F);
    impl<F: FnMut(&Array) -> Result<Array>> VisitMut for Apply<F> {
        fn param(&mut self, path: &Path, param: &mut Param) -> Result<()> {
            let new = (self.0)(param.get()?).map_err(|error| error.context(path.as_str()))?;
            param.set(new);
            Ok(())
        }
    }
    change(module, &mut Apply(f))
}

pub(super) fn map<M: Module + ?Sized, T>(
    module: &M,
    filter: impl FnMut(&str, &Param) -> bool,
    f: impl FnMut(&str, &Array) -> Result<T>,
) -> Result<BTreeMap<String, T>> {
    struct Map<C, F, T>(C, F, BTreeMap<String, T>);
    impl<T, C, F> Visit for Map<C, F, T>
    where
        C: FnMut(&str, &Param) -> bool,
        F: FnMut(&str, &Array) -> Result<T>,
    {
        fn param(&mut self, path: &Path, param: &Param) -> Result<()> {
            let name = path.as_str();
            if (self.0)(name, param) {
                let value = (self.1)(name, param.get()?).map_err(|error| error.context(name))?;
                self.2.insert(name.to_owned(), value);
            }
            Ok(())
        }
    }
    let mut visitor = Map(filter, f, BTreeMap::new());
    module.visit(&mut Path::default(), &mut visitor)?;
    Ok(visitor.2)
}

pub(super) fn update<M: Module + ?Sized>(module: &mut M, values: &Parameters) -> Result<()> {
    struct Check<'a>(BTreeMap<&'a str, &'a Array>);
    impl Visit for Check<'_> {
        fn param(&mut self, path: &Path, param: &Param) -> Result<()> {
            let name = path.as_str();
            match self.0.remove(name) {
                Some(value) if value.shape() != param.shape() => Err(Error::new(
                    ErrorKind::Shape,
                    format!(
                        "{name} has shape {:?}, the new value {:?}",
                        param.shape(),
                        value.shape()
                    ),
                )),
                _ => Ok(()),
            }
        }
    }
    struct Set<'a>(&'a Parameters);
    impl VisitMut for Set<'_> {
        fn param(&mut self, path: &Path, param: &mut Param) -> Result<()> {
            if let Some(value) = self.0.get(path.as_str()) {
                param.set(value.clone());
            }
            Ok(())
        }
    }
    let names = values.iter().map(|(name, value)| (name.as_str(), value));
    let mut check = Check(names.collect());
    module.visit(&mut Path::default(), &mut check)?;
    if let Some(name) = check.0.keys().next() {
        let message = format!("the module has no parameter {name}");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    change(module, &mut Set(values))
}

pub(super) fn freeze<M: Module + ?Sized>(module: &mut M, pattern: &str) -> Result<()> {
    struct Freeze {
        patterns: Patterns,
        found: bool,
    }
    impl VisitMut for Freeze {
        fn param(&mut self, path: &Path, param: &mut Param) -> Result<()> {
            let name = path.as_str();
            let holders = name.match_indices('.').map(|(dot, _)| &name[..dot]);
            if holders
                .chain([name])
                .any(|name| self.patterns.matches(name))
            {
                param.trainable = false;
                self.found = true;
            }
            Ok(())
        }
    }
    let mut visitor = Freeze {
        patterns: Patterns::new([pattern]),
        found: false,
    };
    change(module, &mut visitor)?;
    if visitor.found {
        return Ok(());
    }
    let message = format!("no parameter, and no module with parameters, matches {pattern:?}");
    Err(Error::new(ErrorKind::Invalid, message))
}

pub(super) fn unfreeze<M: Module + ?Sized>(module: &mut M) -> Result<()> {
    #[derive(Default)]
    struct Unfreeze(Packed);
    impl VisitMut for Unfreeze {
        fn weight(&mut self, path: &Path, weight: &mut Weight) -> Result<()> {
            self.0.enter(path, weight);
            Ok(())
        }

        fn param(&mut self, path: &Path, param: &mut Param) -> Result<()> {
            param.trainable =
                !param.is_state() && param.value().dtype().is_float() && !self.0.has(path.as_str());
            Ok(())
        }
    }
    change(module, &mut Unfreeze::default())
}

pub(super) fn set_dtype<M: Module + ?Sized>(module: &mut M, dtype: DType) -> Result<()> {
    struct Cast(DType);
    impl VisitMut for Cast {
        fn param(&mut self, path: &Path, param: &mut Param) -> Result<()> {
            let Some(dtype) = param.dtype_in(Some(self.0)) else {
                return Ok(());
            };
            if !param.is_filled() || !param.value().dtype().is_float() {
                return Ok(());
            }
            let cast = param.value().astype(dtype);
            param.set(cast.map_err(|error| error.context(path.as_str()))?);
            Ok(())
        }
    }
    if !dtype.is_float() {
        let message = format!("the dtype of parameters must be floating point, given {dtype}");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    change(module, &mut Cast(dtype))
}

pub(super) fn train<M: Module + ?Sized>(module: &mut M, training: bool) -> Result<()> {
    struct Set(bool);
    impl VisitMut for Set {
        fn mode(&mut self, _path: &Path, mode: &mut Mode) -> Result<()> {
            mode.set(self.0);
            Ok(())
        }
    }
    change(module, &mut Set(training))
}

pub(super) fn is_training<M: Module + ?Sized>(module: &M) -> bool {
    struct Any(bool);
    impl Visit for Any {
        fn mode(&mut self, _path: &Path, mode: &Mode) -> Result<()> {
            self.0 |= mode.is_training();
            Ok(())
        }
    }
    let mut visitor = Any(false);
    read(module, &mut visitor);
    visitor.0
}
