//! A call of the safe interface may not end the process, hang, or access memory outside its arrays.
//!
//! Every operation runs on inputs and arguments that are changed from those of its goldens: other
//! dtypes, empty, of size 1, of other ranks, with NaN and the ends of each dtype, transposed,
//! reversed, broadcast. An error is a correct answer. The calls run in child processes, many in
//! each. If a child ends or hangs in a call, the call is a fault, and another child goes on with
//! the next call.
//!
//! `MLX_CORE_HOSTILE=rounds` sets the number of variations of each golden; the default is few enough for CI.

mod calls;
mod cases;
mod fused;
mod inputs;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use mlx_core::memory;

use calls::Calls;

/// The calls that a child runs: `first,rounds`.
const CHILD: &str = "MLX_CORE_TEST_HOSTILE_CALLS";
const ROUNDS: &str = "MLX_CORE_HOSTILE";
const DEFAULT_ROUNDS: usize = 30;
/// The rounds without this crate's CPU kernels.
const PLAIN_ROUNDS: usize = 10;
/// A call that takes longer counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);
/// A limit on the size of arrays, so that no call takes long only because it has much to compute.
const ARRAY_LIMIT: usize = 1 << 18;

/// Run by the child: prints each call before running it.
#[test]
fn hostile_calls_are_made() {
    let Some(range) = std::env::var_os(CHILD) else {
        return;
    };
    let range = range.into_string().unwrap();
    let (first, rounds) = range.split_once(',').unwrap();
    memory::set_array_limit(ARRAY_LIMIT);
    // Each buffer is allocated by the system, so valgrind reports accesses outside it.
    memory::set_cache_limit(0).unwrap();
    let calls = Calls::new(rounds.parse().unwrap());
    for index in first.parse().unwrap()..calls.len() {
        println!("@{index}");
        calls.run(index);
    }
    println!("@done");
}

fn child(first: usize, rounds: usize) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hostile::hostile_calls_are_made", "--nocapture"])
        .env(CHILD, format!("{first},{rounds}"))
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// How a child ended: regularly, or in a call.
fn follow(mut child: Child) -> Option<(usize, String)> {
    let (tell, hear) = mpsc::channel();
    let out = BufReader::new(child.stdout.take().unwrap());
    let reader = std::thread::spawn(move || {
        for line in out.lines().map_while(Result::ok) {
            // The test harness writes its own text on the first line.
            if let Some((_, place)) = line.rsplit_once('@') {
                tell.send(place.to_owned()).unwrap();
            }
        }
    });
    let mut last = 0;
    let ended = loop {
        match hear.recv_timeout(PATIENCE) {
            Ok(place) if place == "done" => break None,
            Ok(place) => last = place.parse().unwrap(),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                child.kill().unwrap();
                break Some("never returns");
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break Some("ends the process"),
        }
    };
    let status = child.wait().unwrap();
    reader.join().unwrap();
    ended.map(|how| (last, format!("{how} ({status})")))
}

#[test]
fn no_call_ends_the_process_or_hangs() {
    let off = std::env::var("MLX_CPU_KERNELS").as_deref() == Ok("off");
    let default = if off { PLAIN_ROUNDS } else { DEFAULT_ROUNDS };
    let rounds = std::env::var(ROUNDS).map_or(default, |rounds| rounds.parse().unwrap());
    let calls = Calls::new(rounds);
    assert!(calls.len() > 1000, "only {} calls", calls.len());
    let mut faults = Vec::new();
    let mut first = 0;
    while let Some((index, how)) = follow(child(first, rounds)) {
        faults.push(format!("{index}: {}: {how}", calls.describe(index)));
        first = index + 1;
        if faults.len() == 200 {
            break;
        }
    }
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

#[test]
fn every_fused_operation_is_called() {
    let called = fused::names();
    let missing: Vec<_> = fused::public()
        .into_iter()
        .filter(|name| !called.contains(name))
        .collect();
    assert!(missing.is_empty(), "not called: {missing:?}");
}
