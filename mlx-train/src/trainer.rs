//! The training loop: accumulation, evaluation, early stopping, checkpoints, resumption.
//!
//! Random numbers depend on the seed and the step; all other state is in the checkpoint. A run that is
//! killed and resumed therefore computes the same weights, bit by bit, as an uninterrupted one.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use mlx_core::{memory, random};
use mlx_models::Model;
use mlx_nn::lora::set_dropout_key;
use mlx_nn::shard::Ranks;
use mlx_nn::trainable::trainable;
use serde::{Deserialize, Serialize};

use crate::batch::Example;
use crate::checkpoint::{self, Frozen, Output, Saved};
use crate::clip;
use crate::error::{Error, ErrorKind, Result, argument};
use crate::feed::{Feed, FeedOptions, Numbers, Position};
use crate::grad::{Gradients, accumulate};
use crate::loss::{Ahead, check_ahead};
use crate::optim::{Method, Optimizer};
use crate::ranks::sum_gradients;
use crate::schedule::Schedule;

mod losses;
mod shared;

use losses::Ratio;

/// The settings of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainerConfig {
    /// Steps of the optimiser.
    pub steps: u64,
    /// Rows of a batch, which are those of all ranks together.
    pub batch_size: usize,
    /// Instead of `batch_size`: rows of similar length, up to this many tokens with padding.
    pub batch_tokens: Option<usize>,
    /// Batches whose gradients make one step, weighted by their tokens.
    pub accumulate: usize,
    /// Pack several documents into a row, up to this many tokens.
    pub pack: Option<usize>,
    /// Gradient checkpointing: recompute each layer's activations in the backward pass.
    pub recompute: bool,
    /// Run the head on this many tokens of the vocabulary at a time, so that whole logits never exist.
    #[serde(default)]
    pub ce_chunk: Option<i32>,
    /// Also train the head for multi-token prediction: its loss is added, times this factor.
    #[serde(default)]
    pub mtp: Option<f32>,
    /// The seed of data order and dropout.
    pub seed: u64,
    /// The norm to which gradients are clipped.
    pub clip: Option<f32>,
    /// The optimiser's method.
    pub method: Method,
    /// The learning rates.
    pub schedule: Schedule,
    /// Steps between evaluations. There is always one at the end.
    pub eval_every: u64,
    /// Batches of an evaluation; `None` means all.
    pub eval_batches: Option<usize>,
    /// Steps between checkpoints. There is always one at the end.
    pub save_every: u64,
    /// The number of consecutive evaluations without a lower loss after which the run stops.
    pub patience: Option<u32>,
}

impl TrainerConfig {
    fn check(&self) -> Result<()> {
        let positive = [
            ("steps", self.steps),
            ("batch_size", self.batch_size as u64),
            ("accumulate", self.accumulate as u64),
            ("eval_every", self.eval_every),
            ("save_every", self.save_every),
            ("eval_batches", self.eval_batches.map_or(1, |n| n as u64)),
            ("batch_tokens", self.batch_tokens.map_or(1, |n| n as u64)),
            ("patience", self.patience.map_or(1, u64::from)),
            ("ce_chunk", self.ce_chunk.map_or(1, |n| n.max(0) as u64)),
        ];
        if let Some(factor) = self.mtp
            && !(factor > 0.0 && factor.is_finite())
        {
            return Err(argument(format!(
                "mtp must be a number above 0, given {factor}"
            )));
        }
        match positive.iter().find(|(_, value)| *value == 0) {
            Some((name, _)) => Err(argument(format!("{name} must be at least 1, given 0"))),
            None => Ok(()),
        }
    }
}

/// The progress of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Steps done.
    pub step: u64,
    /// The position in the data.
    pub position: Position,
    /// The number of tokens that the losses counted so far.
    pub learnt_tokens: u64,
    /// The lowest validation loss and its step.
    pub best: Option<(f64, u64)>,
    /// The number of evaluations since then.
    pub since_best: u32,
    /// Whether `patience` ended the run.
    pub stopped: bool,
}

/// An event of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A step is done.
    Step {
        /// Its number, from 1.
        step: u64,
        /// The mean loss of its tokens by their weights, before the step.
        loss: f64,
        /// The same loss of the head for multi-token prediction, if it is trained.
        #[serde(skip_serializing_if = "Option::is_none")]
        mtp_loss: Option<f64>,
        /// The learning rate of the step.
        rate: f64,
        /// The norm of its gradients, before clipping.
        norm: f64,
        /// Tokens that the model read.
        tokens: usize,
        /// Tokens that were learnt, since the beginning.
        learnt_tokens: u64,
        /// How long it took.
        seconds: f64,
        /// The most memory in use so far.
        peak_bytes: usize,
    },
    /// An evaluation is done.
    Evaluated {
        /// The number of steps before it.
        step: u64,
        /// The mean loss of the tokens.
        loss: f64,
        /// Whether it is the best so far.
        best: bool,
        /// How long it took.
        seconds: f64,
    },
    /// A checkpoint is saved.
    Saved {
        /// The number of steps before it.
        step: u64,
    },
    /// The evaluations have not improved: the run ends here.
    Stopped {
        /// The number of steps before it.
        step: u64,
    },
}

