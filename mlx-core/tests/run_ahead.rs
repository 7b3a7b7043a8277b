//! How much memory queued work holds when a thread runs ahead of its stream. The test is alone in its process, whose
//! memory it counts.

#![cfg(not(target_os = "macos"))]

use mlx_core::{DType, Result, eval, fast, memory, ops};

/// The peak of allocated memory while a chain of nodes of this shape, in f32, is computed.
fn peak_of(nodes: usize, shape: &[i32]) -> Result<usize> {
    let ones = ops::ones(shape, DType::F32)?;
    eval([&ones])?;
    memory::reset_peak()?;
    let before = memory::active()?;
    let mut y = ones;
    for _ in 0..nodes {
        y = fast::rms_norm(&y, None, 1e-6)?;
    }
    eval([&y])?;
    Ok(memory::peak()? - before)
}

#[test]
fn it_is_bounded_for_small_and_large_results() -> Result<()> {
    const MIB: usize = 1 << 20;
    // The whole chain has 375 MiB.
    let small = peak_of(3000, &[32, 1024])?;
    assert!(small < 130 * MIB, "{small} bytes of small ones");
    for _ in 0..20 {
        peak_of(1000, &[4, 64])?;
    }
    // Nodes that are too small to be counted do not change the count. The whole chain has 600 MiB.
    let large = peak_of(600, &[256, 1024])?;
    assert!(large < 200 * MIB, "{large} bytes of large ones");
    Ok(())
}
