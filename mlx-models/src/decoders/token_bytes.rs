//! Tokens in the residual stream: layers that look something up by a token's number find it behind the features, as bytes,
//! because every dtype of activations holds a byte exactly.

use mlx_core::{Array, DType, Result, ops::concat};
use mlx_nn::{LayerKind, StreamsConfig};

/// Bytes of a token's number.
pub(crate) const BYTES: i32 = 3;

/// The largest vocabulary whose tokens have that many bytes.
pub(crate) const MOST_TOKENS: i32 = 1 << 24;

/// The residual streams that begin with `x`, the embeddings of `tokens [1, T]`, and the bytes of the tokens behind them if
/// `has_bytes`.
pub(crate) fn enter(
    streams: &StreamsConfig,
    x: &Array,
    tokens: &Array,
    has_bytes: bool,
) -> Result<Array> {
    let x = streams.enter(x)?;
    match has_bytes {
        true => with_tokens(&x, tokens),
        false => Ok(x),
    }
}

/// The features `x [1, T, S]` and behind them the bytes of `tokens [1, T]`, U32 or I32.
pub(crate) fn with_tokens(x: &Array, tokens: &Array) -> Result<Array> {
    let tokens = tokens.astype(DType::I32)?.expand_dims(-1)?;
    let byte = |unit: i32| tokens.floor_divide(unit)?.remainder(256);
    let bytes = concat(&[byte(1)?, byte(1 << 8)?, byte(1 << 16)?], -1)?;
    concat(&[x, &bytes.astype(x.dtype())?], -1)
}

/// The features `[1, T, width]` and the bytes behind them, if there are some.
pub(crate) fn apart(x: Array, width: i32) -> Result<(Array, Option<Array>)> {
    if x.dim(-1)? == width {
        return Ok((x, None));
    }
    // Numbers of tokens are indices, through which no gradient passes.
    let bytes = x.slice_axis(-1, width, width + BYTES)?.stop_gradient()?;
    Ok((x.slice_axis(-1, 0, width)?, Some(bytes)))
}

/// The reverse of [`apart`].
pub(crate) fn together(x: Array, bytes: Option<Array>) -> Result<Array> {
    match bytes {
        Some(bytes) => concat(&[x, bytes], -1),
        None => Ok(x),
    }
}

/// A state with the bytes of the last `count` tokens.
pub(crate) fn last_tokens(count: i32) -> LayerKind {
    LayerKind::LatentWindow {
        window: count as usize,
        width: BYTES,
    }
}

/// The tokens I64 `[1, T]` that come `before` places before each of the last ones of `seen [1, T, longest]`.
pub(crate) fn before(seen: &Array, before: i32) -> Result<Array> {
    let at = seen.dim(-1)? - 1 - before;
    seen.slice_axis(-1, at, at + 1)?.squeeze(-1)
}

/// The tokens `[..]` of bytes `[.., 3]`, I64.
pub(crate) fn tokens(bytes: &Array) -> Result<Array> {
    let bytes = bytes.astype(DType::I64)?;
    let byte = |at: i32| bytes.slice_axis(-1, at, at + 1)?.squeeze(-1);
    let high = byte(2)?.multiply(256)?.add(byte(1)?)?;
    high.multiply(256)?.add(byte(0)?)
}
