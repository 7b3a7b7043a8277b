"""Writes the goldens of drafters, testdata/drafters: tiny drafters of other folders that read what a model of testdata/models has
computed, and what they draft after each token of its prompts, in float32.

    python drafters.py OUT [CASE …]

The assistants of Gemma 4 and the drafter of Muse Glimmer are transformers' classes. Other DFlash drafters have the same computation under
other names, so that their reference is transformers' class too. transformers has no EAGLE-3: its reference is the module below, written
from the paper (arXiv:2503.01840) and the layout of published heads.
"""

import json
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from torch import nn
from transformers.models.gemma4_assistant import Gemma4AssistantConfig, Gemma4AssistantForCausalLM
from transformers.models.gemma4_unified_assistant import (
    Gemma4UnifiedAssistantConfig,
    Gemma4UnifiedAssistantForCausalLM,
)
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, repeat_kv
from transformers.models.muse_glimmer_assistant import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel

import formula
from checkpoint import formulas, merge_patch, save_file, write_json
from reference import load

SEED = 0
DRAFTS = 3  # tokens of a chain
V, E = 64, 32
MIN_MARGIN = 2e-3  # of greedy drafts, in logits
MIN_CHANGE = 1e-2  # of a mutation, in log probabilities
SPREADS = [("layer_scalar", (0.1, 1.0)), ("norm.weight", (0.2, 1.0)), ("norm_enc.weight", (0.2, 1.0)), ("", (1.5, None))]


@dataclass
class Draft:
    """For one prompt of L tokens: the logits of the drafts after each token but the first, [L - 1, K, V]."""

    logits: torch.Tensor


@dataclass
class DraftCase:
    name: str
    covers: str
    target: str
    config: dict
    drafts: object
    reference: str
    mutations: list = field(default_factory=list)
    d2t: bool = False


class Eagle3(nn.Module):
    """EAGLE-3: a Llama layer whose attention reads [embedding | features]; features are those of three layers, or the head's own."""

    def __init__(self, config, target_size, places, before_residual):
        super().__init__()
        c = LlamaConfig(**config)
        size, d = c.hidden_size, c.hidden_size // c.num_attention_heads
        self.c, self.d, self.before_residual = c, d, before_residual
        self.fc = nn.Linear(places * target_size, size, bias=False)
        self.q_proj = nn.Linear(2 * size, c.num_attention_heads * d, bias=False)
        self.k_proj = nn.Linear(2 * size, c.num_key_value_heads * d, bias=False)
        self.v_proj = nn.Linear(2 * size, c.num_key_value_heads * d, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * d, size, bias=False)
        self.mlp = LlamaMLP(c)
        norm = lambda: LlamaRMSNorm(size, eps=c.rms_norm_eps)  # noqa: E731
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm, self.norm = (norm() for _ in range(4))
        self.rotary = LlamaRotaryEmbedding(c)
        self.lm_head = nn.Linear(size, config["draft_vocab_size"], bias=False)

    def forward(self, embedded, features):
        """The features behind each position, from those before it: all [1, L, E]."""
        length = embedded.shape[1]
        normed = self.hidden_norm(features)
        x = torch.cat([self.input_layernorm(embedded), normed], -1)
        heads = lambda p: p(x).view(1, length, -1, self.d).transpose(1, 2)  # noqa: E731
        q, k, v = heads(self.q_proj), heads(self.k_proj), heads(self.v_proj)
        cos, sin = self.rotary(x, torch.arange(length)[None])
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        groups = q.shape[1] // k.shape[1]
        scores = q @ repeat_kv(k, groups).transpose(2, 3) * self.d**-0.5
        scores = scores + torch.full((length, length), float("-inf")).triu(1)
        y = (scores.softmax(-1) @ repeat_kv(v, groups)).transpose(1, 2).reshape(1, length, -1)
        x = (normed if self.before_residual else features) + self.o_proj(y)
        return x + self.mlp(self.post_attention_layernorm(x))


