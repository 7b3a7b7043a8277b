//! The fingerprint of a model: of everything on which its layer states depend.

use mlx_core::DType;
use mlx_nn::{Param, Visit};

use super::checksum::checksum;
use crate::engine::prompt_cache::file;
use crate::error::{Error, ErrorKind, Result};
use crate::model::LoadedModel;

/// The fingerprint: a checksum over all bytes of all parameters (those of adapters too), the
/// configs of model and adapter, the kinds, sizes and options of the layer states, the rank and the number of ranks that
/// share the model, and the version of this program, whose next version may compute something else.
///
/// # Errors
/// The model has no `config.json`, which has the constants of its layers; or a parameter cannot be
/// read.
pub(super) fn of(model: &LoadedModel) -> Result<u64> {
    let Some(config) = model.frontend().config()? else {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "a model without config.json cannot be told from others",
        ));
    };
    let mut parts = vec![
        checksum(env!("CARGO_PKG_VERSION").as_bytes()),
        checksum(&config),
        checksum(model.adapter_config()),
        checksum(format!("{:?}", model.cache_options()).as_bytes()),
    ];
    for (key, value) in file::fingerprint(model)? {
        parts.push(checksum(format!("{key}={value}").as_bytes()));
    }
    let ranks = model.options().ranks;
    if ranks.size() > 1 {
        let rank = format!("rank {} of {}", ranks.rank(), ranks.size());
        parts.push(checksum(rank.as_bytes()));
    }
    let mut weights = Weights(Vec::new());
    (model.model()).visit(&mut mlx_nn::Path::default(), &mut weights)?;
    parts.extend(weights.0);
    let bytes: Vec<u8> = parts.into_iter().flat_map(u64::to_le_bytes).collect();
    Ok(checksum(&bytes))
}

/// The checksums of parameters, with their names and shapes.
struct Weights(Vec<u64>);

impl Visit for Weights {
    fn param(&mut self, path: &mlx_nn::Path, param: &Param) -> mlx_core::Result<()> {
        let value = param.value();
        let head = format!("{} {:?} {}", path.as_str(), value.shape(), value.dtype());
        self.0.push(checksum(head.as_bytes()));
        if value.size() > 0 {
            // A view divides the last axis, which a single number does not have.
            let value = match value.ndim() {
                0 => value.reshape(&[1])?,
                _ => value.clone(),
            };
            let bytes = value.view(DType::U8)?;
            self.0.push(bytes.with_slice::<u8, _>(checksum)?);
        }
        Ok(())
    }
}
