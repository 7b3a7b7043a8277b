//! The sides of `bench cuda`: sessions of this library and of mlx-lm, llama.cpp's own benchmark, and recorded figures.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::program;
use super::work::{PROMPT, SERVED_ROWS, Work, served, steps};
use crate::bench::scripts;
use crate::bench::session::Session;
use crate::python;

/// The longest that a run of llama.cpp's benchmark may take.
const LIMIT: Duration = Duration::from_secs(120);

/// The name of this project's side.
pub const OURS: &str = "ours";

/// A side of the comparison.
pub enum Side {
    /// A process that stays loaded, and the command that starts another one.
    Session {
        name: &'static str,
        start: Box<dyn Fn() -> Command>,
        session: Session,
    },
    /// `llama-batched-bench`, which loads the file for each turn.
    LlamaCpp { program: PathBuf, file: PathBuf },
}

impl Side {
    pub fn session(name: &'static str, start: Box<dyn Fn() -> Command>) -> Result<Self> {
        let session = Session::start(name, start())?;
        Ok(Self::Session {
            name,
            start,
            session,
        })
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Session { name, .. } => name,
            Self::LlamaCpp { .. } => "llama.cpp",
        }
    }

    /// The value of each kind of work, in order. `None` for work that the side does not do.
    pub fn sweep(&mut self, works: &[Work], quick: bool) -> Result<Vec<Option<f64>>> {
        match self {
            Self::Session {
                name,
                start,
                session,
            } => works
                .iter()
                .map(|&work| match work {
                    Work::Fresh => Ok(Some(fresh(name, &*start)?)),
                    Work::Serve if *name != OURS => Ok(None),
                    _ => rate(session, work, quick).map(Some),
                })
                .collect(),
            Self::LlamaCpp { program, file } => llama_cpp(program, file, works, quick),
        }
    }
}

/// The command that starts a session of this library.
pub fn ours(binary: &Path, folder: &Path) -> Box<dyn Fn() -> Command> {
    let (binary, folder) = (binary.to_owned(), folder.to_owned());
    Box::new(move || {
        let mut command = Command::new(&binary);
        command.arg(&folder);
        command
    })
}

/// The command that starts a session of mlx-lm.
pub fn mlx_lm(python: &Path, folder: &Path) -> Box<dyn Fn() -> Command> {
    let (python, folder) = (python.to_owned(), folder.to_owned());
    Box::new(move || {
        let mut command = python::command(&python);
        command.arg(scripts().join("mlx_lm_session.py"));
        command.arg(&folder).arg("gpu");
        command
    })
}

/// Seconds from the start of a process to its first token.
pub fn fresh(name: &'static str, start: &dyn Fn() -> Command) -> Result<f64> {
    let (prompts, tokens) = Work::Fresh.prompts(false);
    let started = Instant::now();
    Session::start(name, start())?.generate(&prompts, tokens)?;
    Ok(started.elapsed().as_secs_f64())
}

/// Tokens or texts a second.
fn rate(session: &mut Session, work: Work, quick: bool) -> Result<f64> {
    if work == Work::Serve {
        let (prompts, tokens) = served(quick);
        let seconds = session.serve(&prompts, &tokens, SERVED_ROWS)?;
        return Ok(tokens.iter().sum::<usize>() as f64 / seconds);
    }
    let (prompts, tokens) = work.prompts(quick);
    let rows = prompts.len() as f64;
    Ok(match tokens {
        0 => rows / session.classify(&prompts, prompts.len())?.0,
        1 => prompts[0].len() as f64 / session.generate(&prompts, 1)?.prefill_s,
        _ => rows * (tokens - 1) as f64 / session.generate(&prompts, tokens)?.decode_s,
    })
}

/// Runs llama.cpp's benchmark.
fn llama_cpp(program: &Path, file: &Path, works: &[Work], quick: bool) -> Result<Vec<Option<f64>>> {
    let mut lines = Vec::new();
    for arguments in llama_cpp_arguments(works, quick) {
        let mut command = Command::new(program);
        command
            .arg("-m")
            .arg(file)
            .args(arguments)
            .env("LLAMA_ARG_FLASH_ATTN", "on");
        let run = program::run(&mut command, LIMIT)?;
        let last = run.lines.last().map_or("no output", String::as_str);
        ensure!(run.succeeded, "llama.cpp: {last}");
        lines.extend(run.lines.iter().filter_map(|line| measured(line)));
    }
    works
        .iter()
        .map(|&work| llama_cpp_rate(work, &lines))
        .collect()
}

