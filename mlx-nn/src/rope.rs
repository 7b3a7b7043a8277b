//! [`Rope`]: rotary position embedding (Su et al., arXiv:2104.09864) and its context extensions.
//!
//! Every variant is a table of frequencies and an amplitude, computed once. The rotation is one
//! fused operation with an offset for each row. Dimension `i` is paired with `i + dims/2`, or with
//! its neighbour.

use mlx_core::ops::create;
use mlx_core::{Array, DType, Error, ErrorKind, Result, fast};

use crate::attend::Keys;
use crate::attention::split_heads;
use crate::norm::RmsNorm;
use crate::step::{Step, Turned};

mod frequencies;
mod growing;

use frequencies::{llama3, period_of, yarn_edges};
pub(crate) use growing::Growing;

/// The variant of a rotary embedding, which determines the frequencies.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// `base^(-2i/d)`
    Default,
    /// Frequencies divided by `factor` (Chen et al., arXiv:2306.15595).
    Linear {
        /// The factor by which the context is extended.
        factor: f64,
    },
    /// Llama 3.1: long wavelengths divided by `factor`, short ones kept, a ramp between.
    Llama3 {
        /// The factor by which the context is extended.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are scaled in full.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length of the pre-training.
        original: f64,
    },
    /// YaRN (Peng et al., arXiv:2309.00071).
    Yarn {
        /// The factor by which the context is extended.
        factor: f64,
        /// Context length of the pre-training.
        original: f64,
        /// Rotations above which a dimension is kept.
        beta_fast: f64,
        /// Rotations below which a dimension is interpolated in full.
        beta_slow: f64,
        /// The factor of cosine and sine.
        amplitude: f64,
        /// Whether the ramp's ends are rounded to whole dimensions.
        truncate: bool,
    },
    /// LongRoPE (Ding et al., arXiv:2402.13753): one divisor of the frequency for each pair of
    /// dimensions, in two sets.
    Long {
        /// Divisors for rows that reach beyond `original`.
        long: Vec<f64>,
        /// Divisors for the other rows.
        short: Vec<f64>,
        /// Context length of the pre-training.
        original: usize,
        /// The factor of cosine and sine.
        amplitude: f64,
        /// The factor for rows that reach beyond `original`, if it differs.
        long_amplitude: Option<f64>,
    },
    /// Dynamic NTK: beyond `original` positions the base grows with the length of the text.
    Dynamic {
        /// How fast the base grows.
        factor: f64,
        /// Context length of the pre-training.
        original: usize,
    },
    /// Only the first `partial` of the pairs rotate; the exponent runs over the whole head.
    Proportional {
        /// The part of the pairs that rotates.
        partial: f64,
        /// Frequencies are divided by this.
        factor: f64,
    },
}

/// The settings of a [`Rope`].
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// The base of the frequencies (`theta`).
    pub base: f64,
    /// The number of the head's dimensions that rotate, the first ones; the others do not change.
    pub dims: i32,
    /// Whether dimension `2i` is paired with `2i + 1`, and not `i` with `i + dims / 2`.
    pub interleaved: bool,
    /// Whether angles are negative, so that the rotation has the opposite direction.
    pub reversed: bool,
    /// The variant.
    pub scaling: RopeScaling,
}

/// A rotary embedding.
#[derive(Clone, Debug)]
pub struct Rope {
    dims: i32,
    interleaved: bool,
    table: Table,
    /// LongRoPE's table for long rows: the number of positions beyond which a row is long, and the
    /// table.
    long: Option<(usize, Table)>,
    /// Dynamic NTK: the rotation for texts beyond the original context.
    growing: Option<Growing>,
}

/// The frequencies of a rope, and the factors of its results.
#[derive(Clone, Debug)]
struct Table {
    /// Reciprocals of the frequencies, `[dims / 2]`, the form in which MLX takes them.
    periods: Array,
    /// Per dimension of the head: the amplitude where it rotates, 1 elsewhere. `[D]`
    amplitude: Option<Array>,
}

impl Table {
    fn new(periods: Array, amplitude: f64, dims: i32, head_dim: i32) -> Result<Self> {
        let amplitude = if amplitude == 1.0 {
            None
        } else {
            let values: Vec<f32> = (0..head_dim)
                .map(|i| if i < dims { amplitude as f32 } else { 1.0 })
                .collect();
            Some(Array::from_slice(&values, &[head_dim])?)
        };
        Ok(Self { periods, amplitude })
    }
}

