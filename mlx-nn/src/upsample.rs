//! [`Upsample`]: larger or smaller images by interpolation.

use mlx_core::{Array, DType, Error, ErrorKind, Result};

use crate::layer::layer;
use crate::sizes::misshapen;

/// How [`Upsample`] interpolates between the numbers of its input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interpolation {
    /// The nearest number.
    #[default]
    Nearest,
    /// Straight lines between numbers.
    Linear,
    /// Cubic curves through four numbers: with `a = -0.75`, or `-0.5` if antialiased (Keys, 1981).
    Cubic,
}

/// The factor of each spatial dimension of an [`Upsample`]. It is made from one number, which holds
/// for all dimensions, or from several.
#[derive(Clone, Debug, PartialEq)]
pub enum Factor {
    /// The same factor for all dimensions.
    All(f64),
    /// A factor for each dimension.
    Each(Vec<f64>),
}

impl From<f64> for Factor {
    fn from(factor: f64) -> Self {
        Self::All(factor)
    }
}

impl From<i32> for Factor {
    fn from(factor: i32) -> Self {
        Self::All(f64::from(factor))
    }
}

impl<const N: usize> From<[f64; N]> for Factor {
    fn from(factors: [f64; N]) -> Self {
        Self::Each(factors.to_vec())
    }
}

impl From<(f64, f64)> for Factor {
    fn from((a, b): (f64, f64)) -> Self {
        Self::Each(vec![a, b])
    }
}

/// Multiplies the spatial dimensions by a factor: `[B, ..spatial, C] -> [B, ..spatial', C]`, with
/// `spatial'` rounded down.
///
/// ```
/// use mlx_core::{Array, Result};
/// use mlx_nn::{Interpolation, Upsample};
///
/// # fn main() -> Result<()> {
/// let x = Array::from_slice(&[1.0f32, 2.0], &[1, 2, 1])?;
/// assert_eq!(Upsample::new(2).forward(&x)?.to_vec::<f32>()?, [1.0, 1.0, 2.0, 2.0]);
/// let linear = Upsample::new(2.0).mode(Interpolation::Linear);
/// assert_eq!(linear.forward(&x)?.to_vec::<f32>()?, [1.0, 1.25, 1.75, 2.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Upsample {
    factor: Factor,
    mode: Interpolation,
    align_corners: bool,
    antialias: bool,
}

crate::module!(Upsample {} plain { factor, mode, align_corners, antialias });
layer!(Upsample;);

impl Upsample {
    /// Interpolation by the nearest number.
    pub fn new(factor: impl Into<Factor>) -> Self {
        Self {
            factor: factor.into(),
            mode: Interpolation::Nearest,
            align_corners: false,
            antialias: false,
        }
    }

    /// How numbers are interpolated. Default: nearest.
    #[must_use]
    pub fn mode(mut self, mode: Interpolation) -> Self {
        self.mode = mode;
        self
    }

    /// Whether the first and last numbers of the output are at the places of the first and last
    /// numbers of the input. Default: false.
    #[must_use]
    pub fn align_corners(mut self, align: bool) -> Self {
        self.align_corners = align;
        self
    }

    /// Whether a smaller output has weighted means of all input numbers in the range of each output
    /// number. Default: false.
    #[must_use]
    pub fn antialias(mut self, antialias: bool) -> Self {
        self.antialias = antialias;
        self
    }

    /// `[B, ..spatial, C] -> [B, ..spatial', C]`. Linear and cubic results are at least F32.
    ///
    /// # Errors
    /// The input has no spatial dimension, or not one for each factor; a factor is not above 0; a
    /// dimension would be empty; or antialiasing is combined with aligned corners or the nearest
    /// number.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        let refuse = |message: String| Err(Error::new(ErrorKind::Invalid, message));
        if self.antialias && self.mode == Interpolation::Nearest {
            return refuse("upsample: the nearest number cannot be antialiased".to_owned());
        }
        if self.antialias && self.align_corners {
            return refuse("upsample: antialiasing needs align_corners(false)".to_owned());
        }
        if x.ndim() < 3 {
            return Err(misshapen("upsample", "[B, ..spatial, C]", x.shape()));
        }
        let dims = x.ndim() - 2;
        let factors = match &self.factor {
            Factor::All(factor) => vec![*factor; dims],
            Factor::Each(factors) if factors.len() == dims => factors.clone(),
            Factor::Each(factors) => {
                let expected = format!(
                    "with {} spatial dimensions, one for each factor",
                    factors.len()
                );
                return Err(misshapen("upsample", &expected, x.shape()));
            }
        };
        if let Some(factor) = factors
            .iter()
            .find(|factor| !(factor.is_finite() && **factor > 0.0))
        {
            return refuse(format!(
                "upsample: a factor must be a number above 0, given {factor}"
            ));
        }
        let mut y = x.clone();
        for (axis, &factor) in (1..).zip(&factors) {
            let from = x.dim(axis)?;
            let to = (factor * f64::from(from)).floor();
            if to < 1.0 || to > f64::from(i32::MAX) {
                return Err(Error::new(
                    ErrorKind::Shape,
                    format!(
                        "upsample: {from} elements times {factor} are {to}, which no array has"
                    ),
                ));
            }
            y = self.along(
                &y,
                axis,
                Line {
                    from,
                    to: to as i32,
                    factor,
                },
            )?;
        }
        Ok(y)
    }

    /// Interpolates along one axis.
    fn along(&self, x: &Array, axis: i32, line: Line) -> Result<Array> {
        let taps = match (self.mode, self.antialias) {
            (Interpolation::Nearest, _) => {
                let indices = Array::from_slice(&line.nearest(), &[line.to])?;
                return x.take(&indices, axis);
            }
            (Interpolation::Linear, false) => line.linear(self.align_corners),
            (Interpolation::Cubic, false) => line.cubic(self.align_corners),
            (Interpolation::Linear, true) => line.antialiased(1.0, |x| (1.0 - x).max(0.0)),
            (Interpolation::Cubic, true) => line.antialiased(2.0, |x| match x {
                x if x <= 1.0 => near(-0.5, x),
                x if x <= 2.0 => far(-0.5, x),
                _ => 0.0,
            }),
        };
        let mut shape = vec![1; x.ndim()];
        shape[axis as usize] = line.to;
        let mut sum: Option<Array> = None;
        for (indices, weights) in taps {
            let part = x.take(&Array::from_slice(&indices, &[line.to])?, axis)?;
            let part = part.multiply(Array::from_slice(&weights, &shape)?)?;
            sum = Some(match sum {
                Some(sum) => sum.add(&part)?,
                None => part,
            });
        }
        sum.map_or_else(|| x.astype(DType::F32), Ok)
    }
}