def eagle3_modules(config, tensors, target_size):
    layer = config.get("transformer_layer_config", config)
    speculators = layer is not config
    inside = config.get("eagle_config", config)
    ids = inside.get("eagle_aux_hidden_state_layer_ids")
    before_residual = config.get("norm_before_residual", speculators)
    full = {"draft_vocab_size": config.get("draft_vocab_size", V)} | layer
    head = Eagle3(full, target_size, 3, before_residual)
    state = {}
    for name, tensor in tensors.items():
        name = name.replace("midlayer.", "").replace("layers.0.", "").replace("self_attn.", "")
        if name not in ("d2t", "t2d", "embed_tokens.weight"):
            state[name] = tensor.float()
    head.load_state_dict(state)
    return head.eval(), ids, speculators


def eagle3(target, config, tensors, prompt):
    head, ids, speculators = eagle3_modules(config, tensors, target.config.get_text_config().hidden_size)
    layers = target.config.get_text_config().num_hidden_layers
    # hidden_states[i] is the input of layer i.
    places = [2, layers // 2, layers - 3] if ids is None else ids if speculators else [i + 1 for i in ids]
    hidden = without_final_norm(target, prompt)
    features = head.fc(torch.cat([hidden[i] for i in places], -1))
    own = tensors.get("embed_tokens.weight")
    embed = target.get_input_embeddings() if own is None else lambda ids: own.float()[ids]
    tokens = torch.arange(head.lm_head.out_features)
    if "d2t" in tensors:
        tokens = tokens + tensors["d2t"]
    found = []
    for n in range(1, len(prompt)):
        read, behind, steps = prompt[1 : n + 1], features[:, :n], []
        for _ in range(DRAFTS):
            out = head(embed(torch.tensor([read])), behind)
            small = head.lm_head(head.norm(out[:, -1]))[0]
            logits = torch.full((V,), float(small.min()) - 20.0)
            logits[tokens] = small
            steps.append(logits)
            read = [*read, int(logits.argmax())]
            behind = torch.cat([behind, out[:, -1:]], 1)
        found.append(torch.stack(steps))
    return Draft(torch.stack(found))


def without_final_norm(target, prompt):
    """The input of every layer, and the output of the last one."""
    last = []
    text = getattr(target.model, "language_model", target.model)
    handle = text.layers[-1].register_forward_hook(
        lambda module, inputs, output: last.append(output[0] if isinstance(output, tuple) else output)
    )
    hidden = target.model(torch.tensor([prompt]), output_hidden_states=True, use_cache=False).hidden_states
    handle.remove()
    return [*hidden[:-1], last[0].reshape(hidden[0].shape)]


def dflash(target, config, tensors, prompt):
    own = config.get("dflash_config", config)
    kind = config["model_type"]
    settings = {k: v for k, v in config.items() if k not in ("dflash_config", "model_type", "architectures")}
    settings |= {"layer_types": config.get("layer_types", ["full_attention"] * config["num_hidden_layers"])}
    if kind == "qwen3":
        settings["rope_parameters"] = {"rope_type": "default", "rope_theta": settings.pop("rope_theta")}
    settings |= {"target_layer_ids": own["target_layer_ids"], "mask_token_id": own["mask_token_id"]}
    model = MuseGlimmerAssistantModel(MuseGlimmerAssistantConfig(**settings, attn_implementation="eager"))
    renames = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    model.load_state_dict({renames.get(name, name): tensor.float() for name, tensor in tensors.items()})
    model.eval()
    hidden = without_final_norm(target, prompt)
    features = torch.cat([hidden[i + 1] for i in own["target_layer_ids"]], -1)
    embed = target.get_input_embeddings()
    if hasattr(embed, "embed_norm"):  # which transformers leaves out too
        embed = lambda ids: nn.functional.embedding(ids, target.get_input_embeddings().weight)  # noqa: E731
    block = config["block_size"]
    found = []
    for n in range(1, len(prompt)):
        noise = torch.tensor([[prompt[n]] + [own["mask_token_id"]] * (block - 1)])
        mask = block_mask(n, block, settings)
        out = model(
            noise_embeds=embed(noise),
            context_hidden_states=features[:, :n],
            position_ids=torch.arange(n + block)[None],
            attention_mask=mask,
        )
        found.append(of_target(target, target.lm_head(out.last_hidden_state[0, 1:])))
    return Draft(torch.stack(found))


def of_target(target, logits):
    """Logits with the scale and the cap of the target's. transformers drafts from those without, which have the same order."""
    text = target.config.get_text_config()
    logits = logits * getattr(text, "output_multiplier", 1.0)
    cap = getattr(text, "final_logit_softcapping", None)
    return logits if cap is None else cap * torch.tanh(logits / cap)


def block_mask(n, block, settings):
    """Every place of the block sees all; in sliding layers those at most sliding_window places away."""
    distance = torch.arange(n, n + block)[:, None] - torch.arange(n + block)[None]
    window = settings.get("sliding_window") or n + block
    near = torch.where(distance.abs() <= window, 0.0, float("-inf"))[None, None]
    return {"full_attention": torch.zeros_like(near), "sliding_attention": near}


def gemma4(target, config, tensors, prompt):
    unified = config["model_type"] == "gemma4_unified_assistant"
    config_class = Gemma4UnifiedAssistantConfig if unified else Gemma4AssistantConfig
    model_class = Gemma4UnifiedAssistantForCausalLM if unified else Gemma4AssistantForCausalLM
    settings = config_class(**config)
    settings._attn_implementation = "eager"
    model = model_class(settings)
    state = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    faults = model.load_state_dict(state, strict=False)
    missing = [name for name in faults.missing_keys if "rotary" not in name]
    if missing or faults.unexpected_keys:
        raise SystemExit(f"{missing} {faults.unexpected_keys}")
    model.eval()
    embed = target.get_input_embeddings()
    window = target.config.get_text_config().sliding_window
    found = []
    for n in range(1, len(prompt)):
        outputs = target(
            torch.tensor([prompt[:n]]), output_hidden_states=True, return_shared_kv_states=True, use_cache=False
        )
        held = {k: v for k, v in outputs.shared_kv_states.items()}
        # The last positions of a window; transformers' own cache has about as many.
        held["sliding_attention"] = tuple(part[:, :, -window:] for part in held["sliding_attention"])
        before, last, steps = outputs.hidden_states[-1][:, -1:], torch.tensor([[prompt[n]]]), []
        for _ in range(DRAFTS):
            out = model(
                inputs_embeds=torch.cat([embed(last), before], -1),
                position_ids=torch.tensor([[n]]),
                shared_kv_states=held,
                use_cache=False,
            )
            steps.append(out.logits[0, -1])
            last, before = out.logits[:, -1:].argmax(-1), out.last_hidden_state
        found.append(torch.stack(steps))
    return Draft(torch.stack(found))


LLAMA = {
    "model_type": "llama",
    "hidden_size": E,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": V,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
}
QWEN = LLAMA | {"model_type": "qwen3", "num_hidden_layers": 2, "head_dim": 16}
THETA = {"name": "rope_theta", "config": {"rope_theta": 100.0}}


def gemma_text(kind):
    alike = {"attention_k_eq_v": True, "num_global_key_value_heads": 1} if "unified" in kind else {}
    return alike | {
        "model_type": kind,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "global_head_dim": 16,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "num_kv_shared_layers": 3,
        "sliding_window": 8,
        "vocab_size": V,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 512,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
        },
    }


