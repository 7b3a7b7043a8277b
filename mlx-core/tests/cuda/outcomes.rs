//! A failed evaluation costs only the arrays that depend on what failed, on GPUs too.

use std::thread::sleep;
use std::time::Duration;

use mlx_core::transforms::compile;
use mlx_core::{
    Array, DType, Device, ErrorKind, Result, Stream, async_eval, eval, ones, synchronize,
};

use super::on_gpu;

#[path = "../failing/kernel.rs"]
mod failing;
use failing::failing;
#[path = "../shared/random_graph.rs"]
mod random_graph;
use random_graph::{Failure, Setup, check};

/// Graphs on streams of the GPU, with kernels in Rust on a stream of the CPU.
fn setup(streams: usize) -> Result<Setup> {
    let new = |_| Stream::new(Device::GPU);
    Ok(Setup {
        streams: (0..streams).map(new).collect::<Result<_>>()?,
        kernels: vec![Stream::new(Device::CPU)?],
        compiled: None,
    })
}

const ALL: [Failure; 4] = [
    Failure::Index,
    Failure::Memory,
    Failure::Kernel,
    Failure::Panic,
];

#[test]
fn random_graphs_on_one_stream() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let mut setup = setup(1)?;
    setup.kernels.clear();
    (0..300).try_for_each(|seed| check(&setup, ALL[seed as usize % 2], seed))
}

#[test]
fn random_graphs_on_several_streams_and_the_cpu() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let setup = setup(2)?;
    (0..300).try_for_each(|seed| check(&setup, ALL[seed as usize % 4], seed))
}

#[test]
fn random_graphs_with_compiled_functions() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    compile::set_enabled(true);
    let mut setup = setup(1)?;
    setup.kernels.clear();
    setup.compiled = Some(Setup::compiled());
    (0..100).try_for_each(|seed| check(&setup, ALL[seed as usize % 2], seed))
}

#[test]
fn a_bad_token_does_not_lose_the_lazy_table() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let table = ones(&[5, 3], DType::F32)?.multiply(2.0)?;
    let row = |id: i32| table.take(&Array::from_slice(&[id], &[1])?, 0);
    for _ in 0..3 {
        assert_eq!(eval([row(5)?]).unwrap_err().kind(), ErrorKind::Eval);
        assert_eq!(row(4)?.to_vec::<f32>()?, [2.0; 3]);
    }
    Ok(())
}

#[test]
fn a_failure_on_the_cpu_is_returned_once() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let cpu = Stream::new(Device::CPU)?;
    for round in 0..100 {
        let x = ones(&[4], DType::F32)?.multiply(round as f32)?;
        let before = cpu.scope(|| x.add(1.0))?;
        let broken = cpu.scope(|| failing(&before, "on purpose"))?;
        let reads = cpu.scope(|| broken.add(&before))?;
        let after = cpu.scope(|| before.multiply(2.0))?;
        // The call that queues more work may already return the failure.
        let queued = async_eval([&before]).and_then(|()| async_eval([&reads, &after]));
        if round % 2 == 0 {
            sleep(Duration::from_millis(1));
        }
        let waits = (0..8).take_while(|_| cpu.scope(synchronize).is_err());
        let errors = usize::from(queued.is_err()) + waits.count();
        assert_eq!(errors, 1, "round {round}");
        let what = |call: &str| format!("round {round}: {call}");
        let read = |array: &Array, call: &str| {
            let read = array.to_vec::<f32>();
            read.map_err(|error| error.context(what(call)))
        };
        assert_eq!(read(&before, "read before")?, [round as f32 + 1.0; 4]);
        assert_eq!(read(&after, "read after")?, [2.0 * (round as f32 + 1.0); 4]);
        for lost in [&broken, &reads] {
            let error = lost.to_vec::<f32>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Poisoned, "round {round}: {error}");
        }
    }
    Ok(())
}

#[test]
fn what_the_gpu_computes_from_a_failed_result_is_an_error() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let cpu = Stream::new(Device::CPU)?;
    let x = ones(&[4], DType::F32)?;
    eval([&x])?;
    for round in 0..20 {
        let broken = cpu.scope(|| failing(&x, "on purpose"))?;
        let reads = broken.add(&x)?;
        let read_again = cpu.scope(|| reads.multiply(2.0))?;
        let beside = x.add(round as f32)?;
        async_eval([&broken])?;
        if round % 2 == 0 {
            sleep(Duration::from_millis(2));
        }
        // Fails if the CPU has reached the failure already.
        let kind = match async_eval([&reads, &beside]) {
            Ok(()) => ErrorKind::Eval,
            Err(_) => ErrorKind::Poisoned,
        };
        let error = match round % 4 < 2 {
            true => reads.to_vec::<f32>(),
            false => read_again.to_vec::<f32>(),
        };
        let error = error.unwrap_err();
        assert_eq!(error.kind(), kind, "round {round}: {error}");
        assert_eq!(beside.to_vec::<f32>()?, [round as f32 + 1.0; 4]);
        assert!(reads.add(1.0).and_then(|y| y.to_vec::<f32>()).is_err());
        assert!(read_again.to_vec::<f32>().is_err());
        // Nothing is left of the failure.
        cpu.scope(synchronize)?;
        synchronize()?;
    }
    Ok(())
}
