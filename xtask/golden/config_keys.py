"""Writes testdata/models/config_keys.json: what transformers computes when one thing of a config.json is changed.

    python config_keys.py OUT [CASE …]

Changes that the file has stay as they are, but those of the given cases are computed anew. OUT is testdata/models with the checkpoints
that models.py writes. For each family the keys of its configuration class, and keys that only others have, take other values in both
dialects. A change is a key with its value, or "absent"; its result is the log probabilities of some tokens after the prompt. A change
is refused where transformers fails or does not find the tensors in the checkpoint that it looks for.
"""

import copy
import json
import multiprocessing
import random
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import transformers

import formula
from reference import load

PROMPT = [random.Random(11).randrange(8, 60) for _ in range(44)]
DIGITS = 4
SHOWN = 5  # tokens whose log probabilities are written

# Folder, and the config file in it that is changed.
BASES = [
    ("llama_head_dim", "config.json"),
    ("llama_tied", "config.json"),
    ("mistral", "config.json"),
    ("qwen2_window", "config.json"),
    ("qwen3", "config.json"),
    ("qwen3_moe", "config.json"),
    ("gemma2", "config.json"),
    ("gemma3_text", "config.json"),
    ("gemma3_text", "config.v5.json"),
    ("gemma3", "config.json"),
    ("phi3", "config.json"),
    ("phi3_longrope", "config.json"),
    ("phi3_longrope", "config.v5.json"),
    ("qwen3_5", "config.json"),
    ("qwen3_next", "config.json"),
    ("mixtral", "config.json"),
    ("gemma", "config.json"),
    ("smollm3", "config.json"),
    ("smollm3_window", "config.v5.json"),
    ("olmo2", "config.json"),
    ("glm4", "config.json"),
    ("glm4", "config.v5.json"),
    ("granite", "config.json"),
    ("seed_oss", "config.json"),
    ("arcee", "config.json"),
    ("helium", "config.json"),
    ("ernie4_5", "config.json"),
    ("hunyuan_v1_dense", "config.json"),
    ("starcoder2", "config.json"),
    ("nemotron", "config.json"),
    ("stablelm", "config.json"),
    ("stablelm_parallel", "config.v5.json"),
    ("cohere", "config.json"),
    ("cohere2", "config.json"),
    ("phi", "config.json"),
    ("qwen2_moe", "config.json"),
    ("qwen2_moe_window", "config.json"),
    ("olmoe", "config.json"),
    ("olmo3", "config.json"),
    ("olmo3", "config.v5.json"),
    ("exaone4", "config.json"),
    ("gpt_oss", "config.json"),
    ("ministral3", "config.json"),
    ("mistral3_small", "config.json"),
    ("glm4_moe", "config.json"),
    ("minimax_m2", "config.json"),
    ("dots1", "config.json"),
    ("granitemoe", "config.json"),
    ("apertus", "config.json"),
    ("deepseek_v2", "config.json"),
    ("deepseek_v3", "config.json"),
    ("glm4_moe_lite", "config.json"),
    ("mistral4", "config.json"),
    ("ernie4_5_moe", "config.json"),
    ("hunyuan_v1_moe", "config.json"),
    ("phimoe", "config.json"),
    ("internlm3", "config.json"),
    ("lfm2", "config.json"),
    ("lfm2_types", "config.v5.json"),
    ("lfm2_moe", "config.json"),
    ("mamba2", "config.json"),
    ("granitemoehybrid", "config.json"),
    ("nemotron_h", "config.json"),
    ("nemotron_h_moe", "config.json"),
    ("falcon_h1", "config.json"),
    ("bitnet", "config.json"),
    ("nanochat", "config.json"),
    ("minimax", "config.json"),
    ("minimax", "config.v5.json"),
    ("kimi_linear", "config.json"),
    ("kimi_linear", "config.v5.json"),
    ("gemma4", "config.json"),
    ("gemma4_text", "config.json"),
    ("gemma4_text", "config.v5.json"),
    ("gemma4_unified", "config.json"),
    ("gemma3n_text", "config.json"),
    ("llama4_text", "config.json"),
    ("gpt2", "config.json"),
    ("gpt_neox", "config.json"),
    ("falcon", "config.json"),
    ("falcon_groups", "config.json"),
    ("falcon_alibi", "config.json"),
    ("deepseek_v32", "config.json"),
    ("glm_moe_dsa", "config.json"),
    ("qwen3_5_moe", "config.json"),
    ("kimi_k25", "config.json"),
    ("glm", "config.json"),
    ("olmo", "config.json"),
    ("cwm", "config.json"),
    ("vaultgemma", "config.json"),
    ("ministral", "config.json"),
    ("jais2", "config.json"),
    ("granitemoe_swa", "config.json"),
    ("granitemoeshared", "config.json"),
    ("hyperclovax_two", "config.json"),
    ("flex_olmo", "config.json"),
    ("mellum", "config.json"),
    ("gptj", "config.json"),
    ("gpt_bigcode", "config.json"),
    ("opt", "config.json"),
    ("granite_swa", "config.json"),
    ("qwen2_5_vl", "config.json"),
    ("qwen3_vl", "config.json"),
    ("qwen3_vl_moe", "config.json"),
    ("glm4v", "config.json"),
    ("glm4v_moe", "config.json"),
    ("exaone", "config.json"),
    ("iquestcoder", "config.json"),
    ("minicpm", "config.json"),
    ("youtu", "config.json"),
    ("minicpm3", "config.json"),
    ("sarvam_moe", "config.json"),
    ("kolibri1", "config.json"),
    ("bamba", "config.json"),
    ("mamba", "config.json"),
    ("falcon_mamba", "config.json"),
    ("jamba", "config.json"),
    ("nemotron_nas", "config.json"),
    ("solar_open", "config.json"),
    ("hy_v3", "config.json"),
    ("exaone_moe", "config.json"),
    ("afmoe", "config.json"),
    ("laguna", "config.json"),
    ("cohere2_moe", "config.json"),
    ("mimo_v2_flash", "config.v5.json"),
    ("muse_glimmer", "config.json"),
    ("lfm3", "config.json"),
    ("step3p7", "config.json"),
    ("bailing_hybrid", "config.json"),
    ("hy_v4", "config.json"),
    ("glm5_next", "config.json"),
    ("longcat_flash", "config.json"),
    ("qwen4_exp", "config.json"),
    ("deepseek_v4", "config.json"),
    ("olmo_hybrid", "config.json"),
    ("minimax_m3_vl", "config.json"),
]