/// A run.
pub struct Trainer<'a> {
    model: &'a mut dyn Model,
    config: TrainerConfig,
    train: &'a [Example],
    valid: &'a [Example],
    output: Option<Output>,
    frozen: Frozen,
    optimizer: Optimizer,
    feed: Feed,
    progress: Progress,
    ranks: Ranks,
}

impl<'a> Trainer<'a> {
    /// A run from the beginning. The model's trainable parameters are chosen before; without
    /// `output` nothing is saved.
    ///
    /// # Errors
    /// A setting is out of range, there is nothing to learn from, or the model has no output head.
    pub fn new(
        model: &'a mut dyn Model,
        config: TrainerConfig,
        train: &'a [Example],
        valid: &'a [Example],
        output: Option<Output>,
    ) -> Result<Self> {
        config.check()?;
        model.head().check()?;
        if config.mtp.is_some() {
            check_ahead(model)?;
        }
        if train.iter().all(|example| example.learnt() == 0) {
            return Err(argument("no training example has anything to learn"));
        }
        let feed = Feed::new(
            train,
            FeedOptions {
                batch_size: config.batch_size,
                batch_tokens: config.batch_tokens,
                pack: config.pack,
                seed: config.seed,
            },
        );
        let frozen = match &output {
            Some(_) => Frozen::of(model)?,
            None => Frozen::default(),
        };
        Ok(Self {
            frozen,
            optimizer: Optimizer::new(config.method.clone(), config.schedule.clone())?,
            model,
            config,
            train,
            valid,
            output,
            feed,
            progress: Progress::default(),
            ranks: Ranks::ALONE,
        })
    }

    /// Shares the batches of the run with the other processes of `ranks`, whose group this thread has
    /// [joined](mlx_nn::shard::join). All have the same model, settings and data. Each computes every `size`-th row of a
    /// batch; gradients and losses are summed, so that a step is that of one process with the whole batch, up to the
    /// order of sums. Dropout differs, because each rank draws its own. The first rank writes the output, in a
    /// folder that the others read when they resume. The number of ranks may change when a run is resumed.
    ///
    /// A rank that ends or fails ends the runs of all with an error.
    ///
    /// ```no_run
    /// use mlx_core::distributed::{Backend, init};
    /// use mlx_train::Trainer;
    ///
    /// # fn shared(trainer: Trainer<'_>) -> mlx_train::Result<Trainer<'_>> {
    /// let ranks = mlx_nn::shard::join(init(false, Backend::Any)?);
    /// Ok(trainer.on_ranks(ranks))
    /// # }
    /// ```
    #[must_use]
    pub fn on_ranks(mut self, ranks: Ranks) -> Self {
        self.ranks = ranks;
        self
    }

    /// Continues from the last checkpoint of the output. Returns whether there is one.
    ///
    /// # Errors
    /// The checkpoint has other settings, data or parameters, or cannot be read.
    pub fn resume(&mut self) -> Result<bool> {
        let Some(output) = &self.output else {
            return Ok(false);
        };
        let Some(dir) = checkpoint::last(output)? else {
            return Ok(false);
        };
        let saved = self.saved(output);
        let progress = checkpoint::load(&dir, &saved, self.model, &mut self.optimizer)?;
        // The adapter files may be those of another save, or be missing.
        if self.writes() {
            output.write_result(self.model)?;
        }
        self.feed.seek(progress.position);
        self.progress = progress;
        Ok(true)
    }

    /// The progress.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Refuses an output folder that contains checkpoints, unless this run was resumed from them.
    ///
    /// # Errors
    /// The folder contains checkpoints of another run.
    pub fn check_output(&self) -> Result<()> {
        if self.writes()
            && self.progress.step == 0
            && let Some(output) = &self.output
            && let Some(dir) = checkpoint::last(output)?
        {
            return Err(argument(format!(
                "{} is of another run: resume it, or choose another folder",
                dir.display()
            )));
        }
        Ok(())
    }

    /// Runs to the last step, or until `observe` returns a break; then the run is saved first. Returns whether the run
    /// is finished.
    ///
    /// # Errors
    /// The output holds another run's checkpoints, a step fails or its loss is NaN or infinite, or saving fails. The
    /// last checkpoint stays. The ranks differ in model, settings or data, or another one has ended.
    pub fn run(&mut self, mut observe: impl FnMut(&Event) -> ControlFlow<()>) -> Result<bool> {
        self.check_output()?;
        self.check_ranks()?;
        while self.progress.step < self.config.steps && !self.progress.stopped {
            let mut flow = observe(&self.step()?);
            let step = self.progress.step;
            let last = step == self.config.steps;
            if !self.valid.is_empty() && (last || step.is_multiple_of(self.config.eval_every)) {
                let evaluated = self.evaluate()?;
                flow = both(flow, observe(&evaluated));
                if self.progress.stopped {
                    flow = both(flow, observe(&Event::Stopped { step }));
                }
            }
            let due = last || self.progress.stopped || step.is_multiple_of(self.config.save_every);
            flow = self.agreed(flow)?;
            if due || flow.is_break() {
                self.save()?;
                flow = self.agreed(both(flow, observe(&Event::Saved { step })))?;
            }
            if flow.is_break() {
                break;
            }
        }
        Ok(self.progress.step >= self.config.steps || self.progress.stopped)
    }

