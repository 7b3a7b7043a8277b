"""Converts the float cases by this project and by mlx-lm, and has each program compute with the other's folder.

    python both_ways.py BINARY TABLE [CASE …]

BINARY is mlx-infer; TABLE is the file that is written. mlx-lm gets the folder that ours wrote: its log probabilities must be those that it
computes with its own folder. This project gets the folder that mlx-lm wrote: its log probabilities must be those of the golden. A case
that differs is converted again from weights that were widened to float32 first, so that nothing is rounded on the way.
"""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import mlx_lm
import torch
from mlx_lm.convert import convert
from safetensors.torch import load_file

import by_mlx_lm  # noqa: F401 (its corrections of mlx-lm's families)
import mlx_reference
from checkpoint import read_tensors, write_config, write_tensors
from convert import TESTDATA, source_folder

TOLERANCE = 1e-3

HEAD = """# Conversions to and from mlx-lm {version} (MLX {mlx})

Written by `xtask/golden/both_ways.py`. Each float case is converted to float32 by both programs. "ours in mlx-lm": mlx-lm's log probabilities
with our folder against those with its own. "mlx-lm's here": ours with mlx-lm's folder against the golden of transformers. "mlx-lm itself":
mlx-lm's with its own folder against that golden, which says where mlx-lm computes something else. "mlx-lm with ours": mlx-lm's with our
folder against that golden. Largest differences over a prompt. "widened": the case again, from weights that were widened to float32 first:
where only the first row differs, mlx-lm has rounded weights to bfloat16 while it converted. "keys": what the config needs for mlx-lm.

| case | keys | ours in mlx-lm | mlx-lm's here | mlx-lm itself | mlx-lm with ours |
|---|---|---|---|---|---|
"""

# Findings about the cases that differ.
NOTES = """
`qwen3_5_moe` and `qwen3_next` store norms less 1: mlx-lm adds the 1 in bfloat16 when it converts, and is then 9e-2 from transformers; with our
folder it is 5e-6 from them. `falcon_h1`: mlx-lm multiplies weights by multipliers in bfloat16 (3e-2). It also leaves values out of
`attention_in_multiplier` and never applies `key_multiplier`, which is 1.1 from transformers with either folder.
"""

REFUSED = """
## Cases that mlx-lm does not load

| case | why |
|---|---|
"""

