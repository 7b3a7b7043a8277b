"""Files of NumPy, MLX and the package gguf, and what MLX and NumPy read from them: testdata/files."""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType as Kind

out = Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
rng = np.random.default_rng(45)
expected = {}


def expect(name, array):
    """What a reader must find under this name. MLX writes no float64 to safetensors: its bits are kept as uint64."""
    if isinstance(array, np.ndarray):
        array = mx.array(array.view(np.uint64) if array.dtype == np.float64 else array)
    expected[name] = array


def path(name):
    return str(out / name)


def arrays():
    """One array of each dtype that NumPy has, with several shapes."""
    kinds = ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "c8"]
    shapes = [(), (3,), (2, 3), (2, 1, 4), (0, 5), (1,)]
    for i, kind in enumerate(kinds):
        shape = shapes[i % len(shapes)]
        values = np.asarray(rng.integers(0, 100, shape)).astype(kind)
        yield np.dtype(kind).name, values


def npy():
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    cube = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    np.save(path("plain.npy"), matrix)
    np.save(path("fortran.npy"), np.asfortranarray(cube))
    np.save(path("big_endian.npy"), matrix.astype(">f4"))
    np.save(path("big_endian_fortran.npy"), np.asfortranarray(matrix.astype(">c8")))
    np.save(path("scalar.npy"), np.array(7, dtype=np.int64))
    with open(path("version_2.npy"), "wb") as file:
        np.lib.format.write_array(file, matrix, version=(2, 0))
    with open(path("version_3.npy"), "wb") as file:
        np.lib.format.write_array(file, matrix, version=(3, 0))
    for name in ["plain", "fortran", "big_endian", "big_endian_fortran", "version_2", "version_3", "scalar"]:
        found = np.load(path(f"{name}.npy"))
        expect(f"{name}.npy", found.astype(found.dtype.newbyteorder("="), order="C"))
    # MLX says of arrays with one axis that they are in Fortran's order, and its padding does not align the elements.
    for name, array in [
        ("mlx_vector.npy", mx.arange(5)),
        ("mlx_bf16.npy", mx.array([[1.5, -2.0], [3.0, 0.25]], mx.bfloat16)),
    ]:
        mx.save(path(name), array)
        expect(name, mx.load(path(name)))
    # What no array of MLX can hold.
    np.save(path("refused_objects.npy"), np.array([{"a": 1}, None], dtype=object))
    np.save(path("refused_fields.npy"), np.zeros(2, dtype=[("a", "f4"), ("b", "i4")]))
    np.save(path("refused_texts.npy"), np.array(["ab", "c"]))
    np.save(path("refused_bytes.npy"), np.array([b"ab", b"c"]))
    np.save(path("refused_complex128.npy"), np.zeros(2, np.complex128))
    np.save(path("refused_dates.npy"), np.array(["2020-01-01"], dtype="M8[D]"))


def npz():
    everything = dict(arrays())
    everything["double"] = np.array([0.1, -1e300])
    everything["fortran"] = np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3))
    everything["a folder/ä.b"] = np.ones(2, np.float32)
    everything["noise"] = rng.standard_normal((20, 25)).astype(np.float32)
    everything["zeros"] = np.zeros(20_000, np.int8)
    np.savez_compressed(path("numpy_compressed.npz"), **everything)
    del everything["zeros"]
    np.savez(path("numpy.npz"), **everything)
    for file in ["numpy.npz", "numpy_compressed.npz"]:
        for name, array in np.load(path(file)).items():
            expect(f"{file}/{name}", array)
    few = {"x": mx.arange(6).reshape(2, 3), "y": mx.array([1.5, 2.5], mx.bfloat16), "z": mx.array(True)}
    mx.savez(path("mlx.npz"), **few)
    mx.savez_compressed(path("mlx_compressed.npz"), **few)
    for file in ["mlx.npz", "mlx_compressed.npz"]:
        for name, array in mx.load(path(file)).items():
            expect(f"{file}/{name}", array)


