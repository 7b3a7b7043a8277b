"""Products, quantised matrices, convolutions."""

import mlx.core as mx
import numpy as np

SCHEMES = [("affine", bits, group) for bits in (1, 2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
SCHEMES += [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]


def fill(table):
    products(table)
    chosen(table)
    quantized(table)
    convolutions(table)


def products(table):
    a, b = table.floats(2, 3, 4), table.floats(4, 2)
    v, w = table.floats(4), table.floats(4)
    for left, right in ((a, b), (v, b), (a, v), (v, w)):
        table.add("matmul", [left, right], [], mx.matmul, np.matmul)
    for dtype in (mx.float16, mx.bfloat16):
        table.add("matmul", [a[0].astype(dtype), b.astype(dtype)], [], mx.matmul, np.matmul)
    table.add("matmul", [mx.zeros((2, 0)), mx.zeros((0, 3))], [], mx.matmul, np.matmul)
    c = table.floats(3, 2)
    table.add("addmm_with", [c, a[0], b], [0.5, 2.0], mx.addmm, lambda c, a, b, x, y: y * c + x * (a @ b))
    table.add("inner", [a[0], v], [], mx.inner, np.inner)
    table.add("inner", [a[0], a[1]], [], mx.inner, np.inner)
    table.add("outer", [v, c], [], mx.outer, np.outer)
    table.add(
        "tensordot_with",
        [a, table.floats(4, 3, 2)],
        [[1, 2], [1, 0]],
        lambda a, b, i, j: mx.tensordot(a, b, [i, j]),
        lambda a, b, i, j: np.tensordot(a, b, [i, j]),
    )
    table.add("vecdot_with", [a[0], a[1]], [-1], lambda a, b, i: mx.vecdot(a, b, axis=i), lambda a, b, i: np.vecdot(a, b, axis=i))
    table.add("kron", [c, b[:2]], [], mx.kron, np.kron)
    for text, inputs in (
        ("ij,jk->ik", [c.T, c]),
        ("bij,jk->bik", [a, b]),
        ("ij->j", [c]),
        ("i,j->ij", [v, w]),
    ):
        table.add("einsum", inputs, [text], lambda *args: mx.einsum(args[-1], *args[:-1]), lambda *args: np.einsum(args[-1], *args[:-1]))
    for n in (8, 12):
        table.add("hadamard_transform_with", [table.floats(2, n)], [0.5], mx.hadamard_transform)
    table.add("hadamard_transform", [table.floats(4)], [], mx.hadamard_transform, hadamard)
    for n in (3, 2):
        x, y = table.floats(2, n), table.floats(2, n)
        table.add("cross_with", [x, y], [-1], mx.linalg.cross, cross)


def hadamard(x):
    h = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]])
    return x @ h / 2


def cross(a, b, _):
    if a.shape[-1] == 2:
        a, b = (np.pad(x, [(0, 0), (0, 1)]) for x in (a, b))
    return np.cross(a, b)


def chosen(table):
    a, b = table.floats(3, 1, 4), table.floats(2, 4, 2)
    lhs, rhs = mx.array([2, 0, 1, 1], mx.uint32), mx.array([0, 0, 1, 1], mx.uint32)
    pick = lambda a, b, i, j, s: mx.gather_mm(a, b, i, j, sorted_indices=s)
    for sorted_indices in (False, True):
        table.add("gather_mm_with", [a, b, lhs, rhs], [sorted_indices], pick, lambda a, b, i, j, s: a[i] @ b[j])
    m, n = table.floats(2, 40, lo=-1), table.floats(40, 3, lo=-1)
    masks = [mx.array([[True]]), mx.array([[True, False]]), mx.array([[False], [True]])]
    table.add("block_masked_mm_with", [m, n, *masks], [32], lambda a, b, o, l, r, k: mx.block_masked_mm(a, b, k, o, l, r), blocks)
    segments = mx.array([[0, 4], [4, 40], [8, 8]], mx.uint32)
    table.add(
        "segmented_mm",
        [m, n, segments],
        [],
        mx.segmented_mm,
        lambda a, b, s: np.stack([a[:, i:j] @ b[i:j] for i, j in s]),
    )


def blocks(a, b, out, lhs, rhs, size):
    grow = lambda mask, shape: np.repeat(np.repeat(mask, size, 0), size, 1)[: shape[0], : shape[1]]
    product = (a * grow(lhs, a.shape)) @ (b * grow(rhs, b.shape))
    return product * grow(out, product.shape)


