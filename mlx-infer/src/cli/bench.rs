//! `mlx-infer bench`.

use clap::Args;
use mlx_infer::{
    BatchResult, Error, ErrorKind, GenerateOptions, Limits, LoadedModel, Prompt, Request, console,
};
use serde_json::{Value, json};

use super::{Failure, Result, args, interrupt, output};

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct BenchArgs {
    #[command(flatten)]
    load: args::LoadArgs,
    /// Numbers of requests that are computed together
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "1,4,16"
    )]
    rows: Vec<usize>,
    /// Tokens of each prompt [default: 128, 512 and 2048, as far as the context goes]
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    prompt: Vec<usize>,
    /// Tokens of each answer
    #[arg(long, value_name = "N", default_value_t = 64)]
    tokens: usize,
    /// Measurements of each line, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 3)]
    repeat: usize,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
Prompts are ids that differ from row to row; no prefix is kept, and nothing ends an answer early. The
prompt speed is all prompt tokens by the time to the last first token; the decode speed is all tokens
after the first ones by the time from the first token to the last. The first line is measured once
more before, for caches of the device. Memory is the most that arrays took, with the weights.";

/// Lengths of prompts that are measured without `--prompt`.
const PROMPTS: [usize; 3] = [128, 512, 2048];

/// One measurement.
#[derive(Clone, Copy)]
struct Measured {
    prompt_speed: f64,
    decode_speed: f64,
    first_token: f64,
    peak: usize,
}

impl BenchArgs {
    pub(super) fn run(self) -> Result {
        for (name, values) in [
            ("rows", &self.rows),
            ("prompt", &self.prompt),
            ("tokens", &vec![self.tokens]),
            ("repeat", &vec![self.repeat]),
        ] {
            if values.contains(&0) {
                return Err(Failure::Usage(format!(
                    "{name} must be at least 1, given 0"
                )));
            }
        }
        if self.tokens < 2 {
            let message = "tokens must be at least 2: the first belongs to the prompt";
            return Err(Failure::Usage(message.to_owned()));
        }
        let cancel = interrupt::cancels()?;
        let model = self.load.load()?;
        let room = model.info().max_positions.unwrap_or(usize::MAX);
        let prompts = self.prompts(room)?;
        let options = GenerateOptions {
            max_tokens: self.tokens,
            ignore_eos: true,
            cancel,
            ..Default::default()
        };
        let _running = interrupt::running();
        let mut lines = Vec::new();
        // Kernels are compiled and buffers are made by the first run.
        measure(&model, self.rows[0], prompts[0], &options)?;
        if !self.json {
            output::print(&format!(
                "{:>6} {:>8} {:>8} {:>14} {:>14} {:>14} {:>12}\n",
                "rows", "prompt", "tokens", "prompt tok/s", "decode tok/s", "first token", "memory"
            ))?;
        }
        for &prompt in &prompts {
            for &rows in &self.rows {
                let runs = (0..self.repeat).map(|_| measure(&model, rows, prompt, &options));
                let median = median(runs.collect::<Result<_>>()?);
                if !self.json {
                    output::print(&format!(
                        "{rows:>6} {prompt:>8} {:>8} {:>14.1} {:>14.1} {:>12.3} s {:>12}\n",
                        self.tokens,
                        median.prompt_speed,
                        median.decode_speed,
                        median.first_token,
                        output::bytes(median.peak)
                    ))?;
                }
                lines.push(document(rows, prompt, self.tokens, median));
            }
        }
        if self.json {
            let document = json!({
                "model": self.load.files()?.describe(),
                "architecture": model.info().model_type,
                "weight_bytes": model.info().weight_bytes,
                "repeat": self.repeat,
                "lines": lines,
            });
            output::print_json(&document)?;
        } else {
            let weights = output::bytes(model.info().weight_bytes);
            console::note(&format!(
                "weights: {weights}; the median of {} runs",
                self.repeat
            ));
        }
        Ok(())
    }