def quantised(writer, name, kind, values):
    writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def gguf_files():
    writer = gguf.GGUFWriter(path("llama.gguf"), "llama")
    writer.add_uint8("v.u8", 200)
    writer.add_int8("v.i8", -100)
    writer.add_uint16("v.u16", 60000)
    writer.add_int16("v.i16", -30000)
    writer.add_uint32("v.u32", 4_000_000_000)
    writer.add_int32("v.i32", -2_000_000_000)
    writer.add_uint64("v.u64", 2**63)
    writer.add_int64("v.i64", -(2**62))
    writer.add_float32("v.f32", 0.5)
    writer.add_bool("v.bool", True)
    writer.add_string("v.text", "ä 😀")
    writer.add_array("v.texts", ["<s>", "</s>", "ä"])
    writer.add_array("v.numbers", [1, 2, 3])
    writer.add_array("v.floats", [0.5, 1.5])
    writer.add_array("v.flags", [True, False])
    values = rng.standard_normal((4, 64)).astype(np.float32)
    values[1, :32] = 0
    for kind in (Kind.Q4_0, Kind.Q4_1, Kind.Q8_0):
        quantised(writer, f"{kind.name}.weight", kind, values)
    quantised(writer, "stack.weight", Kind.Q8_0, values.reshape(2, 2, 64))
    writer.add_tensor("f32", values)
    writer.add_tensor("f16", values.astype(np.float16))
    for kind in ["i1", "i2", "i4"]:
        writer.add_tensor(kind, np.arange(-3, 3).reshape(2, 3).astype(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for name, array in mx.load(path("llama.gguf")).items():
        expect(f"llama.gguf/{name}", array)
    # What MLX's reader expands, does not know, or misreads (it skips 4 bytes of a float64 value, and crashes), and the
    # values of the package gguf.
    writer = gguf.GGUFWriter(path("types.gguf"), "llama")
    writer.add_float64("v.f64", 0.1)
    quantised(writer, "bf16", Kind.BF16, values)
    writer.add_tensor("f64", values.astype(np.float64))
    writer.add_tensor("i64", np.arange(6))
    quantised(writer, "q5.weight", Kind.Q5_0, values)
    writer.add_tensor("k.weight", np.zeros((1, 144), np.uint8), raw_dtype=Kind.Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    expect("types.gguf/bf16", mx.array(values).astype(mx.bfloat16))
    expect("types.gguf/f64", values.astype(np.float64))
    expect("types.gguf/i64", mx.arange(6).astype(mx.int64))
    mx.save_gguf(
        path("mlx.gguf"),
        {"a": mx.arange(6).reshape(2, 3).astype(mx.float16), "b": mx.array([1, -1], mx.int8)},
        {"name": "mlx", "words": ["x", "yz"], "number": mx.array(3), "numbers": mx.array([0.5, 2.0])},
    )
    for name, array in mx.load(path("mlx.gguf")).items():
        expect(f"mlx.gguf/{name}", array)


def exported(name, function, *inputs, shapeless=False, **named):
    """A function that MLX wrote, with its inputs and what it gives for them."""
    mx.export_function(path(f"{name}.mlxfn"), function, *inputs, shapeless=shapeless, **named)
    results = function(*inputs, **named)
    for i, array in enumerate(inputs):
        expect(f"{name}.mlxfn/in.{i}", array)
    for key, array in named.items():
        expect(f"{name}.mlxfn/named.{key}", array)
    for i, array in enumerate(results if isinstance(results, (list, tuple)) else [results]):
        expect(f"{name}.mlxfn/out.{i}", array)


def functions():
    floats = lambda *shape: mx.array(rng.standard_normal(shape).astype(np.float32))
    w, b, table, kernel = floats(4, 3), floats(3), floats(10, 4), floats(3, 3, 3, 2)
    exported("mlp", lambda x: mx.softmax(mx.maximum(x @ w + b, 0), axis=-1), floats(2, 4))
    exported("shapeless", lambda x: (x - x.mean(-1, keepdims=True)) * mx.sigmoid(x), floats(2, 4), shapeless=True)
    exported("named", lambda x, y: [x + y, mx.stack([x, y])], floats(3), y=floats(3))
    exported("lookup", lambda ids: mx.take(table, ids, axis=0).sum(0), mx.array([[1, 2], [9, 0]]))
    exported("reductions", lambda x: [x.sum(0), x.prod(1), x.min(), x.argmax(-1), mx.logsumexp(x, -1), x.var(0)], floats(3, 4))
    exported("sorted", lambda x: [mx.sort(x, 0), mx.argsort(x, 1), mx.cumsum(x, 1), mx.topk(x, 2, -1).sum(-1)], floats(3, 4))
    exported(
        "shapes",
        lambda x: [
            x[1:, ::2],
            x.reshape(4, 3).T,
            mx.pad(x, 1),
            mx.concatenate([x, x * 2], 1),
            *mx.split(x, 2, axis=1),
            mx.expand_dims(x, (0, 2)),
            mx.where(x > 0, x, -1.0),
            x.astype(mx.float16),
            mx.view(x, mx.int32),
            mx.tril(x),
        ],
        floats(3, 4),
    )
    exported("places", lambda x, ids: [mx.take_along_axis(x, ids, 1), x.at[ids[0]].add(1.0)], floats(3, 4), mx.array([[0, 2]]))
    exported("convolution", lambda x: mx.conv2d(x, kernel, padding=1, stride=2), floats(1, 5, 5, 2))
    exported("integers", lambda x: [x // 2, x % 3, x & 5, x << 1, mx.arange(5), mx.divmod(x, 3)[1]], mx.arange(6))
    layer = mx.quantize(floats(8, 64), 32, 4)
    mx.eval(layer)
    exported("quantised", lambda x: mx.quantized_matmul(x, *layer, group_size=32, bits=4), floats(2, 64))
    exported("random", lambda key: mx.random.uniform(key=key, shape=(4,)), mx.random.key(3))
    exported("refused", lambda x: mx.linalg.inv(x, stream=mx.cpu), mx.eye(2))


npy()
npz()
with mx.stream(mx.cpu):
    gguf_files()
    functions()
    mx.save_safetensors(path("expected.safetensors"), expected)
versions = {"mlx": mx.__version__, "numpy": np.__version__, "gguf": version("gguf")}
(out / "golden.json").write_text(json.dumps({"versions": versions}, indent=1) + "\n")