def quantized(table):
    for mode, bits, group in SCHEMES:
        kind = {"mode": mode, "bits": bits, "group_size": group}
        args = [mode, bits, group]
        # Only sizes of 32 multiply into whole words at every number of bits; two rows keep the file small.
        w = table.floats(2, group, lo=-1, hi=1)
        if (mode, group) in (("affine", 64), ("affine", 128)) and bits not in (4,):
            continue
        parts = mx.quantize(w, **kind)
        table.add("quantize_with", [w], args, lambda w, *_: mx.quantize(w, **kind))
        table.add("dequantize_with", [*parts], args, lambda *parts: mx.dequantize(*parts[: len(parts) - 3], **kind), (lambda w: lambda *_: w)(dense(parts, kind)))
        x = table.floats(2, group, lo=-1, hi=1)
        table.add(
            "quantized_matmul_with",
            [x, *parts],
            [True, *args],
            lambda x, *rest: mx.quantized_matmul(x, *rest[: len(parts)], transpose=True, **kind),
            (lambda w: lambda x, *_: x @ w.T)(dense(parts, kind)),
        )
    whole = table.floats(32, 32, lo=-1, hi=1)
    kind = {"mode": "affine", "bits": 4, "group_size": 32}
    parts = mx.quantize(whole, **kind)
    table.add(
        "quantized_matmul_with",
        [whole[:1], *parts],
        [False, "affine", 4, 32],
        lambda x, *rest: mx.quantized_matmul(x, *rest[:3], transpose=False, **kind),
        lambda x, *_: x @ dense(parts, kind),
    )
    half = [part.astype(mx.bfloat16) if i else part for i, part in enumerate(parts)]
    table.add("dequantize_to", [*half], ["F32", "affine", 4, 32], lambda p, s, b, *_: mx.dequantize(p, s, b, dtype=mx.float32, **kind))
    experts = mx.quantize(table.floats(2, 2, 32, lo=-1, hi=1), **kind)
    rows, lhs, rhs = table.floats(3, 1, 32, lo=-1), mx.array([0, 1, 2], mx.uint32), mx.array([0, 1, 1], mx.uint32)
    table.add(
        "gather_qmm_with",
        [rows, *experts, lhs, rhs],
        [True, True, "affine", 4, 32],
        lambda x, p, s, b, i, j, *_: mx.gather_qmm(x, p, s, b, i, j, transpose=True, sorted_indices=True, **kind),
        lambda x, p, s, b, i, j, *_: x[i] @ dense(experts, kind)[j].swapaxes(-1, -2),
    )
    floats = table.floats(6, lo=-5, hi=5)
    table.add("to_fp8", [floats], [], mx.to_fp8)
    table.add("from_fp8", [mx.to_fp8(floats)], ["F32"], lambda x, _: mx.from_fp8(x, mx.float32))


def dense(parts, kind):
    return np.array(mx.dequantize(*parts, **kind).astype(mx.float32))


def convolutions(table):
    x, w = table.floats(1, 7, 2, lo=-1), table.floats(3, 3, 2, lo=-1)
    for args in ([1, 0, 1, 1], [2, 1, 1, 1], [1, 2, 2, 1]):
        table.add("conv1d_with", [x, w], args, mx.conv1d, conv1d)
    g = table.floats(2, 3, 1, lo=-1)
    table.add("conv1d_with", [x, g], [1, 1, 1, 2], mx.conv1d, conv1d)
    table.add("conv_transpose1d_with", [x, w], [2, 1, 1, 1, 1], mx.conv_transpose1d)
    image, kernel = table.floats(1, 4, 5, 2, lo=-1), table.floats(2, 3, 2, 2, lo=-1)
    table.add("conv2d_with", [image, kernel], [[1, 1], [0, 0], [1, 1], 1], mx.conv2d, conv2d)
    table.add("conv2d_with", [image, kernel], [[2, 1], [1, 0], [1, 2], 1], mx.conv2d)
    table.add("conv_transpose2d_with", [image, kernel], [[2, 1], [1, 0], [1, 1], [1, 0], 1], mx.conv_transpose2d)
    volume, cube = table.floats(1, 3, 3, 3, 1, lo=-1), table.floats(1, 2, 2, 2, 1, lo=-1)
    table.add("conv3d_with", [volume, cube], [[1, 1, 1], [0, 1, 0], [1, 1, 2], 1], mx.conv3d)
    table.add("conv_transpose3d_with", [volume, cube], [[1, 2, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], 1], mx.conv_transpose3d)
    general = {"stride": [2], "padding": ([1], [2]), "kernel_dilation": [1], "input_dilation": [2], "groups": 1, "flip": True}
    table.add("conv_general", [x, w], [[2], [1], [2], [1], [2], 1, True], lambda x, w, *_: mx.conv_general(x, w, **general))


def conv1d(x, w, stride, padding, dilation, groups):
    x = np.pad(x, [(0, 0), (padding, padding), (0, 0)])
    out, k, share = w.shape
    reach = (k - 1) * dilation + 1
    steps = range(0, x.shape[1] - reach + 1, stride)
    windows = np.stack([x[:, i : i + reach : dilation] for i in steps], 1)
    per = out // groups
    return np.concatenate(
        [np.einsum("nlkc,okc->nlo", windows[..., i * share : (i + 1) * share], w[i * per : (i + 1) * per]) for i in range(groups)], -1
    )


def conv2d(x, w, *_):
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[1:3], (1, 2))
    return np.einsum("nhwckl,oklc->nhwo", windows, w)