# Keys that mlx-lm requires, with the values that transformers uses without them.
KEYS = {
    "cohere2": {"head_dim": 8},
    "exaone4": {"rope_scaling": None},
    "exaone4_full": {"rope_scaling": None},
    "gemma3": {"vocab_size": 64},
    "gemma4": {"vocab_size": 64},
    "gemma4_experts": {"vocab_size": 64},
    "glm4_moe": {"rope_scaling": None},
    "mamba2": {"intermediate_size": 64},
    "mamba2_tied": {"intermediate_size": 64},
    "mistral4": {"first_k_dense_replace": 0},
}
BIASES = "mlx-lm has none of the biases that this case has"
FALCON = "mlx-lm does not have the family"
TERNARY = "mlx-lm multiplies ternary matrices by Metal kernels only, and reads no others"
NAMED = "mlx-lm reads other names of tensors: those of transformers 5 are not known to it"
# Why mlx-lm does not load a case.
REASONS = {
    "apertus": BIASES,
    "arcee": FALCON,
    "bitnet": TERNARY,
    "bitnet_online": TERNARY,
    "bitnet_packed": TERNARY,
    "deepseek_v2_groups": "mlx-lm asks for a rope_scaling",
    "deepseek_v3": "mlx-lm leaves out the layer that drafts only where it is number 61",
    "dots1": BIASES,
    "ernie4_5_moe": BIASES,
    "falcon": FALCON,
    "falcon_alibi": FALCON,
    "falcon_groups": FALCON,
    "falcon_h1_norm": "mlx-lm fails in the norm behind the scan",
    "falcon_serial": FALCON,
    "gemma3_defaults": "mlx-lm asks for at least as many layers as sliding_window_pattern says",
    "gemma3_text_v5": "mlx-lm asks for at least as many layers as sliding_window_pattern says, and knows no layer_types",
    "gemma3_v5": NAMED,
    "gemma3n_text": "mlx-lm knows the text model only inside its multimodal wrapper",
    "gemma4_text": BIASES,
    "gemma4_unified": "mlx-lm asks for inputs of single layers, which this model does not have",
    "glm_moe_dsa": "mlx-lm has an indexer in every layer; here layers share one",
    "granitemoehybrid_dense": "mlx-lm gives the MLP intermediate_size features where there are no experts, transformers shared_intermediate_size",
    "gpt2_scaled": "mlx-lm has no head of its own for this family",
    "gpt_neox": "mlx-lm knows only MLPs of four times the features of a token",
    "gpt_neox_serial": "mlx-lm asks for biases of the attention, which this case does not have",
    "gpt_oss": "mlx-lm reads experts only in mxfp4, as published (gpt_oss_mxfp4)",
    "hunyuan_v1_moe": "mlx-lm does not have the type; its hunyuan is another model",
    "hyperclovax": "mlx-lm does not have the type",
    "internlm3": "mlx-lm derives the head size from the features of a token; here it is given",
    "kimi_k25": "mlx-lm takes tensors of the vision tower for its own",
    "kimi_linear": BIASES,
    "lfm2_types": "mlx-lm has no head of its own for this family",
    "llama4": "mlx-lm asks for the prefix language_model. of tensors, which this case does not have",
    "llama4_interval": "mlx-lm does not know no_rope_layer_interval",
    "llama4_text": BIASES,
    "llama_ternary": TERNARY,
    "mimo_v2": "mlx-lm does not have the type",
    "minimax": "mlx-lm's minimax is MiniMax M2",
    "nanochat": "mlx-lm reads the names of nanochat's own files, not those of transformers",
    "nemotron_h": BIASES,
    "nemotron_h_omni": "mlx-lm does not have the type",
    "olmo_hybrid": "mlx-lm reads the usual names of norms, not the published ones",
    "olmo_hybrid_rope": "mlx-lm reads a convolution for each of q, k and v, not one as transformers has it",
    "phi_norms": "mlx-lm has no norms on q and k in this family",
    "qwen2_moe": "mlx-lm has experts in every layer; here mlp_only_layers leaves some dense",
    "qwen2_moe_window": "mlx-lm has experts in every layer; here decoder_sparse_step leaves some dense",
    "qwen3_5": "mlx-lm knows no layer_types, only full_attention_interval",
    "qwen3_5_text": "mlx-lm knows the text model only inside its multimodal wrapper",
    "qwen3_tied": BIASES,
}


def of_prompt(logits, prompt):
    """Log probabilities of the prompt's tokens but the first."""
    logprobs = torch.log_softmax(logits.double(), -1)[:-1]
    return logprobs.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]


def in_mlx_lm(folder, prompt):
    model = mlx_reference.load(folder, mx.float32)
    return of_prompt(mlx_reference.to_torch(model(mx.array([prompt]))[0]), prompt)


