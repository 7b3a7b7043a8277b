//! A session: a process that loads a checkpoint once and then answers each line of JSON with a line of JSON.
//!
//! All sides of a comparison are open at the same time and take turns. A side whose turn it is not
//! waits for its next line and computes nothing. The drivers are
//! `mlx-infer/examples/bench_session.rs` and the scripts `*_session.py` in `xtask/bench`. All
//! support two requests:
//!
//! - `{"op": "generate", "prompts": [[…]], "max_tokens": n}`: a greedy continuation of all prompts
//!   together, beyond end tokens. The answer has `prefill_s` (from the request to the last row's
//!   first token), `decode_s` (from the first row's first token to the last token of all) and
//!   `tokens`;
//! - `{"op": "classify", "prompts": [[…]], "batch": n}`: the likeliest next token of each prompt,
//!   `n` prompts at a time. The answer has `seconds` and `tokens`.
//!
//! The driver of this project supports six more. [`profile`](Session::profile), of prompts and
//! `max_tokens`, returns `nodes`. [`speculate`](Session::speculate) is `generate` with
//! `speculative` for each prompt. [`exact`](Session::exact) returns the bits of log probabilities,
//! and [`score`](Session::score) the log probabilities of another checkpoint.
//! [`answer_all`](Session::answer_all) continues texts. [`serve`](Session::serve) is `generate`
//! with rows that join and leave.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use super::profile::Node;

/// One side with a loaded checkpoint.
pub struct Session {
    name: &'static str,
    child: Child,
    // Closing it ends the process.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Its first answer: `load_s` and `versions`.
    pub hello: Value,
}

