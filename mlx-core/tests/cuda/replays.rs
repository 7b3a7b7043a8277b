//! Steps that are captured as CUDA graphs, and captures that fail.

use std::thread;

use mlx_core::fast;
use mlx_core::{Array, DType, Replay, Result, memory};

use super::{f32s, noise, on_gpu};

/// A step of kernels and of MLX's own operations, whose state goes from step to step.
struct Steps {
    w: Array,
    state: Array,
    number: i32,
}

impl Steps {
    fn new(seed: u64) -> Result<Self> {
        let w = noise(seed, &[256, 256], DType::BF16)?;
        let state = noise(seed + 1, &[3, 256], DType::BF16)?;
        mlx_core::eval([&w, &state])?;
        Ok(Self {
            w,
            state,
            number: 0,
        })
    }
    fn next(&mut self) -> Result<Array> {
        self.number += 1;
        let bias = Array::from_slice(&[self.number as f32; 256], &[256])?.astype(DType::BF16)?;
        let y = fast::linear(&self.state, &self.w)?.add(&bias)?.tanh()?;
        let y = y.softmax(-1)?.multiply(&y)?;
        self.state = fast::rms_norm(&y, None, 1e-6)?;
        Ok(self.state.clone())
    }
}

fn run(
    seed: u64,
    count: usize,
    mut queue: impl FnMut(&Array) -> Result<()>,
) -> Result<Vec<Vec<f32>>> {
    let mut steps = Steps::new(seed)?;
    (0..count)
        .map(|_| {
            let y = steps.next()?;
            queue(&y)?;
            f32s(&y)
        })
        .collect()
}

fn wanted(seed: u64, count: usize) -> Result<Vec<Vec<f32>>> {
    run(seed, count, |y| mlx_core::eval([y]))
}

fn replayed(seed: u64, count: usize) -> Result<Vec<Vec<f32>>> {
    let mut replay = Replay::new()?;
    run(seed, count, |y| replay.async_eval([y], [y; 0]))
}

#[test]
fn replayed_steps_are_those_of_evaluations() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    assert_eq!(replayed(1, 12)?, wanted(1, 12)?);
    Ok(())
}

#[test]
fn a_capture_without_memory_fails_without_a_trace() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let wanted = (wanted(1, 12)?, wanted(5, 12)?);
    // Without a cache of buffers MLX's operations allocate within the capture, which then has other nodes than kernels.
    let limit = memory::set_cache_limit(0)?;
    memory::clear_cache()?;
    let found = replayed(1, 12);
    memory::set_cache_limit(limit)?;
    assert_eq!(found?, wanted.0);
    // Buffers of the failed captures are not used again: results of the same sizes are right.
    for _ in 0..5 {
        assert_eq!(replayed(1, 12)?, wanted.0);
        assert_eq!(replayed(5, 12)?, wanted.1);
        let x = noise(9, &[3, 256], DType::BF16)?;
        let many: Vec<Array> = (0..64).map(|i| x.add(i as f32)).collect::<Result<_>>()?;
        mlx_core::eval(&many)?;
        let x = f32s(&x)?;
        for (i, y) in many.iter().enumerate() {
            let y = f32s(y)?;
            assert!(
                x.iter()
                    .zip(&y)
                    .all(|(x, y)| (x + i as f32 - y).abs() <= 0.01 * (1.0 + y.abs()))
            );
        }
    }
    Ok(())
}

#[test]
fn two_replays_and_many_threads() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let both = (wanted(1, 10)?, wanted(5, 10)?);
    let (mut a, mut b) = (Replay::new()?, Replay::new()?);
    let (mut one, mut other) = (Steps::new(1)?, Steps::new(5)?);
    for i in 0..10 {
        let (x, y) = (one.next()?, other.next()?);
        a.async_eval([&x], [&x; 0])?;
        b.async_eval([&y], [&y; 0])?;
        assert_eq!(
            (f32s(&x)?, f32s(&y)?),
            (both.0[i].clone(), both.1[i].clone()),
            "step {i}"
        );
    }
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    for _ in 0..3 {
                        assert_eq!(replayed(1, 10)?, both.0);
                        assert_eq!(wanted(5, 10)?, both.1);
                    }
                    Ok(())
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no thread panics"))
    })
}

#[test]
fn a_step_that_fails_or_is_left_does_not_harm_the_next() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let wanted = wanted(1, 8)?;
    let mut replay = Replay::new()?;
    for round in 0..3 {
        let mut steps = Steps::new(1)?;
        for (i, wanted) in wanted.iter().enumerate() {
            let y = steps.next()?;
            replay.async_eval([&y], [&y; 0])?;
            if i == 5 && round == 1 {
                // A request that is cancelled: its step is not read.
                break;
            }
            if i == 6 {
                let at = Array::from_slice(&[3i32], &[1])?;
                assert!(mlx_core::eval([&y.take(&at, 0)?]).is_err());
                break;
            }
            assert_eq!(&f32s(&y)?, wanted, "round {round}, step {i}");
        }
    }
    Ok(())
}
