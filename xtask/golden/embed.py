"""Writes `embed/`: embeddings and relevances by sentence-transformers, of tiny models whose weights follow a formula.

No weights are stored. Element i of a tensor is `center + spread * 2 * u`, where u in -0.5..0.5 follows from the
tensor's name and i (`formula`). The tests make the same files. A case has the files of its checkpoint, names, shapes,
centers and spreads of its tensors, ids of the tokenizer, and the results. Its mutations are changes of a file: the
script has checked that each changes the results.
"""

import copy
import json
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

torch.manual_seed(0)
torch.set_num_threads(1)

TEXTS = [
    "The red fox jumps over the hill.",
    "Café naïve: 12 über-großе Füchse!",
    "你好, world",
    "a",
    "Words and words, and more words than the longest text may have; the rest of them are cut from its end, word by word.",
    "the the the the the the the the the the the the",
]
PAIRS = [
    ["What do foxes eat?", "The red fox eats a ripe berry."],
    ["What do foxes eat?", "Trains are late in winter, and words and words and words follow until the pair is too long to be read."],
    ["a", "a"],
]
CORPUS = [*TEXTS, *(text for pair in PAIRS for text in pair), "query: passage: Represent this sentence for search"]
HIDDEN, LAYERS, HEADS, INNER, LONGEST = 32, 2, 4, 48, 24
# A mutation has to move a result by more than this, and the tests accept less.
MOVES = 1e-3


def formula(name, count):
    """Numbers in -0.5..0.5 that follow from the tensor's name."""
    seed = 2166136261
    for byte in name.encode():
        seed = (seed ^ byte) * 16777619 % 2**32
    x = (np.uint64(seed) + np.arange(count, dtype=np.uint64) * np.uint64(2654435761)) % np.uint64(2**32)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = ((x ^ (x >> np.uint64(shift))) * np.uint64(factor)) % np.uint64(2**32)
    x = x ^ (x >> np.uint64(16))
    return (x >> np.uint64(8)).astype(np.float64) / 2**24 - 0.5


def values(tensor):
    name, shape, center, spread = tensor
    return (center + 2 * spread * formula(name, int(np.prod(shape)))).astype(np.float32).reshape(shape)


def tensor_of(name, shape, offset):
    """A tensor's row: a norm's weight is near 1 (less `offset`), and products keep the size of their input."""
    lower = name.lower()
    if len(shape) == 1:
        is_norm = lower.endswith(("norm.weight", "ln.weight", "norm1.weight", "norm2.weight"))
        return [name, list(shape), 1.0 - offset if is_norm else 0.0, 0.25]
    if "embed" in lower:
        return [name, list(shape), 0.0, 1.0]
    return [name, list(shape), 0.0, round(2.5 / shape[1] ** 0.5, 6)]


def wordpiece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=220, special_tokens=special))
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.UnigramTrainer(vocab_size=180, special_tokens=special, unk_token="<unk>")
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def byte_pairs():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "yes", "no"]
    used = sorted({chr for text in CORPUS for (word, _) in tokenizer.pre_tokenizer.pre_tokenize_str(text) for chr in word})
    alphabet = sorted(set(used) | set(pre_tokenizers.ByteLevel.alphabet()))
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def ended(tokenizer, before, after):
    """The tokenizer's file with tokens around texts, and with pairs after each other."""
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    before, after = ([f"{token}" for token in tokens] for tokens in (before, after))
    names = sorted({*before, *after})
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, "$B:1", *(f"{token}:1" for token in after)],
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in names],
    )
    return tokenizer


BERT = {"tokenizer_class": "BertTokenizer", "model_max_length": 512}
ROBERTA = {"tokenizer_class": "RobertaTokenizer", "model_max_length": LONGEST}
XLMR = {"tokenizer_class": "XLMRobertaTokenizer", "model_max_length": 512}
PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": LONGEST, "pad_token": "<pad>"}
TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}


