//! A failed evaluation costs only the arrays that depend on what failed.
#![cfg(target_os = "linux")]

#[path = "failing/kernel.rs"]
mod failing;
#[path = "shared/random_graph.rs"]
mod random_graph;

use std::thread::sleep;
use std::time::Duration;

use failing::{failing, failing_later};
use mlx_core::fast::rows;
use mlx_core::inplace::slice_update_in_place;
use mlx_core::transforms::{compile, grad_with};
use mlx_core::{
    Array, DType, Device, ErrorKind, Result, Stream, async_eval, eval, graph_size, memory, ones,
    synchronize,
};
use random_graph::{Failure, Setup, check_all};

const ALL: [Failure; 4] = [
    Failure::Index,
    Failure::Memory,
    Failure::Kernel,
    Failure::Panic,
];

fn setup(streams: usize) -> Result<Setup> {
    let new = |_| Stream::new(Device::CPU);
    let streams: Vec<Stream> = (0..streams).map(new).collect::<Result<_>>()?;
    Ok(Setup {
        kernels: streams.clone(),
        streams,
        compiled: None,
    })
}

#[test]
fn random_graphs_on_one_stream() -> Result<()> {
    let setup = setup(1)?;
    check_all(&setup, &ALL, 600)
}

#[test]
fn random_graphs_on_several_streams() -> Result<()> {
    let setup = setup(3)?;
    check_all(&setup, &ALL, 600)
}

/// As on a machine with a GPU, where kernels in Rust have streams of their own.
#[test]
fn random_graphs_with_kernels_on_other_streams() -> Result<()> {
    let mut setup = setup(2)?;
    setup.kernels = vec![Stream::new(Device::CPU)?];
    check_all(&setup, &ALL, 300)
}

#[test]
fn random_graphs_with_compiled_functions() -> Result<()> {
    compile::set_enabled(true);
    let mut setup = setup(2)?;
    setup.compiled = Some(Setup::compiled());
    let result = check_all(&setup, &ALL, 200);
    compile::set_enabled(false);
    result
}

fn three() -> Result<Array> {
    Array::from_slice(&[1.0f32, 2.0, 3.0], &[3])
}

#[test]
fn a_bad_token_does_not_lose_the_lazy_table() -> Result<()> {
    let table = ones(&[5, 3], DType::F32)?.multiply(2.0)?;
    let ids = |id: i32| Array::from_slice(&[id], &[1]);
    for _ in 0..3 {
        for row in [table.take(&ids(5)?, 0)?, rows(&table, &ids(5)?)?] {
            let error = row.to_vec::<f32>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Eval, "{error}");
            assert!(error.to_string().contains('5'), "{error}");
        }
        assert_eq!(table.take(&ids(4)?, 0)?.to_vec::<f32>()?, [2.0; 3]);
        assert_eq!(rows(&table, &ids(4)?)?.to_vec::<f32>()?, [2.0; 3]);
    }
    Ok(())
}

#[test]
fn what_was_not_reached_stays_lazy() -> Result<()> {
    let x = three()?;
    let (other, broken) = (x.add(1.0)?, failing(&x, "on purpose")?);
    let (both, after) = (other.add(&broken)?, broken.add(1.0)?);
    let size = graph_size([&other])?;
    assert!(size > 0 && eval([&after]).is_err());
    assert_eq!(graph_size([&other])?, size, "not evaluated");
    // `both` was not computed, and depends on what failed.
    assert_eq!(eval([&both]).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(other.to_vec::<f32>()?, [2.0, 3.0, 4.0]);
    Ok(())
}

#[test]
fn what_was_reached_and_does_not_depend_is_computed() -> Result<()> {
    let x = three()?;
    let (broken, fail) = failing_later(&x, "on purpose")?;
    let (before, after) = (x.add(1.0)?, x.multiply(2.0)?);
    async_eval([&before, &broken.add(1.0)?, &after])?;
    drop(fail);
    assert!(synchronize().is_err());
    assert_eq!(before.to_vec::<f32>()?, [2.0, 3.0, 4.0]);
    assert_eq!(after.to_vec::<f32>()?, [2.0, 4.0, 6.0]);
    Ok(())
}

#[test]
fn a_failure_on_a_stream_is_returned_once() -> Result<()> {
    let other = Stream::new(Device::CPU)?;
    for round in 0..100 {
        let x = three()?.multiply(round as f32)?;
        let before = other.scope(|| x.add(1.0))?;
        let broken = other.scope(|| failing(&before, "on purpose"))?;
        let reads = other.scope(|| broken.add(&before))?;
        let after = other.scope(|| before.multiply(2.0))?;
        async_eval([&before])?;
        async_eval([&reads, &after])?;
        if round % 2 == 0 {
            sleep(Duration::from_millis(1));
        }
        let errors = (0..8).take_while(|_| other.scope(synchronize).is_err());
        assert_eq!(errors.count(), 1, "round {round}");
        let value = [1.0, 2.0, 3.0].map(|x| round as f32 * x + 1.0);
        assert_eq!(before.to_vec::<f32>()?, value);
        assert_eq!(after.to_vec::<f32>()?, value.map(|x| 2.0 * x));
        for lost in [&broken, &reads] {
            let error = lost.to_vec::<f32>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Poisoned, "round {round}: {error}");
        }
    }
    Ok(())
}

