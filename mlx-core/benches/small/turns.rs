//! Times of this library and of a script in Python, in turns.

use std::collections::BTreeMap;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// The nanoseconds of each name.
type Measure = fn() -> mlx_core::Result<BTreeMap<&'static str, f64>>;

/// The nanoseconds of a call of `f`: the least mean of five rounds.
pub fn time(mut f: impl FnMut() -> mlx_core::Result<()>) -> mlx_core::Result<f64> {
    let round = Duration::from_millis(20);
    let (mut calls, mut least) = (0u32, f64::MAX);
    let started = Instant::now();
    while started.elapsed() < round {
        f()?;
        calls += 1;
    }
    for _ in 0..5 {
        let started = Instant::now();
        for _ in 0..calls {
            f()?;
        }
        least = least.min(started.elapsed().as_nanos() as f64 / f64::from(calls));
    }
    Ok(least)
}

/// The times that the script prints, one line "name: nanoseconds" each.
fn of_python(python: &str, script: &str) -> Result<BTreeMap<String, f64>, String> {
    let output = Command::new(python).arg(script).output();
    let output = output.map_err(|error| format!("{python}: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    lines
        .lines()
        .map(|line| {
            let (name, time) = line.split_once(": ").ok_or(line)?;
            Ok((name.to_owned(), time.parse().map_err(|_| line)?))
        })
        .collect::<Result<_, &str>>()
        .map_err(|line| format!("{script}: expected a name and a number, given {line}"))
}

fn measured(names: &[&str], script: &str, measure: Measure) -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    let turns: usize = match value("--turns") {
        Some(turns) => turns
            .parse()
            .map_err(|_| format!("--turns {turns}: expected a number"))?,
        None => 3,
    };
    let python = value("--python");
    let (mut ours, mut theirs) = (BTreeMap::new(), BTreeMap::new());
    let keep = |least: &mut BTreeMap<String, f64>, name: String, time: f64| {
        let known = least.entry(name).or_insert(f64::MAX);
        *known = known.min(time);
    };
    for _ in 0..turns {
        for (name, time) in measure().map_err(|error| error.to_string())? {
            keep(&mut ours, name.to_owned(), time);
        }
        if let Some(python) = &python {
            for (name, time) in of_python(python, script)? {
                keep(&mut theirs, name, time);
            }
        }
    }
    println!("{:28} {:>10} {:>10} {:>6}", "", "ns", "Python", "ratio");
    for &name in names {
        let time = ours[name];
        match theirs.get(name) {
            Some(other) => println!("{name:28} {time:10.0} {other:10.0} {:6.2}", other / time),
            None => println!("{name:28} {time:10.0}"),
        }
    }
    Ok(())
}

/// Measures in turns with `script`, if `--python` names an interpreter, and prints the least times, one row for each of
/// `names`.
pub fn run(names: &[&str], script: &str, measure: Measure) -> ExitCode {
    match measured(names, script, measure) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