# Values for the keys of all families, whether a family's class reads them or not.
VALUES = {
    "_sliding_window_pattern": [2],
    "attention_bias": [True],
    "attention_multiplier": [0.5],
    "attn_logit_softcapping": [2.0, None],
    "clip_qkv": [0.8],
    "decoder_sparse_step": [2],
    "embedding_multiplier": [3.0],
    "final_logit_softcapping": [2.0, None],
    "full_attention_interval": [3],
    "head_dim": [None],
    "hidden_act": ["gelu", "relu"],
    "hidden_activation": ["gelu", "silu"],
    "initializer_range": [1.0],
    "layer_norm_eps": [0.5],
    "layer_types": ["full", "linear", "sliding"],
    "linear_key_head_dim": [None],
    "linear_num_value_heads": [2],
    "logit_scale": [2.0],
    "logits_scaling": [3.0],
    "max_position_embeddings": [16],
    "max_window_layers": [0, 99],
    "mlp_bias": [True],
    "mlp_only_layers": [[0], None],
    "no_rope_layer_interval": [1],
    "no_rope_layers": [[0, 1]],
    "norm_eps": [0.5],
    "norm_epsilon": [0.5],
    "norm_topk_prob": [False, True],
    "num_experts_per_tok": [1],
    "num_key_value_heads": [None],
    "original_max_position_embeddings": [8],
    "partial_rotary_factor": [0.5],
    "pretraining_tp": [2],
    "query_pre_attn_scalar": [3],
    "residual_multiplier": [0.3],
    "rms_norm_eps": [0.5],
    "rope_local_base_freq": [7.0],
    "rope_theta": [7.0],
    "sliding_window": [3, None],
    "sliding_window_pattern": [2],
    "swiglu_limit": [0.7],
    "tie_word_embeddings": [True, False],
    "use_bidirectional_attention": [False],
    "use_parallel_residual": [False],
    "use_qk_norm": [False],
    "use_sliding_window": [True, False],
}
# Values that are tried if a config has the key.
OWN_VALUES = {
    "attention_in_multiplier": [0.5],
    "attention_out_multiplier": [0.5],
    "block_auto_adjust_ff_dim": [True],
    "block_ffn_dim_multiplier": [None],
    "block_multiple_of": [8],
    "expand": [1],
    "key_multiplier": [0.3],
    "layer_norm_epsilon": [0.5],
    "lm_head_multiplier": [3.0],
    "mamba_dt_min": [0.8],
    "mamba_hidden_act": ["gelu"],
    "mamba_norm_before_gate": [True],
    "mlp_hidden_act": ["gelu"],
    "mlp_multipliers": [[0.3, 0.2]],
    "num_dense_layers": [1],
    "position_embedding_type": ["rope", "nope"],
    "routed_scaling_factor": [0.4],
    "ssm_in_multiplier": [0.3],
    "ssm_multipliers": [[0.3, 0.4, 0.5, 0.6, 0.7]],
    "ssm_out_multiplier": [0.3],
    "tie_embedding": [False],
    "time_step_limit": [[0.3, 0.6]],
    "time_step_min": [0.7],
    "topk_group": [1],
    "use_expert_bias": [False],
}
ALPHA = {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}
LONG = {"long_factor": "long", "short_factor": "short"}
SCALINGS = [
    {"rope_type": "default"},
    {"type": "linear", "factor": 4.0},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "linear", "factor": 4.0, "partial_rotary_factor": 0.5},
    {"rope_type": "default", "partial_rotary_factor": 0.5},
    {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.7, "mscale_all_dim": 0.3},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "truncate": False, "beta_fast": 3.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 16},
    {"rope_type": "longrope", "original_max_position_embeddings": 16, **LONG},
    {"type": "longrope", **LONG},
    {"type": "su", **LONG},
    {"type": "yarn", **LONG},
    {"rope_type": "longrope", "factor": 2.0, "attention_factor": 1.5, **LONG},
]


