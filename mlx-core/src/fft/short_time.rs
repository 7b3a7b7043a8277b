//! Short-time Fourier transforms: a transform of each of the overlapping frames of a signal.

use super::{Norm, fft_with, ifft_with, irfft_with, rfft_with};
use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::{PadMode, arange, dimension, full, ones, require, zeros};

/// Settings of [`stft_with`] and [`istft_with`]. The default is Python's.
#[derive(Clone, Copy, Debug)]
pub struct Stft<'a> {
    /// Samples of a frame. `None` is 2048. For the inverse it follows from the spectrum:
    /// `2 (frequencies - 1)`, or the number of frequencies if there are two sides.
    pub n_fft: Option<i32>,
    /// Samples from a frame to the next. `None` is a quarter of a frame.
    pub hop_length: Option<i32>,
    /// Samples of the window, in the middle of the frame. `None` is the whole frame.
    pub win_length: Option<i32>,
    /// Factors of the samples of a frame, `[win_length]`. `None` is 1 each.
    pub window: Option<&'a Array>,
    /// Whether frame i has its middle, and not its start, at sample `i * hop_length`: the signal is padded by half a frame at
    /// both ends.
    pub center: bool,
    /// How a centred signal is padded.
    pub pad_mode: PadMode,
    /// Where the factor `1 / n_fft` is applied.
    pub norm: Norm,
    /// Whether only the frequencies that are not negative are computed. `None` is true for a real
    /// signal and for the inverse, and false for a complex signal.
    pub onesided: Option<bool>,
}

impl Default for Stft<'_> {
    fn default() -> Self {
        Self {
            n_fft: None,
            hop_length: None,
            win_length: None,
            window: None,
            center: true,
            pad_mode: PadMode::Reflect,
            norm: Norm::Backward,
            onesided: None,
        }
    }
}

/// The transforms of frames of 2048 samples of the last axis, 512 apart: `[…, samples]` → C64 `[…, frequencies, frames]`, of
/// 1025 frequencies for a real signal and 2048 for a complex one.
///
/// ```
/// use mlx_core::fft::{self, Stft};
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = mlx_core::arange(0, 100, 1, mlx_core::DType::F32)?.multiply(0.3)?.sin()?;
/// let window = mlx_core::hanning(16)?;
/// let how = Stft { n_fft: Some(16), window: Some(&window), ..Stft::default() };
/// let spectrum = fft::stft_with(&x, &how)?;
/// assert_eq!(spectrum.shape(), [9, 26]);
/// let back = fft::istft_with(&spectrum, &how, Some(100))?;
/// assert!(back.allclose_with(&x, 1e-4, 1e-4, false)?.item::<bool>()?);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The array has no axis, or fewer than 1025 samples, which cannot be mirrored.
pub fn stft(x: &Array) -> Result<Array> {
    stft_with(x, &Stft::default())
}

/// As [`stft`], with settings.
///
/// # Errors
/// The array has no axis or fewer samples than a frame; the sizes are not positive, the window is
/// longer than the frame or has another shape than `[win_length]`; or `onesided` is true for a
/// complex signal.
pub fn stft_with(x: &Array, how: &Stft<'_>) -> Result<Array> {
    let n_fft = how.n_fft.unwrap_or(2048);
    let (hop, window) = how.frame("stft", n_fft)?;
    let complex = x.dtype() == DType::C64;
    let onesided = how.onesided.unwrap_or(!complex);
    require(
        !(complex && onesided),
        "stft",
        "onesided",
        "false for a complex signal",
        onesided,
    )?;
    let samples = x.dim(-1)?;
    let x = match how.center {
        true => {
            let mirrored = matches!(how.pad_mode, PadMode::Reflect);
            let enough = samples > if mirrored { n_fft / 2 } else { 0 };
            let expected = "of more samples than half a frame, which is padded";
            require(enough, "stft", "the last axis", expected, x)?;
            x.pad_with(&[(-1, n_fft / 2, n_fft / 2)], 0, how.pad_mode)?
        }
        false => x.clone(),
    };
    let samples = x.dim(-1)?;
    let enough = samples >= n_fft;
    require(enough, "stft", "the last axis", "at least a frame long", &x)?;
    let frames = (samples - n_fft) / hop + 1;
    let framed = x
        .take(&places(n_fft, hop, frames)?, -1)?
        .multiply(&window)?;
    let spectrum = match onesided {
        true => rfft_with(&framed, None, -1, how.norm)?,
        false => fft_with(&framed, None, -1, how.norm)?,
    };
    spectrum.swapaxes(-1, -2)
}

/// The signal whose [`stft`] is given: `[…, frequencies, frames]` → F32 `[…, samples]`.
///
/// # Errors
/// The array has fewer than two axes, or the sizes do not fit.
pub fn istft(spectrum: &Array) -> Result<Array> {
    istft_with(spectrum, &Stft::default(), None)
}

