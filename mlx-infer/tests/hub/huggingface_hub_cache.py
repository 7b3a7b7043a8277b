"""Reads or writes a cache with huggingface_hub, for tests/hub/python.rs.

read CACHE: the model org/name, without a network. write CACHE: fetches it from HF_ENDPOINT.
lock CACHE FILE: whether huggingface_hub can lock the file.
"""

import json
import os
import sys

from huggingface_hub import hf_hub_download, scan_cache_dir, snapshot_download
from huggingface_hub.utils import WeakFileLock


def read(cache):
    snapshot = snapshot_download("org/name", cache_dir=cache, local_files_only=True)
    sizes = {}
    for folder, _, names in os.walk(snapshot):
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), snapshot)
            found = hf_hub_download("org/name", path, cache_dir=cache, local_files_only=True)
            sizes[path] = os.path.getsize(found)
    cached = scan_cache_dir(cache)
    scan = [
        [repo.repo_id, revision.commit_hash, sorted(revision.refs), revision.size_on_disk]
        for repo in cached.repos
        for revision in repo.revisions
    ]
    warnings = [str(warning) for warning in cached.warnings]
    return {"snapshot": os.path.realpath(snapshot), "sizes": sizes, "scan": scan, "warnings": warnings}


def write(cache):
    files = ["config.json", "tokenizer.json", "additional_chat_templates/rag.jinja", "model.safetensors"]
    for file in files:
        path = hf_hub_download("org/name", file, cache_dir=cache)
    return {"snapshot": os.path.realpath(os.path.dirname(os.path.join(os.path.dirname(path), "x")))}


def lock(_cache, file):
    try:
        with WeakFileLock(file, timeout=0.5):
            return {"free": True}
    except Exception as error:
        if type(error).__name__ != "Timeout":
            raise
        return {"free": False}


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    print(json.dumps({"read": read, "write": write, "lock": lock}[command](*arguments)))