    /// The lengths of prompts, each of which fits with its answer.
    fn prompts(&self, room: usize) -> Result<Vec<usize>> {
        let fits = |&prompt: &usize| prompt.saturating_add(self.tokens) <= room;
        if let Some(long) = self.prompt.iter().find(|prompt| !fits(prompt)) {
            return Err(Failure::Usage(format!(
                "a prompt of {long} tokens and {} more exceed the model's {room} positions",
                self.tokens
            )));
        }
        if !self.prompt.is_empty() {
            return Ok(self.prompt.clone());
        }
        let usual: Vec<usize> = PROMPTS.into_iter().filter(fits).collect();
        match usual.is_empty() {
            false => Ok(usual),
            true => Err(Failure::Usage(format!(
                "the model has {room} positions: give lengths with --prompt and --tokens"
            ))),
        }
    }
}

/// Computes `rows` answers to prompts of `prompt` tokens.
fn measure(
    model: &LoadedModel,
    rows: usize,
    prompt: usize,
    options: &GenerateOptions,
) -> Result<Measured> {
    let limits = Limits {
        rows,
        prefix_bytes: 0,
        ..Limits::default()
    };
    let vocab = model.info().vocab.unsigned_abs() as usize;
    // Numbers of a linear congruential generator: the same in each run, and others in each row.
    let ids = |row: usize| {
        let mut state = row as u64 + 1;
        let ids = (0..prompt).map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % vocab
        });
        ids.map(|id| id as u32).collect::<Vec<u32>>()
    };
    let mut batch = model.batch(&limits)?;
    for row in 0..rows {
        batch.submit(row, Request::new(Prompt::Tokens(ids(row)), options.clone()));
    }
    let mut results: Vec<BatchResult> = Vec::with_capacity(rows);
    while !batch.is_idle() {
        results.extend(batch.advance().into_iter().map(|(_, result)| result));
    }
    if options.cancel.is_cancelled() {
        return Err(Error::new(ErrorKind::Cancelled, "cancelled").into());
    }
    let mut metrics = Vec::with_capacity(rows);
    for result in results {
        metrics.push(result.into_generated()?.metrics);
    }
    let seconds = |of: &dyn Fn(&mlx_infer::Metrics) -> std::time::Duration| {
        metrics
            .iter()
            .map(|one| of(one).as_secs_f64())
            .collect::<Vec<f64>>()
    };
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let first = seconds(&|one| one.time_to_first_token);
    let ends = seconds(&|one| one.time_to_first_token + one.decode);
    let decoded: usize = metrics.iter().map(|one| one.decode_tokens - 1).sum();
    let began = first.iter().copied().fold(f64::INFINITY, f64::min);
    Ok(Measured {
        prompt_speed: (rows * prompt) as f64 / most(&first).max(1e-9),
        decode_speed: decoded as f64 / (most(&ends) - began).max(1e-9),
        first_token: most(&first),
        peak: metrics
            .iter()
            .map(|one| one.peak_memory_bytes)
            .max()
            .unwrap_or(0),
    })
}

/// The median of each number.
fn median(runs: Vec<Measured>) -> Measured {
    let of = |number: fn(&Measured) -> f64| {
        let mut numbers: Vec<f64> = runs.iter().map(number).collect();
        numbers.sort_by(f64::total_cmp);
        numbers[numbers.len() / 2]
    };
    Measured {
        prompt_speed: of(|one| one.prompt_speed),
        decode_speed: of(|one| one.decode_speed),
        first_token: of(|one| one.first_token),
        peak: runs.iter().map(|one| one.peak).max().unwrap_or(0),
    }
}

fn document(rows: usize, prompt: usize, tokens: usize, measured: Measured) -> Value {
    json!({
        "rows": rows,
        "prompt_tokens": prompt,
        "new_tokens": tokens,
        "prompt_tokens_per_s": measured.prompt_speed,
        "decode_tokens_per_s": measured.decode_speed,
        "first_token_s": measured.first_token,
        "peak_memory_bytes": measured.peak,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_each_number() {
        let run = |a, b, c, peak| Measured {
            prompt_speed: a,
            decode_speed: b,
            first_token: c,
            peak,
        };
        let median = median(vec![
            run(1.0, 9.0, 3.0, 5),
            run(3.0, 7.0, 1.0, 4),
            run(2.0, 8.0, 2.0, 3),
        ]);
        assert_eq!((median.prompt_speed, median.decode_speed), (2.0, 8.0));
        assert_eq!((median.first_token, median.peak), (2.0, 5));
    }
}
