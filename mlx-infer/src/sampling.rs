//! One graph that chooses the next token of every row of a batch.
//!
//! Rows may have different settings; a greedy row takes its largest logit. A row's token does not
//! depend on the other rows. The chain is mlx-lm's: bias and penalties (`logits.rs`), then top-p,
//! min-p and top-k on the model's distribution, then temperature, then a draw ([`fast::draw`]). The
//! mask of a grammar is applied before the filters. Two more filters are operations of their own
//! (`cuts.rs`), for rows that ask for them: top-n-sigma before the others, and XTC after them, as
//! in llama.cpp.
//!
//! The draw takes the largest sum of logit and Gumbel noise. The noise depends only on the row's seed, the position and
//! the token.

mod constraint;
mod cuts;
mod dry;
mod history;
mod logits;
mod noise;
#[cfg(test)]
mod statistics;
#[cfg(test)]
mod tests;

use mlx_core::fast::{self, Draw, Drawn, Draws, NO_TOKEN};
use mlx_core::{Array, DType, Replay, async_eval};

pub(crate) use self::constraint::{TokenConstraint, without};
pub(crate) use self::history::History;

use crate::error::{Error, ErrorKind, Result};
use crate::grammar::{Demand, Mask, When};
use crate::request::sampling::{Choice, SamplingParams};

/// The sampler's input for one row.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    /// Its settings, which must be valid ([`SamplingParams::check`]).
    pub params: &'a SamplingParams,
    /// The seed of its noise.
    pub seed: u64,
    /// The tokens that the host has read.
    pub history: &'a History,
    /// The number of tokens between `history` and the token that is chosen: drafts that the host
    /// has not read. The bias needs none of them; penalties would
    /// ([`SamplingParams::reads_history`]).
    pub ahead: usize,
    /// The number of likeliest tokens whose log probabilities are returned, beside that of the chosen token; `None`
    /// returns none.
    pub logprobs: Option<usize>,
    /// The constraint on its next token, if there is one.
    pub mask: Option<TokenConstraint<'a>>,
}

/// The next tokens of all rows, queued and not yet read.
#[derive(Clone)]
pub(crate) struct Sampled {
    /// The ids, U32 `[B]`: input of the next step, which is queued before the host reads them.
    ids: Array,
    /// The same ids, with [`NO_TOKEN`] where a logit is NaN or the largest is infinite.
    checked: Array,
    logprobs: Option<Logprobs>,
    /// The settings of the draw, if the tokens depend on nothing but the logits and them.
    draws: Option<Draws>,
}

#[derive(Clone)]
struct Logprobs {
    /// F32 `[B]`.
    chosen: Array,
    /// U32 and F32 `[B, N]`.
    top: Option<(Array, Array)>,
    wanted: Vec<Option<usize>>,
}

