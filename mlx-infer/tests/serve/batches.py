"""The official client's files and batches against a server of the built-in model, whose address is the first argument."""

import io
import json
import sys
import time

import openai

ADDRESS = sys.argv[1]
URL = "/v1/chat/completions"

client = openai.OpenAI(base_url=f"{ADDRESS}/v1", api_key="none", max_retries=0)


def line(at, **more):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "What is 20 + 22?"}], "temperature": 0, **more}
    return json.dumps({"custom_id": f"request-{at}", "method": "POST", "url": URL, "body": body})


def upload(lines):
    return client.files.create(file=("in.jsonl", io.BytesIO("\n".join(lines).encode())), purpose="batch")


def ended(batch):
    while batch.status in ("validating", "in_progress", "finalizing", "cancelling"):
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    return batch


file = upload([line(at) for at in range(5)] + [line("bad", temperature=-1)])
assert client.files.retrieve(file.id).bytes == file.bytes and file.purpose == "batch"
batch = client.batches.create(input_file_id=file.id, endpoint=URL, completion_window="24h", metadata={"a": "b"})
batch = ended(batch)
assert batch.status == "completed" and batch.metadata == {"a": "b"}, batch
assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (6, 5, 1)
answers = [json.loads(answer) for answer in client.files.content(batch.output_file_id).text.splitlines()]
assert {answer["custom_id"] for answer in answers} == {f"request-{at}" for at in range(5)}
for answer in answers:
    assert answer["response"]["body"]["choices"][0]["message"]["content"] == "42", answer
errors = [json.loads(answer) for answer in client.files.content(batch.error_file_id).text.splitlines()]
assert [error["response"]["status_code"] for error in errors] == [400]

broken = client.batches.create(input_file_id=upload(["{}"]).id, endpoint=URL, completion_window="24h")
broken = ended(broken)
assert broken.status == "failed" and broken.errors.data[0].line == 1, broken

long = upload([line(at, max_tokens=400, extra_body=None, ignore_eos=True) for at in range(300)])
cancelled = client.batches.create(input_file_id=long.id, endpoint=URL, completion_window="24h")
assert client.batches.cancel(cancelled.id).status == "cancelling"
assert ended(cancelled).status == "cancelled"

# The client asks for the pages of a list one by one.
assert [each.id for each in client.batches.list(limit=1)] == [cancelled.id, broken.id, batch.id]
assert file.id in [each.id for each in client.files.list(purpose="batch", order="asc", limit=2)]
assert client.files.delete(file.id).deleted
try:
    client.files.retrieve(file.id)
    raise SystemExit("a deleted file is still there")
except openai.NotFoundError as error:
    assert file.id in str(error)
print("batches: done")
