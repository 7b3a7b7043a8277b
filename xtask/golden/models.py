"""Writes the float goldens, testdata/models: tiny checkpoints and what transformers makes of them in float32.

    python models.py OUT [CASE …]

For each case weights are drawn with seed 0, 1, 2 … until the checkpoint is a good test: every mutation shows in the
results, no greedy choice is close, float32 agrees with float64. The seed is in golden.json; a rerun finds the same one.
"""

import json
import random
import shutil
import sys
import tempfile
from pathlib import Path

import safetensors
import torch
import transformers
from safetensors.torch import save_file

import by_mlx_lm
import formula
import mxfp4
from bitnet_cases import bitnet_cases
from cases import V, llama_cases, phi3_cases, qwen_cases
from checkpoint import (
    formulas,
    in_transformers_dialect,
    random_tensors,
    without_defaults,
    write_config,
    write_json,
    write_tensors,
)
from classic_cases import classic_cases
from expert_cases import expert_cases
from family_cases import family_cases
from further_cases import further_cases
from gemma3n_cases import gemma3n_cases
from gemma4_cases import gemma4_cases
from gemma_cases import gemma_cases
from heads import draft_logits
from hybrid_cases import hybrid_cases
from index import write_index
from late_cases import late_cases
from latent_cases import latent_cases
from llama4_cases import llama4_cases
from mixed_cases import mixed_cases
from mixer_cases import mixer_cases
from moe_cases import moe_cases
from norm_cases import norm_cases
from older_cases import older_cases
from recurrent_cases import recurrent_cases
from reference import copy_with_config, load, logprob_error, mutated, rounding_margin, run, token_change
from rope_cases import rope_cases
from rounded_cases import rounded_cases
from sparse_cases import sparse_cases
from stream_cases import stream_cases
from vision_cases import vision_cases

TOLERANCE = 1e-4  # of log probabilities, for a float32 implementation
MAX_ERROR = 2e-5  # of transformers' own float32 against its float64
MIN_MARGIN = 5e-3  # between the two best logits at every greedy step
MIN_LEAD = 1e-2  # of a mutated model's first different token
MIN_DISTINCT = 6  # tokens among the 24
MAX_SEEDS = 400
SHOWN = 12  # columns of the log probabilities in a golden whose weights are a formula


class Unfit(Exception):
    """This seed makes a weak test; says why."""


def cases():
    known = [
        llama_cases,
        qwen_cases,
        gemma_cases,
        gemma4_cases,
        gemma3n_cases,
        llama4_cases,
        phi3_cases,
        rope_cases,
        hybrid_cases,
        family_cases,
        norm_cases,
        expert_cases,
        latent_cases,
        moe_cases,
        recurrent_cases,
        classic_cases,
        mixer_cases,
        bitnet_cases,
        older_cases,
        vision_cases,
        mixed_cases,
        late_cases,
        further_cases,
        stream_cases,
        sparse_cases,
        rounded_cases,
    ]
    return [case for cases in known for case in cases()]


def main():
    out, wanted = Path(sys.argv[1]), sys.argv[2:]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for case in cases():
        if not wanted or case.name in wanted:
            write_case(case, out)
    write_index(out)


def write_case(case, out):
    config = case.config | {"torch_dtype": str(case.dtype).removeprefix("torch.")}
    config = in_transformers_dialect(config) if case.v5 else config
    rng = random.Random(case.name)
    prompts = [[rng.randrange(8, V - 4) for _ in range(length)] for length in case.prompts]
    why = {}
    for seed in range(MAX_SEEDS):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / case.name
            folder.mkdir()
            write_checkpoint(case, config, seed, folder)
            try:
                golden, tensors = (examine_by_mlx if mlx_reference_of(case) else examine)(case, folder, prompts)
            except Unfit as unfit:
                why[str(unfit)] = why.get(str(unfit), 0) + 1
                continue
            golden["seed"] = seed
            if case.packed:
                pack(folder)
            if case.formula:
                (folder / "model.safetensors").unlink()
                tensors = shown(tensors, prompts)
            write_json(folder / "golden.json", golden)
            save_file(tensors, folder / "golden.safetensors", metadata={"format": "pt"})
            shutil.rmtree(out / case.name, ignore_errors=True)
            shutil.copytree(folder, out / case.name)
            size = sum(f.stat().st_size for f in folder.iterdir())
            print(f"{case.name}: seed {seed}, margin {golden['margin']:.4f}, {size} bytes", flush=True)
            return
    raise SystemExit(f"{case.name}: none of {MAX_SEEDS} seeds makes a good test: {why}")


