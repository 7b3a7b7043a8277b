//! Finds the origin of NaN and infinite numbers in a model.
//!
//! The sampler and the scores detect NaN in the logits without extra cost. Only then a second pass looks for the
//! origin: first in the weights, then layer by layer over the tokens. Infinite logits and biases are allowed, because
//! they forbid tokens.

use mlx_core::{Array, Result as CoreResult};
use mlx_models::Model;
use mlx_nn::{CacheOptions, ModelCache, Param, Path, Residual, Visit};

use crate::error::{Error, ErrorKind};

/// Tokens that are computed at a time.
const CHUNK: usize = 512;

/// The error for a model whose logits after `tokens` are not finite. It names the first tensor with NaN; if there is
/// none, the first layer whose output has NaN or infinity.
pub fn not_finite(model: &dyn Model, options: CacheOptions, tokens: &[u32]) -> Error {
    explain(nan_weight(model), model, options, tokens)
}

/// The same error when the first weight with NaN is already known.
pub(super) fn explain(
    weight: CoreResult<Option<String>>,
    model: &dyn Model,
    options: CacheOptions,
    tokens: &[u32],
) -> Error {
    let origin = match weight {
        Ok(None) => layer(model, options, tokens),
        known => known,
    };
    let origin = match origin {
        Ok(Some(origin)) => format!(": {origin}"),
        Ok(None) => String::new(),
        Err(error) => format!("; the search for their origin failed: {error}"),
    };
    let message = format!(
        "the model's logits are not finite numbers{origin} (allow_nan, --allow-nan: NaN counts as a token that cannot follow)"
    );
    Error::new(ErrorKind::NotFinite, message)
}

/// The first weight with NaN.
pub(super) fn nan_weight(model: &dyn Model) -> CoreResult<Option<String>> {
    let name = first_weight(model, "", Array::isnan)?;
    Ok(name.map(|name| format!("{name} has NaN")))
}

/// The first layer whose output has NaN or infinity.
fn layer(model: &dyn Model, options: CacheOptions, tokens: &[u32]) -> CoreResult<Option<String>> {
    let mut cache = ModelCache::new(model.states(), 1, options);
    cache.expect(0, tokens.len());
    for (number, chunk) in tokens.chunks(CHUNK).enumerate() {
        let begin = number * CHUNK;
        let tokens = Array::from_slice(chunk, &[1, chunk.len() as i32])?;
        let place = |x: &Array| -> CoreResult<Option<usize>> {
            let broken = x.isfinite()?.logical_not()?.any(-1, false)?;
            let broken = broken.reshape(&[-1])?.to_vec::<bool>()?;
            let at = broken.into_iter().position(|broken| broken);
            Ok(at.map(|at| begin + at))
        };
        let mut step = cache.begin_part(model.decoder_states(), &[chunk.len()])?;
        let mut x = model.embed(&tokens)?;
        if let Some(at) = place(&x)? {
            return Ok(Some(format!("the embedding of token {at}")));
        }
        for index in 0..model.geometry().layers().len() {
            x = model.layer(index, Residual::from(x), &mut step)?.sum()?;
            let Some(at) = place(&x)? else { continue };
            let part = format!("model.layers.{index}.");
            let weight = first_weight(model, &part, |x| x.isfinite()?.logical_not())?;
            let weight = weight.map_or(String::new(), |name| format!(", where {name} is infinite"));
            return Ok(Some(format!("layer {index} at token {at}{weight}")));
        }
        let [_, hidden] = model.norm(x.into())?;
        if let Some(at) = place(&hidden)? {
            return Ok(Some(format!("the final norm at token {at}")));
        }
        step.commit_all()?;
        mlx_core::eval(cache.arrays())?;
    }
    Ok(Some("the output head".to_owned()))
}

/// The first floating-point weight whose name begins with `part` and which has an element for which
/// `is_wrong` holds.
fn first_weight(
    model: &dyn Model,
    part: &str,
    is_wrong: impl Fn(&Array) -> CoreResult<Array>,
) -> CoreResult<Option<String>> {
    struct Search<'a, F> {
        part: &'a str,
        is_wrong: F,
        found: Option<String>,
    }
    impl<F: Fn(&Array) -> CoreResult<Array>> Visit for Search<'_, F> {
        fn param(&mut self, path: &Path, param: &Param) -> CoreResult<()> {
            let (name, value) = (path.as_str(), param.value());
            if self.found.is_some() || !name.starts_with(self.part) || !value.dtype().is_float() {
                return Ok(());
            }
            let wrong = (self.is_wrong)(value)?.reshape(&[-1])?.any(-1, false)?;
            self.found = wrong.item::<bool>()?.then(|| name.to_owned());
            Ok(())
        }
    }
    let mut search = Search {
        part,
        is_wrong,
        found: None,
    };
    model.visit(&mut Path::default(), &mut search)?;
    Ok(search.found)
}
