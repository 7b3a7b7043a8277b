//! The fused operations on every instruction set of the machine and in every dtype: close to plain operations in f32,
//! and the same to the bit for every number of threads.
#![cfg(not(target_vendor = "apple"))]

use std::env;
use std::process::{Command, Output};

use mlx_core::fast::{self, Matrix, NormOf, plainly};
use mlx_core::random::{self, Key};
use mlx_core::{Array, DType, Result};

#[path = "fused_isa/attention.rs"]
mod attention;
#[path = "ragged/batch.rs"]
mod batch;
#[path = "fused_isa/choose.rs"]
mod choose;
#[path = "fused_isa/draw.rs"]
mod draw;
#[path = "fused_isa/flat.rs"]
mod flat;
#[path = "fused_isa/flat_ahead.rs"]
mod flat_ahead;
#[path = "fused_isa/hidden.rs"]
mod hidden;
#[path = "ragged/layers.rs"]
mod layers;
#[path = "fused_isa/packed.rs"]
mod packed;
#[path = "fused_isa/ragged.rs"]
mod ragged;
#[path = "fused_isa/recurrent.rs"]
mod recurrent;
#[path = "recurrent/reference.rs"]
#[allow(
    dead_code,
    reason = "the definition in f64 is for the tests of dense rows"
)]
mod reference;
#[path = "shared/projection.rs"]
mod shared;
#[path = "fused_isa/unseen.rs"]
mod unseen;

use shared::projection;

const TYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Runs the test `name` of this file in a process with these settings.
fn child(name: &str, settings: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env::current_exe().expect("a test is a program"));
    command.args([name, "--exact", "--nocapture"]);
    for name in ["MLX_CPU_KERNELS", "MLX_CPU_ISA", "MLX_CPU_THREADS"] {
        command.env_remove(name);
    }
    command
        .envs(settings.iter().copied())
        .output()
        .expect("it starts")
}

/// The instruction sets with kernels of their own that this machine has, as the error for a wrong name lists them.
fn isas() -> Vec<&'static str> {
    let output = child("rows", &[("MLX_CPU_ISA", "no such")]);
    let text = text(&output);
    assert!(!output.status.success(), "{text}");
    let known = text
        .split("that this machine has (")
        .nth(1)
        .and_then(|rest| rest.split(')').next())
        .unwrap_or_else(|| panic!("no list in {text}"));
    let known: Vec<&str> = known.split(", ").collect();
    ["portable", "neon", "avx2", "avx512", "amx"]
        .into_iter()
        .filter(|isa| known.contains(isa))
        .collect()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Whether the process uses MLX's own operations. They guarantee less than what is tested here: they round after each
/// step, and order ties and NaN in any way.
fn kernels_are_off() -> bool {
    env::var("MLX_CPU_KERNELS").as_deref() == Ok("off")
}

fn normal(seed: u64, shape: &[i32], dtype: DType) -> Result<Array> {
    random::normal(&Key::new(seed)?, shape, DType::F32)?.astype(dtype)
}

/// Half the distance between neighbours at 1: the error of a number that is computed in f32 and rounded once.
fn rounding(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => f32::powi(2.0, -11),
        DType::BF16 => f32::powi(2.0, -8),
        _ => 0.0,
    }
}

/// Compares `found` with the result in f32, and adds its bits to the digest.
fn check(found: &Array, exact: &Array, steps: f32, digest: &mut u64, what: &str) -> Result<()> {
    assert_eq!(found.shape(), exact.shape(), "{what}");
    let tolerance = 2e-5 + steps * rounding(found.dtype());
    let floats = |array: &Array| array.astype(DType::F32)?.to_vec::<f32>();
    for (index, (a, b)) in floats(found)?.iter().zip(floats(exact)?).enumerate() {
        assert!(
            (a - b).abs() <= tolerance * b.abs().max(1.0),
            "{what}, element {index}: {a} and {b}"
        );
        *digest = (*digest ^ u64::from(a.to_bits())).wrapping_mul(0x100_0000_01b3);
    }
    Ok(())
}

