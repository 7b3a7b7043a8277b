"""Writes a checkpoint of cpu_checkpoint.py as GGUF for llama.cpp, with the same numbers: BF16, Q8_0 and Q4_0.

    python gguf_checkpoint.py CHECKPOINT OUT

Q8_0 and Q4_0 are made by llama.cpp itself, "pure": every matrix in that format, as every matrix of an mlx-community
checkpoint has the same bits. There is no vocabulary: what is measured are ids.
"""

import ctypes
import json
import sys
from pathlib import Path

import gguf
import llama_cpp
import numpy as np


def main():
    checkpoint, out = Path(sys.argv[1]), Path(sys.argv[2])
    config = json.loads((checkpoint / "config.json").read_text())
    out.mkdir(parents=True, exist_ok=True)
    bf16 = out / "bf16.gguf"
    write(checkpoint, config, bf16)
    for name, kind in [("q8", llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0), ("q4", llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0)]:
        parameters = llama_cpp.llama_model_quantize_default_params()
        parameters.ftype, parameters.pure, parameters.nthread = kind, True, 2
        target = str(out / f"{name}.gguf").encode()
        if llama_cpp.llama_model_quantize(str(bf16).encode(), target, ctypes.byref(parameters)):
            raise SystemExit(f"llama.cpp cannot write {target.decode()}")


def without_vocabulary(writer):
    writer.add_tokenizer_model("no_vocab")


def write(checkpoint, config, path, add_vocabulary=without_vocabulary):
    is_gemma = config["model_type"] == "gemma3_text"
    architecture = gguf.MODEL_ARCH.GEMMA3 if is_gemma else gguf.MODEL_ARCH.QWEN3
    layers = config["num_hidden_layers"]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if is_gemma:
        writer.add_sliding_window(config["sliding_window"])
        writer.add_rope_freq_base_swa(config["rope_local_base_freq"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    add_vocabulary(writer)
    writer.add_vocab_size(config["vocab_size"])
    names = gguf.get_tensor_name_map(architecture, layers)
    for name, bits in tensors(checkpoint):
        target = names.get_name(name, try_suffixes=(".weight",))
        if target is None:
            raise SystemExit(f"{name} has no name in GGUF")
        if bits.ndim == 1:
            values = (bits.astype(np.uint32) << 16).view(np.float32)
            # Gemma's norms multiply by 1 + weight; llama.cpp wants the sum.
            writer.add_tensor(target, values + 1 if is_gemma else values)
        else:
            raw = np.ascontiguousarray(bits).view(np.uint8)
            writer.add_tensor(target, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(checkpoint):
    """Names and bf16 values, as 16-bit integers: numpy has no such floats."""
    for path in sorted(checkpoint.glob("*.safetensors")):
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        data = np.memmap(path, mode="r", offset=8 + length)
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            if entry["dtype"] != "BF16":
                raise SystemExit(f"{path}: {name} is {entry['dtype']}, expected BF16")
            start, end = entry["data_offsets"]
            yield name, data[start:end].view(np.uint16).reshape(entry["shape"])


if __name__ == "__main__":
    main()
