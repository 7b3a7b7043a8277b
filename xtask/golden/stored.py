"""Writes testdata/stored: tiny checkpoints in formats of other programs, and what torch makes of their weights.

    python stored.py OUT [CASE …]

A case is a folder: config.json and model.safetensors as published, and golden.json with the digests (FNV-1a, 64 bits) of every stored
weight, dequantised to float32 by torch, a prompt, and the log probabilities behind it that transformers computes with the dequantised
weights in float32.
"""

import json
import random
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

from cases import base, llama
from checkpoint import random_tensors, write_config, write_json, write_tensors
from latent_cases import EXPERTS, IGNORED, SPREADS
from reference import load

LARGEST = 448.0  # of E4M3
PROMPT = [random.Random(5).randrange(8, 60) for _ in range(12)]
MLA = {
    "kv_lora_rank": 32,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
FEW = EXPERTS | {
    "moe_intermediate_size": 32,
    "n_group": 2,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_hidden_layers": 2,
    "topk_group": 1,
}


def digest(tensor):
    """FNV-1a of the float32 bytes."""
    value = 0xCBF29CE484222325
    for byte in tensor.float().contiguous().numpy().tobytes():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def spread(scales, block, shape):
    """The scale of each element, of scales of blocks whose last may be smaller."""
    rows = scales.repeat_interleave(block[0], 0)[: shape[0]]
    return rows.repeat_interleave(block[1], 1)[:, : shape[1]]


def fp8(tensor, block, dtype=torch.float32, powers=False):
    """Codes and scales of blocks."""
    rows, columns = tensor.shape
    block = [block[0] or rows, block[1] or columns]
    padded = torch.zeros(-(-rows // block[0]) * block[0], -(-columns // block[1]) * block[1])
    padded[:rows, :columns] = tensor
    blocks = padded.unflatten(1, (-1, block[1])).unflatten(0, (-1, block[0]))
    scales = blocks.abs().amax((1, 3)).clamp(min=1e-4) / LARGEST
    scales = torch.exp2(torch.ceil(torch.log2(scales))) if powers else scales
    scales = scales.to(dtype)
    wide = spread(scales.float(), block, tensor.shape)
    codes = (tensor / wide).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return codes, scales, codes.float() * wide


def int4(tensor, group):
    """Packed codes, scales and dequantised numbers."""
    groups = tensor.unflatten(1, (-1, group))
    scales = (groups.abs().amax(-1, keepdim=True) / 7.5).to(torch.bfloat16)
    codes = torch.round(groups / scales.float()).clamp(-8, 7).long()
    dense = (codes.float() * scales.float()).flatten(1)
    bits = (codes.flatten(1) + 8).unflatten(1, (-1, 8))
    words = (bits << (4 * torch.arange(8))).sum(-1)
    words = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    return words, scales.squeeze(-1), dense


class Stored:
    """How a case stores the matrices that it quantises."""

    def __init__(self, config, settings, store, wanted=lambda name: True, inside=False):
        self.config, self.settings, self.store = config, settings, store
        self.wanted, self.inside = wanted, inside


def is_linear(name, tensor):
    other = ("embed_tokens", "lm_head", "mlp.gate.weight", "block_sparse_moe.gate.weight", "weights_proj", "vision", "projector")
    return name.endswith("_proj.weight") and tensor.ndim == 2 and not any(part in name for part in other) or (
        name.endswith((".w1.weight", ".w2.weight", ".w3.weight", "wq_b.weight", "wk.weight", "kv_a_proj_with_mqa.weight"))
    )


def blocks(block, dtype=torch.float32, powers=False):
    def store(name, tensor):
        codes, scales, dense = fp8(tensor, block, dtype, powers)
        return {name: codes, f"{name}_scale_inv": scales}, dense

    return store


def whole(name, tensor):
    codes, scales, dense = fp8(tensor, [None, None], torch.bfloat16)
    path = name.removesuffix("weight")
    extra = {f"{name}_scale_inv": scales.reshape(()), f"{path}activation_scale": torch.tensor(0.5, dtype=torch.bfloat16)}
    return {name: codes} | extra, dense


def channels(name, tensor):
    codes, scales, dense = fp8(tensor, [1, None], torch.bfloat16)
    path = name.removesuffix("weight")
    stored = {name: codes, f"{name}_scale": scales, f"{path}input_scale": torch.tensor([0.25])}
    if path.endswith("k_proj."):
        stored[f"{path.removesuffix('k_proj.')}k_scale"] = torch.tensor([1.0])
    return stored, dense


def packed(name, tensor):
    words, scales, dense = int4(tensor, 32)
    path = name.removesuffix("weight")
    shape = torch.tensor(tensor.shape)
    return {f"{path}weight_packed": words, f"{path}weight_scale": scales, f"{path}weight_shape": shape}, dense


def cases():
    large = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
    fp8_settings = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8"}
    deepseek = base("DeepseekV3ForCausalLM", "deepseek_v3", **MLA | FEW | IGNORED | large | {"num_hidden_layers": 1})
    qwen = base("Qwen3ForCausalLM", "qwen3", head_dim=16, **large)
    yield "fp8_qwen3", Stored(qwen, fp8_settings | {"weight_block_size": [32, 64]}, blocks([32, 64], torch.bfloat16))
    yield "fp8_deepseek_v3", Stored(
        deepseek | {"first_k_dense_replace": 0},
        fp8_settings | {"weight_block_size": [24, 16]},
        blocks([24, 16]),
    )
    index = {"index_head_dim": 16, "index_n_heads": 2, "index_topk": 6}
    yield "fp8_deepseek_v32", Stored(
        deepseek
        | {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "first_k_dense_replace": 0}
        | index,
        fp8_settings | {"scale_fmt": "ue8m0", "weight_block_size": [32, 32]},
        blocks([32, 32], powers=True),
    )
    minimax = base(
        "MiniMaxM2ForCausalLM",
        "minimax_m2",
        head_dim=16,
        num_experts_per_tok=2,
        num_local_experts=3,
        rotary_dim=8,
        use_qk_norm=True,
        **large | {"intermediate_size": 32},
    )
    yield "fp8_minimax_m2", Stored(
        minimax,
        fp8_settings
        | {"modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"], "weight_block_size": [128, 128]},
        blocks([128, 128]),
    )
    yield "fp8_ministral3", Stored(
        base("Ministral3ForCausalLM", "ministral3", head_dim=16, **large),
        {"activation_scheme": "static", "modules_to_not_convert": ["lm_head"], "quant_method": "fp8"}
        | {"weight_block_size": None},
        whole,
    )

    def groups(weights, form):
        group = {"input_activations": None, "output_activations": None, "targets": ["Linear"], "weights": weights}
        return {
            "config_groups": {"group_0": group},
            "format": form,
            "ignore": ["lm_head"],
            "kv_cache_scheme": None,
            "quant_method": "compressed-tensors",
            "quantization_status": "compressed",
        }

    weights = {"dynamic": False, "group_size": None, "num_bits": 8, "strategy": "channel", "symmetric": True}
    yield "channels_llama", Stored(llama(**large), groups(weights | {"type": "float"}, "float-quantized"), channels)
    weights = weights | {"group_size": 32, "num_bits": 4, "strategy": "group", "type": "int"}
    yield "int4_kimi_k2", Stored(
        deepseek | {"model_type": "kimi_k2", "first_k_dense_replace": 0},
        groups(weights, "pack-quantized"),
        packed,
        wanted=lambda name: ".experts." in name,
    )


def write(name, stored, out):
    # The published names of kimi_k2 are those of deepseek_v3.
    config = stored.config | {"torch_dtype": "bfloat16"}
    reference = config | ({"model_type": "deepseek_v3"} if config["model_type"] == "kimi_k2" else {})
    tensors = random_tensors(reference, 1, SPREADS)
    files, dense, digests = {}, {}, {}
    for key, tensor in tensors.items():
        if is_linear(key, tensor) and stored.wanted(key):
            parts, dense[key] = stored.store(key, tensor)
            files |= parts
            digests[key] = digest(dense[key])
        else:
            files[key] = dense[key] = tensor.to(torch.bfloat16)
    assert digests, name
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    save_file({key: files[key].contiguous() for key in sorted(files)}, folder / "model.safetensors", metadata={"format": "pt"})
    write_config(folder, config | {"quantization_config": stored.settings})
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        write_config(scratch, reference)
        write_tensors(scratch, {key: tensor.float() for key, tensor in dense.items()})
        with torch.no_grad():
            logits = load(scratch)(torch.tensor([PROMPT]), use_cache=False).logits[0, -1]
    golden = {
        "reference": f"transformers {transformers.__version__}",
        "prompt": PROMPT,
        "logprobs": [round(float(x), 6) for x in torch.log_softmax(logits, -1)],
        "digests": digests,
    }
    write_json(folder / "golden.json", golden)
    print(name, len(digests), sum(file.stat().st_size for file in folder.iterdir()), flush=True)


def main():
    out, wanted = Path(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name, stored in cases():
        if not wanted or name in wanted:
            write(name, stored, out)


if __name__ == "__main__":
    main()
