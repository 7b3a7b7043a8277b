"""Training goldens: what torch's optimisers do in 20 steps, and ten steps of AdamW on tiny models, full and LoRA.

    python train.py TESTDATA/train

The models are the checkpoints of TESTDATA/models, in float32, by transformers; LoRA is peft's.
"""

import json
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import torch
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters
from mlx_lm.utils import load_model
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

mx.set_default_device(mx.cpu)

OPTIMISER_STEPS = 20
MODEL_STEPS = 10
SAMPLES = 200  # of a gradient: evenly spaced elements
RANK, ALPHA = 4, 8
TARGETS = ["q_proj", "v_proj", "down_proj"]
# The layers of other families that get adapters: their names in transformers, and in this project
# where they differ.
OWN_TARGETS = {
    "nanochat": {"q_proj": "q_proj", "v_proj": "v_proj", "mlp.fc1": "mlp.up_proj", "mlp.fc2": "mlp.down_proj"},
    "minimax": {name: name for name in ("q_proj", "v_proj", "out_proj", "output_gate")},
    "kimi_linear": {
        "forget_gate.f_b_proj": "f_b_proj",
        **{name: name for name in ("q_proj", "v_proj", "g_a_proj", "o_proj", "kv_b_proj")},
    },
}
CLIP = 1.0
ADAMW = {"lr": 2e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


class Lion(torch.optim.Optimizer):
    """arXiv:2302.06675, algorithm 2."""

    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (b1, b2), lr = group["betas"], group["lr"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                direction = torch.sign(b1 * m + (1 - b1) * p.grad)
                p.sub_(lr * (direction + group["weight_decay"] * p))
                m.copy_(b2 * m + (1 - b2) * p.grad)


class UncorrectedAdam(torch.optim.Optimizer):
    """Adam whose moments keep their start at zero, as MLX's does by default."""

    def __init__(self, params, lr, betas, eps):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                m = state["m"] = b1 * state.get("m", 0) + (1 - b1) * p.grad
                v = state["v"] = b2 * state.get("v", 0) + (1 - b2) * p.grad**2
                p.sub_(group["lr"] * m / (v.sqrt() + group["eps"]))


class Muon(torch.optim.Optimizer):
    """torch.optim.Muon, but for the precision: it iterates in bfloat16, which is no reference for float32."""

    def __init__(self, params, lr, momentum, weight_decay, match_rms_adamw=False):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.match_rms_adamw = match_rms_adamw

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for p in group["params"]:
                b = self.state[p].setdefault("b", torch.zeros_like(p))
                b.lerp_(p.grad, 1 - momentum)
                step = orthogonal(p.grad.lerp(b, momentum))
                p.mul_(1 - lr * group["weight_decay"])
                if self.match_rms_adamw:
                    stretch = 0.2 * max(p.shape) ** 0.5
                else:
                    stretch = max(1, p.size(0) / p.size(1)) ** 0.5
                p.sub_(lr * stretch * step)


def orthogonal(x):
    transpose = x.size(0) > x.size(1)
    x = x.T if transpose else x
    x = x / x.norm()
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if transpose else x


# Name of the case, method and its settings as mlx-train reads them, and the reference.
OPTIMISERS = [
    ("sgd", {"name": "sgd"}, lambda p: torch.optim.SGD(p, lr=0.1)),
    (
        "sgd_momentum",
        {"name": "sgd", "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01},
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
    ),
    (
        "sgd_nesterov",
        {"name": "sgd", "momentum": 0.9, "nesterov": True},
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    ),
    ("adam", {"name": "adam", "weight_decay": 0.02}, lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.02)),
    (
        "adam_uncorrected",
        {"name": "adam", "bias_correction": False},
        lambda p: UncorrectedAdam(p, lr=0.1, betas=(0.9, 0.999), eps=1e-8),
    ),
    (
        "adamw",
        {"name": "adamw", "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.1},
        lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
    ),
    (
        "lion",
        {"name": "lion", "betas": [0.9, 0.98], "weight_decay": 0.1},
        lambda p: Lion(p, lr=0.1, betas=(0.9, 0.98), weight_decay=0.1),
    ),
    (
        "adafactor",
        {"name": "adafactor", "weight_decay": 0.05},
        lambda p: torch.optim.Adafactor(p, lr=0.1, weight_decay=0.05),
    ),
    ("muon", {"name": "muon", "weight_decay": 0.05}, lambda p: Muon(p, lr=0.1, momentum=0.95, weight_decay=0.05)),
    (
        "muon_match_rms_adamw",
        {"name": "muon", "adjust_lr": "match_rms_adamw", "weight_decay": 0.05},
        lambda p: Muon(p, lr=0.1, momentum=0.95, weight_decay=0.05, match_rms_adamw=True),
    ),
]


def optimisers():
    """Every method on a wide matrix, a tall one and a vector (Muon: matrices only), with given gradients."""
    generator = torch.Generator().manual_seed(7)
    shapes = {"wide": [3, 5], "tall": [6, 2], "vector": [4]}

    def draw(shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    start = {name: draw(shape) for name, shape in shapes.items()}
    # The size of the gradients changes from step to step, so that decays have a visible effect.
    grads = [{name: draw(shape) * (1 + step % 4) for name, shape in shapes.items()} for step in range(OPTIMISER_STEPS)]
    cases = []
    for name, method, make in OPTIMISERS:
        params = {
            key: torch.nn.Parameter(value.clone())
            for key, value in start.items()
            if not name.startswith("muon") or value.ndim == 2
        }
        optimiser = make(list(params.values()))
        after = []
        for step in grads:
            for key, param in params.items():
                param.grad = step[key].clone()
            optimiser.step()
            after.append({key: numbers(param.detach()) for key, param in params.items()})
        cases.append({"case": name, "method": method, "rate": 0.1, "after": after})
    return {
        "versions": versions(),
        "shapes": shapes,
        "start": {key: numbers(value) for key, value in start.items()},
        "grads": [{key: numbers(value) for key, value in step.items()} for step in grads],
        "cases": cases,
    }


def numbers(tensor):
    return [float(f"{x:.9g}") for x in tensor.flatten().tolist()]


def versions():
    return {name: version(name).partition("+")[0] for name in ("torch", "transformers", "peft")}


def batch(vocab):
    """Rows of other lengths; of each, the first few tokens are not learnt."""
    generator = torch.Generator().manual_seed(11)
    rows = [torch.randint(0, vocab, (n,), generator=generator).tolist() for n in (14, 9, 17, 5)]
    return rows, [4, 0, 6, 1]


def loss(model, rows, prompts):
    """The mean over all tokens that are learnt."""
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    logits = model(input_ids=tokens[:, :-1]).logits
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
    mask = torch.tensor(
        [[max(prompt, 1) <= at < len(row) for at in range(1, width)] for row, prompt in zip(rows, prompts)]
    )
    return losses[mask].mean()


def plain(name, array):
    """A parameter of transformers or peft, or its gradient, by our names and in our layout."""
    for theirs, ours in (("lora_A", "lora_a"), ("lora_B", "lora_b"), ("lora_magnitude_vector", "m")):
        theirs = f".{theirs}.default.weight"
        if name.endswith(theirs):
            layer = name.removeprefix("base_model.model.").removesuffix(theirs)
            return {f"{layer}.{ours}": array.T if array.ndim == 2 else array}
    if name.endswith(".mlp.experts.gate_up_proj"):
        layer = name.removesuffix("experts.gate_up_proj")
        gate, up = array.chunk(2, dim=1)
        return {f"{layer}switch_mlp.gate_proj.weight": gate, f"{layer}switch_mlp.up_proj.weight": up}
    if name.endswith(".mlp.experts.down_proj"):
        return {name.replace("experts.down_proj", "switch_mlp.down_proj.weight"): array}
    return {name: array}


def own_name(config, name):
    """A parameter's name in the families that have others here: mixers of recurrent layers, and layers of OWN_TARGETS."""
    layer = name.split(".layers.")[-1].split(".")[0]
    kinds = getattr(config, "layer_types", None) or []
    if layer.isdigit() and kinds and config.model_type in OWN_TARGETS and kinds[int(layer)] == "linear_attention":
        name = name.replace(".self_attn.", ".linear_attn.")
    for theirs, ours in OWN_TARGETS.get(config.model_type, {}).items():
        name = name.replace(f".{theirs}.", f".{ours}.")
    return name


def train(folder, kind):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    tensors = {}
    if kind != "full":
        torch.manual_seed(3)
        own = OWN_TARGETS.get(folder.name, {name: name for name in TARGETS})
        targets = list(own)
        config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets, bias="none", use_dora=kind == "dora")
        model = get_peft_model(model, config)
        for name, param in model.named_parameters():
            for ours, start in plain(own_name(model.config, name), param.detach()).items():
                if ours.endswith(".lora_a"):
                    tensors[f"start.{ours}"] = start.contiguous().clone()
    model.train()
    rows, prompts = batch(model.config.vocab_size)
    params = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
    optimiser = torch.optim.AdamW([param for _, param in params], **ADAMW)
    losses, norms = [], []
    for step in range(MODEL_STEPS):
        optimiser.zero_grad()
        value = loss(model, rows, prompts)
        value.backward()
        losses.append(value.item())
        if step == 0:
            for name, param in params:
                for ours, grad in plain(own_name(model.config, name), param.grad).items():
                    flat = grad.flatten()
                    tensors[f"grad.{ours}"] = flat[:: max(1, flat.numel() // SAMPLES)].contiguous().clone()
        norms.append(torch.nn.utils.clip_grad_norm_([param for _, param in params], CLIP).item())
        optimiser.step()
    facts = {
        "versions": versions(),
        "model": folder.name,
        "lora": {"rank": RANK, "scale": ALPHA / RANK, "targets": list(own.values())} if kind != "full" else None,
        "rows": rows,
        "prompts": prompts,
        "adamw": {"name": "adamw", "betas": ADAMW["betas"], "eps": ADAMW["eps"], "weight_decay": ADAMW["weight_decay"]},
        "rate": ADAMW["lr"],
        "clip": CLIP,
        "samples": SAMPLES,
        "losses": losses,
        "norms": norms,
    }
    return facts, tensors


PROMPT = [7, 1, 30, 12, 44, 2, 19, 55, 3, 21, 9, 40]


def mlx_lm_adapter(models, name, folder, dora, keys=("self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj")):
    """An adapter of mlx-lm on the last two layers and what `keys` name outside them, and what mlx-lm computes with it."""
    parameters = {"rank": 3, "scale": 4.0, "dropout": 0.1, "keys": list(keys)}
    config = {"fine_tune_type": "dora" if dora else "lora", "num_layers": 2, "lora_parameters": parameters}
    model, _ = load_model(models / name)
    model.set_dtype(mx.float32)
    model.freeze()
    mx.random.seed(5)
    linear_to_lora_layers(model, 2, parameters, use_dora=dora)
    adapter = dict(tree_flatten(model.trainable_parameters()))
    for key, value in adapter.items():
        if key.endswith(".lora_b"):
            adapter[key] = mx.random.normal(value.shape) * 0.1
        elif key.endswith(".m"):
            adapter[key] = value * (1 + 0.1 * mx.random.normal(value.shape))
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "adapters.safetensors"), adapter)
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    model, _ = load_model(models / name)
    model.set_dtype(mx.float32)
    load_adapters(model, str(folder))
    model.eval()
    logits = model(mx.array([PROMPT]))[0]
    mx.save_safetensors(str(folder / "golden.safetensors"), {"logits": logits})


def peft_adapter(models, name, folder, targets, dora=False):
    """The same of peft, with a scale by the root of the rank."""
    model = AutoModelForCausalLM.from_pretrained(models / name, dtype=torch.float32, attn_implementation="eager")
    torch.manual_seed(5)
    config = LoraConfig(
        r=3, lora_alpha=5, use_rslora=True, use_dora=dora, lora_dropout=0.1, target_modules=targets, bias="none"
    )
    model = get_peft_model(model, config)
    with torch.no_grad():
        for key, param in model.named_parameters():
            # Of an embedding's factors, A starts with zeros.
            if ".lora_B." in key or ".lora_embedding_A." in key:
                param.normal_(0, 0.1)
            elif ".lora_magnitude_vector." in key:
                param.mul_(1 + 0.1 * torch.randn(param.shape))
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = name  # not this machine's path
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([PROMPT])).logits[0]
    save_file({"logits": logits.contiguous()}, folder / "golden.safetensors")


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    (out / "optimisers.json").write_text(json.dumps(optimisers()) + "\n")
    # The models are beside the committed goldens, wherever the output is written.
    models = Path(__file__).parents[2] / "testdata" / "models"
    shutil.rmtree(out / "adapters", ignore_errors=True)
    mlx_lm_adapter(models, "llama_tied", out / "adapters" / "dora-llama_tied", dora=True)
    mlx_lm_adapter(models, "q_qwen3_b5_g32", out / "adapters" / "lora-q_qwen3_b5_g32", dora=False)
    peft_adapter(models, "qwen3", out / "adapters" / "peft-qwen3", ["k_proj", "up_proj"])
    peft_adapter(models, "llama_tied", out / "adapters" / "peft-dora-llama_tied", ["q_proj", "down_proj"], dora=True)
    experts = [f"mlp.switch_mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj")]
    keys = [*experts, "mlp.gate", "model.embed_tokens"]
    mlx_lm_adapter(models, "qwen3_moe", out / "adapters" / "lora-qwen3_moe", dora=False, keys=[*keys, "lm_head"])
    mlx_lm_adapter(models, "q_qwen3_moe_b4_g32", out / "adapters" / "lora-q_qwen3_moe_b4_g32", dora=False, keys=keys)
    # The embedding is also the head.
    keys = ["self_attn.q_proj", "model.embed_tokens"]
    mlx_lm_adapter(models, "llama_tied", out / "adapters" / "dora-head-llama_tied", dora=True, keys=keys)
    mlx_lm_adapter(models, "q_gemma3_text_b4_g32", out / "adapters" / "lora-q_gemma3_text_b4_g32", dora=False, keys=keys)
    peft_adapter(models, "llama_bias", out / "adapters" / "peft-llama_bias", ["q_proj", "embed_tokens"])
    for name in ("llama_tied", "qwen3", "gemma3_text", "qwen3_moe", "qwen3_5_text", *OWN_TARGETS):
        # peft does not support adapters of experts.
        kinds = {"qwen3_moe": ["full"], "qwen3": ["full", "lora", "dora"], "qwen3_5_text": ["full"]}
        kinds |= {name: ["lora"] for name in OWN_TARGETS}
        for kind in kinds.get(name, ["full", "lora"]):
            facts, tensors = train(models / name, kind)
            (out / f"{name}-{kind}.json").write_text(json.dumps(facts, indent=1) + "\n")
            save_file(tensors, out / f"{name}-{kind}.safetensors")
            print(f"{name} {kind}: {facts['losses'][0]:.4f} -> {facts['losses'][-1]:.4f}")


if __name__ == "__main__":
    main()