def text_of(config):
    return config.get("text_config", config)


def size(text, *names):
    """A size under the first of its names that the config has: some families have older ones."""
    return next(text[name] for name in names if text.get(name))


def fitted(value, config):
    """Lists that are as long as the model has layers or its heads have pairs."""
    text = text_of(config)
    if value in ("full", "linear", "sliding"):
        return [f"{value}_attention"] * size(text, "num_hidden_layers", "n_layer", "num_layers")
    if value in ("long", "short"):
        partial = text.get("partial_rotary_factor", (text.get("rope_parameters") or {}).get("partial_rotary_factor", 1.0))
        # Scans of the first Mamba have no heads.
        heads = text.get("num_attention_heads") or text.get("n_head") or 4
        head = text.get("head_dim") or size(text, "hidden_size", "n_embd") // heads
        half = int(head * partial) // 2
        return [round((1.3 if value == "long" else 1.1) ** i + 0.1, 3) for i in range(half)]
    if isinstance(value, dict):
        # The name of a rope is not a type of layers.
        return {key: one if key in ("type", "rope_type") else fitted(one, config) for key, one in value.items()}
    return value


def changes(config):
    text = text_of(config)
    own = {key: values for key, values in OWN_VALUES.items() if key in text}
    for key, values in (VALUES | own).items():
        for value in values:
            # Without these the tensors of norms on q and k, or of slopes, would be left over.
            if text.get(key) in (True, "xielu") and key in ("use_qk_norm", "hidden_act"):
                continue
            # A window that is switched off would get size 0, and no position would be visible.
            if value == "sliding" and text.get("use_sliding_window") is False:
                continue
            # transformers takes other types for full attention and ignores the tensors of the choice of blocks; this project reports both.
            if key == "layer_types" and text["model_type"] == "minimax_m3_vl_text":
                continue
            value = fitted(value, config)
            if text.get(key, "absent") != value:
                yield {key: value}
        # transformers ignores the tensors of a missing key; this project reports them as an error.
        leaves_out = (key.endswith("_bias") or key == "use_qk_norm") and text.get(key)
        if key in text and not key.startswith("num_") and not leaves_out:
            yield {key: "absent"}
    # Beyond this many positions the base of the rope depends on the length of the call. The Rust crate refuses it by name for nanochat,
    # whose angles are negative, and for DeepSeek V4, whose blocks are turned by other lengths.
    for name, theta in [("rope_scaling", {}), ("rope_parameters", {"rope_theta": 50.0})]:
        if text["model_type"] not in ("nanochat", "deepseek_v4"):
            yield {name: theta | DYNAMIC, "max_position_embeddings": 16}
    # For other families the key has no effect.
    has_alpha = text["model_type"].startswith("hunyuan")
    for scaling in [*SCALINGS, *([ALPHA] if has_alpha else [])]:
        scaling = fitted(scaling, config)
        yield {"rope_scaling": scaling}
        yield {"rope_parameters": {"rope_theta": 50.0, **scaling}}
        yield {"rope_scaling": scaling, "original_max_position_embeddings": 9}
    layered = {"full_attention": {"rope_type": "linear", "factor": 4.0}, "sliding_attention": {"rope_theta": 5.0}}
    yield {"rope_parameters": layered}
    yield {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 9.0}}}


