//! The process of this project in `cargo xtask bench`: loads a checkpoint, then answers each line
//! of JSON on stdin with one on stdout.
//!
//! ```text
//! cargo run --release -p mlx-infer --example bench_session -- CHECKPOINT [MAX_DRAFT [DEVICE]]
//! {"op": "generate", "prompts": [[300, 337]], "max_tokens": 4}
//! ```
//!
//! `xtask/src/bench/session.rs` defines the questions and the answers.

use std::io::{BufRead, Write, stdin, stdout};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Instant;

use mlx_core::{DType, Device, profile};
use mlx_infer::{
    ClassifyOptions, Error, ErrorKind, GenerateOptions, Limits, LoadOptions, LoadedModel, Prompt,
    Request, Result, SamplingParams, ScoreOptions, Speculative,
};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
enum Question {
    Generate {
        prompts: Vec<Vec<u32>>,
        max_tokens: usize,
        /// The setting of each prompt.
        #[serde(default)]
        speculative: Vec<Speculative>,
    },
    Classify {
        prompts: Vec<Vec<u32>>,
        batch: usize,
    },
    Profile {
        prompts: Vec<Vec<u32>>,
        max_tokens: usize,
    },
    /// As `Generate`, in steps of at most `batch` rows; returns the bits of the log probabilities.
    /// Every other row is sampled, the others are greedy.
    Exact {
        prompts: Vec<Vec<u32>>,
        max_tokens: usize,
        batch: usize,
        /// Most tokens of prompts that are computed together.
        step_tokens: usize,
        /// Tokens of a prompt that are computed at a time.
        prefill_chunk: usize,
    },
    /// Continues each prompt by its own number of tokens, at most `rows` of them at a time: rows join and leave.
    Serve {
        prompts: Vec<Vec<u32>>,
        max_tokens: Vec<usize>,
        rows: usize,
    },
    /// Continues texts beyond end tokens, at most `rows` at a time.
    Answer {
        prompts: Vec<String>,
        max_tokens: usize,
        rows: usize,
    },
    /// The log probabilities of all tokens after each token of the prompts, of the checkpoint in
    /// `model`, whose floating-point weights are converted to `dtype`.
    Score {
        model: String,
        dtype: String,
        prompts: Vec<Vec<u32>>,
    },
}

fn main() -> ExitCode {
    // The allocator that the command uses.
    #[cfg(feature = "mimalloc")]
    mlx_core::memory::use_mimalloc();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (model, max_draft, device) = match &arguments[..] {
        [model] => (model, Some(0), None),
        [model, max_draft] => (model, max_draft.parse().ok(), None),
        [model, max_draft, device] => (model, max_draft.parse().ok(), Some(&device[..])),
        _ => (&String::new(), None, None),
    };
    let device = match device {
        None => Some(None),
        Some("cpu") => Some(Some(Device::CPU)),
        Some("gpu") => Some(Some(Device::GPU)),
        Some(_) => None,
    };
    let (Some(max_draft), Some(device)) = (max_draft, device) else {
        eprintln!("usage: bench_session CHECKPOINT [MAX_DRAFT [cpu|gpu]]");
        return ExitCode::from(2);
    };
    match serve(model, max_draft, device) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{}", json!({"error": error.to_string()}));
            ExitCode::FAILURE
        }
    }
}

fn serve(model: &str, max_draft: usize, device: Option<Device>) -> Result<()> {
    let started = Instant::now();
    if let Some(device) = device {
        device.set_default()?;
    }
    let options = LoadOptions {
        max_draft,
        ..LoadOptions::default()
    };
    let model = LoadedModel::load(model, options)?;
    let load_s = started.elapsed().as_secs_f64();
    say(&json!({"load_s": load_s, "versions": {"mlx-infer": env!("CARGO_PKG_VERSION")}}))?;
    for line in stdin().lock().lines() {
        let line = line.map_err(|error| io("cannot read a question", error))?;
        let question = serde_json::from_str(&line)
            .map_err(|error| Error::new(ErrorKind::Argument, format!("no question: {error}")))?;
        say(&match question {
            Question::Generate {
                prompts,
                max_tokens,
                speculative,
            } => together(&model, prompts, &speculative, max_tokens)?,
            Question::Classify { prompts, batch } => classify(&model, prompts, batch)?,
            Question::Profile {
                prompts,
                max_tokens,
            } => profile(&model, &prompts, max_tokens)?,
            Question::Exact {
                prompts,
                max_tokens,
                batch,
                step_tokens,
                prefill_chunk,
            } => {
                let limits = Limits {
                    rows: batch,
                    step_tokens: Some(step_tokens),
                    prefix_bytes: 0,
                    ..Limits::default()
                };
                exact(&model, prompts, max_tokens, prefill_chunk, &limits)?
            }
            Question::Serve {
                prompts,
                max_tokens,
                rows,
            } => generate(&model, prompts, &[], &max_tokens, Some(rows))?,
            Question::Answer {
                prompts,
                max_tokens,
                rows,
            } => answer(&model, prompts, max_tokens, rows)?,
            Question::Score {
                model,
                dtype,
                prompts,
            } => score(&model, &dtype, prompts)?,
        })?;
    }
    Ok(())
}

