"""Writes the cases of testdata/stored whose weights other programs packed: AWQ, GPTQ, ModelOpt,
compressed-tensors, bitsandbytes, torchao, and nvfp4 of MLX with global scales.

    python stored_packed.py OUT [CASE …]

The packages are those of requirements-stored.txt beside those of requirements.txt. Weights are
packed and dequantised by the program itself where its package does both on a CPU: compressed-
tensors, ModelOpt, bitsandbytes, torchao, MLX. AWQ's packing is written here and dequantised by
AutoAWQ's own function. GPTQ's packing and dequantisation are written here, from the layout that
gptqmodel documents.

A case is as those of stored.py. Where the program rounds more than once in float32, golden.json has
samples of the weights instead of digests: the first numbers of each row, to be compared within the
rounding of float32. `tokens` are the greedy continuation.
"""

import importlib.metadata
import importlib.util
import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

from cases import base, llama
from checkpoint import random_tensors, write_config, write_json, write_tensors
from reference import load
from stored import PROMPT, digest, fp8, is_linear

TOKENS = 6
SMALL = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "tie_word_embeddings": True}


def version(package):
    return f"{package} {importlib.metadata.version(package)}"


def signed(words):
    """Unsigned 32-bit words as int32."""
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def pack(codes, bits, order=None):
    """Codes [n, m], consecutive ones of the last axis in a word, the first in its lowest bits:
    int32 [n, m * bits / 32].
    """
    codes = codes.long().unflatten(1, (-1, 32 // bits))
    codes = codes if order is None else codes[..., order]
    return signed((codes << (bits * torch.arange(32 // bits))).sum(-1))


def asymmetric(tensor, bits, group, dtype=torch.float16):
    """Codes [out, in], zeros and scales [out, groups]."""
    groups = tensor.unflatten(1, (-1, group))
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    scales = ((high - low) / (2**bits - 1)).to(dtype)
    zeros = torch.round(-low / scales.float()).clamp(0, 2**bits - 1)
    codes = torch.round(groups / scales.float()[..., None]) + zeros[..., None]
    return codes.clamp(0, 2**bits - 1).flatten(1).long(), zeros.long(), scales


def symmetric(tensor, bits, group, dtype=torch.float16):
    groups = tensor.unflatten(1, (-1, group))
    middle = 2 ** (bits - 1)
    scales = (groups.abs().amax(-1) / (middle - 0.5)).to(dtype)
    codes = torch.round(groups / scales.float()[..., None]).clamp(-middle, middle - 1) + middle
    return codes.flatten(1).long(), torch.full(scales.shape, middle), scales


# AWQ and GPTQ


def awq(group):
    def store(path, tensor):
        codes, zeros, scales = asymmetric(tensor, 4, group)
        order = [0, 2, 4, 6, 1, 3, 5, 7]
        files = {
            f"{path}.qweight": pack(codes.T, 4, order),
            f"{path}.qzeros": pack(zeros.T, 4, order),
            f"{path}.scales": scales.T.contiguous(),
        }
        of_program = awq_packing().dequantize_gemm(
            files[f"{path}.qweight"], files[f"{path}.qzeros"], scales.T.float(), 4, group
        )
        return files, of_program.T.contiguous()

    return store


def awq_packing():
    """The module of AutoAWQ with its packing, without the rest of the package, which needs an old
    transformers.
    """
    folder = Path(importlib.util.find_spec("awq").origin).parent
    spec = importlib.util.spec_from_file_location("packing_utils", folder / "utils" / "packing_utils.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gptq(bits, group, quantise, v1=True, order=False):
    def store(path, tensor):
        columns = tensor.shape[1]
        size = columns if group == -1 else group
        generator = torch.Generator().manual_seed(columns)
        perm = torch.randperm(columns, generator=generator) if order else torch.arange(columns)
        sorted_codes, zeros, scales = quantise(tensor[:, perm], bits, size)
        g_idx = torch.empty(columns, dtype=torch.int32)
        g_idx[perm] = (torch.arange(columns) // size).to(torch.int32)
        codes = torch.empty_like(sorted_codes)
        codes[:, perm] = sorted_codes
        stored = pack(zeros.T, bits).long()
        if v1:
            one = sum(1 << shift for shift in range(0, 32, bits))
            stored = stored - one
            stored = torch.where(stored < -(2**31), stored + 2**32, stored)
        files = {
            f"{path}.qweight": pack(codes, bits).T.contiguous(),
            f"{path}.qzeros": stored.to(torch.int32),
            f"{path}.scales": scales.T.contiguous(),
            f"{path}.g_idx": g_idx,
        }
        return files, scales.float()[:, g_idx.long()] * (codes - zeros[:, g_idx.long()]).float()

    return store


# ModelOpt


def modelopt(path, tensor):
    """nvfp4 for experts, one scale for attention matrices of 8-bit floats."""
    if ".experts." not in path:
        codes, scales, dense = fp8(tensor, [None, None])
        extra = {f"{path}.weight_scale": scales.reshape(()), f"{path}.input_scale": torch.tensor(0.25)}
        return {f"{path}.weight": codes} | extra, dense
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    packed, scales, factor = NVFP4QTensor.quantize(tensor.clone(), 16)
    dense = packed.dequantize(dtype=torch.float32, scale=scales, double_scale=factor, block_sizes={-1: 16})
    return {
        f"{path}.weight": packed._quantized_data,
        f"{path}.weight_scale": scales,
        f"{path}.weight_scale_2": factor.reshape(()),
        f"{path}.input_scale": torch.tensor(0.5),
    }, dense


# compressed-tensors


def compressed(weights, form):
    """The compressor of a format, for the arguments of a group's weights."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    compressor = BaseCompressor.get_value_from_registry(form)

    def store(path, tensor):
        state = {"weight": tensor.clone()}
        if weights["type"] == "float" and weights["group_size"] == 16:
            groups = tensor.unflatten(1, (-1, 16)).abs().amax(-1)
            state["weight_global_scale"] = (448.0 * 6.0 / tensor.abs().amax()).reshape(1)
            state["weight_scale"] = (groups / 6.0 * state["weight_global_scale"]).to(torch.float8_e4m3fn).float()
        elif weights["type"] == "float":
            groups = tensor.unflatten(1, (-1, 32)).abs().amax(-1)
            state["weight_scale"] = torch.exp2(torch.ceil(torch.log2(groups / 6.0)))
        elif weights["symmetric"]:
            size = weights["group_size"] or tensor.shape[1]
            _, _, state["weight_scale"] = symmetric(tensor, weights["num_bits"], size, torch.bfloat16)
        else:
            _, zeros, state["weight_scale"] = asymmetric(tensor, weights["num_bits"], weights["group_size"], torch.bfloat16)
            state["weight_zero_point"] = (zeros - 2 ** (weights["num_bits"] - 1)).to(torch.int8)
        stored_scale = state["weight_scale"]
        state["weight_scale"] = stored_scale.float()
        files = compressor.compress(state, scheme)
        dense = compressor.decompress(dict(files), scheme)["weight"].float()
        if weights["type"] == "float":
            # The compressor computes in bfloat16; its parts compute in float32.
            rows, columns = tensor.shape
            codes = unpack_fp4_from_uint8(files["weight_packed"], rows, columns).float()
            scales = compressor._decompress_scale(files["weight_scale"], torch.float32)
            whole = files.get("weight_global_scale")
            wide = dequantize(codes, scales, args=scheme.weights, dtype=torch.float32, global_scale=whole)
            assert (wide - dense).abs().max() <= 2**-7 * wide.abs().max(), path
            dense = wide
        if weights["type"] == "int":
            files["weight_scale"] = stored_scale
        if "weight_global_scale" in files:
            files["input_global_scale"] = torch.tensor([3.0])
        return {f"{path}.{name}": value for name, value in files.items()}, dense

    return store


def of_module(rules):
    """A store that depends on the end of a path."""

    def store(path, tensor):
        return next(store for end, store in rules if path.endswith(end))(path, tensor)

    return store


def group(weights, targets, form=None):
    found = {"input_activations": None, "output_activations": None, "targets": targets, "weights": weights}
    return found | ({"format": form} if form else {})


def compressed_settings(groups, form):
    return {
        "config_groups": {f"group_{at}": value for at, value in enumerate(groups)},
        "format": form,
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


def weights_of(num_bits, kind, size, symmetric=True):
    strategy = {None: "channel", 16: "tensor_group"}.get(size, "group")
    return {"dynamic": False, "group_size": size, "num_bits": num_bits, "strategy": strategy, "symmetric": symmetric, "type": kind}


def ordered(path, tensor):
    """Integers of 4 bits whose columns belong to groups in any order (`weight_g_idx`). The program
    no longer reads them.
    """
    files, dense = gptq(4, 32, asymmetric, order=True)(path, tensor)
    columns = tensor.shape[1]
    g_idx = files[f"{path}.g_idx"]
    perm = torch.argsort(g_idx, stable=True)
    codes, zeros, scales = asymmetric(tensor[:, perm], 4, 32, torch.bfloat16)
    back = torch.empty_like(codes)
    back[:, perm] = codes
    dense = scales.float()[:, g_idx.long()] * (back - zeros[:, g_idx.long()]).float()
    return {
        f"{path}.weight_packed": pack(back, 4),
        f"{path}.weight_scale": scales,
        f"{path}.weight_shape": torch.tensor([tensor.shape[0], columns]),
        f"{path}.weight_zero_point": pack(zeros.T, 4).T.contiguous(),
        f"{path}.weight_g_idx": g_idx,
    }, dense


# bitsandbytes


def bnb_nf4(path, tensor):
    import bitsandbytes.functional as F

    # Scales of blocks of 64 numbers are codes themselves, as with bnb_4bit_use_double_quant.
    codes, state = F.quantize_4bit(tensor, blocksize=64, compress_statistics=True, quant_type="nf4")
    files = {f"{path}.weight.{name}": value for name, value in state.as_dict(packed=True).items()}
    return {f"{path}.weight": codes} | files, F.dequantize_4bit(codes, state).float()


def bnb_nf4_stored(path, tensor):
    """The same codes with plain scales, whose bytes the file holds as numbers of bfloat16. The program's CPU code needs blocks
    that are within a row.
    """
    import bitsandbytes.functional as F

    codes, state = F.quantize_4bit(tensor, blocksize=32, quant_type="nf4", quant_storage=torch.bfloat16)
    files = {f"{path}.weight.{name}": value for name, value in state.as_dict(packed=True).items()}
    return {f"{path}.weight": codes} | files, F.dequantize_4bit(codes, state).float()


def bnb_int8(path, tensor):
    import bitsandbytes.functional as F

    codes, scales, _ = F.int8_vectorwise_quant(tensor.to(torch.float16))
    return {
        f"{path}.weight": codes,
        f"{path}.SCB": scales,
        f"{path}.weight_format": torch.tensor(0, dtype=torch.uint8),
    }, F.int8_vectorwise_dequant(codes, scales).float()


# torchao


def torchao(path, tensor):
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, PerGroup, quantize_

    if path.endswith("up_proj"):
        return torchao_int4(path, tensor)
    layer = torch.nn.Sequential(torch.nn.Linear(tensor.shape[1], tensor.shape[0], bias=False))
    layer[0].weight.data = tensor.clone()
    if ".mlp." in path:
        # As for a model in bfloat16: scales of 16 bits, codes of four bits in bytes.
        layer = layer.to(torch.bfloat16)
        quantize_(layer, IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)))
    else:
        quantize_(layer, Int8WeightOnlyConfig(version=2))
    weight = layer[0].weight
    tensors, metadata = flatten_tensor_state_dict({f"{path}.weight": weight})
    torchao.metadata |= {name: value for name, value in metadata.items() if name != "tensor_names"}
    zeros = getattr(weight, "zero_point", None)
    codes = weight.qdata.float().unflatten(1, (weight.scale.shape[-1] if weight.scale.ndim > 1 else 1, -1))
    shift = 0.0 if zeros is None else zeros.float().reshape(zeros.shape[0], -1, 1)
    dense = ((codes - shift) * weight.scale.float().reshape(weight.scale.shape[0], -1, 1)).flatten(1)
    own = weight.dequantize().float()
    assert (own - dense).abs().max() <= 2**-7 * dense.abs().max(), path
    return tensors, dense


torchao.metadata = {}


def torchao_int4(path, tensor):
    """Int4Tensor. Its arithmetic is in a package of CUDA kernels (mslk), so that the formulas are
    written here: codes from -8 to 7, a number is scale * code + zero.
    """
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import Int4Tensor

    groups = tensor.unflatten(1, (-1, 32))
    low, high = groups.amin(-1), groups.amax(-1)
    scales = (high - low) / 15
    zeros = (low + 8 * scales).to(torch.bfloat16)
    codes = (torch.round((groups - low[..., None]) / scales[..., None]).clamp(0, 15) - 8).to(torch.int8).flatten(1)
    scales = scales.to(torch.bfloat16)
    packed = (codes[:, ::2] & 15) | (codes[:, 1::2] << 4)
    weight = Int4Tensor(packed, scales.T.contiguous(), zeros.T.contiguous(), [1, 32], tensor.shape)
    tensors, metadata = flatten_tensor_state_dict({f"{path}.weight": weight})
    torchao.metadata |= {name: value for name, value in metadata.items() if name != "tensor_names"}
    wide = codes.float().unflatten(1, (-1, 32)) * scales.float()[..., None] + zeros.float()[..., None]
    return tensors, wide.flatten(1)


# MLX


def mlx_nvfp4(path, tensor):
    """A matrix with a global scale if it is an expert, else without."""
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    w = mx.array(tensor.numpy())
    scale = mx.max(mx.abs(w)).astype(mx.float32) if ".experts." in path else None
    packed, scales = mx.quantize(w, 16, 4, mode="nvfp4", global_scale=scale)
    dense = mx.dequantize(packed, scales, None, 16, 4, mode="nvfp4", global_scale=scale, dtype=mx.float32)
    as_torch = lambda array: torch.from_numpy(__import__("numpy").array(array))
    files = {f"{path}.weight": as_torch(packed), f"{path}.scales": as_torch(scales)}
    if scale is not None:
        files[f"{path}.global_scale"] = as_torch(scale)
    return files, as_torch(dense)


def stacked(files):
    """Experts as mlx-lm stores them: `switch_mlp`, one array for all."""
    stacks, rest = {}, {}
    for name, value in files.items():
        if ".experts." in name:
            before, after = name.split(".experts.")
            at, part = after.split(".", 1)
            stacks.setdefault(f"{before}.switch_mlp.{part}", {})[int(at)] = value
        else:
            rest[name] = value
    return rest | {name: torch.stack([items[at] for at in sorted(items)]) for name, items in stacks.items()}


def mxfp8(path, tensor):
    codes, scales, dense = fp8(tensor, [1, 32], powers=True)
    exponents = (torch.log2(scales) + 127).to(torch.uint8)
    return {f"{path}.weight": codes, f"{path}.weight_scale_inv": exponents}, dense


class Case:
    """How a case stores the matrices that it packs."""

    def __init__(self, config, settings, store, program, **more):
        self.config, self.settings, self.store, self.program = config, settings, store, program
        self.dtype = more.get("dtype", torch.bfloat16)
        self.key = more.get("key", "quantization_config")
        self.beside = more.get("beside")
        self.change = more.get("change", lambda files: files)
        self.samples = more.get("samples", False)


def cases():
    wide = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1, "tie_word_embeddings": True}
    half = {"dtype": torch.float16}
    awq_settings = {"bits": 4, "group_size": 128, "modules_to_not_convert": None, "quant_method": "awq"}
    yield "awq_llama", Case(
        llama(**wide, head_dim=32), awq_settings | {"version": "gemm", "zero_point": True}, awq(128), version("autoawq"), **half
    )
    experts = {"decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": 32, "norm_topk_prob": True}
    moe = base(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        **experts | SMALL | {"tie_word_embeddings": False},
    )
    yield "awq_qwen3_moe", Case(
        moe, awq_settings | {"group_size": 32, "version": "gemm", "zero_point": True}, awq(32), version("autoawq"), **half
    )
    settings = {"bits": 4, "damp_percent": 0.1, "desc_act": False, "group_size": 32, "quant_method": "gptq", "sym": False}
    glm4 = base(
        "Glm4ForCausalLM", "glm4", attention_bias=True, head_dim=16, pad_token_id=3, partial_rotary_factor=0.5, **SMALL
    )
    own = "the layout of gptqmodel"
    yield "gptq_glm4", Case(glm4, settings, gptq(4, 32, asymmetric), own, **half)
    eight = settings | {"bits": 8, "group_size": -1, "sym": True, "checkpoint_format": "gptq_v2"}
    yield "gptq8_llama", Case(llama(**SMALL), eight, gptq(8, -1, symmetric, v1=False), own, **half)
    yield "gptq_order_llama", Case(
        llama(**SMALL), settings | {"desc_act": True, "sym": True}, gptq(4, 32, symmetric, order=True), own, **half
    )
    layers = {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head", "*mlp.gate"]}
    each = {}
    for name in ["q_proj", "k_proj", "v_proj", "o_proj"]:
        each[f"model.layers.0.self_attn.{name}"] = {"quant_algo": "FP8"}
    for expert in range(4):
        for name in ["gate_proj", "up_proj", "down_proj"]:
            each[f"model.layers.0.mlp.experts.{expert}.{name}"] = {"quant_algo": "NVFP4", "group_size": 16}
    producer = {"producer": {"name": "modelopt", "version": importlib.metadata.version("nvidia-modelopt")}}
    beside = producer | {"quantization": layers | {"quantized_layers": each}}
    yield "modelopt_qwen3_moe", Case(moe, None, modelopt, version("nvidia-modelopt"), beside=beside)
    tensors = version("compressed-tensors")
    nvfp4 = weights_of(4, "float", 16)
    yield "nvfp4_llama", Case(
        llama(**SMALL),
        compressed_settings([group(nvfp4, ["Linear"])], "nvfp4-pack-quantized"),
        compressed(nvfp4, "nvfp4-pack-quantized"),
        tensors,
        samples=True,
    )
    mxfp4, int4, int8 = weights_of(4, "float", 32), weights_of(4, "int", 32, False), weights_of(8, "int", None)
    forms = ["mxfp4-pack-quantized", "pack-quantized", "int-quantized"]
    groups = [
        group(mxfp4, ["re:.*mlp.*"], forms[0]),
        group(int4, ["re:.*self_attn.[qkv]_proj"], forms[1]),
        group(int8, ["re:.*o_proj"], forms[2]),
    ]
    yield "mixed_llama", Case(
        llama(**SMALL),
        compressed_settings(groups, "mixed-precision"),
        of_module(
            [
                ("o_proj", compressed(int8, forms[2])),
                *((end, compressed(int4, forms[1])) for end in ["q_proj", "k_proj", "v_proj"]),
                ("", compressed(mxfp4, forms[0])),
            ]
        ),
        tensors,
    )
    int4 = int4 | {"actorder": "group"}
    yield "int4_order_llama", Case(
        llama(**SMALL), compressed_settings([group(int4, ["Linear"])], "pack-quantized"), ordered, "the layout of compressed-tensors"
    )
    bnb = {"llm_int8_skip_modules": None, "llm_int8_threshold": 6.0, "quant_method": "bitsandbytes"}
    four = {"bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    yield "nf4_llama", Case(
        llama(**SMALL),
        bnb | four | {"load_in_4bit": True, "load_in_8bit": False},
        bnb_nf4,
        version("bitsandbytes"),
    )
    storage = {"bnb_4bit_quant_storage": "bfloat16", "bnb_4bit_use_double_quant": False}
    yield "nf4_bf16_llama", Case(
        llama(**SMALL | {"hidden_size": 32, "intermediate_size": 32}),
        bnb | four | storage | {"load_in_4bit": True, "load_in_8bit": False},
        bnb_nf4_stored,
        version("bitsandbytes"),
    )
    neox = {"hidden_act": "gelu", "layer_norm_eps": 0.02, "rotary_emb_base": 10000, "rotary_pct": 0.5}
    none = {"num_key_value_heads": None, "rms_norm_eps": None, "rope_theta": None}
    neox = base("GPTNeoXForCausalLM", "gpt_neox", use_parallel_residual=True, **SMALL | neox | none | {"tie_word_embeddings": False})
    yield "int8_gpt_neox", Case(
        neox, bnb | {"load_in_4bit": False, "load_in_8bit": True}, bnb_int8, version("bitsandbytes"), samples=True
    )
    yield "torchao_llama", Case(
        llama(**SMALL),
        {"quant_method": "torchao", "quant_type": {"default": {"_type": "FqnToConfig", "_version": 1, "_data": {}}}},
        torchao,
        version("torchao"),
        samples=True,
    )
    scheme = {"group_size": 16, "bits": 4, "mode": "nvfp4"}
    entry = scheme | {
        f"model.layers.0.mlp.switch_mlp.{name}": scheme | {"global_scale": True}
        for name in ["gate_proj", "up_proj", "down_proj"]
    }
    yield "global_qwen3_moe", Case(moe, entry, mlx_nvfp4, version("mlx"), key="quantization", change=stacked)
    yield "mxfp8_llama", Case(
        llama(**SMALL), {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp8"}, mxfp8, "the layout of transformers"
    )


def parts_of(key, dense, config):
    """The matrices that are rows of a fused one: gate and up of GLM 4; q, k and v of GPT-NeoX, head
    by head.
    """
    if key.endswith("gate_up_proj.weight") and config["model_type"] == "glm4":
        return {f"{key}, part {at}": rows for at, rows in enumerate(dense.chunk(2))}
    if key.endswith("query_key_value.weight"):
        heads = dense.unflatten(0, (config["num_attention_heads"], 3, -1))
        return {f"{key}, part {at}": heads[:, at].flatten(0, 1) for at in range(3)}
    return {key: dense}


def is_packed(name, tensor):
    own = ("query_key_value.weight", "attention.dense.weight", "dense_h_to_4h.weight", "dense_4h_to_h.weight")
    return is_linear(name, tensor) or name.endswith(own)


def sort_metadata(path):
    """The same file with the keys of its metadata in order, which safetensors writes in any."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


def write(name, case, out):
    config = case.config | {"torch_dtype": str(case.dtype).removeprefix("torch.")}
    tensors = random_tensors(case.config, 1, [])
    files, dense, digests, samples = {}, {}, {}, {}
    torchao.metadata = {}
    for key, tensor in tensors.items():
        if is_packed(key, tensor):
            parts, dense[key] = case.store(key.removesuffix(".weight"), tensor)
            files |= parts
            for part, rows in parts_of(key, dense[key], case.config).items():
                digests[part] = digest(rows + 0.0)  # -0 becomes 0
            samples[key] = [float(x) for x in dense[key][0, :8]]
        elif not (key == "lm_head.weight" and config["tie_word_embeddings"]):
            files[key] = tensor.to(case.dtype)
            dense[key] = files[key].float()
    assert digests, name
    files = case.change(files)
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    metadata = {"format": "pt"} | torchao.metadata
    save_file({key: files[key].contiguous() for key in sorted(files)}, folder / "model.safetensors", metadata=metadata)
    sort_metadata(folder / "model.safetensors")
    write_config(folder, config | ({case.key: case.settings} if case.settings else {}))
    if case.beside:
        write_json(folder / "hf_quant_config.json", case.beside)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        write_config(scratch, case.config)
        write_tensors(scratch, {key: tensor.float().contiguous() for key, tensor in dense.items()})
        model = load(scratch)
        ids, tokens = list(PROMPT), []
        with torch.no_grad():
            for _ in range(TOKENS):
                logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
                first = logits if not tokens else first
                tokens.append(int(logits.argmax()))
                ids.append(tokens[-1])
    golden = {
        "reference": f"transformers {transformers.__version__}, {case.program}",
        "prompt": PROMPT,
        "logprobs": [round(float(x), 6) for x in torch.log_softmax(first, -1)],
        "tokens": tokens,
    }
    write_json(folder / "golden.json", golden | ({"samples": samples} if case.samples else {"digests": digests}))
    print(name, len(digests), sum(file.stat().st_size for file in folder.iterdir()), flush=True)


def main():
    out, wanted = Path(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name, case in cases():
        if not wanted or name in wanted:
            write(name, case, out)


if __name__ == "__main__":
    main()