#[test]
fn a_failure_is_returned_by_a_wait_for_its_stream() -> Result<()> {
    let other = Stream::new(Device::CPU)?;
    let x = three()?;
    for round in 0..20 {
        let broken = other.scope(|| failing(&x, "on purpose"))?;
        let beside = other.scope(|| x.add(1.0))?;
        async_eval([&broken])?;
        // This one waits for another stream.
        synchronize()?;
        let error = match round % 2 {
            0 => other.scope(synchronize).unwrap_err(),
            _ => beside.to_vec::<f32>().unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::Eval, "round {round}: {error}");
        // The array whose evaluation returned the failure is not lost.
        assert_eq!(beside.to_vec::<f32>()?, [2.0, 3.0, 4.0]);
        let error = broken.to_vec::<f32>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Poisoned, "round {round}: {error}");
    }
    Ok(())
}

#[test]
fn what_another_stream_computes_from_a_failed_result_is_an_error() -> Result<()> {
    let other = Stream::new(Device::CPU)?;
    let x = three()?;
    for round in 0..20 {
        let (broken, fail) = other.scope(|| failing_later(&x, "on purpose"))?;
        let (reads, beside) = (broken.add(&x)?, x.add(round as f32)?);
        let reads_again = other.scope(|| reads.multiply(2.0))?;
        async_eval([&broken])?;
        drop(fail);
        if round % 2 == 0 {
            sleep(Duration::from_millis(1));
        }
        // Fails if the other stream has reached the failure already.
        let queued = async_eval([&reads, &beside]);
        let kind = queued.map_or_else(|error| error.kind(), |()| ErrorKind::Eval);
        assert_eq!(kind, ErrorKind::Eval, "round {round}");
        assert!(reads_again.to_vec::<f32>().is_err(), "round {round}");
        assert_eq!(
            beside.to_vec::<f32>()?,
            [1.0, 2.0, 3.0].map(|x| x + round as f32)
        );
        assert!(reads.to_vec::<f32>().is_err(), "round {round}");
        other.scope(synchronize)?;
        synchronize()?;
    }
    Ok(())
}

#[test]
fn a_lack_of_memory_poisons_nothing() -> Result<()> {
    memory::set_array_limit(usize::MAX);
    let x = three()?.add(1.0)?;
    let huge = ones(&[i32::MAX, 1 << 15], DType::F32)?.add(&x.slice(&[0], &[1])?)?;
    let most = huge.max(.., false)?;
    let beside = x.multiply(3.0)?;
    for _ in 0..3 {
        let error = eval([&beside, &most]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Memory, "{error}");
    }
    assert_eq!(beside.to_vec::<f32>()?, [6.0, 9.0, 12.0]);
    assert_eq!(x.to_vec::<f32>()?, [2.0, 3.0, 4.0]);
    Ok(())
}

#[test]
fn memory_that_a_failed_operation_was_to_write_is_lost() -> Result<()> {
    let caches = [ones(&[4], DType::F32)?, ones(&[4], DType::F32)?];
    eval(&caches)?;
    let [one, two] = caches;
    let x = three()?.slice(&[0], &[2])?;
    let one = slice_update_in_place(one, &failing(&x, "on purpose")?, &[1], &[3])?;
    let two = slice_update_in_place(two, &x, &[1], &[3])?;
    assert!(eval([&one, &two]).is_err());
    assert_eq!(one.to_vec::<f32>().unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(two.to_vec::<f32>()?, [1.0, 1.0, 2.0, 1.0]);
    Ok(())
}

#[test]
fn a_gradient_that_fails_keeps_its_weights() -> Result<()> {
    let w = three()?.multiply(2.0)?;
    let at = |id: i32| {
        let ids = Array::from_slice(&[id], &[1])?;
        grad_with(
            |w| Ok(vec![w[0].square()?.take(&ids, 0)?.sum(.., false)?]),
            std::slice::from_ref(&w),
            &[0],
        )
    };
    assert!(at(3).and_then(eval).is_err());
    assert_eq!(at(1)?[0].to_vec::<f32>()?, [0.0, 8.0, 0.0]);
    assert_eq!(w.to_vec::<f32>()?, [2.0, 4.0, 6.0]);
    Ok(())
}

#[test]
fn a_thread_with_many_results_stays_right() -> Result<()> {
    let x = three()?;
    let mut held = Vec::new();
    for round in 0..3000 {
        let y = x.add(round as f32)?;
        async_eval([&y])?;
        held.push(y);
    }
    let broken = failing(&held[2999], "on purpose")?;
    assert!(eval([&broken]).is_err());
    for (round, y) in held.iter().enumerate() {
        assert_eq!(y.slice(&[0], &[1])?.item::<f32>()?, 1.0 + round as f32);
    }
    assert!(broken.add(1.0).is_err());
    Ok(())
}