    /// One step of the optimiser.
    fn step(&mut self) -> Result<Event> {
        let started = Instant::now();
        let number = self.progress.step + 1;
        let mut total = Gradients::new();
        let (mut loss, mut weight, mut learnt, mut tokens) = (0.0, 0.0, 0, 0);
        let mut of_head = Ratio::default();
        for part in 0..self.config.accumulate {
            let rows = self.feed.next_batch();
            let batch = self.batch(rows.iter())?;
            let ahead = self.config.mtp;
            let ahead = ahead.map(|factor| Ahead::new(self.model, &batch, factor));
            let ahead = ahead.transpose()?;
            if let Some((own, ahead)) = self.own(&rows, &batch, ahead.as_ref())? {
                let draw = Numbers::new(self.config.seed, number).next();
                // The ranks draw other numbers for their rows.
                let rank = (self.ranks.rank() as u64) << 32;
                let key = random::Key::new(draw.wrapping_add(part as u64).wrapping_add(rank))?;
                set_dropout_key(self.model, Some(&key))?;
                let result = self.gradients(&own, ahead.as_ref());
                set_dropout_key(self.model, None)?;
                let (sums, grads) = result?;
                accumulate(&mut total, grads)?;
                // Each part is evaluated before the graph of the next is built, so memory holds only
                // one.
                mlx_core::eval(sums.iter().chain(total.values()))?;
                loss += f64::from(sums[0].item::<f32>()?);
                if let (Some(_), Some(sum)) = (&ahead, sums.get(1)) {
                    of_head.add(f64::from(sum.item::<f32>()?), 0.0);
                }
            }
            if let Some(ahead) = &ahead {
                of_head.add(0.0, ahead.weight());
            }
            weight += batch.weight;
            learnt += batch.learnt;
            tokens += batch.tokens();
        }
        let loss = self.shared(loss, &mut of_head)? / weight;
        if total.is_empty() {
            total = self.no_gradients()?;
        }
        let layout = self.optimizer.layout(&total);
        let mut total = layout.join(total)?;
        sum_gradients(self.ranks, &mut total)?;
        for grad in total.values_mut() {
            *grad = grad.divide(weight as f32)?;
        }
        let norm = match self.config.clip {
            Some(max) => clip::clip(&mut total, max)?,
            None => clip::global_norm(&total)?,
        };
        let norm = f64::from(norm.item::<f32>()?);
        if !loss.is_finite() || !norm.is_finite() {
            return Err(Error::new(
                ErrorKind::Compute,
                format!(
                    "step {number}: the loss is {loss} and the norm of its gradients {norm}: a lower \
                     learning rate or clipping may help"
                ),
            ));
        }
        let mtp_loss = self.config.mtp.map(|_| of_head.value());
        let rate = self.optimizer.rate();
        self.optimizer
            .apply_joined_lazily(self.model, &layout, &total)?;
        let params = trainable(self.model)?;
        let params = params.iter().map(|(_, array)| array);
        mlx_core::eval(params.chain(self.optimizer.pending()))?;
        self.progress.step = number;
        self.progress.position = self.feed.position();
        self.progress.learnt_tokens = self.progress.learnt_tokens.saturating_add(learnt as u64);
        Ok(Event::Step {
            step: number,
            loss,
            mtp_loss,
            rate,
            norm,
            tokens,
            learnt_tokens: self.progress.learnt_tokens,
            seconds: started.elapsed().as_secs_f64(),
            peak_bytes: memory::peak()?,
        })
    }

    /// The content of a checkpoint's state.
    fn saved(&self, output: &Output) -> Saved {
        Saved {
            config: self.config.clone(),
            adapter: checkpoint::adapter_settings(&output.config),
            frozen: self.frozen.clone(),
            data: checkpoint::fingerprint(self.train),
            progress: self.progress,
        }
    }

    fn save(&self) -> Result<Option<PathBuf>> {
        self.check_parameters()?;
        let Some(output) = self.output.as_ref().filter(|_| self.writes()) else {
            return Ok(None);
        };
        let saved = self.saved(output);
        checkpoint::save(output, &saved, self.model, &self.optimizer).map(Some)
    }
}

fn both(a: ControlFlow<()>, b: ControlFlow<()>) -> ControlFlow<()> {
    if a.is_break() { a } else { b }
}
