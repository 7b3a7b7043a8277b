"""Trains the tokenizer: byte-level BPE, so any text comes back unchanged; every digit is a token of its own."""

import json
import pathlib

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import corpus

VOCAB = 2048
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]  # ids 0 to 5; the first four are Gemma's

# Gemma 3's shape: the system turn becomes the head of the first user turn, "assistant" is called "model".
CHAT_TEMPLATE = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set head = messages[0]['content'] + '\\n\\n' -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set head = '' -%}
    {%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (head if loop.first else '') }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- else -%}
        {{ raise_exception('Only text content is supported') }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\\n' }}
{%- endif -%}
"""


def vocabulary():
    """The texts that the vocabulary is made from."""
    return corpus.training(60_000, shares=corpus.VOCABULARY)


def train(examples):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\d"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    texts = ["".join(text for text, _ in pieces) for pieces in examples]
    # The special tokens are no text: without this their letters would be counted as words.
    for token in SPECIAL:
        texts = [text.replace(token, "\n") for text in texts]
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", tokenizer.token_to_id("<bos>"))])
    return tokenizer


def save(tokenizer, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, "clean_up_tokenization_spaces": False,
        "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>",
        "chat_template": CHAT_TEMPLATE,
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(token)): {"content": token, "special": True, "lstrip": False, "rstrip": False,
                                                "normalized": False, "single_word": False} for token in SPECIAL}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def encode(tokenizer, examples):
    """Token ids of each example and each token's weight in the loss: an answer counts as four tokens at most.

    Without that bound the stories, mostly free choices, would drown the sums.
    """
    pieces = [piece for example in examples for piece in example]
    ids = iter(tokenizer.encode_batch([text for text, _ in pieces], add_special_tokens=False))
    rows = []
    for example in examples:
        tokens, weights = [], []
        for _, count in example:
            found = next(ids).ids
            tokens += found
            weights += [min(1.0, 4 / len(found)) if count else 0.0] * len(found)
        rows.append((tokens, weights))
    return rows


if __name__ == "__main__":
    made = train(vocabulary())
    rows = encode(made, corpus.training(20_000))
    print("vocabulary", made.get_vocab_size(), "tokens an example", sum(len(t) for t, _ in rows) / len(rows))
    text = "What is 47 + 38? Grüße 🦊 ▁ tab\t  end "
    assert made.decode(made.encode(text, add_special_tokens=False).ids) == text
    print(made.encode("Classify: The compiler is slow. 47+38").tokens)
