//! The parameters of models, for several tests.

use std::collections::BTreeMap;

use mlx_core::{Array, Result};
use mlx_models::Loaded;
use mlx_nn::{Param, Visit};

pub type Tensors = BTreeMap<String, Array>;

/// All parameters by their names.
pub fn parameters(model: &Loaded) -> Tensors {
    struct Collect(Tensors);
    impl Visit for Collect {
        fn param(&mut self, path: &mlx_nn::Path, param: &Param) -> Result<()> {
            let name = path.as_str().to_owned();
            self.0.insert(name, param.value().clone());
            Ok(())
        }
    }
    let mut collect = Collect(Tensors::new());
    let model = &model.model;
    model
        .visit(&mut mlx_nn::Path::default(), &mut collect)
        .unwrap();
    collect.0
}

/// Whether two arrays are equal to the bit.
pub fn same(a: &Array, b: &Array) -> bool {
    a.array_equal(b).unwrap().item().unwrap()
}