/// A term of the interpolation: for each number of the output, an index of the input and its
/// weight.
type Tap = (Vec<u32>, Vec<f32>);

/// A spatial dimension: its sizes in the input and in the output.
#[derive(Clone, Copy)]
struct Line {
    from: i32,
    to: i32,
    factor: f64,
}

impl Line {
    /// The places of the output's numbers, as indices of the input with fractions.
    fn places(self, align_corners: bool) -> Vec<f32> {
        let (from, to) = (f64::from(self.from), f64::from(self.to));
        let (step, start) = if align_corners {
            ((from - 1.0) / (to - 1.0).max(1.0), 0.0)
        } else {
            let step = 1.0 / self.factor;
            (step, ((to - 1.0) * step - from + 1.0) / 2.0)
        };
        let numbers = (0..self.to).map(|i| i as f32);
        numbers.map(|i| i * step as f32 - start as f32).collect()
    }

    fn clamp(self, place: f32) -> u32 {
        place.clamp(0.0, (self.from - 1) as f32) as u32
    }

    fn nearest(self) -> Vec<u32> {
        if self.factor.fract() == 0.0 {
            return (0..self.to as u32)
                .map(|i| i / self.factor as u32)
                .collect();
        }
        let ratio = (f64::from(self.from) / f64::from(self.to)) as f32;
        let numbers = (0..self.to).map(|i| i as f32);
        let places = numbers.map(|i| match self.to > self.from {
            true => ((i + 0.5) * ratio - 0.5).round_ties_even(),
            false => i * ratio,
        });
        places.map(|place| self.clamp(place)).collect()
    }

    fn linear(self, align_corners: bool) -> Vec<Tap> {
        let places: Vec<f32> = self
            .places(align_corners)
            .into_iter()
            .map(|place| place.clamp(0.0, (self.from - 1) as f32))
            .collect();
        let part = |index: fn(f32) -> f32, weight: fn(f32) -> f32| {
            let tap = |&place: &f32| (self.clamp(index(place)), weight(place - place.floor()));
            places.iter().map(tap).unzip()
        };
        vec![part(f32::floor, |w| 1.0 - w), part(f32::ceil, |w| w)]
    }

    fn cubic(self, align_corners: bool) -> Vec<Tap> {
        let places = self.places(align_corners);
        let tap = |offset: f32, weight: fn(f32, f32) -> f32| {
            let one = |&place: &f32| {
                let base = if offset > 0.0 {
                    (place + 1.0).floor()
                } else {
                    place.floor()
                };
                let index = base + if offset > 0.0 { offset - 1.0 } else { offset };
                (self.clamp(index), weight(-0.75, (place - index).abs()))
            };
            places.iter().map(one).unzip()
        };
        vec![
            tap(0.0, near),
            tap(1.0, near),
            tap(-1.0, far),
            tap(2.0, far),
        ]
    }

    /// Weights of `kernel`, which is 0 from `radius` on and is widened by the factor by which the
    /// output is smaller. They are divided by their sum.
    fn antialiased(self, radius: f64, kernel: impl Fn(f32) -> f32) -> Vec<Tap> {
        let places = self.places(false);
        let wider = (1.0 / self.factor).max(1.0);
        let taps = (radius * wider).ceil() as i32 + 1;
        let mut all: Vec<Tap> = (1 - taps..taps)
            .map(|offset| {
                let one = |&place: &f32| {
                    let index = place.floor() + offset as f32;
                    let inside = index >= 0.0 && index < self.from as f32;
                    let weight = kernel((place - index).abs() / wider as f32);
                    (self.clamp(index), if inside { weight } else { 0.0 })
                };
                places.iter().map(one).unzip()
            })
            .collect();
        for at in 0..places.len() {
            let sum: f32 = all.iter().map(|(_, weights)| weights[at]).sum();
            if sum > 0.0 {
                all.iter_mut().for_each(|(_, weights)| weights[at] /= sum);
            }
        }
        all
    }
}

/// The weight of a cubic kernel at a distance up to 1.
fn near(a: f32, x: f32) -> f32 {
    ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
}

/// The weight of a cubic kernel at a distance from 1 to 2.
fn far(a: f32, x: f32) -> f32 {
    (((x - 5.0) * x + 8.0) * x - 4.0) * a
}
