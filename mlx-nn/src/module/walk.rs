//! The modules inside a module: their types, a walk that changes them, and their replacement.

use std::any::type_name;
use std::collections::BTreeMap;

use mlx_core::{Error, ErrorKind, Result};

use super::{Module, Path, VisitMut};

/// Questions for the type of a module. A type has no answer, and is never an `M`, if it has lifetimes or parameters for
/// types, or implements [`trait@Module`] by hand.
///
/// ```
/// use mlx_core::Result;
/// use mlx_nn::{Linear, Module, RmsNorm};
///
/// # fn main() -> Result<()> {
/// let layers: Vec<Box<dyn Module>> = vec![Box::new(Linear::new(4, 8, true)?), Box::new(RmsNorm::new(8)?)];
/// assert!(layers[0].is::<Linear>() && !layers[1].is::<Linear>());
/// # Ok(())
/// # }
/// ```
impl dyn Module + '_ {
    /// Whether the module is an `M`.
    #[doc(alias = "is_module")]
    pub fn is<M: Module + 'static>(&self) -> bool {
        self.downcast_ref::<M>().is_some()
    }

    /// The module as an `M`, if it is one.
    pub fn downcast_ref<M: Module + 'static>(&self) -> Option<&M> {
        self.as_any()?.downcast_ref()
    }

    /// The module as an `M` that can be changed, if it is one.
    pub fn downcast_mut<M: Module + 'static>(&mut self) -> Option<&mut M> {
        self.as_any_mut()?.downcast_mut()
    }
}

pub(super) fn apply(
    module: &mut impl Module,
    f: impl FnMut(&str, &mut dyn Module) -> Result<()>,
) -> Result<()> {
    struct Apply<F>(F);
    impl<F: FnMut(&str, &mut dyn Module) -> Result<()>> VisitMut for Apply<F> {
        fn module(&mut self, path: &Path, module: &mut dyn Module) -> Result<()> {
            (self.0)(path.as_str(), module).map_err(|error| match path.as_str() {
                "" => error,
                name => error.context(name),
            })
        }
    }
    module.visit_mut(&mut Path::default(), &mut Apply(f))
}

pub(super) fn replace<M: Module + 'static>(
    module: &mut impl Module,
    modules: impl Iterator<Item = (String, M)>,
) -> Result<()> {
    /// Finds the modules that will be replaced: for each name the types there, and whether one is an `M`.
    struct Find(BTreeMap<String, (bool, Vec<&'static str>)>);
    struct Set<M>(BTreeMap<String, M>);

    impl<M: Module + 'static> VisitMut for (&mut Find, std::marker::PhantomData<M>) {
        fn module(&mut self, path: &Path, module: &mut dyn Module) -> Result<()> {
            if let Some((found, types)) = self.0.0.get_mut(path.as_str()) {
                *found |= module.is::<M>();
                types.push(module.type_name());
            }
            Ok(())
        }
    }
    impl<M: Module + 'static> VisitMut for Set<M> {
        fn module(&mut self, path: &Path, module: &mut dyn Module) -> Result<()> {
            if let Some(old) = module.downcast_mut::<M>()
                && let Some(new) = self.0.remove(path.as_str())
            {
                *old = new;
            }
            Ok(())
        }
    }

    let invalid = |message| Err(Error::new(ErrorKind::Invalid, message));
    let mut set = Set(BTreeMap::new());
    for (name, new) in modules {
        if set.0.contains_key(&name) {
            return invalid(format!("two modules are given for {name:?}"));
        }
        set.0.insert(name, new);
    }
    let names = set.0.keys().map(|name| (name.clone(), Default::default()));
    let mut find = Find(names.collect());
    module.visit_mut(
        &mut Path::default(),
        &mut (&mut find, std::marker::PhantomData::<M>),
    )?;
    for (name, (found, types)) in find.0 {
        if types.is_empty() {
            return invalid(format!("the module has no module {name:?}"));
        }
        if !found {
            return invalid(format!(
                "{name:?} is {}, the new module {}: a module is replaced by one of its type",
                types.join(" and "),
                type_name::<M>()
            ));
        }
    }
    module.visit_mut(&mut Path::default(), &mut set)
}
