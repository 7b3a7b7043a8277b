//! Streams that failed, and the threads of streams.

use std::sync::atomic::{AtomicUsize, Ordering};

use mlx_core::kernel::{self, CpuKernel, Spec, View, ViewMut};
use mlx_core::{
    Array, DType, Device, ErrorKind, Result, Stream, async_eval, eval, memory, ones, synchronize,
};

use crate::kernel::failing_later;

static RUNS: AtomicUsize = AtomicUsize::new(0);

/// Counts its runs.
struct Counting;

impl CpuKernel for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn output(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn eval(&self, _inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        RUNS.fetch_add(1, Ordering::SeqCst);
        outputs[0].as_mut_slice::<f32>()?.fill(1.0);
        Ok(())
    }
}

fn counting(input: &Array) -> Result<Array> {
    Ok(kernel::apply(Counting, &[input])?.remove(0))
}

#[test]
fn what_follows_a_failure_is_not_run() -> Result<()> {
    let x = ones(&[4], DType::F32)?;
    eval([&x])?;
    for _ in 0..3 {
        RUNS.store(0, Ordering::SeqCst);
        let (broken, fail) = failing_later(&x, "on purpose")?;
        let first = counting(&broken)?;
        async_eval([&first])?;
        // Another step is queued before the test waits for the one that fails.
        let second = counting(&first)?;
        async_eval([&second])?;
        drop(fail);
        let error = eval([&first]).unwrap_err();
        assert_eq!(error.to_string(), "kernel failing: eval: on purpose");
        assert_eq!(
            second.to_vec::<f32>().unwrap_err().kind(),
            ErrorKind::Poisoned
        );
        assert_eq!(RUNS.load(Ordering::SeqCst), 0, "it ran on unwritten memory");
        // A new array is computed, and the old error is not reported again.
        assert_eq!(counting(&x)?.to_vec::<f32>()?, [1.0; 4]);
        assert_eq!(RUNS.load(Ordering::SeqCst), 1);
        synchronize()?;
    }
    Ok(())
}

#[test]
fn a_stream_that_waits_for_a_failed_one_fails_too() -> Result<()> {
    let x = ones(&[4], DType::F32)?;
    eval([&x])?;
    RUNS.store(0, Ordering::SeqCst);
    let (first, second) = (Stream::new(Device::CPU)?, Stream::new(Device::CPU)?);
    let (broken, fail) = first.scope(|| failing_later(&x, "on the first"))?;
    let after = second.scope(|| counting(&broken))?;
    async_eval([&after])?;
    drop(fail);
    let error = second.scope(|| eval([&after])).unwrap_err();
    assert!(error.to_string().contains("on the first"), "{error}");
    assert_eq!(RUNS.load(Ordering::SeqCst), 0);
    for stream in [first, second] {
        assert_eq!(stream.scope(|| counting(&x)?.to_vec::<f32>())?, [1.0; 4]);
    }
    Ok(())
}

#[test]
fn an_error_reaches_the_thread_that_queued_the_work() -> Result<()> {
    let x = ones(&[4], DType::F32)?;
    let (broken, fail) = failing_later(&x, "for its own thread")?;
    let after = broken.add(1.0)?;
    async_eval([&after])?;
    drop(fail);
    // Synchronisation includes the streams of all threads.
    std::thread::spawn(|| {
        drop(ones(&[1000], DType::F32)?.add(1.0)?.to_vec::<f32>()?);
        memory::clear_cache()
    })
    .join()
    .unwrap()?;
    let error = eval([&after]).unwrap_err();
    assert!(error.to_string().contains("for its own thread"), "{error}");
    Ok(())
}

/// The number of threads of the process.
#[cfg(target_os = "linux")]
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
#[cfg(target_os = "linux")]
fn threads_of_streams_end_with_their_owners() -> Result<()> {
    let work = || -> Result<f32> { ones(&[100], DType::F32)?.add(1.0)?.sum(.., false)?.item() };
    assert_eq!(work()?, 200.0);
    let before = threads();
    for _ in 0..200 {
        assert_eq!(std::thread::spawn(work).join().unwrap()?, 200.0);
    }
    // Twenty threads at a time, each with work that the test does not wait for.
    for _ in 0..3 {
        let group: Vec<_> = (0..20)
            .map(|_| {
                std::thread::spawn(move || -> Result<()> {
                    let second = Stream::new(Device::CPU)?;
                    let x = second.scope(|| ones(&[100], DType::F32)?.add(1.0))?;
                    async_eval([&x.multiply(2.0)?])
                })
            })
            .collect();
        for thread in group {
            thread.join().unwrap()?;
        }
    }
    assert_eq!(threads(), before);
    assert_eq!(work()?, 200.0);
    Ok(())
}
