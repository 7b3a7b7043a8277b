//! A program may end while work is queued.

use std::process::{Child, Command, Stdio};

use mlx_core::ops::{concat, create::ones};
use mlx_core::{DType, Device, Result, Stream, async_eval, eval};

const CHILD: &str = "MLX_CORE_TEST_ENDS";

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
    let program = std::env::current_exe().unwrap();
    // Several children at a time, so that threads are stopped at unlikely moments: without the wait at exit, one child
    // in sixty was killed by a signal.
    for round in 0..15 {
        let children: Vec<Child> = (0..4)
            .map(|_| {
                Command::new(&program)
                    .args(["--exact", "work_is_queued", "--nocapture"])
                    .env(CHILD, "1")
                    .stdout(Stdio::null())
                    .stderr(Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .collect();
        for child in children {
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success(),
                "round {round}: {}: {said}",
                output.status
            );
        }
    }
}
