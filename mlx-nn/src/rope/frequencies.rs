//! Frequencies of Llama 3.1 and YaRN, in F32 with the roundings of transformers, and periods of
//! frequencies.

use std::f64::consts::PI;

/// The scaled frequency, by Llama 3.1's rule.
pub(super) fn llama3(frequency: f32, factor: f64, low: f64, high: f64, original: f64) -> f32 {
    let wavelength = (2.0 * PI) as f32 / frequency;
    if wavelength < (original / high) as f32 {
        return frequency;
    }
    if wavelength > (original / low) as f32 {
        return frequency / factor as f32;
    }
    let smooth = (original as f32 / wavelength - low as f32) / (high - low) as f32;
    (1.0 - smooth) * frequency / factor as f32 + smooth * frequency
}

/// The pairs of dimensions at both ends of the ramp between frequencies that YaRN
/// (arXiv:2309.00071) keeps and those that it divides. `rotations` are the numbers of turns within
/// the `original` context at these ends.
pub(super) fn yarn_edges(
    base: f64,
    dims: i32,
    original: f64,
    rotations: (f64, f64),
    truncate: bool,
) -> (f64, f64) {
    let edge = |rotations: f64| {
        f64::from(dims) * (original / (rotations * 2.0 * PI)).ln() / (2.0 * base.ln())
    };
    let (mut low, mut high) = (edge(rotations.0), edge(rotations.1));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, mut high) = (low.max(0.0), high.min(f64::from(dims) - 1.0));
    if low == high {
        high += 0.001;
    }
    (low, high)
}

/// The period whose reciprocal is nearest to a frequency: kernels divide 1 by periods.
pub(super) fn period_of(frequency: f32) -> f32 {
    let near = (1.0 / f64::from(frequency)) as f32;
    let off = |period: &f32| (1.0 / period - frequency).abs();
    let around = [near, near.next_down(), near.next_up()].into_iter();
    around
        .min_by(|a, b| off(a).total_cmp(&off(b)))
        .unwrap_or(near)
}

#[cfg(test)]
mod tests {
    use super::super::{Rope, RopeConfig, RopeScaling};

    fn frequencies(base: f64, scaling: RopeScaling) -> Vec<f32> {
        let config = RopeConfig {
            dims: 16,
            base,
            scaling,
            interleaved: false,
            reversed: false,
        };
        let rope = Rope::new(&config, 16).unwrap();
        let periods: Vec<f32> = rope.table.periods.to_vec().unwrap();
        periods.into_iter().map(|period| 1.0 / period).collect()
    }

    /// The frequencies of transformers 5.23, to the bit. An error of one unit in the last place of
    /// the first frequency moves the angle of position 600 by 4e-5.
    #[test]
    fn frequencies_are_those_of_transformers() {
        let llama3 = RopeScaling::Llama3 {
            factor: 16.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original: 16.0,
        };
        let expected = [
            0.545_774_64,
            0.011_114_246,
            0.001_976_423_7,
            0.000_351_463_33,
            6.25e-5,
            1.111_424_6e-5,
            1.976_423_4e-6,
            3.514_633_4e-7,
        ];
        assert_eq!(frequencies(1e6, llama3), expected);
        let yarn = RopeScaling::Yarn {
            factor: 7.0,
            original: 16.0,
            beta_fast: 2.0,
            beta_slow: 0.3,
            amplitude: 1.0,
            truncate: true,
        };
        let expected = [
            1.0,
            0.147_771_51,
            0.009_553_433,
            0.002_470_519,
            0.000_638_876_6,
            0.000_165_213_57,
            4.272_425_2e-5,
            1.104_849_7e-5,
        ];
        assert_eq!(frequencies(5e4, yarn), expected);
        let expected: [f32; 8] = [
            0.333_333_34,
            0.105_409_26,
            0.033_333_335,
            0.010_540_926,
            0.003_333_333_2,
            0.001_054_092_7,
            0.000_333_333_36,
            0.000_105_409_265,
        ];
        // The fifth frequency is not the reciprocal of any F32 number. The nearest reciprocal is
        // the next F32 number.
        let found = frequencies(1e4, RopeScaling::Linear { factor: 3.0 });
        assert_eq!(found[4], expected[4].next_up());
        assert_eq!((&found[..4], &found[5..]), (&expected[..4], &expected[5..]));
    }
}
