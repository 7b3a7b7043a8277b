//! A program may end while work is queued, and with streams that it does not use.

use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use mlx_core::kernel::{self, CpuKernel, Spec, View, ViewMut};
use mlx_core::ops::{concat, create::ones};
use mlx_core::stream::ThreadLocalStream;
use mlx_core::{DType, Device, Result, Stream, async_eval, eval, init, memory};

/// Set in a child: the name of one of `PROGRAMS`, or any text for `work_is_queued`.
const CHILD: &str = "MLX_CORE_TEST_ENDS";

/// Runs a test of this file in several processes at a time, and returns what they leave.
fn run_children(test: &str, what: &str, count: usize) -> Vec<Output> {
    let program = std::env::current_exe().unwrap();
    let children: Vec<Child> = (0..count)
        .map(|_| {
            Command::new(&program)
                .args(["--exact", test, "--nocapture", "--test-threads=1"])
                .env(CHILD, what)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    children
        .into_iter()
        .map(|child| child.wait_with_output().unwrap())
        .collect()
}

fn assert_ended_well(output: &Output, what: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {}: {said}", output.status);
}

/// What the child does.
#[test]
fn work_is_queued() -> Result<()> {
    if std::env::var_os(CHILD).is_none() {
        return Ok(());
    }
    // A stream is made before the first array, so MLX destroys its allocator before the threads that compute. Kept
    // buffers take time to free.
    drop(Stream::new(Device::CPU)?);
    let kept: Result<Vec<_>> = (1..2000)
        .map(|n| ones(&[n * 16], DType::F32)?.add(1.0))
        .collect();
    eval(kept?.iter())?;
    let mut x = ones(&[2000], DType::F32)?;
    for n in 0..400 {
        x = x.add(1e-3)?.multiply(0.5)?.slice(&[0], &[2000 - n])?;
        async_eval([&x.sum(.., false)?, &x])?;
        x = concat(&[&x, &ones(&[n], DType::F32)?], 0)?;
    }
    std::process::exit(0);
}

#[test]
fn a_program_that_ends_meanwhile_ends_well() {
    // Several children at a time, so that threads are stopped at unlikely moments: without the wait at exit, one child
    // in sixty was killed by a signal.
    for round in 0..15 {
        for output in run_children("work_is_queued", "queued", 4) {
            assert_ended_well(&output, &format!("round {round}"));
        }
    }
}

fn stream() -> Result<Stream> {
    Stream::new(Device::CPU)
}

fn compute() -> Result<()> {
    let sum = ones(&[64], DType::F32)?.add(1.0)?.sum(.., false)?;
    assert_eq!(sum.item::<f32>()?, 128.0);
    Ok(())
}

/// A thread that computes and ends.
fn thread() -> Result<()> {
    std::thread::spawn(compute).join().unwrap()
}

/// A kernel that takes a while and writes a line to stdout at its end.
struct Slow;

impl CpuKernel for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn output(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn eval(&self, _inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        std::thread::sleep(Duration::from_millis(300));
        outputs[0].as_mut_slice::<f32>()?.fill(1.0);
        println!("{COMPUTED}");
        Ok(())
    }
}

const COMPUTED: &str = "the slow kernel has ended";

/// A thread that is still there when the program exits, with queued work.
fn busy_thread() -> Result<()> {
    let (queued, is_queued) = mpsc::channel();
    std::thread::spawn(move || -> Result<()> {
        let slow = || kernel::apply(Slow, &[&ones(&[64], DType::F32)?]);
        let results = stream()?.scope(slow)?;
        async_eval(&results)?;
        queued.send(()).unwrap();
        loop {
            std::thread::park();
        }
    });
    is_queued.recv().unwrap();
    Ok(())
}

const WAITED: &str = "the end of a thread has waited";

/// Waits for all streams when its thread ends, after the thread-local objects of MLX are destroyed.
struct Late;

impl Drop for Late {
    fn drop(&mut self) {
        memory::clear_cache().unwrap();
        println!("{WAITED}");
    }
}

thread_local! {
    static LATE: Late = const { Late };
}

/// A thread that makes streams, computes nothing, and waits for all streams at its end.
fn late_thread() -> Result<()> {
    let run = || -> Result<()> {
        LATE.with(|_| ());
        (0..8).try_for_each(|_| stream().map(drop))
    };
    std::thread::spawn(run).join().unwrap()
}

/// Its name, what it writes to stdout, and what it does before it exits.
type Program = (&'static str, &'static str, fn() -> Result<()>);

/// Programs that exit with a stream of the exiting thread on which nothing was computed.
const PROGRAMS: [Program; 12] = [
    ("a stream", "", || stream().map(drop)),
    ("a thread, a stream", "", || {
        thread()?;
        stream().map(drop)
    }),
    ("a stream, a thread", "", || {
        stream()?;
        thread()
    }),
    ("init, a thread, a stream", "", || {
        init()?;
        thread()?;
        stream().map(drop)
    }),
    ("init, a stream, a thread", "", || {
        init()?;
        stream()?;
        thread()
    }),
    ("several of both", "", || {
        for _ in 0..8 {
            thread()?;
            stream()?;
            thread()?;
            for _ in 0..8 {
                stream()?;
            }
        }
        Ok(())
    }),
    ("a used stream and an unused one", "", || {
        thread()?;
        stream()?.scope(compute)?;
        stream().map(drop)
    }),
    ("a stream for each thread", "", || {
        let streams = ThreadLocalStream::new(Device::CPU)?;
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| streams.stream()?.scope(compute));
            thread.join().unwrap()
        })?;
        streams.stream().map(drop)
    }),
    ("another thread exits", "", || {
        compute()?;
        let exit = || -> Result<()> {
            thread()?;
            stream()?;
            std::process::exit(0)
        };
        std::thread::spawn(exit).join().unwrap()
    }),
    ("a thread computes", COMPUTED, || {
        busy_thread()?;
        stream().map(drop)
    }),
    ("the end of a thread waits", WAITED, || {
        thread()?;
        late_thread()?;
        stream().map(drop)
    }),
    ("the exit waits", WAITED, || {
        thread()?;
        LATE.with(|_| ());
        stream().map(drop)
    }),
];

/// What the child does.
#[test]
fn a_stream_is_unused() -> Result<()> {
    let Ok(name) = std::env::var(CHILD) else {
        return Ok(());
    };
    let program = PROGRAMS.iter().find(|program| program.0 == name);
    let (_, _, run) = program.expect("the name of a program");
    run()?;
    std::process::exit(0);
}

#[test]
fn a_program_with_an_unused_stream_ends_well() {
    for (name, says, _) in PROGRAMS {
        for output in run_children("a_stream_is_unused", name, 2) {
            assert_ended_well(&output, name);
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.contains(says), "{name}: {says:?} is not in {said}");
        }
    }
}