/// Runs in the settings of its process: `every_instruction_set_and_number_of_threads` starts it with many.
#[test]
fn rows() -> Result<()> {
    if kernels_are_off() {
        return Ok(());
    }
    let mut digest = 0xcbf2_9ce4_8422_2325;
    for (case, dtype) in TYPES.into_iter().enumerate() {
        for (rows, n) in [
            (1, 1),
            (3, 7),
            (2, 16),
            (5, 37),
            (2, 64),
            (3, 130),
            (700, 96),
            (1, 9001),
        ] {
            let seed = (case * 100) as u64;
            let get = |i, shape: &[i32]| normal(seed + i, shape, dtype);
            let (x, y) = (get(1, &[rows, n])?, get(2, &[rows, n])?);
            let (u, w) = (get(3, &[n])?, get(4, &[n])?);
            let wide = |array: &Array| array.astype(DType::F32);
            let (x32, y32, u32, w32) = (wide(&x)?, wide(&y)?, wide(&u)?, wide(&w)?);
            let mut same = |found: Array, exact: Array, what: &str| {
                assert_eq!(found.dtype(), dtype);
                let what = format!("{what} of {rows} x {n}, {dtype}");
                check(&found, &exact, 1.0, &mut digest, &what)
            };
            same(
                fast::rms_norm(&x, Some(&w), 1e-5)?,
                plainly(|| fast::rms_norm(&x32, Some(&w32), 1e-5))?,
                "rms_norm",
            )?;
            same(
                fast::rms_norm(&x, None, 1e-5)?,
                plainly(|| fast::rms_norm(&x32, None, 1e-5))?,
                "rms_norm without weight",
            )?;
            same(fast::add(&x, &y)?, y32.add(&x32)?, "add")?;
            same(
                fast::norm_add(&x, &w, &y, 1e-5)?,
                plainly(|| fast::norm_add(&x32, &w32, &y32, 1e-5))?,
                "norm_add",
            )?;
            let (sum, _) = fast::add_norm(&x, &y, Some(&u), &w, 1e-5)?;
            let (exact, _) = plainly(|| fast::add_norm(&x32, &y32, Some(&u32), &w32, 1e-5))?;
            same(sum, exact, "sum of add_norm")?;
            let (sum, normed) = fast::add_norm(&x, &y, None, &w, 1e-5)?;
            same(
                normed,
                plainly(|| fast::rms_norm(&wide(&sum)?, Some(&w32), 1e-5))?,
                "norm of add_norm",
            )?;
            let of = NormOf {
                x: &x,
                residual: Some(&y),
                inner: Some(&u),
                weight: Some(&w),
                eps: 1e-5,
            };
            let matrix = get(5, &[6, n])?;
            let joined = fast::norm_linear(&of, &[Matrix::Dense(&matrix)])?;
            let (sum, normed) = fast::add_norm(&x, &y, Some(&u), &w, 1e-5)?;
            let product = fast::linear(&normed, &matrix)?;
            for (joined, apart) in [joined.sum, joined.normed, joined.products[0].clone()]
                .iter()
                .zip([sum, normed, product])
            {
                let bits = |a: &Array| a.view(DType::U8)?.to_vec::<u8>();
                assert_eq!(bits(joined)?, bits(&apart)?, "{rows} x {n}, {dtype}");
            }
            same(
                fast::swiglu(&x, &y)?,
                plainly(|| fast::swiglu(&x32, &y32))?,
                "swiglu",
            )?;
            same(
                fast::geglu(&x, &y)?,
                plainly(|| fast::geglu(&x32, &y32))?,
                "geglu",
            )?;
            same(
                fast::soft_cap(&x, 0.7)?,
                plainly(|| fast::soft_cap(&x32, 0.7))?,
                "soft_cap",
            )?;
        }
        // The ends of the ranges of f16 and bf16.
        let ends = [
            0.0f32, -0.0, 6e-8, -1e-6, 6.0e-5, 65504.0, -65504.0, 1e-30, -3e4,
        ];
        let x = Array::from_slice(&ends, &[9])?.astype(dtype)?;
        let zero = Array::from_slice(&[0.0f32; 9], &[9])?.astype(dtype)?;
        let one = Array::from_slice(&[1.0f32; 9], &[9])?.astype(dtype)?;
        let (sum, _) = fast::add_norm(&x, &zero, None, &one, 1e-5)?;
        let floats = |array: &Array| array.astype(DType::F32)?.to_vec::<f32>();
        assert_eq!(floats(&sum)?, floats(&x)?, "{dtype}");
        let huge = Array::from_slice(&[6e4f32, f32::NAN, f32::INFINITY, f32::NEG_INFINITY], &[4])?;
        let huge = huge.astype(dtype)?;
        let one = one.slice_axis(0, 0, 4)?;
        let (sum, _) = fast::add_norm(&huge, &huge, None, &one, 1e-5)?;
        let sum = floats(&sum)?;
        assert!(
            sum[1].is_nan() && sum[2] == f32::INFINITY && sum[3] == f32::NEG_INFINITY,
            "{dtype}: {sum:?}"
        );
        assert_eq!(
            sum[0].is_infinite(),
            dtype == DType::F16,
            "{dtype}: {sum:?}"
        );
    }
    rotations(&mut digest)?;
    println!("digest {digest:016x}");
    Ok(())
}