/// Continues all prompts at the same time.
fn together(
    model: &LoadedModel,
    prompts: Vec<Vec<u32>>,
    speculative: &[Speculative],
    max_tokens: usize,
) -> Result<Value> {
    let max_tokens = vec![max_tokens; prompts.len()];
    generate(model, prompts, speculative, &max_tokens, None)
}

/// Continues each prompt by its own number of tokens, at most `rows` at a time. Prompts without a
/// setting do not speculate.
fn generate(
    model: &LoadedModel,
    prompts: Vec<Vec<u32>>,
    speculative: &[Speculative],
    max_tokens: &[usize],
    rows: Option<usize>,
) -> Result<Value> {
    let mut limits = Limits {
        // The other programs compute a repeated prompt again, so this one does too.
        prefix_bytes: 0,
        ..Limits::default()
    };
    match rows {
        Some(rows) => limits.rows = rows,
        // All rows and all prompts at the same time: the benchmark measures a step of this many
        // rows.
        None => {
            limits.rows = prompts.len();
            limits.step_tokens = Some(prompts.iter().map(Vec::len).sum());
        }
    }
    let settings = speculative.iter().copied();
    let settings = settings.chain(std::iter::repeat(Speculative::Off));
    let requests = prompts
        .into_iter()
        .zip(settings)
        .zip(max_tokens)
        .map(|((prompt, speculative), &max_tokens)| {
            let options = GenerateOptions {
                max_tokens,
                ignore_eos: true,
                speculative,
                ..Default::default()
            };
            Request::new(prompt, options)
        })
        .collect();
    let (mut rates, mut drafted, mut accepted) = (Vec::new(), 0, 0);
    let (mut tokens, mut first, mut all_first, mut last) = (Vec::new(), f64::MAX, 0.0f64, 0.0f64);
    let started = Instant::now();
    for result in model.batch_generate(requests, &limits)? {
        let generated = result.into_generated()?;
        let start = generated.metrics.time_to_first_token.as_secs_f64();
        first = first.min(start);
        all_first = all_first.max(start);
        last = last.max(start + generated.metrics.decode.as_secs_f64());
        rates.push(generated.metrics.decode_tokens_per_s());
        drafted += generated.metrics.drafted_tokens;
        accepted += generated.metrics.accepted_draft_tokens;
        tokens.push(generated.tokens.iter().map(|t| t.id).collect::<Vec<_>>());
    }
    Ok(json!({
        "seconds": started.elapsed().as_secs_f64(), "prefill_s": all_first, "decode_s": last - first, "tokens": tokens, "tokens_per_s": rates, "drafted": drafted, "accepted": accepted,
    }))
}

