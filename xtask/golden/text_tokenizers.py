"""Tiny tokenizers of each published kind, and what transformers makes of texts and ids with them."""

import json
import random
import shutil
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

import text_converted

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind at all. They're friends; we've seen it!",
    "Numbers: 1, 22, 333, 4444 and 55555. In 2024 there were 366 days (not 365).",
    "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))  # 3\n\tif x == y: pass\n",
    "Die Straße ist naß; über Öl läuft Wasser. L'été où naïve élève. ¿Qué tal, señor? Привет, мир.",
    "the then there these they than that this those with which what when where who will would word world",
    "hello Hello HELLO hello, hello. a an and are as at be been but by can do for from had has have he her",
]

TEXTS = [
    "",
    " ",
    "   ",
    "\n",
    "\n\n \n",
    "Hello",
    " Hello",
    "  Hello  world  ",
    "Hello, world!",
    "The quick brown fox doesn't jump; they're sure we've SEEN'T it.",
    "1234567 12 3.14 1,000,000",
    "a\tb\r\nc\n\n\nd   \n e",
    "über Straße naïve ﬁ Å e\u0301 Привет",
    "नमस्ते दुनिया e\u0301\u0302x \u0301 \u0301\u0301!",
    "世界你好，こんにちは 안녕",
    "👍🏽 👩‍👩‍👧 \U0001f1e9\U0001f1ea x",
    "\u00a0nbsp\u200bzero\u3000wide\ufeff",
    "<s>text</s> <unk> <pad>",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "<bos><start_of_turn>model\n ok <end_of_turn>",
    "x<|end|>  y <|end|>z<|end|>",
    "a [L] b[R] c [N] WORDWORD WORD [n]",
    "▁under ▁ _ ## ##ing",
    "<0x41><0xE4> <0x0A>",
    "def f(x):\n    return [x**2 for _ in range(10)]\n",
    "http://a.b/c?d=e&f=%20 'q' \"r\" `s`",
    "\x00\x01\x1b[0m\x7f",
]

QWEN_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3_WORDS = QWEN_WORDS.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def special(*contents, **flags):
    return [AddedToken(content, special=True, **flags) for content in contents]


