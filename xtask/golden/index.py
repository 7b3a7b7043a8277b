"""testdata/models/index.json: every case, and the check that the goldens stay small."""

import json
from pathlib import Path

from checkpoint import write_json

MAX_BYTES = 19_000_000  # of the 24 MB for everything under testdata


def write_index(out: Path):
    rows = []
    for file in sorted(out.glob("*/golden.json")):
        golden = json.loads(file.read_text())
        config = json.loads((file.parent / "config.json").read_text())
        kind = "quantized" if "quantization" in config else "float"
        rows.append(
            {"case": file.parent.name, "kind": kind, "model_type": config["model_type"], "covers": golden["covers"]}
        )
    write_json(out / "index.json", rows)
    size = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
    if size > MAX_BYTES:
        raise SystemExit(f"{out.name}: {size} bytes of goldens, more than {MAX_BYTES}")
    print(f"{len(rows)} cases, {size} bytes")
