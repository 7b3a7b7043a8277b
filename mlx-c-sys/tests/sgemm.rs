//! The f32 matrix products that replace the BLAS of MLX's wheel: right for every layout and instruction set, and the
//! same to the bit for every batch size and number of threads. On Apple's systems MLX uses its own BLAS.
#![cfg(not(target_vendor = "apple"))]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every call is of one kind: slices whose sizes were computed from the same numbers, or live handles"
)]

use std::env;
use std::ffi::CStr;
use std::io::Error;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};
use std::ptr;

use mlx_c_sys::*;

#[path = "sgemm/compare.rs"]
mod compare;
#[path = "sgemm/matrix.rs"]
mod matrix;
use compare::{compare, compare_parts};
use matrix::{BEFORE, Matrix, Random, cblas_sgemm, hash, multiply};

/// Runs the test `name` of this file in a process with these settings.
fn child(name: &str, settings: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture"]);
    for name in ["MLX_CPU_KERNELS", "MLX_CPU_ISA", "MLX_CPU_THREADS"] {
        command.env_remove(name);
    }
    command.envs(settings.iter().copied()).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The instruction set that every machine of this architecture has.
const BASE: &str = if cfg!(target_arch = "aarch64") {
    "neon"
} else {
    "portable"
};

/// The instruction sets of this machine that differ in f32.
fn isas() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    let more = [
        (
            "avx2",
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
        ),
        ("avx512", is_x86_feature_detected!("avx512f")),
    ];
    #[cfg(not(target_arch = "x86_64"))]
    let more: [(&str, bool); 0] = [];
    let more = more
        .into_iter()
        .filter_map(|(isa, is_there)| is_there.then_some(isa));
    [BASE].into_iter().chain(more).collect()
}

/// Runs in the settings of its process: `every_instruction_set_and_number_of_threads` starts it with many.
#[test]
fn products() {
    println!("digest {:016x}", compare(150));
    compare_parts();
}

/// The child processes use this project's kernels in any case, so a run with the kernels switched
/// off would repeat this one.
#[test]
fn every_instruction_set_and_number_of_threads() {
    if env::var("MLX_CPU_KERNELS").as_deref() == Ok("off") {
        return;
    }
    let mut digests = Vec::new();
    for isa in isas() {
        let mut of_isa = Vec::new();
        for threads in ["1", "2", "3"] {
            let output = child(
                "products",
                &[("MLX_CPU_ISA", isa), ("MLX_CPU_THREADS", threads)],
            );
            let text = text(&output);
            assert!(output.status.success(), "{isa}, {threads} threads: {text}");
            let digest = text
                .split("digest ")
                .nth(1)
                .map(|rest| rest[..16].to_owned());
            of_isa.push(digest.unwrap_or_else(|| panic!("no digest in {text}")));
        }
        assert!(
            of_isa.iter().all(|x| *x == of_isa[0]),
            "{isa}: threads show in the results"
        );
        digests.push(of_isa.remove(0));
    }
    // Instruction sets sum in different orders, so different digests show that the setting took
    // effect.
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), isas().len());
}

#[test]
fn no_element_of_a_row_reaches_another() {
    let mut random = Random(3);
    for (m, n, k) in [(1, 9, 5), (3, 50, 33), (24, 20, 100), (60, 70, 130)] {
        for layout in 0..4_u32 {
            let mut a = Matrix::random(&mut random, m, k, layout & 1 == 0, 0);
            let mut b = Matrix::random(&mut random, k, n, layout & 2 == 0, 0);
            let (row, col) = (random.below(m), random.below(n));
            let (at, bt) = (a.at(row, k - 1), b.at(k - 1, col));
            a.data[at] = f32::NAN;
            b.data[bt] = f32::INFINITY;
            let mut c = Matrix::random(&mut random, m, n, true, 0);
            multiply([m, n, k], 1.0, &a, &b, 0.0, &mut c);
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let x = c.get(i, j);
                assert_eq!(
                    x.is_nan(),
                    i == row,
                    "{m} x {n} x {k}: element {i}, {j} is {x}"
                );
                assert_eq!(
                    x.is_infinite(),
                    i != row && j == col,
                    "element {i}, {j} is {x}"
                );
            }
        }
    }
}

#[test]
fn nothing_to_sum() {
    let one = [1.0_f32];
    for (alpha, k) in [(1.0, 0), (0.0, 1)] {
        for (beta, expected) in [(0.0, 0.0), (0.5, 1.0)] {
            let mut c = [2.0_f32; 6];
            unsafe {
                cblas_sgemm()(
                    101,
                    111,
                    111,
                    2,
                    3,
                    k,
                    alpha,
                    one.as_ptr(),
                    1,
                    one.as_ptr(),
                    3,
                    beta,
                    c.as_mut_ptr(),
                    3,
                );
            }
            assert_eq!(c, [expected; 6]);
        }
    }
    unsafe {
        cblas_sgemm()(
            101,
            111,
            111,
            0,
            3,
            1,
            1.0,
            one.as_ptr(),
            1,
            one.as_ptr(),
            3,
            0.0,
            ptr::null_mut(),
            3,
        )
    };
}

/// A product large enough to be split among threads, and its hash.
fn large() -> u64 {
    let mut random = Random(5);
    let a = Matrix::random(&mut random, 70, 300, true, 0);
    let b = Matrix::random(&mut random, 300, 200, false, 0);
    let mut c = Matrix::random(&mut random, 70, 200, true, 0);
    multiply([70, 200, 300], 1.0, &a, &b, 0.0, &mut c);
    hash(&c.data, 0)
}