def modules(*names):
    rows = [TRANSFORMER]
    for index, name in enumerate(names, 1):
        path = f"{index}_{name}"
        rows.append({"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{name}"})
    return rows


def pooling(mode, size=HIDDEN, **more):
    return {"word_embedding_dimension": size, f"pooling_mode_{mode}": True, **more}


def config(model_type, architecture, **more):
    return {
        "model_type": model_type, "architectures": [architecture], "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "intermediate_size": INNER, "max_position_embeddings": 64, **more,
    }


IDENTITY = {"activation_fn": "torch.nn.modules.linear.Identity"}
LIMIT = {"max_seq_length": LONGEST, "do_lower_case": False}
MODERN = dict(
    num_hidden_layers=4, local_attention=8, global_attn_every_n_layers=3, global_rope_theta=160.0, local_rope_theta=10.0,
    pad_token_id=1, eos_token_id=2, bos_token_id=0, cls_token_id=0, sep_token_id=2,
)
GEMMA = dict(
    head_dim=16, num_key_value_heads=2, query_pre_attn_scalar=20, sliding_window=10, use_bidirectional_attention=True,
    layer_types=["sliding_attention", "full_attention"], rope_theta=100.0, rope_local_base_freq=10.0,
    hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6, attention_bias=False,
)
DENSE = {"in_features": HIDDEN, "out_features": 40, "bias": False, "activation_function": "torch.nn.modules.linear.Identity"}
BACK = {"in_features": 40, "out_features": 24, "bias": True, "activation_function": "torch.nn.modules.activation.Tanh"}


