//! Faults of MLX's CUDA back end, each avoided in one place.

use std::thread;

use mlx_core::fast::{self, Rope};
use mlx_core::ops::quantize::{
    QuantMode, Scheme, dequantize_with, gather_qmm_with, quantize_with, quantized_matmul_with,
};
use mlx_core::{Array, DType, ErrorKind, Result, Safetensors, eval, memory, safetensors, zeros};

use super::{close, f32s, noise, on_cpu, on_gpu, same, schemes};

/// All schemes, also those that have no kernels here.
fn all_schemes() -> Vec<Scheme> {
    let one = |group_size| Scheme {
        mode: QuantMode::Affine,
        bits: 1,
        group_size,
    };
    schemes()
        .into_iter()
        .chain([one(32), one(64), one(128)])
        .collect()
}

#[test]
fn matrices_are_packed_as_on_the_cpu() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for scheme in all_schemes() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            for (n, k) in [(1, 128), (3, 256), (40, 1152)] {
                let w = noise(1, &[n, k], dtype)?;
                let what = format!("{scheme:?} {dtype} {n} {k}");
                let unpacked = || {
                    let q = quantize_with(&w, scheme)?;
                    dequantize_with(
                        &q.packed,
                        &q.scales,
                        q.biases.as_ref(),
                        scheme,
                        Some(DType::F32),
                    )
                };
                let (found, wanted) = (unpacked()?, on_cpu(unpacked)?);
                // A number in the middle of two codes may go to either, and a group's scale may be rounded to either
                // side, so the errors of all numbers are compared.
                let w = f32s(&w)?;
                let error = |of: &Array| -> Result<f32> {
                    let errors = f32s(of)?.into_iter().zip(&w).map(|(a, b)| (a - b).powi(2));
                    Ok((errors.sum::<f32>() / w.len() as f32).sqrt())
                };
                let (found, wanted) = (error(&found)?, error(&wanted)?);
                assert!(
                    found <= 1.25 * wanted + 1e-4,
                    "{what}: the error is {found}, on the CPU {wanted}"
                );
            }
        }
        let empty = quantize_with(&zeros(&[0, 256], DType::BF16)?, scheme)?;
        let back = dequantize_with(
            &empty.packed,
            &empty.scales,
            empty.biases.as_ref(),
            scheme,
            Some(DType::F32),
        )?;
        assert_eq!(
            (back.shape(), f32s(&back)?.len()),
            (&[0, 256][..], 0),
            "{scheme:?}"
        );
    }
    Ok(())
}

#[test]
fn packed_products_of_any_shape() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for scheme in all_schemes() {
        for (m, n, k) in [
            (1, 64, 32),
            (3, 64, 64),
            (9, 128, 64),
            (3, 128, 128),
            (40, 128, 128),
            (17, 160, 384),
        ] {
            if k % scheme.group_size != 0 {
                continue;
            }
            for dtype in [DType::BF16, DType::F32] {
                let tolerance = if dtype == DType::F32 { 1e-4 } else { 0.03 };
                let what = format!("{scheme:?} {dtype} {m} {n} {k}");
                let q = quantize_with(&noise(1, &[n, k], dtype)?, scheme)?;
                let biases = q.biases.as_ref();
                let wide = dequantize_with(&q.packed, &q.scales, biases, scheme, Some(dtype))?
                    .astype(DType::F32)?;
                let x = noise(2, &[m, k], dtype)?;
                let y = quantized_matmul_with(&x, &q.packed, &q.scales, biases, true, scheme)?;
                close(
                    &what,
                    &y,
                    &x.astype(DType::F32)?.matmul(&wide.swapaxes(0, 1)?)?,
                    tolerance,
                )?;
                let y = fast::quantized_linear(&x, &q.packed, &q.scales, biases, scheme)?;
                close(
                    &format!("{what} linear"),
                    &y,
                    &x.astype(DType::F32)?.matmul(&wide.swapaxes(0, 1)?)?,
                    tolerance,
                )?;
                let x = noise(3, &[m, n], dtype)?;
                let y = quantized_matmul_with(&x, &q.packed, &q.scales, biases, false, scheme)?;
                close(
                    &format!("{what} transposed"),
                    &y,
                    &x.astype(DType::F32)?.matmul(&wide)?,
                    tolerance,
                )?;
                // Two matrices, by index.
                let two = |a: &Array| a.reshape(&[2, n / 2, -1]);
                let (packed, scales) = (two(&q.packed)?, two(&q.scales)?);
                let both = biases.map(two).transpose()?;
                let which = Array::from_slice(&[1u32, 0], &[2])?;
                let x = noise(4, &[2, m, k], dtype)?;
                let y = gather_qmm_with(
                    &x,
                    &packed,
                    &scales,
                    both.as_ref(),
                    None,
                    Some(&which),
                    true,
                    scheme,
                    false,
                )?;
                let turned = two(&wide)?.take(&which, 0)?.swapaxes(-1, -2)?;
                close(
                    &format!("{what} gathered"),
                    &y,
                    &x.astype(DType::F32)?.matmul(&turned)?,
                    tolerance,
                )?;
            }
        }
    }
    Ok(())
}

