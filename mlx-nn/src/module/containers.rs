//! Containers of modules are modules: the names of their elements are indices or keys.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;

use mlx_core::Result;

use super::{Module, Path, Visit, VisitMut};

/// `()` has no parameters.
impl Module for () {
    fn visit(&self, _path: &mut Path, _v: &mut dyn Visit) -> Result<()> {
        Ok(())
    }

    fn visit_mut(&mut self, _path: &mut Path, _v: &mut dyn VisitMut) -> Result<()> {
        Ok(())
    }

    fn list<'a>(&'a self, _name: &str, _into: &mut Vec<(String, &'a dyn Module)>) {}
}

impl<M: Module + ?Sized> Module for Box<M> {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        (**self).visit(path, v)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        (**self).visit_mut(path, v)
    }

    fn children(&self) -> Vec<(String, &dyn Module)> {
        (**self).children()
    }

    fn type_name(&self) -> &'static str {
        (**self).type_name()
    }

    fn as_any(&self) -> Option<&dyn Any> {
        (**self).as_any()
    }

    fn as_any_mut(&mut self) -> Option<&mut dyn Any> {
        (**self).as_any_mut()
    }
}

impl<M: Module> Module for Option<M> {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        self.as_ref().map_or(Ok(()), |module| module.visit(path, v))
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        self.as_mut()
            .map_or(Ok(()), |module| module.visit_mut(path, v))
    }

    fn children(&self) -> Vec<(String, &dyn Module)> {
        self.as_ref().map_or_else(Vec::new, Module::children)
    }

    fn list<'a>(&'a self, name: &str, into: &mut Vec<(String, &'a dyn Module)>) {
        if let Some(module) = self {
            module.list(name, into);
        }
    }
}

/// Implements [`Module`] for a type whose elements have the names that an iterator gives.
macro_rules! elements {
    ([$($generics:tt)*] $ty:ty, $items:ident, $items_mut:ident) => {
        impl<$($generics)*> Module for $ty {
            fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
                for (name, module) in $items(self) {
                    path.scoped(&name, |path| module.visit(path, v))?;
                }
                Ok(())
            }

            fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
                for (name, module) in $items_mut(self) {
                    path.scoped(&name, |path| module.visit_mut(path, v))?;
                }
                Ok(())
            }

            fn children(&self) -> Vec<(String, &dyn Module)> {
                let mut children = Vec::new();
                for (name, module) in $items(self) {
                    module.list(&name, &mut children);
                }
                children
            }

            fn list<'a>(&'a self, name: &str, into: &mut Vec<(String, &'a dyn Module)>) {
                for (key, module) in $items(self) {
                    module.list(&format!("{name}.{key}"), into);
                }
            }
        }
    };
}

elements!([M: Module] Vec<M>, numbered, numbered_mut);
elements!([M: Module, const N: usize] [M; N], numbered, numbered_mut);
elements!([M: Module] BTreeMap<String, M>, keyed, keyed_mut);
elements!([M: Module, S: BuildHasher] HashMap<String, M, S>, sorted, sorted_mut);

fn numbered<M>(modules: &[M]) -> impl Iterator<Item = (String, &M)> {
    let modules = modules.iter().enumerate();
    modules.map(|(index, module)| (index.to_string(), module))
}

fn numbered_mut<M>(modules: &mut [M]) -> impl Iterator<Item = (String, &mut M)> {
    let modules = modules.iter_mut().enumerate();
    modules.map(|(index, module)| (index.to_string(), module))
}

fn keyed<M>(modules: &BTreeMap<String, M>) -> impl Iterator<Item = (&String, &M)> {
    modules.iter()
}

fn keyed_mut<M>(modules: &mut BTreeMap<String, M>) -> impl Iterator<Item = (&String, &mut M)> {
    modules.iter_mut()
}

/// The modules in the order of their names. The order of a hash map differs from run to run.
fn sorted<M, S>(modules: &HashMap<String, M, S>) -> BTreeMap<&String, &M> {
    modules.iter().collect()
}

fn sorted_mut<M, S>(modules: &mut HashMap<String, M, S>) -> BTreeMap<&String, &mut M> {
    modules.iter_mut().collect()
}

/// Implements [`Module`] for tuples; the names of the elements are their indices.
macro_rules! tuples {
    ($($ty:ident $index:tt),+) => {
        impl<$($ty: Module),+> Module for ($($ty,)+) {
            fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
                $(path.scoped(stringify!($index), |path| self.$index.visit(path, v))?;)+
                Ok(())
            }

            fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
                $(path.scoped(stringify!($index), |path| self.$index.visit_mut(path, v))?;)+
                Ok(())
            }

            fn children(&self) -> Vec<(String, &dyn Module)> {
                let mut children = Vec::new();
                $(self.$index.list(stringify!($index), &mut children);)+
                children
            }

            fn list<'a>(&'a self, name: &str, into: &mut Vec<(String, &'a dyn Module)>) {
                $(self.$index.list(&format!("{name}.{}", stringify!($index)), into);)+
            }
        }
    };
}

tuples!(A 0);
tuples!(A 0, B 1);
tuples!(A 0, B 1, C 2);
tuples!(A 0, B 1, C 2, D 3);
tuples!(A 0, B 1, C 2, D 3, E 4);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
