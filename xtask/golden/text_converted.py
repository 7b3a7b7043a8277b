"""Tiny tokenizers in the files that came before tokenizer.json: SentencePiece's models, tekken.json, tiktoken's ranks."""

import base64
import io
import json

import sentencepiece
from transformers.convert_slow_tokenizer import bytes_to_unicode

LLAMA_IDS = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}
GEMMA_IDS = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "pad_piece": "<pad>", "eos_piece": "<eos>", "bos_piece": "<bos>"}
RESERVED = [f"<reserved_{i}>" for i in range(3)]


def trained(corpus, kind, ids=LLAMA_IDS, size=440, normalizer="identity", **settings):
    """The bytes of a model file."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in corpus for line in text.split("\n")),
        model_writer=model,
        model_type=kind,
        vocab_size=size,
        normalization_rule_name=normalizer,
        character_coverage=1.0,
        num_threads=1,
        minloglevel=2,
        **ids,
        **settings,
    )
    return model.getvalue()


def ranks(byte_level, words, size=350):
    """Each token's bytes, in the order of their ranks."""
    byte = {letter: value for value, letter in bytes_to_unicode().items()}
    vocab = json.loads(byte_level(words, [], size=size).to_str())["model"]["vocab"]
    return [bytes(byte[letter] for letter in token) for token in sorted(vocab, key=vocab.get)]


def tiktoken_file(tokens):
    return b"".join(base64.b64encode(token) + f" {rank}\n".encode() for rank, token in enumerate(tokens))


def tekken_file(tokens, words):
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"]
    entry = lambda rank, token: {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
    return {
        "config": {
            "pattern": words,
            "num_vocab_tokens": len(tokens),
            # The last three tokens are beyond the vocabulary.
            "default_vocab_size": len(tokens) + 10 - 3,
            "default_num_special_tokens": 10,
            "version": "v11",
        },
        "vocab": [entry(rank, token) for rank, token in enumerate(tokens)],
        "special_tokens": [{"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(special)],
    }


def cases(corpus, byte_level, words):
    """Name, the tokenizer's file, and the JSON files beside it."""
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    symbols = {"user_defined_symbols": ["[L]", "▁▁", "<sep>"], "control_symbols": ["[R]", "<|end|>"]}
    llama = trained(corpus, "bpe", byte_fallback=True, split_digits=True, **symbols)
    yield "spm_llama", {"tokenizer.model": llama}, {
        "tokenizer_config": {"tokenizer_class": "LlamaTokenizer", "legacy": False, "add_bos_token": True, "add_eos_token": False, **names},
        "config": {"model_type": "llama", "eos_token_id": 2},
    }
    extra = {"content": "<|im_start|>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    yield "spm_llama_legacy", {"tokenizer.model": llama}, {
        "tokenizer_config": {
            "tokenizer_class": "LlamaTokenizer",
            "legacy": True,
            "add_bos_token": True,
            "add_eos_token": True,
            "added_tokens_decoder": {"440": extra, "441": {**extra, "content": "[N]", "special": False, "normalized": True}},
            "additional_special_tokens": [],
            **names,
        },
        "config": {"model_type": "llama"},
    }
    gemma = trained(corpus, "bpe", GEMMA_IDS, byte_fallback=True, user_defined_symbols=["<mask>", "<start_of_turn>", "<end_of_turn>", "\t", "\n\n"])
    yield "spm_gemma", {"tokenizer.model": gemma}, {
        "tokenizer_config": {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True},
        "config": {"model_type": "gemma2", "eos_token_id": [1, 6]},
    }
    # The class that takes the file's word: a normaliser's table, and tokens of the configuration in places that were kept free.
    reserved = trained(corpus, "bpe", normalizer="nmt_nfkc", byte_fallback=True, user_defined_symbols=RESERVED)
    yield "spm_serialized", {"tokenizer.model": reserved}, {
        "tokenizer_config": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "added_tokens_decoder": {"4": {**extra, "content": "<|im_start|>"}, "5": {**extra, "content": "<|im_end|>"}},
            "eos_token": "<|im_end|>",
            "add_bos_token": True,
        },
        "config": {"model_type": "internlm3"},
    }
    unigram = trained(corpus, "unigram", size=200, normalizer="nfkc", byte_fallback=False, hard_vocab_limit=False, **symbols)
    yield "spm_unigram", {"tokenizer.model": unigram}, {"config": {"model_type": "stablelm"}}
    unigram = trained(corpus, "unigram", size=460, byte_fallback=True, hard_vocab_limit=False)
    yield "spm_unigram_bytes", {"tokenizer.model": unigram}, {
        "tokenizer_config": {"add_bos_token": True, "extra_special_tokens": ["<|end|>"]},
        "config": {"model_type": "stablelm"},
    }
    tokens = ranks(byte_level, words)
    tekken = json.dumps(tekken_file(tokens, words), indent=1).encode()
    yield "tekken", {"tekken.json": tekken}, {"config": {"model_type": "ministral3", "eos_token_id": 2}}
    yield "tekken_ends", {"tekken.json": tekken}, {
        "tokenizer_config": {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "tokenizer_class": "LlamaTokenizer"},
        "config": {"model_type": "mistral"},
    }
    yield "tiktoken", {"tiktoken.model": tiktoken_file(tokens)}, {
        "tokenizer_config": {
            "added_tokens_decoder": {"351": {**extra, "content": "[BOS]"}, "354": {**extra, "content": "<|im_end|>"}},
            "extra_special_tokens": ["<|im_start|>", "<|im_end|>"],
            "eos_token": "<|im_end|>",
            "bos_token": "[BOS]",
        },
        "config": {"model_type": "kimi_k25"},
    }
    yield "tiktoken_as_model", {"tokenizer.model": tiktoken_file(tokens)}, {
        "tokenizer_config": {"extra_special_tokens": ["<|begin_of_text|>", "<|eot_id|>"], "eos_token": "<|eot_id|>", "bos_token": "<|begin_of_text|>", "add_bos_token": True},
        "config": {"model_type": "llama"},
    }