/// Builds the graph that chooses a token for each row of `logits` `[B, V]`.
///
/// `pending` is U32 `[B]`: the last token of rows whose last token was chosen but not yet read into the history.
///
/// # Errors
/// The numbers of rows of settings and of logits differ, or MLX refuses.
pub(crate) fn sample(logits: &Array, rows: &[Row<'_>], pending: Option<&Array>) -> Result<Sampled> {
    let [b, v] = logits.dims()?;
    if b as usize != rows.len() || v < 1 {
        return Err(Error::argument(format!(
            "logits of shape [{b}, {v}] need settings for {b} rows, given {}",
            rows.len()
        )));
    }
    // Logits without bias and penalties may stay in the model's dtype.
    let keeps_logits = rows.iter().all(|row| row.params.keeps_logits());
    let x = match keeps_logits {
        true => logits.clone(),
        false => logits::process(logits, rows, pending)?,
    };
    let masks: Vec<Option<Mask>> = rows
        .iter()
        .map(|row| row.allowed(pending.is_some()))
        .collect();
    let has_masks = masks.iter().any(Option::is_some);
    let x = match has_masks {
        false => x,
        true => fast::allow(&x, &masks)?,
    };
    let demands: Vec<Option<Demand<'_>>> = rows.iter().map(Row::demand_behind).collect();
    let has_masks = has_masks || demands.iter().any(Option::is_some);
    let x = match pending.filter(|_| demands.iter().any(Option::is_some)) {
        None => x,
        Some(pending) => constraint::demanded(&x, &demands, pending)?,
    };
    let draws = draws(rows, pending.is_some(), v)?;
    let cut = cut(&x, rows, pending.is_some())?;
    let Drawn { ids, checked } = draws.draw(cut.as_ref().unwrap_or(&x))?;
    let logprobs = if rows.iter().any(|row| row.logprobs.is_some()) {
        Some(Logprobs::new(&x, &ids, rows)?)
    } else {
        None
    };
    Ok(Sampled {
        ids,
        checked,
        logprobs,
        draws: (keeps_logits && !has_masks).then_some(draws),
    })
}

/// The logits after the filters that the draw does not have; `None` if no row has such a filter.
fn cut(x: &Array, rows: &[Row<'_>], pending: bool) -> Result<Option<Array>> {
    let has_sigma = rows.iter().any(|row| row.params.top_n_sigma > 0.0);
    let x = match has_sigma {
        true => &cuts::sigma(x, rows)?,
        false => x,
    };
    let due: Vec<bool> = rows.iter().map(|row| row.excludes_top(pending)).collect();
    Ok(match due.contains(&true) {
        true => Some(cuts::exclude_top(x, rows, &due)?),
        false => has_sigma.then(|| x.clone()),
    })
}

/// The settings of the draw of each row from `v` tokens. The last tokens may be `pending`.
fn draws(rows: &[Row<'_>], pending: bool, v: i32) -> Result<Draws> {
    let draws = rows.iter().map(|row| row.draw(pending)).collect();
    Ok(Draws::new(draws, v)?)
}

/// One number for each row, as F32 `[B, 1]`.
fn column(rows: &[Row<'_>], number: impl FnMut(&Row<'_>) -> f32) -> Result<Array> {
    let numbers: Vec<f32> = rows.iter().map(number).collect();
    Ok(Array::from_slice(&numbers, &[numbers.len() as i32, 1])?)
}

impl Row<'_> {
    /// The tokens that may come next; `None` for all. The last token may be `pending`.
    fn allowed(&self, pending: bool) -> Option<Mask> {
        let generated = self.history.generated().len() + self.ahead + usize::from(pending);
        self.mask
            .and_then(|constraint| constraint.allowed(generated))
    }

    /// The position of its next token. The last token may be `pending`.
    fn position(&self, pending: bool) -> usize {
        self.history.ids().len() + self.ahead + usize::from(pending)
    }

    /// Whether XTC is applied to its next token.
    fn excludes_top(&self, pending: bool) -> bool {
        cuts::is_due(self.params, self.seed, self.position(pending))
    }

    /// Its demand, if that depends on its last token, which was not read.
    fn demand_behind(&self) -> Option<Demand<'_>> {
        let demand = self.mask.and_then(|constraint| constraint.demand);
        demand.filter(|demand| demand.when != When::Always)
    }

    /// The settings of the draw of its next token. The last token may be `pending`.
    fn draw(&self, pending: bool) -> Draw {
        let position = self.position(pending);
        let drawn = Draw {
            temperature: self.params.temperature,
            top_p: self.params.top_p,
            min_p: self.params.min_p,
            top_k: self.params.top_k,
            key: noise::key(self.seed, position),
        };
        match self.params.is_greedy() {
            // Its logits are filtered.
            false if self.excludes_top(pending) => Draw {
                top_p: 1.0,
                min_p: 0.0,
                top_k: 0,
                ..drawn
            },
            false => drawn,
            // For temperature 0, the id of the largest logit; [`NO_TOKEN`] if a logit is NaN.
            true => Draw {
                temperature: 1.0,
                top_p: 1.0,
                min_p: 0.0,
                top_k: 1,
                ..drawn
            },
        }
    }
}

impl Logprobs {
    fn new(x: &Array, ids: &Array, rows: &[Row<'_>]) -> Result<Self> {
        let [_, v] = x.dims()?;
        let lse = fast::logsumexp(x)?;
        let chosen = x
            .take_along_axis(&ids.expand_dims(-1)?, -1)?
            .squeeze(-1)?
            .subtract(&lse)?;
        let wanted: Vec<Option<usize>> = rows.iter().map(|row| row.logprobs).collect();
        let most = wanted
            .iter()
            .flatten()
            .max()
            .copied()
            .unwrap_or(0)
            .min(v as usize);
        let top = match most {
            0 => None,
            n => {
                let (places, logits) = fast::top(&x.astype(DType::F32)?, n)?;
                let logprobs = logits.subtract(&lse.expand_dims(-1)?)?;
                Some((places, logprobs))
            }
        };
        Ok(Self {
            chosen,
            top,
            wanted,
        })
    }
}

impl Sampled {
    /// The ids, U32 `[B]`, for the next step; nothing is evaluated.
    pub fn ids(&self) -> &Array {
        &self.ids
    }

    /// Starts the computation and returns at once.
    ///
    /// # Errors
    /// MLX refuses.
    pub fn start(&self) -> Result<()> {
        Ok(async_eval(self.arrays())?)
    }

    /// Like [`start`](Self::start), for a step that may be repeated. `inputs` are the small arrays
    /// that the step has made before. `beside` are other results of the step.
    ///
    /// # Errors
    /// MLX refuses.
    pub fn start_with(
        &self,
        replay: &mut Replay,
        inputs: &[Array],
        beside: Option<&Array>,
    ) -> Result<()> {
        let results = self.arrays().into_iter().chain(beside);
        let draws = self.draw_arrays();
        Ok(replay.async_eval(results, inputs.iter().chain(&draws))?)
    }

    /// The arrays of the draws, if the tokens depend on nothing but the logits and them.
    pub(crate) fn draw_arrays(&self) -> Vec<Array> {
        let draws = self.draws.iter().flat_map(Draws::arrays);
        draws.cloned().collect()
    }

    /// The draws of the tokens of other `rows`, whose last tokens may be `pending`, if their graph is the
    /// same with other draws.
    ///
    /// # Errors
    /// MLX refuses.
    pub(crate) fn redrawn(&self, rows: &[Row<'_>], pending: bool) -> Result<Option<Draws>> {
        let logprobs = |row: usize| self.logprobs.as_ref().and_then(|all| all.wanted[row]);
        let is_same = |(at, row): (usize, &Row<'_>)| {
            row.params.keeps_logits() && row.mask.is_none() && row.logprobs == logprobs(at)
        };
        match &self.draws {
            Some(before) if rows.iter().enumerate().all(is_same) => {
                draws(rows, pending, before.tokens()).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Starts the step after this one, if it [repeats](Replay::relaunch) this one, which was
    /// [started](Self::start_with) with `replay`. `rows` are settings of the same number of rows, whose
    /// last tokens may be `pending`. `written` are the arrays that the step writes in place. Returns the
    /// other result of the step too, if it has one. `None` means that nothing was started.
    ///
    /// # Errors
    /// MLX refuses.
    pub fn start_repeated(
        &self,
        rows: &[Row<'_>],
        pending: bool,
        replay: &mut Replay,
        inputs: &[Array],
        written: &[Array],
    ) -> Result<Option<(Self, Option<Array>)>> {
        let Some(draws) = self.redrawn(rows, pending)? else {
            return Ok(None);
        };
        let Some(outputs) = replay.relaunch(inputs.iter().chain(draws.arrays()), written)? else {
            return Ok(None);
        };
        let mut outputs = outputs.into_iter();
        let mut next = || outputs.next().expect("as many as were started");
        let (ids, checked) = (next(), next());
        let logprobs = self.logprobs.as_ref().map(|before| Logprobs {
            chosen: next(),
            top: before.top.as_ref().map(|_| (next(), next())),
            wanted: before.wanted.clone(),
        });
        let sampled = Self {
            ids,
            checked,
            logprobs,
            draws: Some(draws),
        };
        Ok(Some((sampled, outputs.next())))
    }

    fn arrays(&self) -> Vec<&Array> {
        let mut arrays = vec![&self.ids, &self.checked];
        if let Some(logprobs) = &self.logprobs {
            arrays.push(&logprobs.chosen);
            if let Some((ids, values)) = &logprobs.top {
                arrays.extend([ids, values]);
            }
        }
        arrays
    }

    /// Waits for the tokens and returns one for each row, in order, or an error for a row whose
    /// logits are not finite.
    ///
    /// # Errors
    /// The computation failed.
    pub fn read(&self) -> Result<Vec<Result<Choice>>> {
        let no_token = || {
            let message = "the logits are not finite numbers; no token can be chosen from them";
            Error::new(ErrorKind::Compute, message)
        };
        let choices = self.read_any()?.into_iter();
        Ok(choices.map(|choice| choice.ok_or_else(no_token)).collect())
    }

    /// Like [`read`](Self::read), with `None` for a row whose logits are not finite.
    pub(crate) fn read_any(&self) -> Result<Vec<Option<Choice>>> {
        let ids = self.checked.to_vec::<u32>()?;
        let (mut chosen, mut top, mut width) = (Vec::new(), None, 0);
        if let Some(logprobs) = &self.logprobs {
            chosen = logprobs.chosen.to_vec::<f32>()?;
            if let Some((ids, values)) = &logprobs.top {
                width = ids.dim(-1)? as usize;
                top = Some((ids.to_vec::<u32>()?, values.to_vec::<f32>()?));
            }
        }
        let choice = |(row, &id): (usize, &u32)| {
            if id == NO_TOKEN {
                return None;
            }
            let wanted = self
                .logprobs
                .as_ref()
                .and_then(|logprobs| logprobs.wanted[row]);
            let best = match (&top, wanted) {
                (Some((ids, values)), Some(n)) => {
                    let span = row * width..row * width + n.min(width);
                    let values = values[span.clone()].iter().copied();
                    let best = ids[span].iter().copied().zip(values);
                    best.filter(|(_, value)| *value != f32::NEG_INFINITY)
                        .collect()
                }
                _ => Vec::new(),
            };
            Some(Choice {
                id,
                logprob: wanted.and(chosen.get(row).copied()),
                top: best,
            })
        };
        Ok(ids.iter().enumerate().map(choice).collect())
    }
}
