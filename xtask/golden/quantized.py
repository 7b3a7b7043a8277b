"""Writes the quantised goldens, testdata/models/q_*: checkpoints that mlx-lm quantised, and what it makes of them.

    python quantized.py OUT [CASE …]

Each file is also dequantised and run by transformers in float32, so that what the golden holds is right twice over.
"""

import copy
import json
import random
import re
import shutil
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import mlx_lm
import numpy as np
import torch
import transformers
from mlx_lm.utils import load_model, quantize_model, save_config, save_model
from safetensors.torch import save_file

import mlx_reference
import reference
from cases import V
from checkpoint import random_tensors, write_config, write_json, write_tensors
from gemma_cases import OLD_PREFIXES
from index import write_index
from models import MIN_DISTINCT, MIN_MARGIN, Unfit, renamed
from quantized_cases import quantized_cases

PROMPTS = (5, 21)
TOLERANCE = 1e-4  # of log probabilities, computing in float32
MAX_ERROR = 4e-5  # of mlx-lm against transformers on the dequantised weights, float32
MAX_SEEDS = 100


def main():
    out, wanted = Path(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for case in quantized_cases():
        if not wanted or case.name in wanted:
            write_case(case, out)
    write_index(out)


def write_case(case, out):
    rng = random.Random(case.name)
    prompts = [[rng.randrange(8, V - 4) for _ in range(length)] for length in PROMPTS]
    why = {}
    for seed in range(MAX_SEEDS):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / case.name
            folder.mkdir()
            quantize(case, seed, folder)
            try:
                golden, tensors = examine(case, folder, prompts)
            except Unfit as unfit:
                why[str(unfit)] = why.get(str(unfit), 0) + 1
                continue
            golden["seed"] = seed
            write_json(folder / "golden.json", golden)
            save_file(tensors, folder / "golden.safetensors", metadata={"format": "pt"})
            shutil.rmtree(out / case.name, ignore_errors=True)
            shutil.copytree(folder, out / case.name)
            print(f"{case.name}: seed {seed}, margin {golden['margin']:.4f}", flush=True)
            return
    raise SystemExit(f"{case.name}: none of {MAX_SEEDS} seeds makes a good test: {why}")


def quantize(case, seed, folder):
    """The checkpoint that `mlx_lm.convert -q` would write of a random one."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch)
        tensors = random_tensors(case.config, seed, case.spreads)
        tensors = {renamed(name, OLD_PREFIXES): tensor for name, tensor in tensors.items()}
        write_tensors(source, tensors, getattr(torch, case.dtype))
        write_config(source, case.config | {"torch_dtype": case.dtype})
        model, config = load_model(source)
        predicate = {"quant_predicate": case.predicate} if case.predicate else {}
        model, config = quantize_model(
            model, copy.deepcopy(config), case.group_size, case.bits, mode=case.mode, **predicate
        )
        save_model(folder, model)
        save_config(config, folder / "config.json")
    config = json.loads((folder / "config.json").read_text())
    for name, change in case.alternates.items():
        write_config(folder, change(config), name)


def examine(case, folder, prompts):
    runs = mlx_reference.run(mlx_reference.load(folder, mx.float32), prompts)
    margin = min(r.margin for r in runs)
    if margin < MIN_MARGIN:
        raise Unfit("a greedy choice is close")
    if min(len(set(r.tokens.tolist())) for r in runs) < MIN_DISTINCT:
        raise Unfit("greedy tokens repeat")
    with tempfile.TemporaryDirectory() as scratch:
        dequantize(case, folder, Path(scratch))
        dense = reference.run(reference.load(Path(scratch), strict=False), prompts)
    error = reference.logprob_error(runs, dense)
    if reference.token_change(dense, runs) is not None:
        raise Unfit("mlx-lm and transformers on the dequantised weights part")
    if error > MAX_ERROR:
        raise Unfit("mlx-lm strays from transformers on the dequantised weights")
    for name in case.alternates:
        check_alternate(case, folder, name, prompts, runs)
    golden = {
        "covers": case.covers,
        "reference": {
            "mlx-lm": mlx_lm.__version__,
            "mlx": mx.__version__,
            "transformers": transformers.__version__,
            "torch": torch.__version__.partition("+")[0],  # without the build
        },
        "compute_dtype": "float32",
        "configs": sorted(f.name for f in folder.glob("config*.json")),
        "tolerance": TOLERANCE,
        "error_of_transformers_on_dequantized": float(f"{error:.2g}"),
        "margin": round(margin, 5),
        "prompts": prompts,
        "mutations": [],
    }
    tensors = {}
    for i, r in enumerate(runs):
        tensors |= {f"logits.{i}": r.logits, f"step_logits.{i}": r.steps, f"tokens.{i}": r.tokens}
    if case.dtype != "float32":
        native = mlx_reference.run(mlx_reference.load(folder), prompts)
        tensors |= {f"native_logits.{i}": r.logits for i, r in enumerate(native)}
        # The effect of 16-bit arithmetic on this model: another order of the same operations may
        # differ by as much.
        golden["native_dtype"] = case.dtype
        golden["native_tolerance"] = float(f"{max(log_error(a.logits, b.logits) for a, b in zip(runs, native)):.2g}")
    return golden, {name: tensor.contiguous() for name, tensor in tensors.items()}


def log_error(a, b):
    """Largest difference of log probabilities."""
    return float((a.double().log_softmax(-1) - b.double().log_softmax(-1)).abs().max())


def check_alternate(case, folder, name, prompts, runs):
    with tempfile.TemporaryDirectory() as scratch:
        reference.copy_with_config(folder, name, Path(scratch))
        other = mlx_reference.run(mlx_reference.load(Path(scratch), mx.float32), prompts)
    if reference.logprob_error(runs, other) > 1e-6:
        raise SystemExit(f"{case.name}: config.json and {name} mean different models")


def dequantize(case, folder, target):
    """The same model as a dense float32 checkpoint under published names."""
    config = json.loads((folder / "config.json").read_text())
    settings = config["quantization"]
    tensors = mx.load(str(folder / "model.safetensors"))
    # Widened to float32 first: dequantising rounds to the dtype of the scales.
    tensors = {k: t.astype(mx.float32) if mx.issubdtype(t.dtype, mx.floating) else t for k, t in tensors.items()}
    dense = {}
    for name, tensor in tensors.items():
        path, _, last = name.rpartition(".")
        if f"{path}.scales" in tensors:
            if last in ("scales", "biases"):
                continue
            if last == "weight":
                one = settings.get(path, settings)
                tensor = mx.dequantize(
                    tensor,
                    tensors[f"{path}.scales"],
                    tensors.get(f"{path}.biases"),
                    group_size=one["group_size"],
                    bits=one["bits"],
                    mode=one.get("mode", "affine"),
                )
        dense[name] = torch.from_numpy(np.array(tensor.astype(mx.float32)))
    write_tensors(target, unstack_experts(as_published(dense)))
    write_config(target, case.config)


def as_published(tensors):
    """Of decoders with recurrent layers: convolutions with their axes in torch's order, norms less 1."""
    if not any(name.endswith(".conv1d.weight") for name in tensors):
        return tensors
    result = {}
    for name, tensor in tensors.items():
        if name.endswith(".conv1d.weight"):
            tensor = tensor.movedim(1, 2)
        elif name.endswith("norm.weight") and "linear_attn" not in name:
            tensor = tensor - 1
        result[re.sub(r"^language_model\.(model\.)?", lambda found: "model." if found[1] else "", name)] = tensor
    return result


def unstack_experts(tensors):
    result = {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"(.*)\.mlp\.switch_mlp\.(\w+)\.weight", name)
        if match:
            layer, projection = match.groups()
            for expert, weight in enumerate(tensor):
                result[f"{layer}.mlp.experts.{expert}.{projection}.weight"] = weight
        else:
            result[name] = tensor
    return result


if __name__ == "__main__":
    main()