def cases(vocab):
    """Name, tokenizer, files, prompt names, mutations (file, key, value), and whether pairs are scored."""
    words, pieces, pairs = vocab["wordpiece"], vocab["unigram"], vocab["bytes"]
    bert = config("bert", "BertModel", vocab_size=words, type_vocab_size=2, hidden_act="gelu", layer_norm_eps=1e-12)
    roberta = config("roberta", "RobertaModel", vocab_size=pairs, type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5)
    xlmr = config("xlm-roberta", "XLMRobertaModel", vocab_size=pieces, type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5)
    modern = config("modernbert", "ModernBertModel", vocab_size=pairs, **MODERN)
    nomic = config("nomic_bert", "NomicBertModel", vocab_size=words, type_vocab_size=2, rope_theta=100.0)
    gte = config("gte", "GteModel", vocab_size=pieces, type_vocab_size=1, rope_theta=100.0)
    gemma = config("gemma3_text", "Gemma3TextModel", vocab_size=pairs, **GEMMA)
    qwen = config("qwen3", "Qwen3ForCausalLM", vocab_size=pairs, num_key_value_heads=2, head_dim=16, rope_theta=100.0)
    qwen["tie_word_embeddings"] = True
    classifier = lambda base, name, **more: {**base, "architectures": [name], "id2label": {"0": "LABEL_0"}, **more}
    return [
        ("bert", "wordpiece", {
            "config.json": bert, "tokenizer_config.json": BERT, "sentence_bert_config.json": LIMIT,
            "modules.json": modules("Pooling", "Normalize"), "1_Pooling/config.json": pooling("mean_tokens"),
        }, [None], [
            ("config.json", "hidden_act", "relu"), ("config.json", "layer_norm_eps", 0.3),
            ("1_Pooling/config.json", "pooling_mode_mean_tokens", False, "pooling_mode_cls_token", True),
        ], False),
        ("bert_pools", "wordpiece", {
            "config.json": bert, "tokenizer_config.json": {**BERT, "do_lower_case": False, "strip_accents": True},
            "sentence_bert_config.json": LIMIT, "modules.json": modules("Pooling", "Dense", "LayerNorm"),
            "1_Pooling/config.json": {
                "embedding_dimension": HIDDEN, "include_prompt": False,
                "pooling_mode": ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"],
            },
            "2_Dense/config.json": {**BACK, "in_features": 6 * HIDDEN, "use_residual": True},
            "3_LayerNorm/config.json": {"dimension": 24},
            "config_sentence_transformers.json": {"prompts": {"query": "query: ", "document": ""}},
        }, [None, "query"], [
            ("1_Pooling/config.json", "include_prompt", True),
            ("2_Dense/config.json", "activation_function", "torch.nn.modules.linear.Identity"),
            ("tokenizer_config.json", "do_lower_case", True), ("tokenizer_config.json", "strip_accents", False),
        ], False),
        ("roberta", "bytes", {
            "config.json": roberta, "tokenizer_config.json": ROBERTA, "modules.json": modules("Pooling", "Normalize"),
            "1_Pooling/config.json": pooling("cls_token"),
        }, [None], [("config.json", "pad_token_id", 0)], False),
        ("xlm_roberta", "unigram", {
            "config.json": xlmr, "tokenizer_config.json": XLMR, "sentence_bert_config.json": LIMIT,
            "modules.json": modules("Pooling", "Normalize"), "1_Pooling/config.json": pooling("mean_tokens"),
            "config_sentence_transformers.json": {
                "prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": "passage",
            },
        }, [None, "query"], [("config.json", "pad_token_id", 0)], False),
        ("modernbert", "bytes", {
            "config.json": modern, "tokenizer_config.json": PLAIN, "modules.json": modules("Pooling", "Normalize"),
            "1_Pooling/config.json": pooling("mean_tokens"),
        }, [None], [
            ("config.json", "local_attention", 16), ("config.json", "global_rope_theta", 10.0),
            ("config.json", "local_rope_theta", 100.0), ("config.json", "global_attn_every_n_layers", 2),
            ("config.json", "norm_eps", 0.3), ("config.json", "hidden_activation", "relu"),
        ], False),
        ("nomic_bert", "wordpiece", {
            "config.json": nomic, "tokenizer_config.json": BERT, "sentence_bert_config.json": LIMIT,
            "modules.json": modules("Pooling", "LayerNorm", "Normalize"), "1_Pooling/config.json": pooling("mean_tokens"),
            "2_LayerNorm/config.json": {"dimension": HIDDEN},
            "config_sentence_transformers.json": {"prompts": {"query": "query: "}},
        }, [None, "query"], [("config.json", "rope_theta", 10.0), ("config.json", "hidden_act", "gelu")], False),
        ("gte", "unigram", {
            "config.json": gte, "tokenizer_config.json": XLMR, "sentence_bert_config.json": LIMIT,
            "modules.json": modules("Pooling", "Normalize"), "1_Pooling/config.json": pooling("cls_token"),
        }, [None], [("config.json", "rope_theta", 10.0), ("config.json", "hidden_act", "silu")], False),
        ("gemma3_text", "gemma", {
            "config.json": gemma, "tokenizer_config.json": PLAIN,
            "modules.json": modules("Pooling", "Dense", "Dense", "Normalize"), "1_Pooling/config.json": pooling("mean_tokens"),
            "2_Dense/config.json": DENSE, "3_Dense/config.json": BACK,
            "config_sentence_transformers.json": {"prompts": {"query": "query: "}},
        }, [None, "query"], [
            ("config.json", "sliding_window", 14), ("config.json", "rope_theta", 1000.0),
            ("config.json", "rope_local_base_freq", 100.0), ("config.json", "query_pre_attn_scalar", 16),
        ], False),
        ("qwen3", "qwen", {
            "config.json": qwen, "tokenizer_config.json": PLAIN, "modules.json": modules("Pooling", "Normalize"),
            "1_Pooling/config.json": pooling("lasttoken"),
            "config_sentence_transformers.json": {"prompts": {"query": "query: ", "document": ""}},
        }, [None, "query"], [("config.json", "rope_theta", 10.0)], False),
        ("qwen3_mean", "qwen", {
            "config.json": qwen, "tokenizer_config.json": PLAIN, "modules.json": modules("Pooling"),
            "1_Pooling/config.json": pooling("mean_tokens"),
        }, [None], [], False),
        ("bert_rerank", "wordpiece", {
            "config.json": classifier(bert, "BertForSequenceClassification"), "tokenizer_config.json": {**BERT, "model_max_length": LONGEST},
        }, [], [("config.json", "type_vocab_size", 1)], True),
        ("xlm_roberta_rerank", "unigram", {
            "config.json": classifier(xlmr, "XLMRobertaForSequenceClassification", sentence_transformers=IDENTITY),
            "tokenizer_config.json": {**XLMR, "model_max_length": LONGEST},
        }, [], [], True),
        ("modernbert_rerank", "bytes", {
            "config.json": classifier(modern, "ModernBertForSequenceClassification", classifier_pooling="mean"),
            "tokenizer_config.json": PLAIN,
        }, [], [("config.json", "classifier_pooling", "cls"), ("config.json", "classifier_activation", "relu")], True),
        ("gte_rerank", "unigram", {
            "config.json": classifier(gte, "GteForSequenceClassification"), "tokenizer_config.json": {**XLMR, "model_max_length": LONGEST},
        }, [], [], True),
        ("qwen3_rerank", "qwen_chat", {
            "config.json": {**qwen, "max_position_embeddings": 1024}, "tokenizer_config.json": {**PLAIN, "model_max_length": 1024},
        }, [], [], True),
    ]


