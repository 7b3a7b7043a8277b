"""Writes testdata/convert/golden.json: what `mlx_lm.convert` makes of tiny checkpoints.

    python convert.py OUT            writes the goldens
    python convert.py check BINARY   converts with mlx-infer too, and holds the two folders against each other

Tensors are kept as digests: a conversion is right if it is equal to the bit.
"""

import contextlib
import io
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import mlx_lm
import numpy as np
from mlx_lm.convert import convert
from mlx_lm.utils import load_config

import formula
import mlx_reference
from cases import V

TESTDATA = Path(__file__).resolve().parents[2] / "testdata"
TOKENIZER = TESTDATA / "text/tokenizers/llama3"
PROMPT_LENGTH = 12
MIN_MARGIN = 0.005
DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}

# Name, checkpoint of testdata/models or an earlier case, flags of `mlx-infer convert`.
CASES = [
    ("tied", "llama_tied", "-q --bits 4 --group-size 32"),
    ("bias-bf16", "qwen2", "-q --bits 8 --group-size 32 --dtype bf16"),
    ("mixed-3-6", "llama_tied", "-q --predicate mixed_3_6 --group-size 32"),
    ("mixed-2-6", "qwen3", "-q --predicate mixed_2_6 --group-size 32"),
    ("f16", "qwen3", "--dtype f16"),
    ("phi3-dense", "q_phi3_b4_g64", "-d"),
    ("phi3-nvfp4", "phi3-dense", "-q --mode nvfp4"),
    ("gemma3-dense", "q_gemma3_text_b4_g32", "-d"),
    ("gemma3-mxfp8", "gemma3-dense", "-q --mode mxfp8"),
    ("moe-dense", "q_qwen3_moe_b4_g32", "--dequantize"),
    ("moe-4-bits", "moe-dense", "-q --bits 4 --group-size 64"),
    ("moe-mxfp4", "moe-dense", "-q --mode mxfp4"),
    ("moe-mixed-4-6", "moe-dense", "-q --predicate mixed_4_6 --group-size 32"),
    ("multimodal-dense", "q_gemma3_b8_g64", "-d --dtype f32"),
    ("multimodal-mxfp4", "multimodal-dense", "-q --mode mxfp4"),
    ("multimodal-mixed", "multimodal-dense", "-q --predicate mixed_3_4"),
    ("mxfp4-dense", "q_llama_mxfp4", "-d"),
    ("fused-dense", "q_qwen3_next_b4_g32", "-d"),
    ("fused-4-bits", "fused-dense", "-q --bits 4 --group-size 32"),
    ("hybrid-dense", "q_qwen3_5_mixed", "-d"),
    ("hybrid-mixed", "hybrid-dense", "-q --predicate mixed_3_6"),
    ("scan-experts", "granitemoehybrid", "--dtype f32"),
    ("short-conv-experts", "lfm2_moe", "--dtype f32"),
]

# Cases in which mlx-lm computes something else than transformers: their goldens have no tokens.
UNLIKE = ["scan-experts"]


def main():
    if sys.argv[1] == "check":
        return check(Path(sys.argv[2]).resolve())
    with tempfile.TemporaryDirectory() as scratch:
        rows = [golden(*case, Path(scratch)) for case in CASES]
    versions = {"mlx-lm": mlx_lm.__version__, "mlx": mx.__version__}
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    document = {"reference": versions, "cases": rows}
    text = json.dumps(document, separators=(",", ":")) + "\n"
    (Path(sys.argv[1]) / "golden.json").write_text(text)


def arguments(flags):
    """The flags in the words of `mlx_lm.convert.convert`."""
    names = {
        "--bits": ("q_bits", int),
        "--group-size": ("q_group_size", int),
        "--mode": ("q_mode", str),
        "--predicate": ("quant_predicate", str),
        "--dtype": ("dtype", DTYPES.get),
    }
    words, result = iter(flags.split()), {}
    for word in words:
        if word == "-q":
            result["quantize"] = True
        elif word in ("-d", "--dequantize"):
            result["dequantize"] = True
        else:
            name, kind = names[word]
            result[name] = kind(next(words))
    if "quant_predicate" in result:
        result.setdefault("q_group_size", 64)  # without one mlx-lm writes null for it
    return result


def source_folder(source, scratch):
    """A source with a tokenizer, which mlx-lm insists on."""
    folder = scratch / "sources" / source
    if not folder.exists():
        made = scratch / source
        shutil.copytree(made if made.exists() else TESTDATA / "models" / source, folder)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(TOKENIZER / name, folder)
        for name in folder.glob("golden.*"):
            name.unlink()
        formula.expand(folder)
    return folder


