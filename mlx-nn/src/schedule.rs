//! Learning rates that change with the step.

use std::f64::consts::PI;

use mlx_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// A learning rate for every step; the first step is 0.
///
/// ```
/// use mlx_nn::Schedule;
/// let schedule = Schedule::cosine(1.0, 0.0, 100).with_warmup(10, 0.0);
/// assert_eq!(schedule.rate(0), 0.0);
/// assert_eq!(schedule.rate(5), 0.5);
/// assert_eq!(schedule.rate(10), 1.0);
/// assert!((schedule.rate(60) - 0.5).abs() < 1e-12);
/// assert_eq!(schedule.rate(1000), 0.0);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Schedule {
    /// The rate is always `rate`.
    Constant {
        /// The rate.
        rate: f64,
    },
    /// On a straight line from `from` to `to` in `steps` steps, then `to`.
    Linear {
        /// The rate of step 0.
        from: f64,
        /// The rate of step `steps` and after.
        to: f64,
        /// The number of steps from `from` to `to`.
        steps: u64,
    },
    /// From `from` to `to` in `steps` steps along half a cosine (Loshchilov and Hutter,
    /// arXiv:1608.03983), then `to`.
    Cosine {
        /// The rate of step 0.
        from: f64,
        /// The rate of step `steps` and after.
        to: f64,
        /// The number of steps from `from` to `to`.
        steps: u64,
    },
    /// `from` times `decay` to the power of the step.
    Exponential {
        /// The rate of step 0.
        from: f64,
        /// The factor of each step.
        decay: f64,
    },
    /// `from`, multiplied by `decay` after every `every` steps.
    Step {
        /// The rate of the first steps.
        from: f64,
        /// The factor.
        decay: f64,
        /// The number of successive steps that have the same rate.
        every: u64,
    },
    /// `first` for `steps` steps, then `then`, which counts its steps from 0.
    Joined {
        /// The first schedule.
        first: Box<Schedule>,
        /// The number of steps of `first`.
        steps: u64,
        /// The schedule that follows.
        then: Box<Schedule>,
    },
}

impl Schedule {
    /// The rate is always `rate`.
    pub fn constant(rate: f64) -> Self {
        Self::Constant { rate }
    }

    /// A straight line from `from` to `to` in `steps` steps, then `to`.
    pub fn linear(from: f64, to: f64, steps: u64) -> Self {
        Self::Linear { from, to, steps }
    }

    /// Half a cosine from `from` to `to` in `steps` steps, then `to`.
    pub fn cosine(from: f64, to: f64, steps: u64) -> Self {
        Self::Cosine { from, to, steps }
    }

    /// `from * decay^step`
    ///
    /// ```
    /// use mlx_nn::Schedule;
    /// assert!((Schedule::exponential(0.1, 0.9).rate(2) - 0.081).abs() < 1e-12);
    /// ```
    pub fn exponential(from: f64, decay: f64) -> Self {
        Self::Exponential { from, decay }
    }

    /// `from * decay^(step / every)`, with the quotient rounded down.
    ///
    /// ```
    /// use mlx_nn::Schedule;
    /// let schedule = Schedule::step(0.1, 0.5, 10);
    /// assert_eq!([9, 10, 20].map(|step| schedule.rate(step)), [0.1, 0.05, 0.025]);
    /// ```
    pub fn step(from: f64, decay: f64, every: u64) -> Self {
        Self::Step { from, decay, every }
    }

    /// This schedule for `steps` steps, followed by another one. Each counts its steps from its own
    /// beginning.
    ///
    /// ```
    /// use mlx_nn::Schedule;
    /// let schedule = Schedule::constant(0.1).then(5, Schedule::linear(0.2, 0.0, 10));
    /// assert_eq!([4, 5, 10].map(|step| schedule.rate(step)), [0.1, 0.2, 0.1]);
    /// ```
    #[must_use]
    pub fn then(self, steps: u64, then: impl Into<Schedule>) -> Self {
        Self::Joined {
            first: Box::new(self),
            steps,
            then: Box::new(then.into()),
        }
    }

    /// This schedule after a warm-up: `steps` steps on a straight line from `from` to its first rate.
    #[must_use]
    pub fn with_warmup(self, steps: u64, from: f64) -> Self {
        if steps == 0 {
            return self;
        }
        Self::Joined {
            first: Box::new(Self::linear(from, self.rate(0), steps)),
            steps,
            then: Box::new(self),
        }
    }

    /// The first `steps` steps of this schedule. In the last `cooldown` of them the rate falls on a straight line to 0,
    /// from its value at their start (Hägele et al., arXiv:2405.18392).
    #[must_use]
    pub fn with_cooldown(self, steps: u64, cooldown: u64) -> Self {
        if cooldown == 0 {
            return self;
        }
        let begin = steps.saturating_sub(cooldown);
        let then = Self::linear(self.rate(begin), 0.0, steps - begin);
        Self::Joined {
            first: Box::new(self),
            steps: begin,
            then: Box::new(then),
        }
    }