def gemma_assistant(kind, **more):
    text = "gemma4_unified_text" if "unified" in kind else "gemma4_text"
    name = "Gemma4UnifiedAssistantForCausalLM" if "unified" in kind else "Gemma4AssistantForCausalLM"
    return {
        "architectures": [name],
        "model_type": kind,
        "backbone_hidden_size": E,
        "text_config": gemma_text(text),
        "tie_word_embeddings": True,
        **more,
    }


def draft_cases():
    of_paper = "the module in xtask/golden/drafters.py"
    yield DraftCase(
        "eagle3",
        "names of the paper's authors, a part of the vocabulary, the default layers",
        "smollm3",
        LLAMA | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 40},
        eagle3,
        of_paper,
        [THETA, {"name": "norm_before_residual", "config": {"norm_before_residual": True}}],
        d2t=True,
    )
    yield DraftCase(
        "eagle3_speculators",
        "the format of speculators, an embedding of its own, all tokens, named layers",
        "gemma3_text",
        {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "transformer_layer_config": LLAMA,
            "draft_vocab_size": V,
            "eagle_aux_hidden_state_layer_ids": [0, 3, 4],
        },
        eagle3,
        of_paper,
        [
            {"name": "norm_before_residual", "config": {"norm_before_residual": False}},
            {"name": "layers", "config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 3]}},
        ],
    )
    yield DraftCase(
        "dflash",
        "names of the paper's authors, full layers",
        "qwen3_tied",
        QWEN
        | {
            "architectures": ["DFlashDraftModel"],
            "block_size": 6,
            "dflash_config": {"mask_token_id": 5, "target_layer_ids": [0, 2]},
        },
        dflash,
        "transformers' class of Muse Glimmer's drafter, with its names",
        [THETA, {"name": "mask_token_id", "config": {"dflash_config": {"mask_token_id": 6}}}],
    )
    yield DraftCase(
        "muse_glimmer_assistant",
        "names of transformers, sliding layers, a target that norms its embeddings",
        "muse_glimmer",
        QWEN
        | {
            "model_type": "muse_glimmer_assistant",
            "block_size": 5,
            "mask_token_id": 7,
            "target_layer_ids": [1, 3, 4],
            "layer_types": ["sliding_attention"] * 2,
            "sliding_window": 8,
            "rope_theta": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        },
        dflash,
        "transformers",
        [
            {"name": "sliding_window", "config": {"sliding_window": 4}},
            {"name": "layers", "config": {"target_layer_ids": [1, 3, 3]}},
        ],
    )
    yield DraftCase(
        "gemma4_assistant",
        "clusters of tokens, a target with inputs for each layer whose last layers share keys and values",
        "gemma4_text",
        gemma_assistant(
            "gemma4_assistant", use_ordered_embeddings=True, num_centroids=16, centroid_intermediate_top_k=6
        ),
        gemma4,
        "transformers",
        [
            {"name": "centroid_intermediate_top_k", "config": {"centroid_intermediate_top_k": 2}},
            {
                "name": "rope_theta",
                "config": {"text_config": {"rope_parameters": {"sliding_attention": {"rope_theta": 100.0}}}},
            },
        ],
    )
    yield DraftCase(
        "gemma4_unified_assistant",
        "all tokens",
        "gemma4_unified",
        gemma_assistant("gemma4_unified_assistant"),
        gemma4,
        "transformers",
        [
            {
                "name": "partial_rotary_factor",
                "config": {"text_config": {"rope_parameters": {"full_attention": {"partial_rotary_factor": 1.0}}}},
            }
        ],
    )


def tensors_of(case, seed):
    """Names and shapes of the tensors, with the values of those that are integers."""
    config, d2t = case.config, case.d2t
    generator = torch.Generator().manual_seed(seed)
    shapes = {}
    if case.drafts is eagle3:
        layer = config.get("transformer_layer_config", config)
        at = "layers.0." if "transformer_layer_config" in config else "midlayer."
        heads = {"q_proj": 4, "k_proj": 2, "v_proj": 2}
        shapes = {f"{at}self_attn.{name}.weight": (n * 8, 2 * E) for name, n in heads.items()}
        shapes |= {f"{at}self_attn.o_proj.weight": (E, E), "fc.weight": (E, 3 * E), "norm.weight": (E,)}
        shapes |= {f"{at}mlp.{name}_proj.weight": (layer["intermediate_size"], E) for name in ("gate", "up")}
        shapes |= {f"{at}mlp.down_proj.weight": (E, layer["intermediate_size"])}
        norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        shapes |= {f"{at}{name}.weight": (E,) for name in norms}
        shapes["lm_head.weight"] = (config["draft_vocab_size"], E)
        if "transformer_layer_config" in config:
            shapes["embed_tokens.weight"] = (V, E)
    elif case.drafts is dflash:
        own = config.get("dflash_config", config)
        model = MuseGlimmerAssistantModel(
            MuseGlimmerAssistantConfig(
                **{k: config[k] for k in ("hidden_size", "intermediate_size", "num_hidden_layers", "head_dim")},
                **{k: config[k] for k in ("num_attention_heads", "num_key_value_heads")},
                target_layer_ids=own["target_layer_ids"],
            )
        )
        shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        if config["model_type"] == "qwen3":
            shapes = {
                name.replace("encoder.fc", "fc").replace("encoder.output_norm_enc", "hidden_norm"): shape
                for name, shape in shapes.items()
            }
    else:
        unified = "unified" in config["model_type"]
        model_class = Gemma4UnifiedAssistantForCausalLM if unified else Gemma4AssistantForCausalLM
        config_class = Gemma4UnifiedAssistantConfig if unified else Gemma4AssistantConfig
        state = model_class(config_class(**config)).state_dict()
        shapes = {name: tensor.shape for name, tensor in state.items() if tensor.is_floating_point()}
        del shapes["lm_head.weight"]
    tensors = {name: torch.empty(shape) for name, shape in shapes.items()}
    if d2t:
        tokens = torch.randperm(V, generator=generator)[: config["draft_vocab_size"]].sort().values
        tensors["d2t"] = tokens - torch.arange(len(tokens))
        tensors["t2d"] = torch.isin(torch.arange(V), tokens).to(torch.int32)
    if config.get("use_ordered_embeddings"):
        tensors["masked_embedding.token_ordering"] = torch.randperm(V, generator=generator)
    return tensors


def write_case(case, out):
    models = Path(__file__).parents[2] / "testdata/models"
    prompts = json.loads((models / case.target / "golden.json").read_text())["prompts"][:2]
    config = {k: v for k, v in case.config.items() if v is not None}
    with tempfile.TemporaryDirectory() as scratch:
        target = load(formula.expanded(models / case.target, Path(scratch)))
        for seed in range(100):
            folder = Path(scratch) / f"{case.name}-{seed}"
            folder.mkdir()
            formula.write(folder, seed, torch.bfloat16, formulas(tensors_of(case, seed), SPREADS))
            tensors = formula.read(folder)
            runs = [case.drafts(target, config, tensors, prompt) for prompt in prompts]
            top = torch.cat([run.logits.flatten(0, 1) for run in runs]).topk(2, -1).values
            margin = float((top[:, 0] - top[:, 1]).min())
            if margin < MIN_MARGIN or not all(shows(case, m, config, tensors, target, prompts, runs) for m in case.mutations):
                continue
            write_json(folder / "config.json", config)
            golden = {
                "covers": case.covers,
                "target": case.target,
                "reference": {
                    "drafter": case.reference,
                    "transformers": transformers.__version__,
                    "torch": torch.__version__.partition("+")[0],
                },
                "tolerance": 1e-4,
                "margin": round(margin, 5),
                "prompts": prompts,
                "mutations": case.mutations,
                "seed": seed,
            }
            write_json(folder / "golden.json", golden)
            # A few columns of the log probabilities, and the tokens that a greedy choice drafts.
            columns = torch.randperm(V, generator=torch.Generator().manual_seed(SEED))[:8].sort().values
            found = {"columns": columns.to(torch.int32)}
            for i, run in enumerate(runs):
                found[f"logprobs.{i}"] = run.logits.log_softmax(-1)[..., columns].contiguous()
                found[f"tokens.{i}"] = run.logits.argmax(-1).to(torch.int32)
            save_file(found, folder / "golden.safetensors", metadata={"format": "pt"})
            shutil.rmtree(out / case.name, ignore_errors=True)
            shutil.copytree(folder, out / case.name)
            size = sum(f.stat().st_size for f in folder.iterdir())
            print(f"{case.name}: seed {seed}, margin {margin:.4f}, {size} bytes", flush=True)
            return
    raise SystemExit(f"{case.name}: no seed makes a good test")


def shows(case, mutation, config, tensors, target, prompts, runs):
    changed = merge_patch(config, mutation["config"])
    others = [case.drafts(target, changed, tensors, prompt) for prompt in prompts]
    pairs = zip(runs, others, strict=True)
    change = max(float((a.logits.log_softmax(-1) - b.logits.log_softmax(-1)).abs().max()) for a, b in pairs)
    return change > MIN_CHANGE


@torch.no_grad()
def main():
    out, wanted = Path(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    out.mkdir(exist_ok=True)
    for case in draft_cases():
        if not wanted or case.name in wanted:
            write_case(case, out)


if __name__ == "__main__":
    main()