impl Session {
    /// Starts a driver and waits until its checkpoint is loaded.
    pub fn start(name: &'static str, mut command: Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {:?}", command.get_program()))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let mut session = Self {
            name,
            child,
            input,
            output: BufReader::new(output.context("a session has no output")?),
            hello: Value::Null,
        };
        session.hello = session.answer()?;
        Ok(session)
    }

    /// Continues prompts greedily.
    pub fn generate(&mut self, prompts: &[Vec<u32>], max_tokens: usize) -> Result<Generated> {
        let question = json!({"op": "generate", "prompts": prompts, "max_tokens": max_tokens});
        self.generated(&question, prompts.len(), max_tokens)
    }

    /// The same, with a setting of speculation for each prompt. Only this project's driver supports
    /// it.
    pub fn speculate(
        &mut self,
        prompts: &[Vec<u32>],
        speculative: &[Value],
        max_tokens: usize,
    ) -> Result<Generated> {
        let question = json!({
            "op": "generate", "prompts": prompts, "speculative": speculative, "max_tokens": max_tokens,
        });
        self.generated(&question, prompts.len(), max_tokens)
    }

    fn generated(
        &mut self,
        question: &Value,
        prompts: usize,
        max_tokens: usize,
    ) -> Result<Generated> {
        let mut answer = self.ask(question)?;
        let tokens: Vec<Vec<u32>> = serde_json::from_value(answer["tokens"].take())
            .with_context(|| format!("{}: tokens of an answer", self.name))?;
        // A side that ends early would seem fast.
        if tokens.len() != prompts || tokens.iter().any(|row| row.len() != max_tokens) {
            let lens: Vec<usize> = tokens.iter().map(Vec::len).collect();
            bail!(
                "{}: {} prompts were to get {max_tokens} tokens each and got {lens:?}",
                self.name,
                prompts
            );
        }
        let rates = answer["tokens_per_s"].as_array().into_iter().flatten();
        Ok(Generated {
            prefill_s: self.number(&answer, "prefill_s")?,
            decode_s: self.number(&answer, "decode_s")?,
            tokens_per_s: rates.filter_map(Value::as_f64).collect(),
            drafts: [&answer["drafted"], &answer["accepted"]].map(|n| n.as_u64().unwrap_or(0)),
            tokens,
        })
    }

    /// The likeliest next token of each prompt, computed for `batch` prompts at a time, and the
    /// seconds of it.
    pub fn classify(&mut self, prompts: &[Vec<u32>], batch: usize) -> Result<(f64, Vec<u32>)> {
        let mut answer =
            self.ask(&json!({"op": "classify", "prompts": prompts, "batch": batch}))?;
        let tokens: Vec<u32> = serde_json::from_value(answer["tokens"].take())
            .with_context(|| format!("{}: tokens of an answer", self.name))?;
        if tokens.len() != prompts.len() {
            bail!(
                "{}: {} prompts got {} answers",
                self.name,
                prompts.len(),
                tokens.len()
            );
        }
        Ok((self.number(&answer, "seconds")?, tokens))
    }

    /// The nodes of a continuation: of all of it if `max_tokens` is 1, and of the steps after the
    /// first token if it is larger. If it is 0, the nodes of a classification of all prompts
    /// together.
    pub fn profile(&mut self, prompts: &[Vec<u32>], max_tokens: usize) -> Result<Vec<Node>> {
        let mut answer =
            self.ask(&json!({"op": "profile", "prompts": prompts, "max_tokens": max_tokens}))?;
        serde_json::from_value(answer["nodes"].take())
            .with_context(|| format!("{}: nodes of an answer", self.name))
    }

    /// The answer to a request `exact`: for each prompt its tokens and the bits of their log
    /// probabilities.
    pub fn exact(&mut self, question: &Value) -> Result<Value> {
        Ok(self.ask(question)?["rows"].take())
    }

    /// Continues texts greedily, at most `rows` of them at a time. With one row, each begins when
    /// the one before has ended.
    pub fn answer_all(
        &mut self,
        prompts: &[&str],
        max_tokens: usize,
        rows: usize,
    ) -> Result<Answered> {
        let answer = self.ask(
            &json!({"op": "answer", "prompts": prompts, "max_tokens": max_tokens, "rows": rows}),
        )?;
        serde_json::from_value(answer).with_context(|| format!("{}: an answer", self.name))
    }

    /// Continues each prompt by its own number of tokens, at most `rows` of them at a time. Returns
    /// the seconds for all of them.
    pub fn serve(
        &mut self,
        prompts: &[Vec<u32>],
        max_tokens: &[usize],
        rows: usize,
    ) -> Result<f64> {
        let answer = self.ask(
            &json!({"op": "serve", "prompts": prompts, "max_tokens": max_tokens, "rows": rows}),
        )?;
        let tokens: Vec<Vec<u32>> = serde_json::from_value(answer["tokens"].clone())
            .with_context(|| format!("{}: tokens of an answer", self.name))?;
        if !tokens.iter().map(Vec::len).eq(max_tokens.iter().copied()) {
            bail!("{}: answers have other lengths than asked for", self.name);
        }
        self.number(&answer, "seconds")
    }

    /// The log probabilities of all tokens after each token of the prompts, of a checkpoint whose
    /// floating-point weights are converted to `dtype`.
    pub fn score(
        &mut self,
        model: &Path,
        dtype: &str,
        prompts: &[Vec<u32>],
    ) -> Result<Vec<Vec<Vec<f64>>>> {
        let mut answer =
            self.ask(&json!({"op": "score", "model": model, "dtype": dtype, "prompts": prompts}))?;
        serde_json::from_value(answer["logprobs"].take())
            .with_context(|| format!("{}: log probabilities of {}", self.name, model.display()))
    }

    /// The process id.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Bytes of memory that the process has now, if the system reports them.
    pub fn resident(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
        let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kibibytes * 1024)
    }

    /// Seconds of the load by the driver's own clock, without imports.
    pub fn load_s(&self) -> Result<f64> {
        self.number(&self.hello, "load_s")
    }

    fn number(&self, answer: &Value, name: &str) -> Result<f64> {
        let number = answer[name].as_f64();
        number.with_context(|| format!("{}: an answer without {name}", self.name))
    }

    fn ask(&mut self, request: &Value) -> Result<Value> {
        let input = self.input.as_mut().context("a session is asked")?;
        writeln!(input, "{request}").with_context(|| format!("{}: it has ended", self.name))?;
        input.flush()?;
        self.answer()
    }

    fn answer(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("{}: it has ended without an answer", self.name);
        }
        let answer: Value = serde_json::from_str(&line)
            .with_context(|| format!("{}: this is no JSON: {line}", self.name))?;
        match answer["error"].as_str() {
            Some(error) => bail!("{}: {error}", self.name),
            None => Ok(answer),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A driver ends when its input ends, but after an error it may still compute for long.
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The times and tokens of a generation.
pub struct Generated {
    pub prefill_s: f64,
    pub decode_s: f64,
    /// For each row; only this project's driver reports it.
    pub tokens_per_s: Vec<f64>,
    /// Drafted and accepted tokens; only this project's driver reports them.
    pub drafts: [u64; 2],
    pub tokens: Vec<Vec<u32>>,
}

/// The answers to texts.
#[derive(Deserialize)]
pub struct Answered {
    /// From the first request to the end of the last answer.
    pub seconds: f64,
    pub answers: Vec<Text>,
}

/// The text of an answer.
#[derive(Deserialize)]
pub struct Text {
    pub text: String,
    pub tokens: u64,
    /// Seconds from the request to the first piece of text that is not empty, and to the end. Known
    /// only if texts are continued one at a time.
    pub times: Option<(f64, f64)>,
}

/// `rows` prompts of `len` ids that exist in every checkpoint. No two prompts have the same
/// beginning.
pub fn prompts(rows: usize, len: usize) -> Vec<Vec<u32>> {
    // Steps of a prime through a part of the vocabulary without special tokens.
    let id = |row: usize, at: usize| 300 + ((at * 37 + row * 101) % 1500) as u32;
    (0..rows)
        .map(|row| (0..len).map(|at| id(row, at)).collect())
        .collect()
}

/// Runs every side `n` times in turns. The first side changes from turn to turn, so that no side always runs after the
/// same one. A side that returns nothing is not measured in this turn.
pub fn turns<T>(
    runs: u32,
    sides: usize,
    run: impl FnMut(usize, u32) -> Result<Option<T>>,
) -> Result<Vec<Vec<T>>> {
    turns_while(runs, sides, |_| true, run)
}

/// The same, as long as `goes_on` returns true; it is called before each turn.
pub fn turns_while<T>(
    runs: u32,
    sides: usize,
    mut goes_on: impl FnMut(u32) -> bool,
    mut run: impl FnMut(usize, u32) -> Result<Option<T>>,
) -> Result<Vec<Vec<T>>> {
    let mut found: Vec<Vec<T>> = (0..sides).map(|_| Vec::new()).collect();
    for number in 1..=runs {
        if !goes_on(number) {
            break;
        }
        for place in 0..sides {
            let side = (place + number as usize - 1) % sides;
            found[side].extend(run(side, number)?);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_take_turns_at_being_first() {
        let mut order = Vec::new();
        let found = turns(3, 2, |side, number| {
            order.push(side);
            Ok((side == 0 || number > 1).then_some(number))
        });
        assert_eq!(order, [0, 1, 1, 0, 0, 1]);
        assert_eq!(found.unwrap(), [vec![1, 2, 3], vec![2, 3]]);
        let two = turns_while(5, 2, |number| number < 3, |side, _| Ok(Some(side)));
        assert_eq!(two.unwrap(), [[0, 0], [1, 1]]);
    }

    #[test]
    fn no_two_prompts_begin_alike() {
        let prompts = prompts(64, 8);
        let mut first: Vec<u32> = prompts.iter().map(|prompt| prompt[0]).collect();
        first.sort_unstable();
        first.dedup();
        assert_eq!(first.len(), 64);
        assert!(prompts.iter().flatten().all(|id| (300..1800).contains(id)));
    }

    #[test]
    fn an_error_of_a_driver_is_told() {
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"echo '{"error": "no such model"}'"#]);
        let error = Session::start("peer", shell).err().unwrap();
        assert_eq!(error.to_string(), "peer: no such model");
        let mut silent = Command::new("sh");
        silent.args(["-c", ":"]);
        let error = Session::start("peer", silent).err().unwrap();
        assert!(error.to_string().contains("ended without an answer"));
    }
}
