"""mlx-vlm as the reference of the one family that neither transformers nor mlx-lm runs: DeepSeek V4.1, its text model in float32.

On the CPU mlx-vlm rounds activations by plain operations, as its Metal kernel does. SGLang agrees with it on published files. There
inputs of projections are rounded because the weights have 8 or 4 bits; mlx-vlm rounds them for weights of all dtypes, and so do we.
"""

import json
from importlib.metadata import version

import mlx.core as mx
import safetensors
import torch
from mlx.utils import tree_flatten
from mlx_vlm.models.deepseek_v41 import Model, ModelConfig, language
from mlx_vlm.models.deepseek_v41.engram import NgramHashState

from mlx_reference import to_torch
from reference import NEW_TOKENS, Run

mx.set_default_device(mx.cpu)

ROUNDINGS = ["fake_quant_fp8_ue8m0", "fake_quant_fp4_ue8m0", "fake_quant_fp4_e4m3"]
STEADY = 5e-7  # differences of numbers before they are rounded that change nothing: of the number, or of the largest for 4 bits
PARTS = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def published(name, shape, experts):
    """The names of a text model's parameter in published files, and its shape there."""
    name = name.replace("embed_tokens.", "embed.")
    for part, short in PARTS.items():
        name = name.replace(f".shared_experts.{part}.", f".shared_experts.{short}.")
        if f".switch_mlp.{part}." in name:
            names = [name.replace(f".switch_mlp.{part}.", f".experts.{expert}.{short}.") for expert in range(experts)]
            return names, shape[1:]
    if ".wo_a." in name:
        return [name], (shape[0] * shape[1], shape[2])
    return [name], shape


def empty_tensors(config):
    """A tensor for each parameter of the text model, by its published name. Only shapes count."""
    parameters = tree_flatten(Model(ModelConfig.from_dict(config)).language_model.parameters())
    found = {}
    for name, array in parameters:
        names, shape = published(name, array.shape, config["n_routed_experts"])
        found |= {name: torch.empty(shape) for name in names}
    return found


def load(folder):
    """The text model in float32."""
    config = json.loads((folder / "config.json").read_text())
    model = Model(ModelConfig.from_dict(config))
    weights = {name: array.astype(mx.float32) for name, array in mx.load(str(folder / "model.safetensors")).items()}
    weights = model.sanitize(weights)
    prefix = "language_model."
    own = {name.removeprefix(prefix): array for name, array in weights.items() if name.startswith(prefix)}
    model.language_model.load_weights(list(own.items()), strict=True)
    language_model = model.language_model
    if language_model.layout is not None:
        # mlx-vlm reads this list from a file beside the config.
        kinds = config["engram_token_map"]
        language_model.engram_hash = NgramHashState(model.config, language_model.layout, token_map=kinds)
    return language_model


def run(model, prompts):
    runs = []
    for prompt in prompts:
        tokens, steps = [], []
        cache = model.make_cache()
        logits = model(mx.array([prompt]), cache=cache).logits[0]
        last = logits[-1]
        for _ in range(NEW_TOKENS):
            steps.append(last)
            tokens.append(int(last.argmax()))
            last = model(mx.array([tokens[-1:]]), cache=cache).logits[0, -1]
        runs.append(Run(to_torch(logits), to_torch(mx.stack(steps)), torch.tensor(tokens, dtype=torch.int32)))
    return runs


def runs(folder, prompts):
    return run(load(folder), prompts)


def is_steady(folder, prompts):
    """Whether nothing that is rounded is close to the border between two results."""
    plain, steady = {name: getattr(language, name) for name in ROUNDINGS}, [True]

    def watched(name, rounded):
        def run_both(x):
            found = rounded(x)
            size = mx.abs(x) if "fp8" in name else mx.abs(x).max(axis=-1, keepdims=True)
            others = [rounded(x + change * size) for change in (-STEADY, STEADY)]
            steady[0] = steady[0] and all(bool((found == other).all()) for other in others)
            return found

        return run_both

    for name, rounded in plain.items():
        setattr(language, name, watched(name, rounded))
    try:
        model = load(folder)
        for prompt in prompts:
            cache = model.make_cache()
            logits = model(mx.array([prompt]), cache=cache).logits[0, -1]
            for _ in range(NEW_TOKENS):
                if not steady[0]:
                    return False
                logits = model(logits.argmax()[None, None], cache=cache).logits[0, -1]
            mx.eval(logits)
        return steady[0]
    finally:
        for name, rounded in plain.items():
            setattr(language, name, rounded)


def error_of_decoding(folder, prompts, found):
    """The largest difference of log probabilities between decoding with a cache and whole sequences."""
    model, worst = load(folder), 0.0
    for prompt, of_prompt in zip(prompts, found, strict=True):
        tokens = [*prompt, *of_prompt.tokens.tolist()[:-1]]
        whole = to_torch(model(mx.array([tokens])).logits[0]).log_softmax(-1)
        decoded = torch.cat([of_prompt.logits, of_prompt.steps[1:]]).log_softmax(-1)
        worst = max(worst, float((whole - decoded).abs().max()))
    return worst


def versions():
    return {"mlx-vlm": version("mlx-vlm"), "mlx": mx.__version__, "safetensors": safetensors.__version__}