def auto(files):
    name = files["config.json"]["architectures"][0]
    if name.endswith("ForCausalLM"):
        return AutoModelForCausalLM
    return AutoModelForSequenceClassification if name.endswith("ForSequenceClassification") else AutoModel


def write(folder, files, tokenizer):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    for row in files.get("modules.json", []):
        (folder / row["path"]).mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str())


def tensors(folder, files):
    """The rows of the tensors, with the names of published files, for the model and for each module."""
    offset = 1.0 if files["config.json"]["model_type"] == "gemma3_text" else 0.0
    model = auto(files).from_config(AutoConfig.from_pretrained(folder))
    with tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(saved)
        with safe_open(Path(saved) / "model.safetensors", "np") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}
    found = {"model.safetensors": [tensor_of(name, shape, offset) for name, shape in sorted(shapes.items())]}
    for row in files.get("modules.json", []):
        settings = files.get(f"{row['path']}/config.json", {})
        if row["type"].endswith("Dense"):
            inputs, outputs = settings["in_features"], settings["out_features"]
            shapes = {"linear.weight": [outputs, inputs]}
            if settings["bias"]:
                shapes["linear.bias"] = [outputs]
            if settings.get("use_residual"):
                shapes["residual.weight"] = [outputs, inputs]
        elif row["type"].endswith("LayerNorm"):
            shapes = {f"norm.{part}": [settings["dimension"]] for part in ("weight", "bias")}
        else:
            continue
        found[f"{row['path']}/model.safetensors"] = [tensor_of(name, shape, 0.0) for name, shape in sorted(shapes.items())]
    return found


def fill(folder, rows):
    for file, tensors in rows.items():
        save_file({row[0]: values(row) for row in tensors}, folder / file, metadata={"format": "pt"})


SYSTEM = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
ANSWER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


