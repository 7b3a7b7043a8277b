//! Products, convolutions, transforms, linear algebra, random numbers.

use mlx_core::fft::{self, Norm};
use mlx_core::linalg;
use mlx_core::random::{self, Key};
use mlx_core::{
    Array, BlockMasks, Conv, ConvGeneral, ConvTranspose, DType, ErrorKind, einsum, eye_with, ones,
    zeros,
};

use crate::{floats, refuse};

#[test]
fn products_and_convolutions_refuse() {
    let (x, w) = (floats(&[1, 8, 2]), floats(&[3, 3, 2]));
    let general = |f: fn(&mut ConvGeneral)| {
        let mut conv = ConvGeneral::default();
        f(&mut conv);
        x.conv_general(&w, &conv)
    };
    let m = floats(&[2, 3]);
    refuse(vec![
        (
            "matmul of a scalar",
            Array::scalar(1f32).unwrap().matmul(&m),
        ),
        ("matmul that does not fit", m.matmul(&m)),
        (
            "addmm that does not fit",
            floats(&[3, 3]).addmm(&m, &floats(&[3, 2])),
        ),
        ("inner that does not fit", m.inner(&floats(&[2, 2]))),
        ("tensordot beyond", m.tensordot_with(&m, &[0], &[5])),
        (
            "tensordot of unequal lists",
            m.tensordot_with(&m, &[0, 1], &[0]),
        ),
        ("tensordot twice", m.tensordot_with(&m, &[0, 0], &[0, 0])),
        ("vecdot that does not fit", m.vecdot(&floats(&[2, 4]))),
        ("cross of 4", floats(&[4]).cross_with(&floats(&[4]), 0)),
        ("einsum of too few", einsum("ij,jk->ik", &[&m])),
        ("einsum of too many letters", einsum("ijkl->i", &[&m])),
        ("einsum of unknown letters", einsum("ij->k", &[&m])),
        ("einsum of nonsense", einsum("->->,,", &[&m])),
        ("hadamard of nothing", floats(&[2, 0]).hadamard_transform()),
        (
            "block_masked_mm of blocks of 0",
            m.block_masked_mm_with(&floats(&[3, 2]), 0, BlockMasks::default()),
        ),
        (
            "segmented_mm of triples",
            m.segmented_mm(&floats(&[3, 2]), &zeros(&[1, 3], DType::U32).unwrap()),
        ),
        (
            "conv1d by 0",
            x.conv1d_with(
                &w,
                Conv {
                    stride: [0],
                    ..Conv::default()
                },
            ),
        ),
        (
            "conv1d of no groups",
            x.conv1d_with(
                &w,
                Conv {
                    groups: 0,
                    ..Conv::default()
                },
            ),
        ),
        (
            "conv1d of 3 groups",
            x.conv1d_with(
                &w,
                Conv {
                    groups: 3,
                    ..Conv::default()
                },
            ),
        ),
        (
            "conv1d dilated by 0",
            x.conv1d_with(
                &w,
                Conv {
                    dilation: [0],
                    ..Conv::default()
                },
            ),
        ),
        (
            "conv1d padded by less than nothing",
            x.conv1d_with(
                &w,
                Conv {
                    padding: [-9],
                    ..Conv::default()
                },
            ),
        ),
        (
            "conv1d of no channels",
            floats(&[1, 8, 0]).conv1d(&floats(&[3, 3, 0])),
        ),
        (
            "conv1d of a scalar",
            Array::scalar(1f32).unwrap().conv1d(&w),
        ),
        (
            "conv1d of integers",
            ones(&[1, 8, 2], DType::I32)
                .unwrap()
                .conv1d(&w.astype(DType::I32).unwrap()),
        ),
        ("conv2d of one dimension", x.conv2d(&w)),
        (
            "conv_transpose1d by 0",
            x.conv_transpose1d_with(
                &w,
                ConvTranspose {
                    stride: [0],
                    ..Default::default()
                },
            ),
        ),
        (
            "conv_transpose1d of no groups",
            x.conv_transpose1d_with(
                &w,
                ConvTranspose {
                    groups: 0,
                    ..Default::default()
                },
            ),
        ),
        (
            "conv_general of two strides",
            general(|conv| conv.stride = vec![1, 2]),
        ),
        (
            "conv_general dilated by 0",
            general(|conv| conv.input_dilation = vec![0]),
        ),
        ("conv_general of no groups", general(|conv| conv.groups = 0)),
    ]);
}

