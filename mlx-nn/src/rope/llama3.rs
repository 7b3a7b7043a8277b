//! Frequencies of Llama 3.1.

use std::f64::consts::PI;

/// Llama 3.1's rule on one period (reciprocal frequency).
pub(super) fn llama3(period: f64, factor: f64, low: f64, high: f64, original: f64) -> f64 {
    let wavelength = 2.0 * PI * period;
    if wavelength < original / high {
        return period;
    }
    if wavelength > original / low {
        return period * factor;
    }
    let smooth = (original / wavelength - low) / (high - low);
    1.0 / ((1.0 - smooth) / (factor * period) + smooth / period)
}