def by_answers(folder):
    """The probability of yes, and not of no, after the prompt of Qwen3-Reranker's model card; and its logit."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    yes, no = (tokenizer.convert_tokens_to_ids(token) for token in ("yes", "no"))
    logits_of_yes = []
    for query, document in PAIRS:
        text = f"<Instruct>: {INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
        ids = [i for part in (SYSTEM, text, ANSWER) for i in tokenizer(part, add_special_tokens=False)["input_ids"]]
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1]
        logits_of_yes.append((logits[yes] - logits[no]).item())
    logits_of_yes = np.array(logits_of_yes, dtype=np.float32)
    return {"pairs": 1 / (1 + np.exp(-logits_of_yes)), "logits": logits_of_yes}


def results(folder, files, prompts, is_pairs):
    if is_pairs and auto(files) is AutoModelForCausalLM:
        return by_answers(folder)
    if is_pairs:
        model = CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
        return {"pairs": np.asarray(model.predict(PAIRS), dtype=np.float32)}
    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    return {name or "": model.encode(TEXTS, prompt_name=name) for name in prompts}


def distance(a, b):
    """The largest distance of two results, where a vector's length does not count."""
    worst = 0.0
    for key, x in a.items():
        y = b[key]
        if x.ndim == 1:
            worst = max(worst, float(np.abs(x - y).max()))
            continue
        if x.shape != y.shape:
            return 1.0
        cosine = (x * y).sum(-1) / np.linalg.norm(x, axis=-1) / np.linalg.norm(y, axis=-1)
        worst = max(worst, float((1 - cosine).max()))
    return worst


def ids(folder, is_pairs):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if is_pairs:
        return [tokenizer(*pair)["input_ids"] for pair in PAIRS]
    return [tokenizer(text)["input_ids"] for text in TEXTS]


def case(name, tokenizer, files, prompts, mutations, is_pairs, tokenizers):
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / name
        folder.mkdir()
        write(folder, files, tokenizers[tokenizer])
        rows = tensors(folder, files)
        fill(folder, rows)
        found = results(folder, files, prompts, is_pairs)
        row = {
            "name": name, "tokenizer": tokenizer, "files": files, "tensors": rows, "ids": ids(folder, is_pairs),
            "results": {key: [[round(float(x), 7) for x in np.atleast_1d(line)] for line in value] for key, value in found.items()},
            "mutations": [],
        }
        for file, *changes in mutations:
            changed = copy.deepcopy(files)
            changed[file].update(zip(changes[::2], changes[1::2]))
            (folder / file).write_text(json.dumps(changed[file]))
            try:
                moved = distance(found, results(folder, changed, prompts, is_pairs))
            except (RuntimeError, IndexError, ValueError):
                moved = 1.0
            assert moved > MOVES, f"{name}: {file} {changes} moves the results by {moved}"
            row["mutations"].append([file, *changes])
            (folder / file).write_text(json.dumps(files[file]))
        print(name, {key: value.shape for key, value in found.items()}, flush=True)
        return row


def main(out, only):
    out.mkdir(exist_ok=True)
    words, pieces, pairs = wordpiece(), unigram(), byte_pairs()
    tokenizers = {
        "wordpiece": words, "unigram": pieces, "bytes": ended(pairs, ["<s>"], ["</s>"]), "gemma": ended(pairs, ["<s>"], ["</s>"]),
        "qwen": ended(pairs, [], ["<|endoftext|>"]), "qwen_chat": pairs,
    }
    sizes = {"wordpiece": words.get_vocab_size(), "unigram": pieces.get_vocab_size(), "bytes": pairs.get_vocab_size()}
    rows = [case(*entry, tokenizers) for entry in cases(sizes) if not only or entry[0] in only]
    names = ["numpy", "sentence-transformers", "tokenizers", "torch", "transformers"]
    golden = {
        "versions": {name: version(name).partition("+")[0] for name in names},
        "texts": TEXTS, "pairs": PAIRS, "cases": rows,
        # Only the post-processors of the byte-level tokenizers differ.
        "tokenizers": {
            "wordpiece": json.loads(words.to_str()), "unigram": json.loads(pieces.to_str()), "bytes": json.loads(pairs.to_str()),
        },
        "post_processors": {name: json.loads(one.to_str())["post_processor"] for name, one in tokenizers.items()},
    }
    (out / "golden.json").write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    main(Path(sys.argv[1]), sys.argv[2:])
