//! The multipliers of Falcon H1.

use mlx_core::Result;

use crate::config::Source;
use crate::config::plan::DecoderConfig;

/// The factors on the inputs and outputs of attention and scan.
#[derive(Clone, Copy)]
pub(super) struct Multipliers {
    pub scan_in: f32,
    pub scan_out: f32,
    pub attention_in: f32,
    pub attention_out: f32,
}

/// The multipliers of a config that the weights do not contain.
pub(super) struct Outside {
    pub layer: Multipliers,
    pub scan: Option<[f32; 5]>,
    pub mlp: Option<[f32; 2]>,
    pub embedding: f32,
    pub logits: f32,
}

/// Reads the multipliers that the weights do not contain. When mlx-lm reads a published file, it
/// multiplies the weights by most multipliers, and its files hold the products. It does not do so
/// for the multipliers of values and keys.
pub(super) fn outside(source: &Source<'_>, config: &DecoderConfig) -> Result<Outside> {
    let c = source.config;
    let one = |key| c.positive(key, Some(1.0)).map(|number| number as f32);
    let several = |key, n: usize| -> Result<Vec<f32>> {
        let given: Vec<f32> = c.or(key, vec![1.0; n])?;
        if given.len() == n {
            return Ok(given);
        }
        Err(c.error(format!("{key} has {} entries, expected {n}", given.len())))
    };
    let (embedding, logits) = (one("embedding_multiplier")?, one("lm_head_multiplier")?);
    let (scan, mlp) = (
        several("ssm_multipliers", 5)?,
        several("mlp_multipliers", 2)?,
    );
    let (scan_in, scan_out) = (one("ssm_in_multiplier")?, one("ssm_out_multiplier")?);
    let (attention_in, attention_out) = (
        one("attention_in_multiplier")?,
        one("attention_out_multiplier")?,
    );
    if source.mlx_convolutions {
        const BIASES: [&str; 4] = [
            "attention_bias",
            "mlp_bias",
            "mamba_proj_bias",
            "projectors_bias",
        ];
        for key in BIASES {
            if c.or(key, false)? {
                return Err(c.unsupported(format!(
                    "{key} is not supported in files of MLX, whose weights hold multipliers and whose biases do not"
                )));
            }
        }
        return Ok(Outside {
            layer: Multipliers {
                scan_in: 1.0,
                scan_out: 1.0,
                attention_in: 1.0,
                attention_out: attention_in,
            },
            scan: None,
            mlp: None,
            embedding: 1.0,
            logits: if config.head.tied {
                logits / embedding
            } else {
                1.0
            },
        });
    }
    Ok(Outside {
        layer: Multipliers {
            scan_in,
            scan_out,
            attention_in,
            attention_out,
        },
        scan: Some([0, 1, 2, 3, 4].map(|at| scan[at])),
        mlp: Some([mlp[0], mlp[1]]),
        embedding,
        logits,
    })
}