/// Continues texts with the limits of a server. With one row each text is read as a stream, which
/// gives its times.
fn answer(
    model: &LoadedModel,
    prompts: Vec<String>,
    max_tokens: usize,
    rows: usize,
) -> Result<Value> {
    let options = GenerateOptions {
        max_tokens,
        ignore_eos: true,
        ..Default::default()
    };
    let limits = Limits {
        rows,
        ..Limits::default()
    };
    let mut answers = Vec::with_capacity(prompts.len());
    let started = Instant::now();
    if rows == 1 {
        for prompt in prompts {
            let (start, mut first) = (Instant::now(), None);
            let generated = model.generate(prompt, &options)?.run(|event| {
                if !event.text().is_empty() {
                    first.get_or_insert_with(|| start.elapsed());
                }
                ControlFlow::Continue(())
            })?;
            let whole = start.elapsed();
            let times = (first.unwrap_or(whole).as_secs_f64(), whole.as_secs_f64());
            let tokens = generated.tokens.len();
            answers.push(json!({"text": generated.text, "tokens": tokens, "times": times}));
        }
    } else {
        let requests = prompts
            .into_iter()
            .map(|prompt| Request::new(prompt, options.clone()));
        for result in model.batch_generate(requests.collect(), &limits)? {
            let generated = result.into_generated()?;
            let tokens = generated.tokens.len();
            answers.push(json!({"text": generated.text, "tokens": tokens}));
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    Ok(json!({"seconds": seconds, "answers": answers}))
}

/// The tokens of each row, and the bits of their log probabilities.
fn exact(
    model: &LoadedModel,
    prompts: Vec<Vec<u32>>,
    max_tokens: usize,
    prefill_chunk: usize,
    limits: &Limits,
) -> Result<Value> {
    let requests = (0..).zip(prompts).map(|(row, prompt)| {
        let sampling = match row % 2 {
            0 => SamplingParams::default(),
            _ => SamplingParams {
                temperature: 0.8,
                top_p: 0.95,
                seed: Some(row),
                ..SamplingParams::default()
            },
        };
        let options = GenerateOptions {
            sampling,
            max_tokens,
            prefill_chunk,
            ignore_eos: true,
            logprobs: Some(0),
            ..Default::default()
        };
        Request::new(prompt, options)
    });
    let mut rows = Vec::new();
    for result in model.batch_generate(requests.collect(), limits)? {
        let tokens = result.into_generated()?.tokens;
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        let bits = tokens.iter().map(|token| {
            let missing = || Error::new(ErrorKind::Argument, "a token without a log probability");
            token.logprob.map(f32::to_bits).ok_or_else(missing)
        });
        rows.push(json!([ids, bits.collect::<Result<Vec<_>>>()?]));
    }
    Ok(json!({"rows": rows}))
}

/// The log probabilities of all tokens, in the order of their ids, after each token of the prompts.
fn score(model: &str, dtype: &str, prompts: Vec<Vec<u32>>) -> Result<Value> {
    let dtype = DType::ALL.into_iter().find(|known| known.name() == dtype);
    let options = LoadOptions {
        dtype: Some(dtype.ok_or_else(|| Error::new(ErrorKind::Argument, "unknown dtype"))?),
        ..LoadOptions::default()
    };
    let model = LoadedModel::load(model, options)?;
    let vocabulary = model.info().vocab as usize;
    let options = ScoreOptions {
        top: vocabulary,
        top_each: vocabulary,
        ..ScoreOptions::default()
    };
    let mut all = Vec::new();
    for prompt in prompts {
        let score = model.score(Prompt::Tokens(prompt), &options)?;
        // The first token has no log probabilities.
        let rows = score.top.into_iter().skip(1).chain([score.next]);
        let rows = rows.map(|mut row| {
            row.sort_unstable_by_key(|(id, _)| *id);
            row.into_iter().map(|(_, logprob)| logprob).collect()
        });
        all.push(rows.collect::<Vec<Vec<f32>>>());
    }
    Ok(json!({"logprobs": all}))
}

fn classify(model: &LoadedModel, prompts: Vec<Vec<u32>>, batch: usize) -> Result<Value> {
    let batches: Vec<Vec<Prompt>> = prompts
        .chunks(batch.max(1))
        .map(|chunk| chunk.iter().cloned().map(Prompt::Tokens).collect())
        .collect();
    let options = ClassifyOptions::default();
    let started = Instant::now();
    let mut tokens = Vec::new();
    for batch in batches {
        for result in model.classify(batch, &options)? {
            tokens.push(result?.token);
        }
    }
    Ok(json!({"seconds": started.elapsed().as_secs_f64(), "tokens": tokens}))
}

/// The time of all tokens, less that of the first if there are several. With `max_tokens` 0: the
/// time to classify all prompts together.
fn profile(model: &LoadedModel, prompts: &[Vec<u32>], max_tokens: usize) -> Result<Value> {
    let of = |max_tokens| {
        profile::start();
        let done = match max_tokens {
            0 => classify(model, prompts.to_vec(), prompts.len()),
            _ => together(model, prompts.to_vec(), &[], max_tokens),
        };
        done.map(|_| profile::end())
    };
    let first = match max_tokens {
        ..=1 => Vec::new(),
        _ => of(1)?,
    };
    let nodes: Vec<Value> = of(max_tokens)?
        .iter()
        .map(|node| {
            let before = first.iter().find(|other| other.name == node.name);
            let (times, seconds) = before.map_or((0, 0.0), |other| (other.times, other.seconds));
            json!({
                "name": node.name,
                "times": node.times.saturating_sub(times),
                "seconds": node.seconds - seconds,
            })
        })
        .collect();
    Ok(json!({"nodes": nodes}))
}

fn say(answer: &Value) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{answer}")
        .and_then(|()| out.flush())
        .map_err(|error| io("cannot answer", error))
}

fn io(what: &str, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, what).with_source(error)
}