def shown(tensors, prompts):
    """The golden with log probabilities of a few columns in place of the logits: every position, and a fifth of the bytes. Also those
    of the prompt's own tokens."""
    columns = sorted(random.Random(V).sample(range(V), SHOWN))
    found = {"columns": torch.tensor(columns, dtype=torch.int32)}
    for name, tensor in tensors.items():
        if name.startswith("tokens."):
            found[name] = tensor
        else:
            found[name.replace("logits", "logprobs")] = tensor.log_softmax(-1)[:, columns].contiguous()
    for i, prompt in enumerate(prompts):
        rows = tensors[f"logits.{i}"].log_softmax(-1)[:-1]
        found[f"prompt_logprobs.{i}"] = rows.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].contiguous()
    return found


def write_checkpoint(case, config, seed, folder):
    reference = mlx_reference_of(case)
    of_reference = reference.empty_tensors(case.config) if reference else None
    tensors = of_reference or random_tensors(case.config, seed, case.spreads)
    tensors = case.change(tensors) if case.change else tensors
    tensors = {renamed(name, case.rename): tensor for name, tensor in tensors.items()}
    tensors = mxfp4.rounded(tensors) if case.packed else tensors
    generator = torch.Generator().manual_seed(seed)
    for name, source in case.extra.items():
        tensors[name] = tensors[source].clone() if isinstance(source, str) else torch.rand(source, generator=generator)
    if case.formula:
        # Only names and shapes of the drawn tensors count.
        formula.write(folder, seed, case.dtype, formulas(tensors, case.spreads))
        tensors = formula.read(folder)
    write_tensors(folder, tensors, case.dtype, case.shards)
    write_config(folder, config)
    if not (case.v5 or case.composed):
        write_config(folder, in_transformers_dialect(config), "config.v5.json")
    for name, change in case.alternates.items():
        write_config(folder, change(config), name)
    if case.sparse:
        write_config(folder, without_defaults(config), "config.sparse.json")
    if case.untyped:
        bare = {k: v for k, v in config.items() if k not in ("model_type", "architectures")}
        write_config(folder, bare, "config.untyped.json")
    if case.generation:
        write_json(folder / "generation_config.json", case.generation)


def pack(folder):
    """Makes of a dense folder what is published."""
    mxfp4.pack_file(folder / "model.safetensors")
    settings = {"modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"], "quant_method": "mxfp4"}
    for path in folder.glob("config*.json"):
        write_json(path, json.loads(path.read_text()) | {"quantization_config": settings})