#[test]
fn transforms_and_linear_algebra_refuse() {
    let x = floats(&[4]);
    let m = floats(&[2, 3]);
    let nothing = floats(&[0, 0]);
    let norm = Norm::Backward;
    refuse(vec![
        ("fft of 0", fft::fft_with(&x, Some(0), 0, norm)),
        ("fft of -4", fft::fft_with(&x, Some(-4), 0, norm)),
        (
            "fft of nothing",
            fft::fft_with(&floats(&[0]), None, 0, norm),
        ),
        ("fft beyond", fft::fft_with(&x, None, 9, norm)),
        (
            "irfft of one",
            fft::irfft_with(&floats(&[1]), None, 0, norm),
        ),
        (
            "fftn of a scalar",
            fft::fftn_with(&Array::scalar(1f32).unwrap(), None, .., norm),
        ),
        (
            "fftn of unequal lists",
            fft::fftn_with(&m, Some(&[4]), .., norm),
        ),
        ("fftn twice", fft::fftn_with(&m, None, [0, 0], norm)),
        ("fftfreq of 0", fft::fftfreq(0)),
        ("inv of a rectangle", linalg::inv(&m)),
        ("inv of nothing", linalg::inv(&nothing)),
        ("inv of a vector", linalg::inv(&x)),
        (
            "inv of integers",
            linalg::inv(&eye_with(2, 2, 0, DType::I32).unwrap()),
        ),
        ("det of nothing", linalg::det(&nothing)),
        ("pinv of nothing", linalg::pinv(&nothing)),
        ("tri_inv of nothing", linalg::tri_inv(&nothing)),
        ("cholesky of a rectangle", linalg::cholesky(&m)),
        ("eigh of a rectangle", linalg::eigh(&m).map(|pair| pair.0)),
        ("eig of nothing", linalg::eig(&nothing).map(|pair| pair.0)),
        ("qr of nothing", linalg::qr(&nothing).map(|pair| pair.0)),
        (
            "svd of NaN",
            linalg::singular_values(&mlx_core::full(&[3, 3], f32::NAN, DType::F32).unwrap()),
        ),
        ("lu of nothing", linalg::lu(&nothing).map(|parts| parts.1)),
        (
            "solve that does not fit",
            linalg::solve(&eye_with(2, 2, 0, DType::F32).unwrap(), &floats(&[3])),
        ),
        (
            "solve of a singular matrix",
            linalg::solve(&zeros(&[2, 2], DType::F32).unwrap(), &floats(&[2])),
        ),
        ("norm beyond", linalg::norm_with(&m, 2.0, 5, false)),
        (
            "norm of order 3 of a matrix",
            linalg::norm_with(&m, 3.0, [0, 1], false),
        ),
    ]);
}

#[test]
fn randomness_refuses() {
    let key = Key::new(1).unwrap();
    let m = floats(&[2, 3]);
    refuse(vec![
        (
            "a key of three",
            Key::from_array(zeros(&[3], DType::U32).unwrap()).map(|key| key.as_array().clone()),
        ),
        (
            "a key of floats",
            Key::from_array(floats(&[2])).map(|key| key.as_array().clone()),
        ),
        (
            "uniform of a negative size",
            random::uniform(&key, 0.0, 1.0, &[-1], DType::F32),
        ),
        (
            "uniform integers",
            random::uniform(&key, 0.0, 1.0, &[2], DType::I32),
        ),
        (
            "randint of floats",
            random::randint(&key, 0, 5, &[2], DType::F32),
        ),
        ("bits of three bytes", random::bits(&key, &[2], 3)),
        (
            "categorical of nothing",
            random::categorical(&key, &floats(&[3, 0])),
        ),
        ("categorical beyond", random::categorical_with(&key, &m, 2)),
        (
            "categorical of less than nothing",
            random::categorical_n(&key, &m, -1, -1),
        ),
        (
            "permutation of a scalar",
            random::permutation(&key, &Array::scalar(1f32).unwrap()),
        ),
        ("permutation of -1", random::permutation_of(&key, -1)),
        (
            "multivariate_normal that does not fit",
            random::multivariate_normal(&key, &floats(&[2]), &floats(&[3, 3]), &[2]),
        ),
    ]);
    assert_eq!(key.split_n(-1).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(key.split_n(0).unwrap().is_empty());
}