def byte_level(words, added, size=350, normalizer=None):
    tokenizer = Tokenizer(models.BPE())
    split = [pre_tokenizers.Split(Regex(words), "isolated")] if words else []
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not words)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, level])
    tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    train(tokenizer, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_tokens(added)
    return tokenizer


def sentencepiece(first, added, scheme="first", **flags):
    """As SentencePiece's BPE with byte fallback is converted: marks for spaces, and words are not split."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokens = [*first, *BYTES]
    train(tokenizer, trainers.BpeTrainer(vocab_size=440, special_tokens=tokens, show_progress=False))
    text = json.loads(tokenizer.to_str())
    text["added_tokens"] = [token for token in text["added_tokens"] if token["content"] in first]
    tokenizer = Tokenizer.from_str(json.dumps(text))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    strip = [] if scheme == "never" else [decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    tokenizer.add_tokens(added)
    return tokenizer


def train(tokenizer, trainer):
    tokenizer.train_from_iterator(CORPUS, trainer)


def word_pieces():
    """Words and letters of the corpus: the trainers of these models do not give the same pieces twice."""
    words = [word for text in CORPUS for word in text.lower().split() if word.isalpha()]
    letters = sorted({letter for text in CORPUS for letter in text.lower() if not letter.isspace()})
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *("##" + letter for letter in letters), "##ing", *words]
    return {token: ident for ident, token in enumerate(dict.fromkeys(tokens))}


def scored_pieces():
    words = [f"▁{word}" for text in CORPUS for word in text.split()]
    letters = sorted({letter for text in CORPUS for letter in text if letter != " "})
    pieces = dict.fromkeys(["<unk>", "</s>", "▁", "▁the", "the", "ing", "▁\n", *words, *letters])
    return [(piece, -0.5 * (rank % 23) - 1.0) for rank, piece in enumerate(pieces)]


def begin_with(tokenizer, token):
    ident = (token, tokenizer.token_to_id(token))
    tokenizer.post_processor = processors.TemplateProcessing(f"{token} $A", f"{token} $A {token}:1 $B:1", [ident])
    return tokenizer


def added_decoder(tokenizer):
    return {str(ident): state(token) for ident, token in sorted(tokenizer.get_added_tokens_decoder().items())}


def state(token):
    names = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    return {name: getattr(token, name) for name in names}


CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA = ("<unk>", "<s>", "</s>")
GEMMA = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>")


def cases():
    """Name, tokenizer, and the JSON files beside tokenizer.json."""
    qwen = byte_level(QWEN_WORDS, special(*CHATML) + [AddedToken("<tool_call>")], normalizer=normalizers.NFC())
    chatml = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None, "unk_token": None}
    yield "qwen", qwen, {
        "tokenizer_config": {
            "tokenizer_class": "Qwen2Tokenizer",
            "added_tokens_decoder": added_decoder(qwen),
            "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
            "add_bos_token": False,
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            **chatml,
        },
        "config": {"model_type": "qwen3", "eos_token_id": qwen.token_to_id("<|im_end|>")},
        "generation_config": {"eos_token_id": [qwen.token_to_id("<|im_end|>"), qwen.token_to_id("<|endoftext|>")]},
    }
    # The file splits words like GPT-2 and begins texts with a token; the class of the model type
    # does neither.
    other = begin_with(byte_level(None, special(*CHATML)), "<|endoftext|>")
    yield "qwen2_overruled", other, {
        "tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"},
        "config": {"model_type": "qwen2"},
    }
    words = byte_level(LLAMA3_WORDS, special("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"))
    text = json.loads(begin_with(words, "<|begin_of_text|>").to_str())
    text["model"]["ignore_merges"] = True
    text["model"]["vocab"]["Ġfriends"] = max(text["model"]["vocab"].values()) + 4
    llama3 = Tokenizer.from_str(json.dumps(text))
    yield "llama3", llama3, {
        "tokenizer_config": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "added_tokens_decoder": added_decoder(llama3),
            "bos_token": "<|begin_of_text|>",
            "eos_token": "<|eot_id|>",
            "clean_up_tokenization_spaces": True,
        },
        "config": {"model_type": "llama", "eos_token_id": 1},
        "generation_config": {"eos_token_id": llama3.token_to_id("<|eot_id|>")},
    }
    yield "llama3_as_llama", llama3, {
        "tokenizer_config": {"tokenizer_class": "LlamaTokenizer", "bos_token": "<|begin_of_text|>", "add_bos_token": False},
        "config": {"model_type": "llama", "eos_token_id": [3, 4]},
    }
    # The normalizer of published Llama 2 files does what the class does in its pre-tokenizer.
    llama2 = begin_with(sentencepiece(LLAMA, []), "<s>")
    llama2.pre_tokenizer = None
    llama2.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    yield "llama2", llama2, {
        "tokenizer_config": {
            "tokenizer_class": "LlamaTokenizer",
            "added_tokens_decoder": added_decoder(llama2),
            "legacy": False,
            "add_bos_token": True,
            "add_eos_token": True,
            **names,
        },
        "config": {"model_type": "llama"},
    }
    full = {name: {"__type": "AddedToken", **state(AddedToken(token, special=True, rstrip=name == "eos_token"))} for name, token in names.items()}
    yield "llama2_legacy", llama2, {
        "tokenizer_config": {"tokenizer_class": "LlamaTokenizerFast", "legacy": True, "pad_token": "<extra>", **full},
        "config": {"model_type": "llama"},
    }
    # These classes ignore everything in the file except its vocabulary.
    gpt2 = byte_level(None, special("<|endoftext|>", "<|im_end|>"))
    gpt2.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=True)])
    yield "gpt2", gpt2, {
        "tokenizer_config": {
            "tokenizer_class": "GPT2Tokenizer",
            "added_tokens_decoder": added_decoder(gpt2),
            "eos_token": "<|im_end|>",
            "add_prefix_space": False,
        },
        "config": {"model_type": "llama"},
    }
    cohere = byte_level(None, special("<PAD>", "<UNK>", "<CLS>", "<SEP>", "<MASK_TOKEN>", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"))
    yield "cohere", begin_with(cohere, "<BOS_TOKEN>"), {
        "tokenizer_config": {"tokenizer_class": "CohereTokenizerFast", "added_tokens_decoder": added_decoder(cohere)},
        "config": {"model_type": "llama"},
    }
    infill = ("▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>")
    code = begin_with(sentencepiece((*LLAMA, *infill), [], scheme="always"), "<s>")
    yield "code_llama", code, {
        "tokenizer_config": {"tokenizer_class": "CodeLlamaTokenizer", **names},
        "config": {"model_type": "llama"},
    }
    # Code Llama begins texts with its bos_token and GPT-NeoX with no token, whatever post-processor
    # and settings the file has.
    code = sentencepiece((*LLAMA, *infill), [], scheme="always")
    yield "code_llama_bare", code, {
        "tokenizer_config": {"tokenizer_class": "CodeLlamaTokenizerFast", "add_bos_token": False, "add_prefix_space": False, **names},
        "config": {"model_type": "llama"},
    }
    neox = byte_level(LLAMA3_WORDS, special("<|endoftext|>", "<|padding|>"))
    yield "gpt_neox", begin_with(neox, "<|endoftext|>"), {
        "tokenizer_config": {"tokenizer_class": "GPTNeoXTokenizer", "add_bos_token": True, "add_eos_token": True, "add_prefix_space": True},
        "config": {"model_type": "llama"},
    }
    # For this class combining marks belong to words; the file does not say so.
    yield "qwen3_5", byte_level(QWEN_WORDS, special(*CHATML)), {
        "tokenizer_config": {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": None},
        "config": {"model_type": "qwen3_5_text"},
    }
    yield "codegen", byte_level(LLAMA3_WORDS, special("<|endoftext|>")), {
        "tokenizer_config": {"tokenizer_class": "CodeGenTokenizer", "add_prefix_space": True},
        "config": {"model_type": "llama"},
    }
    gemma = sentencepiece(GEMMA, [AddedToken("\n\n", normalized=False), AddedToken("  ", normalized=False)], scheme="never")
    gemma.normalizer = normalizers.Replace(" ", "▁")
    gemma.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    begin_with(gemma, "<bos>")
    yield "gemma", gemma, {
        "tokenizer_config": {
            "tokenizer_class": "GemmaTokenizer",
            "added_tokens_decoder": added_decoder(gemma),
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
            "boi_token": "<start_of_image>",
            "extra_special_tokens": {"image_token": "<image_soft_token>"},
            "sp_model_kwargs": None,
        },
        "config": {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "eos_token_id": [1, 6]}},
    }
    yield "gemma_untyped", gemma, {"tokenizer_config": {}, "config": {"model_type": "gemma3_text", "eos_token_id": None}}
    mistral = begin_with(sentencepiece((*LLAMA, "[INST]", "[/INST]"), []), "<s>")
    yield "mistral", mistral, {
        "tokenizer_config": {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "legacy": True, **names},
        "config": {"model_type": "mistral", "eos_token_id": 2},
    }
    phi3 = sentencepiece(LLAMA, special("<|end|>", "<|user|>", "<|assistant|>", rstrip=True), scheme="always")
    yield "phi3", phi3, {
        "tokenizer_config": {"tokenizer_class": "LlamaTokenizer", "added_tokens_decoder": added_decoder(phi3), **names},
        "config": {"model_type": "phi3"},
        "generation_config": {"eos_token_id": [2, phi3.token_to_id("<|end|>")]},
    }
    flags = [
        AddedToken("[L]", lstrip=True),
        AddedToken("[R]", rstrip=True, special=True),
        AddedToken("[N]", normalized=True, lstrip=True, rstrip=True),
        AddedToken("WORD", single_word=True, normalized=False),
    ]
    plain = byte_level(None, flags, normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]))
    yield "flags", plain, {
        "tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast", "mask_token": "<mask>"},
        "special_tokens_map": {
            "eos_token": {"content": "<|end|>", "lstrip": True, "normalized": False, "rstrip": False, "single_word": False},
            "additional_special_tokens": ["[R]", "<new>"],
        },
        "added_tokens": {"<old>": 424, "<|end|>": 425},
        "config": {"model_type": "llama"},
    }
    pieces = Tokenizer(models.WordPiece(word_pieces(), unk_token="[UNK]"))
    pieces.normalizer = normalizers.BertNormalizer(lowercase=True)
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces.decoder = decoders.WordPiece(cleanup=False)
    ends = [(token, pieces.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    pieces.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ends)
    pieces.enable_truncation(8)
    pieces.enable_padding(length=4)
    yield "wordpiece", pieces, {
        "tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": True, "unk_token": "[UNK]"},
        "config": {"model_type": "llama"},
    }
    unigram = Tokenizer(models.Unigram(scored_pieces(), unk_id=0))
    unigram.add_special_tokens(["<unk>", "</s>"])
    unigram.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    unigram.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    unigram.decoder = decoders.Metaspace(prepend_scheme="always")
    yield "unigram", unigram, {
        "tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "split_special_tokens": True},
        "config": {"model_type": "llama"},
    }


def write(out):
    shutil.rmtree(out, ignore_errors=True)
    for name, tokenizer, files in cases():
        compact = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))
        write_case(out / name, {"tokenizer.json": compact.encode()}, files)
    for name, originals, files in text_converted.cases(CORPUS, byte_level, LLAMA3_WORDS):
        write_case(out / name, originals, files)


def write_case(folder, originals, files):
    folder.mkdir(parents=True)
    for name, content in originals.items():
        (folder / name).write_bytes(content)
    for stem, value in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
    (folder / "golden.json").write_text(golden(folder))


def golden(folder: Path):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encoded = [
        {"text": text, "ids": tokenizer.encode(text), "bare": tokenizer.encode(text, add_special_tokens=False)}
        for text in TEXTS
    ]
    for case in encoded:
        if case["bare"] == case["ids"]:
            del case["bare"]
    chance = random.Random(0)
    draws = [[chance.randrange(len(tokenizer) + 3) for _ in range(chance.randrange(1, 16))] for _ in range(16)]
    draws += [case["ids"] for case in encoded[5:16]]
    decoded = [
        {"ids": ids, "text": tokenizer.decode(ids), "skipped": tokenizer.decode(ids, skip_special_tokens=True)}
        for ids in draws
    ]
    head = {
        "class": type(tokenizer).__name__,
        "vocab_size": len(tokenizer),
        "bos_id": tokenizer.bos_token_id,
        "eos_id": tokenizer.eos_token_id,
        "special_tokens": tokenizer.special_tokens_map,
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
    for key, values in (("encoded", encoded), ("decoded", decoded)):
        rows = ",\n".join("  " + json.dumps(value, ensure_ascii=False) for value in values)
        lines.append(f" {json.dumps(key)}: [\n{rows}\n ]")
    return "{\n" + ",\n".join(lines) + "\n}\n"