def changed(config, change):
    """The config with keys set, or taken out where the value is "absent"."""
    config = copy.deepcopy(config)
    text = text_of(config)
    for key, value in change.items():
        if value == "absent":
            text.pop(key, None)
        else:
            text[key] = value
    return config


@torch.no_grad()
def computed(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    try:
        model = load(folder)
        logits = model(torch.tensor([PROMPT]), use_cache=False).logits[0, -1]
    except (Exception, SystemExit):
        return None
    logprobs = torch.log_softmax(logits, dim=-1)[:SHOWN]
    return [round(float(x), DIGITS) for x in logprobs] if logprobs.isfinite().all() else None


def write(path, families):
    """Changes are in one list, and a family has their numbers: those without effect, those that transformers refuses, and those with
    another result."""
    compact = {"separators": (",", ":")}
    numbers, lines = {}, []
    for family in families:
        unchanged, *cases = family["cases"]
        same, refused, others = [], [], {}
        for case in cases:
            number = numbers.setdefault(json.dumps(case["change"], **compact), len(numbers))
            if case["logprobs"] is None:
                refused.append(number)
            elif case["logprobs"] == unchanged["logprobs"]:
                same.append(number)
            else:
                others[number] = case["logprobs"]
        parts = {"unchanged": unchanged["logprobs"], "same": same, "refused": refused, "others": others}
        parts = ",\n".join(f"{json.dumps(key)}: {json.dumps(value, **compact)}" for key, value in parts.items())
        head = {"case": family["case"], "config": family["config"]}
        lines.append(json.dumps(head)[:-1] + f",\n{parts}}}")
    head = {"reference": f"transformers {transformers.__version__}", "prompt": PROMPT}
    changes = ",\n".join(numbers)
    path.write_text(
        json.dumps(head)[:-1] + f', "changes": [\n{changes}\n], "families": [\n' + ",\n".join(lines) + "\n]}\n"
    )


def read(path):
    """The cases of each config file that was written."""
    table, held = json.loads(path.read_text()), {}
    for family in table["families"]:
        results = {number: family["unchanged"] for number in family["same"]}
        results |= {number: None for number in family["refused"]}
        results |= {int(number): logprobs for number, logprobs in family["others"].items()}
        cases = [{"change": table["changes"][number], "logprobs": logprobs} for number, logprobs in results.items()]
        held[family["case"], family["config"]] = [{"change": {}, "logprobs": family["unchanged"]}, *cases]
    return held


def family(folder, file, held):
    """The cases of one config file. Changes that are in `held` are not computed again."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    config = json.loads((folder / file).read_text())
    held = {json.dumps(case["change"]): case["logprobs"] for case in held}
    cases = []
    with tempfile.TemporaryDirectory() as scratch:
        copy_of = Path(scratch)
        for path in formula.expanded(folder, copy_of).glob("model*"):
            shutil.copy(path, copy_of)
        for change in [{}, *changes(config)]:
            key = json.dumps(change)
            if key not in held:
                held[key] = computed(copy_of, changed(config, change))
            logprobs = held[key] and [round(x, DIGITS) for x in held[key][:SHOWN]]
            cases.append({"change": change, "logprobs": logprobs})
    assert cases[0]["logprobs"], f"{folder.name}: the unchanged checkpoint"
    print(folder.name, file, len(cases), sum(case["logprobs"] is None for case in cases), flush=True)
    return {"case": folder.name, "config": file, "cases": cases}


def main():
    out, wanted = Path(sys.argv[1]), sys.argv[2:]
    held = read(out / "config_keys.json")
    # The bases that were asked for are computed again.
    held = {base: [] if base[0] in wanted else cases for base, cases in held.items()}
    bases = [(out / name, file, held.get((name, file), [])) for name, file in BASES]
    with multiprocessing.Pool() as pool:
        families = pool.starmap(family, bases, chunksize=1)
    write(out / "config_keys.json", families)


if __name__ == "__main__":
    main()