#[test]
fn many_callers_at_once() {
    let expected = large();
    let callers: Vec<_> = (0..4)
        .map(|_| std::thread::spawn(|| (0..100).map(|_| large()).collect::<Vec<_>>()))
        .collect();
    for caller in callers {
        assert!(caller.join().unwrap().iter().all(|x| *x == expected));
    }
}

#[test]
fn a_forked_process_has_no_threads_and_needs_none() {
    let expected = large();
    let mut command = Command::new("true");
    unsafe {
        command.pre_exec(move || {
            if large() == expected {
                Ok(())
            } else {
                Err(Error::other("another result after fork"))
            }
        });
    }
    assert!(command.status().unwrap().success());
}

fn array(values: &[f32], shape: &[i32]) -> mlx_array {
    assert_eq!(values.len(), shape.iter().product::<i32>() as usize);
    let dims = shape.len() as i32;
    unsafe { mlx_array_new_data(values.as_ptr().cast(), shape.as_ptr(), dims, MLX_FLOAT32) }
}

/// `a b^T` as MLX computes it on the CPU, or the message.
fn mlx_product(a: mlx_array, b: mlx_array) -> Result<Vec<f32>, String> {
    unsafe {
        let stream = mlx_default_cpu_stream_new();
        let [mut turned, mut c] = [mlx_array {
            ctx: ptr::null_mut(),
        }; 2];
        mlxrs_error_clear();
        let rc = mlx_swapaxes(&raw mut turned, b, -1, -2, stream)
            | mlx_matmul(&raw mut c, a, turned, stream)
            | mlx_array_eval(c);
        let result = if rc == 0 {
            let data = mlx_array_data_float32(c);
            Ok(std::slice::from_raw_parts(data, mlx_array_size(c)).to_vec())
        } else {
            Err(CStr::from_ptr(mlxrs_error_get())
                .to_str()
                .unwrap()
                .to_owned())
        };
        for handle in [a, b, turned, c] {
            mlx_array_free(handle);
        }
        mlx_stream_free(stream);
        result
    }
}

/// `[2, 3, 20, 64] x [2, 3, 30, 64]^T` by MLX: every batch equals the same product by `cblas_sgemm`.
#[test]
fn mlx_multiplies_by_it() {
    let mut random = Random(9);
    let (x, w) = (random.values(6 * 20 * 64), random.values(6 * 30 * 64));
    let c = match mlx_product(array(&x, &[2, 3, 20, 64]), array(&w, &[2, 3, 30, 64])) {
        Ok(c) => c,
        Err(message) => panic!("message: {message}"),
    };
    for batch in 0..6 {
        let matrix = |data: &[f32], rows: usize, ld, by_rows| Matrix {
            data: [&[0.0; BEFORE], &data[batch * rows * ld..][..rows * ld]].concat(),
            by_rows,
            ld,
        };
        let (a, b) = (matrix(&x, 20, 64, true), matrix(&w, 30, 64, false));
        let mut expected = matrix(&vec![0.0; 6 * 600], 20, 30, true);
        multiply([20, 30, 64], 1.0, &a, &b, 0.0, &mut expected);
        assert_eq!(
            c[batch * 600..][..600],
            expected.data[BEFORE..],
            "batch {batch}"
        );
    }
}

#[test]
fn mlx_gives_a_row_the_same_in_every_batch() {
    let mut random = Random(13);
    let (x, w) = (random.values(64 * 512), random.values(100 * 512));
    let run = |rows: usize, from: usize| {
        let a = array(&x[from * 512..][..rows * 512], &[rows as i32, 512]);
        mlx_product(a, array(&w, &[100, 512])).unwrap()
    };
    let all = run(64, 0);
    for (rows, from) in [(1, 0), (1, 63), (2, 10), (8, 31), (25, 5), (33, 31)] {
        assert_eq!(
            run(rows, from),
            all[from * 100..][..rows * 100],
            "{rows} rows from {from}"
        );
    }
}

/// Settings of this project change the products that MLX computes, so MLX calls this project's
/// functions. A wrong setting becomes an error of MLX.
#[test]
fn settings() {
    let fails = |settings: &[(&str, &str)], expected: &str| {
        let output = child("mlx_multiplies_by_it", settings);
        let text = text(&output);
        assert!(
            !output.status.success() && text.contains(expected),
            "{settings:?}: {text}"
        );
    };
    fails(
        &[("MLX_CPU_ISA", "mmx")],
        &format!("message: MLX_CPU_ISA must be one that this machine has ({BASE}"),
    );
    fails(
        &[("MLX_CPU_THREADS", "0")],
        "message: MLX_CPU_THREADS must be a whole number from 1 to 1024, given \"0\"",
    );
    fails(
        &[("MLX_CPU_THREADS", "2x")],
        "message: MLX_CPU_THREADS must be",
    );
    fails(
        &[("MLX_CPU_KERNELS", "no")],
        "message: MLX_CPU_KERNELS must be on or off, given \"no\"",
    );
    let works = |settings: &[(&str, &str)]| {
        let output = child("mlx_multiplies_by_it", settings);
        assert!(output.status.success(), "{settings:?}: {}", text(&output));
    };
    works(&[("MLX_CPU_KERNELS", "on")]);
    works(&[("MLX_CPU_THREADS", "3")]);
    // The BLAS of MLX does not read these settings.
    works(&[("MLX_CPU_KERNELS", "off"), ("MLX_CPU_ISA", "mmx")]);
}
