//! Reading configs: the keys of several residual streams.

use mlx_core::Result;
use mlx_nn::StreamsConfig;

use crate::config::Config;
use crate::config::plan::DecoderConfig;

/// The most streams. Each token has this many times its features.
const MAX_STREAMS: i32 = 64;
/// The most times that the columns of a mixing matrix are normalised.
const MAX_ROUNDS: i32 = 1000;

/// The streams of a config as DeepSeek V4 has them.
///
/// # Errors
/// A size is invalid.
pub(crate) fn streams(c: &Config, config: &DecoderConfig) -> Result<StreamsConfig> {
    let most = |key: &str, default: i32, most: i32| {
        let found = c.size(key, Some(default))?;
        match found <= most {
            true => Ok(found),
            false => Err(c.error(format!("{key} must be at most {most}, found {found}"))),
        }
    };
    Ok(StreamsConfig {
        hidden: config.hidden,
        streams: most("hc_mult", 4, MAX_STREAMS)?,
        norm_eps: config.norm.eps,
        eps: c.positive("hc_eps", Some(1e-6))? as f32,
        magnitude: 2.0,
        shifted: false,
        rounds: Some(most("hc_sinkhorn_iters", 20, MAX_ROUNDS)? as u32),
    })
}
