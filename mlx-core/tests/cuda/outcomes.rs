//! A failed evaluation costs only the arrays that depend on what failed, on GPUs too.

use mlx_core::transforms::compile;
use mlx_core::{Array, DType, Device, ErrorKind, Result, Stream, eval, ones};

use super::on_gpu;

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
        checks_are_told_apart: false,
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
