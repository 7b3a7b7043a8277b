//! Output of the commands: text and documents on stdout, statistics on stderr.

use std::ops::ControlFlow;

use mlx_infer::convert::NonFinite;
use mlx_infer::{
    Error, ErrorKind, Event, FinishReason, Frontend, GenerateOptions, Generated, OnEvent, console,
};
use serde_json::{Value, json};

use super::{Result, interrupt};

/// Writes text to the standard output at once.
pub(super) fn print(text: &str) -> Result {
    Ok(console::print(text)?)
}

/// Writes one JSON document.
pub(super) fn print_json(document: &Value) -> Result {
    print(&format!("{document}\n"))
}

/// A sentence about the NaN and infinite weights of a checkpoint.
pub(super) fn non_finite(found: &NonFinite) -> String {
    format!(
        "{} elements of {} tensors are NaN or infinite, first in {}",
        found.elements, found.tensors, found.first
    )
}

/// The same as JSON.
pub(super) fn non_finite_json(found: &NonFinite) -> Value {
    json!({"elements": found.elements, "tensors": found.tensors, "first": found.first})
}

/// Token ids in the form of `--tokens`.
pub(super) fn id_list(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// The keywords of a JSON schema that have no effect. A fault of the schema is left to the generation.
pub(super) fn ignored_keywords(frontend: &Frontend, options: &GenerateOptions) -> Vec<String> {
    let names = (options.grammar.as_ref()).map(|grammar| frontend.ignored_keywords(grammar));
    names.and_then(std::result::Result::ok).unwrap_or_default()
}

/// Warns of keywords of a JSON schema that have no effect.
pub(super) fn warn_of_keywords(frontend: &Frontend, options: &GenerateOptions) {
    let names = ignored_keywords(frontend, options);
    if !names.is_empty() {
        let names = names.join(", ");
        console::note(&format!(
            "warning: parts of the JSON schema have no effect: {names}"
        ));
    }
}

/// Runs a generation until it ends or Ctrl-C cancels it. `run` calls its argument with each event. The text is written
/// as it arrives; with `json` one document is written at the end.
pub(super) fn show(
    json: bool,
    run: impl FnOnce(&mut OnEvent<'_>) -> mlx_infer::Result<Generated>,
) -> Result<Generated> {
    let _running = interrupt::running();
    let mut written = Ok(());
    let generated = run(&mut |event: &Event| {
        if json || event.text().is_empty() {
            return ControlFlow::Continue(());
        }
        written = print(event.text());
        if written.is_ok() {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })?;
    written?;
    if json {
        print_json(&generated.to_json())?;
    } else if generated.text.is_some() {
        print("\n")?;
    } else {
        let ids: Vec<u32> = generated.tokens.iter().map(|choice| choice.id).collect();
        print(&format!("{}\n", id_list(&ids)))?;
    }
    Ok(generated)
}

/// Writes counts, times and memory to stderr.
pub(super) fn print_stats(generated: &Generated) {
    let m = &generated.metrics;
    let cached = match m.cached_tokens {
        0 => String::new(),
        n => format!(" ({n} computed before)"),
    };
    let (drafts, positions) = match m.drafted_tokens {
        0 => Default::default(),
        n => (
            format!(
                " ({} of {n} drafted ones accepted)",
                m.accepted_draft_tokens
            ),
            format!(
                "drafts: {:?} accepted by position, {:.2} tokens a step\n",
                m.accepted_by_position(),
                m.tokens_per_step(),
            ),
        ),
    };
    console::note(&format!(
        "prompt: {} tokens{cached}, {:.1} tokens/s\ngeneration: {} tokens{drafts}, {:.1} tokens/s, {}\n\
         {positions}load: {:.3} s, first token: {:.3} s, total: {:.3} s\npeak memory: {}",
        m.prompt_tokens,
        m.prefill_tokens_per_s(),
        m.decode_tokens,
        m.decode_tokens_per_s(),
        generated.reason.as_str(),
        m.load.as_secs_f64(),
        m.time_to_first_token.as_secs_f64(),
        m.total.as_secs_f64(),
        bytes(m.peak_memory_bytes),
    ));
}

/// A number of bytes with a unit.
pub(super) fn bytes(n: usize) -> String {
    match n as f64 {
        n if n >= 1e9 => format!("{:.2} GB", n / 1e9),
        n if n >= 1e6 => format!("{:.1} MB", n / 1e6),
        n => format!("{:.1} kB", n / 1e3),
    }
}

/// An error if Ctrl-C ended the generation.
pub(super) fn not_cancelled(generated: &Generated) -> Result {
    match generated.reason {
        FinishReason::Cancelled => Err(Error::new(ErrorKind::Cancelled, "cancelled").into()),
        FinishReason::Stop | FinishReason::Length | FinishReason::Repetition => Ok(()),
    }
}