def renamed(name, pairs):
    for old, new in pairs:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def examine(case, folder, prompts):
    """golden.json and the tensors of golden.safetensors; Unfit when this checkpoint would not test what it should."""
    with rounding_margin() as least:
        runs = run(load(folder), prompts)
    if least() < case.steady:
        raise Unfit("a number is rounded that is close to a half")
    margin = min(r.margin for r in runs)
    if margin < MIN_MARGIN:
        raise Unfit("a greedy choice is close")
    if min(len(set(r.tokens.tolist())) for r in runs) < MIN_DISTINCT:
        raise Unfit("greedy tokens repeat")
    mutations = [examine_mutation(m, folder, prompts, runs) for m in case.mutations]
    exact = run(load(folder, torch.float64), prompts)
    error = logprob_error(runs, exact)
    if error > MAX_ERROR or token_change(exact, runs) is not None:
        raise Unfit("float32 strays from float64")
    plain = runs if case.grows else run(load(folder), prompts, cached=False)
    if logprob_error(runs, plain) > 2 * MAX_ERROR or token_change(plain, runs) is not None:
        raise Unfit("generate() strays from decoding without a cache")
    check_dialects(case, folder, prompts, runs)
    golden = {
        "covers": case.covers,
        "reference": {
            "transformers": transformers.__version__,
            "torch": torch.__version__.partition("+")[0],  # without the build
            "safetensors": safetensors.__version__,
        },
        "compute_dtype": "float32",
        "configs": sorted(f.name for f in folder.glob("config*.json")),
        "tolerance": TOLERANCE,
        "reference_error": float(f"{error:.2g}"),
        "margin": round(margin, 5),
        "prompts": prompts,
        "mutations": mutations,
    }
    if case.note:
        golden["note"] = case.note
    tensors = {}
    for i, r in enumerate(runs):
        tensors |= {f"logits.{i}": r.logits, f"step_logits.{i}": r.steps, f"tokens.{i}": r.tokens}
    tensors |= draft_logits(folder, load(folder), prompts)
    return golden, {name: tensor.contiguous() for name, tensor in tensors.items()}


def mlx_reference_of(case):
    """The module that computes the case by another program than transformers. mlx-vlm is imported only for its cases."""
    if case.by_mlx_vlm:
        import by_mlx_vlm

        return by_mlx_vlm
    return by_mlx_lm if case.by_mlx_lm else None


def examine_by_mlx(case, folder, prompts):
    """The same with mlx-lm or mlx-vlm in float32. In place of float64 its decoding is compared with whole sequences."""
    reference = mlx_reference_of(case)
    if case.by_mlx_vlm and not reference.is_steady(folder, prompts):
        raise Unfit("a number is rounded that is close to a border")
    runs = reference.runs(folder, prompts)
    margin = min(r.margin for r in runs)
    if margin < MIN_MARGIN:
        raise Unfit("a greedy choice is close")
    if min(len(set(r.tokens.tolist())) for r in runs) < MIN_DISTINCT:
        raise Unfit("greedy tokens repeat")
    mutations = [examine_mutation(m, folder, prompts, runs, reference.runs) for m in case.mutations]
    error = reference.error_of_decoding(folder, prompts, runs)
    if error > 2 * MAX_ERROR:
        raise Unfit("decoding strays from whole sequences")
    golden = {
        "covers": case.covers,
        "reference": reference.versions(),
        "compute_dtype": "float32",
        "configs": sorted(f.name for f in folder.glob("config*.json")),
        "tolerance": TOLERANCE,
        "reference_error": float(f"{error:.2g}"),
        "margin": round(margin, 5),
        "prompts": prompts,
        "mutations": mutations,
    }
    tensors = {}
    for i, r in enumerate(runs):
        tensors |= {f"logits.{i}": r.logits, f"step_logits.{i}": r.steps, f"tokens.{i}": r.tokens}
    return golden, tensors


def examine_mutation(mutation, folder, prompts, runs, *runs_of):
    other = mutated(folder, mutation, prompts, *runs_of)
    if mutation["changes"] == "logits":
        if logprob_error(runs, other) < 100 * TOLERANCE:
            raise Unfit(f"{mutation['name']} does not show")
        return mutation
    lead = token_change(runs, other)
    if lead is None or lead < MIN_LEAD:
        raise Unfit(f"{mutation['name']} does not show")
    return mutation


def check_dialects(case, folder, prompts, runs):
    """Every config file that names its architecture gives the same logits."""
    for name in sorted(f.name for f in folder.glob("config.*.json")):
        if "model_type" not in json.loads((folder / name).read_text()):
            continue
        with tempfile.TemporaryDirectory() as scratch:
            copy_with_config(folder, name, Path(scratch))
            other = run(load(Path(scratch)), prompts)
        if logprob_error(runs, other) > 1e-6:
            raise SystemExit(f"{case.name}: config.json and {name} mean different models")


if __name__ == "__main__":
    main()
