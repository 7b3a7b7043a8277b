//! Calls of products, quantised matrices and convolutions.

use mlx_core::{
    self as mlx, Array, BlockMasks, Conv, ConvGeneral, ConvTranspose, QuantMode, Result, Scheme,
};

use crate::case::{Case, Op, rows};

pub fn rows() -> Vec<(&'static str, Op)> {
    [products(), quantized(), convolutions()].concat()
}

fn products() -> Vec<(&'static str, Op)> {
    rows! {
        "matmul" => |c| c.x(0).matmul(c.x(1));
        "addmm_with" => |c| c.x(0).addmm_with(c.x(1), c.x(2), c.float(0) as f32, c.float(1) as f32);
        "inner" => |c| c.x(0).inner(c.x(1));
        "outer" => |c| c.x(0).outer(c.x(1));
        "tensordot_with" => |c| c.x(0).tensordot_with(c.x(1), &c.ints(0), &c.ints(1));
        "vecdot_with" => |c| c.x(0).vecdot_with(c.x(1), c.int(0));
        "kron" => |c| c.x(0).kron(c.x(1));
        "einsum" => |c| mlx::einsum(c.text(0), &c.inputs);
        "hadamard_transform" => |c| c.x(0).hadamard_transform();
        "hadamard_transform_with" => |c| c.x(0).hadamard_transform_with(c.float(0) as f32);
        "cross_with" => |c| c.x(0).cross_with(c.x(1), c.int(0));
        "gather_mm_with" => |c| c.x(0).gather_mm_with(c.x(1), Some(c.x(2)), Some(c.x(3)), c.bool(0));
        "block_masked_mm_with" => |c| {
            let masks = BlockMasks { out: Some(c.x(2)), lhs: Some(c.x(3)), rhs: Some(c.x(4)) };
            c.x(0).block_masked_mm_with(c.x(1), c.int(0), masks)
        };
        "segmented_mm" => |c| c.x(0).segmented_mm(c.x(1), c.x(2));
    }
}

/// The scheme from three arguments, starting at `at`.
fn scheme(c: &Case, at: usize) -> Result<Scheme> {
    Scheme::new(c.int(at + 2), c.int(at + 1), QuantMode::parse(c.text(at))?)
}

fn quantized() -> Vec<(&'static str, Op)> {
    rows! {
        "quantize_with" => |c| mlx::quantize_with(c.x(0), scheme(c, 0)?).map(|q| {
            [Some(q.packed), Some(q.scales), q.biases].into_iter().flatten().collect::<Vec<Array>>()
        });
        "dequantize_with" => |c| mlx::dequantize_with(c.x(0), c.x(1), c.inputs.get(2), scheme(c, 0)?, None);
        "dequantize_to" => |c| {
            mlx::dequantize_with(c.x(0), c.x(1), c.inputs.get(2), scheme(c, 1)?, Some(c.dtype(0)))
        };
        "quantized_matmul_with" => |c| {
            mlx::quantized_matmul_with(c.x(0), c.x(1), c.x(2), c.inputs.get(3), c.bool(0), scheme(c, 1)?)
        };
        "gather_qmm_with" => |c| {
            let (lhs, rhs) = (Some(c.x(4)), Some(c.x(5)));
            mlx::gather_qmm_with(c.x(0), c.x(1), c.x(2), Some(c.x(3)), lhs, rhs, c.bool(0), scheme(c, 2)?, c.bool(1))
        };
        "to_fp8" => |c| c.x(0).to_fp8();
        "from_fp8" => |c| c.x(0).from_fp8(c.dtype(0));
    }
}

/// Argument `i`, one number for each dimension.
fn dims<const N: usize>(c: &Case, i: usize) -> [i32; N] {
    if c.is_int(i) {
        [c.int(i); N]
    } else {
        c.ints(i).try_into().unwrap()
    }
}

fn conv<const N: usize>(c: &Case) -> Conv<N> {
    Conv {
        stride: dims(c, 0),
        padding: dims(c, 1),
        dilation: dims(c, 2),
        groups: c.int(3),
    }
}

fn transpose<const N: usize>(c: &Case) -> ConvTranspose<N> {
    ConvTranspose {
        stride: dims(c, 0),
        padding: dims(c, 1),
        dilation: dims(c, 2),
        output_padding: dims(c, 3),
        groups: c.int(4),
    }
}

fn convolutions() -> Vec<(&'static str, Op)> {
    rows! {
        "conv1d_with" => |c| c.x(0).conv1d_with(c.x(1), conv(c));
        "conv2d_with" => |c| c.x(0).conv2d_with(c.x(1), conv(c));
        "conv3d_with" => |c| c.x(0).conv3d_with(c.x(1), conv(c));
        "conv_transpose1d_with" => |c| c.x(0).conv_transpose1d_with(c.x(1), transpose(c));
        "conv_transpose2d_with" => |c| c.x(0).conv_transpose2d_with(c.x(1), transpose(c));
        "conv_transpose3d_with" => |c| c.x(0).conv_transpose3d_with(c.x(1), transpose(c));
        "conv_general" => |c| c.x(0).conv_general(c.x(1), &ConvGeneral {
            stride: c.ints(0),
            padding_lo: c.ints(1),
            padding_hi: c.ints(2),
            kernel_dilation: c.ints(3),
            input_dilation: c.ints(4),
            groups: c.int(5),
            flip: c.bool(6),
        });
    }
}