fn rotations(digest: &mut u64) -> Result<()> {
    for dtype in TYPES {
        for (tokens, heads, dim, dims) in [(1, 2, 8, 8), (3, 1, 37, 20), (70, 4, 64, 64)] {
            let x = normal(5, &[2, tokens, heads * dim], dtype)?;
            let w = normal(6, &[dim], dtype)?;
            let periods =
                random::normal_with(&Key::new(7)?, &[dims / 2], DType::F32, 0.0, 3.0)?.exp()?;
            let offsets = Array::from_slice(&[0i32, 2000], &[2])?;
            let (wide, w32) = (x.astype(DType::F32)?, w.astype(DType::F32)?);
            let what = format!("heads of {dim}, {dtype}");
            let found = fast::heads(&projection(&x, dim, None, dims, &periods, &offsets))?;
            let exact =
                plainly(|| fast::heads(&projection(&wide, dim, None, dims, &periods, &offsets)))?;
            check(&found, &exact, 2.0, digest, &what)?;
            let found = fast::heads(&projection(
                &x,
                dim,
                Some((&w, 1e-5)),
                dims,
                &periods,
                &offsets,
            ))?;
            let exact = plainly(|| {
                fast::heads(&projection(
                    &wide,
                    dim,
                    Some((&w32, 1e-5)),
                    dims,
                    &periods,
                    &offsets,
                ))
            })?;
            check(&found, &exact, 4.0, digest, &what)?;
        }
    }
    Ok(())
}

/// The children always use this crate's kernels, so a run with the kernels switched off would
/// repeat the run with them.
#[test]
fn every_instruction_set_and_number_of_threads() {
    if kernels_are_off() {
        return;
    }
    for test in [
        "rows",
        "attention::attentions",
        "attention::packed_attentions",
        "choose::choices",
        "draw::draws",
        "flat::ragged_batches",
        "flat_ahead::both_directions",
        "hidden::hidden_queries_get_the_mean",
        "hidden::hidden_queries_over_packed_keys_get_the_mean",
        "packed::packed_rows_are_quantised_ones",
        "ragged::ragged_rows_are_those_alone",
        "recurrent::recurrences",
        "unseen::what_was_in_memory_does_not_show",
    ] {
        let mut digests = Vec::new();
        for isa in isas() {
            let mut of_isa = Vec::new();
            for threads in ["1", "3"] {
                let settings = [("MLX_CPU_ISA", isa), ("MLX_CPU_THREADS", threads)];
                let output = child(test, &settings);
                let text = text(&output);
                assert!(
                    output.status.success(),
                    "{test}, {isa}, {threads} threads: {text}"
                );
                let digest = text
                    .split("digest ")
                    .nth(1)
                    .map(|rest| rest[..16].to_owned());
                of_isa.push(digest.unwrap_or_else(|| panic!("no digest in {text}")));
            }
            assert!(
                of_isa.iter().all(|x| *x == of_isa[0]),
                "{test}, {isa}: threads show in the results"
            );
            digests.push((isa, of_isa.remove(0)));
        }
        // Instruction sets sum in other orders, so different digests show that the setting took effect. Only attention
        // uses tiles; choices, draws and packed rows are exact.
        let mut different: Vec<&String> = digests
            .iter()
            .filter(|(isa, _)| {
                *isa != "amx"
                    || ["attention", "hidden", "flat"]
                        .iter()
                        .any(|name| test.starts_with(name))
            })
            .map(|(_, digest)| digest)
            .collect();
        let exact = ["choose", "draw", "packed"];
        let sets = match exact.iter().any(|exact| test.starts_with(exact)) {
            true => 1,
            false => different.len(),
        };
        different.sort();
        different.dedup();
        assert_eq!(different.len(), sets, "{test}");
    }
}