def by_mlx_lm(name, source, flags, scratch):
    out = scratch / name
    with contextlib.redirect_stdout(io.StringIO()):
        convert(str(source_folder(source, scratch)), str(out), **arguments(flags))
    return out


def golden(name, source, flags, scratch):
    folder = by_mlx_lm(name, source, flags, scratch)
    rng = random.Random(name)
    for _ in range(100):
        prompt = [rng.randrange(8, V - 4) for _ in range(PROMPT_LENGTH)]
        [run] = mlx_reference.run(mlx_reference.load(folder, mx.float32), [prompt])
        if run.margin > MIN_MARGIN:
            break
    else:
        raise SystemExit(f"{name}: every prompt has a close choice")
    tensors = load(folder)
    print(f"{name}: {len(tensors)} tensors, margin {run.margin:.4f}", flush=True)
    tokens = {} if name in UNLIKE else {"tokens": run.tokens.tolist()}
    return {
        "case": name,
        "source": source,
        "flags": flags.split(),
        "tensors": {key: f"{dtype(t)} {list(t.shape)} {digest(t)}" for key, t in sorted(tensors.items())},
        "schemes": schemes(folder),
        "prompt": prompt,
        **tokens,
    }


def load(folder):
    tensors = {}
    for file in sorted(folder.glob("model*.safetensors")):
        tensors |= mx.load(str(file))
    return tensors


def dtype(tensor):
    return {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "uint32": "U32", "uint8": "U8"}[
        str(tensor.dtype).removeprefix("mlx.core.")
    ]


def digest(tensor):
    """FNV-1a of the bytes, 64 bits."""
    value = 0xCBF29CE484222325
    for byte in np.array(mx.contiguous(tensor).view(mx.uint8)).tobytes():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def schemes(folder):
    """How each packed weight is packed, by config.json."""
    config = json.loads((folder / "config.json").read_text())
    result = {}
    for name in sorted(load(folder)):
        path, _, last = name.rpartition(".")
        if last == "scales":
            if config["quantization"] != config["quantization_config"]:
                raise SystemExit(f"{folder}: quantization and quantization_config differ")
            one = config["quantization"].get(path, config["quantization"])
            result[path] = f"{one.get('mode', 'affine')}, {one['bits']} bits in groups of {one['group_size']}"
    return result


def check(binary):
    """Both folders: the same tensors to the bit, the same config, the same greedy tokens in mlx-lm."""
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        for name, source, flags in CASES:
            theirs = by_mlx_lm(name, source, flags, scratch)
            ours = scratch / "ours" / name
            command = [binary, "convert", "--model", source_folder(source, scratch), "--out", ours, *flags.split()]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            a, b = load(ours), load(theirs)
            # mlx-lm unpacks into bfloat16 if scales are no floating-point numbers; this project
            # unpacks into the config's type.
            exact = [k for k in b if k in a and a[k].dtype == b[k].dtype and mx.array_equal(a[k], b[k], equal_nan=True)]
            widened = [
                k for k in b.keys() - set(exact)
                if k in a and b[k].dtype == mx.bfloat16 and mx.array_equal(a[k], b[k].astype(a[k].dtype))
            ]
            if a.keys() != b.keys() or len(exact) + len(widened) != len(b):
                sys.exit(f"{name}: tensors differ: {sorted(a.keys() ^ b.keys() or b.keys() - set(exact))[:4]}")
            if schemes(ours) != schemes(theirs) or meaning(ours) != meaning(theirs):
                sys.exit(f"{name}: config.json differs")
            prompt = [random.Random(name).randrange(8, V - 4) for _ in range(PROMPT_LENGTH)]
            [x], [y] = (mlx_reference.run(mlx_reference.load(folder), [prompt]) for folder in (ours, theirs))
            same = x.tokens.tolist() == y.tokens.tolist()
            print(
                f"{name}: {len(exact)} tensors equal to the bit, {len(widened)} equal and wider; "
                f"config.json equal; {len(y.tokens)} greedy tokens {'equal' if same else 'DIFFER'}",
                flush=True,
            )
            if not same:
                sys.exit(1)
        print(f"{len(CASES)} conversions agree")


def meaning(folder):
    """What mlx-lm reads, without what `schemes` tells and the type, which ours sets to what is written."""
    config = load_config(folder)
    for one in (config, config.get("text_config", {})):
        for key in ("quantization", "quantization_config", "torch_dtype", "dtype"):
            one.pop(key, None)
    return config


if __name__ == "__main__":
    main()
