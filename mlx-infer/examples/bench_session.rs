//! Our side of `cargo xtask bench`: loads a checkpoint, then answers each line of JSON on stdin with one on stdout.
//!
//! ```text
//! cargo run --release -p mlx-infer --example bench_session -- CHECKPOINT [MAX_DRAFT]
//! {"op": "generate", "prompts": [[300, 337]], "max_tokens": 4}
//! ```
//!
//! `xtask/src/bench/session.rs` says what is asked and answered.

use std::io::{BufRead, Write, stdin, stdout};
use std::process::ExitCode;
use std::time::Instant;

use mlx_core::profile;
use mlx_infer::{
    ClassifyOptions, Error, ErrorKind, GenerateOptions, Limits, LoadOptions, LoadedModel, Prompt,
    Request, Result, Speculative,
};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
enum Question {
    Generate {
        prompts: Vec<Vec<u32>>,
        max_tokens: usize,
    },
    Classify {
        prompts: Vec<Vec<u32>>,
        batch: usize,
    },
    Profile {
        prompts: Vec<Vec<u32>>,
        max_tokens: usize,
    },
    /// As `Generate`, with a setting for each prompt.
    Speculate {
        prompts: Vec<Vec<u32>>,
        speculative: Vec<Speculative>,
        max_tokens: usize,
    },
}

fn main() -> ExitCode {
    // As in the command.
    #[cfg(feature = "mimalloc")]
    mlx_core::memory::use_mimalloc();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (model, max_draft) = match &arguments[..] {
        [model] => (model, Some(0)),
        [model, max_draft] => (model, max_draft.parse().ok()),
        _ => (&String::new(), None),
    };
    let Some(max_draft) = max_draft else {
        eprintln!("usage: bench_session CHECKPOINT [MAX_DRAFT]");
        return ExitCode::from(2);
    };
    match serve(model, max_draft) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{}", json!({"error": error.to_string()}));
            ExitCode::FAILURE
        }
    }
}

fn serve(model: &str, max_draft: usize) -> Result<()> {
    let started = Instant::now();
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
            } => generate(&model, prompts, &[], max_tokens)?,
            Question::Classify { prompts, batch } => classify(&model, prompts, batch)?,
            Question::Profile {
                prompts,
                max_tokens,
            } => profile(&model, &prompts, max_tokens)?,
            Question::Speculate {
                prompts,
                speculative,
                max_tokens,
            } => generate(&model, prompts, &speculative, max_tokens)?,
        })?;
    }
    Ok(())
}

/// Continues all prompts at a time; those without a setting do not speculate.
fn generate(
    model: &LoadedModel,
    prompts: Vec<Vec<u32>>,
    speculative: &[Speculative],
    max_tokens: usize,
) -> Result<Value> {
    // All rows at a time, and their prompts too: what is measured is a step of so many rows.
    let limits = Limits {
        rows: prompts.len(),
        prefill_tokens: prompts.iter().map(Vec::len).sum(),
        // A prompt that was computed before is computed again, as on the other sides.
        prefix_bytes: 0,
        ..Limits::default()
    };
    let options = GenerateOptions {
        max_tokens,
        ignore_eos: true,
        ..Default::default()
    };
    let settings = speculative.iter().copied();
    let settings = settings.chain(std::iter::repeat(Speculative::Off));
    let requests = prompts
        .into_iter()
        .zip(settings)
        .map(|(prompt, speculative)| {
            let options = GenerateOptions {
                speculative,
                ..options.clone()
            };
            Request::new(prompt, options)
        })
        .collect();
    let (mut rates, mut drafted, mut accepted) = (Vec::new(), 0, 0);
    let (mut tokens, mut first, mut all_first, mut last) = (Vec::new(), f64::MAX, 0.0f64, 0.0f64);
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
        "prefill_s": all_first, "decode_s": last - first, "tokens": tokens, "tokens_per_s": rates, "drafted": drafted, "accepted": accepted,
    }))
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

/// What all tokens take, less what the first takes if there are more. Of no tokens: a classification of all prompts at a time.
fn profile(model: &LoadedModel, prompts: &[Vec<u32>], max_tokens: usize) -> Result<Value> {
    let of = |max_tokens| {
        profile::start();
        let done = match max_tokens {
            0 => classify(model, prompts.to_vec(), prompts.len()),
            _ => generate(model, prompts.to_vec(), &[], max_tokens),
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