impl Rope {
    /// Computes the tables for heads of `head_dim` features.
    ///
    /// # Errors
    /// `dims` is odd, negative or above `head_dim`, or a table has the wrong length.
    pub fn new(config: &RopeConfig, head_dim: i32) -> Result<Self> {
        let dims = config.dims;
        if dims <= 0 || dims % 2 != 0 || dims > head_dim {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "rope must rotate an even part of the {head_dim} dimensions of a head, given {dims}"
                ),
            ));
        }
        let half = dims as usize / 2;
        let plain = |i: usize| config.base.powf(2.0 * i as f64 / f64::from(dims));
        // Frequencies are computed as in transformers: in F32, with the same roundings. An error of
        // one unit in the last place of the first frequency is visible in logits after some hundred
        // positions.
        let single = |i: usize| plain(i) as f32;
        let table = |period: &dyn Fn(usize) -> f32| {
            let sign = if config.reversed { -1.0 } else { 1.0 };
            let periods: Vec<f32> = (0..half).map(|i| sign * period(i)).collect();
            Array::from_slice(&periods, &[half as i32])
        };
        let (mut long, mut growing) = (None, None);
        let (periods, amplitude) = match &config.scaling {
            RopeScaling::Default => (table(&single)?, 1.0),
            RopeScaling::Linear { factor } => {
                let frequency = |i: usize| 1.0 / single(i) / *factor as f32;
                (table(&|i| period_of(frequency(i)))?, 1.0)
            }
            &RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original,
            } => (
                table(&|i| {
                    let frequency = llama3(
                        1.0 / single(i),
                        factor,
                        low_freq_factor,
                        high_freq_factor,
                        original,
                    );
                    period_of(frequency)
                })?,
                1.0,
            ),
            &RopeScaling::Yarn {
                factor,
                original,
                beta_fast,
                beta_slow,
                amplitude,
                truncate,
            } => {
                let rotations = (beta_fast, beta_slow);
                let (low, high) = yarn_edges(config.base, dims, original, rotations, truncate);
                let period = |i: usize| {
                    let ramp = (i as f32 - low as f32) / (high - low) as f32;
                    let kept = 1.0 - ramp.clamp(0.0, 1.0);
                    let (long, short) = (factor as f32 * single(i), single(i));
                    period_of(1.0 / long * (1.0 - kept) + 1.0 / short * kept)
                };
                (table(&period)?, amplitude)
            }
            RopeScaling::Long {
                long: longs,
                short,
                original,
                amplitude,
                long_amplitude,
            } => {
                for (name, factors) in [("long_factor", longs), ("short_factor", short)] {
                    if factors.len() != half {
                        return Err(Error::new(
                            ErrorKind::Invalid,
                            format!(
                                "rope {name} must have {half} numbers, found {}",
                                factors.len()
                            ),
                        ));
                    }
                }
                let periods = table(&|i| longs[i] as f32 * single(i))?;
                let amplitude_of_long = long_amplitude.unwrap_or(*amplitude);
                let beyond = Table::new(periods, amplitude_of_long, dims, head_dim)?;
                long = Some((*original, beyond));
                (table(&|i| short[i] as f32 * single(i))?, *amplitude)
            }
            RopeScaling::Dynamic { .. } if config.reversed => {
                let message = "rope dynamic is not supported where pairs turn backwards";
                return Err(Error::new(ErrorKind::Invalid, message));
            }
            &RopeScaling::Dynamic { factor, original } => {
                let interleaved = config.interleaved;
                let rope = Growing::new(config.base, factor, original, dims, interleaved);
                growing = Some(rope);
                (table(&single)?, 1.0)
            }
            &RopeScaling::Proportional { partial, factor } => {
                let rotating = (partial * f64::from(dims) / 2.0).floor() as usize;
                (
                    table(&|i| {
                        if i < rotating {
                            period_of(1.0 / single(i) / factor as f32)
                        } else {
                            f32::INFINITY
                        }
                    })?,
                    1.0,
                )
            }
        };
        Ok(Self {
            dims,
            interleaved: config.interleaved,
            table: Table::new(periods, amplitude, dims, head_dim)?,
            long,
            growing,
        })
    }

    /// The features of a head that are rotated.
    pub(crate) fn dims(&self) -> i32 {
        self.dims
    }

    /// Rotates heads `[1, H, T, D]` of the step's tokens by their positions.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array, step: &Step) -> Result<Array> {
        let rotate = |table: &Table| self.rotated(x, table, step.positions());
        if let Some((growing, turned)) = self.grown(step)? {
            return growing.rotate(x, &turned, || rotate(&self.table));
        }
        match self.tables(step)? {
            Tables::One(table) => rotate(table),
            Tables::ByToken { is_long, long } => {
                is_long.select(&rotate(long)?, &rotate(&self.table)?)
            }
        }
    }

    /// A projection `[1, T, H * D]` as rotated heads `[1, H, T, D]`, of texts that begin at position 0. `positions`,
    /// I32 `[1, T]`, are the places of the tokens in their texts, of which none has more than `longest` tokens. If there
    /// is a `norm`, each head is normed before the rotation.
    ///
    /// ```
    /// use mlx_core::{Array, DType, Result, ones};
    /// use mlx_nn::{Rope, RopeConfig, RopeScaling};
    ///
    /// # fn main() -> Result<()> {
    /// let config = RopeConfig {
    ///     base: 10_000.0,
    ///     dims: 8,
    ///     interleaved: false,
    ///     reversed: false,
    ///     scaling: RopeScaling::Default,
    /// };
    /// let places = Array::from_slice(&[0i32, 1, 2, 0], &[1, 4])?; // three tokens, and one
    /// let x = ones([1, 4, 8], DType::F32)?;
    /// let y = Rope::new(&config, 8)?.heads_from_start(&x, 8, None, &places, 3)?;
    /// // Position 0 does not turn.
    /// assert_eq!(y.slice_axis(2, 3, 4)?.to_vec::<f32>()?, [1.0; 8]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The shapes do not fit, or a text is longer than the original context of LongRoPE or dynamic
    /// NTK.
    pub fn heads_from_start(
        &self,
        x: &Array,
        head_dim: i32,
        norm: Option<&RmsNorm>,
        positions: &Array,
        longest: i32,
    ) -> Result<Array> {
        let changes = self.switches_after().or(self.grows_after());
        if changes.is_some_and(|original| longest as usize > original) {
            let message =
                format!("a rope that changes with the length, in a text of {longest} tokens");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if self.table.amplitude.is_some() || self.interleaved {
            let heads = split_heads(x, head_dim)?;
            let heads = norm.map_or(Ok(heads.clone()), |norm| norm.forward(&heads))?;
            return self.at(&heads, positions);
        }
        fast::heads(&fast::Projection {
            x,
            head_dim,
            norm: norm.map(RmsNorm::parts),
            dims: self.dims,
            freqs: &self.table.periods,
            offsets: positions,
        })
    }

    /// Rotates heads `[1, H, T, D]` by positions I32 `[1, T]`, for ropes that do not change with the length.
    pub(crate) fn at(&self, x: &Array, positions: &Array) -> Result<Array> {
        self.rotated(x, &self.table, positions)
    }

    /// Rotates `[B, H, L, D]` of the step's rows, whose place i is position `i * stride`, with the frequencies of each
    /// row's last token.
    pub(crate) fn of_rows(&self, x: &Array, stride: i32, step: &Step) -> Result<Array> {
        let start = create::zeros(&[1], DType::I32)?;
        let rotate = |table: &Table| self.rotated_by(x, table, &start, stride);
        if let Some(growing) = &self.growing
            && step.beyond(growing.original()).contains(&true)
        {
            let turned = step.turned_rows(growing, x.dim(2)? as usize, stride as usize)?;
            return growing.rotate(x, &turned, || rotate(&self.table));
        }
        let Some((original, long)) = &self.long else {
            return rotate(&self.table);
        };
        let beyond = step.beyond(*original);
        match (beyond.contains(&true), beyond.contains(&false)) {
            (false, _) => rotate(&self.table),
            (true, false) => rotate(long),
            (true, true) => {
                let is_long = Array::from_slice(&beyond, &[beyond.len() as i32, 1, 1, 1])?;
                is_long.select(&rotate(long)?, &rotate(&self.table)?)
            }
        }
    }

    fn rotated(&self, x: &Array, table: &Table, offsets: &Array) -> Result<Array> {
        self.rotated_by(x, table, offsets, 1)
    }

    /// Rotates `[B, H, L, D]`, whose positions are `stride` times those that begin at the offsets.
    fn rotated_by(&self, x: &Array, table: &Table, offsets: &Array, stride: i32) -> Result<Array> {
        let scaled = match &table.amplitude {
            Some(amplitude) => Some(x.multiply(amplitude.astype(x.dtype())?)?),
            None => None,
        };
        let rope = fast::Rope {
            dims: self.dims,
            traditional: self.interleaved,
            base: None,
            scale: stride as f32,
            freqs: Some(&table.periods),
        };
        fast::rope_with(scaled.as_ref().unwrap_or(x), &rope, offsets)
    }

    /// A projection `[1, T, H * D]` as rotated heads `[1, H, T, D]`. `positions` are those of the step. If there is a `norm`, each
    /// head is normed before the rotation.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn heads(
        &self,
        x: &Array,
        head_dim: i32,
        norm: Option<&RmsNorm>,
        positions: &Array,
        step: &Step,
    ) -> Result<Array> {
        self.keys(x, head_dim, norm, positions, step)?.heads()
    }

    /// Rotated keys. Where all rows use one table, the projection is returned as it is, and the
    /// cache rotates the keys while it stores them.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn keys<'a>(
        &'a self,
        x: &'a Array,
        head_dim: i32,
        norm: Option<&'a RmsNorm>,
        positions: &'a Array,
        step: &Step,
    ) -> Result<Keys<'a>> {
        let tables = [
            Some(&self.table),
            self.long.as_ref().map(|(_, table)| table),
        ];
        let is_scaled = |table: &&Table| table.amplitude.is_some();
        if tables.iter().flatten().any(is_scaled) || self.interleaved {
            let heads = split_heads(x, head_dim)?;
            let rotated = match norm {
                Some(norm) => self.forward(&norm.forward(&heads)?, step),
                None => self.forward(&heads, step),
            };
            return rotated.map(Keys::Heads);
        }
        let projection = |table: &'a Table| fast::Projection {
            x,
            head_dim,
            norm: norm.map(RmsNorm::parts),
            dims: self.dims,
            freqs: &table.periods,
            offsets: positions,
        };
        if let Some((growing, turned)) = self.grown(step)? {
            let heads = split_heads(x, head_dim)?;
            let heads = norm.map_or(Ok(heads.clone()), |norm| norm.forward(&heads))?;
            let short = || fast::heads(&projection(&self.table));
            return growing.rotate(&heads, &turned, short).map(Keys::Heads);
        }
        match self.tables(step)? {
            Tables::One(table) => Ok(Keys::Projection(projection(table))),
            Tables::ByToken { is_long, long } => {
                let (long, short) = (projection(long), projection(&self.table));
                let heads = is_long.select(&fast::heads(&long)?, &fast::heads(&short)?)?;
                Ok(Keys::Heads(heads))
            }
        }
    }

    /// The table that each row of a step uses: a row whose positions will reach beyond the original
    /// context uses the long one.
    fn tables(&self, step: &Step) -> Result<Tables<'_>> {
        let Some((original, long)) = &self.long else {
            return Ok(Tables::One(&self.table));
        };
        let beyond = step.beyond(*original);
        Ok(match (beyond.contains(&true), beyond.contains(&false)) {
            (false, _) => Tables::One(&self.table),
            (true, false) => Tables::One(long),
            (true, true) => Tables::ByToken {
                is_long: step.by_token(&beyond)?,
                long,
            },
        })
    }

    /// The rotation of a step in which a base has grown.
    fn grown(&self, step: &Step) -> Result<Option<(&Growing, Turned)>> {
        let Some(growing) = &self.growing else {
            return Ok(None);
        };
        Ok(step.turned(growing)?.map(|turned| (growing, turned)))
    }

    /// Dynamic NTK only: the length beyond which the base depends on the length of a text. Cached
    /// keys keep the base that they were rotated with.
    pub fn grows_after(&self) -> Option<usize> {
        self.growing.as_ref().map(Growing::original)
    }

    /// LongRoPE only: the length beyond which a row uses another table, so that its cached keys
    /// must be computed again.
    pub fn switches_after(&self) -> Option<usize> {
        self.long.as_ref().map(|(original, _)| *original)
    }
}

/// The table that each token of a step uses.
enum Tables<'a> {
    /// All rows use this table.
    One(&'a Table),
    /// LongRoPE: the long table for the tokens of `is_long`, Bool `[1, 1, T, 1]`, and the short one
    /// for the others.
    ByToken { is_long: Array, long: &'a Table },
}
