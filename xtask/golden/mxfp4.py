"""Experts in mxfp4 as gpt-oss is published (OCP Microscaling 1.0): 32 numbers of four bits share a power of two."""

import torch
from safetensors.torch import load_file, save_file

VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
GROUP = 32
LARGEST = 2  # the exponent of the largest value, 6
BIAS = 127  # of a scale's exponent


def packed(dense):
    """Blocks `[.., groups, 16]` (the lower four bits first) and scales `[.., groups]`, bytes, of `[.., inputs]`."""
    groups = dense.float().unflatten(-1, (-1, GROUP))
    exponent = torch.floor(torch.log2(groups.abs().amax(-1))) - LARGEST
    scaled = groups / torch.exp2(exponent)[..., None]
    codes = (scaled.abs()[..., None] - VALUES).abs().argmin(-1) + 8 * (scaled < 0)
    blocks = codes[..., ::2] + 16 * codes[..., 1::2]
    return blocks.to(torch.uint8), (exponent + BIAS).to(torch.uint8)


def unpacked(blocks, scales):
    """The numbers, `[.., inputs]`."""
    codes = torch.stack([blocks % 16, blocks // 16], dim=-1).flatten(-2).long()
    values = VALUES[codes % 8] * torch.where(codes >= 8, -1.0, 1.0)
    return (values * torch.exp2(scales.float() - BIAS)[..., None]).flatten(-2)


def is_packed(name):
    return name.endswith(("experts.gate_up_proj", "experts.down_proj"))


def rounded(tensors):
    """Dense tensors, of experts `[experts, inputs, outputs]`, with the numbers that the packed ones hold."""
    turned = {name: tensor.transpose(1, 2) for name, tensor in tensors.items() if is_packed(name)}
    return tensors | {name: unpacked(*packed(tensor)).transpose(1, 2) for name, tensor in turned.items()}


def pack_file(path):
    """Packs the experts of a dense file."""
    tensors = {}
    for name, tensor in load_file(path).items():
        if is_packed(name):
            tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = packed(tensor.transpose(1, 2))
        else:
            tensors[name] = tensor
    save_file({name: tensors[name].contiguous() for name in sorted(tensors)}, path, metadata={"format": "pt"})
