//! Rows that decode while a long prompt is computed: their gaps before and meanwhile.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::client::Client;
use super::load::quantile;
use super::mixes::{Mix, Sizes};
use super::text;

/// Texts of a row before the prompt is sent.
const BEFORE: usize = 48;
/// Room for a row's prompt, in tokens.
const PROMPT: usize = 192;
/// The most tokens of a row.
const MOST: usize = 4096;
/// Prompts that are tried for a row.
const TRIES: usize = 50;
/// The longest wait for a row's tokens.
const PATIENCE: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(1);

/// The times of a run.
pub struct Stall {
    /// The gap between tokens of a row, 95th percentile, in seconds: without a prompt, and while it
    /// is computed.
    pub gap_s: [f64; 2],
    /// From sending the prompt to its first token.
    pub first_s: f64,
}

/// The times at which a row's tokens came.
type Times = Mutex<Vec<Instant>>;

fn count(times: &Times) -> usize {
    times.lock().unwrap_or_else(PoisonError::into_inner).len()
}

/// Lets `rows` rows decode, then sends a prompt.
///
/// # Errors
/// A request fails, or a row ends before the prompt is computed.
pub fn measure(client: &Client, rows: usize, run: u64, sizes: Sizes) -> Result<Stall> {
    // Greedy answers may repeat a special token for ever.
    let client = &client
        .clone()
        .with("temperature", 1.into())
        .with("seed", (run >> 40).into());
    let prompt = Mix::Stall.tasks(run, 1, sizes)?.remove(0).turns.remove(0);
    let most = MOST.min(sizes.context.saturating_sub(PROMPT));
    let mut number = (run >> 32) as usize;
    let rows = (0..rows).map(|_| Ok((talkative(client, &mut number)?, Times::default())));
    let rows: Vec<(Value, Times)> = rows.collect::<Result<_>>()?;
    let (stop, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let threads: Vec<_> = rows
            .iter()
            .map(|(prompt, times)| {
                let (stop, ended) = (&stop, &ended);
                scope.spawn(move || {
                    let outcome = client.stream(prompt, most, |now| {
                        times
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(now);
                        match stop.load(Ordering::Acquire) {
                            true => ControlFlow::Break(()),
                            false => ControlFlow::Continue(()),
                        }
                    });
                    ended.store(true, Ordering::Release);
                    outcome.map(drop)
                })
            })
            .collect();
        let have = |least: &dyn Fn(&Times) -> bool| {
            let start = Instant::now();
            while !rows.iter().all(|(_, times)| least(times)) {
                if ended.load(Ordering::Acquire) {
                    bail!("a row of at most {most} tokens ended before the prompt was computed");
                }
                if start.elapsed() > PATIENCE {
                    bail!("a row got no token for {PATIENCE:?}");
                }
                thread::sleep(PAUSE);
            }
            Ok(())
        };
        let measured = (|| {
            have(&|times| count(times) > 0)?;
            let begin = Instant::now();
            have(&|times| count(times) > BEFORE)?;
            let sent = Instant::now();
            let answer = client.complete(&prompt.prompt[..].into(), 1)?;
            let answered = sent + Duration::from_secs_f64(answer.first_s);
            have(&|times| {
                let times = times.lock().unwrap_or_else(PoisonError::into_inner);
                times.last().is_some_and(|&last| last > answered)
            })?;
            anyhow::Ok((begin, sent, answered))
        })();
        stop.store(true, Ordering::Release);
        for thread in threads {
            let row = thread.join().ok().context("a client panicked")?;
            // The reason why a row ended says more than that it did.
            row?;
        }
        let (begin, sent, answered) = measured?;
        Ok(Stall {
            gap_s: gaps(&rows, begin, sent, answered),
            first_s: (answered - sent).as_secs_f64(),
        })
    })
}

/// A prompt whose answer has a text for nearly each token. Models may answer with special tokens,
/// which have none.
fn talkative(client: &Client, number: &mut usize) -> Result<Value> {
    for _ in 0..TRIES {
        let prompt = text(*number).into();
        *number += 1;
        let outcome = client.complete(&prompt, BEFORE)?;
        // A fast server may send the texts of several tokens at once.
        if outcome.text.chars().count() >= BEFORE {
            return Ok(prompt);
        }
    }
    bail!("{TRIES} prompts were answered with tokens without text")
}

/// The 95th percentiles of gaps that lie between `begin` and `sent`, and of those that overlap the
/// time from `sent` to `answered`.
fn gaps(rows: &[(Value, Times)], begin: Instant, sent: Instant, answered: Instant) -> [f64; 2] {
    let (mut before, mut during) = (Vec::new(), Vec::new());
    for (_, times) in rows {
        let times = times.lock().unwrap_or_else(PoisonError::into_inner);
        for pair in times.windows(2) {
            let gap = (pair[1] - pair[0]).as_secs_f64();
            if pair[0] >= begin && pair[1] <= sent {
                before.push(gap);
            } else if pair[1] > sent && pair[0] < answered {
                during.push(gap);
            }
        }
    }
    [before, during].map(|gaps| quantile(gaps.into_iter(), 0.95))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_divided_at_the_prompt() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let times = [0, 10, 20, 30, 130, 230, 240, 250].map(at).to_vec();
        let rows = [(Value::Null, Mutex::new(times))];
        let found = gaps(&rows, at(5), at(35), at(235));
        assert!((found[0] - 0.01).abs() < 1e-9, "{found:?}");
        assert!((found[1] - 0.1).abs() < 1e-9, "{found:?}");
    }
}
