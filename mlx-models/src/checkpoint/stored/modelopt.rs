//! ModelOpt (NVIDIA): matrices of 8-bit floats and of nvfp4, also both in one checkpoint. The
//! settings are in config.json's `quantization_config`, or in `hf_quant_config.json` beside it,
//! under `quantization`. The tensors of a module determine its format, so that `exclude_modules`
//! and `quantized_layers` need no interpretation.

use std::collections::BTreeSet;

use mlx_core::Result;
use mlx_nn::Decoded;

use super::tensors::StoredTensors;
use super::{Format, Reading, fp4, fp8};
use crate::config::Config;

/// The algorithms whose weights are read. ModelOpt writes some of them in small letters.
const ALGORITHMS: [&str; 8] = [
    "FP8",
    "FP8_PB_WO",
    "FP8_PER_CHANNEL_PER_TOKEN",
    "MIXED_PRECISION",
    "MXFP8",
    "NVFP4",
    "W4A16_NVFP4",
    "W4A8_NVFP4_FP8",
];

/// The size of a block of FP8_PB_WO.
const BLOCK: i32 = 128;

pub(super) fn decoded(
    tensors: &StoredTensors<'_>,
    entry: &Config,
    reading: Reading,
) -> Result<(Decoded, Format)> {
    let settings = entry
        .object("quantization")?
        .unwrap_or_else(|| entry.clone());
    // Without an algorithm only keys and values were quantised.
    let algorithm: Option<String> = settings.opt("quant_algo")?;
    if let Some(algorithm) = &algorithm {
        known(&settings, algorithm)?;
    }
    let mut blocks = algorithm.is_some_and(|algorithm| has_blocks(&algorithm));
    if let Some(layers) = settings.object("quantized_layers")? {
        for path in layers.keys() {
            if let Some(layer) = layers.object(&path)? {
                let own: String = layer.required("quant_algo")?;
                known(&layer, &own)?;
                blocks |= has_blocks(&own);
            }
        }
    }
    if let Some(path) = tensors.modules("pre_quant_scale").first() {
        return Err(settings.unsupported(format!(
            "tensor \"{path}.pre_quant_scale\" is not supported: inputs are not scaled; known: {}",
            ALGORITHMS.join(", ")
        )));
    }
    let mut decoded = Decoded::default();
    let mut format = None;
    let mut left = tensors.without(&BTreeSet::new());
    if let Some((own, found)) = fp4::decoded(&left, &settings, &fp4::MODELOPT)? {
        left = left.without(&own.hidden);
        super::join(&mut decoded, &mut format, own, found);
    }
    decoded.hidden.extend(fp8::of_activations(&left));
    if left.have_fp8()? {
        let size = settings.size("group_size", Some(BLOCK))?;
        let block = blocks.then_some([size, size]);
        let (own, found) = fp8::decoded(&left, &settings, block, reading)?;
        super::join(&mut decoded, &mut format, own, found);
    }
    let format = format.unwrap_or_else(|| {
        let described = "no matrix in a format of ModelOpt".to_owned();
        Format::new([].into(), described, false)
    });
    Ok((decoded, format))
}

/// Whether a scale belongs to a block of 128 x 128 numbers.
fn has_blocks(algorithm: &str) -> bool {
    algorithm.eq_ignore_ascii_case("FP8_PB_WO")
}

fn known(place: &Config, algorithm: &str) -> Result<()> {
    let mut all = ALGORITHMS.iter();
    match all.any(|known| known.eq_ignore_ascii_case(algorithm)) {
        true => Ok(()),
        false => Err(place.unsupported(format!(
            "quant_algo {algorithm:?} is not supported; known: {}",
            ALGORITHMS.join(", ")
        ))),
    }
}