def here(binary, folder, prompt):
    command = [binary, "score", "--json", "--model", folder, "--tokens", ",".join(map(str, prompt))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return torch.tensor(json.loads(done.stdout)["logprobs"][1:], dtype=torch.double)


def shown(run):
    """A difference, or the last line of what went wrong."""
    try:
        return f"{float(run()):.1e}"
    except subprocess.CalledProcessError as error:
        return (error.stderr or "failed").strip().splitlines()[-1][:100].replace("|", "/")
    except Exception as error:  # noqa: BLE001: the message is the row's answer
        return " ".join(f"{type(error).__name__}: {error}".split())[:80].replace("|", "/")


def source(case, scratch):
    """The folder that is converted, with the keys that mlx-lm asks for."""
    folder = source_folder(case, scratch)
    config = json.loads((folder / "config.json").read_text())
    for key, value in KEYS.get(case, {}).items():
        config[key] = config[key] | value if isinstance(value, dict) else value
    write_config(folder, config)
    return folder


def widened(case, scratch):
    """The same with weights in float32."""
    folder = source(case, scratch)
    tensors = read_tensors(folder)
    for path in folder.glob("model*"):
        path.unlink()
    write_tensors(folder, tensors, torch.float32)
    write_config(folder, json.loads((folder / "config.json").read_text()) | {"torch_dtype": "float32"})
    return folder


def row(case, binary, scratch, made=source):
    """The cells of a case, or why mlx-lm does not load it."""
    folder = TESTDATA / "models" / case
    prompts = json.loads((folder / "golden.json").read_text())["prompts"]
    # The last, which is the longest.
    at, prompt = len(prompts) - 1, prompts[-1]
    golden = load_file(folder / "golden.safetensors")
    # Where the weights are a formula, the golden has these log probabilities instead of all logits.
    golden = golden[name].double() if (name := f"prompt_logprobs.{at}") in golden else of_prompt(golden[f"logits.{at}"], prompt)
    taken = made(case, scratch)
    ours, theirs = scratch / f"{case}-ours", scratch / f"{case}-theirs"

    def written_by_mlx_lm():
        if not theirs.exists():
            with contextlib.redirect_stdout(io.StringIO()):
                convert(str(taken), str(theirs), dtype="float32")
        return theirs

    def written_here():
        if not ours.exists():
            command = [binary, "convert", "--model", taken, "--out", ours, "--dtype", "f32"]
            subprocess.run(command, check=True, capture_output=True, text=True)
        return ours

    def difference(a, b):
        return (a - b).abs().max()

    itself = shown(lambda: difference(in_mlx_lm(written_by_mlx_lm(), prompt), golden))
    if ":" in itself:
        return itself
    return [
        shown(lambda: difference(in_mlx_lm(written_here(), prompt), in_mlx_lm(theirs, prompt))),
        shown(lambda: difference(here(binary, theirs, prompt), golden)),
        itself,
        shown(lambda: difference(in_mlx_lm(written_here(), prompt), golden)),
    ]


def is_right(cells):
    return all(":" not in cell and float(cell) < TOLERANCE for cell in cells[:2])


def main():
    binary, table, wanted = Path(sys.argv[1]).resolve(), Path(sys.argv[2]), sys.argv[3:]
    cases = json.loads((TESTDATA / "models" / "index.json").read_text())
    cases = [case["case"] for case in cases if case["kind"] == "float"]
    rows, refused, wrong = [], [], []
    for case in cases:
        if wanted and case not in wanted:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            cells = row(case, binary, Path(scratch))
        if isinstance(cells, str):
            refused.append(f"| {case} | {REASONS.get(case, cells)} |")
            wrong += [] if case in REASONS else [case]
            print(refused[-1], "" if case in REASONS else "(unknown)", flush=True)
            continue
        keys = json.dumps(KEYS[case])[1:-1] if case in KEYS else ""
        rows.append(f"| {case} | {keys} | {' | '.join(cells)} |")
        print(rows[-1], flush=True)
        if not is_right(cells):
            with tempfile.TemporaryDirectory() as scratch:
                cells = row(case, binary, Path(scratch), widened)
            rows.append(f"| {case}, widened | {keys} | {' | '.join(cells)} |")
            print(rows[-1], flush=True)
            wrong += [] if is_right(cells) else [case]
    text = HEAD.format(version=mlx_lm.__version__, mlx=mx.__version__) + "\n".join(rows) + "\n"
    table.write_text(text + NOTES + REFUSED + "\n".join(refused) + "\n")
    print(f"{len(rows) + len(refused)} rows, wrong: {', '.join(wrong) or 'none'}")


if __name__ == "__main__":
    main()
