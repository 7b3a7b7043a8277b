"""OpenAI's Python client against a server of an encoder, whose address is the argument. Every check is an assertion."""

import sys

import openai

client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
texts = ["The red fox jumps.", "a", "你好"]
answer = client.embeddings.create(model="tiny", input=texts)
vectors = [entry.embedding for entry in answer.data]
assert [entry.index for entry in answer.data] == [0, 1, 2]
assert answer.usage.prompt_tokens == answer.usage.total_tokens > 6
plain = client.embeddings.create(model="tiny", input=texts, encoding_format="float")
for one, other in zip(vectors, plain.data):
    assert len(one) == 32 and abs(sum(x * x for x in one) - 1) < 1e-5
    assert max(abs(x - y) for x, y in zip(one, other.embedding)) < 1e-7
short = client.embeddings.create(model="tiny", input=texts[0], dimensions=8).data[0].embedding
assert len(short) == 8 and abs(sum(x * x for x in short) - 1) < 1e-5
try:
    client.embeddings.create(model="tiny", input=texts, dimensions=33)
    raise AssertionError("it was not refused")
except openai.BadRequestError as error:
    assert "dimensions" in error.message, error
try:
    client.completions.create(model="tiny", prompt="x")
    raise AssertionError("it was not refused")
except openai.BadRequestError as error:
    assert "encoder" in error.message, error
print("openai")