    /// The rate of step `step`, counted from 0.
    pub fn rate(&self, step: u64) -> f64 {
        let part = |steps: u64| {
            if step >= steps {
                1.0
            } else {
                step as f64 / steps as f64
            }
        };
        match *self {
            Self::Constant { rate } => rate,
            Self::Linear { from, to, steps } => from + (to - from) * part(steps),
            Self::Cosine { from, to, steps } => {
                to + (from - to) * 0.5 * (1.0 + (PI * part(steps)).cos())
            }
            Self::Exponential { from, decay } => from * decay.powf(step as f64),
            Self::Step { from, decay, every } => from * decay.powf((step / every.max(1)) as f64),
            Self::Joined {
                ref first,
                steps,
                ref then,
            } => {
                if step < steps {
                    first.rate(step)
                } else {
                    then.rate(step - steps)
                }
            }
        }
    }

    /// Checks the rates, the decays and the numbers of steps.
    ///
    /// # Errors
    /// A rate or a decay is negative or not finite, or a [`Step`](Self::Step) schedule has 0 steps
    /// between its decays.
    pub fn check(&self) -> Result<()> {
        let rate = |rate: f64| {
            if rate.is_finite() && rate >= 0.0 {
                return Ok(());
            }
            let message = format!("a learning rate must be a number of at least 0, given {rate}");
            Err(Error::new(ErrorKind::Invalid, message))
        };
        let factor = |decay: f64| {
            if decay.is_finite() && decay >= 0.0 {
                return Ok(());
            }
            let message = format!("a decay must be a number of at least 0, given {decay}");
            Err(Error::new(ErrorKind::Invalid, message))
        };
        match self {
            Self::Constant { rate: only } => rate(*only),
            Self::Linear { from, to, .. } | Self::Cosine { from, to, .. } => {
                rate(*from)?;
                rate(*to)
            }
            Self::Exponential { from, decay } => {
                rate(*from)?;
                factor(*decay)
            }
            Self::Step { from, decay, every } => {
                rate(*from)?;
                factor(*decay)?;
                if *every == 0 {
                    let message =
                        "a schedule must have at least 1 step between its decays, given 0";
                    return Err(Error::new(ErrorKind::Invalid, message));
                }
                Ok(())
            }
            Self::Joined { first, then, .. } => {
                first.check()?;
                then.check()
            }
        }
    }
}

/// A constant rate.
impl From<f64> for Schedule {
    fn from(rate: f64) -> Self {
        Self::constant(rate)
    }
}

/// A constant rate.
impl From<f32> for Schedule {
    fn from(rate: f32) -> Self {
        Self::constant(f64::from(rate))
    }
}

/// [`Schedule::linear`] by Python's name: from `init` to `end` in `steps` steps.
pub fn linear_schedule(init: f64, end: f64, steps: u64) -> Schedule {
    Schedule::linear(init, end, steps)
}

/// [`Schedule::cosine`] by Python's name: from `init` to 0 in `steps` steps.
pub fn cosine_decay(init: f64, steps: u64) -> Schedule {
    Schedule::cosine(init, 0.0, steps)
}

/// [`Schedule::exponential`] by Python's name.
pub fn exponential_decay(init: f64, decay_rate: f64) -> Schedule {
    Schedule::exponential(init, decay_rate)
}

/// [`Schedule::step`] by Python's name.
pub fn step_decay(init: f64, decay_rate: f64, step_size: u64) -> Schedule {
    Schedule::step(init, decay_rate, step_size)
}

/// The schedules one after the other: each but the first begins at its boundary, a number of steps
/// from the start, and counts its own steps from there. [`Schedule::then`] joins two.
///
/// ```
/// use mlx_nn::{cosine_decay, join_schedules, linear_schedule};
///
/// # fn main() -> mlx_core::Result<()> {
/// let warm = join_schedules(&[linear_schedule(0.0, 0.1, 10), cosine_decay(0.1, 200)], &[10])?;
/// assert_eq!([0, 5, 10].map(|step| warm.rate(step)), [0.0, 0.05, 0.1]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// There is no schedule, not one boundary less than schedules, or a boundary is below the one before.
pub fn join_schedules(
    schedules: impl AsRef<[Schedule]>,
    boundaries: impl AsRef<[u64]>,
) -> Result<Schedule> {
    let (schedules, boundaries) = (schedules.as_ref(), boundaries.as_ref());
    let wrong = |message: String| Err(Error::new(ErrorKind::Invalid, message));
    let Some((last, before)) = schedules.split_last() else {
        return wrong("join_schedules needs at least one schedule".to_owned());
    };
    if before.len() != boundaries.len() {
        let (found, given) = (schedules.len(), boundaries.len());
        return wrong(format!(
            "{found} schedules have {} boundaries, given {given}",
            found - 1
        ));
    }
    if !boundaries.is_sorted() {
        return wrong(format!("boundaries must not fall, given {boundaries:?}"));
    }
    let mut joined = last.clone();
    for (at, schedule) in before.iter().enumerate().rev() {
        let begin = if at == 0 { 0 } else { boundaries[at - 1] };
        joined = schedule.clone().then(boundaries[at] - begin, joined);
    }
    Ok(joined)
}