/// The arguments of a run for prompts and of one for steps.
fn llama_cpp_arguments(works: &[Work], quick: bool) -> Vec<Vec<String>> {
    let (mut lengths, mut rows) = (Vec::new(), Vec::new());
    for work in works {
        match work {
            Work::Prefill(length) => lengths.push(*length),
            Work::Decode(n) => rows.push(*n),
            Work::Serve | Work::Classify | Work::Fresh => (),
        }
    }
    let longest = lengths.iter().max().copied().unwrap_or(0);
    let most = rows.iter().max().copied().unwrap_or(0);
    let steps = steps(quick);
    // Each row has its part of the cache, in multiples of 256 positions.
    let room = |tokens: usize| tokens.next_multiple_of(256);
    let runs = [
        (lengths, 1, vec![1], room(longest + 1)),
        (vec![PROMPT], steps, rows, most * room(PROMPT + steps)),
    ];
    let list = |numbers: &[usize]| {
        let words: Vec<String> = numbers.iter().map(usize::to_string).collect();
        words.join(",")
    };
    let runs = runs
        .into_iter()
        .filter(|(prompts, _, rows, _)| !prompts.is_empty() && !rows.is_empty());
    runs.map(|(prompts, tokens, rows, context)| {
        [
            ("-ngl", "99".to_owned()),
            ("-b", "2048".to_owned()),
            ("-ub", "2048".to_owned()),
            ("-c", context.to_string()),
            ("-npp", list(&prompts)),
            ("-ntg", tokens.to_string()),
            ("-npl", list(&rows)),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect()
    })
    .collect()
}

/// The rate of a kind of work in these lines, if llama.cpp does that work.
fn llama_cpp_rate(work: Work, lines: &[Line]) -> Result<Option<f64>> {
    let rate = match work {
        Work::Prefill(length) => lines
            .iter()
            .find(|line| (line.prompt, line.tokens, line.rows) == (length, 1, 1))
            .map(|line| line.prompt_rate),
        Work::Decode(rows) => lines
            .iter()
            .find(|line| (line.prompt, line.rows) == (PROMPT, rows))
            .map(|line| line.decode_rate),
        Work::Serve | Work::Classify | Work::Fresh => return Ok(None),
    };
    let missing = || format!("llama.cpp: its output has no line for: {}", work.measure());
    rate.with_context(missing).map(Some)
}

/// A line of `llama-batched-bench`'s table.
#[derive(Debug, PartialEq)]
struct Line {
    prompt: usize,
    tokens: usize,
    rows: usize,
    prompt_rate: f64,
    decode_rate: f64,
}

/// Its columns: PP, TG, B, N_KV, T_PP, S_PP, T_TG, S_TG, T, S.
fn measured(line: &str) -> Option<Line> {
    let cells: Vec<&str> = line.split('|').map(str::trim).collect();
    let [
        _,
        prompt,
        tokens,
        rows,
        _,
        _,
        prompt_rate,
        _,
        decode_rate,
        _,
        _,
        _,
    ] = cells[..]
    else {
        return None;
    };
    Some(Line {
        prompt: prompt.parse().ok()?,
        tokens: tokens.parse().ok()?,
        rows: rows.parse().ok()?,
        prompt_rate: prompt_rate.parse().ok()?,
        decode_rate: decode_rate.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::checkpoint::Model;
    use super::super::work::works;
    use super::*;

    const TABLE: &str = "\
main: n_kv_max = 16384, n_batch = 2048
|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
|    32 |    128 |    1 |    160 |    0.013 |  2461.54 |    0.202 |   633.66 |    0.215 |   744.19 |
|    32 |    128 |   64 |  10240 |    0.071 | 28845.07 |    1.098 |  7459.02 |    1.169 |  8759.62 |
";

    #[test]
    fn llama_cpps_table_is_read() {
        let lines: Vec<Line> = TABLE.lines().filter_map(measured).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(
            lines[1],
            Line {
                prompt: 32,
                tokens: 128,
                rows: 64,
                prompt_rate: 28_845.07,
                decode_rate: 7_459.02,
            }
        );
    }

    #[test]
    fn a_work_without_a_line_is_an_error() {
        let lines: Vec<Line> = TABLE.lines().filter_map(measured).collect();
        let rate = |work| llama_cpp_rate(work, &lines);
        assert_eq!(rate(Work::Decode(64)).unwrap(), Some(7_459.02));
        assert_eq!(rate(Work::Classify).unwrap(), None);
        let error = rate(Work::Prefill(512)).unwrap_err().to_string();
        assert!(error.ends_with("prompt of 512, tokens/s"), "{error}");
    }

    #[test]
    fn llama_cpp_gets_a_cache_for_each_row() {
        let all = works(Model::Gemma3);
        let runs = llama_cpp_arguments(&all, false);
        let runs: Vec<String> = runs.iter().map(|run| run.join(" ")).collect();
        assert!(
            runs[0].ends_with("-c 2304 -npp 512,2048 -ntg 1 -npl 1"),
            "{runs:?}"
        );
        assert!(
            runs[1].ends_with("-c 16384 -npp 32 -ntg 128 -npl 1,8,32,64"),
            "{runs:?}"
        );
        // The 8B shape is not measured with prompts.
        assert_eq!(llama_cpp_arguments(&works(Model::Llama3), false).len(), 1);
    }

    #[test]
    fn rates_are_of_all_rows() {
        let tokens: Vec<u32> = (0..32).collect();
        let answers = format!(
            r#"echo '{{"load_s": 1}}'
            read q; echo '{{"prefill_s": 0.5, "decode_s": 1, "tokens": [[1]]}}'
            read q; echo '{{"seconds": 0.25, "tokens": {tokens:?}}}'"#
        );
        let start = move || {
            let mut command = Command::new("sh");
            command.args(["-c", &answers]);
            command
        };
        let mut side = Side::session("ours", Box::new(start)).unwrap();
        let found = side.sweep(&[Work::Prefill(512), Work::Classify], true);
        // In a quick run 64 tokens and 32 texts.
        assert_eq!(found.unwrap(), [Some(128.0), Some(128.0)]);
    }
}