/// A CPU stream reads what the GPU computes.
#[test]
fn a_cpu_stream_waits_for_the_gpu() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let w = noise(1, &[2048, 2048], DType::F32)?.multiply(0.02f32)?;
    let first = noise(2, &[2048, 2048], DType::F32)?;
    eval([&w, &first])?;
    for is_queued in [false, true] {
        let mut x = first.clone();
        for _ in 0..20 {
            x = x.matmul(&w)?;
        }
        if is_queued {
            mlx_core::async_eval([&x])?;
        }
        let y = on_cpu(|| x.add(1.0f32))?;
        let z = y.add(1.0f32)?;
        let again = on_cpu(|| z.subtract(2.0f32))?;
        let found = f32s(&again)?;
        let wanted = f32s(&x)?;
        let far = found.iter().zip(&wanted);
        let far = far.filter(|(a, b)| (*a - *b).abs() > 1e-4 * (1.0 + b.abs()));
        assert_eq!(far.count(), 0, "{is_queued}");
    }
    Ok(())
}

#[test]
fn ropes_of_repeated_rows() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let how = Rope {
        dims: 64,
        traditional: false,
        base: Some(10000.0),
        scale: 1.0,
        freqs: None,
    };
    for offsets in [
        Array::from_slice(&[3i32], &[1])?,
        Array::from_slice(&[3i32, 9], &[2])?,
    ] {
        let x = noise(1, &[2, 3, 1, 64], DType::F32)?;
        let repeated = x.broadcast_to(&[2, 3, 5, 64])?;
        let stored = repeated.contiguous()?;
        eval([&stored])?;
        same(
            "rope",
            &fast::rope_with(&repeated, &how, &offsets)?,
            &fast::rope_with(&stored, &how, &offsets)?,
        )?;
    }
    Ok(())
}

#[test]
fn many_threads_compute_and_fail() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let w = noise(1, &[256, 256], DType::BF16)?.freeze()?;
    let wanted = f32s(&w.thaw().matmul(&w.thaw())?)?;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    for _ in 0..20 {
                        let w = w.thaw();
                        assert_eq!(f32s(&w.matmul(&w)?)?, wanted);
                        let error = w
                            .take(&Array::from_slice(&[256i32], &[1])?, 0)?
                            .to_vec::<half::bf16>();
                        assert_eq!(error.unwrap_err().kind(), ErrorKind::Eval);
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
fn f64_is_refused_by_name() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let x = Array::from_slice(&[1.0f64, 2.0], &[2])?;
    for refused in [
        x.add(&x),
        x.astype(DType::F32),
        Array::from_slice(&[1f32], &[1])?.astype(DType::F64),
        zeros(&[2], DType::F64),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error
                .to_string()
                .starts_with("F64 is not supported on a GPU"),
            "{error}"
        );
    }
    assert_eq!(on_cpu(|| x.add(&x)?.to_vec::<f64>())?, [2.0, 4.0]);
    assert_eq!(
        on_cpu(|| x.astype(DType::F32))?
            .add(1.0f32)?
            .to_vec::<f32>()?,
        [2.0, 3.0]
    );
    Ok(())
}

#[test]
fn a_full_gpu_is_an_error_and_the_thread_goes_on() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let memory = memory::of_device()?.expect("a GPU has memory of its own");
    // Each sum takes a fifth of the GPU, and as much again for each of its operands while it is computed.
    let rows = (memory.total / 5 / 2 / (1 << 20)) as i32;
    let limit = memory::set_memory_limit(memory.total)?;
    memory::set_array_limit(memory.total);
    let sum = || -> Result<Array> {
        let x = Array::from_slice(&[1.0f32], &[1, 1])?.astype(DType::BF16)?;
        let x = x.broadcast_to(&[rows, 1 << 20])?;
        let y = fast::add(&x, &x)?;
        eval([&y])?;
        Ok(y)
    };
    let mut held = Vec::new();
    let error = loop {
        match sum() {
            Ok(y) => held.push(y),
            Err(error) => break error,
        }
        assert!(held.len() < 6, "more arrays than the GPU has memory for");
    };
    assert_eq!(error.kind(), ErrorKind::Memory, "{error}");
    assert!(!held.is_empty());
    drop(held);
    memory::clear_cache()?;
    memory::set_memory_limit(limit)?;
    let x = noise(1, &[4, 64], DType::BF16)?;
    assert!(f32s(&fast::add(&x, &x)?)?.iter().all(|x| x.is_finite()));
    Ok(())
}

#[test]
fn tensors_of_a_file_are_in_memory_of_the_gpu() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    // A full GPU moves managed memory to the host and back with each kernel.
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("x.safetensors");
    let x = noise(1, &[1024, 1024], DType::F32)?;
    safetensors::save(&file, [("x", &x)], &Default::default())?;
    memory::clear_cache()?;
    let before = memory::of_device()?.expect("a GPU").free;
    let loaded = Safetensors::open(&file)?;
    let copies: Vec<Array> = (0..256).map(|_| loaded.array("x")).collect::<Result<_>>()?;
    eval(&copies)?;
    let after = memory::of_device()?.expect("a GPU").free;
    // 256 copies of 4 MiB are a GiB; managed memory that no kernel has read takes none of it.
    assert!(before.saturating_sub(after) > 900 << 20, "{before} {after}");
    same("the last copy", &x, &copies[255])
}