/// As [`istft`], with the settings of the transform. The frames are multiplied by the window again,
/// added where they overlap, and divided by the sum of the squares of the windows, where that is
/// not zero. `length` cuts or pads the signal. For a two-sided spectrum the result is the signal's
/// real part, as in MLX.
///
/// # Errors
/// The array has fewer than two axes, the number of frequencies is not that of the frame, the sizes are not positive, or the
/// window does not fit the frame.
pub fn istft_with(spectrum: &Array, how: &Stft<'_>, length: Option<i32>) -> Result<Array> {
    let matrix = spectrum.ndim() >= 2 && spectrum.size() > 0;
    let expected = "at least a matrix, with elements";
    require(matrix, "istft", "the spectrum", expected, spectrum)?;
    let onesided = how.onesided.unwrap_or(true);
    let (frequencies, frames) = (spectrum.dim(-2)?, spectrum.dim(-1)?);
    let inferred = match onesided {
        true => dimension("istft", Some(2 * (i64::from(frequencies) - 1)))?,
        false => frequencies,
    };
    let n_fft = how.n_fft.unwrap_or(inferred);
    let (hop, window) = how.frame("istft", n_fft)?;
    let expected = if onesided { n_fft / 2 + 1 } else { n_fft };
    if frequencies != expected {
        let message = format!(
            "istft: frames of {n_fft} samples have {expected} frequencies, found {frequencies} in shape {:?}",
            spectrum.shape()
        );
        return Err(Error::new(ErrorKind::Shape, message));
    }
    let framed = spectrum.swapaxes(-1, -2)?;
    let framed = match onesided {
        true => irfft_with(&framed, Some(n_fft), -1, how.norm)?,
        false => ifft_with(&framed, Some(n_fft), -1, how.norm)?.real()?,
    };
    let framed = framed.multiply(&window)?.flatten_with(-2, -1)?;
    let samples = i64::from(frames - 1) * i64::from(hop) + i64::from(n_fft);
    let samples = dimension("istft", Some(samples))?;
    let places = places(n_fft, hop, frames)?.flatten()?;
    let mut shape = framed.shape().to_vec();
    let flat = shape.pop().unwrap_or_default();
    shape.push(samples);
    let mut axes = vec![1; shape.len()];
    *axes.last_mut().unwrap_or(&mut 1) = flat;
    let at = places.reshape(&axes)?;
    let sum = zeros(&shape, framed.dtype())?.scatter_add_axis(&at, &framed, -1)?;
    let squares = window.square()?.broadcast_to((frames, n_fft))?.flatten()?;
    let weights = zeros(samples, DType::F32)?.scatter_add_axis(&places, &squares, -1)?;
    let weights = weights.greater(1e-10)?.select(&weights, 1)?;
    let signal = sum.divide(&weights)?;
    let start = if how.center { n_fft / 2 } else { 0 };
    let stop = match length {
        Some(length) => {
            require(length >= 0, "istft", "length", "at least 0", length)?;
            start.saturating_add(length).min(samples)
        }
        None => samples - start,
    };
    let signal = signal.slice_axis(-1, start, stop.max(start))?;
    match length {
        Some(length) if length > signal.dim(-1)? => {
            signal.pad(&[(-1, 0, length - signal.dim(-1)?)], 0)
        }
        _ => Ok(signal),
    }
}

impl Stft<'_> {
    /// Samples between frames, and the window of a whole frame.
    fn frame(&self, op: &str, n_fft: i32) -> Result<(i32, Array)> {
        require(n_fft > 0, op, "n_fft", "positive", n_fft)?;
        let hop = self.hop_length.unwrap_or(n_fft / 4);
        require(hop > 0, op, "hop_length", "positive", hop)?;
        let length = self.win_length.unwrap_or(n_fft);
        let fits = length > 0 && length <= n_fft;
        require(
            fits,
            op,
            "win_length",
            "positive, and at most n_fft",
            length,
        )?;
        let window = match self.window {
            Some(window) => {
                let fits = window.shape() == [length];
                let expected = format!("of shape [{length}]");
                require(fits, op, "window", &expected, window)?;
                window.clone()
            }
            None => ones(length, DType::F32)?,
        };
        let before = (n_fft - length) / 2;
        Ok((hop, window.pad((before, n_fft - length - before), 0)?))
    }
}

/// The samples of each frame: I32 `[frames, n_fft]`.
fn places(n_fft: i32, hop: i32, frames: i32) -> Result<Array> {
    // A product of two I32 may not fit where there is one frame only.
    let step = full((), hop, DType::I32)?;
    let starts = arange(0, frames, 1, DType::I32)?.multiply(&step)?;
    starts
        .expand_dims(1)?
        .add(&arange(0, n_fft, 1, DType::I32)?)
}
